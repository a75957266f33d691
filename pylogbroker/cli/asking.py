"""
Questions to a broker that several commands ask.
"""

from __future__ import annotations

from pylogbroker.cli import CommandError
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.errors import PartitionOutOfRangeError


async def checkPartition(consumer: SimpleConsumer, topic: str, partition: int) -> None:
    """
    Ask whether the broker has a partition, with a fetch of nothing: to anything else about one that it has not, it answers by closing the connection
    (spec-0.7 wire-protocol §7.1, §9).

    @raise CommandError: it has not.
    """
    answer = await consumer.fetch(topic, partition, 0, 0)
    if isinstance(answer.error, PartitionOutOfRangeError):
        raise CommandError(f"the broker has no partition {partition} of topic {topic}")
