"""
Tests for L{pylogbroker.producer.inflight}.
"""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ClosedError, PylogbrokerError, QueueFullError
from pylogbroker.producer.inflight import WAITING_COUNT_MAX, InFlightMessageLimiter


class InFlightLimiterTests(SynchronousTestCase):
    """Room for messages."""

    def queue(self, enqueueTimeoutMs: int = -1) -> InFlightMessageLimiter:
        self.clock = Clock()
        self.admitted: list[str] = []
        self.refusals: list[tuple[str, PylogbrokerError]] = []
        return InFlightMessageLimiter(
            self.clock,
            10,
            100,
            enqueueTimeoutMs,
            self.admitted.append,
            lambda name, reason: self.refusals.append((name, reason)),
        )

    def enter(
        self, queue: InFlightMessageLimiter, name: str, count: int = 1, size: int = 1
    ) -> None:
        queue.acquire(count, size, name)

    def test_bounds(self) -> None:
        """Both the number of messages and their bytes are bounded."""
        queue = self.queue()
        self.assertTrue(queue.tryAcquire(10, 50))
        self.assertFalse(queue.tryAcquire(1, 1))
        queue.release(10, 50)
        self.assertTrue(queue.tryAcquire(2, 100))
        self.assertFalse(queue.isReady)
        self.assertFalse(queue.tryAcquire(1, 1))

    def test_tooLargeAlone(self) -> None:
        """What is larger than all room goes when it is alone."""
        queue = self.queue()
        self.assertTrue(queue.tryAcquire(11, 200))
        self.assertFalse(queue.tryAcquire(1, 0))

    def test_failAtOnce(self) -> None:
        """
        AsyncProducerTest.testProducerQueueSize: with 0 the eleventh message of ten fails at once.
        """
        queue = self.queue(0)
        for index in range(11):
            self.enter(queue, str(index))
        self.assertEqual(self.admitted, [str(index) for index in range(10)])
        ((name, reason),) = self.refusals
        self.assertEqual(name, "10")
        self.assertIsInstance(reason, QueueFullError)
        self.assertIn("10 messages of 10 bytes are in flight, 10 of 100 may be", str(reason))

    def test_waits(self) -> None:
        """
        Below 0 messages wait for as long as it takes, in their order; one that would fit does not
        overtake.
        """
        queue = self.queue()
        self.enter(queue, "a", 9, 9)
        self.enter(queue, "b", 2, 2)
        self.enter(queue, "c", 1, 1)
        self.assertEqual((self.admitted, queue.waitingCount), (["a"], 3))
        self.clock.advance(10_000)
        queue.release(9, 9)
        self.assertEqual((self.admitted, queue.count, queue.waitingCount), (["a", "b", "c"], 3, 0))

    def test_waitsSoLong(self) -> None:
        """Above 0 calls wait for that time, and then fail; the next one may fit then."""
        queue = self.queue(50)
        self.enter(queue, "a", 9, 9)
        self.enter(queue, "b", 2, 2)
        self.enter(queue, "c", 1, 1)
        self.clock.advance(0.049)
        self.assertEqual(self.refusals, [])
        self.clock.advance(0.001)
        self.assertEqual([name for name, _ in self.refusals], ["b"])
        self.assertIn("for 50 ms", str(self.refusals[0][1]))
        self.assertEqual(self.admitted, ["a", "c"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_waitingIsBounded(self) -> None:
        """
        As many bytes may wait outside as may be in, and a number of messages that hardly depends on
        how many may be in.
        """
        queue = self.queue()
        self.enter(queue, "a", 10, 10)
        self.enter(queue, "huge", 50, 500)
        self.enter(queue, "b", 1, 1)
        self.assertEqual([name for name, _ in self.refusals], ["b"])
        self.assertIn("wait for capacity already", str(self.refusals[0][1]))
        queue = self.queue()
        self.enter(queue, "a", 10, 0)
        self.enter(queue, "b", WAITING_COUNT_MAX, 0)
        self.assertEqual((self.refusals, queue.waitingCount), ([], WAITING_COUNT_MAX))
        self.enter(queue, "c", 1, 0)
        self.assertEqual([name for name, _ in self.refusals], ["c"])

    def test_refuseAll(self) -> None:
        """Those outside can be sent away; a refused one may make others go."""
        queue = self.queue(50)
        self.enter(queue, "a", 10, 10)
        self.enter(queue, "b")
        self.enter(queue, "c")
        queue.refuseAll(ClosedError("over"))
        self.assertEqual([name for name, _ in self.refusals], ["b", "c"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_refusalThatEmpties(self) -> None:
        """A refusal that itself sends all others away is fine."""
        refused: list[str] = []

        def onRefused(name: str, reason: PylogbrokerError) -> None:
            if name == "a":
                queue.refuseAll(reason)
            else:
                refused.append(name)

        queue = InFlightMessageLimiter(Clock(), 10, 100, -1, self.fail, onRefused)
        queue.tryAcquire(10, 10)
        self.enter(queue, "a")
        self.enter(queue, "b")
        queue.refuseAll(ClosedError("over"))
        self.assertEqual(refused, ["b"])

    def test_reentrantAdmission(self) -> None:
        """
        What is admitted may be through at once, and make room for the next, without going deeper
        for each.
        """
        done: list[int] = []

        def admitted(number: int) -> None:
            done.append(number)
            queue.release(1, 1)

        queue = InFlightMessageLimiter(Clock(), 10, 100, -1, admitted)
        queue.tryAcquire(10, 10)

        for number in range(10):
            queue.acquire(1, 1, number)
        queue.release(10, 10)
        self.assertEqual((done, queue.count), (list(range(10)), 0))

    def test_whenReadyAndIdle(self) -> None:
        """
        One can wait for room, and for nothing to be under way; who waits no longer is forgotten.
        """
        queue = self.queue()
        self.successResultOf(queue.whenReady())
        self.successResultOf(queue.whenIdle())
        queue.tryAcquire(10, 10)
        ready, idle, other = queue.whenReady(), queue.whenIdle(), queue.whenIdle()
        other.cancel()
        self.failureResultOf(other)
        queue.release(4, 4)
        queue.notify()
        self.assertNoResult(ready)
        queue.release(1, 1)
        queue.notify()
        self.successResultOf(ready)
        self.assertNoResult(idle)
        queue.release(5, 5)
        self.assertNoResult(idle)
        queue.notify()
        self.successResultOf(idle)

    def test_add(self) -> None:
        """What a hook has made goes in, room or not."""
        queue = self.queue()
        queue.add(20, 1)
        self.assertEqual(queue.count, 20)
        self.assertNoResult(queue.whenIdle())
