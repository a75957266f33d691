"""
The state of a cluster of today's Kafka for the console, as its brokers tell it to any client:
brokers, topics, groups with lag, and records. A module of its own, since a reader of one dialect
need not know the other.

As in L{pylogbroker.console.cluster}, it is read on request only, behind caches with single-flight
refresh, and all amounts have limits, which the answer names. What one request is refused (sizes,
without the right to describe the cluster) is a problem in the answer, beside the rest.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, uuid5

from pylogbroker.broker.kafka.administration.clusterstatus import clusterMap
from pylogbroker.client.kafka.admin.client import EARLIEST, LATEST, AdminClient
from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.metadata import address
from pylogbroker.cluster.metadataimage import (
    FenceBrokerRecord,
    MetadataImage,
    PartitionImage,
    RegisterBrokerRecord,
    TopicRecord,
)
from pylogbroker.config.kafka.clientsettings import KafkaAdminSettings
from pylogbroker.config.listenersettings import KAFKA
from pylogbroker.console.cluster import (
    BROKER_COUNT_MAX,
    GROUP_COUNT_MAX,
    NO_BROKER,
    PARTITION_COUNT_MAX,
    PARTITIONS_OF_TOPIC_MAX,
    PROBLEM_COUNT_MAX,
    TOPIC_COUNT_MAX,
    TtlCache,
    coordinatedGroup,
)
from pylogbroker.console.peek import Work
from pylogbroker.console.recordpeek import peekRecordsAt
from pylogbroker.console.tasks import TASK_TOPICS, TaskReports
from pylogbroker.errors import (
    BrokerConnectionError,
    ClosedError,
    PylogbrokerError,
    UnknownPartitionError,
    describeError,
)
from pylogbroker.metrics.brokermetrics import GroupMemberSnapshot, GroupSnapshot
from pylogbroker.net.deferreds import gatherInBatches
from pylogbroker.net.timer import wallMs
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.consumerprotocol import PROTOCOL_TYPE, decodeAssignment
from pylogbroker.protocol.kafka.errorcodes import ResponseError, checkCode
from pylogbroker.types import OffsetBounds, TopicPartition

TIMEOUT_MS = "5000"
"""For a call, retries included."""

CONSUMER_GROUP, CLASSIC_GROUP = "consumer", "classic"
GROUPS_AT_ONCE_MAX = 10
"""Groups whose committed offsets are asked for at the same time."""

_NAMED_FETCH = 12
"""The last version of Fetch that names topics."""


class _Layout(NamedTuple):
    """
    Brokers and topics.

    @ivar brokers: host and address of each, by number.
    @ivar topics: the leader of each partition, by topic.
    @ivar map: brokers and partitions; L{None} of a cluster of one broker.
    """

    brokers: dict[int, tuple[str, str]]
    controller: int
    topics: dict[str, dict[int, int]]
    problems: list[str]
    map: dict[str, Any] | None = None


class _Marks(NamedTuple):
    """
    What the leaders say of partitions.

    @ivar bounds: offsets that can be read, or why they are not known.
    @ivar sizes: bytes at the leader.
    """

    bounds: dict[TopicPartition, OffsetBounds | PylogbrokerError]
    sizes: dict[TopicPartition, int]
    timeMs: int
    problems: list[str]


def _imageOf(found: Any, names: Container[str]) -> MetadataImage:
    """
    The metadata as clients are told of them: which replicas are being added is not in them.

    @param found: a C{MetadataResponse}.
    @param names: of the topics.
    """
    image = MetadataImage()
    topics = [topic for topic in found.topics if topic.name in names]
    known = {each.nodeId: each.rack for each in found.brokers}
    had = {each for topic in topics for part in topic.partitions for each in part.replicaNodes}
    for each in sorted({*known, *had}):
        image.apply(RegisterBrokerRecord(each, 0, [], known.get(each)))
        if each not in known:
            image.apply(FenceBrokerRecord(each, 0))
    for topic in topics:
        parts = sorted(topic.partitions, key=lambda part: int(part.partitionIndex))
        del parts[PARTITIONS_OF_TOPIC_MAX:]
        topicId = uuid5(NAMESPACE_OID, topic.name)  # older brokers tell none
        image.apply(TopicRecord(topic.name, str(topicId), len(parts)))
        for index, part in enumerate(parts):
            made = PartitionImage(
                part.leaderId, 0, 0, tuple(part.replicaNodes), tuple(part.isrNodes)
            )
            image.apply(made.record(topicId, index))
    return image


class KafkaClusterView:
    """The state of a cluster of today's Kafka."""

    def __init__(
        self,
        reactor: Any,
        properties: dict[str, str],
        pageTemplate: str = "",
        random: Any = None,
        taskTopics: tuple[str, str] = TASK_TOPICS,
    ) -> None:
        """
        @param properties: of an admin client.
        @param pageTemplate: the URL of a broker's own console, with C{{host}}; C{""}: not known.
        @param random: numbers from 0 up to, not including, 1.
        @param taskTopics: see L{TaskReports}.
        @raise ConfigurationError: a property is wrong.
        """
        limits = {"default.api.timeout.ms": TIMEOUT_MS, "request.timeout.ms": TIMEOUT_MS}
        settings = KafkaAdminSettings.fromProperties({**limits, **properties})
        self._reactor = reactor
        self._timeoutMs = settings.defaultApiTimeoutMs
        self._pageTemplate = pageTemplate
        self._admin = AdminClient(reactor, settings, random=random)
        self._cluster = ClusterClient(reactor, settings, isCreatingTopics=False, random=random)
        self._layout = TtlCache(reactor, self._readLayout, 2_000)
        self._marks = TtlCache(reactor, self._readMarks)
        self._groups = TtlCache(reactor, self._readGroups)
        self._tasks = TaskReports(reactor, self, taskTopics)

    async def close(self) -> None:
        """Close all connections."""
        await self._admin.close()
        self._cluster.abort()
        try:
            await self._cluster.close()
        except ClosedError:
            pass  # requests under way were cut

    def _nowMs(self) -> int:
        return wallMs(self._reactor)

    # -- brokers and topics

    async def state(self) -> dict[str, Any]:
        """
        Brokers, topics and partitions, for the page, as L{ClusterView.state
        <pylogbroker.console.cluster.ClusterView.state>}.
        """
        layout = _Layout({}, NO_BROKER, {}, [])
        marks = _Marks({}, {}, 0, [])
        problems: list[str] = []
        isKnown = False
        try:
            layout = await self._layout.get()
            isKnown = True
            marks = await self._marks.get()
        except PylogbrokerError as error:
            problems.append(f"the cluster: {describeError(error)}")
        problems += layout.problems + marks.problems
        return {
            "timeMs": self._nowMs(),
            "foreignTimeMs": marks.timeMs,
            "kind": KAFKA,
            "brokers": [
                {
                    "id": number,
                    "endpoint": endpoint,
                    "isOwn": False,
                    "isController": number == layout.controller,
                    "problem": "",
                    "page": self._pageTemplate.replace("{host}", host),
                }
                for number, (host, endpoint) in sorted(layout.brokers.items())
            ],
            "topics": [
                {
                    "name": name,
                    "kind": KAFKA,
                    "partitions": [
                        _partition(TopicPartition(name, number), leader, marks)
                        for number, leader in sorted(leaders.items())
                    ],
                    "counts": None,
                }
                for name, leaders in sorted(layout.topics.items())
            ],
            "own": None,
            "cluster": layout.map,
            "hasGroups": True,
            "hasTasks": True,
            "isKnown": isKnown,
            "problems": problems[:PROBLEM_COUNT_MAX],
        }

    async def _readLayout(self) -> _Layout:
        found = await self._cluster.attempt(
            lambda: self._cluster.lookUp(None), self._timeoutMs, "topics"
        )
        problems: list[str] = []
        brokers = {
            each.nodeId: (each.host, address(each.host, each.port)) for each in found.brokers
        }
        if len(brokers) > BROKER_COUNT_MAX:
            problems.append(f"{BROKER_COUNT_MAX} of {len(brokers)} brokers are shown")
            brokers = dict(sorted(brokers.items())[:BROKER_COUNT_MAX])
        topics: dict[str, dict[int, int]] = {}
        partitionCount = 0
        for topic in sorted(found.topics, key=lambda each: each.name or ""):
            if topic.errorCode:
                continue
            if len(topics) == TOPIC_COUNT_MAX or partitionCount >= PARTITION_COUNT_MAX:
                problems.append(f"{len(topics)} of {len(found.topics)} topics are shown")
                break
            leaders = {each.partitionIndex: each.leaderId for each in topic.partitions}
            topics[topic.name] = dict(sorted(leaders.items())[:PARTITIONS_OF_TOPIC_MAX])
            partitionCount += len(topics[topic.name])
        shown = None
        if len(brokers) > 1:
            shown = clusterMap(_imageOf(found, topics))
        return _Layout(brokers, found.controllerId, topics, problems, shown)

    async def _readMarks(self) -> _Marks:
        layout = await self._layout.get()
        places = [
            TopicPartition(topic, number)
            for topic, leaders in layout.topics.items()
            for number, leader in leaders.items()
            if leader != NO_BROKER
        ]
        starts = await self._admin.listOffsets(dict.fromkeys(places, EARLIEST))
        ends = await self._admin.listOffsets(dict.fromkeys(places, LATEST))
        bounds: dict[TopicPartition, OffsetBounds | PylogbrokerError] = {}
        for place in places:
            marks = [each[place] for each in (starts, ends)]
            errors = [each for each in marks if isinstance(each, PylogbrokerError)]
            bounds[place] = errors[0] if errors else OffsetBounds(*(each.offset for each in marks))
        sizes: dict[TopicPartition, int] = {}
        try:
            directories = await self._admin.describeLogDirs(layout.brokers)
        except PylogbrokerError as error:
            problems = [f"sizes are not known: {describeError(error)}"]
        else:
            sizes = _leaderSizes(directories, layout.topics)
            problems = [
                f"{each.logDir} of broker {broker}: {ResponseError(each.errorCode)}"
                for broker, found in directories.items()
                for each in found
                if each.errorCode
            ]
        return _Marks(bounds, sizes, self._nowMs(), problems)

    # -- records

    async def messages(
        self, broker: int, topic: str, partition: int, offset: int | None, countMax: int, work: Work
    ) -> dict[str, Any]:
        """
        As L{ClusterView.messages<pylogbroker.console.cluster.ClusterView.messages>}; the leader is
        asked, whatever C{broker} says.
        """
        return await peekRecordsAt(self, topic, partition, offset, countMax, work)

    async def tasks(self, work: Work) -> dict[str, Any]:
        """See L{ClusterView.tasks<pylogbroker.console.cluster.ClusterView.tasks>}."""
        return await self._tasks.read(work)

    async def readBatches(self, topic: str, partition: int, offset: int, sizeMax: int) -> bytes:
        """
        Batches of a partition, from its leader.

        @raise PylogbrokerError: it cannot be asked, or refuses.
        """
        found = await self._cluster.lookUp([topic])
        checkCode(found.topics[0].errorCode, f"topic {topic}")
        parts = {each.partitionIndex: each for each in found.topics[0].partitions}
        if partition not in parts:
            raise UnknownPartitionError(f"{topic} has no partition {partition}")
        leader = parts[partition].leaderId
        if leader == NO_BROKER:
            raise BrokerConnectionError(f"partition {partition} of {topic} has no leader")
        cls = messages.FetchRequest
        body = cls(
            maxBytes=sizeMax,
            topics=[
                cls.FetchTopic(
                    topic=topic,
                    partitions=[
                        cls.FetchPartition(
                            partition=partition, fetchOffset=offset, partitionMaxBytes=sizeMax
                        )
                    ],
                )
            ],
        )
        connection = await self._cluster.broker(leader).connection()
        answer = await connection.request(ApiKey.FETCH, body, versionMax=_NAMED_FETCH)
        checkCode(answer.errorCode, f"fetch from broker {leader}")
        [answered] = [part for each in answer.responses for part in each.partitions]
        checkCode(answered.errorCode, f"{topic}-{partition} at offset {offset}")
        return bytes(answered.records or b"")

    async def recordBounds(self, topic: str, partition: int) -> OffsetBounds:
        """
        The log start offset and the high watermark of a partition.

        @raise PylogbrokerError: the leader cannot be asked, or refuses.
        """
        place = TopicPartition(topic, partition)
        offsets = []
        for time in (EARLIEST, LATEST):
            found = (await self._admin.listOffsets({place: time}))[place]
            if isinstance(found, PylogbrokerError):
                raise found
            offsets.append(found.offset)
        return OffsetBounds(*offsets)

    # -- groups

    async def groups(self) -> dict[str, Any]:
        """
        Groups, their members, and owner, offset and lag of each partition, for the page, as
        L{ClusterView.groups<pylogbroker.console.cluster.ClusterView.groups>}; and C{isKnown}, false
        if the cluster does not answer.
        """
        try:
            return await self._groups.get()
        except PylogbrokerError as error:
            problem = f"groups: {describeError(error)}"
            return {"groups": [], "problems": [problem], "isKnown": False}

    async def _readGroups(self) -> dict[str, Any]:
        layout, marks = await self._layout.get(), await self._marks.get()
        kinds = {
            name: each.groupType.lower() or CLASSIC_GROUP
            for name, each in sorted((await self._admin.listGroups()).items())
            if each.protocolType in ("", PROTOCOL_TYPE)
        }
        problems: list[str] = []
        names = [name for name, kind in kinds.items() if kind in (CLASSIC_GROUP, CONSUMER_GROUP)]
        if len(names) > GROUP_COUNT_MAX:
            problems.append(f"{GROUP_COUNT_MAX} of {len(names)} groups are shown")
            del names[GROUP_COUNT_MAX:]
        described = {
            **await self._admin.describeGroups(_ofKind(kinds, names, CLASSIC_GROUP)),
            **await self._admin.describeConsumerGroups(_ofKind(kinds, names, CONSUMER_GROUP)),
        }
        committed = await gatherInBatches(self._committed, names, GROUPS_AT_ONCE_MAX)
        bounds: dict[tuple[str, int], OffsetBounds] = {
            place: found for place, found in marks.bounds.items() if isinstance(found, OffsetBounds)
        }

        def leaderOf(topic: str, number: int) -> int:
            return layout.topics.get(topic, {}).get(number, NO_BROKER)

        groups = []
        for name, offsets in zip(names, committed, strict=True):
            found = described[name]
            try:
                if isinstance(found, PylogbrokerError):
                    raise found
                if isinstance(offsets, PylogbrokerError):
                    raise offsets
                members = _members(found, kinds[name])
            except PylogbrokerError as error:
                problems.append(f"group {name}: {describeError(error)}")
                continue
            group = GroupSnapshot(name, found.groupState, members, offsets)
            groups.append(coordinatedGroup(group, bounds, leaderOf))
        return {"groups": groups, "problems": problems[:PROBLEM_COUNT_MAX], "isKnown": True}

    async def _committed(self, group: str) -> tuple[tuple[str, int, int], ...] | PylogbrokerError:
        try:
            found = await self._admin.listConsumerGroupOffsets(group)
        except PylogbrokerError as error:
            return error
        return tuple((*place, each.offset) for place, each in sorted(found.items()))


def _ofKind(kinds: dict[str, str], names: Iterable[str], kind: str) -> list[str]:
    return [name for name in names if kinds[name] == kind]


def _members(group: Any, kind: str) -> tuple[GroupMemberSnapshot, ...]:
    """
    The members of a described group.

    @raise WireError: what a member of a classic group was given cannot be read.
    """
    return tuple(
        GroupMemberSnapshot(
            each.memberId,
            each.clientId,
            each.clientHost,
            tuple(
                decodeAssignment(each.memberAssignment)
                if kind == CLASSIC_GROUP
                else (
                    TopicPartition(topic.topicName, number)
                    for topic in each.assignment.topicPartitions
                    for number in topic.partitions
                )
            ),
        )
        for each in group.members
    )


def _leaderSizes(
    directories: dict[int, list[Any]], leaders: dict[str, dict[int, int]]
) -> dict[TopicPartition, int]:
    """The bytes of each partition at its leader; without partitions on a failed disk."""
    return {
        TopicPartition(topic.name, part.partitionIndex): part.partitionSize
        for broker, found in directories.items()
        for directory in found
        if not directory.errorCode
        for topic in directory.topics
        for part in topic.partitions
        if not part.isFutureKey and leaders.get(topic.name, {}).get(part.partitionIndex) == broker
    }


def _partition(place: TopicPartition, leader: int, marks: _Marks) -> dict[str, Any]:
    """A partition for the page."""
    row: dict[str, Any] = {"broker": leader, "partition": place.partition, "problem": ""}
    bounds = marks.bounds.get(place)
    if isinstance(bounds, OffsetBounds):
        row |= {"start": bounds.start, "visible": bounds.end, "end": bounds.end}
    elif bounds is not None:
        row["problem"] = describeError(bounds)
    elif leader == NO_BROKER:
        row["problem"] = "it has no leader"
    if place in marks.sizes:
        row["size"] = marks.sizes[place]
    return row
