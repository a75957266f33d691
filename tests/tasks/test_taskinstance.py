"""Tests for L{pylogbroker.tasks.taskinstance}."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.consumer.kafka.assignedpartition import ConsumerRecord
from pylogbroker.errors import (
    ConfigurationError,
    EncodingError,
    StorageError,
    TaskFailedError,
    TaskOutputError,
)
from pylogbroker.tasks.api import OutgoingMessageEnvelope, StreamTask, SystemStream
from pylogbroker.tasks.job import (
    DEAD_LETTER,
    SKIP,
    STOP,
    Input,
    Job,
    Output,
    Repartition,
    Store,
)
from pylogbroker.tasks.serdes import BYTES, INTEGER, STRING
from pylogbroker.tasks.state.engines import ChangelogMark
from pylogbroker.tasks.state.keyvaluestore import ENTRY_OVERHEAD, KeyValueStore
from pylogbroker.tasks.state.memoryengine import MemoryEngine
from pylogbroker.tasks.taskinstance import (
    OUTPUT_OVERHEAD,
    REASON_SIZE_MAX,
    OutgoingRecord,
    TaskInstance,
)
from pylogbroker.testing.tasktestdriver import TaskTestDriver
from pylogbroker.types import TopicPartition

R = "j-r-repartition"

Step = Callable[[TaskInstance, str], Any]
"""What a task does with a message."""


def consumed(
    offset: int,
    value: bytes | None = b"m",
    key: bytes | None = b"k",
    timestamp: int = 1_000,
    topic: str = "in",
    partition: int = 2,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> ConsumerRecord:
    """A message as a consumer gives it."""
    return ConsumerRecord(topic, partition, offset, timestamp, key, value, headers, -1, 0)


def refuse(task: TaskInstance, message: str) -> None:
    """Fail for C{bad}, behind effects that must be taken back; else count and pass on."""
    store = task.getStore("s")
    store.put(message, (store.get(message) or 0) + 1)
    store.delete("gone")
    task.send(OutgoingMessageEnvelope("out", message, 1))
    if message == "bad":
        raise ValueError("too bad")


class BrokenEngine(MemoryEngine):
    """Its disk cannot be read."""

    def get(self, key: bytes) -> bytes | None:
        """Fail."""
        raise StorageError("state", "read", "broken")


class InstanceTestCase(SynchronousTestCase):
    """
    Makes tasks.

    @ivar handled: the envelopes that the author's object has got.
    @ivar leftOut: what C{onLeftOut} was told.
    """

    def setUp(self) -> None:
        self.handled: list[Any] = []
        self.leftOut: list[TaskFailedError] = []

    def newTask(
        self,
        step: Step = lambda task, message: None,
        unsettledMax: int = 1 << 20,
        isAsync: bool = False,
        engine: MemoryEngine | None = None,
        recordSizeMax: float = inf,
        **changes: Any,
    ) -> TaskInstance:
        """
        A task that does C{step} with each message.

        @param changes: of the job.
        """
        handled = self.handled

        class Stepping(StreamTask):
            def process(self, envelope: Any, collector: Any, coordinator: Any) -> Any:
                handled.append(envelope)
                return step(collector, envelope.message)

            def window(self, collector: Any, coordinator: Any) -> Any:
                return step(collector, "window")

        class AsyncStepping(Stepping):
            async def process(self, envelope: Any, collector: Any, coordinator: Any) -> Any:
                handled.append(envelope)
                result = step(collector, envelope.message)
                if isinstance(result, Deferred):
                    await result

        given: dict[str, Any] = {
            "name": "j",
            "task": AsyncStepping if isAsync else Stepping,
            "inputs": [Input("in", STRING, STRING), Input("other", BYTES, STRING)],
            "outputs": [Output("out", STRING, INTEGER)],
            "stores": [Store("s", STRING, INTEGER)],
            **changes,
        }
        job = Job(**given)
        stores = {
            each.name: KeyValueStore[Any, Any](
                each.name, each.key, each.value, engine or MemoryEngine(), 1 << 20
            )
            for each in job.stores
        }
        return TaskInstance(job, 2, stores, unsettledMax, self.leftOut.append, recordSizeMax)


class ProcessTests(InstanceTestCase):
    """Messages are handled."""

    def test_repartition(self) -> None:
        """Its name stands for its topic, both ways; positions and dead letters have the topic."""

        def turn(task: TaskInstance, message: str) -> None:
            task.send(OutgoingMessageEnvelope("r", "k", len(message)))

        task = self.newTask(
            turn,
            inputs=[Input("in", STRING, STRING)],
            repartitions=[Repartition("r", STRING, INTEGER)],
            onError=DEAD_LETTER,
        )
        task.process([consumed(4, b"four"), consumed(7, INTEGER.encode(4), topic=R)])
        (sent, letter) = task.takeOutputs()
        self.assertEqual((sent.topic, sent.value), (R, INTEGER.encode(4)))
        self.assertEqual([each.topic for each in self.handled], ["in", "r"])
        self.assertEqual(dict(letter.headers)["pylogbroker.dead-letter.topic"], R.encode())
        self.assertEqual(task.positions, {TopicPartition("in", 2): 5, TopicPartition(R, 2): 8})

    def test_made(self) -> None:
        """The author's object is made once."""
        made: list[StreamTask] = []

        def make() -> StreamTask:
            made.append(StreamTask())
            return made[-1]

        job = Job("j", make, [Input("in")])
        self.assertFalse(TaskInstance(job, 0, {}, 1, self.leftOut.append).isAsync)
        self.assertEqual(len(made), 1)
        TaskTestDriver(job).close()
        self.assertEqual(len(made), 2)

    def test_counters(self) -> None:
        """They have names, and keep what they count."""
        task = self.newTask()
        task.getCounter("late").increment()
        task.getCounter("late").increment(2)
        task.getCounter("odd")
        self.assertEqual(
            {n: each.count for n, each in task.counters.items()}, {"late": 3, "odd": 0}
        )

    def test_order(self) -> None:
        """Each partition's messages in the order in which they are given; positions follow."""
        task = self.newTask()
        records = [
            consumed(5, b"a"),
            consumed(0, b"b", topic="other"),
            consumed(8, b"c"),  # compaction has left a hole
            consumed(1, b"d", topic="other"),
        ]
        self.assertEqual(task.process(records), 4)
        self.assertEqual(
            [(each.topic, each.offset, each.message) for each in self.handled],
            [("in", 5, "a"), ("other", 0, "b"), ("in", 8, "c"), ("other", 1, "d")],
        )
        self.assertEqual(
            task.positions, {TopicPartition("in", 2): 9, TopicPartition("other", 2): 2}
        )
        self.assertEqual((task.handledCount, task.failedCount), (4, 0))
        self.assertEqual(repr(task), "<TaskInstance j-2, 4 messages handled>")

    def test_envelope(self) -> None:
        """Keys and messages are decoded by their input's serdes; what is not there is C{None}."""
        task = self.newTask()
        headers = (("h", b"v"), ("n", None))
        task.process(
            [
                consumed(5, b"\xc3\xa4", b"k", 7, headers=headers),
                consumed(6, None, None, -1),
                consumed(0, b"x", b"\xff", topic="other"),
            ]
        )
        self.assertEqual(
            self.handled,
            [
                ("in", 2, 5, 7, "k", "ä", headers),
                ("in", 2, 6, -1, None, None, ()),
                ("other", 2, 0, 1_000, b"\xff", "x", ()),
            ],
        )

    def test_start(self) -> None:
        """A call goes on where the last one has stopped."""
        task = self.newTask(lambda task, message: task.commit())
        records = [consumed(number) for number in range(3)]
        self.assertEqual(task.process(records), 1)
        self.assertTrue(task.isFull)
        task.isCommitAsked = False
        self.assertEqual(task.process(records, 1), 2)
        task.isCommitAsked = False
        self.assertEqual(task.process(records, 2), 3)
        self.assertEqual([each.offset for each in self.handled], [0, 1, 2])
        self.assertEqual(task.process(records, 3), 3)

    def test_commitAsked(self) -> None:
        """Behind the message that asks, not before the next one."""
        task = self.newTask(lambda task, message: task.commit() if message == "c" else None)
        records = [consumed(0, b"a"), consumed(1, b"c"), consumed(2, b"a")]
        self.assertEqual(task.process(records), 2)
        self.assertEqual((task.isCommitAsked, task.isShutdownAsked), (True, False))

    def test_shutdownAsked(self) -> None:
        """Who shuts down commits, too; no message follows."""
        task = self.newTask(lambda task, message: task.shutdown())
        self.assertEqual(task.process([consumed(0), consumed(1)]), 1)
        self.assertEqual((task.isCommitAsked, task.isShutdownAsked), (True, True))

    def test_full(self) -> None:
        """A call ends when what is written and sent has reached the limit."""
        entry = ENTRY_OVERHEAD + 1 + 4
        output = OUTPUT_OVERHEAD + 1 + 4

        def write(task: TaskInstance, message: str) -> None:
            task.getStore("s").put(message, 1)
            task.send(OutgoingMessageEnvelope("out", message, 1))

        records = [consumed(number, b"abcdef"[number : number + 1]) for number in range(6)]
        task = self.newTask(write, 2 * (entry + output))
        self.assertEqual(task.process(records), 2)
        self.assertEqual(task.unsettledSize, 2 * (entry + output))
        self.assertFalse(task.isCommitAsked)
        self.assertTrue(task.isFull)
        self.assertEqual(
            [(each.topic, each.key, each.value) for each in task.takeOutputs()],
            [("out", b"a", b"\0\0\0\1"), ("out", b"b", b"\0\0\0\1")],
        )
        self.assertEqual((task.takeOutputs(), task.unsettledSize), ([], 2 * entry))
        store = task.stores["s"]
        store.commit(store.changes(), ChangelogMark(bytes(16), 2))
        self.assertEqual(task.unsettledSize, 0)
        self.assertEqual(task.process(records, 2), 4)

    def test_awaitable(self) -> None:
        """A function that gives an awaitable fails: it would not be waited for on a thread."""
        task = self.newTask(lambda task, message: Deferred())
        with self.assertRaises(TaskFailedError) as caught:
            task.process([consumed(0)])
        self.assertIn("and is no coroutine function", str(caught.exception))

    def test_author(self) -> None:
        """The author's object is told of its job and its stores, and when it ends."""
        calls: list[Any] = []

        class Author(StreamTask):
            def init(self, config: Any, context: Any) -> None:
                calls.append((dict(config), context.taskName, context.partition))
                calls.append(context.getStore("s").name)

            def close(self) -> None:
                calls.append("close")

        task = self.newTask(task=Author, config={"a": "b"})
        task.init()
        task.close()
        self.assertEqual(calls, [({"a": "b"}, "j-2", 2), "s", "close"])

    def test_noStore(self) -> None:
        """A store that the job does not have is named, with those that it has."""
        for stores, known in (([Store("s"), Store("a")], "a, s"), ([], "none")):
            task = self.newTask(stores=stores)
            with self.assertRaises(ConfigurationError) as caught:
                task.getStore("x")
            self.assertEqual(str(caught.exception), f"job j has no store 'x'; it has: {known}")


class SendTests(InstanceTestCase):
    """What a task sends."""

    def sent(self, envelope: OutgoingMessageEnvelope, **changes: Any) -> OutgoingRecord:
        """@return: what becomes of an envelope that is sent for a message."""
        task = self.newTask(lambda task, message: task.send(envelope))
        task.process([consumed(0, **changes)])
        (made,) = task.takeOutputs()
        return made

    def test_encoded(self) -> None:
        """By the output's serdes; C{None} stays."""
        headers = [("h", b"v")]
        stream = SystemStream("kafka", "out")
        made = self.sent(OutgoingMessageEnvelope(stream, "k", 1, partition=7, headers=headers))
        self.assertEqual(made[:-1], ("out", b"\0\0\0\1", b"k", tuple(headers), 1_000, 7))
        assert made.source is not None
        self.assertEqual((made.source.topic, made.source.offset), ("in", 0))
        self.assertEqual(
            self.sent(OutgoingMessageEnvelope("out", None, None))[:-1],
            ("out", None, None, (), 1_000, None),
        )

    def test_timestamp(self) -> None:
        """That of the message in hand, unless another is given; a window's is the sending's."""
        envelope = OutgoingMessageEnvelope("out", "k", 1)
        self.assertEqual(self.sent(envelope, timestamp=0).timestamp, 0)
        self.assertIs(self.sent(envelope, timestamp=-1).timestamp, None)
        given = OutgoingMessageEnvelope("out", "k", 1, timestamp=5)
        self.assertEqual(self.sent(given, timestamp=-1).timestamp, 5)
        task = self.newTask(lambda task, message: task.send(envelope))
        task.process([consumed(0)])
        task.window()
        sent = task.takeOutputs()
        self.assertEqual([each.timestamp for each in sent], [1_000, None])
        self.assertEqual([each.source and each.source.offset for each in sent], [0, None])

    def test_renamed(self) -> None:
        """A renamed job sends to its own topic, under the name that its author knows."""
        task = self.newTask(lambda task, m: task.send(OutgoingMessageEnvelope("out", "k", 1)))
        renamed = TaskInstance(task._job.renamed("v2"), 0, task.stores, 1 << 20, self.fail)
        renamed.process([consumed(0)])
        self.assertEqual([each.topic for each in renamed.takeOutputs()], ["out.v2"])

    def test_refused(self) -> None:
        """A topic that is no output, and what is nothing for the serdes."""
        task = self.newTask()
        with self.assertRaises(TaskOutputError) as caught:
            task.send(OutgoingMessageEnvelope("in", "k", 1))
        self.assertEqual(str(caught.exception), "topic in is no output of job j; it has: out")
        for key, message in ((1, 1), ("k", "m")):
            with self.assertRaises(EncodingError) as refused:
                task.send(OutgoingMessageEnvelope("out", key, message))
            self.assertTrue(str(refused.exception).startswith("a message for topic out: "))
        self.assertEqual(task.takeOutputs(), [])
        cases: list[tuple[str, Any]] = [
            ("headers are pairs of text and bytes", {"headers": [("h", "text")]}),
            ("headers are pairs of text and bytes", {"headers": [b"h"]}),
            ("'int' object is not iterable", {"headers": 7}),
            ("partition -1 is no number of one", {"partition": -1}),
            ("partition '1' is no number of one", {"partition": "1"}),
            ("timestamp -1 is no number of milliseconds", {"timestamp": -1}),
            ("timestamp 1.5 is no number of milliseconds", {"timestamp": 1.5}),
        ]
        for text, wrong in cases:
            with self.assertRaises(EncodingError) as refused:
                task.send(OutgoingMessageEnvelope("out", "k", 1, **wrong))
            self.assertIn(f"a message for topic out: {text}", str(refused.exception))
        self.assertEqual(task.takeOutputs(), [])
        with self.assertRaises(TaskOutputError) as caught:
            self.newTask(outputs=[]).send(OutgoingMessageEnvelope("out", "k", 1))
        self.assertIn("it has: none", str(caught.exception))


class FailureTests(InstanceTestCase):
    """Messages that a task cannot handle."""

    def stored(self, task: TaskInstance) -> dict[str, int]:
        """@return: what the task's store has."""
        return dict(task.getStore("s").all())

    def test_stop(self) -> None:
        """
        What came before is done, the message has done nothing, and the error says where it was.
        """
        task = self.newTask(refuse)
        task.getStore("s").put("gone", 9)
        with self.assertRaises(TaskFailedError) as caught:
            task.process([consumed(4, b"good"), consumed(5, b"bad"), consumed(6, b"good")])
        error = caught.exception
        self.assertEqual(
            str(error), "task j-2 failed at offset 5 of partition 2 of in: ValueError: too bad"
        )
        self.assertIsInstance(error.__cause__, ValueError)
        self.assertEqual(self.stored(task), {"good": 1})
        self.assertEqual([each.key for each in task.takeOutputs()], [b"good"])
        self.assertEqual(task.positions, {TopicPartition("in", 2): 5})
        self.assertEqual((task.handledCount, self.leftOut), (1, []))

    def test_sizesAreTakenBack(self) -> None:
        """What a failed message has written and sent does not fill the task."""
        task = self.newTask(refuse, onError=SKIP)
        task.process([consumed(4, b"good")])
        size = task.unsettledSize
        for number in range(10):
            task.process([consumed(5 + number, b"bad")])
        self.assertEqual(task.unsettledSize, size)

    def test_wishesAreTakenBack(self) -> None:
        """What a failed message has asked of the container is not asked; what others have, is."""

        def ask(task: TaskInstance, message: str) -> None:
            if message == "bad":
                task.shutdown()
                raise ValueError("bad")
            task.commit()

        task = self.newTask(ask, onError=SKIP)
        task.process([consumed(0, b"bad")])
        self.assertFalse(task.isShutdownAsked or task.isCommitAsked)
        task.process([consumed(1, b"good")])
        task.process([consumed(2, b"bad")])
        self.assertTrue(task.isCommitAsked)
        self.assertFalse(task.isShutdownAsked)

    def test_skip(self) -> None:
        """It is left out, with what its task sent and stored for it; that is told."""
        task = self.newTask(refuse, onError=SKIP)
        records = [consumed(number, word) for number, word in enumerate((b"a", b"bad", b"a"))]
        self.assertEqual(task.process(records), 3)
        self.assertEqual(self.stored(task), {"a": 2})
        self.assertEqual([each.key for each in task.takeOutputs()], [b"a", b"a"])
        self.assertEqual(task.positions, {TopicPartition("in", 2): 3})
        self.assertEqual((task.handledCount, task.failedCount), (3, 1))
        self.assertEqual([each.offset for each in self.leftOut], [1])

    def test_counters(self) -> None:
        """Counters are metrics, not state: they keep what a message has counted that raises."""

        def count(task: TaskInstance, message: str) -> None:
            task.getCounter("seen").increment()
            refuse(task, message)

        task = self.newTask(count, onError=SKIP)
        task.process([consumed(0, b"bad"), consumed(1, b"good")])
        self.assertEqual((task.counters["seen"].count, self.stored(task)), (2, {"good": 1}))

    def test_undecodable(self) -> None:
        """A message that is nothing for its serdes is handled as one that raises."""
        task = self.newTask(onError=SKIP)
        task.process([consumed(0, b"\xff"), consumed(1, b"m", b"\xff"), consumed(2)])
        self.assertEqual([each.offset for each in self.handled], [2])
        self.assertEqual([each.offset for each in self.leftOut], [0, 1])
        self.assertIn("InvalidPayloadError: no text in UTF-8", self.leftOut[0].reason)
        with self.assertRaises(TaskFailedError):
            self.newTask(onError=STOP).process([consumed(0, b"\xff")])

    def test_deadLetter(self) -> None:
        """It goes as it came to the dead-letter topic; headers say where it was, and why."""
        task = self.newTask(refuse, onError=DEAD_LETTER, deadLetterTopic="lost")
        task.process(
            [
                consumed(5, b"bad", b"\0", 7, headers=(("h", b"v"),)),
                consumed(6, b"good"),
                consumed(7, b"\xff", None, -1),
            ]
        )
        letter, good, other = task.takeOutputs()
        self.assertEqual(letter[:3], ("lost", b"bad", b"\0"))
        self.assertEqual((letter.timestamp, letter.partition), (7, None))
        self.assertEqual(
            list(letter.headers),
            [
                ("h", b"v"),
                ("pylogbroker.dead-letter.reason", b"ValueError: too bad"),
                ("pylogbroker.dead-letter.topic", b"in"),
                ("pylogbroker.dead-letter.partition", b"2"),
                ("pylogbroker.dead-letter.offset", b"5"),
            ],
        )
        self.assertEqual(good.topic, "out")
        self.assertEqual((other.value, other.key, other.timestamp), (b"\xff", None, None))
        self.assertEqual(self.stored(task), {"good": 1})
        self.assertEqual((task.failedCount, len(self.leftOut)), (2, 2))
        self.assertEqual(task.positions, {TopicPartition("in", 2): 8})

    def test_longReason(self) -> None:
        """A reason of any length and any text becomes a header."""

        def fail(task: TaskInstance, message: str) -> None:
            raise ValueError("\ud800" + "x" * 100_000)

        task = self.newTask(fail, onError=DEAD_LETTER)
        task.process([consumed(0)])
        (letter,) = task.takeOutputs()
        reason = dict(letter.headers)["pylogbroker.dead-letter.reason"] or b""
        self.assertEqual(len(reason), REASON_SIZE_MAX)
        self.assertTrue(reason.startswith(rb"ValueError: \ud800xxx"))

    def test_tooLarge(self) -> None:
        """
        A message that sends more than the producer takes, with key and headers, has failed, with
        what C{onError} says; its size and the limit are told.
        """

        def enlarge(task: TaskInstance, message: str) -> None:
            task.getStore("s").put(message, 1)
            headers = [("h", b"x" * 50)] if message == "headers" else []
            key = "k" * 79 if message == "key" else "k" * 75
            task.send(OutgoingMessageEnvelope("out", key, 1, headers=headers))

        values = [b"small", b"key", b"headers", b"small"]
        records = [consumed(number, each) for number, each in enumerate(values)]
        task = self.newTask(enlarge, recordSizeMax=100, onError=SKIP)
        task.process(records)
        sources = [each.source and each.source.offset for each in task.takeOutputs()]
        self.assertEqual(sources, [0, 3])
        self.assertEqual(self.stored(task), {"small": 1})
        self.assertEqual(
            [each.reason for each in self.leftOut],
            [
                f"RecordTooLargeError: a message for topic out of {size} bytes: max.request.size of"
                " the producer allows 100"
                for size in (104, 161)
            ],
        )
        stopping = self.newTask(enlarge, recordSizeMax=100, onError=STOP)
        with self.assertRaises(TaskFailedError) as caught:
            stopping.process(records)
        self.assertEqual(caught.exception.offset, 1)

    def test_tooLargeDeadLetter(self) -> None:
        """A message that its headers make too large as a dead letter is not lost: it stops."""
        task = self.newTask(refuse, recordSizeMax=300, onError=DEAD_LETTER)
        task.process([consumed(0, b"bad")])
        self.assertEqual(len(task.takeOutputs()), 1)
        with self.assertRaises(TaskFailedError) as caught:
            task.process([consumed(1, b"bad", b"k" * 100)])
        self.assertIn("ValueError: too bad; as a dead letter it has", caught.exception.reason)
        self.assertIn("max.request.size of the producer allows 300", caught.exception.reason)
        self.assertEqual((task.failedCount, task.positions[TopicPartition("in", 2)]), (1, 1))

    def test_deadLettersAreUnsettled(self) -> None:
        """They count as what was sent: a task that gets nothing else is full at some time."""
        task = self.newTask(refuse, 500, onError=DEAD_LETTER)
        self.assertLess(task.process([consumed(number, b"bad") for number in range(100)]), 10)

    def test_storageError(self) -> None:
        """A store that cannot be read is no fault of the message, whatever C{onError} says."""
        for onError in (STOP, SKIP, DEAD_LETTER):
            task = self.newTask(refuse, engine=BrokenEngine(), onError=onError)
            self.assertRaises(StorageError, task.process, [consumed(0)])
            self.assertEqual((task.positions, task.takeOutputs(), self.leftOut), ({}, [], []))
            self.assertEqual(task.failedCount, 0)

    def test_window(self) -> None:
        """What C{window} raises is the author's error, as it is."""

        def fail(task: TaskInstance, message: str) -> None:
            raise ValueError(message)

        self.assertRaises(ValueError, self.newTask(fail, onError=SKIP).window)


class AsyncTests(InstanceTestCase):
    """Tasks with coroutine functions."""

    def test_oneAtATime(self) -> None:
        """A message that waits holds up the next one; what it does then is its own."""
        waiting: list[Deferred[None]] = []

        def step(task: TaskInstance, message: str) -> Deferred[None]:
            waiting.append(Deferred())
            waiting[-1].addCallback(
                lambda _: task.send(OutgoingMessageEnvelope("out", message, len(waiting)))
            )
            return waiting[-1]

        task = self.newTask(step, isAsync=True)
        ended = Deferred.fromCoroutine(
            task.processAsync([consumed(0, b"a", timestamp=1), consumed(1, b"b", timestamp=2)])
        )
        self.assertNoResult(ended)
        self.assertEqual([each.message for each in self.handled], ["a"])
        self.assertEqual(task.positions, {})
        waiting[0].callback(None)
        self.assertEqual([each.message for each in self.handled], ["a", "b"])
        self.assertEqual(task.positions, {TopicPartition("in", 2): 1})
        waiting[1].callback(None)
        self.assertEqual(self.successResultOf(ended), 2)
        self.assertEqual(
            [(each.key, each.timestamp) for each in task.takeOutputs()], [(b"a", 1), (b"b", 2)]
        )

    def test_failure(self) -> None:
        """As without coroutines: taken back, and left out or told."""

        def step(task: TaskInstance, message: str) -> Deferred[None]:
            return succeed(None).addCallback(lambda _: refuse(task, message))

        task = self.newTask(step, isAsync=True, onError=SKIP)
        records = [consumed(0, b"bad"), consumed(1, b"good"), consumed(2, b"good")]
        self.assertEqual(
            self.successResultOf(Deferred.fromCoroutine(task.processAsync(records))), 3
        )
        self.assertEqual(dict(task.getStore("s").all()), {"good": 2})
        self.assertEqual([each.offset for each in self.leftOut], [0])
        stopping = self.newTask(step, isAsync=True)
        failure = self.failureResultOf(
            Deferred.fromCoroutine(stopping.processAsync(records)), TaskFailedError
        )
        self.assertEqual(failure.value.offset, 0)
        broken = self.newTask(step, isAsync=True, engine=BrokenEngine(), onError=SKIP)
        self.failureResultOf(Deferred.fromCoroutine(broken.processAsync(records)), StorageError)

    def test_full(self) -> None:
        """It stops for a commit, and goes on."""
        task = self.newTask(lambda task, message: task.commit(), isAsync=True)
        records = [consumed(0), consumed(1)]
        for start in (0, 1):
            self.assertEqual(
                self.successResultOf(Deferred.fromCoroutine(task.processAsync(records, start))),
                start + 1,
            )
            task.isCommitAsked = False

    def test_functionWithADeferred(self) -> None:
        """A plain C{process} beside another coroutine function may give a Deferred."""
        waiting: Deferred[None] = Deferred()
        task = self.newTask(lambda task, message: waiting)
        ended = Deferred.fromCoroutine(task.processAsync([consumed(0)]))
        self.assertNoResult(ended)
        waiting.callback(None)
        self.assertEqual(self.successResultOf(ended), 1)
