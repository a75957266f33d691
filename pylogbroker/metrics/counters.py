"""
What a broker counts.

What must be true: counting costs the hot path one look-up of the topic for each run of requests and
an addition per fact, so a counter is an C{int} in a slot; the number of topics that are counted one
by one has a limit, and so have their names; a picture (L{BrokerCounters.snapshot}) is made of plain
values.

Chosen: running totals since the start, never reset. Rates and averages over a time are differences
between two pictures, which the reader takes as far apart as it likes. Rejected: 0.7's windows of
ten minutes (spec-0.7 metrics §1), which show nothing for the first ten minutes and stale values for
ever afterwards. Sums over all topics are not counted but added up when somebody asks.

The names that 0.7.2 has for the same facts (spec-0.7 metrics §2), with what is wrong about them,
are in the docstrings. Everything here is used from one thread.
"""

from __future__ import annotations

from typing import Self

NAME_LENGTH_MAX = 255
"""
Of a topic that is counted by itself. No directory holds a longer one; but who asks for it may send
names of 32 KiB, thousands of them.
"""


class _Counted:
    """Slots that all hold a number and begin at 0."""

    __slots__: tuple[str, ...] = ()

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def snapshot(self) -> dict[str, int]:
        """The numbers by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def add(self, other: Self) -> None:
        """Add another's numbers to these."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class TopicCounters(_Counted):
    """
    One topic's numbers (C{kafka.BrokerTopicStat.<topic>}), or those of all topics beyond the limit.

    @ivar messageCount: messages appended, those inside compressed ones counted one by one
        (C{MessagesIn}).
    @ivar producedSize: bytes of message sets appended (C{BytesIn}).
    @ivar fetchedSize: bytes of message sets handed out, counted when the answer begins
        (C{BytesOut}).
    @ivar failedProduceCount: sets that were refused or could not be appended
        (C{FailedProduceRequest}).
    @ivar failedFetchCount: fetches that were answered with an error (C{FailedFetchRequest}).
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


class RequestCounters(_Counted):
    """
    What came over the wire (C{kafka.SocketServerStats}).

    Produce requests that arrive together for one partition are carried out together, and timed
    together: two looks at the clock for a run. A request that has to wait (for a flush, for room)
    is timed until it is done. Sending an answer is not in these times.

    @ivar produceCount: PRODUCE and MULTIPRODUCE requests (C{NumProduceRequests}).
    @ivar fetchCount: FETCH and MULTIFETCH requests (C{NumFetchRequests}).
    @ivar offsetsCount: OFFSETS requests, which 0.7.2 does not count.
    @ivar produceSeconds: seconds that produce requests took (C{TotalProduceRequestMs}, which has
        nanoseconds there).
    @ivar fetchSeconds: seconds that fetches took (C{TotalFetchRequestMs}, likewise).
    @ivar longestProduceSeconds: of the longest run of produce requests (C{MaxProduceRequestMs}, of
        a window there).
    @ivar longestFetchSeconds: of the longest fetch (C{MaxFetchRequestMs}, of a window there).
    @ivar writtenSize: bytes given to sockets (C{TotalBytesWritten}).
    @ivar writeCount: in how many writes. C{BytesWrittenPerSecond} is the one divided by the other,
        whatever its name says.
    """

    __slots__ = (
        "fetchCount", "fetchSeconds", "longestFetchSeconds", "longestProduceSeconds", "offsetsCount", "produceCount", "produceSeconds", "writeCount",
        "writtenSize",
    )  # fmt: skip

    produceCount: int
    fetchCount: int
    offsetsCount: int
    produceSeconds: float
    fetchSeconds: float
    longestProduceSeconds: float
    longestFetchSeconds: float
    writtenSize: int
    writeCount: int

    def produced(self, seconds: float) -> None:
        """A run of produce requests is done."""
        self.produceSeconds += seconds
        if seconds > self.longestProduceSeconds:
            self.longestProduceSeconds = seconds

    def fetched(self, seconds: float) -> None:
        """A fetch has found what it answers."""
        self.fetchSeconds += seconds
        if seconds > self.longestFetchSeconds:
            self.longestFetchSeconds = seconds


class ConnectionCounters(_Counted):
    """
    The clients.

    @ivar openCount: connected now.
    @ivar openCountMax: the most at a time.
    @ivar openedCount: since the start.
    @ivar refusedCount: cut at once, because there were too many, or no file descriptor was left.
    @ivar malformedCount: cut for bytes that are no request, or a request or message set that had to
        be refused.
    @ivar foreignCount: of these, those that looked like a client of another kind.
    @ivar slowCount: cut for a request that did not come to its end, or an answer that nobody took.
    @ivar readSize: bytes received (C{TotalBytesRead}, which leaves out most sizes of frames; this
        does not).
    @ivar readCount: in how many reads. C{BytesReadPerSecond} is the one divided by the other,
        whatever its name says.
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
        """One more is there."""
        self.openedCount += 1
        self.openCount += 1
        if self.openCount > self.openCountMax:
            self.openCountMax = self.openCount

    def closed(self) -> None:
        """One has gone."""
        self.openCount -= 1


class FlushCounters(_Counted):
    """
    Flushes of all partitions (C{kafka.LogFlushStats}).

    @ivar count: flushes that succeeded (C{NumFlushes}).
    @ivar failedCount: flushes that failed, each of which took a partition out of service.
    @ivar totalMs: time spent, on all threads together (C{TotalFlushMs}).
    @ivar longestMs: the longest since the start (C{MaxFlushMs}, of a window there).
    """

    __slots__ = ("count", "failedCount", "longestMs", "totalMs")

    count: int
    failedCount: int
    totalMs: int
    longestMs: int

    def flushed(self, durationMs: int) -> None:
        """One succeeded."""
        self.count += 1
        self.totalMs += durationMs
        if durationMs > self.longestMs:
            self.longestMs = durationMs


class FetchCounters(_Counted):
    """
    What a consumer has asked brokers for (C{kafka.SimpleConsumerStats}).

    @ivar fetchCount: requests that were answered (C{NumFetchRequests}).
    @ivar failedCount: requests that were not.
    @ivar fetchUs: microseconds from the request to the answer, all together (C{AvgFetchRequestMs}).
    @ivar longestUs: of the longest (C{MaxFetchRequestMs}, of a window there).
    """

    __slots__ = ("failedCount", "fetchCount", "fetchUs", "longestUs")

    fetchCount: int
    failedCount: int
    fetchUs: int
    longestUs: int

    def fetched(self, seconds: float) -> None:
        """One was answered."""
        us = int(seconds * 1_000_000)
        self.fetchCount += 1
        self.fetchUs += us
        if us > self.longestUs:
            self.longestUs = us


class ConsumedCounters(_Counted):
    """
    One topic's numbers at a consumer (C{kafka.ConsumerTopicStat.<topic>}).

    @ivar messageCount: messages handed out (C{MessagesPerTopic}); those of one answer are counted
        together, when the last of them is taken or the rest is dropped.
    @ivar fetchedSize: bytes of message sets fetched and kept (C{BytesPerTopic}).
    """

    __slots__ = ("fetchedSize", "messageCount")

    messageCount: int
    fetchedSize: int


class ConsumerCounters:
    """
    All that one consumer counts.

    @ivar topics: counters by name; it reads few enough.
    """

    __slots__ = ("fetches", "topics")

    def __init__(self) -> None:
        self.fetches = FetchCounters()
        self.topics: dict[str, ConsumedCounters] = {}

    def topic(self, name: str) -> ConsumedCounters:
        """A topic's counters."""
        counters = self.topics.get(name)
        if counters is None:
            counters = self.topics[name] = ConsumedCounters()
        return counters


class BrokerCounters:
    """
    All that one broker counts.

    @ivar topicCountMax: how many topics are counted one by one (C{max.topic.counters}).
    @ivar topics: their counters by name.
    @ivar otherTopics: the counters of all the others together.
    """

    __slots__ = ("connections", "flushes", "otherTopics", "requests", "topicCountMax", "topics")

    def __init__(self, topicCountMax: int = 1000) -> None:
        self.topicCountMax = topicCountMax
        self.requests = RequestCounters()
        self.connections = ConnectionCounters()
        self.flushes = FlushCounters()
        self.topics: dict[str, TopicCounters] = {}
        self.otherTopics = TopicCounters()

    def topic(self, name: str) -> TopicCounters:
        """
        A topic's counters. Topics that come when the limit is reached share one, and so do names
        that are too long for any topic.
        """
        counters = self.topics.get(name)
        if counters is None:
            if len(self.topics) >= self.topicCountMax or len(name) > NAME_LENGTH_MAX:
                return self.otherTopics
            counters = self.topics[name] = TopicCounters()
        return counters

    def refused(self, name: str, isThere: bool) -> TopicCounters:
        """
        The counters of a topic of which something was refused. A name that is no topic's may be a
        stranger's invention: it gets no counters of its own, or a thousand such names would leave
        none for the topics that come later.

        @param isThere: whether the topic exists.
        """
        return self.topic(name) if isThere else self.topics.get(name, self.otherTopics)

    def snapshot(self) -> dict[str, object]:
        """
        A picture of all numbers, which later counting does not change: C{requests}, C{connections},
        C{flushes}, C{allTopics}, C{otherTopics} are numbers by name, C{topics} is such a dictionary
        for each topic (spec-0.7 metrics §2).
        """
        total = TopicCounters()
        total.add(self.otherTopics)
        for counters in self.topics.values():
            total.add(counters)
        return {
            "requests": self.requests.snapshot(),
            "connections": self.connections.snapshot(),
            "flushes": self.flushes.snapshot(),
            "allTopics": total.snapshot(),
            "otherTopics": self.otherTopics.snapshot(),
            "topics": {name: counters.snapshot() for name, counters in self.topics.items()},
        }
