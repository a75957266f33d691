"""Tests of L{pylogbroker.tasks.inputs.ends}, in containers on a real broker in the process."""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pylogbroker.config.kafka.tasksettings import AT_LEAST_ONCE, EXACTLY_ONCE
from pylogbroker.tasks.job import ROCKSDB
from tests.tasks.jobs import publish, splitAndCount
from tests.tasks.test_container import PARTITIONS, TRUTH, ContainerCase

WAITED_SECONDS = 0.5


class RepartitionEndTests(ContainerCase):
    """Containers end behind what tasks have sent to each other."""

    async def _count(self, guarantee: str) -> None:
        await self.createTopic("lines", PARTITIONS)
        await self.publishLines()
        settings: dict[str, Any] = {
            "processing_guarantee": guarantee,
            "consumer_heartbeat_interval_ms": "100",
        }
        containers = [self.make(splitAndCount(ROCKSDB), **settings) for _number in range(2)]
        running = [each.run() for each in containers]
        for each in running:
            await each
        self.assertEqual(await self.counts(), TRUTH)

    def test_atLeastOnce(self) -> Deferred[None]:
        """Two containers give each other words, and end when all are counted."""
        return Deferred.fromCoroutine(self._count(AT_LEAST_ONCE))

    def test_exactlyOnce(self) -> Deferred[None]:
        """The markers of transactions hold up no end."""
        return Deferred.fromCoroutine(self._count(EXACTLY_ONCE))

    def test_others(self) -> Deferred[None]:
        """
        One without anything to do waits for what another one has in hand; what comes behind the end
        of an input is left.
        """
        return Deferred.fromCoroutine(self._waitForOthers())

    async def _waitForOthers(self) -> None:
        await self.createTopic("lines", 1)
        await publish(reactor, self.broker.bootstrapServers, "lines", [(None, b"a b a")])
        slow = self.make(splitAndCount(), isUntilEnd=False)
        slowEnded = slow.run()
        await self.until(lambda: slow.handledCount == 4)
        idle = self.make(splitAndCount())
        ended = idle.run()
        await deferLater(reactor, WAITED_SECONDS)
        self.assertFalse(ended.called)  # the first one commits each 30 s
        self.assertEqual(slow.status()[0].counters, {"lines": 1})
        await publish(reactor, self.broker.bootstrapServers, "lines", [(None, b"later")])
        await slow.stop()
        await slowEnded
        await ended
        self.assertEqual((await self.counts())["a"], 2)
