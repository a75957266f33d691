"""
Every path that 0.7 uses in ZooKeeper, in one place (spec-0.7 zookeeper §1). All are relative to the chroot.

Names go into paths as they are; a name that would not be one step of a path is refused here, before it can point elsewhere.
"""

from __future__ import annotations

from pylogbroker.errors import InvalidNameError
from pylogbroker.types import BrokerPartition

BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
CONSUMERS = "/consumers"
SINKS = "/pylogbroker/sinks"
"""Ours, not 0.7's: queries that write to topics are the children."""


def pathSegment(kind: str, name: str) -> str:
    """
    A name as one step of a path.

    @param kind: what the name is of, for the text.
    @raise InvalidNameError: it is empty, C{.} or C{..}, or has a slash or a control character in it, which ZooKeeper does not take.
    """
    if name in ("", ".", ".."):
        raise InvalidNameError(f"{name!r} cannot be the name of a {kind}")
    for character in name:
        if (
            character == "/"
            or character < " "
            or "\x7f" <= character <= "\x9f"
            or "\ud800" <= character <= "\uf8ff"
            or "\ufff0" <= character <= "\uffff"
        ):
            raise InvalidNameError(f"the name of a {kind}, {name!r}, has {character!r} in it")
    return name


def brokerId(number: int) -> str:
    """A broker's registration."""
    return f"{BROKER_IDS}/{number}"


def topic(name: str) -> str:
    """The brokers of a topic are the children."""
    return f"{BROKER_TOPICS}/{pathSegment('topic', name)}"


def topicBroker(name: str, number: int) -> str:
    """How many partitions a topic has on a broker."""
    return f"{topic(name)}/{number}"


def sink(query: str) -> str:
    """The last batch of a query that is wholly written."""
    return f"{SINKS}/{pathSegment('query', query)}"


class GroupPaths:
    """
    The paths of one consumer group.

    @ivar root: the parent of all.
    @ivar ids: the members are the children.
    """

    def __init__(self, group: str) -> None:
        """
        @raise InvalidNameError: the name cannot be a step of a path.
        """
        self.group = group
        self.root = f"{CONSUMERS}/{pathSegment('consumer group', group)}"
        self.ids = f"{self.root}/ids"
        self.owners = f"{self.root}/owners"
        self.offsets = f"{self.root}/offsets"
        self.mirrors = f"{self.root}/mirror"

    def consumer(self, consumerId: str) -> str:
        """A member's registration."""
        return f"{self.ids}/{pathSegment('consumer', consumerId)}"

    def topicOwners(self, name: str) -> str:
        """The owned partitions of a topic are the children."""
        return f"{self.owners}/{pathSegment('topic', name)}"

    def owner(self, name: str, partition: BrokerPartition) -> str:
        """Who owns a partition."""
        return f"{self.topicOwners(name)}/{partition}"

    def topicOffsets(self, name: str) -> str:
        """The partitions with stored offsets are the children."""
        return f"{self.offsets}/{pathSegment('topic', name)}"

    def offset(self, name: str, partition: BrokerPartition) -> str:
        """The next offset to fetch."""
        return f"{self.topicOffsets(name)}/{partition}"

    def topicMirrored(self, name: str) -> str:
        """Ours, not 0.7's: the mirrored partitions of a topic are the children."""
        return f"{self.mirrors}/{pathSegment('topic', name)}"

    def mirrored(self, name: str, partition: BrokerPartition) -> str:
        """Ours, not 0.7's: from offsets of a source partition to offsets of a mirror's target."""
        return f"{self.topicMirrored(name)}/{partition}"
