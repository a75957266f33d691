"""
The figures of a mirror, by name, as those of brokers, producers and consumers are. 0.7's MirrorMaker has only those of the consumers and the producer in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pylogbroker.metrics.exposition import COUNTER, GAUGE, Family, Sample
from pylogbroker.metrics.mirrorcounters import MirrorCounters

_FIGURES = (
    ("taken_messages_total", COUNTER, "takenCount", "Messages taken from the sources."),
    ("taken_bytes_total", COUNTER, "takenSize", "Bytes of payload of these."),
    ("confirmed_messages_total", COUNTER, "confirmedCount", "Messages that the target has confirmed."),
    ("confirmed_bytes_total", COUNTER, "confirmedSize", "Bytes of payload of these."),
    ("under_way_messages", GAUGE, "underWayCount", "Messages taken, and not confirmed yet."),
    ("under_way_bytes", GAUGE, "underWaySize", "Bytes of payload of these."),
    ("retried_messages_total", COUNTER, "retriedCount", "Messages that were sent once more, each time counted."),
    ("repeated_messages_total", COUNTER, "repeatedCount", "Of the retried, those that the target may have twice."),
    ("faults_total", COUNTER, "faultCount", "Times that a source partition could not be read on."),
    ("commits_total", COUNTER, "commitCount", "Offsets of the sources that were stored."),
)
_TOPIC_FIGURES = (
    ("topic_messages_total", "messageCount", "Messages that the target has confirmed."),
    ("topic_bytes_total", "size", "Bytes of payload that the target has confirmed."),
)


def mirrorFamilies(counters: MirrorCounters, sources: Iterable[tuple[str, str, bool]]) -> list[Family]:
    """
    @param sources: of each source, its group, its ZooKeeper, and whether the mirror has its share of the partitions there.
    """
    return [
        *(Family(f"pylogbroker_mirror_{name}", kind, sentence, (Sample(getattr(counters, counter)),)) for name, kind, counter, sentence in _FIGURES),
        *_topics(counters),
        Family(
            "pylogbroker_mirror_source_joined", GAUGE, "Whether the mirror is a member of the source's group, and has its share of the partitions.",
            [Sample(int(isOwning), {"group": group, "zookeeper": servers}) for group, servers, isOwning in sources],
        ),
    ]  # fmt: skip


def _topics(counters: MirrorCounters) -> Iterable[Family]:
    counted = sorted(counters.topics.items())
    if counters.otherTopics.messageCount:
        counted.append(("", counters.otherTopics))
    for name, counter, sentence in _TOPIC_FIGURES:
        samples = [Sample(getattr(mirrored, counter), {"topic": topic}) for topic, mirrored in counted]
        yield Family(f"pylogbroker_mirror_{name}", COUNTER, f"{sentence} No topic: all those together that are beyond the limit.", samples)
