"""
One member of a group: carries out what L{pylogbroker.consumer.rebalance.Rebalance} decides, one effect at a time.

It registers and watches, looks, claims and lets go, starts and stops fetching, and tells the state machine what came of it. An effect that a session's
end has overtaken is cancelled, and its answer counts no more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.cluster.paths import GroupPaths
from pylogbroker.cluster.subscription import ISubscription
from pylogbroker.config.consumersettings import ConsumerSettings
from pylogbroker.consumer.childwatches import ChildWatches
from pylogbroker.consumer.consumedoffsets import Positions
from pylogbroker.consumer.fetchermanager import FetcherManager
from pylogbroker.consumer.groupstate import GroupStateReader
from pylogbroker.consumer.partitionowners import PartitionOwners
from pylogbroker.consumer.rebalance import (
    Answer,
    Assignment,
    BackOff,
    Claim,
    Claimed,
    DropAll,
    Effect,
    Failed,
    Fetch,
    Finish,
    GroupRead,
    ReadGroup,
    Rebalance,
    Release,
    Released,
    State,
)
from pylogbroker.errors import PylogbrokerError, RebalanceFailedError, ZookeeperError
from pylogbroker.interfaces import IZookeeper, SessionEvent
from pylogbroker.net.timer import Timer
from pylogbroker.types import PartitionId
from pylogbroker.zookeeper.ephemeral import claim

Commit = Callable[[Callable[[], Collection[PartitionId]]], Awaitable[None]]
"""Stores the positions of places as well as it can; does not fail."""


class Member:
    """
    A member, from its registration to its end.

    @ivar isHalted: whether it takes part no more.
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        settings: ConsumerSettings,
        zookeeper: IZookeeper,
        consumerId: str,
        fetchers: FetcherManager,
        positions: Positions,
        commit: Commit,
    ) -> None:
        """
        @param commit: called before partitions are let go of, with C{autocommit.enable}.
        """
        self.isHalted = False
        self._settings = settings
        self._zookeeper = zookeeper
        self._consumerId = consumerId
        groupPaths = GroupPaths(settings.group)
        self._path = groupPaths.consumer(consumerId)
        self._fetchers = fetchers
        self._positions = positions
        self._commit = commit
        self._rebalance = Rebalance(consumerId, settings.rebalanceRetryCountMax)
        self._watches = ChildWatches(zookeeper, self._changed)
        self._lookout = GroupStateReader(zookeeper, self._watches, groupPaths, consumerId)
        self._ownership = PartitionOwners(zookeeper, self._watches, groupPaths, consumerId)
        self._subscription: ISubscription | None = None
        self._work: Deferred[Answer] | None = None
        self._brokenOffCount = 0
        self._registering: Deferred[None] | None = None
        self._owed: dict[PartitionId, int] = {}  # let go of, and in which session
        self._backOffTimer = Timer(clock)
        self._settled: Deferred[None] | None = None
        self._finished: Deferred[None] | None = None
        self._removeListener: Callable[[], None] | None = None

    @property
    def state(self) -> State:
        """How far it is."""
        return self._rebalance.state

    @property
    def owned(self) -> Assignment:
        """The partitions that it has now, and the thread of each. Not to be changed."""
        return self._rebalance.owned

    # -- the beginning and the end ------------------------------------------------------------------------------------

    async def register(self, subscription: ISubscription) -> None:
        """
        Be seen by the others.

        @raise ZookeeperError: it cannot be; nothing has changed then.
        """
        self._subscription = subscription
        self._removeListener = self._zookeeper.add_session_listener(self._sessionChanged)
        try:
            await claim(self._zookeeper, self._path, subscription.encode())
        except ZookeeperError:
            if not self.isHalted:
                self._removeListener()
                self._subscription = self._removeListener = None
            raise

    def begin(self) -> Deferred[None]:
        """
        Take part.

        @return: fires when it has its share for the first time. Fails with L{RebalanceFailedError} when C{rebalance.retries.max} attempts came to
            nothing; it goes on trying.
        """
        settled: Deferred[None] = Deferred(lambda _settled: setattr(self, "_settled", None))
        self._settled = settled
        self._carryOut(self._rebalance.started())
        return settled

    def halt(self) -> Deferred[None] | None:
        """
        Take part no more; C{leave} is to follow.

        @return: what C{begin} returned, if it has not fired: its owner's from now on.
        """
        self.isHalted = True
        self._backOffTimer.stop()
        self._cancelWork()
        settled, self._settled = self._settled, None
        return settled

    async def leave(self, isSessionOver: bool) -> None:
        """
        Let go of all partitions, and be gone for the others.

        @param isSessionOver: the session ends soon, and takes the registration with it.
        """
        if self._rebalance.state is not State.IDLE:
            self._finished = Deferred()
            self._carryOut(self._rebalance.stopped())
            await self._finished
        if self._removeListener is not None:
            self._removeListener()
            if not isSessionOver:
                try:
                    await self._ownership.deleteIfOwned(self._path)
                except ZookeeperError as error:
                    self._log.warn(
                        "{consumerId} stays registered until its session ends: {error}",
                        consumerId=self._consumerId,
                        error=error,
                    )
        self._watches.cancel()

    # -- the session --------------------------------------------------------------------------------------------------

    def _sessionChanged(self, event: SessionEvent) -> None:
        state = self._rebalance.state
        if state is State.IDLE:
            return
        if event in (SessionEvent.EXPIRED, SessionEvent.CLOSED):
            if state is not State.STOPPING:
                self._log.warn(
                    "{consumerId}: the session with ZooKeeper is over, and others may have our partitions",
                    consumerId=self._consumerId,
                )
                self._cancelWork()
            self._carryOut(self._rebalance.expired())
        elif event is SessionEvent.CONNECTED:
            if state is State.SUSPENDED:
                self._registerAnew()
            else:
                self._carryOut(self._rebalance.connected())

    def _registerAnew(self) -> None:
        """In a new session."""
        if self._registering is None and self._subscription is not None:
            self._registering = registering = Deferred.fromCoroutine(
                claim(self._zookeeper, self._path, self._subscription.encode())
            )
            registering.addCallbacks(
                self._registered,
                self._notRegistered,
                callbackArgs=(registering,),
                errbackArgs=(registering,),
            )

    def _registered(self, _result: None, registering: Deferred[None]) -> None:
        if self._registering is registering:
            self._registering = None
            self._carryOut(self._rebalance.connected())

    def _notRegistered(self, failure: Failure, registering: Deferred[None]) -> None:
        if self._registering is not registering:
            return
        self._registering = None
        self._log.warn(
            "{consumerId} cannot register in ZooKeeper: {reason}",
            consumerId=self._consumerId,
            reason=failure.getErrorMessage(),
        )
        self._backOffTimer.start(self._settings.rebalanceBackoffMs, self._tryAgainToRegister)

    def _tryAgainToRegister(self) -> None:
        if self._rebalance.state is State.SUSPENDED:
            self._registerAnew()

    # -- effects ------------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._carryOut(self._rebalance.changed())

    def _woken(self) -> None:
        self._carryOut(self._rebalance.woken())

    def _carryOut(self, effects: list[Effect]) -> None:
        isSettled = False
        for effect in effects:
            if self.isHalted and not isinstance(effect, Release | Finish):
                return  # an application that was told of the effect before has stopped us
            if isinstance(effect, ReadGroup):
                self._backOffTimer.stop()
                self._begin(self._look())
            elif isinstance(effect, Release):
                self._begin(self._release(effect.share))
            elif isinstance(effect, Claim):
                self._begin(self._claim(effect.share))
            elif isinstance(effect, Fetch):
                self._fetchers.fetch(effect.share, effect.brokers)
                isSettled = True
            elif isinstance(effect, BackOff):
                self._backOff(effect, isSettled)
            elif isinstance(effect, DropAll):
                self._fetchers.letGo(self._fetchers.places)
                self._owed.clear()
                self._backOffTimer.stop()
            elif self._finished is not None:  # Finish
                self._finished.callback(None)
        if isSettled and self._settled is not None:
            settled, self._settled = self._settled, None
            settled.callback(None)

    def _begin(self, work: Coroutine[Any, Any, Answer]) -> None:
        self._work = doing = Deferred.fromCoroutine(work)
        doing.addErrback(self._workFailed)
        doing.addCallback(self._workDone, doing)

    def _workFailed(self, failure: Failure) -> Answer:
        if not failure.check(PylogbrokerError, CancelledError):
            self._log.failure(
                "{consumerId}: a step of a rebalance failed in a way that nobody foresaw",
                failure,
                consumerId=self._consumerId,
            )
        return Failed(failure.getErrorMessage() or repr(failure.value))

    def _workDone(self, answer: Answer, doing: Deferred[Answer]) -> None:
        if self._work is doing:
            self._work = None
            self._carryOut(self._effectsOf(answer))

    def _effectsOf(self, answer: Answer) -> list[Effect]:
        """Of an answer that cannot be dealt with: those of a failure. A member must not stay where it is for ever."""
        try:
            return self._rebalance.answered(answer)
        except Exception:
            return self._rebalance.answered(self._workFailed(Failure()))

    def _cancelWork(self) -> None:
        self._brokenOffCount += 1
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
        registering, self._registering = self._registering, None
        if registering is not None:
            registering.cancel()

    def _backOff(self, effect: BackOff, isSettled: bool) -> None:
        waitMs = effect.factor * self._settings.rebalanceBackoffMs
        text = "{consumerId}: attempt {attempt} to rebalance failed: {reason}. The next is in {waitMs} ms"
        isLast = effect.attempt >= self._settings.rebalanceRetryCountMax
        (self._log.error if isLast else self._log.info)(
            text,
            consumerId=self._consumerId,
            attempt=effect.attempt,
            reason=effect.reason,
            waitMs=waitMs,
        )
        self._backOffTimer.start(waitMs, self._woken)
        settled = self._settled
        if isLast and settled is not None and not isSettled:
            self._settled = None
            settled.errback(
                RebalanceFailedError(
                    f"{self._consumerId}: {effect.attempt} attempts to rebalance failed, the last one: {effect.reason}"
                )
            )

    async def _look(self) -> Answer:
        assert self._subscription is not None
        view = await self._lookout.look(self._subscription)
        return GroupRead(view, await self._ownership.missing(self._rebalance.owned))

    async def _release(self, share: Assignment) -> Answer:
        if share:
            session = self._zookeeper.session_id
            self._owed.update(
                {place: session for place in self._fetchers.positionedPartitions if place in share}
            )
            self._fetchers.letGo(share)
            if self._settings.autoCommit:
                brokenOffCount = self._brokenOffCount
                await self._commit(lambda: self._owedPlaces(share))
                if self._brokenOffCount != brokenOffCount:
                    # A commit that is cancelled may end as if all were well. Who finds an owner's node gone takes the position for stored.
                    raise CancelledError()
            await self._ownership.disown(share)
            self._positions.forget(
                [place for place in share if self._owed.pop(place, None) is not None]
            )
        return Released()

    def _owedPlaces(self, share: Assignment) -> list[PartitionId]:
        """
        Those of a share that we have read and let go of, and whose positions may not be stored yet: a release can be broken off, and begun again. Of others the
        position may be an old one, kept from an earlier session; and once the session is over, those who have the partitions now store theirs.
        """
        session = self._zookeeper.session_id
        return [place for place, each in self._owed.items() if each == session and place in share]

    async def _claim(self, share: Assignment) -> Answer:
        return Claimed(await self._ownership.claim(share))
