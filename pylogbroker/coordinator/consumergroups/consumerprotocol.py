"""
What classic members tell each other in bytes that Kafka's coordinator of classic groups does not
read (C{ConsumerProtocol}): subscriptions and assignments. A module of its own, since a group with
members of both protocols has to translate them.

An int16 with the version is before the fields. One to come is read and written as the last one that
is known; bytes behind the fields are ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from struct import Struct
from typing import Any

from pylogbroker.cluster.metadataimage import MetadataImage
from pylogbroker.errors import FormatError, WireError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.coordinatorrecords import recordVersion
from pylogbroker.protocol.kafka.schemas import ApiMessage

VERSION_MAX = 3

Places = dict[bytes, frozenset[int]]
"""Partitions by topic id."""

_INT16 = Struct(">h")


def decodeSubscription(data: bytes) -> ApiMessage:
    """
    C{topics}, C{ownedPartitions} and C{rackId} of a member.

    @raise FormatError: the bytes are no subscription.
    """
    return _decode(messages.ConsumerProtocolSubscription, data)


def decodeAssignment(data: bytes) -> ApiMessage:
    """
    C{assignedPartitions} and C{userData} of a member.

    @raise FormatError: the bytes are no assignment.
    """
    return _decode(messages.ConsumerProtocolAssignment, data)


def encodeAssignment(
    places: Mapping[bytes, Collection[int]], metadata: bytes, image: MetadataImage
) -> bytes:
    """
    An assignment of partitions; topics that are not there any more are left out.

    @param metadata: of the member, whose version it gets.
    """
    cls: Any = messages.ConsumerProtocolAssignment
    try:
        version = _versionOf(metadata)
    except FormatError:
        version = 0
    names = {topic.topicId.bytes: name for name, topic in image.topics.items()}
    parts = [
        cls.TopicPartition(topic=names[topicId], partitions=sorted(some))
        for topicId, some in places.items()
        if topicId in names and some
    ]
    encoded: bytes = cls(assignedPartitions=parts).encode(version)
    return _INT16.pack(version) + encoded


def placesOf(parts: list[ApiMessage], image: MetadataImage) -> Places:
    """Partitions by topic id; topics that are not there are left out."""
    found: Places = {}
    for part in parts:
        topic = image.topics.get(part.topic)
        if topic is not None:
            topicId = topic.topicId.bytes
            found[topicId] = found.get(topicId, frozenset()) | frozenset(part.partitions)
    return found


def _versionOf(data: bytes) -> int:
    version = recordVersion(data)
    if version < 0:
        raise FormatError(f"version {version}")
    return min(version, VERSION_MAX)


def _decode(cls: type[ApiMessage], data: bytes) -> ApiMessage:
    version = _versionOf(data)
    try:
        # Every element takes a byte at least, and the bytes are in memory already.
        return cls.decode(data, version, _INT16.size, len(data))[0]
    except WireError as error:
        raise FormatError(str(error)) from error
