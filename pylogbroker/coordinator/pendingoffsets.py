"""
Offsets that were committed in transactions whose end is not known yet. A module of its own, since
they belong to transactions, and to groups that need not exist.

An offset counts when the marker of a commit is appended; until then clients that want stable
offsets are told to try again. What was committed or deleted outside of the transaction behind the
offset is newer: then the offset does not count, whatever becomes of the transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pylogbroker.coordinator.offsetstopic import CommittedOffset, OffsetCommitKey
from pylogbroker.protocol.kafka.schemas import ZERO_UUID


class PendingOffsets:
    """
    The offsets; the module states the rules.

    @ivar count: offsets, for a limit.
    """

    def __init__(self) -> None:
        self.count = 0
        # by partition of the offsets topic, and producer
        self._byProducer: dict[tuple[int, int], dict[OffsetCommitKey, CommittedOffset | None]] = {}
        # in how many transactions a partition has an offset
        self._counts: dict[str, Counter[tuple[str, int]]] = {}

    def add(
        self,
        offsetsPartition: int,
        producerId: int,
        key: OffsetCommitKey,
        committed: CommittedOffset,
    ) -> None:
        """An offset was appended in a producer's transaction."""
        found = self._byProducer.setdefault((offsetsPartition, producerId), {})
        if key not in found:
            self._counts.setdefault(key.groupId, Counter())[key[1:]] += 1
            self.count += 1
        found[key] = committed

    def isPending(self, groupId: str, topic: str, partition: int) -> bool:
        """Whether a transaction with an offset is not ended."""
        return (topic, partition) in self._counts.get(groupId, ())

    def ofGroup(self, groupId: str) -> list[tuple[str, int]]:
        """Topics and partitions with such offsets."""
        return list(self._counts.get(groupId, ()))

    def supersede(self, key: OffsetCommitKey) -> None:
        """A newer offset of this partition was appended, or its deletion."""
        if self.isPending(*key):
            for found in self._byProducer.values():
                if key in found:
                    found[key] = None

    def ofTopic(self, topic: str, topicId: bytes) -> list[OffsetCommitKey]:
        """The offsets of a topic with this id, or whose id is not known."""
        return [
            key
            for found in self._byProducer.values()
            for key, committed in found.items()
            if key.topic == topic
            and committed is not None
            and committed.topicId in (ZERO_UUID, topicId)
        ]

    def end(
        self, offsetsPartition: int, producerId: int
    ) -> Iterable[tuple[OffsetCommitKey, CommittedOffset | None]]:
        """
        A transaction is ended, and its offsets are not pending any more.

        @return: them; L{None}: a newer one counts.
        """
        ended = self._byProducer.pop((offsetsPartition, producerId), {})
        for key in ended:
            counts = self._counts[key.groupId]
            counts[key[1:]] -= 1
            if not counts[key[1:]]:
                del counts[key[1:]]
            if not counts:
                del self._counts[key.groupId]
        self.count -= len(ended)
        return ended.items()

    def unload(self, offsetsPartition: int) -> None:
        """A partition of the offsets topic is not served any more."""
        for place in [each for each in self._byProducer if each[0] == offsetsPartition]:
            self.end(*place)
