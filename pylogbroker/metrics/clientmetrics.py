"""
The metrics of producers and consumers (spec-0.7 metrics §3, §4), for applications that serve them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pylogbroker.metrics.counters import ConsumerCounters
from pylogbroker.metrics.exposition import Family, families

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
        "Failed messages for which the queue had no room.",
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
        "Retried messages that may be in the log twice.",
    ),
    ("requests_total", "batchCount", "Requests, or batches, that were given to a connection."),
    ("queued_messages", "queuedCount", "Messages that wait or are under way."),
    ("queued_bytes", "queuedSize", "Bytes of the messages that wait or are under way."),
)
_CONSUMER_FIGURES = (
    ("fetches_total", "fetchCount", "Fetch requests that were answered."),
    ("failed_fetches_total", "failedCount", "Fetch requests that were not answered."),
    ("fetch_seconds_total", "fetchSeconds", "Time from fetch requests to their responses."),
    (
        "fetch_longest_seconds",
        "longestSeconds",
        "The longest time from a fetch request to its response since the start.",
    ),
    ("owned_partitions", "ownedCount", "Partitions that this member owns."),
)
_CONSUMER_TOPIC_FIGURES = (
    (
        "messages_total",
        "messageCount",
        "Messages delivered to the application; those of one response are counted together.",
    ),
    ("bytes_total", "fetchedSize", "Bytes of message sets fetched."),
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
    values = {**counters, "queuedCount": queuedCount, "queuedSize": queuedSize}
    return families("pylogbroker_producer", _PRODUCER_FIGURES, [(labels or {}, values)])


def consumerFamilies(
    counters: ConsumerCounters, ownedCount: int, labels: Mapping[str, str] | None = None
) -> list[Family]:
    """
    The metrics of a consumer.

    @param ownedCount: partitions that the member owns.
    @param labels: distinguish this consumer from others.
    """
    fetches, labels = counters.fetches, labels or {}
    values = {
        **fetches.snapshot(),
        "fetchSeconds": fetches.fetchUs / _US,
        "longestSeconds": fetches.longestUs / _US,
        "ownedCount": ownedCount,
    }
    topics = [
        ({**labels, "topic": topic}, numbers.snapshot())
        for topic, numbers in sorted(counters.topics.items())
    ]
    return [
        *families("pylogbroker_consumer", _CONSUMER_FIGURES, [(labels, values)]),
        *families("pylogbroker_consumer", _CONSUMER_TOPIC_FIGURES, topics),
    ]
