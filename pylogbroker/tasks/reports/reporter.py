"""
Publishes what a container does: the configuration of its job when it starts, and metrics each
C{metrics.interval.ms}. A module of its own, since a container goes on without it.

What must be true:

  - A container neither waits for its reporter nor fails with it. What cannot be published is
  logged once.
  - Reports are sent by a producer of their own, which takes part in no transaction.
  - A container that ends in order leaves a tombstone, one that fails a last report that says so,
  and one that dies its last report.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.topics import LATEST, NewTopic
from pylogbroker.config.kafka.tasksettings import KafkaTaskSettings
from pylogbroker.errors import PylogbrokerError, TaskFailedError
from pylogbroker.metrics.taskmetrics import ContainerFigures, StandbyFigures, TaskFigures
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.net.timer import wallMs
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.tasks.job import Job
from pylogbroker.tasks.reports.containermetrics import (
    ContainerMetrics,
    PartitionMetrics,
    StandbyMetrics,
    StoreMetrics,
    TaskMetrics,
)
from pylogbroker.tasks.reports.jobconfig import PARTITION, configOf, shownSettings
from pylogbroker.tasks.topics import COMPACT, isMissing
from pylogbroker.types import TopicPartition

CONFIG_TOPIC_CONFIGS = {"cleanup.policy": COMPACT}
METRICS_TOPIC_CONFIGS = {
    # What is not compacted yet is read by each reader, and reports of dead containers go some day.
    "cleanup.policy": f"{COMPACT},delete",
    "retention.ms": str(24 * 3_600_000),
    "segment.bytes": str(4 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}

COUNTER_COUNT_MAX = 100
"""Counters that are published of a task."""

CLOSE_MS_MAX = 2_000
"""How long the end of a container waits for its last report."""

log = Logger()


class ReportedTask(TaskFigures, Protocol):
    """
    A task; a container's C{TaskStatus} is such.

    @ivar positions: the next offset of each partition that it reads; L{None}: not known yet.
    """

    @property
    def positions(self) -> Mapping[TopicPartition, int | None]: ...


class ReportedRestore(Protocol):
    """
    A store that is being restored.

    @ivar place: of the changelog.
    @ivar start: where it began.
    @ivar offset: of the next change.
    @ivar end: where it is done.
    """

    place: TopicPartition
    start: int
    offset: int
    end: int


class ReportedStandby(StandbyFigures, Protocol):
    """A stand-by task; a container's C{StandbyStatus} is such."""

    @property
    def isCurrent(self) -> bool: ...


class ReportedContainer(ContainerFigures, Protocol):
    """A container; a C{TaskContainer} is such."""

    @property
    def memberId(self) -> str: ...

    def status(self) -> Sequence[ReportedTask]: ...

    def standbys(self) -> Sequence[ReportedStandby]: ...

    def restores(self) -> Iterable[ReportedRestore]: ...


class TaskReporter:
    """Publishes reports of a container; the module states its promises."""

    def __init__(
        self,
        reactor: Any,
        job: Job,
        settings: KafkaTaskSettings,
        containerId: str,
        container: ReportedContainer,
        admin: AdminClient,
        random: Callable[[], float],
    ) -> None:
        """
        @param admin: the caller's, which closes it behind this.
        @param random: numbers from 0 up to, not including, 1.
        """
        self._reactor = reactor
        self._job = job
        self._settings = settings
        self._containerId = containerId
        self._container = container
        self._admin = admin
        self._random = random
        self._startedAtMs = wallMs(reactor)
        self._producer: KafkaProducer | None = None
        self._running: Deferred[None] | None = None
        self._isConfigSent = self._isReported = self._isTold = False
        self._created: set[str] = set()
        self._isTried = self._isClosing = False

    def start(self, counts: Mapping[str, int]) -> None:
        """
        Begin to publish, if there is a topic for it.

        @param counts: of partitions, by topic.
        """
        settings = self._settings
        if not settings.configTopic and not settings.metricsTopic:
            return
        self._producer = KafkaProducer(
            self._reactor, settings.forProducer(None, _ignore), random=self._random
        )
        self._running = Deferred.fromCoroutine(self._run(counts))
        self._running.addErrback(lambda failure: failure.trap(CancelledError))

    async def _run(self, counts: Mapping[str, int]) -> None:
        while True:
            for work in (partial(self._sendConfig, counts), self._sendMetrics):
                try:
                    await work()
                except CancelledError:
                    raise
                except Exception as error:
                    self._tell(error)
            self._isTried = True
            if self._isClosing:
                return
            await deferLater(self._reactor, self._settings.metricsIntervalMs / 1000)

    def _tell(self, error: BaseException) -> None:
        if not self._isTold:
            self._isTold = True
            log.warn(
                "Job {job}: its configuration and metrics cannot be published: {error}",
                job=self._job.name,
                error=error,
            )

    def _lost(self, failure: Failure) -> None:
        assert failure.value is not None
        self._tell(failure.value)

    async def _sendConfig(self, counts: Mapping[str, int]) -> None:
        """Publish the config, if that was not done."""
        topic = self._settings.configTopic
        if topic is None or self._isConfigSent:
            return
        await self._create(topic, CONFIG_TOPIC_CONFIGS)
        config = replace(
            configOf(self._job, counts),
            settings=shownSettings(self._settings),
            writtenAtMs=wallMs(self._reactor),
        )
        await self._send(topic, self._job.name, config.encode())
        self._isConfigSent = True

    async def _sendMetrics(self) -> None:
        topic = self._settings.metricsTopic
        if topic is None:
            return
        await self._create(topic, METRICS_TOPIC_CONFIGS)
        metrics = self._metrics(await self._ends())
        self._isReported = True  # it may be there even if its confirmation is not waited for
        await self._send(topic, metrics.key, metrics.encode())

    def _send(self, topic: str, key: str, value: bytes | None) -> Deferred[Any]:
        assert self._producer is not None
        return self._producer.send(topic, value, key.encode(), partition=PARTITION)

    async def _create(self, topic: str, configs: Mapping[str, str]) -> None:
        """Create a topic unless it is there; what is there is never changed."""
        if topic in self._created:
            return
        if isMissing((await self._admin.describeTopics([topic]))[topic]):
            new = NewTopic(topic, 1, self._settings.replicationFactor, configs)
            outcome = (await self._admin.createTopics([new]))[topic]
            exists = ErrorCode.TOPIC_ALREADY_EXISTS  # another container's
            if isinstance(outcome, PylogbrokerError) and not (
                isinstance(outcome, ResponseError) and outcome.code == exists
            ):
                raise outcome
        self._created.add(topic)

    async def _ends(self) -> dict[TopicPartition, int]:
        """The ends of the partitions of all tasks, as far as their leaders tell them."""
        places = {
            place: LATEST for task in self._container.status() for place in sorted(task.positions)
        }
        if not places:
            return {}
        found = await self._admin.listOffsets(places, isCommitted=True)
        return {
            place: each.offset
            for place, each in found.items()
            if not isinstance(each, PylogbrokerError)
        }

    def _metrics(self, ends: Mapping[TopicPartition, int], failure: str = "") -> ContainerMetrics:
        container = self._container
        stores = {self._job.changelogOf(each): each.name for each in self._job.stores}
        restores = {
            (stores[each.place.topic], each.place.partition): each for each in container.restores()
        }
        tasks = tuple(_taskMetrics(each, ends, restores, stores) for each in container.status())
        standbys = tuple(
            StandbyMetrics(each.partition, each.isCurrent, each.lag)
            for each in container.standbys()
        )
        return ContainerMetrics(
            self._job.name,
            self._containerId,
            platform.node(),
            container.memberId,
            self._startedAtMs,
            wallMs(self._reactor),
            self._settings.metricsIntervalMs,
            container.handledCount,
            container.failedCount,
            container.commitCount,
            container.restoredCount,
            len(tasks),
            tasks,
            failure,
            len(standbys),
            standbys,
        )

    @asDeferred
    async def close(self, failure: BaseException | None) -> None:
        """
        Publish the end, and close the producer.

        @param failure: what has ended the container.
        @return: fires with L{None}, within about twice L{CLOSE_MS_MAX}; never fails.
        """
        topic = self._settings.metricsTopic
        if self._producer is None or self._running is None:
            return
        self._isClosing = True
        if self._isTried or failure is not None:
            self._running.cancel()
        else:  # a short job is published, too
            self._running.addTimeout(CLOSE_MS_MAX / 1000, self._reactor)
        await self._running
        if self._isReported and topic is not None:
            metrics = self._metrics({}, _describeFailure(failure))
            value = None if failure is None else metrics.encode()
            self._send(topic, metrics.key, value).addErrback(self._lost)
        try:
            await self._producer.close(CLOSE_MS_MAX)
        except PylogbrokerError as error:
            self._tell(error)


def _ignore(_warning: str) -> None:
    """Warnings of settings: the container has told them."""


def _taskMetrics(
    task: ReportedTask,
    ends: Mapping[TopicPartition, int],
    restores: Mapping[tuple[str, int], ReportedRestore],
    stores: Mapping[str, str],
) -> TaskMetrics:
    """@param stores: the names of all stores, by their changelogs."""
    partitions = []
    for place, position in sorted(task.positions.items()):
        end = ends.get(place)
        lag = None if end is None or position is None else max(end - position, 0)
        partitions.append(PartitionMetrics(*place, position, end, lag))
    found = []
    for name in stores.values():
        restore = restores.get((name, task.partition))
        size = task.storeSizes.get(name)
        if restore is None:
            found.append(StoreMetrics(name, size))
        else:
            done, count = restore.offset - restore.start, restore.end - restore.start
            found.append(StoreMetrics(name, size, done, count))
    return TaskMetrics(
        task.partition,
        task.phase,
        task.handledCount,
        task.failedCount,
        dict(islice(task.counters.items(), COUNTER_COUNT_MAX)),
        tuple(partitions),
        tuple(found),
    )


def _describeFailure(failure: BaseException | None) -> str:
    """
    What has ended a container. The texts of other errors than L{TaskFailedError} may quote messages
    or settings, which readers of the topic need not be allowed to see.
    """
    if failure is None:
        return ""
    text = type(failure).__name__
    if isinstance(failure, TaskFailedError):
        text += (
            f": task {failure.task}, {failure.topic}-{failure.partition}, offset {failure.offset}"
        )
    return text
