"""
Streams: what an application reads.

A stream is a bounded queue of chunks, and a reader. A chunk is what one fetch brought of one partition, undecoded. The fetcher asks for a partition only while
its stream has room (L{MessageStream.hasRoom}), and keeps that room for it until the answer is there, so that a slow reader costs memory for so many chunks, and
nothing else: silence is the push-back.

The rule for positions: a partition's position moves to a message's next offset in the moment in which the message is handed out, and to a chunk's end when
more is asked for behind its last message, since there may be entries without any messages (empty wrappers). What was handed out and is
still being worked on when the position is committed is the application's affair (with auto-commit, a crash may lose it; without, C{commitOffsets} comes
when it is done). Dropping a partition forgets its chunks in the same moment, the one that is being read included, so that nothing of it is handed out
after its position was committed.

An error of one partition comes out of the stream once, in its turn, as an exception; the stream goes on with the others. What the fetcher does not look at, the
checksums of all entries but the first, and what is inside wrappers, is found when it is read; then what is queued behind it is forgotten, since order counts,
and the fetcher is told. What the application's decoder raises comes out, too, and the stream goes on behind that message.

Ways to read, of which an application takes one: C{async for}, message by message, or list by list (L{MessageStream.chunks}); L{MessageStream.pipeTo}, where
the receiver pushes back; and L{MessageStream.blocking}, for a plain thread.
"""

from __future__ import annotations

import queue
from collections import ChainMap, deque
from collections.abc import Callable, Collection, Iterator, MutableMapping
from itertools import dropwhile
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IPushProducer
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.errors import (
    ConsumerStateError,
    ConsumerTimeoutError,
    FormatError,
    PylogbrokerError,
)
from pylogbroker.metrics.counters import ConsumerCounters
from pylogbroker.records.messageset import MessageSet
from pylogbroker.types import BrokerPartition, PartitionId, consumedCount

CHUNK_COUNT_MAX = 10
QUEUED_SIZE_MAX = 64 << 20
BATCH_COUNT_MAX = 100
"""Messages that a plain thread gets from the reactor's at a time."""
CHUNK_MESSAGE_COUNT_MAX = 1_000
"""Messages of a list, if nothing else is said."""
DELIVERY_COUNT_MAX = 1_000
"""Messages handed to a receiver in one reactor turn."""


class ConsumedMessage(NamedTuple):
    """
    A message, as an application gets it.

    @ivar value: the payload, or what the decoder made of it.
    @ivar topic: where it is from.
    @ivar partition: the broker's number and the partition's there.
    @ivar nextOffset: what a reader that has this message goes on with (spec-0.7 wire-protocol §6).
    """

    value: Any
    topic: str
    partition: BrokerPartition
    nextOffset: int


class Chunk(NamedTuple):
    """
    What a fetch brought of one partition; at least one whole entry.

    @ivar size: bytes.
    @ivar end: the offset behind its last whole entry.
    """

    place: PartitionId
    messages: MessageSet
    size: int
    end: int


class PolledBatch(NamedTuple):
    """
    Messages that were taken, and whose positions have not moved yet: whoever has done something with them says so (L{MessageStream.done}), and then takes
    more.

    @ivar messages: in order.
    @ivar error: what came in place of the next one, if something did.
    @ivar positions: where those of their partitions are to move; with an error behind messages, those of all partitions, the one that it is about included.
    @ivar epoch: of the stream, then.
    """

    messages: list[ConsumedMessage]
    error: Exception | None
    positions: dict[PartitionId, int]
    epoch: int


class _Fault(NamedTuple):
    """An error of a partition, in its turn."""

    place: PartitionId
    error: PylogbrokerError


class _Jump(NamedTuple):
    """From here on, the partition goes on elsewhere."""

    place: PartitionId
    offset: int


def _left(messages: MessageSet, position: int) -> Iterator[tuple[bytes, int]]:
    """What a reader at a position, which may be in the midst of the first set, has not had."""
    doneCount = consumedCount(position) if position == messages.baseOffset else 0
    return dropwhile(
        lambda each: each[1] == position and 0 < consumedCount(each[1]) <= doneCount,
        messages.counted(),
    )


def located(error: PylogbrokerError, place: PartitionId, offset: int) -> PylogbrokerError:
    """The same error, whose text says where that is."""
    if isinstance(error, FormatError):
        return type(error)(f"{place} at offset {offset}: {error.reason}", error.position)
    return error


class MessageStream:
    """
    One stream of a consumer.

    @ivar positions: for each partition read so far, what to commit; shared among the streams of a consumer.
    @ivar isEnded: whether nothing will come any more.
    """

    def __init__(
        self,
        name: str,
        clock: Any,
        positions: dict[PartitionId, int],
        gotRoom: Callable[[], None],
        *,
        decode: Callable[[bytes], Any] | None = None,
        isShallow: bool = False,
        isCounting: bool = False,
        chunkCountMax: int = CHUNK_COUNT_MAX,
        queuedSizeMax: int = QUEUED_SIZE_MAX,
        timeoutMs: int = -1,
        unreadable: Callable[
            [PartitionId, int, PylogbrokerError], None
        ] = lambda place, offset, error: None,
        counters: ConsumerCounters | None = None,
    ) -> None:
        """
        @param name: of the thread that it belongs to.
        @param gotRoom: called when there is room again.
        @param queuedSizeMax: bytes of chunks that may wait, or be on their way; a stream that has none may always have one.
        @param unreadable: called when what came of a partition cannot be read on, with the offset of the entry at fault, and what is wrong.
        @param decode: from a payload to a value; what it raises comes out of the stream, which goes on behind that message.
        @param isShallow: whether wrappers are handed out as they are.
        @param isCounting: whether positions in the midst of a compressed set are L{pylogbroker.types.IntraBatchOffset}s; who comes back to one begins behind the
            messages that are done. Otherwise a position there is the set's beginning.
        @param timeoutMs: how long an iteration waits for a message before it raises L{ConsumerTimeoutError}; negative: for ever.
        """
        self.name = name
        self.positions: MutableMapping[PartitionId, int] = positions
        self.isEnded = False
        self._clock = clock
        self._gotRoom = gotRoom
        self._decode = decode
        self._isShallow = isShallow
        self._isCounting = isCounting
        self._chunkCountMax = chunkCountMax
        self._queuedSizeMax = queuedSizeMax
        self._timeoutMs = timeoutMs
        self._unreadable = unreadable
        self._counters = counters or ConsumerCounters()
        self._queue: deque[Chunk | _Fault | _Jump] = deque()
        self._chunkCount = self._size = 0  # of chunks that are queued, and of the room that is kept
        self._epoch = 0  # how often something was dropped, or moved elsewhere
        self._droppedAt: dict[PartitionId, int] = {}
        self._movedAt: dict[PartitionId, tuple[int, int]] = {}  # and to which offset
        self._place: PartitionId | None = None
        self._current: Iterator[ConsumedMessage] | None = None
        self._untold: tuple[Exception, PolledBatch] | None = (
            None  # an error behind a list that was handed out, and what moves with it
        )
        self._reader: Deferred[None] | None = None
        self._delivery: _Delivery | None = None

    def __repr__(self) -> str:
        return f"<MessageStream {self.name}, {len(self._queue)} chunks{', ended' if self.isEnded else ''}>"

    # -- the fetcher's side

    @property
    def hasRoom(self) -> bool:
        """Whether another chunk may come."""
        return not self._chunkCount or (
            self._chunkCount < self._chunkCountMax and self._size < self._queuedSizeMax
        )

    @property
    def queuedSize(self) -> int:
        """Bytes of the chunks that wait."""
        return sum(each.size for each in self._queue if isinstance(each, Chunk))

    def reserve(self, size: int) -> None:
        """Keep room for a chunk of up to so many bytes."""
        self._chunkCount += 1
        self._size += size

    def release(self, size: int) -> None:
        """Give back room that was kept; a chunk that goes gives back its own."""
        hadRoom = self.hasRoom
        self._chunkCount -= 1
        self._size -= size
        if not hadRoom and self.hasRoom and not self.isEnded:
            self._gotRoom()

    def put(self, chunk: Chunk) -> None:
        """Queue a chunk."""
        if not self.isEnded:
            self.reserve(chunk.size)
            self._queue.append(chunk)
            self._wake()

    def fail(self, place: PartitionId, error: PylogbrokerError) -> None:
        """Let the reader know, in turn, that a partition cannot be read on."""
        if not self.isEnded:
            self._queue.append(_Fault(place, error))
            self._wake()

    def jump(self, place: PartitionId, offset: int) -> None:
        """The partition goes on at another offset, once what is queued of it is read."""
        if self._place == place or any(each.place == place for each in self._queue):
            self._queue.append(_Jump(place, offset))
        else:
            self._epoch += 1
            self._movedAt[place] = (
                self._epoch,
                offset,
            )  # first, for a thread that moves the position at the same time, and looks here then
            self.positions[place] = offset

    def drop(self, places: Collection[PartitionId]) -> None:
        """Forget what is queued of some partitions. What was handed out stays handed out."""
        self._epoch += 1
        self._droppedAt.update(dict.fromkeys(places, self._epoch))
        dropped = [each for each in self._queue if each.place in places]
        self._queue = deque(each for each in self._queue if each.place not in places)
        if self._place in places:
            self._place = self._current = None
        for each in dropped:
            if isinstance(each, Chunk):
                self.release(each.size)

    def end(self) -> None:
        """Forget all that is queued; readers come to the end."""
        self._queue.clear()
        self._place = self._current = self._untold = None
        self.isEnded = True
        self._wake()

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.callback(None)
        if self._delivery is not None:
            self._delivery.goOn()

    # -- the reader's side

    def take(self) -> ConsumedMessage | None:
        """
        The next message, if there is one now.

        @raise PylogbrokerError: in place of a message: what is wrong with a partition; the next call goes on with the others.
        @raise Exception: what the decoder raised; the next call goes on behind that message.
        """
        if self._untold is not None:
            (error, ahead), self._untold = self._untold, None
            self.done(ahead)
            raise error
        while True:
            current = self._current
            if current is None:
                if not self._queue:
                    return None
                self._open(self._queue.popleft())
                continue
            try:
                message = next(current)
            except StopIteration:
                self._place = self._current = None
                continue
            except PylogbrokerError as reason:
                raise self._broken(reason) from reason
            if self._decode is None:
                return message
            return message._replace(value=self._decode(message.value))

    def poll(self, countMax: int) -> PolledBatch:
        """
        Take messages that are there now, and leave the positions of their partitions where they are, so that no commit gets ahead of what is done with them.

        @param countMax: of messages; there are less of them, or none, if no more are there, or if an error is in their way.
        """
        positions = self.positions
        moved: dict[PartitionId, int] = {}
        messages: list[ConsumedMessage] = []
        error: Exception | None = None
        self.positions = ChainMap(moved, positions)
        try:
            while len(messages) < countMax and (message := self.take()) is not None:
                messages.append(message)
        except Exception as reason:
            error = reason
        finally:
            self.positions = positions
        places = {PartitionId(each.topic, each.partition) for each in messages}
        if messages and error is not None:
            return PolledBatch(messages, error, moved, self._epoch)
        positions.update({place: offset for place, offset in moved.items() if place not in places})
        return PolledBatch(messages, error, {place: moved[place] for place in places}, self._epoch)

    def done(self, ahead: PolledBatch) -> None:
        """
        All that was taken is done with: their positions move, but not those of partitions that were dropped since, which are their next owner's, nor those that
        go on elsewhere since.
        """
        for place, offset in ahead.positions.items():
            if not self.wasDropped(place, ahead.epoch) and self.movedTo(place, ahead.epoch) is None:
                self.positions[place] = offset

    def deliver(self, ahead: PolledBatch) -> None:
        """
        The messages that were taken are handed out: positions move behind them, and no further before an error behind them is told. Whoever reads on is told
        first, in whatever way that is.
        """
        if ahead.messages and ahead.error is not None:
            self.done(
                ahead._replace(
                    positions={
                        PartitionId(each.topic, each.partition): each.nextOffset
                        for each in ahead.messages
                    }
                )
            )
            self._untold = ahead.error, ahead._replace(messages=[])
        else:
            self.done(ahead)

    def wasDropped(self, place: PartitionId, epoch: int) -> bool:
        """Whether a partition was dropped since then."""
        return self._droppedAt.get(place, 0) > epoch

    def movedTo(self, place: PartitionId, epoch: int) -> int | None:
        """Where a partition goes on since then that was not read on; L{None} for one that was."""
        movedAt, offset = self._movedAt.get(place, (0, 0))
        return offset if movedAt > epoch else None

    def _open(self, item: Chunk | _Fault | _Jump) -> None:
        if isinstance(item, _Fault):
            raise item.error
        if isinstance(item, _Jump):
            self.positions[item.place] = item.offset
            return
        self._place = item.place
        self._current = self._messages(item)
        self.release(item.size)

    def _messages(self, chunk: Chunk) -> Iterator[ConsumedMessage]:
        """The hot loop: whoever takes a message has moved the position behind it."""
        place, messages = chunk.place, chunk.messages
        if self._isShallow:
            payloads: Iterator[tuple[bytes, int]] = (
                (each.message.payload, each.nextOffset) for each in messages.shallow()
            )
        else:
            payloads = (
                _left(messages, self.positions.get(place, -1))
                if self._isCounting
                else messages.payloads()
            )
        topic, partition = place
        make = tuple.__new__  # half the cost of calling the class
        count, nextOffset = 0, messages.baseOffset
        try:
            for payload, nextOffset in payloads:
                count += 1
                self.positions[place] = nextOffset
                yield make(ConsumedMessage, (payload, topic, partition, nextOffset))
            if (
                self.positions.get(place) == nextOffset
            ):  # otherwise somebody took messages ahead, and is not done with them
                self.positions[place] = chunk.end
        finally:
            self._counters.topic(topic).messageCount += count

    def _broken(self, error: PylogbrokerError) -> PylogbrokerError:
        """What came of a partition cannot be read on: forget what is behind it, and say where that is."""
        place = self._place
        assert place is not None
        offset = self.positions[place]
        self.drop((place,))
        self._unreadable(place, offset, error)
        return located(error, place, offset)

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> ConsumedMessage:
        """
        The next message.

        @raise StopAsyncIteration: the consumer was shut down.
        @raise ConsumerTimeoutError: none came in time; ask again when you like.
        @raise PylogbrokerError: see L{take}.
        """
        while True:
            message = self.take()
            if message is not None:
                return message
            if self.isEnded:
                raise StopAsyncIteration
            await self.wait()

    async def wait(self) -> None:
        """
        Until there may be something to take, or the stream has ended.

        @raise ConsumerTimeoutError: nothing has come in time; wait again when you like.
        @raise ConsumerStateError: somebody else reads this stream: it is one reader's, whose messages the other would get.
        """
        self._beAlone()
        reader: Deferred[None] = Deferred()
        self._reader = reader
        if self._timeoutMs >= 0:
            timeoutMs = self._timeoutMs

            def late(_result: object, _seconds: float) -> None:
                raise ConsumerTimeoutError(f"{self.name}: no message within {timeoutMs} ms")

            reader.addTimeout(timeoutMs / 1000, self._clock, late)
        try:
            await reader
        finally:
            if self._reader is reader:
                self._reader = None

    def chunks(self, countMax: int = CHUNK_MESSAGE_COUNT_MAX) -> BatchIterator:
        """
        An asynchronous iterator over lists of messages: as many as are there, and at least one.

        @param countMax: at most so many in a list.
        @raise ValueError: that is less than 1.
        """
        if countMax < 1:
            raise ValueError(f"{countMax} messages at a time: at least 1 is possible")
        return BatchIterator(self, countMax)

    def pipeTo(self, receiver: Any) -> Deferred[None]:
        """
        Push messages into a receiver.

        @param receiver: an L{twisted.internet.interfaces.IConsumer}; its C{write} is called with L{ConsumedMessage}s, and it may pause the producer that
            it is given.
        @return: fires with L{None} when the consumer was shut down; fails with a partition's error, or what C{write} raised. The stream can then be
            delivered anew. Fails with L{ConsumerStateError} when somebody else reads this stream, and with what C{registerProducer} raised: a receiver that
            refused gets nothing.
        """
        try:
            self._beAlone()
        except ConsumerStateError:
            return fail()
        self._delivery = _Delivery(self, receiver, self._clock)
        return self._delivery.start()

    def _beAlone(self) -> None:
        if self._reader is not None or self._delivery is not None:
            raise ConsumerStateError(
                f"{self.name}: somebody else reads this stream, {'and waits' if self._delivery is None else 'a receiver'}"
            )

    def blocking(self, reactor: Any) -> BlockingIterator:
        """
        An iterator for a plain thread, while the reactor runs in another. It comes to its end when the consumer is shut down: see to it that this happens
        before the reactor stops (L{ConsumerConnector.shutdownBeforeStop}), or the thread waits for ever.

        @param reactor: the one that the consumer belongs to.
        """
        return BlockingIterator(self, reactor, self._timeoutMs)


class BatchIterator:
    """
    An asynchronous iterator over lists of messages.

    The rule for positions is that of all ways to read: they move in the moment in which the list is handed out, behind all of its messages. What an error is
    about, that comes behind the list, is behind its partition's position only when that was told; to this iterator, or to who reads on in another way.
    """

    def __init__(self, stream: MessageStream, countMax: int) -> None:
        self._stream = stream
        self._countMax = countMax

    def __aiter__(self) -> BatchIterator:
        return self

    async def __anext__(self) -> list[ConsumedMessage]:
        """
        The next messages.

        @raise StopAsyncIteration: the consumer was shut down.
        @raise ConsumerTimeoutError: none came in time; ask again when you like.
        @raise PylogbrokerError: see L{MessageStream.take}; messages that were before it are handed out first, and the next call goes on behind it.
        """
        stream = self._stream
        while True:
            ahead = stream.poll(self._countMax)
            stream.deliver(ahead)
            if ahead.messages:
                return ahead.messages
            if ahead.error is not None:
                raise ahead.error
            if stream.isEnded:
                raise StopAsyncIteration
            await stream.wait()


@implementer(IPushProducer)
class _Delivery:
    """Pushes a stream's messages into a receiver, while that lets it."""

    def __init__(self, stream: MessageStream, receiver: Any, clock: Any) -> None:
        self._stream = stream
        self._receiver = receiver
        self._clock = clock
        self._isPaused = False
        self._turn: Any = None
        self._done: Deferred[None] = Deferred(lambda _done: self._end())

    def start(self) -> Deferred[None]:
        try:
            self._receiver.registerProducer(self, True)
        except Exception:
            self._leave()  # and not by L{_end}: what is registered there is another's
            return fail()
        self.goOn()
        return self._done

    def goOn(self) -> None:
        """There may be something to deliver."""
        if (
            self._turn is None
            and (not self._isPaused or self._stream.isEnded)
            and not self._done.called
        ):
            self._turn = self._clock.callLater(0, self._deliver)

    def _deliver(self) -> None:
        self._turn = None
        try:
            for _count in range(DELIVERY_COUNT_MAX):
                if self._isPaused or (message := self._stream.take()) is None:
                    break
                self._receiver.write(message)
            else:
                self.goOn()
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
        """Read no more; whether this one still did."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        isReading = self._stream._delivery is self
        if isReading:
            self._stream._delivery = None
        return isReading

    def pauseProducing(self) -> None:
        """The receiver has enough."""
        self._isPaused = True

    def resumeProducing(self) -> None:
        """The receiver wants more."""
        self._isPaused = False
        self.goOn()

    def stopProducing(self) -> None:
        """The receiver wants no more, ever."""
        self._isPaused = True
        if not self._done.called:
            self._finish(None)


class BlockingIterator:
    """
    Messages for a plain thread: some at a time come from the reactor's thread.

    A message's position moves when the thread gets it, as with the other ways to read. When the partition is dropped, the rest of the thread's batch
    is dropped, too; a message that the thread gets in that very moment may be delivered again by the partition's next owner. When a partition goes on
    elsewhere, since its broker has nothing at the position any more, its position does not come back from there for what the thread still has to read; it
    moves there with the last message before that, since the other partitions' messages of the batch may take the thread long.
    """

    def __init__(
        self,
        stream: MessageStream,
        reactor: Any,
        timeoutMs: int,
        batchCountMax: int = BATCH_COUNT_MAX,
    ) -> None:
        self._stream = stream
        self._reactor = reactor
        self._timeoutMs = timeoutMs
        self._batchCountMax = batchCountMax
        self._batch: deque[tuple[ConsumedMessage, PartitionId, int] | Exception] = (
            deque()
        )  # each with where its partition's position moves
        self._ahead = PolledBatch([], None, {}, 0)

    def __iter__(self) -> BlockingIterator:
        return self

    def __next__(self) -> ConsumedMessage:
        """
        @raise StopIteration: the consumer was shut down.
        @raise ConsumerTimeoutError: none came in time; ask again when you like.
        @raise PylogbrokerError: see L{MessageStream.take}.
        """
        stream = self._stream
        while not stream.isEnded:
            if not self._batch:
                self._fetch()
                continue
            item = self._batch.popleft()
            if isinstance(item, Exception):
                raise item
            message, place, position = item
            epoch = self._ahead.epoch
            if not stream.wasDropped(place, epoch):
                stream.positions[place] = position
                elsewhere = stream.movedTo(place, epoch)
                if elsewhere is not None:
                    stream.positions[place] = elsewhere
                return message
        raise StopIteration

    def _fetch(self) -> None:
        answers: queue.SimpleQueue[PolledBatch] = queue.SimpleQueue()
        self._reactor.callFromThread(self._begin, answers)
        self._ahead = ahead = answers.get()
        ends = (
            dict(ahead.positions) if ahead.error is None else {}
        )  # what an error is about is behind its partition's position only when that was told
        for message in reversed(ahead.messages):
            place = PartitionId(message.topic, message.partition)
            self._batch.appendleft((message, place, ends.pop(place, message.nextOffset)))
        if ahead.error is not None:
            self._batch.append(ahead.error)

    def _begin(self, answers: queue.SimpleQueue[PolledBatch]) -> None:
        """On the reactor's thread: the other thread has had all of its batch; what came behind the last message of a partition counts now, too."""
        self._stream.done(self._ahead)
        self._collect(answers)

    def _collect(self, answers: queue.SimpleQueue[PolledBatch]) -> None:
        """What there is, or else the next thing that comes. The positions of what is in the batch are the other thread's to move."""
        stream = self._stream
        ahead = stream.poll(self._batchCountMax)
        if ahead.messages or ahead.error is not None or stream.isEnded:
            answers.put(ahead)
            return
        waiting = Deferred.fromCoroutine(stream.wait())
        waiting.addCallbacks(
            lambda _: self._collect(answers),
            lambda failure: answers.put(ahead._replace(error=failure.value)),
        )
