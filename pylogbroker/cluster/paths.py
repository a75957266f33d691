"""
The paths of 0.7's nodes in ZooKeeper (spec-0.7 zookeeper §1), relative to the chroot.

A name that is not one path segment is refused, before it can point elsewhere.
"""

from __future__ import annotations

import re

from pylogbroker.errors import InvalidNameError
from pylogbroker.types import BrokerPartition

BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
CONSUMERS = "/consumers"
SINKS = "/pylogbroker/sinks"
"""Ours, not 0.7's: the children are queries that write to topics."""


_FORBIDDEN = re.compile(r"[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


def pathSegment(kind: str, name: str) -> str:
    """
    Check that a name is one segment of a path. Returns it.

    @param kind: of thing, for the text.
    @raise InvalidNameError: it is empty, C{.} or C{..}, or contains a slash or a control character.
    """
    if name in ("", ".", ".."):
        raise InvalidNameError(f"{name!r} cannot be the name of a {kind}")
    found = _FORBIDDEN.search(name)
    if found is not None:
        raise InvalidNameError(f"the name of a {kind}, {name!r}, has {found[0]!r} in it")
    return name


def brokerId(number: int) -> str:
    """A broker's registration."""
    return f"{BROKER_IDS}/{number}"


def topic(name: str) -> str:
    """The parent of a topic's brokers."""
    return f"{BROKER_TOPICS}/{pathSegment('topic', name)}"


def topicBroker(name: str, number: int) -> str:
    """The number of partitions of a topic on a broker."""
    return f"{topic(name)}/{number}"


def sink(query: str) -> str:
    """The last batch that a query has written completely."""
    return f"{SINKS}/{pathSegment('query', query)}"


class GroupPaths:
    """
    The paths of one consumer group.

    @ivar root: the parent of all.
    @ivar ids: the parent of the members.
    """

    def __init__(self, group: str) -> None:
        """@raise InvalidNameError: the group has no valid name."""
        self.group = group
        self.root = f"{CONSUMERS}/{pathSegment('consumer group', group)}"
        self.ids = f"{self.root}/ids"
        self.owners = f"{self.root}/owners"
        self.offsets = f"{self.root}/offsets"
        self.mirrors = f"{self.root}/mirror"

    def consumer(self, consumerId: str) -> str:
        return f"{self.ids}/{pathSegment('consumer', consumerId)}"

    def topicOwners(self, name: str) -> str:
        return f"{self.owners}/{pathSegment('topic', name)}"

    def owner(self, name: str, partition: BrokerPartition) -> str:
        return f"{self.topicOwners(name)}/{partition}"

    def topicOffsets(self, name: str) -> str:
        return f"{self.offsets}/{pathSegment('topic', name)}"

    def offset(self, name: str, partition: BrokerPartition) -> str:
        return f"{self.topicOffsets(name)}/{partition}"

    def topicMirrored(self, name: str) -> str:
        """Ours, not 0.7's: the parent of a topic's mirrored partitions."""
        return f"{self.mirrors}/{pathSegment('topic', name)}"

    def mirrored(self, name: str, partition: BrokerPartition) -> str:
        """
        Ours, not 0.7's: a source partition's offsets, with their offsets in a mirror's target.
        """
        return f"{self.topicMirrored(name)}/{partition}"
