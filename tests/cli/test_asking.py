"""Tests for L{pylogbroker.cli.asking}."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli import CommandError
from pylogbroker.cli.asking import atOnce, checkPartition, closed
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.errors import ConnectionError  # noqa: A004
from tests.cli.commands import CommandCase, reactor


class CheckPartitionTests(CommandCase):
    """Whether a broker has a partition."""

    async def test_partitions(self) -> None:
        """Those that the broker is configured with are there, also when nothing was published; others are an error that names topic and partition."""
        broker = await self.startBroker(num_partitions="2")
        await self.publish("old", b"a")
        consumer = SimpleConsumer(reactor, broker.endpoint)
        self.addCleanup(consumer.close)
        for topic in ("old", "new"):
            for partition in (0, 1):
                await checkPartition(consumer, topic, partition)
            error = await self.refused(checkPartition(consumer, topic, 2), CommandError)
            self.assertEqual(str(error), f"the broker has no partition 2 of topic {topic}")


class AtOnceTests(SynchronousTestCase):
    """Doing several things at the same time."""

    def test_all(self) -> None:
        """All are begun at once and come to their ends, also when one fails; the first error is raised then."""
        done: list[int] = []
        waits: list[Deferred[None]] = [Deferred() for _ in range(3)]

        async def work(index: int) -> None:
            await waits[index]
            done.append(index)

        working = Deferred.fromCoroutine(atOnce(work(index) for index in range(3)))
        waits[2].callback(None)
        waits[1].errback(ConnectionError("lost"))
        self.assertNoResult(working)
        waits[0].callback(None)
        self.assertEqual(str(self.failureResultOf(working, ConnectionError).value), "lost")
        self.assertEqual(done, [2, 0])

    def test_nothing(self) -> None:
        """Nothing is done at once."""
        self.assertIs(self.successResultOf(Deferred.fromCoroutine(atOnce([]))), None)

    def test_cancelled(self) -> None:
        """Who is cancelled cancels what is under way."""
        waits: list[Deferred[None]] = [Deferred(), Deferred()]

        async def work(index: int) -> None:
            await waits[index]

        working = Deferred.fromCoroutine(atOnce(work(index) for index in range(2)))
        working.cancel()
        self.failureResultOf(working, CancelledError)
        self.assertTrue(all(each.called for each in waits))


class ClosedTests(SynchronousTestCase):
    """Waiting for what closes."""

    def test_all(self) -> None:
        """It waits for all, and does not care how they end."""
        first: Deferred[None] = Deferred()
        second: Deferred[None] = Deferred()
        waiting = Deferred.fromCoroutine(closed(first, second))
        second.errback(ConnectionError("lost"))
        self.assertNoResult(waiting)
        first.callback(None)
        self.assertIs(self.successResultOf(waiting), None)

    def test_cancelled(self) -> None:
        """Who is cancelled, once or twice, waits to the end, and learns it then."""
        closing: Deferred[None] = Deferred()
        waiting = Deferred.fromCoroutine(closed(closing))
        for _ in range(2):
            waiting.cancel()
            self.assertNoResult(waiting)
        closing.callback(None)
        self.failureResultOf(waiting, CancelledError)

    def test_closedAlready(self) -> None:
        """What is closed already is not waited for."""
        self.assertIs(self.successResultOf(Deferred.fromCoroutine(closed(succeed(None)))), None)
