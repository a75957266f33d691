"""
Tests of L{pylogbroker.tasks.container} and its commits, where something comes at the worst moment:
while a commit is under way, or behind a transaction that was aborted.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs

from pylogbroker.config.kafka.tasksettings import EXACTLY_ONCE
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.tasks.api import (
    IncomingMessageEnvelope,
    MessageCollector,
    OutgoingMessageEnvelope,
    StreamTask,
    TaskCoordinator,
)
from pylogbroker.tasks.job import Input, Job, Output
from pylogbroker.tasks.serdes import INTEGER, STRING
from pylogbroker.types import TopicPartition
from tests.tasks.jobs import CountWords, countWords, readAll
from tests.tasks.test_container import ContainerCase, asTest, told

HOLD_MS = 60_000
"""Longer than a test: answers wait until C{clearFaults}."""

PLACES = [TopicPartition("words", number) for number in range(2)]

# Heartbeats that do not tell of the group meanwhile.
QUIET = {"consumer_heartbeat_interval_ms": "60000", "consumer_session_timeout_ms": "180000"}


class RaceCase(ContainerCase):
    """A job that notes what it handles, and commits behind C{commit}."""

    def setUp(self) -> Deferred[None]:  # type: ignore[override]
        """A topic."""
        starting = super().setUp()
        self.handled: dict[int, list[str]] = {0: [], 1: []}
        return starting.addCallback(
            lambda _: Deferred.fromCoroutine(self.createTopic("words", len(PLACES)))
        )

    def noting(self) -> Job:
        """The word count."""
        handled = self.handled

        class Noting(CountWords):
            """Notes words."""

            def process(
                self,
                envelope: IncomingMessageEnvelope,
                collector: MessageCollector,
                coordinator: TaskCoordinator,
            ) -> None:
                """Note it, and count it."""
                handled[envelope.partition].append(envelope.getKey())
                super().process(envelope, collector, coordinator)
                if envelope.getKey() == "commit":
                    coordinator.commit()

        return countWords(task=Noting)

    async def send(self, partition: int, *words: str) -> None:
        """Publish to a partition."""
        producer = KafkaProducer(reactor, {"bootstrap.servers": self.broker.bootstrapServers})
        for word in words:
            await producer.send("words", INTEGER.encode(1), word.encode(), partition=partition)
        await producer.close()


class RevokeTests(RaceCase):
    """Partitions that go to another container."""

    @asTest
    async def test_duringCommit(self) -> None:
        """
        While a commit is under way, it waits: behind it what the task was given is handled and
        committed, and nothing more.
        """
        await self.send(0, "a", "commit", "given")
        answer = self.broker.injectDelay("OffsetCommit", HOLD_MS)
        container = self.make(self.noting(), isUntilEnd=False)
        running = container.run()
        await self.until(lambda: answer.hitCount)
        revoking = Deferred.fromCoroutine(container.revoke(PLACES[:1]))
        await self.send(0, "behind")
        await deferLater(reactor, 0.1)
        self.assertEqual((revoking.called, self.handled[0]), (False, ["a", "commit"]))
        self.broker.clearFaults()
        await revoking
        self.assertEqual(self.handled[0], ["a", "commit", "given"])
        self.assertEqual((await self.positions("count-words", "words"))[0], 3)
        await self.send(1, "other")  # the container goes on
        await self.until(lambda: self.handled[1])
        self.assertEqual(len(self.handled[0]), 3)
        await container.stop()
        await running
        await self.make(self.noting()).run()
        self.assertEqual(self.handled[0][3:], ["behind"])
        words = ("a", "commit", "given", "behind", "other")
        self.assertEqual(await self.counts(), dict.fromkeys(words, 1))

    @asTest
    async def test_aborted(self) -> None:
        """
        When the transaction of that commit is aborted, the tasks that stay begin anew; what comes
        for them meanwhile is handled, also where nothing had come before.
        """
        await self.send(0, "a")
        settings: dict[str, Any] = {
            "processing_guarantee": EXACTLY_ONCE,
            "commit_interval_ms": str(HOLD_MS),
            "producer_transaction_timeout_ms": str(2 * HOLD_MS),
            **QUIET,
        }
        container = self.make(self.noting(), isUntilEnd=False, **settings)
        running = container.run()
        await self.until(lambda: self.handled[0])
        self.broker.injectError("TxnOffsetCommit", "ILLEGAL_GENERATION")
        answer = self.broker.injectDelay("OffsetFetch", HOLD_MS)
        revoking = Deferred.fromCoroutine(container.revoke(PLACES[:1]))
        await self.until(lambda: answer.hitCount)
        await self.send(1, "meanwhile")
        await deferLater(reactor, 0.3)
        self.broker.clearFaults()
        await revoking
        await self.send(1, "later", "commit")
        await self.until(lambda: "commit" in self.handled[1])
        self.assertEqual(self.handled, {0: ["a"], 1: ["meanwhile", "later", "commit"]})
        await container.stop()
        await running
        self.assertEqual(await self.counts(), {"meanwhile": 1, "later": 1, "commit": 1})


class FenceTests(RaceCase):
    """A container that its group has removed, and that does not know it yet."""

    async def _send(self, isFirst: bool) -> None:
        armed: list[str] = []

        class Ticking(StreamTask):
            """Sends without a message."""

            def process(self, *_given: Any) -> None:
                """Nothing."""

            def window(self, collector: MessageCollector, coordinator: TaskCoordinator) -> None:
                """Send once."""
                if armed:
                    collector.send(OutgoingMessageEnvelope("ticks", armed.pop(), 1))

        ticks = Output("ticks", STRING, INTEGER)
        job = Job("ticking", Ticking, [Input("words", STRING)], [ticks], windowMs=20)
        settings: dict[str, Any] = {"processing_guarantee": EXACTLY_ONCE, **QUIET}
        container = self.make(job, isUntilEnd=False, **settings)
        running = container.run()
        if isFirst:
            await self.until(
                lambda: (
                    [None not in each.positions.values() for each in container.status()]
                    == [True] * 2
                )
            )
        else:
            await self.send(0, "a")
            await self.until(lambda: container.commitCount)
        member = (container.memberId, None)
        await self.administer(lambda admin: admin.removeMembers("ticking", [member]))
        with capturedLogs() as events:
            armed.append("tick")
            await self.until(lambda: "goes back to its last commit" in told(events))
        self.assertIn("UNKNOWN_MEMBER_ID", told(events))
        await container.stop()
        await running
        self.assertEqual(await readAll(reactor, self.broker.bootstrapServers, "ticks"), [])

    @asTest
    async def test_window(self) -> None:
        """Exactly once, what its C{window} sends is not committed, though no position is new."""
        await self._send(isFirst=False)

    @asTest
    async def test_firstWindow(self) -> None:
        """Nor is it where no message was handled, and the group has no positions yet."""
        await self._send(isFirst=True)
