"""
Streams of messages that an application reads.

A stream is a bounded queue of chunks with one reader. A chunk is a fetch's undecoded response for
one partition. A fetcher reserves a stream's capacity before it requests a partition: this is the
back pressure of a slow reader.

A partition's position moves to a message's next offset when the message is handed out. It moves to
the chunk's end when the reader asks for more, since a chunk may end with empty wrappers. Dropping a
partition discards the chunk being read, so nothing is handed out after a final commit.

An error of one partition is raised once, in its turn; the stream goes on with the others. A wrong
checksum or a bad wrapper discards the partition's queue, since order counts, and the fetcher is
told. An exception of the application's decoder skips only its message.

There are four ways to read, on top of L{MessageStream.take} or L{MessageStream.poll}: C{async for}
over messages or lists (L{MessageStream.batches}), a Twisted push producer
(L{MessageStream.pipeTo}), and an iterator for a plain thread (L{MessageStream.blocking}).
"""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import Callable, Collection, Iterator, MutableMapping
from itertools import dropwhile
from typing import Any, NamedTuple, Protocol, cast

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.threads import blockingCallFromThread
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.errors import (
    ConsumerStateError,
    ConsumerTimeoutError,
    FormatError,
    PylogbrokerError,
)
from pylogbroker.metrics.counters import ConsumerCounters
from pylogbroker.net.timer import Timer
from pylogbroker.records.messageset import MessageSet
from pylogbroker.types import BrokerPartition, PartitionId, consumedCount

CHUNK_COUNT_MAX = 10
QUEUED_SIZE_MAX = 64 << 20
BATCH_COUNT_MAX = 1_000
"""Messages in a list of L{MessageStream.batches} by default."""
THREAD_COUNT_MAX = 100
"""Messages that a plain thread gets from the reactor's thread at a time."""
DELIVERY_COUNT_MAX = 1_000
"""Messages handed to a receiver in one reactor turn."""


class ConsumedMessage(NamedTuple):
    """
    A message as an application gets it.

    @ivar value: the payload, or the decoder's result.
    @ivar partition: numbers of the broker and of its partition.
    @ivar nextOffset: where a reader that has this message goes on (spec-0.7 wire-protocol §6).
    """

    value: Any
    topic: str
    partition: BrokerPartition
    nextOffset: int


class Chunk(NamedTuple):
    """
    A fetch's response for one partition; at least one complete entry.

    @ivar end: the offset behind the last complete entry.
    @ivar onReadError: called with offset and error of an entry that cannot be decoded.
    """

    partition: PartitionId
    messages: MessageSet
    size: int
    end: int
    onReadError: Callable[[int, PylogbrokerError], None] = lambda offset, error: None


class PolledBatch(NamedTuple):
    """
    Messages polled but not yet acknowledged. Call L{MessageStream.acknowledge} before polling
    again.

    @ivar error: raised in place of the next message.
    @ivar positions: new positions; with an error behind messages also those of other partitions.
    @ivar epoch: the stream's at the poll.
    """

    messages: list[ConsumedMessage]
    error: Exception | None
    positions: dict[PartitionId, int]
    epoch: int


class _Fault(NamedTuple):
    partition: PartitionId
    error: PylogbrokerError


class _Reset(NamedTuple):
    partition: PartitionId
    offset: int


def _unconsumed(messages: MessageSet, position: int) -> Iterator[tuple[bytes, int]]:
    doneCount = consumedCount(position) if position == messages.baseOffset else 0
    return dropwhile(
        lambda each: each[1] == position and 0 < consumedCount(each[1]) <= doneCount,
        messages.payloadsWithOffsets(),
    )


def withPosition(error: PylogbrokerError, partition: PartitionId, offset: int) -> PylogbrokerError:
    """A format error with partition and offset in its text; any other error unchanged."""
    if isinstance(error, FormatError):
        return type(error)(f"{partition} at offset {offset}: {error.reason}", error.position)
    return error


class MessageStream:
    """
    One stream of a consumer.

    @ivar positions: what to commit for each partition; shared by a consumer's streams.
    @ivar isEnded: whether the consumer was shut down.
    """

    def __init__(
        self,
        name: str,
        clock: Any,
        positions: MutableMapping[PartitionId, int],
        *,
        decode: Callable[[bytes], Any] | None = None,
        isShallow: bool = False,
        tracksIntraBatch: bool = False,
        chunkCountMax: int = CHUNK_COUNT_MAX,
        queuedSizeMax: int = QUEUED_SIZE_MAX,
        timeoutMs: int = -1,
        counters: ConsumerCounters | None = None,
    ) -> None:
        """
        @param name: of the consumer thread.
        @param decode: from a payload to a value.
        @param isShallow: whether compressed entries are handed out whole.
        @param tracksIntraBatch: whether positions inside compressed sets are exact
            (L{pylogbroker.types.PartialBatchOffset}). Otherwise they are the set's beginning.
        @param queuedSizeMax: bytes queued or reserved; an empty stream accepts any chunk.
        @param timeoutMs: a reader's wait before L{ConsumerTimeoutError}; negative: for ever.
        """
        self.name = name
        self.positions = self._readPositions = positions
        self.isEnded = False
        self._clock = clock
        self._decode = decode
        self._isShallow = isShallow
        self._tracksIntraBatch = tracksIntraBatch
        self._chunkCountMax = chunkCountMax
        self._queuedSizeMax = queuedSizeMax
        self._timeoutMs = timeoutMs
        self._counters = counters or ConsumerCounters()
        self._queue: deque[Chunk | _Fault | _Reset] = deque()
        self._chunkCount = self._size = 0  # queued and reserved
        self._capacityWaiters: dict[Callable[[], None], None] = {}  # in order, each once
        self._epoch = 0  # grows with each drop and reset
        self._droppedAt: dict[PartitionId, int] = {}
        self._resetAt: dict[PartitionId, tuple[int, int]] = {}  # epoch, offset
        self._current: tuple[Chunk, Iterator[ConsumedMessage]] | None = None
        # The error behind a list that was delivered.
        self._unreported: tuple[Exception, PolledBatch] | None = None
        self._wakeReader: Callable[[], None] | None = None

    def __repr__(self) -> str:
        ended = ", ended" if self.isEnded else ""
        return f"<MessageStream {self.name}, {len(self._queue)} chunks{ended}>"

    # -- the fetcher's side

    @property
    def hasCapacity(self) -> bool:
        return not self._chunkCount or (
            self._chunkCount < self._chunkCountMax and self._size < self._queuedSizeMax
        )

    @property
    def queuedSize(self) -> int:
        return sum(each.size for each in self._queue if isinstance(each, Chunk))

    def whenCapacity(self, wake: Callable[[], None]) -> None:
        self._capacityWaiters[wake] = None

    def reserve(self, size: int) -> None:
        self._chunkCount += 1
        self._size += size

    def release(self, size: int) -> None:
        self._chunkCount -= 1
        self._size -= size
        if self._capacityWaiters and self.hasCapacity and not self.isEnded:
            waiters, self._capacityWaiters = self._capacityWaiters, {}
            for wake in waiters:
                wake()

    def put(self, chunk: Chunk) -> None:
        if not self.isEnded:
            self.reserve(chunk.size)
            self._queue.append(chunk)
            self._wake()

    def fail(self, partition: PartitionId, error: PylogbrokerError) -> None:
        if not self.isEnded:
            self._queue.append(_Fault(partition, error))
            self._wake()

    def resetPosition(self, partition: PartitionId, offset: int) -> None:
        """Move the partition to another offset once its queue is read."""
        isReading = self._current is not None and self._current[0].partition == partition
        if isReading or any(each.partition == partition for each in self._queue):
            self._queue.append(_Reset(partition, offset))
        else:
            # In this order: a thread that moves the position at the same time looks here then.
            self._epoch += 1
            self._resetAt[partition] = (self._epoch, offset)
            self.positions[partition] = offset

    def drop(self, partitions: Collection[PartitionId]) -> None:
        self._epoch += 1
        self._droppedAt.update(dict.fromkeys(partitions, self._epoch))
        dropped = [each for each in self._queue if each.partition in partitions]
        self._queue = deque(each for each in self._queue if each.partition not in partitions)
        if self._current is not None and self._current[0].partition in partitions:
            self._current = None
        for each in dropped:
            if isinstance(each, Chunk):
                self.release(each.size)

    def end(self) -> None:
        self._queue.clear()
        self._current = self._unreported = None
        self.isEnded = True
        self._wake()

    def _wake(self) -> None:
        if self._wakeReader is not None:
            self._wakeReader()

    # -- the reader's side

    def take(self) -> ConsumedMessage | None:
        """
        The next message, if there is one now. Its partition's position moves behind it.

        @raise PylogbrokerError: a partition cannot be read; the next call goes on with the others.
        @raise Exception: the decoder raised it; the next call goes on behind that message.
        """
        if self._unreported is not None:
            (error, batch), self._unreported = self._unreported, None
            self.acknowledge(batch)
            raise error
        while True:
            current = self._current
            if current is None:
                if not self._queue:
                    return None
                self._open(self._queue.popleft())
                continue
            try:
                message = next(current[1])
            except StopIteration:
                self._current = None
                continue
            except PylogbrokerError as reason:
                raise self._failChunk(current[0], reason) from reason
            if self._decode is None:
                return message
            return message._replace(value=self._decode(message.value))

    def _open(self, item: Chunk | _Fault | _Reset) -> None:
        if isinstance(item, _Fault):
            raise item.error
        if isinstance(item, _Reset):
            self._readPositions[item.partition] = item.offset
            return
        self._current = item, self._messages(item)
        self.release(item.size)

    def _messages(self, chunk: Chunk) -> Iterator[ConsumedMessage]:
        """The hot loop. It moves the position behind each message that it yields."""
        messages, place = chunk.messages, chunk.partition
        if self._isShallow:
            payloads: Iterator[tuple[bytes, int]] = (
                (each.message.payload, each.nextOffset) for each in messages.shallow()
            )
        else:
            position = self._readPositions.get(place, -1)
            payloads = (
                _unconsumed(messages, position) if self._tracksIntraBatch else messages.payloads()
            )
        topic, partition = place
        make = tuple.__new__  # half the cost of calling the class
        count, nextOffset = 0, messages.baseOffset
        try:
            for payload, nextOffset in payloads:
                count += 1
                self._readPositions[place] = nextOffset
                yield make(ConsumedMessage, (payload, topic, partition, nextOffset))
            # If the position is elsewhere, a batch that is not acknowledged is behind it.
            if self._readPositions.get(place) == nextOffset:
                self._readPositions[place] = chunk.end
        finally:
            self._counters.topic(topic).messageCount += count

    def _failChunk(self, chunk: Chunk, error: PylogbrokerError) -> PylogbrokerError:
        offset = self._readPositions[chunk.partition]
        self.drop((chunk.partition,))
        chunk.onReadError(offset, error)
        return withPosition(error, chunk.partition, offset)

    def poll(self, countMax: int) -> PolledBatch:
        """
        Take messages without moving positions, so that no commit gets ahead of the work on them.
        Returns fewer than C{countMax}, or none, at the queue's end or before an error.
        """
        moved: dict[PartitionId, int] = {}
        self._readPositions = ChainMap(moved, self.positions)
        messages: list[ConsumedMessage] = []
        error: Exception | None = None
        try:
            while len(messages) < countMax and (message := self.take()) is not None:
                messages.append(message)
        except Exception as reason:
            error = reason
        finally:
            self._readPositions = self.positions
        if not messages or error is None:
            read = {PartitionId(each.topic, each.partition) for each in messages}
            for partition in moved.keys() - read:
                self.positions[partition] = moved.pop(partition)
        return PolledBatch(messages, error, moved, self._epoch)

    async def nextBatch(self, countMax: int) -> PolledBatch:
        """
        As L{poll}, but wait for a message or an error.

        @raise StopAsyncIteration: the consumer was shut down.
        @raise ConsumerTimeoutError: none came in time; the reader may ask again.
        """
        while True:
            batch = self.poll(countMax)
            if batch.messages or batch.error is not None:
                return batch
            if self.isEnded:
                raise StopAsyncIteration
            await self.wait()

    def acknowledge(self, batch: PolledBatch) -> None:
        """
        Move the positions behind a batch, except for partitions dropped or reset since the poll.
        """
        for partition, offset in batch.positions.items():
            if (
                not self.wasDropped(partition, batch.epoch)
                and self.resetOffset(partition, batch.epoch) is None
            ):
                self.positions[partition] = offset

    def deliver(self, batch: PolledBatch) -> list[ConsumedMessage]:
        """
        Move the positions behind a batch's messages, but not behind its error, which is raised to
        the next reader first.

        @raise Exception: the batch's error, if it has no messages.
        """
        messages, error = batch.messages, batch.error
        if messages and error is not None:
            self._unreported = error, batch
            batch = batch._replace(
                positions={
                    PartitionId(each.topic, each.partition): each.nextOffset for each in messages
                }
            )
        self.acknowledge(batch)
        if not messages and error is not None:
            raise error
        return messages

    def wasDropped(self, partition: PartitionId, epoch: int) -> bool:
        return self._droppedAt.get(partition, 0) > epoch

    def resetOffset(self, partition: PartitionId, epoch: int) -> int | None:
        resetAt, offset = self._resetAt.get(partition, (0, 0))
        return offset if resetAt > epoch else None

    # -- waiting

    def attach(self, wake: Callable[[], None]) -> None:
        """
        Become the one reader of this stream.

        @param wake: called for a message, an error or the end.
        @raise ConsumerStateError: another reader is attached.
        """
        if self._wakeReader is not None:
            raise ConsumerStateError(f"{self.name}: another reader is attached to this stream")
        self._wakeReader = wake

    def detach(self, wake: Callable[[], None]) -> bool:
        isAttached = self._wakeReader == wake
        if isAttached:
            self._wakeReader = None
        return isAttached

    async def wait(self) -> None:
        """
        Wait for a message, an error or the end.

        @raise ConsumerTimeoutError: none came in time; the reader may wait again.
        @raise ConsumerStateError: another reader is attached.
        """
        waiting: Deferred[None] = Deferred()

        def wake() -> None:
            self.detach(wake)
            waiting.callback(None)

        self.attach(wake)
        if self._timeoutMs >= 0:
            timeoutMs = self._timeoutMs

            def late(_result: object, _seconds: float) -> None:
                raise ConsumerTimeoutError(f"{self.name}: no message within {timeoutMs} ms")

            waiting.addTimeout(timeoutMs / 1000, self._clock, late)
        try:
            await waiting
        finally:
            self.detach(wake)

    # -- the ways to read

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> ConsumedMessage:
        """
        The next message; see L{take}.

        @raise StopAsyncIteration: the consumer was shut down.
        @raise ConsumerTimeoutError: none came in time; the reader may ask again.
        """
        while True:
            message = self.take()
            if message is not None:
                return message
            if self.isEnded:
                raise StopAsyncIteration
            await self.wait()

    def batches(self, countMax: int = BATCH_COUNT_MAX) -> BatchIterator:
        """
        An asynchronous iterator over non-empty lists of the messages available.

        @raise ValueError: C{countMax} is less than 1.
        """
        if countMax < 1:
            raise ValueError(f"{countMax} messages at a time: at least 1 is possible")
        return BatchIterator(self, countMax)

    def pipeTo(self, receiver: Any) -> Deferred[None]:
        """
        Push messages into a receiver.

        @param receiver: a L{twisted.internet.interfaces.IConsumer} that takes L{ConsumedMessage}s
            and may pause its producer.
        @return: fires with L{None} when the consumer was shut down, or the receiver wants no more.
            Fails with a partition's error or what C{write} raised: the stream can be piped again.
            Fails with L{ConsumerStateError} or what C{registerProducer} raised: the receiver gets
            nothing.
        """
        return maybeDeferred(PipeProducer(self, receiver, self._clock).start)

    def blocking(self, reactor: Any) -> BlockingIterator:
        """
        An iterator for a plain thread, while the reactor runs in another one. It ends when the
        consumer is shut down, which must precede the reactor's stop (C{shutdownBeforeStop}).
        """
        return BlockingIterator(self, reactor)


class BatchIterator:
    """
    An asynchronous iterator over lists of messages. Positions move behind a whole list when it is
    handed out, and behind an error that follows it when any reader has raised it.
    """

    def __init__(self, stream: MessageStream, countMax: int) -> None:
        self._stream = stream
        self._countMax = countMax

    def __aiter__(self) -> BatchIterator:
        return self

    async def __anext__(self) -> list[ConsumedMessage]:
        """
        @raise StopAsyncIteration: the consumer was shut down.
        @raise ConsumerTimeoutError: none came in time; the reader may ask again.
        @raise PylogbrokerError: as C{take} of the stream, behind the messages before the error.
        """
        return self._stream.deliver(await self._stream.nextBatch(self._countMax))


class PipeSource(Protocol):
    """
    What L{PipeProducer} reads from.

    @ivar isEnded: whether no more messages come.
    """

    isEnded: bool

    def take(self) -> Any:
        """The next message; L{None}: there is none now. May raise an error in its turn."""

    def attach(self, wake: Callable[[], None]) -> None:
        """Become the one reader; C{wake} is called for a message, an error or the end."""

    def detach(self, wake: Callable[[], None]) -> bool:
        """Let go, if this is the reader. Returns whether it was."""


@implementer(IPushProducer)
class PipeProducer:
    """Pushes a stream's messages into a receiver until the receiver pauses it."""

    def __init__(self, stream: PipeSource, receiver: Any, clock: Any) -> None:
        self._stream = stream
        self._receiver = receiver
        self._isPaused = False
        self._turn = Timer(clock)
        self._done: Deferred[None] = Deferred(lambda _done: self._end())

    def start(self) -> Deferred[None]:
        """
        Become the stream's reader and the receiver's producer.

        @return: as C{pipeTo} of the stream.
        @raise Exception: the stream has another reader, or the receiver refuses.
        """
        self._stream.attach(self._wake)
        try:
            self._receiver.registerProducer(self, True)
        except Exception:
            self._leave()  # not _end: the producer that is registered is another one
            raise
        self._wake()
        return self._done

    def _wake(self) -> None:
        if (
            not self._turn.isRunning
            and (not self._isPaused or self._stream.isEnded)
            and not self._done.called
        ):
            self._turn.start(0, self._deliver)

    def _deliver(self) -> None:
        try:
            for _count in range(DELIVERY_COUNT_MAX):
                if self._isPaused or (message := self._stream.take()) is None:
                    break
                self._receiver.write(message)
            else:
                self._wake()
                return
        except Exception:
            self._finish(Failure())
            return
        if self._stream.isEnded:
            self._finish(None)

    def _finish(self, result: Any) -> None:
        self._end()
        if not self._done.called:
            self._done.callback(result)

    def _end(self) -> None:
        if self._leave():
            self._receiver.unregisterProducer()

    def _leave(self) -> bool:
        self._turn.stop()
        return self._stream.detach(self._wake)

    def pauseProducing(self) -> None:
        self._isPaused = True

    def resumeProducing(self) -> None:
        self._isPaused = False
        self._wake()

    def stopProducing(self) -> None:
        self._isPaused = True
        if not self._done.called:
            self._finish(None)


class BlockingIterator:
    """
    Messages for a plain thread, which fetches them from the reactor's thread in batches.

    A message's position moves when the thread gets it. After a drop the thread gets no more of the
    partition, but the next owner may repeat a message handed out in that moment. After a reset it
    gets the rest of the batch without moving the position. A reset behind messages of the batch
    takes effect with the last of them.
    """

    def __init__(self, stream: MessageStream, reactor: Any) -> None:
        self._stream = stream
        self._reactor = reactor
        # Each message with its partition, and where that partition's position moves.
        self._messages: deque[tuple[ConsumedMessage, PartitionId, int] | Exception] = deque()
        self._batch: PolledBatch | None = None

    def __iter__(self) -> BlockingIterator:
        return self

    def __next__(self) -> ConsumedMessage:
        """
        Blocks until there is a message.

        @raise StopIteration: the consumer was shut down.
        @raise ConsumerTimeoutError: none came in time.
        @raise PylogbrokerError: as C{take} of the stream.
        """
        stream = self._stream
        while not stream.isEnded:
            if self._batch is None or not self._messages:
                self._batch = self._poll()
                continue
            item = self._messages.popleft()
            if isinstance(item, Exception):
                raise item
            message, partition, position = item
            epoch = self._batch.epoch
            if not stream.wasDropped(partition, epoch):
                stream.positions[partition] = position
                offset = stream.resetOffset(partition, epoch)
                if offset is not None:
                    stream.positions[partition] = offset
                return message
        raise StopIteration

    def _poll(self) -> PolledBatch | None:
        done, self._batch = self._batch, None
        try:
            batch = cast(
                "PolledBatch", blockingCallFromThread(self._reactor, self._nextBatch, done)
            )
        except StopAsyncIteration:
            return None
        # The position moves behind an error only when the error was raised.
        ends = dict(batch.positions) if batch.error is None else {}
        for message in reversed(batch.messages):
            partition = PartitionId(message.topic, message.partition)
            self._messages.appendleft((message, partition, ends.pop(partition, message.nextOffset)))
        if batch.error is not None:
            self._messages.append(batch.error)
        return batch

    async def _nextBatch(self, done: PolledBatch | None) -> PolledBatch:
        """On the reactor's thread. All of C{done} is handed out; positions move behind it."""
        if done is not None:
            self._stream.acknowledge(done)
        return await self._stream.nextBatch(THREAD_COUNT_MAX)


def decodeText(payload: bytes) -> str:
    """
    0.7.2's C{StringDecoder} with UTF-8, as C{decode} of C{createMessageStreams}.

    @raise UnicodeDecodeError: the payload is not UTF-8; the stream raises it.
    """
    return payload.decode()
