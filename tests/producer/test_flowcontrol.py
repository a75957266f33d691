"""
Tests for L{pylogbroker.producer.flowcontrol}.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IConsumer
from zope.interface.verify import verifyObject

from pylogbroker.errors import (
    ConfigurationError,
)
from tests.producer.producercase import ProducerCase


class Source:
    """A Twisted push or pull producer."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.onResume: Callable[[], None] = lambda: None

    def pauseProducing(self) -> None:
        self.events.append("pause")

    def resumeProducing(self) -> None:
        self.events.append("resume")
        self.onResume()

    def stopProducing(self) -> None:
        self.events.append("stop")


class ConsumerTests(ProducerCase):
    """As a Twisted consumer."""

    def test_pushes(self) -> None:
        """Any push producer can be connected: it is paused when the queue is three quarters full, and resumed at a quarter."""
        producer = self.producer({"topic": "bytes", "queue.size": 8, "batch.size": 100})
        verifyObject(IConsumer, producer)
        source = Source()
        producer.registerProducer(source, True)
        self.assertRaises(RuntimeError, producer.registerProducer, source, True)
        for index in range(5):
            producer.write(b"%d" % index)
        self.assertEqual(source.events, [])
        producer.write(b"5")
        producer.write(b"6")
        self.assertEqual(source.events, ["pause"])
        producer.flush()
        self.turn()
        self.assertEqual(source.events, ["pause", "resume"])
        self.assertEqual(self.a.payloads("bytes"), [b"%d" % index for index in range(7)])
        self.close(producer)
        self.assertEqual(source.events[-1], "stop")
        producer.registerProducer(source, True)
        producer.write(b"late")
        self.assertEqual(source.events[-2:], ["stop", "stop"])

    def test_pulls(self) -> None:
        """A pull producer is asked for more, one write at a time, while there is room."""
        producer = self.producer({"topic": "bytes", "queue.size": 4, "batch.size": 100})
        source = Source()
        numbers = iter(range(100))
        source.onResume = lambda: producer.write(b"%d" % next(numbers))
        producer.registerProducer(source, False)
        self.turn()
        self.assertEqual(len(source.events), 4)
        producer.flush()
        self.turn()
        self.assertEqual(len(source.events), 8)
        producer.unregisterProducer()
        self.close(producer)

    def test_unregistered(self) -> None:
        """Without a source one can write all the same."""
        producer = self.producer({"topic": "bytes"})
        producer.registerProducer(Source(), True)
        producer.unregisterProducer()
        producer.write(b"x")
        self.close(producer)
        self.assertEqual(self.a.payloads(), [b"x"])

    def test_noTopic(self) -> None:
        """Without a topic there is nowhere to write to."""
        producer = self.producer()
        self.assertRaises(ConfigurationError, producer.registerProducer, Source(), True)
        self.assertRaises(ConfigurationError, producer.write, b"x")
        self.close(producer)
