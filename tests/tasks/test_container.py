"""
Tests of L{pylogbroker.tasks.container}, with a real broker in the process.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Coroutine, Iterable
from pathlib import Path
from threading import Event
from time import sleep, time
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import TestCase

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.routing import checkAll
from pylogbroker.client.kafka.admin.topics import ConfigResource, NewTopic, ResourceKind
from pylogbroker.config.kafka.clientsettings import KafkaAdminSettings
from pylogbroker.config.kafka.tasksettings import AT_LEAST_ONCE, EXACTLY_ONCE
from pylogbroker.errors import (
    ConfigurationError,
    OffsetOutOfRangeError,
    TaskFailedError,
    TimedOutError,
)
from pylogbroker.tasks.api import (
    IncomingMessageEnvelope,
    MessageCollector,
    OutgoingMessageEnvelope,
    StreamTask,
    TaskCoordinator,
)
from pylogbroker.tasks.container import TaskContainer
from pylogbroker.tasks.job import DEAD_LETTER, MEMORY, ROCKSDB, SKIP, Input, Job, Output, Store
from pylogbroker.tasks.serdes import INTEGER, STRING
from pylogbroker.tasks.state.rocksdbengine import RocksDbEngine
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import TopicPartition
from tests.tasks.jobs import (
    CountWords,
    committedOffsets,
    countWords,
    lastValues,
    publish,
    readAll,
    splitWords,
)

PARTITIONS = 4
LINES = [f"the word {number % 7} of line {number}" for number in range(500)]
TRUTH = Counter(word for line in LINES for word in line.split())


class ContainerCase(TestCase):
    """A broker, and jobs."""

    timeout = 60
    broker: LocalBroker
    stateDir: str

    def setUp(self) -> Deferred[None]:  # type: ignore[override]
        self.broker = LocalBroker(reactor, {"num.partitions": str(PARTITIONS)})
        self.addCleanup(self.broker.stop)
        self.stateDir = self.mktemp()
        return self.broker.start()

    def make(self, job: Job, *, isUntilEnd: bool = True, **settings: Any) -> TaskContainer:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        container = TaskContainer(
            reactor,
            job,
            {
                "bootstrap.servers": self.broker.bootstrapServers,
                "state.dir": self.stateDir,
                **given,
            },
            isUntilEnd=isUntilEnd,
        )
        self.addCleanup(container.stop)
        return container

    async def publish(self, topic: str, *words: str) -> None:
        messages = [(word, INTEGER.encode(1)) for word in words]
        await publish(reactor, self.broker.bootstrapServers, topic, messages)

    async def publishLines(self) -> None:
        messages = [(None, line.encode()) for line in LINES]
        await publish(reactor, self.broker.bootstrapServers, "lines", messages)

    async def counts(self, topic: str = "word-counts") -> dict[str, int]:
        return lastValues(await readAll(reactor, self.broker.bootstrapServers, topic))

    async def createTopic(self, name: str, count: int, **configs: str) -> None:
        given = {key.replace("_", "."): value for key, value in configs.items()}
        settings = {"bootstrap.servers": self.broker.bootstrapServers}
        async with AdminClient(reactor, KafkaAdminSettings.fromProperties(settings)) as admin:
            checkAll(await admin.createTopics([NewTopic(name, count, configs=given)]))

    async def administer(self, work: Any) -> None:
        settings = {"bootstrap.servers": self.broker.bootstrapServers}
        async with AdminClient(reactor, KafkaAdminSettings.fromProperties(settings)) as admin:
            checkAll(await work(admin))

    async def positions(self, group: str, topic: str) -> dict[int, int]:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        found = await committedOffsets(reactor, self.broker.bootstrapServers, group, places)
        return {place.partition: each or 0 for place, each in found.items()}

    async def failureOf(self, running: Deferred[None], kind: type[Exception]) -> Exception:
        try:
            await running
        except kind as error:
            return error
        self.fail("it did not fail")

    async def until(self, isTrue: Any) -> None:
        for _turn in range(1000):
            if isTrue():
                return
            await deferLater(reactor, 0.02)
        self.fail("it did not come true in 20 s")


def asTest(method: Any) -> Any:
    """A test that is a coroutine function."""

    def test(self: Any) -> Deferred[None]:
        work: Coroutine[Any, Any, None] = method(self)
        return Deferred.fromCoroutine(work)

    test.__name__, test.__doc__ = method.__name__, method.__doc__
    return test


def told(events: Iterable[Any]) -> str:
    """What was logged."""
    return "\n".join(formatEvent(each) or "" for each in events)


class WordCountTests(ContainerCase):
    """The paper's example, with each engine and each guarantee."""

    async def _count(self, engine: str, guarantee: str) -> None:
        await self.publishLines()
        settings: dict[str, Any] = {"processing_guarantee": guarantee}
        await self.make(splitWords(), **settings).run()
        await self.make(countWords(engine), **settings).run()
        self.assertEqual(await self.counts(), TRUTH)
        # The second half: state and positions are where they were.
        await self.publish("words", "the", "new")
        again = self.make(countWords(engine), **settings)
        await again.run()
        self.assertEqual(await self.counts(), TRUTH + Counter(["the", "new"]))

    @asTest
    async def test_memory(self) -> None:
        """At least once, with stores in memory: restored from the changelog."""
        await self._count(MEMORY, AT_LEAST_ONCE)

    @asTest
    async def test_rocksdb(self) -> None:
        """At least once, with stores on disk."""
        await self._count(ROCKSDB, AT_LEAST_ONCE)

    @asTest
    async def test_exactlyOnceMemory(self) -> None:
        """Exactly once, with stores in memory."""
        await self._count(MEMORY, EXACTLY_ONCE)

    @asTest
    async def test_exactlyOnceRocksDb(self) -> None:
        """Exactly once, with stores on disk."""
        await self._count(ROCKSDB, EXACTLY_ONCE)


class ContainerTests(ContainerCase):
    """What a container does with topics, tasks and errors."""

    @asTest
    async def test_topics(self) -> None:
        """Outputs and changelogs are created: a partition for each task, changelogs compacted."""
        await self.createTopic("words", 3)
        await self.make(countWords()).run()
        settings = {"bootstrap.servers": self.broker.bootstrapServers}
        async with AdminClient(reactor, KafkaAdminSettings.fromProperties(settings)) as admin:
            found = checkAll(await admin.describeTopics(["word-counts"]))
        self.assertEqual(len(found["word-counts"].partitions), 3)

    @asTest
    async def test_wrongChangelog(self) -> None:
        """A changelog with another number of partitions, or that is not compacted, is refused."""
        await self.createTopic("words", 3)
        await self.createTopic("word-counts", 2, cleanup_policy="compact")
        failure = await self.failureOf(self.make(countWords()).run(), ConfigurationError)
        self.assertIn("word-counts has 2 partitions, and the inputs have 3", str(failure))
        await self.createTopic("other", 3)
        job = countWords(inputs=[Input("other", STRING, INTEGER)])
        await self.createTopic("flat", 3)
        stores = [Store("word-counts", STRING, INTEGER, "flat", MEMORY)]
        flat = Job("flat-job", CountWords, job.inputs, stores=stores)
        failure = await self.failureOf(self.make(flat).run(), ConfigurationError)
        self.assertIn("changelog flat has cleanup.policy=delete", str(failure))

    @asTest
    async def test_missingInput(self) -> None:
        """A container waits for its inputs; one that is to end at their end does not."""
        await self.failureOf(self.make(countWords()).run(), ConfigurationError)
        container = self.make(countWords(), isUntilEnd=False)
        running = container.run()
        await deferLater(reactor, 0.1)
        await self.createTopic("words", 1)
        await self.publish("words", "late", "enough")
        await running
        self.assertEqual(await self.counts(), {"late": 1, "enough": 1})

    @asTest
    async def test_shutdown(self) -> None:
        """A task that asks for it ends its container, behind a commit."""
        await self.createTopic("words", 1)
        await self.publish("words", "a", "enough", "b")
        await self.make(countWords(), isUntilEnd=False).run()
        self.assertEqual(await self.counts(), {"a": 1, "enough": 1})
        await self.make(countWords()).run()
        self.assertEqual(await self.counts(), {"a": 1, "enough": 1, "b": 1})

    @asTest
    async def test_stop(self) -> None:
        """With C{onError=stop} the container ends at the message, with all before it committed."""
        await self.createTopic("words", 1)
        await self.publish("words", "a", "b", "bad", "c")
        failure = await self.failureOf(self.make(countWords()).run(), TaskFailedError)
        self.assertEqual(
            str(failure),
            "task count-words-0 failed at offset 2 of partition 0 of words: ValueError: a bad word",
        )
        self.assertEqual(await self.counts(), {"a": 1, "b": 1})
        self.assertEqual((await self.positions("count-words", "words"))[0], 2)
        await self.failureOf(self.make(countWords()).run(), TaskFailedError)
        self.assertEqual(await self.counts(), {"a": 1, "b": 1})

    @asTest
    async def test_skip(self) -> None:
        """With C{onError=skip} the message is left out, with all that was done for it."""
        await self.createTopic("words", 1)
        await self.publish("words", "a", "bad", "c")
        with capturedLogs() as events:
            await self.make(countWords(onError=SKIP)).run()
        self.assertEqual(await self.counts(), {"a": 1, "c": 1})
        said = [text for event in events if "left out" in (text := formatEvent(event))]
        self.assertEqual(len(said), 1)
        self.assertIn("offset 1 of partition 0 of words: ValueError: a bad word", said[0])

    @asTest
    async def test_deadLetter(self) -> None:
        """With C{onError=dead-letter} the message is in the dead-letter topic, with the reason."""
        await self.createTopic("words", 1)
        await self.publish("words", "a", "bad", "c")
        await self.make(countWords(onError=DEAD_LETTER)).run()
        self.assertEqual(await self.counts(), {"a": 1, "c": 1})
        servers = self.broker.bootstrapServers
        (letter,) = await readAll(reactor, servers, "count-words-dead-letters")
        self.assertEqual((letter.key, letter.value), (b"bad", INTEGER.encode(1)))
        self.assertEqual(
            dict(letter.headers),
            {
                "pylogbroker.dead-letter.reason": b"ValueError: a bad word",
                "pylogbroker.dead-letter.topic": b"words",
                "pylogbroker.dead-letter.partition": b"0",
                "pylogbroker.dead-letter.offset": b"1",
            },
        )

    @asTest
    async def test_coroutines(self) -> None:
        """A task with coroutine functions may wait, and still handles one message at a time."""
        await self.createTopic("words", 1)
        await self.publish("words", *"abcab")
        log: list[str] = []

        class Slow(CountWords):
            async def process(  # type: ignore[override]
                self,
                envelope: IncomingMessageEnvelope,
                collector: MessageCollector,
                coordinator: TaskCoordinator,
            ) -> None:
                log.append(f"begin {envelope.key}")
                await deferLater(reactor, 0.01)
                super().process(envelope, collector, coordinator)
                log.append(f"end {envelope.key}")

        await self.make(countWords(task=Slow)).run()
        self.assertEqual(log, [f"{word} {key}" for key in "abcab" for word in ("begin", "end")])
        self.assertEqual(await self.counts(), {"a": 2, "b": 2, "c": 1})

    @asTest
    async def test_window(self) -> None:
        """C{window} is called by the clock, and may send."""

        class Ticking(StreamTask):
            def process(self, *_given: Any) -> None:
                pass

            def window(self, collector: MessageCollector, coordinator: TaskCoordinator) -> None:
                collector.send(OutgoingMessageEnvelope("ticks", "tick", 1))
                coordinator.shutdown()

        await self.createTopic("words", 1)
        job = Job(
            "ticking",
            Ticking,
            [Input("words")],
            [Output("ticks", STRING, INTEGER)],
            windowMs=50,
        )
        await self.make(job, isUntilEnd=False).run()
        (tick,) = await readAll(reactor, self.broker.bootstrapServers, "ticks")
        self.assertEqual((tick.key, tick.value), (b"tick", INTEGER.encode(1)))

    @asTest
    async def test_fullCache(self) -> None:
        """What is not committed has a limit, at which a container commits."""
        await self.createTopic("words", 1)
        words = [f"{number:05}" for number in range(3_000)]
        await self.publish("words", *words)
        container = self.make(countWords(), statestore_cache_max_bytes="1")
        await container.run()
        # 64 KiB are the least, and an entry costs 109 bytes.
        self.assertGreaterEqual(container.commitCount, 3_000 * 109 // 65_536)
        self.assertEqual(await self.counts(), dict.fromkeys(words, 1))

    @asTest
    async def test_renamed(self) -> None:
        """A job under another name has positions, stores and outputs of its own."""
        await self.publishLines()
        await self.make(splitWords()).run()
        await self.make(splitWords().renamed("trial")).run()
        servers = self.broker.bootstrapServers
        found = [
            Counter((each.key or b"").decode() for each in await readAll(reactor, servers, topic))
            for topic in ("words", "words.trial")
        ]
        self.assertEqual(found, [TRUTH, TRUTH])


class StoreTests(ContainerCase):
    """Stores that are left on a disk."""

    async def _begin(self) -> None:
        await self.createTopic("words", 1)
        await self.publish("words", "a", "b")
        await self.make(countWords(ROCKSDB)).run()

    def folder(self) -> Path:
        return Path(self.stateDir, "count-words", "0", "word-counts")

    @asTest
    async def test_otherChangelog(self) -> None:
        """A store of a changelog that was deleted, and created anew, begins empty."""
        await self._begin()
        await self.administer(lambda admin: admin.deleteTopics(["word-counts"]))
        await self.publish("words", "a")
        with capturedLogs() as events:
            await self.make(countWords(ROCKSDB)).run()
        self.assertEqual(await self.counts(), {"a": 1})
        self.assertIn("of another changelog", told(events))

    @asTest
    async def test_deletedRecords(self) -> None:
        """A store whose changelog begins behind what it has is built anew."""
        await self._begin()
        place = TopicPartition("word-counts", 0)
        await self.publish("words", "c")
        await self.make(countWords(ROCKSDB), state_dir=self.mktemp()).run()
        topic = ConfigResource(ResourceKind.TOPIC, "word-counts")
        for policy in ("delete", "compact"):
            configs = {topic: {"cleanup.policy": policy}}
            await self.administer(lambda admin, configs=configs: admin.alterConfigs(configs))
            if policy == "delete":
                await self.administer(lambda admin: admin.deleteRecords({place: 3}))
        await self.publish("words", "a")
        with capturedLogs() as events:
            await self.make(countWords(ROCKSDB)).run()
        self.assertEqual(await self.counts(), {"a": 1})
        self.assertTrue(
            any("begins at 3, behind 2" in (formatEvent(each) or "") for each in events)
        )

    @asTest
    async def test_old(self) -> None:
        """
        A store that was not written for longer than the changelog keeps deletions is built anew: it
        may have keys that were deleted since.
        """
        await self._begin()
        again = self.make(countWords(ROCKSDB))
        await again.run()
        self.assertEqual(again.restoredCount, 0)
        old = time() - 2 * 86_400
        for each in self.folder().iterdir():
            os.utime(each, (old, old))
        again = self.make(countWords(ROCKSDB))
        await again.run()
        self.assertEqual(again.restoredCount, 2)

    @asTest
    async def test_inUse(self) -> None:
        """A store that another container has still is waited for."""
        await self._begin()
        await self.publish("words", "a")
        engine = RocksDbEngine(str(self.folder()), self.fail)
        with capturedLogs() as events:
            running = self.make(countWords(ROCKSDB)).run()
            await self.until(lambda: any("waits: " in (formatEvent(each) or "") for each in events))
        engine.close()
        await running
        self.assertEqual(await self.counts(), {"a": 2, "b": 1})


class FailureTests(ContainerCase):
    """What ends a container, and what is not committed then."""

    @asTest
    async def test_close(self) -> None:
        """What C{close} raises ends the container; the other tasks are closed, too."""
        closed: list[StreamTask] = []

        class Failing(CountWords):
            def close(self) -> None:
                closed.append(self)
                raise ValueError("no end")

        await self.createTopic("words", 2)
        await self.publish("words", "a", "b", "c", "d")
        container = self.make(countWords(ROCKSDB, task=Failing))
        failure = await self.failureOf(container.run(), ValueError)
        self.assertEqual(str(failure), "no end")
        self.assertEqual(len(closed), 2)
        await self.make(countWords(ROCKSDB)).run()  # no store is in use
        self.assertEqual(await self.counts(), dict.fromkeys("abcd", 1))

    @asTest
    async def test_noPosition(self) -> None:
        """Without a position, and with C{auto.offset.reset=none}, a container ends."""
        await self.createTopic("words", 1)
        await self.publish("words", "a")
        container = self.make(countWords(), isUntilEnd=False, consumer_auto_offset_reset="none")
        await self.failureOf(container.run(), OffsetOutOfRangeError)

    @asTest
    async def test_lostTooLate(self) -> None:
        """
        A container that cannot close a task in time when its partition is lost ends, and commits
        nothing more.
        """
        await self.createTopic("words", 1)
        await self.publish("words", "a")
        begun, end = Event(), Event()

        class Slow(CountWords):
            def process(self, *given: Any) -> None:
                begun.set()
                end.wait(10)
                super().process(*given)

        container = self.make(countWords(task=Slow), isUntilEnd=False)
        running = container.run()
        await self.until(begun.is_set)
        losing = Deferred.fromCoroutine(container.lose([TopicPartition("words", 0)]))
        losing.cancel()
        await losing
        end.set()
        failure = await self.failureOf(running, TimedOutError)
        self.assertIn("max.poll.interval.ms", str(failure))
        self.assertEqual((await self.positions("count-words", "words"))[0], 0)

    @asTest
    async def test_slow(self) -> None:
        """A batch that takes longer than the interval of commits is committed in parts."""
        await self.createTopic("words", 1)
        await self.publish("words", *"abcdefgh")

        class Slow(CountWords):
            def process(self, *given: Any) -> None:
                sleep(0.05)
                super().process(*given)

        container = self.make(countWords(task=Slow), commit_interval_ms="60")
        await container.run()
        self.assertGreaterEqual(container.commitCount, 3)
        self.assertEqual(await self.counts(), dict.fromkeys("abcdefgh", 1))

    @asTest
    async def test_slowCommits(self) -> None:
        """Commits that take longer than their interval leave time for messages in between."""
        await self.createTopic("words", 1)
        words = [f"{number:02}" for number in range(60)]
        await self.publish("words", *words)
        self.broker.injectDelay("OffsetCommit", 100, count=None)

        class Slow(CountWords):
            def process(self, *given: Any) -> None:
                sleep(0.005)
                super().process(*given)

        container = self.make(countWords(task=Slow), commit_interval_ms="40")
        await container.run()
        self.assertLess(container.commitCount, 20)
        self.assertEqual(await self.counts(), dict.fromkeys(words, 1))


class SharingTests(ContainerCase):
    """Containers share the tasks of a job."""

    async def _share(self, guarantee: str) -> None:
        await self.createTopic("words", PARTITIONS)
        settings: dict[str, Any] = {
            "processing_guarantee": guarantee,
            "commit_interval_ms": "100",
            "consumer_session_timeout_ms": "6000",
            "consumer_heartbeat_interval_ms": "100",
        }
        words = [f"word{number % 50}" for number in range(1_000)]
        first = self.make(countWords(ROCKSDB), isUntilEnd=False, **settings)
        running = [first.run()]
        await self.publish("words", *words)
        await self.until(lambda: sum(each.handledCount for each in first.status()) == 1_000)
        second = self.make(countWords(ROCKSDB), isUntilEnd=False, **settings)
        running.append(second.run())
        await self.until(
            lambda: (
                [sorted(each.phase for each in container.status()) for container in (first, second)]
                == [["running"] * 2] * 2
            )
        )
        have = [{each.partition for each in container.status()} for container in (first, second)]
        self.assertEqual(have[0] | have[1], set(range(PARTITIONS)))
        await self.publish("words", *words)
        await first.stop()
        await self.publish("words", *words)
        await self.until(
            lambda: [each.phase for each in second.status()] == ["running"] * PARTITIONS
        )
        truth = {word: 3 * count for word, count in Counter(words).items()}
        for _turn in range(500):
            if await self.counts() == truth:
                break
            await deferLater(reactor, 0.05)
        self.assertEqual(await self.counts(), truth)
        await second.stop()
        for each in running:
            await each

    @asTest
    async def test_atLeastOnce(self) -> None:
        """A second container takes half of the tasks; when one ends, the other has all again."""
        await self._share(AT_LEAST_ONCE)

    @asTest
    async def test_exactlyOnce(self) -> None:
        """Likewise."""
        await self._share(EXACTLY_ONCE)
