"""
L{ZookeeperLog}: the metadata of a cluster as one log in ZooKeeper, which every broker reads and may
write (L{pylogbroker.cluster.kafka.metadatalog} has its nodes).

What must be true:

  - All brokers apply the same changes in the same order. A change is created in one transaction
    with the head, on condition that the head has the version on which the change was decided. So no
    two changes have a number, there is no gap, and each was decided on all before it.
  - A change is reported as written only if it is there, and as not written only if it never will
    be. A lost connection leaves that open. The same transaction is then sent again: it takes effect
    once, since the first one moves the head. If the head has moved, the change with the number
    tells by its random id whether it is ours. When L{WRITE_TIMEOUT_MS} are over, the caller learns
    that the outcome is unknown.
  - A broker never goes back: ZooKeeper's servers may be behind one another, but not within a
    session, and C{sync} comes first in each new session.
  - L{ZookeeperLog.isCurrent} is false before ZooKeeper gives up the session of this broker's
    registration. ZooKeeper does so a session time-out after it has last heard of the broker. The
    broker counts from the moment when it sent a request that was answered, which is earlier, and
    trusts its own clock to be right by a tenth only.

The head is watched. What is behind is read in batches of L{READ_COUNT_MAX} changes, each applied
before the next is read. Where the next change was removed already, the latest snapshot has it.

Rejected: a node for each topic and partition, as in Kafka with ZooKeeper. The order of changes to
different nodes is not seen, a new controller has to read all of them, and it has to push the state
to the brokers (docs/decisions).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.kafka.metadatalog import (
    BROKER_IDS,
    BROKERS,
    CHANGES,
    CONTROLLER_EPOCH,
    HEAD,
    RECORDS_SIZE_MAX,
    ROOT,
    SNAPSHOTS,
    Change,
    Head,
    SnapshotInfo,
    changePath,
    checkRoot,
    chunkPath,
    encodeRoot,
    snapshotPath,
)
from pylogbroker.cluster.metadataimage import MetadataImage, Record, decodeRecords, encodeRecords
from pylogbroker.errors import (
    ClosingException,
    ConnectionLossException,
    MetadataError,
    MetadataUnconfirmedError,
    MultiFailedException,
    NodeExistsException,
    NoNodeException,
    RequestSizeException,
    ZookeeperError,
)
from pylogbroker.interfaces import (
    CreateOperation,
    IZookeeper,
    SessionEvent,
    SetOperation,
    ZookeeperOperation,
)
from pylogbroker.net.deferreds import asDeferred, batched, gatherAll, gatherSettled
from pylogbroker.net.timer import Timer
from pylogbroker.net.workers import IWorker
from pylogbroker.retry import READ_DELAYS, Backoff
from pylogbroker.zookeeper.ephemeral import createParents

READ_COUNT_MAX = 20
"""Changes, or pieces of a snapshot, that are read at once: 18 MB at the most."""

WRITE_TIMEOUT_MS = 30_000
"""How long a change is tried to be written."""

TRY_COUNT = 10
"""How often a reading begins anew, since its snapshot was replaced or its session has ended."""

LEASE_SHARE = 0.9
"""The part of the session time-out for which an answer proves that the session lives."""

BEAT_COUNT = 4
"""How often a session time-out the session is proved."""

SIZE_COUNT_MAX = 3_000
"""Changes whose size is remembered."""

OPEN_TRY_COUNT = 5
"""How often the first reading may lose its connection."""

log = Logger()


class ZookeeperLog:
    """
    An L{pylogbroker.broker.metadatamanager.IMetadataLog} in ZooKeeper; the module states its rules.

    @ivar zookeeper: its client.
    @ivar head: as it was last seen.
    @ivar sizes: bytes of the latest changes by number, of L{SIZE_COUNT_MAX} at the most.
    @ivar registeredSession: the session whose ephemeral node registers this broker; 0: none does.
    """

    def __init__(
        self,
        clock: Any,
        elapsed: Callable[[], float],
        zookeeper: IZookeeper,
        brokerId: int,
        worker: IWorker,
        random: Random,
    ) -> None:
        """
        @param elapsed: seconds of a clock that is never set.
        @param zookeeper: connected when C{open} is called.
        @param brokerId: told in changes; -1: a command writes them.
        @param worker: decodes snapshots.
        """
        self.changeSizeMax = RECORDS_SIZE_MAX
        self.zookeeper = zookeeper
        self.registeredSession = 0
        self._clock = clock
        self._elapsed = elapsed
        self._brokerId = brokerId
        self._worker = worker
        self._random = random
        self._manager: MetadataManager
        self._reading = DeferredLock()
        self.head = Head(0, 0)
        self._headVersion = -1
        self.sizes: dict[int, int] = {}
        self._attempt = Change(-1, "", b"")
        self._attemptNumber = 0
        self._isOurs: bool | None = None
        self._isSent = False
        self._isBehind = True
        self._isClosed = False
        self._moved: Deferred[Any] = succeed(None)
        self._pauses: dict[Deferred[None], Any] = {}
        self._leaseEnd = 0.0
        self._beat = Timer(clock)
        self._removeListener: Callable[[], object] = int

    # -- start and stop

    @asDeferred
    async def open(self, manager: MetadataManager) -> bool:
        """
        Give the manager all changes, and from then on every new one.

        @return: fires with C{True} when the image is that of the last change, and with C{False} if
            ZooKeeper has no cluster: L{create} makes one. Fails with L{ZookeeperError} when
            ZooKeeper does not answer, and with L{MetadataError} when its nodes cannot be
            understood.
        """
        self._manager = manager
        self._removeListener()
        self._removeListener = self.zookeeper.add_session_listener(self._sessionChanged)
        for triesLeft in reversed(range(OPEN_TRY_COUNT)):
            try:
                await self.zookeeper.sync(HEAD)
                if await self.zookeeper.exists(ROOT) is None:
                    return False
                checkRoot((await self.zookeeper.get(ROOT))[0])
                await self.catchUp()
                break
            except ClosingException:
                raise
            except ZookeeperError:
                if not triesLeft:
                    raise
            await self.pause(READ_DELAYS.firstMs)
        self._follow().addErrback(self._failedUnexpectedly)
        self._prove()
        return True

    @asDeferred
    async def create(self, records: Sequence[Record]) -> None:
        """
        Make a cluster, whose first change these records are; a second call does nothing.

        @return: fires when there is a cluster: this one, or one that another broker has just made.
            Fails with L{ZookeeperError} when ZooKeeper does not answer, or refuses.
        """
        change = Change(self._brokerId, self._newId(), encodeRecords(records))
        operations = [*clusterNodes(Head(1, 0)), CreateOperation(changePath(1), change.encode())]
        await createCluster(self.zookeeper, operations)

    def close(self) -> None:
        """Read no more. The client stays open."""
        self._isClosed = True
        self._removeListener()
        self._beat.stop()
        self._moved.cancel()
        for pause, call in list(self._pauses.items()):
            call.cancel()
            pause.callback(None)

    def pause(self, ms: float) -> Deferred[None]:
        """
        @param ms: milliseconds.
        @return: fires after this time, or at C{close}.
        """
        pause: Deferred[None] = Deferred()
        if self._isClosed:
            pause.callback(None)
            return pause
        self._pauses[pause] = self._clock.callLater(ms / 1000, pause.callback, None)

        def over(_none: None) -> None:
            del self._pauses[pause]

        return pause.addCallback(over)

    def _newId(self) -> str:
        return self._random.randbytes(16).hex()

    # -- whether this broker may have been replaced

    @property
    def isCurrent(self) -> bool:
        """
        Whether this broker's registration cannot have ended yet: its session has not, and it was
        registered in this session.
        """
        session = self.registeredSession
        return (
            session != 0
            and session == self.zookeeper.session_id
            and self._elapsed() < self._leaseEnd
        )

    def _prove(self) -> None:
        self._beat.start(self.zookeeper.session_timeout / BEAT_COUNT, self._prove)
        session, asked = self.zookeeper.session_id, self._elapsed()

        def proved(_stat: object) -> None:
            if session and session == self.zookeeper.session_id:
                leaseMs = LEASE_SHARE * self.zookeeper.session_timeout
                self._leaseEnd = max(self._leaseEnd, asked + leaseMs / 1000)

        # Without an answer the lease ends by itself.
        self.zookeeper.exists(HEAD).addCallbacks(proved, lambda _failure: None)

    def _sessionChanged(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._isBehind = True
            self._leaseEnd = 0.0
            self.registeredSession = 0
        elif event is SessionEvent.CONNECTED and self._beat.isRunning:
            self._prove()

    # -- reading

    @asDeferred
    async def _follow(self) -> None:
        backoff = Backoff(self._random.random, READ_DELAYS)
        while not self._isClosed:
            try:
                await self._advance(isWatched=True)
                backoff.succeeded()
                await self._moved
            except ClosingException:
                return
            except NoNodeException as error:
                self._fail(MetadataError(f"the cluster's metadata were removed: {error}"))
                return
            except ZookeeperError as error:
                delayMs = backoff.failed()
                log.warn(
                    "The metadata could not be read: {error}. It is tried again in {ms:.0f} ms",
                    error=error,
                    ms=delayMs,
                )
                await self.pause(delayMs)
            except MetadataError as error:
                self._fail(error)
                return

    def _failedUnexpectedly(self, failure: Failure) -> None:
        log.failure("Following the metadata failed: this is a bug", failure)
        self._fail(MetadataError(f"following the metadata failed: {failure.value!r}"))

    def _fail(self, error: MetadataError) -> None:
        self._beat.stop()
        self.registeredSession = 0
        self._manager.refuse(error)

    async def catchUp(self) -> None:
        """
        Read to the end as it is now.

        @raise ZookeeperError: no answer came.
        @raise MetadataError: nodes cannot be understood, are missing, or have gone back.
        """
        self._isBehind = True
        await self._advance()

    async def _advance(self, isWatched: bool = False) -> None:
        """
        Read to the head.

        @param isWatched: C{_moved} is to fire when the head moves again.
        @raise MetadataError: nodes cannot be understood, are missing, or have gone back.
        """
        async with self._reading:
            for _try in range(TRY_COUNT):
                session, known = self.zookeeper.session_id, self._manager.position
                if self._isBehind:
                    await self.zookeeper.sync(HEAD)
                    self._isBehind = False
                if isWatched:
                    self._moved.cancel()
                    reading, self._moved = self.zookeeper.get_and_watch(HEAD)
                    self._moved.addErrback(lambda _failure: None)  # the next reading says why
                    data, stat = await reading
                else:
                    data, stat = await self.zookeeper.get(HEAD)
                if self.zookeeper.session_id != session:  # C{sync} was of another one
                    self._isBehind = True
                    continue
                head = Head.decode(data)
                if head.last < known:
                    raise MetadataError(
                        f"{HEAD} says that change {head.last} is the last one, and this broker has "
                        f"change {known}: ZooKeeper has lost data"
                    )
                if await self._readTo(head):
                    self._know(head, stat.version)
                    return
        raise ZookeeperError(f"{SNAPSHOTS}: they come and go")

    async def _readTo(self, head: Head) -> bool:
        """@return: whether the image is that of the head; C{False}: it must be read again."""
        manager = self._manager
        while (first := manager.position + 1) <= head.last:
            numbers = range(first, min(head.last, first + READ_COUNT_MAX - 1) + 1)
            found = await gatherSettled(self.zookeeper.get(changePath(each)) for each in numbers)
            changes: list[Change] = []
            for number, each in zip(numbers, found, strict=True):
                if isinstance(each, Failure):
                    if changes:
                        break  # it will be the first one of the next batch
                    if not each.check(NoNodeException):
                        each.raiseException()
                    if not await self._restore(first):
                        return False
                    break
                changes.append(Change.decode(changePath(number), each[0]))
            self._deliver(first, changes)
        return True

    def _deliver(self, first: int, changes: Sequence[Change]) -> None:
        at = self._attemptNumber - first
        if 0 <= at < len(changes):
            self._isOurs = changes[at].writeId == self._attempt.writeId
        for number, change in enumerate(changes, first):
            self._remember(number, change)
        self._manager.receive(first, [each.records for each in changes])

    def _remember(self, number: int, change: Change) -> None:
        self.sizes[number] = len(change.records)
        if len(self.sizes) > SIZE_COUNT_MAX:
            del self.sizes[next(iter(self.sizes))]

    async def _restore(self, needed: int) -> bool:
        """
        Take over the latest snapshot.

        @param needed: a change that it must have.
        @return: whether it was there.
        """
        head = Head.decode((await self.zookeeper.get(HEAD))[0])
        if head.snapshot < needed:
            raise MetadataError(
                f"{changePath(needed)} is missing, and the latest snapshot is of change "
                f"{head.snapshot}"
            )
        path = snapshotPath(head.snapshot)
        try:
            info = SnapshotInfo.decode(path, (await self.zookeeper.get(path))[0])
            chunks: list[bytes] = []
            for numbers in batched(range(info.chunkCount), READ_COUNT_MAX):
                found = await gatherAll(
                    [self.zookeeper.get(chunkPath(head.snapshot, each)) for each in numbers]
                )
                chunks += [data or b"" for data, _stat in found]
        except NoNodeException:
            return False  # a later one has replaced it
        image = await self._worker.submit(lambda: _image(path, info.join(path, chunks)))
        self._manager.restore(head.snapshot, image)
        return True

    # -- writing

    @asDeferred
    async def append(
        self, number: int, records: bytes, image: MetadataImage, guard: Sequence[ZookeeperOperation]
    ) -> bool:
        """See L{pylogbroker.broker.metadatamanager.IMetadataLog.append}."""
        change = Change(self._brokerId, self._newId(), records)
        self._attempt, self._attemptNumber, self._isOurs = change, number, None
        deadline = self._elapsed() + WRITE_TIMEOUT_MS / 1000
        backoff = Backoff(self._random.random, READ_DELAYS)
        isDoubtful = False
        while self._manager.position < number:
            try:
                # A head that was never read has no version: -1 would write over any.
                if self.head.last == number - 1 and self._headVersion >= 0:
                    if await self._tryAppend(change, number, guard):
                        return True
                await self.catchUp()
            except ZookeeperError as error:
                if isinstance(error, MultiFailedException):
                    raise
                isDoubtful = isDoubtful or self._isSent
                left = deadline - self._elapsed()
                if left <= 0 or self._isClosed:
                    self._requireCertain(isDoubtful, error)
                    raise
                await self.pause(min(backoff.failed(), left * 1000))
            except MetadataError as error:
                self._fail(error)
                self._requireCertain(isDoubtful, error)
                raise
        if self._isOurs is None:  # a snapshot has it
            self._requireCertain(isDoubtful, f"change {number} was removed before it could be seen")
        return bool(self._isOurs)

    async def pointTo(self, snapshot: int, guard: Sequence[ZookeeperOperation]) -> None:
        """
        Make a snapshot the one that brokers read. All its pieces are there.

        @raise MultiFailedException: an operation of the guard was refused.
        @raise ZookeeperError: no answer came; it may be done.
        """
        while self.head.snapshot < snapshot:
            head, version = self.head._replace(snapshot=snapshot), self._headVersion
            try:
                operations = [SetOperation(HEAD, head.encode(), version), *guard]
                results = await self.zookeeper.multi(operations)
            except MultiFailedException as error:
                if error.index:
                    raise
                await self.catchUp()
            else:
                self._know(head, results[0].version)

    def _know(self, head: Head, version: int) -> None:
        if version > self._headVersion:
            self.head, self._headVersion = head, version

    def _requireCertain(self, isDoubtful: bool, reason: object) -> None:
        """@raise MetadataUnconfirmedError: a transaction was sent, and its outcome not seen."""
        if isDoubtful:
            raise MetadataUnconfirmedError(f"changing the metadata: {reason}")

    async def _tryAppend(
        self, change: Change, number: int, guard: Sequence[ZookeeperOperation]
    ) -> bool:
        """
        @return: whether the change is there; C{False}: the head has moved.
        @raise MultiFailedException: an operation of the guard was refused.
        @raise MetadataError: the guard is too large.
        """
        head, version = Head(number, self.head.snapshot), self._headVersion
        operations = [
            SetOperation(HEAD, head.encode(), version),
            CreateOperation(changePath(number), change.encode()),
            *guard,
        ]
        self._isSent = True
        try:
            results = await self.zookeeper.multi(operations)
        except MultiFailedException as error:
            self._isSent = False
            if error.index >= 2:
                raise MultiFailedException(error.index - 2, len(guard), error.reason) from error
            return False
        except RequestSizeException as error:
            self._isSent = False
            raise MetadataError(f"a change of the metadata: {error}") from error
        self._isSent = False
        self._know(head, results[0].version)
        self._remember(number, change)
        return True


async def createCluster(zookeeper: IZookeeper, operations: Sequence[ZookeeperOperation]) -> bool:
    """
    Make a cluster, in one transaction.

    @param operations: L{clusterNodes}, and what comes behind.
    @return: whether there was none. After a lost connection that is found by looking: C{False} may
        be said of the own one.
    @raise ZookeeperError: no answer came, or ZooKeeper refused.
    """
    for triesLeft in reversed(range(TRY_COUNT)):
        try:
            await createParents(zookeeper, ROOT)
            await zookeeper.multi(operations)
            return True
        except MultiFailedException as error:
            if not isinstance(error.reason, NodeExistsException):
                raise
            return False
        except ConnectionLossException:
            if not triesLeft:
                raise
    raise AssertionError("unreachable")


def _image(path: str, records: bytes) -> MetadataImage:
    """
    What a snapshot says.

    @raise MetadataError: it cannot be understood; the text names it.
    """
    made = MetadataImage()
    try:
        made.applyAll(decodeRecords(records))
    except MetadataError as error:
        raise MetadataError(f"{path}: {error}") from error
    return made


def clusterNodes(head: Head) -> list[ZookeeperOperation]:
    """What makes a cluster; its changes or its snapshot come behind."""
    return [
        CreateOperation(ROOT, encodeRoot()),
        CreateOperation(BROKERS),
        CreateOperation(BROKER_IDS),
        CreateOperation(CONTROLLER_EPOCH, b"0"),
        CreateOperation(HEAD, head.encode()),
        CreateOperation(CHANGES),
        CreateOperation(SNAPSHOTS),
    ]
