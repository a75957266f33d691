"""
Sends the batches of one source partition, in order and until each is confirmed.

When a batch fails, the pipeline sends no new one until all batches in flight are answered. It then
resends the failed ones: the first alone, as a probe, and the rest behind it in their order. So the
messages for one target partition over one connection stay in order, even if the connection breaks.
A message with an unknown outcome may be stored twice; the second copy stands behind the first.

The pipeline never gives up a batch. It splits one that the target never takes (a message above
C{max.message.size}) until only that message remains, and retries it for ever; the log and the
metrics name it, and an operator decides. The messages behind it wait in the source, because in
memory they would use the room of all partitions.

A target broker with a smaller limit than ours drops the message and closes the connection, which
looks like any broken connection. A batch that fails in this way in company and then alone is
therefore split, too, which is harmless if only the connection broke. A batch that times out is
resent as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import (
    ConnectionLostError,
    MessageTooLargeError,
    PylogbrokerError,
    UnknownOutcomeError,
)
from pylogbroker.metrics.mirrormetrics import MirrorCounters, StuckMessage
from pylogbroker.net.timer import Timer
from pylogbroker.retry import RESEND_DELAYS, Backoff
from pylogbroker.types import PartitionId

T = TypeVar("T")

log = Logger()


class Outage:
    """
    Repeated failures of one operation. The log has a warning at the first failure and whenever the
    reason changes, and a line when they are over.
    """

    def __init__(self, random: Callable[[], float], sentence: str) -> None:
        """
        @param random: returns numbers in [0, 1).
        @param sentence: the failing operation, for the log.
        """
        self._backoff = Backoff(random, RESEND_DELAYS)
        self._sentence = sentence
        self._reported: str | None = None

    def failed(self, error: BaseException) -> float:
        """Record a failed attempt. Returns the milliseconds to wait before the next one."""
        if self._reported != str(error):
            self._reported = str(error)
            log.warn(
                "{sentence}: {error}. It is tried again until it works",
                sentence=self._sentence,
                error=error,
            )
        return self._backoff.failed()

    def succeeded(self) -> None:
        """Record a success."""
        if self._reported is not None:
            self._reported = None
            log.info("Over: {sentence}", sentence=self._sentence)
        self._backoff.succeeded()


async def retryForever(clock: Any, work: Callable[[], Awaitable[T]], outage: Outage) -> T:
    """
    Call a function until it succeeds.

    @raise Exception: what the function raises that is no L{PylogbrokerError}.
    """
    while True:
        try:
            result = await work()
        except PylogbrokerError as error:
            await deferLater(clock, outage.failed(error) / 1000)
        else:
            outage.succeeded()
            return result


@dataclass(eq=False, slots=True)
class Batch:
    """
    Messages of one source partition.

    @ivar payloads: C{len} of each is its bytes.
    @ivar start: the source offset from which a reader gets the first message; for one in a
        compressed set, the offset of the set. L{None} for the first message ever read of a
        partition.
    @ivar ends: the next offset of each message.
    @ivar size: bytes of payload.
    @ivar onConfirmed: called once, when all messages are confirmed.
    @ivar onRejected: called when the target refuses one of the messages: the messages behind this
        batch are to be read again after it.
    @ivar onDiscarded: called once, instead of C{onConfirmed}, for a batch behind a rejected one.
    @ivar number: the order in the pipeline; parts have one more digit.
    """

    payloads: list[Any]
    start: int | None
    ends: Sequence[int]
    size: int
    onConfirmed: Callable[[], None]
    onRejected: Callable[[], None]
    onDiscarded: Callable[[], None]
    number: tuple[int, ...] = ()

    def parts(self) -> list[Batch]:
        """
        The same messages in smaller batches, which confirm this one together: the largest message
        alone if it is much larger than the others, otherwise halves.
        """
        count = len(self.payloads)
        largest = max(range(count), key=lambda index: len(self.payloads[index]))
        isOdd = len(self.payloads[largest]) * count > 2 * self.size
        cuts = (0, largest, largest + 1, count) if isOdd else (0, count // 2, count)
        ranges = [(start, end) for start, end in pairwise(cuts) if start < end]
        left = len(ranges)

        def onConfirmed() -> None:
            nonlocal left
            left -= 1
            if not left:
                self.onConfirmed()

        parts = []
        for index, (start, end) in enumerate(ranges):
            payloads = self.payloads[start:end]
            parts.append(
                replace(
                    self,
                    payloads=payloads,
                    start=self.ends[start - 1] if start else self.start,
                    ends=self.ends[start:end],
                    size=sum(map(len, payloads)),
                    onConfirmed=onConfirmed,
                    number=(*self.number, index),
                )
            )
        return parts


class PartitionPipeline:
    """The way from one source partition to the target."""

    def __init__(
        self,
        partitionId: PartitionId,
        clock: Any,
        random: Callable[[], float],
        send: Callable[[list[Any]], Deferred[Any]],
        counters: MirrorCounters,
        origin: Mapping[str, str],
    ) -> None:
        """
        @param send: sends payloads in one request.
        @param origin: labels of the source in metrics.
        """
        self._partitionId = partitionId
        self._origin = origin
        self._send = send
        self._counters = counters
        self._outage = Outage(random, f"Messages of {partitionId} cannot be sent")
        self._timer = Timer(clock)
        self._number = 0
        self._inFlight: dict[Batch, None] = {}
        self._waiting: deque[Batch] = deque()  # to be sent, in order
        self._failed: list[Batch] = []
        self._isProbing = False
        self._error: PylogbrokerError = UnknownOutcomeError("nothing was sent yet")

    @property
    def isIdle(self) -> bool:
        """True if nothing is in flight or queued."""
        return not (self._inFlight or self._waiting or self._failed)

    def add(self, batch: Batch) -> None:
        """Send a batch, or queue it behind the failed ones."""
        self._number += 1
        batch.number = (self._number,)
        if self._isProbing or self._failed or self._timer.isRunning:
            self._waiting.append(batch)
        else:
            self._begin(batch)

    def _begin(self, batch: Batch) -> None:
        self._inFlight[batch] = None
        self._send(batch.payloads).addCallbacks(
            self._confirmed, self._notConfirmed, callbackArgs=(batch,), errbackArgs=(batch,)
        )

    def _confirmed(self, _result: object, batch: Batch) -> None:
        del self._inFlight[batch]
        self._outage.succeeded()
        self._counters.stuck.pop(batch, None)
        batch.onConfirmed()
        if self._isProbing and not self._failed:
            self._isProbing = False
            while self._waiting and not (self._failed or self._timer.isRunning):
                self._begin(self._waiting.popleft())
        self._continue()

    def _notConfirmed(self, failure: Failure, batch: Batch) -> None:
        del self._inFlight[batch]
        error = failure.value
        if not isinstance(error, PylogbrokerError):
            if not isinstance(error, CancelledError):
                log.failure("Sending failed unexpectedly; it is retried", failure)
            error = UnknownOutcomeError(repr(error))
        isTooLarge = isinstance(error, MessageTooLargeError)
        # Whether the content may be the cause: also if the connection ended where the confirmation
        # should have been.
        isRefused = isTooLarge or (
            isinstance(error, UnknownOutcomeError)
            and isinstance(error.__cause__, ConnectionLostError)
        )
        count = len(batch.payloads)
        self._counters.retriedCount += count
        if isinstance(error, UnknownOutcomeError):
            self._counters.repeatedCount += count
        isAlone = self._isProbing
        if count > 1 and isRefused and (isAlone or isTooLarge):
            self._failed += batch.parts()
        else:
            self._failed.append(batch)
            if isAlone and isRefused:
                self._reportStuck(batch, error)
        self._error = error
        self._continue()

    def _reportStuck(self, batch: Batch, error: PylogbrokerError) -> None:
        """Log a message that was refused alone, once."""
        if batch in self._counters.stuck:
            return
        topic, partition = self._partitionId
        start, end, size = batch.start, batch.ends[0], batch.size
        labels = {
            **self._origin,
            "topic": topic,
            "broker": str(partition.broker),
            "partition": str(partition.partition),
        }
        self._counters.stuck[batch] = StuckMessage(labels, end if start is None else start, size)
        log.error(
            "{partitionId}: the target does not take the message {where} of the source, of {size} "
            "bytes; what is behind it waits: {error}. If it is too large, raise max.message.size "
            "(today's Kafka: max.message.bytes and max.request.size) of the target's brokers and "
            "of the mirror; docs/mirror.md says how to leave it out",
            partitionId=self._partitionId,
            where=f"that ends at offset {end}" if start is None else f"at offset {start}",
            size=size,
            error=error,
        )
        self._discardBehind(batch)

    def _discardBehind(self, batch: Batch) -> None:
        """
        Keep the parts of the rejected batch. Nothing else is in flight, and all queued batches are
        behind it.
        """
        number = batch.number[0]
        behind = {each.number[0]: each for each in self._waiting if each.number[0] != number}
        self._waiting = deque(each for each in self._waiting if each.number[0] == number)
        batch.onRejected()  # first: who gets the room must not find any of it in the stream
        for each in behind.values():
            each.onDiscarded()

    def _continue(self) -> None:
        """When all batches in flight are answered, resend the failed ones."""
        if self._failed and not self._inFlight and not self._timer.isRunning:
            self._waiting.extendleft(
                sorted(self._failed, key=lambda batch: batch.number, reverse=True)
            )
            self._failed = []
            self._isProbing = True
            self._timer.start(self._outage.failed(self._error), self._probe)

    def _probe(self) -> None:
        self._begin(self._waiting.popleft())

    def stop(self) -> None:
        """Stop the retries."""
        self._timer.stop()
        for batch in self._waiting:
            self._counters.stuck.pop(batch, None)
