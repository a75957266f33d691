"""
Tests of jobs and their containers of tasks in the console: a real broker in this process, whose
topics have what containers write.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from pylogbroker.client.kafka.admin.client import AdminClient, NewTopic, checkAll
from pylogbroker.config.kafka.tasksettings import CONFIG_TOPIC, METRICS_TOPIC
from pylogbroker.console import tasks
from pylogbroker.console.cluster import ClusterView
from pylogbroker.console.kafkacluster import KafkaClusterView
from pylogbroker.console.tasks import TaskReports
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.programs.consoletap import Options, makeService
from pylogbroker.tasks.job import Input, Job, Output
from pylogbroker.tasks.reports.containermetrics import (
    ContainerMetrics,
    PartitionMetrics,
    StandbyMetrics,
    StoreMetrics,
    TaskMetrics,
)
from pylogbroker.tasks.reports.jobconfig import configOf
from pylogbroker.testing.localbroker import LocalBroker
from tests.console.asking import get
from tests.tasks.jobs import CountWords

JOB = Job("count", CountWords, inputs=[Input("words")], outputs=[Output("counts")])
TASK = TaskMetrics(
    0, "running", 7, 0, {}, (PartitionMetrics("words", 0, 7, 9, 2),), (StoreMetrics("s", 100),)
)


def metrics(
    container: str, *tasks: TaskMetrics, job: str = "count", **more: Any
) -> ContainerMetrics:
    nowMs = int(time.time() * 1000)
    given = ContainerMetrics(
        job, container, "node", "member", nowMs, nowMs, 10_000, 7, 0, 1, 0, len(tasks), tasks
    )
    return replace(given, **more)


def work(decode: Any) -> Any:
    """At once."""
    done: Deferred[Any] = Deferred()
    done.callback(decode())
    return done


class ReportCase(TestCase):
    """A broker."""

    timeout = 60

    async def start(self, **properties: str) -> None:
        self.broker = LocalBroker(reactor, {"num.partitions": "1", **properties})
        self.addCleanup(self.broker.stop)
        await self.broker.start()
        self.properties = {"bootstrap.servers": self.broker.bootstrapServers}

    async def publish(
        self, topic: str, records: Iterable[tuple[str, bytes | None]], ageMs: int = 0
    ) -> None:
        producer = KafkaProducer(reactor, self.properties)
        timestamp = int(time.time() * 1000) - ageMs
        for key, value in records:
            await producer.send(topic, value, key.encode(), timestamp=timestamp, partition=0)
        await producer.close()

    async def publishMetrics(self, *found: ContainerMetrics, ageMs: int = 0) -> None:
        await self.publish(METRICS_TOPIC, [(each.key, each.encode()) for each in found], ageMs)

    def view(self) -> KafkaClusterView:
        view = KafkaClusterView(reactor, self.properties)
        self.addCleanup(view.close)
        return view


class ReportTests(ReportCase):
    """What is read."""

    async def test_reports(self) -> None:
        """
        Jobs with their containers: the last report of each, its age, and whether the next one is
        overdue. A cluster without the topics has no jobs.
        """
        await self.start()
        view = self.view()
        found = await view.tasks(work)
        self.assertEqual((found["jobs"], found["problems"]), ([], []))
        self.assertEqual((found["isKnown"], found["isComplete"]), (True, True))

        await self.publish(CONFIG_TOPIC, [("count", configOf(JOB, {"words": 1}).encode())])
        await self.publishMetrics(metrics("gone", TASK), metrics("old", TASK), ageMs=31_000)
        await self.publishMetrics(metrics("failed", failure="StorageError"), ageMs=31_000)
        await self.publishMetrics(metrics("new"), metrics("new", TASK), metrics("b", job="other"))
        await self.publish(METRICS_TOPIC, [("count/gone", None)])
        found = await view.tasks(work)
        self.assertEqual(found["problems"], [])
        count, other = found["jobs"]
        self.assertEqual((count["name"], count["config"]["tasks"]), ("count", 1))
        self.assertEqual((other["name"], other["config"]), ("other", None))
        failed, new, old = count["containers"]
        self.assertEqual(
            [(each["container"], each["isOverdue"]) for each in (failed, new, old)],
            [("failed", False), ("new", False), ("old", True)],
        )
        self.assertGreaterEqual(old["ageMs"], 31_000)
        self.assertLess(new["ageMs"], 30_000)
        [task] = new["tasks"]
        self.assertEqual((task["phase"], task["partitions"][0]["lag"]), ("running", 2))

        await self.publish(METRICS_TOPIC, [("count/old", None), ("other/b", None)])
        [count] = (await view.tasks(work))["jobs"]
        self.assertEqual([each["container"] for each in count["containers"]], ["failed", "new"])

    async def test_wrong(self) -> None:
        """What cannot be understood is counted, and the rest is shown."""
        await self.start()
        await self.publish(
            METRICS_TOPIC,
            [
                ("a", b"{"),
                ("b", metrics("new").encode()),
                ("c", b"{"),
                ("c", None),
                ("count/new", metrics("new").encode()),
            ],
        )
        found = await self.view().tasks(work)
        self.assertEqual(
            found["problems"], [f"2 of 3 records of {METRICS_TOPIC} cannot be understood"]
        )
        self.assertEqual([each["name"] for each in found["jobs"]], ["count"])

    async def test_limits(self) -> None:
        """What is kept, read at a time and shown has limits, which the answer names."""
        await self.start()
        for name, value in (("KEPT_COUNT_MAX", 3), ("TASK_COUNT_MAX", 2), ("READ_COUNT_MAX", 1)):
            self.patch(tasks, name, value)
        standbys = (StandbyMetrics(1, True, 0),)
        several = [metrics(name, TASK, standbys=standbys[name > "b" :]) for name in "abcd"]
        await self.publishMetrics(*several)
        reports = TaskReports(reactor, self.view())
        found = await reports.read(work)
        self.assertEqual(
            found["problems"],
            [
                f"{METRICS_TOPIC} has more than is shown: 1 records are left out",
                "2 of 5 tasks and stand-bys are shown",
            ],
        )
        shown = [
            (each["container"], len(each["tasks"]), len(each["standbys"]))
            for each in found["jobs"][0]["containers"]
        ]
        self.assertEqual(shown, [("a", 1, 1), ("b", 0, 0), ("c", 0, 0)])
        self.patch(tasks, "KEPT_SIZE_MAX", 10)
        await self.publishMetrics(metrics("a", TASK))
        found = await reports.read(work)
        shown = [each["container"] for each in found["jobs"][0]["containers"]]
        self.assertEqual(shown, ["b", "c"])

    async def test_parts(self) -> None:
        """A long topic is read over several requests, and anew when it is another of the name."""
        await self.start()
        self.patch(tasks, "READ_SIZE_MAX", 2_000)
        self.patch(tasks, "READ_COUNT_MAX", 2)
        several = [metrics(f"c{number:02}", TASK) for number in range(30)]
        await self.publishMetrics(*several)
        reports = TaskReports(reactor, self.view())
        found, counts = await reports.read(work), []
        while not found["isComplete"]:
            counts.append(sum(len(each["containers"]) for each in found["jobs"]))
            found = await reports.read(work)
        self.assertEqual(len(found["jobs"][0]["containers"]), 30)
        self.assertGreater(len(counts), 1)
        self.assertEqual(counts, sorted(set(counts)))
        async with AdminClient(reactor, self.properties) as admin:
            checkAll(await admin.deleteTopics([METRICS_TOPIC]))
            self.assertEqual((await reports.read(work))["jobs"], [])
            checkAll(await admin.createTopics([NewTopic(METRICS_TOPIC, 1)]))
        await self.publishMetrics(metrics("again"))
        [count] = (await reports.read(work))["jobs"]
        self.assertEqual([each["container"] for each in count["containers"]], ["again"])

    async def test_large(self) -> None:
        """A batch that is larger than a read is not read; the answer says that there is more."""
        await self.start()
        self.patch(tasks, "READ_SIZE_MAX", 100)
        await self.publishMetrics(metrics("a", TASK))
        found = await TaskReports(reactor, self.broker.broker.service).read(work)
        self.assertEqual((found["jobs"], found["isComplete"], found["isKnown"]), ([], False, True))

    async def test_forgotten(self) -> None:
        """What nothing has asked for is read anew."""
        await self.start()
        await self.publishMetrics(metrics("a", TASK))
        clock = Clock()
        clock.advance(1_000_000)
        reports = TaskReports(clock, self.broker.broker.service)
        self.assertEqual(len((await reports.read(work))["jobs"]), 1)
        clock.advance(61)
        self.assertEqual(len((await reports.read(work))["jobs"]), 1)

    async def test_refused(self) -> None:
        """Topics that may not be read are named."""
        await self.start()
        self.broker.injectError(
            "ListOffsets", "TOPIC_AUTHORIZATION_FAILED", topic=METRICS_TOPIC, count=None
        )
        await self.publish(CONFIG_TOPIC, [("count", configOf(JOB, {}).encode())])
        await self.publishMetrics(metrics("a", TASK))
        found = await self.view().tasks(work)
        self.assertEqual((found["isKnown"], found["isComplete"]), (False, False))
        self.assertEqual([each["name"] for each in found["jobs"]], ["count"])
        [problem] = found["problems"]
        self.assertRegex(problem, f"^{METRICS_TOPIC}: .*TOPIC_AUTHORIZATION_FAILED")

    async def test_topics(self) -> None:
        """Containers may publish elsewhere: a broker's page and a stand-alone one are told."""
        topics = ("jobs", "containers")
        await self.start(
            **{
                "http.listener": "0",
                "http.task.config.topic": topics[0],
                "http.task.metrics.topic": topics[1],
            }
        )
        await self.publish(topics[0], [("count", configOf(JOB, {}).encode())])
        await self.publish(topics[1], [("other/b", metrics("b", job="other").encode())])
        await self.publishMetrics(metrics("a", job="elsewhere"))
        console = self.broker.broker.console
        assert console is not None
        options = Options()
        where = ["--config-topic", topics[0], "--metrics-topic", topics[1]]
        options.parseOptions(["--bootstrap-server", self.broker.bootstrapServers, *where])
        alone: Any = makeService(options)
        self.addCleanup(alone._cluster.close)
        for found in (
            (await get(console.port.getHost().port, "/api/tasks")).json(),
            await alone._cluster.tasks(work),
        ):
            self.assertEqual([each["name"] for each in found["jobs"]], ["count", "other"])


class BrokerTests(ReportCase):
    """The page of a broker."""

    async def test_api(self) -> None:
        """A broker's own page has its jobs, also without messages; one of 0.7 alone has none."""
        await self.start(**{"http.listener": "0", "http.messages": "false"})
        await self.publishMetrics(metrics("a", TASK))
        console = self.broker.broker.console
        assert console is not None
        port = console.port.getHost().port
        found = (await get(port, "/api/tasks")).json()
        self.assertEqual([each["name"] for each in found["jobs"]], ["count"])
        self.assertTrue((await get(port, "/api/state")).json()["hasTasks"])
        self.assertIn(b"tasks.js", (await get(port, "/tasks")).body)

        view = ClusterView(reactor, None, lambda: None)
        self.addCleanup(view.close)
        self.assertFalse((await view.state())["hasTasks"])
        found = await view.tasks(work)
        self.assertEqual((found["isKnown"], found["jobs"]), (False, []))
        self.assertIn("Kafka 0.7", found["problems"][0])
