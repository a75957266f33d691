"""
The metrics of producers and consumers (spec-0.7 metrics §3, §4), for applications that serve them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pylogbroker.metrics.counters import ConsumerCounters
from pylogbroker.metrics.exposition import COUNTER, GAUGE, Family, Sample

_US = 1_000_000

_PRODUCER_FIGURES = (
    (
        "accepted_messages_total",
        "acceptedCount",
        "Messages given to the producer, refused ones included.",
    ),
    ("written_messages_total", "writtenCount", "Messages sent; with confirm, and confirmed."),
    ("failed_messages_total", "failedCount", "Messages of which nothing has left."),
    (
        "dropped_messages_total",
        "droppedCount",
        "Of the failed, those for which the queue had no room.",
    ),
    ("unknown_messages_total", "unknownCount", "Messages whose outcome is not known."),
    (
        "retried_messages_total",
        "retriedCount",
        "Messages that were tried once more, each time counted.",
    ),
    (
        "repeated_messages_total",
        "repeatedCount",
        "Of the retried, those that may be in the log twice.",
    ),
    ("requests_total", "batchCount", "Requests, or batches, that were given to a connection."),
)


def producerFamilies(
    counters: Mapping[str, int],
    queuedCount: int,
    queuedSize: int,
    labels: Mapping[str, str] | None = None,
) -> list[Family]:
    """
    The metrics of a producer.

    @param counters: L{pylogbroker.producer.completion.ProducerCounters} by name.
    @param queuedCount: messages in flight.
    @param queuedSize: their bytes.
    @param labels: distinguish this producer from others.
    """
    told = dict(labels or {})
    families = [
        Family(f"pylogbroker_producer_{name}", COUNTER, sentence, (Sample(counters[key], told),))
        for name, key, sentence in _PRODUCER_FIGURES
    ]
    return [
        *families,
        Family(
            "pylogbroker_producer_queued_messages",
            GAUGE,
            "Messages that wait or are under way.",
            (Sample(queuedCount, told),),
        ),
        Family(
            "pylogbroker_producer_queued_bytes",
            GAUGE,
            "Bytes of these.",
            (Sample(queuedSize, told),),
        ),
    ]


def consumerFamilies(
    counters: ConsumerCounters, ownedCount: int, labels: Mapping[str, str] | None = None
) -> list[Family]:
    """
    The metrics of a consumer.

    @param ownedCount: partitions that the member owns.
    @param labels: distinguish this consumer from others.
    """
    told = dict(labels or {})
    fetches = counters.fetches

    def one(name: str, kind: str, value: float, sentence: str) -> Family:
        return Family(f"pylogbroker_consumer_{name}", kind, sentence, (Sample(value, told),))

    def each(name: str, counter: str, sentence: str) -> Family:
        samples = [
            Sample(getattr(numbers, counter), {**told, "topic": topic})
            for topic, numbers in sorted(counters.topics.items())
        ]
        return Family(f"pylogbroker_consumer_{name}", COUNTER, sentence, samples)

    return [
        one("fetches_total", COUNTER, fetches.fetchCount, "Fetch requests that were answered."),
        one("failed_fetches_total", COUNTER, fetches.failedCount, "Fetch requests that were not."),
        one(
            "fetch_seconds_total",
            COUNTER,
            fetches.fetchUs / _US,
            "Time from the request to the answer.",
        ),
        one(
            "fetch_longest_seconds",
            GAUGE,
            fetches.longestUs / _US,
            "The longest such time since the start.",
        ),
        one("owned_partitions", GAUGE, ownedCount, "Partitions that this member has."),
        each(
            "messages_total",
            "messageCount",
            "Messages handed out to the application; those of one answer are counted together.",
        ),
        each("bytes_total", "fetchedSize", "Bytes of message sets fetched."),
    ]
