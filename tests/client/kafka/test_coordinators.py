"""
Tests of L{pylogbroker.client.kafka.coordinators} and of attempts that are repeated.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError, Deferred

from pylogbroker.client.kafka import coordinators
from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.connection import NegotiatedConnection
from pylogbroker.client.kafka.coordinators import CoordinatorKind
from pylogbroker.errors import (
    BrokerConnectionError,
    ClosedError,
    TimedOutError,
    UnsupportedVersionError,
    WireError,
)
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError, checkCode
from tests.client.kafka.fakekafka import CUT, SILENCE
from tests.client.kafka.test_cluster import ClusterCase

GROUP, TRANSACTION = CoordinatorKind
LIMIT_MS = 10_000


class CoordinatorTests(ClusterCase):
    """L{coordinators.Coordinators}."""

    def find(self, cluster: ClusterClient, key: str = "g", kind: CoordinatorKind = GROUP) -> Any:
        found = Deferred.fromCoroutine(cluster.coordinators.connection(kind, key))
        self.kafka.run()
        return found

    def asked(self) -> list[Any]:
        """The bodies of all requests for coordinators."""
        return [
            body
            for _node, header, body in self.kafka.requests
            if header.apiKey == ApiKey.FIND_COORDINATOR
        ]

    def test_found(self) -> None:
        """A coordinator is asked for once, until it is forgotten."""
        self.kafka.coordinator = 3
        cluster = self.connect()
        first = self.successResultOf(self.find(cluster))
        self.assertEqual(first.name, "192.0.2.1:9003")
        self.assertIs(self.successResultOf(self.find(cluster)), first)
        [body] = self.asked()
        self.assertEqual((body.coordinatorKeys, body.keyType), (["g"], 0))
        self.kafka.coordinator = 2
        cluster.coordinators.forget(GROUP, "g")
        self.assertEqual(self.successResultOf(self.find(cluster)).name, "192.0.2.1:9002")

    def test_kinds(self) -> None:
        """A transaction's coordinator is another one than that of the group of the same name."""
        cluster = self.connect()
        self.successResultOf(self.find(cluster))
        self.successResultOf(self.find(cluster, "g", TRANSACTION))
        self.assertEqual([body.keyType for body in self.asked()], [0, 1])

    def test_versions(self) -> None:
        """Versions that take one key, or know groups only, do as well."""
        for last in (3, 0):
            self.kafka.versions[ApiKey.FIND_COORDINATOR] = (0, last)
            self.kafka.requests.clear()
            self.successResultOf(self.find(self.connect()))
            [body] = self.asked()
            self.assertEqual(body.key, "g")
        found = self.find(self.connect(), "t", TRANSACTION)
        self.failureResultOf(found, UnsupportedVersionError)

    def test_unreachable(self) -> None:
        """A coordinator that cannot be reached is asked for anew the next time."""
        cluster = self.connect()
        self.kafka.coordinator = 7
        self.failureResultOf(self.find(cluster), BrokerConnectionError)
        self.kafka.coordinator = 1
        self.successResultOf(self.find(cluster))

    def test_refused(self) -> None:
        """A refusal has the broker's reason, and the key."""
        cls = messages.FindCoordinatorResponse
        self.kafka.answers[ApiKey.FIND_COORDINATOR].append(
            cls(coordinators=[cls.Coordinator(key="g", errorCode=30, errorMessage="not you")])
        )
        failure = self.failureResultOf(self.find(self.connect()), ResponseError)
        self.assertIn("group g", str(failure.value))
        self.assertIn("not you", str(failure.value))

    def test_bounded(self) -> None:
        """The oldest of too many is forgotten."""
        self.patch(coordinators, "COORDINATOR_COUNT_MAX", 2)
        cluster = self.connect()
        for key in ("a", "b", "c"):
            self.successResultOf(self.find(cluster, key))
        self.assertEqual([key for _kind, key in cluster.coordinators.endpoints], ["b", "c"])

    def test_ownConnection(self) -> None:
        """A coordinator is asked on a connection of its own, since its answers may wait."""
        cluster = self.connect()
        coordinator = self.successResultOf(self.find(cluster))
        found = cluster.findTopic("t", 5000)
        self.kafka.run(1)
        self.successResultOf(found)
        other = cluster.broker(1).connection()
        self.kafka.run()
        self.assertIsNot(self.successResultOf(other), coordinator)
        self.assertEqual(coordinator.name, "192.0.2.1:9001")

    def test_moved(self) -> None:
        """A coordinator that does not coordinate any more, or is lost, is asked for anew."""
        cluster = self.connect()
        for answer in (messages.HeartbeatResponse(errorCode=ErrorCode.NOT_COORDINATOR), CUT):
            self.kafka.answers[ApiKey.HEARTBEAT].append(answer)
            asked = Deferred.fromCoroutine(cluster.coordinators.ask(GROUP, "g", beat))
            self.kafka.run()
            self.failureResultOf(asked, ResponseError, BrokerConnectionError)
            self.assertEqual(cluster.coordinators.endpoints, {})

    def test_stays(self) -> None:
        """Another refusal says nothing about who coordinates."""
        cluster = self.connect()
        no = messages.HeartbeatResponse(errorCode=ErrorCode.REBALANCE_IN_PROGRESS)
        self.kafka.answers[ApiKey.HEARTBEAT].append(no)
        asked = Deferred.fromCoroutine(cluster.coordinators.ask(GROUP, "g", beat))
        self.kafka.run()
        self.failureResultOf(asked, ResponseError)
        self.assertEqual(len(cluster.coordinators.endpoints), 1)


async def beat(connection: NegotiatedConnection) -> str:
    """A heartbeat."""
    answer = await connection.request(ApiKey.HEARTBEAT, messages.HeartbeatRequest())
    checkCode(answer.errorCode, "beat")
    return connection.name


class AttemptTests(ClusterCase):
    """L{ClusterClient.attempt}."""

    def attempt(self, cluster: ClusterClient, *answers: Any) -> Deferred[str]:
        """Heartbeats that get these answers."""
        self.kafka.answers[ApiKey.HEARTBEAT] += answers
        tried = cluster.attempt(
            lambda: cluster.coordinators.ask(GROUP, "g", beat), LIMIT_MS, "beat of g"
        )
        self.kafka.run()
        return tried

    def count(self) -> int:
        """The heartbeats that came."""
        return sum(header.apiKey == ApiKey.HEARTBEAT for _, header, _ in self.kafka.requests)

    def test_repeated(self) -> None:
        """What may succeed later is tried again, after a wait that grows."""
        cluster = self.connect(retry_backoff_ms="100")
        no = messages.HeartbeatResponse(errorCode=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        yes = messages.HeartbeatResponse()
        tried = self.attempt(cluster, no, CUT, no, yes)
        self.assertNoResult(tried)
        for _turn in range(10):
            self.kafka.run(0.1)
        self.assertEqual(self.successResultOf(tried), "192.0.2.1:9001")
        self.assertEqual(self.count(), 4)

    def test_metadata(self) -> None:
        """A code that says that the metadata are old has them refreshed."""
        cluster = self.connect()
        no = messages.HeartbeatResponse(errorCode=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        tried = self.attempt(cluster, no, messages.HeartbeatResponse())
        self.kafka.run(1)
        self.successResultOf(tried)
        self.assertIn(ApiKey.METADATA, [header.apiKey for _, header, _ in self.kafka.requests])

    def test_final(self) -> None:
        """A refusal that will last is not tried again; nor is another error."""
        cluster = self.connect()
        no = messages.HeartbeatResponse(errorCode=ErrorCode.UNKNOWN_MEMBER_ID)
        self.failureResultOf(self.attempt(cluster, no), ResponseError)
        self.failureResultOf(self.attempt(cluster, b"\0\0\0\1x"), WireError)
        self.assertEqual(self.count(), 2)

    def test_late(self) -> None:
        """In the end the time-out names what was tried, and the last reason."""
        cluster = self.connect()
        no = messages.HeartbeatResponse(errorCode=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        tried = self.attempt(cluster, *[no] * 100)
        for _turn in range(100):
            self.kafka.run(0.1)
        text = str(self.failureResultOf(tried, TimedOutError).value)
        self.assertIn("beat of g", text)
        self.assertIn("COORDINATOR_LOAD_IN_PROGRESS", text)

    def test_silent(self) -> None:
        """The time also ends an attempt that is under way."""
        cluster = self.connect()
        tried = self.attempt(cluster, SILENCE)
        self.kafka.run(LIMIT_MS / 1000)
        self.failureResultOf(tried, TimedOutError)

    def test_cancelled(self) -> None:
        """An attempt can be cancelled, also while it waits for the next one."""
        cluster = self.connect()
        no = messages.HeartbeatResponse(errorCode=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        for answer in (no, SILENCE):
            tried = self.attempt(cluster, answer)
            tried.cancel()
            self.failureResultOf(tried, CancelledError)

    def test_closed(self) -> None:
        """The end of the client ends the waits."""
        cluster = self.connect()
        no = messages.HeartbeatResponse(errorCode=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        tried = self.attempt(cluster, no)
        cluster.close()
        self.kafka.run()
        self.failureResultOf(tried, ClosedError)
