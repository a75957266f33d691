"""
Mistakes that are planted into the machines of replication, to see that the simulation finds them.
Each is one that Kafka or Redpanda had, or that a proposal of Kafka's was made against; or it was
made here first, and found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylogbroker.cluster.metadataimage import (
    MetadataImage,
    PartitionImage,
    Record,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication import controller, elections, follower, leader
from pylogbroker.replication.controller import AlterPartition, LogState
from pylogbroker.replication.follower import FetchState, FollowerReplica, Truncate
from pylogbroker.replication.leader import LeaderReplica, LogEnd, MoveHighWatermark
from pylogbroker.replication.replica import PartitionReplica
from pylogbroker.replication.replicafetch import ReplicaFetchAnswer
from pylogbroker.storage.kafka.epochs import EpochStart, LeaderEpochs, Truncation
from tests.simulation.replication.brokers import SimulatedBroker
from tests.simulation.replication.metadatalog import MetadataLog
from tests.simulation.replication.modellog import ModelLog
from tests.simulation.seeds import Plant

_leaderChanged = FollowerReplica.leaderChanged
_answered = FollowerReplica.answered
_continue = FollowerReplica._continue
_check = LeaderReplica._check
_keeps = LeaderReplica._keeps
_alterPartitionError = controller._alterPartitionError
_registerBroker = controller.registerBroker
_fenceAbsent = controller.fenceAbsent


def truncateToWatermark(self: FollowerReplica, leader: int, leaderEpoch: int) -> Any:
    """A follower of a new leader drops what is behind its watermark."""
    isNew = leaderEpoch > self.leaderEpoch
    effects = _leaderChanged(self, leader, leaderEpoch)
    if isNew and self.state is FetchState.READY and self.logEndOffset > self.highWatermark:
        return self._write(Truncate(self.highWatermark, False))
    return effects


def compareEnds(
    epochs: LeaderEpochs, logEndOffset: int, fetchOffset: int, lastFetchedEpoch: int
) -> EpochStart | None:
    """The leader compares the ends of the logs, and not their epochs."""
    if fetchOffset <= logEndOffset:
        return None
    return EpochStart(epochs.latest, logEndOffset)


def truncateAsTold(epochs: LeaderEpochs, logEndOffset: int, answer: EpochStart) -> Truncation:
    """A follower truncates to the leader's answer, whatever its own epochs are."""
    return Truncation(min(answer.startOffset, logEndOffset), True)


def anyEpoch(self: LeaderReplica, fetch: Any, logStartOffset: int) -> Any:
    """The leader serves fetches of any leader epoch."""
    return _check(self, fetch._replace(leaderEpoch=self.leaderEpoch), logStartOffset)


def anyAnswer(self: FollowerReplica, request: Any, answer: Any, *rest: Any) -> Any:
    """The follower takes what another leader, or an earlier epoch, has answered."""
    if self.state in (FetchState.FETCHING, FetchState.READY, FetchState.DELAYED):
        self._request = request
    return _answered(self, request, answer, *rest)


def keepDeleted(self: FollowerReplica, request: Any, answer: ReplicaFetchAnswer, *rest: Any) -> Any:
    """A follower keeps what its leader has deleted, and cannot compare any more."""
    if answer.error is ErrorCode.NONE:
        answer = answer._replace(logStartOffset=-1)
    return _answered(self, request, answer, *rest)


def withoutPartitionEpoch(
    image: MetadataImage, partition: PartitionImage, request: AlterPartition
) -> ErrorCode:
    """The in-sync set is changed whatever has changed since it was decided on."""
    request = request._replace(
        partitionEpoch=partition.partitionEpoch, leaderEpoch=partition.leaderEpoch
    )
    return _alterPartitionError(image, partition, request)


def withoutBrokerEpochs(
    image: MetadataImage, partition: PartitionImage, request: AlterPartition
) -> ErrorCode:
    """A member joins whichever of its processes has fetched."""
    members = tuple(
        each._replace(brokerEpoch=image.brokers[each.brokerId].epoch)
        if each.brokerId in image.brokers
        else each
        for each in request.inSync
    )
    return _alterPartitionError(image, partition, request._replace(inSync=members))


def anyProcess(self: LeaderReplica, brokerId: int) -> bool:
    """The leader does not ask which process of a follower has fetched."""
    broker = self._state.brokers.get(brokerId)
    return broker is not None and broker.mayLead


def acknowledgeAtOnce(self: LeaderReplica, nowMs: int) -> Any:
    """The watermark is the leader's end."""
    if self._end.acknowledgeable <= self.highWatermark:
        return []
    self.highWatermark = self._end.acknowledgeable
    return [MoveHighWatermark(self.highWatermark)]


def joinsAtWatermark(self: LeaderReplica, brokerId: int) -> bool:
    """A follower joins when it has reached the watermark, which a new leader does not know yet."""
    reached = self.followers[brokerId].logEndOffset
    return reached >= self.highWatermark and self._isEligible(brokerId)


def watermarkAtEnd(self: FollowerReplica) -> Any:
    """A follower takes its own end for the watermark."""
    if self.state is not FetchState.IDLE and self._leaderHighWatermark >= 0:
        self._leaderHighWatermark = max(self._leaderHighWatermark, self.logEndOffset)
    return _continue(self)


def registerUnfenced(
    image: MetadataImage, registration: Any, logs: LogState, previousEpoch: int = -1
) -> list[Record]:
    """A new registration replaces the earlier one, and nothing else happens."""
    records = _registerBroker(image, registration, logs, previousEpoch)
    return records if logs is LogState.EMPTY else [registration]


def registerUnsettled(
    image: MetadataImage, registration: Any, logs: LogState, previousEpoch: int = -1
) -> list[Record]:
    """A broker that was fenced registers before others lead what it has led."""
    known = image.brokers.get(registration.brokerId)
    if known is not None and known.isFenced and logs is LogState.INTACT:
        after = image.copy()
        after.apply(registration)
        return [registration, *controller.settle(after)]
    return _registerBroker(image, registration, logs, previousEpoch)


def trustAll(self: SimulatedBroker) -> LogState:
    """A broker that comes back has all that it had."""
    return LogState.EMPTY if self.log.brokerEpoch == -1 else LogState.INTACT


def trustEmpty(image: MetadataImage, registration: Any, logs: LogState, *rest: Any) -> Any:
    """A broker with an empty disk is what it was."""
    known = image.brokers.get(registration.brokerId)
    if logs is LogState.EMPTY and known is not None:
        return _registerBroker(image, registration, LogState.INTACT, known.epoch)
    return _registerBroker(image, registration, logs, *rest)


def readWithoutSnapshot(
    self: MetadataLog, image: MetadataImage, position: int, count: int
) -> tuple[MetadataImage, int]:
    """A broker that is far behind reads the changes that are left, and not the snapshot."""
    made = image.copy()
    position = max(position, self.last - 6)
    for change in self._changes[position : position + count]:
        for record in change:
            made.apply(record)
        position += 1
    return made, position


def fenceTogether(image: MetadataImage, present: Any, listedAt: int) -> list[Record]:
    """Brokers that are gone at once are fenced as if the others were there."""
    absent = [each for each in image.brokers if each not in present]
    together = [_fenceAbsent(image, {*image.brokers} - {each}, listedAt) for each in absent]
    return [record for records in together for record in records]


def onlyRecords(image: MetadataImage, records: Sequence[Record]) -> list[Record]:
    """An eligible replica stays so when min.insync.replicas becomes lower."""
    return list(records)


def completeEarly(self: Any) -> None:
    """A reassignment drops the old replicas when one of the new ones is in sync."""
    if not self._adding and not self._removing:
        return
    staying = tuple(each for each in self._replicas if each not in self._removing)
    self._replicas, self._adding, self._removing = staying, (), ()
    self._inSync = tuple(each for each in self._inSync if each in staying) or staying[:1]


def mayAcknowledgeUnflushed(self: Any) -> LogEnd:
    """The leader counts what it has not flushed."""
    return LogEnd(self._log.logEndOffset, self._log.logEndOffset)


def committedOnly(self: LeaderReplica) -> frozenset[int]:
    """The leader counts those in sync that it knows of, and not those it has asked for."""
    return frozenset(self._state.partition.inSync)


def holdsKnown(self: LeaderReplica, brokerId: int, nowMs: int) -> bool:
    """A follower that is caught up, and not yet joined, does not hold the watermark back."""
    return brokerId in self._state.partition.inSync and _keeps(self, brokerId, nowMs)


def forgetPending(self: LeaderReplica, request: Any, error: ErrorCode, nowMs: int) -> Any:
    """Any refusal proves that the request has not come about."""
    if request == self.pending:
        self.pending = None
        return self._advance(nowMs)
    return []


def decideOnOld(self: SimulatedBroker) -> MetadataImage:
    """A controller decides on what it has read, and not on the latest image."""
    return self.image


_TRUE = property(lambda self: True)
_LOST = "is committed"
_HERE = "found by this simulation"

PLANTS = {
    "truncation by watermark": Plant(
        "KIP-101, KAFKA-1211",
        _LOST,
        45,
        [(FollowerReplica, "leaderChanged", truncateToWatermark)],
    ),
    "logs compared by their ends": Plant(
        "KIP-101, KAFKA-3978", _LOST, 4, [(leader, "divergence", compareEnds)]
    ),
    "truncation by the leader's answer alone": Plant(
        "KIP-279, KAFKA-6361", "not recovered", 250, [(follower, "truncationFor", truncateAsTold)]
    ),
    "fetches of any leader epoch": Plant(
        "KIP-320, KAFKA-6880",
        _LOST,
        1,
        [(LeaderReplica, "_check", anyEpoch), (FollowerReplica, "answered", anyAnswer)],
    ),
    "an epoch that its leader does not remember": Plant(
        "KAFKA-7415",
        "not recovered",
        52,
        [(ModelLog, "assignEpoch", lambda self, epoch: None)],
    ),
    "an in-sync set changed without an epoch": Plant(
        "KIP-497",
        _LOST,
        1327,
        [(controller, "_alterPartitionError", withoutPartitionEpoch)],
    ),
    "only the known in-sync set counts": Plant(
        "KIP-497",
        _LOST,
        1,
        [
            (LeaderReplica, "maximalInSync", property(committedOnly)),
            (LeaderReplica, "_keeps", holdsKnown),
        ],
    ),
    "any refusal forgets what was asked": Plant(
        "KIP-497", _LOST, 1607, [(LeaderReplica, "alterPartitionRefused", forgetPending)]
    ),
    "joined without the broker epoch": Plant(
        "KIP-903, KAFKA-14139",
        _LOST,
        32,
        [
            (controller, "_alterPartitionError", withoutBrokerEpochs),
            (LeaderReplica, "_isEligible", anyProcess),
        ],
    ),
    "joined below the epoch's start": Plant(
        "KAFKA-7128", _LOST, 355, [(LeaderReplica, "_mayJoin", joinsAtWatermark)]
    ),
    "acknowledged before the follower's fetch": Plant(
        "redpanda #6018", _LOST, 0, [(LeaderReplica, "_advance", acknowledgeAtOnce)]
    ),
    "a follower's end as its watermark": Plant(
        "redpanda #16475", _LOST, 0, [(FollowerReplica, "_continue", watermarkAtEnd)]
    ),
    "unclean election where it is forbidden": Plant(
        "KAFKA-1028",
        _LOST,
        1,
        [(controller, "isUncleanElectionAllowed", lambda image, topic: True)],
    ),
    "an offset named before it is flushed": Plant(
        "Redpanda, Why fsync is needed",
        _LOST,
        6,
        [(FollowerReplica, "_isFlushed", _TRUE)],
    ),
    "acknowledged before the leader's flush": Plant(
        "Redpanda, Why fsync is needed",
        _LOST,
        6,
        [(PartitionReplica, "_logEnd", mayAcknowledgeUnflushed)],
    ),
    "a registration that does not fence": Plant(
        "KIP-380, KAFKA-1120",
        "two write in epoch",
        8,
        [(controller, "registerBroker", registerUnfenced)],
    ),
    "a registration between a fence and its elections": Plant(
        _HERE,
        "two write in epoch",
        614,
        [(controller, "registerBroker", registerUnsettled)],
    ),
    "records before the leader's log start": Plant(
        _HERE, "below its watermark", 688, [(FollowerReplica, "answered", keepDeleted)]
    ),
    "the last replica is trusted": Plant(
        "KIP-966", _LOST, 29, [(SimulatedBroker, "logState", trustAll)]
    ),
    "a wiped replica is trusted": Plant(
        "KAFKA-14139", _LOST, 21, [(controller, "registerBroker", trustEmpty)]
    ),
    "the watermark moves below min.insync.replicas": Plant(
        "KIP-966", _LOST, 6, [(LeaderReplica, "hasEnoughInSync", _TRUE)]
    ),
    "still eligible with a lower min.insync.replicas": Plant(
        "KIP-966", _LOST, 978, [(controller, "changeSettings", onlyRecords)]
    ),
    "a snapshot lost": Plant(
        "KAFKA-14240", "MetadataError", 0, [(MetadataLog, "read", readWithoutSnapshot)]
    ),
    "a controller that is not fenced": Plant(
        "KAFKA-6082",
        "cannot go on with",
        0,
        [
            (SimulatedBroker, "isCurrentController", lambda self: True),
            (SimulatedBroker, "latest", decideOnOld),
        ],
    ),
    "brokers fenced as if the others were there": Plant(
        "KAFKA-13173", "cannot go on with", 46, [(controller, "fenceAbsent", fenceTogether)]
    ),
    "a reassignment completed early": Plant(
        "KIP-455", _LOST, 3, [(elections._Settlement, "_completeReassignment", completeEarly)]
    ),
    "ListOffsets of a new leader": Plant(
        "KIP-207, KAFKA-2334", "went back", 19, [(LeaderReplica, "hasReachedEpoch", _TRUE)]
    ),
}
