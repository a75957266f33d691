"""Tests for L{pylogbroker.consumer.consumedoffsets}."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.consumer.consumedoffsets import Positions
from pylogbroker.consumer.offsetstores import MemoryOffsetStore
from pylogbroker.errors import ConnectionLossException
from pylogbroker.types import BrokerPartition, IntraBatchOffset, PartitionId, consumedCount

A, B = PartitionId("t", BrokerPartition(0, 0)), PartitionId("t", BrokerPartition(0, 1))


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
        """In the midst of a set it counts how much of it is done: that somebody else has done more of it is seen, and that we have moved is stored."""
        store = MemoryOffsetStore({A: IntraBatchOffset(30, 1)})
        positions = Positions(store)
        self.assertEqual(consumedCount(self.do(positions.find(A))), 1)
        positions.begin(A, IntraBatchOffset(30, 2))
        self.assertEqual(consumedCount(self.do(positions.find(A))), 2)
        self.assertEqual(self.do(positions.commit(lambda: [A])), [])
        self.assertEqual(consumedCount(store.positions[A]), 2)
        store.positions[A] = IntraBatchOffset(30, 5)
        self.assertEqual(consumedCount(self.do(positions.find(A))), 5)

    def test_onlyWhatMoved(self) -> None:
        """Only what has moved, and is ours, is written."""
        store = HeldStore()
        positions = Positions(store)
        positions.begin(A, 10)
        positions.begin(B, 20)
        committing = Deferred.fromCoroutine(positions.commit(lambda: [A]))
        written, answer = store.pending.pop()
        self.assertEqual(written, {A: 10})
        answer.callback(written)
        self.assertEqual(self.successResultOf(committing), [])
        self.assertEqual(self.do(positions.commit(lambda: [A])), [])
        self.assertEqual(store.pending, [])

    def test_oneAtATime(self) -> None:
        """A commit waits for the one before, and then takes what is ours and where it is by then."""
        store = HeldStore()
        positions = Positions(store)
        positions.begin(A, 10)
        first = Deferred.fromCoroutine(positions.commit(lambda: [A]))
        second = Deferred.fromCoroutine(positions.commit(lambda: [A, B]))
        positions.begin(B, 20)
        self.assertEqual(len(store.pending), 1)
        store.pending.pop()[1].callback({})
        self.assertEqual(self.successResultOf(first), [A])
        written, answer = store.pending.pop()
        self.assertEqual(written, {A: 10, B: 20})
        answer.callback(written)
        self.assertEqual(self.successResultOf(second), [])

    def test_cancelled(self) -> None:
        """A commit that is cancelled leaves the way free for the next."""
        store = HeldStore()
        positions = Positions(store)
        positions.begin(A, 10)
        committing = Deferred.fromCoroutine(positions.commit(lambda: [A]))
        committing.cancel()
        self.failureResultOf(committing, CancelledError)
        Deferred.fromCoroutine(positions.commit(lambda: [A]))
        self.assertEqual(len(store.pending), 2)

    def test_goesOnWhereItWas(self) -> None:
        """When the store says what it said before, or what was written without an answer, the position in the process counts; otherwise the store does."""
        store = MemoryOffsetStore({A: 5})
        positions = Positions(store)
        self.assertEqual(self.do(positions.find(A)), 5)
        positions.begin(A, 30)
        self.assertEqual(self.do(positions.find(A)), 30)
        store.positions[A] = 20
        self.assertEqual(self.do(positions.find(A)), 20)
        self.assertIsNone(self.do(positions.find(B)))
        held = HeldStore()
        unsure = Positions(held)
        unsure.begin(A, 7)
        Deferred.fromCoroutine(unsure.commit(lambda: [A]))
        held.pending.pop()[1].callback({})
        unsure.begin(A, 9)
        held.positions[A] = 7
        self.assertEqual(self.do(unsure.find(A)), 9)

    def test_forgets(self) -> None:
        """What another has now is found in the store alone."""
        store = MemoryOffsetStore({A: 5})
        positions = Positions(store)
        self.do(positions.find(A))
        positions.begin(A, 30)
        positions.forget([A, B])
        self.assertEqual(self.do(positions.find(A)), 5)

    def test_deleted(self) -> None:
        """What is gone from the store is stored again, though it has not moved; a store that cannot say what is gone is asked at the next commit."""

        class HttpRequest(MemoryOffsetStore):
            reachable = True

            def missing(self, places: Iterable[PartitionId]) -> Deferred[list[PartitionId]]:
                if not self.reachable:
                    return fail(ConnectionLossException("away"))
                return succeed([place for place in places if place not in self.positions])

        store = HttpRequest()
        positions = Positions(store)
        positions.begin(A, 10)
        positions.begin(B, 20)
        self.do(positions.commit(lambda: [A, B]))
        positions.begin(B, 30)
        del store.positions[A]
        store.reachable = False
        self.assertEqual(self.do(positions.commit(lambda: [A, B])), [])
        self.assertEqual(store.positions, {B: 30})
        store.reachable = True
        self.assertEqual(self.do(positions.commit(lambda: [B])), [])
        self.assertEqual(store.positions, {B: 30})
        self.assertEqual(self.do(positions.commit(lambda: [A, B])), [])
        self.assertEqual(store.positions, {A: 10, B: 30})

    def test_deletedMeanwhile(self) -> None:
        """Who comes back to a partition whose position was deleted goes on where it was."""
        store = MemoryOffsetStore({A: 5})
        positions = Positions(store)
        self.do(positions.find(A))
        positions.begin(A, 30)
        store.positions.clear()
        self.assertEqual(self.do(positions.find(A)), 30)
        self.do(positions.commit(lambda: [A]))
        self.assertEqual(store.positions, {A: 30})

    def test_put(self) -> None:
        """A position can be stored at once."""
        store = MemoryOffsetStore()
        positions = Positions(store)
        self.do(positions.put(A, 77))
        self.assertEqual(store.positions, {A: 77})
        self.assertEqual(self.do(positions.commit(lambda: [A])), [])

    def test_bounded(self) -> None:
        """Writes without an answer are remembered, up to a number."""
        store = HeldStore()
        positions = Positions(store)
        for offset in range(1_000):
            positions.begin(A, offset)
            Deferred.fromCoroutine(positions.commit(lambda: [A]))
            store.pending.pop()[1].callback({})
        self.assertLessEqual(len(positions._known[A]), 100)
