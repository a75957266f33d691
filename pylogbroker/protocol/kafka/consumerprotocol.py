"""
What the members of a classic consumer group tell each other through the coordinator: subscriptions,
and assigned partitions. A version stands before each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from pylogbroker.errors import WireError
from pylogbroker.protocol.kafka import messages
from pylogbroker.types import MemberSubscription, TopicPartition

PROTOCOL_TYPE = "consumer"
LAST_VERSION = 3

_VERSION = struct.Struct(">h")


def byTopic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Numbers of partitions by topic, in the order in which they come."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


def encodeSubscription(subscription: MemberSubscription) -> bytes:
    """
    A member's subscription, for JoinGroup. The member id is not in it.
    """
    cls = messages.ConsumerProtocolSubscription
    body = cls(
        topics=list(subscription.topics),
        userData=subscription.userData,
        ownedPartitions=_encoded(cls.TopicPartition, subscription.ownedPartitions),
        generationId=subscription.generation,
        rackId=subscription.rackId,
    )
    made: bytes = _VERSION.pack(LAST_VERSION) + body.encode(LAST_VERSION)
    return made


def decodeSubscription(
    data: bytes, memberId: str, groupInstanceId: str | None = None
) -> MemberSubscription:
    """
    @raise WireError: it cannot be read; the text names the member.
    """
    body = _decoded(messages.ConsumerProtocolSubscription, data, f"subscription of {memberId!r}")
    return MemberSubscription(
        memberId,
        tuple(body.topics),
        tuple(_places(body.ownedPartitions)),
        body.generationId,
        groupInstanceId,
        body.rackId,
        body.userData,
    )


def encodeAssignment(partitions: Iterable[TopicPartition], userData: bytes | None = None) -> bytes:
    """
    A member's partitions, for SyncGroup, in the version that all clients know.

    @param userData: of the assignor.
    """
    cls = messages.ConsumerProtocolAssignment
    made: bytes = _VERSION.pack(0) + cls(
        assignedPartitions=_encoded(cls.TopicPartition, partitions), userData=userData
    ).encode(0)
    return made


def decodeAssignment(data: bytes) -> list[TopicPartition]:
    """
    @return: nothing for no bytes, which a member gets that has no partitions.
    @raise WireError: it cannot be read.
    """
    return decodeAssignmentAndUserData(data)[0]


def decodeAssignmentAndUserData(data: bytes) -> tuple[list[TopicPartition], bytes | None]:
    """As L{decodeAssignment}, and the user data of the assignor."""
    if not data:
        return [], None
    body = _decoded(messages.ConsumerProtocolAssignment, data, "assignment")
    return _places(body.assignedPartitions), body.userData


def _encoded(cls: Any, partitions: Iterable[TopicPartition]) -> list[Any]:
    return [cls(topic=topic, partitions=numbers) for topic, numbers in byTopic(partitions).items()]


def _places(topics: Sequence[Any]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, number) for each in topics for number in each.partitions]


def _decoded(cls: Any, data: bytes, what: str) -> Any:
    """A later version than ours begins as ours does."""
    if len(data) < _VERSION.size:
        raise WireError(f"{what}: {len(data)} bytes, without a version")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise WireError(f"{what}: version {version}")
    try:
        return cls.decode(data, min(version, LAST_VERSION), _VERSION.size)[0]
    except WireError as error:
        raise WireError(f"{what}: {error}") from error
