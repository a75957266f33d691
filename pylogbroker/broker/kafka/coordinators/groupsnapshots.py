"""
Snapshots of the groups that a broker coordinates, for metrics and console; a module of its own,
since requests never need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pylogbroker.coordinator.consumergroups.consumergroup import ConsumerGroup
from pylogbroker.coordinator.groupmessages import (
    ClientContext,
    OffsetFetchGroup,
    OffsetFetchGroupAnswer,
)
from pylogbroker.coordinator.groups import GroupCoordinator
from pylogbroker.errors import WireError
from pylogbroker.metrics.brokermetrics import GroupMemberSnapshot, GroupSnapshot
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey

GROUP_COUNT_MAX = 100
ROW_COUNT_MAX = 2_000
"""Members, and partitions with an offset, of one group."""

_CONTEXT = ClientContext(ApiKey.DESCRIBE_GROUPS.lastVersion)
_VERSION_SIZE = 2
_ASSIGNMENT_VERSION_MAX = 3


def groupSnapshots(coordinator: GroupCoordinator) -> tuple[tuple[GroupSnapshot, ...], int]:
    """
    The first groups by name, and the number of all. While groups are loaded there are none.
    """
    listed = sorted(coordinator.listGroups().groups)
    found = []
    for each in listed[:GROUP_COUNT_MAX]:
        members = _consumers if each.groupType == ConsumerGroup.typeName else _members
        rows = tuple(islice(members(coordinator, each.groupId), ROW_COUNT_MAX))
        offsets = _offsets(coordinator, each.groupId)
        found.append(GroupSnapshot(each.groupId, each.groupState, rows, offsets))
    return tuple(found), len(listed)


def _members(coordinator: GroupCoordinator, groupId: str) -> Iterator[GroupMemberSnapshot]:
    """Of a group of the classic protocol."""
    [described] = coordinator.describeGroups(_CONTEXT, [groupId])
    for member in described.members:
        yield GroupMemberSnapshot(
            member.memberId,
            member.clientId,
            member.clientHost,
            assignedPartitions(member.memberAssignment),
        )


def _consumers(coordinator: GroupCoordinator, groupId: str) -> Iterator[GroupMemberSnapshot]:
    """Of a group of KIP-848."""
    [described] = coordinator.describeConsumerGroups([groupId])
    for member in described.members:
        partitions = [
            (topic.topicName, index)
            for topic in member.assignment.topicPartitions
            for index in topic.partitions
        ]
        yield GroupMemberSnapshot(
            member.memberId,
            member.clientId,
            member.clientHost,
            tuple(partitions[:ROW_COUNT_MAX]),
        )


def _offsets(coordinator: GroupCoordinator, groupId: str) -> tuple[tuple[str, int, int], ...]:
    answers: list[OffsetFetchGroupAnswer] = []
    coordinator.offsetFetch(_CONTEXT, OffsetFetchGroup(groupId, None), False, answers.append)
    rows = [
        (topic.name, part.partitionIndex, part.committedOffset)
        for answer in answers
        for topic in answer.topics
        for part in topic.partitions
        if part.committedOffset >= 0
    ]
    return tuple(sorted(rows)[:ROW_COUNT_MAX])


def assignedPartitions(data: bytes) -> tuple[tuple[str, int], ...]:
    """The topics and partitions of a consumer's assignment; none, if it is not a consumer's."""
    if len(data) < _VERSION_SIZE:
        return ()
    version = min(int.from_bytes(data[:_VERSION_SIZE], "big"), _ASSIGNMENT_VERSION_MAX)
    try:
        found, _ = messages.ConsumerProtocolAssignment.decode(data, version, _VERSION_SIZE)
    except WireError:
        return ()
    rows = [(each.topic, index) for each in found.assignedPartitions for index in each.partitions]
    return tuple(rows[:ROW_COUNT_MAX])
