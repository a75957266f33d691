"""
Jobs and their containers of tasks for the console, from the topics where containers publish them
(L{pylogbroker.tasks.reports}).

The topics are read on request only, from where the last request has stopped; what is kept has
limits, which the answer names. A record that cannot be understood, which other programs may have
written, is counted in the answer, beside the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, Generic, TypeVar

from pylogbroker.config.kafka.tasksettings import CONFIG_TOPIC, METRICS_TOPIC
from pylogbroker.console.peek import LIMITS, READ_SIZE_MAX, Work
from pylogbroker.console.recordpeek import IRecordSource
from pylogbroker.errors import FormatError, PylogbrokerError, UnknownPartitionError, describeError
from pylogbroker.net.timer import wallMs
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.records.recordbatch import (
    BATCH_OVERHEAD,
    Record,
    checkCrc,
    iterateRecords,
    readHeader,
)
from pylogbroker.tasks.reports.containermetrics import ContainerMetrics
from pylogbroker.tasks.reports.jobconfig import PARTITION, JobConfig

T = TypeVar("T")

TASK_TOPICS = (CONFIG_TOPIC, METRICS_TOPIC)
"""Where containers publish by default."""

KEPT_SIZE_MAX = 16 << 20
"""Bytes of the last records of a topic."""

KEPT_COUNT_MAX = 1_000
"""Jobs, and containers."""

TASK_COUNT_MAX = 2_000
"""Tasks and stand-bys in an answer."""

READ_COUNT_MAX = 4
"""Reads of a topic for one answer, of L{READ_SIZE_MAX} bytes each."""

FORGET_MS = 60_000
"""What was read is forgotten when nothing asks for longer; it is read anew then."""

OVERDUE_INTERVALS = 3
"""A container that has reported nothing for this many of its intervals may be dead."""


class _Kept(Generic[T]):
    """
    The last record of each key.

    @ivar timestampMs: of the record.
    @ivar size: of its value.
    @ivar value: what it says; L{None}: it cannot be understood.
    """

    def __init__(self, record: Record, value: T | None) -> None:
        self.timestampMs = record.timestampMs
        self.size = len(record.value or b"")
        self.value = value


class _ReportTopic(Generic[T]):
    """
    The last records of a topic, as far as it was read.

    @ivar position: the next offset.
    @ivar isComplete: whether the end was reached.
    """

    def __init__(self, topic: str, decode: Callable[[bytes], T], keyOf: Callable[[T], str]) -> None:
        """@param keyOf: the key that a record has."""
        self.topic = topic
        self._decode = decode
        self._keyOf = keyOf
        self.reset(0)

    def reset(self, position: int) -> None:
        self.position = position
        self.isComplete = False
        self._kept: dict[bytes, _Kept[T]] = {}
        self._size = self._leftOutCount = 0

    async def refresh(self, source: IRecordSource, work: Work) -> None:
        """
        Read on.

        @raise PylogbrokerError: the broker refuses.
        """
        start, end = await source.recordBounds(self.topic, PARTITION)
        if not start <= self.position <= end:  # old records went, or the topic was created anew
            self.reset(start)
        for _turn in range(READ_COUNT_MAX):
            if self.position >= end:
                break
            before = self.position
            data = await source.readBatches(self.topic, PARTITION, before, READ_SIZE_MAX)
            await work(partial(self._add, data))
            if self.position == before:
                break  # the batch is larger than a read
        self.isComplete = self.position >= end

    def _add(self, data: bytes) -> None:
        """Called on a worker thread, one call at a time."""
        at = 0
        while len(data) - at >= BATCH_OVERHEAD:
            header = readHeader(data, at)
            if header.size > len(data) - at:
                break
            checkCrc(data, at, header)
            for record in iterateRecords(data, at, header, LIMITS):
                if record.offset >= self.position and not header.isControl:
                    self._take(record)
            self.position = max(self.position, header.nextOffset)
            at += header.size

    def _take(self, record: Record) -> None:
        key = record.key or b""
        before = self._kept.pop(key, None)
        if before is not None:
            self._size -= before.size
        if record.value is None:
            return
        if len(self._kept) >= KEPT_COUNT_MAX or self._size + len(record.value) > KEPT_SIZE_MAX:
            self._leftOutCount += 1
            return
        value = None
        try:
            value = self._decode(record.value)
            if self._keyOf(value).encode() != key:
                value = None
        except ValueError:
            pass
        self._kept[key] = _Kept(record, value)
        self._size += len(record.value)

    def values(self) -> Iterator[tuple[int, T]]:
        """Each one that is understood, with its record's timestamp, in the order of the keys."""
        for _key, each in sorted(self._kept.items()):
            if each.value is not None:
                yield each.timestampMs, each.value

    def problems(self) -> Iterator[str]:
        unknown = sum(each.value is None for each in self._kept.values())
        if unknown:
            yield f"{unknown} of {len(self._kept)} records of {self.topic} cannot be understood"
        if self._leftOutCount:
            yield f"{self.topic} has more than is shown: {self._leftOutCount} records are left out"


class TaskReports:
    """Jobs and their containers, as they have published themselves. One call at a time."""

    def __init__(
        self, clock: Any, source: IRecordSource, topics: tuple[str, str] = TASK_TOPICS
    ) -> None:
        """@param topics: C{config.topic} and C{metrics.topic} of the containers."""
        configTopic, metricsTopic = topics
        self._clock = clock
        self._source = source
        self._askedAt = 0.0
        self._configs = _ReportTopic(configTopic, JobConfig.decode, lambda each: each.job)
        self._metrics = _ReportTopic(metricsTopic, ContainerMetrics.decode, lambda each: each.key)

    async def read(self, work: Work) -> dict[str, Any]:
        """
        For the page: jobs with their configuration, and their containers with the age of their last
        reports. C{isKnown} is false if the topics cannot be read, C{isComplete} while there is more
        to read.

        @param work: decodes records.
        """
        now = self._clock.seconds()
        if (now - self._askedAt) * 1000 > FORGET_MS:
            self._configs.reset(0)
            self._metrics.reset(0)
        self._askedAt = now
        problems: list[str] = []
        isKnown = True
        topics: tuple[_ReportTopic[Any], ...] = (self._configs, self._metrics)
        for each in topics:
            try:
                await each.refresh(self._source, work)
            except (PylogbrokerError, FormatError) as error:
                if _isMissing(error):
                    each.reset(0)
                    each.isComplete = True
                else:
                    isKnown = False
                    problems.append(f"{each.topic}: {describeError(error)}")
            problems += each.problems()
        nowMs = wallMs(self._clock)
        return {
            "timeMs": nowMs,
            "isKnown": isKnown,
            "isComplete": all(each.isComplete for each in topics),
            "jobs": self._jobs(nowMs, problems),
            "problems": problems,
        }

    def _jobs(self, nowMs: int, problems: list[str]) -> list[dict[str, Any]]:
        jobs: dict[str, dict[str, Any]] = {
            config.job: {"name": config.job, "config": asdict(config), "containers": []}
            for _timestampMs, config in self._configs.values()
        }
        left, count = TASK_COUNT_MAX, 0
        for timestampMs, each in self._metrics.values():
            count += len(each.tasks) + len(each.standbys)
            job = jobs.setdefault(each.job, {"name": each.job, "config": None, "containers": []})
            ageMs = max(nowMs - timestampMs, 0)
            isOverdue = not each.failure and ageMs > OVERDUE_INTERVALS * each.intervalMs
            shown = asdict(each)
            for kind in ("tasks", "standbys"):
                shown[kind] = shown[kind][:left]
                left -= len(shown[kind])
            job["containers"].append({**shown, "ageMs": ageMs, "isOverdue": isOverdue})
        if count > TASK_COUNT_MAX:
            problems.append(f"{TASK_COUNT_MAX} of {count} tasks and stand-bys are shown")
        return [jobs[name] for name in sorted(jobs)]


def _isMissing(error: Exception) -> bool:
    """Whether the topic does not exist: no container has published anything."""
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return isinstance(error, UnknownPartitionError) or (
        isinstance(error, ResponseError) and error.code == missing
    )
