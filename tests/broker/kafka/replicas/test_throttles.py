"""Throttles of replicas that are behind (KIP-73), between two brokers on a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pylogbroker.cluster.metadataimage import (
    BROKER,
    TOPIC,
    ConfigRecord,
    PartitionRecord,
    Record,
    TopicRecord,
)
from pylogbroker.metrics.counters import ReplicationCounters
from pylogbroker.storage.partitionlog import MarkKind
from tests.broker.kafka.clustercase import PORT, ClusterCase
from tests.broker.kafka.kafkacase import batchOf

TOPIC_ID = "12345678-1234-4234-8234-123456780000"
RATE = 10_000
BATCH_COUNT = 20
VALUE = bytes(5_000)
SETTINGS = {"replica.fetch.backoff.ms": "50", "replica.fetch.max.bytes": "6000"}
LEADER, FOLLOWER = "leader", "follower"


class ThrottleCase(ClusterCase):
    """
    Broker 0 leads two partitions of C{t}, each with 100 kB. Broker 1 has them, too, and lacks
    everything; a test lets it reach broker 0.
    """

    propertiesOf: Sequence[dict[str, str]] = (SETTINGS, SETTINGS)

    def records(self) -> list[Record]:
        self.network.unreachable.add(PORT)
        found = [each for each in super().records() if getattr(each, "topicId", "") != TOPIC_ID]
        return [
            *found,
            TopicRecord("t", TOPIC_ID, 3),
            PartitionRecord(TOPIC_ID, 0, 0, 4, 0, [0, 1], [0], [], -1, [], []),
            PartitionRecord(TOPIC_ID, 1, 0, 4, 0, [0, 1], [0], [], -1, [], []),
            PartitionRecord(TOPIC_ID, 2, 0, 4, 0, [0], [0], [], -1, [], []),
        ]

    def setUp(self) -> None:
        super().setUp()
        self.pass_(0.1)
        self.put(BATCH_COUNT, 0, 1)

    def put(self, count: int, *indexes: int) -> None:
        for index in indexes:
            found = self.hosted(0, index)
            for _ in range(count):
                self.leads[0].service._broker.tryAppend(found, batchOf(VALUE))
            found.write()
            found.whenReached(MarkKind.FLUSHED, found.log.logEndOffset, lambda _error: None)
        self.lead.settle()

    def pass_(self, seconds: float) -> None:
        for _ in range(round(seconds * 20)):
            self.reactor.advance(0.05)
            self.lead.settle()

    def hosted(self, number: int, index: int) -> Any:
        return self.leads[number].service.kafka.topics.hosted("t", index)

    def ends(self) -> list[int]:
        """Where the logs of broker 1 end."""
        return [self.hosted(1, index).log.logEndOffset for index in range(2)]

    def inSync(self, index: int) -> set[int]:
        image = self.leads[0].service.kafka.metadata.image
        return {*image.topics["t"].partitions[index].inSync}

    def throttle(self, side: str, replicas: str | None, broker: int, rate: int = RATE) -> None:
        """Set a throttle, in the metadata of both brokers."""
        self.change(
            [
                ConfigRecord(TOPIC, TOPIC_ID, f"{side}.replication.throttled.replicas", replicas),
                ConfigRecord(BROKER, str(broker), f"{side}.replication.throttled.rate", str(rate)),
            ]
        )

    def connect_(self) -> None:
        self.network.unreachable.clear()

    def counters(self, number: int) -> ReplicationCounters:
        found: ReplicationCounters = self.leads[number].counters.replication
        return found

    def checkRate(self, side: str, broker: int) -> None:
        """Partition 0 is copied with the rate, partition 1 at once."""
        self.connect_()
        self.pass_(4)
        first, second = self.ends()
        self.assertEqual(second, BATCH_COUNT)
        copied = first * len(VALUE)
        self.assertLess(copied, 6 * RATE)
        self.assertGreater(copied, 2 * RATE)
        counted = getattr(self.counters(broker), f"{side}ThrottledSize")
        self.assertGreaterEqual(counted, copied)
        self.assertLess(counted, copied + 2 * 6_000)
        self.pass_(10)
        self.assertEqual(self.ends(), [BATCH_COUNT] * 2)


class LeaderTests(ThrottleCase):
    """The leader's answers."""

    def test_rate(self) -> None:
        """
        A replica that is behind gets no more than the rate, and the others are not held up.
        """
        self.throttle(LEADER, "0:0,2:1", 0)
        self.checkRate(LEADER, 0)
        self.assertEqual(self.counters(1).followerThrottledSize, 0)

    def test_inSync(self) -> None:
        """A replica that is in sync is not held up, whatever was copied."""
        self.connect_()
        self.pass_(4)
        self.throttle(LEADER, "*", 0, 1)
        self.assertEqual(self.ends(), [BATCH_COUNT] * 2)
        self.assertEqual(self.inSync(0), {0, 1})
        for _ in range(3):
            self.put(1, 0, 1)
            self.pass_(1)
        self.assertEqual(self.ends(), [BATCH_COUNT + 3] * 2)
        self.assertGreater(self.counters(0).leaderThrottledSize, 3 * len(VALUE))

    def test_otherBroker(self) -> None:
        """A list that names other brokers, or a rate of another broker, throttles nothing here."""
        self.throttle(LEADER, "0:1,1:1", 0, 1)
        self.throttle(FOLLOWER, "*", 0, 1)
        self.connect_()
        self.pass_(4)
        self.assertEqual(self.ends(), [BATCH_COUNT] * 2)
        self.assertEqual(self.counters(0).leaderThrottledSize, 0)

    def test_removed(self) -> None:
        """Without the rate the rest is copied at once."""
        self.throttle(LEADER, "*", 0, 1)
        self.connect_()
        self.pass_(4)
        self.assertLess(min(self.ends()), 3)
        self.change([ConfigRecord(BROKER, "0", "leader.replication.throttled.rate", None)])
        self.pass_(4)
        self.assertEqual(self.ends(), [BATCH_COUNT] * 2)


class FollowerTests(ThrottleCase):
    """The follower's requests."""

    def test_rate(self) -> None:
        """A replica that is behind asks for no more than the rate; the others go on."""
        self.throttle(FOLLOWER, "0:1", 1)
        self.checkRate(FOLLOWER, 1)
        self.assertEqual(self.counters(0).leaderThrottledSize, 0)

    def test_all(self) -> None:
        """Where nothing may be asked for, the follower waits, and goes on when it may."""
        self.throttle(FOLLOWER, "*", 1, 0)
        self.connect_()
        self.pass_(4)
        self.assertLess(sum(self.ends()), 3)  # of a request that was under way before
        self.throttle(FOLLOWER, "*", 1, 1_000_000)
        self.pass_(2)
        self.assertEqual(self.ends(), [BATCH_COUNT] * 2)

    def test_caughtUp(self) -> None:
        """A replica that has what is committed is not held up."""
        self.connect_()
        self.pass_(4)
        self.throttle(FOLLOWER, "*", 1, 1)
        self.put(1, 0)
        self.pass_(1)
        self.assertEqual(self.ends(), [BATCH_COUNT + 1, BATCH_COUNT])
        self.assertGreater(self.counters(1).followerThrottledSize, 0)
