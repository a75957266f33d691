"""
L{ControllerService}: carries out what the controller of a cluster decides
(L{pylogbroker.replication.controller}), on the one broker that is the controller. A module of its
own, since a broker registers without it.

The controller is the broker whose session owns
L{pylogbroker.cluster.kafka.metadatalog.CONTROLLER}. A broker that becomes it increments the
I{controller epoch} in the same transaction; each change that the controller writes requires that
the epoch is still this one. So a controller that was replaced unnoticed changes nothing any more.
A broker that cannot follow the metadata gives it up.

It looks at the nodes of the brokers whenever they change, and again when the metadata name a broker
without a node: the list may be older than that broker's registration. What follows from a list is
decided on the latest image; a list of records that is too large for one change is continued.

At an interval it gives partitions back to their preferred leaders, where a broker leads too few of
those that prefer it, as after its restart.

It also writes snapshots (L{pylogbroker.broker.metadata.snapshots}).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.broker.metadata.snapshots import isSnapshotDue, writeSnapshot
from pylogbroker.broker.metadata.zookeeperlog import ZookeeperLog
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.kafka.metadatalog import (
    BROKER_IDS,
    CONTROLLER,
    CONTROLLER_EPOCH,
    beginningOf,
    brokerIds,
    decodeEpoch,
    encodeController,
)
from pylogbroker.cluster.metadataimage import FenceBrokerRecord, MetadataImage, Record
from pylogbroker.errors import (
    ClosingException,
    MetadataError,
    MultiFailedException,
    PylogbrokerError,
    ZookeeperError,
)
from pylogbroker.interfaces import (
    EPHEMERAL,
    CheckOperation,
    CreateOperation,
    SetOperation,
    ZookeeperOperation,
)
from pylogbroker.net.deferreds import Waiters, asDeferred
from pylogbroker.net.timer import Timer, wallMs
from pylogbroker.net.workers import IWorker
from pylogbroker.replication.controller import electPreferred, fenceAbsent, settle
from pylogbroker.retry import RETRY_INTERVAL_MS
from pylogbroker.types import formatCount

ELECTION_COUNT_MAX = 1_000
"""Partitions that get their preferred leaders in one change."""

log = Logger()


class LeaderBalance(NamedTuple):
    """
    When partitions go back to their preferred leaders.

    @ivar intervalMs: C{leader.imbalance.check.interval.seconds}; 0: never, since
        C{auto.leader.rebalance.enable} says so.
    @ivar imbalanceMax: C{leader.imbalance.per.broker.percentage}.
    """

    intervalMs: int
    imbalanceMax: int


class ControllerService:
    """
    A broker as the controller, or as a candidate; the module states the rules.

    @ivar epoch: the controller epoch while this broker is the controller, as far as it knows; 0
        otherwise.
    """

    def __init__(
        self,
        clock: Any,
        metadataLog: ZookeeperLog,
        metadata: MetadataManager,
        brokerId: int,
        worker: IWorker,
        balance: LeaderBalance,
    ) -> None:
        """
        @param metadataLog: open.
        @param worker: encodes snapshots.
        """
        self.epoch = 0
        self._clock = clock
        self._log = metadataLog
        self._zookeeper = metadataLog.zookeeper
        self._metadata = metadata
        self._brokerId = brokerId
        self._worker = worker
        self._balance = balance
        self._isBalanceDue = False
        self._balanceTimer = Timer(clock)
        self._present: set[int] = set()
        self._woken: Waiters[None] = Waiters()
        self._isWoken = False
        self._isStopped = False
        self._isListening = False

    def start(self) -> None:
        """Become the controller when there is none."""
        if not self._isListening:
            self._isListening = True
            self._metadata.listen(self._changed)
        self._run().addErrback(
            lambda failure: log.failure("The controller failed: this is a bug", failure)
        )

    def stop(self) -> None:
        """Decide no more. Closing the client lets another broker become the controller."""
        self._isStopped = True
        self._wake()

    def _wake(self, _result: object = None) -> None:
        self._isWoken = True
        self._woken.fire(None)

    def _watchFailed(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._wake()  # the next request says why

    async def _sleep(self) -> None:
        """Until C{_wake} was called since the last return."""
        while not self._isWoken:
            await self._woken.wait()
        self._isWoken = False

    def _changed(self) -> None:
        if self.epoch and (self._isSnapshotDue or self._isSomeAbsent):
            self._wake()

    @property
    def _isSomeAbsent(self) -> bool:
        return any(
            not each.isFenced and each.brokerId not in self._present
            for each in self._metadata.image.brokers.values()
        )

    @property
    def _isSnapshotDue(self) -> bool:
        return isSnapshotDue(self._log, self._metadata)

    @asDeferred
    async def _run(self) -> None:
        while not self._isStopped:
            try:
                await self._lead(await self._campaign())
            except ClosingException:
                return
            except MultiFailedException as error:
                log.info(
                    "Broker {brokerId} is not the controller any more: {error}",
                    brokerId=self._brokerId,
                    error=error,
                )
            except MetadataError:
                await self._giveUp()
                return
            except PylogbrokerError as error:
                if not self._isStopped:
                    log.warn("The controller was interrupted: {error}", error=error)
            finally:
                self.epoch = 0
            await self._log.pause(RETRY_INTERVAL_MS)

    async def _campaign(self) -> int:
        """
        Become the controller.

        @return: the ZooKeeper version of the controller epoch; -1 after C{stop}.
        """
        while not self._isStopped:
            looking, changed = self._zookeeper.exists_and_watch(CONTROLLER)
            changed.addCallbacks(self._wake, self._watchFailed)
            self._isWoken = False
            stat = await looking
            data, epochStat = await self._zookeeper.get(CONTROLLER_EPOCH)
            epoch = decodeEpoch(data)
            if stat is None:
                changed.cancel()
                node = encodeController(self._brokerId, wallMs(self._clock))
                try:
                    await self._zookeeper.multi(
                        [
                            CreateOperation(CONTROLLER, node, None, EPHEMERAL),
                            SetOperation(
                                CONTROLLER_EPOCH, str(epoch + 1).encode(), epochStat.version
                            ),
                        ]
                    )
                except MultiFailedException:
                    pass  # another one was faster; the next look tells
            elif stat.ephemeralOwner == self._zookeeper.session_id:
                self.epoch = epoch
                log.info(
                    "Broker {brokerId} is the controller, in epoch {epoch}",
                    brokerId=self._brokerId,
                    epoch=epoch,
                )
                return int(epochStat.version)
            else:
                await self._sleep()
        return -1

    async def _lead(self, version: int) -> None:
        self._expectBalance()
        try:
            await self._leadOn([CheckOperation(CONTROLLER_EPOCH, version)])
        finally:
            self._balanceTimer.stop()

    def _expectBalance(self) -> None:
        self._isBalanceDue = False
        if self._balance.intervalMs:
            self._balanceTimer.start(self._balance.intervalMs, self._balanceIsDue)

    def _balanceIsDue(self) -> None:
        self._isBalanceDue = True
        self._wake()

    async def _leadOn(self, guard: Sequence[ZookeeperOperation]) -> None:
        while not self._isStopped:
            self._isWoken = False
            looking, replaced = self._zookeeper.exists_and_watch(CONTROLLER)
            replaced.addCallbacks(self._wake, self._watchFailed)
            changed: Deferred[Any] | None = None
            try:
                stat = await looking
                if stat is None or stat.ephemeralOwner != self._zookeeper.session_id:
                    return
                await self._zookeeper.sync(BROKER_IDS)
                listedAt = self._metadata.position
                listing, changed = self._zookeeper.get_children_and_watch(BROKER_IDS)
                changed.addCallbacks(self._wake, self._watchFailed)
                self._present = brokerIds(await listing)
                await self._carryOut(listedAt, guard)
                if self._isBalanceDue:
                    await self._balanceLeaders(guard)
                if self._isSnapshotDue:
                    await writeSnapshot(self._log, self._metadata, self._worker, guard)
                await self._sleep()
            finally:
                replaced.cancel()
                if changed is not None:
                    changed.cancel()

    async def _carryOut(self, listedAt: int, guard: Sequence[ZookeeperOperation]) -> None:
        present = self._present

        def decide(image: MetadataImage) -> tuple[list[Record], list[Record]]:
            records = beginningOf(fenceAbsent(image, present, listedAt) or settle(image))
            return records, records

        while records := await self._metadata.change(decide, guard):
            fenced = [each.brokerId for each in records if isinstance(each, FenceBrokerRecord)]
            if fenced:
                log.warn(
                    "Fenced the brokers {brokers}, which are gone; what they led is led by others,"
                    " or has no leader",
                    brokers=", ".join(map(str, fenced)),
                )

    async def _balanceLeaders(self, guard: Sequence[ZookeeperOperation]) -> None:
        """Some partitions at a time; what a share that is small enough then leaves, stays."""
        self._expectBalance()

        def decide(image: MetadataImage) -> tuple[list[Record], int]:
            records = electPreferred(image, self._balance.imbalanceMax)
            some = beginningOf(records[:ELECTION_COUNT_MAX])
            return some, len(some)

        total = 0
        while count := await self._metadata.change(decide, guard):
            total += count
        if total:
            log.info(
                "{partitions} went back to their preferred leaders",
                partitions=formatCount(total, "partition"),
            )

    async def _giveUp(self) -> None:
        try:
            looking = await self._zookeeper.exists(CONTROLLER)
            if looking is not None and looking.ephemeralOwner == self._zookeeper.session_id:
                await self._zookeeper.delete(CONTROLLER)
        except ZookeeperError:
            pass  # it goes with the session
