"""
Windows and joins against DuckDB: random messages, with late ones and equal timestamps, give what
SQL gives over the whole input, less the messages that are late by the rules of C{docs/streams.md}.

SQL sees the messages with the numbers of their arrival, and stream time as a running maximum. A
failure names its seed; C{PYLOGBROKER_STREAMS_SEED} sets the first one.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import duckdb
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.tasks.job import Job
from pylogbroker.tasks.serdes import INTEGER, JSON, STRING
from pylogbroker.tasks.streams import (
    ON_CHANGE,
    ON_CLOSE,
    HoppingWindow,
    JoinWindow,
    SessionWindow,
    TumblingWindow,
    Windowed,
    buildJob,
    stream,
    table,
)
from pylogbroker.testing.tasktestdriver import SentRecord, TaskTestDriver

SEED_COUNT = 12
KEYS = ("a", "b", "c")


class Message(NamedTuple):
    """
    A message of the input.

    @ivar number: of its arrival; also its value, so that each is told from the others.
    """

    number: int
    topic: str
    key: str
    time: int
    isTombstone: bool


def messagesOf(chance: random.Random, topics: Sequence[str]) -> list[Message]:
    """Messages whose time goes on, but for some that are late, and many of equal times."""
    now, found = 0, []
    for number in range(150):
        now += chance.choice((0, 0, 0, 1, 1, 2, 5, 40 if chance.random() < 0.1 else 3))
        isLate = chance.random() < 0.3
        time = max(0, now - chance.choice((1, 2, 4, 8, 15, 30, 60))) if isLate else now
        isTombstone = chance.random() < 0.2
        topic = chance.choice(topics)
        found.append(Message(number, topic, chance.choice(KEYS), time, isTombstone))
    return found


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def load(database: duckdb.DuckDBPyConnection, messages: Sequence[Message]) -> None:
    """
    The table C{messages}, with C{st}, the stream time, and C{value}: NULL for a tombstone.
    """
    rows = ", ".join(str((*each,)) for each in messages)
    database.execute(
        "CREATE OR REPLACE TABLE messages AS SELECT *,"
        " max(ts) OVER (ORDER BY n) AS st, CASE WHEN gone THEN NULL ELSE n END AS value"
        f" FROM (VALUES {rows}) AS given(n, topic, k, ts, gone)"
    )


class DuckDbTests(SynchronousTestCase):
    """Each kind of window and of join."""

    def setUp(self) -> None:
        self.database = duckdb.connect()
        self.database.execute("SET threads = 1")
        self.addCleanup(self.database.close)
        first = os.environ.get("PYLOGBROKER_STREAMS_SEED")
        start = random.SystemRandom().randrange(1 << 32) if first is None else int(first)
        self.seeds = range(start, start + SEED_COUNT)

    @contextmanager
    def seed(self, seed: int) -> Iterator[random.Random]:
        try:
            yield random.Random(seed)
        except Exception as error:
            error.add_note(f"PYLOGBROKER_STREAMS_SEED={seed}")
            print(f"PYLOGBROKER_STREAMS_SEED={seed}")  # noqa: T201
            raise

    def rows(self, query: str, **given: Any) -> list[tuple[Any, ...]]:
        return self.database.execute(query, given).fetchall()

    def sent(
        self, job: Job, chance: random.Random, messages: Sequence[Message], *topics: str
    ) -> list[list[SentRecord]]:
        """What a job sends to topics; now and then it commits."""
        with TaskTestDriver(job) as driver:
            for number, topic, key, time, isTombstone in messages:
                value = None if isTombstone and topic.startswith("table") else number
                driver.pipeInput(topic, key, value, time)
                if chance.random() < 0.05:
                    driver.commit()
            return [driver.readRecords(each) for each in topics]

    def aggregated(
        self, window: Any, emit: str, chance: random.Random, messages: Sequence[Message]
    ) -> tuple[list[SentRecord], list[int]]:
        """
        What counts and sums in windows give, and the numbers of the late messages.
        """
        sums = (
            stream("in", STRING, INTEGER)
            .groupByKey()
            .window(window, emit)
            .lateTo("late")
            .aggregate(
                lambda: [0, 0],
                lambda _key, number, found: [found[0] + 1, found[1] + number],
                lambda _key, mine, other: [mine[0] + other[0], mine[1] + other[1]],
                JSON,
            )
        )
        job = buildJob("sums", sums.toStream().to("out"))
        out, late = self.sent(job, chance, messages, "out", "late")
        return out, [each.message for each in late]

    def checkWindows(
        self,
        window: Any,
        chance: random.Random,
        messages: Sequence[Message],
        wanted: Sequence[tuple[Any, ...]],
        late: Sequence[int],
    ) -> None:
        """
        @param wanted: key, start, end, count, sum and greatest timestamp of each window, and
            whether it is closed.
        """
        values = {
            Windowed(key, start, end): (count, total, time)
            for key, start, end, count, total, time, _ in wanted
        }
        changes, foundLate = self.aggregated(window, ON_CHANGE, chance, messages)
        last = {
            each.key: (*each.message, each.timestamp)
            for each in changes
            if each.message is not None
        }
        gone = {each.key: each.message is None for each in changes}
        self.assertEqual({key: last[key] for key in last if not gone[key]}, values)
        self.assertEqual(foundLate, list(late))
        results, foundLate = self.aggregated(window, ON_CLOSE, chance, messages)
        self.assertEqual(
            Counter((each.key, *each.message, each.timestamp) for each in results),
            Counter(
                (Windowed(key, start, end), *rest)
                for key, start, end, *rest, isClosed in wanted
                if isClosed
            ),
        )
        self.assertEqual(foundLate, list(late))

    def test_windows(self) -> None:
        """Tumbling and hopping windows."""
        lateCount = 0
        for seed in self.seeds:
            with self.seed(seed) as chance:
                size, grace = chance.randint(1, 20), chance.choice((0, 3, 10))
                advance = chance.choice((size, chance.randint(1, size)))
                window = HoppingWindow(size, advance, grace)
                if size == advance:
                    window = TumblingWindow(size, grace)
                messages = messagesOf(chance, ["in"])
                load(self.database, messages)
                given = {"size": size, "advance": advance, "grace": grace}
                windows = (
                    "WITH pairs AS (SELECT n, k, ts, start, start + $size AS stop,"
                    " start + $size + $grace <= st AS late FROM messages, (SELECT range AS start"
                    " FROM range(0, (SELECT max(ts) + 1 FROM messages), $advance))"
                    " WHERE start <= ts AND ts < start + $size) "
                )
                wanted = self.rows(
                    windows + "SELECT k, start, stop, count(*), sum(n), max(ts),"
                    " stop + $grace <= (SELECT max(st) FROM messages)"
                    " FROM pairs WHERE NOT late GROUP BY k, start, stop",
                    **given,
                )
                late = self.rows(
                    windows + "SELECT DISTINCT n FROM pairs WHERE late ORDER BY n", **given
                )
                lateCount += len(late)
                self.checkWindows(window, chance, messages, wanted, [each[0] for each in late])
        self.assertGreater(lateCount, 0)

    SESSIONS = """
        WITH marked AS (
            SELECT *, ts - lag(ts) OVER (PARTITION BY k ORDER BY ts, n) <= $gap AS follows
            FROM accepted
        ), numbered AS (
            SELECT *, sum(CASE WHEN follows THEN 0 ELSE 1 END)
                OVER (PARTITION BY k ORDER BY ts, n ROWS UNBOUNDED PRECEDING) AS session
            FROM marked
        ), sessions AS (
            SELECT k, min(ts) AS first, max(ts) AS last, count(*) AS size, sum(n) AS total
            FROM numbered GROUP BY k, session
        )
    """

    def test_sessions(self) -> None:
        """Sessions. Whether a message is late depends on the sessions before it."""
        lateCount = 0
        for seed in self.seeds[:5]:
            with self.seed(seed) as chance:
                gap, grace = chance.randint(1, 8), chance.choice((0, 3, 10))
                messages = messagesOf(chance, ["in"])
                load(self.database, messages)
                self.database.execute(
                    "CREATE OR REPLACE TABLE accepted AS SELECT n, k, ts FROM messages LIMIT 0"
                )
                given = {"gap": gap, "grace": grace}
                late = []
                for number, time, key, now in self.rows("SELECT n, ts, k, st FROM messages"):
                    [(isLate,)] = self.rows(
                        self.SESSIONS + "SELECT $time + $gap + $grace < $now OR EXISTS (SELECT 1"
                        " FROM sessions WHERE k = $key AND first - $gap <= $time"
                        " AND $time <= last + $gap AND last + $gap + $grace < $now)",
                        **given,
                        time=time,
                        key=key,
                        now=now,
                    )
                    if isLate:
                        late.append(number)
                    else:
                        self.database.execute(
                            "INSERT INTO accepted VALUES (?, ?, ?)", [number, key, time]
                        )
                wanted = self.rows(
                    self.SESSIONS + "SELECT k, first, last + $gap, size, total, last,"
                    " last + $gap + $grace < (SELECT max(st) FROM messages) FROM sessions",
                    **given,
                )
                lateCount += len(late)
                self.checkWindows(SessionWindow(gap, grace), chance, messages, wanted, late)
        self.assertGreater(lateCount, 0)

    def test_windowJoins(self) -> None:
        """Inner, left and outer joins of two streams."""
        for seed in self.seeds:
            with self.seed(seed) as chance:
                before, after = chance.choice((0, 1, 5)), chance.choice((0, 2, 10))
                grace = chance.choice((0, 4, 20))
                messages = messagesOf(chance, ["left", "right"])
                load(self.database, messages)
                sides = (
                    "WITH intime AS (SELECT *, ts + $before + $after + $grace AS until"
                    " FROM messages WHERE st <= ts + $before + $after + $grace),"
                    " pairs AS (SELECT l.n AS l, r.n AS r, l.k, greatest(l.ts, r.ts) AS ts"
                    " FROM intime l JOIN intime r ON l.k = r.k AND l.topic = 'left'"
                    " AND r.topic = 'right' AND r.ts BETWEEN l.ts - $before AND l.ts + $after"
                    " AND greatest(l.st, r.st) <= least(l.until, r.until)),"
                    " alone AS (SELECT * FROM intime WHERE until < (SELECT max(st) FROM messages)"
                    " AND n NOT IN (SELECT l FROM pairs UNION SELECT r FROM pairs)) "
                )
                inner = "SELECT k, l, r, ts FROM pairs"
                left = f"{inner} UNION ALL SELECT k, n, NULL, ts FROM alone WHERE topic = 'left'"
                outer = f"{left} UNION ALL SELECT k, NULL, n, ts FROM alone WHERE topic = 'right'"
                for how, query in (("join", inner), ("leftJoin", left), ("outerJoin", outer)):
                    wanted = self.rows(sides + query, before=before, after=after, grace=grace)
                    mine, other = (stream(each, STRING, INTEGER) for each in ("left", "right"))
                    joined = getattr(mine, how)(other, pair, JoinWindow(before, after, grace), JSON)
                    job = buildJob("join", joined.to("out"))
                    [found] = self.sent(job, chance, messages, "out")
                    self.assertEqual(
                        Counter((each.key, *each.message, each.timestamp) for each in found),
                        Counter(wanted),
                    )

    def test_streamTableJoins(self) -> None:
        """Inner and left joins of a stream with a table."""
        for seed in self.seeds:
            with self.seed(seed) as chance:
                messages = messagesOf(chance, ["in", "table"])
                load(self.database, messages)
                wanted = self.rows(
                    "SELECT s.k, s.n, t.value, s.ts FROM"
                    " (SELECT * FROM messages WHERE topic = 'in') s ASOF LEFT JOIN"
                    " (SELECT * FROM messages WHERE topic = 'table') t"
                    " ON s.k = t.k AND s.n >= t.n ORDER BY s.n"
                )
                for how, isInner in (("join", True), ("leftJoin", False)):
                    mine, other = stream("in", STRING, INTEGER), table("table", STRING, INTEGER)
                    joined = getattr(mine, how)(other, pair, message=JSON)
                    job = buildJob("join", joined.to("out"))
                    [found] = self.sent(job, chance, messages, "out")
                    self.assertEqual(
                        [(each.key, *each.message, each.timestamp) for each in found],
                        [each for each in wanted if each[2] is not None or not isInner],
                    )

    def test_tableJoins(self) -> None:
        """Inner, left and outer joins of two tables: what they have at the end."""
        for seed in self.seeds:
            with self.seed(seed) as chance:
                messages = messagesOf(chance, ["tableA", "tableB"])[: chance.randint(1, 150)]
                load(self.database, messages)
                last = (
                    "(SELECT k, last(value ORDER BY n) AS value FROM messages"
                    " WHERE topic = '{}' GROUP BY k HAVING last(value ORDER BY n) IS NOT NULL)"
                )
                a, b = last.format("tableA"), last.format("tableB")
                for how, kind in (("join", "INNER"), ("leftJoin", "LEFT"), ("outerJoin", "FULL")):
                    wanted = self.rows(
                        f"SELECT coalesce(a.k, b.k), a.value, b.value FROM {a} a"
                        f" {kind} JOIN {b} b ON a.k = b.k"
                    )
                    mine, other = (table(each, STRING, INTEGER) for each in ("tableA", "tableB"))
                    joined = getattr(mine, how)(other, pair, JSON)
                    job = buildJob("join", joined.toStream().to("out"))
                    [found] = self.sent(job, chance, messages, "out")
                    end = {each.key: each.message for each in found}
                    self.assertEqual(
                        {key: value for key, value in end.items() if value is not None},
                        {key: both for key, *both in wanted},
                    )

    def test_tableGroups(self) -> None:
        """
        Counts and sums of a table's rows, whose groups change with their values: what the groups
        have at the end.
        """
        for seed in self.seeds:
            with self.seed(seed) as chance:
                messages = messagesOf(chance, ["table"])[: chance.randint(1, 150)]
                load(self.database, messages)
                wanted = self.rows(
                    "SELECT 'g' || value % 2, count(*), sum(value)::INTEGER FROM"
                    " (SELECT k, last(value ORDER BY n) AS value FROM messages GROUP BY k)"
                    " WHERE value IS NOT NULL GROUP BY ALL"
                )
                groups = table("table", STRING, INTEGER).groupBy(
                    lambda _key, number: (f"g{number % 2}", number), STRING, INTEGER
                )
                sums = groups.reduce(lambda one, other: one + other, lambda one, other: one - other)
                results = (groups.count().toStream().to("counts"), sums.toStream().to("sums"))
                job = buildJob("groups", *results)
                counted, summed = (
                    {each.key: each.message for each in found}
                    for found in self.sent(job, chance, messages, "counts", "sums")
                )
                self.assertEqual(
                    {key: (count, summed[key]) for key, count in counted.items() if count},
                    {key: (count, total) for key, count, total in wanted},
                )
