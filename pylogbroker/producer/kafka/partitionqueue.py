"""
The messages for one partition on their way: which batch is sent next, with which sequence number. A
module of its own, since it is pure, and its tests try every order of answers.

With idempotence the broker takes a batch only behind the one before it, by producer id, epoch and
sequence number, and knows the last five of a partition: so a batch sent twice is stored once, and
none is stored behind a gap. What must be true here:

  - From the oldest unacknowledged batch to the newest one that was sent there are at most five,
  with those that are acknowledged in between. Else the broker could have forgotten the oldest one,
  refuse it as out of order, and it would seem not to be there.
  - A broker without any batch of a producer takes one with any number. So the first leaves alone:
  else it could be refused, and the second be stored before it.
  - A batch is sent again with the numbers that it had. When one has to be sent again, those behind
  it were refused, or are about to be: nothing leaves until all of them are answered; then all that
  are left go again, in order.
  - A number that was used and is not in the log is a gap: a batch was refused for good, was given
  up, or the broker has forgotten the producer. The next epoch begins behind a gap, with 0; where
  there is none left, the producer gets another id. But a batch that may be in the log must not get
  another number: it is sent with its old one until the broker has said what became of it (a refusal
  for its sequence means that it is not there). Where the oldest unacknowledged batch is not there,
  none behind it is.

Kafka's own client bumps the epoch of such a batch as well, and may store it twice.

Without idempotence there are no numbers. Batches that were in flight behind one that is sent again
may stand before it in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from pylogbroker.errors import PylogbrokerError
from pylogbroker.interfaces import NO_PRODUCER
from pylogbroker.records.batchbuilder import BatchBuilder, PackedRecords
from pylogbroker.records.recordbatch import iterateRecords, readHeader

NO_SEQUENCE = -1
EPOCH_MAX = 0x7FFF
_SEQUENCE_MASK = 0x7FFFFFFF


NO_OFFSET = -1
NO_TIME = -1
"""In a response: the messages have the timestamps that they came with."""


class RecordMetadata(NamedTuple):
    """
    Where a message is.

    @ivar offset: -1: the broker does not say (C{acks=0}; a batch that it had long before).
    @ivar timestamp: milliseconds since the epoch; the broker's, where the topic has
        C{LogAppendTime}.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class BatchMetadata:
    """
    Where the messages of a batch are.

    @ivar baseOffset: of the first one; L{NO_OFFSET}: the broker does not say.
    @ivar timestamps: of each message.
    @ivar timeMs: of all, where the broker has set it; L{NO_TIME}: their own count.
    """

    __slots__ = ("baseOffset", "partition", "timeMs", "timestamps", "topic")

    def __init__(
        self, topic: str, partition: int, baseOffset: int, timestamps: list[int], timeMs: int
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.baseOffset = baseOffset
        self.timestamps = timestamps
        self.timeMs = timeMs

    def of(self, index: int) -> RecordMetadata:
        """Where a message is, by its place in the batch."""
        offset = NO_OFFSET if self.baseOffset == NO_OFFSET else self.baseOffset + index
        timestamp = self.timestamps[index] if self.timeMs == NO_TIME else self.timeMs
        return RecordMetadata(self.topic, self.partition, offset, timestamp)


class ProducerBatch:
    """
    Messages that are stored together or not at all.

    @ivar builder: takes the messages; L{None} once the batch was sent.
    @ivar waiters: objects with C{callback} and C{errback} for the outcome of each message, or
        L{None}.
    @ivar timestamps: of each message.
    @ivar memorySize: bytes that its messages have of the producer's memory.
    @ivar roomySize: while C{memorySize} is at most this, it has certainly room.
    @ivar deadlineMs: when it is given up, on the clock.
    @ivar isDue: whether it need not wait for more messages.
    @ivar ordinal: its place among the batches that were sent.
    @ivar isInRequest: whether it was sent, and neither answered nor lost.
    @ivar isUncertain: whether the broker may have it.
    @ivar isSettled: whether its waiters know the outcome.
    """

    __slots__ = (
        "attemptCount",
        "builder",
        "deadlineMs",
        "isDue",
        "isInRequest",
        "isSettled",
        "isUncertain",
        "lastError",
        "memorySize",
        "ordinal",
        "packed",
        "queue",
        "roomySize",
        "sequence",
        "timestamps",
        "waiters",
    )

    def __init__(self, queue: PartitionQueue, deadlineMs: float) -> None:
        self.queue = queue
        self.builder: BatchBuilder | None = BatchBuilder()
        self.packed: PackedRecords | None = None
        self.waiters: list[Any] = []
        self.timestamps: list[int] = self.builder.timestamps
        self.roomySize = 0
        self.memorySize = 0
        self.deadlineMs = deadlineMs
        self.sequence = NO_SEQUENCE
        self.ordinal = 0
        self.attemptCount = 0
        self.lastError: PylogbrokerError | None = None
        self.isDue = self.isInRequest = self.isUncertain = self.isSettled = False

    def __len__(self) -> int:
        return len(self.waiters)

    @property
    def size(self) -> int:
        """Bytes in a request; before it is compressed, at most about so many."""
        if self.packed is not None:
            return self.packed.size
        assert self.builder is not None
        return self.builder.encode()

    def hasRoom(self, size: int, sizeMax: int) -> bool:
        """
        Whether one more message fits into a batch with a builder. The first one always does.

        The memory of messages is the most bytes that they can take, so records need not be encoded
        for each answer: only when the batch could be full by what they take at most.

        @param size: the memory of the message.
        @param sizeMax: bytes of a batch.
        """
        assert self.builder is not None
        self.roomySize = self.memorySize + sizeMax - self.builder.encode()
        return self.memorySize + size <= self.roomySize or not self.waiters

    def pack(self, codec: int) -> None:
        """Close the batch, if it is open."""
        if self.builder is not None:
            self.packed = self.builder.close(codec)
            self.builder = None

    def encode(self, isTransactional: bool = False) -> bytes:
        """The batch, with the numbers that it has now. It must be closed."""
        assert self.packed is not None
        queue = self.queue
        if self.sequence == NO_SEQUENCE:
            return self.packed.encode()
        return self.packed.encode(queue.producerId, queue.epoch, self.sequence, isTransactional)

    def split(self, codec: int) -> tuple[ProducerBatch, ProducerBatch]:
        """
        Two batches of half the messages, with the same numbers. It has two messages at least, and
        is not in the log.
        """
        data = self.encode()
        records = list(iterateRecords(data, 0, readHeader(data)))
        middle = len(records) // 2
        halves = []
        for start, end in ((0, middle), (middle, len(records))):
            half = ProducerBatch(self.queue, self.deadlineMs)
            assert half.builder is not None
            for record in records[start:end]:
                half.builder.append(record.timestampMs, record.key, record.value, record.headers)
            half.waiters = self.waiters[start:end]
            half.lastError = self.lastError
            if self.sequence != NO_SEQUENCE:
                half.sequence = (self.sequence + start) & _SEQUENCE_MASK
            half.pack(codec)
            halves.append(half)
        first, second = halves
        first.memorySize = self.memorySize // 2
        second.memorySize = self.memorySize - first.memorySize
        return first, second


class PartitionQueue:
    """
    The batches for one partition.

    @ivar open: takes messages; L{None}: there is none.
    @ivar full: wait to be sent for the first time.
    @ivar unacknowledged: were sent, in the order of their numbers.
    @ivar inRequestCount: of those, how many are in a request.
    @ivar node: the broker that got the last one.
    @ivar retryAtMs: after a failure nothing is sent before this time.
    """

    __slots__ = (
        "_hasGap",
        "_hasStored",
        "_inFlightCountMax",
        "_isRecovering",
        "_nextOrdinal",
        "_nextSequence",
        "epoch",
        "full",
        "inRequestCount",
        "node",
        "open",
        "partition",
        "producerId",
        "retryAtMs",
        "topic",
        "unacknowledged",
    )

    def __init__(self, topic: str, partition: int, inFlightCountMax: int) -> None:
        """
        @param inFlightCountMax: from the oldest unacknowledged batch to the newest.
        """
        self.topic = topic
        self.partition = partition
        self.open: ProducerBatch | None = None
        self.full: deque[ProducerBatch] = deque()
        self.unacknowledged: deque[ProducerBatch] = deque()
        self.inRequestCount = 0
        self.node = -1
        self.retryAtMs = 0.0
        self.producerId, self.epoch = NO_PRODUCER, -1
        self._inFlightCountMax = inFlightCountMax
        self._nextSequence = NO_SEQUENCE
        self._nextOrdinal = 0
        self._isRecovering = False
        self._hasGap = False
        self._hasStored = False  # a batch of this producer's id

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def isIdentified(self) -> bool:
        """Whether batches are numbered."""
        return self._nextSequence != NO_SEQUENCE

    @property
    def producer(self) -> tuple[int, int]:
        """Id and epoch that batches have now."""
        return self.producerId, self.epoch

    @property
    def isExhausted(self) -> bool:
        """Whether an epoch must begin now, and there is none left: another id is needed."""
        return self._hasGap and self.epoch >= EPOCH_MAX and self._isCertain

    @property
    def _isCertain(self) -> bool:
        """Whether no unacknowledged batch can be in the log, since the oldest is not."""
        return not self.inRequestCount and not (
            self.unacknowledged and self.unacknowledged[0].isUncertain
        )

    def identify(self, producerId: int, epoch: int) -> None:
        """Number the batches from 0 on. Called before the first is sent, and when exhausted."""
        self._hasStored = self._hasStored and producerId == self.producerId
        self.producerId, self.epoch = producerId, epoch
        self._hasGap = False
        self._nextSequence = 0
        for batch in self.unacknowledged:
            batch.isUncertain = False
            self._number(batch)

    def next(self, nowMs: float, isFlushing: bool) -> ProducerBatch | None:
        """
        The batch to send now; L{begin} follows, or nothing.

        @param isFlushing: whether an open batch waits for no more messages.
        """
        if self._isRecovering or self._hasGap:
            if self.inRequestCount or nowMs < self.retryAtMs:
                return None
            self._isRecovering = False
            if self._hasGap and self._isCertain:
                if self.isExhausted:
                    return None
                self.identify(self.producerId, self.epoch + 1)
        if len(self.unacknowledged) > self.inRequestCount:
            batch = next(each for each in self.unacknowledged if not each.isInRequest)
            return batch if self._isInWindow(batch.ordinal) else None
        if self._hasGap or not self._isInWindow(self._nextOrdinal):
            return None
        if self.full:
            return self.full[0]
        opened = self.open
        return opened if opened is not None and (opened.isDue or isFlushing) else None

    def _isInWindow(self, ordinal: int) -> bool:
        first = self.unacknowledged[0].ordinal if self.unacknowledged else ordinal
        isFirst = self.isIdentified and not self._hasStored
        return ordinal - first < (1 if isFirst else self._inFlightCountMax)

    def hasWork(self, isFlushing: bool) -> bool:
        """Whether there is something to send, now or after an answer."""
        return (
            bool(self.full)
            or len(self.unacknowledged) > self.inRequestCount
            or (self.open is not None and (self.open.isDue or isFlushing))
        )

    def _number(self, batch: ProducerBatch) -> None:
        batch.sequence = self._nextSequence
        self._nextSequence = (self._nextSequence + len(batch)) & _SEQUENCE_MASK

    def begin(self, batch: ProducerBatch, node: int) -> None:
        """A batch of L{next} is sent to a broker."""
        if not batch.attemptCount:
            if batch is self.open:
                self.open = None
            else:
                self.full.popleft()
            if self.isIdentified:
                self._number(batch)
            batch.ordinal = self._nextOrdinal
            self._nextOrdinal += 1
            self.unacknowledged.append(batch)
        batch.isInRequest = True
        batch.attemptCount += 1
        self.inRequestCount += 1
        self.node = node

    def _end(self, batch: ProducerBatch) -> None:
        if batch.isInRequest:
            batch.isInRequest = False
            self.inRequestCount -= 1

    def acknowledged(self, batch: ProducerBatch) -> None:
        """The log has it."""
        self._hasStored = True
        self._end(batch)
        self.unacknowledged.remove(batch)

    def mustRetry(self, batch: ProducerBatch, retryAtMs: float) -> None:
        """It must be sent again."""
        self._end(batch)
        self._isRecovering = True
        self.retryAtMs = max(self.retryAtMs, retryAtMs)

    def refusedForSequence(self, batch: ProducerBatch, retryAtMs: float) -> None:
        """
        The broker lacks the batch before it. If that one is acknowledged, the broker has lost it,
        or knows this producer no more.
        """
        batch.isUncertain = False
        if self.unacknowledged[0] is batch:
            self._hasGap = True
        self.mustRetry(batch, retryAtMs)

    def replace(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> None:
        """Send others in its place, which have its messages."""
        self._end(batch)
        index = self.unacknowledged.index(batch)
        self.unacknowledged.remove(batch)
        for part in reversed(parts):
            part.attemptCount = batch.attemptCount
            self.unacknowledged.insert(index, part)
        for place, part in enumerate(parts):
            part.ordinal = batch.ordinal + place
        moreCount = len(parts) - 1
        for behind in list(self.unacknowledged)[index + len(parts) :]:
            behind.ordinal += moreCount
        self._nextOrdinal += moreCount
        self._isRecovering = True

    def drop(self, batch: ProducerBatch) -> None:
        """It will not be sent again, or at all."""
        self._end(batch)
        if batch is self.open:
            self.open = None
        elif batch in self.unacknowledged:
            self.unacknowledged.remove(batch)
            self._hasGap = self._hasGap or self.isIdentified
        else:
            self.full.remove(batch)
