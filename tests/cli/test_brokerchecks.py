"""Tests for L{pylogbroker.cli.session}."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli import CommandError
from pylogbroker.cli.session import closeAll, requirePartition
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.errors import BrokerConnectionError
from tests.cli.commands import CommandCase, reactor


class CheckPartitionTests(CommandCase):
    """Whether a broker has a partition."""

    async def test_partitions(self) -> None:
        """
        Those that the broker is configured with are there, also when nothing was published; others
        are an error that names topic and partition.
        """
        broker = await self.startBroker(num_partitions="2")
        await self.publish("old", b"a")
        consumer = SimpleConsumer(reactor, broker.endpoint)
        self.addCleanup(consumer.close)
        for topic in ("old", "new"):
            for partition in (0, 1):
                await requirePartition(consumer, topic, partition)
            error = await self.refused(requirePartition(consumer, topic, 2), CommandError)
            self.assertEqual(str(error), f"the broker has no partition 2 of topic {topic}")


class ClosedTests(SynchronousTestCase):
    """Waiting for what closes."""

    def test_all(self) -> None:
        """It waits for all, and does not care how they end."""
        first: Deferred[None] = Deferred()
        second: Deferred[None] = Deferred()
        waiting = Deferred.fromCoroutine(closeAll(first, second))
        second.errback(BrokerConnectionError("lost"))
        self.assertNoResult(waiting)
        first.callback(None)
        self.assertIs(self.successResultOf(waiting), None)

    def test_cancelled(self) -> None:
        """Who is cancelled, once or twice, waits to the end, and learns it then."""
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
