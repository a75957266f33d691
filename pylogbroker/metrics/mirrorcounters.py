"""
What a mirror counts: running totals since its start, and what is under way.

Source and target agree when C{takenCount = confirmedCount + givenBackCount + underWayCount}; what the target may have twice is C{repeatedCount} at most,
beside what a mirror had under way that was killed, and what had arrived behind a message that is stuck.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pylogbroker.metrics.counters import NAME_LENGTH_MAX

TOPIC_COUNT_MAX = 1_000


class MirroredTopic:
    """
    One topic, or all beyond the limit.

    @ivar messageCount: messages that the target has confirmed.
    @ivar size: bytes of payload of these.
    """

    __slots__ = ("messageCount", "size")

    def __init__(self) -> None:
        self.messageCount = self.size = 0


class StuckMessage(NamedTuple):
    """
    A message that the target does not take.

    @ivar labels: source, topic and partition.
    @ivar offset: in the source: where it begins; of the first that was ever read of a partition, where it ends.
    @ivar size: bytes of payload.
    """

    labels: Mapping[str, str]
    offset: int
    size: int


class MirrorCounters:
    """
    All that one mirror counts.

    @ivar takenCount: messages taken from sources.
    @ivar takenSize: bytes of payload of these.
    @ivar confirmedCount: messages that the target has confirmed.
    @ivar confirmedSize: bytes of payload of these.
    @ivar givenBackCount: messages that were taken and forgotten again, behind one that the target does not take; they are taken once more when it does.
    @ivar givenBackSize: bytes of payload of these.
    @ivar retriedCount: messages that were sent once more, each time counted.
    @ivar repeatedCount: of these, those of which nobody knows what became of them the time before: the target may have them twice.
    @ivar faultCount: times that a source partition could not be read on.
    @ivar commitCount: offsets that were stored.
    @ivar stuck: messages that the target does not take now, by whatever carries each; one of a source partition at the most, since the rest waits for it.
    @ivar topics: confirmed messages by topic.
    @ivar otherTopics: those of topics beyond the limit.
    """

    __slots__ = (
        "commitCount", "confirmedCount", "confirmedSize", "faultCount", "givenBackCount", "givenBackSize", "otherTopics", "repeatedCount",
        "retriedCount", "stuck", "takenCount", "takenSize", "topics",
    )  # fmt: skip

    def __init__(self) -> None:
        self.takenCount = self.takenSize = self.confirmedCount = self.confirmedSize = 0
        self.givenBackCount = self.givenBackSize = 0
        self.retriedCount = self.repeatedCount = self.faultCount = self.commitCount = 0
        self.stuck: dict[object, StuckMessage] = {}
        self.topics: dict[str, MirroredTopic] = {}
        self.otherTopics = MirroredTopic()

    @property
    def underWayCount(self) -> int:
        """Messages taken, and not confirmed yet."""
        return self.takenCount - self.confirmedCount - self.givenBackCount

    @property
    def underWaySize(self) -> int:
        """Bytes of payload of these."""
        return self.takenSize - self.confirmedSize - self.givenBackSize

    def taken(self, count: int, size: int) -> None:
        """A batch was taken from a source."""
        self.takenCount += count
        self.takenSize += size

    def givenBack(self, count: int, size: int) -> None:
        """A batch is not under way any more, and will be read again."""
        self.givenBackCount += count
        self.givenBackSize += size

    def confirmed(self, topic: str, count: int, size: int) -> None:
        """A batch was confirmed by the target."""
        self.confirmedCount += count
        self.confirmedSize += size
        mirrored = self.topics.get(topic)
        if mirrored is None:
            if len(self.topics) >= TOPIC_COUNT_MAX or len(topic) > NAME_LENGTH_MAX:
                mirrored = self.otherTopics
            else:
                mirrored = self.topics[topic] = MirroredTopic()
        mirrored.messageCount += count
        mirrored.size += size

    def snapshot(self) -> dict[str, object]:
        """A picture of all numbers, which later counting does not change; C{topics} holds a dictionary for each topic, C{stuck} one for each
        message."""
        numbers: dict[str, object] = {
            name: getattr(self, name)
            for name in self.__slots__
            if name not in ("stuck", "topics", "otherTopics")
        }
        numbers["underWayCount"], numbers["underWaySize"] = self.underWayCount, self.underWaySize
        numbers["stuck"] = [
            {**each.labels, "offset": each.offset, "size": each.size}
            for each in self.stuck.values()
        ]
        numbers["topics"] = {
            name: {"messageCount": each.messageCount, "size": each.size}
            for name, each in self.topics.items()
        }
        numbers["otherTopics"] = {
            "messageCount": self.otherTopics.messageCount,
            "size": self.otherTopics.size,
        }
        return numbers
