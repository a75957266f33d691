"""
What became of messages: counted, logged if it did not go well, and told to whoever waits for them.

Each message that was accepted is settled once. It leaves the queue then, and others may come in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import PylogbrokerError, QueueFullError, UnknownOutcomeError
from pylogbroker.producer.batches import PartitionBatch, QueueItem
from pylogbroker.producer.inflight import InFlightLimiter

log = Logger()


@dataclass(slots=True)
class ProducerCounters:
    """
    What became of messages, since the producer was made. C{acceptedCount = writtenCount + failedCount + unknownCount + } those under way.

    @ivar acceptedCount: messages given to C{send}, refused ones included.
    @ivar writtenCount: sent; with C{confirm}, and confirmed.
    @ivar failedCount: nothing of them has left; the refused among them.
    @ivar unknownCount: begun, and lost sight of.
    @ivar droppedCount: of the failed, those for which the queue had no room.
    @ivar retriedCount: messages that were tried once more, each time counted.
    @ivar repeatedCount: of these, those whose first outcome was unknown: they may be in the log twice.
    @ivar batchCount: requests, or batches, that were given to a connection.
    """

    acceptedCount: int = 0
    writtenCount: int = 0
    failedCount: int = 0
    unknownCount: int = 0
    droppedCount: int = 0
    retriedCount: int = 0
    repeatedCount: int = 0
    batchCount: int = 0


class SendGroup:
    """
    Many messages and one who waits for all: takes the place of a L{Deferred} in each.

    @ivar waiter: fires when all are settled; fails with the worst that became of one.
    """

    __slots__ = ("_failure", "_leftCount", "waiter")

    def __init__(self, count: int) -> None:
        """
        @param count: messages; each calls back once.
        """
        self.waiter: Deferred[None] = Deferred()
        self._leftCount = count
        self._failure: Failure | None = None

    def callback(self, result: None) -> None:
        """One is sent."""
        self._leftCount -= 1
        if not self._leftCount:
            if self._failure is None:
                self.waiter.callback(None)
            else:
                self.waiter.errback(self._failure)

    def errback(self, failure: Failure) -> None:
        """One is not. The worst is what is told: unknown before failed."""
        if self._failure is None or failure.check(UnknownOutcomeError):
            self._failure = failure
        self.callback(None)


class Completions:
    """
    The books of one producer.

    @ivar counters: a L{ProducerCounters}.
    """

    def __init__(
        self, queue: InFlightLimiter, settled: Callable[[], None], isLoggingFailures: bool = True
    ) -> None:
        """
        @param queue: where messages leave from.
        @param settled: called when some have left, and who waited for them knows.
        @param isLoggingFailures: whether messages that were not sent are logged, too.
        """
        self.counters = ProducerCounters()
        self._queue = queue
        self._settled = settled
        self._isLoggingFailures = isLoggingFailures
        self._isFullTold = False

    def sent(self, batches: Sequence[PartitionBatch]) -> None:
        """Messages that were in the queue are sent, all of these."""
        sizes = [size for batch in batches for size in batch.sizes]
        self._isFullTold = False
        self._queue.release(len(sizes), sum(sizes))
        self.counters.writtenCount += len(sizes)
        for batch in batches:
            batch.succeed()
        self._settled()
        self._queue.look()

    def settle(self, items: Sequence[QueueItem], failure: Failure | None = None) -> None:
        """
        What became of messages that were in the queue.

        @param failure: why they were not sent, or are unknown; L{None} if they were.
        """
        size = 0
        for item in items:
            size += item.size
        self._isFullTold = False
        self._queue.release(len(items), size)
        self.tell(items, failure)
        self._settled()
        self._queue.look()

    def tell(
        self, items: Sequence[QueueItem], failure: Failure | None, isLogged: bool = True
    ) -> None:
        """The same of messages that were not in the queue."""
        if not items:
            return
        counters = self.counters
        if failure is None:
            counters.writtenCount += len(items)
            for item in items:
                item.succeed()
            return
        if failure.check(UnknownOutcomeError):
            counters.unknownCount += len(items)
            outcome = "may have been sent or not"
        elif doubtful := [
            item for item in items if item.mayBeDuplicate
        ]:  # the last attempt has failed, but an earlier one perhaps has not
            told = UnknownOutcomeError(
                f"the outcome of an attempt was unknown, and sending it again failed: {failure.value}"
            )
            self.tell(doubtful, Failure(told), isLogged)
            self.tell([item for item in items if not item.mayBeDuplicate], failure, isLogged)
            return
        else:
            counters.failedCount += len(items)
            outcome = "were not sent"
        if isLogged and self._isLoggingFailures:
            log.error(
                "{count} messages {outcome}: {error}",
                count=len(items),
                outcome=outcome,
                error=failure.value,
            )
        for item in items:
            if item.waiter is not None:
                waiter, item.waiter = item.waiter, None
                waiter.errback(failure)

    def refused(self, items: Sequence[QueueItem], reason: PylogbrokerError) -> None:
        """There was no room for them. Of a full queue one line is logged until it moves again."""
        if isinstance(reason, QueueFullError):
            self.counters.droppedCount += len(items)
            if not self._isFullTold and self._isLoggingFailures:
                self._isFullTold = True
                log.error("The queue is full, messages are refused: {reason}", reason=reason)
        self.tell(items, Failure(reason), isLogged=False)

    def retried(self, items: Sequence[QueueItem], name: str, error: PylogbrokerError) -> None:
        """
        They are tried once more.

        @param name: the broker's, for the log.
        @param error: what became of them the first time.
        """
        self.counters.retriedCount += len(items)
        isRepeated = isinstance(error, UnknownOutcomeError)
        if isRepeated:
            self.counters.repeatedCount += len(items)
            for item in items:
                item.mayBeDuplicate = True
        log.warn(
            "{count} messages for {broker} are sent again{repeated}: {error}",
            count=len(items), broker=name, repeated=", and may be in the log twice" if isRepeated else "", error=error,
        )  # fmt: skip
