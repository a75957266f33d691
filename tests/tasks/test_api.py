"""Tests for L{pylogbroker.tasks.api}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.tasks.api import (
    KAFKA,
    IncomingMessageEnvelope,
    OutgoingMessageEnvelope,
    StreamTask,
    SystemStream,
    SystemStreamPartition,
)

ENVELOPE = IncomingMessageEnvelope("t", 3, 5, 7, "k", "m", (("h", b"v"),))


class EnvelopeTests(SynchronousTestCase):
    """What goes in and out."""

    def test_gettersOfThePaper(self) -> None:
        """Java's getters give what the names do."""
        self.assertEqual(
            (ENVELOPE.getOffset(), ENVELOPE.getKey(), ENVELOPE.getMessage()), (5, "k", "m")
        )
        place = ENVELOPE.getSystemStreamPartition()
        self.assertEqual(place, SystemStreamPartition(KAFKA, "t", 3))
        self.assertEqual((place.getStream(), place.getPartition()), ("t", 3))
        stream = place.getSystemStream()
        self.assertEqual(stream, SystemStream("kafka", "t"))
        self.assertEqual((stream.getSystem(), stream.getStream()), ("kafka", "t"))

    def test_outgoing(self) -> None:
        """A topic is named, or is a stream; the rest has defaults."""
        for given in ("t", SystemStream(KAFKA, "t")):
            made = OutgoingMessageEnvelope(given, "k", "m")
            self.assertEqual(
                (made.topic, made.key, made.message, made.partition, made.timestamp, made.headers),
                ("t", "k", "m", None, None, ()),
            )
            self.assertEqual(repr(made), "<OutgoingMessageEnvelope to t, key 'k'>")


class StreamTaskTests(SynchronousTestCase):
    """The base of tasks."""

    def test_processMustBeThere(self) -> None:
        """All but C{process} may be left out."""
        task = StreamTask()
        nothing: object = None
        self.assertIs(task.init({}, nothing), None)  # type: ignore[arg-type]
        self.assertIs(task.window(nothing, nothing), None)  # type: ignore[arg-type]
        self.assertIs(task.close(), None)

        class Idle(StreamTask):
            """Has no process()."""

        with self.assertRaises(NotImplementedError) as caught:
            Idle().process(ENVELOPE, nothing, nothing)  # type: ignore[arg-type]
        self.assertEqual(str(caught.exception), "Idle has no process()")
