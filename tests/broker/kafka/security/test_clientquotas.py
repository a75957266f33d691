"""Clients that exceed quotas are told so, and held back."""

from __future__ import annotations

from typing import Any

from pylogbroker.broker.kafka.security import clientquotas, quotarequests
from pylogbroker.broker.requestmemory import ORDINARY_SIZE_MAX, ORDINARY_SIZE_TOTAL
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from tests.broker.kafka.kafkacase import KafkaCase, batchOf, decoded, frameOf

ALTER = ApiKey.ALTER_CLIENT_QUOTAS
PRODUCE, FETCH = ApiKey.PRODUCE, ApiKey.FETCH


class QuotaCase(KafkaCase):
    """A client C{c} of C{User:ANONYMOUS}."""

    def limit(self, key: str, value: float | None, **names: str | None) -> int:
        """Set a quota, of client C{c} unless names say otherwise; C{client} is a client id."""
        cls = messages.AlterClientQuotasRequest
        entity = [
            cls.EntityData(entityType={"client": "client-id"}.get(kind, kind), entityName=name)
            for kind, name in (names or {"client": "c"}).items()
        ]
        op = cls.OpData(key=key, value=value or 0, remove=value is None)
        body = cls(entries=[cls.EntryData(entity=entity, ops=[op])])
        admin = self.connect()
        admin.send(frameOf(ALTER, 1, body, "admin"))
        self.lead.settle()
        (frame,) = admin.frames()
        code: int = decoded(ALTER, 1, frame).entries[0].errorCode
        return code

    def producing(self, size: int, acks: int = 1) -> Any:
        cls = messages.ProduceRequest
        part = cls.PartitionProduceData(index=0, records=batchOf(b"x" * size))
        return cls(acks=acks, topicData=[cls.TopicProduceData(name="t", partitionData=[part])])

    def fetching(self) -> Any:
        cls = messages.FetchRequest
        part = cls.FetchPartition(partition=0, partitionMaxBytes=1)
        topic = cls.FetchTopic(topic="t", partitions=[part])
        return cls(maxBytes=1, maxWaitMs=0, topics=[topic])

    def isHeld(self) -> bool:
        """Whether the connection's next request waits."""
        self.peer.send(frameOf(ApiKey.LIST_GROUPS, 0, messages.ListGroupsRequest()))
        self.lead.settle()
        return not self.peer.frames()

    def throttled(self) -> dict[str, int]:
        counters = self.lead.service.counters.requests
        return {"count": counters.throttledCount, "ms": counters.throttledMs}


class ByteRateTests(QuotaCase):
    """Bytes that are produced and fetched."""

    def test_produce(self) -> None:
        """The records are taken; the client is told to wait, and its next requests do."""
        self.assertEqual(self.limit("producer_byte_rate", 100), 0)
        first = self.ask(PRODUCE, 9, self.producing(500))
        self.assertEqual(first.throttleTimeMs, 0)
        second = self.ask(PRODUCE, 9, self.producing(900))
        self.assertEqual(second.responses[0].partitionResponses[0].baseOffset, 1)
        self.assertGreater(second.throttleTimeMs, 4000)
        self.assertTrue(self.isHeld())
        self.lead.advance(second.throttleTimeMs / 1000 - 0.5)
        self.assertEqual(self.peer.frames(), [])
        self.lead.advance(1)
        self.assertEqual(len(self.peer.frames()), 1)
        self.assertFalse(self.isHeld())
        self.assertEqual(self.throttled(), {"count": 1, "ms": second.throttleTimeMs})

    def test_largeFetch(self) -> None:
        """A fetch gets no more than the quota of all windows, and so comes on."""
        for _ in range(20):
            self.ask(PRODUCE, 9, self.producing(500, -1))
        self.limit("consumer_byte_rate", 200)
        cls = messages.FetchRequest
        part = cls.FetchPartition(partition=0, partitionMaxBytes=1 << 20)
        topic = cls.FetchTopic(topic="t", partitions=[part])
        body = cls(maxBytes=1 << 20, maxWaitMs=0, topics=[topic])
        found = self.ask(ApiKey.FETCH, 4, body)
        size = len(found.responses[0].partitions[0].records)
        self.assertTrue(1000 < size <= 2000, size)

    def test_unacknowledged(self) -> None:
        """Without a response the client is held back all the same."""
        self.limit("producer_byte_rate", 100)
        self.peer.send(frameOf(PRODUCE, 9, self.producing(2000, 0)))
        self.lead.settle()
        self.assertTrue(self.isHeld())

    def test_order(self) -> None:
        """Requests that wait are handled in their order, until one is held back again."""
        self.limit("producer_byte_rate", 100)
        for size in (2000, 3000, 1, 1):
            self.peer.send(frameOf(PRODUCE, 9, self.producing(size)))
        self.lead.settle()
        found: list[Any] = []
        for _ in range(200):
            found += [decoded(PRODUCE, 9, frame) for frame in self.peer.frames()]
            self.lead.advance(1)
        offsets = [each.responses[0].partitionResponses[0].baseOffset for each in found]
        self.assertEqual(offsets, [0, 1, 2, 3])
        self.assertEqual([each.throttleTimeMs > 0 for each in found[:2]], [True, True])

    def test_fetch(self) -> None:
        """Records beyond the quota are not sent, until the client has waited."""
        self.ask(PRODUCE, 9, self.producing(900, -1))
        self.limit("consumer_byte_rate", 100)
        answers = []
        for _ in range(2):
            self.peer = self.connect()
            answers.append(self.ask(FETCH, 11, self.fetching()))
        first, second = answers
        self.assertEqual((first.throttleTimeMs, len(first.responses)), (0, 1))
        self.assertEqual(second.responses, [])
        self.assertGreater(second.throttleTimeMs, 0)
        self.assertEqual(self.lead.pinCounts(), [0] * len(self.lead.pinCounts()))
        self.lead.advance(12)
        self.assertEqual(len(self.ask(FETCH, 11, self.fetching()).responses), 1)

    def test_fetchOfASession(self) -> None:
        """A session goes on where it was before the client had to wait."""
        self.ask(PRODUCE, 9, self.producing(900, -1))
        body = self.fetching()
        body.sessionEpoch = 0
        begun = self.ask(FETCH, 11, body)
        self.assertGreater(begun.sessionId, 0)
        self.limit("consumer_byte_rate", 10)
        again = messages.FetchRequest(
            maxBytes=1, maxWaitMs=0, sessionId=begun.sessionId, sessionEpoch=1
        )
        held = self.ask(FETCH, 11, again)
        self.assertEqual((held.sessionId, held.errorCode), (begun.sessionId, 0))
        self.assertEqual(held.responses, [])
        self.lead.advance(held.throttleTimeMs / 1000 + 1)
        self.limit("consumer_byte_rate", None)
        again.sessionEpoch = 2
        self.assertEqual(len(self.ask(FETCH, 11, again).responses), 1)

    def test_users(self) -> None:
        """A user's quota is for all its clients together; other users have none."""
        self.limit("producer_byte_rate", 100, user="ANONYMOUS")
        self.ask(PRODUCE, 9, self.producing(900), clientId="a")
        found = self.ask(PRODUCE, 9, self.producing(900), clientId="b")
        self.assertGreater(found.throttleTimeMs, 0)
        self.limit("producer_byte_rate", None, user="ANONYMOUS")
        self.limit("producer_byte_rate", 100, user="alice")
        self.peer = self.connect()
        self.assertEqual(self.ask(PRODUCE, 9, self.producing(900)).throttleTimeMs, 0)

    def test_removed(self) -> None:
        """A quota that is gone holds nobody back."""
        self.limit("producer_byte_rate", 1)
        self.limit("producer_byte_rate", None)
        self.assertEqual(self.ask(PRODUCE, 9, self.producing(900)).throttleTimeMs, 0)


class HoldTests(QuotaCase):
    """Connections that are held back."""

    def throttle(self) -> None:
        self.limit("producer_byte_rate", 1)
        self.ask(PRODUCE, 9, self.producing(9000))
        self.assertTrue(self.isHeld())

    def throttled(self) -> dict[Any, Any]:
        found: dict[Any, Any] = self.lead.service.kafka.quotas._throttled
        return found

    def test_memory(self) -> None:
        """
        What clients send while they are held back stays in the kernels' buffers: they hold no
        memory that others would wait for.
        """
        self.limit("producer_byte_rate", 1)
        memory = self.lead.service.connections.memory
        data = frameOf(PRODUCE, 9, self.producing(ORDINARY_SIZE_MAX // 2))
        count = ORDINARY_SIZE_TOTAL // len(data)
        peers = [self.connect() for _ in range(4)]
        for peer in peers:
            peer.send(data)
            self.lead.settle()
            self.assertEqual(len(peer.frames()), 1)
            self.assertRaises(RuntimeError, peer.send, *[data] * count)  # the broker does not read
            self.assertLessEqual(peer.heldSize, memory.receiveSize)
        self.assertEqual((memory.reservedSize, memory.waitingCount), (0, 0))
        self.peer = self.connect()
        body = self.producing(ORDINARY_SIZE_MAX // 2)
        found = self.ask(PRODUCE, 9, body, clientId="other")
        self.assertEqual(found.responses[0].partitionResponses[0].errorCode, 0)

    def test_longer(self) -> None:
        """A client that is held back again, by a fetch under way, waits for the longer time."""
        self.throttle()
        (state,) = self.throttled()
        quotas = self.lead.service.kafka.quotas
        quotas.throttle(state, 5_000_000)
        quotas.throttle(state, 1000)
        self.lead.advance(4999)
        self.assertEqual(self.peer.frames(), [])
        self.lead.advance(2)
        self.assertEqual(len(self.peer.frames()), 1)

    def test_lost(self) -> None:
        """A client that is gone leaves nothing that waits."""
        self.throttle()
        self.assertEqual(len(self.throttled()), 1)
        self.peer.vanish()
        self.lead.settle()
        self.assertEqual((self.throttled(), len(self.lead.service.kafka.purgatory)), ({}, 0))

    def test_stop(self) -> None:
        """A broker that stops answers what waits."""
        self.throttle()
        self.lead.stop()
        self.assertEqual(self.throttled(), {})

    def test_longest(self) -> None:
        """No client is held back for longer than a limit."""
        self.patch(clientquotas, "THROTTLE_MS_MAX", 3000)
        self.throttle()
        self.lead.advance(3)
        self.assertEqual(len(self.peer.frames()), 1)

    def test_ratesAreForgotten(self) -> None:
        """Rates of clients that are idle, or too many, are forgotten; long names are kept short."""
        self.patch(clientquotas, "RATE_COUNT_MAX", 3)
        self.limit("producer_byte_rate", 1e6, client=None)
        quotas = self.lead.service.kafka.quotas
        for number in range(6):
            self.ask(PRODUCE, 9, self.producing(9), clientId=f"{number}" * 300)
        self.assertEqual(len(quotas._rates), 3)
        self.assertEqual({len(name) for _, _, name in quotas._rates}, {64})
        self.lead.advance(clientquotas.IDLE_MS / 1000 + 1)
        self.ask(PRODUCE, 9, self.producing(9))
        self.assertEqual(list(quotas._rates), [("producer_byte_rate", "", "c")])

    def test_restart(self) -> None:
        """Quotas hold after a power cut."""
        self.limit("producer_byte_rate", 1)
        self.lead.fileSystem.cutPower()
        self.begin(fileSystem=self.lead.fileSystem, reactor=self.lead.reactor)
        self.assertGreater(self.ask(PRODUCE, 9, self.producing(900)).throttleTimeMs, 0)


class OtherQuotaTests(QuotaCase):
    """The processor, changes of topics, and connections."""

    def creating(self, *names: str, count: int = 1) -> Any:
        cls = messages.CreateTopicsRequest
        return cls(
            topics=[
                cls.CreatableTopic(name=name, numPartitions=count, replicationFactor=1)
                for name in names
            ]
        )

    def test_processor(self) -> None:
        """A client that takes too much of the reactor's time waits a window at most."""
        self.limit("request_percentage", 0.001)
        quotas = self.lead.service.kafka.quotas
        quotas._seconds = iter(n / 10 for n in range(10**6)).__next__
        for key, version, body in (
            (ApiKey.LIST_GROUPS, 1, messages.ListGroupsRequest()),
            (FETCH, 11, self.fetching()),
            (PRODUCE, 9, self.producing(9)),
            (ApiKey.CREATE_TOPICS, 5, self.creating("n")),
        ):
            self.peer = self.connect()
            self.assertEqual(self.ask(key, version, body).throttleTimeMs, 1000, key)

    def test_brokers(self) -> None:
        """Brokers that end or verify transactions are not held back; clients that add are."""
        self.limit("request_percentage", 0.001)
        quotas = self.lead.service.kafka.quotas
        quotas._seconds = iter(n / 10 for n in range(10**6)).__next__
        add = messages.AddPartitionsToTxnRequest(
            v3AndBelowTransactionalId="x",
            v3AndBelowProducerId=1,
            v3AndBelowProducerEpoch=0,
            v3AndBelowTopics=[],
        )
        for key, version, body, isHeld in (
            (ApiKey.WRITE_TXN_MARKERS, 1, messages.WriteTxnMarkersRequest(), False),
            (ApiKey.ADD_PARTITIONS_TO_TXN, 4, messages.AddPartitionsToTxnRequest(), False),
            (ApiKey.ADD_PARTITIONS_TO_TXN, 3, add, True),
        ):
            self.peer = self.connect()
            self.ask(key, version, body)
            self.assertEqual(bool(quotas._throttled), isHeld, (key, version))

    def test_mutations(self) -> None:
        """Topics are refused beyond the quota; nothing is created, grown or deleted then."""
        self.limit("controller_mutation_rate", 1)
        found = self.ask(ApiKey.CREATE_TOPICS, 7, self.creating("a", "b", count=12))
        codes = [each.errorCode for each in found.topics]
        refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        self.assertEqual(codes, [0, refused])
        self.assertEqual(found.throttleTimeMs, 1000)
        self.assertNotIn("b", self.lead.service.kafka.topics.image.topics)
        grown = messages.CreatePartitionsRequest
        deleted = messages.DeleteTopicsRequest
        more = grown.CreatePartitionsTopic(name="a", count=13, assignments=None)
        state = deleted.DeleteTopicState(name="a", topicId=bytes(16))
        for key, version, body, answers in (
            (ApiKey.CREATE_PARTITIONS, 3, grown(topics=[more]), "results"),
            (ApiKey.DELETE_TOPICS, 6, deleted(topics=[state]), "responses"),
        ):
            self.peer = self.connect()
            found = self.ask(key, version, body)
            self.assertEqual(getattr(found, answers)[0].errorCode, refused)
            self.assertGreater(found.throttleTimeMs, 0)
        self.assertEqual(self.lead.service.kafka.topics.image.topics["a"].partitionCount, 12)
        self.lead.advance(2)
        self.peer = self.connect()
        self.assertEqual(self.ask(key, version, body).responses[0].errorCode, 0)

    def test_olderMutations(self) -> None:
        """Older versions, which do not know the error, are carried out; then the client waits."""
        self.limit("controller_mutation_rate", 1)
        found = self.ask(ApiKey.CREATE_TOPICS, 5, self.creating("a", "b", count=12))
        self.assertEqual([each.errorCode for each in found.topics], [0, 0])
        self.assertEqual(found.throttleTimeMs, 13_000)

    def test_connections(self) -> None:
        """An address that connects too often is not read, and cut off after a while."""
        self.limit("connection_creation_rate", 1, ip=None)
        connections = self.lead.service.connections
        openCount = len(connections.open)
        for _ in range(20):
            self.lead.tryConnect()
        self.lead.settle()
        self.assertEqual(len(connections.open), openCount + 10)
        self.assertEqual(len(connections.delayed), 10)
        self.lead.advance(1)
        self.lead.settle()
        self.assertEqual(len(connections.delayed), 0)
        self.lead.advance(12)
        self.limit("connection_creation_rate", None, ip=None)


class RequestTests(QuotaCase):
    """Setting and listing quotas. What Apache answers is compared elsewhere."""

    def test_room(self) -> None:
        """All quotas together have a size; beyond it, further ones are refused."""
        self.patch(quotarequests, "QUOTA_SIZE_MAX", 150)
        self.assertEqual(self.limit("producer_byte_rate", 1, client="a"), 0)
        self.assertEqual(
            self.limit("producer_byte_rate", 1, client="b"), ErrorCode.POLICY_VIOLATION
        )
        self.assertEqual(self.limit("producer_byte_rate", 2, client="a"), 0)
        self.limit("producer_byte_rate", None, client="a")
        self.assertEqual(self.limit("producer_byte_rate", 1, client="b"), 0)

    def test_matchWithAName(self) -> None:
        """Only an exact match has a name."""
        cls = messages.DescribeClientQuotasRequest
        for match, text in ((1, "MATCH_TYPE_DEFAULT"), (2, "MATCH_TYPE_SPECIFIED")):
            one = cls.ComponentData(entityType="user", matchType=match, match="u")
            found = self.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, cls(components=[one]))
            self.assertEqual(found.errorCode, ErrorCode.INVALID_REQUEST)
            self.assertIn(text, found.errorMessage)
