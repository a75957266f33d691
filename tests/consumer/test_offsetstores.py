"""
Tests for L{pylogbroker.consumer.offsetstores}: one suite of promises for all stores, what is
special to each, and what a member knows of its store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.consumer.offsetstores import (
    ConsumedOffsets,
    IOffsetStore,
    MemoryOffsetStore,
    SqliteOffsetStore,
    ZookeeperOffsetStore,
)
from pylogbroker.errors import ConnectionLossException, OffsetConflictError, ZookeeperError
from pylogbroker.testing.zookeeper import FakeZookeeper
from pylogbroker.types import BrokerPartition, PartialBatchOffset, PartitionId, consumedCount

A, B = PartitionId("t", BrokerPartition(0, 0)), PartitionId("u", BrokerPartition(10, 3))
C = PartitionId("t", BrokerPartition(0, 1))


class Promises:
    """What every store does."""

    store: IOffsetStore

    def do(self, doing: Deferred[Any]) -> Any:
        return self.successResultOf(doing)  # type: ignore[attr-defined]

    def test_keeps(self: Any) -> None:
        """What was committed is found; the last writer wins; what nobody committed is not there."""
        self.assertIsNone(self.do(self.store.load(A)))
        self.assertEqual(self.do(self.store.commit({A: 5, B: 2**62})), {A: 5, B: 2**62})
        self.assertEqual(self.do(self.store.commit({A: 3})), {A: 3})
        self.assertEqual((self.do(self.store.load(A)), self.do(self.store.load(B))), (3, 2**62))
        self.assertEqual(self.do(self.store.commit({})), {})


class MemoryTests(Promises, SynchronousTestCase):
    """In memory."""

    def setUp(self) -> None:
        self.store = MemoryOffsetStore()


class ZookeeperTests(Promises, SynchronousTestCase):
    """In ZooKeeper, as 0.7 has it."""

    store: ZookeeperOffsetStore

    def setUp(self) -> None:
        self.clock = Clock()
        self.server = FakeZookeeper(self.clock)
        self.client = self.server.client()
        self.client.connect()
        self.clock.advance(0)
        self.store = ZookeeperOffsetStore(self.client, "g")

    def do(self, doing: Deferred[Any]) -> Any:
        self.clock.advance(1)
        return self.successResultOf(doing)

    def test_nodes(self) -> None:
        """
        Plain decimal numbers under C{/consumers/<group>/offsets/<topic>/<broker>-<partition>},
        persistent, parents made as needed.
        """
        self.do(self.store.commit({A: 282, B: 0}))
        tree = self.server.tree()
        self.assertEqual(tree["/consumers/g/offsets/t/0-0"], (b"282", 0))
        self.assertEqual(tree["/consumers/g/offsets/u/10-3"], (b"0", 0))

    def test_garbage(self) -> None:
        """What is no number is as if it were not there, and can be written over."""
        self.do(self.store.commit({A: 1}))
        self.do(self.client.set("/consumers/g/offsets/t/0-0", b"x"))
        self.assertIsNone(self.do(self.store.load(A)))
        self.assertEqual(self.do(self.store.commit({A: 2})), {A: 2})

    def missing(self) -> list[PartitionId]:
        found: list[PartitionId] = self.do(self.store.missing([A, B]))
        return found

    def test_missing(self) -> None:
        """
        What was deleted is missing, one by one or all at once; one request a topic finds it out.
        """
        self.do(self.store.commit({A: 5, B: 7}))
        self.assertEqual(self.missing(), [])
        self.do(self.client.delete("/consumers/g/offsets/t/0-0"))
        self.assertEqual(self.missing(), [A])
        self.do(self.client.delete("/consumers/g/offsets/u/10-3"))
        self.do(self.client.delete("/consumers/g/offsets/u"))
        self.assertEqual(self.missing(), [A, B])
        self.server.disconnect(self.client)
        asking = self.store.missing([A])
        self.clock.pump([1] * 20)
        self.failureResultOf(asking, ZookeeperError)

    def test_unexpectedError(self) -> None:
        """An unexpected error with one offset does not keep the others from being stored."""
        partitions = [PartitionId("t", BrokerPartition(0, number)) for number in range(300)]
        written: list[str] = []

        def setNode(path: str, data: bytes, version: int = -1) -> Deferred[Any]:
            written.append(path)
            return fail(RuntimeError("not expected")) if len(written) == 3 else succeed(None)

        self.patch(self.client, "set", setNode)
        committing = self.store.commit(dict.fromkeys(partitions, 5))
        self.failureResultOf(committing, RuntimeError)
        self.assertEqual(len(written), 300)

    def test_missingOfMany(self) -> None:
        """Finding the missing partitions of a large topic compares each stored name once."""
        compared: list[str] = []

        class Name(str):
            __hash__ = str.__hash__

            def __eq__(self, other: object) -> bool:
                compared.append(self)
                return str.__eq__(self, other)

        partitions = [PartitionId("t", BrokerPartition(0, number)) for number in range(100)]
        names = [Name(each.partition) for each in partitions]
        self.patch(self.client, "get_children", lambda _path: succeed(names))
        self.assertEqual(self.successResultOf(self.store.missing(partitions)), [])
        self.assertLessEqual(len(compared), 2 * len(names))

    def test_connectionLost(self) -> None:
        """A commit gives those that are safe, and does not fail; loading does."""
        committing = self.store.commit({A: 1, B: 2})
        self.server.disconnect(self.client)
        self.assertEqual(self.do(committing), {})
        loading = self.store.load(A)
        self.clock.advance(13)
        self.failureResultOf(loading, ConnectionLossException)

    def test_oneLineACommit(self) -> None:
        """
        While ZooKeeper is away a commit of many partitions is one line in the log, with how many
        there are, the first few, and why.
        """
        many = {PartitionId("t", BrokerPartition(0, number)): 10 * number for number in range(90)}
        for positions, sentence in (
            (many, "90 offsets were not committed (0 of t/0-0, 10 of t/0-1, 20 of t/0-2 …): "),
            ({A: 7}, "1 offsets were not committed (7 of t/0-0): "),
        ):
            self.setUp()
            with capturedLogs() as events:
                committing = self.store.commit(positions)
                self.server.disconnect(self.client)
                self.assertEqual(self.do(committing), {})
            [line] = [formatEvent(event) for event in events if "committed" in formatEvent(event)]
            self.assertTrue(line.startswith(sentence), line)

    def test_cancelled(self) -> None:
        """A commit that is cancelled says so, and not that it is done."""
        committing = self.store.commit({A: 1})
        committing.cancel()
        self.failureResultOf(committing, CancelledError)


class SqliteTests(Promises, SynchronousTestCase):
    """In the application's own database."""

    def setUp(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.addCleanup(self.connection.close)
        self.sqlite = SqliteOffsetStore(self.connection, "g")
        self.store = self.sqlite

    def test_oneTransaction(self) -> None:
        """
        The position is in the transaction with the application's work: both are there, or neither.
        """
        self.connection.execute("CREATE TABLE sums (total INTEGER)")
        self.connection.execute("INSERT INTO sums VALUES (1)")
        self.sqlite.store("t", A.partition, 11)
        self.connection.commit()
        self.connection.execute("UPDATE sums SET total = 2")
        self.sqlite.store("t", A.partition, 22)
        self.connection.rollback()
        self.assertEqual(self.connection.execute("SELECT total FROM sums").fetchall(), [(1,)])
        self.assertEqual(self.do(self.store.load(A)), 11)

    def test_openTransaction(self) -> None:
        """What the application has open is not committed behind its back: then nothing is safe."""
        self.sqlite.store("t", A.partition, 11)
        self.assertEqual(self.do(self.store.commit({B: 5})), {})
        self.connection.rollback()
        self.assertIsNone(self.do(self.store.load(A)))

    def two(self) -> tuple[SqliteOffsetStore, SqliteOffsetStore]:
        """Stores of two members of a group, with connections of their own."""
        path = self.mktemp()
        connections = [sqlite3.connect(path, timeout=0) for _member in range(2)]
        for connection in connections:
            self.addCleanup(connection.close)
        first, second = (
            SqliteOffsetStore(connection, "g", Random(number))
            for number, connection in enumerate(connections)
        )
        self.connection = connections[0]
        self.other = connections[1]
        return first, second

    def test_insideASet(self) -> None:
        """
        Of a position in the midst of a compressed set it is kept how many of its messages are done;
        a plain one has none.
        """
        for offset, doneCount in (
            (PartialBatchOffset(30, 2), 2),
            (PartialBatchOffset(30, 7), 7),
            (90, 0),
        ):
            self.sqlite.store("t", A.partition, offset)
            self.connection.commit()
            loaded = self.do(SqliteOffsetStore(self.connection, "g").load(A))
            self.assertEqual((loaded, consumedCount(loaded)), (int(offset), doneCount))

    def test_oldTable(self) -> None:
        """A table of an earlier version goes on being used, with what is in it."""
        connection = sqlite3.connect(":memory:")
        self.addCleanup(connection.close)
        connection.execute(
            'CREATE TABLE pylogbroker_offsets ("group" TEXT, topic TEXT, broker INTEGER, '
            '"partition" INTEGER, offset INTEGER NOT NULL, '
            'PRIMARY KEY ("group", topic, broker, "partition"))'
        )
        connection.execute("INSERT INTO pylogbroker_offsets VALUES ('g', 't', 0, 0, 11)")
        connection.commit()
        store = SqliteOffsetStore(connection, "g")
        self.assertEqual(self.do(store.load(A)), 11)
        store.store("t", A.partition, PartialBatchOffset(22, 3))
        connection.commit()
        self.assertEqual(consumedCount(self.do(SqliteOffsetStore(connection, "g").load(A))), 3)

    def test_openElsewhere(self) -> None:
        """Who comes while another has a transaction open does not wait for it."""
        first, _second = self.two()
        first.store("t", A.partition, 11)
        self.assertIsNone(self.do(SqliteOffsetStore(self.other, "g").load(A)))

    def test_takenOver(self) -> None:
        """
        Two members have read the same position, since the first had a transaction open when its
        partition went: the second, whose work is that of the first once more, is refused, rolls
        back, and goes on from there.
        """
        first, second = self.two()
        self.do(first.commit({A: 0}))
        self.do(first.load(A))
        first.store("t", A.partition, 11)
        first.store("t", A.partition, 22)
        self.assertEqual(self.do(second.load(A)), 0)
        self.connection.commit()
        for offset in (11, 22, 33):
            self.assertRaises(OffsetConflictError, second.store, "t", A.partition, offset)
            self.other.rollback()
        self.assertEqual(self.do(second.load(A)), 22)
        second.store("t", A.partition, 33)
        self.other.commit()
        self.assertEqual(self.do(first.load(A)), 33)

    def test_late(self) -> None:
        """
        The same when the second was quicker, and what the first has in hand is done already; also
        when the first has had nothing before.
        """
        for start in (None, 0):
            first, second = self.two()
            if start is not None:
                self.do(second.commit({A: start}))
            self.assertEqual((self.do(first.load(A)), self.do(second.load(A))), (start, start))
            second.store("t", A.partition, PartialBatchOffset(11, 1))
            self.other.commit()
            for offset in (PartialBatchOffset(11, 1), PartialBatchOffset(11, 2), 22):
                self.assertRaises(OffsetConflictError, first.store, "t", A.partition, offset)
                self.connection.rollback()
            self.assertEqual(self.do(first.commit({A: 5, B: 7})), {B: 7})

    def test_forward(self) -> None:
        """
        What is stored already is not stored again, also by the same member: messages that it has in
        hand from before it lost its session, and had anew.
        """
        store, _second = self.two()
        store.store("t", A.partition, PartialBatchOffset(11, 2))
        self.connection.commit()
        self.do(store.load(A))
        for offset in (5, 11, PartialBatchOffset(11, 1), PartialBatchOffset(11, 2)):
            self.assertRaises(OffsetConflictError, store.store, "t", A.partition, offset)
        store.store("t", A.partition, PartialBatchOffset(11, 3))
        self.connection.rollback()
        store.store("t", A.partition, PartialBatchOffset(11, 3))
        store.store("t", A.partition, 22)
        self.connection.commit()
        self.assertEqual(self.do(store.load(A)), 22)

    def test_begunAnew(self) -> None:
        """
        A position that is put back while the application has a transaction open goes forward from
        there, however often that is rolled back, or begun anew; one that is another member's
        meanwhile does not.
        """
        first, second = self.two()
        self.do(second.commit({A: 90}))
        self.do(first.load(A))
        for end in (0, 5):
            first.store("t", B.partition, 100 + end)
            self.assertEqual(self.do(first.commit({A: end})), {})
            first.store("t", A.partition, 11)
            self.assertRaises(OffsetConflictError, first.store, "t", A.partition, 11)
            self.assertEqual(self.do(first.commit({A: 11})), {})
            self.assertRaises(OffsetConflictError, first.store, "t", A.partition, 11)
            self.connection.rollback()
            first.store("t", A.partition, 11)
            first.store("t", A.partition, 22)
            self.connection.commit()
            for offset in (11, 22):
                self.assertRaises(OffsetConflictError, first.store, "t", A.partition, offset)
                self.connection.rollback()
        self.assertEqual(self.do(second.load(A)), 22)
        first.store("t", B.partition, 200)
        self.assertEqual(self.do(first.commit({A: 0})), {})
        self.connection.commit()
        second.store("t", A.partition, 33)
        self.other.commit()
        self.assertRaises(OffsetConflictError, first.store, "t", A.partition, 11)
        self.connection.rollback()
        self.assertEqual(self.do(first.load(A)), 33)
        self.assertRaises(OffsetConflictError, first.store, "t", A.partition, 11)

    def test_groups(self) -> None:
        """
        Groups do not see each other, and a second store on the same database finds what is there.
        """
        self.do(self.store.commit({A: 5}))
        self.assertIsNone(self.do(SqliteOffsetStore(self.connection, "h").load(A)))
        self.assertEqual(self.do(SqliteOffsetStore(self.connection, "g").load(A)), 5)


class HeldStore(MemoryOffsetStore):
    """
    Commits when the test says so.

    @ivar pending: what was asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[tuple[dict[PartitionId, int], Deferred[dict[PartitionId, int]]]] = []

    def commit(self, positions: Mapping[PartitionId, int]) -> Deferred[dict[PartitionId, int]]:
        answer: Deferred[dict[PartitionId, int]] = Deferred()
        self.pending.append((dict(positions), answer))
        return answer


class PositionsTests(SynchronousTestCase):
    """What to commit, and where to go on."""

    def do(self, work: Any) -> Any:
        return self.successResultOf(Deferred.fromCoroutine(work))

    def test_insideASet(self) -> None:
        """
        In the midst of a set it counts how much of it is done: that somebody else has done more of
        it is seen, and that we have moved is stored.
        """
        store = MemoryOffsetStore({A: PartialBatchOffset(30, 1)})
        positions = ConsumedOffsets(store)
        self.assertEqual(consumedCount(self.do(positions.find(A))), 1)
        positions.begin(A, PartialBatchOffset(30, 2))
        self.assertEqual(consumedCount(self.do(positions.find(A))), 2)
        self.assertEqual(self.do(positions.commit(lambda: [A])), [])
        self.assertEqual(consumedCount(store.offsets[A]), 2)
        store.offsets[A] = PartialBatchOffset(30, 5)
        self.assertEqual(consumedCount(self.do(positions.find(A))), 5)

    def test_onlyWhatMoved(self) -> None:
        """Only what has moved, and is ours, is written."""
        store = HeldStore()
        positions = ConsumedOffsets(store)
        positions.begin(A, 10)
        positions.begin(C, 20)
        committing = Deferred.fromCoroutine(positions.commit(lambda: [A]))
        written, answer = store.pending.pop()
        self.assertEqual(written, {A: 10})
        answer.callback(written)
        self.assertEqual(self.successResultOf(committing), [])
        self.assertEqual(self.do(positions.commit(lambda: [A])), [])
        self.assertEqual(store.pending, [])

    def test_oneAtATime(self) -> None:
        """
        A commit waits for the one before, and then takes what is ours and where it is by then.
        """
        store = HeldStore()
        positions = ConsumedOffsets(store)
        positions.begin(A, 10)
        first = Deferred.fromCoroutine(positions.commit(lambda: [A]))
        second = Deferred.fromCoroutine(positions.commit(lambda: [A, C]))
        positions.begin(C, 20)
        self.assertEqual(len(store.pending), 1)
        store.pending.pop()[1].callback({})
        self.assertEqual(self.successResultOf(first), [A])
        written, answer = store.pending.pop()
        self.assertEqual(written, {A: 10, C: 20})
        answer.callback(written)
        self.assertEqual(self.successResultOf(second), [])

    def test_cancelled(self) -> None:
        """A commit that is cancelled leaves the way free for the next."""
        store = HeldStore()
        positions = ConsumedOffsets(store)
        positions.begin(A, 10)
        committing = Deferred.fromCoroutine(positions.commit(lambda: [A]))
        committing.cancel()
        self.failureResultOf(committing, CancelledError)
        Deferred.fromCoroutine(positions.commit(lambda: [A]))
        self.assertEqual(len(store.pending), 2)

    def test_goesOnWhereItWas(self) -> None:
        """
        When the store says what it said before, or what was written without an answer, the position
        in the process counts; otherwise the store does.
        """
        store = MemoryOffsetStore({A: 5})
        positions = ConsumedOffsets(store)
        self.assertEqual(self.do(positions.find(A)), 5)
        positions.begin(A, 30)
        self.assertEqual(self.do(positions.find(A)), 30)
        store.offsets[A] = 20
        self.assertEqual(self.do(positions.find(A)), 20)
        self.assertIsNone(self.do(positions.find(C)))
        held = HeldStore()
        unsure = ConsumedOffsets(held)
        unsure.begin(A, 7)
        Deferred.fromCoroutine(unsure.commit(lambda: [A]))
        held.pending.pop()[1].callback({})
        unsure.begin(A, 9)
        held.offsets[A] = 7
        self.assertEqual(self.do(unsure.find(A)), 9)

    def test_forgets(self) -> None:
        """What another has now is found in the store alone."""
        store = MemoryOffsetStore({A: 5})
        positions = ConsumedOffsets(store)
        self.do(positions.find(A))
        positions.begin(A, 30)
        positions.forget([A, C])
        self.assertEqual(self.do(positions.find(A)), 5)

    def test_deleted(self) -> None:
        """
        What is gone from the store is stored again, though it has not moved; a store that cannot
        say what is gone is asked at the next commit.
        """

        class ForgetfulStore(MemoryOffsetStore):
            reachable = True

            def missing(self, places: Iterable[PartitionId]) -> Deferred[list[PartitionId]]:
                if not self.reachable:
                    return fail(ConnectionLossException("away"))
                return succeed([place for place in places if place not in self.offsets])

        store = ForgetfulStore()
        positions = ConsumedOffsets(store)
        positions.begin(A, 10)
        positions.begin(C, 20)
        self.do(positions.commit(lambda: [A, C]))
        positions.begin(C, 30)
        del store.offsets[A]
        store.reachable = False
        self.assertEqual(self.do(positions.commit(lambda: [A, C])), [])
        self.assertEqual(store.offsets, {C: 30})
        store.reachable = True
        self.assertEqual(self.do(positions.commit(lambda: [C])), [])
        self.assertEqual(store.offsets, {C: 30})
        self.assertEqual(self.do(positions.commit(lambda: [A, C])), [])
        self.assertEqual(store.offsets, {A: 10, C: 30})

    def test_deletedMeanwhile(self) -> None:
        """Who comes back to a partition whose position was deleted goes on where it was."""
        store = MemoryOffsetStore({A: 5})
        positions = ConsumedOffsets(store)
        self.do(positions.find(A))
        positions.begin(A, 30)
        store.offsets.clear()
        self.assertEqual(self.do(positions.find(A)), 30)
        self.do(positions.commit(lambda: [A]))
        self.assertEqual(store.offsets, {A: 30})

    def test_put(self) -> None:
        """A position can be stored at once."""
        store = MemoryOffsetStore()
        positions = ConsumedOffsets(store)
        self.do(positions.put(A, 77))
        self.assertEqual(store.offsets, {A: 77})
        self.assertEqual(self.do(positions.commit(lambda: [A])), [])

    def test_bounded(self) -> None:
        """Writes without an answer are remembered, up to a number."""
        store = HeldStore()
        positions = ConsumedOffsets(store)
        for offset in range(1_000):
            positions.begin(A, offset)
            Deferred.fromCoroutine(positions.commit(lambda: [A]))
            store.pending.pop()[1].callback({})
        self.assertLessEqual(len(positions._possible[A]), 100)
