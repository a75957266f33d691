"""
Who is there: the brokers of a cluster and the partitions of a topic, by list or by watch.

L{StaticDiscovery} knows what C{broker.list} says. L{ZookeeperDiscovery} keeps up with the registries (spec-0.7 zookeeper §3). What must be true of it:

  - Every path is followed by itself: it is read and watched, and read again whenever its watch fires. So garbage in one znode, or
    a failure of one read, holds nobody else up; it costs a line in the log.
  - Sessions come and go without being noticed above. A watch that fails with its session is set again, and what is read then stands in
    place of what was known.
  - A broker that appears, vanishes or moves is told to who listens, each once, whether it was seen by a watch or by C{refresh} (gotchas 38, 39).
    To see a move, the brokers' values are watched, too, which 0.7 does not do.

Partitions are merged as 0.7 merges them: a topic's brokers are known with as many partitions as were ever read, until they leave. Since a broker
numbers its partitions from 0, a count is a set. Of brokers that are not alive a count is remembered and not shown; 0.7 forgets a topic's registration
when it is seen before its broker's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.znodewarnings import ZnodeWarnings
from pylogbroker.cluster.paths import BROKER_IDS, BROKER_TOPICS, brokerId, topic, topicBroker
from pylogbroker.cluster.znodes import brokerNumbers, decodeBroker, decodeCount
from pylogbroker.errors import (
    ClosingException,
    ConnectionLossException,
    InvalidNameError,
    NoBrokersError,
    NoNodeException,
    PylogbrokerError,
    SessionExpiredException,
    ZnodeError,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import IZookeeper
from pylogbroker.net.deferreds import gatherSettled
from pylogbroker.retry import READ_DELAYS, Backoff
from pylogbroker.types import RANDOM_PARTITION, BrokerPartition
from pylogbroker.zookeeper.ephemeral import createPersistent

log = Logger()


class BrokerNode(NamedTuple):
    """
    Where a broker is.

    @ivar endpoint: for L{pylogbroker.client.connectionpool.ConnectionPool}.
    """

    brokerId: int
    host: str
    port: int

    @property
    def endpoint(self) -> str:
        """C{host:port}."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Listener = Callable[[int, BrokerNode | None], None]
"""Called with a broker's number and where it is now; L{None} when it is gone."""


class IDiscovery(Protocol):
    """
    Who is there.

    @ivar isStatic: whether partitions are left to the brokers, and keys mean nothing.
    """

    isStatic: bool

    @property
    def brokers(self) -> Mapping[int, BrokerNode]:
        """Those that are alive, as far as is known. Not to be changed."""
        ...

    def start(self) -> Deferred[None]:
        """Fires when C{brokers} and C{partitions} can be relied upon."""
        ...

    def stop(self) -> None:
        """No watch is left, no timer runs."""
        ...

    def partitions(self, name: str) -> list[BrokerPartition]:
        """A topic's partitions on brokers that are alive, sorted by broker and number; empty: ask C{lookUp}. Not to be changed."""
        ...

    def lookUp(self, name: str) -> Deferred[list[BrokerPartition]]:
        """The same, with every effort; fails with L{NoBrokersError}."""
        ...

    def refresh(self) -> Deferred[None]:
        """Read everything anew."""
        ...

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Be told of brokers that appear, move or vanish. Returns what ends it."""
        ...


class StaticDiscovery:
    """
    What C{broker.list} says: each broker is good for every topic, and picks the partition itself (spec-0.7 producer §2).
    """

    isStatic = True

    def __init__(self, addresses: Iterable[tuple[int, str, int]]) -> None:
        """
        @param addresses: (number, host, port) of each; a L{pylogbroker.config.producersettings.BrokerAddress} is one.
        """
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


Initialize = Callable[[], "tuple[Deferred[Any], Deferred[Any]]"]
Apply = Callable[[Any, bool], Awaitable[None]]
"""Called with what was read, and whether it stands in place of all that was known (a new session), and is not to be merged."""


class _WatchedPath:
    """
    One path that is read and watched, again and again.

    @ivar first: fires when it was read for the first time. Fails when that failed: then it is not followed any further.
    """

    def __init__(
        self,
        clock: IReactorTime,
        path: str,
        begin: Initialize,
        apply: Apply,
        over: Callable[[_WatchedPath], None],
        backoff: Backoff,
    ) -> None:
        """
        @param over: called when it is not followed any more, unless it was stopped.
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
        """Read."""
        self._running = Deferred.fromCoroutine(self._follow())
        self._running.addBoth(self._ended)

    def stop(self) -> None:
        """Forget the path."""
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
                    "Reading {path} failed, it will be tried again: {error}",
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
    Connect a client, and find out who is there.

    @param zookeeper: not connected; closed again when this fails.
    @return: started. The rest is as of L{ZookeeperDiscovery}.
    @raise ZookeeperError: it is not there, or cannot be read.
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
    """
    What the registries in ZooKeeper say, kept up to date.
    """

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
        @param clock: for waiting before a failed read is tried again.
        @param zookeeper: connected; who made it closes it, after C{stop}.
        @param readRetryCount: how often C{lookUp} has everything read anew (C{zk.read.num.retries}).
        @param random: numbers from 0 up to, not including, 1, for jitter.
        """
        self.brokers: dict[int, BrokerNode] = {}
        self._clock = clock
        self._zookeeper = zookeeper
        self._readRetryCount = readRetryCount
        self._random = random
        self._listeners: list[Listener] = []
        self._followed: dict[str, _WatchedPath] = {}
        self._registered: dict[str, dict[int, int]] = {}  # topic -> broker -> count, as read last
        self._known: dict[str, dict[int, int]] = {}  # the same, merged
        self._lists: dict[str, list[BrokerPartition]] = {}  # what C{partitions} has computed
        self._complaints = ZnodeWarnings()
        self._isStopped = False

    # -- the life of it

    def start(self) -> Deferred[None]:
        """
        Read everything, and watch it.

        @return: fails with L{ZookeeperError}; nothing is watched then.
        """
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        zookeeper = self._zookeeper
        try:
            for path in (BROKER_IDS, BROKER_TOPICS):
                await createPersistent(zookeeper, path)
            await self._follow(
                BROKER_IDS, lambda: zookeeper.get_children_and_watch(BROKER_IDS), self._applyIds
            )
            await self._follow(
                BROKER_TOPICS,
                lambda: zookeeper.get_children_and_watch(BROKER_TOPICS),
                self._applyTopics,
            )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop watching. What is known stays known."""
        self._isStopped = True
        followed, self._followed = self._followed, {}
        for each in followed.values():
            each.stop()

    def _follow(self, path: str, begin: Initialize, apply: Apply) -> Deferred[None]:
        """Begin to follow a path, unless it is followed. Fires when it has been read."""
        if path in self._followed or self._isStopped:
            return succeed(None)
        backoff = Backoff(self._random, READ_DELAYS)
        followed = self._followed[path] = _WatchedPath(
            self._clock, path, begin, apply, self._notFollowed, backoff
        )
        followed.begin()
        return followed.first

    def _notFollowed(self, followed: _WatchedPath) -> None:
        if self._followed.get(followed.path) is followed:
            del self._followed[followed.path]

    async def _allOf(self, readings: list[Deferred[None]]) -> None:
        """Wait for all; nodes that are gone do not count as failures."""
        for outcome in await gatherSettled(readings):
            if isinstance(outcome, Failure) and not outcome.check(NoNodeException):
                outcome.raiseException()

    def _numbers(self, path: str, names: list[str]) -> list[int]:
        """The brokers that children are named after."""
        self._complaints.children(path, names)
        return brokerNumbers(
            path,
            names,
            lambda error: self._complain(
                error.path, "A node in ZooKeeper is left alone: {error}", error
            ),
        )

    def _complain(
        self, path: str, sentence: str, error: PylogbrokerError, **fields: object
    ) -> None:
        self._complaints.complain(path, error, lambda: log.warn(sentence, error=error, **fields))

    # -- brokers

    async def _applyIds(self, names: list[str], isAnew: bool) -> None:
        numbers = self._numbers(BROKER_IDS, names)
        for number in set(self.brokers) - set(numbers):
            self._setBroker(number, None)
        await self._allOf([self._followBroker(number) for number in numbers])

    def _followBroker(self, number: int) -> Deferred[None]:
        path = brokerId(number)

        async def apply(found: tuple[bytes | None, Any], isAnew: bool) -> None:
            self._readBroker(number, found[0])

        return self._follow(path, lambda: self._zookeeper.get_and_watch(path), apply)

    def _readBroker(self, number: int, data: bytes | None) -> None:
        path = brokerId(number)
        try:
            _creator, host, port = decodeBroker(path, data)
        except ZnodeError as error:
            self._complain(path, "Broker {number} cannot be used: {error}", error, number=number)
            self._setBroker(number, None)
        else:
            self._complaints.fine(path)
            self._setBroker(number, BrokerNode(number, host, port))

    def _setBroker(self, number: int, broker: BrokerNode | None) -> None:
        if self.brokers.get(number) == broker:
            return
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
        """Be told of brokers that appear, move or vanish. Returns what ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    # -- topics

    async def _applyTopics(self, names: list[str], isAnew: bool) -> None:
        self._complaints.children(BROKER_TOPICS, names)
        readings = []
        for name in names:
            try:
                readings.append(self._followTopic(name, topic(name)))
            except InvalidNameError as error:
                self._complain(
                    f"{BROKER_TOPICS}/{name}", "A topic in ZooKeeper is left alone: {error}", error
                )
        await self._allOf(readings)

    def _followTopic(self, name: str, path: str) -> Deferred[None]:
        async def apply(children: list[str], isAnew: bool) -> None:
            await self._readTopic(name, children, isAnew)

        return self._follow(path, lambda: self._zookeeper.get_children_and_watch(path), apply)

    async def _readTopic(self, name: str, children: list[str], isAnew: bool) -> None:
        """Read how many partitions each broker has, all at once."""
        numbers = self._numbers(topic(name), children)
        found: list[Any] = await gatherSettled(
            [self._zookeeper.get(topicBroker(name, number)) for number in numbers]
        )
        counts = {}
        for number, outcome in zip(numbers, found, strict=True):
            if not isinstance(outcome, Failure):
                count = self._readCount(topicBroker(name, number), outcome[0])
                if count:
                    counts[number] = count
            elif not outcome.check(NoNodeException):
                outcome.raiseException()
        self._registered[name] = counts
        if isAnew:
            self._known[name] = {}
            self._lists.pop(name, None)
        self._merge(name, counts)

    def _readCount(self, path: str, data: bytes | None) -> int:
        try:
            count = decodeCount(path, data)
        except ZnodeError as error:
            self._complain(path, "A broker's partitions cannot be used: {error}", error)
            return 0
        self._complaints.fine(path)
        return count

    def _merge(self, name: str, counts: Mapping[int, int]) -> None:
        """New set = old set and new partitions, of brokers that are alive."""
        known = self._known.setdefault(name, {})
        for number, count in counts.items():
            if number in self.brokers:
                known[number] = max(count, known.get(number, 0))
        self._lists.pop(name, None)

    # -- asking

    def partitions(self, name: str) -> list[BrokerPartition]:
        """See L{IDiscovery.partitions}."""
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
        The partitions of a topic, also of one that nobody has registered yet: then partition 0 of every broker, which is remembered.

        A reading whose connection is lost is one that has found no broker; the next is answered when the connection is back. One that gets no answer for as
        long as a request may take is the last.

        @return: fails with L{NoBrokersError} when there is no broker after C{readRetryCount} readings of everything, each after a longer wait; with
            L{ZookeeperError}.
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
        """Read, so that the topic has a partition; or why it has none yet."""
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
        await self._applyIds(await self._zookeeper.get_children(BROKER_IDS), False)

    def refresh(self) -> Deferred[None]:
        """
        Read everything anew, beside the watches.

        @return: fails with L{ZookeeperError}.
        """
        return Deferred.fromCoroutine(self._refresh())

    async def _refresh(self) -> None:
        zookeeper = self._zookeeper
        await self._readIds()
        for number in list(self.brokers):
            try:
                data, _stat = await zookeeper.get(brokerId(number))
            except NoNodeException:
                self._setBroker(number, None)
            else:
                self._readBroker(number, data)
        await self._applyTopics(await zookeeper.get_children(BROKER_TOPICS), False)
        for name in list(self._registered):
            try:
                await self._readTopic(name, await zookeeper.get_children(topic(name)), False)
            except NoNodeException:
                pass
