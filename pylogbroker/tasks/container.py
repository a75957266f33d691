"""
A container: a member of a job's group that runs the tasks of its partitions. A module of its own,
since an application can run one without C{twistd}.

  ========== ================================================ ====================================
  a task is  meaning                                          then
  ========== ================================================ ====================================
  STARTING   its stores are opened and restored; C{init}      RUNNING, CLOSED
  RUNNING    messages are handed to it                        CLOSED
  CLOSED     its partitions went, or the container ends       (nothing)
  ========== ================================================ ====================================

What must be true:

  - What a task has sent and stored is confirmed before its positions are committed:
  L{pylogbroker.tasks.outputcommitter}. When a transaction is aborted, the tasks begin anew from the
  last positions, with their stores as they were then.
  - Before a partition goes to another container, its task has handled what it was given, and its
  position is committed.
  - Messages, windows, commits and the giving up of partitions never overlap: one lock has them all.
  - A message that its task cannot handle is never passed over unless the job says so. With
  C{onError=stop} what came before is committed, and the container ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from enum import Enum
from functools import partial
from inspect import isawaitable
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, NamedTuple, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredLock
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.routing import checkAll
from pylogbroker.client.kafka.admin.topics import LATEST
from pylogbroker.cluster.kafka.taskassignor import TaskAssignor, TaskState
from pylogbroker.config.kafka.tasksettings import KafkaTaskSettings
from pylogbroker.consumer.kafka.assignedpartition import ConsumerRecord
from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.errors import (
    ConfigurationError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    PylogbrokerError,
    TaskFailedError,
    TimedOutError,
    TransactionAbortedError,
)
from pylogbroker.net.deferreds import asDeferred, gatherSettled
from pylogbroker.net.timer import wallMs
from pylogbroker.net.workers import IWorker, ThreadPoolWorker
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.protocol.kafka.errorcodes import ResponseError
from pylogbroker.records.recordbatch import BATCH_OVERHEAD
from pylogbroker.tasks.inputs.ends import InputEnds, placesOf
from pylogbroker.tasks.inputs.purger import RepartitionPurger
from pylogbroker.tasks.inputs.queues import InputQueues, byPartition
from pylogbroker.tasks.inputs.taskinputs import TaskInputs
from pylogbroker.tasks.job import Job
from pylogbroker.tasks.outputcommitter import OutputCommitter
from pylogbroker.tasks.reports.reporter import TaskReporter
from pylogbroker.tasks.restorer import RestoreProgress
from pylogbroker.tasks.standby import StandbyStatus
from pylogbroker.tasks.state.engines import IStoreEngine, closeEngines
from pylogbroker.tasks.state.statedirectory import IStateDirectory, StateDirectory
from pylogbroker.tasks.taskinstance import TaskInstance
from pylogbroker.tasks.taskstores import TaskStores
from pylogbroker.tasks.topics import JobTopics, isMissing, missingInputs, prepareTopics
from pylogbroker.types import TopicPartition

RETRY_SECONDS = 1
"""Between two looks for topics that are missing."""

END_CHECK_MS = 50
"""How often a container that ends at the end of its inputs looks whether it is there."""

IDLE_MS = 1_000
"""How long a container without messages sleeps at most."""

UNSETTLED_MIN = 64 << 10
"""Bytes that a task may write and send between two commits, however many tasks there are."""

FLUSH_TIMEOUT_MS = 10_000
"""For a container that ends: how long its consumer and producer may take."""

log = Logger()

T = TypeVar("T")


class TaskPhase(Enum):
    """The module states what each phase means."""

    STARTING = "starting"
    RUNNING = "running"
    CLOSED = "closed"


class TaskStatus(NamedTuple):
    """
    A task, for people.

    @ivar phase: the L{TaskPhase}'s word.
    @ivar handledCount: messages.
    @ivar failedCount: messages that were left out.
    @ivar storeSizes: bytes of each store, by name.
    @ivar counters: what the author's task has counted, by name.
    @ivar positions: the next offset of each partition that it reads; L{None}: not known yet.
    """

    partition: int
    phase: str
    handledCount: int
    failedCount: int
    storeSizes: dict[str, int]
    counters: dict[str, int]
    positions: dict[TopicPartition, int | None]


class _Task:
    """
    A task of this container.

    @ivar inputs: what it reads.
    @ivar partitions: those of the group that it has.
    @ivar engines: of its stores, by name, as they are opened.
    @ivar starting: while it starts.
    """

    def __init__(self, number: int, inputs: TaskInputs) -> None:
        self.number = number
        self.inputs = inputs
        self.partitions: set[TopicPartition] = set()
        self.phase = TaskPhase.STARTING
        self.instance: TaskInstance | None = None
        self.engines: dict[str, IStoreEngine] = {}
        self.starting: Deferred[None] | None = None


class _Group:
    """Messages of one task, and which of them is next."""

    def __init__(self, instance: TaskInstance, records: list[ConsumerRecord]) -> None:
        self.instance = instance
        self.records = records
        self.next = 0

    @property
    def isDone(self) -> bool:
        return self.next == len(self.records)


class TaskContainer:
    """
    Runs tasks of a job; the module states its promises.

    @ivar job: a L{Job}.
    @ivar settings: a L{KafkaTaskSettings}.
    """

    def __init__(
        self,
        reactor: Any,
        job: Job,
        settings: KafkaTaskSettings | Mapping[str, str],
        *,
        containerId: str = "",
        isUntilEnd: bool = False,
        worker: IWorker | None = None,
        stateDirectory: IStateDirectory | None = None,
        random: Callable[[], float] | None = None,
    ) -> None:
        """
        @param settings: or properties.
        @param containerId: with C{exactly_once_v2} the part of C{transactional.id} behind the job's
            name: a container that takes the place of another one has its id. By default it is drawn
            by lot.
        @param isUntilEnd: end when all messages are handled that there were at the start, and what
            tasks have sent to repartitions for them.
        @param worker: what tasks and stores run on, one job at a time; by default a thread.
        @param stateDirectory: where its stores are; by default the job's folder in C{state.dir}.
        @param random: numbers from 0 up to, not including, 1.
        @raise ConfigurationError: the settings are wrong, or the stores' engine is not installed.
        """
        if not isinstance(settings, KafkaTaskSettings):
            settings = KafkaTaskSettings.fromProperties(settings, _logWarning)
        if random is None:
            random = Random(SystemRandom().getrandbits(64)).random
        if stateDirectory is None:
            folder = Path(settings.stateDir, job.name)
            stateDirectory = StateDirectory(folder, partial(wallMs, reactor))
        self.job = job
        self.settings = settings
        self._reactor = reactor
        self._random = random
        self._isUntilEnd = isUntilEnd
        self._isAsync = False  # until there is a task
        self._worker = worker or ThreadPoolWorker(reactor, f"tasks of {job.name}", 1)
        self._lock = DeferredLock()
        self._tasks: dict[int, _Task] = {}
        self._closedHandledCount = self._closedFailedCount = 0  # of tasks that it had before
        self._isStopping = False
        self._failure: BaseException | None = None
        self._running: Deferred[None] | None = None
        self._preparing: Deferred[None] | None = None
        self._trigger: Any = None
        self._wake: Callable[[], None] = lambda: None
        self._ranks = job.ranks
        self._ends: InputEnds | None = None
        self._purger: RepartitionPurger | None = None
        self._turn = 0  # of the task that gets messages first
        self._commitAtMs = self._windowAtMs = 0.0
        isIdOwn = not containerId
        containerId = containerId or f"{int(random() * 2**48):012x}"
        transactionalId = f"{job.name}-{containerId}" if settings.isExactlyOnce else None
        producing = settings.forProducer(transactionalId, _logWarning)
        self._recordSizeMax = producing.maxRequestSize - BATCH_OVERHEAD
        self._admin = AdminClient(reactor, settings.forAdmin(_logWarning), random=random)
        self._stores = TaskStores(
            reactor,
            job,
            settings,
            settings.forConsumer(None, _logWarning),
            stateDirectory,
            self._worker,
            self._admin,
            self._recordSizeMax,
            lambda: bool(self._lock.locked),
            self._enforceRebalance,
            random,
        )
        self._consumer = KafkaConsumer(
            reactor,
            settings.forConsumer(job.name, _logWarning),
            assignor=TaskAssignor(self._taskState, self._stores.standbyCount, self._stores.follow),
            random=random,
        )
        self._commitIntervalMs = settings.commitIntervalMs
        if settings.isExactlyOnce:  # or no transaction with outputs would last until its commit
            limitMs = producing.transactionTimeoutMs // 2
            self._commitIntervalMs = min(self._commitIntervalMs, limitMs)
        self._committer = OutputCommitter(
            reactor,
            job,
            partial(KafkaProducer, reactor, producing, random=random),
            self._consumer,
            self._worker,
            settings.isExactlyOnce,
            isIdOwn,
            self._beginnings,
        )
        self._reporter = TaskReporter(
            reactor, job, settings, containerId, self, self._admin, random
        )
        self._topics: JobTopics | None = None

    def __repr__(self) -> str:
        return f"<TaskContainer of {self.job.name}, {len(self._tasks)} tasks>"

    # -- its life

    def run(self) -> Deferred[None]:
        """
        Run until L{stop}, the end of the inputs, or a failure; once. The reactor does not stop
        before the container has.

        @return: fires with L{None} when everything is committed and closed. Fails, when everything
            is closed: with L{TaskFailedError} when a task could not handle a message; with
            L{ConfigurationError} when a topic cannot be used; with L{StorageError
            <pylogbroker.errors.StorageError>} when a store cannot; with another
            L{PylogbrokerError} when what was sent could not be confirmed. What was not committed is
            done again by the next container.
        """
        self._trigger = self._reactor.addSystemEventTrigger(
            "before", "shutdown", self._beforeShutdown
        )
        self._running = Deferred.fromCoroutine(self._run())
        return self._running

    def _beforeShutdown(self) -> Deferred[None]:
        self._trigger = None
        return self.stop()

    @asDeferred
    async def stop(self) -> None:
        """
        Commit, and close everything.

        @return: fires with L{None} when it is done. (How it ended, L{run} tells.)
        """
        self._isStopping = True
        self._wake()
        if self._preparing is not None:
            self._preparing.cancel()  # it may wait for brokers that are away
        running = self._running
        if running is not None and not running.called:
            done: Deferred[None] = Deferred()

            def pass_(result: Any) -> Any:
                done.callback(None)
                return result

            running.addBoth(pass_)
            await done

    async def _run(self) -> None:
        self._worker.start()
        try:
            self._preparing = Deferred.fromCoroutine(self._prepare())
            await self._preparing
            if self._topics is not None and not self._isStopping:
                topics = [*self._topics.inputs, *self._topics.repartitions]
                self._consumer.subscribe(topics, _Listener(self))
                await self._loop()
        except Exception as error:
            self._fail(error)
        await self._close()  # not of a coroutine that is given up, which cannot wait
        if self._trigger is not None:
            self._reactor.removeSystemEventTrigger(self._trigger)
        if self._failure is not None:
            raise self._failure

    async def _prepare(self) -> None:
        """Wait for the topics."""
        isSaid = False
        while not self._isStopping:
            missing = await missingInputs(self._admin, self.job)
            if not missing:
                try:
                    self._topics = await prepareTopics(
                        self._admin, self.job, self.settings.replicationFactor
                    )
                    break
                except ResponseError as error:
                    if not (error.isRetriable or isMissing(error)):
                        raise
                    missing = [str(error)]
            elif self._isUntilEnd:
                raise ConfigurationError(
                    f"job {self.job.name}: there is no topic {', '.join(missing)}"
                )
            if not isSaid:
                log.info("Job {job} waits for {what}", job=self.job.name, what=", ".join(missing))
                isSaid = True
            await deferLater(self._reactor, RETRY_SECONDS)
        else:
            return
        self._committer.topicIds = self._topics.topicIds
        if self.settings.isExactlyOnce:
            await self._committer.takeOver()
        await self._stores.prepare(self._topics)
        if self._isUntilEnd:
            self._ends = InputEnds(self._admin, self._consumer, self._topics)
            await self._ends.find()
        if self._topics.repartitions:
            self._purger = RepartitionPurger(
                self._admin, self._topics.repartitions, self.settings.repartitionPurgeIntervalMs
            )
        now = self._nowMs()
        self._commitAtMs = now + self._commitIntervalMs
        self._windowAtMs = now + self.job.windowMs
        topics = self._topics
        self._reporter.start({**topics.inputs, **topics.broadcasts, **topics.repartitions})

    def _nowMs(self) -> float:
        return float(self._reactor.seconds() * 1000)

    def _fail(self, error: BaseException) -> None:
        """End the container, for the first reason."""
        if isinstance(error, CancelledError):
            return
        if self._failure is None:
            self._failure = error
        self._isStopping = True
        self._wake()

    def _failed(self, failure: Failure) -> None:
        assert failure.value is not None
        self._fail(failure.value)

    async def _close(self) -> None:
        """Commit, unless something has failed that forbids it; then let everything go."""
        self._isStopping = True
        isUsable = self._failure is None or isinstance(self._failure, TaskFailedError)
        await self._lock.acquire()
        try:
            if isUsable and self._topics is not None:
                await self._attempt(self._commit())
            await self._attempt(self._committer.abort(isEnd=True))
            await self._attempt(self._closeTasks(list(self._tasks.values())))
            await self._attempt(self._stores.close())
        finally:
            self._lock.release()
        if self._purger is not None:
            self._purger.stop()
        outcomes: list[object] = [
            *await gatherSettled(
                [
                    self._consumer.close(),
                    self._committer.close(FLUSH_TIMEOUT_MS),
                    self._reporter.close(self._failure),
                ]
            ),
            *await gatherSettled([self._admin.close()]),  # the reporter may need it
        ]
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                log.info("A client did not end well: {error}", error=outcome.value)
        # A pool waits for its thread, which has nothing to do any more.
        self._worker.stop()

    async def _attempt(self, work: Awaitable[None]) -> None:
        try:
            await work
        except TransactionAbortedError as error:
            log.info(
                "Job {job}: nothing was committed at the end: {error}",
                job=self.job.name,
                error=error,
            )
        except Exception as error:
            self._fail(error)

    # -- messages

    async def _loop(self) -> None:
        while not self._isStopping:
            isIdle = not self._read()
            if any(not each.inputs.isEmpty for each in self._runningTasks()):
                hasHandled = await self._exclusively(self._handle)
                isIdle = isIdle and hasHandled is False
            if self.job.windowMs and self._nowMs() >= self._windowAtMs:
                await self._exclusively(self._window)
                isIdle = False  # messages may have come meanwhile
            if self._nowMs() >= self._commitAtMs:
                await self._exclusively(self._commit)
                isIdle = isIdle and not self._commitIntervalMs
            if self._purger is not None:
                self._purger.tick(self._nowMs(), self._committer.committed)
            if isIdle and not self._isStopping:
                if self._ends is not None and await self._isAtEnd(self._ends):
                    break
                await self._sleep()

    async def _exclusively(
        self, work: Callable[[], Awaitable[T]], isForced: bool = False
    ) -> T | None:
        """
        @param isForced: also when the container has failed.
        @return: what C{work} returns; L{None}: nothing was done, or it is not committed.
        """
        await self._lock.acquire()
        try:
            if self._failure is not None and not isForced:
                return None
            try:
                return await work()
            except TransactionAbortedError as error:
                await self._beginAnew(error)
                return None
        except Exception as error:
            self._fail(error)  # before the next one has the lock, who may commit
            raise
        finally:
            self._lock.release()

    async def _sleep(self) -> None:
        """Until there are messages, something is due, or the container is to end."""
        waiting: Deferred[None] = Deferred()

        def wake() -> None:
            if not waiting.called:
                waiting.callback(None)

        running = [each.inputs for each in self._runningTasks()]
        consumers = [self._consumer, *(each.broadcasts for each in running if each.broadcasts)]
        due = [each.dueAtMs for each in running if each.dueAtMs is not None]
        if self.job.windowMs:
            due.append(self._windowAtMs)
        if self._commitIntervalMs:  # with 0 each batch was committed
            due.append(self._commitAtMs)
        limitMs = END_CHECK_MS if self._isUntilEnd else IDLE_MS
        ms = max(min([each - self._nowMs() for each in due] + [limitMs]), 1)
        self._wake = wake
        timer = self._reactor.callLater(ms / 1000, wake)
        for each in consumers:
            each.attach(wake, isForLags=True)
        try:
            await waiting
        finally:
            for each in consumers:
                each.detach(wake)
            self._wake = lambda: None
            if timer.active():
                timer.cancel()

    async def _isAtEnd(self, ends: InputEnds) -> bool:
        """
        Whether all is handled and committed that there was at the start: of the partitions that it
        has; with repartitions, of all that the group has.
        """

        def isReached() -> bool:
            return (
                self._consumer.isOwning
                and ends.areReached(self._consumer)
                and all(
                    each.phase is TaskPhase.RUNNING and each.inputs.isAtEnd
                    for each in self._tasks.values()
                )
            )

        if not isReached():
            return False
        await self._exclusively(self._commitAll)
        if not isReached():  # the transaction was aborted
            return False
        try:
            # Without a partition it may be about to get some.
            isAlone = not ends.hasRepartitions and bool(self._consumer.assignment())
            return isAlone or await ends.areHandled()
        except PylogbrokerError as error:
            if not getattr(error, "isRetriable", True):
                raise
            log.info("Job {job} does not know its end: {error}", job=self.job.name, error=error)
            return False

    async def _commitAll(self) -> None:
        """Commit, behind all that was read: where no message waits, markers count."""
        read = self._consumer.positions
        for task in self._runningTasks():
            if task.instance is not None:
                task.instance.positions.update(
                    (place, position)
                    for place, position in task.inputs.positions(
                        sorted(task.partitions), read
                    ).items()
                    if position is not None
                )
        await self._commit()

    def _read(self) -> int:
        """
        Take what the consumers have into the queues of the tasks.

        @return: how many messages.
        @raise PylogbrokerError: a partition cannot be read.
        """
        count = 0
        records = self._takeFrom(self._consumer)
        for place, run in byPartition(records):
            task = self._tasks.get(place.partition)
            if task is not None:
                task.inputs.put(place, run)
        count += len(records)
        for task in self._runningTasks():
            if task.inputs.broadcasts is not None:
                records = self._takeFrom(task.inputs.broadcasts)
                for place, run in byPartition(records):
                    task.inputs.put(place, run)
                count += len(records)
        return count

    def _takeFrom(self, consumer: KafkaConsumer) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] | None = None
        while records is None:
            try:
                records = consumer.takeMany(self.settings.maxPollRecords)
            except PylogbrokerError as error:
                isLasting = isinstance(error, (OffsetOutOfRangeError, LogTruncatedError))
                if isLasting or not getattr(error, "isRetriable", True):
                    raise
                log.warn("Job {job}: {error}", job=self.job.name, error=error)
        if self._ends is not None:  # what comes behind the ends would put the end off
            consumer.pause(self._ends.reached(consumer))
        return records

    def _runningTasks(self) -> list[_Task]:
        return [each for each in self._tasks.values() if each.phase is TaskPhase.RUNNING]

    def _nextGroups(self) -> list[_Group]:
        """The messages that come next, of tasks in turn: C{max.poll.records} at most."""
        running = self._runningTasks()
        left, groups = self.settings.maxPollRecords, []
        self._turn %= max(len(running), 1)
        for task in running[self._turn :] + running[: self._turn]:
            assert task.instance is not None
            records = task.inputs.take(left, self._nowMs())
            task.inputs.limit()
            if records:
                groups.append(_Group(task.instance, records))
                left -= len(records)
            self._turn += 1
            if not left:
                break
        return groups

    async def _handle(self) -> bool:
        """
        Hand messages to tasks.

        @return: whether there were any.
        """
        waiting = self._nextGroups()
        if not waiting:
            return False
        while waiting:
            failure: Exception | None = None
            try:
                if self._isAsync:
                    await _processAsync(waiting, self._isCommitDue)
                else:
                    await self._worker.submit(partial(_process, waiting, self._isCommitDue))
            except Exception as error:
                failure = error
            instances = [group.instance for group in waiting]
            await self._committer.send(instances)
            if failure is not None:
                raise failure
            await self._settleIfAsked(instances)
            if self._isCommitDue():
                await self._commit()
            waiting = [group for group in waiting if not group.isDone and not self._isStopping]
        return True

    def _isCommitDue(self) -> bool:
        """Whether a commit is due within a batch. Called on the worker's thread, too."""
        return bool(self._commitIntervalMs) and self._reactor.seconds() * 1000 >= self._commitAtMs

    async def _window(self) -> None:
        self._windowAtMs = self._nowMs() + self.job.windowMs
        instances = self._instances()
        for instance in instances:
            await self._call(instance.window)
        await self._committer.send(instances)
        await self._settleIfAsked(instances)

    async def _settleIfAsked(self, instances: Iterable[TaskInstance]) -> None:
        if any(instance.isFull for instance in instances):
            await self._commit()
        if any(instance.isShutdownAsked for instance in instances):
            self._isStopping = True

    def _instances(self) -> list[TaskInstance]:
        return [each.instance for each in self._runningTasks() if each.instance is not None]

    async def _call(self, work: Callable[[], Any]) -> None:
        """Call an author's method: on the reactor's thread if the task has coroutine functions."""
        if self._isAsync:
            result = work()
            if isawaitable(result):
                await result
        else:
            await self._worker.submit(work)

    # -- commits

    async def _commit(self) -> None:
        """See L{OutputCommitter.commit}. The caller has the lock."""
        if self._failure is not None and not isinstance(self._failure, TaskFailedError):
            return
        try:
            await self._committer.commit(self._instances())
        finally:
            # Behind it: a commit that takes longer than the interval leaves time for messages.
            self._commitAtMs = self._nowMs() + self._commitIntervalMs

    def _beginnings(self) -> dict[TopicPartition, int]:
        """Where the first message is that the tasks get, as far as it is known."""
        read = self._consumer.positions
        return {
            place: at
            for task in self._runningTasks()
            for place in task.partitions
            if (at := task.inputs.starts.get(place, read.get(place))) is not None
        }

    async def _beginAnew(self, reason: TransactionAbortedError) -> None:
        """Behind an aborted transaction: from the committed positions, with the stores of then."""
        log.warn(
            "Job {job} goes back to its last commit: {reason}", job=self.job.name, reason=reason
        )
        # What came from here on would find no task, and be passed over.
        self._consumer.pause(self._consumer.assignment())
        await self._committer.abort()
        tasks = list(self._tasks.values())
        starts = {place: at for task in tasks for place, at in task.inputs.starts.items()}
        await self._closeTasks(tasks)
        owned = set(self._consumer.assignment())
        places = [place for task in tasks for place in sorted(task.partitions) if place in owned]
        committed = await self._consumer.committed(places)
        owned = set(self._consumer.assignment())
        for place in sorted(owned.intersection(places)):
            stored = committed[place]
            if stored is not None:
                self._consumer.seek(place, stored.offset, stored.leaderEpoch)
            elif place in starts:  # where auto.offset.reset has begun
                self._consumer.seek(place, starts[place])
        self._startTasks(sorted(owned.intersection(places)))

    # -- tasks come and go

    def _taskState(self) -> TaskState:
        """What it tells the leader of its group."""
        return self._stores.state(each.partition for each in self._instances())

    def _enforceRebalance(self) -> None:
        self._consumer.enforceRebalance()

    def _startTasks(self, partitions: Collection[TopicPartition]) -> None:
        self._consumer.pause(partitions)
        if self._isStopping:  # it is about to leave
            return
        started = []
        for place in partitions:
            task = self._tasks.get(place.partition)
            if task is None:
                task = self._tasks[place.partition] = _Task(place.partition, self._newInputs())
                started.append(task)
            task.partitions.add(place)
            if task.phase is TaskPhase.RUNNING:
                task.inputs.add([place], {})
                self._consumer.resume([place])
        for task in started:
            task.starting = Deferred.fromCoroutine(self._start(task))
            task.starting.addErrback(self._failed)

    def _newInputs(self) -> TaskInputs:
        settings = self.settings
        # At the end of what there is, a container that is to end there waits for nothing more.
        idleMs = min(settings.maxTaskIdleMs, 0) if self._isUntilEnd else settings.maxTaskIdleMs
        assert self._topics is not None
        sizeMax = settings.inputBufferMaxBytes // self._topics.taskCount
        queues = InputQueues(idleMs, settings.bufferedRecordsPerPartition, sizeMax)
        broadcasts = None
        if self._topics.broadcasts:
            isolation = self._consumer.settings.isolationLevel
            broadcasts = KafkaConsumer(
                self._reactor,
                settings.forConsumer(None, _logWarning).replace(isolationLevel=isolation),
                random=self._random,
            )
        return TaskInputs(self._ranks, queues, self._consumer, broadcasts, self._ends)

    async def _bootstrapEnds(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """
        Where partitions of bootstrapped inputs end now; for a container that is to end, where they
        ended when it began, since it reads no further.
        """
        topics = {each.topic for each in self.job.inputs if each.isBootstrap}
        wanted = sorted(place for place in places if place.topic in topics)
        if self._ends is not None:
            return {place: self._ends.endOf(place) for place in wanted}
        if not wanted:
            return {}
        isCommitted = bool(self._consumer.settings.isolationLevel)
        asked = dict.fromkeys(wanted, LATEST)
        found = checkAll(await self._admin.listOffsets(asked, isCommitted=isCommitted))
        return {place: each.offset for place, each in found.items()}

    async def _start(self, task: _Task) -> None:
        topics = self._topics
        assert topics is not None
        if task.number >= topics.taskCount:
            raise ConfigurationError(
                f"job {self.job.name}: its inputs have got more partitions; start it anew"
            )
        stores = await self._stores.open(task.number, task.engines)
        task.instance = TaskInstance(
            self.job,
            task.number,
            stores,
            self._unsettledMax(),
            self._leftOut,
            self._recordSizeMax,
        )
        self._isAsync = task.instance.isAsync
        broadcasts = placesOf(topics.broadcasts)
        ends = await self._bootstrapEnds([*task.partitions, *broadcasts])
        await self._lock.acquire()
        try:
            await self._call(task.instance.init)
            task.inputs.add(task.partitions, ends)
            if broadcasts:
                task.inputs.addBroadcasts(broadcasts, ends)
            task.phase = TaskPhase.RUNNING
        finally:
            self._lock.release()
        owned = set(self._consumer.assignment())
        self._consumer.resume(sorted(task.partitions & owned))
        self._wake()

    def _unsettledMax(self) -> int:
        assert self._topics is not None
        share = self.settings.statestoreCacheMaxBytes // self._topics.taskCount
        return max(share, UNSETTLED_MIN)

    def _leftOut(self, failure: TaskFailedError) -> None:
        """Called on the worker's thread, where logging is allowed."""
        log.warn("A message is left out: {failure}", failure=failure)

    async def _closeTasks(self, tasks: Collection[_Task]) -> None:
        for task in tasks:
            wasRunning = task.phase is TaskPhase.RUNNING
            task.phase = TaskPhase.CLOSED
            if task.instance is not None:
                self._closedHandledCount += task.instance.handledCount
                self._closedFailedCount += task.instance.failedCount
            self._tasks.pop(task.number, None)
            self._committer.forget(task.partitions)
            if task.starting is not None:
                task.starting.cancel()
            if wasRunning and task.instance is not None:
                try:
                    await self._call(task.instance.close)
                except Exception as error:  # the author's; the others are closed all the same
                    self._fail(error)
            await task.inputs.close()
            # Behind whatever its start has under way on the same worker.
            await self._worker.submit(partial(closeEngines, task.engines))

    async def revoke(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions go to another container: commit, and close their tasks."""

        async def work() -> None:
            try:
                if self._failure is None:
                    await self._commit()
                    self._stores.givenUp(
                        each.number
                        for each in self._runningTasks()
                        if each.partitions.issubset(partitions)
                    )
            finally:
                await self._drop(partitions)

        await self._giveUp(work)

    async def lose(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions have other containers by now: close their tasks, without a commit."""

        async def work() -> None:
            await self._committer.abort()
            await self._drop(partitions)

        await self._giveUp(work)

    async def _giveUp(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await self._exclusively(work, isForced=True)
        except CancelledError:
            # A task is at work still. What it does must not be committed.
            text = "partitions that go to others could not be given up in max.poll.interval.ms"
            self._fail(TimedOutError(f"job {self.job.name}: {text}"))
        except Exception as error:
            self._fail(error)

    async def _drop(self, partitions: Collection[TopicPartition]) -> None:
        gone = []
        self._committer.forget(partitions)
        for place in partitions:
            task = self._tasks.get(place.partition)
            if task is not None:
                task.partitions.discard(place)
                task.inputs.discard(place)
                if not task.partitions:
                    gone.append(task)
                elif task.instance is not None:
                    task.instance.positions.pop(place, None)
        await self._closeTasks(gone)

    # -- what people see

    @property
    def commitCount(self) -> int:
        """Commits so far."""
        return self._committer.commitCount

    def status(self) -> list[TaskStatus]:
        """The tasks that it has, in order."""
        made = []
        read = self._consumer.positions
        for number, task in sorted(self._tasks.items()):
            positions = {
                **task.inputs.positions(sorted(task.partitions), read),
                **task.inputs.broadcastPositions(),
            }
            status = TaskStatus(number, task.phase.value, 0, 0, {}, {}, positions)
            instance = task.instance
            if instance is not None:
                counters = sorted(instance.counters.items())
                status = status._replace(
                    handledCount=instance.handledCount,
                    failedCount=instance.failedCount,
                    storeSizes={each.name: each.size for each in instance.stores.values()},
                    counters={name: each.count for name, each in counters},
                )
            made.append(status)
        return made

    @property
    def handledCount(self) -> int:
        """Messages that all tasks have handled that it has, or had."""
        return self._closedHandledCount + sum(
            each.instance.handledCount for each in self._tasks.values() if each.instance is not None
        )

    @property
    def failedCount(self) -> int:
        """Those of them that were left out, or are dead letters."""
        return self._closedFailedCount + sum(
            each.instance.failedCount for each in self._tasks.values() if each.instance is not None
        )

    @property
    def restoredCount(self) -> int:
        """Changes that were read from changelogs."""
        return self._stores.restoredCount

    def standbys(self) -> list[StandbyStatus]:
        """Its stand-by tasks, in order."""
        return self._stores.standbys()

    def restores(self) -> list[RestoreProgress]:
        """How far stores are restored that are not ready yet."""
        return self._stores.restores()

    def restoring(self) -> list[str]:
        """The same, for people."""
        return [str(each) for each in self.restores()]

    @property
    def memberId(self) -> str:
        """In the job's group; empty: the container has not joined."""
        return self._consumer.groupMetadata().memberId


class _Listener:
    """Tells a container of its partitions."""

    def __init__(self, container: TaskContainer) -> None:
        self._container = container

    def partitionsAssigned(self, partitions: Collection[TopicPartition]) -> None:
        self._container._startTasks(partitions)

    def partitionsRevoked(self, partitions: Collection[TopicPartition]) -> Any:
        return self._container.revoke(partitions)

    def partitionsLost(self, partitions: Collection[TopicPartition]) -> Any:
        return self._container.lose(partitions)


def _process(groups: Iterable[_Group], isDue: Callable[[], bool]) -> None:
    """On the worker: until all is handled, or one task needs a commit."""
    for group in groups:
        group.next = group.instance.process(group.records, group.next, isDue)
        if not group.isDone:
            return


async def _processAsync(groups: Iterable[_Group], isDue: Callable[[], bool]) -> None:
    for group in groups:
        group.next = await group.instance.processAsync(group.records, group.next, isDue)
        if not group.isDone:
            return


def _logWarning(message: str) -> None:
    log.warn("{sentence}", sentence=message)
