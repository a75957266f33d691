"""
The counters of a broker.

What must be true: counting costs the hot path one look-up of the topic for each run of requests and
one addition for each fact, so a counter is an C{int} in a slot. The number of separately counted
topics is limited, and so are their names. A snapshot holds plain values.

Chosen: running totals since the start. Readers compute rates from two snapshots. Rejected: 0.7's
windows of ten minutes (spec-0.7 metrics §1), which are empty at first and stale afterwards. Sums
over all topics are computed on request.

The docstrings give 0.7.2's names (spec-0.7 metrics §2) and their errors. All counters are used from
one thread.
"""

from __future__ import annotations

NAME_LENGTH_MAX = 255
"""
Characters of the name of a separately counted topic. No directory holds a longer one, but a client
may request thousands of names of 32 KiB.
"""


class Counters:
    """Numeric slots that start at 0."""

    __slots__: tuple[str, ...] = ()

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def snapshot(self) -> dict[str, int]:
        """The numbers by name."""
        return {name: getattr(self, name) for name in self.__slots__}


class TopicCounters(Counters):
    """
    The counters of a topic (C{kafka.BrokerTopicStat.<topic>}), or of all topics beyond the limit.

    @ivar messageCount: appended messages, including each inner message (C{MessagesIn}).
    @ivar producedSize: bytes of appended message sets (C{BytesIn}).
    @ivar fetchedSize: bytes of fetched message sets, counted when the response starts
        (C{BytesOut}).
    @ivar failedProduceCount: refused or failed sets (C{FailedProduceRequest}).
    @ivar failedFetchCount: fetches answered with an error (C{FailedFetchRequest}).
    """

    __slots__ = (
        "failedFetchCount",
        "failedProduceCount",
        "fetchedSize",
        "messageCount",
        "producedSize",
    )

    messageCount: int
    producedSize: int
    fetchedSize: int
    failedProduceCount: int
    failedFetchCount: int


class RequestCounters(Counters):
    """
    The requests (C{kafka.SocketServerStats}).

    A run of produce requests for one partition is processed and timed together, with two readings
    of the clock. The time of a request includes its waits (for a flush, for memory), but not the
    sending of its response.

    @ivar produceCount: PRODUCE and MULTIPRODUCE requests (C{NumProduceRequests}).
    @ivar fetchCount: FETCH and MULTIFETCH requests (C{NumFetchRequests}).
    @ivar offsetsCount: OFFSETS requests, which 0.7.2 does not count.
    @ivar produceSeconds: time of produce requests (C{TotalProduceRequestMs}, in nanoseconds there).
    @ivar fetchSeconds: time of fetches (C{TotalFetchRequestMs}, in nanoseconds there).
    @ivar longestProduceSeconds: time of the longest run of produce requests
        (C{MaxProduceRequestMs}, of a window there).
    @ivar longestFetchSeconds: time of the longest fetch (C{MaxFetchRequestMs}, of a window there).
    @ivar throttledCount: answers to clients that had exceeded a quota.
    @ivar throttledMs: milliseconds for which these clients were held back.
    @ivar writtenSize: bytes given to sockets (C{TotalBytesWritten}).
    @ivar writeCount: writes. C{BytesWrittenPerSecond} is the quotient of the two.
    """

    __slots__ = (
        "fetchCount",
        "fetchSeconds",
        "longestFetchSeconds",
        "longestProduceSeconds",
        "offsetsCount",
        "produceCount",
        "produceSeconds",
        "throttledCount",
        "throttledMs",
        "writeCount",
        "writtenSize",
    )

    produceCount: int
    fetchCount: int
    offsetsCount: int
    produceSeconds: float
    fetchSeconds: float
    longestProduceSeconds: float
    longestFetchSeconds: float
    throttledCount: int
    throttledMs: int
    writtenSize: int
    writeCount: int

    def produced(self, seconds: float) -> None:
        """Count a run of produce requests."""
        self.produceSeconds += seconds
        if seconds > self.longestProduceSeconds:
            self.longestProduceSeconds = seconds

    def fetched(self, seconds: float) -> None:
        """Count a fetch."""
        self.fetchSeconds += seconds
        if seconds > self.longestFetchSeconds:
            self.longestFetchSeconds = seconds


class ConnectionCounters(Counters):
    """
    The connections.

    @ivar openCount: open now.
    @ivar openCountMax: the largest number at a time.
    @ivar openedCount: since the start.
    @ivar refusedCount: closed at once: too many connections, or no file descriptor left.
    @ivar malformedCount: closed for malformed or refused requests and sets.
    @ivar foreignCount: those that looked like clients of another protocol.
    @ivar slowCount: closed for an incomplete request or an unread response.
    @ivar readSize: bytes received (C{TotalBytesRead}, which omits most frame sizes).
    @ivar readCount: reads. C{BytesReadPerSecond} is the quotient of the two.
    """

    __slots__ = (
        "foreignCount",
        "malformedCount",
        "openCount",
        "openCountMax",
        "openedCount",
        "readCount",
        "readSize",
        "refusedCount",
        "slowCount",
    )

    openCount: int
    openCountMax: int
    openedCount: int
    refusedCount: int
    malformedCount: int
    foreignCount: int
    slowCount: int
    readSize: int
    readCount: int

    def opened(self) -> None:
        """Count a new connection."""
        self.openedCount += 1
        self.openCount += 1
        if self.openCount > self.openCountMax:
            self.openCountMax = self.openCount

    def closed(self) -> None:
        """Count a closed connection."""
        self.openCount -= 1


class FlushCounters(Counters):
    """
    The flushes of all partitions (C{kafka.LogFlushStats}).

    @ivar count: successful flushes (C{NumFlushes}).
    @ivar failedCount: failed flushes; each took a partition offline.
    @ivar totalMs: time of all flushes, over all threads (C{TotalFlushMs}).
    @ivar longestMs: time of the longest flush since the start (C{MaxFlushMs}, of a window there).
    """

    __slots__ = ("count", "failedCount", "longestMs", "totalMs")

    count: int
    failedCount: int
    totalMs: int
    longestMs: int

    def flushed(self, durationMs: int) -> None:
        """Count a successful flush."""
        self.count += 1
        self.totalMs += durationMs
        if durationMs > self.longestMs:
            self.longestMs = durationMs


class ApiCounters:
    """
    The requests of one kind of today's protocol.

    @ivar count: requests.
    @ivar seconds: their time, with waits; that of Produce and Fetch is in L{RequestCounters}.
    @ivar errors: requests that were refused as a whole, by error code.
    """

    __slots__ = ("count", "errors", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.errors: dict[int, int] = {}

    def handled(self, seconds: float, errorCode: int) -> None:
        """Count a request that has its answer."""
        self.seconds += seconds
        if errorCode:
            self.errors[errorCode] = self.errors.get(errorCode, 0) + 1

    def snapshot(self) -> dict[str, object]:
        """The numbers by name."""
        return {"count": self.count, "seconds": self.seconds, "errors": dict(self.errors)}


class CompactionCounters(Counters):
    """
    The compactions of partitions.

    @ivar count: those that succeeded.
    @ivar failedCount: those that did not.
    @ivar recordCount: records that were read.
    @ivar keptCount: records that stayed.
    @ivar seconds: time of those that succeeded, with their pacing.
    """

    __slots__ = ("count", "failedCount", "keptCount", "recordCount", "seconds")

    count: int
    failedCount: int
    recordCount: int
    keptCount: int
    seconds: float

    def compacted(self, recordCount: int, keptCount: int, seconds: float) -> None:
        """Count a compaction that succeeded."""
        self.count += 1
        self.recordCount += recordCount
        self.keptCount += keptCount
        self.seconds += seconds


class FetchCounters(Counters):
    """
    The fetches of a consumer (C{kafka.SimpleConsumerStats}).

    @ivar fetchCount: answered requests (C{NumFetchRequests}).
    @ivar failedCount: failed requests.
    @ivar fetchUs: microseconds from request to response, summed (C{AvgFetchRequestMs}).
    @ivar longestUs: of the longest (C{MaxFetchRequestMs}, of a window there).
    """

    __slots__ = ("failedCount", "fetchCount", "fetchUs", "longestUs")

    fetchCount: int
    failedCount: int
    fetchUs: int
    longestUs: int

    def fetched(self, seconds: float) -> None:
        """Count an answered request."""
        us = int(seconds * 1_000_000)
        self.fetchCount += 1
        self.fetchUs += us
        if us > self.longestUs:
            self.longestUs = us


class ConsumerTopicCounters(Counters):
    """
    The counters of a topic at a consumer (C{kafka.ConsumerTopicStat.<topic>}).

    @ivar messageCount: delivered messages (C{MessagesPerTopic}), counted when the last message of a
        fetch is taken or the rest is dropped.
    @ivar fetchedSize: bytes of fetched message sets (C{BytesPerTopic}).
    """

    __slots__ = ("fetchedSize", "messageCount")

    messageCount: int
    fetchedSize: int


class ConsumerCounters:
    """
    The counters of a consumer.

    @ivar topics: by name.
    """

    __slots__ = ("fetches", "topics")

    def __init__(self) -> None:
        self.fetches = FetchCounters()
        self.topics: dict[str, ConsumerTopicCounters] = {}

    def topic(self, name: str) -> ConsumerTopicCounters:
        """The counters of a topic."""
        counters = self.topics.get(name)
        if counters is None:
            counters = self.topics[name] = ConsumerTopicCounters()
        return counters


class ReplicationCounters(Counters):
    """
    What was copied of replicas to which a throttle applies.

    @ivar leaderThrottledSize: bytes that were sent to followers.
    @ivar followerThrottledSize: bytes that were fetched from leaders.
    """

    __slots__ = ("followerThrottledSize", "leaderThrottledSize")

    leaderThrottledSize: int
    followerThrottledSize: int


class BrokerCounters:
    """
    The counters of a broker.

    @ivar topicCountMax: the limit of separately counted topics (C{max.topic.counters}).
    @ivar topics: by name.
    @ivar otherTopics: of all other topics.
    @ivar apis: requests of today's protocol, by Kafka's names.
    """

    __slots__ = (
        "apis",
        "compactions",
        "connections",
        "flushes",
        "otherTopics",
        "replication",
        "requests",
        "topicCountMax",
        "topics",
    )

    def __init__(self, topicCountMax: int = 1000) -> None:
        self.topicCountMax = topicCountMax
        self.requests = RequestCounters()
        self.connections = ConnectionCounters()
        self.flushes = FlushCounters()
        self.compactions = CompactionCounters()
        self.replication = ReplicationCounters()
        self.apis: dict[str, ApiCounters] = {}
        self.topics: dict[str, TopicCounters] = {}
        self.otherTopics = TopicCounters()

    def topic(self, name: str) -> TopicCounters:
        """
        The counters of a topic. Topics beyond the limit, and names that are too long, share one
        set.
        """
        counters = self.topics.get(name)
        if counters is None:
            if len(self.topics) >= self.topicCountMax or len(name) > NAME_LENGTH_MAX:
                return self.otherTopics
            counters = self.topics[name] = TopicCounters()
        return counters

    def api(self, name: str) -> ApiCounters:
        """The counters of a kind of request of today's protocol."""
        return self.apis.setdefault(name, ApiCounters())

    def refused(self, name: str, isThere: bool) -> TopicCounters:
        """
        The counters for a refused request. An unknown topic gets none of its own, so that invented
        names cannot use up the limit.

        @param isThere: whether the topic exists.
        """
        return self.topic(name) if isThere else self.topics.get(name, self.otherTopics)

    def snapshot(self) -> dict[str, object]:
        """
        A copy of all numbers: C{requests}, C{connections}, C{flushes}, C{compactions},
        C{replication}, C{apis}, C{allTopics} and C{otherTopics} by name, and
        C{topics} with such a dictionary for each topic (spec-0.7 metrics §2).
        """
        topics = {name: counters.snapshot() for name, counters in self.topics.items()}
        others = self.otherTopics.snapshot()
        return {
            "requests": self.requests.snapshot(),
            "connections": self.connections.snapshot(),
            "flushes": self.flushes.snapshot(),
            "compactions": self.compactions.snapshot(),
            "replication": self.replication.snapshot(),
            "apis": {name: each.snapshot() for name, each in sorted(self.apis.items())},
            "allTopics": {
                name: sum(each[name] for each in (others, *topics.values())) for name in others
            },
            "otherTopics": others,
            "topics": topics,
        }
