"""
What groups of every protocol have: a name, a partition of the log, committed offsets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pylogbroker.coordinator.consumergroups import consumerrecords
from pylogbroker.coordinator.consumergroups.consumerrecords import ConsumerGroupKey
from pylogbroker.coordinator.effects import Appended, PendingAppend, Record
from pylogbroker.coordinator.offsetstopic import CommittedOffset

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The members of such a group say which topics they subscribe to, in a form that we know."""

CLASSIC_KEY = 2
"""Of the record of a classic group; a group of KIP-848 has several records, with other keys."""

_ORDER = (
    consumerrecords.MEMBER_KEY,
    consumerrecords.PATTERN_KEY,
    consumerrecords.EPOCH_KEY,
    consumerrecords.TARGET_MEMBER_KEY,
    consumerrecords.TARGET_KEY,
    consumerrecords.PARTITIONS_KEY,
    consumerrecords.CURRENT_KEY,
    CLASSIC_KEY,
)
"""In which records are written; those that delete come first, in the reverse order."""


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


@dataclass(eq=False, slots=True)
class GroupRecords:
    """
    Records of a group that are to be appended.

    @ivar keys: which records, but for those of committed offsets.
    @ivar records: with their values, in the order in which they are written.
    @ivar outcome: of the append.
    """

    keys: Sequence[ConsumerGroupKey]
    records: Sequence[Record]
    outcome: PendingAppend

    @property
    def size(self) -> int:
        """Bytes of the records, without what a batch adds."""
        return sum(len(key) + len(value or b"") for key, value in self.records)


@dataclass(eq=False, slots=True)
class GroupLog:
    """
    What the log has of a group, but for its committed offsets. It stays when the group goes on with
    another protocol.

    @ivar changed: the records that the log does not have as memory has them.
    @ivar appending: what is being appended.
    @ivar waiting: what is to be appended next.
    @ivar last: the outcome of what was to be appended last.
    """

    changed: dict[ConsumerGroupKey, None] = field(default_factory=dict)
    appending: Sequence[GroupRecords] = ()
    waiting: deque[GroupRecords] = field(default_factory=deque)
    last: PendingAppend | None = None

    def take(
        self,
        valueOf: Callable[[ConsumerGroupKey], bytes | None],
        done: Appended,
        deletedOffsets: Sequence[Record],
    ) -> GroupRecords:
        """
        All that has changed, which is to be appended.

        @param valueOf: the value of a record; L{None}: it is deleted.
        @param done: called with the outcome.
        @param deletedOffsets: records that delete committed offsets.
        """
        keys = sorted(self.changed, key=lambda each: _ORDER.index(each.keyType))
        self.changed.clear()
        records = [(consumerrecords.encodeKey(each), valueOf(each)) for each in keys]
        deleted = [each for each in reversed(records) if each[1] is None]
        written = [each for each in records if each[1] is not None]
        self.last = PendingAppend(done)
        return GroupRecords(keys, [*deletedOffsets, *deleted, *written], self.last)

    def takeWaiting(self, sizeMax: int) -> Sequence[GroupRecords]:
        """
        What waits, in its order, is being appended from now on.

        @param sizeMax: bytes; what comes first may be larger.
        """
        taken: list[GroupRecords] = []
        size = 0
        while self.waiting and (not taken or size + self.waiting[0].size <= sizeMax):
            taken.append(self.waiting.popleft())
            size += taken[-1].size
        self.appending = taken
        return taken

    def refused(self, some: Iterable[GroupRecords]) -> None:
        """The log does not have these."""
        for each in some:
            self.changed.update(dict.fromkeys(each.keys))


class Group(ABC):
    """
    A group of any protocol. One that goes on with another protocol is another object, which has the
    same committed offsets.

    @cvar typeName: Kafka's name of the protocol.
    @ivar partition: of C{__consumer_offsets}.
    @ivar offsets: committed offsets by topic and partition, as appended.
    @ivar pendingCommits: how many commits of a topic and partition are being appended.
    @ivar lastCommit: the last append of committed offsets, or of their deletion.
    @ivar log: what the log has of the group beside them.
    @ivar isStored: has records beside those of its offsets.
    """

    typeName: str

    def __init__(self, groupId: str, partition: int, totals: GroupTotals) -> None:
        self.groupId = groupId
        self.partition = partition
        self.offsets: dict[str, dict[int, CommittedOffset]] = {}
        self.pendingCommits: Counter[tuple[str, int]] = Counter()
        self.lastCommit: PendingAppend | None = None
        self.log = GroupLog()
        self.isStored = False
        self._totals = totals

    def succeed(self, before: Group) -> None:
        """Take over the committed offsets and the log of the group that this one was."""
        self.offsets = before.offsets
        self.pendingCommits = before.pendingCommits
        self.lastCommit = before.lastCommit
        before.log.changed.update(self.log.changed)
        self.log = before.log

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

    def changed(self, keyType: int, name: str = "") -> None:
        """What a record holds has changed."""
        self.log.changed[ConsumerGroupKey(keyType, self.groupId, name)] = None

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
