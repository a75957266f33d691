"""
Group commit: transactions wait until the log is free; then all that wait are one batch, with one
sync. The log belongs to a worker of one thread, so that the reactor never waits for the disk. It is
a module of its own, since it knows no session and no request.

A snapshot is a copy of the tree that another worker writes. It gets its name when the log is synced
up to its transaction (L{pylogbroker.zookeeper.server.transactionlog}). A stop writes one, too, if
the next start had much to read otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import StorageError
from pylogbroker.zookeeper.server.transactionlog import Entry, Snapshot, TransactionLog

OUTSTANDING_COUNT_MAX = 1_000
"""Transactions that wait for the disk, as ZooKeeper's C{globalOutstandingLimit}."""

OUTSTANDING_SIZE_MAX = 16 << 20
SNAPSHOT_RETRY_MS = 60_000

Submit = Callable[[Callable[[], Any]], Deferred[Any]]


class GroupCommit:
    """
    The writer of a server's L{TransactionLog}.

    @ivar zxid: the last transaction that was handed in.
    @ivar syncedZxid: the last one that is synced.
    @ivar outstandingCount: transactions between the two.
    @ivar hasFailed: whether the log could not be written: nothing is synced any more.
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        log: TransactionLog,
        submit: Submit,
        submitSnapshot: Submit,
        takeSnapshot: Callable[[], Snapshot],
        onSynced: Callable[[], object],
        onFailed: Callable[[Failure], object],
    ) -> None:
        """
        @param submit: runs a function on the log's worker, which has one thread.
        @param submitSnapshot: runs a function on another worker.
        @param takeSnapshot: copies the tree, as of C{zxid}.
        @param onSynced: C{syncedZxid} has grown.
        @param onFailed: called once, with the reason.
        """
        self.zxid = self.syncedZxid = 0
        self.outstandingCount = 0
        self.hasFailed = False
        self._clock = clock
        self._transactionLog = log
        self._submit = submit
        self._submitSnapshot = submitSnapshot
        self._takeSnapshot = takeSnapshot
        self._onSynced = onSynced
        self._onFailed = onFailed
        self._pending: list[Entry] = []
        self._outstandingSize = 0
        self._turn: Any = None
        self._isWriting = False
        self._isSnapshotting = False
        self._snapshotNotBefore = 0.0
        self._isStopping = False
        self._waiters: list[tuple[int, Deferred[None]]] = []
        self._idleWaiters: list[Deferred[None]] = []

    @property
    def isFull(self) -> bool:
        """Whether clients must wait until something is synced."""
        return (
            self.outstandingCount >= OUTSTANDING_COUNT_MAX
            or self._outstandingSize >= OUTSTANDING_SIZE_MAX
        )

    def begin(self, zxid: int) -> None:
        """The log was opened, and has transactions up to C{zxid}."""
        self.zxid = self.syncedZxid = zxid

    def append(self, zxid: int, entry: Entry) -> None:
        """Hand in the next transaction."""
        self.zxid = zxid
        self._pending.append(entry)
        self.outstandingCount += 1
        self._outstandingSize += len(entry.data)
        if self._turn is None and not self._isWriting:
            self._turn = self._clock.callLater(0, self._write)

    def _write(self) -> None:
        self._turn = None
        entries, self._pending = self._pending, []
        size = sum(len(each.data) for each in entries)
        self._isWriting = True
        self._submit(partial(self._transactionLog.append, entries)).addCallbacks(
            self._onWritten, self._fail, (self.zxid, len(entries), size)
        ).addErrback(self._fail)

    def _onWritten(self, _result: None, zxid: int, count: int, size: int) -> None:
        self._isWriting = False
        self.syncedZxid = zxid
        self.outstandingCount -= count
        self._outstandingSize -= size
        if self._pending:
            self._write()
        self._onSynced()
        self._fireWaiters()
        isDue = self._transactionLog.isSnapshotDue and not self._isStopping
        if isDue and not self._isSnapshotting and self._clock.seconds() >= self._snapshotNotBefore:
            self._isSnapshotting = True
            Deferred.fromCoroutine(self._snapshot()).addErrback(self._fail)

    def _fail(self, failure: Failure) -> None:
        self._isWriting = False
        if not self.hasFailed:
            self.hasFailed = True
            self._onFailed(failure)
        self._fireWaiters()

    def _fireWaiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for zxid, waiter in waiters:
            if zxid <= self.syncedZxid or self.hasFailed:
                waiter.callback(None)
            else:
                self._waiters.append((zxid, waiter))
        if not self._isWriting and not self._isSnapshotting:
            idle, self._idleWaiters = self._idleWaiters, []
            for each in idle:
                each.callback(None)

    async def _snapshot(self) -> None:
        snapshot = self._takeSnapshot()
        try:
            write = partial(self._transactionLog.writeSnapshot, snapshot)
            size = await self._submitSnapshot(write)
            if snapshot.zxid > self.syncedZxid:
                synced: Deferred[None] = Deferred()
                self._waiters.append((snapshot.zxid, synced))
                await synced
            if not self.hasFailed:
                name = partial(self._transactionLog.nameSnapshot, snapshot.zxid, size)
                await self._submit(name)
                self._log.info("A snapshot has transaction {zxid:#x}", zxid=snapshot.zxid)
        except StorageError as error:
            self._snapshotNotBefore = self._clock.seconds() + SNAPSHOT_RETRY_MS / 1000
            self._log.error(
                "A snapshot could not be written, so that the log grows: {reason}", reason=error
            )
        finally:
            self._isSnapshotting = False
            self._fireWaiters()

    async def stop(self) -> None:
        """
        Write what waits, a snapshot if it is worth its time, and close the log.

        @raise StorageError: the log could not be closed in order; the next start recovers it.
        """
        self._isStopping = True
        if self._turn is not None:
            self._turn.cancel()
            self._write()
        if self._isWriting or self._isSnapshotting:
            idle: Deferred[None] = Deferred()
            self._idleWaiters.append(idle)
            await idle
        if self._transactionLog.isLastSnapshotDue and not self.hasFailed:
            self._isSnapshotting = True
            await self._snapshot()
        await self._submit(self._transactionLog.close)
