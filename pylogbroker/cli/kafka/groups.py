"""
C{group}: consumer groups of today's Kafka: states, members, and lag in records. Committed offsets
are changed by L{pylogbroker.cli.kafka.groupoffsets}.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator
from textwrap import indent
from typing import Any, NamedTuple

from pylogbroker.cli import CommandError
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.output import asJson, tableOfRows
from pylogbroker.cli.streams import Streams
from pylogbroker.errors import WireError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ResponseError, checkCode
from pylogbroker.syncclient.kafka.cluster import LATEST, KafkaCluster
from pylogbroker.types import TopicPartition, escapeUnprintable, formatCount

_CONSUMER = "consumer"
_SINGLE_FETCH = 7
"""The last version of OffsetFetch with one group."""

_VERSION_SIZE = 2


class GroupMemberReport(NamedTuple):
    """
    A member of a group.

    @ivar partitions: what it has been given.
    """

    memberId: str
    instanceId: str | None
    clientId: str
    host: str
    partitions: tuple[TopicPartition, ...]


class CoordinatedGroup(NamedTuple):
    """
    What a coordinator says of a group.

    @ivar kind: C{classic} or C{consumer}.
    @ivar protocol: its assignor.
    """

    name: str
    state: str
    kind: str
    protocol: str
    members: list[GroupMemberReport]


def knownGroups(cluster: KafkaCluster) -> dict[str, Any]:
    """All groups of all brokers, by name, sorted."""
    found: dict[str, Any] = {}
    for broker in cluster.metadata(()).brokers:
        answer = cluster.broker(broker.nodeId).request(
            ApiKey.LIST_GROUPS, messages.ListGroupsRequest()
        )
        checkCode(answer.errorCode, f"groups of broker {broker.nodeId}")
        found.update({each.groupId: each for each in answer.groups})
    return dict(sorted(found.items()))


def wantedGroups(cluster: KafkaCluster, names: list[str]) -> dict[str, Any]:
    """
    The named groups, or all, by name.

    @raise CommandError: one is missing.
    """
    found = knownGroups(cluster)
    missing = [name for name in names if name not in found]
    if missing:
        raise CommandError(
            f"there is no consumer group {', '.join(missing)}; "
            f"there are: {', '.join(found) or 'none'}"
        )
    return {name: found[name] for name in names or found}


def listGroups(options: Namespace, streams: Streams) -> int:
    """Print a line for each group."""
    with openCluster(options, streams) as cluster:
        rows = [
            (name, each.groupState or None, each.groupType or None, each.protocolType or None)
            for name, each in knownGroups(cluster).items()
        ]
    if options.json:
        keys = ("group", "state", "type", "protocolType")
        show(streams, asJson({"groups": [dict(zip(keys, row, strict=True)) for row in rows]}))
    else:
        if not rows:
            streams.say("there are no consumer groups")
        show(streams, tableOfRows(("GROUP", "STATE", "TYPE", "PROTOCOL"), rows))
    return 0


# -- describe


def describeGroup(cluster: KafkaCluster, name: str, kind: str) -> CoordinatedGroup:
    """
    @param kind: C{classic} or C{consumer}, as the group is listed.
    @raise ResponseError: its coordinator does not tell.
    """
    if kind.lower() == _CONSUMER:
        body = messages.ConsumerGroupDescribeRequest(groupIds=[name])
        found = cluster.askCoordinator(
            name, ApiKey.CONSUMER_GROUP_DESCRIBE, body, lambda answer: answer.groups[0].errorCode
        ).groups[0]
        members = [
            GroupMemberReport(
                each.memberId,
                each.instanceId,
                each.clientId,
                each.clientHost,
                tuple(
                    TopicPartition(topic.topicName, index)
                    for topic in each.assignment.topicPartitions
                    for index in topic.partitions
                ),
            )
            for each in found.members
        ]
        return CoordinatedGroup(name, found.groupState, _CONSUMER, found.assignorName, members)
    request = messages.DescribeGroupsRequest(groups=[name])
    found = cluster.askCoordinator(
        name, ApiKey.DESCRIBE_GROUPS, request, lambda answer: answer.groups[0].errorCode
    ).groups[0]
    members = [
        GroupMemberReport(
            each.memberId,
            each.groupInstanceId,
            each.clientId,
            each.clientHost,
            tuple(_assigned(each.memberAssignment)),
        )
        for each in found.members
    ]
    return CoordinatedGroup(name, found.groupState, "classic", found.protocolData, members)


def _assigned(data: bytes) -> Iterator[TopicPartition]:
    """What a member was given; nothing, if the assignment is not a consumer's."""
    if len(data) < _VERSION_SIZE:
        return
    version = min(int.from_bytes(data[:_VERSION_SIZE], "big"), 3)
    try:
        found, _ = messages.ConsumerProtocolAssignment.decode(data, version, _VERSION_SIZE)
    except WireError:
        return
    for each in found.assignedPartitions:
        for index in each.partitions:
            yield TopicPartition(each.topic, index)


def committedOffsets(cluster: KafkaCluster, name: str) -> dict[TopicPartition, int]:
    """The committed offsets of a group."""
    body = messages.OffsetFetchRequest(groupId=name, topics=None)

    def ask() -> Any:
        connection = cluster.coordinator(name)
        found = connection.request(ApiKey.OFFSET_FETCH, body, versionMax=_SINGLE_FETCH)
        checkCode(found.errorCode, f"group {name}")
        return found

    return {
        TopicPartition(topic.name, part.partitionIndex): part.committedOffset
        for topic in cluster.attempt(ask).topics
        for part in topic.partitions
        if part.committedOffset >= 0
    }


class PartitionLag(NamedTuple):
    """
    How far a group has read a partition; L{None}: unknown.

    @ivar lag: records.
    @ivar member: the id of the member that has the partition.
    """

    topic: str
    partition: int
    offset: int | None
    end: int | None
    lag: int | None
    member: str | None


def groupLags(
    cluster: KafkaCluster,
    group: CoordinatedGroup,
    problems: list[str],
    more: Iterable[TopicPartition] = (),
) -> list[PartitionLag]:
    """
    How far a group has read.

    @param problems: what could not be asked is added.
    @param more: partitions that are shown, too, if the group has no position there.
    """
    offsets = committedOffsets(cluster, group.name)
    owners = {where: each.memberId for each in group.members for where in each.partitions}
    existing = {topic.name for topic in cluster.metadata(None).topics}
    places = sorted({*offsets, *owners, *more})
    ends = cluster.offsets([where for where in places if where.topic in existing], LATEST)
    rows = []
    for where in places:
        found = ends.get(where)
        if isinstance(found, ResponseError):
            problems.append(str(found))
        end = found[0] if isinstance(found, tuple) else None
        offset = offsets.get(where)
        lag = end - offset if end is not None and offset is not None else None
        rows.append(PartitionLag(*where, offset, end, lag, owners.get(where)))
    return rows


def describeGroups(options: Namespace, streams: Streams) -> int:
    """Print state, members, offsets and lag of groups."""
    documents, texts = [], []
    problems: list[str] = []
    with openCluster(options, streams) as cluster:
        for name, listed in wantedGroups(cluster, options.groups).items():
            group = describeGroup(cluster, name, getattr(listed, "groupType", ""))
            lags = groupLags(cluster, group, problems)
            documents.append(
                {
                    "group": name,
                    "state": group.state,
                    "type": group.kind,
                    "protocol": group.protocol,
                    "members": [
                        {**each._asdict(), "partitions": [*map(str, each.partitions)]}
                        for each in group.members
                    ],
                    "partitions": [each._asdict() for each in lags],
                }
            )
            texts.append(groupTable(group, lags))
    if options.json:
        show(streams, asJson({"groups": documents, "problems": problems}))
        return 0
    for problem in problems:
        streams.warn(problem)
    if not texts:
        streams.say("there are no consumer groups")
    show(streams, "\n".join(texts))
    return 0


def groupTable(group: CoordinatedGroup, lags: list[PartitionLag]) -> str:
    """State, members and lag, as text."""
    head = f"group {escapeUnprintable(group.name)}  {group.state}  {group.kind}  {group.protocol}"
    members = [
        f"member {escapeUnprintable(each.memberId)}  {escapeUnprintable(each.host)}"
        f"  {formatCount(len(each.partitions), 'partition')}"
        for each in group.members
    ]
    headings = ("TOPIC", "PARTITION", "OFFSET", "END", "LAG", "MEMBER")
    text = "\n".join(members or ["no members"]) + "\n" + tableOfRows(headings, lags)
    return head.rstrip() + "\n" + indent(text, "  ")


def deleteGroups(options: Namespace, streams: Streams) -> int:
    """
    Delete groups that have no members, with their offsets.

    @return: 1 when one could not be deleted.
    """
    failures = 0
    with openCluster(options, streams) as cluster:
        for name in dict.fromkeys(options.groups):
            body = messages.DeleteGroupsRequest(groupsNames=[name])
            try:
                cluster.askCoordinator(
                    name, ApiKey.DELETE_GROUPS, body, lambda answer: answer.results[0].errorCode
                )
            except ResponseError as error:
                failures += 1
                streams.warn(str(error))
            else:
                streams.say(f"deleted group {name}")
    return 1 if failures else 0
