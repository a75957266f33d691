"""
What groups of every protocol have: a name, a partition of the log, committed offsets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pylogbroker.coordinator.effects import PendingAppend
from pylogbroker.coordinator.offsetstopic import CommittedOffset

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The members of such a group say which topics they subscribe to, in a form that we know."""


@dataclass(slots=True)
class GroupTotals:
    """
    What all groups of a coordinator hold together, for its limits.

    @ivar memberCount: members, and ids that were given and not used yet.
    @ivar metadataSize: bytes of the members' metadata and assignments.
    @ivar offsetCount: committed offsets.
    """

    memberCount: int = 0
    metadataSize: int = 0
    offsetCount: int = 0


class Group(ABC):
    """
    A group of any protocol. One that goes on with another protocol is another object, which has the
    same committed offsets.

    @cvar typeName: Kafka's name of the protocol.
    @ivar partition: of C{__consumer_offsets}.
    @ivar offsets: committed offsets by topic and partition, as appended.
    @ivar pendingCommits: how many commits of a topic and partition are being appended.
    @ivar lastAppend: of the group's records.
    @ivar isStored: has records beside those of its offsets.
    """

    typeName: str

    def __init__(self, groupId: str, partition: int, totals: GroupTotals) -> None:
        self.groupId = groupId
        self.partition = partition
        self.offsets: dict[str, dict[int, CommittedOffset]] = {}
        self.pendingCommits: Counter[tuple[str, int]] = Counter()
        self.lastAppend: PendingAppend | None = None
        self.isStored = False
        self._totals = totals

    def succeed(self, before: Group) -> None:
        """Take over the committed offsets of the group that this one was."""
        self.offsets = before.offsets
        self.pendingCommits = before.pendingCommits
        self.lastAppend = before.lastAppend

    @property
    @abstractmethod
    def stateName(self) -> str:
        """Kafka's name of the state."""

    @property
    @abstractmethod
    def isEmpty(self) -> bool:
        """Whether the group has no members, and is not being deleted."""

    @property
    @abstractmethod
    def isIdle(self) -> bool:
        """Whether it is empty, and no member is about to join."""

    @abstractmethod
    def isSubscribedTo(self, topic: str) -> bool:
        """Whether offsets of a topic are in use."""

    # -- committed offsets

    def setOffset(self, topic: str, partition: int, committed: CommittedOffset | None) -> None:
        """An offset was appended, or its deletion."""
        partitions = self.offsets.get(topic, {})
        before = partition in partitions
        if committed is not None:
            partitions = self.offsets.setdefault(topic, partitions)
            partitions[partition] = committed
        elif before:
            del partitions[partition]
            if not partitions:
                del self.offsets[topic]
        self._totals.offsetCount += (committed is not None) - before

    def hasOffset(self, topic: str, partition: int) -> bool:
        """Whether an offset was committed, or is being committed."""
        return partition in self.offsets.get(topic, ()) or (topic, partition) in self.pendingCommits

    def allOffsets(self) -> Iterator[tuple[str, int]]:
        """Topics and partitions with an offset that was committed, or is being committed."""
        for topic, partitions in self.offsets.items():
            for partition in partitions:
                yield topic, partition
        for topic, partition in self.pendingCommits:
            if partition not in self.offsets.get(topic, ()):
                yield topic, partition

    def forgotten(self) -> None:
        """The group, which has no members, is gone: its offsets do not count any more."""
        for topic, partition in list(self.allOffsets()):
            self.setOffset(topic, partition, None)
