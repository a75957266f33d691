"""
Mistakes that are planted into the wiring of a cluster, to see that the simulation of all of it
finds them: into what carries out the machines' decisions, the metadata log, coordinators and the
markers of transactions. Each is one that Kafka or Redpanda had, or that a proposal of Kafka's was
made against.

The machines by themselves have theirs in L{tests.simulation.replication.planted}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pylogbroker.broker.kafka.coordinators.coordinatorlog import Appender, Loader
from pylogbroker.broker.kafka.coordinators.transactionmarkers import MarkerWriter
from pylogbroker.broker.kafka.replicas import replicamanager
from pylogbroker.broker.kafka.replicas.replicafetcher import ReplicaFetcher
from pylogbroker.broker.kafka.replicas.replicamanager import ReplicaManager
from pylogbroker.broker.logmanager import Partition
from pylogbroker.broker.metadata import clusterregistration, controllerservice
from pylogbroker.broker.metadata.zookeeperlog import ZookeeperLog
from pylogbroker.cluster.metadataimage import MetadataImage
from pylogbroker.replication import controller
from pylogbroker.replication.follower import FollowerReplica
from pylogbroker.storage.kafka.batchlog import BatchLog
from pylogbroker.storage.partitionlog import MarkKind
from pylogbroker.types import LogPosition, TopicPartition
from tests.simulation.replication import planted as machines
from tests.simulation.seeds import Plant

_body = ReplicaFetcher._body
_initManager = ReplicaManager.__init__
_Log = replicamanager._Log
_nextRecords = Loader.nextRecords
_markersLeft = MarkerWriter._left
_appendAsFollower = BatchLog.appendAsFollower


def countsUnflushed(
    self: ReplicaManager, clock: Any, topics: Any, logManager: Any, *rest: Any
) -> None:
    """An acknowledgement counts what is in page caches, whatever it promises."""
    _initManager(self, clock, topics, logManager, *rest)
    self._isFlushed = logManager.flushesAcksAll = False


def answersWhenFlushed(
    self: Partition, offset: int, isByAll: bool, callback: Any
) -> Callable[[], object]:
    """A produce request is answered when its leader has flushed it."""
    return self.whenReached(MarkKind.FLUSHED, offset, callback)


def withoutEpochOfLog(self: ReplicaFetcher, *asked: Any) -> Any:
    """A fetch does not name the epoch of the follower's last record: the logs are not compared."""
    body = _body(self, *asked)
    for topic in body.topics:
        for part in topic.partitions:
            part.lastFetchedEpoch = -1
    return body


def stampsOnly(self: Any, epoch: int) -> None:
    """A leader that has written nothing yet does not remember its epoch."""
    batches = self._batches
    batches.leaderEpoch = epoch
    batches.isFollowing = False


def keepsNoProducers(self: BatchLog, data: Any, *rest: Any) -> Any:
    """A follower does not learn what producers have written: a new leader takes it again."""
    append, self.producers.append = self.producers.append, lambda *_batch: None  # type: ignore[method-assign]
    try:
        return _appendAsFollower(self, data, *rest)
    finally:
        self.producers.append = append  # type: ignore[method-assign]


def answersBeforeReplicas(self: Appender, asked: Any) -> bool:
    """What a coordinator appends counts when its own log has it."""
    result = self.partition.append(asked.make(), self._nowMs())
    if result is None:
        return False
    asked.cancel = self.partition.whenReached(
        MarkKind.WRITTEN, result.lastOffset + 1, lambda _error: self._end(asked, None)
    )
    return True


async def loadsOneSegment(self: Loader) -> Any:
    """A coordinator that begins to lead reads the first segment of its partition only."""
    if self.__dict__.setdefault("_isPartlyLoaded", False):
        return None
    self.__dict__["_isPartlyLoaded"] = True
    return await _nextRecords(self)


def stableAtWatermark(self: BatchLog) -> LogPosition:
    """Readers of committed messages are given all that is below the high watermark."""
    return self.watermark


def givesUpMarkers(
    self: MarkerWriter, brokerId: int, producer: Any, codes: dict[TopicPartition, int]
) -> list[TopicPartition]:
    """An end marker that was not written is not written again."""
    _markersLeft(self, brokerId, producer, codes)
    return []


async def restoresNothing(self: ZookeeperLog, needed: int) -> bool:
    """A broker that is far behind goes on with the changes that are left, without the snapshot."""
    head = self.head
    self._manager.restore(max(head.snapshot, needed), self._manager.image)
    return True


def registersUnfenced(
    image: MetadataImage, registration: Any, logs: Any, previousEpoch: int, losses: Any
) -> list[Any]:
    """A new registration replaces the earlier one, and its reigns go on."""
    return machines.registerUnfenced(image, registration, logs, previousEpoch)


def fencesNone(image: MetadataImage, present: Any, listedAt: int) -> list[Any]:
    """A broker that is gone is not fenced."""
    return []


_DROPPED = "drops committed records"
_LOST = "; lost"

PLANTS = {
    "an offset named before it is flushed": Plant(
        "Redpanda, Why fsync is needed",
        _DROPPED,
        11,
        [(ReplicaManager, "__init__", countsUnflushed)],
    ),
    "acknowledged before the follower's fetch": Plant(
        "redpanda #6018",
        _LOST,
        3,
        [(Partition, "whenKept", answersWhenFlushed)],
    ),
    "truncation by watermark": Plant(
        "KIP-101, KAFKA-1211",
        _DROPPED,
        79,
        [(FollowerReplica, "leaderChanged", machines.truncateToWatermark)],
    ),
    "fetches without the epoch of the log": Plant(
        "KIP-320, KAFKA-6880",
        "differ",
        0,
        [(ReplicaFetcher, "_body", withoutEpochOfLog)],
    ),
    "followers that know no producers": Plant(
        "redpanda #3039",
        "is twice in the log",
        3,
        [(BatchLog, "appendAsFollower", keepsNoProducers)],
    ),
    "a coordinator that answers before its replicas": Plant(
        "redpanda #6018",
        "in generation",
        11,
        [(Appender, "_tryAppend", answersBeforeReplicas)],
    ),
    "end markers that are given up": Plant(
        "KAFKA-9749",
        "not whole",
        645,
        [(MarkerWriter, "_left", givesUpMarkers)],
    ),
    "a coordinator that loads one segment": Plant(
        "KAFKA-5600", "in generation", 10, [(Loader, "nextRecords", loadsOneSegment)]
    ),
    "open transactions that are read": Plant(
        "redpanda #3036",
        "a reader of committed messages was given",
        1,
        [(BatchLog, "stable", property(stableAtWatermark))],
    ),
    "an epoch that its leader does not remember": Plant(
        "KAFKA-7415",
        "not recovered",
        0,
        [(_Log, "assignEpoch", stampsOnly)],
    ),
    "unclean election where it is forbidden": Plant(
        "KAFKA-1028",
        _DROPPED,
        64,
        [(controller, "isUncleanElectionAllowed", lambda image, topic: True)],
    ),
    "a controller that does not fence": Plant(
        "KAFKA-13407",
        "not led by others",
        0,
        [(controllerservice, "fenceAbsent", fencesNone)],
    ),
    "a snapshot lost": Plant(
        "KAFKA-14240",
        "does not serve",
        1,
        [(ZookeeperLog, "_restore", restoresNothing)],
    ),
    "a registration that does not fence": Plant(
        "KIP-380, KAFKA-1120",
        "lead in epoch",
        0,
        [(clusterregistration, "registerBroker", registersUnfenced)],
    ),
}
