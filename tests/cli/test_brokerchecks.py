"""Tests for L{pylogbroker.cli.session}."""

from __future__ import annotations

from pylogbroker.cli import CommandError
from pylogbroker.cli.session import requirePartition
from pylogbroker.client.simpleconsumer import SimpleConsumer
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
