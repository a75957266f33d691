"""Windows: which there are, the keys of their results, and aggregations in them."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.consumer.kafka.consumer import ConsumerRecord
from pylogbroker.errors import (
    ConfigurationError,
    EncodingError,
    InvalidPayloadError,
    TaskFailedError,
)
from pylogbroker.tasks.job import SKIP, Job
from pylogbroker.tasks.serdes import INTEGER, JSON, STRING
from pylogbroker.tasks.state.engines import ChangelogMark
from pylogbroker.tasks.state.keyvaluestore import KeyValueStore
from pylogbroker.tasks.state.memoryengine import MemoryEngine
from pylogbroker.tasks.streams import (
    ON_CHANGE,
    ON_CLOSE,
    HoppingWindow,
    JoinWindow,
    SessionWindow,
    TimeWindowedSerde,
    TumblingWindow,
    Windowed,
    WindowedSerde,
    buildJob,
    stream,
)
from pylogbroker.tasks.streams.stores import STREAM_TIMES
from pylogbroker.tasks.taskinstance import TaskInstance
from pylogbroker.testing.tasktestdriver import TaskTestDriver
from tests.tasks.streams.drivers import outputOf, sentTo


def counting(window: Any, emit: str = ON_CHANGE, **given: Any) -> Job:
    """Counts of C{in}, with late messages in C{late}."""
    grouped = stream("in", STRING, STRING).groupByKey()
    counts = grouped.window(window, emit).lateTo("late").count("counts")
    return buildJob("job", counts.toStream().to("out"), **given)


def at(*times: int, key: str = "a") -> list[tuple[str, str, str, int]]:
    """Messages of a key."""
    return [("in", key, f"m{time}", time) for time in times]


class DefinitionTests(SynchronousTestCase):
    """The windows themselves."""

    def test_hopping(self) -> None:
        """The windows of a timestamp; none begins before 0."""
        window = HoppingWindow(10, 4)
        self.assertEqual(list(window.startsOf(3)), [0])
        self.assertEqual(list(window.startsOf(9)), [0, 4, 8])
        self.assertEqual(list(window.startsOf(10)), [4, 8])
        self.assertEqual(list(window.startsOf(14)), [8, 12])
        for time in range(50):
            wanted = [start for start in range(0, 60, 4) if start <= time < start + 10]
            self.assertEqual(list(window.startsOf(time)), wanted)

    def test_tumbling(self) -> None:
        """Each timestamp has one."""
        self.assertEqual(list(TumblingWindow(10).startsOf(29)), [20])
        self.assertEqual(list(TumblingWindow(10).startsOf(30)), [30])

    def test_text(self) -> None:
        """What people read."""
        for window, text in (
            (TumblingWindow(60_000, 5), "tumbling windows of 60,000 ms, grace 5 ms"),
            (HoppingWindow(10, 5), "hopping windows of 10 ms each 5 ms, grace 0 ms"),
            (SessionWindow(10, 2), "sessions with gaps of 10 ms, grace 2 ms"),
            (JoinWindow(1, 2, 3), "from 1 ms before to 2 ms behind, grace 3 ms"),
        ):
            self.assertEqual(str(window), text)

    def test_refused(self) -> None:
        """Times that are none, and windows with gaps between them."""
        for make, reason in (
            (lambda: TumblingWindow(0), "TumblingWindow: sizeMs=0 is no number"),
            (lambda: TumblingWindow(5, -1), "graceMs=-1 is no number of milliseconds from 0 on"),
            (lambda: HoppingWindow(5, 6), "HoppingWindow: advanceMs=6 is more than sizeMs=5"),
            (lambda: HoppingWindow(5, 0), "advanceMs=0"),
            (lambda: SessionWindow(1.5), "SessionWindow: gapMs=1.5"),  # type: ignore[arg-type]
            (lambda: JoinWindow(-1, 0), "JoinWindow: beforeMs=-1"),
        ):
            with self.assertRaises(ConfigurationError) as caught:
                make()
            self.assertIn(reason, str(caught.exception))


class SerdeTests(SynchronousTestCase):
    """The keys of results as bytes."""

    def test_windowed(self) -> None:
        """The key, and both bounds."""
        serde = WindowedSerde(STRING)
        data = b"ab" + (5).to_bytes(8, "big") + (9).to_bytes(8, "big")
        self.assertEqual(serde.encode(Windowed("ab", 5, 9)), data)
        self.assertEqual(serde.decode(data), Windowed("ab", 5, 9))
        self.assertEqual(serde.name, "windowed string")

    def test_timeWindowed(self) -> None:
        """As Kafka Streams has it: the key, and the beginning."""
        serde = TimeWindowedSerde(STRING, 10)
        data = b"ab" + (5).to_bytes(8, "big")
        self.assertEqual(serde.encode(Windowed("ab", 5, 15)), data)
        self.assertEqual(serde.decode(data), Windowed("ab", 5, 15))
        self.assertEqual(serde.name, "time-windowed string")

    def test_wrong(self) -> None:
        """What is no key of a window, or too short to be one."""
        for serde in (WindowedSerde(STRING), TimeWindowedSerde(STRING, 10)):
            for value in ("a", ("a", 0, 10), Windowed("a", -(1 << 70), -(1 << 70) + 10)):
                with self.assertRaises(EncodingError):
                    serde.encode(value)
            with self.assertRaises(EncodingError):
                serde.encode(Windowed(5, 0, 10))
            with self.assertRaises(InvalidPayloadError):
                serde.decode(b"seven b")
        with self.assertRaises(EncodingError):
            TimeWindowedSerde(STRING, 10).encode(Windowed("a", 0, 11))


class TumblingTests(SynchronousTestCase):
    """Tumbling windows of 10 ms."""

    def test_onChange(self) -> None:
        """A result at each message; its timestamp is the greatest one of the window."""
        sent = outputOf(counting(TumblingWindow(10, 5)), *at(1, 5, 3, 12))
        first, second = Windowed("a", 0, 10), Windowed("a", 10, 20)
        self.assertEqual(sent, [(first, 1, 1), (first, 2, 5), (first, 3, 5), (second, 1, 12)])

    def test_grace(self) -> None:
        """
        A window takes messages until stream time, which other keys move too, has passed its end by
        the grace period; then they are late.
        """
        with TaskTestDriver(counting(TumblingWindow(10, 5))) as driver:
            for topic, key, message, time in (*at(1), *at(14, key="b"), *at(2)):
                driver.pipeInput(topic, key, message, time)
            self.assertEqual(driver.readOutput("out")[-1], (Windowed("a", 0, 10), 2))
            driver.pipeInput("in", "b", "", 15)
            driver.pipeInput("in", "a", "lost", 3, headers=[("h", b"v")])
            self.assertEqual(driver.readOutput("out")[1:], [])
            [late] = driver.readRecords("late")
            self.assertEqual((late.key, late.message, late.timestamp), ("a", "lost", 3))
            self.assertEqual(late.headers, (("h", b"v"),))
            self.assertEqual(driver.countOf("late-counts"), 1)
            self.assertEqual([key for key, _ in driver.getStore("counts").all()], [("b", 10, 20)])

    def test_onClose(self) -> None:
        """One result for each window, in the order of the windows, once they are closed."""
        with TaskTestDriver(counting(TumblingWindow(10, 5), ON_CLOSE)) as driver:
            for topic, key, message, time in (*at(13, 4, 7), *at(5, key="b")):
                driver.pipeInput(topic, key, message, time)
            self.assertEqual(sentTo(driver, "out"), [])
            driver.pipeInput("in", "c", "", 90, headers=[("h", b"v")])
            sent = driver.readRecords("out")
            self.assertEqual(
                [(each.key, each.message, each.timestamp) for each in sent],
                [
                    (Windowed("a", 0, 10), 2, 7),
                    (Windowed("b", 0, 10), 1, 5),
                    (Windowed("a", 10, 20), 1, 13),
                ],
            )
            self.assertEqual([each.headers for each in sent], [()] * 3)
            driver.pipeInput("in", "a", "", 1)
            self.assertEqual((sentTo(driver, "out"), len(sentTo(driver, "late"))), ([], 1))

    def test_withoutTopic(self) -> None:
        """Late messages that go nowhere are counted."""
        grouped = stream("in", STRING, STRING).groupByKey().window(TumblingWindow(10))
        with TaskTestDriver(buildJob("job", grouped.count("counts"))) as driver:
            for topic, key, message, time in at(1, 10, 9):
                driver.pipeInput(topic, key, message, time)
            self.assertEqual(driver.countOf("late-counts"), 1)

    def test_perTask(self) -> None:
        """Each task has a stream time of its own."""
        with TaskTestDriver(counting(TumblingWindow(10)), 2) as driver:
            driver.pipeInput("in", "a", "", 100, partition=0)
            driver.pipeInput("in", "b", "", 1, partition=1)
            self.assertEqual(driver.countOf("late-counts"), 0)
            self.assertEqual(driver.getStore(STREAM_TIMES, 0).get("counts"), (100, 0))
            self.assertEqual(driver.getStore(STREAM_TIMES, 1).get("counts"), (1, 0))

    def test_dropped(self) -> None:
        """What has no key or no message moves no time."""
        with TaskTestDriver(counting(TumblingWindow(10))) as driver:
            driver.pipeInput("in", None, "x", 100)
            driver.pipeInput("in", "a", None, 100)
            driver.pipeInput("in", "a", "x", 1)
            self.assertEqual(len(sentTo(driver, "out")), 1)
            self.assertEqual(driver.countOf("dropped-counts"), 2)

    def test_failed(self) -> None:
        """A message that fails has moved no time, and closed no window."""

        def add(_key: str, message: str, value: str) -> str:
            if message == "bad":
                raise ValueError(message)
            return value + message

        texts = stream("in", STRING, STRING).groupByKey().window(TumblingWindow(10), ON_CLOSE)
        table = texts.aggregate(str, add, message=STRING, name="texts")
        with TaskTestDriver(buildJob("job", table.toStream().to("out"), onError=SKIP)) as driver:
            for message, time in (("x", 1), ("y", 2), ("bad", 500), ("z", 3), ("end", 500)):
                driver.pipeInput("in", "a", message, time)
            self.assertEqual(sentTo(driver, "out"), [(Windowed("a", 0, 10), "xyz", 3)])
            self.assertEqual(len(driver.leftOut), 1)

    def test_removed(self) -> None:
        """A value that becomes None removes its window."""
        grouped = stream("in", STRING, STRING).groupByKey().window(TumblingWindow(10))
        table = grouped.aggregate(
            str,
            lambda _key, message, value: None if message == "m2" else value + message,
            message=STRING,
            name="texts",
        )
        job = buildJob("job", table.toStream().to("out"))
        with TaskTestDriver(job) as driver:
            for topic, key, message, time in at(2, 1, 2, 3):
                driver.pipeInput(topic, key, message, time)
            window = Windowed("a", 0, 10)
            self.assertEqual(
                sentTo(driver, "out"), [(window, "m1", 1), (window, None, 2), (window, "m3", 3)]
            )

    def test_committed(self) -> None:
        """Windows that were committed close as those that were not."""
        with TaskTestDriver(counting(TumblingWindow(10, 5), ON_CLOSE)) as driver:
            for time in (1, 12, 4, 26, 33, 7, 60):
                driver.pipeInput("in", "a", "", time)
                driver.commit()
            self.assertEqual(
                [(key.startMs, count) for key, count in driver.readOutput("out")],
                [(0, 2), (10, 1), (20, 1), (30, 1)],
            )


class HoppingTests(SynchronousTestCase):
    """Hopping windows of 10 ms each 5 ms."""

    def test_counts(self) -> None:
        """A message counts in each of its windows."""
        sent = outputOf(counting(HoppingWindow(10, 5)), *at(3, 7))
        self.assertEqual([(key.startMs, count) for key, count, _ in sent], [(0, 1), (0, 2), (5, 1)])

    def test_partlyLate(self) -> None:
        """A message is late if one of its windows is closed; it counts in the others."""
        with TaskTestDriver(counting(HoppingWindow(10, 5))) as driver:
            for topic, key, message, time in at(7, 12, 8):
                driver.pipeInput(topic, key, message, time)
            counts = dict(driver.readOutput("out"))
            self.assertEqual(
                {key.startMs: count for key, count in counts.items()}, {0: 1, 5: 3, 10: 1}
            )
            self.assertEqual(
                (driver.countOf("late-counts"), len(driver.readOutput("late"))), (1, 1)
            )


class SessionTests(SynchronousTestCase):
    """Sessions with gaps of 10 ms."""

    def test_onChange(self) -> None:
        """A session that changes is removed under its old bounds; two become one."""
        sent = outputOf(counting(SessionWindow(10, 50)), *at(10, 15, 30, 22))
        self.assertEqual(
            sent,
            [
                (Windowed("a", 10, 20), 1, 10),
                (Windowed("a", 10, 20), None, 15),
                (Windowed("a", 10, 25), 2, 15),
                (Windowed("a", 30, 40), 1, 30),
                (Windowed("a", 10, 25), None, 30),
                (Windowed("a", 30, 40), None, 30),
                (Windowed("a", 10, 40), 4, 30),
            ],
        )

    def test_gap(self) -> None:
        """A message belongs to a session if it is at most the gap away from it, on either side."""
        for times, starts in (
            ((10, 20), {10}),
            ((10, 21), {10, 21}),
            ((30, 20), {20}),
            ((30, 19), {30, 19}),
        ):
            sent = outputOf(counting(SessionWindow(10, 50)), *at(*times))
            last = {key: count for key, count, _ in sent}
            self.assertEqual({key.startMs for key, count in last.items() if count}, starts)

    def test_onClose(self) -> None:
        """A result for each session once stream time is beyond its end and the grace period."""
        with TaskTestDriver(counting(SessionWindow(10, 5), ON_CLOSE)) as driver:
            for topic, key, message, time in (*at(1, 9, 4), *at(24, key="b")):
                driver.pipeInput(topic, key, message, time)
            self.assertEqual(sentTo(driver, "out"), [])
            driver.pipeInput("in", "b", "", 25)
            self.assertEqual(sentTo(driver, "out"), [(Windowed("a", 1, 19), 3, 9)])
            driver.pipeInput("in", "b", "", 41)
            self.assertEqual(sentTo(driver, "out"), [(Windowed("b", 24, 35), 2, 25)])

    def test_late(self) -> None:
        """A message is late near a closed session, or if its own were closed."""
        with TaskTestDriver(counting(SessionWindow(10), ON_CLOSE)) as driver:
            for topic, key, message, time in (*at(10), *at(21, key="b"), *at(20, 10, 11, 21)):
                driver.pipeInput(topic, key, message, time)
            self.assertEqual(
                [message for _, message in driver.readOutput("late")], ["m20", "m10", "m11"]
            )
            driver.pipeInput("in", "b", "", 99)
            self.assertEqual(
                driver.readOutput("out"),
                [(("a", 10, 20), 1), (("a", 21, 31), 1), (("b", 21, 31), 1)],
            )

    def test_removed(self) -> None:
        """Closed sessions leave the store, with their entries of the index."""
        with TaskTestDriver(counting(SessionWindow(10))) as driver:
            for topic, key, message, time in (*at(1, 5, 30, 31, 60), *at(100, key="b")):
                driver.pipeInput(topic, key, message, time)
                driver.commit()
            keys = [key for key, _ in driver.getStore("counts").all()]
            self.assertEqual([key for key in keys if type(key) is Windowed], [("b", 100, 110)])
            self.assertEqual(len(keys), 2)

    def test_valueRemoved(self) -> None:
        """A value that becomes None removes its session, and a later one begins anew."""

        def add(_key: str, message: str, found: list[str]) -> list[str] | None:
            return None if message in ("m6", "m1") else [*found, message]

        lists = (
            stream("in", STRING, STRING)
            .groupByKey()
            .window(SessionWindow(10, 50))
            .aggregate(list, add, lambda _key, earlier, later: earlier + later, JSON, "lists")
        )
        with TaskTestDriver(buildJob("job", lists.toStream().to("out"))) as driver:
            for topic, key, message, time in at(1, 5, 5, 6, 5, 5):
                driver.pipeInput(topic, key, message, time)
            self.assertEqual(
                sentTo(driver, "out"),
                [
                    (("a", 5, 15), ["m5"], 5),
                    (("a", 5, 15), ["m5", "m5"], 5),
                    (("a", 5, 15), None, 6),
                    (("a", 5, 15), ["m5"], 5),
                    (("a", 5, 15), ["m5", "m5"], 5),
                ],
            )
            driver.pipeInput("in", "a", "m6", 5)
            self.assertEqual(sentTo(driver, "out"), [(("a", 5, 15), None, 5)])
            self.assertEqual(list(driver.getStore("lists").all()), [])

    def test_merged(self) -> None:
        """Values of sessions are merged in the order of time, and a reduction needs no merger."""
        grouped = stream("in", STRING, STRING).groupByKey().window(SessionWindow(10, 50), ON_CLOSE)
        lists = grouped.aggregate(
            list,
            lambda _key, message, found: [*found, message],
            lambda _key, earlier, later: earlier + later,
            JSON,
        )
        texts = grouped.reduce(lambda value, message: f"{value} {message}")
        job = buildJob("job", lists.toStream().to("lists"), texts.toStream().to("texts"))
        with TaskTestDriver(job) as driver:
            for topic, key, message, time in at(20, 1, 40, 30, 11, 999):
                driver.pipeInput(topic, key, message, time)
            self.assertEqual(
                driver.readOutput("lists"), [(("a", 1, 50), ["m1", "m20", "m40", "m30", "m11"])]
            )
            self.assertEqual(driver.readOutput("texts"), [(("a", 1, 50), "m1 m20 m40 m30 m11")])


VALUES = ["timestamped long", "stream time"]


class StoreTests(SynchronousTestCase):
    """What stores hold."""

    def test_bytes(self) -> None:
        """Entries of a store and of the stream times are read again as they were."""
        for window in (TumblingWindow(10), SessionWindow(10)):
            job = counting(window)
            self.assertEqual([each.value.name for each in job.stores], VALUES)
            with TaskTestDriver(job) as driver:
                driver.pipeInput("in", "a", "", 5)
                store = driver.getStore("counts")
                before = list(store.all())
                store.commit(store.changes(), ChangelogMark(bytes(16), 0))
                self.assertEqual(list(store.all()), before)
                [end] = {key.endMs for key, _ in before if type(key) is Windowed}
                self.assertEqual(store.get(Windowed("a", end - 10, end)), (1, 5))

    def test_damaged(self) -> None:
        """A value that is too short."""
        [counts, *_] = counting(TumblingWindow(10)).stores
        with self.assertRaises(InvalidPayloadError):
            counts.value.decode(b"short")


class RestartTests(SynchronousTestCase):
    """A task that begins anew over the same stores."""

    def task(self, job: Job, stores: dict[str, Any]) -> TaskInstance:
        def fail(failure: TaskFailedError) -> None:
            raise failure

        made = TaskInstance(job, 0, stores, 1 << 20, fail)
        made.init()
        return made

    def sent(self, task: TaskInstance, *times: int) -> list[str]:
        """The topics to which messages of these times are sent."""
        records = [
            ConsumerRecord("in", 0, number, time, b"a", b"", (), -1, 0)
            for number, time in enumerate(times)
        ]
        self.assertEqual(task.process(records), len(times))
        return [each.topic for each in task.takeOutputs()]

    def test_streamTime(self) -> None:
        """What is closed stays closed, and what was open is closed in its time."""
        for window in (TumblingWindow(10), SessionWindow(10)):
            job = counting(window, ON_CLOSE)
            stores = {
                each.name: KeyValueStore[Any, Any](
                    each.name, each.key, each.value, MemoryEngine(), 1 << 20
                )
                for each in job.stores
            }
            self.assertEqual(self.sent(self.task(job, stores), 1, 50), ["out"])
            for store in stores.values():
                store.commit(store.changes(), ChangelogMark(bytes(16), 2))
            task = self.task(job, stores)
            self.assertEqual(self.sent(task, 2, 55), ["late"])
            self.assertEqual(self.sent(task, 90), ["out"])


class NumberTests(SynchronousTestCase):
    """Keys that are no text."""

    def test_keys(self) -> None:
        """Keys whose bytes begin alike are kept apart."""
        grouped = stream("in", INTEGER, STRING).groupByKey()
        counts = grouped.window(SessionWindow(5), ON_CLOSE).count()
        job = buildJob("job", counts.toStream().to("out"))
        sent = outputOf(job, *(("in", each, "", 1) for each in (1, 256, 1, 0)), ("in", 1, "", 99))
        self.assertEqual({key.key: count for key, count, _ in sent}, {1: 2, 256: 1, 0: 1})
