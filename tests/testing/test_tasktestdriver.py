"""Tests for L{pylogbroker.testing.tasktestdriver}."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.kafkapartitioner import keyPartition
from pylogbroker.errors import (
    ConfigurationError,
    ConsumerStateError,
    EncodingError,
    TaskFailedError,
)
from pylogbroker.tasks.api import OutgoingMessageEnvelope, StreamTask
from pylogbroker.tasks.job import DEAD_LETTER, SKIP, Input, Job, Output, Repartition, Store
from pylogbroker.tasks.serdes import INTEGER, JSON, STRING
from pylogbroker.testing import tasktestdriver
from pylogbroker.testing.tasktestdriver import TaskTestDriver
from tests.tasks.jobs import splitAndCount


class CountWords(StreamTask):
    """
    Counts words; sends each new count. Its window sends how many words there are.

    @ivar calls: of C{init} and C{close}, of all tasks.
    """

    calls: list[str] = []

    def init(self, config: Any, context: Any) -> None:
        """Keep the store."""
        self.counts = context.getStore("counts")
        self.taskName = context.taskName
        self.calls.append(f"init {self.taskName}")

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> Any:
        """Count."""
        word = envelope.getMessage()
        if word == "bad":
            raise ValueError("a bad word")
        if word == "stop":
            coordinator.shutdown()
        if word == "commit":
            coordinator.commit()
        count = (self.counts.get(word) or 0) + 1
        self.counts.put(word, count)
        collector.send(OutgoingMessageEnvelope("out", word, count, headers=envelope.headers))

    def window(self, collector: Any, coordinator: Any) -> Any:
        """Send the number of words."""
        count = len(list(self.counts.all()))
        collector.send(OutgoingMessageEnvelope("totals", None, [self.taskName, count], partition=0))

    def close(self) -> Any:
        """Be noticed."""
        self.calls.append(f"close {self.taskName}")


class CountLater(CountWords):
    """The same with coroutines, which wait for what is there already."""

    async def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        """Count."""
        await succeed(None)
        super().process(envelope, collector, coordinator)

    async def window(self, collector: Any, coordinator: Any) -> None:
        """Send the number of words."""
        await succeed(None)
        super().window(collector, coordinator)

    def close(self) -> Any:
        """Be noticed, as a Deferred."""
        return succeed(None).addCallback(lambda _: super(CountLater, self).close())


class WaitsForever(StreamTask):
    """Waits for what no driver has."""

    async def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        """Wait."""
        await Deferred()


def makeJob(task: Any = CountWords, **changes: Any) -> Job:
    """A job that counts words."""
    given: dict[str, Any] = {
        "name": "j",
        "task": task,
        "inputs": [Input("in", STRING, STRING)],
        "outputs": [Output("out", STRING, INTEGER), Output("totals", STRING, JSON)],
        "stores": [Store("counts", STRING, INTEGER)],
        **changes,
    }
    return Job(**given)


class DriverTests(SynchronousTestCase):
    """Records and a clock by hand."""

    def setUp(self) -> None:
        CountWords.calls.clear()

    def test_wordCount(self) -> None:
        """Outputs come decoded, once; stores can be read. Sync and async tasks do the same."""
        for task in (CountWords, CountLater):
            with TaskTestDriver(makeJob(task)) as driver:
                for word in ["to", "be", "or", "not", "to", "be"]:
                    driver.pipeInput("in", None, word)
                self.assertEqual(
                    driver.readOutput("out"),
                    [("to", 1), ("be", 1), ("or", 1), ("not", 1), ("to", 2), ("be", 2)],
                )
                self.assertEqual(driver.readOutput("out"), [])
                self.assertEqual(driver.getStore("counts").get("be"), 2)
                self.assertEqual(
                    list(driver.getStore("counts").all()),
                    [("be", 2), ("not", 1), ("or", 1), ("to", 2)],
                )

    def test_life(self) -> None:
        """Tasks are begun with the driver, and closed with it."""
        with TaskTestDriver(makeJob(), partitionCount=2):
            self.assertEqual(CountWords.calls, ["init j-0", "init j-1"])
        self.assertEqual(CountWords.calls[2:], ["close j-0", "close j-1"])
        TaskTestDriver(makeJob(CountLater)).close()
        self.assertEqual(CountWords.calls[4:], ["init j-0", "close j-0"])

    def test_records(self) -> None:
        """Outputs have times, headers and partitions: the clock's time, unless one is given."""
        driver = TaskTestDriver(makeJob(), nowMs=5_000)
        driver.pipeInput("in", "k", "a", headers=[("h", b"v")])
        driver.pipeInput("in", "k", "a", timestamp=7)
        driver.advanceWallClockTime(1_000)
        driver.pipeInput("in", "k", "a")
        self.assertEqual(driver.nowMs, 6_000)
        self.assertEqual(
            driver.readRecords("out"),
            [
                ("a", 1, 5_000, (("h", b"v"),), None),
                ("a", 2, 7, (), None),
                ("a", 3, 6_000, (), None),
            ],
        )

    def test_tombstone(self) -> None:
        """A message may be none; its output is decoded, too."""

        class Forward(StreamTask):
            def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
                collector.send(OutgoingMessageEnvelope("out", envelope.key, envelope.message))

        driver = TaskTestDriver(makeJob(Forward, stores=[]))
        driver.pipeInput("in", "k", None)
        driver.pipeInput("in", None, None)
        self.assertEqual(driver.readOutput("out"), [("k", None), (None, None)])

    def test_window(self) -> None:
        """The clock calls it each time that it is due, at the time at which it is due."""
        for task in (CountWords, CountLater):
            driver = TaskTestDriver(makeJob(task, windowMs=1_000), nowMs=500)
            driver.pipeInput("in", None, "a")
            driver.advanceWallClockTime(999)
            self.assertEqual(driver.readOutput("totals"), [])
            driver.advanceWallClockTime(1)
            self.assertEqual(driver.readOutput("totals"), [(None, ["j-0", 1])])
            driver.advanceWallClockTime(2_500)
            self.assertEqual(len(driver.readRecords("totals")), 2)
            driver.advanceWallClockTime(500)
            self.assertEqual(driver.readRecords("totals"), [(None, ["j-0", 1], None, (), 0)])
            self.assertEqual(driver.nowMs, 4_500)
        idle = TaskTestDriver(makeJob())
        idle.advanceWallClockTime(10**9)
        self.assertEqual(idle.readOutput("totals"), [])

    def test_partitions(self) -> None:
        """A key has its partition, by Kafka's rule; each partition has a task with its stores."""
        driver = TaskTestDriver(makeJob(windowMs=10), partitionCount=3)
        keys = [f"k{number}" for number in range(20)]
        for key in keys:
            driver.pipeInput("in", key, key)
        driver.pipeInput("in", None, "none")
        driver.pipeInput("in", "k0", "given", partition=2)
        for number in range(3):
            wanted = {key for key in keys if keyPartition(key.encode(), 3) == number}
            wanted |= {"none"} if number == 0 else {"given"} if number == 2 else set()
            found = {key for key, _ in driver.getStore("counts", number).all()}
            self.assertEqual(found, wanted)
            self.assertTrue(found)
        driver.advanceWallClockTime(10)
        self.assertEqual(
            [message[0] for _, message in driver.readOutput("totals")], ["j-0", "j-1", "j-2"]
        )

    def test_repartition(self) -> None:
        """What goes through a repartition comes to the task of its key, also from a window."""

        class Turning(StreamTask):
            """Sends what it gets through the repartition, with the message as the key."""

            def init(self, config: Any, context: Any) -> None:
                """Keep the number."""
                self.partition = context.partition

            def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
                """Send, and send on."""
                topic = "out" if envelope.topic == "turned" else "turned"
                key = envelope.getMessage() if topic == "turned" else str(self.partition)
                sent = OutgoingMessageEnvelope(topic, key, envelope.getMessage())
                collector.send(sent)

            def window(self, collector: Any, coordinator: Any) -> None:
                """Send, without a timestamp."""
                collector.send(OutgoingMessageEnvelope("turned", "w", "w"))

        job = makeJob(
            Turning,
            outputs=[Output("out", STRING, STRING)],
            repartitions=[Repartition("turned", STRING, STRING)],
            windowMs=1_000,
        )
        with TaskTestDriver(job, partitionCount=3) as driver:
            for word in "abcdef":
                driver.pipeInput("in", None, word, timestamp=7)
            tasks = [str(keyPartition(word.encode(), 3)) for word in "abcdef"]
            self.assertGreater(len(set(tasks)), 1)
            found = driver.readRecords("out")
            self.assertEqual(
                [(each.key, each.message) for each in found],
                list(zip(tasks, "abcdef", strict=True)),
            )
            self.assertEqual({each.timestamp for each in found}, {7})
            driver.advanceWallClockTime(1_000)
            found = driver.readRecords("out")
            self.assertEqual([(each.message, each.timestamp) for each in found], [("w", 1_000)] * 3)

    def test_split(self) -> None:
        """The word count with a repartition gives the counts of the one with two jobs."""
        with TaskTestDriver(splitAndCount(), partitionCount=2) as driver:
            driver.pipeInput("lines", None, "to be or not to be")
            counts = [dict(driver.getStore("word-counts", number).all()) for number in (0, 1)]
        self.assertEqual(counts[0] | counts[1], {"to": 2, "be": 2, "or": 1, "not": 1})

    def test_offsets(self) -> None:
        """Each partition of an input counts its own."""
        seen: list[Any] = []

        class See(StreamTask):
            def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
                seen.append((envelope.topic, envelope.partition, envelope.offset))

        inputs = [Input("in", STRING, STRING), Input("other", STRING, STRING)]
        driver = TaskTestDriver(makeJob(See, inputs=inputs), partitionCount=2)
        for topic, partition in (("in", 0), ("in", 0), ("in", 1), ("other", 0), ("in", 0)):
            driver.pipeInput(topic, None, "m", partition=partition)
        self.assertEqual(
            seen, [("in", 0, 0), ("in", 0, 1), ("in", 1, 0), ("other", 0, 0), ("in", 0, 2)]
        )

    def test_changelog(self) -> None:
        """A commit sends each changed key once to the changelog, which can be read as an output."""
        driver = TaskTestDriver(makeJob(stores=[Store("counts", STRING, INTEGER, "counts-log")]))
        for word in ("a", "b", "a"):
            driver.pipeInput("in", None, word)
        self.assertEqual(driver.readOutput("counts-log"), [])
        driver.commit()
        self.assertEqual(driver.readOutput("counts-log"), [("a", 2), ("b", 1)])
        driver.commit()
        self.assertEqual(driver.readOutput("counts-log"), [])
        driver.getStore("counts").delete("a")
        driver.commit()
        self.assertEqual(driver.readRecords("counts-log"), [("a", None, None, (), 0)])
        self.assertEqual(driver.getStore("counts").get("b"), 1)

    def test_commitAsked(self) -> None:
        """A task that asks for a commit gets one, behind its message."""
        driver = TaskTestDriver(makeJob())
        driver.pipeInput("in", None, "a")
        driver.pipeInput("in", None, "commit")
        self.assertEqual(driver.readOutput("j-counts-changelog"), [("a", 1), ("commit", 1)])
        self.assertFalse(driver.isShutdownAsked)
        driver.pipeInput("in", None, "stop")
        self.assertTrue(driver.isShutdownAsked)

    def test_fullIsCommitted(self) -> None:
        """As in a container, what waits for a commit has a limit."""
        self.patch(tasktestdriver, "UNSETTLED_MAX", 1_000)
        driver = TaskTestDriver(makeJob())
        for number in range(20):
            driver.pipeInput("in", None, f"w{number}")
        self.assertGreater(len(driver.readOutput("j-counts-changelog")), 0)
        self.assertLess(driver.getStore("counts").dirtySize, 1_000)
        self.assertEqual(driver.getStore("counts").get("w0"), 1)

    def test_renamed(self) -> None:
        """A renamed job's outputs have its topics' names."""
        driver = TaskTestDriver(makeJob().renamed("v2"))
        driver.pipeInput("in", None, "a")
        self.assertEqual(driver.readOutput("out.v2"), [("a", 1)])


class FailureTests(SynchronousTestCase):
    """What goes wrong."""

    def test_stop(self) -> None:
        """The caller gets what a container ends with; the message has done nothing."""
        for task in (CountWords, CountLater):
            driver = TaskTestDriver(makeJob(task))
            with self.assertRaises(TaskFailedError) as caught:
                driver.pipeInput("in", None, "bad")
            self.assertEqual(
                str(caught.exception),
                "task j-0 failed at offset 0 of partition 0 of in: ValueError: a bad word",
            )
            self.assertEqual(driver.readOutput("out"), [])

    def test_leftOut(self) -> None:
        """C{skip} and C{dead-letter} tell; dead letters are bytes."""
        for onError in (SKIP, DEAD_LETTER):
            driver = TaskTestDriver(makeJob(onError=onError))
            driver.pipeInput("in", "k", "a")
            driver.pipeInput("in", "k", "bad", timestamp=7)
            driver.pipeInput("in", "k", "a")
            self.assertEqual(driver.readOutput("out"), [("a", 1), ("a", 2)])
            self.assertEqual([each.offset for each in driver.leftOut], [1])
            letters = driver.readRecords("j-dead-letters")
            self.assertEqual(
                [each[:3] for each in letters], [(b"k", b"bad", 7)] * (onError == DEAD_LETTER)
            )
            for letter in letters:
                headers = dict(letter.headers)
                self.assertEqual(
                    headers["pylogbroker.dead-letter.reason"], b"ValueError: a bad word"
                )

    def test_refused(self) -> None:
        """Names and partitions that the job does not have, and what its serdes do not take."""
        driver = TaskTestDriver(makeJob(), partitionCount=2)
        for text, call in (
            (
                "topic x is no input of the job; it has: in",
                lambda: driver.pipeInput("x", None, "a"),
            ),
            (
                "topic in is none of the job's; it has: "
                "j-counts-changelog, j-dead-letters, out, totals",
                lambda: driver.readOutput("in"),
            ),
            (
                "partition 2 where there are 2 partitions",
                lambda: driver.pipeInput("in", None, "a", partition=2),
            ),
            (
                "partition -1 where there are 2 partitions",
                lambda: driver.getStore("counts", -1),
            ),
            ("job j has no store 'x'; it has: counts", lambda: driver.getStore("x")),
        ):
            with self.assertRaises(ConfigurationError) as caught:
                call()
            self.assertEqual(str(caught.exception), text)
        self.assertRaises(EncodingError, driver.pipeInput, "in", None, 1)
        self.assertRaises(EncodingError, driver.pipeInput, "in", 1, "a")
        driver.pipeInput("in", None, "a")
        self.assertEqual(driver.readOutput("out"), [("a", 1)])

    def test_waiting(self) -> None:
        """There is no reactor that a task could wait for."""
        driver = TaskTestDriver(makeJob(WaitsForever, stores=[]))
        with self.assertRaises(ConsumerStateError) as caught:
            driver.pipeInput("in", None, "a")
        self.assertIn("this driver has no reactor", str(caught.exception))
