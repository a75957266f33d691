"""Tests for L{pylogbroker.net.deferreds}."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.net.deferreds import (
    Waiters,
    Work,
    batched,
    closeAll,
    gatherAll,
    gatherInBatches,
    gatherSettled,
    untilEnded,
)


class AllOfTests(SynchronousTestCase):
    """Several things at once."""

    def setUp(self) -> None:
        self.waited: list[Deferred[int]] = [Deferred(), Deferred(), Deferred()]

        async def each(index: int) -> int:
            return await self.waited[index]

        self.all = Deferred.fromCoroutine(gatherAll(each(index) for index in range(3)))

    def test_results(self) -> None:
        """All results, in the order of the works, whichever was done first."""
        for index in (2, 0, 1):
            self.assertNoResult(self.all)
            self.waited[index].callback(index)
        self.assertEqual(self.successResultOf(self.all), [0, 1, 2])

    def test_nothing(self) -> None:
        """Of no works no results."""
        self.assertEqual(self.successResultOf(Deferred.fromCoroutine(gatherAll([]))), [])
        for waited in self.waited:
            waited.callback(0)

    def test_failure(self) -> None:
        """
        The others are done to their ends before a failure is told, and the first in order is told.
        """
        self.waited[1].errback(ZeroDivisionError())
        self.waited[0].errback(KeyError())
        self.assertNoResult(self.all)
        self.waited[2].callback(2)
        self.failureResultOf(self.all, KeyError)

    def test_cancelled(self) -> None:
        """Who waits no longer cancels all that is not done."""
        self.waited[0].callback(0)
        self.all.cancel()
        self.failureResultOf(self.all, CancelledError)
        self.assertTrue(self.waited[1].called and self.waited[2].called)


class OutcomesTests(SynchronousTestCase):
    """What came of each."""

    def test_each(self) -> None:
        """
        Results and failures, in order, of Deferreds as of coroutines; no failure is left unheard.
        """

        async def work() -> int:
            return 2

        works: list[Work[int]] = [succeed(1), work(), fail(KeyError())]
        first, second, third = self.successResultOf(Deferred.fromCoroutine(gatherSettled(works)))
        self.assertEqual((first, second), (1, 2))
        assert isinstance(third, Failure)
        self.assertIs(third.type, KeyError)


class InTurnsTests(SynchronousTestCase):
    """Many, so many at a time."""

    def setUp(self) -> None:
        self.begun: dict[int, Deferred[int]] = {}

    def begin(self, item: int) -> Deferred[int]:
        self.begun[item] = Deferred()
        return self.begun[item]

    def test_turns(self) -> None:
        """No more are begun than may be; all results come, in order."""
        working = Deferred.fromCoroutine(gatherInBatches(self.begin, range(5), 2))
        for some in ([0, 1], [2, 3], [4]):
            self.assertEqual(list(self.begun), some)
            waiting, self.begun = self.begun, {}
            for item, waited in waiting.items():
                waited.callback(10 * item)
        self.assertEqual(self.successResultOf(working), [0, 10, 20, 30, 40])

    def test_failure(self) -> None:
        """Behind a failure nothing more is begun."""
        working = Deferred.fromCoroutine(gatherInBatches(self.begin, range(5), 2))
        self.begun[0].errback(KeyError())
        self.begun[1].callback(1)
        self.failureResultOf(working, KeyError)
        self.assertEqual(len(self.begun), 2)

    def test_slices(self) -> None:
        """All items, and no empty list."""
        self.assertEqual(
            (list(batched(range(4), 2)), list(batched("abc", 2)), list(batched([], 2))),
            ([[0, 1], [2, 3]], [["a", "b"], ["c"]], []),
        )


class WaitersTests(SynchronousTestCase):
    """Callers that wait for one event."""

    def setUp(self) -> None:
        self.waiters: Waiters[str] = Waiters()
        self.first, self.second = self.waiters.wait(), self.waiters.wait()

    def test_fire(self) -> None:
        """
        All fire with the value, and none of them twice; who waits from then on waits for the next
        time.
        """
        order: list[int] = []

        def note(value: str, number: int) -> str:
            order.append(number)
            return value

        self.first.addCallback(note, 1)
        self.second.addCallback(note, 2)
        self.assertEqual(len(self.waiters), 2)
        self.waiters.fire("now")
        self.assertEqual((self.successResultOf(self.first), order), ("now", [1, 2]))
        third = self.waiters.wait()
        self.assertNoResult(third)
        self.waiters.fire("then")
        self.assertEqual(
            (self.successResultOf(self.second), self.successResultOf(third)), ("now", "then")
        )
        self.assertEqual(len(self.waiters), 0)

    def test_fail(self) -> None:
        """A failure fails them all."""
        self.waiters.fire(Failure(ValueError("no")))
        for each in (self.first, self.second):
            self.failureResultOf(each, ValueError)

    def test_cancelled(self) -> None:
        """One that is cancelled waits no longer; the others do."""
        self.first.cancel()
        self.failureResultOf(self.first, CancelledError)
        self.assertEqual(len(self.waiters), 1)
        self.waiters.fire("now")
        self.assertEqual(self.successResultOf(self.second), "now")

    def test_cancelledWhileFiring(self) -> None:
        """One may cancel another while they fire, and may wait again at once."""
        again: list[Deferred[str]] = []

        def cancelOther(value: str) -> None:
            self.second.cancel()
            again.append(self.waiters.wait())

        self.first.addCallback(cancelOther)
        self.waiters.fire("now")
        self.failureResultOf(self.second, CancelledError)
        self.assertNoResult(again[0])
        self.assertEqual(len(self.waiters), 1)


class EndedTests(SynchronousTestCase):
    """Waiting for work that ends in order."""

    def setUp(self) -> None:
        self.work: Deferred[int] = Deferred()
        self.stops: list[None] = []
        self.waiting = Deferred.fromCoroutine(
            untilEnded(self.work, lambda: self.stops.append(None))
        )

    def test_result(self) -> None:
        """The result is that of the work, which is not stopped."""
        self.assertNoResult(self.waiting)
        self.work.callback(7)
        self.assertEqual((self.successResultOf(self.waiting), self.stops), (7, []))

    def test_stopped(self) -> None:
        """A cancellation stops the work, and is raised when that has ended."""
        self.waiting.cancel()
        self.assertEqual(len(self.stops), 1)
        self.assertNoResult(self.waiting)
        self.work.callback(7)
        self.failureResultOf(self.waiting, CancelledError)

    def test_failure(self) -> None:
        """A failure of the work comes before the cancellation."""
        self.waiting.cancel()
        self.work.errback(ValueError("lost"))
        self.failureResultOf(self.waiting, ValueError)


class ClosedTests(SynchronousTestCase):
    """Waiting for what closes."""

    def test_all(self) -> None:
        """It waits for all, whether they succeed or fail."""
        first: Deferred[None] = Deferred()
        second: Deferred[None] = Deferred()
        waiting = Deferred.fromCoroutine(closeAll(first, second))
        second.errback(ValueError("lost"))
        self.assertNoResult(waiting)
        first.callback(None)
        self.assertIs(self.successResultOf(waiting), None)

    def test_cancelled(self) -> None:
        """A caller that is cancelled, once or twice, waits to the end, and learns it then."""
        closing: Deferred[None] = Deferred()
        waiting = Deferred.fromCoroutine(closeAll(closing))
        for _ in range(2):
            waiting.cancel()
            self.assertNoResult(waiting)
        closing.callback(None)
        self.failureResultOf(waiting, CancelledError)

    def test_closedAlready(self) -> None:
        """What is closed already is not waited for."""
        self.assertIs(self.successResultOf(Deferred.fromCoroutine(closeAll(succeed(None)))), None)
