"""
The functions of a compiled job that run in Spark's workers, over Arrow batches. A module of its
own, since the driver only sends them there.

What must be true:

  - A message does here what it does in a task: the same serdes, headers, times and errors, by the
  same code.
  - A count is the sum of partial counts. So a worker sends each key once for many messages.
  - A changelog has what a container would write, in the partition that is the key's task.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any

import pyarrow as pa

from pylogbroker.cluster.kafkapartitioner import keyPartition
from pylogbroker.errors import ResultFailedError, TaskFailedError, describeError
from pylogbroker.spark.kafka.rangereader import HEADERS_TYPE
from pylogbroker.spark.tasks.operatorplan import OperatorPlan
from pylogbroker.tasks.api import Counter
from pylogbroker.tasks.job import Job
from pylogbroker.tasks.serdes import Serde
from pylogbroker.tasks.state.keyvaluestore import ENTRY_OVERHEAD
from pylogbroker.tasks.streams.operators import Surroundings, Take
from pylogbroker.tasks.streams.plantask import PlanTask
from pylogbroker.tasks.streams.steps import Aggregation, PlanStep, RepartitionStep, originsOf
from pylogbroker.tasks.streams.stores import ValueAndTimestamp
from pylogbroker.tasks.taskinstance import InputRecord, OutgoingRecord, TaskInstance

_MESSAGE = (
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", HEADERS_TYPE),
    ("timestampMs", pa.int64()),
)
_DONE = (("handled", pa.int64()), ("failed", pa.int64()))

SENT_SCHEMA = pa.schema([*_MESSAGE, *_DONE])
"""Of a job without counts. A row without a topic is no message: it says what was done."""

COUNT_SCHEMA = pa.schema(
    [
        ("store", pa.string()),
        ("task", pa.int32()),
        ("key", pa.binary()),
        ("count", pa.int64()),
        ("timestampMs", pa.int64()),
        *_DONE,
    ]
)
"""Of partial counts. A row without a store is none: it says what was done."""

RESULT_SCHEMA = pa.schema(_MESSAGE)
"""Of what comes of counts: outputs, and changes of stores."""

RESULT_ROW_COUNT = 10_000
"""Of one Arrow batch of results, or those of one count more."""

log = logging.getLogger(__name__)


class PartialCounts:
    """
    The counts of one step, of the messages of one partition that a worker has seen.

    @ivar size: bytes, about.
    """

    def __init__(self, key: Serde) -> None:
        """@param key: the step's."""
        self.size = 0
        self._encode = key.encode
        self._texts: dict[str, bytes] = {}  # what encoded texts are: most keys come often
        self._counts: dict[bytes, list[int]] = {}

    def adder(self, dropped: Counter) -> Take:
        """
        Takes the messages of a stream. It is one function, since it is called for each.

        @param dropped: counts those that have no key, or no message.
        """
        encode, texts, counts = self._encode, self._texts, self._counts

        def add(key: Any, message: Any, timestamp: int) -> None:
            if key is None or message is None:
                dropped.increment()
                return
            if type(key) is str:
                data = texts.get(key)
                if data is None:
                    data = texts[key] = encode(key)
            else:
                data = encode(key)
            found = counts.get(data)
            if found is None:
                counts[data] = [1, timestamp]
                self.size += ENTRY_OVERHEAD + 2 * len(data)
            else:
                found[0] += 1
                if timestamp > found[1]:
                    found[1] = timestamp

        return add

    def take(self) -> list[tuple[bytes, list[int]]]:
        """Encoded keys, each with its count and greatest timestamp since the last call."""
        taken = list(self._counts.items())
        self._counts.clear()
        self._texts.clear()
        self.size = 0
        return taken


class _SourceTask(PlanTask):
    """
    Does the steps before the counts.

    @ivar counts: by the names of the steps.
    """

    def __init__(self, steps: Sequence[PlanStep]) -> None:
        super().__init__(steps)
        self.counts: dict[str, PartialCounts] = {}

    def operatorOf(self, step: PlanStep, forward: Take) -> tuple[Take, ...]:
        """See L{PlanTask}."""
        if isinstance(step, Aggregation):
            counts = self.counts[step.name] = PartialCounts(_known(step.key))
            return (counts.adder(self.around.droppedOf(step)),)
        if isinstance(step, RepartitionStep):
            readers = [each for each in self.steps if step in each.parents]
            if all(isinstance(each, Aggregation) for each in readers):
                return (forward,)  # a count encodes the key, and needs no message
            return (_shuffle(step, self.around, forward),)
        return super().operatorOf(step, forward)


def _shuffle(step: RepartitionStep, around: Surroundings, forward: Take) -> Take:
    """A repartition without a topic: messages are what they would be when they come from there."""
    dropped, key, message = around.droppedOf(step), step.key, step.message
    assert key is not None and message is not None

    def take(given: Any, content: Any, timestamp: int) -> None:
        if given is None:
            dropped.increment()
            return
        given = key.decode(key.encode(given))
        if content is not None:
            content = message.decode(message.encode(content))
        forward(given, content, timestamp)

    return take


class SentStage:
    """What each message does, in a job without counts."""

    def __init__(self, job: Job, plan: OperatorPlan, unsettledMax: int) -> None:
        """@param unsettledMax: bytes of messages that are kept before they leave for Spark."""
        self._job = replace(job, task=partial(_SourceTask, plan.before))
        self._unsettledMax = unsettledMax

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        For C{mapInArrow}.

        @param batches: of our source, each partition in the order of its offsets.
        @return: L{SENT_SCHEMA}.
        @raise TaskFailedError: a message cannot be handled, and C{onError} is C{stop}.
        """
        instances: dict[int, TaskInstance] = {}
        for batch in batches:
            for partition, records in _recordsOf(batch).items():
                instance = instances.get(partition)
                if instance is None:
                    instance = TaskInstance(self._job, partition, {}, self._unsettledMax, _leaveOut)
                    instance.init()
                    instances[partition] = instance
                at = 0
                while at < len(records):
                    at = instance.process(records, at)
                    yield self._settled(instance)

    def _settled(self, instance: TaskInstance) -> pa.RecordBatch:
        """What an instance has done since the last call."""
        done = (instance.handledCount, instance.failedCount)
        instance.handledCount = instance.failedCount = 0
        rows = [(*row, 0, 0) for row in map(_rowOf, instance.takeOutputs())]
        return _batchOf(SENT_SCHEMA, [*rows, (*[None] * len(_MESSAGE), *done)])


class CountStage:
    """
    What each message does before Spark counts. It has a loop of its own, without the envelopes of
    tasks: nothing is sent here, and a failure ends the query.
    """

    def __init__(self, job: Job, plan: OperatorPlan, taskCount: int, unsettledMax: int) -> None:
        """
        @param taskCount: how many partitions a repartition has.
        @param unsettledMax: bytes of counts, over all counts of a partition, that are kept from
            one Arrow batch to the next.
        """
        self._job = job
        self._steps = plan.before
        self._isByKey = {
            each.name: isinstance(originsOf(each.parents[0])[0], RepartitionStep)
            for each in plan.counts
        }
        self._taskCount = taskCount
        self._unsettledMax = unsettledMax

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        For C{mapInArrow}.

        @param batches: of our source, each partition in the order of its offsets.
        @return: L{COUNT_SCHEMA}.
        @raise TaskFailedError: a message cannot be handled.
        """
        tasks: dict[int, _SourceTask] = {}
        for batch in batches:
            for partition, records in _recordsOf(batch).items():
                task = tasks.get(partition)
                if task is None:
                    task = tasks[partition] = _SourceTask(self._steps)
                    task.init(
                        self._job.config, TaskInstance(self._job, partition, {}, 0, _leaveOut)
                    )
                self._handle(task, records)
                isFull = sum(each.size for each in task.counts.values()) >= self._unsettledMax
                yield self._settled(task, partition, len(records), isFull)
        for partition, task in tasks.items():
            yield self._settled(task, partition, 0, isFull=True)

    def _handle(self, task: _SourceTask, records: Sequence[InputRecord]) -> None:
        taking = {
            each.topic: (each.key.decode, each.message.decode, task.takeOf(each.topic))
            for each in self._job.inputs
        }
        for topic, partition, offset, timestamp, key, value, _ in records:
            decodeKey, decode, take = taking[topic]
            try:
                take(
                    None if key is None else decodeKey(key),
                    None if value is None else decode(value),
                    timestamp,
                )
            except Exception as error:
                reason = f"{type(error).__name__}: {describeError(error)}"
                name = f"{self._job.name}-{partition}"
                raise TaskFailedError(name, topic, partition, offset, reason) from error

    def _settled(
        self, task: _SourceTask, partition: int, handledCount: int, isFull: bool
    ) -> pa.RecordBatch:
        """@param isFull: whether the counts leave, too."""
        rows: list[tuple[Any, ...]] = []
        for name, counts in task.counts.items() if isFull else ():
            for key, (count, timestamp) in counts.take():
                number = keyPartition(key, self._taskCount) if self._isByKey[name] else partition
                rows.append((name, number, key, count, timestamp, 0, 0))
        return _batchOf(COUNT_SCHEMA, [*rows, (None, None, None, None, None, handledCount, 0)])


class _ResultTask(PlanTask):
    """Does the steps behind the counts. What a count gives is read under its name."""

    def operatorOf(self, step: PlanStep, forward: Take) -> tuple[Take, ...]:
        """See L{PlanTask}."""
        if isinstance(step, Aggregation):
            self.readFrom(step.name, forward)
            return ()
        if isinstance(step, RepartitionStep):
            return (_shuffle(step, self.around, forward),)
        return super().operatorOf(step, forward)


class ResultStage:
    """What comes of the counts that a micro-batch has changed."""

    def __init__(self, job: Job, plan: OperatorPlan) -> None:
        self._job = job
        self._plan = plan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        For C{mapInArrow}, over rows of C{store, task, key, count, timestampMs}.

        @return: L{RESULT_SCHEMA}.
        @raise ResultFailedError: a function of the author, or a serde, has failed.
        """
        job = self._job
        task = _ResultTask(self._plan.behind)
        instance = TaskInstance(job, 0, {}, 0, _leaveOut)
        task.init(job.config, instance)
        task.around.collector = instance
        stores = {each.name: each for each in job.stores}
        given = {
            each.name: (
                _known(each.key).decode,
                stores[each.name].value.encode,
                task.takeOf(each.name),
            )
            for each in self._plan.counts
        }
        changelogs = {name: job.changelogOf(store) for name, store in stores.items()}
        rows: list[tuple[Any, ...]] = []
        for batch in batches:
            for name, partition, key, count, timestamp in zip(*_columns(batch), strict=True):
                decode, encode, take = given[name]
                try:
                    # A key that was there before has a count of more than one.
                    take(decode(key), count, count > 1, timestamp)
                except Exception as error:
                    reason = f"{type(error).__name__}: {describeError(error)}"
                    raise ResultFailedError(job.name, name, key, reason) from error
                rows += map(_rowOf, instance.takeOutputs())
                value = encode(ValueAndTimestamp(count, timestamp))
                rows.append((changelogs[name], partition, key, value, None, None))
                if len(rows) >= RESULT_ROW_COUNT:
                    yield _batchOf(RESULT_SCHEMA, rows)
                    rows = []
        if rows:
            yield _batchOf(RESULT_SCHEMA, rows)


def _known(serde: Serde | None) -> Serde:
    """A serde that the compiler has seen to."""
    assert serde is not None
    return serde


def _columns(batch: pa.RecordBatch) -> list[list[Any]]:
    return [each.to_pylist() for each in batch.columns]


def _recordsOf(batch: pa.RecordBatch) -> dict[int, list[InputRecord]]:
    """The messages of a batch, by partition, each in the order of the rows."""
    names = ("topic", "partition", "offset", "timestampMs", "key", "value")
    columns: list[Any] = [batch.column(name).to_pylist() for name in names]
    headers: Iterable[Any] = repeat((), batch.num_rows)
    if "headers" in batch.schema.names:
        headers = (
            tuple((pair["key"], pair["value"]) for pair in each) if each else ()
            for each in batch.column("headers").to_pylist()
        )
    records = list(map(InputRecord._make, zip(*columns, headers, strict=True)))
    partitions = set(columns[1])
    if len(partitions) == 1:
        return {partitions.pop(): records}
    found: dict[int, list[InputRecord]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    return found


def _rowOf(record: OutgoingRecord) -> tuple[Any, ...]:
    """The columns of L{_MESSAGE}."""
    topic, value, key, headers, timestamp, partition, _ = record
    pairs = [{"key": name, "value": data} for name, data in headers] or None
    return topic, partition, key, value, pairs, timestamp


def _batchOf(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """@param rows: one at least."""
    arrays = [
        pa.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _leaveOut(failure: TaskFailedError) -> None:
    log.warning("A message is left out: %s", failure)
