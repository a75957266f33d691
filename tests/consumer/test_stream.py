"""Tests for L{pylogbroker.consumer.stream}: what an application reads, on a clock."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConsumer
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase, TestCase
from zope.interface import implementer

from pylogbroker.consumer.stream import (
    BlockingIterator,
    Chunk,
    ConsumedMessage,
    MessageStream,
    decodeText,
)
from pylogbroker.errors import (
    ConsumerStateError,
    ConsumerTimeoutError,
    CorruptCompressionError,
    InvalidChecksumError,
    PylogbrokerError,
    RemoteUnknownError,
)
from pylogbroker.records.compression import GZIP
from pylogbroker.records.messageset import MessageSet, encodeMessage, encodeSet
from pylogbroker.types import BrokerPartition, PartialBatchOffset, PartitionId, consumedCount

A, B = PartitionId("t", BrokerPartition(0, 0)), PartitionId("t", BrokerPartition(0, 1))


def chunk(place: PartitionId, offset: int, *payloads: bytes, codec: int = 0) -> Chunk:
    return chunkOf(place, offset, encodeSet(payloads, codec))


def chunkOf(
    place: PartitionId,
    offset: int,
    data: bytes,
    onReadError: Callable[[int, PylogbrokerError], None] = lambda offset, error: None,
) -> Chunk:
    return Chunk(place, MessageSet(data, offset), len(data), offset + len(data), onReadError)


class StreamCase(SynchronousTestCase):
    """A stream of two chunks, and what it tells its fetchers."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.positions: dict[PartitionId, int] = {A: 0, B: 0}
        self.wakeCount = 0
        self.readErrors: list[tuple[PartitionId, int]] = []

    def onCapacity(self) -> None:
        self.wakeCount += 1

    def onReadError(self, offset: int, error: PylogbrokerError) -> None:
        self.readErrors.append((A, offset))

    def stream(self, **arguments: Any) -> MessageStream:
        return MessageStream(
            "s",
            self.clock,
            self.positions,
            chunkCountMax=2,
            **arguments,
        )

    def values(self, stream: MessageStream) -> list[Any]:
        values = []
        while (message := stream.take()) is not None:
            values.append(message.value)
        return values


class TakingTests(StreamCase):
    """Chunks in, messages out."""

    def test_order(self) -> None:
        """
        Messages come in order, with topic, partition and the next offset; the position moves with
        each that is handed out.
        """
        stream = self.stream()
        stream.put(chunk(A, 100, b"a", b"b"))
        stream.put(chunk(B, 0, b"c"))
        self.assertEqual(stream.take(), ConsumedMessage(b"a", "t", BrokerPartition(0, 0), 111))
        self.assertEqual(self.positions, {A: 111, B: 0})
        self.assertEqual(self.values(stream), [b"b", b"c"])
        self.assertEqual(self.positions, {A: 122, B: 11})
        self.assertIsNone(stream.take())
        self.assertIn("0 chunks", repr(stream))

    def test_emptyWrapper(self) -> None:
        """
        Behind a wrapper without messages the position is where the chunk ends, once more is asked
        for; so it is for what is taken ahead, when it is done.
        """
        empty = encodeMessage(gzip.compress(b""), codec=GZIP)
        data = encodeSet([b"a"]) + empty
        for isAhead in (False, True):
            stream = self.stream()
            self.positions[A] = 0
            stream.put(chunkOf(A, 0, data))
            if isAhead:
                ahead = stream.poll(10)
                self.assertEqual(self.positions[A], 0)
                stream.acknowledge(ahead)
            else:
                self.assertEqual((self.values(stream), stream.take()), ([b"a"], None))
            self.assertEqual(self.positions[A], len(data))
        stream = self.stream()
        self.positions[A] = 100
        stream.put(chunkOf(A, 100, empty))
        self.assertEqual(stream.poll(10).messages, [])
        self.assertEqual(self.positions[A], 100 + len(empty))

    def test_counting(self) -> None:
        """
        Asked to, a stream says of positions in the midst of a compressed set how many of its
        messages are done; a reader that comes back to one gets the others, whatever is behind the
        set, and all of one that has become another.
        """
        first, second = encodeSet([b"a", b"b", b"c"], GZIP), encodeSet([b"d", b"e"], GZIP)
        empty = encodeMessage(gzip.compress(b""), codec=GZIP)
        data = encodeSet([b"0"]) + first + empty + second + encodeSet([b"f"])
        a, b, end = 11, 11 + len(first) + len(empty), len(data)
        stream = self.stream(tracksIntraBatch=True)
        stream.put(chunkOf(A, 0, data))
        found = {
            message.value: (message.nextOffset, consumedCount(message.nextOffset))
            for message in iter(stream.take, None)
        }
        wanted = {
            b"0": (a, 0),
            b"a": (a, 1),
            b"b": (a, 2),
            b"c": (b - len(empty), 0),
            b"d": (b, 1),
            b"e": (end - 11, 0),
            b"f": (end, 0),
        }
        self.assertEqual(found, wanted)
        self.assertEqual(
            list(MessageSet(data).payloadsWithOffsets()), list(MessageSet(data).payloads())
        )
        for begin, doneCount, values in (
            (a, 0, b"abcdef"),
            (a, 1, b"bcdef"),
            (a, 2, b"cdef"),
            (b, 1, b"ef"),
            (a, 9, b"cdef"),
            (end - 11, 1, b"f"),
        ):
            stream = self.stream(tracksIntraBatch=True)
            self.positions[A] = PartialBatchOffset(begin, doneCount) if doneCount else begin
            stream.put(chunkOf(A, begin, data[begin:]))
            self.assertEqual(b"".join(self.values(stream)), values)
            self.assertEqual(self.positions[A], end)

    def test_ahead(self) -> None:
        """
        What is taken ahead leaves the positions where they are until it is done with, whatever else
        moves them; of a partition that is dropped meanwhile they stay, also when it comes back.
        """
        stream = self.stream()
        stream.put(chunk(A, 100, b"a", b"b"))
        stream.put(chunk(B, 0, b"c"))
        ahead = stream.poll(2)
        self.assertEqual(
            ([each.value for each in ahead.messages], ahead.error, self.positions),
            ([b"a", b"b"], None, {A: 0, B: 0}),
        )
        self.assertEqual(stream.take(), ConsumedMessage(b"c", "t", BrokerPartition(0, 1), 11))
        self.assertEqual(self.positions, {A: 0, B: 11})
        stream.acknowledge(ahead)
        self.assertEqual(self.positions, {A: 122, B: 11})
        stream.put(chunk(A, 122, b"d"))
        stream.put(chunk(B, 11, b"e"))
        ahead = stream.poll(10)
        stream.drop((A,))
        self.positions[A] = 122
        stream.acknowledge(ahead)
        self.assertEqual(
            (self.positions, [each.value for each in ahead.messages]),
            ({A: 122, B: 22}, [b"d", b"e"]),
        )
        self.assertEqual(stream.poll(10).messages, [])

    def test_aheadOfJump(self) -> None:
        """
        A partition that goes on elsewhere while what was taken ahead of it is worked on stays there
        when that is done; the others move.
        """
        stream = self.stream()
        stream.put(chunk(A, 100, b"a"))
        stream.put(chunk(B, 0, b"b"))
        ahead = stream.poll(10)
        self.assertEqual(stream.poll(10).messages, [])
        stream.resetPosition(A, 7)
        stream.acknowledge(ahead)
        self.assertEqual(self.positions, {A: 7, B: 11})
        stream.put(chunk(A, 7, b"c"))
        stream.acknowledge(stream.poll(10))
        self.assertEqual(self.positions, {A: 18, B: 11})

    def test_aheadOverJump(self) -> None:
        """What was taken ahead on both sides of a jump moves the position behind the last of it."""
        stream = self.stream()
        stream.put(chunk(A, 100, b"a"))
        stream.resetPosition(A, 7)
        stream.put(chunk(A, 7, b"b"))
        stream.acknowledge(stream.poll(10))
        self.assertEqual(self.positions[A], 18)

    def test_aheadWithErrors(self) -> None:
        """
        An error ends what is taken ahead; what is before it counts, and the next call goes on
        behind it.
        """
        stream = self.stream()
        stream.put(chunk(A, 0, b"a"))
        stream.fail(A, RemoteUnknownError("t-0"))
        stream.put(chunk(B, 0, b"b"))
        ahead = stream.poll(10)
        self.assertEqual([each.value for each in ahead.messages], [b"a"])
        self.assertIsInstance(ahead.error, RemoteUnknownError)
        self.assertEqual(self.positions, {A: 0, B: 0})
        stream.acknowledge(ahead)
        stream.acknowledge(stream.poll(10))
        self.assertEqual(self.positions, {A: 11, B: 11})

    def test_room(self) -> None:
        """
        Capacity is reserved for what is on its way; a fetcher that waits for capacity is told once
        when there is some.
        """
        stream = self.stream()
        stream.whenCapacity(self.onCapacity)
        stream.whenCapacity(self.onCapacity)
        self.assertTrue(stream.hasCapacity)
        stream.reserve(100)
        stream.put(chunk(A, 0, b"a"))
        self.assertFalse(stream.hasCapacity)
        self.assertEqual(stream.queuedSize, 11)
        stream.release(100)
        self.assertEqual((stream.hasCapacity, self.wakeCount), (True, 1))
        stream.put(chunk(A, 11, b"b"))
        self.assertFalse(stream.hasCapacity)
        stream.whenCapacity(self.onCapacity)
        stream.take()
        self.assertEqual((stream.hasCapacity, self.wakeCount), (True, 2))
        stream.take()
        self.assertEqual(self.wakeCount, 2)

    def test_roomInBytes(self) -> None:
        """
        Chunks of many bytes fill a stream before their number does; an empty stream has room for
        any.
        """
        stream = self.stream(queuedSizeMax=10)
        self.assertTrue(stream.hasCapacity)
        stream.put(chunk(A, 0, b"a"))
        self.assertFalse(stream.hasCapacity)
        stream.take()
        self.assertTrue(stream.hasCapacity)

    def test_drop(self) -> None:
        """
        Dropping a partition forgets its chunks, the one that is being read and errors included, and
        nothing else.
        """
        stream = self.stream()
        stream.put(chunk(A, 0, b"a", b"b"))
        stream.put(chunk(B, 0, b"c"))
        stream.put(chunk(A, 22, b"d"))
        stream.fail(A, RemoteUnknownError())
        stream.take()
        stream.drop({A})
        self.assertEqual(self.values(stream), [b"c"])
        self.assertEqual(self.positions[A], 11)
        self.assertTrue(stream.hasCapacity)

    def test_end(self) -> None:
        """After the end there is nothing, and nothing more comes."""
        stream = self.stream()
        stream.put(chunk(A, 0, b"a"))
        stream.end()
        stream.put(chunk(A, 0, b"a"))
        stream.fail(A, RemoteUnknownError())
        self.assertIsNone(stream.take())
        self.assertIn("ended", repr(stream))

    def test_fault(self) -> None:
        """An error comes in its turn, once; the stream goes on."""
        stream = self.stream()
        stream.put(chunk(A, 0, b"a"))
        stream.fail(A, RemoteUnknownError("what"))
        stream.put(chunk(B, 0, b"b"))
        self.assertEqual(stream.take().value, b"a")  # type: ignore[union-attr]
        self.assertRaises(RemoteUnknownError, stream.take)
        self.assertEqual(self.values(stream), [b"b"])

    def test_jump(self) -> None:
        """
        A jump moves the position in its turn, or at once when nothing of the partition is waiting.
        """
        stream = self.stream()
        stream.resetPosition(A, 500)
        self.assertEqual(self.positions[A], 500)
        stream.put(chunk(A, 500, b"a"))
        stream.resetPosition(A, 900)
        self.assertEqual(self.positions[A], 500)
        stream.take()
        stream.resetPosition(A, 1000)
        self.assertIsNone(stream.take())
        self.assertEqual(self.positions[A], 1000)

    def test_badChecksum(self) -> None:
        """
        An entry with a wrong checksum: what is before it comes, then an error that names the
        offset; what is behind it does not come.
        """
        good, bad = encodeMessage(b"a"), bytearray(encodeMessage(b"b"))
        bad[-1] ^= 1
        stream = self.stream()
        stream.put(chunkOf(A, 1000, good + bytes(bad) + good, self.onReadError))
        stream.put(chunk(A, 1033, b"c"))
        stream.put(chunk(B, 0, b"d"))
        self.assertEqual(stream.take().value, b"a")  # type: ignore[union-attr]
        error = self.assertRaises(InvalidChecksumError, stream.take)
        self.assertIn("t/0-0 at offset 1011", str(error))
        self.assertEqual(self.readErrors, [(A, 1011)])
        self.assertEqual(self.values(stream), [b"d"])

    def test_badWrapper(self) -> None:
        """A wrapper that cannot be opened is an error that names its offset."""
        stream = self.stream()
        data = encodeMessage(b"no gzip", codec=GZIP)
        stream.put(chunkOf(A, 7, data, self.onReadError))
        self.positions[A] = 7
        self.assertIn("at offset 7", str(self.assertRaises(CorruptCompressionError, stream.take)))
        self.assertEqual(self.readErrors, [(A, 7)])

    def test_compressed(self) -> None:
        """
        Feature 115: inside a wrapper the position stays at its start until its last message, so
        that a reader that stops gets it again whole.
        """
        stream = self.stream()
        stream.put(chunk(A, 0, b"a", b"b", codec=GZIP))
        stream.take()
        self.assertEqual(self.positions[A], 0)
        message = stream.take()
        assert message is not None
        self.assertEqual(self.positions[A], message.nextOffset)

    def test_shallow(self) -> None:
        """Feature 116: wrappers as they are."""
        stream = self.stream(isShallow=True)
        stream.put(chunk(A, 0, b"a", b"b", codec=GZIP))
        (value,) = self.values(stream)
        self.assertNotEqual(value, b"a")
        self.assertEqual(self.positions[A], len(encodeSet([b"a", b"b"], GZIP)))

    def test_decoder(self) -> None:
        """
        What the decoder makes is the value; what it raises comes out, and the stream goes on behind
        that message.
        """
        stream = self.stream(decode=int)
        stream.put(chunk(A, 0, b"1", b"x", b"3"))
        self.assertEqual(stream.take().value, 1)  # type: ignore[union-attr]
        self.assertRaises(ValueError, stream.take)
        self.assertEqual(self.values(stream), [3])
        self.assertEqual(self.readErrors, [])


class IteratingTests(StreamCase):
    """C{async for}."""

    def test_waits(self) -> None:
        """The iteration waits for messages, and ends when the consumer does."""
        stream = self.stream()
        got: list[Any] = []

        async def read() -> None:
            async for message in stream:
                got.append(message.value)

        reading = Deferred.fromCoroutine(read())
        self.assertNoResult(reading)
        stream.put(chunk(A, 0, b"a", b"b"))
        self.assertEqual(got, [b"a", b"b"])
        stream.end()
        self.successResultOf(reading)

    def test_chunks(self) -> None:
        """
        By lists: what is there, at most so many; positions move with the list; an error comes
        behind what was before it, and then it goes on; the end is the consumer's.
        """
        stream = self.stream(decode=int, timeoutMs=500)
        chunks = stream.batches(3)

        def ask() -> Deferred[Any]:
            return Deferred.fromCoroutine(chunks.__anext__())

        waiting = ask()
        stream.put(chunk(A, 0, b"1"))
        self.assertEqual([each.value for each in self.successResultOf(waiting)], [1])
        self.assertEqual(self.positions, {A: 11, B: 0})
        stream.put(chunk(A, 11, b"2", b"3"))
        stream.put(chunk(B, 0, b"4", b"5", b"x", b"6"))
        self.assertEqual([each.value for each in self.successResultOf(ask())], [2, 3, 4])
        self.assertEqual(self.positions, {A: 33, B: 11})
        self.assertEqual([each.value for each in self.successResultOf(ask())], [5])
        self.failureResultOf(ask(), ValueError)
        self.assertEqual([each.value for each in self.successResultOf(ask())], [6])
        late = ask()
        self.clock.advance(0.6)
        self.failureResultOf(late, ConsumerTimeoutError)
        stream.fail(A, RemoteUnknownError())
        self.failureResultOf(ask(), RemoteUnknownError)
        self.assertRaises(ValueError, stream.batches, 0)

        async def read() -> list[Any]:
            return [each.value async for messages in stream.batches() for each in messages]

        reading = Deferred.fromCoroutine(read())
        stream.put(chunk(A, 33, b"7", b"8"))
        stream.end()
        self.assertEqual(self.successResultOf(reading), [7, 8])

    def test_errorBehindAList(self) -> None:
        """
        An error behind a list is about something that is in front of its partition's position until
        it is told, whichever partition that is; who leaves the loop is told by the next one, or by
        any other way to read.
        """
        for place, start in ((A, 11), (B, 0)):
            for isChunks in (True, False):
                self.positions.update({A: 0, B: 0})
                stream = self.stream(decode=int)
                stream.put(chunk(A, 0, b"1"))
                stream.put(chunk(place, start, b"x", b"2"))
                self.assertEqual(
                    [
                        each.value
                        for each in self.successResultOf(
                            Deferred.fromCoroutine(stream.batches().__anext__())
                        )
                    ],
                    [1],
                )
                self.assertEqual(self.positions, {A: 11, B: 0})
                again = stream.batches().__anext__() if isChunks else stream.__anext__()
                self.failureResultOf(Deferred.fromCoroutine(again), ValueError)
                self.assertEqual(self.positions[place], start + 11)
                self.assertEqual(self.values(stream), [2])

    def test_errorAtTheEnd(self) -> None:
        """An error behind the last list that is not told any more is the next owner's."""
        stream = self.stream(decode=int)
        stream.put(chunk(A, 0, b"1", b"x"))
        self.successResultOf(Deferred.fromCoroutine(stream.batches().__anext__()))
        stream.end()
        self.assertIsNone(stream.take())
        self.assertEqual(self.positions[A], 11)

    def test_errorBehindAListDropped(self) -> None:
        """A partition that is dropped before the error is told does not move with it."""
        stream = self.stream(decode=int)
        stream.put(chunk(A, 0, b"1", b"x"))
        self.successResultOf(Deferred.fromCoroutine(stream.batches().__anext__()))
        stream.drop((A,))
        self.positions[A] = 5
        self.assertRaises(ValueError, stream.take)
        self.assertEqual(self.positions[A], 5)

    def test_oneReader(self) -> None:
        """
        Who reads where another waits already, or a receiver is served, is told so, and the first
        one goes on.
        """
        stream = self.stream()
        first = Deferred.fromCoroutine(stream.__anext__())
        self.failureResultOf(Deferred.fromCoroutine(stream.__anext__()), ConsumerStateError)
        self.failureResultOf(stream.pipeTo(Receiver()), ConsumerStateError)
        stream.put(chunk(A, 0, b"a"))
        self.assertEqual(self.successResultOf(first).value, b"a")
        receiver = Receiver()
        done = stream.pipeTo(receiver)
        self.failureResultOf(Deferred.fromCoroutine(stream.__anext__()), ConsumerStateError)
        self.failureResultOf(stream.pipeTo(Receiver()), ConsumerStateError)
        stream.put(chunk(A, 11, b"b"))
        self.clock.advance(0)
        self.assertEqual(receiver.got, [b"b"])
        stream.end()
        self.clock.advance(0)
        self.successResultOf(done)
        self.failureResultOf(Deferred.fromCoroutine(stream.__anext__()), StopAsyncIteration)

    def test_timeout(self) -> None:
        """
        Feature 108: with a time-out the iteration raises when nothing comes, and can be used again.
        """
        stream = self.stream(timeoutMs=500)
        for _time in range(2):
            reading = Deferred.fromCoroutine(stream.__anext__())
            self.clock.advance(0.4)
            self.assertNoResult(reading)
            self.clock.advance(0.2)
            self.failureResultOf(reading, ConsumerTimeoutError)
        stream.put(chunk(A, 0, b"a"))
        self.assertEqual(
            self.successResultOf(Deferred.fromCoroutine(stream.__anext__())).value, b"a"
        )

    def test_cancelled(self) -> None:
        """Who stops waiting loses no message."""
        stream = self.stream()
        reading = Deferred.fromCoroutine(stream.__anext__())
        reading.cancel()
        self.failureResultOf(reading)
        stream.put(chunk(A, 0, b"a"))
        self.assertEqual(self.values(stream), [b"a"])


@implementer(IConsumer)
class Receiver:
    """
    Takes so many messages before it pauses.

    @ivar got: values.
    """

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.room = 1 << 30
        self.producer: Any = None

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert streaming
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def write(self, message: Any) -> None:
        if message.value == b"poison":
            raise RuntimeError("poison")
        self.got.append(message.value)
        self.room -= 1
        if not self.room:
            self.producer.pauseProducing()


class DeliveryTests(StreamCase):
    """Into a receiver that pushes back."""

    def test_pushesBack(self) -> None:
        """A receiver that pauses gets nothing, and the stream stays full, until it wants more."""
        stream, receiver = self.stream(), Receiver()
        receiver.room = 2
        done = stream.pipeTo(receiver)
        stream.put(chunk(A, 0, b"a", b"b", b"c"))
        stream.put(chunk(A, 33, b"d"))
        self.clock.advance(0)
        self.assertEqual(receiver.got, [b"a", b"b"])
        self.clock.advance(10)
        receiver.room = 1 << 30
        receiver.producer.resumeProducing()
        self.assertEqual(receiver.got, [b"a", b"b"])
        self.clock.advance(0)
        self.assertEqual(receiver.got, [b"a", b"b", b"c", b"d"])
        self.assertNoResult(done)
        stream.end()
        self.clock.advance(0)
        self.successResultOf(done)
        self.assertIsNone(receiver.producer)

    def test_endWhilePaused(self) -> None:
        """The end comes to a receiver that wants nothing now, too."""
        stream, receiver = self.stream(), Receiver()
        receiver.room = 1
        done = stream.pipeTo(receiver)
        stream.put(chunk(A, 0, b"a", b"b"))
        self.clock.advance(0)
        stream.end()
        self.clock.advance(0)
        self.successResultOf(done)
        self.assertEqual((receiver.got, receiver.producer), ([b"a"], None))

    def test_turns(self) -> None:
        """A long queue is delivered in turns, so that others get theirs."""
        stream, receiver = self.stream(), Receiver()
        stream.put(chunk(A, 0, *[b"x"] * 2_500))
        stream.pipeTo(receiver)
        counts: list[int] = []
        self.clock.callLater(0, lambda: counts.append(len(receiver.got)))
        self.clock.advance(0)
        self.assertEqual((counts, len(receiver.got)), ([1_000], 2_500))

    def test_receiverFails(self) -> None:
        """
        What the receiver raises, and a partition's error, end the delivery; a new one goes on.
        """
        stream, receiver = self.stream(), Receiver()
        stream.put(chunk(A, 0, b"poison", b"b"))
        done = stream.pipeTo(receiver)
        self.clock.advance(0)
        self.failureResultOf(done, RuntimeError)
        stream.fail(A, RemoteUnknownError())
        again = stream.pipeTo(receiver)
        self.clock.advance(0)
        self.assertEqual(receiver.got, [b"b"])
        self.failureResultOf(again, RemoteUnknownError)

    def test_refused(self) -> None:
        """
        A receiver that has a producer already refuses, and gets nothing, though it may have asked
        for it first; the stream is there for the next one.
        """

        class Occupied(Receiver):
            def registerProducer(self, producer: Any, streaming: bool) -> None:
                producer.resumeProducing()
                raise RuntimeError("another producer is registered")

            def unregisterProducer(self) -> None:
                raise AssertionError("the other one is still there")

        stream, occupied, receiver = self.stream(), Occupied(), Receiver()
        stream.put(chunk(A, 0, b"a"))
        self.failureResultOf(stream.pipeTo(occupied), RuntimeError)
        self.clock.advance(0)
        self.assertEqual((occupied.got, self.positions[A]), ([], 0))
        self.assertNoResult(stream.pipeTo(receiver))
        self.clock.advance(0)
        self.assertEqual(receiver.got, [b"a"])

    def test_stopped(self) -> None:
        """
        A receiver that wants no more, and an application that cancels, end the delivery; what is
        left stays in the stream.
        """
        stream, receiver = self.stream(), Receiver()
        stream.put(chunk(A, 0, b"a"))
        done = stream.pipeTo(receiver)
        receiver.producer.stopProducing()
        self.successResultOf(done)
        cancelled = stream.pipeTo(receiver)
        producer = receiver.producer
        cancelled.cancel()
        self.failureResultOf(cancelled)
        producer.stopProducing()
        producer.resumeProducing()
        self.clock.advance(1)
        self.assertEqual(self.values(stream), [b"a"])

    def test_stopsInTheMiddle(self) -> None:
        """A receiver that stops for good while it is written to gets no more."""
        stream, receiver = self.stream(), Receiver()
        stream.put(chunk(A, 0, b"a", b"b"))
        done = stream.pipeTo(receiver)
        receiver.room = 1
        receiver.producer.pauseProducing = receiver.producer.stopProducing
        self.clock.advance(0)
        self.assertEqual(receiver.got, [b"a"])
        self.successResultOf(done)


class BlockingTests(TestCase):
    """An iterator for a plain thread."""

    def setUp(self) -> None:
        self.positions: dict[PartitionId, int] = {A: 0, B: 0}

    def stream(self, **arguments: Any) -> MessageStream:
        return MessageStream("s", reactor, self.positions, **arguments)

    async def begun(self, start: int) -> tuple[MessageStream, BlockingIterator]:
        """A thread has the first of three messages, two of A from an offset on and one of B."""
        stream = self.stream()
        stream.put(chunk(A, start, b"a", b"b"))
        stream.put(chunk(B, 0, b"c"))
        messages = stream.blocking(reactor)
        await deferToThread(next, messages)
        return stream, messages

    async def test_reads(self) -> None:
        """
        The thread gets all messages in order, waits for more, and comes to the end when the
        consumer is shut down.
        """
        stream = self.stream()
        reading = deferToThread(lambda: [message.value for message in stream.blocking(reactor)])
        stream.put(chunk(A, 0, *(b"%d" % index for index in range(250))))
        second = deferToThread(lambda: None)
        await second
        stream.put(chunk(B, 0, b"last"))
        while self.positions[B] == 0:
            await deferToThread(lambda: None)
        stream.end()
        self.assertEqual(await reading, [b"%d" % index for index in range(250)] + [b"last"])

    async def test_oneReader(self) -> None:
        """A thread that reads where another waits is told so; the first one goes on."""
        stream = self.stream()
        waiting = Deferred.fromCoroutine(stream.__anext__())
        await self.assertFailure(deferToThread(next, stream.blocking(reactor)), ConsumerStateError)
        stream.put(chunk(A, 0, b"a"))
        self.assertEqual((await waiting).value, b"a")

    async def test_positions(self) -> None:
        """
        A position moves when the thread gets the message, not when the batch leaves the reactor's
        thread.
        """
        _stream, messages = await self.begun(0)
        self.assertEqual(self.positions, {A: 11, B: 0})
        await deferToThread(next, messages)
        self.assertEqual(self.positions, {A: 22, B: 0})
        await deferToThread(next, messages)
        self.assertEqual(self.positions, {A: 22, B: 11})

    async def test_jumpInABatch(self) -> None:
        """
        A partition that goes on elsewhere behind messages of the batch does so with the last of
        them, while the batch goes on with others.
        """
        stream = self.stream()
        stream.put(chunk(A, 100, b"a", b"b"))
        stream.resetPosition(A, 0)
        stream.put(chunk(B, 0, b"c"))
        messages = stream.blocking(reactor)
        found = []
        for _message in range(3):
            await deferToThread(next, messages)
            found.append(dict(self.positions))
        self.assertEqual(found, [{A: 111, B: 0}, {A: 0, B: 0}, {A: 0, B: 11}])

    async def test_jumpBeforeAnError(self) -> None:
        """
        With an error in the batch, what is behind a message counts when the thread has had the
        error, and asks for more.
        """
        stream = self.stream(decode=int)
        stream.put(chunk(A, 100, b"1", b"x", b"3"))
        messages = stream.blocking(reactor)
        await deferToThread(next, messages)
        self.assertEqual(self.positions, {A: 111, B: 0})
        await self.assertFailure(deferToThread(next, messages), ValueError)
        self.assertEqual((await deferToThread(next, messages)).value, 3)
        self.assertEqual(self.positions, {A: 133, B: 0})

    async def test_errorElsewhere(self) -> None:
        """
        The same for a partition of which the batch has no message: its position moves when the
        thread has had the error.
        """
        stream = self.stream(decode=int)
        stream.put(chunk(A, 0, b"1"))
        stream.put(chunk(B, 0, b"x", b"3"))
        messages = stream.blocking(reactor)
        await deferToThread(next, messages)
        self.assertEqual(self.positions, {A: 11, B: 0})
        await self.assertFailure(deferToThread(next, messages), ValueError)
        self.assertEqual((await deferToThread(next, messages)).value, 3)
        self.assertEqual(self.positions, {A: 11, B: 22})

    async def test_elsewhere(self) -> None:
        """
        A partition that goes on elsewhere while the thread still has messages of it stays there
        when the thread gets them, and goes on from there.
        """
        stream, messages = await self.begun(100)
        stream.resetPosition(A, 7)
        for _message in range(2):
            await deferToThread(next, messages)
        self.assertEqual(self.positions, {A: 7, B: 11})
        stream.put(chunk(A, 7, b"d"))
        self.assertEqual((await deferToThread(next, messages)).value, b"d")
        self.assertEqual(self.positions, {A: 18, B: 11})

    async def test_dropped(self) -> None:
        """
        What is dropped while it waits in the thread's batch is not handed out; the other
        partitions' messages are.
        """
        stream, messages = await self.begun(0)
        stream.drop((A,))
        self.assertEqual((await deferToThread(next, messages)).value, b"c")
        self.assertEqual(self.positions, {A: 11, B: 11})

    async def test_errors(self) -> None:
        """
        Errors come in their turn, a decoder's, too, and the iteration goes on; so does a time-out.
        """
        stream = self.stream(decode=int, timeoutMs=1)
        stream.put(chunk(A, 0, b"1", b"x", b"3"))
        stream.fail(B, RemoteUnknownError())
        messages = stream.blocking(reactor)
        self.assertEqual((await deferToThread(next, messages)).value, 1)
        await self.assertFailure(deferToThread(next, messages), ValueError)
        self.assertEqual((await deferToThread(next, messages)).value, 3)
        await self.assertFailure(deferToThread(next, messages), RemoteUnknownError)
        await self.assertFailure(deferToThread(next, messages), ConsumerTimeoutError)

    async def test_endInABatch(self) -> None:
        """After the end nothing of the batch is handed out."""
        stream = self.stream()
        stream.put(chunk(A, 0, b"a", b"b"))
        messages = iter(stream.blocking(reactor))
        await deferToThread(next, messages)
        stream.end()
        self.assertEqual(await deferToThread(list, messages), [])


class DecoderTests(SynchronousTestCase):
    """Feature 110."""

    def test_text(self) -> None:
        """Text is UTF-8, and nothing else."""
        self.assertEqual(decodeText("Grüße".encode()), "Grüße")
        self.assertRaises(UnicodeDecodeError, decodeText, b"\xff")
