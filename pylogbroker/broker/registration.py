"""
A broker's registration in ZooKeeper: its address, and the partition counts of its topics (spec-0.7
zookeeper §1, §2). A module of its own, since a broker works without ZooKeeper.

What must be true: while the broker serves and ZooKeeper answers, all entries exist with the right
values, owned by the current session. One I{round} at a time claims the missing entries in order,
the broker's own first. A new topic and a new session add missing entries; a failure leaves them for
the next round (gotchas 11, 12). Only the start waits.

After a fast restart the old session holds the broker's own entry until it expires (gotcha 9), by
the granted time-out. Each restart of the ZooKeeper server begins that time anew. So we wait
L{OWN_PATIENCE_COUNT} times as long for an entry with our own address, where no other broker can
listen. An entry that stays longer belongs to a duplicate: two brokers with one id. At the start
that is an error that names both; later it is logged, and tried again.

The broker's own entry is watched. If it is deleted or overwritten, that is logged, and all entries
are claimed again. Brokers cannot fight over an id, since none removes the entry of another session.
The thousands of topic entries are not watched: one that is deleted alone is back with the next
session.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogbroker.cluster import paths
from pylogbroker.cluster.znodes import BrokerRegistration, creatorId, decodeBroker, encodeNumber
from pylogbroker.config.brokersettings import BrokerSettings, listener
from pylogbroker.errors import (
    ConfigurationError,
    ConnectionLossException,
    InvalidNameError,
    SessionExpiredException,
    ZnodeError,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.interfaces import IZookeeper, SessionEvent, WatchEvent
from pylogbroker.net.timer import Timer, wallMs
from pylogbroker.retry import RETRY_INTERVAL_MS
from pylogbroker.zookeeper.ephemeral import ConflictError, claim, claimWithin

PATIENCE_FACTOR = 2
"""Session time-outs to wait for an old session: one for it, one for ticks of the clocks."""

OWN_PATIENCE_COUNT = 5
"""How many times as long to wait for an entry with our own address."""


class Registration:
    """
    Keeps a broker registered.

    @ivar isRegistered: whether no entry is missing.
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        zookeeper: IZookeeper,
        brokerId: int,
        host: str,
        port: int,
        partitionCount: Callable[[str], int],
    ) -> None:
        """
        @param zookeeper: a connected client.
        @param partitionCount: gives the configured number of partitions of a topic.
        @raise ConfigurationError: the host contains a colon.
        """
        self._clock = clock
        self._zookeeper = zookeeper
        self._brokerId = brokerId
        self._host = host
        self._port = port
        self._partitionCount = partitionCount
        self._topics: dict[str, None] = {}
        self._missing: dict[str, None] = {}
        self._selfMissing = True
        self._retry = Timer(clock)
        self._stopped = False
        self._isClaiming = False  # one round at a time, the start's among them
        self._removeListener: Callable[[], object] = int
        self._watch: Deferred[None] = succeed(None)
        try:
            self._value()
        except ValueError as error:
            raise ConfigurationError(f"hostname={host}: {error}") from error

    def _value(self) -> bytes:
        return BrokerRegistration(
            creatorId(self._host, wallMs(self._clock)), self._host, self._port
        ).encode()

    @property
    def isRegistered(self) -> bool:
        return not self._selfMissing and not self._missing

    def start(self, topics: Iterable[str]) -> Deferred[None]:
        """
        @return: fires when the broker's own entry exists; topics may follow. Fails with
            L{ConfigurationError} when another broker has the id, and with L{ZookeeperError} when
            ZooKeeper does not answer.
        """
        self._removeListener = self._zookeeper.add_session_listener(self._sessionChanged)
        self._topics.update(dict.fromkeys(topics))
        self._missing.update(self._topics)
        return Deferred.fromCoroutine(self._start())

    async def _start(self) -> None:
        self._isClaiming = True
        try:
            await self._claimFirst()
        finally:
            self._isClaiming = False
        self._begin()

    async def _claimFirst(self) -> None:
        """
        A session that expires meanwhile is followed by another one, and a connection that is lost
        by another one: that is no failure.
        """
        triesLeft = OWN_PATIENCE_COUNT
        while True:
            triesLeft -= 1
            try:
                await self._claimSelf()
                return
            except ZookeeperTimeoutException:
                raise
            except (SessionExpiredException, ConnectionLossException):
                if self._stopped or not triesLeft:
                    raise
            await deferLater(self._clock, RETRY_INTERVAL_MS / 1000)

    async def _claimSelf(self) -> None:
        path = paths.brokerId(self._brokerId)
        triesLeft = OWN_PATIENCE_COUNT

        def wait(conflict: ConflictError) -> None:
            place = _place(path, conflict.data)
            self._log.info(
                "{path} is taken by a broker at {place}: waiting {ms} ms for its session to end",
                path=path,
                place=place,
                ms=patienceMs,
            )

        while True:  # the entry may go again, with its session or otherwise
            patienceMs = PATIENCE_FACTOR * self._zookeeper.session_timeout
            try:
                await claimWithin(
                    self._clock, self._zookeeper, path, self._value(), patienceMs, wait
                )
            except ConflictError as conflict:
                triesLeft -= 1
                isOld = conflict.session and _place(path, conflict.data) == self._own
                if not (triesLeft and isOld):
                    error = self._duplicate(path, conflict, patienceMs)
                    raise ConfigurationError(error) from conflict
            else:
                if await self._watchSelf(path):
                    break
        self._selfMissing = False

    async def _watchSelf(self, path: str) -> bool:
        looking, watch = self._zookeeper.exists_and_watch(path)
        self._watch.cancel()
        # It fails with the session, which has a listener, or with our stop.
        self._watch = watch.addCallbacks(self._touched, lambda _failure: None)
        stat = await looking
        if stat is not None and stat.ephemeralOwner == self._zookeeper.session_id:
            return True
        self._watch.cancel()
        return False

    def _touched(self, event: WatchEvent) -> None:
        self._log.warn(
            "{path} was {kind}, and not by this broker: registering broker {brokerId} again",
            path=event.path,
            kind=event.kind,
            brokerId=self._brokerId,
        )
        self._allMissing()
        self._beginLater()

    def _allMissing(self) -> None:
        self._selfMissing = True
        self._missing.update(self._topics)

    @property
    def _own(self) -> str:
        return f"{self._host}:{self._port}"

    def _duplicate(self, path: str, conflict: ConflictError, patienceMs: int) -> str:
        own, other = self._own, _place(path, conflict.data)
        if not conflict.session:
            return (
                f"brokerid={self._brokerId}: {path} is persistent, another program has made it "
                f"({other}), and it never goes by itself: delete it"
            )
        if other == own:
            return (
                f"brokerid={self._brokerId}: {path} belongs to another session, and stayed so for "
                f"{OWN_PATIENCE_COUNT} times {patienceMs} ms, with the address of this broker, "
                f"{own}. That is probably its own session from before, with a longer time-out: "
                f"start it again when {path} is gone. If it never goes, another broker has this "
                "brokerid and this hostname"
            )
        return (
            f"brokerid={self._brokerId}: the broker at {other} is registered with this id in "
            f"{path}, and stayed so for {patienceMs} ms; this one is {own}. "
            "Give one of them another brokerid"
        )

    def topicCreated(self, topic: str) -> None:
        """Repeated calls for a topic do nothing."""
        if topic not in self._topics:
            self._topics[topic] = self._missing[topic] = None
            self._begin()

    def _sessionChanged(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._log.warn(
                "The session with ZooKeeper has expired: registering broker {brokerId} again",
                brokerId=self._brokerId,
            )
            self._allMissing()
        elif event is SessionEvent.CONNECTED:
            self._begin()

    # -- rounds

    def _begin(self) -> None:
        if not (self._isClaiming or self._stopped or self.isRegistered):
            self._retry.stop()
            Deferred.fromCoroutine(self._round())

    async def _round(self) -> None:
        self._isClaiming = True
        try:
            await self._claimMissing()
        except (ZookeeperError, ConfigurationError) as error:
            if not self._stopped:
                self._log.warn(
                    "Registering broker {brokerId} did not work: {error}. It is tried again",
                    brokerId=self._brokerId,
                    error=error,
                )
        except Exception:
            if not self._stopped:
                self._log.failure(
                    "Registering broker {brokerId} failed unexpectedly", brokerId=self._brokerId
                )
        self._isClaiming = False
        if not self.isRegistered:
            self._beginLater()

    async def _claimMissing(self) -> None:
        if self._selfMissing:
            await self._claimSelf()
        for topic in list(self._missing):
            session = self._zookeeper.session_id
            try:
                await claim(
                    self._zookeeper,
                    paths.topicBroker(topic, self._brokerId),
                    encodeNumber(self._partitionCount(topic)),
                )
            except InvalidNameError as error:
                self._log.error(
                    "Topic {topic} cannot be registered: {error}", topic=topic, error=error
                )
            except ConflictError as conflict:  # the other topics are claimed all the same
                self._log.warn(
                    "Topic {topic} is not registered yet: {error}", topic=topic, error=conflict
                )
                continue
            if session == self._zookeeper.session_id:  # else the entry went with its session
                self._missing.pop(topic, None)

    def _beginLater(self) -> None:
        if not (self._retry.isRunning or self._isClaiming or self._stopped):
            self._retry.start(RETRY_INTERVAL_MS, self._begin)

    def stop(self) -> None:
        """Stop registering. Closing the client removes the entries."""
        self._stopped = True
        self._watch.cancel()
        self._retry.stop()
        self._removeListener()


def _place(path: str, data: bytes) -> str:
    try:
        other = decodeBroker(path, data)
    except ZnodeError:
        return repr(data[:100])
    return f"{other.host}:{other.port}"


# -- the advertised host --------------------------------------------------------------------------

EVERYWHERE = ("", "0.0.0.0", "::")
"""Addresses that stand for all interfaces."""


async def advertisedHost(
    settings: BrokerSettings,
    listening: Sequence[str],
    warn: Callable[[str], None],
    resolve: Callable[[str], Awaitable[str]],
    ownName: Callable[[], str] = socket.gethostname,
) -> str:
    """
    The advertised host: C{hostname}; else the address that we listen on; else the address of the
    machine's name, as in 0.7 (spec-0.7 zookeeper §1).

    @param listening: the addresses that we listen on, the advertised port's first. Without
        C{listeners}, C{listen.interface} replaces them, as written.
    @param warn: called with a message when other machines will not reach the broker by this host.
    @param resolve: resolves a name; fails with L{OSError}.
    @raise ConfigurationError: the machine's name has no address; or the address is IPv6, which the
        value in ZooKeeper cannot carry.
    """
    source = "listeners"
    if settings.listeners == (listener(settings.port, settings.listenInterface),):
        source, listening = "listen.interface", [settings.listenInterface]
    interface = next(
        (each for each in listening if ":" not in each), listening[0] if listening else ""
    )
    host = settings.hostName
    if host is not None:
        source = "hostname"
    elif interface not in EVERYWHERE:
        host = interface
    else:
        name = ownName()
        source = f"the address of this host's name, {name},"
        try:
            host = await resolve(name)
        except OSError as error:
            raise ConfigurationError(
                f"hostname is not set, and this host's name, {name}, has no address ({error}): "
                "set hostname"
            ) from error
    if ":" in host:
        raise ConfigurationError(
            f"{source}={host}: the value in ZooKeeper cannot carry an IPv6 address, since its "
            "readers split at colons: set hostname to a name"
        )
    if isLocal(host) and not (
        listening and all(isLocal(each) and each not in EVERYWHERE for each in listening)
    ):
        warn(
            f"{source} is {host}: clients on other machines are told to reach this broker there, "
            "and will reach themselves. Set hostname to a name or address that they can reach"
        )
    return host


def isLocal(host: str) -> bool:
    """Whether a host means the local machine on every machine."""
    try:
        address = ip_address(host)
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")
    return address.is_loopback or address.is_unspecified
