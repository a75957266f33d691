"""
Tests of L{pylogbroker.client.kafka.connection} and L{pylogbroker.client.kafka.cluster}.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.connection import KafkaBrokerClient, NegotiatedConnection
from pylogbroker.config.kafka.clientsettings import KafkaConsumerSettings
from pylogbroker.errors import (
    BrokerConnectionError,
    ClosedError,
    ConnectionLostError,
    TimedOutError,
    UnsupportedVersionError,
    WireError,
)
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.protocol.kafka.responses import encodeResponse
from pylogbroker.protocol.kafka.saslclient import SaslLogin
from tests.client.kafka.fakekafka import CUT, NOTHING, SILENCE, FakeKafka

HEARTBEAT = messages.HeartbeatRequest(groupId="g", memberId="m")


def beat(kafka: FakeKafka, header: Any, body: Any) -> Any:
    """The generation comes back as the error code."""
    return messages.HeartbeatResponse(errorCode=body.generationId)


class ClusterCase(SynchronousTestCase):
    """A cluster in memory, and a client."""

    def setUp(self) -> None:
        self.kafka = FakeKafka(1, 2, 3)
        self.kafka.addTopic("t", 1, 2)
        self.addCleanup(lambda: self.assertEqual(self.kafka.getDelayedCalls(), []))

    def connect(self, isCreatingTopics: bool = True, **settings: str) -> ClusterClient:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        made = ClusterClient(
            self.kafka,
            KafkaConsumerSettings.fromProperties(
                {"bootstrap.servers": self.kafka.servers, **given}
            ),
            isCreatingTopics=isCreatingTopics,
            random=lambda: 0.5,
        )
        self.addCleanup(self.end, made)
        return made

    def end(self, client: ClusterClient) -> None:
        closing = client.close()
        self.kafka.run()
        self.kafka.run(10)  # for those that do not answer
        closing.addErrback(lambda _failure: None)

    def broker(self, login: SaslLogin | None = None) -> KafkaBrokerClient:
        settings: dict[str, str] = {}
        if login is not None:
            settings = {
                "sasl_mechanism": login.mechanism,
                "sasl_username": login.user,
                "sasl_password": login.password,
            }
        cluster = self.connect(True, **settings)
        cluster.metadata.brokers[1] = "192.0.2.1:9001"
        return cluster.broker(1)

    def connection(self, login: SaslLogin | None = None) -> NegotiatedConnection:
        found = self.broker(login).connection()
        self.kafka.run()
        made: NegotiatedConnection = self.successResultOf(found)
        return made


class ConnectionTests(ClusterCase):
    """L{NegotiatedConnection} and L{KafkaBrokerClient}."""

    def test_versions(self) -> None:
        """ApiVersions is asked downwards, and requests leave in the highest version of both."""
        self.kafka.versions = {
            ApiKey.API_VERSIONS: (0, 1),
            ApiKey.HEARTBEAT: (0, 2),
            ApiKey.LEAVE_GROUP: (50, 60),
        }
        connection = self.connection()
        versions = [header.apiVersion for _node, header, _body in self.kafka.requests]
        self.assertEqual(versions, [ApiKey.API_VERSIONS.lastVersion, 1])
        self.assertTrue(connection.supports(ApiKey.HEARTBEAT, 2))
        self.assertFalse(connection.supports(ApiKey.HEARTBEAT, 3))
        self.kafka.answers[ApiKey.HEARTBEAT] += [beat, beat]
        answers = [
            connection.request(ApiKey.HEARTBEAT, HEARTBEAT),
            connection.request(ApiKey.HEARTBEAT, HEARTBEAT, versionMax=0),
        ]
        self.kafka.run()
        self.assertEqual([self.successResultOf(each).errorCode for each in answers], [0, 0])
        versions = [header.apiVersion for _node, header, _body in self.kafka.requests[2:]]
        self.assertEqual(versions, [2, 0])
        for key, text in ((ApiKey.FETCH, "has none"), (ApiKey.LEAVE_GROUP, "has 50 to 60")):
            failure = self.failureResultOf(connection.request(key, None), UnsupportedVersionError)
            self.assertIn(text, str(failure.value))
            self.failureResultOf(connection.send(key, None), UnsupportedVersionError)

    def test_oldest(self) -> None:
        """A broker that knows no more than version 0 of ApiVersions is asked with that."""
        self.kafka.versions = {ApiKey.API_VERSIONS: (0, 0)}
        self.assertTrue(self.connection().supports(ApiKey.API_VERSIONS))

    def test_refusedVersions(self) -> None:
        """A broker that refuses every version of ApiVersions cannot be used."""
        cls = messages.ApiVersionsResponse
        no = cls(errorCode=ErrorCode.UNSUPPORTED_VERSION)

        def refuse(kafka: FakeKafka, header: Any, body: Any) -> bytes:
            return encodeResponse(header._replace(apiVersion=0), no)

        self.kafka.answers[ApiKey.API_VERSIONS] += [refuse] * 2
        found = self.broker().connection()
        self.kafka.run()
        self.failureResultOf(found, ResponseError)
        self.assertEqual(len(self.kafka.requests), 2)

    def test_pipelined(self) -> None:
        """Requests do not wait for one another; each gets its own answer."""
        connection = self.connection()
        self.kafka.answers[ApiKey.HEARTBEAT] += [beat] * 3
        answers = [
            connection.request(ApiKey.HEARTBEAT, messages.HeartbeatRequest(generationId=number))
            for number in range(3)
        ]
        self.kafka.run()
        self.assertEqual([self.successResultOf(each).errorCode for each in answers], [0, 1, 2])

    def test_wrongCorrelation(self) -> None:
        """A response to another request ends the connection."""
        connection = self.connection()

        def wrong(kafka: FakeKafka, header: Any, body: Any) -> bytes:
            other = header._replace(correlationId=header.correlationId + 1)
            return encodeResponse(other, messages.HeartbeatResponse())

        self.kafka.answers[ApiKey.HEARTBEAT] += [wrong, beat]
        first = connection.request(ApiKey.HEARTBEAT, HEARTBEAT)
        second = connection.request(ApiKey.HEARTBEAT, HEARTBEAT)
        self.kafka.run()
        self.failureResultOf(first, WireError)
        self.failureResultOf(second, WireError)

    def test_timeout(self) -> None:
        """A request without an answer ends the connection, and those behind it fail as well."""
        connection = self.connection()
        self.kafka.answers[ApiKey.HEARTBEAT] += [SILENCE, SILENCE]
        first = connection.request(ApiKey.HEARTBEAT, HEARTBEAT)
        self.kafka.run(1)
        second = connection.request(ApiKey.HEARTBEAT, HEARTBEAT, 5000)
        self.kafka.run(28.9)
        self.assertNoResult(first)
        self.kafka.run(0.1)
        self.failureResultOf(first, TimedOutError)
        self.failureResultOf(second, TimedOutError)

    def test_cancelled(self) -> None:
        """A request can be given up; the others are not concerned."""
        connection = self.connection()
        self.kafka.answers[ApiKey.HEARTBEAT] += [beat, beat]
        first = connection.request(ApiKey.HEARTBEAT, HEARTBEAT)
        second = connection.request(ApiKey.HEARTBEAT, HEARTBEAT)
        first.cancel()
        self.kafka.run()
        self.failureResultOf(first, CancelledError)
        self.successResultOf(second)

    def test_shared(self) -> None:
        """Several callers share one attempt; after a loss there is a new connection."""
        broker = self.broker()
        waiting = [broker.connection() for _caller in range(3)]
        waiting[0].cancel()
        self.kafka.run()
        self.failureResultOf(waiting[0], CancelledError)
        first, again = self.successResultOf(waiting[1]), self.successResultOf(waiting[2])
        self.assertIs(first, again)
        self.assertIs(self.successResultOf(broker.connection()), first)
        self.assertEqual(self.kafka.connectCount, 1)
        self.kafka.cut()
        self.assertIsNone(broker.current)
        renewed = broker.connection()
        self.kafka.run(1)
        self.assertIsNot(self.successResultOf(renewed), first)
        self.assertIn("KafkaBrokerClient", repr(broker))

    def test_refused(self) -> None:
        """A caller learns of the first failed attempt, and the next attempt comes later."""
        self.kafka.up.discard(1)
        broker = self.broker()
        first = broker.connection()
        self.kafka.run()
        self.failureResultOf(first, BrokerConnectionError)
        second = broker.connection()
        self.kafka.run()
        self.assertNoResult(second)
        self.kafka.run(0.01)
        self.failureResultOf(second, BrokerConnectionError)
        self.assertEqual(self.kafka.connectCount, 2)


class SaslTests(ClusterCase):
    """A client with a password."""

    LOGIN = SaslLogin("PLAIN", "u", "secret")

    def allow(self, lifetimeMs: int = 0, count: int = 1) -> None:
        self.kafka.answers[ApiKey.SASL_HANDSHAKE] += [messages.SaslHandshakeResponse()] * count
        self.kafka.answers[ApiKey.SASL_AUTHENTICATE] += [
            messages.SaslAuthenticateResponse(sessionLifetimeMs=lifetimeMs)
        ] * count

    def test_plain(self) -> None:
        """The client authenticates before anything else."""
        self.allow()
        self.connection(self.LOGIN)
        [token] = self.kafka.asked(ApiKey.SASL_AUTHENTICATE)
        self.assertEqual(bytes(token.authBytes), b"\0u\0secret")
        [handshake] = self.kafka.asked(ApiKey.SASL_HANDSHAKE)
        self.assertEqual(handshake.mechanism, "PLAIN")

    def test_refused(self) -> None:
        """A wrong password, and a mechanism that the broker lacks, are told to the caller."""
        self.allow()
        self.kafka.answers[ApiKey.SASL_AUTHENTICATE].appendleft(
            messages.SaslAuthenticateResponse(errorCode=58, errorMessage="no")
        )
        found = self.broker(self.LOGIN).connection()
        self.kafka.run()
        self.assertIn("no", str(self.failureResultOf(found, ResponseError).value))
        self.kafka.answers[ApiKey.SASL_HANDSHAKE].append(
            messages.SaslHandshakeResponse(errorCode=33, mechanisms=["SCRAM-SHA-256"])
        )
        found = self.broker(self.LOGIN).connection()
        self.kafka.run()
        self.assertIn("SCRAM-SHA-256", str(self.failureResultOf(found, ResponseError).value))

    def test_again(self) -> None:
        """
        Before its session ends, the client authenticates again; requests wait, in order, and so do
        those without an answer.
        """
        self.allow(10_000, 2)
        connection = self.connection(self.LOGIN)
        self.kafka.run(8.9)
        self.assertEqual(len(self.kafka.asked(ApiKey.SASL_AUTHENTICATE)), 1)
        self.kafka.advance(0.2)
        self.kafka.answers[ApiKey.HEARTBEAT] += [beat]
        answer = connection.request(ApiKey.HEARTBEAT, HEARTBEAT)
        sent = connection.send(ApiKey.LEAVE_GROUP, messages.LeaveGroupRequest())
        self.kafka.answers[ApiKey.LEAVE_GROUP] += [NOTHING]
        self.kafka.run()
        self.successResultOf(answer)
        self.successResultOf(sent)
        keys = [header.apiKey for _node, header, _body in self.kafka.requests[-4:]]
        self.assertEqual(
            keys,
            [
                ApiKey.SASL_HANDSHAKE,
                ApiKey.SASL_AUTHENTICATE,
                ApiKey.HEARTBEAT,
                ApiKey.LEAVE_GROUP,
            ],
        )

    def test_refusedLater(self) -> None:
        """A user that is gone meanwhile loses the connection."""
        self.allow(10_000)
        connection = self.connection(self.LOGIN)
        self.kafka.answers[ApiKey.SASL_HANDSHAKE].append(messages.SaslHandshakeResponse())
        self.kafka.answers[ApiKey.SASL_AUTHENTICATE].append(
            messages.SaslAuthenticateResponse(errorCode=58)
        )
        self.kafka.advance(9)
        answer = connection.request(ApiKey.HEARTBEAT, HEARTBEAT)
        self.kafka.run()
        self.failureResultOf(answer, ResponseError)
        self.assertIsNotNone(connection.raw.refusal)

    def test_lostMeanwhile(self) -> None:
        """A connection that is lost while the client authenticates again fails all that wait."""
        self.allow(10_000)
        connection = self.connection(self.LOGIN)
        self.kafka.answers[ApiKey.SASL_HANDSHAKE].append(CUT)
        self.kafka.advance(9)
        answer = connection.request(ApiKey.HEARTBEAT, HEARTBEAT)
        self.kafka.run()
        self.failureResultOf(answer, ConnectionLostError)


class MetadataTests(ClusterCase):
    """Metadata that are asked for."""

    def test_topic(self) -> None:
        """A topic is found, and then known; another caller's topic does not push it out."""
        cluster = self.connect()
        found = cluster.findTopic("t", 1000)
        self.kafka.run()
        self.assertEqual(self.successResultOf(found).partitions, {0: (1, 5), 1: (2, 5)})
        self.kafka.addTopic("u", 3)
        other = cluster.findTopic("u", 1000)
        self.kafka.run()
        self.assertEqual(self.successResultOf(other).partitions, {0: (3, 5)})
        self.assertIsNotNone(cluster.topic("t"))
        asked = [
            [topic.name for topic in body.topics] for body in self.kafka.asked(ApiKey.METADATA)
        ]
        self.assertEqual(asked, [["t"], ["u"], ["t"]])
        self.assertEqual(cluster.broker(3).name, "192.0.2.1:9003")
        self.assertRaises(BrokerConnectionError, cluster.broker, 9)
        self.assertIn("9001", repr(cluster))

    def test_unknownTopic(self) -> None:
        """A topic may appear late; if it does not, the error has the reason."""
        cluster = self.connect()
        early, late = cluster.findTopic("new", 300), cluster.findTopic("new", 3000)
        self.kafka.run()
        self.assertNoResult(early)
        self.kafka.run(0.3)
        text = str(self.failureResultOf(early, TimedOutError).value)
        self.assertIn("UNKNOWN_TOPIC_OR_PARTITION", text)
        self.kafka.addTopic("new", 1)
        self.kafka.run(0.5)
        self.kafka.run(0.5)
        self.successResultOf(late)
        self.assertLess(len(self.kafka.asked(ApiKey.METADATA)), 10)

    def test_cancelledTopic(self) -> None:
        """A topic whose only caller has gone is asked for no more."""
        cluster = self.connect()
        asked = cluster.findTopic("new", 3000)
        self.kafka.run()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        for _step in range(20):
            self.kafka.run(0.5)
        self.assertLess(len(self.kafka.asked(ApiKey.METADATA)), 4)

    def test_forbiddenTopic(self) -> None:
        """A topic that may not be seen is refused at once, and asked for no more."""
        cls = messages.MetadataResponse
        usual = self.kafka.usual

        def forbid(kafka: FakeKafka, header: Any, body: Any) -> Any:
            made = usual(header, body)
            made.topics = [cls.MetadataResponseTopic(errorCode=29, name=body.topics[0].name)]
            return made

        self.kafka.answers[ApiKey.METADATA].append(forbid)
        cluster = self.connect()
        found = cluster.findTopic("secret", 10_000)
        self.kafka.run()
        self.assertIn("secret", str(self.failureResultOf(found, ResponseError).value))
        self.kafka.run(10)
        self.assertEqual([each.topics for each in self.kafka.asked(ApiKey.METADATA)[2:]], [])

    def test_creation(self) -> None:
        """Whether topics are created is said where the broker can be told."""
        for version in (0, 3, 4, 13):
            for isCreating in (False, True):
                self.kafka.versions[ApiKey.METADATA] = (0, version)
                self.kafka.requests.clear()
                cluster = self.connect(isCreating)
                cluster.findTopic("t", 1000)
                self.kafka.run()
                [asked] = self.kafka.asked(ApiKey.METADATA)
                self.assertEqual(asked.allowAutoTopicCreation, isCreating or version < 4)

    def test_creationOfOne(self) -> None:
        """
        A topic may be created while a caller waits for it. Others, which are asked for still, are
        not created with it.
        """
        cluster = self.connect()
        self.found(cluster, "t")
        del self.kafka.leaders["t"]
        self.kafka.requests.clear()
        waiting = cluster.findTopic("new", 3000)
        for _step in range(20):
            self.kafka.run(0.1)
        asked = {
            (topic.name, body.allowAutoTopicCreation)
            for body in self.kafka.asked(ApiKey.METADATA)
            for topic in body.topics
        }
        self.assertEqual(asked, {("new", True), ("t", False)})
        self.kafka.addTopic("new", 1)
        self.kafka.run(1)
        self.successResultOf(waiting)

    def test_creationGivenUp(self) -> None:
        """A topic is not created for a caller that waits no more."""
        cluster = self.connect()
        self.found(cluster, "t")
        del self.kafka.leaders["t"]
        refreshed = cluster.refresh()
        self.kafka.run(0.1)
        self.successResultOf(refreshed)
        late, cancelled = cluster.findTopic("t", 500), cluster.findTopic("t", 9000)
        for _step in range(30):
            self.kafka.run(0.1)
        self.failureResultOf(late, TimedOutError)
        self.assertTrue(self.kafka.asked(ApiKey.METADATA)[-1].allowAutoTopicCreation)
        cancelled.cancel()
        self.failureResultOf(cancelled, CancelledError)
        self.kafka.requests.clear()
        for _step in range(20):
            self.kafka.run(0.1)
        asked = self.kafka.asked(ApiKey.METADATA)
        self.assertEqual({each.allowAutoTopicCreation for each in asked}, {False})

    def test_otherBroker(self) -> None:
        """If a broker cannot be reached, the next one is asked; all are tried until one can."""
        servers = self.kafka.servers
        self.kafka.up = {3}
        cluster = self.connect(bootstrap_servers=servers)
        found = cluster.findTopic("t", 10_000)
        self.kafka.run()
        self.assertNotIn(-1, self.successResultOf(found).partitions)
        self.assertLessEqual(self.kafka.connectCount, 3)

    def test_noBroker(self) -> None:
        """While no broker can be reached callers wait; later the topic is found."""
        servers = self.kafka.servers
        self.kafka.up = set()
        cluster = self.connect(bootstrap_servers=servers)
        late, found = cluster.findTopic("t", 500), cluster.findTopic("t", 60_000)
        for _step in range(10):
            self.kafka.run(0.1)
        self.assertIn("192.0.2.1:900", str(self.failureResultOf(late, TimedOutError).value))
        self.kafka.up = {1, 2, 3}
        for _step in range(30):
            self.kafka.run(0.2)
        self.successResultOf(found)

    def test_age(self) -> None:
        """Metadata are asked for again when they are old, and not before."""
        cluster = self.connect(metadata_max_age_ms="5000")
        cluster.findTopic("t", 1000)
        self.kafka.run()
        self.kafka.run(4.9)
        self.assertEqual(len(self.kafka.asked(ApiKey.METADATA)), 1)
        self.kafka.leaders["t"][0] = (3, 6)
        self.kafka.run(0.1)
        self.assertEqual(cluster.metadata.leader("t", 0), (3, 6))

    def test_interval(self) -> None:
        """However often news are wanted, an answer is followed by a pause; a new topic has none."""
        cluster = self.connect(retry_backoff_ms="200")
        cluster.listen(cluster.refreshSoon)
        self.found(cluster, "t")
        self.kafka.run(0.15)
        self.assertEqual(len(self.kafka.asked(ApiKey.METADATA)), 1)
        for _step in range(20):
            self.kafka.run(0.05)
        self.assertEqual(len(self.kafka.asked(ApiKey.METADATA)), 6)
        cluster = self.connect(retry_backoff_ms="200")
        self.kafka.addTopic("u", 1)
        self.found(cluster, "t")
        self.successResultOf(self.found(cluster, "u"))

    def test_noLeader(self) -> None:
        """While a partition has no leader, the metadata are asked for, less and less often."""
        self.kafka.leaders["t"][0] = (-1, 6)
        cluster = self.connect()
        heard: list[int] = []
        cluster.listen(lambda: heard.append(cluster.metadata.version))
        self.successResultOf(self.found(cluster, "t"))
        for _step in range(100):
            self.kafka.run(0.1)
        count = len(self.kafka.asked(ApiKey.METADATA))
        self.assertTrue(10 < count < 20, count)
        self.kafka.leaders["t"][0] = (2, 7)
        for _step in range(20):
            self.kafka.run(0.1)
        self.assertEqual(cluster.metadata.leader("t", 0), (2, 7))
        self.assertEqual(heard, list(range(1, len(heard) + 1)))

    def found(self, cluster: ClusterClient, name: str) -> Any:
        found = cluster.findTopic(name, 1000)
        self.kafka.run()
        return found

    def test_leastBusy(self) -> None:
        """Of the brokers with a connection the one with the fewest open requests is asked."""
        cluster = self.connect()
        self.found(cluster, "t")
        [first] = {line.node for line in self.kafka.lines}
        other = cluster.broker(first % 3 + 1).connection()
        self.kafka.run()
        self.successResultOf(other)
        self.kafka.answers[ApiKey.HEARTBEAT].append(SILENCE)
        busy = cluster.broker(first).connection()
        beating = self.successResultOf(busy).request(ApiKey.HEARTBEAT, HEARTBEAT)
        refreshed = cluster.refresh()
        self.kafka.run(0.1)
        self.successResultOf(refreshed)
        self.assertNoResult(beating)
        beating.addErrback(lambda _failure: None)

    def test_goneBroker(self) -> None:
        """The connection to a broker that has left the cluster is closed."""
        servers = "192.0.2.1:9001"
        cluster = self.connect(bootstrap_servers=servers)
        self.found(cluster, "t")
        cluster.broker(3).connection()
        self.kafka.run()
        self.assertEqual(sorted(line.node for line in self.kafka.lines), [1, 3])
        self.kafka.up = {1, 2}
        refreshed = cluster.refresh()
        self.kafka.run(0.1)
        self.successResultOf(refreshed)
        self.assertEqual([line.node for line in self.kafka.lines], [1])

    def test_wrongAnswers(self) -> None:
        """Metadata without a broker, or with an error that passes, are asked for again."""
        cls = messages.MetadataResponse
        for answer in (cls(), cls(errorCode=5), cls(errorCode=129), CUT):
            self.kafka.answers[ApiKey.METADATA].append(answer)
            cluster = self.connect()
            found = self.found(cluster, "t")
            self.assertNoResult(found)
            self.kafka.run(0.2)
            self.kafka.run(1)
            self.successResultOf(found)

    def test_noKafka(self) -> None:
        """Whoever waits learns that the other side speaks something else."""
        self.kafka.answers[ApiKey.METADATA].append(b"\0\0\0\1x")
        cluster = self.connect()
        self.failureResultOf(self.found(cluster, "t"), WireError)

    def test_closed(self) -> None:
        """After the end nothing is asked, and those that wait fail."""
        cluster = self.connect()
        self.kafka.answers[ApiKey.METADATA].append(SILENCE)
        found = self.found(cluster, "t")
        cluster.close().addErrback(lambda _failure: None)
        self.failureResultOf(found, ClosedError)
        self.failureResultOf(cluster.refresh(), ClosedError)
        self.failureResultOf(cluster.anyConnection(), ClosedError)

    def test_aborted(self) -> None:
        """An aborted client closes in no time."""
        cluster = self.connect()
        self.kafka.answers[ApiKey.METADATA].append(SILENCE)
        found = self.found(cluster, "t")
        cluster.abort()
        self.failureResultOf(found, ClosedError)
        closing = cluster.close()
        self.kafka.run()
        self.failureResultOf(closing, ClosedError)
