"""
Publishes log files, line by line, as Avro records with a schema of the registry's: Apache's error logs to the topic C{apache}, sshd's to C{openssh}.

    python publishlogs.py --zookeeper localhost:2181 --registry http://localhost:8081 --apache error.log --openssh auth.log --year 2016

Lines that are no log lines are counted, and the first ones shown. When lines could not be sent, it says so at its end, and exits with status 1.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from typing import Any

from loglines import SCHEMA, ApacheLines, Record, SshdLines, records
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react

from pylogbroker.client.registryclient import RegistryClient
from pylogbroker.producer.producer import Producer
from pylogbroker.schemas.avro import AvroEncoder

TOLD_COUNT_MAX = 5


class ZnodeWarnings:
    """
    What is wrong with lines: counted, and the first ones shown.

    @ivar count: how many there were.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self.count = 0

    def __call__(self, text: str) -> None:
        self.count += 1
        if self.count <= TOLD_COUNT_MAX:
            print(f"{self._what}: {text[:200]}", file=sys.stderr)


class LogPublisher:
    """
    Publishes files.

    @ivar failed: lines that could not be sent.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.failed = ZnodeWarnings("a line was not published")

    async def publish(self, topic: str, path: str, read: Callable[[str], Record | None]) -> None:
        """One file. Lines of one client, or of none, stay in their order."""
        strange, count = ZnodeWarnings("this is no log line"), 0
        with open(path, "rb") as file:
            for record in records(file, read, strange):
                await self._producer.whenReady()
                sent = self._producer.send(topic, record, record["client"] or "")
                sent.addErrback(lambda failure: self.failed(failure.getErrorMessage()))
                count += 1
        print(f"{path}: {count} lines for {topic}, {strange.count} that are none", flush=True)


async def main(reactor: Any, options: Namespace) -> None:
    registry = RegistryClient(reactor, options.registry)
    text = json.dumps(SCHEMA)
    schemaId = 0
    for topic in ("apache", "openssh"):
        schemaId = await registry.register(
            f"{topic}-value", text
        )  # the same for both: an id stands for a schema
    settings = {
        "zk.connect": options.zookeeper,
        "producer.type": "async",
        "compression.codec": "1",
        "confirm": "true",
    }
    producer = Producer(reactor, settings, encoder=AvroEncoder(schemaId, text))
    await producer.start()
    publisher = LogPublisher(producer)
    for path in options.apache:
        await publisher.publish("apache", path, ApacheLines().read)
    for path in options.openssh:
        await publisher.publish("openssh", path, SshdLines(options.year).read)
    await producer.close()
    if publisher.failed.count:
        raise SystemExit(f"{publisher.failed.count} lines were not published")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument(
        "--zookeeper",
        required=True,
        metavar="HOST:PORT[,…][/CHROOT]",
        help="where the brokers are registered",
    )
    parser.add_argument(
        "--registry",
        required=True,
        metavar="URL",
        help="of the schema registry, for instance http://localhost:8081",
    )
    parser.add_argument(
        "--apache", nargs="+", default=[], metavar="FILE", help="error logs of Apache's"
    )
    parser.add_argument(
        "--openssh",
        nargs="+",
        default=[],
        metavar="FILE",
        help="logs of sshd's, as syslog writes them",
    )
    parser.add_argument("--year", type=int, help="of sshd's lines, which have none")
    options = parser.parse_args()
    if options.openssh and options.year is None:
        parser.error("--openssh needs --year")
    react(lambda reactor, options: ensureDeferred(main(reactor, options)), [options])
