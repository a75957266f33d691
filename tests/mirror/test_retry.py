"""
Tests for L{pylogbroker.mirror.pipeline}.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import NoBrokersError, PylogbrokerError
from pylogbroker.mirror.pipeline import Outage, retryForever
from pylogbroker.retry import RESEND_DELAYS


class UntilDoneTests(SynchronousTestCase):
    """Trying again."""

    def test_untilItWorks(self) -> None:
        """
        It is tried again, later and later, until it works; the log has a line for each reason, and
        one when it is over.
        """
        clock = Clock()
        outcomes: list[PylogbrokerError | None] = [
            NoBrokersError("a"),
            NoBrokersError("a"),
            NoBrokersError("b"),
            None,
        ]

        async def work() -> str:
            outcome = outcomes.pop(0)
            if outcome is not None:
                raise outcome
            return "done"

        with capturedLogs() as events:
            doing = Deferred.fromCoroutine(
                retryForever(clock, work, Outage(lambda: 0.0, "the matter"))
            )
            self.assertEqual(len(outcomes), 3)
            clock.advance(RESEND_DELAYS.firstMs / 1000)
            self.assertEqual(len(outcomes), 2)
            clock.advance(RESEND_DELAYS.firstMs / 1000)
            self.assertEqual(len(outcomes), 2)
            clock.pump([RESEND_DELAYS.maxMs / 1000] * 2)
        self.assertEqual(self.successResultOf(doing), "done")
        self.assertEqual([str(event["error"]) for event in events if "error" in event], ["a", "b"])
        self.assertEqual(events[-1]["log_format"], "Over: {sentence}")

    def test_atOnce(self) -> None:
        """What works at once is not mentioned."""

        async def work() -> int:
            return 1

        with capturedLogs() as events:
            self.assertEqual(
                self.successResultOf(
                    Deferred.fromCoroutine(
                        retryForever(Clock(), work, Outage(lambda: 0.0, "the matter"))
                    )
                ),
                1,
            )
        self.assertEqual(events, [])

    def test_bug(self) -> None:
        """An error that is not the project's is not tried again."""

        async def work() -> int:
            raise ZeroDivisionError

        self.failureResultOf(
            Deferred.fromCoroutine(retryForever(Clock(), work, Outage(lambda: 0.0, "the matter"))),
            ZeroDivisionError,
        )


class OutageTests(SynchronousTestCase):
    """Reports of repeated failures."""

    def test_reports(self) -> None:
        """
        The first failure is reported, each with another reason, and the end; a success without a
        failure is not.
        """
        outage = Outage(lambda: 0.0, "the matter")
        with capturedLogs() as events:
            outage.succeeded()
            delays = [outage.failed(ValueError(text)) for text in "aab"]
            outage.succeeded()
            reports = [str(event.get("error", "over")) for event in events]
            self.assertEqual((delays, reports), ([200, 400, 800], ["a", "b", "over"]))
            again = outage.failed(ValueError("b"))
        self.assertEqual((again, [str(event["error"]) for event in events[3:]]), (200, ["b"]))
