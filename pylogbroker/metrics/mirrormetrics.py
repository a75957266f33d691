"""
The figures of a mirror, by name, as those of brokers, producers and consumers are. 0.7's MirrorMaker has only those of the consumers and the producer in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from pylogbroker.metrics.exposition import COUNTER, GAUGE, Family, Sample
from pylogbroker.metrics.mirrorcounters import MirrorCounters

STUCK_COUNT_MAX = 1_000
"""Messages that are named one by one."""

_FIGURES = (
    ("taken_messages_total", COUNTER, "takenCount", "Messages taken from the sources."),
    ("taken_bytes_total", COUNTER, "takenSize", "Bytes of payload of these."),
    (
        "confirmed_messages_total",
        COUNTER,
        "confirmedCount",
        "Messages that the target has confirmed.",
    ),
    ("confirmed_bytes_total", COUNTER, "confirmedSize", "Bytes of payload of these."),
    (
        "given_back_messages_total",
        COUNTER,
        "givenBackCount",
        "Messages that were taken, and forgotten behind one that is stuck; they are taken again.",
    ),
    ("given_back_bytes_total", COUNTER, "givenBackSize", "Bytes of payload of these."),
    ("under_way_messages", GAUGE, "underWayCount", "Messages taken, and not confirmed yet."),
    ("under_way_bytes", GAUGE, "underWaySize", "Bytes of payload of these."),
    (
        "retried_messages_total",
        COUNTER,
        "retriedCount",
        "Messages that were sent once more, each time counted.",
    ),
    (
        "repeated_messages_total",
        COUNTER,
        "repeatedCount",
        "Of the retried, those that the target may have twice.",
    ),
    ("faults_total", COUNTER, "faultCount", "Times that a source partition could not be read on."),
    ("commits_total", COUNTER, "commitCount", "Offsets of the sources that were stored."),
)
_STUCK_FIGURES = (
    (
        "stuck_offset",
        "offset",
        "The offset, in the source, of a message that the target does not take.",
    ),
    ("stuck_bytes", "size", "Bytes of payload of that message."),
)
_TOPIC_FIGURES = (
    ("topic_messages_total", "messageCount", "Messages that the target has confirmed."),
    ("topic_bytes_total", "size", "Bytes of payload that the target has confirmed."),
)


def mirrorFamilies(
    counters: MirrorCounters, sources: Iterable[tuple[str, str, bool]]
) -> list[Family]:
    """
    @param sources: of each source, its group, its ZooKeeper, and whether the mirror has its share of the partitions there.
    """
    return [
        *(Family(f"pylogbroker_mirror_{name}", kind, sentence, (Sample(getattr(counters, counter)),)) for name, kind, counter, sentence in _FIGURES),
        Family("pylogbroker_mirror_stuck_messages", GAUGE, "Messages that the target does not take. What is behind them waits.", [Sample(len(counters.stuck))]),
        *(Family(f"pylogbroker_mirror_{name}", GAUGE, sentence, _stuck(counters, field)) for name, field, sentence in _STUCK_FIGURES),
        *_topics(counters),
        Family(
            "pylogbroker_mirror_source_joined", GAUGE, "Whether the mirror is a member of the source's group, and has its share of the partitions.",
            [Sample(int(isOwning), {"group": group, "zookeeper": servers}) for group, servers, isOwning in sources],
        ),
    ]  # fmt: skip


def _stuck(counters: MirrorCounters, field: str) -> list[Sample]:
    return [
        Sample(getattr(each, field), dict(each.labels))
        for each in islice(counters.stuck.values(), STUCK_COUNT_MAX)
    ]


def _topics(counters: MirrorCounters) -> Iterable[Family]:
    counted = sorted(counters.topics.items())
    if counters.otherTopics.messageCount:
        counted.append(("", counters.otherTopics))
    for name, counter, sentence in _TOPIC_FIGURES:
        samples = [
            Sample(getattr(mirrored, counter), {"topic": topic}) for topic, mirrored in counted
        ]
        yield Family(
            f"pylogbroker_mirror_{name}",
            COUNTER,
            f"{sentence} No topic: all those together that are beyond the limit.",
            samples,
        )
