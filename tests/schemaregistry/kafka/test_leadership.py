"""
Tests for L{pylogbroker.schemaregistry.kafka.leadership}: several registries, and others' in one
group.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred, gatherResults
from twisted.internet.task import Clock, deferLater
from twisted.web.resource import Resource
from twisted.web.server import Site

from pylogbroker.client.kafka.cluster import ClusterClient
from pylogbroker.client.kafka.coordinators import CoordinatorKind
from pylogbroker.config.kafka.clientsettings import KafkaConsumerSettings
from pylogbroker.consumer.kafka.groupmembership import Phase
from pylogbroker.errors import NotLeaderError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.schemaregistry.kafka.leadership import Leadership
from pylogbroker.schemaregistry.service import RegistryService
from pylogbroker.schemas.kafka.election import (
    LeaderAssignment,
    RegistryIdentity,
)
from tests.broker.manualbroker import capture
from tests.schemaregistry.kafka.kafkaregistrycase import KafkaRegistryCase
from tests.schemaregistry.kafka.test_takeover import CLICK, schemaKey, schemaValue

SCHEMA = {"schema": CLICK}
PATH = "/subjects/s/versions"
GROUP = "schema-registry"


class Confluent:
    """
    A member of the group that speaks as Confluent's registry does, with its bytes.

    @ivar requests: method, path, body and C{X-Forward} of each request to its API.
    """

    def __init__(self, case: KafkaRegistryCase) -> None:
        self.requests: list[tuple[str, str, bytes, str]] = []
        site = Site(self._api())
        self.port: Any = reactor.listenTCP(0, site, interface="127.0.0.1")  # type: ignore[arg-type]
        case.addCleanup(self.port.stopListening)
        self.cluster = ClusterClient(
            reactor, KafkaConsumerSettings.fromProperties(case.access()), isCreatingTopics=False
        )
        case.addCleanup(self.cluster.close)
        self.memberId = ""

    def _api(self) -> Resource:
        requests = self.requests

        class Api(Resource):
            isLeaf = True

            def render(self, request: Any) -> bytes:
                forwarded = request.getHeader(b"X-Forward") or b""
                uri, body = request.uri.decode(), request.content.read()
                requests.append((request.method.decode(), uri, body, forwarded.decode()))
                return b'{"id":77}'

        return Api()

    @property
    def identity(self) -> str:
        port = self.port.getHost().port
        return (
            f'{{"host":"127.0.0.1","port":{port},"master_eligibility":true,"scheme":"http",'
            '"version":1}'
        )

    async def ask(self, key: ApiKey, body: Any) -> Any:
        coordinators = self.cluster.coordinators
        return await coordinators.ask(
            CoordinatorKind.GROUP, GROUP, lambda connection: connection.request(key, body, 30_000)
        )

    async def join(self) -> Any:
        cls = messages.JoinGroupRequest
        while True:
            answer = await self.ask(
                ApiKey.JOIN_GROUP,
                cls(
                    groupId=GROUP,
                    sessionTimeoutMs=10_000,
                    rebalanceTimeoutMs=30_000,
                    memberId=self.memberId,
                    protocolType="sr",
                    protocols=[
                        cls.JoinGroupRequestProtocol(name="v0", metadata=self.identity.encode())
                    ],
                ),
            )
            self.memberId = answer.memberId
            if answer.errorCode != ErrorCode.MEMBER_ID_REQUIRED:
                return answer

    async def sync(self, joined: Any, assignment: str = "") -> bytes:
        cls = messages.SyncGroupRequest
        answer = await self.ask(
            ApiKey.SYNC_GROUP,
            cls(
                groupId=GROUP,
                generationId=joined.generationId,
                memberId=self.memberId,
                protocolType="sr",
                protocolName="v0",
                assignments=[
                    cls.SyncGroupRequestAssignment(
                        memberId=each.memberId, assignment=assignment.encode()
                    )
                    for each in joined.members
                ],
            ),
        )
        return bytes(answer.assignment)

    async def leave(self) -> None:
        cls = messages.LeaveGroupRequest
        body = cls(groupId=GROUP, members=[cls.MemberIdentity(memberId=self.memberId)])
        await self.ask(ApiKey.LEAVE_GROUP, body)


class RegistriesTests(KafkaRegistryCase):
    """Several of our registries."""

    async def two(self, **properties: str) -> tuple[RegistryService, RegistryService]:
        """The one that leads, and another one."""
        services = [await self.startService(), await self.startService(**properties)]
        await self.eventually(
            lambda: (
                len({self.leaderOf(each) for each in services}) == 1
                and self.leaderOf(services[0]) is not None
            )
        )
        services.sort(key=lambda each: self.urlOf(each) != self.leaderOf(each))
        self.assertEqual(self.urlOf(services[0]), self.leaderOf(services[0]))
        return services[0], services[1]

    async def test_forwards(self) -> None:
        """
        A change at a registry that does not lead is passed on, with its query, and answered as the
        leader answers it; a schema that is there is found without the leader.
        """
        leader, other = await self.two()
        self.assertEqual(await self.asked(other, "POST", PATH, SCHEMA), {"id": 1})
        self.assertEqual(await self.asked(other, "GET", PATH), [1])
        self.assertIn(
            "incompatible", await self.refused(409, other, "POST", PATH, {"schema": '"int"'})
        )
        for path in ("/subjects/s", "/subjects/s?permanent=true"):
            self.assertEqual(await self.asked(other, "DELETE", path), [1])
        self.assertEqual(
            await self.records(),
            [
                (schemaKey("s", 1), schemaValue("s", 1, 1, CLICK)),
                (
                    '{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}',
                    '{"subject":"s","version":1}',
                ),
                (schemaKey("s", 1), None),
            ],
        )
        await self.asked(leader, "POST", "/subjects/t/versions", SCHEMA)
        await self.registryOf(other).refresh()
        answer = await self.asked(other, "POST", "/subjects/t/versions", SCHEMA, X_Forward="true")
        self.assertEqual(answer, {"id": 2})

    async def test_notAgain(self) -> None:
        """What was passed on once is refused by a registry that does not lead."""
        _leader, other = await self.two()
        reason = await self.refused(50004, other, "POST", PATH, SCHEMA, X_Forward="true")
        self.assertIn("leads", reason)

    async def test_atOnce(self) -> None:
        """
        Many at once, of several subjects, at two registries: one id for each schema, no version
        twice, and both know the same.
        """
        services = await self.two()
        texts = [json.dumps({"type": "fixed", "name": "F", "size": size}) for size in range(1, 7)]
        await self.asked(services[0], "PUT", "/config", {"compatibility": "NONE"})
        answers = await gatherResults(
            [
                Deferred.fromCoroutine(
                    self.asked(
                        services[task % 2],
                        "POST",
                        f"/subjects/s{task % 3}/versions",
                        {"schema": texts[task % 6]},
                    )
                )
                for task in range(36)
            ]
        )
        ids = [{answers[task]["id"] for task in range(36) if task % 6 == n} for n in range(6)]
        self.assertEqual({len(each) for each in ids}, {1})
        self.assertEqual(sorted(each.pop() for each in ids), [1, 2, 3, 4, 5, 6])
        keys = [key for key, _value in await self.records()]
        self.assertEqual(len(keys), len(set(keys)))
        for service in services:
            await self.registryOf(service).refresh()
            for subject in ("s0", "s1", "s2"):
                self.assertEqual(
                    await self.asked(service, "GET", f"/subjects/{subject}/versions"), [1, 2]
                )

    async def test_takesOver(self) -> None:
        """
        When the registry that leads stops, the other one leads: it reads the topic to its end by a
        record of its own, and goes on with the next id.
        """
        leader, other = await self.two()
        await self.asked(leader, "POST", PATH, SCHEMA)
        await leader.stopService()
        await self.eventually(lambda: self.leaderOf(other) == self.urlOf(other))
        end = await self.end()
        answer = await self.asked(other, "POST", "/subjects/t/versions", {"schema": '"int"'})
        self.assertEqual(answer, {"id": 2})
        self.assertEqual(await self.end(), end + 2)
        self.assertEqual(len(await self.records(end)), 1)

    async def test_ineligible(self) -> None:
        """Without a registry that may lead, changes are refused with the reason; reads go on."""
        lines = capture(self)
        service = self.makeService(leader_eligibility="false")
        service.startService()
        await self.eventually(
            lambda: any("no registry of the group may lead" in x for x in lines())
        )
        self.assertIn(
            "leader.eligibility", await self.refused(50004, service, "POST", PATH, SCHEMA)
        )
        self.assertEqual(await self.asked(service, "GET", "/subjects"), [])
        other = await self.startService()
        await self.eventually(lambda: self.leaderOf(service) == self.urlOf(other))
        self.assertEqual(await self.asked(service, "POST", PATH, SCHEMA), {"id": 1})

    async def holdsUp(self, service: RegistryService) -> None:
        """A rebalance has begun, and waits for the registry that leads."""
        leadership = self.registryOf(service).leadership
        await self.eventually(lambda: leadership is not None and leadership._isElecting)
        for _turn in range(20):
            await deferLater(reactor, 0.01)
            self.assertEqual(self.leaderOf(service), self.urlOf(service))

    async def test_rebalanceWaits(self) -> None:
        """A registry that is writing joins again only when it is done."""
        service = await self.startService()
        leadership = self.registryOf(service).leadership
        assert leadership is not None
        await leadership.begin()
        other = self.makeService()
        other.startService()
        await self.holdsUp(service)
        leadership.end()
        await self.eventually(lambda: self.leaderOf(other) is not None)

    async def test_rebalanceWaitsForRecord(self) -> None:
        """
        A rebalance waits for the outcome of a record that was sent, though its change was given up:
        until then the record may be stored.
        """
        service = await self.startService()
        registry = self.registryOf(service)
        write = registry._topic.write
        answered: Deferred[None] = Deferred()
        written = []

        async def slow(given: Any) -> list[int]:
            offsets = await write(given)
            written.append(offsets)
            await answered
            return offsets

        registry._topic.write = slow  # type: ignore[method-assign, assignment]
        changing = Deferred.fromCoroutine(registry.setLevel("", "NONE"))
        await self.eventually(lambda: written)
        changing.cancel()
        await self.assertFailure(changing, CancelledError)
        other = self.makeService()
        other.startService()
        await self.holdsUp(service)
        answered.callback(None)
        await self.eventually(lambda: self.leaderOf(other) is not None)


class ConfluentTests(KafkaRegistryCase):
    """A registry of Confluent's in the group."""

    async def test_follows(self) -> None:
        """
        Ours follows the registry that Confluent's chose, passes changes on to it, with the header
        that Confluent's has, and leads when it has left.
        """
        confluent = Confluent(self)
        joined = await confluent.join()
        assignment = (
            f'{{"error":0,"master":"{confluent.memberId}","master_identity":{confluent.identity},'
            '"version":1}'
        )
        await confluent.sync(joined, assignment)
        service = self.makeService()
        service.startService()
        await self.eventually(lambda: service.registry.isReady)
        joined = await confluent.join()
        while len(joined.members) < 2:
            await confluent.sync(joined, assignment)
            joined = await confluent.join()
        metadata = {each.memberId: bytes(each.metadata).decode() for each in joined.members}
        port = service.port.getHost().port
        del metadata[confluent.memberId]
        self.assertEqual(
            list(metadata.values()),
            [
                f'{{"host":"127.0.0.1","port":{port},"master_eligibility":true,"scheme":"http",'
                '"version":1}'
            ],
        )
        await confluent.sync(joined, assignment)
        await self.eventually(lambda: self.leaderOf(service) is not None)
        answer = await self.asked(service, "POST", f"{PATH}?normalize=true", SCHEMA)
        self.assertEqual(answer, {"id": 77})
        self.assertEqual(
            confluent.requests,
            [("POST", f"{PATH}?normalize=true", json.dumps(SCHEMA).encode(), "true")],
        )
        await confluent.port.stopListening()
        self.assertIn("did not answer", await self.refused(50003, service, "DELETE", "/subjects/s"))
        await confluent.leave()
        await self.eventually(lambda: self.leaderOf(service) == self.urlOf(service))
        self.assertEqual(await self.asked(service, "POST", PATH, SCHEMA), {"id": 1})

    async def test_chooses(self) -> None:
        """
        Ours, as the group's leader, chooses of both the one with the smallest URL, and tells
        Confluent's so in its words.
        """
        service = await self.startService()
        confluent = Confluent(self)
        answer = b""
        while not answer:
            answer = await confluent.sync(await confluent.join())
        urls = {
            f"http://127.0.0.1:{confluent.port.getHost().port}": confluent.memberId,
            self.urlOf(service): "",
        }
        told = json.loads(answer)
        identity = told["master_identity"]
        self.assertEqual(min(urls), f"http://127.0.0.1:{identity['port']}")
        self.assertEqual(list(told), ["error", "master", "master_identity", "version"])
        self.assertEqual(
            list(identity), ["host", "port", "master_eligibility", "scheme", "version"]
        )
        await self.eventually(lambda: self.leaderOf(service) == min(urls))


class LeaseTests(KafkaRegistryCase):
    """Whether this registry may write, on a clock."""

    async def setUp(self) -> None:  # type: ignore[override]
        self.clock = Clock()
        self.identity = RegistryIdentity("a", 1, True, "http")
        settings = KafkaConsumerSettings.fromProperties(
            {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
        )
        self.leadership = Leadership(self.clock, settings, self.identity, 4_000)
        self.addCleanup(lambda: Deferred.fromCoroutine(self.leadership.close()))

    def lead(self, leaseMs: float = 10_000) -> None:
        self.leadership.leaseEndsAtMs = self.clock.seconds() * 1000 + leaseMs
        self.leadership.assigned(LeaderAssignment(0, "m", self.identity), "m")

    async def test_lease(self) -> None:
        """
        A record is written only while the session lasts for longer than writing may take; an answer
        is given only within the session.
        """
        self.lead()
        term = await self.leadership.begin()
        self.clock.advance(6)
        self.leadership.checkBefore(term)
        self.clock.advance(1)
        self.assertRaises(NotLeaderError, self.leadership.checkBefore, term)
        self.leadership.check(term)
        self.clock.advance(4)
        error = self.assertRaises(NotLeaderError, self.leadership.check, term)
        self.assertIn("has not heard of the coordinator", str(error))
        self.leadership.end()

    async def test_beatBeforeSync(self) -> None:
        """
        The session counts from when SyncGroup was sent, though a heartbeat was due before the
        answer, which is not sent then; an older heartbeat's answer shortens nothing.
        """
        member = self.leadership._member
        member.membership.phase = Phase.SYNCING
        member._syncSentAtMs = 1_000
        self.clock.advance(4)
        await member._heartbeat()
        await member._assigned(LeaderAssignment(0, "m", self.identity))
        self.assertEqual(self.leadership.leaseEndsAtMs, 46_000)
        member._renew(500)
        self.assertEqual(self.leadership.leaseEndsAtMs, 46_000)

    async def test_terms(self) -> None:
        """A term ends when another registry leads, and with the membership; the next is another."""
        self.lead()
        term = await self.leadership.begin()
        self.leadership.end()
        await self.leadership.lose()
        self.assertRaises(NotLeaderError, self.leadership.check, term)
        self.lead()
        self.assertRaises(NotLeaderError, self.leadership.check, term)
        other = RegistryIdentity("b", 2, True, "http")
        self.leadership.assigned(LeaderAssignment(0, "n", other), "m")
        error = self.assertRaises(NotLeaderError, self.leadership.check, term)
        self.assertEqual(error.url, "http://b:2")

    async def test_duplicates(self) -> None:
        """Two registries with one URL: none leads, and the log says what to set."""
        lines = capture(self)
        self.leadership.assigned(LeaderAssignment(1, "m", self.identity), "m")
        error = self.assertRaises(NotLeaderError, self.leadership.check, 1)
        self.assertIn("same URL", str(error))
        self.assertTrue(any("Set host.name" in line for line in lines()))
        self.leadership.assigned(LeaderAssignment(7, "", None), "m")
        self.assertIn(
            "sent an error", str(self.assertRaises(NotLeaderError, self.leadership.check, 1))
        )
