"""Tests of L{pylogbroker.tasks.inputs.queues}."""

from __future__ import annotations

from itertools import groupby
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.consumer.kafka.assignedpartition import ConsumerRecord
from pylogbroker.tasks.inputs.queues import (
    MESSAGE_OVERHEAD,
    NEVER_WAIT,
    InputQueues,
    ReadProgress,
    byPartition,
)
from pylogbroker.types import TopicPartition

A, B, C = (TopicPartition(topic, 0) for topic in "abc")
CASE_COUNT = 300


def message(place: TopicPartition, offset: int, timestamp: int) -> ConsumerRecord:
    """A message of a partition."""
    return ConsumerRecord(*place, offset, timestamp, None, b"", (), 0, 0)


def log(place: TopicPartition, *timestamps: int) -> list[ConsumerRecord]:
    """All messages of a partition."""
    return [message(place, offset, timestamp) for offset, timestamp in enumerate(timestamps)]


def merged(logs: list[list[ConsumerRecord]]) -> list[ConsumerRecord]:
    """What a task gets of whole logs; those with lower ranks stand first. A plain function."""
    rest, found = [list(each) for each in logs], []
    while any(rest):
        first = min((each for each in rest if each), key=lambda each: max(each[0].timestamp, -1))
        found.append(first.pop(0))
    return found


class Reader:
    """
    Reads logs, as a consumer does.

    @ivar ends: how much of each log there is.
    @ivar isKnown: whether it tells where it is.
    """

    def __init__(self, queues: InputQueues, *logs: list[ConsumerRecord]) -> None:
        self.queues = queues
        self.logs = {TopicPartition(*each[0][:2]): each for each in logs}
        self.positions = dict.fromkeys(self.logs, 0)
        self.ends = {place: len(each) for place, each in self.logs.items()}
        self.nowMs = 0.0
        self.isKnown = True

    def fetch(self, place: TopicPartition, count: int) -> None:
        """Take messages in."""
        at = self.positions[place]
        taken = self.logs[place][at : min(at + count, self.ends[place])]
        self.positions[place] += len(taken)
        self.queues.put(place, taken)

    def progress(self, place: TopicPartition) -> ReadProgress:
        """How far it is."""
        if not self.isKnown:
            return ReadProgress(None, None)
        position = self.positions[place]
        return ReadProgress(position, self.ends[place] - position)

    def take(self, countMax: int = 1_000) -> list[ConsumerRecord]:
        """The next messages."""
        return self.queues.take(countMax, self.nowMs, self.progress)

    def names(self) -> str:
        """Topics and offsets of the next messages."""
        return " ".join(f"{each.topic}{each.offset}" for each in self.take())


def makeQueues(
    *places: TopicPartition, idleMs: float = 0, sizeMax: int = 1 << 30, **bootstrapEnds: int
) -> InputQueues:
    """Queues of partitions; those that stand first have lower ranks."""
    queues = InputQueues(idleMs, 3, sizeMax)
    for rank, place in enumerate(places):
        queues.add(place, (rank,), bootstrapEnds.get(place.topic))
    return queues


class MergeTests(SynchronousTestCase):
    """The order of messages."""

    def test_model(self) -> None:
        """
        Random logs with equal, missing and decreasing timestamps, fetched in a random order and in
        random parts: the order is that of a plain function of the logs.
        """
        for seed in range(CASE_COUNT):
            random = Random(seed)
            logs = [
                log(place, *(random.randint(-1, 6) for _ in range(random.randint(1, 8))))
                for place in (A, B, C)[: random.randint(1, 3)]
            ]
            reader = Reader(makeQueues(A, B, C), *logs)
            for place in (A, B, C)[len(logs) :]:
                reader.queues.discard(place)
            found: list[ConsumerRecord] = []
            expected = merged(logs)
            for _step in range(1_000):
                reader.fetch(random.choice(list(reader.logs)), random.randint(0, 3))
                found += reader.take(random.randint(1, 4))
                self.assertEqual(found, expected[: len(found)], f"seed {seed}")
                if len(found) == len(expected):
                    break
            self.assertEqual(found, expected, f"seed {seed}")
            self.assertTrue(reader.queues.isEmpty)

    def test_equalTimes(self) -> None:
        """At the same time the lower rank comes first, with all that it has of that time."""
        reader = Reader(makeQueues(A, B), log(A, 5, 5, 6), log(B, 4, 5, 6))
        reader.fetch(A, 3)
        reader.fetch(B, 3)
        self.assertEqual(reader.names(), "b0 a0 a1 b1 a2 b2")

    def test_noTime(self) -> None:
        """A message without a timestamp comes before all others; a partition keeps its order."""
        reader = Reader(makeQueues(A, B), log(A, 9, 1), log(B, 5, -1, 7))
        reader.fetch(A, 2)
        reader.fetch(B, 3)
        self.assertEqual(reader.names(), "b0 b1 b2 a0 a1")

    def test_one(self) -> None:
        """Where there is one partition nothing is waited for, however its timestamps are."""
        reader = Reader(makeQueues(A), log(A, 3, 1, 2))
        reader.fetch(A, 2)
        self.assertEqual(reader.names(), "a0 a1")
        reader.fetch(A, 1)
        reader.fetch(A, 1)
        self.assertEqual([reader.take(1)[0].offset, reader.names()], [2, ""])

    def test_byPartition(self) -> None:
        """Messages that stand together are put together."""
        records = [*log(A, 1, 2), *log(B, 1), *log(A, 3)]
        self.assertEqual(
            [(place, list(run)) for place, run in byPartition(records)],
            [
                (place, list(run))
                for place, run in groupby(records, lambda e: TopicPartition(*e[:2]))
            ],
        )


class WaitTests(SynchronousTestCase):
    """What is waited for."""

    def start(self, **given: Any) -> Reader:
        """A has 2 of 2 messages in its queue, B nothing of 2."""
        reader = Reader(makeQueues(A, B, **given), log(A, 5, 6), log(B, 1, 7))
        reader.fetch(A, 2)
        return reader

    def test_behind(self) -> None:
        """A partition that is not at its end is waited for, or whose end is not known."""
        reader = self.start()
        self.assertEqual(reader.names(), "")
        reader.isKnown = False
        self.assertEqual(reader.names(), "")
        reader.isKnown = True
        reader.fetch(B, 1)
        self.assertEqual(reader.names(), "b0")  # B may have an earlier one than A
        reader.fetch(B, 1)
        self.assertEqual(reader.names(), "a0 a1 b1")
        self.assertEqual(reader.queues.dueAtMs, None)

    def test_atEnd(self) -> None:
        """One at its end is not waited for, or as long as was asked for."""
        reader = self.start()
        reader.ends[B] = 0
        self.assertEqual(reader.names(), "a0 a1")
        reader = self.start(idleMs=50)
        reader.ends[B] = 0
        reader.nowMs = 1_000
        self.assertEqual((reader.names(), reader.queues.dueAtMs), ("", 1_050))
        reader.nowMs = 1_049
        self.assertEqual((reader.names(), reader.queues.dueAtMs), ("", 1_050))
        reader.ends[B] = 1  # it goes on
        self.assertEqual((reader.names(), reader.queues.dueAtMs), ("", None))
        reader.fetch(B, 1)
        reader.nowMs = 1_060
        self.assertEqual((reader.names(), reader.queues.dueAtMs), ("b0", 1_110))
        reader.nowMs = 1_110
        self.assertEqual((reader.names(), reader.queues.dueAtMs), ("a0 a1", 1_160))

    def test_never(self) -> None:
        """Nothing is waited for."""
        self.assertEqual(self.start(idleMs=NEVER_WAIT).names(), "a0 a1")

    def test_gone(self) -> None:
        """A partition that has gone is not waited for, and its messages are gone, too."""
        reader = self.start()
        reader.queues.discard(B)
        self.assertEqual(reader.names(), "a0 a1")
        reader.queues.put(B, log(B, 1))
        self.assertTrue(reader.queues.isEmpty)

    def test_full(self) -> None:
        """A queue with as many messages as it may have is full."""
        reader = Reader(makeQueues(A, B), log(A, *range(4)), log(B, 1))
        reader.fetch(A, 2)
        self.assertEqual(reader.queues.full(), set())
        reader.fetch(A, 1)
        self.assertEqual(reader.queues.full(), {A})
        self.assertEqual((reader.queues.firstOffset(A), reader.queues.firstOffset(B)), (0, None))
        reader.fetch(B, 1)
        reader.take(1)
        self.assertEqual(reader.queues.full(), set())

    def test_bytes(self) -> None:
        """
        When all queues together have as many bytes as they may, those with messages are full, and
        none that is empty; headers count.
        """
        sizeMax = 3 * MESSAGE_OVERHEAD + 100
        queues = makeQueues(A, B, C, sizeMax=sizeMax)
        reader = Reader(queues, log(A, 1, 2), log(B, 3))
        reader.fetch(A, 2)
        reader.fetch(B, 1)
        self.assertEqual(queues.full(), set())
        large = message(B, 1, 4)._replace(
            key=b"k" * 30, value=None, headers=(("h" * 10, b"v" * 10), ("n", None))
        )
        queues.put(B, [large])
        self.assertEqual(queues.full(), {A, B})
        self.assertEqual(len(queues.take(9, 0, lambda _place: ReadProgress(0, 0))), 4)
        self.assertEqual(queues.full(), set())
        value = b"v" * (sizeMax - MESSAGE_OVERHEAD)
        queues.put(C, [message(C, 0, 1)._replace(value=value[1:])])
        self.assertEqual(queues.full(), set())
        queues.discard(C)
        queues.put(A, [message(A, 0, 1)._replace(value=value)])
        self.assertEqual(queues.full(), {A})
        for place in (B, C):
            queues.discard(place)
        self.assertEqual(len(queues.take(9, 0, reader.progress)), 1)
        queues.put(A, log(A, 1, 2))
        self.assertEqual(queues.full(), set())  # what was taken at once counts no more

    def test_bytesModel(self) -> None:
        """
        With a limit that each message exceeds, and what is full is not read, random logs still
        come whole and in order.
        """
        for seed in range(CASE_COUNT):
            random = Random(seed)
            logs = [
                log(place, *(random.randint(-1, 6) for _ in range(random.randint(1, 8))))
                for place in (A, B, C)
            ]
            reader = Reader(makeQueues(A, B, C, sizeMax=1), *logs)
            expected, found = merged(logs), []
            for _step in range(1_000):
                place = random.choice([A, B, C])
                if place not in reader.queues.full():
                    reader.fetch(place, random.randint(1, 3))
                found += reader.take(random.randint(1, 4))
                if len(found) == len(expected):
                    break
            self.assertEqual(found, expected, f"seed {seed}")


class BootstrapTests(SynchronousTestCase):
    """Partitions that are read first."""

    def test_model(self) -> None:
        """
        Random logs of which some are bootstrapped to a random end: up to there they come alone,
        then all are merged.
        """
        for seed in range(CASE_COUNT):
            random = Random(seed)
            logs = [
                log(place, *(random.randint(0, 6) for _ in range(random.randint(1, 8))))
                for place in (A, B, C)
            ]
            counts = [random.randint(0, len(each)) for each in logs[:2]] + [0]
            ends = {"a": counts[0], "b": counts[1]}
            reader = Reader(makeQueues(A, B, C, **ends), *logs)
            first = [each[:count] for each, count in zip(logs, counts, strict=True)]
            rest = [each[count:] for each, count in zip(logs, counts, strict=True)]
            expected = merged(first) + merged(rest)
            found: list[ConsumerRecord] = []
            for _step in range(1_000):
                reader.fetch(random.choice([A, B, C]), random.randint(0, 3))
                found += reader.take(random.randint(1, 4))
                if len(found) == len(expected):
                    break
            self.assertEqual(found, expected, f"seed {seed}")

    def test_markers(self) -> None:
        """An end behind messages that do not come, such as markers, is reached by the position."""
        reader = Reader(makeQueues(A, B, a=2), log(A, 9), log(B, 1))
        reader.fetch(A, 1)
        reader.fetch(B, 1)
        self.assertEqual(reader.names(), "a0")
        self.assertEqual(reader.names(), "")
        reader.positions[A] = reader.ends[A] = 2
        self.assertEqual(reader.names(), "b0")

    def test_again(self) -> None:
        """What is at its end from the beginning holds nothing up, also before it was fetched."""
        reader = Reader(makeQueues(A, B, a=0), log(A, 1), log(B, 2))
        reader.fetch(B, 1)
        self.assertEqual(reader.names(), "")  # A has an earlier one
        reader.fetch(A, 1)
        self.assertEqual(reader.names(), "a0 b0")
