"""
Tests for L{pylogbroker.spark.tasks.processor}, with Spark's own tester of processors, which keeps
state in memory and needs no Java.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import OffsetConflictError, TaskFailedError
from pylogbroker.spark.tasks.processor import (
    INPUT_COLUMNS,
    TaskProcessor,
    inOrder,
    stateNameOf,
)
from pylogbroker.tasks.api import OutgoingMessageEnvelope, StreamTask
from pylogbroker.tasks.job import DEAD_LETTER, SKIP, Input, Job, Output, Store
from pylogbroker.tasks.serdes import INTEGER, STRING
from pylogbroker.tasks.taskinstance import REASON_HEADER, InputRecord
from tests.tasks.jobs import countLines, countWords, splitWords

CACHE_SIZE = 1 << 20
ROW = Row(*INPUT_COLUMNS)


class Recorder(StreamTask):
    """Sends on what it gets, and at C{window} how much that was."""

    def init(self, config: Any, context: Any) -> None:
        self.store = context.getStore("seen")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        self.store.put("count", (self.store.get("count") or 0) + 1)
        collector.send(OutgoingMessageEnvelope("out", envelope.topic, envelope.offset))

    def window(self, collector: Any, coordinator: Any) -> None:
        collector.send(OutgoingMessageEnvelope("out", "count", self.store.get("count")))


def recorder(**changes: Any) -> Job:
    """Of the topics C{b} and C{a}, in this order."""
    return Job(
        "record",
        Recorder,
        [Input("b"), Input("a")],
        [Output("out", STRING, INTEGER)],
        [Store("seen", STRING, INTEGER)],
        **changes,
    )


def row(topic: str, offset: int, key: str | None, value: bytes, timestampMs: int = 5) -> Row:
    """A row of task 0."""
    return ROW(0, topic, 0, offset, timestampMs, key and key.encode(), value, None)


def words(text: str, start: int = 0) -> list[Row]:
    """Words with the count 1."""
    return [
        row("words", start + number, word, INTEGER.encode(1))
        for number, word in enumerate(text.split())
    ]


def sent(rows: list[Row]) -> list[tuple[Any, ...]]:
    """What goes to topics."""
    return [tuple(each)[:6] for each in rows if each.topic is not None]


class OrderTests(SynchronousTestCase):
    """A shuffle loses the order, and it comes back."""

    def test_offsets(self) -> None:
        """Each partition is in the order of its offsets, whatever the timestamps are."""
        rows = [InputRecord("a", 0, number, number % 7, None, None, ()) for number in range(100)]
        mixed = random.Random(1).sample(rows, len(rows))
        self.assertEqual(inOrder(mixed, recorder()), rows)

    def test_timestamps(self) -> None:
        """
        The head with the least timestamp is next; of equals that of the input that the job names
        first, then that of the lower partition. One without a timestamp comes first.
        """
        found = inOrder(
            [
                InputRecord("a", 0, 0, 3, None, None, ()),
                InputRecord("a", 0, 1, 2, None, None, ()),
                InputRecord("b", 1, 0, 3, None, None, ()),
                InputRecord("b", 0, 0, 3, None, None, ()),
                InputRecord("b", 0, 1, -1, None, None, ()),
                InputRecord("b", 0, 2, 4, None, None, ()),
            ],
            recorder(),
        )
        self.assertEqual(
            [each[:3] for each in found],
            [("b", 0, 0), ("b", 0, 1), ("b", 1, 0), ("a", 0, 0), ("a", 0, 1), ("b", 0, 2)],
        )

    def test_twice(self) -> None:
        """An offset that is there twice is an error."""
        rows = [InputRecord("a", 0, 7, 0, None, None, ())] * 2
        error = self.assertRaises(OffsetConflictError, inOrder, rows, recorder())
        self.assertEqual(str(error), "a, partition 0: offset 7 is there twice")


class ProcessorTests(SynchronousTestCase):
    """Micro-batches of one task."""

    def newTester(self, job: Job, cacheSize: int = CACHE_SIZE) -> TwsTester:
        mode = "ProcessingTime" if job.windowMs else "None"
        return TwsTester(TaskProcessor(job, cacheSize), timeMode=mode)

    def stored(self, tester: TwsTester, store: str) -> dict[str, int]:
        """A store's entries."""
        found = tester.peekMapState(stateNameOf(store), 0)
        return {key.decode(): INTEGER.decode(value) for (key,), (value,) in found.items()}

    def test_stateless(self) -> None:
        """What a task sends leaves with the timestamp of its message; a row counts messages."""
        tester = self.newTester(splitWords())
        rows = tester.test(0, [row("lines", 0, None, b"to be", 9), row("lines", 1, None, b"to")])
        one = INTEGER.encode(1)
        self.assertEqual(
            sent(rows),
            [
                ("words", None, b"to", one, None, 9),
                ("words", None, b"be", one, None, 9),
                ("words", None, b"to", one, None, 5),
            ],
        )
        self.assertEqual(tuple(rows[-1])[6:], (2, 0, 0))

    def test_state(self) -> None:
        """
        State lasts from one micro-batch to the next. Changes leave for the changelog, each key
        once in a micro-batch, in the partition of the task.
        """
        tester = self.newTester(countWords())
        rows = tester.test(0, words("to be or not to be"))
        self.assertEqual(
            {(each[2], each[3]) for each in sent(rows)},
            {
                (word.encode(), INTEGER.encode(count))
                for word, count in Counter(["to", "be", "or", "not", "to", "be"]).items()
            },
        )
        self.assertEqual(len(sent(rows)), 4)
        self.assertEqual(
            {each[:2] + each[4:] for each in sent(rows)}, {("word-counts", 0, None, None)}
        )
        rows = tester.test(0, words("to do", 6))
        self.assertEqual(len(sent(rows)), 2)
        self.assertEqual(
            self.stored(tester, "word-counts"), {"to": 3, "be": 2, "or": 1, "not": 1, "do": 1}
        )

    def test_order(self) -> None:
        """Rows are handled in their order, not in that in which they come."""
        tester = self.newTester(recorder())
        rows = [row("a", number, None, b"", number) for number in range(50)]
        found = tester.test(0, random.Random(2).sample(rows, len(rows)))
        offsets = [INTEGER.decode(each[3]) for each in sent(found) if each[0] == "out"]
        self.assertEqual(offsets, list(range(50)))

    def test_cache(self) -> None:
        """What is written leaves for the state when it reaches the cache's size."""
        tester = self.newTester(countWords(), cacheSize=1000)
        rows = tester.test(0, words(" ".join(f"word{number % 20}" for number in range(60))))
        self.assertGreater(len(sent(rows)), 20)
        self.assertEqual(
            self.stored(tester, "word-counts"), {f"word{number}": 3 for number in range(20)}
        )

    def test_again(self) -> None:
        """An offset that the state has handled is an error; a gap is none."""
        tester = self.newTester(countWords())
        tester.test(0, words("a b c"))
        error = self.assertRaises(OffsetConflictError, tester.test, 0, words("c d", 2))
        self.assertEqual(
            str(error),
            "job count-words, task 0: words, partition 0: offset 2 comes again, and the state has"
            " all before 3: state and checkpoint do not belong together",
        )
        tester.test(0, words("d", 7))
        self.assertEqual(self.stored(tester, "word-counts"), dict.fromkeys("abcd", 1))

    def test_stop(self) -> None:
        """A message that cannot be handled fails the micro-batch, and is named."""
        tester = self.newTester(countWords())
        error = self.assertRaises(TaskFailedError, tester.test, 0, words("good bad"))
        self.assertEqual((error.topic, error.partition, error.offset), ("words", 0, 1))

    def test_skip(self) -> None:
        """It is left out, with what it did, and counted."""
        tester = self.newTester(countWords(onError=SKIP))
        rows = tester.test(0, words("good bad good"))
        self.assertEqual(self.stored(tester, "word-counts"), {"good": 2})
        self.assertEqual(tuple(rows[-1])[6:], (3, 1, 0))

    def test_deadLetter(self) -> None:
        """Or it goes to the dead letters, with the reason in its headers."""
        tester = self.newTester(countWords(onError=DEAD_LETTER))
        rows = tester.test(0, words("good bad"))
        [letter] = [each for each in rows if each.topic == "count-words-dead-letters"]
        self.assertEqual((letter.key, letter.value), (b"bad", INTEGER.encode(1)))
        headers = {pair["key"]: pair["value"] for pair in letter.headers}
        self.assertEqual(headers[REASON_HEADER], b"ValueError: a bad word")

    def test_shutdown(self) -> None:
        """A task that asks for the end is reported; what came with the message is handled, too."""
        tester = self.newTester(countWords())
        rows = tester.test(0, words("enough good"))
        self.assertEqual(tuple(rows[-1])[6:], (2, 0, 1))

    def test_window(self) -> None:
        """C{window} is called each time that it is due, also without messages, and sees stores."""
        tester = self.newTester(recorder(windowMs=1000))
        tester.setProcessingTime(10_000)
        tester.test(0, [row("a", 0, None, b"")])
        tester.test(0, [row("a", 1, None, b"")])
        self.assertEqual(sent(tester.setProcessingTime(10_999)), [])
        for nowMs in (11_000, 12_500):
            rows = tester.setProcessingTime(nowMs)
            self.assertEqual(sent(rows), [("out", None, b"count", INTEGER.encode(2), None, None)])
        self.assertEqual(sent(tester.setProcessingTime(13_499)), [])
        self.assertEqual(len(sent(tester.setProcessingTime(13_500))), 1)

    def test_repartition(self) -> None:
        """
        What goes to a repartition topic is numbered, and what comes again from there, since a
        micro-batch was repeated, is left out; its task sees no header of ours.
        """
        topic = "count-lines-by-word-repartition"
        tester = self.newTester(countLines())
        first = tester.test(0, [row("lines", 0, None, b"a b")])
        second = tester.test(0, [row("lines", 1, None, b"a")])
        words = [each for each in (*first, *second) if each.topic == topic]
        self.assertEqual(
            [(each.key, each.headers[0]["value"]) for each in words],
            [(b"a", b"0:0"), (b"b", b"0:1"), (b"a", b"0:2")],
        )

        def again(offset: int, number: int) -> Row:
            sent = words[number]
            headers = [each.asDict() for each in sent.headers]
            return ROW(0, topic, 0, offset, 5, sent.key, sent.value, headers)

        rows = tester.test(0, [again(0, 0), again(1, 1), again(2, 0), again(3, 1)])
        self.assertEqual(tuple(rows[-1])[6:], (2, 0, 0))
        tester.test(0, [again(4, 1), again(5, 2)])
        self.assertEqual(self.stored(tester, "word-counts"), {"a": 2, "b": 1})
        plain = ROW(0, topic, 0, 6, 5, b"b", INTEGER.encode(4), None)
        tester.test(0, [plain])
        self.assertEqual(self.stored(tester, "word-counts"), {"a": 2, "b": 5})
