"""
Stand-by copies of stores: a container follows the changelogs of tasks that others run. A module of
its own, since a container does without where C{num.standby.replicas} is 0.

What must be true:

  - A stand-by's stores have what was committed, and nothing of an aborted transaction. Changes and
  the position in the changelog are written in one batch, as by the task itself. So its task begins
  where the stand-by was, and reads only the rest.
  - The stores are open once: a stand-by that goes hands its engines over to its task in this
  container (L{StandbyTasks.release}), or closes them.
  - Stand-bys come behind the tasks that run: one batch at a time is on the worker that they share,
  and while tasks are at work stand-bys rest for L{REST_FACTOR} times as long as a batch took.
  - A stand-by that fails is opened again later, and built anew if its store is damaged. It stops no
  task.
  - A stand-by that is behind for longer than its changelog keeps deletions may have missed some,
  and is built anew. At the end of its changelog it is up to date; before, it is so only as of the
  timestamp of its last change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any, NamedTuple

from twisted.internet.defer import CancelledError, Deferred, DeferredLock, DeferredSemaphore
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.topics import LATEST
from pylogbroker.cluster.kafka.taskassignor import TaskStandbys
from pylogbroker.config.kafka.clientsettings import NO_RESET, KafkaConsumerSettings
from pylogbroker.consumer.kafka.consumer import ConsumerRecord, KafkaConsumer
from pylogbroker.errors import LogTruncatedError, OffsetOutOfRangeError, PylogbrokerError
from pylogbroker.net.timer import wallMs
from pylogbroker.net.workers import IWorker
from pylogbroker.tasks.inputs.queues import byPartition
from pylogbroker.tasks.job import Job, Store
from pylogbroker.tasks.restorer import ChangelogRestorer, changesOf
from pylogbroker.tasks.state.engines import IStoreEngine, closeEngines
from pylogbroker.tasks.topics import JobTopics
from pylogbroker.types import TopicPartition

BATCH_COUNT = 500
"""Changes that are written at a time: a task waits for no more."""

REST_FACTOR = 3
"""With it stand-bys take at most a quarter of the worker, while tasks are at work."""

OPENING_COUNT_MAX = 8
"""Changelogs whose ends are asked for at a time."""

LAG_CHECK_SECONDS = 1
"""How often the ends of changelogs are asked for."""

RETRY_SECONDS = 5
"""Before a stand-by that has failed is opened again."""

log = Logger()

OpenStore = Callable[[int, Store, dict[str, IStoreEngine]], Awaitable[IStoreEngine]]
"""Opens the store of a task, and puts its engine into a dictionary by the store's name."""


class StandbyStatus(NamedTuple):
    """
    A stand-by task, for people.

    @ivar isCurrent: whether a takeover would be fast.
    @ivar lag: changes that it lacks, at most; L{None}: not known yet.
    """

    partition: int
    isCurrent: bool
    lag: int | None


class _StandbyStore:
    """
    A store that is followed.

    @ivar offset: of the next change.
    @ivar end: of the changelog, when it was asked for last.
    @ivar currentAtMs: up to when it is known to have all changes, in milliseconds since the epoch.
    """

    def __init__(self, engine: IStoreEngine, offset: int, end: int, nowMs: float) -> None:
        self.engine = engine
        self.offset = offset
        self.end = end
        self.currentAtMs = nowMs

    @property
    def lag(self) -> int:
        return max(self.end - self.offset, 0)


class _Standby:
    """
    A task that this container follows.

    @ivar engines: of its stores, by name, as they are opened.
    @ivar stores: those that are followed, by their place in the changelog.
    @ivar isOpen: whether all of them are.
    @ivar opening: how that goes.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.engines: dict[str, IStoreEngine] = {}
        self.stores: dict[TopicPartition, _StandbyStore] = {}
        self.isOpen = False
        self.opening: Deferred[None] | None = None


class StandbyTasks:
    """
    The stand-bys of a container; the module states its promises.

    @ivar appliedCount: changes that stand-bys have got, all in all.
    """

    def __init__(
        self,
        reactor: Any,
        job: Job,
        topics: JobTopics,
        settings: KafkaConsumerSettings,
        admin: AdminClient,
        worker: IWorker,
        restorer: ChangelogRestorer,
        openStore: OpenStore,
        isBusy: Callable[[], bool],
        acceptableLag: int,
        onCurrent: Callable[[], object],
        random: Callable[[], float],
    ) -> None:
        """
        @param settings: of consumers that are no members of a group, and read what was committed.
        @param worker: what the engines run on.
        @param isBusy: whether tasks are at work.
        @param acceptableLag: a stand-by that lacks as many changes at most is up to date.
        @param onCurrent: called once when all awaited stand-bys of an assignment are up to date.
        """
        self.appliedCount = 0
        self._reactor = reactor
        self._job = job
        self._topics = topics
        self._admin = admin
        self._worker = worker
        self._restorer = restorer
        self._openStore = openStore
        self._isBusy = isBusy
        self._acceptableLag = acceptableLag
        self._onCurrent = onCurrent
        self._awaited: Collection[int] = ()
        self._standbys: dict[int, _Standby] = {}
        self._turn = DeferredLock()  # held while engines are written
        self._isClosed = False
        self._openings = DeferredSemaphore(OPENING_COUNT_MAX)
        # A position that is not in the log must be known: the store is built anew then.
        own = settings.replace(autoOffsetReset=NO_RESET, consumerTimeoutMs=-1)
        self._consumer = KafkaConsumer(reactor, own, random=random)
        self._working = [
            Deferred.fromCoroutine(work).addErrback(self._broken)
            for work in (self._follow(), self._watch())
        ]

    # -- what is followed

    def follow(self, owned: Collection[int], standbys: TaskStandbys) -> None:
        """
        Follow these tasks, and no others.

        @param owned: tasks that this container has, or is about to have: their stand-bys go on
            until L{release}.
        """
        if self._isClosed:
            return
        wanted = {each for each in standbys.tasks if each < self._topics.taskCount}
        for standby in list(self._standbys.values()):
            if standby.number not in wanted and standby.number not in owned:
                self._remove(standby)
        for number in sorted(wanted.difference(owned)):
            if number not in self._standbys:
                self._begin(number)
        self._awaited = wanted.intersection(standbys.awaited)

    def _begin(self, number: int, delaySeconds: float = 0, isEmptied: bool = False) -> None:
        standby = self._standbys[number] = _Standby(number)
        standby.opening = Deferred.fromCoroutine(self._open(standby, delaySeconds, isEmptied))
        standby.opening.addErrback(self._failed, standby)

    async def _open(self, standby: _Standby, delaySeconds: float, isEmptied: bool) -> None:
        if delaySeconds:
            await deferLater(self._reactor, delaySeconds)
        for store in self._job.stores:
            engine = await self._openStore(standby.number, store, standby.engines)
            if isEmptied and engine.mark is not None:
                await self._worker.submit(engine.clear)
            place = TopicPartition(self._job.changelogOf(store), standby.number)
            await self._openings.acquire()
            try:
                offset, end = await self._restorer.begin(place, engine)
            finally:
                self._openings.release()
            standby.stores[place] = _StandbyStore(engine, offset, end, self._nowMs())
        standby.isOpen = True
        self._assign()
        self._tellCurrent()

    def _assign(self) -> None:
        """Read what is open, each store from where it is."""
        if not self._isClosed:
            self._consumer.assign(
                {
                    place: each.offset
                    for standby in self._standbys.values()
                    if standby.isOpen
                    for place, each in standby.stores.items()
                }
            )

    def _remove(self, standby: _Standby) -> Deferred[None]:
        """@return: fires when its stores are closed."""
        del self._standbys[standby.number]
        if standby.opening is not None:
            standby.opening.cancel()
        if standby.isOpen:
            self._assign()
        # Behind whatever it has under way on the same worker.
        closing = self._worker.submit(partial(closeEngines, standby.engines))
        return closing.addErrback(self._notClosed)

    def _notClosed(self, failure: Failure) -> None:
        log.info("A stand-by's store was not closed well: {error}", error=failure.value)

    async def release(self, number: int) -> dict[str, IStoreEngine]:
        """
        End a stand-by, since its task begins in this container.

        @return: its engines, which are open, by the names of their stores; none, if there are none.
        """
        standby = self._standbys.get(number)
        if standby is None:
            return {}
        if not standby.isOpen:
            await self._remove(standby)
            return {}
        await self._turn.acquire()
        try:
            if self._standbys.get(number) is not standby:  # it has failed meanwhile
                return {}
            for place, store in standby.stores.items():
                await self._writeMark(place, store)
            del self._standbys[number]
            self._assign()
            return standby.engines
        except PylogbrokerError as error:  # the task opens it, and finds out what it is
            log.info("A stand-by's store was not written: {error}", error=error)
            await self._remove(standby)
            return {}
        finally:
            self._turn.release()

    async def _writeMark(self, place: TopicPartition, store: _StandbyStore) -> None:
        """A store that ends with markers is at their end; one that was away for long is emptied."""
        mark = store.engine.mark
        if self._isOld(place, store):
            self._tellOld(place)
            await self._worker.submit(store.engine.clear)
        elif mark is not None and mark.offset < store.offset:
            mark = mark._replace(offset=store.offset)
            await self._worker.submit(partial(store.engine.write, (), mark))

    def _isOld(self, place: TopicPartition, store: _StandbyStore) -> bool:
        """Whether deletions that it lacks may be gone from the changelog."""
        return self._nowMs() - store.currentAtMs > self._topics.deleteRetentionMs[place.topic]

    def _tellOld(self, place: TopicPartition) -> None:
        log.warn(
            "The stand-by of {place} is built anew: it was behind for more than {ms} ms",
            place=str(place),
            ms=self._topics.deleteRetentionMs[place.topic],
        )

    async def close(self) -> None:
        """Close all stores, and the consumer."""
        self._isClosed = True
        for each in self._working:
            each.cancel()
        for standby in list(self._standbys.values()):
            await self._remove(standby)
        await self._consumer.close()

    # -- changes

    async def _follow(self) -> None:
        while not self._isClosed:
            try:
                records = self._consumer.takeMany(BATCH_COUNT)
            except PylogbrokerError as error:
                await self._onReadError(error)
                continue
            for store, batch in self._batches(records):
                await self._apply(store, batch)
            self._advance()
            if not records:
                await self._consumer.wait()

    def _batches(
        self, records: Iterable[ConsumerRecord]
    ) -> list[tuple[_StandbyStore, list[ConsumerRecord]]]:
        """What each store gets; by the stores of now, since others may come meanwhile."""
        return [
            (self._standbys[place.partition].stores[place], list(run))
            for place, run in byPartition(records)
        ]

    async def _apply(self, store: _StandbyStore, batch: list[ConsumerRecord]) -> None:
        place = TopicPartition(batch[0].topic, batch[0].partition)
        seconds = 0.0
        await self._turn.acquire()
        try:
            standby = self._standbys.get(place.partition)
            if standby is None or standby.stores.get(place) is not store:
                return  # it was given up, or begun anew
            if self._isOld(place, store):
                self._tellOld(place)
                self._beginAnew(standby)
                return
            # A store that comes or goes lets the consumer read again what is in hand.
            batch = [each for each in batch if each.offset >= store.offset]
            if batch:
                try:
                    seconds = await self._write(place, store, batch)
                except PylogbrokerError as error:
                    self._failed(Failure(error), standby)
        finally:
            self._turn.release()
        if self._isBusy():
            await deferLater(self._reactor, seconds * REST_FACTOR)

    async def _write(
        self, place: TopicPartition, store: _StandbyStore, batch: list[ConsumerRecord]
    ) -> float:
        """@return: how long the worker had to do with it, in seconds."""
        entries, mark = changesOf(batch, self._topics.topicIds[place.topic])

        def write() -> float:
            begun = self._reactor.seconds()
            store.engine.write(entries, mark)
            return float(self._reactor.seconds() - begun)

        seconds = await self._worker.submit(write)
        store.offset = mark.offset
        store.currentAtMs = max(store.currentAtMs, min(batch[-1].timestamp, self._nowMs()))
        self.appliedCount += len(entries)
        return seconds

    def _advance(self) -> None:
        """Positions are behind markers and what was aborted, too."""
        positions = self._consumer.positions
        for standby in self._standbys.values():
            for place, store in standby.stores.items():
                store.offset = max(store.offset, positions.get(place, 0))

    async def _onReadError(self, error: PylogbrokerError) -> None:
        isLasting = isinstance(error, (OffsetOutOfRangeError, LogTruncatedError))
        await deferLater(self._reactor, LAG_CHECK_SECONDS)
        if isLasting or not getattr(error, "isRetriable", True):
            log.warn("The stand-bys of job {job}: {error}", job=self._job.name, error=error)
        if isLasting:  # a changelog has lost what stores have
            for standby in list(self._standbys.values()):
                if standby.isOpen:
                    self._beginAnew(standby)

    def _beginAnew(self, standby: _Standby) -> None:
        self._remove(standby)
        self._begin(standby.number, isEmptied=True)

    def _failed(self, failure: Failure, standby: _Standby) -> None:
        if failure.check(CancelledError) or self._standbys.get(standby.number) is not standby:
            return
        if not failure.check(PylogbrokerError):
            log.failure("A stand-by failed unexpectedly: this is a bug", failure)
        log.warn(
            "The stand-by of task {task} of job {job} is opened again in {seconds} s: {error}",
            task=standby.number,
            job=self._job.name,
            seconds=RETRY_SECONDS,
            error=failure.value,
        )
        self._remove(standby)
        self._begin(standby.number, RETRY_SECONDS)

    def _broken(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            log.failure("Stand-bys failed unexpectedly: this is a bug", failure)

    # -- how far they are

    async def _watch(self) -> None:
        while not self._isClosed:
            await deferLater(self._reactor, LAG_CHECK_SECONDS)
            stores = {
                place: store
                for standby in self._standbys.values()
                for place, store in standby.stores.items()
            }
            if not stores:
                continue
            try:
                ends = await self._admin.listOffsets(dict.fromkeys(stores, LATEST))
            except PylogbrokerError as error:
                log.info("The ends of changelogs are not known: {error}", error=error)
                continue
            for place, found in ends.items():
                if not isinstance(found, PylogbrokerError):
                    stores[place].end = found.offset
                    if stores[place].offset >= found.offset:
                        stores[place].currentAtMs = self._nowMs()
            self._tellCurrent()

    def _isCurrent(self, number: int) -> bool:
        standby = self._standbys.get(number)
        if standby is None or not standby.isOpen:
            return False
        return all(each.lag <= self._acceptableLag for each in standby.stores.values())

    def _tellCurrent(self) -> None:
        if self._awaited and all(map(self._isCurrent, self._awaited)):
            self._awaited = ()
            self._onCurrent()

    def current(self) -> frozenset[int]:
        """The tasks whose state is up to date, or nearly."""
        return frozenset(filter(self._isCurrent, self._standbys))

    def status(self) -> list[StandbyStatus]:
        """All of them, in order."""
        return [
            StandbyStatus(
                number,
                self._isCurrent(number),
                sum(each.lag for each in standby.stores.values()) if standby.isOpen else None,
            )
            for number, standby in sorted(self._standbys.items())
        ]

    def _nowMs(self) -> int:
        return wallMs(self._reactor)
