"""
Tests for L{pylogbroker.producer.completion}.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import (
    AlreadyCalledError,
    CancelledError,
    Deferred,
    getDebugging,
    setDebugging,
)
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import BrokerConnectionError, QueueFullError, UnknownOutcomeError
from pylogbroker.producer.accumulator import PartitionBatch
from pylogbroker.producer.completion import (
    Completions,
    FailureWaiter,
    SendDeferred,
    SendGroup,
    SucceededDeferred,
    fireLazily,
    sendResultClass,
)
from pylogbroker.producer.inflight import InFlightMessageLimiter


class SendGroupTests(SynchronousTestCase):
    """One outcome for several messages."""

    def test_all(self) -> None:
        """It fires with the last."""
        group = SendGroup(2)
        group.callback(None)
        self.assertNoResult(group.waiter)
        group.callback(None)
        self.successResultOf(group.waiter)

    def test_worst(self) -> None:
        """Unknown is worse than failed, whichever comes first; and both wait for the rest."""
        failed = Failure(BrokerConnectionError("no"))
        unknown = Failure(UnknownOutcomeError("who knows"))
        for failures in ([failed, unknown], [unknown, failed]):
            group = SendGroup(3)
            for failure in failures:
                group.errback(failure)
            self.assertNoResult(group.waiter)
            group.callback(None)
            self.failureResultOf(group.waiter, UnknownOutcomeError)


class CompletionsTests(SynchronousTestCase):
    """The outcomes of messages."""

    def setUp(self) -> None:
        self.limiter = InFlightMessageLimiter(Clock(), 10, 1000, -1)
        self.counts: list[int] = []
        self.completions = Completions(self.limiter, lambda: self.counts.append(self.limiter.count))

    def inFlight(self, count: int) -> PartitionBatch:
        """Messages in flight, each with a waiter."""
        self.assertTrue(self.limiter.tryAcquire(count, 5 * count))
        return self.batch(count)

    def batch(self, count: int) -> PartitionBatch:
        batch = PartitionBatch.of("t", [b"12345"] * count, None)
        batch.waiters = [Deferred() for _message in range(count)]
        return batch

    def test_sent(self) -> None:
        """Messages that are sent leave the limiter. Their waiters know before others may look."""
        batch = self.inFlight(3)
        waiters: list[Deferred[None]] = batch.waiters
        waiters[0].addCallback(lambda _: self.assertEqual(self.counts, []))
        self.completions.complete([batch])
        for waiter in waiters:
            self.successResultOf(waiter)
        self.assertEqual((self.limiter.count, self.limiter.size, self.counts), (0, 0, [0]))
        self.assertEqual(self.completions.counters.writtenCount, 3)

    def test_noWaiter(self) -> None:
        """A message needs no waiter, well or not."""
        for failure in (None, Failure(BrokerConnectionError("no"))):
            batch = self.inFlight(2)
            batch.waiters[0] = None
            waiter = batch.waiters[1]
            self.completions.complete([batch], failure)
            if failure is None:
                self.successResultOf(waiter)
            else:
                self.failureResultOf(waiter, BrokerConnectionError)

    def test_failed(self) -> None:
        """Failed and unknown are counted apart."""
        for error, kind in (
            (BrokerConnectionError("no"), BrokerConnectionError),
            (UnknownOutcomeError("who knows"), UnknownOutcomeError),
        ):
            batch = self.inFlight(2)
            self.completions.complete([batch], Failure(error))
            for waiter in batch.waiters:
                self.failureResultOf(waiter, kind)
        counters = self.completions.counters
        self.assertEqual(
            (
                counters.writtenCount,
                counters.failedCount,
                counters.unknownCount,
                self.limiter.count,
            ),
            (0, 2, 2, 0),
        )

    def test_refused(self) -> None:
        """Refused messages were never in flight; they failed, and were dropped if it was full."""
        for reason, droppedCount in (
            (QueueFullError("full"), 2),
            (BrokerConnectionError("no"), 2),
        ):
            batch = self.batch(2)
            self.completions.refuse([batch], reason)
            for waiter in batch.waiters:
                self.failureResultOf(waiter, type(reason))
            self.assertEqual(self.completions.counters.droppedCount, droppedCount)
        self.assertEqual((self.completions.counters.failedCount, self.counts), (4, []))

    def test_logged(self) -> None:
        """
        Messages that were not sent are logged, unless their sender does that; all are counted.
        """
        for isLogging in (True, False):
            completions = Completions(self.limiter, lambda: None, isLogging)
            with capturedLogs() as events:
                batch, refused = self.inFlight(2), self.batch(1)
                completions.complete([batch], Failure(BrokerConnectionError("no way")))
                completions.refuse([refused], QueueFullError("no room"))
            texts = [formatEvent(event) for event in events]
            self.assertEqual(len(texts), 2 if isLogging else 0)
            self.assertEqual("no way" in "".join(texts), isLogging)
            for waiter in batch.waiters + refused.waiters:
                self.failureResultOf(waiter, BrokerConnectionError, QueueFullError)
            self.assertEqual(completions.counters.failedCount, 3)

    def test_retried(self) -> None:
        """A retry after an unknown outcome may put a message into the log twice, and says so."""
        batch, doubtful = self.inFlight(2), self.inFlight(1)
        self.completions.retry([batch], "a:1", BrokerConnectionError("no"))
        self.completions.retry([doubtful], "a:1", UnknownOutcomeError("who knows"))
        counters = self.completions.counters
        self.assertEqual((counters.retriedCount, counters.repeatedCount), (3, 1))
        self.completions.complete([batch, doubtful], Failure(BrokerConnectionError("no")))
        self.assertEqual((counters.failedCount, counters.unknownCount), (2, 1))
        for waiter in batch.waiters:
            self.failureResultOf(waiter, BrokerConnectionError)
        self.failureResultOf(doubtful.waiters[0], UnknownOutcomeError)


Told = list[tuple[str, Any]]


class Application:
    """What an application hangs on a L{Deferred}, and what it was told."""

    def __init__(self) -> None:
        self.told: Told = []
        self.pauseCount = 0

    def bad(self, failure: Failure) -> None:
        self.told.append(("bad", str(failure.value)))

    def passing(self, failure: Failure) -> Failure:
        self.told.append(("passing", str(failure.value)))
        return failure

    def good(self, result: Any) -> str:
        self.told.append(("good", result))
        return "more"

    def raising(self, result: Any) -> None:
        self.told.append(("raising", str(result)))
        raise RuntimeError("raised")

    def withMore(self, failure: Failure, one: int, two: int) -> None:
        self.told.append(("withMore", (one, two)))

    def waiting(self, result: Any) -> Deferred[None]:
        self.told.append(("waiting", result))
        return Deferred()

    def pause(self, deferred: Deferred[Any]) -> None:
        self.pauseCount += 1
        deferred.pause()

    def unpause(self, deferred: Deferred[Any]) -> None:
        if self.pauseCount:
            self.pauseCount -= 1
            deferred.unpause()


def fireSecond(deferred: Deferred[Any]) -> None:
    """Fire it as the second of a batch, with a tuple that a L{SendDeferred} makes when read."""
    fireLazily([None, deferred], lambda index: (index, "made"))


STEPS: dict[str, Callable[[Application, Deferred[Any]], object]] = {
    "errback": lambda application, deferred: deferred.addErrback(application.bad),
    "another errback": lambda application, deferred: deferred.addErrback(application.passing),
    "errback with more": lambda application, deferred: deferred.addErrback(
        application.withMore, 1, two=2
    ),
    "callback": lambda application, deferred: deferred.addCallback(application.good),
    "raising": lambda application, deferred: deferred.addBoth(application.raising),
    "waiting": lambda application, deferred: deferred.addCallback(application.waiting),
    "pause": Application.pause,
    "unpause": Application.unpause,
    "cancel": lambda application, deferred: deferred.cancel(),
    "fire": lambda application, deferred: deferred.callback(None),
    "fire with a value": lambda application, deferred: deferred.callback(7),
    "fire lazily": lambda application, deferred: fireSecond(deferred),
    "fail": lambda application, deferred: deferred.errback(ValueError("failed")),
}


def outcome(deferred: Deferred[Any], steps: list[str]) -> tuple[Told, bool, Any]:
    """What an application is told when these are done in turn, and what is left."""
    application = Application()
    for step in steps:
        try:
            STEPS[step](application, deferred)
        except AlreadyCalledError:
            application.told.append(("already", step))
    result = getattr(deferred, "result", "none yet")
    while application.pauseCount:
        application.unpause(deferred)
    deferred.addErrback(lambda _failure: None)  # or it would be in the log
    return (
        application.told,
        bool(deferred.called),
        "a Deferred" if isinstance(result, Deferred) else str(result),
    )


def pick(inner: Deferred[None], _result: Any) -> Deferred[None]:
    """What a callback returns to have its L{Deferred} wait."""
    return inner


class SendResultTests(SynchronousTestCase):
    """The Deferred of one message."""

    @given(st.lists(st.sampled_from(sorted(STEPS)), max_size=8))
    def test_alike(self, steps: list[str]) -> None:
        """
        Whatever is done to it in whatever order, it reports and keeps what Twisted's own would.
        """
        self.assertEqual(outcome(SendDeferred(), steps), outcome(Deferred(), steps))

    def test_class(self) -> None:
        """It is a Deferred, and is what messages get."""
        self.assertIs(sendResultClass(), SendDeferred)
        self.assertIsInstance(SendDeferred(), Deferred)

    def test_methods(self) -> None:
        """Of two methods that are attached in turns, each learns of its own failures."""
        one, other = Application(), Application()
        made = [SendDeferred() for _ in range(5)]
        for result, application in zip(made, (one, one, other, one, other), strict=True):
            result.addErrback(application.bad)
        for number, result in enumerate(made):
            result.errback(ValueError(f"{number}"))
        self.assertEqual(one.told, [("bad", "0"), ("bad", "1"), ("bad", "3")])
        self.assertEqual(other.told, [("bad", "2"), ("bad", "4")])

    def tracked(self, make: Callable[[], Deferred[None]]) -> int:
        """The objects that the garbage collector tracks for 100 Deferreds with an errback."""
        bad = Application().bad
        kept: list[Any] = [None] * 100
        gc.collect()
        before = len(gc.get_objects())
        for index in range(100):
            kept[index] = make().addErrback(bad)
        return len(gc.get_objects()) - before

    def test_light(self) -> None:
        """An errback costs no object that the garbage collector has to examine."""
        self.assertLessEqual(self.tracked(SendDeferred), self.tracked(Deferred) - 300)

    def test_nothingIsKept(self) -> None:
        """When it has fired, it keeps neither errback nor application."""
        application = Application()
        kept, result = ref(application), SendDeferred()
        result.addErrback(application.bad)
        result.callback(None)
        del application
        gc.collect()
        self.assertIsNone(kept())
        self.assertIsNone(self.successResultOf(result))

    def test_chained(self) -> None:
        """When a callback returns it, its outcome is handed on, after its own errback."""
        for isGood in (True, False):
            application, inner = Application(), SendDeferred()
            outer: Deferred[Any] = Deferred()
            inner.addErrback(application.passing)
            outer.addCallback(partial(pick, inner)).addErrback(application.bad)
            outer.callback(None)
            self.assertNoResult(outer)
            if isGood:
                inner.callback(None)
            else:
                inner.errback(ValueError("x"))
            self.assertIsNone(self.successResultOf(outer))
            self.assertEqual(application.told, [] if isGood else [("passing", "x"), ("bad", "x")])

    def test_awaited(self) -> None:
        """A coroutine can wait for it, for good news and bad, and be cancelled."""

        async def wait(result: Deferred[None]) -> str:
            try:
                await result
            except (ValueError, CancelledError) as error:
                return type(error).__name__
            return "sent"

        ends: tuple[tuple[Callable[[Deferred[None]], object], str], ...] = (
            (lambda each: each.callback(None), "sent"),
            (lambda each: each.errback(ValueError()), "ValueError"),
        )
        for end, expected in ends:
            result = SendDeferred()
            waiting = Deferred.fromCoroutine(wait(result))
            end(result)
            self.assertEqual(self.successResultOf(waiting), expected)
        waiting = Deferred.fromCoroutine(wait(SendDeferred()))
        waiting.cancel()
        self.assertEqual(self.successResultOf(waiting), "CancelledError")

    def test_firedBefore(self) -> None:
        """One that has fired takes callbacks, can be awaited, and cannot be fired again."""

        async def wait(result: Deferred[Any]) -> Any:
            return await result

        fired = [SendDeferred() for _ in range(4)]
        for each in fired:
            each.callback(None)
        self.assertEqual(self.successResultOf(fired[0].addCallback(lambda _nothing: 5)), 5)
        self.assertIsNone(self.successResultOf(Deferred.fromCoroutine(wait(fired[1]))))
        self.assertRaises(AlreadyCalledError, fired[2].callback, None)
        self.assertRaises(AlreadyCalledError, fired[3].errback, ValueError())

    def test_lazily(self) -> None:
        """A result that is made when it is read is made once, and not without a reader."""
        made: list[int] = []

        def make(index: int) -> tuple[int]:
            made.append(index)
            return (index,)

        results = [SendDeferred() for _ in range(3)]
        for each in results:
            each.addErrback(Application().bad)
        fireLazily(results, make)
        self.assertEqual(made, [])
        self.assertEqual(self.successResultOf(results[2]), (2,))
        self.assertEqual([results[1].result for _ in range(2)], [(1,), (1,)])
        self.assertEqual(made, [2, 1])

    def test_failureWaiter(self) -> None:
        """One that waits for failures only is not told of a success, and no result is made."""
        fireLazily([None, FailureWaiter()], lambda index: self.fail("it was made"))
        self.assertRaises(NotImplementedError, FailureWaiter().errback, Failure(ValueError()))

    def test_debugging(self) -> None:
        """With Twisted's debugging, which records where each is made, Twisted's own is used."""
        self.addCleanup(setDebugging, getDebugging())
        setDebugging(True)
        self.assertIs(sendResultClass(), Deferred)


class FiredResultTests(SynchronousTestCase):
    """A Deferred that has fired from the beginning."""

    def test_fired(self) -> None:
        """
        It has no result to tell, calls at once what is added, cannot be fired again, and cancelling
        it changes nothing.
        """
        done = SucceededDeferred()
        done.cancel()
        self.assertIsNone(self.successResultOf(done))
        self.assertEqual(
            self.successResultOf(SucceededDeferred().addCallback(lambda _nothing: 5)), 5
        )
        self.assertRaises(AlreadyCalledError, SucceededDeferred().callback, None)
        self.failureResultOf(
            SucceededDeferred().addCallback(lambda _nothing: 1 / 0), ZeroDivisionError
        )

    def test_awaited(self) -> None:
        """Who awaits it goes on at once; after a callback, with that one's result."""

        async def wait(result: Deferred[Any]) -> Any:
            return await result

        self.assertIsNone(self.successResultOf(Deferred.fromCoroutine(wait(SucceededDeferred()))))
        self.assertEqual(
            self.successResultOf(
                Deferred.fromCoroutine(wait(SucceededDeferred().addCallback(lambda _nothing: 5)))
            ),
            5,
        )
        paused = SucceededDeferred()
        paused.pause()
        waiting = Deferred.fromCoroutine(wait(paused))
        self.assertNoResult(waiting)
        paused.unpause()
        self.assertIsNone(self.successResultOf(waiting))
