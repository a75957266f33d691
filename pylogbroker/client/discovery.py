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
from pylogbroker.net.deferreds import asDeferred, gatherAll, gatherSettled
from pylogbroker.retry import READ_DELAYS, Backoff
from pylogbroker.types import RANDOM_PARTITION, BrokerPartition
from pylogbroker.zookeeper.ephemeral import createPersistent

_IDS = GetChildren(BROKER_IDS, decodeBrokerNumber)
_TOPICS = GetChildren(BROKER_TOPICS, decodeTopic)

log = Logger()


class BrokerNode(NamedTuple):
    """
    The address of a broker.

    @ivar address: for L{pylogbroker.client.brokerclient.BrokerClientPool}.
    """

    brokerId: int
    host: str
    port: int

    @property
    def address(self) -> str:
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


Apply = Callable[[Any, bool], Awaitable[None]]
"""
Called with what was read, and whether it replaces all that was known (a new session) or is merged.
"""


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
        @param zookeeper: its owner closes it, after C{stop}.
        @param readRetryCount: further readings by C{lookUp} (C{zk.read.num.retries}).
        """
        self.version = 0
        self.brokers: dict[int, BrokerNode] = {}
        self._clock = clock
        self._zookeeper = zookeeper
        self._readRetryCount = readRetryCount
        self._random = random
        self._listeners: list[Listener] = []
        self._followed: dict[str, Deferred[None]] = {}
        self._registered: dict[str, dict[int, int]] = {}  # topic -> broker -> count, as last read
        self._known: dict[str, dict[int, int]] = {}  # the same, merged
        self._lists: dict[str, list[BrokerPartition]] = {}  # computed by C{partitions}
        self._reader = ClusterMetadataReader(
            zookeeper, lambda text: log.warn("Ignored in ZooKeeper: {text}", text=text)
        )
        self._isStopped = False

    # -- start and stop

    async def connect(self, timeoutMs: int) -> None:
        """
        Connect the client and start. A failure closes the client.

        @raise ZookeeperError: no connection came about, or a read failed.
        """
        try:
            await self._zookeeper.connect(timeoutMs)
            await self.start()
        except Exception:
            await self._zookeeper.close()
            raise

    @asDeferred
    async def start(self) -> None:
        """
        @return: fires when C{brokers} and C{partitions} are valid. The client must be connected.
            Fails with L{ZookeeperError}; nothing is watched then.
        """
        try:
            for path in (BROKER_IDS, BROKER_TOPICS):
                await createPersistent(self._zookeeper, path)
            await self._follow(_IDS, self._applyIds)
            await self._follow(_TOPICS, self._applyTopics)
        except Exception:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop watching. The last state stays."""
        self._isStopped = True
        followed, self._followed = self._followed, {}
        for each in followed.values():
            each.cancel()

    def _follow(self, node: GetChildren[Any] | GetData[Any], apply: Apply) -> Deferred[None]:
        """
        Read a node, and again whenever its watch fires.

        @return: fires after the first reading. A failure of that one ends the watch.
        """
        if node.path in self._followed or self._isStopped:
            return succeed(None)
        first: Deferred[None] = Deferred()
        running = Deferred.fromCoroutine(self._readAndWatch(node, apply, first))
        self._followed[node.path] = running
        running.addBoth(self._notFollowed, node.path, first)
        return first

    async def _readAndWatch(
        self, node: GetChildren[Any] | GetData[Any], apply: Apply, first: Deferred[None]
    ) -> None:
        backoff = Backoff(self._random, READ_DELAYS)
        isAnew = False
        while True:
            if isinstance(node, GetChildren):
                reading, watch = self._zookeeper.get_children_and_watch(node.path)
            else:
                found, watch = self._zookeeper.get_and_watch(node.path)
                reading = found.addCallback(lambda dataAndStat: dataAndStat[0])
            isRead = False
            try:
                await apply(node.decoded(await reading, self._reader.warnings), isAnew)
                isAnew = False
                backoff.succeeded()
                if not first.called:
                    first.callback(None)
                isRead = True
                await watch
                continue
            except (NoNodeException, ClosingException):
                return
            except ZookeeperError as error:
                if not first.called:
                    raise
                if isinstance(error, SessionExpiredException):
                    isAnew = True
                    continue
                log.warn(
                    "Reading {path} failed, trying again: {error}", path=node.path, error=error
                )
            finally:
                if not isRead:
                    watch.addErrback(lambda _failure: None)
                    watch.cancel()
            await deferLater(self._clock, backoff.failed() / 1000)

    def _notFollowed(self, result: Any, path: str, first: Deferred[None]) -> None:
        self._followed.pop(path, None)
        hasFailed = isinstance(result, Failure) and not result.check(CancelledError)
        failure = result if hasFailed else None
        if not first.called:
            missing = Failure(NoNodeException(f"{path}: there is no such node"))
            first.callback(None if self._isStopped else failure or missing)
        elif failure is not None:
            log.failure("Following {path} has ended", failure=failure, path=path)

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
            log.info("Broker {number} is at {address}", number=number, address=broker.address)
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

    @asDeferred
    async def lookUp(self, name: str) -> list[BrokerPartition]:
        """
        The partitions of a topic. A topic without a broker gets partition 0 of every broker, which
        is remembered.

        A reading whose connection is lost counts as one that found no broker; the next is answered
        when the connection is back. A reading that times out is the last.

        @return: fails with L{NoBrokersError} when there is no broker after C{readRetryCount}
            further readings of everything, each after a longer delay; with L{ZookeeperError}.
        """
        backoff = Backoff(self._random, READ_DELAYS)
        retriesLeft = self._readRetryCount
        read: Callable[[], Awaitable[None]] = self._readIds
        while not (found := self.partitions(name)):
            error: PylogbrokerError = NoBrokersError(f"there is no broker for topic {name}")
            try:
                await read()
            except ZookeeperTimeoutException:
                raise
            except (ConnectionLossException, SessionExpiredException) as loss:
                error = loss
            else:
                if self.brokers:
                    if not self.partitions(name):
                        self._merge(name, dict.fromkeys(self.brokers, 1))
                    continue
            if not retriesLeft:
                raise error
            retriesLeft -= 1
            await deferLater(self._clock, backoff.failed() / 1000)
            read = self.refresh
        return found

    async def _readIds(self) -> None:
        await self._applyIds(await self._reader.node(_IDS), False)

    @asDeferred
    async def refresh(self) -> None:
        """@return: fails with L{ZookeeperError}."""
        await self._readIds()
        for number in list(self.brokers):
            self._setBroker(number, await self._reader.value(brokerId(number), decodeBroker))
        await self._applyTopics(await self._reader.node(_TOPICS), False)
        for name in list(self._registered):
            numbers = await self._reader.node(GetChildren(topic(name), decodeBrokerNumber))
            if numbers:
                await self._readCounts(name, numbers, False)
