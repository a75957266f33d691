"""
L{ClusterStatus}: what a broker's metadata say of its cluster, for metrics and the console; a module
of its own, since requests never need it.

It is worked out once for each image: one pass over all partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.metadataimage import MetadataImage, PartitionImage, TopicImage
from pylogbroker.metrics.brokermetrics import ClusterSnapshot
from pylogbroker.replication.controller import minInSyncReplicas
from pylogbroker.replication.elections import NO_LEADER, effectiveMinInSync

MAP_COUNT_MAX = 300
"""Partitions in a map; those in trouble come first."""

LEADER, IN_SYNC, BEHIND, OFFLINE, ADDED = "leader", "in sync", "behind", "offline", "being added"
"""What a broker is to a partition that it has."""


class _Counts(NamedTuple):
    """What an image says, but for what changes without it."""

    leaderCount: int
    replicaCount: int
    underReplicatedCount: int
    underMinInSyncCount: int
    reassigningCount: int
    offlineCount: int
    imbalancedCount: int


class IClusterMembership(Protocol):
    """
    A broker's part in a cluster (L{pylogbroker.broker.metadata.clustermembership}).

    @ivar isController: whether it is the controller, as far as it knows.
    @ivar lastChange: the number of the last change that it knows to exist.
    """

    @property
    def isController(self) -> bool: ...

    @property
    def lastChange(self) -> int: ...


class ClusterStatus:
    """The status of the cluster, as one broker sees it."""

    def __init__(
        self,
        metadata: MetadataManager,
        brokerId: int,
        membership: IClusterMembership | None = None,
    ) -> None:
        """@param membership: L{None}: the broker keeps its metadata by itself."""
        self._metadata = metadata
        self._brokerId = brokerId
        self._membership = membership
        self._countsOf: tuple[MetadataImage, _Counts] | None = None
        self._mapOf: tuple[MetadataImage, dict[str, Any] | None] | None = None

    def snapshot(self) -> ClusterSnapshot:
        """The numbers for metrics."""
        image, position = self._metadata.image, self._metadata.position
        if self._countsOf is None or self._countsOf[0] is not image:
            self._countsOf = image, _counts(image, self._brokerId)
        membership = self._membership
        last = position if membership is None else membership.lastChange
        fencedCount = sum(each.isFenced for each in image.brokers.values())
        return ClusterSnapshot(
            **self._countsOf[1]._asdict(),
            isController=membership is None or membership.isController,
            brokerCount=max(len(image.brokers), 1) - fencedCount,
            fencedCount=fencedCount,
            metadataChange=position,
            metadataLag=max(last - position, 0),
        )

    def map(self) -> dict[str, Any] | None:
        """
        Brokers and partitions for the console, as JSON; L{None} where a broker keeps its metadata
        by itself.
        """
        image = self._metadata.image
        if self._mapOf is None or self._mapOf[0] is not image:
            self._mapOf = image, clusterMap(image)
        return self._mapOf[1]


def _partitions(image: MetadataImage) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            yield topic, index, partition


def _assigned(partition: PartitionImage) -> int:
    """Replicas, but for those that a reassignment adds."""
    return len(partition.replicas) - len(partition.adding)


def _isUnderReplicated(partition: PartitionImage) -> bool:
    return len(partition.inSync) < _assigned(partition)


def _counts(image: MetadataImage, brokerId: int) -> _Counts:
    if not image.brokers:
        count = image.partitionCount
        return _Counts(count, count, 0, 0, 0, 0, 0)
    found: Counter[str] = Counter()
    for topic, _index, part in _partitions(image):
        found["replicas"] += brokerId in part.replicas
        found["offline"] += part.leader == NO_LEADER
        found["imbalanced"] += part.leader not in (NO_LEADER, part.replicas[0])
        if part.leader == brokerId:
            least = effectiveMinInSync(minInSyncReplicas(image, topic), len(part.replicas))
            found["led"] += 1
            found["underReplicated"] += _isUnderReplicated(part)
            found["underMinInSync"] += len(part.inSync) < least
            found["reassigning"] += bool(part.adding or part.removing)
    return _Counts(
        found["led"],
        found["replicas"],
        found["underReplicated"],
        found["underMinInSync"],
        found["reassigning"],
        found["offline"],
        found["imbalanced"],
    )


def clusterMap(image: MetadataImage) -> dict[str, Any] | None:
    """What L{ClusterStatus.map} gives for an image."""
    if not image.brokers:
        return None
    leaders, replicas, inSync = Counter[int](), Counter[int](), Counter[int]()
    troubled: list[tuple[str, int, PartitionImage]] = []
    others: list[tuple[str, int, PartitionImage]] = []
    count = 0
    for topic, index, part in _partitions(image):
        count += 1
        leaders[part.leader] += 1
        replicas.update(part.replicas)
        inSync.update(part.inSync)
        isTroubled = part.leader == NO_LEADER or _isUnderReplicated(part) or bool(part.adding)
        (troubled if isTroubled else others).append((topic.name, index, part))
    troubled.sort(key=lambda each: each[:2])
    others.sort(key=lambda each: each[:2])
    return {
        "brokers": [
            {
                "id": each.brokerId,
                "rack": each.rack,
                "state": _stateOf(each.isFenced, each.isShuttingDown),
                "leaderCount": leaders[each.brokerId],
                "replicaCount": replicas[each.brokerId],
                "inSyncCount": inSync[each.brokerId],
            }
            for _brokerId, each in sorted(image.brokers.items())
        ],
        "partitionCount": count,
        "troubledCount": len(troubled),
        "offlineCount": leaders[NO_LEADER],
        "partitions": [
            {
                "topic": name,
                "partition": index,
                "isTroubled": at < len(troubled),
                "replicas": {str(each): _role(image, part, each) for each in part.replicas},
            }
            for at, (name, index, part) in enumerate((troubled + others)[:MAP_COUNT_MAX])
        ],
    }


def _stateOf(isFenced: bool, isShuttingDown: bool) -> str:
    if isFenced:
        return "gone"
    return "stopping" if isShuttingDown else "running"


def _role(image: MetadataImage, partition: PartitionImage, brokerId: int) -> str:
    broker = image.brokers.get(brokerId)
    if broker is None or broker.isFenced:
        return OFFLINE
    if brokerId == partition.leader:
        return LEADER
    if brokerId in partition.inSync:
        return IN_SYNC
    return ADDED if brokerId in partition.adding else BEHIND
