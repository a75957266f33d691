"""
What the controller, and brokers in its stead, decide about brokers and partitions: functions of the
latest metadata image that give the records of a change. It is a module of its own, since brokers
write such changes, too, and none of them must decide otherwise.

The records of an answer are in an order in which each beginning of the list is a state that the
cluster may be in. So a caller may split a long list into several changes, and a new controller goes
on after any of them: L{settle} gives what is still to be done, whatever was interrupted.

Whether a topic allows unclean election, and how many replicas must be in sync, is read from the
image alone: from the topic's settings, else from those of the whole cluster, else Kafka's default,
since all must agree where in the metadata log a setting changes. What a broker's own file says
becomes the cluster's, if it has none yet (L{adoptDefaults}). A lower C{min.insync.replicas} lets
the high watermark move on without those that are eligible to lead, so L{changeSettings} takes their
eligibility away before the setting changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from pylogbroker.cluster.metadataimage import (
    CLUSTER_DEFAULT,
    BrokerShutdownRecord,
    ConfigRecord,
    FenceBrokerRecord,
    MetadataImage,
    PartitionImage,
    Record,
    RegisterBrokerRecord,
    TopicImage,
    UnregisterBrokerRecord,
)
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.replication.elections import NO_LEADER, ElectionRules, Loss, settled

MIN_IN_SYNC = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"
CLUSTER_WIDE = (MIN_IN_SYNC, UNCLEAN_ELECTION)
"""Settings that no broker may have for itself alone."""

PartitionKey = tuple[UUID, int]
"""A topic's id and the number of a partition."""


class LogState(Enum):
    """What the logs of a broker that registers have of what the broker once had."""

    INTACT = "intact"
    """
    All that was acknowledged: it stopped cleanly, or flushed before each acknowledgement, or its
    process has gone on.
    """
    UNCERTAIN = "uncertain"
    """It stopped uncleanly, and acknowledges before it flushes."""
    EMPTY = "empty"
    """Its log directory is new."""


_LOSSES = {LogState.INTACT: None, LogState.UNCERTAIN: Loss.SUFFIX, LogState.EMPTY: Loss.ALL}

NO_LOSSES: Mapping[PartitionKey, Loss] = MappingProxyType({})


class InSyncReplica(NamedTuple):
    """
    A member of a proposed in-sync set.

    @ivar brokerEpoch: that of its last fetch; of the leader, its own.
    """

    brokerId: int
    brokerEpoch: int


class AlterPartition(NamedTuple):
    """
    A leader asks for another in-sync set.

    @ivar brokerId: the leader.
    @ivar brokerEpoch: of its registration.
    @ivar leaderEpoch: in which it leads.
    @ivar partitionEpoch: of the partition that it has seen last.
    """

    topicId: UUID
    partition: int
    brokerId: int
    brokerEpoch: int
    leaderEpoch: int
    partitionEpoch: int
    inSync: tuple[InSyncReplica, ...]


Answer = tuple[ErrorCode, list[Record]]
"""An error, and then no records; or none, and the records, perhaps none."""


# -- what the image says


def minInSyncReplicas(image: MetadataImage, topic: TopicImage) -> int:
    """C{min.insync.replicas} of a topic, for its leaders and for elections."""
    return int(_setting(image, topic, MIN_IN_SYNC) or 1)


def isUncleanElectionAllowed(image: MetadataImage, topic: TopicImage) -> bool:
    """Whether a topic would rather lose records than wait for a replica that has them."""
    return _setting(image, topic, UNCLEAN_ELECTION) == "true"


def _setting(image: MetadataImage, topic: TopicImage, name: str) -> str | None:
    return topic.configs.get(name) or image.brokerConfigs.get("", {}).get(name)


def electionRules(image: MetadataImage, topic: TopicImage) -> ElectionRules:
    """What an election of a partition of a topic depends on."""
    brokers = image.brokers

    def isAlive(brokerId: int) -> bool:
        return brokerId in brokers and not brokers[brokerId].isFenced

    def mayLead(brokerId: int) -> bool:
        return brokerId in brokers and brokers[brokerId].mayLead

    return ElectionRules(
        isAlive, mayLead, minInSyncReplicas(image, topic), isUncleanElectionAllowed(image, topic)
    )


def _find(image: MetadataImage, topicId: UUID, partition: int) -> PartitionImage | ErrorCode:
    topic = image.topicsById.get(topicId)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not 0 <= partition < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return topic.partitions[partition]


class _Draft:
    """
    Records that are decided one after another.

    @ivar image: with the records.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.image = image.copy()
        self.records: list[Record] = []

    def add(self, records: Iterable[Record]) -> None:
        added = list(records)
        self.image.applyAll(added)
        self.records += added

    def settleAll(self) -> None:
        self.add(settle(self.image))


def settle(image: MetadataImage) -> list[Record]:
    """
    What follows from the image alone: a fenced broker leads nothing and is in no in-sync set; a
    partition that can have a leader has one; a finished reassignment is completed.

    A new controller begins with it.
    """
    return list(_settle(image, lambda topic, partition: {}))


def _settle(
    image: MetadataImage, options: Callable[[TopicImage, int], dict[str, object]]
) -> Iterator[Record]:
    for topic in image.topics.values():
        rules = electionRules(image, topic)
        for number, partition in enumerate(topic.partitions):
            made = settled(partition, rules, **options(topic, number))  # type: ignore[arg-type]
            if made is not partition:
                yield made.record(topic.topicId, number)


# -- brokers that come and go


def fenceAbsent(image: MetadataImage, present: Collection[int], listedAt: int) -> list[Record]:
    """
    Fence the brokers whose node in ZooKeeper is gone, and elect other leaders.

    @param present: ids of the brokers that have a node.
    @param listedAt: the number of the last change that the controller had applied when it asked for
        the list. A broker that registered later may have made its node after the list.
    """
    draft = _Draft(image)
    for broker in image.brokers.values():
        isAbsent = broker.brokerId not in present and broker.epoch <= listedAt
        if isAbsent and not broker.isFenced:
            draft.add([FenceBrokerRecord(broker.brokerId, broker.epoch)])
    if draft.records:
        draft.settleAll()
    return draft.records


def registerBroker(
    image: MetadataImage,
    registration: RegisterBrokerRecord,
    logs: LogState,
    previousEpoch: int = -1,
    losses: Mapping[PartitionKey, Loss] = NO_LOSSES,
) -> list[Record]:
    """
    A broker's process begins to serve.

    The broker's earlier registration is fenced before. So a leader that comes back before it was
    missed leads in a new epoch, if it leads, and its followers notice what it has lost.

    Its epoch is the number of the change that has its record. So a caller that must split the list
    appends what stands before that record, and then decides anew.

    @param logs: what the broker's logs have.
    @param previousEpoch: the broker epoch that is written in the log directory; -1: none. If the
        broker has registered since then with another directory, this one is not L{LogState.INTACT}.
    @param losses: what the directory has lost of single partitions, whatever C{logs} says.
    """
    draft = _Draft(image)
    brokerId = registration.brokerId
    known = image.brokers.get(brokerId)
    if known is not None:
        if not known.isFenced:
            draft.add([FenceBrokerRecord(brokerId, known.epoch)])
        draft.settleAll()  # also what a controller left undone that has fenced it
        if logs is LogState.INTACT and previousEpoch != known.epoch:
            logs = LogState.UNCERTAIN
    ofAll = _LOSSES[logs]

    def options(topic: TopicImage, number: int) -> dict[str, object]:
        loss = ofAll
        if loss is not Loss.ALL:
            loss = losses.get((topic.topicId, number), ofAll)
        return {} if loss is None else {"lost": (brokerId,), "loss": loss}

    if ofAll is not None or losses:
        draft.add(list(_settle(draft.image, options)))
    draft.add([registration])
    draft.settleAll()
    return draft.records


def shutDownBroker(image: MetadataImage, brokerId: int, epoch: int) -> Answer:
    """
    A broker asks to stop: it leaves the in-sync sets and leads no more, wherever another replica in
    sync can lead.
    """
    broker = image.brokers.get(brokerId)
    if broker is None or broker.epoch != epoch or broker.isFenced:
        return ErrorCode.STALE_BROKER_EPOCH, []
    draft = _Draft(image)
    if not broker.isShuttingDown:
        draft.add([BrokerShutdownRecord(brokerId, epoch)])
        draft.settleAll()
    return ErrorCode.NONE, draft.records


def hostedPartitions(image: MetadataImage, brokerId: int) -> list[PartitionKey]:
    """The partitions that a broker is to have."""
    return [
        (topic.topicId, number)
        for topic in image.topics.values()
        for number, partition in enumerate(topic.partitions)
        if brokerId in partition.replicas
    ]


def unregisterBroker(image: MetadataImage, brokerId: int) -> Answer:
    """A fenced broker without replicas will not come back."""
    broker = image.brokers.get(brokerId)
    if broker is None:
        return ErrorCode.BROKER_ID_NOT_REGISTERED, []
    if hostedPartitions(image, brokerId) or not broker.isFenced:
        return ErrorCode.INVALID_REQUEST, []
    return ErrorCode.NONE, [UnregisterBrokerRecord(brokerId)]


def loseReplicas(
    image: MetadataImage, brokerId: int, epoch: int, partitions: Collection[PartitionKey]
) -> Answer:
    """
    The disk of some of a broker's logs has failed: their replicas leave the in-sync and eligible
    sets, and lead no more. The partitions stay assigned to the broker.

    Each gets a new leader epoch, so that the leader forgets what the replica has named in a fetch:
    it would join it again, as the broker epoch is still the same.
    """
    broker = image.brokers.get(brokerId)
    if broker is None or broker.epoch != epoch:
        return ErrorCode.STALE_BROKER_EPOCH, []
    draft = _Draft(image)

    def options(topic: TopicImage, number: int) -> dict[str, object]:
        isReplica = brokerId in topic.partitions[number].replicas
        if not isReplica or (topic.topicId, number) not in partitions:
            return {}
        return {"lost": (brokerId,), "loss": Loss.ALL, "isNewEpoch": True}

    draft.add(list(_settle(image, options)))
    return ErrorCode.NONE, draft.records


# -- partitions


def alterPartition(image: MetadataImage, request: AlterPartition) -> Answer:
    """
    Change an in-sync set by compare-and-set, as its leader has asked. The leader sees the outcome
    in the metadata log.

    @return: a member that may not be in sync is C{INELIGIBLE_REPLICA}: the leader tries again when
        its image shows why. With any error nothing is changed.
    """
    partition = _find(image, request.topicId, request.partition)
    if isinstance(partition, ErrorCode):
        return partition, []
    error = _alterPartitionError(image, partition, request)
    if error is not ErrorCode.NONE:
        return error, []
    rules = electionRules(image, image.topicsById[request.topicId])
    inSync = tuple(member.brokerId for member in request.inSync)
    made = settled(partition, rules, inSync=inSync)
    return ErrorCode.NONE, _changed(partition, made, request.topicId, request.partition)


def _alterPartitionError(
    image: MetadataImage, partition: PartitionImage, request: AlterPartition
) -> ErrorCode:
    leader = image.brokers.get(request.brokerId)
    if leader is None or leader.isFenced or leader.epoch != request.brokerEpoch:
        return ErrorCode.STALE_BROKER_EPOCH
    if request.leaderEpoch < partition.leaderEpoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if request.leaderEpoch > partition.leaderEpoch or partition.leader != request.brokerId:
        return ErrorCode.INVALID_REQUEST
    if request.partitionEpoch != partition.partitionEpoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    members = [member.brokerId for member in request.inSync]
    isWhole = request.brokerId in members and set(members) <= set(partition.replicas)
    if not isWhole or len(set(members)) != len(members):
        return ErrorCode.INVALID_REQUEST
    for member in request.inSync:
        broker = image.brokers.get(member.brokerId)
        if broker is None or broker.epoch != member.brokerEpoch or broker.isFenced:
            return ErrorCode.INELIGIBLE_REPLICA
        if broker.isShuttingDown and member.brokerId != request.brokerId:
            return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _changed(
    before: PartitionImage, made: PartitionImage, topicId: UUID, partition: int
) -> list[Record]:
    return [] if made is before else [made.record(topicId, partition)]


def electLeader(
    image: MetadataImage, topicId: UUID, number: int, isUnclean: bool = False
) -> Answer:
    """
    Elect a leader, as an operator has asked: the preferred one, or any for a partition without.

    @param isUnclean: elect a replica that may lack acknowledged records if no other can lead.
    """
    partition = _find(image, topicId, number)
    if isinstance(partition, ErrorCode):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
    rules = electionRules(image, image.topicsById[topicId])
    if isUnclean:
        if partition.leader != NO_LEADER:
            return ErrorCode.ELECTION_NOT_NEEDED, []
        made = settled(partition, rules._replace(isUncleanAllowed=True))
        if made.leader == NO_LEADER:
            return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, []
    else:
        preferred = partition.replicas[0]
        if partition.leader == preferred:
            return ErrorCode.ELECTION_NOT_NEEDED, []
        made = settled(partition, rules, isPreferred=True)
        if made.leader != preferred:
            return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, []
    return ErrorCode.NONE, _changed(partition, made, topicId, number)


def electPreferred(image: MetadataImage, imbalanceMax: int = 0) -> list[Record]:
    """
    Give partitions their preferred leaders, which are their first replicas, where those are in
    sync.

    @param imbalanceMax: C{leader.imbalance.per.broker.percentage}: a broker that lacks no larger
        share of the partitions that prefer it gets none.
    """
    preferring: Counter[int] = Counter()
    lacking: Counter[int] = Counter()
    for topic in image.topics.values():
        for partition in topic.partitions:
            preferring[partition.replicas[0]] += 1
            lacking[partition.replicas[0]] += partition.leader != partition.replicas[0]
    imbalanced = {
        each for each, count in lacking.items() if count * 100 > imbalanceMax * preferring[each]
    }

    def options(topic: TopicImage, number: int) -> dict[str, object]:
        return {"isPreferred": topic.partitions[number].replicas[0] in imbalanced}

    return list(_settle(image, options))


def reassign(
    image: MetadataImage, topicId: UUID, number: int, target: Sequence[int] | None
) -> Answer:
    """
    Begin to move a partition to other brokers, or stop that.

    The added replicas are joined first. When all of them are in sync, the change of the in-sync set
    that says so also drops the removed ones, and elects another leader if need be. A target that
    replaces an unfinished one starts from the replicas before that.

    @param target: the replicas that the partition is to have, the preferred leader first; L{None}
        stops the reassignment, and drops the added replicas.
    """
    found = _find(image, topicId, number)
    if isinstance(found, ErrorCode):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
    original = tuple(each for each in found.replicas if each not in found.adding)
    if target is None:
        if not found.adding and not found.removing:
            return ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, []
        target = original
    isKnown = all(each in image.brokers for each in target)
    if not target or not isKnown or len(set(target)) != len(target):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, []
    adding = tuple(each for each in target if each not in original)
    removing = tuple(each for each in original if each not in target)
    asked = found._replace(replicas=(*target, *removing), adding=adding, removing=removing)
    had = {*found.inSync, *found.eligibleLeaders}
    if had and not had & set(asked.replicas):
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, []
    made = settled(asked, electionRules(image, image.topicsById[topicId]))
    if made is asked and asked != found:
        made = asked._replace(partitionEpoch=found.partitionEpoch + 1)
    if made.leaderEpoch == found.leaderEpoch and set(found.replicas) - set(made.replicas):
        made = made._replace(leaderEpoch=found.leaderEpoch + 1)
    return ErrorCode.NONE, [] if made == found else [made.record(topicId, number)]


def changeSettings(image: MetadataImage, records: Sequence[Record]) -> list[Record]:
    """
    What goes with a change of settings.

    @param records: that change settings of topics or of the cluster.
    @return: these records behind what must be changed before them, and before what follows.
    """
    after = image.copy()
    for record in records:
        after.apply(record)
    draft = _Draft(image)
    for topic in after.topics.values():
        least, known = minInSyncReplicas(after, topic), image.topicsById.get(topic.topicId)
        if known is None or least >= minInSyncReplicas(image, known):
            continue
        rules = electionRules(image, topic)._replace(minInSync=least, isUncleanAllowed=False)
        for number, partition in enumerate(known.partitions):
            made = settled(partition, rules)
            draft.add(_changed(partition, made, topic.topicId, number))
    draft.add(records)
    draft.settleAll()
    return draft.records


def adoptDefaults(image: MetadataImage, values: Mapping[str, str]) -> list[Record]:
    """
    A broker starts whose file has values of L{CLUSTER_WIDE} settings: they become the cluster's
    defaults, where it has none. So the first broker's file counts, and no later one changes what
    holds for all.

    @param values: of the file, by name; without what has Kafka's default.
    """
    known = image.brokerConfigs.get("", {})
    records: list[Record] = [
        ConfigRecord(CLUSTER_DEFAULT, "", name, value)
        for name, value in values.items()
        if name not in known
    ]
    return changeSettings(image, records) if records else []
