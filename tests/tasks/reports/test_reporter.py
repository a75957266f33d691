"""
Tests of L{pylogbroker.tasks.reports.reporter}: containers with a real broker in the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, formatEvent

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.routing import checkAll
from pylogbroker.client.kafka.admin.topics import ConfigResource, ResourceKind
from pylogbroker.config.kafka.clientsettings import KafkaAdminSettings
from pylogbroker.config.kafka.tasksettings import EXACTLY_ONCE
from pylogbroker.errors import TaskFailedError
from pylogbroker.net.deferreds import asDeferred
from pylogbroker.net.workers import ThreadPoolWorker
from pylogbroker.tasks.container import TaskContainer
from pylogbroker.tasks.reports.containermetrics import ContainerMetrics
from pylogbroker.tasks.reports.jobconfig import JobConfig
from tests.tasks.jobs import countWords, readAll
from tests.tasks.test_container import ContainerCase, asTest, told

CONFIGS, METRICS = "pylogbroker-task-configs", "pylogbroker-task-metrics"


class HeldWorker(ThreadPoolWorker):
    """A worker whose jobs wait while C{isHeld}."""

    def __init__(self) -> None:
        super().__init__(reactor, "held", 1)
        self.isHeld: Callable[[Callable[[], Any]], bool] = lambda _work: False
        submit = self.submit

        async def later(work: Callable[[], Any]) -> Any:
            while self.isHeld(work):
                await deferLater(reactor, 0.01)
            return await submit(work)

        self.submit = asDeferred(later)


class ReporterTests(ContainerCase):
    """What containers publish."""

    async def records(self, topic: str) -> list[tuple[str, bytes | None]]:
        """Key and value of each record."""
        found = await readAll(reactor, self.broker.bootstrapServers, topic)
        return [((each.key or b"").decode(), each.value) for each in found]

    async def metrics(
        self, isWanted: Callable[[ContainerMetrics], object] = lambda _each: True
    ) -> ContainerMetrics:
        """The first metrics of a kind, as soon as there are any."""
        found: list[bytes] = []
        for _turn in range(500):
            if METRICS in await self.topics():
                found = [value for _key, value in await self.records(METRICS) if value is not None]
            for value in found:
                report = ContainerMetrics.decode(value)
                if isWanted(report):
                    return report
            await deferLater(reactor, 0.02)
        self.fail(f"no such report: {found[-1:]}")

    async def topics(self) -> set[str]:
        settings = {"bootstrap.servers": self.broker.bootstrapServers}
        async with AdminClient(reactor, KafkaAdminSettings.fromProperties(settings)) as admin:
            return set(await admin.listTopics())

    @asTest
    async def test_reports(self) -> None:
        """
        Configuration and metrics while a container runs, with exactly once, too; a tombstone when
        it has ended.
        """
        await self.createTopic("words", 2)
        await self.publish("words", "a", "b", "a")
        container = self.make(
            countWords(),
            isUntilEnd=False,
            processing_guarantee=EXACTLY_ONCE,
            metrics_interval_ms="30",
        )
        running = container.run()
        report = await self.metrics(
            lambda each: (
                each.commitCount
                and each.handledCount == 3
                and all(place.lag is not None for task in each.tasks for place in task.partitions)
            )
        )
        self.assertEqual((report.job, report.taskCount, report.failure), ("count-words", 2, ""))
        self.assertEqual(report.memberId, container.memberId)
        self.assertEqual(report.intervalMs, 30)
        self.assertTrue(0 < report.startedAtMs <= report.writtenAtMs)
        self.assertEqual([each.phase for each in report.tasks], ["running"] * 2)
        self.assertEqual(sum(each.handledCount for each in report.tasks), 3)
        places = [place for each in report.tasks for place in each.partitions]
        self.assertEqual(
            [(each.topic, each.partition) for each in places], [("words", 0), ("words", 1)]
        )
        self.assertEqual([each.end for each in places], [each.position for each in places])
        self.assertEqual((sum(each.end or 0 for each in places), places[0].lag), (3, 0))
        stores = [store for each in report.tasks for store in each.stores]
        self.assertEqual([each.name for each in stores], ["word-counts"] * 2)
        self.assertGreater(sum(each.size or 0 for each in stores), 0)
        self.assertEqual([each.toRestore for each in stores], [None, None])
        await container.stop()
        await running

        key, value = (await self.records(METRICS))[-1]
        self.assertEqual((key, value), (report.key, None))
        self.assertTrue(key.startswith("count-words/"))
        [(job, value)] = await self.records(CONFIGS)
        assert value is not None
        config = JobConfig.decode(value)
        self.assertEqual((job, config.job, config.tasks), ("count-words", "count-words", 2))
        self.assertEqual(
            [(each.kind, each.topic) for each in config.topics],
            [("input", "words"), ("changelog", "word-counts")],
        )
        self.assertEqual(config.settings["processing.guarantee"], EXACTLY_ONCE)
        self.assertNotIn(self.broker.bootstrapServers, value.decode())

    @asTest
    async def test_short(self) -> None:
        """A job that ends at once is published, too."""
        await self.createTopic("words", 1)
        await self.make(countWords()).run()
        [(job, _value)] = await self.records(CONFIGS)
        self.assertEqual(job, "count-words")
        *_reports, (_key, last) = await self.records(METRICS)
        self.assertIsNone(last)

    @asTest
    async def test_failed(self) -> None:
        """A container that fails says with what, and quotes no message."""
        await self.createTopic("words", 1)
        container = self.make(countWords(), isUntilEnd=False)
        failing = self.failureOf(container.run(), TaskFailedError)
        await self.metrics()
        await self.publish("words", "a", "bad")
        await failing
        report = await self.metrics(lambda each: each.failure)
        self.assertEqual(report.failure, "TaskFailedError: task count-words-0, words-0, offset 1")
        self.assertEqual(report.handledCount, 1)

    @asTest
    async def test_restore(self) -> None:
        """A store that is being restored says how far it is."""
        await self.createTopic("words", 1)
        await self.publish("words", "a", "b", "c")
        await self.make(countWords()).run()
        worker = HeldWorker()
        worker.isHeld = lambda work: "MemoryEngine.write" in repr(work)
        container = TaskContainer(
            reactor,
            countWords(),
            {
                "bootstrap.servers": self.broker.bootstrapServers,
                "state.dir": self.stateDir,
                "metrics.interval.ms": "30",
            },
            isUntilEnd=True,
            worker=worker,
        )
        running = container.run()
        report = await self.metrics(lambda each: each.tasks and each.tasks[0].stores[0].toRestore)
        [task] = report.tasks
        self.assertEqual((task.phase, task.handledCount), ("starting", 0))
        [store] = task.stores
        self.assertEqual((store.size, store.restored, store.toRestore), (None, 0, 3))
        worker.isHeld = lambda work: False
        await running
        self.assertEqual(container.restoredCount, 3)

    @asTest
    async def test_refused(self) -> None:
        """What cannot be published is logged once, and the container goes on."""
        await self.createTopic("words", 1)
        await self.publish("words", "a")
        with capturedLogs() as events:
            container = self.make(
                countWords(), isUntilEnd=False, metrics_topic="no/topic", metrics_interval_ms="10"
            )
            running = container.run()
            await self.until(lambda: container.handledCount == 1)
            await deferLater(reactor, 0.1)
            await container.stop()
            await running
        lines = [text for each in events if "be published" in (text := formatEvent(each) or "")]
        self.assertEqual(len(lines), 1, told(events))
        self.assertIn("count-words: its configuration and metrics cannot be published", lines[0])
        self.assertEqual(await self.counts(), {"a": 1})
        self.assertEqual(len(await self.records(CONFIGS)), 1)

    @asTest
    async def test_away(self) -> None:
        """While no broker can be reached, reports do not keep a container from its end."""
        await self.createTopic("words", 1)
        container = self.make(countWords(), isUntilEnd=False, metrics_interval_ms="10")
        running = container.run()
        await self.metrics(lambda each: each.tasks)
        await self.broker.stop()
        before = reactor.seconds()
        with capturedLogs() as events:
            await container.stop()
        await running
        self.assertLess(reactor.seconds() - before, 8)
        self.assertIn("cannot be published", told(events))

    @asTest
    async def test_forbidden(self) -> None:
        """Topics that may not be created are asked for again at each interval."""
        await self.createTopic("words", 1)
        name = "TOPIC_AUTHORIZATION_FAILED"
        self.broker.injectError("CreateTopics", name, topic=METRICS, count=2)
        with capturedLogs() as events:
            container = self.make(countWords(), isUntilEnd=False, metrics_interval_ms="10")
            running = container.run()
            await self.metrics()
            await container.stop()
            await running
        self.assertEqual(told(events).count("cannot be published"), 1)
        self.assertIn(name, told(events))

    @asTest
    async def test_none(self) -> None:
        """Without topics nothing is published, or created."""
        await self.createTopic("words", 1)
        await self.make(countWords(), metrics_topic="", config_topic="").run()
        self.assertEqual(await self.topics() & {CONFIGS, METRICS}, set())
        await self.make(countWords(), config_topic="").run()
        self.assertEqual(await self.topics() & {CONFIGS, METRICS}, {METRICS})

    @asTest
    async def test_topics(self) -> None:
        """Topics are created with one partition, compacted; one that is there is not changed."""
        await self.createTopic("words", 1)
        await self.createTopic(CONFIGS, 2)
        await self.make(countWords()).run()
        topics = [ConfigResource(ResourceKind.TOPIC, each) for each in (CONFIGS, METRICS)]
        settings = {"bootstrap.servers": self.broker.bootstrapServers}
        async with AdminClient(reactor, KafkaAdminSettings.fromProperties(settings)) as admin:
            found = checkAll(await admin.describeTopics([CONFIGS, METRICS]))
            configs = checkAll(await admin.describeConfigs(topics, ["cleanup.policy"]))
        self.assertEqual([len(found[each].partitions) for each in (CONFIGS, METRICS)], [2, 1])
        policies = [configs[each]["cleanup.policy"].value for each in topics]
        self.assertEqual(policies, ["delete", "compact,delete"])
        self.assertEqual([each for each, _value in await self.records(CONFIGS)], ["count-words"])
