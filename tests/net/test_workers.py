"""
Tests of work on threads.
"""

from __future__ import annotations

import threading
from functools import partial

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.trial.unittest import TestCase

from pylogbroker.net.workers import ThreadPoolWorker


class ThreadWorkerTests(TestCase):
    """An L{pylogbroker.net.workers.IWorker} of threads."""

    def setUp(self) -> None:
        self.worker = ThreadPoolWorker(reactor, "test-worker", 2)
        self.addCleanup(self.worker.stop)

    async def test_elsewhere(self) -> None:
        """Work is done on another thread, and its result comes back on the reactor's."""
        here = threading.current_thread()
        self.worker.start()
        there = await self.worker.submit(threading.current_thread)
        self.assertIsNot(there, here)
        self.assertIn("test-worker", there.name)
        self.assertIs(threading.current_thread(), here)

    async def test_failure(self) -> None:
        """What work raises, the Deferred fails with."""
        self.worker.start()
        with self.assertRaises(ZeroDivisionError):
            await self.worker.submit(lambda: 1 // 0)

    def test_before(self) -> Deferred[None]:
        """What is given before the start is done after it; starting twice is as once."""
        done = self.worker.submit(lambda: 1)
        self.assertNoResult(done)
        self.worker.start()
        self.worker.start()
        return done.addCallback(self.assertEqual, 1)

    def test_together(self) -> Deferred[list[int]]:
        """As many pieces of work as there are threads go on at a time."""
        self.worker.start()
        both = threading.Barrier(2)
        return gatherResults([self.worker.submit(lambda: both.wait(300)) for _ in range(2)])

    def test_stop(self) -> Deferred[list[None]]:
        """
        The stop waits for what was given; a worker that was never started has nothing to stop.
        """
        ThreadPoolWorker(reactor, "idle", 1).stop()
        self.worker.start()
        ends: list[int] = []
        all_ = gatherResults([self.worker.submit(partial(ends.append, n)) for n in range(20)])
        self.worker.stop()
        self.assertEqual(sorted(ends), list(range(20)))
        return all_
