"""How fast records are copied to replicas that are behind."""

from __future__ import annotations

from uuid import UUID

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.metadataimage import (
    BROKER,
    CLUSTER_DEFAULT,
    TOPIC,
    ConfigRecord,
    MetadataImage,
    TopicImage,
    TopicRecord,
)
from pylogbroker.config.topicconfigs import LONG_MAX
from pylogbroker.replication.replicationquota import ReplicationQuota

TOPIC_ID = UUID("12345678-1234-4234-8234-123456780000")
RATE = "leader.replication.throttled.rate"
REPLICAS = "leader.replication.throttled.replicas"


class QuotaTests(SynchronousTestCase):
    """The quota of the leaders of broker 1."""

    def setUp(self) -> None:
        self.image = MetadataImage()
        self.image.apply(TopicRecord("t", str(TOPIC_ID), 3))
        self.quota = ReplicationQuota.ofLeaders(1)

    def set(self, kind: str, owner: str, key: str, value: str | None) -> None:
        self.image = self.image.copy()
        self.image.apply(ConfigRecord(kind, owner, key, value))
        self.quota.follow(self.image)

    @property
    def topic(self) -> TopicImage:
        return self.image.topicsById[TOPIC_ID]

    def covered(self) -> list[int]:
        return [index for index in range(3) if self.quota.covers(self.topic, index)]

    def test_rate(self) -> None:
        """The rate is the broker's own, else that of all brokers, else there is none."""
        self.assertIsNone(self.quota.rate)
        self.set(CLUSTER_DEFAULT, "", RATE, "7")
        self.assertEqual(self.quota.rate, 7)
        self.set(BROKER, "2", RATE, "8")
        self.assertEqual(self.quota.rate, 7)
        self.set(BROKER, "1", RATE, "9")
        self.assertEqual(self.quota.rate, 9)
        self.set(BROKER, "1", RATE, str(LONG_MAX))
        self.assertIsNone(self.quota.rate)
        self.set(BROKER, "1", RATE, None)
        self.assertEqual(self.quota.rate, 7)
        followers = ReplicationQuota.ofFollowers(1)
        followers.follow(self.image)
        self.assertIsNone(followers.rate)

    def test_covers(self) -> None:
        """It applies to the replicas of this broker that the topic lists, while there is a rate."""
        self.set(TOPIC, str(TOPIC_ID), REPLICAS, "0:1,1:2,2:1,2:2")
        self.assertEqual(self.covered(), [])
        self.set(BROKER, "1", RATE, "1000")
        self.assertEqual(self.covered(), [0, 2])
        self.set(TOPIC, str(TOPIC_ID), REPLICAS, "1:1")
        self.assertEqual(self.covered(), [1])
        self.set(TOPIC, str(TOPIC_ID), REPLICAS, "*")
        self.assertEqual(self.covered(), [0, 1, 2])
        self.set(TOPIC, str(TOPIC_ID), REPLICAS, "")
        self.assertEqual(self.covered(), [])
        self.set(TOPIC, str(TOPIC_ID), REPLICAS, None)
        self.assertEqual(self.covered(), [])

    def test_exceeded(self) -> None:
        """More than the rate is too much, until enough time has passed."""
        self.assertFalse(self.quota.isExceeded(0))
        self.set(BROKER, "1", RATE, "1000")
        self.assertFalse(self.quota.isExceeded(0))
        self.quota.record(900, 0)
        self.quota.record(100, 10)
        self.assertFalse(self.quota.isExceeded(10))
        self.quota.record(2000, 20)
        self.assertTrue(self.quota.isExceeded(20))
        self.assertTrue(self.quota.isExceeded(2_999))
        self.assertFalse(self.quota.isExceeded(3_000))

    def test_average(self) -> None:
        """What is copied whenever it may be has the rate, whatever is copied at once."""
        self.set(BROKER, "1", RATE, "1000")
        for size in (10, 700, 5_000):
            copied = 0
            for nowMs in range(0, 100_000, 50):
                if not self.quota.isExceeded(nowMs):
                    self.quota.record(size, nowMs)
                    copied += size
            self.assertLess(abs(copied - min(100_000, size * 2_000)), 15_000, size)
            self.setUp()
            self.set(BROKER, "1", RATE, "1000")

    def test_forgets(self) -> None:
        """What is older than the windows does not count; nor what was before the rate."""
        self.set(BROKER, "1", RATE, "1000")
        self.quota.record(1_000_000, 0)
        self.assertTrue(self.quota.isExceeded(10_999))
        self.assertFalse(self.quota.isExceeded(11_000))
        self.quota.record(1_000_000, 20_000)
        self.set(BROKER, "1", RATE, None)
        self.set(BROKER, "1", RATE, "1000")
        self.assertFalse(self.quota.isExceeded(20_000))

    def test_nothing(self) -> None:
        """A rate of 0 copies nothing."""
        self.set(BROKER, "1", RATE, "0")
        self.assertTrue(self.quota.isExceeded(0))
        self.assertTrue(self.quota.isExceeded(1_000_000))
