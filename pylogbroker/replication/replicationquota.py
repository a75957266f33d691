"""
How fast records are copied to replicas that are behind (KIP-73), as limited by Kafka's
C{ReplicationQuotaManager}. A module of its own, since it is the same for the leaders of a broker
and for its followers, and since neither decides by it what is committed.

A quota is the broker's rate (C{leader.replication.throttled.rate},
C{follower.replication.throttled.rate}) and the topics' lists of replicas to which it applies
(C{leader.replication.throttled.replicas}, C{follower.replication.throttled.replicas}): pairs
C{partition:broker}, or C{*}. What is copied of these is measured over L{WINDOW_COUNT} windows of a
second; while the rate is above the quota, they are left out of requests, or of answers.

What must be true: a replica that is in sync is never held back, since producers would wait for it.
That the caller knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from uuid import UUID

from pylogbroker.cluster.metadataimage import MetadataImage, TopicImage
from pylogbroker.config.topicconfigs import (
    ALL_REPLICAS,
    FOLLOWER_THROTTLED_RATE,
    FOLLOWER_THROTTLED_REPLICAS,
    LEADER_THROTTLED_RATE,
    LEADER_THROTTLED_REPLICAS,
    LONG_MAX,
)

WINDOW_COUNT = 11
WINDOW_MS = 1_000
"""As Kafka's C{replication.quota.window.num} and C{replication.quota.window.size.seconds}."""


_NONE: Mapping[str, str] = {}


class ReplicationQuota:
    """
    The quota of a broker's leaders, or of its followers.

    @ivar rate: bytes in a second; L{None}: there is no limit, and nothing is measured.
    """

    def __init__(self, brokerId: int, rateKey: str, replicasKey: str) -> None:
        """
        @param rateKey: of the broker's setting.
        @param replicasKey: of the topics' setting.
        """
        self._brokerId = brokerId
        self._rateKey, self._replicasKey = rateKey, replicasKey
        self._owner = str(brokerId)
        self._own = self._default = _NONE  # settings, of which a change makes others
        self._lists: dict[UUID, tuple[str, frozenset[int]]] = {}
        self._windows: deque[list[int]] = deque()  # beginning and bytes of each
        self.rate: int | None = None

    @classmethod
    def ofLeaders(cls, brokerId: int) -> ReplicationQuota:
        """Of what a broker sends to followers."""
        return cls(brokerId, LEADER_THROTTLED_RATE, LEADER_THROTTLED_REPLICAS)

    @classmethod
    def ofFollowers(cls, brokerId: int) -> ReplicationQuota:
        """Of what a broker fetches from leaders."""
        return cls(brokerId, FOLLOWER_THROTTLED_RATE, FOLLOWER_THROTTLED_REPLICAS)

    def follow(self, image: MetadataImage) -> None:
        """The metadata may have changed."""
        configs = image.brokerConfigs
        own, default = configs.get(self._owner, _NONE), configs.get("", _NONE)
        if own is self._own and default is self._default:
            return
        self._own, self._default = own, default
        rate = int(own.get(self._rateKey) or default.get(self._rateKey) or LONG_MAX)
        self.rate = rate if rate < LONG_MAX else None
        if self.rate is None:
            self._windows.clear()
            self._lists.clear()

    def covers(self, topic: TopicImage, index: int) -> bool:
        """Whether the quota applies to this broker's replica of a partition."""
        text = "" if self.rate is None else topic.configs.get(self._replicasKey, "")
        if not text or text == ALL_REPLICAS:
            return bool(text)
        known, found = self._lists.get(topic.topicId, ("", frozenset[int]()))
        if known != text:
            pairs = (each.split(":") for each in text.split(","))
            found = frozenset(
                int(partition) for partition, broker in pairs if int(broker) == self._brokerId
            )
            self._lists[topic.topicId] = text, found
        return index in found

    def record(self, size: int, nowMs: int) -> None:
        """
        Records of a replica to which the quota applies are copied.

        @param size: bytes.
        """
        windows = self._windows
        if windows and nowMs - windows[-1][0] < WINDOW_MS:
            windows[-1][1] += size
        else:
            windows.append([nowMs, size])
            self._forget(nowMs)

    def isExceeded(self, nowMs: int) -> bool:
        """Whether nothing more may be copied now."""
        if self.rate is None:
            return False
        self._forget(nowMs)
        if not self._windows:
            return self.rate <= 0
        spanMs = max(nowMs - self._windows[0][0], WINDOW_MS)
        return sum(size for _, size in self._windows) * 1000 > self.rate * spanMs

    def _forget(self, nowMs: int) -> None:
        windows = self._windows
        while windows and nowMs - windows[0][0] >= WINDOW_COUNT * WINDOW_MS:
            windows.popleft()
