"""
What Apache Kafka's controller wrote in a log directory, as records of our own metadata: read once,
when a directory of Apache's is opened for the first time (docs/decisions/0021). Nothing is changed.
A module of its own, since a broker needs it once in its life.

The newest snapshot (C{….checkpoint}) of C{__cluster_metadata-0} is read, then the log behind it,
up to its last whole batch. With one controller, which this must be, everything whole is committed;
of a transaction of the controller that has no end, nothing counts.

What must be true of the directory: it belongs to one broker, and that broker has all records of
each partition (it is in sync). Otherwise the directory is refused, and nothing is changed. What
this broker cannot do is told and left out: a setting that it does not honour, delegation tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple
from uuid import UUID

from pylogbroker.cluster.metadataimage import (
    BROKER,
    CLUSTER_DEFAULT,
    GROUP,
    TOPIC,
    AclRecord,
    ClusterRecord,
    ConfigRecord,
    ProducerIdsRecord,
    QuotaRecord,
    Record,
    ScramCredential,
    TopicRecord,
)
from pylogbroker.cluster.quotas import QuotaEntity, entityOf
from pylogbroker.config.topicconfigs import DYNAMIC_CONFIGS, checkTopicConfig
from pylogbroker.coordinator.groupconfigs import checkGroupConfig
from pylogbroker.errors import CorruptLogError, PylogbrokerError, StorageError
from pylogbroker.interfaces import IFileSystem
from pylogbroker.protocol.kafka.metadatarecords import decodeMetadataRecord
from pylogbroker.records.kafkaformat import KafkaFormat
from pylogbroker.records.recordbatch import iterateRecords
from pylogbroker.storage.filenames import BATCH_SUFFIX, parseSegmentName
from pylogbroker.storage.kafka.checkpoints import META_PROPERTIES, readMetaProperties
from pylogbroker.storage.logdirectory import APACHE_METADATA

_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_TOPIC, _BROKER, _GROUP = 2, 4, 32
_RESERVED_ID_COUNT = 100
"""Ids that stand for no directory."""

Report = Callable[[str], object]


def readApacheMetadata(
    fileSystem: IFileSystem, directory: str, nodeId: int, report: Report
) -> list[Record]:
    """
    The metadata of a directory of Apache's, as the records of an empty store. Blocks.

    @param nodeId: of this broker, which must be the directory's.
    @param report: called with a sentence for each thing that is left out.
    @raise StorageError: the directory is not that of this broker alone, or cannot be read; the text
        says why.
    """
    meta = readMetaProperties(fileSystem, directory)
    path = f"{directory}/{APACHE_METADATA}"
    if meta is None:
        raise StorageError(path, "import", f"there is no {META_PROPERTIES} beside it")
    if meta.nodeId != nodeId:
        raise StorageError(
            path,
            "import",
            f"the directory is that of broker {meta.nodeId}; set brokerid={meta.nodeId}",
        )
    metadata = _ApacheMetadata(path, report)
    for record in _committed(_records(fileSystem, path)):
        metadata.apply(record)
    metadata.check(nodeId, meta.directoryId)
    return [ClusterRecord(meta.clusterId), *metadata.records(nodeId)]


# -- the files


def _records(fileSystem: IFileSystem, path: str) -> Iterator[Any]:
    names = fileSystem.list(path)
    snapshots = sorted(name for name in names if _SNAPSHOT.fullmatch(name))
    end = 0
    if snapshots:
        end = int(snapshots[-1].partition("-")[0])
        for _, record in _recordsIn(fileSystem, f"{path}/{snapshots[-1]}", 0, True):
            yield record
    bases = sorted(
        (base, name) for name in names if (base := parseSegmentName(name, BATCH_SUFFIX)) is not None
    )
    if bases and bases[0][0] > end:
        raise CorruptLogError(path, "import", f"nothing tells what was before {bases[0][0]}")
    for index, (base, name) in enumerate(bases):
        isLast = index == len(bases) - 1
        for offset, record in _recordsIn(fileSystem, f"{path}/{name}", base, not isLast):
            if offset >= end:
                yield record


def _recordsIn(
    fileSystem: IFileSystem, path: str, baseOffset: int, isWhole: bool
) -> Iterator[tuple[int, Any]]:
    """
    The records of a file, with their offsets.

    @param isWhole: whether a fault is an error; otherwise the file ends there, as after a crash.
    """
    with closing(fileSystem.open(path, write=False)) as file:
        size = file.size()
        scan = KafkaFormat().scan(file.readAt, baseOffset, 0, size)
        for entry in scan:
            header = entry.header
            assert header is not None
            if header.isControl:
                continue
            data = file.readAt(entry.position, entry.size)
            try:
                for found in iterateRecords(data, 0, header):
                    record = decodeMetadataRecord(found.value or b"")
                    if record is not None:
                        yield found.offset, record
            except PylogbrokerError as error:
                reason = f"the batch at byte {entry.position}: {error}"
                raise CorruptLogError(path, "import", reason) from error
        if isWhole and scan.position < size:
            raise CorruptLogError(path, "import", scan.reason or "it is cut")


def _committed(records: Iterator[Any]) -> Iterator[Any]:
    """The records without those of transactions that were aborted or have no end."""
    held: list[Any] | None = None
    for record in records:
        kind = type(record).__name__
        if kind == "BeginTransactionRecord":
            held = []
        elif kind == "EndTransactionRecord":
            yield from held or ()
            held = None
        elif kind == "AbortTransactionRecord":
            held = None
        elif held is None:
            yield record
        else:
            held.append(record)


# -- what they say


class _Partition(NamedTuple):
    """
    Where the records of a partition are.

    @ivar eligible: those that were in sync when they stopped.
    @ivar directories: ids of the replicas' log directories, in their order; empty: not known.
    """

    replicas: tuple[int, ...]
    inSync: frozenset[int]
    eligible: frozenset[int]
    directories: tuple[bytes, ...]

    def isComplete(self, nodeId: int) -> bool:
        """Whether a broker has all records."""
        return nodeId in self.inSync | self.eligible or set(self.replicas) == {nodeId}

    def isElsewhere(self, nodeId: int, directoryId: UUID | None) -> bool:
        """Whether a broker has the records in another of its log directories."""
        isKnown = len(self.directories) == len(self.replicas)
        if directoryId is None or nodeId not in self.replicas or not isKnown:
            return False
        found = UUID(bytes=bytes(self.directories[self.replicas.index(nodeId)]))
        return found.int >= _RESERVED_ID_COUNT and found != directoryId


class _ApacheMetadata:
    """The sum of the records."""

    def __init__(self, path: str, report: Report) -> None:
        self._path = path
        self._tell = report
        self._topics: dict[bytes, str] = {}
        self._partitions: dict[bytes, dict[int, _Partition]] = {}
        self._configs: dict[tuple[int, str], dict[str, str]] = {}
        self._quotas: dict[tuple[QuotaEntity, str], QuotaRecord] = {}
        self._credentials: dict[tuple[str, int], ScramCredential] = {}
        self._acls: dict[bytes, AclRecord] = {}
        self._nextProducerId = 0
        self._leftOut: dict[str, set[str]] = {}

    def apply(self, record: Any) -> None:
        """@raise CorruptLogError: the record does not fit to those before it."""
        act = getattr(self, f"_on{type(record).__name__}")
        try:
            act(record)
        except KeyError as error:
            raise CorruptLogError(
                self._path, "import", f"{type(record).__name__} of the unknown topic {error}"
            ) from error

    def _onTopicRecord(self, record: Any) -> None:
        self._topics[record.topicId] = record.name
        self._partitions[record.topicId] = {}

    def _onRemoveTopicRecord(self, record: Any) -> None:
        name = self._topics.pop(record.topicId)
        del self._partitions[record.topicId]
        self._configs.pop((_TOPIC, name), None)

    def _onPartitionRecord(self, record: Any) -> None:
        self._partitions[record.topicId][record.partitionId] = _Partition(
            tuple(record.replicas),
            frozenset(record.isr),
            frozenset(record.eligibleLeaderReplicas or ()),
            tuple(record.directories),
        )

    def _onPartitionChangeRecord(self, record: Any) -> None:
        partitions = self._partitions[record.topicId]
        found = partitions[record.partitionId]
        if record.replicas is not None:
            found = found._replace(replicas=tuple(record.replicas))
        if record.directories is not None:
            found = found._replace(directories=tuple(record.directories))
        if record.isr is not None:
            found = found._replace(inSync=frozenset(record.isr))
        if record.eligibleLeaderReplicas is not None:
            found = found._replace(eligible=frozenset(record.eligibleLeaderReplicas))
        partitions[record.partitionId] = found

    def _onConfigRecord(self, record: Any) -> None:
        configs = self._configs.setdefault((record.resourceType, record.resourceName), {})
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value

    def _onProducerIdsRecord(self, record: Any) -> None:
        self._nextProducerId = max(self._nextProducerId, record.nextProducerId)

    def _onFeatureLevelRecord(self, record: Any) -> None:
        """Every level that 4.3.1 writes has the files that are read here."""

    def _onUserScramCredentialRecord(self, record: Any) -> None:
        self._credentials[record.name, record.mechanism] = ScramCredential(
            record.salt, record.storedKey, record.serverKey, record.iterations
        )

    def _onRemoveUserScramCredentialRecord(self, record: Any) -> None:
        self._credentials.pop((record.name, record.mechanism), None)

    def _onAccessControlEntryRecord(self, record: Any) -> None:
        self._acls[record.id] = AclRecord(
            record.resourceType,
            record.patternType,
            record.resourceName,
            record.principal,
            record.host,
            record.operation,
            record.permissionType,
        )

    def _onRemoveAccessControlEntryRecord(self, record: Any) -> None:
        self._acls.pop(record.id, None)

    def _onClientQuotaRecord(self, record: Any) -> None:
        names = {each.entityType: each.entityName for each in record.entity}
        place = entityOf(names), record.key
        if record.remove:
            self._quotas.pop(place, None)
        else:
            self._quotas[place] = QuotaRecord(names, record.key, record.value)

    def _onDelegationTokenRecord(self, record: Any) -> None:
        self._leaveOut("delegation tokens", record.tokenId)

    def _leaveOut(self, kind: str, name: str) -> None:
        self._leftOut.setdefault(kind, set()).add(name)

    def check(self, nodeId: int, directoryId: UUID | None) -> None:
        """@raise StorageError: a broker's directory has not all records of the partitions."""
        for topicId, partitions in self._partitions.items():
            name = self._topics[topicId]
            if sorted(partitions) != list(range(len(partitions))) or not partitions:
                raise CorruptLogError(
                    self._path, "import", f"topic {name} has the partitions {sorted(partitions)}"
                )
            for index, partition in sorted(partitions.items()):
                if not partition.isComplete(nodeId):
                    raise StorageError(
                        self._path,
                        "import",
                        f"broker {nodeId} has not all records of {name}-{index}: its replicas are"
                        f" on brokers {sorted(partition.replicas)}, in sync are"
                        f" {sorted(partition.inSync | partition.eligible)}",
                    )
                if partition.isElsewhere(nodeId, directoryId):
                    raise StorageError(
                        self._path,
                        "import",
                        f"{name}-{index} is in another of the broker's log.dirs",
                    )

    def records(self, nodeId: int) -> Iterator[Record]:
        """As records of our own; what is left out is reported, but for other brokers' settings."""
        for topicId, name in self._topics.items():
            ownId = str(UUID(bytes=topicId))
            yield TopicRecord(name, ownId, len(self._partitions[topicId]))
            configs = self._configs.get((_TOPIC, name), {})
            yield from self._configRecords(TOPIC, ownId, f"topic {name}", configs, checkTopicConfig)
        for (kind, name), configs in self._configs.items():
            owner = f"broker {name}" if name else "all brokers"
            if kind == _BROKER and name in ("", str(nodeId)):
                resource = BROKER if name else CLUSTER_DEFAULT
                yield from self._configRecords(resource, name, owner, configs, _checkBroker)
            elif kind == _GROUP:
                yield from self._configRecords(
                    GROUP, name, f"group {name}", configs, checkGroupConfig
                )
            elif kind not in (_TOPIC, _BROKER):
                self._leaveOut("settings of clients' metrics", name)
        for (user, mechanism), credential in self._credentials.items():
            yield credential.record(user, mechanism)
        yield from dict.fromkeys(self._acls.values())
        yield from self._quotas.values()
        if self._nextProducerId:
            yield ProducerIdsRecord(self._nextProducerId)
        for what, names in self._leftOut.items():
            if names:
                self._tell(f"left out: {what} ({len(names)})")

    def _configRecords(
        self,
        resource: str,
        ownerId: str,
        owner: str,
        configs: dict[str, str],
        check: Callable[[str, str], str],
    ) -> Iterator[Record]:
        for key, value in configs.items():
            try:
                yield ConfigRecord(resource, ownerId, key, check(key, value))
            except ValueError as error:
                self._tell(f"a setting of {owner} is left out: {error}")


def _checkBroker(name: str, value: str) -> str:
    config = DYNAMIC_CONFIGS.get(name)
    if config is None:
        raise ValueError(f"{name} cannot be changed while the broker runs")
    return config.check(value)
