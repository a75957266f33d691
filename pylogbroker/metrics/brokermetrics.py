"""
The metrics of a broker: all of 0.7.2's (spec-0.7 metrics §2), with the meanings that their names
promise, and our own.

C{docs/metrics.md} lists each with its bean and attribute. All counters are running totals;
the reader computes rates from two readings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pylogbroker.metrics.exposition import COUNTER, GAUGE, Family, Sample


class PartitionSnapshot(NamedTuple):
    """
    One partition (C{kafka.logs.<topic>-<partition>}).

    @ivar startOffset: the oldest offset.
    @ivar highWatermark: the end for consumers (C{CurrentOffset}, which is a place in the last
        segment there).
    @ivar logEndOffset: the offset of the next append.
    @ivar size: flushed bytes in all segments (C{Size}).
    @ivar segmentCount: files (C{NumberOfSegments}).
    @ivar unflushedSize: appended bytes that are not flushed.
    @ivar appendedCount: messages since the broker's start (C{NumAppendedMessages}).
    @ivar failure: why it is offline; C{""} if it is not.
    """

    topic: str
    partition: int
    startOffset: int
    highWatermark: int
    logEndOffset: int
    size: int
    segmentCount: int
    unflushedSize: int
    appendedCount: int
    failure: str


class BlockedRequest(NamedTuple):
    """
    A waiting client.

    @ivar peer: its address.
    @ivar what: what it wants to do: C{"produce"}, C{"fetch"}, C{"offsets"}, or C{"send"} a large
        request.
    @ivar topic: the topic; C{""} if it does not matter.
    @ivar reason: C{"flush"} (too many unflushed bytes), C{"disk"} (full), C{"roll"}, C{"memory"}
        (for requests), C{"reader"} (it reads its response slowly), C{"work"} (a worker thread
        processes it: a new partition, a compressed set, cold data, a due flush).
    """

    peer: str
    what: str
    topic: str
    partition: int
    reason: str


class ThrottledPartition(NamedTuple):
    """
    A partition whose producers wait.

    @ivar topic: C{""} for the whole broker.
    @ivar reason: C{"flush"}, C{"disk"} or C{"roll"}, as in L{BlockedRequest}.
    @ivar requestCount: waiting requests.
    """

    topic: str
    partition: int
    reason: str
    requestCount: int


class BrokerSnapshot(NamedTuple):
    """
    A broker.

    @ivar timeMs: the time of the snapshot, since the epoch.
    @ivar startedMs: the start of serving, since the epoch; 0 if it does not serve.
    @ivar endpoint: its C{host:port}.
    @ivar isRegistered: whether ZooKeeper has its registration; L{None} without ZooKeeper.
    @ivar counters: L{pylogbroker.metrics.counters.BrokerCounters.snapshot}.
    @ivar partitions: in order, up to the requested number.
    @ivar partitionCount: all partitions.
    @ivar failures: the reason for each partition that could not be opened, by name.
    @ivar unflushedSize: bytes of all partitions.
    @ivar requestMemorySize: bytes reserved for large requests.
    @ivar waiting: waiting clients, up to the requested number.
    @ivar waitingCounts: all waiting clients, by reason.
    @ivar cpuSeconds: processor time of the process.
    @ivar memorySize: resident bytes of the process; 0 if unknown.
    """

    brokerId: int
    endpoint: str
    timeMs: int
    startedMs: int
    isRegistered: bool | None
    counters: Mapping[str, Any]
    partitions: tuple[PartitionSnapshot, ...]
    partitionCount: int
    failures: Mapping[str, str]
    unflushedSize: int
    unflushedSizeMax: int
    requestMemorySize: int
    holding: tuple[ThrottledPartition, ...]
    waiting: tuple[BlockedRequest, ...]
    waitingCounts: Mapping[str, int]
    cpuSeconds: float
    memorySize: int


_MS = 1_000

_TOPIC_FIGURES = (
    (
        "messages_in_total",
        "messageCount",
        "Messages appended; those inside compressed ones count one by one.",
    ),
    ("bytes_in_total", "producedSize", "Bytes of message sets appended."),
    ("bytes_out_total", "fetchedSize", "Bytes of message sets handed out to fetches."),
    (
        "failed_produce_total",
        "failedProduceCount",
        "Message sets that were refused or could not be appended.",
    ),
    ("failed_fetch_total", "failedFetchCount", "Fetches that were answered with an error."),
)


def brokerFamilies(picture: BrokerSnapshot, version: str) -> list[Family]:
    """
    All metrics of a broker.

    @param version: of pylogbroker.
    """
    return [*_process(picture, version), *_requests(picture), *_connections(picture), *_topics(picture), *_partitions(picture), *_flushes(picture),
            *_pushingBack(picture)]  # fmt: skip


def _one(name: str, kind: str, value: float, sentence: str) -> Family:
    return Family(f"pylogbroker_{name}", kind, sentence, (Sample(value),))


def _by(
    label: str, name: str, kind: str, values: Iterable[tuple[str, float]], sentence: str
) -> Family:
    return Family(
        f"pylogbroker_{name}",
        kind,
        sentence,
        [Sample(value, {label: key}) for key, value in values],
    )


def _process(picture: BrokerSnapshot, version: str) -> Iterable[Family]:
    yield Family(
        "pylogbroker_info",
        GAUGE,
        "Which broker this is.",
        (Sample(1, {"broker": str(picture.brokerId), "version": version}),),
    )
    yield Family(
        "process_start_time_seconds",
        GAUGE,
        "When the broker began to serve, since the epoch.",
        (Sample(picture.startedMs / _MS),),
    )
    yield Family(
        "process_cpu_seconds_total",
        COUNTER,
        "Time of processors that the process has used.",
        (Sample(picture.cpuSeconds),),
    )
    if picture.memorySize:
        yield Family(
            "process_resident_memory_bytes",
            GAUGE,
            "Memory of the process.",
            (Sample(picture.memorySize),),
        )
    if picture.isRegistered is not None:
        yield _one(
            "registered",
            GAUGE,
            int(picture.isRegistered),
            "Whether the broker and all its topics are entered in ZooKeeper.",
        )


def _requests(picture: BrokerSnapshot) -> Iterable[Family]:
    requests, connections = picture.counters["requests"], picture.counters["connections"]
    kinds = ("produce", "fetch", "offsets")
    yield _by("kind", "requests_total", COUNTER, [(kind, requests[f"{kind}Count"]) for kind in kinds],
              "Requests carried out, whether they went well or not. Several in one (MULTIPRODUCE, MULTIFETCH) count once.")  # fmt: skip
    yield _by("kind", "request_seconds_total", COUNTER, [("produce", requests["produceSeconds"]), ("fetch", requests["fetchSeconds"])],
              "Time that requests took that did not fail, waiting included, sending the answer not.")  # fmt: skip
    yield _by("kind", "request_longest_seconds", GAUGE, [("produce", requests["longestProduceSeconds"]), ("fetch", requests["longestFetchSeconds"])],
              "The longest time since the start; of produce requests that arrived together, the time of all of them.")  # fmt: skip
    yield _one("read_bytes_total", COUNTER, connections["readSize"], "Bytes received from clients.")
    yield _one(
        "reads_total",
        COUNTER,
        connections["readCount"],
        "Reads from sockets in which they were received.",
    )
    yield _one("written_bytes_total", COUNTER, requests["writtenSize"], "Bytes sent to clients.")
    yield _one(
        "writes_total",
        COUNTER,
        requests["writeCount"],
        "Writes to sockets in which they were sent.",
    )


def _connections(picture: BrokerSnapshot) -> Iterable[Family]:
    connections = picture.counters["connections"]
    yield _one("connections", GAUGE, connections["openCount"], "Clients that are connected.")
    yield _one(
        "connections_most",
        GAUGE,
        connections["openCountMax"],
        "The most at a time since the start.",
    )
    yield _one(
        "connections_opened_total",
        COUNTER,
        connections["openedCount"],
        "Connections that were accepted.",
    )
    yield _by("reason", "connections_cut_total", COUNTER, [(reason, connections[f"{reason}Count"]) for reason in ("refused", "malformed", "slow")],
              "Connections that were cut: too many of them; bytes that are no request, or a request that had to be refused; "
              "too slow with a request or an answer.")  # fmt: skip
    yield _one(
        "foreign_connections_total",
        COUNTER,
        connections["foreignCount"],
        "Of the malformed ones, those that looked like another protocol.",
    )


def _topics(picture: BrokerSnapshot) -> Iterable[Family]:
    counters = picture.counters
    for name, counter, sentence in _TOPIC_FIGURES:
        yield _one(
            name, COUNTER, counters["allTopics"][counter], f"{sentence} All topics together."
        )
    others: Mapping[str, int] = counters["otherTopics"]
    for name, counter, sentence in _TOPIC_FIGURES:
        values = [(topic, numbers[counter]) for topic, numbers in counters["topics"].items()]
        if others[counter]:
            values.append(("", others[counter]))
        yield _by(
            "topic",
            f"topic_{name}",
            COUNTER,
            values,
            f"{sentence} No topic: all those together that are beyond max.topic.counters.",
        )


def _partitions(picture: BrokerSnapshot) -> Iterable[Family]:
    labels = [
        {"topic": each.topic, "partition": str(each.partition)} for each in picture.partitions
    ]

    def of(name: str, kind: str, values: Iterable[float], sentence: str) -> Family:
        return Family(
            f"pylogbroker_partition_{name}",
            kind,
            sentence,
            [Sample(value, label) for value, label in zip(values, labels, strict=True)],
        )

    pictures: tuple[PartitionSnapshot, ...] = picture.partitions
    yield _one("partitions", GAUGE, picture.partitionCount, "Partitions that there are.")
    yield _one(
        "failed_partitions",
        GAUGE,
        sum(bool(each.failure) for each in pictures) + len(picture.failures),
        "Partitions out of service.",
    )
    yield of(
        "size_bytes", GAUGE, (each.size for each in pictures), "Flushed bytes in all segments."
    )
    yield of("segments", GAUGE, (each.segmentCount for each in pictures), "Segment files.")
    yield of(
        "start_offset",
        GAUGE,
        (each.startOffset for each in pictures),
        "The oldest offset that can be read.",
    )
    yield of(
        "visible_offset",
        GAUGE,
        (each.highWatermark for each in pictures),
        "Where reading ends; the offset in the partition's lifetime.",
    )
    yield of(
        "end_offset",
        GAUGE,
        (each.logEndOffset for each in pictures),
        "The offset that the next message gets.",
    )
    yield of(
        "unflushed_bytes",
        GAUGE,
        (each.unflushedSize for each in pictures),
        "Bytes appended and not yet flushed.",
    )
    yield of(
        "appended_messages_total",
        COUNTER,
        (each.appendedCount for each in pictures),
        "Messages appended since the start.",
    )
    yield of(
        "failed",
        GAUGE,
        (int(bool(each.failure)) for each in pictures),
        "Whether the partition is out of service.",
    )


def _flushes(picture: BrokerSnapshot) -> Iterable[Family]:
    flushes = picture.counters["flushes"]
    yield _one("flushes_total", COUNTER, flushes["count"], "Flushes that succeeded.")
    yield _one(
        "flush_failures_total",
        COUNTER,
        flushes["failedCount"],
        "Flushes that failed; each took a partition out of service.",
    )
    yield _one(
        "flush_seconds_total",
        COUNTER,
        flushes["totalMs"] / _MS,
        "Time that flushes took, on all threads together.",
    )
    yield _one(
        "flush_longest_seconds",
        GAUGE,
        flushes["longestMs"] / _MS,
        "The longest flush since the start.",
    )


def _pushingBack(picture: BrokerSnapshot) -> Iterable[Family]:
    yield _one(
        "unflushed_bytes",
        GAUGE,
        picture.unflushedSize,
        "Bytes appended and not yet flushed, all partitions together.",
    )
    yield _one(
        "unflushed_limit_bytes",
        GAUGE,
        picture.unflushedSizeMax,
        "Above it producers wait (max.unflushed.bytes).",
    )
    yield _one(
        "request_memory_bytes",
        GAUGE,
        picture.requestMemorySize,
        "Memory that was granted to requests that are arriving or being carried out.",
    )
    yield _by("reason", "waiting_connections", GAUGE, sorted(picture.waitingCounts.items()), "Clients that wait, by reason: flush (too much is unflushed), "
              "disk (it is full), roll, memory (for requests), reader (the client does not take its answer), work (a worker is at it).")  # fmt: skip
    yield _by("reason", "held_back_requests", GAUGE, _summed((each.reason, each.requestCount) for each in picture.holding),
              "Produce requests that are held back, by reason: flush, disk, roll.")  # fmt: skip


def _summed(values: Iterable[tuple[str, int]]) -> list[tuple[str, float]]:
    sums = {"disk": 0, "flush": 0, "roll": 0}
    for key, value in values:
        sums[key] += value
    return list(sums.items())
