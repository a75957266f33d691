"""Tests for L{pylogbroker.syncclient.loghandler}, against a real broker."""

from __future__ import annotations

import io
import logging
import sys
from typing import Any

from twisted.internet.threads import deferToThread

from pylogbroker import syncclient
from pylogbroker.errors import ConfigurationError
from pylogbroker.syncclient.loghandler import BlockingLogHandler
from tests.integration.threaded import BrokerCase, inThread


class Recursive(str):
    """A part of a message that logs when it is formatted."""

    logger: logging.Logger

    def __str__(self) -> str:
        self.logger.warning("about itself")
        return "formatted"


class LogAppenderTests(BrokerCase):
    """Records become messages."""

    def setUp(self) -> None:
        self.logger = logging.Logger("application")
        self.now = 0.0

    def appender(self, topic: str = "app-log", **options: Any) -> BlockingLogHandler:
        """One that is fed by the test's logger."""
        producer = syncclient.SyncProducer(
            self.broker.host, self.broker.port, connectTimeoutMs=50, **options
        )
        self.addCleanup(deferToThread, producer.close)
        appender = BlockingLogHandler(producer, topic, clock=lambda: self.now)
        self.logger.addHandler(appender)
        return appender

    def payloads(self) -> list[bytes]:
        """What has arrived."""
        self.client().processed()
        return self.client().payloads("app-log")

    def complaints(self) -> io.StringIO:
        """Where C{logging} reports what cannot be logged."""
        stream = io.StringIO()
        self.patch(sys, "stderr", stream)
        return stream

    @inThread
    def test_records(self) -> None:
        """
        KafkaLog4jAppenderTest: five records arrive, as their messages, in order; with a formatter,
        as it makes them.
        """
        self.serve()
        appender = self.appender()
        for number in range(5):
            self.logger.info("test %d ü", number)
        appender.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        self.logger.warning("formatted")
        appender._producer.confirm("app-log", 0)
        self.assertEqual(
            self.payloads(),
            [*(f"test {number} ü".encode() for number in range(5)), b"WARNING formatted"],
        )
        self.assertEqual(appender.leftOutCount, 0)

    def test_noTopic(self) -> None:
        """
        KafkaLog4jAppenderTest: without a topic it cannot be made; without a broker there is no
        producer to give it.
        """
        self.assertRaises(
            ConfigurationError, BlockingLogHandler, syncclient.SyncProducer("127.0.0.1", 1), ""
        )

    @inThread
    def test_brokerAway(self) -> None:
        """
        When the broker is away one record is reported, those of the next ten seconds are left out
        without waiting; nothing is raised. Then it goes on.
        """
        self.serve()
        appender = self.appender()
        self.logger.info("before")
        directory, port = self.broker.directory, self.broker.port
        appender._producer.confirm("app-log", 0)
        self.inReactor(self.broker.stop)
        stream = self.complaints()
        # What is sent first may still go into the lost connection.
        while not appender.leftOutCount:
            self.logger.info("into the void")
        leftOut = appender.leftOutCount
        self.assertIn("into the void", stream.getvalue())
        self.now += 9
        for _ in range(3):
            self.logger.info("left out")
        self.assertEqual(appender.leftOutCount, leftOut + 3)
        self.assertNotIn("left out", stream.getvalue())
        self.serve({"port": str(port)}, directory)
        self.now += 1
        self.logger.info("after")
        appender._producer.close()
        self.assertEqual(self.payloads()[-1], b"after")

    @inThread
    def test_badRecord(self) -> None:
        """
        A record whose arguments do not fit its text is reported, not raised, and the next one is
        sent.
        """
        self.serve()
        appender = self.appender()
        stream = self.complaints()
        self.logger.info("%d", "no number")
        self.assertIn("no number", stream.getvalue())
        self.logger.info("fine")
        appender._producer.confirm("app-log", 0)
        self.assertEqual((self.payloads(), appender.leftOutCount), ([b"fine"], 1))

    @inThread
    def test_noRecursion(self) -> None:
        """What is logged while a record is being sent is not sent."""
        self.serve()
        appender = self.appender()
        part = Recursive()
        part.logger = self.logger
        self.logger.info("%s", part)
        appender._producer.confirm("app-log", 0)
        self.assertEqual(self.payloads(), [b"formatted"])

    @inThread
    def test_tooLarge(self) -> None:
        """A record over the producer's limit is reported and left out; the next one is sent."""
        self.serve()
        appender = self.appender(payloadSizeMax=10)
        stream = self.complaints()
        self.logger.info("more than ten bytes")
        self.assertIn("MessageTooLargeError", stream.getvalue())
        self.logger.info("less")
        appender._producer.confirm("app-log", 0)
        self.assertEqual((self.payloads(), appender.leftOutCount), ([b"less"], 1))
