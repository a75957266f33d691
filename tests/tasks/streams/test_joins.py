"""Joins: of two streams in a window, of a stream with a table, of two tables."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.tasks.job import SKIP, Job
from pylogbroker.tasks.serdes import JSON, STRING
from pylogbroker.tasks.streams import (
    ON_CLOSE,
    JoinWindow,
    KStream,
    KTable,
    TumblingWindow,
    buildJob,
    stream,
    table,
)
from pylogbroker.testing.tasktestdriver import TaskTestDriver
from tests.tasks.streams.drivers import outputOf, pipe, sentTo


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def left(time: int, text: str = "", key: str | None = "k") -> tuple[str, Any, Any, int]:
    return "left", key, text or f"l{time}", time


def right(time: int, text: str = "", key: str | None = "k") -> tuple[str, Any, Any, int]:
    return "right", key, text or f"r{time}", time


def streams() -> tuple[KStream, KStream]:
    return stream("left", STRING, STRING), stream("right", STRING, STRING)


def tables() -> tuple[KTable, KTable]:
    return table("left", STRING, STRING), table("right", STRING, STRING)


class WindowJoinTests(SynchronousTestCase):
    """Two streams: right messages from 5 ms before a left one to 10 ms behind it."""

    window = JoinWindow(5, 10, 20)

    def job(self, how: str = "join", **given: Any) -> Job:
        mine, other = streams()
        joined = getattr(mine, how)(other, pair, self.window, JSON, name="join")
        return buildJob("job", joined.to("out"), **given)

    def test_inner(self) -> None:
        """Pairs within the window, whichever comes first, with the later timestamp."""
        sent = outputOf(self.job(), left(20), right(14), right(15), right(30), right(31), left(31))
        self.assertEqual(
            sent,
            [
                ("k", ["l20", "r15"], 20),
                ("k", ["l20", "r30"], 30),
                ("k", ["l31", "r30"], 31),
                ("k", ["l31", "r31"], 31),
            ],
        )

    def test_equal(self) -> None:
        """Messages of the same time and content are kept apart; keys do not mix."""
        same = [left(5, "a"), left(5, "a"), left(5, "a", "other"), right(5, "b")]
        self.assertEqual(outputOf(self.job(), *same), [("k", ["a", "b"], 5)] * 2)

    def test_late(self) -> None:
        """
        Messages wait for 35 ms of stream time: those that come later are late, and those that have
        waited longer are joined no more.
        """
        with TaskTestDriver(self.job()) as driver:
            pipe(driver, [left(100), left(136, key="x"), right(100), right(101), right(105)])
            self.assertEqual(driver.readOutput("out"), [])
            self.assertEqual(driver.countOf("late-join"), 1)
            pipe(driver, [left(104)])
            self.assertEqual(
                driver.readOutput("out"), [("k", ["l104", "r101"]), ("k", ["l104", "r105"])]
            )

    def test_left(self) -> None:
        """Left messages that stay alone are given once they have waited, in the order of time."""
        with TaskTestDriver(self.job("leftJoin")) as driver:
            pipe(driver, [left(12), left(10), left(11, key="a"), right(14), left(47, key="x")])
            self.assertEqual(
                sentTo(driver, "out"),
                [("k", ["l10", "r14"], 14), ("k", ["l12", "r14"], 14), ("a", ["l11", None], 11)],
            )
            pipe(driver, [right(90, key="y"), left(200, key="z")])
            self.assertEqual(sentTo(driver, "out"), [("x", ["l47", None], 47)])

    def test_outer(self) -> None:
        """Messages of both sides that stay alone."""
        with TaskTestDriver(self.job("outerJoin")) as driver:
            pipe(driver, [right(12), left(11, key="a"), left(13, key="b"), right(13, key="b")])
            driver.pipeInput("left", "z", "end", 500, headers=[("h", b"v")])
            sent = driver.readRecords("out")
        self.assertEqual(
            [(each.key, each.message, each.timestamp) for each in sent],
            [
                ("b", ["l13", "r13"], 13),
                ("a", ["l11", None], 11),
                ("k", [None, "r12"], 12),
            ],
        )
        self.assertEqual([each.headers for each in sent], [()] * 3)

    def test_dropped(self) -> None:
        """What has no key or no message is counted."""
        with TaskTestDriver(self.job("leftJoin")) as driver:
            pipe(driver, [left(1, key=None), ("right", "k", None, 5), left(900)])
            self.assertEqual(sentTo(driver, "out"), [])
            self.assertEqual(driver.countOf("dropped-join"), 2)

    def test_removed(self) -> None:
        """What has waited leaves the stores, whether committed or not."""
        with TaskTestDriver(self.job()) as driver:
            for number in range(40):
                pipe(driver, [left(number * 10), right(number * 10)])
                if number % 3 == 0:
                    driver.commit()
            for name in ("join-left", "join-right"):
                self.assertEqual(len(list(driver.getStore(name).all())), 2 * 4)

    def test_failed(self) -> None:
        """A message that fails waits for none, and has joined none."""

        def refuse(mine: Any, its: Any) -> list[Any]:
            if its == "bad":
                raise ValueError(its)
            return pair(mine, its)

        mine, other = streams()
        joined = mine.leftJoin(other, refuse, JoinWindow(5, 5), JSON)
        with TaskTestDriver(buildJob("job", joined.to("out"), onError=SKIP)) as driver:
            pipe(driver, [left(10), right(13, "bad"), left(11), left(99)])
            self.assertEqual(driver.readOutput("out"), [("k", ["l10", None]), ("k", ["l11", None])])

    def test_withItself(self) -> None:
        """A stream is joined with itself, and each message with itself, too."""
        mine = streams()[0]
        job = buildJob("job", mine.join(mine, pair, JoinWindow(1, 1), JSON).to("out"))
        sent = sorted(message for _, message, _ in outputOf(job, left(1), left(2), left(4)))
        self.assertEqual(
            sent, [["l1", "l1"], ["l1", "l2"], ["l2", "l1"], ["l2", "l2"], ["l4", "l4"]]
        )

    def test_rekeyed(self) -> None:
        """A side whose keys have changed comes by way of a repartition."""
        mine, other = streams()
        byText = mine.selectKey(lambda _key, text: text, STRING, "by")
        job = buildJob("job", byText.join(other, pair, JoinWindow(9, 9), JSON).to("out"))
        with TaskTestDriver(job, 3) as driver:
            for number in range(6):
                pipe(driver, [right(number, key=f"k{number}"), left(number, f"k{number}")])
            self.assertEqual(len(driver.readOutput("out")), 6)


class StreamTableTests(SynchronousTestCase):
    """A stream with a table."""

    def job(self, how: str = "join") -> Job:
        mine, other = streams()[0], tables()[1]
        return buildJob("job", getattr(mine, how)(other, pair, message=JSON, name="j").to("out"))

    def test_inner(self) -> None:
        """A message with what the table has then; changes of the table give nothing."""
        with TaskTestDriver(self.job()) as driver:
            pipe(driver, [left(1), right(9), left(2), ("right", "k", None, 10), left(3)])
            self.assertEqual(sentTo(driver, "out"), [("k", ["l2", "r9"], 2)])
            pipe(driver, [left(1, key=None), ("left", "k", None, 5)])
            self.assertEqual(sentTo(driver, "out"), [])
            self.assertEqual(driver.countOf("dropped-j"), 2)

    def test_left(self) -> None:
        """A message for which the table has nothing is given alone."""
        sent = outputOf(self.job("leftJoin"), left(1), right(2), left(3))
        self.assertEqual(sent, [("k", ["l1", None], 1), ("k", ["l3", "r2"], 3)])

    def test_derived(self) -> None:
        """A table that is filtered, mapped and joined keeps nothing, and is read all the same."""
        mine, (first, second) = stream("in", STRING, STRING), tables()
        big = first.filter(lambda _key, text: text > "l3").mapValues(
            lambda text: None if text == "l7" else text.upper()
        )
        joined = big.leftJoin(second, pair)
        job = buildJob("job", mine.leftJoin(joined, pair, message=JSON).to("out"))
        self.assertEqual([each.name for each in job.stores], ["left", "right"])
        found = []
        with TaskTestDriver(job) as driver:
            for message in (left(2), left(5), right(1), left(7), left(8)):
                pipe(driver, [message, ("in", "k", "m", 9)])
                found += [message[1] for _, message in driver.readOutput("out")]
        self.assertEqual(found, [None, ["L5", None], ["L5", "r1"], None, ["L8", "r1"]])

    def test_aggregated(self) -> None:
        """A message with its own count, which the same message has changed before."""
        mine = streams()[0]
        counts = mine.groupByKey().count()
        job = buildJob("job", mine.join(counts, pair, message=JSON).to("out"))
        self.assertEqual(
            [message for _, message, _ in outputOf(job, left(1), left(2))], [["l1", 1], ["l2", 2]]
        )


class TableJoinTests(SynchronousTestCase):
    """Two tables."""

    def job(self, how: str) -> Job:
        mine, other = tables()
        return buildJob("job", getattr(mine, how)(other, pair, JSON).toStream().to("out"))

    MESSAGES = (
        ("left", "k", None, 1),
        left(2),
        right(5),
        left(3),
        ("left", "k", None, 6),
        ("right", "k", None, 7),
        right(8),
        left(4),
        ("right", "k", None, 9),
    )

    def test_inner(self) -> None:
        """What both have, with the later timestamp; a removal on one side removes it."""
        self.assertEqual(
            outputOf(self.job("join"), *self.MESSAGES),
            [
                ("k", ["l2", "r5"], 5),
                ("k", ["l3", "r5"], 5),
                ("k", None, 6),
                ("k", ["l4", "r8"], 8),
                ("k", None, 9),
            ],
        )

    def test_left(self) -> None:
        """What the left one has."""
        self.assertEqual(
            outputOf(self.job("leftJoin"), *self.MESSAGES),
            [
                ("k", ["l2", None], 2),
                ("k", ["l2", "r5"], 5),
                ("k", ["l3", "r5"], 5),
                ("k", None, 6),
                ("k", ["l4", "r8"], 8),
                ("k", ["l4", None], 9),
            ],
        )

    def test_outer(self) -> None:
        """What either has."""
        self.assertEqual(
            outputOf(self.job("outerJoin"), *self.MESSAGES),
            [
                ("k", ["l2", None], 2),
                ("k", ["l2", "r5"], 5),
                ("k", ["l3", "r5"], 5),
                ("k", [None, "r5"], 6),
                ("k", None, 7),
                ("k", [None, "r8"], 8),
                ("k", ["l4", "r8"], 8),
                ("k", ["l4", None], 9),
            ],
        )

    def test_commonSource(self) -> None:
        """Two tables of one topic: a removal there removes the result."""
        mine = tables()[0]
        other = mine.mapValues(str.upper)
        job = buildJob("job", mine.join(other, pair, JSON).toStream().to("out"))
        sent = outputOf(job, left(1), ("left", "k", None, 2))
        self.assertEqual(sent[-1], ("k", None, 2))
        self.assertEqual(sent[0], ("k", ["l1", "L1"], 1))

    def test_onClose(self) -> None:
        """Results that come when windows are closed are no table that others can read."""
        grouped = streams()[0].groupByKey().window(TumblingWindow(5), ON_CLOSE)
        final = grouped.count().filter(lambda *_: True)
        for join in (
            lambda: final.join(tables()[0], pair),
            lambda: tables()[0].join(final, pair),
            lambda: streams()[0].join(final, pair),
        ):
            with self.assertRaises(ConfigurationError) as caught:
                join()
            self.assertIn("no table to join: use toStream()", str(caught.exception))
