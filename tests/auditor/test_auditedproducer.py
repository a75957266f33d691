"""
Tests for L{pylogbroker.auditor.auditedproducer}, on a puppet network.
"""

from __future__ import annotations

from random import Random
from typing import Any
from zlib import crc32

from twisted.internet.defer import CancelledError, TimeoutError  # noqa: A004
from twisted.internet.interfaces import IConsumer
from twisted.logger import capturedLogs, formatEvent
from zope.interface.verify import verifyClass

from pylogbroker.audit.comparison import AuditAggregator
from pylogbroker.audit.counts import FUTURE_MS_MAX, SEEN, CountReport, decodeReport
from pylogbroker.audit.envelope import decodeEnvelope
from pylogbroker.auditor.auditedproducer import AuditedProducer, CountPublisher
from pylogbroker.errors import (
    ClosedError,
    ConfigurationError,
    EncodingError,
    MessageTooLargeError,
    PylogbrokerError,
    TimedOutError,
    UnknownOutcomeError,
)
from pylogbroker.producer.producer import ProducerData
from tests.producer.producercase import ProducerCase
from tests.producer.puppets import PuppetConnections

TOPIC = "pylogbroker-audit"


class Source:
    """A Twisted push producer that notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pauseProducing(self) -> None:
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        self.calls.append("resume")

    def stopProducing(self) -> None:
        self.calls.append("stop")


class AuditingCase(ProducerCase):
    """An audited producer over a puppet, at second 1000."""

    def setUp(self) -> None:
        super().setUp()
        self.clock.advance(1000)

    def audited(self, properties: dict[str, Any] | None = None, **options: Any) -> AuditedProducer:
        given = {"broker.list": "0:a:1", "producer.type": "async", "queue.time": "10"}
        given |= {"audit.window.ms": "2000", "audit.interval.ms": "500", "audit.host": "web1"}
        connections = PuppetConnections(self.cluster.network, self.random.random)
        chosen = {"random": self.random.random, **options}
        return AuditedProducer(
            self.clock,
            {**given, **(properties or {})},
            connectionPool=connections,
            auditRandom=Random(1),
            **chosen,
        )

    def reports(self) -> list[CountReport]:
        return [decodeReport(payload) for payload in self.a.payloads(TOPIC)]

    def counted(self) -> dict[tuple[str, int], tuple[int, int]]:
        """What an auditor makes of the reports."""
        ledger = AuditAggregator(2000)
        for report in self.reports():
            ledger.enter(report)
        return {
            (line.topic, line.startMs): (line.expectedCount, line.unknownCount)
            for line in ledger.compare(["live"], 10**12, 0).lines
        }


class ProducerTests(AuditingCase):
    """Messages in envelopes, and counts beside them."""

    def test_envelopes(self) -> None:
        """
        A payload goes with time and host; the counts come after the interval, one report a topic
        and window.
        """
        producer = self.audited()
        sendings = [
            producer.send("clicks", b"one"),
            producer.send("clicks", [b"two", b"three"]),
            producer.send("views", b"four"),
        ]
        self.cluster.pass_(0.2)
        for sending in sendings:
            self.successResultOf(sending)
        envelopes = [decodeEnvelope(payload) for payload in self.a.payloads("clicks")]
        self.assertEqual(
            [tuple(envelope) for envelope in envelopes],
            [(1_000_000, "web1", payload) for payload in (b"one", b"two", b"three")],
        )
        self.assertEqual(self.reports(), [])
        self.cluster.pass_(0.6)
        self.assertEqual(
            self.counted(), {("clicks", 1_000_000): (3, 0), ("views", 1_000_000): (1, 0)}
        )
        [report, _] = self.reports()
        self.assertEqual(
            (report.role, report.tier, report.host, report.windowMs, report.source[:13]),
            ("sent", "live", "web1", 2000, "web1-1000000-"),
        )
        self.assertEqual(producer.counts.leftOutCount, 0)

    def test_cancelled(self) -> None:
        """
        A message whose sender waits no longer, by cancelling or by a timeout, is sent all the same,
        and counts when its fate is known.
        """
        producer = self.audited({"queue.time": "1000"})
        single, several = (
            producer.send("clicks", b"one"),
            producer.send("clicks", [b"two", b"three"]),
        )
        late = producer.send("views", b"four").addTimeout(0.1, self.clock)
        single.cancel()
        several.cancel()
        self.failureResultOf(single, CancelledError)
        self.failureResultOf(several, CancelledError)
        self.cluster.pass_(0.2)
        self.failureResultOf(late, TimeoutError)
        self.assertEqual(self.a.payloads("clicks"), [])
        self.cluster.pass_(3)
        self.assertEqual((len(self.a.payloads("clicks")), len(self.a.payloads("views"))), (3, 1))
        self.assertEqual(
            self.counted(), {("clicks", 1_000_000): (3, 0), ("views", 1_000_000): (1, 0)}
        )
        sums = sum(report.checksum or 0 for report in self.reports() if report.topic == "clicks")
        self.assertEqual(sums, sum(crc32(payload) for payload in self.a.payloads("clicks")))

    def test_checksums(self) -> None:
        """A report has the sum of the checksums of what is in the log, envelopes and all."""
        for isAsync in (True, False):
            producer = self.audited({"producer.type": "async" if isAsync else "sync"})
            sendings = [
                producer.send("clicks", b"one"),
                producer.send("clicks", [b"two", b"three"]),
            ]
            self.cluster.pass_(1)
            for sending in sendings:
                self.successResultOf(sending)
        sums = sum(report.checksum or 0 for report in self.reports())
        self.assertEqual(len(self.a.payloads("clicks")), 6)
        self.assertEqual(sums, sum(crc32(payload) for payload in self.a.payloads("clicks")))

    def test_windows(self) -> None:
        """
        A report says all of its window so far; nothing is said twice that has not changed; when all
        is over, no timer is left.
        """
        producer = self.audited()
        for _ in range(3):
            producer.send("clicks", b"x")
            self.cluster.pass_(1.1)
        self.assertEqual(
            [(report.startMs, report.messageCount) for report in self.reports()],
            [(1_000_000, 1), (1_000_000, 2), (1_002_000, 1)],
        )
        self.cluster.pass_(10)
        self.assertEqual(
            self.counted(), {("clicks", 1_000_000): (2, 0), ("clicks", 1_002_000): (1, 0)}
        )
        closing = producer.close()
        self.cluster.pass_(0.2)
        self.successResultOf(closing)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_close(self) -> None:
        """What was sent and not reported is reported before the end."""
        producer = self.audited({"queue.time": "60000"})
        for number in range(5):
            producer.send("clicks", b"%d" % number)
        closing = producer.close()
        self.cluster.pass_(0.5)
        self.successResultOf(closing)
        self.assertEqual(self.counted(), {("clicks", 1_000_000): (5, 0)})
        self.assertEqual(len(self.a.payloads("clicks")), 5)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_sync(self) -> None:
        """In sync mode a call is one request, and one outcome."""
        producer = self.audited({"producer.type": "sync"})
        sending = producer.send("clicks", [b"one", b"two"], key=None)
        self.cluster.pass_(0.1)
        self.successResultOf(sending)
        self.assertEqual(self.a.kinds, ["Produce"])
        self.cluster.pass_(1)
        self.assertEqual(self.counted(), {("clicks", 1_000_000): (2, 0)})

    def test_failed(self) -> None:
        """
        What has failed is not counted; what is unknown is counted apart, and who asked is told so.
        """
        producer = self.audited({"confirm": "true", "socket.timeout.ms": "1000"})
        self.successResultOf(producer.send("clicks", []))
        self.failureResultOf(producer.send("clicks", "no bytes"), EncodingError)
        self.a.isAnswering = False
        sending = producer.send("clicks", [b"one", b"two"])
        self.cluster.pass_(3)
        self.failureResultOf(sending, UnknownOutcomeError)
        self.a.isAnswering = True
        self.cluster.pass_(5)
        self.assertEqual(self.counted(), {("clicks", 1_000_000): (0, 2)})

    def test_partlyFailed(self) -> None:
        """Of a call in async mode each message counts for itself."""
        producer = self.audited({"max.message.size": "1000"})
        sending = producer.send("clicks", [b"small", b"x" * 2000])
        self.cluster.pass_(1)
        self.failureResultOf(sending, PylogbrokerError)
        self.assertEqual(self.counted(), {("clicks", 1_000_000): (1, 0)})

    def test_reportsAreTriedAgain(self) -> None:
        """
        A report that does not get through is published again; the count that arrives is whole.
        """
        producer = self.audited()
        producer.send("clicks", b"one")
        self.cluster.pass_(0.2)
        self.a.isUp = False
        self.a.cut()
        self.cluster.pass_(20)
        self.assertEqual(self.reports(), [])
        self.a.isUp = True
        self.cluster.pass_(5)
        self.assertEqual(self.counted(), {("clicks", 1_000_000): (1, 0)})

    def test_sendMany(self) -> None:
        """
        Messages of several topics in a call are counted one by one; those of a topic and key go
        together, in sync mode all that concerns a broker.
        """
        datas = [
            ProducerData("clicks", [b"one", b"two"], "key"),
            ProducerData("views", (b"three",)),
            ProducerData("none", []),
        ]
        for mode, kinds in (("async", ["MultiProduce"]), ("sync", ["MultiProduce"])):
            self.setUp()
            producer = self.audited({"producer.type": mode})
            sending = producer.sendMany(iter(datas))
            self.cluster.pass_(0.2)
            self.successResultOf(sending)
            self.assertEqual(self.a.kinds, kinds)
            self.assertEqual(
                [decodeEnvelope(payload).payload for payload in self.a.payloads("clicks")],
                [b"one", b"two"],
            )
            self.cluster.pass_(1)
            self.assertEqual(
                self.counted(), {("clicks", 1_000_000): (2, 0), ("views", 1_000_000): (1, 0)}
            )
            self.successResultOf(producer.sendMany([]))

    def test_sendManyFromAnIterator(self) -> None:
        """Values may come from an iterator, whether they are sent or refused."""
        producer = self.audited()
        sending = producer.sendMany([ProducerData("clicks", iter([b"one", b"two"]))])  # type: ignore[arg-type] # as Producer.sendMany takes it, too
        self.failureResultOf(
            producer.sendMany([ProducerData("clicks", iter(["no bytes"]))]),  # type: ignore[arg-type]
            EncodingError,
        )
        self.cluster.pass_(1)
        self.successResultOf(sending)
        self.assertEqual(self.counted(), {("clicks", 1_000_000): (2, 0)})
        self.assertEqual(producer.counters.failedCount, 1)

    def test_sendManyPartly(self) -> None:
        """
        Of a call of which a part fails, the rest counts; who called is told the worst. If a value
        cannot be encoded nothing of the call is sent.
        """
        producer = self.audited({"max.message.size": "1000"})
        sending = producer.sendMany(
            [ProducerData("clicks", [b"small", b"x" * 2000]), ProducerData("views", [b"y"])]
        )
        self.failureResultOf(
            producer.sendMany(
                [ProducerData("clicks", [b"good"]), ProducerData("clicks", ["no bytes", b"good"])]
            ),
            EncodingError,
        )
        self.cluster.pass_(1)
        self.failureResultOf(sending, MessageTooLargeError)
        self.assertEqual(
            self.counted(), {("clicks", 1_000_000): (1, 0), ("views", 1_000_000): (1, 0)}
        )
        counters = producer.counters
        self.assertEqual(
            (counters.acceptedCount - counters.writtenCount, counters.failedCount), (4, 4)
        )

    def test_sendManyOverBrokers(self) -> None:
        """
        In sync mode, of a call that concerns two brokers, one of which is lost, what the other got
        is counted, and the rest is unknown.
        """
        draws = iter([0.0, 0.9])
        given = {
            "producer.type": "sync",
            "broker.list": "0:a:1,1:b:1",
            "confirm": "true",
            "socket.timeout.ms": "1000",
        }
        producer = self.audited(given, random=lambda: next(draws, 0.0))
        self.b.isAnswering = False
        sending = producer.sendMany(
            [ProducerData("clicks", [b"to a"]), ProducerData("views", [b"to b", b"to b"])]
        )
        self.cluster.pass_(5)
        self.failureResultOf(sending, UnknownOutcomeError)
        self.assertEqual(
            self.counted(), {("clicks", 1_000_000): (1, 0), ("views", 1_000_000): (0, 2)}
        )

    def test_sendNoWait(self) -> None:
        """
        sendNoWait counts messages, too; a message that cannot be sent is counted as failed and
        logged.
        """
        producer = self.audited()
        producer.sendNoWait("clicks", b"one")
        producer.sendNoWait("clicks", [b"two", b"three"])
        with capturedLogs() as events:
            producer.sendNoWait("clicks", "no bytes")
            producer.sendNoWait(TOPIC, b"x")
        self.assertEqual(
            len([event for event in events if "1 messages were not sent" in formatEvent(event)]), 2
        )
        self.cluster.pass_(1)
        self.assertEqual(self.counted(), {("clicks", 1_000_000): (3, 0)})
        self.assertEqual(producer.counters.failedCount, 2)

    def test_consumer(self) -> None:
        """
        As a consumer of bytes in Twisted's sense it pauses who writes when the queue fills, resumes
        them, and counts what they write.
        """
        self.assertTrue(verifyClass(IConsumer, AuditedProducer))
        producer = self.audited({"topic": "clicks", "queue.size": "4", "batch.size": "100"})
        source = Source()
        producer.registerProducer(source, True)
        for _message in range(3):
            producer.write(b"x")
        self.assertEqual(source.calls, ["pause"])
        self.cluster.pass_(1)
        self.assertEqual(source.calls, ["pause", "resume"])
        producer.unregisterProducer()
        self.assertEqual(self.counted(), {("clicks", 1_000_000): (3, 0)})
        self.assertRaises(ConfigurationError, self.audited().write, b"x")
        self.assertRaises(ConfigurationError, self.audited, {"topic": TOPIC})

    def test_closed(self) -> None:
        """
        A closed one takes nothing more, and can be closed again; who closes while it closes waits
        for the same end.
        """
        producer = self.audited({"queue.time": "60000"})
        sending = producer.send("clicks", b"one")
        closings = [producer.close(), producer.close(5)]
        self.failureResultOf(producer.send("clicks", b"late"), ClosedError)
        self.cluster.pass_(0.5)
        self.successResultOf(sending)
        for closing in (*closings, producer.close()):
            self.successResultOf(closing)
        self.assertEqual(self.counted(), {("clicks", 1_000_000): (1, 0)})

    def test_closeBeforeStop(self) -> None:
        """When the reactor stops, the last counts are published first."""
        producer = self.audited({"queue.time": "60000"})
        triggers: list[Any] = []
        clock: Any = self.clock
        clock.addSystemEventTrigger = lambda phase, event, call: triggers.append(call)
        producer.closeBeforeStop()
        producer.send("clicks", b"one")
        closing = triggers[0]()
        self.cluster.pass_(0.5)
        self.successResultOf(closing)
        self.assertEqual(self.counted(), {("clicks", 1_000_000): (1, 0)})

    def test_closeTakesTooLong(self) -> None:
        """A broker that is away does not hold up the end."""
        producer = self.audited()
        self.a.isUp = False
        producer.send("clicks", b"one").addErrback(lambda failure: None)
        closing = producer.close(1000)
        self.cluster.pass_(2)
        self.failureResultOf(closing, TimedOutError)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_closeWithUnknownOutcomes(self) -> None:
        """
        Messages whose outcome stays unknown until the end are in no report; the number of lost
        counts is logged once.
        """
        producer = self.audited({"confirm": "true"})
        self.a.isAnswering = False
        sendings = [producer.send(topic, b"one") for topic in ("clicks", "views")]
        self.cluster.pass_(0.2)
        with capturedLogs() as events:
            closing = producer.close(1000)
            self.cluster.pass_(2)
            self.failureResultOf(closing, TimedOutError)
            producer.counts.end()
        for sending in sendings:
            self.failureResultOf(sending, UnknownOutcomeError)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        lines = [line for line in map(formatEvent, events) if "could not be published" in str(line)]
        self.assertEqual(
            lines,
            [
                "2 counts could not be published: the audit will see more messages "
                "than were reported"
            ],
        )


class ApplicationTests(AuditingCase):
    """What an application can choose."""

    def test_timeOf(self) -> None:
        """
        The application's own time decides the window, without envelopes if it likes; where it knows
        none, the time of sending does.
        """
        producer = self.audited(
            {"audit.envelope": "false"},
            timeOf=lambda payload: int(payload) if payload != b"?" else None,
        )
        for payload in (b"5000", b"5999", b"6000", b"?"):
            producer.send("clicks", payload)
        self.cluster.pass_(1)
        self.assertEqual(self.a.payloads("clicks"), [b"5000", b"5999", b"6000", b"?"])
        self.assertEqual(
            self.counted(),
            {("clicks", 4000): (2, 0), ("clicks", 6000): (1, 0), ("clicks", 1_000_000): (1, 0)},
        )

    def test_foreignFailures(self) -> None:
        """An encoder or C{timeOf} that raises fails the call, and nothing else."""
        producer = self.audited(timeOf=lambda payload: 1 // 0, encoder=str.encode)
        self.assertIn(
            "ZeroDivisionError",
            str(self.failureResultOf(producer.send("clicks", "one"), PylogbrokerError).value),
        )

    def test_encoder(self) -> None:
        """C{serializer.class} makes the payload that goes into the envelope."""
        producer = self.audited({"serializer.class": "kafka.serializer.StringEncoder"})
        producer.send("clicks", "ü")
        self.cluster.pass_(0.2)
        self.assertEqual(decodeEnvelope(self.a.payloads("clicks")[0]).payload, "ü".encode())

    def test_settings(self) -> None:
        """
        What is wrong in either part is refused, and the topic of the counts is not the
        application's.
        """
        for wrong in ({"audit.window.ms": "0"}, {"queue.size": "0"}):
            self.assertRaises(ConfigurationError, self.audited, wrong)
        self.failureResultOf(self.audited().send(TOPIC, b"x"), ConfigurationError)

    def test_likeAProducer(self) -> None:
        """It can be started, asked for room, flushed, and shows its counters."""
        producer = self.audited({"audit.misspelt": "1"})
        self.assertIs(self.successResultOf(producer.start()), producer)
        self.successResultOf(producer.whenReady())
        producer.send("clicks", b"x")
        flushing = producer.flush()
        self.turn()
        self.successResultOf(flushing)
        self.assertEqual(producer.counters.writtenCount, 1)
        self.assertTrue(producer.settings.isAsync)
        self.assertEqual(producer.metricFamilies(), producer.producer.metricFamilies())
        self.assertIn("AuditedProducer", repr(producer))


class CountPublisherTests(AuditingCase):
    """The counting alone."""

    def test_seen(self) -> None:
        """A program at the other end reports what it has seen, as a tier."""
        inner = self.producer({"queue.time": 10})
        counts = CountPublisher(
            self.clock, inner, {"audit.tier": "warehouse", "audit.window.ms": "2000"}, role=SEEN
        )
        counts.count("clicks", 5000, 3)
        closing = counts.close()
        self.cluster.pass_(0.1)
        self.successResultOf(closing)
        [report] = self.reports()
        self.assertEqual(
            (report.role, report.tier, report.startMs, report.messageCount),
            ("seen", "warehouse", 4000, 3),
        )
        self.successResultOf(counts.close())

    def test_limit(self) -> None:
        """A flood of topics is counted up to a limit, and said once."""
        counts = CountPublisher(self.clock, self.producer(), {})
        self.patch(counts._counter, "_openCountMax", 3)
        for number in range(5):
            counts.count(f"topic {number}", 5000)
        self.assertEqual(counts.leftOutCount, 2)

    def test_future(self) -> None:
        """
        Messages whose times are far ahead are left out, which is logged once; all others are
        counted.
        """
        inner = self.producer({"queue.time": 10})
        counts = CountPublisher(self.clock, inner, {"audit.window.ms": "2000"})
        self.patch(counts._counter, "_openCountMax", 3)
        with capturedLogs() as events:
            for number in range(5):
                counts.count("clicks", counts.nowMs() + (number + 2) * FUTURE_MS_MAX)
        self.assertEqual(
            [formatEvent(event)[:43] for event in events],
            ["Messages are not counted for the audit: 0 t"],
        )
        counts.count("clicks", counts.nowMs() + FUTURE_MS_MAX)
        counts.count("clicks", 5000)
        closing = counts.close()
        self.cluster.pass_(0.1)
        self.successResultOf(closing)
        self.assertEqual(
            ([report.messageCount for report in self.reports()], counts.leftOutCount), ([1, 1], 5)
        )
