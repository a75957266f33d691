"""
The tasks of a job in Spark's workers. A module of its own, since the driver only sends it there.

The key of a group is the number of a task. For each micro-batch a task is made anew, over its maps
in Spark's state store; it handles what the micro-batch has of its partitions, and is given up.

What must be true:

  - A shuffle loses the order of rows. So the rows of each partition are sorted by offset here, and
  partitions are merged by timestamp: the head with the least one is next, and of equals that of a
  bootstrapped input, else of the one that the job names first.
  - State and checkpoint belong together: an offset that does not lie behind those that the state
  has handled is an error, and nothing of the micro-batch counts.
  - What is sent and written leaves as rows, in order: outputs first, then the changes of stores.
  - A micro-batch that is repeated sends again. What goes to a repartition topic is numbered for
  each task that sends, in a header; the task that gets it leaves out what it has had. So state is
  exactly once behind repartitions, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import pairwise
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from pylogbroker.errors import OffsetConflictError, TaskFailedError
from pylogbroker.spark.tasks.mapstateengine import MapStateEngine
from pylogbroker.tasks.job import Job
from pylogbroker.tasks.state.engines import ChangelogMark
from pylogbroker.tasks.state.keyvaluestore import KeyValueStore
from pylogbroker.tasks.taskinstance import InputRecord, OutgoingRecord, TaskInstance

SEQUENCE_HEADER = "pylogbroker.task.sequence"
"""Of a message in a repartition topic: C{task:number}, both as decimals."""

INPUT_COLUMNS = ("task", "topic", "partition", "offset", "timestampMs", "key", "value", "headers")
"""The columns of the rows that a processor gets."""

OUTPUT_SCHEMA = (
    "topic string, partition int, key binary, value binary,"
    " headers array<struct<key:string,value:binary>>, timestampMs long,"
    " handled long, failed long, shutdowns long"
)
"""
Of the rows that a processor gives. A row without a topic is no message: it counts what a task has
done in the micro-batch.
"""

_BYTES_KEY = StructType([StructField("key", BinaryType())])
_BYTES_VALUE = StructType([StructField("value", BinaryType())])
_PLACE = StructType([StructField("topic", StringType()), StructField("partition", IntegerType())])
_OFFSET = StructType([StructField("offset", LongType())])
_SENDER = StructType([StructField("topic", StringType()), StructField("task", IntegerType())])
_NO_MARK = ChangelogMark(bytes(16), 0)

_OutputRow = Row(
    *("topic", "partition", "key", "value", "headers", "timestampMs"),
    *("handled", "failed", "shutdowns"),
)

log = logging.getLogger(__name__)


def stateNameOf(store: str) -> str:
    """The name in Spark's state of a job's store."""
    return f"store-{store}"


def inOrder(rows: Iterable[InputRecord], job: Job) -> list[InputRecord]:
    """
    The order in which a task handles messages.

    @raise OffsetConflictError: two rows have one offset.
    """
    partitions: dict[tuple[str, int], list[InputRecord]] = {}
    for row in rows:
        partitions.setdefault((row.topic, row.partition), []).append(row)
    for found in partitions.values():
        found.sort(key=lambda row: row.offset)
        for before, row in pairwise(found):
            if row.offset == before.offset:
                raise OffsetConflictError(
                    f"{row.topic}, partition {row.partition}: offset {row.offset} is there twice"
                )
    if len(partitions) == 1:
        return found
    ranks = job.ranks
    ordered = [partitions[place] for place in sorted(partitions, key=lambda p: (ranks[p[0]], p[1]))]
    return list(merge(*ordered, key=lambda row: row.timestamp))


class TaskProcessor(StatefulProcessor):
    """Runs the tasks of a job. It travels to workers, so all of it can be pickled."""

    def __init__(self, job: Job, cacheSize: int) -> None:
        """
        @param cacheSize: bytes that a task may write and send before they leave for the state, and
            that a store may keep to be read again.
        """
        self._job = job
        self._cacheSize = cacheSize
        self._repartitions = frozenset(map(job.repartitionTopicOf, job.repartitions))

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See Spark's. The driver calls it, too, to learn what there is."""
        self._handle = handle
        self._states: dict[str, MapState] = {
            each.name: handle.getMapState(stateNameOf(each.name), _BYTES_KEY, _BYTES_VALUE)
            for each in self._job.stores
        }
        self._positions = handle.getMapState("positions", _PLACE, _OFFSET)
        # By topic and sender: the first number that is not handled. Without a topic: the next one
        # that this task gives.
        self._sequences = handle.getMapState("sequences", _SENDER, _OFFSET)

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> Iterator[Row]:
        """
        See Spark's: what the micro-batch has for a task.

        @raise TaskFailedError: a message cannot be handled, and C{onError} is C{stop}.
        @raise OffsetConflictError: the state has messages already, or not all before them.
        """
        found = inOrder(_inputRows(rows), self._job)
        task = int(key[0])
        self._checkPositions(task, found)
        found = self._leaveOutRepeated(found)
        if self._job.windowMs and next(iter(self._handle.listTimers()), None) is None:
            nowMs = timerValues.getCurrentProcessingTimeInMs()
            self._handle.registerTimer(nowMs + self._job.windowMs)

        def work(instance: TaskInstance) -> Iterator[Row]:
            at = 0
            while at < len(found):
                at = instance.process(found, at)
                if at < len(found):
                    yield from self._settle(instance)

        return self._run(task, work)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """See Spark's: C{window} of a task is due."""
        nowMs = timerValues.getCurrentProcessingTimeInMs()
        self._handle.registerTimer(nowMs + self._job.windowMs)

        def work(instance: TaskInstance) -> Iterator[Row]:
            instance.window()
            yield from ()

        return self._run(int(key[0]), work)

    def _checkPositions(self, task: int, rows: Iterable[InputRecord]) -> None:
        lasts: dict[tuple[str, int], int] = {}
        for row in rows:
            place = (row.topic, row.partition)
            if place not in lasts:
                position = self._positions.getValue(place)
                if position is not None and row.offset < position[0]:
                    raise OffsetConflictError(
                        f"job {self._job.name}, task {task}: {row.topic}, partition"
                        f" {row.partition}: offset {row.offset} comes again, and the state has all"
                        f" before {position[0]}: state and checkpoint do not belong together"
                    )
            lasts[place] = row.offset
        for place, offset in lasts.items():
            self._positions.updateValue(place, (offset + 1,))

    def _leaveOutRepeated(self, rows: list[InputRecord]) -> list[InputRecord]:
        """The rows without what was sent again to repartition topics; their header goes."""
        if not self._repartitions:
            return rows
        nexts: dict[tuple[str, int], int] = {}
        found = []
        for row in rows:
            sent = _sequenceOf(row) if row.topic in self._repartitions else None
            if sent is None:
                found.append(row)
                continue
            place = (row.topic, sent[0])
            if place not in nexts:
                nexts[place] = self._next(place)
            if sent[1] >= nexts[place]:
                nexts[place] = sent[1] + 1
                headers = tuple(each for each in row.headers if each[0] != SEQUENCE_HEADER)
                found.append(row._replace(headers=headers))
        for place, number in nexts.items():
            self._sequences.updateValue(place, (number,))
        return found

    def _next(self, place: tuple[str, int]) -> int:
        found = self._sequences.getValue(place)
        return 0 if found is None else int(found[0])

    def _numbered(self, task: int, records: list[OutgoingRecord]) -> list[OutgoingRecord]:
        """The records, those for repartition topics with numbers."""
        if not self._repartitions:
            return records
        number = before = self._next(("", task))
        found = []
        for each in records:
            if each.topic in self._repartitions:
                header = (SEQUENCE_HEADER, b"%d:%d" % (task, number))
                each = each._replace(headers=[*each.headers, header])
                number += 1
            found.append(each)
        if number > before:
            self._sequences.updateValue(("", task), (number,))
        return found

    def _run(self, task: int, work: Callable[[TaskInstance], Iterator[Row]]) -> Iterator[Row]:
        stores = {
            each.name: KeyValueStore[Any, Any](
                each.name,
                each.key,
                each.value,
                MapStateEngine(self._states[each.name], self._cacheSize),
                self._cacheSize,
            )
            for each in self._job.stores
        }
        instance = TaskInstance(self._job, task, stores, self._cacheSize, _leaveOut)
        instance.init()
        try:
            yield from work(instance)
            yield from self._settle(instance)
        finally:
            instance.close()
        counts = (instance.handledCount, instance.failedCount, int(instance.isShutdownAsked))
        yield _OutputRow(None, None, None, None, None, None, *counts)

    def _settle(self, instance: TaskInstance) -> Iterator[Row]:
        """What a task has sent and written goes to the sink, and into the state."""
        instance.isCommitAsked = False
        for record in self._numbered(instance.partition, instance.takeOutputs()):
            yield _rowOf(record)
        for store in self._job.stores:
            kept = instance.stores[store.name]
            changes = kept.changes()
            topic = self._job.changelogOf(store)
            for key, value in changes:
                yield _rowOf(OutgoingRecord(topic, value, key, (), None, instance.partition))
            kept.commit(changes, _NO_MARK)


def _rowOf(record: OutgoingRecord) -> Row:
    headers = [Row(key=name, value=data) for name, data in record.headers] or None
    return _OutputRow(
        record.topic,
        record.partition,
        record.key,
        record.value,
        headers,
        record.timestamp,
        0,
        0,
        0,
    )


def _inputRows(rows: Iterable[Row]) -> Iterator[InputRecord]:
    for row in rows:
        _task, topic, partition, offset, timestamp, key, value, headers = row
        yield InputRecord(topic, partition, offset, timestamp, key, value, _pairs(headers))


def _sequenceOf(row: InputRecord) -> tuple[int, int] | None:
    """Who has sent a message of a repartition topic, and its number; L{None}: it has none."""
    for name, value in row.headers:
        if name == SEQUENCE_HEADER and value is not None:
            task, _, number = value.partition(b":")
            return int(task), int(number)
    return None


def _pairs(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((pair["key"], pair["value"]) for pair in headers or ())


def _leaveOut(failure: TaskFailedError) -> None:
    log.warning("A message is left out: %s", failure)
