"""
One task of a job: the author's object, its stores, and what it has sent. A module of its own, since
a container, the test driver and Spark run tasks each in their own way.

What must be true:

  - A message that raises has done nothing: what its task sent and stored for it is taken back.
  (Counters are metrics, and stay.)
  - A call handles messages until it is asked to commit, or what is not committed has reached a
  limit; the caller commits then, and calls again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import isawaitable
from math import inf
from typing import Any, NamedTuple, Protocol

from pylogbroker.errors import (
    ConfigurationError,
    EncodingError,
    RecordTooLargeError,
    StorageError,
    TaskFailedError,
    TaskOutputError,
    describeError,
)
from pylogbroker.records.batchbuilder import RECORD_OVERHEAD_MAX, recordSizeMax
from pylogbroker.tasks.api import Counter, IncomingMessageEnvelope, OutgoingMessageEnvelope
from pylogbroker.tasks.job import DEAD_LETTER, STOP, Job, hasCoroutines
from pylogbroker.tasks.state.keyvaluestore import KeyValueStore
from pylogbroker.types import TopicPartition

OUTPUT_OVERHEAD = 100
"""Bytes that a message costs that was not sent yet, beside key and value, about."""

PARTITION_MAX, TIMESTAMP_MAX = 0x7FFFFFFF, 0x7FFFFFFFFFFFFFFF

REASON_HEADER, TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER = (
    "pylogbroker.dead-letter.reason",
    "pylogbroker.dead-letter.topic",
    "pylogbroker.dead-letter.partition",
    "pylogbroker.dead-letter.offset",
)
"""Of a dead letter: why it is one, and where it was."""

REASON_SIZE_MAX = 10_000

Headers = Iterable[tuple[str, bytes | None]]

_Before = tuple[int, int, bool, bool]
"""What a task had sent, and asked for, before a message."""


class IncomingRecord(Protocol):
    """
    What a task's caller has of a message: C{ConsumerRecord}s are such.

    @ivar timestamp: milliseconds since the epoch; -1: none.
    """

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def timestamp(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Headers: ...


class InputRecord(NamedTuple):
    """An L{IncomingRecord} that comes from no consumer."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class OutgoingRecord(NamedTuple):
    """
    A message that a task has sent, encoded.

    @ivar partition: L{None}: the key's.
    @ivar timestamp: milliseconds since the epoch; L{None}: the producer's.
    @ivar source: the message for which it was sent; L{None}: there is none, for example in
        C{window}.
    """

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp: int | None
    partition: int | None
    source: IncomingRecord | None = None


class TaskInstance:
    """
    A task. It is C{MessageCollector}, C{TaskCoordinator} and C{TaskContext} of the author's object.

    @ivar taskName: C{job-N}.
    @ivar partition: of the inputs.
    @ivar isAsync: whether the author's object has coroutine functions.
    @ivar stores: by name.
    @ivar outputs: what was sent and not taken yet.
    @ivar outputSize: bytes of it, with L{OUTPUT_OVERHEAD}.
    @ivar counters: the author's, by name.
    @ivar positions: the next offset of each partition of which messages were handled; without
        those of broadcast inputs, which have none.
    @ivar isCommitAsked: whether the task asked for a commit; the caller sets it back.
    @ivar isShutdownAsked: whether it asked its container to end.
    @ivar handledCount: messages, with those that were left out.
    @ivar failedCount: messages that were left out, or are dead letters.
    """

    def __init__(
        self,
        job: Job,
        partition: int,
        stores: Mapping[str, KeyValueStore[Any, Any]],
        unsettledMax: int,
        onLeftOut: Callable[[TaskFailedError], None],
        recordSizeMax: float = inf,
    ) -> None:
        """
        @param unsettledMax: bytes that may be written and sent between two commits.
        @param onLeftOut: told of each message that is left out.
        @param recordSizeMax: bytes of a record that may be sent; see
            L{recordSizeMax<pylogbroker.records.batchbuilder.recordSizeMax>}.
        """
        self.taskName = f"{job.name}-{partition}"
        self.partition = partition
        self.stores = stores
        self.outputs: list[OutgoingRecord] = []
        self.outputSize = 0
        self.positions: dict[TopicPartition, int] = {}
        self.isCommitAsked = self.isShutdownAsked = False
        self.handledCount = self.failedCount = 0
        self._job = job
        self._task = job.task()
        self.isAsync = hasCoroutines(type(self._task))
        self._unsettledMax = unsettledMax
        self._onLeftOut = onLeftOut
        self._recordSizeMax = recordSizeMax
        self._timestamp: int | None = None
        self._record: IncomingRecord | None = None  # in hand
        self.counters: dict[str, Counter] = {}
        self._inputs = {
            each.topic: (each.topic, each.key.decode, each.message.decode) for each in job.inputs
        }
        self._broadcasts = {each.topic for each in job.inputs if each.isBroadcast}
        self._outputs = {
            each.topic: (job.topicOf(each), each.key.encode, each.message.encode)
            for each in job.outputs
        }
        for each in job.repartitions:
            topic = job.repartitionTopicOf(each)
            self._inputs[topic] = (each.name, each.key.decode, each.message.decode)
            self._outputs[each.name] = (topic, each.key.encode, each.message.encode)

    def __repr__(self) -> str:
        return f"<TaskInstance {self.taskName}, {self.handledCount} messages handled>"

    # -- for the author's object

    def getStore(self, name: str) -> KeyValueStore[Any, Any]:
        """See L{pylogbroker.tasks.api.TaskContext}."""
        found = self.stores.get(name)
        if found is None:
            known = ", ".join(sorted(self.stores)) or "none"
            raise ConfigurationError(f"job {self._job.name} has no store {name!r}; it has: {known}")
        return found

    def getCounter(self, name: str) -> Counter:
        """See L{pylogbroker.tasks.api.TaskContext}."""
        found = self.counters.get(name)
        if found is None:
            found = self.counters[name] = Counter()
        return found

    def send(self, envelope: OutgoingMessageEnvelope) -> None:
        """See L{pylogbroker.tasks.api.MessageCollector}."""
        output = self._outputs.get(envelope.topic)
        if output is None:
            known = ", ".join(sorted(self._outputs)) or "none"
            raise TaskOutputError(
                f"topic {envelope.topic} is no output of job {self._job.name}; it has: {known}"
            )
        topic, encodeKey, encodeMessage = output
        key, message, headers = envelope.key, envelope.message, envelope.headers
        partition, timestamp = envelope.partition, envelope.timestamp
        # What a producer would refuse is refused here, where it is the fault of one message.
        try:
            key = None if key is None else encodeKey(key)
            message = None if message is None else encodeMessage(message)
            if headers:
                headers = tuple(headers)
                size = recordSizeMax(key, message, headers)
            else:
                size = RECORD_OVERHEAD_MAX + len(key or b"") + len(message or b"")
            if partition is not None and not _isNumber(partition, PARTITION_MAX):
                raise EncodingError(f"partition {partition!r} is no number of one")
            if timestamp is None:
                timestamp = self._timestamp
            elif not _isNumber(timestamp, TIMESTAMP_MAX):
                raise EncodingError(
                    f"timestamp {timestamp!r} is no number of milliseconds since the epoch"
                )
        except (EncodingError, TypeError) as error:
            raise EncodingError(f"a message for topic {topic}: {error}") from error
        if size > self._recordSizeMax:
            raise RecordTooLargeError(
                f"a message for topic {topic} of {size:,} bytes: max.request.size of the producer"
                f" allows {self._recordSizeMax:,}"
            )
        fields = (topic, message, key, headers, timestamp, partition, self._record)
        # As C{_make} without its call: this is done for each message.
        self._add(tuple.__new__(OutgoingRecord, fields), size)

    def _add(self, record: OutgoingRecord, size: int) -> None:
        """@param size: see L{recordSizeMax}."""
        self.outputs.append(record)
        self.outputSize += OUTPUT_OVERHEAD - RECORD_OVERHEAD_MAX + size

    def commit(self) -> None:
        """See L{pylogbroker.tasks.api.TaskCoordinator}."""
        self.isCommitAsked = True

    def shutdown(self) -> None:
        """See L{pylogbroker.tasks.api.TaskCoordinator}."""
        self.isCommitAsked = self.isShutdownAsked = True

    # -- for its caller

    def takeOutputs(self) -> list[OutgoingRecord]:
        """What was sent since the last call."""
        taken, self.outputs, self.outputSize = self.outputs, [], 0
        return taken

    @property
    def unsettledSize(self) -> int:
        """Bytes that are written to stores, or sent, and not committed or taken."""
        return self.outputSize + sum(each.dirtySize for each in self.stores.values())

    @property
    def isFull(self) -> bool:
        """Whether a commit is due, by its own wish or since too much waits for it."""
        return self.isCommitAsked or self.unsettledSize >= self._unsettledMax

    def init(self) -> Any:
        """
        Begin. May return an awaitable.

        @raise Exception: the author's.
        """
        return self._task.init(self._job.config, self)

    def window(self) -> Any:
        """Call the author's C{window}. May return an awaitable."""
        self._timestamp = self._record = None
        return self._task.window(self, self)

    def close(self) -> Any:
        """End. May return an awaitable."""
        return self._task.close()

    def process(
        self,
        records: Sequence[IncomingRecord],
        start: int = 0,
        isDue: Callable[[], bool] = lambda: False,
    ) -> int:
        """
        Handle messages in order. May block, as the author's object does.

        @param records: of this task's partitions.
        @param start: of the first one to handle.
        @param isDue: whether to return behind the message in hand.
        @return: of the first one that was not handled: their count, or a commit comes first.
        @raise TaskFailedError: a message could not be handled, and C{onError} is C{stop}. Those
            before it were handled.
        @raise StorageError: a store cannot be read; likewise.
        """
        handling = self._handle(records, start, isDue, isWaiting=False)
        try:
            handling.send(None)
        except StopIteration as end:
            return int(end.value)
        raise AssertionError("a task without coroutine functions has waited")

    async def processAsync(
        self,
        records: Sequence[IncomingRecord],
        start: int = 0,
        isDue: Callable[[], bool] = lambda: False,
    ) -> int:
        """As L{process}, for a task with coroutine functions."""
        return await self._handle(records, start, isDue, isWaiting=True)

    async def _handle(
        self,
        records: Sequence[IncomingRecord],
        start: int,
        isDue: Callable[[], bool],
        isWaiting: bool,
    ) -> int:
        process, stores = self._task.process, tuple(self.stores.values())
        for index in range(start, len(records)):
            record = records[index]
            for store in stores:
                store.begin()
            self._timestamp = record.timestamp if record.timestamp >= 0 else None
            self._record = record
            before = (
                len(self.outputs),
                self.outputSize,
                self.isCommitAsked,
                self.isShutdownAsked,
            )
            try:
                waiting = process(self._decode(record), self, self)
                if waiting is not None and isawaitable(waiting):
                    if not isWaiting:
                        raise TypeError(
                            "process() returned an awaitable, and is no coroutine function"
                        )
                    await waiting
            except Exception as error:
                self._failed(record, error, before)
            self._handled(record)
            unsettledSize = self.outputSize
            for store in stores:
                unsettledSize += store.dirtySize
            if unsettledSize >= self._unsettledMax or self.isCommitAsked or isDue():
                return index + 1
        return len(records)

    def _decode(self, record: IncomingRecord) -> IncomingMessageEnvelope:
        name, decodeKey, decodeMessage = self._inputs[record.topic]
        key, value = record.key, record.value
        fields = (
            name,
            record.partition,
            record.offset,
            record.timestamp,
            None if key is None else decodeKey(key),
            None if value is None else decodeMessage(value),
            record.headers,
        )
        # As C{_make} without its call: this is done for each message.
        return tuple.__new__(IncomingMessageEnvelope, fields)

    def _handled(self, record: IncomingRecord) -> None:
        self.handledCount += 1
        if record.topic not in self._broadcasts:
            place: tuple[str, int] = (record.topic, record.partition)
            if place not in self.positions:  # where it is equal to a L{TopicPartition}
                place = TopicPartition(*place)
            self.positions[place] = record.offset + 1

    def _failed(self, record: IncomingRecord, error: Exception, before: _Before) -> None:
        for store in self.stores.values():
            store.rollBack()
        count, self.outputSize, self.isCommitAsked, self.isShutdownAsked = before
        del self.outputs[count:]
        if isinstance(error, StorageError):
            raise error  # no fault of the message
        reason = f"{type(error).__name__}: {describeError(error)}"
        failure = TaskFailedError(
            self.taskName, record.topic, record.partition, record.offset, reason
        )
        if self._job.onError == STOP:
            raise failure from error
        if self._job.onError == DEAD_LETTER:
            self._add(*self._deadLetterOf(record, reason))
        self.failedCount += 1
        self._onLeftOut(failure)

    def _deadLetterOf(self, record: IncomingRecord, reason: str) -> tuple[OutgoingRecord, int]:
        """
        @return: it, and its size.
        @raise TaskFailedError: with its headers the message is too large for the producer.
        """
        headers = [
            *record.headers,
            (REASON_HEADER, reason.encode(errors="backslashreplace")[:REASON_SIZE_MAX]),
            (TOPIC_HEADER, record.topic.encode()),
            (PARTITION_HEADER, b"%d" % record.partition),
            (OFFSET_HEADER, b"%d" % record.offset),
        ]
        size = recordSizeMax(record.key, record.value, headers)
        if size > self._recordSizeMax:
            reason += (
                f"; as a dead letter it has {size:,} bytes: max.request.size of the producer"
                f" allows {self._recordSizeMax:,}"
            )
            raise TaskFailedError(
                self.taskName, record.topic, record.partition, record.offset, reason
            )
        timestamp = record.timestamp if record.timestamp >= 0 else None
        topic = self._job.deadLetters
        letter = OutgoingRecord(topic, record.value, record.key, headers, timestamp, None, record)
        return letter, size


def _isNumber(value: object, numberMax: int) -> bool:
    return isinstance(value, int) and 0 <= value <= numberMax
