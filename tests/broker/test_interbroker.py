"""Connections to other brokers of a cluster: by id and purpose, as the metadata have them."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker import interbroker
from pylogbroker.broker.interbroker import InterBrokerConnections, Purpose
from pylogbroker.cluster.metadataimage import (
    FenceBrokerRecord,
    MetadataImage,
    Record,
    RegisterBrokerRecord,
)
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.errors import (
    BackpressureError,
    BrokerConnectionError,
    ClosedError,
    ConnectionLostError,
    TimedOutError,
    UnsupportedVersionError,
)
from pylogbroker.programs.interbroker import interBrokerClients
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.client.kafka.fakekafka import CUT, HOST, SILENCE, FakeKafka

PROPERTIES = {
    "brokerid": "9",
    "log.dir": "unused",
    "enable.zookeeper": "false",
    "request.timeout.ms": "5000",
}


def registered(number: int, epoch: int = 1, port: int = 0, listener: str = "PLAINTEXT") -> Record:
    endpoint = [listener, HOST, port or 9000 + number, "PLAINTEXT"]
    return RegisterBrokerRecord(number, epoch, [endpoint], None)


class InterBrokerCase(SynchronousTestCase):
    """Brokers 1 and 2 on a clock, and what connects a broker 9 to them."""

    def setUp(self) -> None:
        self.fake = FakeKafka(1, 2)
        self.image = MetadataImage()
        settings = BrokerSettings.fromProperties(PROPERTIES)
        self.connections = InterBrokerConnections(
            lambda: self.image, "PLAINTEXT", interBrokerClients(self.fake, settings)
        )
        self.change(registered(1), registered(2))

    def change(self, *records: Record) -> None:
        for record in records:
            self.image.apply(record)
        self.connections.follow()

    def ask(self, number: int = 1, purpose: Purpose = Purpose.MARKERS) -> Deferred[Any]:
        """A request to a broker, which has come to rest."""
        body = messages.FindCoordinatorRequest(coordinatorKeys=["g"])
        asked = self.connections.request(number, purpose, ApiKey.FIND_COORDINATOR, body)
        self.fake.run()
        return asked

    def count(self, key: ApiKey = ApiKey.API_VERSIONS) -> int:
        return len(self.fake.asked(key))


class RequestTests(InterBrokerCase):
    """Requests and their responses."""

    def test_purposes(self) -> None:
        """Each broker and purpose has one connection, whose versions are negotiated once."""
        for number, purpose in (
            (1, Purpose.MARKERS),
            (1, Purpose.REPLICATION),
            (2, Purpose.MARKERS),
        ):
            for _ in range(3):
                (found,) = self.successResultOf(self.ask(number, purpose)).coordinators
                self.assertEqual(found.key, "g")
        self.assertEqual((self.fake.connectCount, self.count()), (3, 3))
        self.assertEqual({header.clientId for _, header, _ in self.fake.requests}, {"broker-9"})

    def test_pipelined(self) -> None:
        """Requests leave without waiting for the answers before them."""
        self.successResultOf(self.ask())
        self.fake.answers[ApiKey.FIND_COORDINATOR].append(SILENCE)
        asked = [self.ask() for _ in range(3)]
        self.assertEqual(self.count(ApiKey.FIND_COORDINATOR), 4)
        self.fake.cut()
        for each in asked:
            self.failureResultOf(each, ConnectionLostError)

    def test_limit(self) -> None:
        """A broker has a bounded number of requests; what is over returns its place."""
        self.patch(interbroker, "REQUEST_COUNT_MAX", 2)
        self.fake.answers[ApiKey.FIND_COORDINATOR].append(SILENCE)
        asked = [self.ask(), self.ask()]
        self.assertIn("for markers", str(self.failureResultOf(self.ask(), BackpressureError).value))
        self.assertNoResult(asked[1])
        self.successResultOf(self.ask(1, Purpose.VERIFICATION))
        self.fake.cut()
        for each in asked:
            self.failureResultOf(each, ConnectionLostError)
        again = self.ask()
        self.fake.run(1)
        self.successResultOf(again)

    def test_timeout(self) -> None:
        """A request without an answer fails after C{request.timeout.ms}; its connection ends."""
        self.fake.answers[ApiKey.FIND_COORDINATOR].append(SILENCE)
        asked = self.ask()
        self.fake.run(4.9)
        self.assertNoResult(asked)
        self.fake.run(0.1)
        self.failureResultOf(asked, TimedOutError)
        self.assertEqual(self.fake.lines, [])

    def test_version(self) -> None:
        """A request that the other broker does not have is not sent."""
        del self.fake.versions[ApiKey.FIND_COORDINATOR]
        self.failureResultOf(self.ask(), UnsupportedVersionError)

    def test_cancelled(self) -> None:
        """A caller may go, before and after there is a connection."""
        self.fake.up.clear()
        asked = self.connections.request(1, Purpose.MARKERS, ApiKey.FIND_COORDINATOR, None)
        asked.cancel()
        self.fake.run(5)
        self.failureResultOf(asked)
        self.fake.up.add(1)
        self.fake.answers[ApiKey.FIND_COORDINATOR].append(SILENCE)
        asked = self.ask()
        asked.cancel()
        self.failureResultOf(asked)


class ReconnectTests(InterBrokerCase):
    """Lost connections."""

    def test_backoff(self) -> None:
        """A broker that refuses is tried after longer and longer waits, on the clock."""
        self.fake.up.clear()
        self.failureResultOf(self.ask(), BrokerConnectionError)
        seconds: list[float] = []
        for _ in range(6):
            before, asked = self.fake.seconds(), self.ask()
            while not asked.called:
                self.fake.run(0.005)
            self.failureResultOf(asked, BrokerConnectionError)
            seconds.append(self.fake.seconds() - before)
        self.assertEqual(self.fake.connectCount, 7)
        self.assertGreater(seconds[-1], 4 * seconds[0])
        self.fake.up.add(1)
        asked = self.ask()
        self.fake.run(5)
        self.successResultOf(asked)

    def test_cut(self) -> None:
        """A request on a lost connection fails, and the next one has a new connection."""
        self.fake.answers[ApiKey.FIND_COORDINATOR].append(CUT)
        self.failureResultOf(self.ask(), ConnectionLostError)
        asked = self.ask()
        self.fake.run(1)
        self.successResultOf(asked)
        self.assertEqual(self.count(), 2)


class FollowTests(InterBrokerCase):
    """The metadata say where a broker is."""

    def test_moved(self) -> None:
        """A new address, or a new epoch alone, ends the connection, and requests under way fail."""
        for record, node in ((registered(1, 2, 9002), 2), (registered(1, 3, 9002), 2)):
            self.fake.answers[ApiKey.FIND_COORDINATOR].append(SILENCE)
            asked = self.ask()
            self.change(record)
            self.failureResultOf(asked, ClosedError)
            self.fake.run()
            self.assertEqual(self.fake.lines, [])
            self.successResultOf(self.ask())
            self.assertEqual([line.node for line in self.fake.lines], [node])

    def test_unchanged(self) -> None:
        """Other changes leave a connection alone."""
        self.successResultOf(self.ask())
        self.change(registered(2, 5))
        self.successResultOf(self.ask())
        self.assertEqual(self.fake.connectCount, 1)

    def test_fenced(self) -> None:
        """A fenced broker's connection ends, and it gets no request until it registers anew."""
        self.successResultOf(self.ask())
        self.change(FenceBrokerRecord(1, 1))
        self.fake.run()
        self.assertEqual((self.fake.lines, len(self.connections)), ([], 0))
        text = str(self.failureResultOf(self.ask(), BrokerConnectionError).value)
        self.assertEqual(text, "broker 1 is fenced")
        self.change(registered(1, 3))
        self.successResultOf(self.ask())

    def test_unknown(self) -> None:
        """No request goes to a broker that is not there, or has no such listener."""
        self.change(registered(3, listener="OUTSIDE"))
        for number, text in (
            (7, "the cluster has no broker 7"),
            (3, "broker 3 has no listener PLAINTEXT: it has OUTSIDE"),
        ):
            failure = self.failureResultOf(self.ask(number), BrokerConnectionError)
            self.assertEqual(str(failure.value), text)
        self.assertEqual(self.fake.connectCount, 0)


class CloseTests(InterBrokerCase):
    """The end."""

    def test_close(self) -> None:
        """All connections are cut, requests fail, and there are no others; no timer is left."""
        self.successResultOf(self.ask(2))
        self.fake.answers[ApiKey.FIND_COORDINATOR].append(SILENCE)
        asked = self.ask()
        closing = self.connections.close()
        self.failureResultOf(asked, ClosedError)
        self.fake.run()
        self.successResultOf(closing)
        self.failureResultOf(self.ask(), ClosedError)
        self.assertEqual((self.fake.lines, self.fake.getDelayedCalls()), ([], []))

    def test_connecting(self) -> None:
        """Also while a connection is being made."""
        self.fake.up.clear()
        self.failureResultOf(self.ask())
        asked = self.ask()
        self.successResultOf(self.connections.close())
        self.failureResultOf(asked, ClosedError)
        self.assertEqual(self.fake.getDelayedCalls(), [])

    def test_nothing(self) -> None:
        """A broker that was given no connections says so."""
        alone = InterBrokerConnections(lambda: self.image, "PLAINTEXT", None)
        body = messages.FindCoordinatorRequest()
        asked = alone.request(1, Purpose.MARKERS, ApiKey.FIND_COORDINATOR, body)
        self.failureResultOf(asked, BrokerConnectionError)
