"""
Tests for L{pylogbroker.producer.closing}.
"""

from __future__ import annotations

from typing import Any

from pylogbroker.errors import (
    ClosedError,
    ConnectionError,  # noqa: A004
    TimedOutError,
    UnknownOutcomeError,
)
from tests.producer.producercase import ProducerCase


class CloseTests(ProducerCase):
    """The end."""

    def test_timeout(self) -> None:
        """Closing is bounded: what is still under way has failed, or is unknown."""
        producer = self.producer({"confirm": "true", "batch.size": 2, "queue.size": 4, "close.timeout.ms": 1000})
        self.a.isAnswering = False
        sendings = [producer.send("t", b"%d" % index) for index in range(6)]
        self.turn()
        closing = producer.close()
        self.cluster.pass_(1.5)
        self.assertIn("too long", str(self.failureResultOf(closing, TimedOutError).value))
        for sending in sendings[:4]:
            self.failureResultOf(sending, UnknownOutcomeError)
        for sending in sendings[4:]:
            self.failureResultOf(sending, TimedOutError)
        self.books()
        self.assertEqual((producer.counters.unknownCount, producer.counters.failedCount), (4, 2))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_timeoutUnconnected(self) -> None:
        """What had no connection has failed."""
        producer = self.producer({"connect.timeout.ms": 60_000})
        sending = producer.send("t", b"x")
        closing = producer.close(100)
        self.clock.advance(0.2)
        self.failureResultOf(closing, TimedOutError)
        self.assertFalse(self.failureResultOf(sending, ClosedError).check(UnknownOutcomeError))
        self.books()

    def test_badEnd(self) -> None:
        """Without confirmation a connection that does not end well is a failure of close: what was written last may be lost."""
        producer = self.producer({"batch.size": 1})
        producer.send("t", b"x")
        self.turn()
        closing = producer.close()
        next(iter(self.a.lines)).cut()
        self.failureResultOf(closing, ConnectionError)

    def test_badEndConfirmed(self) -> None:
        """With it, nothing can be lost any more."""
        producer = self.producer({"batch.size": 1, "confirm": "true"})
        producer.send("t", b"x")
        self.turn()
        closing = producer.close()
        next(iter(self.a.lines)).cut()
        self.successResultOf(closing)

    def test_beforeStop(self) -> None:
        """A reactor can be asked to close it before it stops, and to wait for that; a producer that is closed earlier needs it no more."""
        triggers: list[Any] = []
        reactor: Any = self.clock

        def addTrigger(phase: str, event: str, call: Any) -> Any:
            triggers.append((phase, event, call))
            return call

        reactor.addSystemEventTrigger = addTrigger
        reactor.removeSystemEventTrigger = lambda call: triggers.clear()
        producer = self.producer()
        producer.closeBeforeStop()
        producer.closeBeforeStop()
        ((phase, event, call),) = triggers
        self.assertEqual((phase, event), ("before", "shutdown"))
        producer.send("t", b"x")
        closing = call()
        self.turn()
        self.successResultOf(closing)
        self.assertEqual(self.a.payloads(), [b"x"])
        other = self.producer()
        triggers.clear()
        other.closeBeforeStop()
        self.close(other)
        self.assertEqual(triggers, [])
