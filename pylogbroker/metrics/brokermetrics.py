"""
The metrics of a broker: all of 0.7.2's (spec-0.7 metrics §2), with the meanings that their names
promise, and our own.

C{docs/metrics.md} lists each with its bean and attribute. All counters are running totals;
the reader computes rates from two readings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pylogbroker.metrics.exposition import Family, Sample, families, scalar


class PartitionSnapshot(NamedTuple):
    """
    One partition (C{kafka.logs.<topic>-<partition>}).

    @ivar startOffset: the oldest offset.
    @ivar highWatermark: the end for consumers (C{CurrentOffset}, which is a place in the last
        segment there).
    @ivar logEndOffset: the offset of the next append.
    @ivar size: bytes in all segments (C{Size}); of a topic of Kafka 0.7, flushed ones.
    @ivar segmentCount: files (C{NumberOfSegments}).
    @ivar unflushedSize: appended bytes that are not flushed.
    @ivar appendedCount: messages since the broker's start (C{NumAppendedMessages}).
    @ivar failure: why it is offline; C{""} if it is not.
    @ivar isCurrent: whether its topic is one of today's Kafka, whose offsets count records.
    @ivar producerCount: producers that a partition of today's Kafka remembers.
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
    isCurrent: bool = False
    producerCount: int = 0


class GroupMemberSnapshot(NamedTuple):
    """
    A member of a group of today's Kafka.

    @ivar partitions: topics and partitions that it has been given.
    """

    memberId: str
    clientId: str
    clientHost: str
    partitions: tuple[tuple[str, int], ...]


class GroupSnapshot(NamedTuple):
    """
    A group of today's Kafka that the broker coordinates.

    @ivar state: Kafka's name for it: C{Stable}, C{Empty}, …
    @ivar offsets: topic, partition and committed offset, sorted.
    """

    name: str
    state: str
    members: tuple[GroupMemberSnapshot, ...]
    offsets: tuple[tuple[str, int, int], ...]


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


class ClusterSnapshot(NamedTuple):
    """
    The state of the cluster of today's Kafka, as a broker knows it.

    @ivar leaderCount: partitions that it leads.
    @ivar replicaCount: partitions that it has.
    @ivar underReplicatedCount: those that it leads, of which a replica is not in sync; replicas
        that a reassignment adds do not count.
    @ivar underMinInSyncCount: those that it leads, with fewer in sync than C{min.insync.replicas}.
    @ivar reassigningCount: those that it leads, and that are being reassigned.
    @ivar offlineCount: partitions of the cluster without a leader.
    @ivar imbalancedCount: partitions of the cluster that another replica leads than the preferred.
    @ivar isController: whether it is the controller.
    @ivar brokerCount: brokers of the cluster that run.
    @ivar fencedCount: registered brokers that do not.
    @ivar metadataChange: the number of the last change of the metadata that it has.
    @ivar metadataLag: changes that it knows of, and does not have yet.
    """

    leaderCount: int
    replicaCount: int
    underReplicatedCount: int
    underMinInSyncCount: int
    reassigningCount: int
    offlineCount: int
    imbalancedCount: int
    isController: bool
    brokerCount: int
    fencedCount: int
    metadataChange: int
    metadataLag: int


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
    @ivar groups: of today's Kafka, by name, up to the requested number.
    @ivar groupCount: all of them.
    @ivar cluster: of today's Kafka; L{None} while the broker does not serve.
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
    groups: tuple[GroupSnapshot, ...] = ()
    groupCount: int = 0
    cluster: ClusterSnapshot | None = None


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
_PARTITION_FIGURES = (
    ("size_bytes", "size", "Bytes in all segments; of a topic of Kafka 0.7, flushed ones."),
    ("segments", "segmentCount", "Segment files."),
    ("start_offset", "startOffset", "The oldest offset that can be read."),
    (
        "visible_offset",
        "highWatermark",
        "Where reading ends; the offset in the partition's lifetime.",
    ),
    ("end_offset", "logEndOffset", "The offset that the next message gets."),
    ("unflushed_bytes", "unflushedSize", "Bytes appended and not yet flushed."),
    ("appended_messages_total", "appendedCount", "Messages appended since the start."),
    ("failed", "isFailed", "Whether the partition is out of service."),
    ("producers", "producerCount", "Producers that a partition of today's Kafka remembers."),
)
_COMPACTION_FIGURES = (
    ("compactions_total", "count", "Compactions of partitions that succeeded."),
    ("compaction_failures_total", "failedCount", "Compactions of partitions that did not."),
    ("compaction_read_records_total", "recordCount", "Records that compactions have read."),
    ("compaction_kept_records_total", "keptCount", "Records that compactions have kept."),
    ("compaction_seconds_total", "seconds", "Time that compactions took, with their pacing."),
)
_CLUSTER_FIGURES = (
    ("led_partitions", "leaderCount", "Partitions of today's Kafka that this broker leads."),
    ("replicas", "replicaCount", "Partitions of today's Kafka that this broker has."),
    (
        "under_replicated_partitions",
        "underReplicatedCount",
        "Partitions that this broker leads, and of which a replica is not in sync.",
    ),
    (
        "under_min_isr_partitions",
        "underMinInSyncCount",
        "Partitions that this broker leads, with fewer replicas in sync than min.insync.replicas.",
    ),
    (
        "reassigning_partitions",
        "reassigningCount",
        "Partitions that this broker leads, and that are being reassigned.",
    ),
    ("offline_partitions", "offlineCount", "Partitions of the cluster without a leader."),
    (
        "preferred_replica_imbalance",
        "imbalancedCount",
        "Partitions of the cluster that another replica leads than the preferred one.",
    ),
    ("active_controller", "isController", "Whether this broker is the cluster's controller."),
    ("active_brokers", "brokerCount", "Brokers of the cluster that run."),
    ("fenced_brokers", "fencedCount", "Registered brokers of the cluster that do not run."),
    (
        "metadata_change",
        "metadataChange",
        "The number of the last change of the metadata that this broker has.",
    ),
    (
        "metadata_lag_changes",
        "metadataLag",
        "Changes of the metadata that this broker knows of and does not have yet.",
    ),
)


def brokerFamilies(picture: BrokerSnapshot, version: str) -> list[Family]:
    """
    All metrics of a broker.

    @param version: of pylogbroker.
    """
    requests, connections, flushes = (
        picture.counters[name] for name in ("requests", "connections", "flushes")
    )
    heldBack = {"disk": 0, "flush": 0, "roll": 0}
    for each in picture.holding:
        heldBack[each.reason] += each.requestCount
    process = [
        scalar(
            "pylogbroker_info",
            "Which broker this is.",
            1,
            {"broker": str(picture.brokerId), "version": version},
        ),
        scalar(
            "process_start_time_seconds",
            "When the broker began to serve, since the epoch.",
            picture.startedMs / _MS,
        ),
        scalar(
            "process_cpu_seconds_total",
            "Time of processors that the process has used.",
            picture.cpuSeconds,
        ),
    ]
    if picture.memorySize:
        process.append(
            scalar("process_resident_memory_bytes", "Memory of the process.", picture.memorySize)
        )
    if picture.isRegistered is not None:
        process.append(
            scalar(
                "pylogbroker_registered",
                "Whether the broker and all its topics are entered in ZooKeeper.",
                picture.isRegistered,
            )
        )
    return [
        *process,
        _by(
            "kind",
            "pylogbroker_requests_total",
            "Requests carried out, whether they went well or not."
            " MULTIPRODUCE and MULTIFETCH count once.",
            {kind: requests[f"{kind}Count"] for kind in ("produce", "fetch", "offsets")},
        ),
        scalar(
            "pylogbroker_throttled_requests_total",
            "Requests of today's protocol by which a client had exceeded a quota.",
            requests["throttledCount"],
        ),
        scalar(
            "pylogbroker_throttled_seconds_total",
            "Time for which clients that had exceeded a quota were held back.",
            requests["throttledMs"] / _MS,
        ),
        _by(
            "kind",
            "pylogbroker_request_seconds_total",
            "Time of requests that did not fail, with their waits, without sending the response.",
            {kind: requests[f"{kind}Seconds"] for kind in ("produce", "fetch")},
        ),
        _by(
            "kind",
            "pylogbroker_request_longest_seconds",
            "The longest time of a request since the start; produce requests that arrived together"
            " count as one.",
            {
                "produce": requests["longestProduceSeconds"],
                "fetch": requests["longestFetchSeconds"],
            },
        ),
        scalar(
            "pylogbroker_read_bytes_total",
            "Bytes received from clients.",
            connections["readSize"],
        ),
        scalar(
            "pylogbroker_reads_total",
            "Reads from sockets that received bytes from clients.",
            connections["readCount"],
        ),
        scalar(
            "pylogbroker_written_bytes_total", "Bytes sent to clients.", requests["writtenSize"]
        ),
        scalar(
            "pylogbroker_writes_total", "Writes of responses to sockets.", requests["writeCount"]
        ),
        scalar("pylogbroker_connections", "Clients that are connected.", connections["openCount"]),
        scalar(
            "pylogbroker_connections_most",
            "The most clients connected at a time since the start.",
            connections["openCountMax"],
        ),
        scalar(
            "pylogbroker_connections_opened_total",
            "Connections that were accepted.",
            connections["openedCount"],
        ),
        _by(
            "reason",
            "pylogbroker_connections_cut_total",
            "Connections that the broker closed: refused (too many), malformed (bytes that are no"
            " request, or a request that had to be refused), slow (with a request or a response).",
            {reason: connections[f"{reason}Count"] for reason in ("refused", "malformed", "slow")},
        ),
        scalar(
            "pylogbroker_foreign_connections_total",
            "Malformed connections whose bytes looked like another protocol.",
            connections["foreignCount"],
        ),
        *_topics(picture.counters),
        scalar("pylogbroker_partitions", "Partitions of this broker.", picture.partitionCount),
        scalar(
            "pylogbroker_failed_partitions",
            "Partitions out of service.",
            sum(bool(each.failure) for each in picture.partitions) + len(picture.failures),
        ),
        *families(
            "pylogbroker_partition",
            _PARTITION_FIGURES,
            [
                (
                    {"topic": each.topic, "partition": str(each.partition)},
                    {**each._asdict(), "isFailed": bool(each.failure)},
                )
                for each in picture.partitions
            ],
        ),
        scalar("pylogbroker_flushes_total", "Flushes that succeeded.", flushes["count"]),
        scalar(
            "pylogbroker_flush_failures_total",
            "Flushes that failed; each took a partition out of service.",
            flushes["failedCount"],
        ),
        scalar(
            "pylogbroker_flush_seconds_total",
            "Time that flushes took, on all threads together.",
            flushes["totalMs"] / _MS,
        ),
        scalar(
            "pylogbroker_flush_longest_seconds",
            "The longest flush since the start.",
            flushes["longestMs"] / _MS,
        ),
        scalar(
            "pylogbroker_unflushed_bytes",
            "Bytes appended and not yet flushed, all partitions together.",
            picture.unflushedSize,
        ),
        scalar(
            "pylogbroker_unflushed_limit_bytes",
            "Unflushed bytes above which producers wait (max.unflushed.bytes).",
            picture.unflushedSizeMax,
        ),
        scalar(
            "pylogbroker_request_memory_bytes",
            "Memory that was granted to requests that are arriving or being carried out.",
            picture.requestMemorySize,
        ),
        _by(
            "reason",
            "pylogbroker_waiting_connections",
            "Clients that wait, by reason: flush (too much is unflushed), disk (it is full), roll,"
            " memory (for requests), reader (the client does not take its answer), work (a worker"
            " thread).",
            dict(sorted(picture.waitingCounts.items())),
        ),
        _by(
            "reason",
            "pylogbroker_held_back_requests",
            "Produce requests that are held back, by reason: flush, disk, roll.",
            heldBack,
        ),
        *_apis(picture.counters["apis"]),
        *_compaction(picture.counters["compactions"]),
        _by(
            "side",
            "pylogbroker_throttled_replication_bytes_total",
            "Bytes copied of replicas to which a throttle applies: sent by leaders, fetched by"
            " followers.",
            {
                side: picture.counters["replication"][f"{side}ThrottledSize"]
                for side in ("leader", "follower")
            },
        ),
        *_groups(picture),
        *_cluster(picture.cluster),
    ]


def _cluster(cluster: ClusterSnapshot | None) -> Iterable[Family]:
    """The metrics of the cluster."""
    if cluster is not None:
        values = cluster._asdict()
        for name, field, sentence in _CLUSTER_FIGURES:
            yield scalar(f"pylogbroker_{name}", sentence, values[field])


def _apis(apis: Mapping[str, Any]) -> Iterable[Family]:
    """Requests of today's protocol."""
    yield _by(
        "request",
        "pylogbroker_api_requests_total",
        "Requests of today's protocol, by Kafka's names for them.",
        {name: each["count"] for name, each in apis.items()},
    )
    yield _by(
        "request",
        "pylogbroker_api_request_seconds_total",
        "Time of requests of today's protocol with their waits, but for Produce and Fetch.",
        {name: each["seconds"] for name, each in apis.items() if each["seconds"]},
    )
    yield Family(
        "pylogbroker_api_request_errors_total",
        "Requests of today's protocol that were refused as a whole, by error code.",
        [
            Sample(count, {"request": name, "code": str(code)})
            for name, each in apis.items()
            for code, count in each["errors"].items()
        ],
    )


def _compaction(compactions: Mapping[str, float]) -> Iterable[Family]:
    for name, counter, sentence in _COMPACTION_FIGURES:
        yield scalar(f"pylogbroker_{name}", sentence, compactions[counter])


def _groups(picture: BrokerSnapshot) -> Iterable[Family]:
    """Groups of today's Kafka that this broker coordinates."""
    ends = {
        (each.topic, each.partition): each.highWatermark
        for each in picture.partitions
        if each.isCurrent
    }
    rows = [
        (group.name, topic, partition, offset)
        for group in picture.groups
        for topic, partition, offset in group.offsets
    ]

    def labels(group: str, topic: str, partition: int) -> dict[str, str]:
        return {"group": group, "topic": topic, "partition": str(partition)}

    yield scalar(
        "pylogbroker_coordinated_groups",
        "Groups of today's Kafka that this broker coordinates.",
        picture.groupCount,
    )
    yield _by(
        "group",
        "pylogbroker_coordinated_group_members",
        "Members of a group of today's Kafka.",
        {group.name: len(group.members) for group in picture.groups},
    )
    yield Family(
        "pylogbroker_coordinated_group_offset",
        "The committed offset of a group of today's Kafka.",
        [
            Sample(offset, labels(group, topic, partition))
            for group, topic, partition, offset in rows
        ],
    )
    yield Family(
        "pylogbroker_coordinated_group_lag_records",
        "Offsets from the committed one to the end that consumers see.",
        [
            Sample(max(ends[topic, partition] - offset, 0), labels(group, topic, partition))
            for group, topic, partition, offset in rows
            if (topic, partition) in ends
        ],
    )


def _by(label: str, name: str, sentence: str, values: Mapping[str, float]) -> Family:
    return Family(name, sentence, [Sample(value, {label: key}) for key, value in values.items()])


def _topics(counters: Mapping[str, Any]) -> Iterable[Family]:
    for name, counter, sentence in _TOPIC_FIGURES:
        total = counters["allTopics"][counter]
        yield scalar(f"pylogbroker_{name}", f"{sentence} All topics together.", total)
    for name, counter, sentence in _TOPIC_FIGURES:
        values = {topic: numbers[counter] for topic, numbers in counters["topics"].items()}
        if others := counters["otherTopics"][counter]:
            values[""] = others
        yield _by(
            "topic",
            f"pylogbroker_topic_{name}",
            f"{sentence} No topic: all topics beyond max.topic.counters.",
            values,
        )
