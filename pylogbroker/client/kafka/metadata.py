"""
What a client knows of a cluster: brokers, topics, and who leads each partition. Pure: responses in,
answers out.

What must be true: news about a partition that are older than what is known are ignored, since
brokers learn of elections one after another (KIP-320). A topic with another id is another topic,
and then the old epochs mean nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.schemas import ZERO_UUID

NO_LEADER = -1
UNKNOWN_EPOCH = -1


class PartitionLeader(NamedTuple):
    """
    Who leads a partition.

    @ivar node: the broker's number; L{NO_LEADER}: there is none now.
    @ivar epoch: of the leader; L{UNKNOWN_EPOCH}: an old broker does not say.
    """

    node: int
    epoch: int


class TopicMetadata(NamedTuple):
    """
    What is known of a topic.

    @ivar topicId: 16 bytes; L{ZERO_UUID}: an old broker does not say.
    @ivar partitions: leaders by the partition's number, ascending.
    """

    name: str
    topicId: bytes
    partitions: dict[int, PartitionLeader]

    @property
    def leaders(self) -> Collection[PartitionLeader]:
        """The leader of each partition."""
        return self.partitions.values()


class MetadataCache:
    """
    The cluster as the last responses describe it.

    @ivar brokers: C{host:port} by number.
    @ivar topics: by name.
    @ivar errors: the error codes of topics that cannot be had, by name.
    @ivar names: of topics, by id.
    @ivar version: grows with each response.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, str] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.errors: dict[str, int] = {}
        self.names: dict[bytes, str] = {}
        self.version = 0

    def update(self, response: Any) -> None:
        """
        @param response: a C{MetadataResponse}.
        """
        self.version += 1
        self.updateBrokers(response)
        for topic in response.topics:
            name = topic.name if topic.name is not None else self.names.get(topic.topicId)
            if name is not None:
                self._updateTopic(name, topic)

    def updateBrokers(self, response: Any) -> None:
        """
        @param response: a C{MetadataResponse}, of which the topics do not count.
        """
        self.brokers = {each.nodeId: address(each.host, each.port) for each in response.brokers}

    def _updateTopic(self, name: str, topic: Any) -> None:
        if topic.errorCode:
            self.errors[name] = topic.errorCode
            if topic.errorCode in (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.UNKNOWN_TOPIC_ID,
            ):
                self.forget(name)
            return
        self.errors.pop(name, None)
        before = self.topics.get(name)
        if before is not None and before.topicId != topic.topicId:
            self.forget(name)
            before = None
        known = {} if before is None else before.partitions
        found = {}
        for part in sorted(topic.partitions, key=lambda each: int(each.partitionIndex)):
            number = part.partitionIndex
            leader = PartitionLeader(part.leaderId, part.leaderEpoch)
            older = known.get(number)
            if older is not None and UNKNOWN_EPOCH < leader.epoch < older.epoch:
                leader = older
            found[number] = leader
        self.topics[name] = TopicMetadata(name, topic.topicId, found)
        if topic.topicId != ZERO_UUID:
            self.names[topic.topicId] = name

    def forget(self, name: str) -> None:
        """Forget a topic."""
        topic = self.topics.pop(name, None)
        if topic is not None:
            self.names.pop(topic.topicId, None)

    def leader(self, topic: str, partition: int) -> PartitionLeader | None:
        """The leader of a partition, if there is one whose address is known."""
        found = self.topics.get(topic)
        leader = found.partitions.get(partition) if found is not None else None
        return leader if leader is not None and leader.node in self.brokers else None

    def moveLeader(
        self, topic: str, partition: int, leader: PartitionLeader, endpoints: Iterable[Any]
    ) -> bool:
        """
        Take over what a Produce or Fetch response says about a new leader.

        @param endpoints: C{NodeEndpoint}s of the response.
        @return: whether that is news, and its address is known.
        """
        found = self.topics.get(topic)
        known = found.partitions.get(partition) if found is not None else None
        if found is None or known is None or leader.epoch <= known.epoch or leader.node < 0:
            return False
        for each in endpoints:
            self.brokers[each.nodeId] = address(each.host, each.port)
        if leader.node not in self.brokers:
            return False
        found.partitions[partition] = leader
        return True


def address(host: str, port: int) -> str:
    """C{host:port}; an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
