"""
What the programs of clients that are not ours (L{tests.integration.confluentmember},
L{tests.integration.aiokafkamember}, L{tests.integration.kafkapythonmember},
L{tests.integration.javamember}) have in common with ours (L{tests.integration.kafkachaosmember}):
the messages that they send, and their names in records.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any, NamedTuple

from tests.integration.chaosprogram import Record

CLICKS, COPIES = "clicks", "copies"
KEY_COUNT = 20
BATCH_COUNT = 40
PAUSE_SECONDS = (0.02, 0.12)
"""Between a producer's bunches of messages."""
_COUNTERS = {"ok": "writtenCount", "failed": "failedCount", "unknown": "unknownCount"}


def placed(topic: str, partition: int) -> str:
    """A partition as it stands in records."""
    return f"{topic}/{partition}"


class AssignmentRecorder:
    """What a client's rebalance listener does: writes down which partitions the member has."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def _tell(self, word: str, partitions: Collection[Any]) -> None:
        self._record.write(word, ",".join(placed(*each) for each in partitions))

    def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        self._tell("assigned", assigned)

    def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        self._tell("revoked", revoked)


def valueName(value: bytes | str | None) -> str:
    """
    What stands for a message in records and logs: producer, number and key, without the padding.
    Kafka's verifiable producer writes a prefix and a number only.
    """
    text = value.decode() if isinstance(value, bytes) else value or ""
    if text.count(".") == 1:
        prefix, _, number = text.partition(".")
        return f"verifiable{prefix}.{number}.verifiable{int(number) % KEY_COUNT}"
    return text.rpartition(".")[0]


class Message(NamedTuple):
    """What a producer sends."""

    number: int
    key: bytes
    value: bytes


class Messages:
    """
    Of one producer, with the books about them: C{sent} before a message is given to the client, and
    one outcome. The keys are the producer's own, since clients have different partitioners.
    """

    def __init__(self, name: str, random: Random, record: Record) -> None:
        self._name = name
        self._random = random
        self._record = record
        self._count = 0
        self._told: Counter[str] = Counter()

    @property
    def openCount(self) -> int:
        """How many have no outcome."""
        return self._count - self._told.total()

    def next(self) -> Message:
        number, self._count = self._count, self._count + 1
        key = f"{self._name}{self._random.randrange(1, KEY_COUNT)}"
        padding = "x" * self._random.randrange(200)
        self._record.write("sent", number)
        value = f"{self._name}.{number}.{key}.{padding}".encode()
        return Message(number, key.encode(), value)

    def acknowledged(self, number: int, topic: str, partition: int, offset: int) -> None:
        self._told["ok"] += 1
        self._record.write("ok", number, placed(topic, partition), offset)

    def unknown(self, number: int, kind: str, text: object) -> None:
        """The client has given a message up."""
        self._told["unknown"] += 1
        self._record.write("unknown", number, kind, text)

    def end(self) -> None:
        if self.openCount:
            self._record.write("trouble", "end", f"{self.openCount} messages without an outcome")
        counters = {name: self._told[word] for word, name in _COUNTERS.items()}
        self._record.write("end", json.dumps(counters))


Program = Callable[[dict[str, Any], Record, threading.Event], None]
"""Runs with options and a record until the event."""


def start(programs: Mapping[str, Program]) -> None:
    """
    Run the program that the command line names, in JSON, with its options. C{SIGTERM} sets the
    event.
    """
    options = json.loads(sys.argv[1])
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    programs[options["program"]](options, Record(options["record"]), over)
