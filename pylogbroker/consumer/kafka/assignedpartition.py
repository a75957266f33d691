"""
A partition that a consumer reads: where it is, and what was fetched. A module of its own, since it
is pure: responses go in, messages come out.

What must be true:

  - A message is handed out once, in the order of the log, from the position on. The position moves
  behind a message when it is handed out, and behind what has no messages (markers, compacted
  records) when the reader goes past it.
  - Whatever moves the position otherwise (a seek, a reset, a truncation) discards what was fetched,
  and the responses that are still to come: each request remembers the partition's C{generation}.
  - With C{read_committed}, messages of aborted transactions are left out. The broker names the
  transactions with each response; a marker ends one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pylogbroker.errors import FormatError, MessageTooLargeError, PylogbrokerError
from pylogbroker.interfaces import BatchHeader
from pylogbroker.metrics.counters import ConsumerTopicCounters
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.records.recordbatch import (
    BATCH_OVERHEAD,
    Headers,
    checkCrc,
    iterateRows,
    readHeader,
)
from pylogbroker.types import TopicPartition

NO_EPOCH = -1
NO_OFFSET = -1
NO_REPLICA = -1
CREATE_TIME, LOG_APPEND_TIME = 0, 1


class ConsumerRecord(NamedTuple):
    """
    A message as an application gets it.

    @ivar timestamp: milliseconds since the epoch; -1: none.
    @ivar value: L{None}: a tombstone.
    @ivar headers: pairs of name and bytes.
    @ivar leaderEpoch: of the leader that appended it, for L{KafkaConsumer.seek
        <pylogbroker.consumer.kafka.consumer.KafkaConsumer.seek>}; -1: unknown.
    @ivar timestampType: L{CREATE_TIME}, the producer's; L{LOG_APPEND_TIME}, the broker's.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    leaderEpoch: int
    timestampType: int


class FetchedChunk:
    """
    What a response has for a partition: whole batches.

    @ivar size: bytes.
    @ivar end: the offset behind the last batch.
    @ivar epoch: of the leader that appended the last batch.
    """

    __slots__ = ("_aborted", "_batches", "_data", "end", "epoch", "size")

    def __init__(self, data: bytes, aborted: Sequence[tuple[int, int]] = ()) -> None:
        """
        @param aborted: first offset and producer of transactions that were aborted.
        @raise FormatError: the first header cannot be read.
        @raise MessageTooLargeError: not even the first batch is whole.
        """
        self._data = data
        self._aborted = deque(sorted(aborted))
        self._batches: list[tuple[int, BatchHeader]] = []
        self.size = len(data)
        self.end, self.epoch = NO_OFFSET, NO_EPOCH
        at = 0
        while len(data) - at >= BATCH_OVERHEAD:
            try:
                header = readHeader(data, at)
            except FormatError:
                if not self._batches:
                    raise
                break  # the next response begins with it
            if header.size > len(data) - at:
                break
            self._batches.append((at, header))
            self.end, self.epoch = header.nextOffset, header.leaderEpoch
            at += header.size
        if data and not self._batches:
            raise MessageTooLargeError(f"a batch of more than {len(data)} bytes")

    def records(
        self, partition: AssignedPartition, isChecking: bool = True
    ) -> Iterator[ConsumerRecord]:
        """
        The messages from the partition's position on. The position moves behind each message that
        is yielded, and in the end behind the chunk.

        @param isChecking: whether checksums are compared.
        @raise FormatError: a batch is damaged; the text names partition and offset.
        """
        data, place = self._data, partition.place
        begins = self._aborted
        producers = set[int]()  # in an aborted transaction at this place
        count = 0
        for at, header in self._batches:
            try:
                if isChecking:
                    checkCrc(data, at, header)
                while begins and begins[0][0] <= header.lastOffset:
                    producers.add(begins.popleft()[1])
                if header.isControl:
                    producers.discard(header.producerId)
                elif not (header.isTransactional and header.producerId in producers):
                    epoch = header.leaderEpoch
                    kind = LOG_APPEND_TIME if header.isLogAppendTime else CREATE_TIME
                    for record in iterateRows(
                        ConsumerRecord, place, (epoch, kind), partition.position, data, at, header
                    ):
                        partition.position = record[2] + 1
                        count += 1
                        yield record
            except FormatError as error:
                raise type(error)(
                    f"{partition.place}, batch at offset {header.baseOffset}: {error.reason}",
                    error.position,
                ) from error
            finally:
                partition.counters.messageCount += count
                count = 0
            if header.nextOffset > partition.position:
                partition.position = header.nextOffset


class AssignedPartition:
    """
    A partition, and how far it was read.

    @ivar place: topic and number.
    @ivar counters: of the topic; messages are counted when the last one of a batch is taken, or the
        rest is dropped.
    @ivar position: the next offset to hand out; L{NO_OFFSET}: it must be found, see C{resetTime}.
    @ivar foundAt: the position that was found for C{resetTime}; L{NO_OFFSET}: it was given.
    @ivar resetTime: the time whose offset is to be found (-2: the beginning, -1: the end);
        L{None}: the policy says.
    @ivar endOffset: of the next message, when messages were fetched last; with C{read_committed},
        where the first open transaction begins. L{NO_OFFSET}: nothing was fetched yet.
    @ivar fetchOffset: the next offset to ask for.
    @ivar fetchEpoch: of the leader that appended the last batch before it.
    @ivar checkedEpoch: of the leader that is known to have what was read.
    @ivar generation: grows when the position moves by itself.
    @ivar topicId: of the topic that was read; zeros: unknown.
    @ivar chunks: fetched, and not read; an error is raised in its turn.
    @ivar current: the messages of the chunk that is read.
    @ivar isPaused: whether nothing of it is handed out or asked for.
    @ivar isHeld: the same, while it comes or goes in a rebalance.
    @ivar readEpoch: of the leader that appended what was read last; L{NO_EPOCH}: unknown.
    @ivar isAsked: whether a request for it is under way.
    @ivar turn: when it was asked for last, counted.
    @ivar retryAtMs: nothing is asked before this time.
    @ivar failureCount: failures in a row.
    @ivar reportedCode: of an error that the reader knows.
    @ivar readReplica: the follower that messages are fetched from; L{NO_REPLICA}: the leader.
    @ivar readReplicaEndMs: when the leader is asked again.
    @ivar avoidReplicasUntilMs: until when only the leader is asked, since a follower has failed.
    """

    __slots__ = (
        "avoidReplicasUntilMs",
        "checkedEpoch",
        "chunks",
        "counters",
        "current",
        "endOffset",
        "failureCount",
        "fetchEpoch",
        "fetchOffset",
        "foundAt",
        "generation",
        "isAsked",
        "isHeld",
        "isPaused",
        "place",
        "position",
        "readEpoch",
        "readReplica",
        "readReplicaEndMs",
        "reportedCode",
        "resetTime",
        "retryAtMs",
        "topicId",
        "turn",
    )

    def __init__(self, place: TopicPartition, counters: ConsumerTopicCounters) -> None:
        self.place = place
        self.counters = counters
        self.position = self.fetchOffset = self.foundAt = self.endOffset = NO_OFFSET
        self.resetTime: int | None = None
        self.fetchEpoch = self.checkedEpoch = NO_EPOCH
        self.topicId = ZERO_UUID
        self.generation = 0
        self.chunks: deque[FetchedChunk | PylogbrokerError] = deque()
        self.current: Iterator[ConsumerRecord] | None = None
        self.isPaused = self.isAsked = self.isHeld = False
        self.readEpoch = NO_EPOCH
        self.turn = 0
        self.retryAtMs = 0.0
        self.failureCount = 0
        self.reportedCode = 0
        self.readReplica = NO_REPLICA
        self.readReplicaEndMs = self.avoidReplicasUntilMs = 0.0

    @property
    def queuedSize(self) -> int:
        """Bytes of the chunks that were not begun."""
        return sum(each.size for each in self.chunks if isinstance(each, FetchedChunk))

    def moveTo(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """
        Read from an offset on.

        @param epoch: of the leader that appended what is before it; L{NO_EPOCH}: unknown.
        """
        self._discard()
        self.position = self.fetchOffset = offset
        self.foundAt = self.endOffset = NO_OFFSET
        self.resetTime = None
        self.fetchEpoch, self.checkedEpoch = epoch, NO_EPOCH
        self.readEpoch = epoch
        self.topicId = ZERO_UUID

    def locate(self, offset: int, epoch: int, checkedEpoch: int) -> None:
        """
        Begin where C{resetTime} was found to be.

        @param epoch: as of L{moveTo}.
        @param checkedEpoch: of the leader that said so.
        """
        self.position = self.fetchOffset = self.foundAt = offset
        self.resetTime = None
        self.fetchEpoch, self.checkedEpoch = epoch, checkedEpoch

    def mustReset(self, time: int | None = None) -> None:
        """Read from an offset on that is to be found, see C{resetTime}."""
        self.moveTo(NO_OFFSET)
        self.resetTime = time

    def readAgain(self) -> None:
        """Fetch again what was not handed out."""
        self._discard()
        self.fetchOffset = self.position

    def _discard(self) -> None:
        self.generation += 1
        self.chunks.clear()
        self.current = None
        self.retryAtMs = 0.0
        self.failureCount = 0

    def put(self, chunk: FetchedChunk) -> None:
        """Take in what was fetched at C{fetchOffset}."""
        self.failureCount = 0
        self.reportedCode = 0
        if chunk.size:
            self.chunks.append(chunk)
            self.fetchOffset = max(self.fetchOffset, chunk.end)
            self.fetchEpoch = chunk.epoch

    def fail(self, error: PylogbrokerError) -> None:
        """Raise an error behind what was fetched, unless another one waits there."""
        if not self.chunks or isinstance(self.chunks[-1], FetchedChunk):
            self.chunks.append(error)

    def take(self, isChecking: bool) -> ConsumerRecord | None:
        """
        The next message of the first chunk; L{None} at its end, and without one.

        @raise FormatError: a batch is damaged; it is fetched again.
        @raise PylogbrokerError: another error of the partition.
        """
        current = self.current
        if current is None:
            if not self.chunks:
                return None
            chunk = self.chunks.popleft()
            if not isinstance(chunk, FetchedChunk):
                raise chunk
            current = self.current = chunk.records(self, isChecking)
        try:
            for record in current:
                return record
        except FormatError:
            self.readAgain()
            raise
        self.current = None
        return None

    @property
    def isUnread(self) -> bool:
        """Whether no message before the position was read."""
        return self.position in (0, self.foundAt)

    @property
    def hasMessages(self) -> bool:
        """Whether there may be messages, or an error, to hand out now."""
        return not (self.isPaused or self.isHeld) and (
            bool(self.chunks) or self.current is not None
        )
