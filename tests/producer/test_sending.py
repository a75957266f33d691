"""
Tests for L{pylogbroker.producer.sending}.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import (
    AlreadyCalledError,
    CancelledError,
    Deferred,
    getDebugging,
    setDebugging,
)
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.producer.sending import Done, SendDeferred, sendings

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


class SendingTests(SynchronousTestCase):
    """The Deferred of one message."""

    @given(st.lists(st.sampled_from(sorted(STEPS)), max_size=8))
    def test_alike(self, steps: list[str]) -> None:
        """Whatever is done to it in whatever order, it tells and keeps what Twisted's own would."""
        self.assertEqual(outcome(sendings()(), steps), outcome(Deferred(), steps))

    def test_kind(self) -> None:
        """With this Twisted it is the quick one."""
        self.assertIsInstance(sendings()(), SendDeferred)

    def test_shared(self) -> None:
        """Of an errback that comes again, also as a method asked for anew, one entry is kept; of two that take turns each hears its own."""
        newSending, one, other = sendings(), Application(), Application()
        made = [newSending() for _ in range(5)]
        for sending, application in zip(made, (one, one, other, one, other), strict=True):
            sending.addErrback(application.bad)
        self.assertIs(made[0]._callbacks[0], made[1]._callbacks[0])
        for number, sending in enumerate(made):
            sending.errback(ValueError(f"{number}"))
        self.assertEqual(one.told, [("bad", "0"), ("bad", "1"), ("bad", "3")])
        self.assertEqual(other.told, [("bad", "2"), ("bad", "4")])

    def test_chained(self) -> None:
        """One that is returned from a callback hands on what came of it, its own errback first."""
        for isGood in (True, False):
            application, inner = Application(), sendings()()
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

        async def wait(sending: Deferred[None]) -> str:
            try:
                await sending
            except (ValueError, CancelledError) as error:
                return type(error).__name__
            return "sent"

        for end, expected in (
            (lambda each: each.callback(None), "sent"),
            (lambda each: each.errback(ValueError()), "ValueError"),
        ):
            sending = sendings()()
            waiting = Deferred.fromCoroutine(wait(sending))
            end(sending)
            self.assertEqual(self.successResultOf(waiting), expected)
        waiting = Deferred.fromCoroutine(wait(sendings()()))
        waiting.cancel()
        self.assertEqual(self.successResultOf(waiting), "CancelledError")

    def test_otherTwisted(self) -> None:
        """Where a Deferred keeps its callbacks in another way, plain ones are made."""

        class Older(Deferred[Any]):
            def __init__(self) -> None:
                super().__init__()
                self.callbackList = self._callbacks

        class Another(Deferred[Any]):
            def addErrback(self, errback: Any, *args: Any, **kwargs: Any) -> Deferred[Any]:
                self._callbacks.append((None, errback, args))  # type: ignore[arg-type]
                return self

        class Foreign:
            def addErrback(self, *_arguments: Any, **_keywords: Any) -> None:
                pass

        for other in (Older, Another, Foreign):
            self.assertIs(type(sendings(other)()), Deferred)

    def test_debugging(self) -> None:
        """So it is for who wants to know where each was made."""
        self.addCleanup(setDebugging, getDebugging())
        setDebugging(True)
        self.assertIs(type(sendings()()), Deferred)


class DoneTests(SynchronousTestCase):
    """A Deferred that has fired from the beginning."""

    def test_fired(self) -> None:
        """It has no result to tell, calls at once what is added, cannot be fired again, and cancelling it changes nothing."""
        done = Done()
        done.cancel()
        self.assertIsNone(self.successResultOf(done))
        self.assertEqual(self.successResultOf(Done().addCallback(lambda _nothing: 5)), 5)
        self.assertRaises(AlreadyCalledError, Done().callback, None)
        self.failureResultOf(Done().addCallback(lambda _nothing: 1 / 0), ZeroDivisionError)

    def test_awaited(self) -> None:
        """Who awaits it goes on at once; after a callback, with that one's result."""

        async def wait(done: Deferred[Any]) -> Any:
            return await done

        self.assertIsNone(self.successResultOf(Deferred.fromCoroutine(wait(Done()))))
        self.assertEqual(
            self.successResultOf(
                Deferred.fromCoroutine(wait(Done().addCallback(lambda _nothing: 5)))
            ),
            5,
        )
        paused = Done()
        paused.pause()
        waiting = Deferred.fromCoroutine(wait(paused))
        self.assertNoResult(waiting)
        paused.unpause()
        self.assertIsNone(self.successResultOf(waiting))
