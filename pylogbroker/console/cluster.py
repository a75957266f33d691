"""
What the page shows, gathered when it asks: the broker that serves it, and, with ZooKeeper, all others, and the groups.

Nothing is done while nobody looks. Who looks gets what is known if it is young; else one gathering is made for all who ask meanwhile. A gathering that
took long is kept longer, so that looking takes at most a small part of the time of whoever is asked, however large the cluster is; and how much is asked
for at all has limits, which the answer tells of.

Everything that is gathered was written by others, and what cannot be read is told as a problem, beside the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred, DeferredList

from pylogbroker.broker.service import BrokerService
from pylogbroker.cluster import paths
from pylogbroker.cluster.paths import BROKER_IDS, BROKER_TOPICS, CONSUMERS, GroupPaths
from pylogbroker.cluster.znodes import BrokerRegistration, decodeBroker, decodeNumber, decodePartition, decodeText
from pylogbroker.console.sources import ISource, OwnSource, RemoteSource
from pylogbroker.errors import InvalidNameError, NoNodeException, PylogbrokerError
from pylogbroker.interfaces import IZookeeper
from pylogbroker.metrics.picture import BrokerPicture, PartitionPicture

T = TypeVar("T")

BROKER_COUNT_MAX = 100
TOPIC_COUNT_MAX = 500
PARTITION_COUNT_MAX = 2_000
PARTITIONS_OF_TOPIC_MAX = 200
GROUP_COUNT_MAX = 100
ROW_COUNT_MAX = 2_000
PROBLEM_COUNT_MAX = 20
AGE_MS = 800
SHARE = 20
"""What took a time is kept for so many times as long."""


class Fresh(Generic[T]):
    """One value that is gathered when somebody asks and it is old."""

    def __init__(self, clock: Any, gather: Callable[[], Awaitable[T]], ageMs: int = AGE_MS) -> None:
        self._clock = clock
        self._gather = gather
        self._age = ageMs / 1000
        self._value: T | None = None
        self._until = 0.0
        self._waiting: list[Deferred[T]] | None = None

    def get(self) -> Deferred[T]:
        """
        @return: fires with the value; fails as gathering does.
        """
        waiting: Deferred[T] = Deferred()
        if self._value is not None and self._clock.seconds() < self._until:
            waiting.callback(self._value)
        elif self._waiting is not None:
            self._waiting.append(waiting)
        else:
            self._waiting = [waiting]
            begun = self._clock.seconds()
            Deferred.fromCoroutine(self._take()).addBoth(self._over, begun)
        return waiting

    async def _take(self) -> T:
        self._value = await self._gather()
        return self._value

    def _over(self, result: Any, begun: float) -> None:
        now = self._clock.seconds()
        self._until = now + max(self._age, SHARE * (now - begun))
        waiting, self._waiting = self._waiting or [], None
        for each in waiting:
            each.callback(result)  # a Failure is passed on as one


class _Layout:
    """What ZooKeeper says of brokers and topics."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerRegistration] = {}
        self.topics: dict[str, dict[int, int]] = {}
        self.problems: list[str] = []


class ClusterView:
    """
    A cluster, looked at.
    """

    def __init__(self, reactor: Any, own: BrokerService | None, zookeeper: Callable[[], IZookeeper | None]) -> None:
        """
        @param own: the broker in this process, if there is one.
        @param zookeeper: gives the client, if there is one now.
        """
        self._reactor = reactor
        self._own = own
        self._zookeeper = zookeeper
        self._sources: dict[tuple[str, int], RemoteSource] = {}
        self._brokers: dict[int, BrokerRegistration] = {}
        self._layout = Fresh(reactor, self._readLayout, 2_000)
        self._foreign = Fresh(reactor, self._readForeign)
        self._groups = Fresh(reactor, self._readGroups)

    async def close(self) -> None:
        """Close all connections."""
        sources, self._sources = self._sources, {}
        for source in sources.values():
            await source.close()

    # -- brokers and topics

    async def state(self) -> dict[str, Any]:
        """
        Brokers, topics and their partitions, who waits: as the page reads it.
        """
        picture = None if self._own is None else self._own.picture()
        layout, problems = _Layout(), []
        foreign: dict[tuple[str, int, int], tuple[int, int] | str] = {}
        if self._zookeeper() is not None:
            try:
                layout = await self._layout.get()
                problems += layout.problems
                foreign = await self._foreign.get()
            except PylogbrokerError as error:
                problems.append(f"ZooKeeper: {error}")
        topics: dict[str, list[dict[str, Any]]] = {}
        if picture is not None:
            for each in picture.partitions:
                topics.setdefault(each.topic, []).append(_ownPartition(picture.brokerId, each))
            if len(picture.partitions) < picture.partitionCount:
                problems.append(f"{len(picture.partitions)} of {picture.partitionCount} partitions are shown")
            problems += [f"{name} is out of service: {why}" for name, why in picture.failures.items()]
        for (topic, broker, partition), found in sorted(foreign.items()):
            topics.setdefault(topic, []).append(_foreignPartition(broker, partition, found))
        for topic in layout.topics:
            topics.setdefault(topic, [])
        counts = {} if picture is None else picture.counters["topics"]
        return {
            "timeMs": int(self._reactor.seconds() * 1000),
            "brokers": _brokers(picture, layout, foreign),
            "topics": [{"name": name, "partitions": rows, "counts": counts.get(name)} for name, rows in sorted(topics.items())],
            "own": None if picture is None else _ownBroker(picture),
            "hasGroups": self._zookeeper() is not None,
            "problems": problems[:PROBLEM_COUNT_MAX],
        }

    def _asked(self) -> IZookeeper:
        zookeeper = self._zookeeper()
        if zookeeper is None or not zookeeper.connected:
            raise PylogbrokerError("there is no connection")
        return zookeeper

    async def _readLayout(self) -> _Layout:
        zookeeper, layout = self._asked(), _Layout()
        numbers = await _children(zookeeper, BROKER_IDS)
        for number, result in await _all((number, zookeeper.get(f"{BROKER_IDS}/{number}")) for number in numbers[:BROKER_COUNT_MAX] if number.isdigit()):
            try:
                layout.brokers[int(number)] = decodeBroker(paths.brokerId(int(number)), _value(result)[0])
            except PylogbrokerError as error:
                layout.problems.append(str(error))
        topics = await _children(zookeeper, BROKER_TOPICS)
        if len(topics) > TOPIC_COUNT_MAX:
            layout.problems.append(f"{TOPIC_COUNT_MAX} of {len(topics)} topics are shown")
        found = await _all((topic, _children(zookeeper, f"{BROKER_TOPICS}/{topic}")) for topic in topics[:TOPIC_COUNT_MAX])
        counts = []
        for topic, children in found:
            layout.topics[topic] = {}
            counts += [((topic, int(child)), zookeeper.get(f"{BROKER_TOPICS}/{topic}/{child}")) for child in _value(children) if child.isdigit()]
        for (topic, number), result in await _all(counts):
            try:
                layout.topics[topic][number] = decodeNumber(paths.topicBroker(topic, number), _value(result)[0])
            except (PylogbrokerError, InvalidNameError) as error:
                layout.problems.append(str(error))
        self._brokers = layout.brokers
        return layout

    async def _readForeign(self) -> dict[tuple[str, int, int], tuple[int, int] | str]:
        """Bounds of all partitions on other brokers, or why they are not known."""
        layout = await self._layout.get()
        ownId = -1 if self._own is None else self._own.picture().brokerId
        wanted: list[tuple[tuple[str, int, int], Deferred[Any]]] = []
        for topic, brokers in layout.topics.items():
            for number, count in brokers.items():
                if number == ownId or number not in layout.brokers:
                    continue
                source = self._remote(layout.brokers[number])
                for partition in range(min(count, PARTITIONS_OF_TOPIC_MAX, PARTITION_COUNT_MAX - len(wanted))):
                    wanted.append(((topic, number, partition), source.bounds(topic, partition)))
        return {key: result if isinstance(result, tuple) else str(result) for key, result in await _all(wanted)}

    def _remote(self, where: BrokerRegistration) -> RemoteSource:
        key = where.host, where.port
        if key not in self._sources:
            self._sources[key] = RemoteSource(self._reactor, *key)
        return self._sources[key]

    # -- messages

    def source(self, broker: int) -> ISource | None:
        """Where to read what a broker has; L{None}: nobody knows it."""
        if self._own is not None and self._own.picture().brokerId == broker:
            return OwnSource(self._own)
        where = self._brokers.get(broker)
        return None if where is None else self._remote(where)

    # -- groups

    async def groups(self) -> dict[str, Any]:
        """Groups, their members, and for each partition who owns it, its offset and its lag: as the page reads it."""
        if self._zookeeper() is None:
            return {"groups": [], "problems": []}
        try:
            found = await self._groups.get()
        except PylogbrokerError as error:
            return {"groups": [], "problems": [f"ZooKeeper: {error}"]}
        ends = self._ends(await self._foreign.get())
        for group in found["groups"]:
            for row in group["partitions"]:
                end = ends.get((row["topic"], row["broker"], row["partition"]))
                row["end"] = end
                row["lag"] = None if end is None or row["offset"] is None else end - row["offset"]
        return found

    def _ends(self, foreign: dict[tuple[str, int, int], tuple[int, int] | str]) -> dict[tuple[str, int, int], int]:
        """Where each partition that is known ends, for readers."""
        ends = {key: found[1] for key, found in foreign.items() if isinstance(found, tuple)}
        if self._own is not None:
            picture = self._own.picture()
            ends.update({(each.topic, picture.brokerId, each.partition): each.visibleOffset for each in picture.partitions})
        return ends

    async def _readGroups(self) -> dict[str, Any]:
        zookeeper = self._asked()
        names = await _children(zookeeper, CONSUMERS)
        problems: list[str] = []
        if len(names) > GROUP_COUNT_MAX:
            problems.append(f"{GROUP_COUNT_MAX} of {len(names)} groups are shown")
        groups = []
        for name in names[:GROUP_COUNT_MAX]:
            try:
                groups.append(await self._readGroup(zookeeper, name))
            except PylogbrokerError as error:
                problems.append(f"group {name}: {error}")
        return {"groups": groups, "problems": problems[:PROBLEM_COUNT_MAX]}

    async def _readGroup(self, zookeeper: IZookeeper, name: str) -> dict[str, Any]:
        group = GroupPaths(name)
        members, offsetTopics, ownerTopics = [
            _value(result) for _key, result in await _all((path, _children(zookeeper, path)) for path in (group.ids, group.offsets, group.owners))
        ]
        rows: dict[tuple[str, int, int], dict[str, Any]] = {}
        for kind, root, topics in (("offset", group.offsets, offsetTopics), ("owner", group.owners, ownerTopics)):
            found = await _all((topic, _children(zookeeper, f"{root}/{topic}")) for topic in topics[:TOPIC_COUNT_MAX])
            wanted = [((topic, child), zookeeper.get(f"{root}/{topic}/{child}")) for topic, children in found for child in _value(children)[:ROW_COUNT_MAX]]
            for (topic, child), result in await _all(wanted[:ROW_COUNT_MAX]):
                path = f"{root}/{topic}/{child}"
                try:
                    where = decodePartition(path, child)
                    data = _value(result)[0]
                    value: Any = decodeNumber(path, data) if kind == "offset" else decodeText(path, data)
                except PylogbrokerError:
                    continue
                row = rows.setdefault((topic, *where), {"topic": topic, "broker": where.broker, "partition": where.partition, "owner": "", "offset": None})
                row[kind] = value
        return {"name": name, "members": members[:ROW_COUNT_MAX], "partitions": [rows[key] for key in sorted(rows)[:ROW_COUNT_MAX]]}


# -- rows


def _ownPartition(brokerId: int, each: PartitionPicture) -> dict[str, Any]:
    return {
        "broker": brokerId,
        "partition": each.partition,
        "start": each.startOffset,
        "visible": each.visibleOffset,
        "end": each.endOffset,
        "size": each.size,
        "segments": each.segmentCount,
        "unflushed": each.unflushedSize,
        "problem": each.failure,
    }


def _foreignPartition(broker: int, partition: int, found: tuple[int, int] | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"broker": broker, "partition": partition, "problem": found}
    start, end = found
    return {"broker": broker, "partition": partition, "start": start, "visible": end, "end": end, "size": end - start, "problem": ""}


def _brokers(picture: BrokerPicture | None, layout: _Layout, foreign: dict[tuple[str, int, int], tuple[int, int] | str]) -> list[dict[str, Any]]:
    problems = {broker: found for (_topic, broker, _partition), found in foreign.items() if isinstance(found, str)}
    rows = {
        number: {"id": number, "endpoint": f"{where.host}:{where.port}", "isOwn": False, "isRegistered": True, "problem": problems.get(number, "")}
        for number, where in layout.brokers.items()
    }
    if picture is not None:
        told = rows.get(picture.brokerId)
        rows[picture.brokerId] = {
            "id": picture.brokerId,
            "endpoint": told["endpoint"] if told else picture.endpoint,
            "isOwn": True,
            "isRegistered": picture.isRegistered,
            "problem": "" if picture.startedMs else "it does not serve",
        }
    return [rows[number] for number in sorted(rows)]


def _ownBroker(picture: BrokerPicture) -> dict[str, Any]:
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


# -- ZooKeeper, all at once


async def _all(wanted: Iterable[tuple[Any, Deferred[Any]]]) -> list[tuple[Any, Any]]:
    """Wait for all; what failed gives the exception as its result."""
    pairs = list(wanted)
    results: list[tuple[bool, Any]] = await DeferredList([waiting for _key, waiting in pairs], consumeErrors=True)
    return [(key, result if isGood else result.value) for (key, _waiting), (isGood, result) in zip(pairs, results, strict=True)]


def _value(result: Any) -> Any:
    if isinstance(result, BaseException):
        raise result
    return result


def _children(zookeeper: IZookeeper, path: str) -> Deferred[list[str]]:
    """Names, or none where there is no such node."""

    def missing(failure: Any) -> list[str]:
        failure.trap(NoNodeException)
        return []

    asked: Deferred[list[str]] = zookeeper.get_children(path)
    return asked.addErrback(missing)
