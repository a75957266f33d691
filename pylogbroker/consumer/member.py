"""
The executor of one group member's effects. A module of its own, since C{rebalance} decides without
I/O and this module does the I/O.

Effects run one at a time, and their results go back to L{pylogbroker.consumer.rebalance.Rebalance}.
The end of a session cancels a running effect, whose result is ignored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.subscription import ISubscription
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.consumer.fetchermanager import FetcherManager
from pylogbroker.consumer.groupstate import GroupNodes, GroupWatches
from pylogbroker.consumer.offsetstores import ConsumedOffsets
from pylogbroker.consumer.rebalance import (
    Assignment,
    BackOff,
    Claim,
    Claimed,
    DropAll,
    Effect,
    EffectResult,
    Failed,
    FetchOnly,
    GroupRead,
    Leave,
    ReadGroup,
    Rebalance,
    Release,
    Released,
    State,
)
from pylogbroker.errors import PylogbrokerError, RebalanceFailedError, ZookeeperError
from pylogbroker.interfaces import IZookeeper, SessionEvent
from pylogbroker.net.deferreds import Waiters
from pylogbroker.net.timer import Timer
from pylogbroker.types import PartitionId

Commit = Callable[[Callable[[], Collection[PartitionId]]], Awaitable[None]]
"""Stores the positions of partitions as far as possible; does not fail."""


class Member:
    """A member of a group, from its registration until it has left."""

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        settings: ConsumerSettings,
        zookeeper: IZookeeper,
        consumerId: str,
        fetchers: FetcherManager,
        offsets: ConsumedOffsets,
        commit: Commit,
    ) -> None:
        """@param commit: called before partitions are released, with C{autocommit.enable}."""
        self.isStopped = False
        self._clock = clock
        self._settings = settings
        self._zookeeper = zookeeper
        self._consumerId = consumerId
        self._fetchers = fetchers
        self._offsets = offsets
        self._commit = commit
        self._rebalance = Rebalance(consumerId, settings.rebalanceRetriesMax)
        self._watches = GroupWatches(zookeeper, lambda: self._execute(self._rebalance.changed()))
        self._nodes = GroupNodes(zookeeper, self._watches, GroupPaths(settings.groupId), consumerId)
        self._subscription: ISubscription | None = None
        self._running: Deferred[EffectResult] | None = None
        self._cancelCount = 0
        self._registering: Deferred[Any] | None = None
        # Released and perhaps not committed yet, with the session in which that was.
        self._uncommitted: dict[PartitionId, int] = {}
        self._backOffTimer = Timer(clock)
        self._joined: Waiters[None] = Waiters()
        self._finished: Deferred[None] | None = None
        self._removeListener: Callable[[], None] | None = None

    @property
    def state(self) -> State:
        return self._rebalance.state

    @property
    def owned(self) -> Assignment:
        """This member's partitions, with their threads. Do not change it."""
        return self._rebalance.owned

    # -- joining and leaving

    async def register(self, subscription: ISubscription) -> None:
        """
        Create the member's node, which the other members see.

        @raise ZookeeperError: that failed; nothing has changed.
        """
        self._subscription = subscription
        self._removeListener = self._zookeeper.add_session_listener(self._sessionChanged)
        try:
            await self._nodes.register(subscription)
        except ZookeeperError:
            if not self.isStopped:
                self._removeListener()
                self._subscription = self._removeListener = None
            raise

    def join(self) -> Deferred[None]:
        """
        Begin to rebalance.

        @return: fires when this member first has its partitions. Fails with L{RebalanceFailedError}
            after C{rebalance.retries.max} attempts; the member keeps trying.
        """
        joined = self._joined.wait()
        self._execute(self._rebalance.started())
        return joined

    def stop(self) -> None:
        """Stop rebalancing; call C{leave} next, then C{failJoin}."""
        self.isStopped = True
        self._backOffTimer.stop()
        self._cancelRunning()

    def failJoin(self, error: PylogbrokerError) -> None:
        """Fail the Deferred of C{join}, if it has not fired."""
        self._joined.fire(Failure(error))

    async def leave(self, isSessionOver: bool) -> None:
        """
        Release all partitions and delete the member's node.

        @param isSessionOver: whether the session ends soon, and the node with it.
        """
        if self._rebalance.state is not State.IDLE:
            self._finished = Deferred()
            self._execute(self._rebalance.stopped())
            await self._finished
        if self._removeListener is not None:
            self._removeListener()
            if not isSessionOver:
                try:
                    await self._nodes.unregister()
                except ZookeeperError as error:
                    self._log.warn(
                        "{consumerId} stays registered until its session ends: {error}",
                        consumerId=self._consumerId,
                        error=error,
                    )
        self._watches.cancelAll()

    # -- the session

    def _sessionChanged(self, event: SessionEvent) -> None:
        state = self._rebalance.state
        if state is State.IDLE:
            return
        if event in (SessionEvent.EXPIRED, SessionEvent.CLOSED):
            if state is not State.STOPPING:
                self._log.warn(
                    "{consumerId}: the ZooKeeper session is over, and other members may have our "
                    "partitions",
                    consumerId=self._consumerId,
                )
                self._cancelRunning()
            self._execute(self._rebalance.expired())
        elif event is SessionEvent.CONNECTED:
            if state is not State.SUSPENDED:
                self._execute(self._rebalance.connected())
            elif self._registering is None and self._subscription is not None:
                self._registering = Deferred.fromCoroutine(self._registerAgain(self._subscription))
                self._registering.addErrback(lambda failure: failure.trap(CancelledError))

    async def _registerAgain(self, subscription: ISubscription) -> None:
        while True:
            try:
                await self._nodes.register(subscription)
                break
            except ZookeeperError as error:
                self._log.warn(
                    "{consumerId} cannot register in ZooKeeper: {reason}",
                    consumerId=self._consumerId,
                    reason=error,
                )
            await deferLater(self._clock, self._settings.rebalanceBackoffMs / 1000)
        self._registering = None
        self._execute(self._rebalance.connected())

    # -- effects

    def _execute(self, effects: list[Effect]) -> None:
        isFetching = False
        for effect in effects:
            if self.isStopped and not isinstance(effect, Release | Leave):
                return  # the application has stopped us when it saw an earlier effect
            match effect:
                case Release():
                    self._run(self._release(effect.assignment))
                case ReadGroup():
                    self._backOffTimer.stop()
                    self._run(self._readGroup())
                case Claim():
                    self._run(self._claim(effect.assignment))
                case FetchOnly():
                    self._fetchers.fetch(effect.assignment, effect.brokers)
                    isFetching = True
                case BackOff():
                    self._backOff(effect, isFetching)
                case DropAll():
                    self._fetchers.remove(self._fetchers.partitions)
                    self._uncommitted.clear()
                    self._backOffTimer.stop()
                case Leave() if self._finished is not None:
                    self._finished.callback(None)
        if isFetching:
            self._joined.fire(None)

    def _run(self, effect: Coroutine[Any, Any, EffectResult]) -> None:
        self._running = running = Deferred.fromCoroutine(effect)
        running.addErrback(self._failed)
        running.addCallback(self._completed, running)

    def _failed(self, failure: Failure) -> EffectResult:
        if not failure.check(PylogbrokerError, CancelledError):
            self._log.failure(
                "{consumerId}: a rebalance failed unexpectedly: this is a bug",
                failure,
                consumerId=self._consumerId,
            )
        return Failed(failure.getErrorMessage() or repr(failure.value))

    def _completed(self, result: EffectResult, running: Deferred[EffectResult]) -> None:
        if self._running is not running:
            return
        self._running = None
        try:
            effects = self._rebalance.completed(result)
        except Exception:  # or the member would stay in this state for ever
            effects = self._rebalance.completed(self._failed(Failure()))
        self._execute(effects)

    def _cancelRunning(self) -> None:
        self._cancelCount += 1
        running, self._running = self._running, None
        registering, self._registering = self._registering, None
        for each in (running, registering):
            if each is not None:
                each.cancel()

    def _backOff(self, effect: BackOff, isFetching: bool) -> None:
        waitMs = effect.factor * self._settings.rebalanceBackoffMs
        isLast = effect.attempt >= self._settings.rebalanceRetriesMax
        (self._log.error if isLast else self._log.info)(
            "{consumerId}: attempt {attempt} to rebalance failed: {reason}. The next is in "
            "{waitMs} ms",
            consumerId=self._consumerId,
            attempt=effect.attempt,
            reason=effect.reason,
            waitMs=waitMs,
        )
        self._backOffTimer.start(waitMs, lambda: self._execute(self._rebalance.backoffElapsed()))
        if isLast and not isFetching:
            self.failJoin(
                RebalanceFailedError(
                    f"{self._consumerId}: {effect.attempt} attempts to rebalance failed, the last "
                    f"one: {effect.reason}"
                )
            )

    async def _readGroup(self) -> EffectResult:
        assert self._subscription is not None
        state = await self._nodes.read(self._subscription)
        return GroupRead(state, await self._nodes.missing(self._rebalance.owned))

    async def _release(self, assignment: Assignment) -> EffectResult:
        if assignment:
            session = self._zookeeper.session_id
            self._uncommitted.update(
                {
                    partition: session
                    for partition in self._fetchers.positionedPartitions
                    if partition in assignment
                }
            )
            self._fetchers.remove(assignment)
            if self._settings.autoCommitEnable:
                cancelCount = self._cancelCount
                await self._commit(lambda: self._uncommittedOf(assignment))
                if self._cancelCount != cancelCount:
                    # A cancelled commit may end as if it had succeeded. The next owner takes a
                    # partition without an owner node for one whose position is stored.
                    raise CancelledError()
            await self._nodes.release(assignment)
            self._offsets.forget(
                [each for each in assignment if self._uncommitted.pop(each, None) is not None]
            )
        return Released()

    def _uncommittedOf(self, assignment: Assignment) -> list[PartitionId]:
        """
        Partitions that were read, released and perhaps not committed: a release may be cancelled
        and executed again. In a later session their positions are old, and their next owners store
        newer ones.
        """
        session = self._zookeeper.session_id
        return [
            partition
            for partition, each in self._uncommitted.items()
            if each == session and partition in assignment
        ]

    async def _claim(self, assignment: Assignment) -> EffectResult:
        return Claimed(await self._nodes.claim(assignment))
