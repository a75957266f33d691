"""
Outcomes of messages: counted, logged if bad, and given to the callers that wait.

What must be true: each accepted message has one outcome, with which it leaves
L{pylogbroker.producer.inflight}.

A L{SendDeferred} is the Deferred of one message. Most applications only add one errback to each. A
plain Deferred keeps a list and three tuples for that, and walks them on success: 40 % of the cost
of C{send}. A L{SendDeferred} is initialised only for further use, when it becomes a plain Deferred,
and its result is made only when an application reads it. It relies on two properties of
C{Deferred}: methods that it does not override read what C{__init__} sets as attributes, and its
objects have no slots, so that C{__class__} can be assigned. A contract test compares it with
Twisted's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from twisted.internet.defer import Deferred, getDebugging
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import PylogbrokerError, QueueFullError, UnknownOutcomeError
from pylogbroker.producer.accumulator import PartitionBatch
from pylogbroker.producer.inflight import InFlightMessageLimiter

log = Logger()


_FIRED = object()


class _LazyDeferred(Deferred[Any]):
    """
    A Deferred that becomes one of Twisted's own class when an attribute is read that only
    C{Deferred.__init__} sets. From then on no method of this class is called.
    """

    __init__ = object.__init__

    def initialise(self) -> None:
        """Become a Deferred of Twisted's own class, in the same state."""
        self.__class__ = Deferred  # type: ignore[assignment]
        Deferred.__init__(self)

    def __getattr__(self, name: str) -> Any:
        self.initialise()
        return getattr(self, name)

    def pause(self) -> None:
        self.initialise()
        self.pause()


class SendDeferred(_LazyDeferred):
    """The Deferred of one message, which fires with L{None} or with where the message is."""

    _errback: Any = None
    """The one errback that was added; C{_FIRED}: it has fired."""

    _results: Callable[[int], Any] | None = None
    """Makes the result from C{_index} when it is read."""

    _index: int

    def __getattr__(self, name: str) -> Any:
        if name == "result" and self._results is not None:
            result = self.result = self._results(self._index)
            self._results = None
            return result
        return super().__getattr__(name)

    def initialise(self) -> None:
        if self._results is not None:
            self.result = self._results(self._index)
        errback, self._errback, self._results = self._errback, None, None
        super().initialise()
        if errback is not None and errback is not _FIRED:
            self.addErrback(errback)

    def addErrback(self, errback: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
        if self._errback is None and not args and not kwargs:
            self._errback = errback
            return self
        return super().addErrback(errback, *args, **kwargs)

    def callback(self, result: Any) -> None:
        # A tuple and None are values; a Failure, for instance, is not. (isinstance is slow with
        # Deferred, an abstract base class.)
        if self._errback is _FIRED or not (result is None or isinstance(result, tuple)):
            self.initialise()
            self.callback(result)
            return
        self.called = True
        self.result = result
        self._errback = _FIRED

    def errback(self, fail: Any = None) -> None:
        self.initialise()
        self.errback(fail)


class FailureWaiter:
    """Takes the outcome of a message in place of a Deferred, if it is a failure."""

    __slots__ = ()

    def errback(self, failure: Failure) -> None:
        """
        Called once if the message is not in the log, or may not be.

        @param failure: as that of C{KafkaProducer.send}.
        """
        raise NotImplementedError


def fireLazily(waiters: Iterable[Any], results: Callable[[int], Any]) -> None:
    """
    Give the messages of a batch their outcomes: as C{waiter.callback(results(index))} for each that
    is not L{None} or a L{FailureWaiter}. But the result of a L{SendDeferred} is made when it is
    read. Most never are, and each would be an object that the garbage collector examines.

    @param waiters: of each message, in order.
    @param results: gives a tuple or L{None} for a message's place; must not fail.
    """
    fired = _FIRED
    for index, waiter in enumerate(waiters):
        if type(waiter) is SendDeferred and waiter._errback is not fired:
            waiter.called = True
            waiter._results = results
            waiter._index = index
            waiter._errback = fired
        elif waiter is not None and not isinstance(waiter, FailureWaiter):
            waiter.callback(results(index))


_END: Iterator[Any] = iter(())


class SucceededDeferred(_LazyDeferred):
    """A Deferred that has fired with L{None}: C{succeed(None)} at a third of the cost."""

    called = True
    result: Any = None

    # Awaiting it calls this method of an iterator that has ended, which gives that iterator: no
    # function of Python runs.
    __await__: Any = _END.__iter__

    def initialise(self) -> None:
        super().initialise()
        self.called, self.result = True, None


def sendResultClass() -> type[Deferred[Any]]:
    """The class of messages' Deferreds: Twisted's own while its debugging is on."""
    return Deferred if getDebugging() else SendDeferred


@dataclass(slots=True)
class ProducerCounters:
    """
    Counts of messages since the producer was made. C{acceptedCount} is the sum of C{writtenCount},
    C{failedCount}, C{unknownCount} and the messages in flight.

    @ivar acceptedCount: messages given to C{send}, including refused ones.
    @ivar writtenCount: messages written and, with C{confirm}, confirmed.
    @ivar failedCount: messages of which nothing was sent, including refused ones.
    @ivar unknownCount: messages that the broker may have.
    @ivar droppedCount: failed messages for which there was no capacity.
    @ivar retriedCount: repeated attempts, one per message.
    @ivar repeatedCount: retries after an unknown outcome: the log may have the message twice.
    @ivar batchCount: requests, or batches given to an event handler.
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
    Takes the outcomes of several messages in place of a Deferred for each.

    @ivar waiter: fires when all have an outcome; fails with the worst (unknown before failed).
    """

    __slots__ = ("_failure", "_pendingCount", "waiter")

    def __init__(self, count: int) -> None:
        self.waiter: Deferred[None] = Deferred()
        self._pendingCount = count
        self._failure: Failure | None = None

    def callback(self, result: None) -> None:
        self._pendingCount -= 1
        if not self._pendingCount:
            if self._failure is None:
                self.waiter.callback(None)
            else:
                self.waiter.errback(self._failure)

    def errback(self, failure: Failure) -> None:
        if self._failure is None or failure.check(UnknownOutcomeError):
            self._failure = failure
        self.callback(None)


def countOf(batches: Sequence[PartitionBatch]) -> int:
    """The number of messages in some batches."""
    return sum([len(batch.values) for batch in batches])


class Completions:
    """Gives messages their outcomes."""

    def __init__(
        self,
        limiter: InFlightMessageLimiter,
        onCompleted: Callable[[], None],
        isLoggingFailures: bool = True,
    ) -> None:
        """
        @param onCompleted: called when messages are no longer in flight and their waiters know the
            outcome.
        @param isLoggingFailures: whether messages that were not sent are logged.
        """
        self.counters = ProducerCounters()
        self._limiter = limiter
        self._onCompleted = onCompleted
        self._isLoggingFailures = isLoggingFailures
        self._isFullLogged = False

    def complete(self, batches: Sequence[PartitionBatch], failure: Failure | None = None) -> None:
        """
        Complete messages that are in flight.

        @param failure: why they were not sent, or may not have been; L{None} on success.
        """
        sizes = [size for batch in batches for size in batch.sizes]
        self._isFullLogged = False
        self._limiter.release(len(sizes), sum(sizes))
        self.report(batches, failure)
        self._onCompleted()
        self._limiter.notify()

    def report(
        self,
        batches: Sequence[PartitionBatch],
        failure: Failure | None = None,
        isLogged: bool = True,
    ) -> None:
        """
        Complete messages that are not in flight.

        @param failure: as of L{complete}.
        @param isLogged: L{False} if the caller logs the failure.
        """
        if failure is None:
            self.counters.writtenCount += countOf(batches)
            for batch in batches:
                for waiter in filter(None, batch.waiters):
                    waiter.callback(None)
            return
        if failure.check(UnknownOutcomeError):
            self._fail(batches, failure, isLogged)
            return
        doubtful = [batch for batch in batches if batch.mayBeDuplicate]
        if doubtful:
            text = "the outcome of an attempt was unknown, and sending it again failed"
            unknown = UnknownOutcomeError(f"{text}: {failure.value}")
            self._fail(doubtful, Failure(unknown), isLogged)
        self._fail([batch for batch in batches if not batch.mayBeDuplicate], failure, isLogged)

    def _fail(self, batches: Sequence[PartitionBatch], failure: Failure, isLogged: bool) -> None:
        count = countOf(batches)
        if not count:
            return
        isUnknown = failure.check(UnknownOutcomeError) is not None
        if isUnknown:
            self.counters.unknownCount += count
        else:
            self.counters.failedCount += count
        if isLogged and self._isLoggingFailures:
            log.error(
                "{count} messages {outcome}: {error}",
                count=count,
                outcome="may have been sent or not" if isUnknown else "were not sent",
                error=failure.value,
            )
        for batch in batches:
            for waiter in filter(None, batch.waiters):
                waiter.errback(failure)

    def refuse(self, batches: Sequence[PartitionBatch], reason: PylogbrokerError) -> None:
        """
        Fail messages for which there was no capacity. Logs once until a message has completed.
        """
        if isinstance(reason, QueueFullError):
            self.counters.droppedCount += countOf(batches)
            if not self._isFullLogged and self._isLoggingFailures:
                self._isFullLogged = True
                log.error("The queue is full, messages are refused: {reason}", reason=reason)
        self.report(batches, Failure(reason), isLogged=False)

    def retry(
        self, batches: Sequence[PartitionBatch], destination: str, error: PylogbrokerError
    ) -> None:
        """
        Count messages that are about to be sent again.

        @param destination: the intended one, for the log.
        @param error: the outcome of the attempt before.
        """
        count = countOf(batches)
        self.counters.retriedCount += count
        isRepeated = isinstance(error, UnknownOutcomeError)
        if isRepeated:
            self.counters.repeatedCount += count
            for batch in batches:
                batch.mayBeDuplicate = True
        log.warn(
            "{count} messages for {destination} are sent again{repeated}: {error}",
            count=count,
            destination=destination,
            repeated=", and may be in the log twice" if isRepeated else "",
            error=error,
        )
