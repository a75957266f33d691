"""
The Twisted admin client: each of its calls on a broker of ours, and what becomes of errors.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred

from pylogbroker.client.kafka.admin.client import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    AdminClient,
    AlterConfigOperation,
    ConfigResource,
    NewTopic,
    ResourceKind,
    checkAll,
)
from pylogbroker.cluster.acls import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)
from pylogbroker.errors import ClosedError, TimedOutError, UnknownPartitionError
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import OffsetAndMetadata, TopicPartition
from tests.integration.test_twistedclients import ClientCase

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
SALT = b"0123456789abcdef"


class AdminCase(ClientCase):
    """A broker in this process, and an admin client."""

    configs: dict[str, str] = {}

    async def setUp(self) -> None:  # type: ignore[override]
        self.broker = LocalBroker(
            reactor, {"group.initial.rebalance.delay.ms": "0", **self.configs}
        )
        await self.broker.start()
        self.addCleanup(self.broker.stop)
        self.servers = self.broker.bootstrapServers
        self.admin = self.adminClient()

    def adminClient(self, **settings: str) -> AdminClient:
        made = AdminClient(
            reactor,
            self.settings({"retry_backoff_ms": "10", "default_api_timeout_ms": "5000", **settings}),
        )
        self.addCleanup(made.close)
        return made

    async def topic(self, name: str = "t", count: int = 2) -> None:
        configs = {"retention.ms": "-1"}  # the records are old
        checkAll(await self.admin.createTopics([NewTopic(name, count, configs=configs)]))

    async def fill(self, count: int, topic: str = "t", **settings: str) -> None:
        producer = self.producer(**settings)
        sent = [producer.send(topic, b"x", timestamp=1000 + n, partition=0) for n in range(count)]
        for each in sent:
            await each
        await producer.close()

    def refused(self, found: Any, code: ErrorCode) -> str:
        """The text of an item's error."""
        self.assertIsInstance(found, ResponseError)
        self.assertEqual(found.code, code, str(found))
        return str(found)


class TopicTests(AdminCase):
    """Topics, records and settings."""

    async def test_topics(self) -> None:
        """Topics are created with their settings, described, grown and deleted, by name and id."""
        new = NewTopic("t", 3, 1, {"retention.ms": "5000"})
        wrong = [NewTopic("wrong/name"), NewTopic("u", configs={"retention.ms": "no"})]
        dry = await self.admin.createTopics([new], isDryRun=True)
        self.assertEqual(dry["t"].numPartitions, 3)
        self.assertEqual(await self.admin.listTopics(), [])
        found = await self.admin.createTopics([new, *wrong])
        self.assertEqual(list(found), ["t", "wrong/name", "u"])
        self.assertEqual(found["t"].numPartitions, 3)
        self.refused(found["wrong/name"], ErrorCode.INVALID_TOPIC_EXCEPTION)
        self.assertIn("retention.ms", self.refused(found["u"], ErrorCode.INVALID_CONFIG))
        again = await self.admin.createTopics([new])
        self.refused(again["t"], ErrorCode.TOPIC_ALREADY_EXISTS)
        self.assertRaises(ResponseError, checkAll, again)
        self.assertEqual(await self.admin.listTopics(), ["t"])

        found = await self.admin.describeTopics(["t", "none"])
        self.assertEqual([part.leaderId for part in found["t"].partitions], [0, 0, 0])
        self.refused(found["none"], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        parts = await self.admin.describeTopicPartitions(["t"], 2)
        self.assertEqual([part.partitionIndex for part in parts["t"]], [0, 1, 2])
        failing = self.admin.describeTopicPartitions(["none"])
        await self.assertFailure(failing, ResponseError)

        grown = await self.admin.createPartitions({"t": 5, "none": 5})
        self.assertIsNone(grown["t"])
        self.refused(grown["none"], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        found = await self.admin.describeTopics(["t"])
        self.assertEqual(len(found["t"].partitions), 5)
        await self.topic("u")
        gone = await self.admin.deleteTopics([found["t"].topicId, "u", "none"])
        self.assertEqual(list(gone.values())[:2], [None, None])
        self.refused(gone["none"], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.assertEqual(await self.admin.listTopics(), [])

    async def test_leaderless(self) -> None:
        """A topic that has no leader for the moment is listed, too."""
        await self.topic()
        for error in ("LEADER_NOT_AVAILABLE", "LISTENER_NOT_FOUND"):
            fault = self.broker.injectError("Metadata", error, "t")
            self.assertEqual(await self.admin.listTopics(), ["t"])
            self.assertEqual(fault.hitCount, 1)

    async def test_records(self) -> None:
        """Offsets are found by time at the leaders, and records are deleted."""
        await self.topic()
        await self.fill(10)
        missing, none = TopicPartition("t", 7), TopicPartition("none", 0)
        times = {T0: LATEST, T1: LATEST, missing: LATEST, none: LATEST}
        found = await self.admin.listOffsets(times)
        self.assertEqual([found[place].offset for place in (T0, T1)], [10, 0])
        self.assertIsInstance(found[missing], UnknownPartitionError)
        self.refused(found[none], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for time, offset in ((EARLIEST, 0), (1004, 4), (MAX_TIMESTAMP, 9), (5000, -1)):
            found = await self.admin.listOffsets({T0: time}, isCommitted=True)
            self.assertEqual(found[T0].offset, offset, time)
        deleted = await self.admin.deleteRecords({T0: 3, T1: 5})
        self.assertEqual(deleted[T0], 3)
        self.refused(deleted[T1], ErrorCode.OFFSET_OUT_OF_RANGE)
        found = await self.admin.listOffsets({T0: EARLIEST})
        self.assertEqual(found[T0].offset, 3)

    async def test_configs(self) -> None:
        """Settings are described, set, taken back and replaced; a broker's own are its own."""
        await self.topic()
        topic, broker = ConfigResource(ResourceKind.TOPIC, "t"), ConfigResource(4, "0")
        none = ConfigResource(ResourceKind.TOPIC, "none")
        change = {"retention.ms": (AlterConfigOperation.SET, "7000")}
        found = await self.admin.incrementalAlterConfigs({topic: change}, isDryRun=True)
        self.assertEqual(found, {topic: None})
        self.assertNotEqual(await self.setting(topic), "7000")
        found = await self.admin.incrementalAlterConfigs({topic: change, none: change})
        self.assertIsNone(found[topic])
        self.refused(found[none], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.assertEqual(await self.setting(topic), "7000")
        described = await self.admin.describeConfigs(
            [topic, broker, none], includeSynonyms=True, includeDocumentation=True
        )
        self.assertTrue(described[topic]["retention.ms"].synonyms)
        self.assertIn("log.dirs", described[broker])
        self.refused(described[none], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.assertIn(topic, await self.admin.listConfigResources([ResourceKind.TOPIC]))
        checkAll(await self.admin.alterConfigs({topic: {"cleanup.policy": "compact"}}))
        self.assertNotEqual(await self.setting(topic), "7000")
        self.assertEqual(await self.setting(topic, "cleanup.policy"), "compact")

    async def setting(self, resource: ConfigResource, name: str = "retention.ms") -> str:
        found = checkAll(await self.admin.describeConfigs([resource], [name]))
        value: str = found[resource][name].value
        return value

    async def test_cluster(self) -> None:
        """The cluster, its log directories and its replicas."""
        await self.topic()
        await self.fill(3)
        cluster = await self.admin.describeCluster()
        self.assertEqual([each.brokerId for each in cluster.brokers], [0])
        cluster = await self.admin.describeCluster(includeFencedBrokers=True)
        self.assertEqual([(each.brokerId, each.isFenced) for each in cluster.brokers], [(0, False)])
        unregistering = self.admin.unregisterBroker(8)
        error: Any = await self.assertFailure(unregistering, ResponseError)
        self.refused(error, ErrorCode.BROKER_ID_NOT_REGISTERED)
        for brokers in (None, [0]):
            [[directory]] = (await self.admin.describeLogDirs(brokers)).values()
            sizes = {
                (topic.name, part.partitionIndex): part.partitionSize
                for topic in directory.topics
                for part in topic.partitions
            }
            self.assertGreater(sizes["t", 0], sizes["t", 1])
        elected = await self.admin.electLeaders([T0])
        self.refused(elected[T0], ErrorCode.ELECTION_NOT_NEEDED)
        self.assertEqual(await self.admin.electLeaders(None), {})
        self.assertEqual(await self.admin.listPartitionReassignments(), {})
        self.assertEqual(await self.admin.listPartitionReassignments([T0]), {})
        moved = await self.admin.alterPartitionReassignments({T0: [0], T1: None})
        self.refused(moved[T1], ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        self.assertIn(T0, moved)


class GroupTests(AdminCase):
    """Groups, offsets, producers and transactions."""

    async def test_groups(self) -> None:
        """A group is listed and described; a member is removed; an empty group is deleted."""
        await self.topic()
        consumer = self.consumer(group_id="g", group_instance_id="one", session_timeout_ms="6000")
        await self.fill(1)
        consumer.subscribe(["t"])
        await consumer.__anext__()
        listed = await self.admin.listGroups()
        self.assertEqual(listed["g"].groupState, "Stable")
        self.assertEqual(await self.admin.listGroups(["Empty"], ["classic"]), {})
        found = await self.admin.describeGroups(["g", "none"])
        [member] = found["g"].members
        self.assertEqual(member.groupInstanceId, "one")
        deleted = await self.admin.deleteGroups(["g"])
        self.refused(deleted["g"], ErrorCode.NON_EMPTY_GROUP)
        described = await self.admin.describeConsumerGroups(["g"])
        self.refused(described["g"], ErrorCode.GROUP_ID_NOT_FOUND)
        await consumer.close()
        removed = await self.admin.removeMembers("g", [("", "one"), ("no", None)], "test")
        self.assertIsNone(removed["one"])
        self.refused(removed["no"], ErrorCode.UNKNOWN_MEMBER_ID)
        self.assertEqual(await self.admin.deleteGroups(["g"]), {"g": None})
        self.assertEqual(await self.admin.listGroups(), {})

    async def test_offsets(self) -> None:
        """Positions of a group are set, listed and forgotten."""
        await self.topic()
        given: dict[TopicPartition, int | OffsetAndMetadata] = {
            T0: OffsetAndMetadata(5, 0, "here"),
            T1: 7,
        }
        altered = await self.admin.alterConsumerGroupOffsets(
            "g", {**given, TopicPartition("t", 9): 1}
        )
        self.assertEqual([altered[T0], altered[T1]], [None, None])
        self.refused(altered[TopicPartition("t", 9)], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        expected = {T0: OffsetAndMetadata(5, 0, "here"), T1: OffsetAndMetadata(7)}
        self.assertEqual(await self.admin.listConsumerGroupOffsets("g"), expected)
        found = await self.admin.listConsumerGroupOffsets("g", [T1], isStable=True)
        self.assertEqual(found, {T1: OffsetAndMetadata(7)})
        self.assertEqual(await self.admin.deleteConsumerGroupOffsets("g", [T0]), {T0: None})
        self.assertEqual(list(await self.admin.listConsumerGroupOffsets("g")), [T1])
        failing = self.admin.deleteConsumerGroupOffsets("none", [T0])
        await self.assertFailure(failing, ResponseError)

    async def test_transactions(self) -> None:
        """Producers of a partition and transactions are described; a hanging one is aborted."""
        await self.topic()
        await self.fill(1)
        [[producer]] = checkAll(await self.admin.describeProducers([T0])).values()
        self.assertEqual(producer.lastSequence, 0)
        fenced = await self.admin.fenceProducers(["x"])
        (producerId, epoch) = checkAll(fenced)["x"]
        self.assertGreaterEqual(producerId, 0)
        listed = await self.admin.listTransactions(["Empty"], [producerId])
        self.assertEqual(list(listed), ["x"])
        self.assertEqual(await self.admin.listTransactions(durationMs=10_000, pattern="y"), {})
        found = await self.admin.describeTransactions(["x", "none"])
        self.assertEqual(found["x"].producerEpoch, epoch)
        self.refused(found["none"], ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        await self.admin.abortTransaction(T0, producerId, epoch, 0)
        failing = self.admin.abortTransaction(TopicPartition("t", 9), producerId, epoch, 0)
        await self.assertFailure(failing, UnknownPartitionError)


class SecurityTests(AdminCase):
    """Access control lists, users and quotas."""

    configs = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }

    async def test_acls(self) -> None:
        """Bindings are made, found and removed."""
        one = AclBinding(
            AclResourceType.TOPIC,
            PatternType.PREFIXED,
            "t",
            "User:a",
            "*",
            AclOperation.READ,
            AclPermission.ALLOW,
        )
        other = one._replace(resourceName="u", principal="User:b")
        wrong = one._replace(principal="nobody")
        found = await self.admin.createAcls([one, other, wrong])
        self.assertEqual([found[one], found[other]], [None, None])
        self.refused(found[wrong], ErrorCode.INVALID_REQUEST)
        self.assertEqual(set(await self.admin.describeAcls()), {one, other})
        some = AclFilter(principal="User:a")
        self.assertEqual(await self.admin.describeAcls(some), [one])
        self.assertEqual(await self.admin.deleteAcls([some]), {some: [one]})
        self.assertEqual(await self.admin.describeAcls(), [other])

    async def test_users(self) -> None:
        """Passwords are set and removed; wrong arguments are refused before anything is sent."""
        mechanism = "SCRAM-SHA-256"
        await self.admin.alterUserScramCredentials({("a", mechanism): "secret"}, SALT)
        self.assertEqual(await self.admin.describeUserScramCredentials(), {"a": {mechanism: 4096}})
        self.assertEqual(await self.admin.describeUserScramCredentials(["b"]), {})
        found = await self.admin.alterUserScramCredentials(
            {("a", mechanism): None, ("b", mechanism): None}, SALT
        )
        self.assertIsNone(found["a"])
        self.refused(found["b"], ErrorCode.RESOURCE_NOT_FOUND)
        self.assertEqual(await self.admin.describeUserScramCredentials(), {})
        for passwords, salt in (({("a", "MD5"): "x"}, SALT), ({}, b"short")):
            self.assertRaises(ValueError, self.admin.alterUserScramCredentials, passwords, salt)

    async def test_quotas(self) -> None:
        """Quotas are set, found and removed."""
        user, default = (("user", "a"),), (("user", None),)
        key = "producer_byte_rate"
        found = await self.admin.alterClientQuotas(
            {user: {key: 1000.0}, default: {key: 2000.0}, (("no", "x"),): {key: 1.0}}
        )
        self.assertEqual([found[user], found[default]], [None, None])
        self.refused(found[(("no", "x"),)], ErrorCode.INVALID_REQUEST)
        everything = {user: {key: 1000.0}, default: {key: 2000.0}}
        self.assertEqual(await self.admin.describeClientQuotas(), everything)
        for name, entity in (("a", user), (None, default)):
            self.assertEqual(
                await self.admin.describeClientQuotas({"user": name}, isStrict=True),
                {entity: everything[entity]},
            )
        self.assertEqual(await self.admin.describeClientQuotas({"user": "*"}), everything)
        await self.admin.alterClientQuotas({user: {key: None}})
        self.assertEqual(await self.admin.describeClientQuotas(), {default: {key: 2000.0}})


class ErrorTests(AdminCase):
    """Errors, and the end."""

    async def test_everyStep(self) -> None:
        """Each error that passes costs a wait, at whichever broker or coordinator it comes."""
        await self.topic()
        await self.fill(1)
        coordinators = ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS")
        leaders = ("NOT_LEADER_OR_FOLLOWER", "REPLICA_NOT_AVAILABLE")
        calls: tuple[tuple[str, tuple[str, ...], Any], ...] = (
            ("CreateTopics", ("NOT_CONTROLLER",), lambda: self.admin.createTopics([NewTopic("n")])),
            ("DeleteTopics", ("NOT_CONTROLLER",), lambda: self.admin.deleteTopics(["n"])),
            ("ListOffsets", leaders, lambda: self.admin.listOffsets({T0: LATEST})),
            ("DeleteRecords", leaders, lambda: self.admin.deleteRecords({T0: 0})),
            (
                "OffsetCommit",
                coordinators,
                lambda: self.admin.alterConsumerGroupOffsets("g", {T0: 1}),
            ),
            ("OffsetFetch", coordinators, lambda: self.admin.listConsumerGroupOffsets("g")),
            ("DescribeGroups", coordinators, lambda: self.admin.describeGroups(["g"])),
            ("ListGroups", coordinators[1:], self.admin.listGroups),
        )
        for request, errors, call in calls:
            for error in errors:
                if request == "DeleteTopics":
                    await self.admin.createTopics([NewTopic("n")])
                fault = self.broker.injectError(request, error)
                found = await call()
                self.assertEqual(fault.hitCount, 1, (request, error))
                for each in found.values():
                    self.assertFalse(isinstance(each, Exception), (request, error, each))

    async def test_late(self) -> None:
        """An error that stays ends in a time-out with it; other items keep their result."""
        await self.topic()
        admin = self.adminClient(default_api_timeout_ms="200")
        self.broker.injectError("ListOffsets", "NOT_LEADER_OR_FOLLOWER", "t", 0, count=None)
        found = await admin.listOffsets({T0: LATEST, T1: LATEST})
        self.assertEqual(found[T1].offset, 0)
        self.assertIsInstance(found[T0], TimedOutError)
        self.assertIn("NOT_LEADER_OR_FOLLOWER", str(found[T0]))
        failing = admin.listOffsets({T0: LATEST})
        error = await self.assertFailure(failing, TimedOutError)
        self.assertIn("NOT_LEADER_OR_FOLLOWER", str(error))
        self.assertEqual(await admin.listOffsets({}), {})

    async def test_closed(self) -> None:
        """After C{close} calls fail."""
        admin = self.adminClient()
        async with admin:
            await admin.listTopics()
        calls: list[Deferred[Any]] = [admin.listTopics(), admin.createTopics([NewTopic("t")])]
        for each in calls:
            await self.assertFailure(each, ClosedError)
        self.assertIn("AdminClient", repr(admin))
