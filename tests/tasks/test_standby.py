"""
Tests of L{pylogbroker.tasks.standby}: containers with stand-bys, and a real broker in the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from time import time
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.routing import checkAll
from pylogbroker.cluster.kafka.taskassignor import TaskStandbys
from pylogbroker.config.kafka.tasksettings import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    METRICS_TOPIC,
    KafkaTaskSettings,
)
from pylogbroker.net.workers import ThreadPoolWorker
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.tasks import standby as module
from pylogbroker.tasks.container import TaskContainer
from pylogbroker.tasks.job import MEMORY, ROCKSDB, Store
from pylogbroker.tasks.reports.containermetrics import ContainerMetrics, StandbyMetrics
from pylogbroker.tasks.restorer import ChangelogRestorer
from pylogbroker.tasks.serdes import INTEGER
from pylogbroker.tasks.standby import StandbyStatus, StandbyTasks
from pylogbroker.tasks.state.engines import IStoreEngine, closeEngines
from pylogbroker.tasks.state.rocksdbengine import DAMAGED
from pylogbroker.tasks.state.statedirectory import StateDirectory
from pylogbroker.tasks.topics import JobTopics
from tests.tasks.jobs import countWords, publish, readAll
from tests.tasks.test_container import ContainerCase, asTest, told

TASKS = 4
WORDS = [f"word{number % 50}" for number in range(1_000)]


class StandbyCase(ContainerCase):
    """Containers, each with a folder of its own, as on machines of their own."""

    def begin(self, engine: str = ROCKSDB, folder: str = "", **settings: Any) -> TaskContainer:
        given = {
            "state_dir": folder or self.mktemp(),
            "num_standby_replicas": "1",
            "commit_interval_ms": "100",
            "consumer_session_timeout_ms": "6000",
            "consumer_heartbeat_interval_ms": "100",
            **settings,
        }
        container = self.make(countWords(engine), isUntilEnd=False, **given)
        self.running = [*getattr(self, "running", ()), container.run()]
        return container

    async def untilShared(self, *containers: TaskContainer) -> None:
        """Until each task runs once and is followed once, and all of it is as it shall be."""

        def isShared() -> bool:
            tasks = [each for container in containers for each in container.status()]
            standbys = [each for container in containers for each in container.standbys()]
            sizes = [len(container.status()) for container in containers]
            copies = TASKS if len(containers) > 1 else 0
            return (
                sorted((each.partition, each.phase) for each in tasks)
                == [(number, "running") for number in range(TASKS)]
                and sorted(each.partition for each in standbys) == list(range(copies))
                and all(each.isCurrent and not each.lag for each in standbys)
                and max(sizes) - min(sizes) <= 1
            )

        await self.until(isShared)

    async def untilCommitted(self, count: int) -> None:
        """Until the group has C{count} messages behind it, however often they were handled."""
        for _turn in range(1_000):
            if sum((await self.positions("count-words", "words")).values()) == count:
                return
            await deferLater(reactor, 0.02)
        self.fail(f"{count} messages were not committed in 20 s")

    async def end(self, *containers: TaskContainer) -> None:
        for each in containers:
            await each.stop()
        for running in self.running:
            await running


class TakeoverTests(StandbyCase):
    """A container goes, and another one has the state of its tasks."""

    async def _takeOver(self, engine: str, guarantee: str) -> None:
        await self.createTopic("words", TASKS)
        first = self.begin(engine, processing_guarantee=guarantee)
        await self.publish("words", *WORDS)
        await self.untilCommitted(len(WORDS))
        second = self.begin(engine, processing_guarantee=guarantee)
        await self.untilShared(first, second)
        restoredCount = second.restoredCount
        await self.publish("words", *WORDS)
        await self.untilCommitted(2 * len(WORDS))
        await self.untilShared(first, second)
        await first.stop()
        await self.untilShared(second)
        # Its stand-bys had all but, at most, what the last commits have written.
        self.assertLessEqual(second.restoredCount - restoredCount, 50)
        self.assertLessEqual(restoredCount, 50)
        await self.publish("words", *WORDS)
        await self.untilCommitted(3 * len(WORDS))
        await self.end(second)
        truth = {word: 3 * count for word, count in Counter(WORDS).items()}
        self.assertEqual(await self.counts(), truth)

    @asTest
    async def test_atLeastOnce(self) -> None:
        """A container that comes follows tasks, and then has its share; it takes over the rest."""
        await self._takeOver(ROCKSDB, AT_LEAST_ONCE)

    @asTest
    async def test_exactlyOnce(self) -> None:
        """With exactly once, too, stores have what was committed."""
        await self._takeOver(ROCKSDB, EXACTLY_ONCE)

    @asTest
    async def test_memory(self) -> None:
        """A stand-by in memory is handed over to its task."""
        await self._takeOver(MEMORY, AT_LEAST_ONCE)

    @asTest
    async def test_reported(self) -> None:
        """The metrics of containers name their stand-bys, and how far they are."""
        await self.createTopic("words", TASKS)
        containers = [self.begin(MEMORY, metrics_interval_ms="50") for _ in range(2)]
        await self.untilShared(*containers)
        wanted = [StandbyMetrics(number, True, 0) for number in range(TASKS)]
        last: dict[bytes | None, ContainerMetrics] = {}
        found: list[StandbyMetrics] = []
        for _turn in range(500):
            records = await readAll(reactor, self.broker.bootstrapServers, METRICS_TOPIC)
            last = {each.key: ContainerMetrics.decode(each.value or b"") for each in records}
            found = [each for report in last.values() for each in report.standbys]
            found.sort(key=lambda each: each.task)
            if found == wanted:
                break
            await deferLater(reactor, 0.02)
        self.assertEqual(found, wanted)
        self.assertEqual(sum(each.standbyCount for each in last.values()), TASKS)
        await self.end(*containers)


class FollowerTests(StandbyCase):
    """L{StandbyTasks}, without containers."""

    def setUp(self) -> Deferred[None]:  # type: ignore[override]
        self.opened: list[str] = []
        self.currents: list[int] = []
        self.isBusy = False
        self.directory = StateDirectory(Path(self.mktemp()), lambda: time() * 1000)
        self.worker = ThreadPoolWorker(reactor, "stand-bys", 1)
        self.worker.start()
        self.addCleanup(self.worker.stop)
        return super().setUp()

    async def follower(
        self, engine: str = ROCKSDB, lag: int = 0, retentionMs: int = 86_400_000
    ) -> StandbyTasks:
        """With a changelog of two partitions, and one store."""
        job = countWords(engine)
        settings = KafkaTaskSettings.fromProperties(
            {"bootstrap.servers": self.broker.bootstrapServers}
        )
        admin = AdminClient(reactor, settings.forAdmin(self.fail))
        self.addCleanup(admin.close)
        found = checkAll(await admin.describeTopics(["word-counts"]))
        ids = {"word-counts": found["word-counts"].topicId}
        topics = JobTopics({"words": 2}, {}, {}, ids, {"word-counts": retentionMs})
        consumer = settings.forConsumer(None, self.fail)
        restorer = ChangelogRestorer(reactor, consumer, admin, self.worker, ids)

        async def open_(
            number: int, store: Store, engines: dict[str, IStoreEngine]
        ) -> IStoreEngine:
            def make() -> IStoreEngine:
                made = engines[store.name] = self.directory.open(number, store, retentionMs)
                return made

            self.opened.append(f"{number} {store.name}")
            made: IStoreEngine = await self.worker.submit(make)
            return made

        follower = StandbyTasks(
            reactor,
            job,
            topics,
            consumer,
            admin,
            self.worker,
            restorer,
            open_,
            lambda: self.isBusy,
            lag,
            lambda: self.currents.append(1),
            lambda: 0.5,
        )
        self.addCleanup(follower.close)
        return follower

    async def write(
        self, *words: str, isAborted: bool = False, timestamp: int | None = None
    ) -> None:
        """A transaction of changes."""
        settings = {
            "bootstrap.servers": self.broker.bootstrapServers,
            "transactional.id": "writer",
        }
        producer = KafkaProducer(reactor, settings)
        try:
            async with producer.transaction():
                for word in words:
                    value = INTEGER.encode(len(word))
                    await producer.send(
                        "word-counts", value, word.encode(), (), timestamp, partition=0
                    )
                if isAborted:
                    raise ValueError("no")
        except ValueError:
            pass
        finally:
            await producer.close()

    def entries(self, engines: Mapping[str, IStoreEngine]) -> list[str]:
        [engine] = engines.values()
        return [key.decode() for key, _value in engine.range(None, None)]

    async def untilLag(self, follower: StandbyTasks, lag: int | None = 0) -> None:
        await self.until(lambda: [each.lag for each in follower.status()] == [lag])

    async def close(self, engines: dict[str, IStoreEngine]) -> None:
        await self.worker.submit(partial(closeEngines, engines))

    @asTest
    async def test_committed(self) -> None:
        """It has what was committed, and tells once that it is up to date; it ends at the end."""
        await self.createTopic("word-counts", 2, cleanup_policy="compact")
        await self.write("a", "b")
        await self.write("x", isAborted=True)
        follower = await self.follower()
        self.isBusy = True
        follower.follow([], TaskStandbys([0, 9], [0]))
        await self.untilLag(follower)
        await self.until(lambda: self.currents)
        await self.write("c")
        await self.write("y", isAborted=True)
        await self.until(lambda: follower.appliedCount == 3)
        await self.untilLag(follower)
        self.assertEqual(follower.current(), {0})
        self.assertEqual(self.currents, [1])
        self.assertEqual(follower.status(), [StandbyStatus(0, True, 0)])
        engines = await follower.release(0)
        self.assertEqual(self.entries(engines), ["a", "b", "c"])
        [engine] = engines.values()
        assert engine.mark is not None
        self.assertEqual(engine.mark.offset, 9)  # with four markers
        self.assertEqual((follower.status(), await follower.release(0)), ([], {}))
        await self.close(engines)

    @asTest
    async def test_comesAndGoes(self) -> None:
        """
        Tasks come and go while changes come; what goes is closed, and may be opened by others. A
        task that this container gets is followed until it is released.
        """
        await self.createTopic("word-counts", 2, cleanup_policy="compact")
        follower = await self.follower()
        words = [f"word{number}" for number in range(3_000)]
        for number in range(2):
            messages = [(word, INTEGER.encode(1)) for word in words]
            await publish(reactor, self.broker.bootstrapServers, "word-counts", messages)
        follower.follow([], TaskStandbys([0]))
        await self.until(lambda: follower.appliedCount > 0)
        follower.follow([], TaskStandbys([0, 1]))
        await deferLater(reactor, 0.01)
        follower.follow([], TaskStandbys([1]))
        follower.follow([], TaskStandbys([0, 1]))
        await self.until(lambda: [each.lag for each in follower.status()] == [0, 0])
        follower.follow([0], TaskStandbys([1]))
        found = []
        for number in range(2):
            self.assertEqual(follower.current(), set(range(number, 2)))
            engines = await follower.release(number)
            found += self.entries(engines)
            await self.close(engines)
        self.assertEqual(sorted(found), sorted(words))
        follower.follow([], TaskStandbys([0]))
        self.assertEqual(await follower.release(0), {})  # it is not open yet
        engine = self.directory.open(0, countWords(ROCKSDB).stores[0], 1 << 40)
        engine.close()

    @asTest
    async def test_damaged(self) -> None:
        """A store that is found damaged, or cannot be written, is built anew."""
        self.patch(module, "RETRY_SECONDS", 0.1)
        await self.createTopic("word-counts", 2, cleanup_policy="compact")
        await self.write("a", "b")
        follower = await self.follower()
        follower.follow([], TaskStandbys([0]))
        await self.untilLag(follower)
        [standby] = follower._standbys.values()
        [engine] = standby.engines.values()
        directory: str = engine._directory  # type: ignore[attr-defined]
        Path(directory, DAMAGED).write_text("a test", encoding="ascii")
        await self.worker.submit(engine.close)
        with capturedLogs() as events:
            await self.write("c")
            await self.until(lambda: follower.appliedCount == 5)
        self.assertIn("is opened again in 0.1 s: cannot write", told(events))
        self.assertIn("is damaged, and built anew: a test", told(events))
        engines = await follower.release(0)
        self.assertEqual(self.entries(engines), ["a", "b", "c"])
        await self.close(engines)

    @asTest
    async def test_old(self) -> None:
        """A store that was away for longer than its changelog keeps deletions is built anew."""
        await self.createTopic("word-counts", 2, cleanup_policy="compact")
        await self.write("a", "b")
        follower = await self.follower(MEMORY, retentionMs=2_000)
        follower.follow([], TaskStandbys([0]))
        await self.untilLag(follower)
        [standby] = follower._standbys.values()
        [store] = standby.stores.values()
        store.currentAtMs -= 10_000
        with capturedLogs() as events:
            await self.write("c")
            await self.until(lambda: follower.appliedCount == 5)
        said = "The stand-by of word-counts-0 is built anew: it was behind for more than 2000 ms"
        self.assertIn(said, told(events))
        self.assertEqual(len(self.opened), 2)
        [standby] = follower._standbys.values()
        [store] = standby.stores.values()
        store.currentAtMs -= 10_000
        engines = await follower.release(0)
        self.assertEqual(self.entries(engines), [])
        await self.close(engines)

    @asTest
    async def test_behind(self) -> None:
        """
        What one writes that is far behind does not make it current; what was written of late does.
        """
        self.patch(module, "LAG_CHECK_SECONDS", 1_000)
        await self.createTopic("word-counts", 2, cleanup_policy="compact")
        follower = await self.follower(MEMORY, retentionMs=60_000)
        follower.follow([], TaskStandbys([0]))
        await self.untilLag(follower)
        [standby] = follower._standbys.values()
        [store] = standby.stores.values()
        now = int(time() * 1000)
        store.currentAtMs = now - 50_000
        await self.write("old", timestamp=now - 55_000)
        await self.until(lambda: follower.appliedCount == 1)
        self.assertEqual(store.currentAtMs, now - 50_000)
        await self.write("new", timestamp=now - 20_000)
        await self.until(lambda: follower.appliedCount == 2)
        self.assertEqual(store.currentAtMs, now - 20_000)
        await self.write("early", timestamp=now + 3_600_000)  # another machine's clock
        await self.until(lambda: follower.appliedCount == 3)
        self.assertTrue(now <= store.currentAtMs <= time() * 1000)

    @asTest
    async def test_lostChanges(self) -> None:
        """Where a changelog has lost what stores have, they are built anew, and the log says so."""
        await self.createTopic("word-counts", 2, cleanup_policy="compact")
        await self.write("a", "b")
        follower = await self.follower()
        follower.follow([], TaskStandbys([0]))
        await self.untilLag(follower)
        with capturedLogs() as events:
            await self.administer(lambda admin: admin.deleteTopics(["word-counts"]))
            await self.createTopic("word-counts", 2, cleanup_policy="compact")
            await self.until(lambda: "The stand-bys of job count-words: " in told(events))
            await self.until(lambda: len(self.opened) > 1)
        await self.write("c")
        await self.until(lambda: follower.appliedCount == 3)
        engines = await follower.release(0)
        self.assertEqual(self.entries(engines), ["c"])
        await self.close(engines)
