"""
Stream readers: lists, a Twisted push producer, and an iterator for a plain thread. A module of its
own, since the stream itself needs none of them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.threads import blockingCallFromThread
from twisted.python.failure import Failure
from zope.interface import implementer

from pylogbroker.types import PartitionId

if TYPE_CHECKING:
    from pylogbroker.consumer.stream import ConsumedMessage, MessageStream, PolledBatch

THREAD_COUNT_MAX = 100
"""Messages that a plain thread gets from the reactor's thread at a time."""
DELIVERY_COUNT_MAX = 1_000
"""Messages handed to a receiver in one reactor turn."""


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
        batch = await self._stream.nextBatch(self._countMax)
        self._stream.deliver(batch)
        if not batch.messages and batch.error is not None:
            raise batch.error
        return batch.messages


@implementer(IPushProducer)
class PipeProducer:
    """Pushes a stream's messages into a receiver until the receiver pauses it."""

    def __init__(self, stream: MessageStream, receiver: Any, clock: Any) -> None:
        self._stream = stream
        self._receiver = receiver
        self._clock = clock
        self._isPaused = False
        self._turn: Any = None
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
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
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

    def __init__(
        self, stream: MessageStream, reactor: Any, countMax: int = THREAD_COUNT_MAX
    ) -> None:
        self._stream = stream
        self._reactor = reactor
        self._countMax = countMax
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

    def _nextBatch(self, done: PolledBatch | None) -> Deferred[Any]:
        """On the reactor's thread. All of C{done} is handed out; positions move behind it."""
        if done is not None:
            self._stream.acknowledge(done)
        return Deferred.fromCoroutine(self._stream.nextBatch(self._countMax))
