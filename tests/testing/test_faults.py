"""
Tests of the faults that a test orders, with confluent-kafka as the client that meets them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from twisted.internet import reactor
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.errors import (
    BrokerConnectionError,
    ClosedError,
    ConfigurationError,
    PylogbrokerError,
)
from pylogbroker.net.endpointstrings import SocketAddress
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from pylogbroker.records.recordbatch import Record, encodeBatch
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.syncclient.kafka.connection import KafkaConnection
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from pylogbroker.testing.faults.faultinjector import errorNamed, requestNamed
from pylogbroker.testing.faults.faultresponses import (
    MARKED,
    SPLIT,
    canRefuse,
    mark,
    merge,
    places,
    refusal,
    split,
)
from pylogbroker.testing.localbroker import LocalBroker
from tests.oracle.scenarios import pieces

TIMEOUT_SECONDS = 60
ATTEMPT_COUNT_MAX = 100
REFUSED = ErrorCode.INVALID_REQUEST


def allRefused(topic: str | None, partition: int | None) -> int:
    """Every place is refused."""
    return REFUSED


def noName(topicId: bytes) -> str | None:
    """No id is known."""
    return None


def named(name: str) -> Any:
    """Only a topic's partition 1 is refused."""
    return lambda topic, partition: REFUSED if (topic, partition) == (name, 1) else 0


def requestFor(key: ApiKey) -> Any:
    """A request that is split, with partitions 0 and 1 of topic C{t}, or with what it changes."""
    layout = SPLIT[key]
    cls = key.requestClass
    request = cls()
    if key is ApiKey.DELETE_GROUPS:
        request.groupsNames = ["g"]
        return request
    structs = {
        ApiKey.PRODUCE: ("TopicProduceData", "PartitionProduceData"),
        ApiKey.OFFSET_COMMIT: ("OffsetCommitRequestTopic", "OffsetCommitRequestPartition"),
        ApiKey.TXN_OFFSET_COMMIT: (
            "TxnOffsetCommitRequestTopic",
            "TxnOffsetCommitRequestPartition",
        ),
        ApiKey.OFFSET_DELETE: ("OffsetDeleteRequestTopic", "OffsetDeleteRequestPartition"),
        ApiKey.DELETE_RECORDS: ("DeleteRecordsTopic", "DeleteRecordsPartition"),
        ApiKey.ADD_PARTITIONS_TO_TXN: ("AddPartitionsToTxnTopic", ""),
        ApiKey.CREATE_TOPICS: ("CreatableTopic",),
        ApiKey.CREATE_PARTITIONS: ("CreatePartitionsTopic",),
        ApiKey.DELETE_TOPICS: ("DeleteTopicState",),
        ApiKey.ALTER_CONFIGS: ("AlterConfigsResource",),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: ("AlterConfigsResource",),
    }[key]
    made = getattr(cls, structs[0])
    topic = made(**{"resourceName" if hasattr(made, "resourceName") else "name": "t"})
    if len(layout.asked) > 1:
        partition = getattr(cls, structs[1]) if structs[1] else None
        [field] = [
            name
            for name in ("partitionIndex", "index")
            if partition is None or hasattr(partition, name)
        ][:1]
        setattr(
            topic,
            layout.asked[1],
            [0, 1] if partition is None else [partition(**{field: index}) for index in (0, 1)],
        )
    setattr(request, layout.asked[0], [topic])
    return request


class ResponseTests(SynchronousTestCase):
    """Errors in responses, of every kind and version."""

    def test_split(self) -> None:
        """What is refused is in a response that every version can carry, and nothing is left."""
        for key in SPLIT:
            rest, refused = split(key, requestFor(key), allRefused, noName)
            self.assertIsNone(rest, key)
            first = max(key.firstVersion, 1 if key is ApiKey.OFFSET_COMMIT else 0)
            for version in range(first, key.lastVersion + 1):
                if key is ApiKey.ADD_PARTITIONS_TO_TXN and version > 3:
                    continue
                data = refused.encode(version)
                found, end = key.responseClass.decode(data, version)
                self.assertEqual(end, len(data), (key, version))
                self.assertIn(f"rrorCode={int(REFUSED)}", repr(found), (key, version))

    def test_rest(self) -> None:
        """The rest is carried out; its response and the refusals become one."""
        for key, layout in SPLIT.items():
            if len(layout.asked) < 2:
                continue
            rest, refused = split(key, requestFor(key), named("t"), noName)
            _, answer = split(key, rest, lambda topic, partition: 5, noName)
            [topic] = getattr(merge(key, refused, answer), layout.answered[0])
            found = {
                getattr(part, "partitionIndex", getattr(part, "index", None)): getattr(
                    part, "errorCode", getattr(part, "partitionErrorCode", None)
                )
                for part in getattr(topic, layout.answered[1])
            }
            self.assertEqual(found, {0: 5, 1: REFUSED}, key)

    def test_notRefused(self) -> None:
        """A request without a refused part stays what it is."""
        for key in SPLIT:
            request = requestFor(key)
            self.assertEqual(split(key, request, named("other"), noName), (request, None))

    def test_otherTopics(self) -> None:
        """Refused topics stand beside those that were carried out."""
        request = messages.DeleteTopicsRequest(topicNames=["a", "b"])
        rest, refused = split(
            ApiKey.DELETE_TOPICS, request, lambda topic, part: 3 * (topic == "a"), noName
        )
        self.assertEqual(rest.topicNames, ["b"])
        cls = messages.DeleteTopicsResponse
        answer = cls(responses=[cls.DeletableTopicResult(name="b")])
        found = merge(ApiKey.DELETE_TOPICS, refused, answer).responses
        self.assertEqual([(each.name, each.errorCode) for each in found], [("b", 0), ("a", 3)])

    def test_whole(self) -> None:
        """Requests with one error for all of it have it in every version."""
        keys = [key for key in ApiKey if canRefuse(key) and key not in SPLIT and key not in MARKED]
        self.assertIn(ApiKey.JOIN_GROUP, keys)
        for key in keys:
            for version in range(key.firstVersion, key.lastVersion + 1):
                data = refusal(key.responseClass, REFUSED).encode(version)
                self.assertEqual(key.responseClass.decode(data, version)[0].errorCode, REFUSED)

    def test_coordinators(self) -> None:
        """Coordinators and positions have their errors where each version has them."""
        cls = messages.FindCoordinatorResponse
        old = mark(ApiKey.FIND_COORDINATOR, 3, cls(), allRefused, noName)
        self.assertEqual(old.errorCode, REFUSED)
        new = cls(coordinators=[cls.Coordinator(key="g")])
        mark(ApiKey.FIND_COORDINATOR, 4, new, allRefused, noName)
        self.assertEqual([(each.key, each.errorCode) for each in new.coordinators], [("g", 42)])
        response = mark(ApiKey.OFFSET_FETCH, 7, messages.OffsetFetchResponse(), allRefused, noName)
        self.assertEqual(response.errorCode, REFUSED)

    def test_elections(self) -> None:
        """An election has its error at each partition, in every version."""
        key, cls = ApiKey.ELECT_LEADERS, messages.ElectLeadersResponse
        for version in range(key.lastVersion + 1):
            partition = cls.PartitionResult(partitionId=3, errorCode=0)
            result = cls.ReplicaElectionResult(topic="t", partitionResult=[partition])
            made = mark(key, version, cls(replicaElectionResults=[result]), allRefused, noName)
            (found,) = key.responseClass.decode(made.encode(version), version)[
                0
            ].replicaElectionResults
            (place,) = found.partitionResult
            self.assertEqual((found.topic, place.partitionId), ("t", 3))
            self.assertEqual(place.errorCode, REFUSED)

    def test_places(self) -> None:
        """Topics are found by name or id, in groups too; a request may name none."""
        cls = messages.OffsetFetchRequest
        topic = cls.OffsetFetchRequestTopics(topicId=b"i" * 16, partitionIndexes=[3])
        request = cls(groups=[cls.OffsetFetchRequestGroup(groupId="g", topics=[topic])])
        self.assertEqual(list(places(request, lambda topicId: "t")), [("t", 3)])
        self.assertEqual(list(places(messages.HeartbeatRequest(), noName)), [(None, None)])


class NameTests(SynchronousTestCase):
    """Names of requests and errors."""

    def test_requests(self) -> None:
        """By Kafka's name, in any case, by the constant's, or by key."""
        for name in ("OffsetCommit", "offsetcommit", "OFFSET_COMMIT", 8):
            self.assertIs(requestNamed(name), ApiKey.OFFSET_COMMIT)
        with self.assertRaisesRegex(ConfigurationError, "'Prodce'; Produce is one"):
            requestNamed("Prodce")
        self.assertRaises(ConfigurationError, requestNamed, 4)

    def test_errors(self) -> None:
        """By name or code."""
        for name in ("not_coordinator", "NOT_COORDINATOR", 16, KafkaError.NOT_COORDINATOR):
            self.assertIs(errorNamed(name), ErrorCode.NOT_COORDINATOR)
        with self.assertRaisesRegex(ConfigurationError, "NOT_COORDINATOR is one"):
            errorNamed("NOT_CORDINATOR")
        self.assertRaises(ConfigurationError, errorNamed, 30_000)


class FaultCase(SynchronousTestCase):
    """A broker that clients meet in trouble."""

    broker = BackgroundBroker({"num.partitions": "2"})  # one for all; the end of the run ends it

    def setUp(self) -> None:
        self.broker.reset()
        self.sent: list[tuple[str | None, int | None]] = []

    def producer(self, **settings: Any) -> Producer:
        return Producer(
            {"bootstrap.servers": self.broker.bootstrapServers, "log_level": 0, **settings}
        )

    def produce(self, producer: Producer, value: bytes, partition: int = 0) -> str | None:
        """Produce one record to topic C{t}; returns the name of the error."""

        def delivered(error: Any, message: Any) -> None:
            self.sent.append((error.name() if error else None, message.offset()))

        producer.produce("t", value, partition=partition, on_delivery=delivered)
        self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)
        return self.sent[-1][0]

    def consumer(self, **settings: Any) -> Consumer:
        """It is closed when the test ends."""
        made = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrapServers,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "fetch.error.backoff.ms": 10,
                "log_level": 0,
                **settings,
            }
        )
        self.addCleanup(made.close)
        return made

    def records(self, consumer: Consumer) -> Iterator[Any]:
        """The records that come, within the time that a test has."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < end:
            found = consumer.poll(1)
            if found is not None and not found.error():
                yield found

    def stored(self) -> list[bytes | None]:
        """The values in partition 0 of topic C{t}."""
        consumer = self.consumer(**{"group.id": "other"})
        place = TopicPartition("t", 0, 0)
        consumer.assign([place])
        count = consumer.get_watermark_offsets(place, timeout=TIMEOUT_SECONDS)[1]
        found = self.records(consumer)
        return [next(found).value() for _ in range(count)]


class ErrorTests(FaultCase):
    """Errors."""

    def test_retried(self) -> None:
        """A producer tries again as often as the error is ordered; one record is stored."""
        fault = self.broker.injectError("Produce", "NOT_ENOUGH_REPLICAS", topic="t", count=2)
        self.assertIsNone(self.produce(self.producer(**{"retry.backoff.ms": 1}), b"x"))
        self.assertEqual((fault.hitCount, fault.leftCount), (2, 0))
        self.assertEqual(self.stored(), [b"x"])

    def test_final(self) -> None:
        """An error that nobody tries again reaches the application; nothing is stored."""
        producer = self.producer()
        self.broker.injectError("Produce", KafkaError.INVALID_RECORD)
        self.assertEqual(self.produce(producer, b"x"), "INVALID_RECORD")
        self.assertIsNone(self.produce(producer, b"y"))
        self.assertEqual(self.stored(), [b"y"])

    def test_partition(self) -> None:
        """An error for one partition leaves the others alone; it lasts until it is cleared."""
        producer = self.producer()
        fault = self.broker.injectError(
            "Produce", "INVALID_RECORD", topic="t", partition=1, count=None
        )
        self.assertEqual(self.produce(producer, b"x", 1), "INVALID_RECORD")
        self.assertIsNone(self.produce(producer, b"x", 0))
        self.assertEqual(self.produce(producer, b"x", 1), "INVALID_RECORD")
        self.assertEqual((fault.hitCount, fault.leftCount), (2, None))
        fault.clear()
        self.assertIsNone(self.produce(producer, b"x", 1))

    def test_oneOfTwo(self) -> None:
        """
        Of a request with two partitions the one is refused and the other carried out; of a fetch
        the one is refused and the other has its records; also when the answer is late.
        """
        address = SocketAddress(self.broker.host, self.broker.port)
        with KafkaCluster([address], timeoutMs=TIMEOUT_SECONDS * 1000) as cluster:
            cluster.partitions("t", isCreating=True)
            cls = messages.ProduceRequest
            batch = encodeBatch([Record(0, 0, None, b"x")])
            parts = [cls.PartitionProduceData(index=index, records=batch) for index in (0, 1)]
            topic = cls.TopicProduceData(name="t", partitionData=parts)
            request = cls(acks=-1, timeoutMs=60_000, topicData=[topic])
            fault = self.broker.injectError("Produce", "NOT_ENOUGH_REPLICAS", partition=1)
            self.broker.injectDelay("Produce", 1)
            answer = cluster.any().request(ApiKey.PRODUCE, request, versionMax=12)
            found = {part.index: part for part in answer.responses[0].partitionResponses}
            self.assertEqual(
                {index: part.errorCode for index, part in found.items()}, {0: 0, 1: 19}
            )
            self.assertEqual((found[0].baseOffset, found[1].baseOffset), (0, -1))
            fetching = messages.FetchRequest
            wanted = [
                fetching.FetchPartition(partition=each, partitionMaxBytes=99) for each in (0, 1)
            ]
            body = fetching(
                maxBytes=999, topics=[fetching.FetchTopic(topic="t", partitions=wanted)]
            )
            self.broker.injectError("Fetch", "KAFKA_STORAGE_ERROR", topic="t", partition=1)
            [read] = cluster.any().request(ApiKey.FETCH, body, versionMax=12).responses
            self.assertEqual([part.errorCode for part in read.partitions], [0, 56])
            self.assertEqual(len(read.partitions[0].records), len(batch))
            self.assertEqual(fault.hitCount, 1)
            request.acks = 0
            self.broker.injectError("Produce", "NOT_ENOUGH_REPLICAS", partition=1)
            with self.assertRaises(BrokerConnectionError):  # there is no other way to tell
                cluster.any().request(ApiKey.PRODUCE, request, versionMax=12)

    def test_fetch(self) -> None:
        """A consumer goes on behind errors of its fetches, and misses nothing."""
        self.produce(self.producer(), b"x")
        fault = self.broker.injectError("Fetch", "KAFKA_STORAGE_ERROR", topic="t", count=2)
        consumer = self.consumer()
        consumer.subscribe(["t"])
        self.assertEqual(next(self.records(consumer)).value(), b"x")
        self.assertEqual(fault.hitCount, 2)

    def test_group(self) -> None:
        """A refused commit reaches the application; the next one is carried out."""
        self.produce(self.producer(), b"x")
        consumer, place = self.consumer(), TopicPartition("t", 0, 1)
        self.broker.injectError("OffsetCommit", "GROUP_AUTHORIZATION_FAILED")
        with self.assertRaisesRegex(KafkaException, "GROUP_AUTHORIZATION_FAILED"):
            consumer.commit(offsets=[place], asynchronous=False)
        [found] = consumer.committed([place], timeout=TIMEOUT_SECONDS)
        self.assertLess(found.offset, 0)
        consumer.commit(offsets=[place], asynchronous=False)
        fault = self.broker.injectError("OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS")
        # Another one, since a consumer remembers what it has committed.
        [found] = self.consumer().committed([place], timeout=TIMEOUT_SECONDS)
        self.assertEqual((found.offset, fault.hitCount), (1, 1))

    def test_coordinator(self) -> None:
        """A group joins behind errors of its coordinator."""
        self.produce(self.producer(), b"x")
        faults = [
            self.broker.injectError("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
            self.broker.injectError("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS"),
        ]
        consumer = self.consumer()
        consumer.subscribe(["t"])
        self.assertEqual(next(self.records(consumer)).value(), b"x")
        self.assertEqual([fault.hitCount for fault in faults], [1, 1])

    def test_topics(self) -> None:
        """A topic that is refused is not created; lookups of one can fail, too."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrapServers})
        self.broker.injectError("CreateTopics", "POLICY_VIOLATION", topic="a")
        made = admin.create_topics([NewTopic("a", 1, 1), NewTopic("b", 1, 1)])
        with self.assertRaisesRegex(KafkaException, "POLICY_VIOLATION"):
            made["a"].result(TIMEOUT_SECONDS)
        made["b"].result(TIMEOUT_SECONDS)
        self.assertEqual(set(admin.list_topics(timeout=TIMEOUT_SECONDS).topics), {"b"})
        self.broker.injectError("Metadata", "TOPIC_AUTHORIZATION_FAILED", topic="b")
        error = admin.list_topics("b", timeout=TIMEOUT_SECONDS).topics["b"].error
        assert error is not None
        self.assertEqual(error.name(), "TOPIC_AUTHORIZATION_FAILED")

    def test_refused(self) -> None:
        """What cannot be ordered says why."""
        for order, text in (
            (("Prodce", "NOT_COORDINATOR"), "Produce is one"),
            (("Produce", "NONE"), "no error"),
            (("JoinGroup", "NOT_COORDINATOR", "t"), "names no topics"),
            (("CreateTopics", "INVALID_REQUEST", "t", 0), "names no partitions"),
            (("CreateAcls", "INVALID_REQUEST"), "has no errors"),
            (("Produce", "NOT_COORDINATOR", None, None, 0), "count=0"),
        ):
            with self.assertRaisesRegex(PylogbrokerError, text):
                self.broker.injectError(*order)
        with self.assertRaisesRegex(PylogbrokerError, "delayMs=0"):
            self.broker.injectDelay("Fetch", 0)
        with self.assertRaisesRegex(PylogbrokerError, "no partition t-0"):
            self.broker.moveLeader("t")
        self.broker.stop()
        self.assertRaises(ClosedError, self.broker.injectError, "Fetch", "UNKNOWN_SERVER_ERROR")


class ConnectionTests(FaultCase):
    """Late answers, and connections that end."""

    def test_lostAnswer(self) -> None:
        """
        The answer to a write that was carried out is lost: an idempotent producer does not write
        it twice.
        """
        producer = self.producer(**{"enable.idempotence": True, "retry.backoff.ms": 1})
        fault = self.broker.injectDisconnect("Produce", isHandled=True)
        self.assertIsNone(self.produce(producer, b"x"))
        self.assertEqual(fault.hitCount, 1)
        self.assertEqual(self.stored(), [b"x"])

    def test_lostRequest(self) -> None:
        """A request that was cut off was not carried out, and is sent again."""
        fault = self.broker.injectDisconnect("Produce", topic="t", count=2)
        self.assertIsNone(self.produce(self.producer(**{"retry.backoff.ms": 1}), b"x"))
        self.assertEqual(fault.hitCount, 2)
        self.assertEqual(self.stored(), [b"x"])

    def test_late(self) -> None:
        """A late answer comes when the faults are cleared; its request was carried out at once."""
        producer = self.producer()
        self.broker.injectDelay("Produce", 600_000)
        producer.produce(
            "t", b"x", partition=0, on_delivery=lambda error, sent: self.sent.append((None, 0))
        )
        producer.flush(0)
        consumer = self.consumer()
        consumer.assign([TopicPartition("t", 0, 0)])
        self.assertEqual(next(self.records(consumer)).value(), b"x")
        producer.poll(0)
        self.assertEqual(self.sent, [])
        self.broker.clearFaults()
        self.assertEqual(producer.flush(TIMEOUT_SECONDS), 0)
        self.assertEqual(self.sent, [(None, 0)])

    def test_timeOut(self) -> None:
        """A client that does not wait so long gives up."""
        self.produce(self.producer(), b"x")
        fault = self.broker.injectDelay("ListOffsets", 600_000, count=None)
        consumer = self.consumer()
        for _ in range(ATTEMPT_COUNT_MAX):  # on a busy machine it gives up before it has asked
            with self.assertRaisesRegex(KafkaException, "Timed out|_TIMED_OUT"):
                consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=0.3)
            if fault.hitCount:
                return
        self.fail("it never asked")

    def test_reset(self) -> None:
        """A reset ends all faults, and all waits for late answers."""
        self.broker.injectError("Produce", "INVALID_RECORD", count=None)
        self.broker.injectDelay("Metadata", 600_000, count=None)
        self.broker.reset()
        self.assertIsNone(self.produce(self.producer(), b"x"))


class LeaderTests(FaultCase):
    """Leaders that move."""

    def test_moves(self) -> None:
        """
        Producer and consumer are refused by the old leader, find the new one, and go on; batches
        have its epoch. So they do when the leader moves back.
        """
        producer = self.producer(**{"retry.backoff.ms": 1})
        consumer = self.consumer()
        consumer.subscribe(["t"])
        self.produce(producer, b"0")
        found = self.records(consumer)
        self.assertEqual(next(found).value(), b"0")
        for epoch, leader in ((1, 1), (2, 0), (3, 1)):
            self.assertEqual(self.broker.moveLeader("t"), leader)
            self.assertIsNone(self.produce(producer, b"%d" % epoch))
            record = next(found)
            self.assertEqual((record.value(), record.leader_epoch()), (b"%d" % epoch, epoch))
            described = consumer.list_topics("t", timeout=TIMEOUT_SECONDS)
            self.assertEqual(described.topics["t"].partitions[0].leader, leader)
            self.assertEqual(described.topics["t"].partitions[1].leader, 0)
            self.assertEqual(sorted(described.brokers), [0, 1])

    def test_bootstrap(self) -> None:
        """A client that begins at the new broker's port finds both brokers, and the group's."""
        self.produce(self.producer(), b"x")
        self.broker.moveLeader("t", 0, 7)
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrapServers})
        port = admin.list_topics(timeout=TIMEOUT_SECONDS).brokers[7].port
        self.assertNotEqual(port, self.broker.port)
        consumer = self.consumer(**{"bootstrap.servers": f"127.0.0.1:{port}"})
        consumer.subscribe(["t"])
        self.assertEqual(next(self.records(consumer)).value(), b"x")
        found = consumer.list_topics(timeout=TIMEOUT_SECONDS).brokers
        self.assertEqual(
            {number: each.port for number, each in found.items()}, {0: self.broker.port, 7: port}
        )


class LocalBrokerFaultTests(TestCase):
    """The same in a test's own reactor."""

    async def test_orders(self) -> None:
        """C{LocalBroker} has the same methods; its faults end with it."""
        broker = LocalBroker(reactor)
        self.addCleanup(broker.stop)
        await broker.start()
        error = broker.injectError("Produce", "INVALID_RECORD")
        delay = broker.injectDelay("Fetch", 5, count=None)
        cut = broker.injectDisconnect("Metadata", count=3)
        self.assertEqual(
            [(each.hitCount, each.leftCount) for each in (error, delay, cut)],
            [(0, 1), (0, None), (0, 3)],
        )
        error.clear()
        error.clear()
        broker.clearFaults()
        self.assertRaises(PylogbrokerError, broker.moveLeader, "t")

    async def test_moveLeader(self) -> None:
        """
        The leader that moves there has a port of its own in the same reactor, until it moves back;
        the old one refuses by name, and both are described alike. A cut and a late answer are, too.
        """
        broker = LocalBroker(reactor)
        self.addCleanup(broker.stop)
        await broker.start()
        host, _, port = broker.bootstrapServers.rpartition(":")

        async def ask(key: ApiKey, body: Any) -> Any:
            return await deferToThread(_asked, host, int(port), key, body)

        metadata = messages.MetadataRequest(
            topics=[messages.MetadataRequest.MetadataRequestTopic(name="t")]
        )
        await ask(ApiKey.METADATA, metadata)
        fetch = pieces.fetchBody("t", ZERO_UUID, [(0, 0)], minBytes=0)
        self.assertEqual(broker.moveLeader("t"), 1)
        found = await ask(ApiKey.METADATA, metadata)
        self.assertEqual([each.nodeId for each in found.brokers], [0, 1])
        self.assertEqual(found.topics[0].partitions[0].leaderId, 1)
        cluster = await ask(ApiKey.DESCRIBE_CLUSTER, messages.DescribeClusterRequest())
        self.assertEqual([each.brokerId for each in cluster.brokers], [0, 1])
        new = found.brokers[1].port
        for at, code in ((int(port), ErrorCode.NOT_LEADER_OR_FOLLOWER), (new, ErrorCode.NONE)):
            answer = await deferToThread(_asked, host, at, ApiKey.FETCH, fetch, 12)
            self.assertEqual(answer.responses[0].partitions[0].errorCode, code)
        again = await deferToThread(_asked, host, new, ApiKey.METADATA, metadata)
        self.assertEqual([each.port for each in again.brokers], [int(port), new])
        broker.injectDelay("Metadata", 1)
        await ask(ApiKey.METADATA, metadata)
        broker.injectDisconnect("Metadata")
        with self.assertRaises(BrokerConnectionError):
            await ask(ApiKey.METADATA, metadata)
        self.assertEqual(broker.moveLeader("t"), 0)
        found = await ask(ApiKey.METADATA, metadata)
        self.assertEqual(found.topics[0].partitions[0].leaderId, 0)


def _asked(host: str, port: int, key: ApiKey, body: Any, versionMax: int = 99) -> Any:
    """The answer to one request; to be called on a thread."""
    connection = KafkaConnection(host, port)
    try:
        return connection.request(key, body, versionMax=versionMax)
    finally:
        connection.close()
