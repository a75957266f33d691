"""
The metadata of a cluster for today's protocol: its id, its brokers, its topics with ids, settings
and partitions, who may do what and how much, and the producer ids that were given away.

A broker that keeps its metadata by itself is a cluster of one: it has no records of brokers and of
single partitions, and leads every partition of its topics.

A L{MetadataImage} is the sum of records. A change is a list of records, which a store makes durable
(L{pylogbroker.storage.metadatastore}) before they are applied. So the image never shows what a
power cut takes back. The records of a removed topic are gone from C{records}, which gives the
shortest list that makes the same image.

Records travel as JSON objects: C{kind} and the fields of the class. A kind or a field that this
version does not know is refused: to skip it would lose it in the next snapshot.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from pylogbroker.cluster.acls import AclBinding
from pylogbroker.cluster.quotas import QuotaEntity, entityOf
from pylogbroker.errors import MetadataError

TOPIC, BROKER, CLUSTER_DEFAULT, GROUP = "topic", "broker", "cluster", "group"
"""What a setting belongs to; L{CLUSTER_DEFAULT}: to all brokers."""


class ClusterRecord(NamedTuple):
    """
    The first record of a store.

    @ivar clusterId: 22 characters of URL-safe base64, as Kafka's.
    """

    clusterId: str


class TopicRecord(NamedTuple):
    """
    A new topic.

    @ivar topicId: in its text form.
    @ivar partitionCount: at least 1.
    """

    name: str
    topicId: str
    partitionCount: int


class PartitionCountRecord(NamedTuple):
    """A topic has more partitions now."""

    topicId: str
    partitionCount: int


class RemoveTopicRecord(NamedTuple):
    """A topic is gone, with its settings; its partitions are still to be removed."""

    topicId: str


class TopicRemovalCompletedRecord(NamedTuple):
    """The partitions of a removed topic are gone, too."""

    topicId: str


class ReplicasRemovedRecord(NamedTuple):
    """
    A broker has removed what it had of the partitions of a removed topic, or had nothing. The last
    broker's completes the removal.
    """

    topicId: str
    brokerId: int


class RegisterBrokerRecord(NamedTuple):
    """
    A broker serves from now on. It replaces what an earlier process of this broker registered.

    @ivar epoch: the broker's epoch: the number of the change that has this record, so that no two
        registrations share one.
    @ivar endpoints: of each listener: its name, host, port, and security protocol as Kafka names
        it, such as C{"SASL_SSL"}.
    @ivar rack: L{None}: it has none.
    """

    brokerId: int
    epoch: int
    endpoints: list[list[Any]]
    rack: str | None


class FenceBrokerRecord(NamedTuple):
    """
    A broker is gone: it leads nothing, and is in no in-sync set, until it registers anew.

    @ivar epoch: of the registration that has ended.
    """

    brokerId: int
    epoch: int


class BrokerShutdownRecord(NamedTuple):
    """
    A broker is about to stop: it is given no partition to lead any more.

    @ivar epoch: of its registration.
    """

    brokerId: int
    epoch: int


class UnregisterBrokerRecord(NamedTuple):
    """A fenced broker will not come back; it may have no replica."""

    brokerId: int


class PartitionRecord(NamedTuple):
    """
    A partition is new, or has changed; the fields are those of L{PartitionImage}. The partitions of
    a topic are added in order, from 0 on.
    """

    topicId: str
    partition: int
    leader: int
    leaderEpoch: int
    partitionEpoch: int
    replicas: list[int]
    inSync: list[int]
    eligibleLeaders: list[int]
    lastKnownLeader: int
    adding: list[int]
    removing: list[int]


class ConfigRecord(NamedTuple):
    """
    A setting.

    @ivar resource: L{TOPIC}, L{BROKER}, L{CLUSTER_DEFAULT} or L{GROUP}.
    @ivar owner: the topic's id, the broker's, C{""}, or the group's.
    @ivar value: as text; L{None} removes it.
    """

    resource: str
    owner: str
    name: str
    value: str | None


class ProducerIdsRecord(NamedTuple):
    """
    A block of producer ids was given away.

    @ivar nextProducerId: the first of the next block.
    """

    nextProducerId: int


class AclRecord(NamedTuple):
    """A new rule about who may do what; the fields are those of L{AclBinding}."""

    resourceType: int
    patternType: int
    resourceName: str
    principal: str
    host: str
    operation: int
    permission: int


class RemoveAclRecord(NamedTuple):
    """A rule is gone; the fields are those of L{AclBinding}."""

    resourceType: int
    patternType: int
    resourceName: str
    principal: str
    host: str
    operation: int
    permission: int


class ScramCredentialRecord(NamedTuple):
    """
    What is kept of a user's password; it replaces an earlier one.

    @ivar mechanism: 1 for SCRAM-SHA-256, 2 for SCRAM-SHA-512.
    @ivar salt: in base64, as the keys are.
    """

    user: str
    mechanism: int
    salt: str
    storedKey: str
    serverKey: str
    iterations: int


class RemoveScramCredentialRecord(NamedTuple):
    """A user's password for a mechanism is gone."""

    user: str
    mechanism: int


class QuotaRecord(NamedTuple):
    """
    A limit for clients.

    @ivar entity: names by type, L{None} for the default, as L{pylogbroker.cluster.quotas} has them.
    @ivar value: L{None} removes it.
    """

    entity: dict[str, str | None]
    key: str
    value: float | None


Record = (
    ClusterRecord
    | TopicRecord
    | PartitionCountRecord
    | RemoveTopicRecord
    | TopicRemovalCompletedRecord
    | ReplicasRemovedRecord
    | RegisterBrokerRecord
    | FenceBrokerRecord
    | BrokerShutdownRecord
    | UnregisterBrokerRecord
    | PartitionRecord
    | ConfigRecord
    | ProducerIdsRecord
    | AclRecord
    | RemoveAclRecord
    | ScramCredentialRecord
    | RemoveScramCredentialRecord
    | QuotaRecord
)

_KINDS: dict[str, type[Any]] = {
    "cluster": ClusterRecord,
    "topic": TopicRecord,
    "partitionCount": PartitionCountRecord,
    "removeTopic": RemoveTopicRecord,
    "topicRemoved": TopicRemovalCompletedRecord,
    "replicasRemoved": ReplicasRemovedRecord,
    "registerBroker": RegisterBrokerRecord,
    "fenceBroker": FenceBrokerRecord,
    "brokerShutdown": BrokerShutdownRecord,
    "unregisterBroker": UnregisterBrokerRecord,
    "partition": PartitionRecord,
    "config": ConfigRecord,
    "producerIds": ProducerIdsRecord,
    "acl": AclRecord,
    "removeAcl": RemoveAclRecord,
    "scramCredential": ScramCredentialRecord,
    "removeScramCredential": RemoveScramCredentialRecord,
    "quota": QuotaRecord,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encodeRecords(records: Sequence[Record]) -> bytes:
    """The JSON text of one change."""
    found = [{"kind": _NAMES[type(record)], **record._asdict()} for record in records]
    return json.dumps(found, separators=(",", ":")).encode()


def decodeRecords(data: bytes) -> list[Record]:
    """@raise MetadataError: the text is none of C{encodeRecords}, and why."""
    try:
        found = json.loads(data)
    except ValueError as error:
        raise MetadataError(f"the records are no JSON: {error}") from error
    return [_record(each) for each in found]


def _record(fields: dict[str, Any]) -> Record:
    fields = dict(fields)
    name = fields.pop("kind", None)
    kind = _KINDS.get(name)
    if kind is None:
        raise MetadataError(f"a record of the unknown kind {name!r}")
    if set(fields) != set(kind._fields):
        raise MetadataError(f"a record of kind {name} has the fields {sorted(fields)}")
    return kind(**fields)  # type: ignore[no-any-return]


class Endpoint(NamedTuple):
    """
    Where a listener of a broker is reached.

    @ivar listener: its name.
    @ivar protocol: as Kafka names it, such as C{"PLAINTEXT"}.
    """

    listener: str
    host: str
    port: int
    protocol: str


class ReachableBroker(NamedTuple):
    """A broker, as clients of a listener reach it."""

    nodeId: int
    host: str
    port: int
    rack: str | None = None


class BrokerImage(NamedTuple):
    """
    A broker that has registered.

    @ivar epoch: of its registration.
    @ivar isFenced: it is gone: it can lead nothing.
    @ivar isShuttingDown: it is about to go, and is given nothing to lead.
    """

    brokerId: int
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    isFenced: bool = False
    isShuttingDown: bool = False

    @property
    def mayLead(self) -> bool:
        return not self.isFenced and not self.isShuttingDown

    def node(self, listener: str) -> ReachableBroker | None:
        """The broker for clients of a listener; L{None}: it has no listener of this name."""
        for name, host, port, _protocol in self.endpoints:
            if name == listener:
                return ReachableBroker(self.brokerId, host, port, self.rack)
        return None


class PartitionImage(NamedTuple):
    """
    Who has a partition, and who leads it.

    @ivar leader: a broker; -1: none.
    @ivar leaderEpoch: greater with each new leader.
    @ivar partitionEpoch: one greater with each change.
    @ivar replicas: the brokers that are to have it, the preferred leader first.
    @ivar inSync: those of them that have all that was acknowledged to C{acks=all}.
    @ivar eligibleLeaders: those that are not in sync, but have all that was acknowledged, since
        nothing has been since they left (KIP-966).
    @ivar lastKnownLeader: the last leader of a partition that has none, unless its log is lost;
        else -1.
    @ivar adding: replicas that a reassignment adds.
    @ivar removing: replicas that a reassignment removes at its end.
    """

    leader: int
    leaderEpoch: int
    partitionEpoch: int
    replicas: tuple[int, ...]
    inSync: tuple[int, ...]
    eligibleLeaders: tuple[int, ...] = ()
    lastKnownLeader: int = -1
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @classmethod
    def of(cls, record: PartitionRecord) -> PartitionImage:
        """What a record says."""
        return cls(
            record.leader,
            record.leaderEpoch,
            record.partitionEpoch,
            tuple(record.replicas),
            tuple(record.inSync),
            tuple(record.eligibleLeaders),
            record.lastKnownLeader,
            tuple(record.adding),
            tuple(record.removing),
        )

    def record(self, topicId: UUID, partition: int) -> PartitionRecord:
        """The record that makes it a topic's."""
        return PartitionRecord(
            str(topicId),
            partition,
            self.leader,
            self.leaderEpoch,
            self.partitionEpoch,
            list(self.replicas),
            list(self.inSync),
            list(self.eligibleLeaders),
            self.lastKnownLeader,
            list(self.adding),
            list(self.removing),
        )


class TopicImage(NamedTuple):
    """
    A topic of today's protocol.

    @ivar topicId: never that of another topic, not even of an earlier one of this name.
    @ivar configs: settings that differ from the broker's, as texts. Not to be changed.
    @ivar partitions: by number. None: the one broker, which keeps its metadata by itself, has and
        leads all C{partitionCount} of them.
    """

    name: str
    topicId: UUID
    partitionCount: int
    configs: dict[str, str]
    partitions: tuple[PartitionImage, ...] = ()

    def isReplicated(self, index: int) -> bool:
        """Whether more than one broker is to have a partition."""
        return index < len(self.partitions) and len(self.partitions[index].replicas) > 1


class ScramCredential(NamedTuple):
    """
    What is kept of a password. With it a program can pretend to be the broker, but not the user.

    @ivar iterations: of the hashing that clients do.
    """

    salt: bytes
    storedKey: bytes
    serverKey: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential({self.iterations} iterations)"

    def record(self, user: str, mechanism: int) -> ScramCredentialRecord:
        """The record that makes it a user's."""
        return ScramCredentialRecord(
            user,
            mechanism,
            b64encode(self.salt).decode(),
            b64encode(self.storedKey).decode(),
            b64encode(self.serverKey).decode(),
            self.iterations,
        )


class MetadataImage:
    """
    What the records say; the module states the rules.

    @ivar clusterId: C{""} before the first record.
    @ivar topics: by name.
    @ivar topicsById: the same topics.
    @ivar partitionCount: of all topics together.
    @ivar removing: names of removed topics whose partitions may still be there, by id.
    @ivar removingBrokers: the brokers that may still have some, by the topic's id; only of topics
        whose partitions had replicas. The names of these topics are free.
    @ivar brokers: those that have registered, by id; none where one broker keeps its metadata by
        itself.
    @ivar brokerConfigs: settings by broker id, and C{""} for those of all brokers.
    @ivar groupConfigs: settings by group id, of groups that have some.
    @ivar scramCredentials: what is kept of passwords, by user and mechanism.
    @ivar nextProducerId: no producer id from here on was given away.
    @ivar acls: the rules about who may do what. A change makes another dictionary.
    @ivar aclSize: bytes of all these rules in a snapshot.
    @ivar quotas: limits for clients, by entity and key. A change makes another dictionary, as does
        one of an entity's.
    @ivar quotaSize: bytes of all limits in a snapshot.
    """

    def __init__(self) -> None:
        self.clusterId = ""
        self.topics: dict[str, TopicImage] = {}
        self.topicsById: dict[UUID, TopicImage] = {}
        self.partitionCount = 0
        self.removing: dict[UUID, str] = {}
        self.removingBrokers: dict[UUID, frozenset[int]] = {}
        self.brokers: dict[int, BrokerImage] = {}
        self.brokerConfigs: dict[str, dict[str, str]] = {}
        self.groupConfigs: dict[str, dict[str, str]] = {}
        self.nextProducerId = 0
        self.acls: dict[AclBinding, None] = {}
        self.aclSize = 0
        self._aclsAreShared = self._quotasAreShared = False
        self.quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.quotaSize = 0
        self.scramCredentials: dict[str, dict[int, ScramCredential]] = {}

    def apply(self, record: Record) -> None:
        """@raise MetadataError: the record does not fit to those before it."""
        if isinstance(record, TopicRecord):
            self._addTopic(record)
        elif isinstance(record, PartitionCountRecord):
            topic = self._topic(record.topicId)
            if record.partitionCount <= topic.partitionCount:
                raise MetadataError(
                    f"topic {topic.name} has {topic.partitionCount} partitions,"
                    f" and cannot go on with {record.partitionCount}"
                )
            self.partitionCount += record.partitionCount - topic.partitionCount
            self._put(topic._replace(partitionCount=record.partitionCount))
        elif isinstance(record, PartitionRecord):
            self._setPartitions(self._topic(record.topicId), [record])
        elif isinstance(
            record,
            RegisterBrokerRecord
            | FenceBrokerRecord
            | BrokerShutdownRecord
            | UnregisterBrokerRecord,
        ):
            self._setBroker(record)
        elif isinstance(record, RemoveTopicRecord):
            topic = self._topic(record.topicId)
            self.partitionCount -= topic.partitionCount
            del self.topics[topic.name], self.topicsById[topic.topicId]
            self.removing[topic.topicId] = topic.name
            if topic.partitions:
                replicas = frozenset(each for part in topic.partitions for each in part.replicas)
                self.removingBrokers[topic.topicId] = replicas
        elif isinstance(record, TopicRemovalCompletedRecord):
            if self.removing.pop(_uuid(record.topicId), None) is None:
                raise MetadataError(f"topic {record.topicId} is not being removed")
            self.removingBrokers.pop(_uuid(record.topicId), None)
        elif isinstance(record, ReplicasRemovedRecord):
            topicId = _uuid(record.topicId)
            if record.brokerId not in self.removingBrokers.get(topicId, ()):
                raise MetadataError(
                    f"broker {record.brokerId} has nothing to remove of topic {record.topicId}"
                )
            self._replicasRemoved(topicId, record.brokerId)
        elif isinstance(record, ConfigRecord):
            self._setConfig(record)
        elif isinstance(record, AclRecord | RemoveAclRecord):
            self._setAcl(record)
        elif isinstance(record, QuotaRecord):
            self._setQuota(record)
        elif isinstance(record, ProducerIdsRecord):
            if record.nextProducerId <= self.nextProducerId:
                raise MetadataError(
                    f"producer ids up to {self.nextProducerId} are given away,"
                    f" and {record.nextProducerId} is not behind them"
                )
            self.nextProducerId = record.nextProducerId
        elif isinstance(record, ScramCredentialRecord):
            known = self.scramCredentials.get(record.user, {})
            made = ScramCredential(
                b64decode(record.salt),
                b64decode(record.storedKey),
                b64decode(record.serverKey),
                record.iterations,
            )
            self.scramCredentials[record.user] = {**known, record.mechanism: made}
        elif isinstance(record, RemoveScramCredentialRecord):
            self._removeCredential(record)
        else:
            if self.clusterId:
                raise MetadataError(f"a second cluster id, {record.clusterId}")
            self.clusterId = record.clusterId

    def applyAll(self, records: Iterable[Record]) -> None:
        """
        As L{apply} of one after another. A topic with thousands of partitions is changed once for
        all records of it that come together, and not once for each.

        @raise MetadataError: a record does not fit to those before it. How many of those are in the
            image is not known then.
        """
        for isPartition, run in groupby(records, lambda each: isinstance(each, PartitionRecord)):
            if not isPartition:
                for record in run:
                    self.apply(record)
                continue
            for text, ofTopic in groupby(run, _topicOf):
                self._setPartitions(self._topic(text), ofTopic)

    def _replicasRemoved(self, topicId: UUID, brokerId: int) -> None:
        left = self.removingBrokers[topicId] - {brokerId}
        if left:
            self.removingBrokers[topicId] = left
        else:
            del self.removing[topicId], self.removingBrokers[topicId]

    def nodes(self, listener: str) -> dict[int, ReachableBroker]:
        """The brokers that are there, for clients of a listener, by id."""
        found = (each.node(listener) for each in self.brokers.values() if not each.isFenced)
        return {each.nodeId: each for each in found if each is not None}

    def isTaken(self, name: str) -> bool:
        """Whether a name is that of a topic, or of one whose removal is to end first."""
        return name in self.topics or any(
            each == name and topicId not in self.removingBrokers
            for topicId, each in self.removing.items()
        )

    def _addTopic(self, record: TopicRecord) -> None:
        topicId = _uuid(record.topicId)
        if record.name in self.topics or topicId in self.topicsById:
            raise MetadataError(f"topic {record.name} ({topicId}) is there already")
        if record.partitionCount < 1:
            raise MetadataError(f"topic {record.name} with {record.partitionCount} partitions")
        self.partitionCount += record.partitionCount
        self._put(TopicImage(record.name, topicId, record.partitionCount, {}))

    def _setPartitions(self, topic: TopicImage, records: Iterable[Any]) -> None:
        """@param records: C{PartitionRecord}s of the topic."""
        partitions = list(topic.partitions)
        for record in records:
            number, made = record.partition, PartitionImage.of(record)
            where = f"{topic.name}-{number}"
            if not 0 <= number < topic.partitionCount or number > len(partitions):
                raise MetadataError(
                    f"{where} with {len(partitions)} of {topic.partitionCount} partitions before it"
                )
            if number < len(partitions):
                _checkSuccessor(where, partitions[number], made)
            if not made.replicas or (made.leader != -1 and made.leader not in made.replicas):
                raise MetadataError(f"{where} with leader {made.leader}, replicas {made.replicas}")
            partitions[number : number + 1] = [made]
        self._put(topic._replace(partitions=tuple(partitions)))

    def _setBroker(
        self,
        record: RegisterBrokerRecord
        | FenceBrokerRecord
        | BrokerShutdownRecord
        | UnregisterBrokerRecord,
    ) -> None:
        brokerId = record.brokerId
        if isinstance(record, RegisterBrokerRecord):
            if brokerId in self.brokers and record.epoch <= self.brokers[brokerId].epoch:
                raise MetadataError(
                    f"broker {brokerId} has epoch {self.brokers[brokerId].epoch},"
                    f" and cannot go on with {record.epoch}"
                )
            endpoints = tuple(Endpoint(*each) for each in record.endpoints)
            self.brokers[brokerId] = BrokerImage(brokerId, record.epoch, endpoints, record.rack)
            return
        known = self.brokers.get(brokerId)
        if known is None:
            raise MetadataError(f"broker {brokerId} has not registered")
        if isinstance(record, UnregisterBrokerRecord):
            if not known.isFenced:
                raise MetadataError(f"broker {brokerId} is there, and cannot be unregistered")
            del self.brokers[brokerId]
            for topicId in [
                each for each, left in self.removingBrokers.items() if brokerId in left
            ]:
                self._replicasRemoved(topicId, brokerId)
            return
        if record.epoch != known.epoch:
            raise MetadataError(f"broker {brokerId} has epoch {known.epoch}, not {record.epoch}")
        if isinstance(record, FenceBrokerRecord):
            self.brokers[brokerId] = known._replace(isFenced=True)
        else:
            self.brokers[brokerId] = known._replace(isShuttingDown=True)

    def _put(self, topic: TopicImage) -> None:
        self.topics[topic.name] = self.topicsById[topic.topicId] = topic

    def _topic(self, text: str) -> TopicImage:
        topic = self.topicsById.get(_uuid(text))
        if topic is None:
            raise MetadataError(f"there is no topic with the id {text}")
        return topic

    def _setConfig(self, record: ConfigRecord) -> None:
        if record.resource == TOPIC:
            topic = self._topic(record.owner)
            self._put(topic._replace(configs=_changed(topic.configs, record)))
        elif record.resource in (BROKER, CLUSTER_DEFAULT):
            configs = self.brokerConfigs.get(record.owner, {})
            self.brokerConfigs[record.owner] = _changed(configs, record)
        elif record.resource == GROUP:
            made = _changed(self.groupConfigs.pop(record.owner, {}), record)
            if made:
                self.groupConfigs[record.owner] = made
        else:
            raise MetadataError(f"a setting of the unknown resource {record.resource!r}")

    def _setAcl(self, record: AclRecord | RemoveAclRecord) -> None:
        binding = AclBinding(*record)
        isNew = isinstance(record, AclRecord)
        if isNew == (binding in self.acls):
            raise MetadataError(f"{binding} is {'there already' if isNew else 'not there'}")
        if self._aclsAreShared:
            self.acls, self._aclsAreShared = self.acls.copy(), False
        if isNew:
            self.acls[binding] = None
            self.aclSize += aclSize(binding)
        else:
            del self.acls[binding]
            self.aclSize -= aclSize(binding)

    def _removeCredential(self, record: RemoveScramCredentialRecord) -> None:
        left = dict(self.scramCredentials.get(record.user, {}))
        if left.pop(record.mechanism, None) is None:
            raise MetadataError(
                f"user {record.user} has no password for mechanism {record.mechanism}"
            )
        if left:
            self.scramCredentials[record.user] = left
        else:
            del self.scramCredentials[record.user]

    def _setQuota(self, record: QuotaRecord) -> None:
        entity = entityOf(record.entity)
        if self._quotasAreShared:
            self.quotas, self._quotasAreShared = self.quotas.copy(), False
        quotas = self.quotas
        found = quotas[entity] = quotas.get(entity, {}).copy()
        size = quotaSize(record)
        if found.pop(record.key, None) is not None:
            self.quotaSize -= size
        if record.value is not None:
            found[record.key] = record.value
            self.quotaSize += size
        if not found:
            del quotas[entity]

    def copy(self) -> MetadataImage:
        """An image that changes by itself; what it has is shared until it changes."""
        made = MetadataImage()
        made.clusterId = self.clusterId
        made.topics = self.topics.copy()
        made.topicsById = self.topicsById.copy()
        made.partitionCount = self.partitionCount
        made.removing = self.removing.copy()
        made.removingBrokers = self.removingBrokers.copy()
        made.brokers = self.brokers.copy()
        made.brokerConfigs = self.brokerConfigs.copy()
        made.groupConfigs = self.groupConfigs.copy()
        made.nextProducerId = self.nextProducerId
        made.acls, made.aclSize = self.acls, self.aclSize
        made._aclsAreShared = self._aclsAreShared = True
        made.scramCredentials = self.scramCredentials.copy()
        made.quotas, made.quotaSize = self.quotas, self.quotaSize
        made._quotasAreShared = self._quotasAreShared = True
        return made

    def records(self) -> Iterator[Record]:
        """The shortest list of records that makes this image, for a snapshot."""
        if self.clusterId:
            yield ClusterRecord(self.clusterId)
        for broker in sorted(self.brokers.values(), key=lambda each: each.epoch):
            brokerId, epoch, endpoints, rack, isFenced, isShuttingDown = broker
            yield RegisterBrokerRecord(brokerId, epoch, [list(each) for each in endpoints], rack)
            if isFenced:
                yield FenceBrokerRecord(brokerId, epoch)
            if isShuttingDown:
                yield BrokerShutdownRecord(brokerId, epoch)
        for removedId, left in self.removingBrokers.items():  # their names may be taken again
            yield TopicRecord(self.removing[removedId], str(removedId), 1)
            yield PartitionImage(-1, 0, 0, tuple(sorted(left)), ()).record(removedId, 0)
            yield RemoveTopicRecord(str(removedId))
        for topic in self.topics.values():
            topicId = str(topic.topicId)
            yield TopicRecord(topic.name, topicId, topic.partitionCount)
            for name, value in topic.configs.items():
                yield ConfigRecord(TOPIC, topicId, name, value)
            for number, partition in enumerate(topic.partitions):
                yield partition.record(topic.topicId, number)
        for removedId, name in self.removing.items():
            if removedId not in self.removingBrokers:
                yield TopicRecord(name, str(removedId), 1)
                yield RemoveTopicRecord(str(removedId))
        for owner, configs in self.brokerConfigs.items():
            resource = BROKER if owner else CLUSTER_DEFAULT
            for name, value in configs.items():
                yield ConfigRecord(resource, owner, name, value)
        for owner, configs in self.groupConfigs.items():
            for name, value in configs.items():
                yield ConfigRecord(GROUP, owner, name, value)
        for binding in self.acls:
            yield AclRecord(*binding)
        for entity, quotas in self.quotas.items():
            for key, bound in quotas.items():
                yield QuotaRecord(dict(entity), key, bound)
        if self.nextProducerId:
            yield ProducerIdsRecord(self.nextProducerId)
        for user, credentials in self.scramCredentials.items():
            for mechanism, credential in credentials.items():
                yield credential.record(user, mechanism)


def _topicOf(record: Any) -> str:
    topicId: str = record.topicId
    return topicId


def _checkSuccessor(where: str, before: PartitionImage, made: PartitionImage) -> None:
    """@raise MetadataError: a partition cannot go on so."""
    isNewLeader = made.leader not in (before.leader, -1)
    if made.partitionEpoch <= before.partitionEpoch:
        raise MetadataError(
            f"{where} is at partition epoch {before.partitionEpoch},"
            f" and cannot go on with {made.partitionEpoch}"
        )
    if made.leaderEpoch < before.leaderEpoch + isNewLeader:
        raise MetadataError(
            f"{where} has leader {before.leader} in epoch {before.leaderEpoch},"
            f" and cannot go on with {made.leader} in epoch {made.leaderEpoch}"
        )


def aclSize(binding: AclBinding) -> int:
    """The bytes of a rule in a snapshot."""
    return len(encodeRecords([AclRecord(*binding)]))


def quotaSize(record: QuotaRecord) -> int:
    """The bytes of a limit in a snapshot, whatever its value."""
    return len(encodeRecords([record._replace(value=0)]))


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except (ValueError, AttributeError, TypeError):
        raise MetadataError(f"{text!r} is no topic id") from None


def _changed(configs: dict[str, str], record: ConfigRecord) -> dict[str, str]:
    made = configs.copy()
    if record.value is None:
        made.pop(record.name, None)
    else:
        made[record.name] = record.value
    return made
