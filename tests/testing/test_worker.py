"""
Tests of the worker on a lead.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.testing.worker import ManualWorker


class LeadWorkerTests(SynchronousTestCase):
    """It works when it is told to."""

    def setUp(self) -> None:
        self.worker = ManualWorker()
        self.done: list[int] = []

    def test_perform(self) -> None:
        """Nothing is done before C{perform}, which does the oldest job and hands on its result."""
        first = self.worker.submit(lambda: [self.done.append(1), 10])  # type: ignore[func-returns-value]
        second = self.worker.submit(lambda: self.done.append(2))
        self.assertNoResult(first)
        self.assertEqual((self.done, len(self.worker.jobs)), ([], 2))
        self.worker.perform()
        self.assertEqual((self.done, self.successResultOf(first)), ([1], [None, 10]))
        self.assertNoResult(second)

    def test_failure(self) -> None:
        """What a job raises, its Deferred fails with."""
        failing = self.worker.submit(lambda: 1 // 0)
        self.worker.perform()
        self.failureResultOf(failing, ZeroDivisionError)

    def test_nothing(self) -> None:
        """Without a job C{perform} is an error of the test."""
        self.assertRaises(IndexError, self.worker.perform)

    def test_performAll(self) -> None:
        """C{performAll} does the jobs that jobs lead to, too, and says how many there were."""

        def begin(number: int) -> None:
            self.done.append(number)
            if number < 3:
                self.worker.submit(lambda: begin(number + 1))

        self.worker.submit(lambda: begin(1))
        self.assertEqual((self.worker.performAll(), self.done), (3, [1, 2, 3]))
        self.assertEqual(self.worker.performAll(), 0)

    def test_endless(self) -> None:
        """Jobs without end are an error, not a test that hangs."""

        def again() -> None:
            self.worker.submit(again)

        again()
        self.assertRaises(RuntimeError, self.worker.performAll, 50)

    def test_stop(self) -> None:
        """The stop does what is left, as that of threads does."""
        self.worker.start()
        left = self.worker.submit(lambda: 5)
        self.worker.stop()
        self.assertEqual(self.successResultOf(left), 5)
