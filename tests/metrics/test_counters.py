"""Tests for L{pylogbroker.metrics.counters}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.metrics.counters import (
    BrokerCounters,
    ConnectionCounters,
    FlushCounters,
    RequestCounters,
    TopicCounters,
)


class CountedTests(SynchronousTestCase):
    """Counters are numbers with names."""

    def test_zero(self) -> None:
        """Every declared number begins at 0 and is in the picture; an object has no others."""
        for cls in (TopicCounters, RequestCounters, ConnectionCounters, FlushCounters):
            counters = cls()
            self.assertEqual(counters.snapshot(), dict.fromkeys(cls.__annotations__, 0))
            self.assertFalse(hasattr(counters, "__dict__"))

    def test_connections(self) -> None:
        """Clients come and go; the most at a time is remembered."""
        counters = ConnectionCounters()
        for step in (
            counters.opened,
            counters.opened,
            counters.closed,
            counters.opened,
            counters.closed,
            counters.closed,
        ):
            step()
        self.assertEqual(
            (counters.openCount, counters.openCountMax, counters.openedCount), (0, 2, 3)
        )

    def test_flushes(self) -> None:
        """Flushes add up; the longest is remembered."""
        counters = FlushCounters()
        for durationMs in (3, 7, 5):
            counters.flushed(durationMs)
        self.assertEqual((counters.count, counters.totalMs, counters.longestMs), (3, 15, 7))


class BrokerCountersTests(SynchronousTestCase):
    """All that one broker counts."""

    def test_sameTopic(self) -> None:
        """A topic has one set of counters."""
        counters = BrokerCounters()
        self.assertIs(counters.topic("a"), counters.topic("a"))
        self.assertIsNot(counters.topic("a"), counters.topic("b"))

    def test_limit(self) -> None:
        """Topics beyond the limit share one set of counters; those that came before keep theirs."""
        counters = BrokerCounters(2)
        first = counters.topic("a")
        counters.topic("b")
        for name in ("c", "d"):
            self.assertIs(counters.topic(name), counters.otherTopics)
        self.assertIs(counters.topic("a"), first)
        self.assertEqual(sorted(counters.topics), ["a", "b"])

    def test_longNames(self) -> None:
        """A name that no topic can have is not kept."""
        counters = BrokerCounters()
        self.assertIs(counters.topic("x" * 256), counters.otherTopics)
        self.assertIsNot(counters.topic("x" * 255), counters.otherTopics)

    def test_inventedNames(self) -> None:
        """
        A refused name that need not be any topic's takes no place; a refusal by a topic that exists
        is that topic's.
        """
        counters = BrokerCounters(2)
        for number in range(5):
            counters.refused(f"invented{number}", False).failedFetchCount += 1
            counters.refused("..", False).failedFetchCount += 1
        self.assertEqual((counters.topics, counters.otherTopics.failedFetchCount), ({}, 10))
        counters.refused("real", True).failedFetchCount += 1
        counters.refused("real", False).failedFetchCount += 1
        self.assertEqual(
            (counters.topics["real"].failedFetchCount, counters.otherTopics.failedFetchCount),
            (2, 10),
        )

    def test_sums(self) -> None:
        """The sum over all topics holds those beyond the limit, too."""
        counters = BrokerCounters(1)
        for name, count in (("a", 1), ("b", 10), ("c", 100)):
            counters.topic(name).messageCount += count
        picture = counters.snapshot()
        self.assertEqual(picture["allTopics"], TopicCounters().snapshot() | {"messageCount": 111})
        self.assertEqual(picture["otherTopics"], TopicCounters().snapshot() | {"messageCount": 110})
        self.assertEqual(picture["topics"], {"a": TopicCounters().snapshot() | {"messageCount": 1}})

    def test_snapshotStays(self) -> None:
        """A picture does not change when counting goes on, and has every group."""
        counters = BrokerCounters()
        counters.topic("a")
        before = counters.snapshot()
        counters.requests.fetchCount += 1
        counters.topic("a").fetchedSize += 5
        counters.flushes.flushed(1)
        counters.connections.opened()
        counters.compactions.compacted(10, 4, 1.5)
        counters.api("Metadata").handled(0.5, 3)
        counters.api("Metadata").handled(0.25, 0)
        counters.replication.leaderThrottledSize += 1
        after = counters.snapshot()
        groups = [
            "allTopics",
            "apis",
            "compactions",
            "connections",
            "flushes",
            "replication",
            "requests",
            "topics",
        ]
        self.assertEqual(sorted(before), sorted([*groups, "otherTopics"]))
        for group in groups:
            self.assertNotEqual(before[group], after[group])
        self.assertEqual(
            after["apis"], {"Metadata": {"count": 0, "seconds": 0.75, "errors": {3: 1}}}
        )
        self.assertEqual(
            after["compactions"],
            {"count": 1, "failedCount": 0, "keptCount": 4, "recordCount": 10, "seconds": 1.5},
        )
