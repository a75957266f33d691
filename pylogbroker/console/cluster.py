"""
The state of a cluster for the console: the serving broker, and, with ZooKeeper, the other brokers
and the groups.

It is read on request only, behind a cache with single-flight refresh. The time to live of a value
grows with the time that reading took, which bounds the share of load. All amounts have limits,
which the answer names. Unreadable data, which other programs have written, is a problem in the
answer, beside the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from pylogbroker.broker.service import BrokerService
from pylogbroker.client.clustermetadata import ClusterMetadataReader
from pylogbroker.client.offsetlookup import OffsetLookup
from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.config.listenersettings import KAFKA, KAFKA07
from pylogbroker.console.peek import ISource, OwnSource, RemoteSource, Work, peek, peekLast
from pylogbroker.console.recordpeek import peekRecordsAt
from pylogbroker.console.tasks import TASK_TOPICS, TaskReports
from pylogbroker.errors import (
    BrokerConnectionError,
    NoBrokersError,
    PylogbrokerError,
    describeError,
)
from pylogbroker.interfaces import IZookeeper
from pylogbroker.metrics.brokermetrics import BrokerSnapshot, GroupSnapshot, PartitionSnapshot
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import wallMs
from pylogbroker.types import BrokerPartition, OffsetBounds, PartitionId

T = TypeVar("T")

AGE_MS = 800
SHARE = 20
"""A value is kept for SHARE times as long as it took to gather."""


class TtlCache(Generic[T]):
    """A value that is refreshed on request when it is too old, once for all callers that wait."""

    def __init__(self, clock: Any, gather: Callable[[], Awaitable[T]], ageMs: int = AGE_MS) -> None:
        self._clock = clock
        self._gather = gather
        self._age = ageMs / 1000
        self._value: T | None = None
        self._until = 0.0
        self._isRefreshing = False
        self._waiters: Waiters[T] = Waiters()

    def get(self) -> Deferred[T]:
        """@return: fires with the value; fails as the refresh does."""
        if self._value is not None and self._clock.seconds() < self._until:
            return succeed(self._value)
        waiting = self._waiters.wait()
        if not self._isRefreshing:
            self._isRefreshing = True
            Deferred.fromCoroutine(self._refresh())
        return waiting

    async def _refresh(self) -> None:
        begun = self._clock.seconds()
        result: T | Failure
        try:
            self._value = result = await self._gather()
        except Exception:
            self._value, result = None, Failure()  # an old value must not be served as a fresh one
        now = self._clock.seconds()
        self._until = now + max(self._age, SHARE * (now - begun))
        self._isRefreshing = False
        self._waiters.fire(result)


BROKER_COUNT_MAX = 100
TOPIC_COUNT_MAX = 500
PARTITION_COUNT_MAX = 2_000
PARTITIONS_OF_TOPIC_MAX = 200
GROUP_COUNT_MAX = 100
ROW_COUNT_MAX = 2_000
PROBLEM_COUNT_MAX = 20
NO_BROKER = -1
"""Instead of a broker's number: a partition has no leader, or does not exist."""

DOWN_KEPT_MS = 24 * 3_600_000
"""How long a broker that has disappeared from ZooKeeper is shown as down."""

TIMEOUT_MS = 5_000
"""For each answer of another broker; half of it for connecting."""


class _Layout:
    """
    Brokers and topics in ZooKeeper.

    @ivar counts: partitions by topic and broker.
    @ivar down: brokers that have disappeared.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerRegistration] = {}
        self.counts: dict[str, dict[int, int]] = {}
        self.down: dict[int, BrokerRegistration] = {}
        self.problems: list[str] = []


Foreign = dict[PartitionId, "OffsetBounds | PylogbrokerError"]
"""Bounds of partitions on other brokers, or why they are not known."""


class ClusterView:
    """The state of a cluster."""

    def __init__(
        self,
        reactor: Any,
        own: BrokerService | None,
        zookeeper: Callable[[], IZookeeper | None],
        template: str = "",
        pageTemplate: str = "",
        taskTopics: tuple[str, str] = TASK_TOPICS,
    ) -> None:
        """
        @param own: the broker in this process, if there is one.
        @param zookeeper: returns the current client, if there is one.
        @param template: the way to other brokers; see
            L{pylogbroker.net.endpointstrings.brokerEndpoint}.
        @param pageTemplate: the URL of a broker's own console, with C{{host}}; C{""}: not known.
        @param taskTopics: see L{TaskReports}.
        """
        self._reactor = reactor
        self._own = own
        self._zookeeper = zookeeper
        self._pageTemplate = pageTemplate
        self._ends = OffsetLookup(reactor, self._find, TIMEOUT_MS, TIMEOUT_MS // 2, template)
        self._brokers: dict[int, BrokerRegistration] = {}
        self._seen: dict[int, tuple[BrokerRegistration, dict[str, int], int]] = {}
        self._layout = TtlCache(reactor, self._readLayout, 2_000)
        self._foreign = TtlCache(reactor, self._readForeign)
        self._foreignMs = 0
        self._groups = TtlCache(reactor, self._readGroups)
        self._tasks = None if own is None else TaskReports(reactor, own, taskTopics)

    async def close(self) -> None:
        """Close all connections."""
        await self._ends.close()

    def _nowMs(self) -> int:
        return wallMs(self._reactor)

    # -- brokers and topics

    async def state(self) -> dict[str, Any]:
        """
        Brokers, topics, partitions and waiting clients, for the page. The state of other brokers'
        partitions may be older, and has its own time, so that rates do not jump.
        """
        picture = None if self._own is None else self._own.picture()
        layout, problems = _Layout(), []
        foreign: Foreign = {}
        isKnown = False
        if self._zookeeper() is not None:
            try:
                layout = await self._layout.get()
                problems += layout.problems
                foreign = await self._foreign.get()
                isKnown = True
            except PylogbrokerError as error:
                problems.append(f"ZooKeeper: {error}")
        topics: dict[str, list[dict[str, Any]]] = {}
        if picture is not None:
            for each in picture.partitions:
                topics.setdefault(each.topic, []).append(_ownPartition(picture.brokerId, each))
            if len(picture.partitions) < picture.partitionCount:
                problems.append(
                    f"{len(picture.partitions)} of {picture.partitionCount} partitions are shown"
                )
            problems += [
                f"{name} is out of service: {why}" for name, why in picture.failures.items()
            ]
        for (topic, partition), found in sorted(foreign.items(), key=lambda item: item[0]):
            topics.setdefault(topic, []).append(_foreignPartition(partition, found))
        for topic in layout.counts:
            topics.setdefault(topic, [])
        current = {each.topic for each in picture.partitions if each.isCurrent} if picture else ()
        return {
            "timeMs": self._nowMs(),
            "foreignTimeMs": self._foreignMs,
            "kind": KAFKA07,
            "brokers": _brokers(picture, layout, foreign, self._pageTemplate),
            "topics": [
                {
                    "name": name,
                    "kind": KAFKA if name in current else KAFKA07,
                    "partitions": rows,
                    "counts": _topicCounts(picture, name, rows),
                }
                for name, rows in sorted(topics.items())
            ],
            "own": None if picture is None else _ownBroker(picture),
            "cluster": None if self._own is None else self._own.kafka.clusterStatus.map(),
            "hasGroups": self._zookeeper() is not None,
            "hasTasks": self._tasks is not None,
            "isKnown": picture is not None or isKnown,
            "problems": problems[:PROBLEM_COUNT_MAX],
        }

    def _asked(self) -> IZookeeper:
        zookeeper = self._zookeeper()
        if zookeeper is None or not zookeeper.connected:
            raise PylogbrokerError("there is no connection")
        return zookeeper

    async def _readLayout(self) -> _Layout:
        layout = _Layout()
        registries = ClusterMetadataReader(self._asked(), layout.problems.append)
        layout.brokers = await registries.brokers(BROKER_COUNT_MAX)
        topics = await registries.topics()
        if len(topics) > TOPIC_COUNT_MAX:
            layout.problems.append(f"{TOPIC_COUNT_MAX} of {len(topics)} topics are shown")
        layout.counts = await registries.partitionCounts(topics[:TOPIC_COUNT_MAX])
        self._brokers = layout.brokers
        self._addDown(layout)
        return layout

    def _addDown(self, layout: _Layout) -> None:
        """
        Remember the registered brokers, and add those that have disappeared to a layout. ZooKeeper
        drops registration and partitions when a broker ends; the page shows such a broker as down
        for L{DOWN_KEPT_MS}. At most L{BROKER_COUNT_MAX} brokers and L{TOPIC_COUNT_MAX} topics.
        """
        nowMs = self._nowMs()
        for number, registration in layout.brokers.items():
            counts = {
                topic: each[number] for topic, each in layout.counts.items() if number in each
            }
            self._seen[number] = registration, counts, nowMs
        for number, (registration, counts, seenMs) in list(self._seen.items()):
            if number in layout.brokers:
                continue
            if nowMs - seenMs > DOWN_KEPT_MS or len(self._seen) > BROKER_COUNT_MAX:
                del self._seen[number]
                continue
            layout.down[number] = registration
            for topic, count in counts.items():
                if topic in layout.counts or len(layout.counts) < TOPIC_COUNT_MAX:
                    layout.counts.setdefault(topic, {}).setdefault(number, count)

    async def _readForeign(self) -> Foreign:
        layout = await self._layout.get()
        ownId = -1 if self._own is None else self._own.picture().brokerId
        places = [
            PartitionId(topic, BrokerPartition(number, partition))
            for topic, counts in layout.counts.items()
            for number, count in counts.items()
            if number != ownId and (number in layout.brokers or number in layout.down)
            for partition in range(min(count, PARTITIONS_OF_TOPIC_MAX))
        ]
        down = [place for place in places if place.partition.broker in layout.down]
        running = [place for place in places if place.partition.broker in layout.brokers]
        found: Foreign = {**await self._ends.bounds(running[:PARTITION_COUNT_MAX])}
        for place in down[:PARTITION_COUNT_MAX]:
            found[place] = BrokerConnectionError(f"broker {place.partition.broker} is down")
        self._foreignMs = self._nowMs()
        return found

    async def _find(self, number: int) -> BrokerRegistration:
        if number not in self._brokers:
            raise NoBrokersError(
                f"there is no broker {number}, or the console has not read the cluster yet"
            )
        return self._brokers[number]

    # -- messages

    async def messages(
        self, broker: int, topic: str, partition: int, offset: int | None, countMax: int, work: Work
    ) -> dict[str, Any]:
        """
        Messages of a partition, for the page.

        @param offset: of the first; L{None}: the last messages.
        @param work: decodes them.
        @raise PylogbrokerError: the broker is not known, or refuses.
        """
        own = self._own
        if own is not None and own.picture().brokerId == broker and own.kafka.isTopic(topic):
            return await peekRecordsAt(own, topic, partition, offset, countMax, work)
        source = await self.source(broker)
        if offset is None:
            found = await peekLast(source, topic, partition, countMax, work)
        else:
            found = await peek(source, topic, partition, offset, countMax, work)
        return {**found._asdict(), **(await source.bounds(topic, partition))._asdict()}

    async def tasks(self, work: Work) -> dict[str, Any]:
        """
        Jobs and their containers of tasks, for the page; see L{TaskReports.read}. Of a cluster
        without a broker of today's protocol in this process there are none.

        @param work: decodes records.
        """
        if self._tasks is not None:
            return await self._tasks.read(work)
        return {
            "timeMs": self._nowMs(),
            "isKnown": False,
            "isComplete": True,
            "jobs": [],
            "problems": ["a console with --zookeeper knows Kafka 0.7 only, which has no tasks"],
        }

    async def source(self, broker: int) -> ISource:
        """
        The source of a broker's messages of Kafka 0.7.

        @raise NoBrokersError: the broker is not known.
        """
        if self._own is not None and self._own.picture().brokerId == broker:
            return OwnSource(self._own)
        return RemoteSource(await self._ends.consumer(broker))

    # -- groups

    async def groups(self) -> dict[str, Any]:
        """
        Groups, their members, and owner, offset and lag of each partition, for the page: of today's
        Kafka those that the own broker coordinates, of Kafka 0.7 those in ZooKeeper.
        """
        groups: list[dict[str, Any]] = []
        problems: list[str] = []
        if self._own is not None:
            picture = self._own.picture()
            groups += _coordinatedGroups(picture)
            if len(picture.groups) < picture.groupCount:
                problems.append(f"{len(picture.groups)} of {picture.groupCount} groups are shown")
        if self._zookeeper() is not None:
            try:
                found = await self._groups.get()
                bounds = self._bounds(await self._foreign.get())
            except PylogbrokerError as error:
                problems.append(f"ZooKeeper: {error}")
            else:
                groups += [
                    {**_withLags(group, bounds), "kind": KAFKA07} for group in found["groups"]
                ]
                problems += found["problems"]
        return {"groups": groups, "problems": problems}

    def _bounds(self, foreign: Foreign) -> dict[PartitionId, OffsetBounds]:
        """The readable offsets of each partition whose broker has answered."""
        bounds = {
            place: found for place, found in foreign.items() if isinstance(found, OffsetBounds)
        }
        if self._own is not None:
            picture = self._own.picture()
            for each in picture.partitions:
                place = PartitionId(each.topic, BrokerPartition(picture.brokerId, each.partition))
                bounds[place] = OffsetBounds(each.startOffset, each.highWatermark)
        return bounds

    async def _readGroups(self) -> dict[str, Any]:
        problems: list[str] = []
        registries = ClusterMetadataReader(self._asked(), problems.append)
        names = await registries.groups()
        if len(names) > GROUP_COUNT_MAX:
            problems.append(f"{GROUP_COUNT_MAX} of {len(names)} groups are shown")
        groups = []
        for name in names[:GROUP_COUNT_MAX]:
            try:
                groups.append(await _readGroup(registries, name))
            except PylogbrokerError as error:
                problems.append(f"group {name}: {error}")
        return {"groups": groups, "problems": problems[:PROBLEM_COUNT_MAX]}


async def _readGroup(registries: ClusterMetadataReader, name: str) -> dict[str, Any]:
    group = GroupPaths(name)
    members = await registries.children(group.ids)
    owners, offsets = (
        await registries.owners(group, ROW_COUNT_MAX),
        await registries.offsets(group, ROW_COUNT_MAX),
    )
    rows = {
        place: _groupRow(place, owners.get(place, ""), offsets.get(place))
        for place in sorted({*owners, *offsets})[:ROW_COUNT_MAX]
    }
    return {"name": name, "members": members[:ROW_COUNT_MAX], "partitions": rows}


def _groupRow(place: PartitionId, owner: str = "", offset: int | None = None) -> dict[str, Any]:
    return {"topic": place.topic, **place.partition._asdict(), "owner": owner, "offset": offset}


def _withLags(group: dict[str, Any], bounds: dict[PartitionId, OffsetBounds]) -> dict[str, Any]:
    """
    A group with end and lag of each partition of its topics, also of those without a stored offset:
    their lag counts from the start of the log.
    """
    rows: dict[PartitionId, dict[str, Any]] = dict(group["partitions"])
    topics = {place.topic for place in rows}
    for place in bounds:
        if place.topic in topics and place not in rows and len(rows) < ROW_COUNT_MAX:
            rows[place] = _groupRow(place)
    found = []
    for place, row in sorted(rows.items(), key=lambda item: item[0]):
        start, end = bounds.get(place, (None, None))
        position = start if row["offset"] is None else row["offset"]
        lag = None if end is None or position is None else end - position
        found.append({**row, "end": end, "lag": lag})
    # the owner of a partition is a member's id, "-", and a stream's number
    busy = {row["owner"].rpartition("-")[0] for row in found}
    return {
        **group,
        "partitions": found,
        "idleMembers": [member for member in group["members"] if member not in busy],
    }


def coordinatedGroup(
    group: GroupSnapshot,
    bounds: Mapping[tuple[str, int], OffsetBounds],
    leaderOf: Callable[[str, int], int],
) -> dict[str, Any]:
    """
    A group of today's Kafka for the page: its lag counts offsets, and an owner is a member.

    @param bounds: the offsets that can be read, by topic and partition.
    @param leaderOf: called with topic and partition; returns a broker or L{NO_BROKER}.
    """
    owners = {place: each.memberId for each in group.members for place in each.partitions}
    offsets = {(topic, index): offset for topic, index, offset in group.offsets}
    rows = []
    for place in sorted({*owners, *offsets})[:ROW_COUNT_MAX]:
        start, end = bounds.get(place, (None, None))
        position = offsets.get(place, start)
        rows.append(
            {
                "topic": place[0],
                "broker": leaderOf(*place),
                "partition": place[1],
                "owner": owners.get(place, ""),
                "offset": offsets.get(place),
                "end": end,
                "lag": None if end is None or position is None else end - position,
            }
        )
    return {
        "name": group.name,
        "kind": KAFKA,
        "members": [each.memberId for each in group.members],
        "partitions": rows,
        "idleMembers": [each.memberId for each in group.members if not each.partitions],
    }


def _coordinatedGroups(picture: BrokerSnapshot) -> list[dict[str, Any]]:
    """Groups of today's Kafka that the own broker coordinates."""
    bounds = {
        (each.topic, each.partition): OffsetBounds(each.startOffset, each.highWatermark)
        for each in picture.partitions
        if each.isCurrent
    }
    return [
        coordinatedGroup(group, bounds, lambda _topic, _number: picture.brokerId)
        for group in picture.groups
    ]


# -- rows


def _ownPartition(brokerId: int, each: PartitionSnapshot) -> dict[str, Any]:
    return {
        "broker": brokerId,
        "partition": each.partition,
        "start": each.startOffset,
        "visible": each.highWatermark,
        "end": each.logEndOffset,
        "size": each.size,
        "segments": each.segmentCount,
        "unflushed": each.unflushedSize,
        "problem": each.failure,
    }


def _topicCounts(
    picture: BrokerSnapshot | None, topic: str, rows: list[dict[str, Any]]
) -> dict[str, int] | None:
    """
    What the own broker has counted of a topic since its start; L{None}: it has no partition of the
    topic, or does not count it alone.
    """
    if picture is None or all(row["broker"] != picture.brokerId for row in rows):
        return None
    counters = picture.counters
    found: dict[str, int] | None = counters["topics"].get(topic)
    others: dict[str, int] = counters["otherTopics"]
    # a topic has counters from its first traffic on; beyond the limit its traffic is the others'
    if found is None and others["messageCount"] == others["fetchedSize"] == 0:
        return others
    return found


def _foreignPartition(
    partition: BrokerPartition, found: OffsetBounds | PylogbrokerError
) -> dict[str, Any]:
    if isinstance(found, PylogbrokerError):
        return {**partition._asdict(), "problem": describeError(found)}
    start, end = found
    return {
        **partition._asdict(),
        "start": start,
        "visible": end,
        "end": end,
        "size": end - start,
        "problem": "",
    }


def _brokers(
    picture: BrokerSnapshot | None, layout: _Layout, foreign: Foreign, pageTemplate: str
) -> list[dict[str, Any]]:
    problems = {
        partition.broker: describeError(found)
        for (_topic, partition), found in foreign.items()
        if isinstance(found, PylogbrokerError)
    }
    problems |= dict.fromkeys(layout.down, "down: its registration in ZooKeeper has gone")
    rows = {
        number: {
            "id": number,
            "endpoint": where.address,
            "isOwn": False,
            "isRegistered": number in layout.brokers,
            "problem": problems.get(number, ""),
            "page": pageTemplate.replace("{host}", where.host),
        }
        for number, where in {**layout.brokers, **layout.down}.items()
    }
    if picture is not None:
        told = rows.get(picture.brokerId)
        rows[picture.brokerId] = {
            "id": picture.brokerId,
            "endpoint": told["endpoint"] if told else picture.endpoint,
            "isOwn": True,
            "isRegistered": picture.isRegistered,
            "problem": "" if picture.startedMs else "it does not serve",
            "page": "",
        }
    return [rows[number] for number in sorted(rows)]


def _ownBroker(picture: BrokerSnapshot) -> dict[str, Any]:
    counters = picture.counters
    return {
        "id": picture.brokerId,
        "startedMs": picture.startedMs,
        "total": counters["allTopics"],
        "requests": counters["requests"],
        "connections": counters["connections"],
        "flushes": counters["flushes"],
        "unflushed": picture.unflushedSize,
        "unflushedMax": picture.unflushedSizeMax,
        "requestMemory": picture.requestMemorySize,
        "holding": [each._asdict() for each in picture.holding],
        "waiting": [each._asdict() for each in picture.waiting],
        "waitingCounts": dict(picture.waitingCounts),
        "cpuSeconds": picture.cpuSeconds,
        "memory": picture.memorySize,
    }
