"""
Whether the group of a job has handled what its inputs had at the start, for containers that end
then. A module of its own, since it is the only part of a container that knows of the other ones'
positions.

What must be true:

  - The positions of the group are read first, and the ends of the repartition topics behind them. A
  position is committed behind the confirmation of all that was sent before it; so when each input's
  position is at its end, and each repartition topic's position at the end that is found then,
  nothing is under way between the tasks.
  - The end of a repartition topic is its high watermark: what a transaction has sent there is
  waited for, also when its markers are still to come.
"""

from __future__ import annotations

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.routing import checkAll
from pylogbroker.client.kafka.admin.topics import LATEST
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.tasks.topics import JobTopics
from pylogbroker.types import TopicPartition


class InputEnds:
    """The ends of a job's inputs."""

    def __init__(
        self,
        admin: AdminClient,
        consumer: KafkaConsumer,
        topics: JobTopics,
    ) -> None:
        """@param consumer: of the group."""
        self._admin = admin
        self._consumer = consumer
        self._inputs = placesOf(topics.inputs)
        self._broadcasts = placesOf(topics.broadcasts)
        self._repartitions = placesOf(topics.repartitions)
        self._ends: dict[TopicPartition, int] = {}

    async def find(self) -> None:
        """
        Find the ends that the inputs have now.

        @raise PylogbrokerError: the brokers do not tell.
        """
        places = dict.fromkeys([*self._inputs, *self._broadcasts], LATEST)
        found = checkAll(await self._admin.listOffsets(places, isCommitted=True))
        self._ends = {place: each.offset for place, each in found.items()}

    def endOf(self, place: TopicPartition) -> int:
        """The end of a partition of an input."""
        return self._ends[place]

    def isReached(self, place: TopicPartition, position: int | None) -> bool:
        """Whether a position is at the end of a partition; of a repartition topic, never."""
        end = self._ends.get(place)
        return end is not None and position is not None and position >= end

    def reached(self, consumer: KafkaConsumer) -> list[TopicPartition]:
        """The partitions of inputs that a consumer has, and has read to the end."""
        return [
            place
            for place, position in consumer.positions.items()
            if self.isReached(place, position)
        ]

    def areReached(self, consumer: KafkaConsumer) -> bool:
        """Whether a consumer has read all partitions of inputs that it has to the end."""
        owned = self._ends.keys() & consumer.assignment()
        return len(self.reached(consumer)) == len(owned)

    @property
    def hasRepartitions(self) -> bool:
        """Whether there is something between the tasks, so that the whole group must be done."""
        return bool(self._repartitions)

    async def areHandled(self) -> bool:
        """
        Whether the group has handled all, and committed it.

        @raise PylogbrokerError: the brokers do not tell.
        """
        committed = await self._consumer.committed([*self._inputs, *self._repartitions])
        positions = {place: 0 if each is None else each.offset for place, each in committed.items()}
        if any(positions[place] < self._ends[place] for place in self._inputs):
            return False
        places = dict.fromkeys(self._repartitions, LATEST)
        found = checkAll(await self._admin.listOffsets(places))
        return all(positions[place] >= each.offset for place, each in found.items())


def placesOf(counts: dict[str, int]) -> list[TopicPartition]:
    """All partitions of topics."""
    return [
        TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)
    ]
