"""
CreateTopics, DeleteTopics, CreatePartitions, ElectLeaders, reassignments, DeleteRecords and
DescribeLogDirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from tests.oracle.scenarios.pieces import (
    EARLIEST,
    NO_TOPIC_ID,
    awaitTopic,
    batch,
    deleteTopicsBody,
    fetch,
    fill,
    listOffsetsBody,
    makeTopic,
    metadataBody,
    topic,
    versionsOf,
)
from tests.oracle.steps import Ask, Setting, Steps, Until, scenario

_BAD_NAMES = ("", ".", "..", "a/b", "a b", "a:b", "x" * 250, "ümlaut", "a\0b")
_CONFIGS: tuple[tuple[str, str | None], ...] = (
    ("retention.ms", "1000"),
    ("retention.ms", "-1"),
    ("retention.ms", "-2"),
    ("retention.ms", "abc"),
    ("retention.ms", ""),
    ("retention.ms", None),
    ("retention.bytes", "-5"),
    ("cleanup.policy", "compact"),
    ("cleanup.policy", "compact,delete"),
    ("cleanup.policy", "delete,compact"),
    ("cleanup.policy", ""),
    ("cleanup.policy", "shred"),
    ("compression.type", "zstd"),
    ("compression.type", "producer"),
    ("compression.type", "brotli"),
    ("compression.gzip.level", "10"),
    ("compression.gzip.level", "9"),
    ("compression.lz4.level", "0"),
    ("compression.zstd.level", "23"),
    ("segment.bytes", "13"),
    ("segment.bytes", "1048576"),
    ("segment.bytes", "1048575"),
    ("segment.bytes", "99999999999"),
    ("segment.ms", "0"),
    ("segment.jitter.ms", "-1"),
    ("segment.index.bytes", "3"),
    ("segment.index.bytes", "4"),
    ("min.insync.replicas", "0"),
    ("min.insync.replicas", "2"),
    ("max.message.bytes", "-1"),
    ("max.message.bytes", "0"),
    ("message.timestamp.type", "LogAppendTime"),
    ("message.timestamp.type", "logappendtime"),
    ("message.timestamp.before.max.ms", "-1"),
    ("message.timestamp.after.max.ms", "5"),
    ("message.format.version", "2.8"),
    ("message.downconversion.enable", "true"),
    ("min.cleanable.dirty.ratio", "1.1"),
    ("min.cleanable.dirty.ratio", "0.5"),
    ("min.compaction.lag.ms", "-1"),
    ("max.compaction.lag.ms", "0"),
    ("delete.retention.ms", "-1"),
    ("file.delete.delay.ms", "-1"),
    ("flush.messages", "0"),
    ("flush.ms", "-1"),
    ("preallocate", "yes"),
    ("preallocate", "TRUE"),
    ("unclean.leader.election.enable", "true"),
    ("index.interval.bytes", "-1"),
    ("remote.storage.enable", "true"),
    ("remote.storage.enable", "false"),
    ("local.retention.ms", "5"),
    ("leader.replication.throttled.replicas", "*"),
    ("leader.replication.throttled.replicas", "0:1,1:2"),
    ("leader.replication.throttled.replicas", "nonsense"),
    ("follower.replication.throttled.replicas", "0:1"),
    ("no.such.config", "1"),
    (" retention.ms", "1000"),
    ("errors.deadletterqueue.group.enable", "true"),
)


@scenario()
def createTopics(setting: Setting) -> Steps:
    """Names, counts, factors and assignments."""
    key, cls, node = ApiKey.CREATE_TOPICS, messages.CreateTopicsRequest, setting.nodeId

    def body(*topics: Any, validateOnly: bool = False) -> Any:
        return cls(topics=list(topics), timeoutMs=10_000, validateOnly=validateOnly)

    for version in versionsOf(key):
        name = f"create-{version}"
        yield Ask("validate only", key, version, body(topic(name, 2), validateOnly=True))
        yield Ask("a topic", key, version, body(topic(name, 2)))
        yield Ask("again", key, version, body(topic(name, 2)))
        yield Ask("again, validate only", key, version, body(topic(name), validateOnly=True))
        yield Ask("no topics", key, version, body())
        for bad in _BAD_NAMES:
            yield Ask(f"name {bad[:12]!r} {len(bad)}", key, version, body(topic(bad)))
        for count, factor in ((0, 1), (-2, 1), (1, 0), (1, -2), (1, 2), (0, 0), (3, 32767)):
            asked = body(topic(f"{name}-counts", count, factor))
            yield Ask(f"{count} partitions, factor {factor}", key, version, asked)
        for label, count, factor, assignments in (
            ("an assignment", -1, -1, [(0, [node])]),
            ("two partitions assigned", -1, -1, [(1, [node]), (0, [node])]),
            ("assignment and count", 1, -1, [(0, [node])]),
            ("assignment and factor", -1, 1, [(0, [node])]),
            ("assignment, count and factor", 1, 1, [(0, [node])]),
            ("a gap", -1, -1, [(0, [node]), (2, [node])]),
            ("not from 0", -1, -1, [(1, [node])]),
            ("a partition twice", -1, -1, [(0, [node]), (0, [node])]),
            ("a node twice", -1, -1, [(0, [node, node])]),
            ("an unknown node", -1, -1, [(0, [node + 7])]),
            ("no node", -1, -1, [(0, [])]),
            ("a negative partition", -1, -1, [(-1, [node])]),
            ("factors that differ", -1, -1, [(0, [node]), (1, [node, node + 1])]),
        ):
            asked = body(
                topic(
                    f"{name}-{label.replace(' ', '-').replace(',', '')}",
                    count,
                    factor,
                    assignments=assignments,
                )
            )
            yield Ask(label, key, version, asked)
        twice = body(topic(f"{name}-twice"), topic(f"{name}-twice"))
        yield Ask("a topic twice in a request", key, version, twice)
        mixed = body(topic(f"{name}-good"), topic("a/b"), topic(name))
        yield Ask("good and bad", key, version, mixed)
        defaults = body(topic(f"{name}-defaults", -1, -1))
        yield Ask("default counts", key, version, defaults)
        collide = body(topic(f"{name}.good"), topic(f"{name}_good"))
        yield Ask("names that collide in metrics", key, version, collide)
        yield Ask("a name with a point", key, version, body(topic(f"{name}.a_b")))
        yield Ask("a name that collides", key, version, body(topic(f"{name}_a.b")))
        yield Ask("one that is there", key, version, body(topic(f"{name}.a_b")))
        zero = cls(topics=[topic(f"{name}-no-time")], timeoutMs=0)
        yield Ask("time-out 0", key, version, zero)
    yield Ask("an internal topic", key, 7, body(topic("__transaction_state")))
    yield Ask("the metadata topic", key, 7, body(topic("__cluster_metadata")))


@scenario()
def createTopicsWithConfigs(setting: Setting) -> Steps:
    """Each setting's values, good and bad."""
    key, cls = ApiKey.CREATE_TOPICS, messages.CreateTopicsRequest
    for number, (name, value) in enumerate(_CONFIGS):
        asked = cls(topics=[topic(f"configured-{number}", configs=[(name, value)])])
        yield Ask(f"{name}={value}", key, 7, asked)
    for version in versionsOf(key):
        pairs = [("retention.ms", "5000"), ("cleanup.policy", "compact")]
        asked = cls(topics=[topic(f"configured-v{version}", configs=pairs)])
        yield Ask("two settings", key, version, asked)
        pairs = [("retention.ms", "5000"), ("retention.ms", "6000")]
        asked = cls(topics=[topic(f"configured-twice-v{version}", configs=pairs)])
        yield Ask("a setting twice", key, version, asked)
        asked = cls(topics=[topic(f"configured-bad-v{version}", configs=[("retention.ms", "x")])])
        yield Ask("a bad value", key, version, asked)
        asked.validateOnly = True
        yield Ask("a bad value, validate only", key, version, asked)


@scenario()
def deleteTopics(setting: Setting) -> Steps:
    """By name and by id, known and unknown."""
    key = ApiKey.DELETE_TOPICS
    for version in versionsOf(key):
        name = f"delete-{version}"
        first = yield from makeTopic(name)
        second = yield from makeTopic(f"{name}-b", 2)
        yield from makeTopic(f"{name}-c")
        yield Ask("none", key, version, deleteTopicsBody(version))
        yield Ask("unknown", key, version, deleteTopicsBody(version, "delete-none"))
        for bad in ("", "a/b", "x" * 250):
            asked = deleteTopicsBody(version, bad)
            yield Ask(f"name {bad[:12]!r} {len(bad)}", key, version, asked)
        yield Ask("by name", key, version, deleteTopicsBody(version, name))
        yield Until(
            Ask("gone", ApiKey.METADATA, 12, metadataBody([name], 12)),
            lambda body: body.topics[0].errorCode == 3,
        )
        yield Ask("again", key, version, deleteTopicsBody(version, name))
        mixed = deleteTopicsBody(version, "delete-none", f"{name}-c")
        yield Ask("unknown and known", key, version, mixed)
        if version >= 6:
            yield Ask("by id", key, version, deleteTopicsBody(version, second))
            yield Ask("by id again", key, version, deleteTopicsBody(version, first))
            yield Ask("unknown id", key, version, deleteTopicsBody(version, NO_TOPIC_ID))
            yield Ask("zero id", key, version, deleteTopicsBody(version, ZERO_UUID))
            named = deleteTopicsBody(version, first)
            named.topics[0].name = name
            yield Ask("id and name", key, version, named)
        else:
            twice = deleteTopicsBody(version, f"{name}-b", f"{name}-b")
            yield Ask("a name twice", key, version, twice)
    made = yield from makeTopic("delete-6")
    yield Ask("a new topic of an old name", ApiKey.METADATA, 12, metadataBody([made], 12))
    yield Ask("by name and id", key, 6, deleteTopicsBody(6, "delete-6", made))
    again = yield from makeTopic("delete-again")
    twice = deleteTopicsBody(6, again, again)
    yield Ask("an id twice", key, 6, twice)


@scenario()
def createPartitions(setting: Setting) -> Steps:
    """More, fewer, assigned."""
    key, cls, node = ApiKey.CREATE_PARTITIONS, messages.CreatePartitionsRequest, setting.nodeId

    def body(
        name: str, count: int, assigned: list[list[int]] | None = None, dry: bool = False
    ) -> Any:
        made = cls.CreatePartitionsTopic(name=name, count=count, assignments=None)
        if assigned is not None:
            made.assignments = [cls.CreatePartitionsAssignment(brokerIds=ids) for ids in assigned]
        return cls(topics=[made], timeoutMs=10_000, validateOnly=dry)

    for version in versionsOf(key):
        name = f"grow-{version}"
        yield from makeTopic(name, 2)
        yield Ask("validate only", key, version, body(name, 3, dry=True))
        yield Ask("three", key, version, body(name, 3))
        yield from awaitTopic(name, 3)
        for count in (3, 2, 0, -1):
            yield Ask(f"{count} of three", key, version, body(name, count))
        yield Ask("assigned", key, version, body(name, 5, [[node], [node]]))
        yield from awaitTopic(name, 5)
        cases: tuple[tuple[str, int, list[list[int]]], ...] = (
            ("too few assigned", 7, [[node]]),
            ("too many assigned", 6, [[node], [node]]),
            ("no assignment", 6, []),
            ("an unknown node", 6, [[node + 7]]),
            ("a node twice", 6, [[node, node]]),
            ("an empty list of nodes", 6, [[]]),
        )
        for label, count, assigned in cases:
            yield Ask(label, key, version, body(name, count, assigned))
        yield Ask("unknown topic", key, version, body("grow-none", 3))
        yield Ask("invalid name", key, version, body("a/b", 3))
        yield Ask("empty name", key, version, body("", 3))
        yield Ask("no topics", key, version, cls())
        twice = body(name, 6)
        twice.topics = [twice.topics[0], twice.topics[0]]
        yield Ask("a topic twice", key, version, twice)
        yield Ask("too many", key, version, body(name, 100_000, dry=True))
    yield Ask("after all", ApiKey.METADATA, 12, metadataBody(["grow-0"], 12))


@scenario()
def electLeaders(setting: Setting) -> Steps:
    """Of partitions that have their leader, and of unknown ones."""
    key, cls = ApiKey.ELECT_LEADERS, messages.ElectLeadersRequest
    yield from makeTopic("elect", 2)

    def body(kind: int, *wanted: tuple[str, list[int]]) -> Any:
        topics = [cls.TopicPartitions(topic=name, partitions=list(ids)) for name, ids in wanted]
        return cls(electionType=kind, topicPartitions=topics)

    for version in versionsOf(key):
        for kind in (0, 1, 2, -1) if version else (0,):
            for label, request in (
                ("a topic", body(kind, ("elect", [0, 1]))),
                ("unknown partitions", body(kind, ("elect", [2, -1, 0]))),
                ("an unknown topic", body(kind, ("elect-none", [0]), ("elect", [1]))),
                ("an invalid name", body(kind, ("a/b", [0]), ("", [0]))),
                ("a topic twice", body(kind, ("elect", [0]), ("elect", [0, 0]))),
                ("no partitions", body(kind, ("elect", []))),
                ("no topics", body(kind)),
                ("all", cls(electionType=kind, topicPartitions=None)),
            ):
                yield Ask(f"{label}, {kind}", key, version, request)
    request = body(0, ("elect", [0]))
    request.timeoutMs = -1
    for version in versionsOf(key):
        yield Ask("no time", key, version, request)
    yield Ask("no time for all", key, 2, cls(topicPartitions=None, timeoutMs=0))


@scenario()
def partitionReassignments(setting: Setting) -> Steps:
    """To the broker that has the partition, to others, to none; and what is under way."""
    key, cls = ApiKey.ALTER_PARTITION_REASSIGNMENTS, messages.AlterPartitionReassignmentsRequest
    node = setting.nodeId
    yield from makeTopic("reassign", 2)

    def body(*wanted: tuple[str, int, list[int] | None], **fields: Any) -> Any:
        return cls(
            topics=[
                cls.ReassignableTopic(
                    name=name,
                    partitions=[cls.ReassignablePartition(partitionIndex=index, replicas=ids)],
                )
                for name, index, ids in wanted
            ],
            **fields,
        )

    for version in versionsOf(key):
        for label, request in (
            ("here", body(("reassign", 0, [node]), ("reassign", 1, [node]))),
            ("cancelled", body(("reassign", 0, None))),
            ("elsewhere", body(("reassign", 0, [node + 7]), ("reassign", 1, [node, node + 7]))),
            ("twice here", body(("reassign", 0, [node, node]))),
            ("nowhere", body(("reassign", 0, []))),
            ("a negative node", body(("reassign", 0, [-1]))),
            ("unknown partitions", body(("reassign", 2, [node]), ("reassign", -1, None))),
            ("unknown topics", body(("reassign-none", 0, [node]), ("a/b", 0, None), ("", 0, []))),
            ("no topics", body()),
            ("no time", body(("reassign", 0, [node]), timeoutMs=-1)),
        ):
            yield Ask(label, key, version, request)
    fixed = body(("reassign", 0, [node]), allowReplicationFactorChange=False)
    yield Ask("of the same number", key, 1, fixed)
    shown = messages.ListPartitionReassignmentsRequest
    for label, names in (("all", None), ("none", []), ("some", ["reassign", "none", "a/b", ""])):
        topics = None
        if names is not None:
            made = shown.ListPartitionReassignmentsTopics
            topics = [made(name=name, partitionIndexes=[0, 1, 2]) for name in names]
        yield Ask(label, ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, shown(topics=topics))


@scenario()
def deleteRecords(setting: Setting) -> Steps:
    """Before, at and behind the end of the log, and what is read afterwards."""
    key, cls = ApiKey.DELETE_RECORDS, messages.DeleteRecordsRequest

    def body(name: str, *partitions: tuple[int, int]) -> Any:
        parts = [
            cls.DeleteRecordsPartition(partitionIndex=index, offset=offset)
            for index, offset in partitions
        ]
        return cls(topics=[cls.DeleteRecordsTopic(name=name, partitions=parts)], timeoutMs=5000)

    for version in versionsOf(key):
        name = f"trim-{version}"
        topicId = yield from makeTopic(name, 2)
        three = batch(setting.baseMs, b"a", b"b", b"c")
        yield from fill(name, topicId, three, three, three)
        yield Ask("nothing", key, version, body(name, (0, 0)))
        yield Ask("inside a batch", key, version, body(name, (0, 4)))
        yield Ask("start", ApiKey.LIST_OFFSETS, 5, listOffsetsBody(name, [(0, EARLIEST)]))
        yield fetch("from the new start", 11, name, topicId, 4)
        yield fetch("before the new start", 11, name, topicId, 3)
        yield Ask("before the start", key, version, body(name, (0, 2)))
        yield Ask("behind the end", key, version, body(name, (0, 10)))
        yield Ask("offset -2", key, version, body(name, (0, -2)))
        yield Ask("an empty partition", key, version, body(name, (1, 0)))
        yield Ask("behind an empty partition's end", key, version, body(name, (1, 1)))
        yield Ask("unknown partition", key, version, body(name, (2, 0)))
        yield Ask("unknown topic", key, version, body("trim-none", (0, 0)))
        yield Ask("two partitions", key, version, body(name, (0, 5), (1, 7)))
        yield Ask("all", key, version, body(name, (0, -1)))
        yield fetch("from the end", 11, name, topicId, 9)
        yield Ask("nothing named", key, version, cls(timeoutMs=5000))
        compacted = f"trim-compacted-{version}"
        yield from makeTopic(compacted, 1, ("cleanup.policy", "compact"))
        yield Ask("compacted", key, version, body(compacted, (0, 0)))
        both = f"trim-both-{version}"
        yield from makeTopic(both, 1, ("cleanup.policy", "compact,delete"))
        yield Ask("compacted and deleted", key, version, body(both, (0, 0)))


def _directories(names: list[tuple[str, list[int]]] | None) -> Any:
    cls = messages.DescribeLogDirsRequest
    if names is None:
        return cls(topics=None)
    return cls(
        topics=[cls.DescribableLogDirTopic(topic=name, partitions=parts) for name, parts in names]
    )


@scenario()
def describeLogDirs(setting: Setting) -> Steps:
    """All, some and unknown partitions, with their sizes."""
    key = ApiKey.DESCRIBE_LOG_DIRS
    topicId = yield from makeTopic("sizes", 2)
    yield from fill("sizes", topicId, batch(setting.baseMs, b"a" * 100, b"b" * 50))

    def cases() -> Iterator[tuple[str, Any]]:
        yield "all", _directories(None)
        yield "none", _directories([])
        yield "one partition", _directories([("sizes", [0])])
        yield "two partitions", _directories([("sizes", [0, 1])])
        yield "unknown partition", _directories([("sizes", [2])])
        yield "unknown topic", _directories([("sizes-none", [0])])
        yield "no partitions", _directories([("sizes", [])])

    for version in versionsOf(key):
        for label, asked in cases():
            yield Ask(label, key, version, asked, own="sizes")
