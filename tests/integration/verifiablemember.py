"""
Kafka's verifiable producer and verifiable consumer for L{tests.integration.clusterclients}, as its
own system tests run them. This process starts one, and writes down what it says in the words of
L{tests.integration.kafkachaosmember}.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.integration.chaosprogram import Record
from tests.integration.javamember import classPath
from tests.integration.kafkatools import JAVA_OPTIONS, TOOLS
from tests.integration.numberedmessages import placed, valueName


def _places(partitions: Iterable[dict[str, Any]]) -> str:
    return ",".join(placed(each["topic"], each["partition"]) for each in partitions)


class _Witness:
    """Takes the events of a tool."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._counts: Counter[str] = Counter()

    def take(self, event: dict[str, Any]) -> None:
        """The other events say nothing more."""
        name = event["name"]
        if name in ("producer_send_success", "producer_send_error"):
            self._sent(event)
        elif name in ("partitions_assigned", "partitions_revoked"):
            self._record.write(name.removeprefix("partitions_"), _places(event["partitions"]))
        elif name == "record_data":
            place = placed(event["topic"], event["partition"])
            self._record.write("got", place, event["offset"], valueName(event["value"]))
        elif name == "offsets_committed":
            self._committed(event)

    def _sent(self, event: dict[str, Any]) -> None:
        number = int(event["value"].partition(".")[2])
        self._record.write("sent", number)
        if event["name"] == "producer_send_success":
            self._counts["writtenCount"] += 1
            place = placed(event["topic"], event["partition"])
            self._record.write("ok", number, place, event["offset"])
        else:
            self._counts["unknownCount"] += 1
            self._record.write("unknown", number, event["exception"], event["message"])

    def _committed(self, event: dict[str, Any]) -> None:
        if not event["success"]:
            self._record.write("error", "commit", event.get("error"))
            return
        for each in event["offsets"]:
            place = placed(each["topic"], each["partition"])
            self._record.write("committed", place, each["offset"])

    def end(self) -> None:
        self._record.write("left")
        names = ("writtenCount", "failedCount", "unknownCount")
        self._record.write("end", json.dumps({each: self._counts[each] for each in names}))


def main() -> None:
    """Run the tool that the command line names, in JSON, until C{SIGTERM}."""
    options = json.loads(sys.argv[1])
    command = ["java", *JAVA_OPTIONS, "-cp", classPath(), f"{TOOLS}.{options['tool']}"]
    process = subprocess.Popen([*command, *options["arguments"]], stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    witness = _Witness(Record(options["record"]))
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            witness.take(json.loads(line))
    process.wait()
    witness.end()


if __name__ == "__main__":
    main()
