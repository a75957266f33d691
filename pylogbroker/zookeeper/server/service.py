"""
The server: connections, sessions, and what binds tree, log and watches.

Everything runs on the reactor's thread, but the log
(L{pylogbroker.zookeeper.server.groupcommit}). Reads are answered from the tree, which is ahead of
the log by the transactions that wait for the disk; a connection holds an answer back until what it
tells of is synced.

B{Sessions.} A session ends when nothing has come from its client for its time-out, and nothing more
until the next tick. Time by which ticks are late does not count: this process did not run then, and
pings wait in the sockets. Neither does time in which the server itself does not read from the
client. The end of a session is a transaction, which deletes its ephemeral nodes. After a start
every session has its whole time-out.

B{Failure.} When the log cannot be written, the tree is ahead of what is known to be on the disk, so
that nothing may be answered any more: all connections are closed, and the server ends.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from twisted.internet.defer import Deferred, fail
from twisted.internet.protocol import Factory
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import StorageError, ZookeeperError
from pylogbroker.limits import MemoryBudget
from pylogbroker.zookeeper.server.connection import (
    SMALL_ANSWER_SIZE,
    ZookeeperConnection,
)
from pylogbroker.zookeeper.server.datatree import DataTree, Event
from pylogbroker.zookeeper.server.groupcommit import GroupCommit, Submit
from pylogbroker.zookeeper.server.handler import RequestHandler
from pylogbroker.zookeeper.server.requests import PASSWORD_SIZE, ConnectRequest, Request
from pylogbroker.zookeeper.server.transactionlog import Entry, Snapshot, TransactionLog
from pylogbroker.zookeeper.server.transactions import (
    CloseSession,
    CreateSession,
    DeleteNode,
    Transaction,
    encodeTransaction,
)
from pylogbroker.zookeeper.server.watches import Watches
from pylogbroker.zookeeper.server.words import answerWord

CONNECTION_COUNT_MAX = 1_000
SESSION_COUNT_MAX = 10_000
WATCH_COUNT_MAX = 100_000
WATCH_SIZE_MAX = 64 << 20
WATCHES_SIZE_MAX = 512 << 20
TREE_SIZE_MAX = 512 << 20
FRAMES_SIZE_MAX = 64 << 20
"""Bytes of large frames that are on their way, of all connections."""

OUTPUT_SIZE_MAX = 256 << 20
"""
Bytes of answers and events, of all connections, that wait or are unread. At this size no request is
taken whose answer is large; one may exceed it.
"""

FIRST_FRAME_MS_MAX = 10_000
CONTAINER_CHECK_MS = 60_000


@dataclass(frozen=True)
class ServerSettings:
    """
    Limits of a server.

    @ivar tickMs: a session lasts two ticks at least; ended sessions are looked for every tick.
    @ivar sessionTimeoutMsMax: the longest time-out that a session may have.
    @ivar watchCountMax: watches of a connection.
    @ivar watchSizeMax: bytes of memory that they may take.
    @ivar watchesSizeMax: bytes of memory that the watches of all connections may take.
    @ivar treeSizeMax: bytes of memory that the nodes may take; then nothing can be added.
    """

    tickMs: int = 2_000
    sessionTimeoutMsMax: int = 120_000
    connectionCountMax: int = CONNECTION_COUNT_MAX
    sessionCountMax: int = SESSION_COUNT_MAX
    watchCountMax: int = WATCH_COUNT_MAX
    watchSizeMax: int = WATCH_SIZE_MAX
    watchesSizeMax: int = WATCHES_SIZE_MAX
    treeSizeMax: int = TREE_SIZE_MAX

    @property
    def sessionTimeoutMsMin(self) -> int:
        return 2 * self.tickMs


class ClientLog(Protocol):
    """Where lines go that clients cause: a logger that bounds their rate."""

    def warn(self, format: str, **fields: object) -> None:
        """As L{Logger.warn}. The formats of this server are few."""


@dataclass
class ServerCounters:
    """Requests that were received, and answers and events that were sent."""

    receivedCount: int = 0
    sentCount: int = 0


class ZookeeperServer(Factory):
    """
    The server, and the factory of its connections. Its owner listens.

    @ivar tree: what it knows.
    @ivar commits: what takes transactions to the disk.
    @ivar waiting: connections with answers that wait.
    @ivar memory: of large frames on their way.
    @ivar clientLog: where lines go that clients cause.
    @ivar isServing: whether connections are taken.
    """

    noisy = False
    _log = Logger()

    def __init__(
        self,
        clock: Any,
        log: TransactionLog,
        submit: Submit,
        submitSnapshot: Submit,
        randomBytes: Callable[[int], bytes],
        clientLog: ClientLog,
        settings: ServerSettings = ServerSettings(),  # it is frozen
    ) -> None:
        """
        @param clock: an L{twisted.internet.interfaces.IReactorTime}; its seconds are those since
            the epoch.
        @param submit: runs a function on the log's worker, which has one thread.
        @param submitSnapshot: runs a function on another worker.
        @param randomBytes: gives unpredictable bytes, for the passwords of sessions.
        @param clientLog: gets the lines that clients cause.
        """
        self.settings = settings
        self.clientLog = clientLog
        self.tree = DataTree()
        self.watches: Watches = Watches()
        self.memory = MemoryBudget(FRAMES_SIZE_MAX)
        self.counters = ServerCounters()
        self.waiting: dict[ZookeeperConnection, None] = {}
        self.connections: dict[ZookeeperConnection, None] = {}
        self.isServing = False
        self.commits = GroupCommit(
            clock,
            log,
            submit,
            submitSnapshot,
            lambda: Snapshot.of(self.tree),
            self._onSynced,
            self._fail,
        )
        handler = RequestHandler(self)
        self.handle, self._answerSize = handler.handle, handler.answerSize
        self._outputSize = 0
        self._waitingForRoom: dict[ZookeeperConnection, None] = {}
        self._roomTurn: Any = None
        self._clock = clock
        self._transactionLog = log
        self._submit = submit
        self._randomBytes = randomBytes
        self._connectionOf: dict[int, ZookeeperConnection] = {}
        self._deadlines: dict[int, float] = {}
        self._timeouts: dict[int, float] = {}
        self._heldBack: dict[ZookeeperConnection, None] = {}
        self._ending: dict[ZookeeperConnection, None] = {}
        self._nextSession = 0
        self._ticking = LoopingCall(self._tick)
        self._ticking.clock = clock
        self._lastTick = self._lastContainerCheck = 0.0
        self._lateSeconds = self._lastLateSeconds = 0.0
        self._silent: set[int] = set()
        self._failure: Failure | None = None
        self._failureWaiters: list[Deferred[NoReturn]] = []

    # -- life

    async def start(self) -> None:
        """
        Read the data. Then connections may come.

        @raise pylogbroker.errors.ConfigurationError: as L{TransactionLog.open}, as all here.
        @raise StorageError: the data cannot be read.
        """
        self.tree = tree = await self._submit(self._transactionLog.open)
        self.commits.begin(tree.zxid)
        now = self.seconds()
        # As ZooKeeper: from the time of the start, so that no number comes twice.
        self._nextSession = max([self.nowMs() << 16, *(each + 1 for each in tree.sessions)])
        for sessionId, session in tree.sessions.items():
            self._begin(sessionId, session.timeoutMs)
        self._lastTick = self._lastContainerCheck = now
        self.isServing = True
        self._ticking.start(self.settings.tickMs / 1000, now=False).addErrback(self._fail)

    async def stop(self) -> None:
        """
        Close all connections and the log. The sessions stay.

        @raise StorageError: the log could not be closed in order; the next start recovers it.
        """
        self._stopServing()
        await self.commits.stop()
        for connection in list(self.connections):
            connection.close()

    def _stopServing(self) -> None:
        self.isServing = False
        if self._ticking.running:
            self._ticking.stop()
        if self._roomTurn is not None:
            self._roomTurn.cancel()
            self._roomTurn = None

    def whenFailed(self) -> Deferred[NoReturn]:
        """@return: fails with L{ZookeeperError} when the server has ended by itself."""
        if self._failure is not None:
            return fail(self._failure)
        failed: Deferred[NoReturn] = Deferred()
        self._failureWaiters.append(failed)
        return failed

    def _fail(self, failure: Failure) -> None:
        if self._failure is not None:
            return
        self._failure = Failure(
            ZookeeperError(f"the ZooKeeper server has ended: {failure.getErrorMessage()}")
        )
        self._stopServing()
        if failure.check(StorageError):
            self._log.critical(
                "The transactions cannot be written: {reason}. Nothing was answered that is not on"
                " the disk. The server ends",
                reason=failure.getErrorMessage(),
            )
        else:
            self._log.failure("The server has failed: this is a bug", failure)
        for connection in list(self.connections):
            connection.abort()
        waiters, self._failureWaiters = self._failureWaiters, []
        for each in waiters:
            each.errback(self._failure)

    def seconds(self) -> float:
        return float(self._clock.seconds())

    def nowMs(self) -> int:
        return int(self._clock.seconds() * 1000)

    # -- connections

    def buildProtocol(self, addr: Any) -> ZookeeperConnection:
        return ZookeeperConnection(self)

    def admit(self, connection: ZookeeperConnection) -> bool:
        """Returns whether a new connection is served."""
        if not self.isServing:
            return False
        if len(self.connections) >= self.settings.connectionCountMax:
            self.clientLog.warn(
                "The connection {connection} is refused: there are {count}, as many as may be",
                connection=connection,
                count=len(self.connections),
            )
            return False
        self.connections[connection] = None
        return True

    def forget(self, connection: ZookeeperConnection) -> None:
        """A connection is lost. Its session stays."""
        self.connections.pop(connection, None)
        self.waiting.pop(connection, None)
        self._heldBack.pop(connection, None)
        self._waitingForRoom.pop(connection, None)
        self._ending.pop(connection, None)
        self.watches.removeAll(connection)
        sessionId = connection.client.sessionId
        if self._connectionOf.get(sessionId) is connection:
            del self._connectionOf[sessionId]

    def holdsBack(self, connection: ZookeeperConnection) -> bool:
        """Whether too much waits for the disk; the connection goes on when that is over."""
        if self.commits.isFull:
            self._heldBack[connection] = None
            return True
        return False

    # -- the memory of answers

    @property
    def isOutputFull(self) -> bool:
        return self._outputSize >= OUTPUT_SIZE_MAX

    def countOutput(self, change: int) -> None:
        """There are more, or fewer, bytes of answers that wait or are unread."""
        self._outputSize += change
        if self._waitingForRoom and not self.isOutputFull and self.isServing:
            if self._roomTurn is None:  # not at once: the caller is amid its own requests
                self._roomTurn = self._clock.callLater(0, self._useRoom)

    def _useRoom(self) -> None:
        """One connection a turn: a large answer takes time."""
        self._roomTurn = None
        connection = next(iter(self._waitingForRoom), None)
        if connection is not None and not self.isOutputFull:
            del self._waitingForRoom[connection]
            connection.process()
            self.countOutput(0)

    def waitsForRoom(
        self, connection: ZookeeperConnection, number: int, request: Request | None
    ) -> bool:
        """Whether there is no room for a request's answer; the connection goes on when there is."""
        if self.isOutputFull and request is not None:
            if self._answerSize(connection, number, request) > SMALL_ANSWER_SIZE:
                self._waitingForRoom[connection] = None
                return True
        return False

    def answerWord(self, word: bytes) -> str | None:
        """The answer to a four-letter word; L{None}: it is none."""
        return answerWord(self, word)

    # -- sessions

    def connectSession(self, connection: ZookeeperConnection, request: ConnectRequest) -> None:
        """Begin a session, or go on with one."""
        settings = self.settings
        if request.lastZxid > self.tree.zxid:
            self.clientLog.warn(
                "The connection {connection} is refused: its client has seen transaction"
                " {seen:#x}, and the last one here is {last:#x}: it comes from another server",
                connection=connection,
                seen=request.lastZxid,
                last=self.tree.zxid,
            )
            connection.close()
            return
        timeoutMs = min(
            max(request.timeoutMs, settings.sessionTimeoutMsMin), settings.sessionTimeoutMsMax
        )
        if request.sessionId:
            self._reopenSession(connection, request, timeoutMs)
        elif len(self.tree.sessions) < settings.sessionCountMax:
            sessionId, self._nextSession = self._nextSession, self._nextSession + 1
            password = self._randomBytes(PASSWORD_SIZE)
            zxid = self.propose(CreateSession(sessionId, timeoutMs, password))
            self._attach(connection, sessionId, timeoutMs)
            connection.acceptSession(zxid, timeoutMs, password, request.knowsReadOnly)
        else:
            self.clientLog.warn(
                "The connection {connection} is refused: there are {count} sessions, as many as"
                " may be",
                connection=connection,
                count=len(self.tree.sessions),
            )
            connection.close()

    def _reopenSession(
        self, connection: ZookeeperConnection, request: ConnectRequest, timeoutMs: int
    ) -> None:
        session = self.tree.sessions.get(request.sessionId)
        if session is None or not hmac.compare_digest(session.password, request.password):
            connection.refuseSession(request.knowsReadOnly)
            return
        previous = self._connectionOf.get(request.sessionId)
        if previous is not None:
            previous.close()
        self._attach(connection, request.sessionId, timeoutMs)
        connection.acceptSession(self.tree.zxid, timeoutMs, session.password, request.knowsReadOnly)

    def _attach(self, connection: ZookeeperConnection, sessionId: int, timeoutMs: int) -> None:
        connection.client.sessionId = sessionId
        self._connectionOf[sessionId] = connection
        self._begin(sessionId, timeoutMs)

    def _begin(self, sessionId: int, timeoutMs: int) -> None:
        self._timeouts[sessionId] = timeoutMs / 1000
        self._deadlines[sessionId] = self._runningSeconds() + timeoutMs / 1000

    def touch(self, sessionId: int) -> None:
        """Something has come from the session's client."""
        timeout = self._timeouts.get(sessionId)
        if timeout is not None:
            self._deadlines[sessionId] = self._runningSeconds() + timeout

    def closeSession(self, sessionId: int) -> int:
        """
        End a session, and delete its nodes.

        @return: the number of that transaction.
        """
        self._deadlines.pop(sessionId, None)
        self._timeouts.pop(sessionId, None)
        self._connectionOf.pop(sessionId, None)
        return self.propose(CloseSession(sessionId))

    def _tick(self) -> None:
        now = self.seconds()
        late = now - self._lastTick - self.settings.tickMs / 1000
        # The one behind a late tick is on time, and so early by as much: that is no lost time.
        late = max(late, -self._lastLateSeconds)
        self._lateSeconds += late
        self._lastLateSeconds = max(late, 0)
        self._lastTick = now
        for connection in self.connections:
            if connection.isHeldBackByServer:  # the client's pings are not read
                self.touch(connection.client.sessionId)
        running = self._runningSeconds()
        silent = {each for each, end in self._deadlines.items() if end <= running}
        expired = sorted(silent & self._silent)  # sockets were read since the last tick
        for sessionId in expired:
            self._expire(sessionId)
        if expired:
            self._log.info(
                "{count} sessions have expired, {first:#x} first",
                count=len(expired),
                first=expired[0],
            )
        self._silent = silent
        self._closeIdle(now)
        if now - self._lastContainerCheck >= CONTAINER_CHECK_MS / 1000:
            self._lastContainerCheck = now
            for path in list(self.tree.emptyContainers()):
                self.propose(DeleteNode(path))

    def _expire(self, sessionId: int) -> None:
        connection = self._connectionOf.get(sessionId)
        self.closeSession(sessionId)
        if connection is not None:
            connection.close()

    def _runningSeconds(self) -> float:
        """Seconds of the clock, without those by which ticks were late."""
        return self.seconds() - self._lateSeconds

    def _closeIdle(self, now: float) -> None:
        """Close connections without a session: new ones in time, and those that do not end."""
        for connection in list(self.connections):
            sessionId = connection.client.sessionId
            if not sessionId:
                if now - connection.connectedAt > FIRST_FRAME_MS_MAX / 1000:
                    self.clientLog.warn(
                        "The connection {connection} has begun no session, and is closed",
                        connection=connection,
                    )
                    connection.abort()
            elif self._connectionOf.get(sessionId) is not connection:
                if connection in self._ending:
                    connection.abort()
                self._ending[connection] = None

    # -- transactions

    def propose(self, transaction: Transaction) -> int:
        """
        Make a transaction: change the tree, hand it to the log, tell the watches.

        @return: its number.
        """
        zxid, nowMs = self.tree.zxid + 1, self.nowMs()
        events = self.tree.apply(transaction, zxid, nowMs)
        self.log(zxid, nowMs, encodeTransaction(transaction), events)
        return zxid

    def log(self, zxid: int, nowMs: int, encoded: bytes, events: Iterable[Event]) -> None:
        """Hand a transaction that the tree has to the log, and tell the watches."""
        self.commits.append(zxid, Entry(nowMs, encoded))
        if self.watches.count:
            for watcher, kind, path in list(self.watches.fired(events)):
                assert isinstance(watcher, ZookeeperConnection)
                watcher.notify(zxid, kind, path)

    def _onSynced(self) -> None:
        for connection in list(self.waiting):
            connection.release()
        heldBack, self._heldBack = self._heldBack, {}
        for connection in heldBack:
            connection.process()
