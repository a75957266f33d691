"""Tests of L{pylogbroker.tasks.outputcommitter}, in containers on a real broker in the process."""

from __future__ import annotations

from dataclasses import replace
from time import sleep
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.routing import checkAll
from pylogbroker.client.kafka.admin.topics import LATEST
from pylogbroker.config.kafka.tasksettings import AT_LEAST_ONCE, EXACTLY_ONCE
from pylogbroker.errors import PylogbrokerError, TaskFailedError, UnknownOutcomeError
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.tasks import outputcommitter
from pylogbroker.tasks.api import OutgoingMessageEnvelope, StreamTask
from pylogbroker.tasks.container import TaskContainer
from pylogbroker.tasks.job import MEMORY, SKIP, Input, Job, Output, Store
from pylogbroker.tasks.serdes import STRING
from pylogbroker.tasks.taskinstance import TaskInstance
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import TopicPartition
from tests.tasks.jobs import readAll, splitWords
from tests.tasks.test_container import ContainerCase, told

TOO_LARGE = "x" * 20_000
"""More than topics take with L{SMALL}."""

SMALL = {"max_message_bytes": "10000"}


class Enlarge(StreamTask):
    """Sends C{large} as more than its topic takes."""

    def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        """Send."""
        word = envelope.getKey()
        message = TOO_LARGE if word == "large" else word
        collector.send(OutgoingMessageEnvelope("out", word, message))


class LostMessageTests(ContainerCase):
    """Messages that are never confirmed."""

    def test_tooLarge(self) -> Deferred[None]:
        """
        A container whose output no broker takes ends, with each guarantee, and commits nothing
        behind the message: with transactions not at once, since losing one may have passed.
        """
        return Deferred.fromCoroutine(self._sendTooLarge())

    async def _sendTooLarge(self) -> None:
        await self.createTopic("words", 1)
        await self.createTopic("out", 1, **SMALL)
        await self.publish("words", "small", "large", "later")
        for guarantee, begun in (
            (AT_LEAST_ONCE, 1),
            (EXACTLY_ONCE, outputcommitter.LOST_TRANSACTION_COUNT_MAX),
        ):
            made: list[TaskInstance] = []

            class Noticed(Enlarge):
                """Is counted."""

                def init(self, config: Any, context: Any, made: Any = made) -> None:
                    """Count."""
                    made.append(context)

            job = Job(
                f"enlarge-{guarantee}",
                Noticed,
                [Input("words", STRING)],
                [Output("out", STRING, STRING)],
                onError=SKIP,
            )
            settings = {"processing_guarantee": guarantee, "commit_interval_ms": "400"}
            container = self.make(job, isUntilEnd=False, **settings)
            failure = await self.failureOf(container.run(), UnknownOutcomeError)
            # A transaction that has lost one takes no other.
            self.assertRegex(str(failure), rf"^job {job.name}: \d message.* confirmed: task ")
            self.assertIn(
                f"confirmed: task {job.name}-0: a message of 20,026 bytes for out, for offset 1 of"
                " partition 0 of words:"
                f" {ResponseError(ErrorCode.MESSAGE_TOO_LARGE, 'out-0')}",
                str(failure),
            )
            # A slow machine may commit what is before the message, once: a success in between.
            position = (await self.positions(job.name, "words"))[0]
            self.assertIn(position, (0, 1))
            if position == 0:
                self.assertEqual(len(made), begun)
            else:
                self.assertIn(len(made), range(begun, 2 * begun))

    def test_tooLargeChange(self) -> Deferred[None]:
        """
        A change that the changelog's topic does not take ends the container; the error names the
        store and the messages of the commit.
        """
        return Deferred.fromCoroutine(self._storeTooLarge())

    async def _storeTooLarge(self) -> None:
        await self.createTopic("words", 1)
        await self.createTopic("log", 1, cleanup_policy="compact", **SMALL)
        await self.publish("words", "small", "large", "later")

        class Remember(StreamTask):
            """Stores C{large} as more than the changelog takes."""

            def init(self, config: Any, context: Any) -> None:
                """Get the store."""
                self.seen = context.getStore("seen")

            def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
                """Store."""
                word = envelope.getKey()
                self.seen.put(word, TOO_LARGE if word == "large" else word)
                if word == "later":  # the last key of a commit is sent in another way
                    self.seen.put(word, TOO_LARGE)

        store = Store("seen", STRING, STRING, changelog="log", engine=MEMORY)
        job = Job("remember", Remember, [Input("words", STRING)], stores=[store])
        failure = await self.failureOf(self.make(job).run(), UnknownOutcomeError)
        self.assertEqual(
            str(failure),
            "job remember: 2 messages that tasks sent were not confirmed: task remember-0: a change"
            " of store seen of 20,026 bytes for log, of messages before offset 3 of words-0:"
            f" {ResponseError(ErrorCode.MESSAGE_TOO_LARGE, 'log-0')}",
        )
        self.assertEqual((await self.positions("remember", "words"))[0], 0)

    def test_small(self) -> Deferred[None]:
        """Of small messages an error tells the first and the last with which one was sent."""
        return Deferred.fromCoroutine(self._loseSmall())

    async def _loseSmall(self) -> None:
        await self.createTopic("words", 1)
        await self.publish("words", "a", "b", "c")
        self.broker.injectError("Produce", "INVALID_RECORD", topic="out", count=None)
        outputs = [Output("out", STRING, STRING)]
        job = Job("enlarge", Enlarge, [Input("words", STRING)], outputs)
        failure = await self.failureOf(self.make(job).run(), UnknownOutcomeError)
        self.assertIn(
            "3 messages that tasks sent were not confirmed: task enlarge-0: one of 3 messages, for"
            " offset 0 of partition 0 of words to offset 2 of partition 0 of words: out-",
            str(failure),
        )

    def test_aboveRequestSize(self) -> Deferred[None]:
        """
        A message that makes a task send, or store, more than C{max.request.size} of the producer
        has failed, as C{onError} says.
        """
        return Deferred.fromCoroutine(self._refuseOne())

    async def _refuseOne(self) -> None:
        await self.createTopic("words", 1)
        await self.publish("words", "small", "large", "later")
        job = Job(
            "enlarge",
            Enlarge,
            [Input("words", STRING)],
            [Output("out", STRING, STRING)],
        )
        settings: dict[str, Any] = {"producer_max_request_size": "10000"}
        failure = await self.failureOf(self.make(job, **settings).run(), TaskFailedError)
        self.assertEqual(
            str(failure),
            "task enlarge-0 failed at offset 1 of partition 0 of words: RecordTooLargeError: a"
            " message for topic out of 20,026 bytes: max.request.size of the producer allows"
            " 9,939",
        )
        self.assertEqual((await self.positions("enlarge", "words"))[0], 1)
        await self.make(replace(job, onError=SKIP), **settings).run()
        found = await readAll(reactor, self.broker.bootstrapServers, "out")
        self.assertEqual([each.key for each in found], [b"small", b"later"])


class OrderTests(ContainerCase):
    """What is confirmed before what."""

    def test_storesFollowOutputs(self) -> Deferred[None]:
        """
        At least once, the changelog has nothing of a message whose output was not confirmed: when
        the message is handled again, the store must not know it already.
        """
        return Deferred.fromCoroutine(self._remember())

    async def _remember(self) -> None:
        await self.createTopic("words", 1)
        await self.createTopic("out", 1, **SMALL)
        await self.publish("words", "large")

        class SendOnce(StreamTask):
            """Sends each word once."""

            def init(self, config: Any, context: Any) -> None:
                """Get the store."""
                self.seen = context.getStore("seen")

            def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
                """Send, unless it is seen."""
                if self.seen.get(envelope.getKey()) is None:
                    self.seen.put(envelope.getKey(), "seen")
                    collector.send(OutgoingMessageEnvelope("out", envelope.getKey(), TOO_LARGE))

        job = Job(
            "once",
            SendOnce,
            [Input("words", STRING)],
            [Output("out", STRING, STRING)],
            [Store("seen", STRING, STRING, engine=MEMORY)],
        )
        await self.failureOf(self.make(job).run(), UnknownOutcomeError)
        places = {TopicPartition("once-seen-changelog", 0): LATEST}
        async with AdminClient(
            reactor, {"bootstrap.servers": self.broker.bootstrapServers}
        ) as admin:
            found = checkAll(await admin.listOffsets(places))
        self.assertEqual([each.offset for each in found.values()], [0])


class BeginAnewTests(ContainerCase):
    """What follows an aborted transaction."""

    def test_noPosition(self) -> Deferred[None]:
        """
        Where nothing was committed yet, tasks begin anew where they began: with
        C{auto.offset.reset=latest} not at the beginning of the log.
        """
        return Deferred.fromCoroutine(self._beginLate())

    async def _beginLate(self) -> None:
        await self.createTopic("words", 1)
        await self.createTopic("out", 1, **SMALL)
        await self.publish("words", "old", "older")
        tried: list[str] = []

        class Failing(StreamTask):
            """Sends more than a topic takes, once."""

            def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
                """Send."""
                tried.append(envelope.getKey())
                message = TOO_LARGE if len(tried) == 1 else "m"
                collector.send(OutgoingMessageEnvelope("out", envelope.getKey(), message))

        job = Job("late", Failing, [Input("words", STRING)], [Output("out", STRING, STRING)])
        settings: dict[str, Any] = {
            "processing_guarantee": EXACTLY_ONCE,
            "consumer_auto_offset_reset": "latest",
        }
        container = self.make(job, isUntilEnd=False, **settings)
        ended = container.run()
        place = TopicPartition("words", 0)
        await self.until(lambda: [each.positions.get(place) for each in container.status()] == [2])
        await self.publish("words", "new", "newer")
        await self.until(lambda: container.commitCount)
        await container.stop()
        await ended
        self.assertEqual(tried[-2:], ["new", "newer"])
        self.assertEqual(set(tried), {"new", "newer"})
        found = await readAll(reactor, self.broker.bootstrapServers, "out")
        self.assertEqual([each.key for each in found], [b"new", b"newer"])


class ReplacedProducerTests(ContainerCase):
    """Transactions that the producer has lost."""

    def setUp(self) -> Deferred[None]:  # type: ignore[override]
        """A broker that looks often for transactions that are too old."""
        key = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
        self.stateDir = self.mktemp()
        self.broker = LocalBroker(reactor, {key: "50"})
        self.addCleanup(self.broker.stop)
        return self.broker.start()

    async def _publish(self) -> None:
        await self.createTopic("words", 1)
        await self.publish("words", "a", "b", "a")

    async def _send(self, isOwn: bool, onRecord: Any, timeoutMs: int = 300) -> None:
        await self._sending(isOwn, onRecord, timeoutMs).run()

    def _sending(
        self, isOwn: bool, onRecord: Any, timeoutMs: int, isUntilEnd: bool = True
    ) -> TaskContainer:
        class Sending(StreamTask):
            """Sends each word."""

            def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
                """Send."""
                onRecord(envelope)
                collector.send(OutgoingMessageEnvelope("out", envelope.getKey(), "m"))

        outputs = [Output("out", STRING, STRING)]
        job = Job("send-words", Sending, [Input("words", STRING)], outputs)
        settings = {
            "bootstrap.servers": self.broker.bootstrapServers,
            "state.dir": self.stateDir,
            "processing.guarantee": EXACTLY_ONCE,
            "producer.transaction.timeout.ms": str(timeoutMs),
            "request.timeout.ms": "400",
            "producer.delivery.timeout.ms": "500",
            "commit.interval.ms": "60000",
            "max.poll.records": "1",
        }
        id_ = "" if isOwn else "first"
        container = TaskContainer(reactor, job, settings, isUntilEnd=isUntilEnd, containerId=id_)
        self.addCleanup(container.stop)
        return container

    async def _check(self, keys: str) -> None:
        found = await readAll(reactor, self.broker.bootstrapServers, "out")
        self.assertEqual("".join((each.key or b"").decode() for each in found), keys)

    def test_longInterval(self) -> Deferred[None]:
        """
        A C{commit.interval.ms} that is longer than a transaction may last is cut: otherwise brokers
        would abort each one before its commit.
        """
        return Deferred.fromCoroutine(self._commitSooner())

    async def _commitSooner(self) -> None:
        await self._publish()
        container = self._sending(True, lambda envelope: None, 2_000, isUntilEnd=False)
        running = container.run()
        await self.until(lambda: container.commitCount)
        await container.stop()
        await running
        await self._check("aba")

    def test_tooLong(self) -> Deferred[None]:
        """
        When a task takes longer than C{transaction.timeout.ms}, the tasks begin anew, and all
        counts once.
        """
        return Deferred.fromCoroutine(self._takeLong())

    async def _takeLong(self) -> None:
        await self._publish()
        slow = [1.0]

        def onRecord(envelope: Any) -> None:
            if envelope.offset == 2 and slow:
                sleep(slow.pop())

        # Brokers before transaction.version 2 say so; with it, the same producer may go on.
        self.broker.injectError("EndTxn", "INVALID_PRODUCER_EPOCH")
        with capturedLogs() as events:
            await self._send(True, onRecord)
        await self._check("aba")
        self.assertIn("another producer goes on", told(events))

    def test_alwaysTooLong(self) -> Deferred[None]:
        """One that always does ends its container; so does the first time under an id of others."""
        return Deferred.fromCoroutine(self._takeLongAlways())

    async def _takeLongAlways(self) -> None:
        await self._publish()
        self.patch(outputcommitter, "LOST_TRANSACTION_COUNT_MAX", 2)
        self.broker.injectError("EndTxn", "INVALID_PRODUCER_EPOCH", count=None)
        tried: list[None] = []

        def onRecord(envelope: Any) -> None:
            if envelope.offset == 1:
                tried.append(None)
                sleep(0.6)

        # What the broker has refused of the transaction has the same limit as the producers.
        for isOwn, counts in ((False, (1,)), (True, (2, 3))):
            tried.clear()
            running = Deferred.fromCoroutine(self._send(isOwn, onRecord))
            await self.failureOf(running, PylogbrokerError)
            self.assertIn(len(tried), counts)

    def test_unknownEnd(self) -> Deferred[None]:
        """
        A commit whose answers are lost is known to the next producer, and what it had is done once.
        """
        return Deferred.fromCoroutine(self._loseAnswers())

    async def _loseAnswers(self) -> None:
        await self._publish()
        self.broker.injectDisconnect("EndTxn", isHandled=True, count=1_000)
        with capturedLogs() as events:
            sending = Deferred.fromCoroutine(self._send(True, lambda envelope: None, 60_000))
            await self.until(lambda: "another producer goes on" in told(events))
            self.broker.clearFaults()
            await sending
        await self._check("aba")


class IntervalTests(ContainerCase):
    """How often a container commits."""

    def test_eachBatch(self) -> Deferred[None]:
        """With C{commit.interval.ms=0} each batch is committed, and an idle container sleeps."""
        return Deferred.fromCoroutine(self._commitEachBatch())

    async def _commitEachBatch(self) -> None:
        await self.createTopic("lines", 1)
        container = self.make(splitWords(), isUntilEnd=False, commit_interval_ms="0")
        sleeps: list[None] = []
        sleep = container._sleep

        async def counted() -> None:
            sleeps.append(None)
            await sleep()

        self.patch(container, "_sleep", counted)
        ended = container.run()
        await self.publishLines()
        place = TopicPartition("lines", 0)
        while (await self.positions("split-words", "lines"))[place.partition] < 500:
            await deferLater(reactor, 0.02)
        sleeps.clear()
        await deferLater(reactor, 0.5)
        self.assertLess(len(sleeps), 50)
        await container.stop()
        await ended
        found = await readAll(reactor, self.broker.bootstrapServers, "words")
        self.assertEqual(len(found), 500 * 6)
