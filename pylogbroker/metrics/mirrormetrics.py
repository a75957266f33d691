"""
The counters of a mirror, and its metrics.

C{takenCount = confirmedCount + givenBackCount + underWayCount} always holds. The target may hold at
most C{repeatedCount} duplicates, besides those of a killed mirror and of messages behind a stuck
one. 0.7's MirrorMaker has only the metrics of its consumers and its producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from pylogbroker.metrics.counters import NAME_LENGTH_MAX, Counters
from pylogbroker.metrics.exposition import Family, Sample, families

TOPIC_COUNT_MAX = 1_000


class MirroredTopic(Counters):
    """
    One topic, or all topics beyond the limit.

    @ivar messageCount: confirmed messages.
    @ivar size: their bytes of payload.
    """

    __slots__ = ("messageCount", "size")

    messageCount: int
    size: int


class StuckMessage(NamedTuple):
    """
    A message that the target refuses.

    @ivar labels: source, topic and partition.
    @ivar offset: where it begins in the source; where it ends, for the first message ever read of a
        partition.
    @ivar size: bytes of payload.
    """

    labels: Mapping[str, str]
    offset: int
    size: int


class MirrorCounters:
    """
    Totals since the mirror's start. Sizes are bytes of payload.

    @ivar takenCount: messages taken from sources.
    @ivar confirmedCount: messages that the target has confirmed.
    @ivar givenBackCount: messages that were discarded behind a stuck one; they are taken again
        later.
    @ivar retriedCount: messages that were resent, counted each time.
    @ivar repeatedCount: resent messages with an unknown earlier outcome: the target may hold them
        twice.
    @ivar faultCount: times that a source partition could not be read.
    @ivar commitCount: stored offsets.
    @ivar stuck: messages that the target refuses now, at most one for each source partition.
    @ivar topics: confirmed messages by topic.
    @ivar otherTopics: confirmed messages of topics beyond the limit.
    """

    __slots__ = (
        "commitCount",
        "confirmedCount",
        "confirmedSize",
        "faultCount",
        "givenBackCount",
        "givenBackSize",
        "otherTopics",
        "repeatedCount",
        "retriedCount",
        "stuck",
        "takenCount",
        "takenSize",
        "topics",
    )

    def __init__(self) -> None:
        self.takenCount = self.takenSize = self.confirmedCount = self.confirmedSize = 0
        self.givenBackCount = self.givenBackSize = 0
        self.retriedCount = self.repeatedCount = self.faultCount = self.commitCount = 0
        self.stuck: dict[object, StuckMessage] = {}
        self.topics: dict[str, MirroredTopic] = {}
        self.otherTopics = MirroredTopic()

    @property
    def underWayCount(self) -> int:
        """Messages in flight."""
        return self.takenCount - self.confirmedCount - self.givenBackCount

    @property
    def underWaySize(self) -> int:
        """Bytes of payload in flight."""
        return self.takenSize - self.confirmedSize - self.givenBackSize

    def taken(self, count: int, size: int) -> None:
        """Count a batch taken from a source."""
        self.takenCount += count
        self.takenSize += size

    def givenBack(self, count: int, size: int) -> None:
        """Count a discarded batch."""
        self.givenBackCount += count
        self.givenBackSize += size

    def confirmed(self, topic: str, count: int, size: int) -> None:
        """Count a confirmed batch."""
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

    def snapshot(self) -> dict[str, Any]:
        """
        A copy of all counters: C{topics} holds a dictionary for each topic, C{stuck} one for each
        message.
        """
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "underWayCount": self.underWayCount,
            "underWaySize": self.underWaySize,
            "stuck": [
                {**each.labels, "offset": each.offset, "size": each.size}
                for each in self.stuck.values()
            ],
            "topics": {name: each.snapshot() for name, each in self.topics.items()},
            "otherTopics": self.otherTopics.snapshot(),
        }


STUCK_COUNT_MAX = 1_000
"""Messages that are named one by one."""

_FIGURES = (
    ("taken_messages_total", "takenCount", "Messages taken from the sources."),
    ("taken_bytes_total", "takenSize", "Bytes of payload taken from the sources."),
    (
        "confirmed_messages_total",
        "confirmedCount",
        "Messages that the target has confirmed.",
    ),
    ("confirmed_bytes_total", "confirmedSize", "Bytes of payload that the target has confirmed."),
    (
        "given_back_messages_total",
        "givenBackCount",
        "Messages that were discarded behind a stuck one; they are taken again.",
    ),
    (
        "given_back_bytes_total",
        "givenBackSize",
        "Bytes of payload that were discarded behind a stuck message.",
    ),
    ("under_way_messages", "underWayCount", "Messages taken, and not confirmed yet."),
    ("under_way_bytes", "underWaySize", "Bytes of payload taken, and not confirmed yet."),
    (
        "retried_messages_total",
        "retriedCount",
        "Messages that were sent once more, each time counted.",
    ),
    (
        "repeated_messages_total",
        "repeatedCount",
        "Retried messages that the target may have twice.",
    ),
    ("faults_total", "faultCount", "Times that a source partition could not be read on."),
    ("commits_total", "commitCount", "Offsets of the sources that were stored."),
    (
        "stuck_messages",
        "stuckCount",
        "Messages that the target refuses. The messages behind them wait.",
    ),
)
_STUCK_FIGURES = (
    ("stuck_offset", "offset", "The offset, in the source, of a message that the target refuses."),
    ("stuck_bytes", "size", "Bytes of payload of a message that the target refuses."),
)
_TOPIC_FIGURES = (
    (
        "topic_messages_total",
        "messageCount",
        "Messages that the target has confirmed. No topic: all topics beyond the limit.",
    ),
    (
        "topic_bytes_total",
        "size",
        "Bytes of payload that the target has confirmed. No topic: all topics beyond the limit.",
    ),
)


def mirrorFamilies(
    counters: MirrorCounters, sources: Iterable[tuple[Mapping[str, str], bool]]
) -> list[Family]:
    """
    The metrics of a mirror.

    @param sources: (labels, whether the mirror owns its partitions) of each source.
    """
    values = {**counters.snapshot(), "stuckCount": len(counters.stuck)}
    stuck = [
        (each.labels, each._asdict()) for each in islice(counters.stuck.values(), STUCK_COUNT_MAX)
    ]
    topics = [({"topic": topic}, each) for topic, each in sorted(values["topics"].items())]
    if counters.otherTopics.messageCount:
        topics.append(({"topic": ""}, values["otherTopics"]))
    prefix = "pylogbroker_mirror"
    return [
        *families(prefix, _FIGURES, [({}, values)]),
        *families(prefix, _STUCK_FIGURES, stuck),
        *families(prefix, _TOPIC_FIGURES, topics),
        Family(
            "pylogbroker_mirror_source_joined",
            "Whether the mirror is a member of the source's group, and has its share of the"
            " partitions.",
            [Sample(isOwning, labels) for labels, isOwning in sources],
        ),
    ]
