"""ApiVersions, Metadata, DescribeCluster and DescribeTopicPartitions."""

from __future__ import annotations

import struct
from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.schemas import ZERO_UUID
from tests.oracle.scenarios.pieces import (
    NO_TOPIC_ID,
    awaitTopic,
    makeTopic,
    metadataBody,
    versionsOf,
)
from tests.oracle.steps import Ask, Close, Setting, Steps, scenario


@scenario()
def apiVersions(setting: Setting) -> Steps:
    """Every version, unknown ones, and names that the broker refuses."""
    request = messages.ApiVersionsRequest
    named = request(clientSoftwareName="oracle", clientSoftwareVersion="1.0")
    for version in versionsOf(ApiKey.API_VERSIONS):
        yield Ask("plain", ApiKey.API_VERSIONS, version, named, clientId=None)
    for version in (5, 6, 99, 32767, -1):
        yield Ask("an unknown version", ApiKey.API_VERSIONS, version, b"\0\x07oracle\x041.0\0")
        yield Ask("after an unknown version", ApiKey.API_VERSIONS, 0, request())
    for name, software in (
        ("", "1.0"),
        ("oracle", ""),
        ("a b", "1.0"),
        ("-a", "1"),
        ("a.b-c", "1-2.3"),
    ):
        for version in (3, 4):
            body = request(clientSoftwareName=name, clientSoftwareVersion=software)
            yield Ask(f"named {name!r} {software!r}", ApiKey.API_VERSIONS, version, body)
    yield Ask("twice on a connection", ApiKey.API_VERSIONS, 2, request())


@scenario()
def metadata(setting: Setting) -> Steps:
    """All topics, none, some, by name and by id, with and without creation."""
    key, own = ApiKey.METADATA, "metadata"
    first = yield from makeTopic("metadata-one", 3)
    second = yield from makeTopic("metadata-two", 1)
    for version in versionsOf(key):
        yield Ask("all topics", key, version, metadataBody(None, version), own=own)
        if version:
            yield Ask("no topics", key, version, metadataBody([], version))
        yield Ask("one topic", key, version, metadataBody(["metadata-one"], version))
        both = metadataBody(["metadata-two", "metadata-one"], version)
        yield Ask("two topics", key, version, both)
        twice = metadataBody(["metadata-two", "metadata-two"], version)
        yield Ask("a topic twice", key, version, twice)
        for name in ("", ".", "..", "a/b", "with space", "x" * 249, "x" * 250, "ümlaut"):
            if version >= 4:
                body = metadataBody([name], version)
                yield Ask(f"unknown {name[:12]!r} {len(name)}", key, version, body)
        if version >= 4:
            body = metadataBody(["metadata-none", "metadata-one"], version)
            yield Ask("unknown, not to be created", key, version, body)
        made = f"metadata-auto-{version}"
        body = metadataBody([made], version, mayCreate=True)
        yield Ask("created by the request", key, version, body)
        yield from awaitTopic(made)
        yield Ask("after its creation", key, version, metadataBody([made], version))
        for name in ("", "..", "a/b", "x" * 250):
            body = metadataBody([name], version, mayCreate=True)
            yield Ask(f"creation of {name[:12]!r} {len(name)}", key, version, body)
    for version in versionsOf(key, 8):
        body = metadataBody(["metadata-one"], version)
        body.includeTopicAuthorizedOperations = True
        if version <= 10:
            body.includeClusterAuthorizedOperations = True
        yield Ask("authorized operations", key, version, body)
    for version in versionsOf(key, 10):
        for label, ids in (
            ("an id", [first]),
            ("two ids", [second, first]),
            ("an unknown id", [NO_TOPIC_ID]),
            ("an unknown id and a known one", [NO_TOPIC_ID, first]),
            ("the zero id", [ZERO_UUID]),
        ):
            yield Ask(label, key, version, metadataBody(ids, version))
        named = metadataBody([first], version)
        named.topics[0].name = "metadata-one"
        yield Ask("id and name", key, version, named)
        named = metadataBody([NO_TOPIC_ID], version)
        named.topics[0].name = "metadata-one"
        yield Ask("unknown id and known name", key, version, named)
        yield Ask("an id and a name", key, version, metadataBody([first, "metadata-two"], version))


@scenario(("auto.create.topics.enable", "false"), ("num.partitions", "2"))
def metadataWithoutCreation(setting: Setting) -> Steps:
    """A broker that creates no topics by itself, and whose topics have two partitions."""
    key = ApiKey.METADATA
    for version in versionsOf(key):
        body = metadataBody(["metadata-without"], version, mayCreate=True)
        yield Ask("unknown", key, version, body)
        body = metadataBody([""], version, mayCreate=True)
        yield Ask("empty", key, version, body)


@scenario()
def describeCluster(setting: Setting) -> Steps:
    """Of brokers, of controllers, and of neither."""
    key, cls = ApiKey.DESCRIBE_CLUSTER, messages.DescribeClusterRequest
    for version in versionsOf(key):
        yield Ask("plain", key, version, cls())
        body = cls(includeClusterAuthorizedOperations=True)
        yield Ask("authorized operations", key, version, body)
        if version >= 1:
            for kind in (0, 1, 2, 3):
                yield Ask(f"endpoint type {kind}", key, version, cls(endpointType=kind))
        if version >= 2:
            yield Ask("fenced brokers", key, version, cls(includeFencedBrokers=True))


@scenario()
def describeTopicPartitions(setting: Setting) -> Steps:
    """Topics, limits and cursors."""
    key, cls = ApiKey.DESCRIBE_TOPIC_PARTITIONS, messages.DescribeTopicPartitionsRequest
    own = "partitions-"
    for name, count in (("partitions-a", 2), ("partitions-b", 3), ("partitions-c", 1)):
        yield from makeTopic(name, count)

    def body(names: list[str], **fields: Any) -> Any:
        return cls(topics=[cls.TopicRequest(name=name) for name in names], **fields)

    def cursor(name: str, index: int) -> Any:
        return cls.Cursor(topicName=name, partitionIndex=index)

    for label, asked in (
        ("one topic", body(["partitions-a"])),
        ("three topics", body(["partitions-c", "partitions-a", "partitions-b"])),
        ("a topic twice", body(["partitions-a", "partitions-a"])),
        ("an unknown topic", body(["partitions-none"])),
        ("unknown and known", body(["partitions-none", "partitions-a"])),
        ("an invalid name", body(["a/b"])),
        ("an empty name", body([""])),
        ("limit 1", body(["partitions-a", "partitions-b"], responsePartitionLimit=1)),
        ("limit 2", body(["partitions-a", "partitions-b"], responsePartitionLimit=2)),
        ("limit 3", body(["partitions-a", "partitions-b"], responsePartitionLimit=3)),
        ("limit 0", body(["partitions-a", "partitions-b"], responsePartitionLimit=0)),
        ("limit -1", body(["partitions-a", "partitions-b"], responsePartitionLimit=-1)),
        ("from a cursor", body(["partitions-a", "partitions-b"], cursor=cursor("partitions-b", 1))),
        (
            "a cursor behind",
            body(["partitions-a", "partitions-b"], cursor=cursor("partitions-c", 0)),
        ),
        ("a cursor's partition behind", body(["partitions-a"], cursor=cursor("partitions-a", 9))),
        ("a cursor of -1", body(["partitions-a"], cursor=cursor("partitions-a", -1))),
        ("a cursor of an unknown topic", body(["partitions-a"], cursor=cursor("partitions-aa", 0))),
        ("a cursor, no topics", body([], cursor=cursor("partitions-b", 2))),
    ):
        yield Ask(label, key, 0, asked, own=own)
    yield Ask("all topics", key, 0, body([]), own=own)


@scenario()
def unknownRequests(setting: Setting) -> Steps:
    """Keys and versions that no broker has, or Apache's has no more."""
    for number in (4, 5, 6, 7, 34, 38, 57, 63, 70, 92, 93, 200, 32767, -1):
        yield Ask(f"key {number}", number, 0, bytes(16))
    for key in ApiKey:
        if key is ApiKey.API_VERSIONS:
            continue
        for version in {max(key.firstVersion - 1, -1), key.lastVersion + 1}:
            yield Ask("a version that is not served", key, version, bytes(16))
    yield Ask("a new connection", ApiKey.API_VERSIONS, 1, messages.ApiVersionsRequest())
    yield Close()
    name = b"unknown-requests"
    old = struct.pack(">hih", -1, 5000, len(name)) + name
    for version in (0, 1, 2):
        yield Ask("an old version", ApiKey.PRODUCE, version, old)
