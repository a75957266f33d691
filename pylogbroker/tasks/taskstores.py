"""
The stores of a container's tasks: opened, restored from their changelogs, and taken over from
stand-bys. A module of its own, since a container has the messages to think of.

What must be true:

  - A task begins with stores that are as their changelogs say. Of a store on the disk, and of one
  that a stand-by has followed, only the rest is read.
  - A store is open once on a machine. A store that another container still has open is waited for:
  that container does not know yet that it has lost the task.
  - The group is told the tasks whose state a container has. The state is up to date for tasks that
  run, are followed, or were given up just now. Other tasks have something on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from twisted.internet.defer import DeferredSemaphore
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.cluster.kafka.taskassignor import FOLDER_ID_SIZE, TaskStandbys, TaskState
from pylogbroker.config.kafka.clientsettings import KafkaConsumerSettings
from pylogbroker.config.kafka.tasksettings import KafkaTaskSettings
from pylogbroker.errors import DirectoryLockedError
from pylogbroker.net.workers import IWorker
from pylogbroker.tasks.job import ROCKSDB, Job, Store
from pylogbroker.tasks.restorer import ChangelogRestorer, RestoreProgress
from pylogbroker.tasks.standby import StandbyStatus, StandbyTasks
from pylogbroker.tasks.state.engines import IStoreEngine
from pylogbroker.tasks.state.keyvaluestore import KeyValueStore
from pylogbroker.tasks.state.statedirectory import IStateDirectory
from pylogbroker.tasks.topics import JobTopics
from pylogbroker.types import TopicPartition

RESTORE_COUNT_MAX = 8
"""Tasks whose stores are restored at a time; each has a consumer of its own."""

LOCK_RETRY_SECONDS = 0.1
"""Between two attempts to open a store that another container has."""

log = Logger()


class TaskStores:
    """
    The stores of a container; the module states its promises.

    @ivar standbyCount: stand-bys that each task has in the group.
    """

    def __init__(
        self,
        reactor: Any,
        job: Job,
        settings: KafkaTaskSettings,
        consumerSettings: KafkaConsumerSettings,
        stateDirectory: IStateDirectory,
        worker: IWorker,
        admin: AdminClient,
        recordSizeMax: int,
        isBusy: Callable[[], bool],
        onCurrent: Callable[[], object],
        random: Callable[[], float],
    ) -> None:
        """
        @param consumerSettings: of consumers that are no members of a group, and read what was
            committed.
        @param worker: what the engines run on.
        @param recordSizeMax: see L{KeyValueStore}.
        @param isBusy: whether tasks are at work.
        @param onCurrent: called when the stand-bys that the group waits for are up to date.
        """
        self.standbyCount = settings.numStandbyReplicas if job.stores else 0
        self._reactor = reactor
        self._job = job
        self._settings = settings
        self._consumerSettings = consumerSettings
        self._stateDirectory = stateDirectory
        self._worker = worker
        self._admin = admin
        self._recordSizeMax = recordSizeMax
        self._isBusy = isBusy
        self._onCurrent = onCurrent
        self._random = random
        self._restores = DeferredSemaphore(RESTORE_COUNT_MAX)
        self._topics: JobTopics | None = None
        self._restorer: ChangelogRestorer | None = None
        self._standbys: StandbyTasks | None = None
        self._folderId = b""
        self._isOnDisk = {each.engine for each in job.stores} == {ROCKSDB}
        self._leaving: set[int] = set()  # given up since the last assignment, with their state
        self._left: set[int] = set()  # given up before it

    async def prepare(self, topics: JobTopics) -> None:
        """
        Begin, when the job's topics are there; before a task does.

        @raise StorageError: the folder cannot be read or written.
        """
        self._topics = topics
        self._restorer = ChangelogRestorer(
            self._reactor,
            self._consumerSettings,
            self._admin,
            self._worker,
            topics.topicIds,
            self._random,
        )
        if not self.standbyCount:
            return
        newId = bytes(int(self._random() * 255) + 1 for _ in range(FOLDER_ID_SIZE))
        self._folderId = (
            await self._worker.submit(partial(self._stateDirectory.folderId, newId))
            if any(each.engine == ROCKSDB for each in self._job.stores)
            else newId
        )
        self._standbys = StandbyTasks(
            self._reactor,
            self._job,
            topics,
            self._consumerSettings,
            self._admin,
            self._worker,
            self._restorer,
            self._openEngine,
            self._isBusy,
            self._settings.acceptableRecoveryLag,
            self._onCurrent,
            self._random,
        )

    # -- the group

    def state(self, running: Iterable[int]) -> TaskState:
        """
        What the leader of the group is told.

        @param running: the tasks that run here.
        """
        onDisk = frozenset(self._stateDirectory.tasks())
        if self._standbys is None:
            return TaskState(onDisk=onDisk)
        current = self._standbys.current().union(running, self._left)
        return TaskState(self._folderId, current, onDisk)

    def follow(self, owned: Collection[int], standbys: TaskStandbys) -> None:
        """An assignment: what was given up for it is up to date, as long as it is new."""
        self._left, self._leaving = self._leaving, set()
        if self._standbys is not None:
            self._standbys.follow(owned, standbys)

    def givenUp(self, tasks: Iterable[int]) -> None:
        """Tasks go to other containers, and all that they did is committed."""
        if self._isOnDisk:
            self._leaving.update(tasks)

    # -- a task's stores

    async def open(
        self, task: int, engines: dict[str, IStoreEngine]
    ) -> dict[str, KeyValueStore[Any, Any]]:
        """
        The stores of a task, restored, by their names; L{RESTORE_COUNT_MAX} tasks at a time.

        @param engines: gets the engines, by the stores' names, as they are opened.
        @raise StorageError: a store cannot be opened or written.
        @raise PylogbrokerError: a changelog cannot be read.
        """
        await self._restores.acquire()
        try:
            if self._standbys is not None:
                engines.update(await self._standbys.release(task))
            return {
                store.name: await self._restore(task, store, engines) for store in self._job.stores
            }
        finally:
            self._restores.release()

    async def _restore(
        self, task: int, store: Store, engines: dict[str, IStoreEngine]
    ) -> KeyValueStore[Any, Any]:
        assert self._topics is not None and self._restorer is not None
        engine = engines.get(store.name)
        if engine is None:
            engine = await self._openEngine(task, store, engines)
        await self._restorer.restore(TopicPartition(self._job.changelogOf(store), task), engine)
        made = KeyValueStore[Any, Any](
            store.name,
            store.key,
            store.value,
            engine,
            self._settings.statestoreCacheMaxBytes // self._topics.taskCount,
            self._recordSizeMax,
        )
        await self._worker.submit(made.measure)
        return made

    async def _openEngine(
        self, task: int, store: Store, engines: dict[str, IStoreEngine]
    ) -> IStoreEngine:
        """@param engines: gets it, by the store's name."""

        def make() -> IStoreEngine:
            made = engines[store.name] = self._stateDirectory.open(task, store, retentionMs)
            return made

        assert self._topics is not None
        retentionMs = self._topics.deleteRetentionMs[self._job.changelogOf(store)]
        isSaid = False
        while True:
            try:
                return await self._worker.submit(make)
            except DirectoryLockedError as error:
                if not isSaid:
                    log.info("Job {job} waits: {error}", job=self._job.name, error=error)
                    isSaid = True
            await deferLater(self._reactor, LOCK_RETRY_SECONDS)

    async def close(self) -> None:
        """Let stand-bys go. The stores of tasks are closed with these."""
        if self._standbys is not None:
            await self._standbys.close()

    # -- what people see

    @property
    def restoredCount(self) -> int:
        """Changes that were read from changelogs for tasks."""
        return 0 if self._restorer is None else self._restorer.restoredCount

    def standbys(self) -> list[StandbyStatus]:
        """The stand-by tasks, in order."""
        return [] if self._standbys is None else self._standbys.status()

    def restores(self) -> list[RestoreProgress]:
        """How far stores are restored that are not ready yet."""
        return [] if self._restorer is None else list(self._restorer.restoring)
