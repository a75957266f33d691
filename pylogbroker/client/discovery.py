"""
The brokers and partitions of a cluster: from a list, or from ZooKeeper and kept up to date.

L{StaticDiscovery} serves C{broker.list}. L{ZookeeperDiscovery} follows the nodes in ZooKeeper
(spec-0.7 zookeeper §3). What must be true of it:

  - Each path is read and watched by itself, and read again when its watch fires. Garbage in one
  node, or a failed read, affects no other path.
  - Users do not notice sessions. A watch that ends with its session is set again; the new reading
  replaces the old.
  - Each broker that appears, vanishes or moves is reported to listeners once, whether a watch or
  C{refresh} saw it (gotchas 38, 39). Unlike 0.7, it watches the values of broker nodes, to see a
  move.

Partitions are merged as in 0.7: a broker keeps the largest count ever read, until it leaves. A
count stands for a set, since a broker numbers its partitions from 0. The count of a dead broker is
remembered, but not shown. (0.7 forgets it when it sees the topic before the broker.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.clustermetadata import ClusterMetadataReader
from pylogbroker.cluster.metadata import GetChildren, GetData
from pylogbroker.cluster.paths import BROKER_IDS, BROKER_TOPICS, brokerId, topic, topicBroker
from pylogbroker.cluster.znodes import (
    BrokerRegistration,
    decodeBroker,
    decodeBrokerNumber,
    decodeCount,
    decodeTopic,
)
from pylogbroker.errors import (
    ClosingException,
    ConnectionLossException,
    NoBrokersError,
    NoNodeException,
    PylogbrokerError,
    SessionExpiredException,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import gatherAll, gatherSettled
from pylogbroker.retry import READ_DELAYS, Backoff
from pylogbroker.types import RANDOM_PARTITION, BrokerPartition
from pylogbroker.zookeeper.ephemeral import createPersistent

_IDS = GetChildren(BROKER_IDS, decodeBrokerNumber)
_TOPICS = GetChildren(BROKER_TOPICS, decodeTopic)

log = Logger()


class BrokerNode(NamedTuple):
    """
    The address of a broker.

    @ivar endpoint: for L{pylogbroker.client.brokerclientpool.BrokerClientPool}.
    """

    brokerId: int
    host: str
    port: int

    @property
    def endpoint(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Listener = Callable[[int, BrokerNode | None], None]
"""Called with a broker's number and its address; L{None} when it is gone."""


class IDiscovery(Protocol):
    """
    The brokers and partitions of a cluster.

    @ivar isStatic: whether brokers choose the partitions themselves, and keys have no effect.
    @ivar version: changes when C{brokers} or a topic's partitions may have changed.
    """

    isStatic: bool

    @property
    def version(self) -> int: ...

    @property
    def brokers(self) -> Mapping[int, BrokerNode]:
        """The live brokers. Not to be changed."""
        ...

    def start(self) -> Deferred[None]:
        """Fires when C{brokers} and C{partitions} are valid."""
        ...

    def stop(self) -> None:
        """Leave no watch and no timer."""
        ...

    def partitions(self, name: str) -> list[BrokerPartition]:
        """
        A topic's partitions on live brokers, sorted; empty when C{lookUp} is needed. Not to be
        changed.
        """
        ...

    def lookUp(self, name: str) -> Deferred[list[BrokerPartition]]:
        """C{partitions}, read anew if need be; fails with L{NoBrokersError}."""
        ...

    def refresh(self) -> Deferred[None]: ...

    def listen(self, listener: Listener) -> Callable[[], None]:
        """
        Report brokers that appear, move or vanish. Returns a function that removes the listener.
        """
        ...


class StaticDiscovery:
    """
    The brokers of C{broker.list}: each takes every topic and chooses the partition (spec-0.7
    producer §2).
    """

    isStatic = True
    version = 0

    def __init__(self, addresses: Iterable[tuple[int, str, int]]) -> None:
        """@param addresses: as of L{pylogbroker.config.propertytypes.BrokerAddress}."""
        self.brokers: Mapping[int, BrokerNode] = {
            number: BrokerNode(number, host, port) for number, host, port in addresses
        }
        self._partitions = [
            BrokerPartition(number, RANDOM_PARTITION) for number in sorted(self.brokers)
        ]

    def start(self) -> Deferred[None]:
        return succeed(None)

    def stop(self) -> None:
        pass

    def partitions(self, name: str) -> list[BrokerPartition]:
        return self._partitions

    def lookUp(self, name: str) -> Deferred[list[BrokerPartition]]:
        return succeed(self._partitions)

    def refresh(self) -> Deferred[None]:
        return succeed(None)

    def listen(self, listener: Listener) -> Callable[[], None]:
        return lambda: None


Begin = Callable[[], "tuple[Deferred[Any], Deferred[Any]]"]
Apply = Callable[[Any, bool], Awaitable[None]]
"""
Called with what was read, and whether it replaces all that was known (a new session) or is merged.
"""


class _WatchedPath:
    """
    A path that is read again whenever its watch fires.

    @ivar first: fires after the first reading. A failure then ends the watch.
    """

    def __init__(
        self,
        clock: Any,
        path: str,
        begin: Begin,
        apply: Apply,
        over: Callable[[_WatchedPath], None],
        backoff: Backoff,
    ) -> None:
        """
        @param begin: reads and watches: returns a Deferred of the value, and the watch.
        @param over: called when the watch ends, unless it was stopped.
        """
        self.path = path
        self.first: Deferred[None] = Deferred()
        self._clock = clock
        self._begin = begin
        self._apply = apply
        self._over = over
        self._backoff = backoff
        self._isStopped = False
        self._running: Deferred[None] | None = None

    def begin(self) -> None:
        self._running = Deferred.fromCoroutine(self._follow())
        self._running.addBoth(self._ended)

    def stop(self) -> None:
        self._isStopped = True
        if self._running is not None:
            self._running.cancel()

    def _ended(self, result: Any) -> None:
        if isinstance(result, Failure) and not result.check(CancelledError):
            if self.first.called:
                log.failure("Following {path} has ended", failure=result, path=self.path)
            else:
                self._fail(result)
        elif not self.first.called:
            self._fail(Failure(NoNodeException(f"{self.path}: there is no such node")))
        if not self._isStopped:
            self._over(self)

    def _fail(self, failure: Failure) -> None:
        self.first.addErrback(lambda _failure: None if self._isStopped else _failure)
        self.first.errback(failure)

    async def _follow(self) -> None:
        isAnew = False
        while True:
            result, watch = self._begin()
            isWatching = False
            try:
                await self._apply(await result, isAnew)
                isAnew = False
                self._backoff.succeeded()
                if not self.first.called:
                    self.first.callback(None)
                isWatching = True
                await watch
                continue
            except (NoNodeException, ClosingException):
                return
            except SessionExpiredException:
                isAnew = True
                if not self.first.called:
                    raise
                continue
            except ZookeeperError as error:
                if not self.first.called:
                    raise
                log.warn(
                    "Reading {path} failed, trying again: {error}",
                    path=self.path,
                    error=error,
                )
            finally:
                if not isWatching:
                    watch.addErrback(lambda _failure: None)
                    watch.cancel()
            await deferLater(self._clock, self._backoff.failed() / 1000)


async def connectDiscovery(
    clock: Any,
    zookeeper: IZookeeper,
    connectTimeoutMs: int,
    *,
    readRetryCount: int = 3,
    random: Callable[[], float] = lambda: 0.5,
) -> ZookeeperDiscovery:
    """
    Connect a client and start a L{ZookeeperDiscovery}.

    @param zookeeper: not connected; closed again after a failure.
    @raise ZookeeperError: no connection came about, or a read failed.
    """
    try:
        await zookeeper.connect(connectTimeoutMs)
        discovery = ZookeeperDiscovery(
            clock, zookeeper, readRetryCount=readRetryCount, random=random
        )
        await discovery.start()
    except BaseException:
        await zookeeper.close()
        raise
    return discovery


class ZookeeperDiscovery:
    """The brokers and partitions in ZooKeeper, kept up to date."""

    isStatic = False

    def __init__(
        self,
        clock: Any,
        zookeeper: IZookeeper,
        *,
        readRetryCount: int = 3,
        random: Callable[[], float] = lambda: 0.5,
    ) -> None:
        """
        @param zookeeper: connected; its owner closes it, after C{stop}.
        @param readRetryCount: further readings by C{lookUp} (C{zk.read.num.retries}).
        """
        self.version = 0
        self.brokers: dict[int, BrokerNode] = {}
        self._clock = clock
        self._zookeeper = zookeeper
        self._readRetryCount = readRetryCount
        self._random = random
        self._listeners: list[Listener] = []
        self._followed: dict[str, _WatchedPath] = {}
        self._registered: dict[str, dict[int, int]] = {}  # topic -> broker -> count, as last read
        self._known: dict[str, dict[int, int]] = {}  # the same, merged
        self._lists: dict[str, list[BrokerPartition]] = {}  # computed by C{partitions}
        self._reader = ClusterMetadataReader(
            zookeeper, lambda text: log.warn("Ignored in ZooKeeper: {text}", text=text)
        )
        self._isStopped = False

    # -- start and stop

    def start(self) -> Deferred[None]:
        """@return: fails with L{ZookeeperError}; nothing is watched then."""
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        try:
            for path in (BROKER_IDS, BROKER_TOPICS):
                await createPersistent(self._zookeeper, path)
            await self._follow(_IDS, self._applyIds)
            await self._follow(_TOPICS, self._applyTopics)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop watching. The last state stays."""
        self._isStopped = True
        followed, self._followed = self._followed, {}
        for each in followed.values():
            each.stop()

    def _follow(self, node: GetChildren[Any] | GetData[Any], apply: Apply) -> Deferred[None]:
        path = node.path
        if path in self._followed or self._isStopped:
            return succeed(None)
        zookeeper, warnings = self._zookeeper, self._reader.warnings

        def begin() -> tuple[Deferred[Any], Deferred[Any]]:
            if isinstance(node, GetChildren):
                reading, watch = zookeeper.get_children_and_watch(path)
                return reading.addCallback(node.decoded, warnings), watch
            reading, watch = zookeeper.get_and_watch(path)
            return reading.addCallback(lambda found: node.decoded(found[0], warnings)), watch

        followed = self._followed[path] = _WatchedPath(
            self._clock, path, begin, apply, self._notFollowed, Backoff(self._random, READ_DELAYS)
        )
        followed.begin()
        return followed.first

    def _notFollowed(self, followed: _WatchedPath) -> None:
        if self._followed.get(followed.path) is followed:
            del self._followed[followed.path]

    async def _gatherPresent(self, readings: list[Deferred[None]]) -> None:
        for outcome in await gatherSettled(readings):
            if isinstance(outcome, Failure) and not outcome.check(NoNodeException):
                outcome.raiseException()

    # -- brokers

    async def _applyIds(self, numbers: list[int], isAnew: bool) -> None:
        for number in set(self.brokers) - set(numbers):
            self._setBroker(number, None)
        await self._gatherPresent([self._followBroker(number) for number in numbers])

    def _followBroker(self, number: int) -> Deferred[None]:
        async def apply(found: BrokerRegistration | None, isAnew: bool) -> None:
            self._setBroker(number, found)

        return self._follow(GetData(brokerId(number), decodeBroker), apply)

    def _setBroker(self, number: int, found: BrokerRegistration | None) -> None:
        broker = None if found is None else BrokerNode(number, found.host, found.port)
        if self.brokers.get(number) == broker:
            return
        self.version += 1
        self._lists.clear()
        if broker is None:
            del self.brokers[number]
            for counts in self._known.values():
                counts.pop(number, None)
            log.info("Broker {number} is gone", number=number)
        else:
            self.brokers[number] = broker
            for name, counts in self._registered.items():
                if number in counts:
                    self._merge(name, {number: counts[number]})
            log.info("Broker {number} is at {endpoint}", number=number, endpoint=broker.endpoint)
        for listener in list(self._listeners):
            listener(number, broker)

    def listen(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    # -- topics

    async def _applyTopics(self, names: list[str], isAnew: bool) -> None:
        await self._gatherPresent([self._followTopic(name) for name in names])

    def _followTopic(self, name: str) -> Deferred[None]:
        async def apply(numbers: list[int], isAnew: bool) -> None:
            await self._readCounts(name, numbers, isAnew)

        return self._follow(GetChildren(topic(name), decodeBrokerNumber), apply)

    async def _readCounts(self, name: str, numbers: list[int], isAnew: bool) -> None:
        found = await gatherAll(
            [self._reader.value(topicBroker(name, number), decodeCount) for number in numbers]
        )
        counts = {number: count for number, count in zip(numbers, found, strict=True) if count}
        self._registered[name] = counts
        if isAnew:
            self._known[name] = {}
        self._merge(name, counts)

    def _merge(self, name: str, counts: Mapping[int, int]) -> None:
        self.version += 1
        known = self._known.setdefault(name, {})
        for number, count in counts.items():
            if number in self.brokers:
                known[number] = max(count, known.get(number, 0))
        self._lists.pop(name, None)

    # -- reading

    def partitions(self, name: str) -> list[BrokerPartition]:
        found = self._lists.get(name)
        if found is None:
            known = self._known.get(name)
            if not known:
                return []
            found = [
                BrokerPartition(number, partition)
                for number, count in sorted(known.items())
                for partition in range(count)
            ]
            self._lists[name] = found
        return found

    def lookUp(self, name: str) -> Deferred[list[BrokerPartition]]:
        """
        The partitions of a topic. A topic without a broker gets partition 0 of every broker, which
        is remembered.

        A reading whose connection is lost counts as one that found no broker; the next is answered
        when the connection is back. A reading that times out is the last.

        @return: fails with L{NoBrokersError} when there is no broker after C{readRetryCount}
            further readings of everything, each after a longer delay; with L{ZookeeperError}.
        """
        return Deferred.fromCoroutine(self._lookUp(name))

    async def _lookUp(self, name: str) -> list[BrokerPartition]:
        backoff = Backoff(self._random, READ_DELAYS)
        retriesLeft = self._readRetryCount
        read = self._readIds
        while not (found := self.partitions(name)):
            error = await self._readFor(name, read)
            if error is not None:
                if not retriesLeft:
                    raise error
                retriesLeft -= 1
                await deferLater(self._clock, backoff.failed() / 1000)
                read = self._refresh
        return found

    async def _readFor(
        self, name: str, read: Callable[[], Awaitable[None]]
    ) -> PylogbrokerError | None:
        try:
            await read()
        except ZookeeperTimeoutException:
            raise
        except (ConnectionLossException, SessionExpiredException) as error:
            return error
        if not self.brokers:
            return NoBrokersError(f"there is no broker for topic {name}")
        if not self.partitions(name):
            self._merge(name, dict.fromkeys(self.brokers, 1))
        return None

    async def _readIds(self) -> None:
        await self._applyIds(await self._reader.node(_IDS), False)

    def refresh(self) -> Deferred[None]:
        """@return: fails with L{ZookeeperError}."""
        return Deferred.fromCoroutine(self._refresh())

    async def _refresh(self) -> None:
        await self._readIds()
        for number in list(self.brokers):
            self._setBroker(number, await self._reader.value(brokerId(number), decodeBroker))
        await self._applyTopics(await self._reader.node(_TOPICS), False)
        for name in list(self._registered):
            numbers = await self._reader.node(GetChildren(topic(name), decodeBrokerNumber))
            if numbers:
                await self._readCounts(name, numbers, False)
