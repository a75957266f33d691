"""
Tests for L{pylogbroker.producer.loghandler}: a whole producer on a puppet network, the loggers of
Twisted and of the standard library.
"""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from typing import Any

from twisted.internet import reactor
from twisted.internet.threads import deferToThread
from twisted.logger import (
    ILogObserver,
    Logger,
    LogPublisher,
    STDLibLogObserver,
    eventAsJSON,
    globalLogPublisher,
)
from twisted.trial.unittest import TestCase
from zope.interface.verify import verifyObject

from pylogbroker.consumer.kafka.consumer import KafkaConsumer
from pylogbroker.errors import ConfigurationError, TimedOutError
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.producer.loghandler import KafkaLogHandler, LogRecordPublisher
from pylogbroker.producer.producer import Producer
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import TopicPartition
from tests.integration.rawclient import RawClient
from tests.producer.producercase import ProducerCase


class PublisherCase(ProducerCase):
    """A publisher over a producer over a puppet."""

    def publisher(
        self, properties: dict[str, Any] | None = None, **options: Any
    ) -> LogRecordPublisher:
        clock: Any = self.clock
        clock.callFromThread = lambda call, *args: self.clock.callLater(0, call, *args)
        producer = self.producer({"queue.time": 50, **(properties or {})})
        self.made_ = LogRecordPublisher(clock, producer, "app-log", **options)
        return self.made_

    def logger(
        self, publisher: LogRecordPublisher, namespace: str = "application", **options: Any
    ) -> Logger:
        return Logger(namespace, observer=LogPublisher(publisher.observer(**options)))

    def standard(self, publisher: LogRecordPublisher, name: str = "application") -> logging.Logger:
        logger = logging.Logger(name)
        logger.addHandler(KafkaLogHandler(publisher))
        return logger

    def arrived(self) -> list[bytes]:
        """What the broker has, after a while."""
        self.cluster.pass_(0.2)
        return self.a.payloads("app-log")


class ObserverTests(PublisherCase):
    """Events of L{twisted.logger} become messages."""

    def test_events(self) -> None:
        """Events arrive in their order, as lines of text; it is an C{ILogObserver}."""
        publisher = self.publisher()
        self.assertTrue(verifyObject(ILogObserver, publisher.observer()))
        log = self.logger(publisher)
        for number in range(5):
            log.info("test {number} ü", number=number)
        self.assertEqual(publisher.sentCount, 0)
        payloads = self.arrived()
        self.assertEqual(
            [payload.decode().partition("[application#info] ")[2] for payload in payloads],
            [f"test {number} ü" for number in range(5)],
        )
        self.assertEqual((publisher.sentCount, publisher.leftOutCount), (5, 0))

    def test_json(self) -> None:
        """With C{eventAsJSON}, all fields."""
        self.logger(self.publisher(), textOf=eventAsJSON).warn("{count} sheep", count=7)
        [payload] = self.arrived()
        self.assertEqual(json.loads(payload)["count"], 7)

    def test_textIsMadeAtOnce(self) -> None:
        """What changes behind the event does not change the record."""
        things = ["a"]
        log = self.logger(self.publisher())
        log.info("{things}", things=things)
        things.append("b")
        self.assertTrue(self.arrived()[0].endswith(b"['a']"))

    def test_leftOut(self) -> None:
        """What makes no text is left out: counted when it fails, not when it was chosen to be."""
        publisher = self.publisher()
        self.logger(publisher, textOf=lambda event: None).info("nothing")
        self.logger(publisher, textOf=lambda event: 1 // 0).info("fails")
        self.logger(publisher, textOf=lambda event: b"bytes").info("as they are")
        self.assertEqual(self.arrived(), [b"bytes"])
        self.assertEqual(publisher.leftOutCount, 1)

    def test_needsATopic(self) -> None:
        """No topic is refused."""
        self.assertRaises(ConfigurationError, LogRecordPublisher, self.clock, self.producer(), "")


class LoggingTests(PublisherCase):
    """Records of L{logging} become messages (KafkaLog4jAppenderTest)."""

    def test_records(self) -> None:
        """Five records arrive, in order, as the formatter makes them."""
        publisher = self.publisher()
        logger = self.standard(publisher)
        logger.handlers[0].setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        for number in range(5):
            logger.info("test %d", number)
        self.assertEqual(self.arrived(), [b"INFO test %d" % number for number in range(5)])

    def test_badRecord(self) -> None:
        """One whose arguments do not fit is left out and counted, and nothing is raised."""
        publisher = self.publisher()
        self.standard(publisher).info("%d %d", "x")
        self.standard(publisher).info("good \udcff")
        self.assertEqual(self.arrived(), [b"good \\udcff"])
        self.assertEqual(publisher.leftOutCount, 1)

    def test_level(self) -> None:
        """What is below the level is not for it."""
        publisher = self.publisher()
        logger = logging.Logger("application")
        logger.addHandler(KafkaLogHandler(publisher, logging.ERROR))
        logger.warning("no")
        logger.error("yes")
        self.assertEqual(self.arrived(), [b"yes"])

    def test_fromTwisted(self) -> None:
        """
        An event that Twisted's observer hands on to C{logging} is known by its own name, so that
        ours are left out there, too.
        """
        publisher = self.publisher()
        out: Any = STDLibLogObserver(name="twisted")
        out.logger = self.standard(publisher, "twisted")
        for namespace in ("application", "pylogbroker.client.brokerclient"):
            Logger(namespace, observer=out).error("from {log_namespace}")
        self.assertEqual(self.arrived(), [b"from application"])


class QuietTests(PublisherCase):
    """Logging about logging has an end."""

    def test_ours(self) -> None:
        """
        Records of our own loggers are left alone, those of others that are named alike are not.
        """
        publisher = self.publisher()
        for name in ("pylogbroker", "pylogbroker.producer.completion", "kazoo.client"):
            self.logger(publisher, name).error("one of ours")
            self.standard(publisher, name).error("one of ours")
        self.standard(publisher, "pylogbrokers").error("not ours")
        self.logger(publisher, "").error("nobody's")
        self.assertEqual(len(self.arrived()), 2)
        self.assertEqual(publisher.leftOutCount, 0)

    def test_brokerAway(self) -> None:
        """
        With all of the process's log published and the broker away, a record is tried, fails, and
        makes no other.
        """
        publisher = self.publisher(countMax=5)
        self.a.isUp = False
        observer: Any = publisher.observer()
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        for number in range(8):
            Logger("application").error("record {number}", number=number)
        self.cluster.pass_(8)
        self.assertEqual((publisher.sentCount, publisher.leftOutCount), (0, 8))
        self.assertEqual(self.made.counters.acceptedCount, 5)
        self.cluster.pass_(8)
        self.assertEqual(self.made.counters.acceptedCount, 5)

    def test_whileSending(self) -> None:
        """
        What a sender logs under any name while it is given records is left alone; what it logs on
        another thread at that time is not.
        """
        publisher = self.publisher()
        logger = self.standard(publisher)
        clock: Any = self.clock

        def send(datas: Any) -> Any:
            logger.info("sending %d", len(datas))
            other = threading.Thread(target=logger.info, args=("meanwhile",))
            if len(sent) < 1:
                other.start()
                other.join()
            sent.append(datas)
            return original(datas)

        sent: list[Any] = []
        original = self.made.sendMany
        self.patch(self.made, "sendMany", send)
        clock.callFromThread(logger.info, "first")
        self.assertEqual(self.arrived(), [b"first", b"meanwhile"])


class LimitTests(PublisherCase):
    """What is under way is bounded."""

    def test_count(self) -> None:
        """
        Beyond C{countMax} records are left out, and counted; when there is room again, they go.
        """
        publisher = self.publisher(countMax=3)
        logger = self.standard(publisher)
        for number in range(5):
            logger.info("%d", number)
        self.assertEqual(publisher.leftOutCount, 2)
        self.arrived()
        logger.info("later")
        self.assertEqual(self.arrived(), [b"0", b"1", b"2", b"later"])

    def test_size(self) -> None:
        """The same in bytes; a smaller record may still fit."""
        publisher = self.publisher(sizeMax=10)
        logger = self.standard(publisher)
        for text in ("12345678", "123", "12"):
            logger.info(text)
        self.assertEqual(self.arrived(), [b"12345678", b"12"])
        self.assertEqual(publisher.leftOutCount, 1)

    def test_many(self) -> None:
        """More than a batch keeps its order."""
        publisher = self.publisher()
        logger = self.standard(publisher)
        for number in range(1000):
            logger.info("%d", number)
        self.assertEqual(self.arrived(), [b"%d" % number for number in range(1000)])

    def test_senderRaises(self) -> None:
        """If a sender raises, its records are lost; only the count shows it."""
        publisher = self.publisher()
        self.patch(self.made, "sendMany", lambda datas: 1 // 0)
        self.standard(publisher).info("lost")
        self.arrived()
        self.assertEqual(publisher.leftOutCount, 1)
        self.assertIn("0 records not sent yet", repr(publisher))


class CloseTests(PublisherCase):
    """The end."""

    def test_close(self) -> None:
        """What was taken is sent at once, without waiting for more; nothing is taken after that."""
        publisher = self.publisher({"queue.time": 60_000})
        logger = self.standard(publisher)
        logger.info("last")
        closing = publisher.close()
        self.turn()
        self.cluster.pass_(0.1)
        self.successResultOf(closing)
        self.assertEqual(self.a.payloads(), [b"last"])
        logger.info("too late")
        self.assertEqual(publisher.leftOutCount, 1)
        self.successResultOf(publisher.close())

    def test_closeTakesTooLong(self) -> None:
        """A broker that is away does not hold up the end."""
        publisher = self.publisher({"connect.timeout.ms": 60_000})
        self.a.isUp = False
        self.standard(publisher).info("waits")
        closing = publisher.close(500)
        self.cluster.pass_(0.6)
        self.failureResultOf(closing, TimedOutError)
        self.a.isUp = True
        self.cluster.pass_(3)
        self.assertEqual(self.a.payloads(), [b"waits"])


class RealTests(TestCase):
    """With a real broker, and threads that log."""

    timeout = 60

    async def test_todaysTopic(self) -> None:
        """Records become those of a topic of today's Kafka; what is not stored is counted."""
        broker = LocalBroker(reactor, {"num.partitions": "2"})
        self.addCleanup(broker.stop)
        await broker.start()
        servers = {"bootstrap.servers": broker.bootstrapServers}
        producer = KafkaProducer(reactor, servers)
        self.addCleanup(producer.close)
        publisher = LogRecordPublisher(reactor, producer, "app-log")
        log = Logger("application", observer=LogPublisher(publisher.observer()))
        for number in range(300):
            log.info("{number}", number=number)
        await publisher.close()
        self.assertEqual((publisher.sentCount, publisher.leftOutCount), (300, 0))
        consumer = KafkaConsumer(reactor, {**servers, "auto.offset.reset": "earliest"})
        self.addCleanup(consumer.close)
        consumer.assign([TopicPartition("app-log", number) for number in range(2)])
        found: dict[int, list[int]] = {0: [], 1: []}
        for _ in range(300):
            record = await consumer.__anext__()
            found[record.partition].append(int((record.value or b"").split()[-1]))
        self.assertEqual(sorted(found[0] + found[1]), list(range(300)))
        self.assertEqual([sorted(each) for each in found.values()], list(found.values()))
        refused = LogRecordPublisher(reactor, producer, "app-log")
        broker.injectError("Produce", "TOPIC_AUTHORIZATION_FAILED")
        Logger("application", observer=LogPublisher(refused.observer())).info("no")
        await refused.close()
        self.assertEqual((refused.sentCount, refused.leftOutCount), (0, 1))

    async def test_threads(self) -> None:
        """
        Three threads log at the same time: each record arrives once, those of a thread in their
        order, and standard error stays empty.
        """
        errors = io.StringIO()
        self.patch(sys, "stderr", errors)
        broker = LocalBroker(reactor)
        self.addCleanup(broker.stop)
        await broker.start()
        producer = Producer(
            reactor,
            {
                "broker.list": f"0:{broker.host}:{broker.port}",
                "producer.type": "async",
                "queue.time": "20",
                "confirm": "true",
            },
        )
        publisher = LogRecordPublisher(reactor, producer, "app-log")
        logger = logging.Logger("application")
        logger.addHandler(KafkaLogHandler(publisher))

        def work(name: int) -> None:
            for number in range(300):
                logger.info("%d %d", name, number)

        working = [deferToThread(work, name) for name in range(3)]
        for each in working:
            await each
        await publisher.close()
        await producer.close()
        self.assertEqual((publisher.sentCount, publisher.leftOutCount), (900, 0))
        client = RawClient(broker.port)
        self.addCleanup(client.close)
        payloads = await deferToThread(client.payloads, "app-log")
        pairs = [tuple(map(int, payload.split())) for payload in payloads]
        for name in range(3):
            self.assertEqual([number for each, number in pairs if each == name], list(range(300)))
        self.assertEqual(errors.getvalue(), "")
