"""Creating, growing and deleting topics."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.kafka import topicrequests
from pylogbroker.broker.kafka.configrequests import ConfigSource
from pylogbroker.broker.kafka.topicrequests import TopicDefaults, TopicRequests
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from tests.broker.kafka.requestbench import RequestBench

CREATE, DELETE, GROW = ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS


def topic(
    name: str,
    count: int = 1,
    factor: int = 1,
    assignments: dict[int, list[int]] | None = None,
    **configs: str | None,
) -> Any:
    """A topic in a CreateTopics request."""
    cls = messages.CreateTopicsRequest
    return cls.CreatableTopic(
        name=name,
        numPartitions=count,
        replicationFactor=factor,
        assignments=[
            cls.CreatableReplicaAssignment(partitionIndex=index, brokerIds=brokers)
            for index, brokers in (assignments or {}).items()
        ],
        configs=[
            cls.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


class TopicCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.bench = RequestBench(max_partitions="100")
        defaults = TopicDefaults(partitionCount=4)
        self.bench.handlers = TopicRequests(self.bench.topics, defaults).handlers

    @property
    def counts(self) -> dict[str, int]:
        topics = self.bench.topics.image.topics
        return {name: each.partitionCount for name, each in topics.items()}


class CreateTests(TopicCase):
    """CreateTopics."""

    def create(self, *topics: Any, version: int = 7, validateOnly: bool = False) -> list[Any]:
        request = messages.CreateTopicsRequest(topics=list(topics), validateOnly=validateOnly)
        return list(self.bench.ask(CREATE, version, request).topics)

    def test_create(self) -> None:
        """Topics that are answered have partitions, with one replica each."""
        found: list[Any] = []
        for version, names in ((2, "ab"), (7, "cd")):
            found = self.create(
                topic(names[0], 2, retention_ms="5"), topic(names[1], -1, -1), version=version
            )
            self.assertEqual(
                [(each.name, each.errorCode) for each in found], [(names[0], 0), (names[1], 0)]
            )
        self.assertEqual(self.counts, {"a": 2, "b": 4, "c": 2, "d": 4})
        self.bench.append(b"x", name="a")
        self.assertEqual(found[0].topicId, self.bench.topics.image.topics["c"].topicId.bytes)
        self.assertEqual((found[0].numPartitions, found[0].replicationFactor), (2, 1))
        configs = {each.name: each for each in found[0].configs}
        own, other = configs["retention.ms"], configs["segment.bytes"]
        self.assertEqual((own.value, own.configSource), ("5", ConfigSource.DYNAMIC_TOPIC))
        self.assertEqual((other.value, other.configSource), ("1073741824", ConfigSource.DEFAULT))
        self.assertFalse(own.readOnly or own.isSensitive)

    def test_survives(self) -> None:
        """A topic that was answered survives the loss of power."""
        self.create(topic("a", 2))
        self.bench.files.cutPower()
        bench = RequestBench(self.bench.files)
        self.assertEqual(list(bench.topics.image.topics), ["a"])
        self.assertIsNotNone(bench.topics.find("a", 1))

    def test_validateOnly(self) -> None:
        """A request that only validates is answered as any other, and creates nothing."""
        good, bad = self.create(topic("a", 3), topic("b", 0), validateOnly=True)
        self.assertEqual((good.errorCode, good.numPartitions), (0, 3))
        self.assertEqual(bad.errorCode, ErrorCode.INVALID_PARTITIONS)
        self.assertEqual(self.counts, {})

    def test_topicOfAnotherBroker(self) -> None:
        """A topic of 2011 on another broker of the cluster has its name; ZooKeeper says so."""

        async def find(name: str) -> str | None:
            return "/brokers/topics/old" if name == "old" else None

        self.bench.topics.findOf2011 = find
        old, bad, good = self.create(topic("old"), topic("b/c"), topic("x"))
        self.assertEqual(old.errorCode, ErrorCode.TOPIC_ALREADY_EXISTS)
        self.assertIn("/brokers/topics/old in ZooKeeper", old.errorMessage)
        self.assertEqual(bad.errorCode, ErrorCode.INVALID_TOPIC_EXCEPTION)
        self.assertEqual(good.errorCode, 0)

    def test_refused(self) -> None:
        """Each bad topic is refused with Kafka's code and text; the good one is created."""
        self.create(topic("a.b"))
        cases: list[tuple[Any, ErrorCode, str]] = [
            (topic("a.b"), ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a.b' already exists."),
            (
                topic("__cluster_metadata"),
                ErrorCode.INVALID_REQUEST,
                "Creation of internal topic __cluster_metadata is prohibited.",
            ),
            (
                topic(""),
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                "Topic name is invalid: the empty string is not allowed",
            ),
            (
                topic("f0", 1, 0),
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            ),
            (
                topic("f3", 1, 3),
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Unable to replicate the partition 3 time(s): The target replication factor of 3"
                " cannot be reached because only 1 broker(s) are registered or some brokers have"
                " all their log directories cordoned.",
            ),
            (
                topic("p0", 0),
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            ),
            (
                topic("unknown", x_y="1"),
                ErrorCode.INVALID_CONFIG,
                "Unknown topic config name: x.y",
            ),
            (
                topic("null", retention_ms=None),
                ErrorCode.INVALID_CONFIG,
                "Null value not supported for topic configs: retention.ms",
            ),
            (topic("many", 101), ErrorCode.POLICY_VIOLATION, "max.partitions, 100"),
        ]
        found = self.create(*(case[0] for case in cases), topic("good"))
        for result, (wanted, code, text) in zip(found, cases, strict=False):
            self.assertEqual((result.name, result.errorCode), (wanted.name, code))
            self.assertIn(text, result.errorMessage)
            self.assertEqual((result.numPartitions, result.configs), (-1, []))
        self.assertEqual((found[-1].name, found[-1].errorCode), ("good", 0))
        self.assertEqual(self.counts, {"a.b": 1, "good": 1})

    def test_noTime(self) -> None:
        """A request that gives no time creates nothing."""
        request = messages.CreateTopicsRequest(topics=[topic("a")], timeoutMs=0)
        (result,) = self.bench.ask(ApiKey.CREATE_TOPICS, 7, request).topics
        self.assertEqual(
            (result.errorCode, result.errorMessage), (ErrorCode.REQUEST_TIMED_OUT, None)
        )
        self.assertEqual(self.counts, {})

    def test_similarNames(self) -> None:
        """
        Names that differ only in dots and underscores are refused, unless one request has both.
        """
        self.create(topic("a.b"), topic("a_b"))
        self.assertEqual(self.counts, {"a.b": 1, "a_b": 1})
        self.create(topic("a_b.c"))
        found = self.create(topic("a.b_c"), topic("a_b.c"), topic("a_c"))
        self.assertEqual(
            [(each.errorCode, each.errorMessage) for each in found],
            [
                (
                    ErrorCode.INVALID_TOPIC_EXCEPTION,
                    "Topic 'a.b_c' collides with existing topic: a_b.c",
                ),
                (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a_b.c' already exists."),
                (0, None),
            ],
        )

    def test_roomOfOneRequest(self) -> None:
        """The topics of one request are counted together."""
        found = self.create(topic("a", 60), topic("b", 60))
        self.assertEqual([each.errorCode for each in found], [0, ErrorCode.POLICY_VIOLATION])

    def test_assignments(self) -> None:
        """Assignments to this broker are taken; what is wrong with others is told."""
        invalid, request = ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.INVALID_REQUEST
        cls = messages.CreateTopicsRequest
        twice = topic("twice", -1, -1, {0: [0]})
        twice.assignments.append(cls.CreatableReplicaAssignment(partitionIndex=0, brokerIds=[0]))
        cases: list[tuple[Any, int, str | None]] = [
            (topic("good", -1, -1, {1: [0], 0: [0]}), 0, None),
            (topic("factor", -1, 1, {0: [0]}), request, "replication factor was not set to -1."),
            (topic("count", 1, -1, {0: [0]}), request, "numPartitions was not set to -1."),
            (topic("empty", -1, -1, {0: []}), invalid, "an empty replica list."),
            (topic("other", -1, -1, {0: [0, 7]}), invalid, "broker 7, but no such broker"),
            (topic("same", -1, -1, {0: [0, 0]}), invalid, "the broker 0 more than once."),
            (topic("gap", -1, -1, {0: [0], 2: [0]}), invalid, "consecutive 0-based integer"),
            (twice, invalid, "multiple manual partition assignments for partition 0"),
        ]
        found = self.create(*(case[0] for case in cases))
        for result, (_, code, text) in zip(found, cases, strict=True):
            self.assertEqual(result.errorCode, code, result)
            self.assertIn(text or "", result.errorMessage or "")
        self.assertEqual(self.counts, {"good": 2})

    def test_duplicates(self) -> None:
        """A name that occurs twice is refused, once."""
        found = self.create(topic("a"), topic("b"), topic("a", 2))
        self.assertEqual(
            [(each.name, each.errorCode, each.errorMessage) for each in found],
            [("b", 0, None), ("a", ErrorCode.INVALID_REQUEST, "Duplicate topic name.")],
        )

    def test_excess(self) -> None:
        """A request for too many partitions is refused as a whole."""
        self.patch(topicrequests, "CREATED_COUNT_MAX", 5)
        found = self.create(topic("a", 2), topic("b", -1))
        for each in found:
            self.assertEqual(each.errorCode, ErrorCode.POLICY_VIOLATION)
            self.assertIn("Excessively large number of partitions", each.errorMessage)
        self.assertEqual(len(self.create(topic("a", 1), topic("b", -1))), 2)
        self.assertEqual(self.counts, {"a": 1, "b": 4})


class DeleteTests(TopicCase):
    """DeleteTopics."""

    def delete(self, *names: str, version: int = 6, ids: tuple[bytes, ...] = ()) -> list[Any]:
        """(name, id, code, text) of each topic."""
        cls = messages.DeleteTopicsRequest
        if version < 6:
            request = cls(topicNames=list(names))
        else:
            topics = [cls.DeleteTopicState(name=name, topicId=ZERO_UUID) for name in names]
            topics += [cls.DeleteTopicState(name=None, topicId=each) for each in ids]
            request = cls(topics=topics)
        found = self.bench.ask(DELETE, version, request).responses
        return [(each.name, each.topicId, each.errorCode, each.errorMessage) for each in found]

    def idOf(self, name: str) -> bytes:
        return self.bench.topics.image.topics[name].topicId.bytes

    def test_disabled(self) -> None:
        """With delete.topic.enable=false nothing is deleted; old clients do not know the error."""
        self.bench.create("a")
        defaults = TopicDefaults(isDeleting=False)
        self.bench.handlers = TopicRequests(self.bench.topics, defaults).handlers
        for version, code in (
            (6, ErrorCode.TOPIC_DELETION_DISABLED),
            (2, ErrorCode.INVALID_REQUEST),
        ):
            self.assertEqual(self.delete("a", version=version), [("a", ZERO_UUID, code, None)])
        self.assertIn("a", self.bench.topics.image.topics)

    def test_byName(self) -> None:
        """A deleted topic is gone, with its files, and its name can be used at once."""
        self.bench.create("a", 2)
        self.bench.create("__consumer_offsets")
        self.assertEqual(
            [each[::2] for each in self.delete("a", "__consumer_offsets", version=1)],
            [("a", 0), ("__consumer_offsets", 0)],
        )
        self.assertEqual((self.counts, self.bench.topics.find("a", 1)), ({}, None))
        self.assertEqual(dict(self.bench.directory.logs), {})
        self.bench.create("a", 1)
        topicId = self.idOf("a")
        self.assertEqual(self.delete("a"), [("a", topicId, 0, None)])

    def test_byId(self) -> None:
        """Topics are deleted by id, too; an unknown id, or name, is told."""
        self.bench.create("a")
        topicId, other = self.idOf("a"), b"\1" * 16
        idCode, nameCode = ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.assertEqual(
            self.delete("z", ids=(topicId, other)),
            [
                (None, other, idCode, idCode.message),
                ("z", ZERO_UUID, nameCode, nameCode.message),
                ("a", topicId, 0, None),
            ],
        )
        self.assertEqual(self.counts, {})

    def test_duplicates(self) -> None:
        """What occurs twice is refused, and nothing of it deleted; so are an id and its name."""
        self.bench.create("a")
        self.bench.create("b")
        code = ErrorCode.INVALID_REQUEST
        other, byId = b"\1" * 16, self.idOf("b")
        self.assertEqual(
            self.delete("a", "a", "b", ids=(other, other, byId)),
            [
                (None, other, code, "Duplicate topic id."),
                ("a", ZERO_UUID, code, "Duplicate topic name."),
                (
                    "b",
                    byId,
                    code,
                    "The provided topic name maps to an ID that was already supplied.",
                ),
            ],
        )
        self.assertEqual(self.counts, {"a": 1, "b": 1})

    def test_invalid(self) -> None:
        """Both name and id, or none of them, make the request invalid; so does a closed store."""
        self.bench.create("a")
        cls = messages.DeleteTopicsRequest
        for name, topicId in (("a", self.idOf("a")), (None, ZERO_UUID)):
            request = cls(
                topics=[
                    cls.DeleteTopicState(name=name, topicId=topicId),
                    cls.DeleteTopicState(name="a", topicId=ZERO_UUID),
                ]
            )
            found = self.bench.ask(DELETE, 6, request).responses
            self.assertEqual([each.errorCode for each in found], [ErrorCode.INVALID_REQUEST] * 2)
        self.assertEqual(self.counts, {"a": 1})
        self.bench.kafka.metadata.close()
        self.assertEqual(self.delete("a")[0][2], ErrorCode.UNKNOWN_SERVER_ERROR)


class GrowTests(TopicCase):
    """CreatePartitions."""

    def setUp(self) -> None:
        super().setUp()
        self.bench.create("a", 2)

    def grow(
        self, *wanted: tuple[str, int, list[list[int]] | None], version: int = 3, **fields: Any
    ) -> list[Any]:
        cls = messages.CreatePartitionsRequest
        topics = []
        for name, count, assignments in wanted:
            made = None
            if assignments is not None:
                made = [cls.CreatePartitionsAssignment(brokerIds=each) for each in assignments]
            topics.append(cls.CreatePartitionsTopic(name=name, count=count, assignments=made))
        request = cls(topics=topics, **fields)
        found = self.bench.ask(GROW, version, request).results
        return [(each.name, each.errorCode, each.errorMessage) for each in found]

    def test_grow(self) -> None:
        """New partitions take records when they are answered."""
        self.assertEqual(self.grow(("a", 3, None), version=0), [("a", 0, None)])
        self.assertEqual(self.grow(("a", 5, [[0], [0]])), [("a", 0, None)])
        self.assertEqual(self.counts, {"a": 5})
        self.assertIsNotNone(self.bench.topics.find("a", 4))

    def test_validateOnly(self) -> None:
        """A request that only validates changes nothing."""
        self.assertEqual(self.grow(("a", 3, None), validateOnly=True), [("a", 0, None)])
        self.assertEqual(self.counts, {"a": 2})

    def test_refused(self) -> None:
        """What is refused says why, in Kafka's words."""
        cases: list[tuple[str, int, list[list[int]] | None, ErrorCode, str | None]] = [
            ("z", 3, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
            ("a", 2, None, ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
            (
                "a",
                1,
                None,
                ErrorCode.INVALID_PARTITIONS,
                "The topic a currently has 2 partition(s); 1 would not be an increase.",
            ),
            (
                "a",
                4,
                [[0]],
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "Attempted to add 2 additional partition(s), but only 1 assignment(s) were"
                " specified.",
            ),
            (
                "a",
                3,
                [[5]],
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "The manual partition assignment includes broker 5, but no such broker is"
                " registered.",
            ),
        ]
        for name, count, assignments, code, text in cases:
            self.assertEqual(self.grow((name, count, assignments)), [(name, code, text)])
        ((_, code, _),) = self.grow(("a", 101, None))
        self.assertEqual(code, ErrorCode.POLICY_VIOLATION)
        self.assertEqual(self.counts, {"a": 2})

    def test_duplicates(self) -> None:
        """A name that occurs twice is refused."""
        self.assertEqual(
            self.grow(("a", 3, None), ("a", 4, None)),
            [("a", ErrorCode.INVALID_REQUEST, "Duplicate topic name.")],
        )
