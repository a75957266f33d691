"""
Tests of L{pylogbroker.spark.tasks.operatorstages}, without Spark: sums of partial counts are made
here as Spark makes them, in micro-batches.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.kafkapartitioner import keyPartition
from pylogbroker.errors import ResultFailedError, TaskFailedError
from pylogbroker.spark.tasks.operatorplan import obstaclesOf, operatorPlan
from pylogbroker.spark.tasks.operatorstages import CountStage, ResultStage, SentStage
from pylogbroker.tasks.job import DEAD_LETTER, Job
from pylogbroker.tasks.serdes import INTEGER, JSON, LONG, STRING
from pylogbroker.tasks.streams import KStream, ValueAndTimestamp, buildJob, stream
from pylogbroker.tasks.taskinstance import REASON_HEADER, InputRecord
from pylogbroker.testing.tasktestdriver import TaskTestDriver

UNSETTLED_MAX = 1 << 20
TASK_COUNT = 3
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Sent = tuple[Any, ...]


def batchOf(records: Sequence[InputRecord]) -> pa.RecordBatch:
    """Rows of our source."""
    headers = [[{"key": n, "value": v} for n, v in each.headers] or None for each in records]
    columns = [list(column) for column in zip(*records, strict=True)][:-1]
    kinds = [pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    names = ["topic", "partition", "offset", "timestampMs", "key", "value", "headers"]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(headers, HEADERS)], names=names)


def rowsOf(batches: Iterator[pa.RecordBatch]) -> list[Sent]:
    """The rows of batches."""
    return [row for each in batches for row in zip(*each.to_pydict().values(), strict=True)]


class CompiledJob:
    """
    A job as Spark runs it.

    @ivar sent: topic, partition, key, value, headers and timestamp of all messages so far.
    @ivar doneCounts: messages that were handled, and those that failed.
    """

    def __init__(self, job: Job, unsettledMax: int = UNSETTLED_MAX) -> None:
        assert not obstaclesOf(job)
        plan = operatorPlan(job.steps)
        self._source: CountStage | SentStage = SentStage(job, plan, unsettledMax)
        self._result: ResultStage | None = None
        if plan.counts:
            self._source = CountStage(job, plan, TASK_COUNT, unsettledMax)
            self._result = ResultStage(job, plan)
        self._state: dict[tuple[Any, ...], tuple[int, int]] = {}
        self.sent: list[Sent] = []
        self.doneCounts = [0, 0]

    def run(self, records: Sequence[InputRecord], size: int = 7) -> None:
        """A micro-batch, whose rows come in Arrow batches of a size."""
        batches = [batchOf(records[at : at + size]) for at in range(0, len(records), size)]
        changed: dict[tuple[Any, ...], tuple[int, int]] = {}
        for *row, handled, failed in rowsOf(self._source(batches)):
            self.doneCounts[0] += handled
            self.doneCounts[1] += failed
            if row[0] is None:
                continue
            if self._result is None:
                self.sent.append(tuple(row))
                continue
            *place, count, timestamp = row
            before, last = self._state.get(tuple(place), (0, -1))
            sums = before + count, max(last, timestamp)
            changed[tuple(place)] = self._state[tuple(place)] = sums
        if changed:
            assert self._result is not None
            found = [(*place, *sums) for place, sums in changed.items()]
            kinds = [pa.string(), pa.int32(), pa.binary(), pa.int64(), pa.int64()]
            arrays = [pa.array(c, k) for c, k in zip(zip(*found, strict=True), kinds, strict=True)]
            batch = pa.RecordBatch.from_arrays(arrays, names=list("abcde"))
            self.sent += rowsOf(self._result([batch]))

    def sentTo(self, topic: str) -> list[Sent]:
        """Without the topic."""
        return [each[1:] for each in self.sent if each[0] == topic]


def messages(count: int, chance: random.Random) -> list[InputRecord]:
    """Lines of words, some without a key or a message, in partitions of their own choice."""
    offsets = [0] * TASK_COUNT
    found = []
    for number in range(count):
        partition = chance.randrange(TASK_COUNT)
        text = " ".join(chance.choices(["a", "b", "c", "ä", "d e"], k=chance.randrange(5)))
        key = chance.choice([None, b"k", b"l"])
        value = text.encode() if chance.random() < 0.9 else None
        headers = (("h", b"%d" % number),) if chance.random() < 0.2 else ()
        time = 1_000 + number * 10 + chance.randrange(-50, 50)
        found.append(InputRecord("lines", partition, offsets[partition], time, key, value, headers))
        offsets[partition] += 1
    return found


def driven(job: Job, records: Sequence[InputRecord]) -> TaskTestDriver:
    """A driver that has handled the messages, and committed."""
    driver = TaskTestDriver(job, TASK_COUNT)
    for topic, partition, _, time, key, value, headers in records:
        message = None if value is None else value.decode()
        driver.pipeInput(topic, key and key.decode(), message, time, headers, partition)
    driver.commit()
    return driver


def lines() -> KStream:
    """The stream that tests begin with."""
    return stream("lines", STRING, STRING)


class SourceTests(SynchronousTestCase):
    """Steps without state."""

    def test_asTasks(self) -> None:
        """
        Messages are those that tasks send, in their order, with headers and times: also behind a
        repartition, which leaves out what has no key, and gives what its serdes make of a message.
        """
        words = lines().filter(lambda _, line: line).flatMapValues(str.split, STRING)
        pairs = words.map(lambda key, word: (word, (key, word)), STRING, JSON)
        plain = pairs.mapValues(lambda found: type(found).__name__, STRING).to("plain")
        moved = lines().repartition("by-line").mapValues(lambda line: [line], JSON).to("moved")
        lists = pairs.repartition("by-word").mapValues(lambda found: type(found).__name__, STRING)
        job = buildJob("job", plain, moved, lists.to("lists"))
        given = sorted(messages(100, random.Random(1)), key=lambda each: each.partition)
        compiled = CompiledJob(job)
        compiled.run(given)
        self.assertEqual(compiled.doneCounts, [100, 0])
        with driven(job, given) as driver:
            for topic, message in (("plain", STRING), ("moved", JSON), ("lists", STRING)):
                found = [
                    (key.decode(), message.decode(value), time, _pairs(headers), partition)
                    for partition, key, value, headers, time in compiled.sentTo(topic)
                ]
                wanted = [
                    (key, value, time, tuple(headers), partition)
                    for key, value, time, headers, partition in driver.readRecords(topic)
                ]
                self.assertGreater(len(wanted), 50)
                self.assertEqual(sorted(found, key=repr), sorted(wanted, key=repr))
                if topic == "plain":
                    self.assertEqual(found, wanted)

    def test_failure(self) -> None:
        """A message that cannot be handled is named, with its place."""
        job = buildJob("job", lines().mapValues(lambda line: 1 // len(line), INTEGER).to("out"))
        given = [InputRecord("lines", 2, 4 + n, 1, None, v, ()) for n, v in enumerate((b"x", b""))]
        with self.assertRaisesRegex(
            TaskFailedError,
            "task job-2 failed at offset 5 of partition 2 of lines: ZeroDivisionError: ",
        ):
            CompiledJob(job).run(given)

    def test_deadLetters(self) -> None:
        """What a failed message has sent is taken back, and the message is a dead letter."""
        job = buildJob(
            "job",
            lines()
            .flatMapValues(lambda line: (1 // (3 - n) for n in range(len(line))), INTEGER)
            .to("out"),
            onError=DEAD_LETTER,
        )
        given = [InputRecord("lines", 0, n, 1, None, v, ()) for n, v in enumerate((b"12", b"1234"))]
        compiled = CompiledJob(job)
        compiled.run(given)
        self.assertEqual(compiled.doneCounts, [2, 1])
        self.assertEqual(len(compiled.sentTo("out")), 2)
        [(_, key, value, headers, _)] = compiled.sentTo("job-dead-letters")
        self.assertEqual((key, value), (None, b"1234"))
        self.assertIn(b"ZeroDivisionError", dict(_pairs(headers))[REASON_HEADER] or b"")


class CountTests(SynchronousTestCase):
    """Counts, and what comes of them."""

    def test_asTasks(self) -> None:
        """
        After each micro-batch the last value of each key is that of tasks: in outputs, and in
        changelogs, byte by byte, in the partitions of the tasks. An output has none that tasks do
        not send.
        """
        for seed in range(20):
            chance = random.Random(seed)
            moved = lines().filter(lambda _, line: line).flatMapValues(str.split, STRING)
            counts = moved.groupBy(lambda _, word: word, STRING).count("words")
            few = counts.filter(lambda word, count: count < 5 and word != "a").toStream("few")
            lengths = lines().groupByKey().count("keys").mapValues(lambda n: n * 10, LONG)
            job = buildJob("job", counts, few.to("few"), lengths.toStream("lengths").to("lengths"))
            given = messages(60, chance)
            compiled = CompiledJob(job, unsettledMax=chance.choice([1, 500, UNSETTLED_MAX]))
            cuts = sorted(chance.sample(range(len(given)), 3))
            for start, end in zip([0, *cuts], [*cuts, len(given)], strict=True):
                compiled.run(given[start:end])
            with driven(job, given) as driver:
                self.assertChangelogs(job, compiled, driver)
                for topic in ("few", "lengths"):
                    wanted = driver.readRecords(topic)
                    sent = [
                        (key.decode(), None if value is None else LONG.decode(value), time)
                        for _, key, value, _, time in compiled.sentTo(topic)
                    ]
                    if topic == "few":  # else a key is in several tasks
                        last = {key: value for key, value, _ in sent}
                        self.assertEqual(last, {each.key: each.message for each in wanted})
                    self.assertLessEqual(set(sent), {each[:3] for each in wanted})
            self.assertEqual(compiled.doneCounts, [60, 0])

    def assertChangelogs(self, job: Job, compiled: CompiledJob, driver: TaskTestDriver) -> None:
        """The last values of all stores are those of tasks."""
        for store in job.stores:
            topic = job.changelogOf(store)
            found = {}
            for partition, key, value, headers, time in compiled.sentTo(topic):
                self.assertEqual((headers, time), (None, None))
                found[partition, key] = value
            wanted = {
                (each.partition, store.key.encode(each.key)): store.value.encode(each.message)
                for each in driver.readRecords(topic)
            }
            self.assertEqual(found, wanted)

    def test_tasks(self) -> None:
        """
        A key of a topic counts in the task of its partition, and a new one in the task that its
        bytes have; the timestamp is the greatest one.
        """
        job = buildJob(
            "job",
            lines().groupByKey().count("old"),
            lines().groupBy(lambda key, line: len(line), INTEGER).count("new"),
        )
        compiled = CompiledJob(job)
        times = [(0, 9), (1, 8), (0, 7)]
        compiled.run(
            [InputRecord("lines", p, n, t, b"k", b"four", ()) for n, (p, t) in enumerate(times)]
        )
        value = job.stores[0].value
        self.assertEqual(
            sorted(row[:3] for row in compiled.sentTo("job-old-changelog")),
            [
                (0, b"k", value.encode(ValueAndTimestamp(2, 9))),
                (1, b"k", value.encode(ValueAndTimestamp(1, 8))),
            ],
        )
        four = INTEGER.encode(4)
        self.assertEqual(
            [row[:3] for row in compiled.sentTo("job-new-changelog")],
            [(keyPartition(four, TASK_COUNT), four, value.encode(ValueAndTimestamp(3, 9)))],
        )

    def test_wrongKey(self) -> None:
        """A key that its serde does not encode is the fault of its message."""
        job = buildJob("job", lines().groupBy(lambda key, line: 7, STRING).count())
        with self.assertRaisesRegex(TaskFailedError, "job-0 failed at offset 0 .* no text in UTF"):
            CompiledJob(job).run([InputRecord("lines", 0, 0, 1, None, b"x", ())])

    def test_failure(self) -> None:
        """What fails behind a count has no one message: the step and the key are named."""
        counts = lines().groupByKey().count("counts")
        job = buildJob("job", counts.toStream().mapValues(lambda n: 1 // (n - 1), LONG).to("out"))
        with self.assertRaisesRegex(
            ResultFailedError, "job job failed behind step counts, for the key b'k': ZeroDivision"
        ):
            CompiledJob(job).run([InputRecord("lines", 0, 0, 1, b"k", b"x", ())])


def _pairs(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((each["key"], each["value"]) for each in headers or ())
