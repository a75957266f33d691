"""Tests of L{pylogbroker.tasks.topics}."""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.routing import checkAll
from pylogbroker.client.kafka.admin.topics import ConfigResource, ResourceKind
from pylogbroker.config.kafka.clientsettings import KafkaAdminSettings
from pylogbroker.errors import ConfigurationError
from pylogbroker.tasks.api import StreamTask
from pylogbroker.tasks.job import Input, Job, Repartition
from pylogbroker.tasks.topics import repartitionCounts
from tests.tasks.jobs import splitAndCount
from tests.tasks.test_container import ContainerCase

BY_WORD = "split-and-count-by-word-repartition"


def makeJob(*copartitions: list[str], repartitions: str = "") -> Job:
    """A job C{j} that reads C{a}, C{b} and C{c}, and has a repartition of each letter."""
    return Job(
        "j",
        StreamTask,
        [Input("a"), Input("b"), Input("c")],
        repartitions=[Repartition(name) for name in repartitions],
        copartitions=copartitions,
    )


class RepartitionCountTests(SynchronousTestCase):
    """How many partitions repartition topics get, and which inputs are refused."""

    def counts(self, job: Job, **counts: int) -> list[int]:
        """Of C{job}'s repartition topics, in order."""
        found = repartitionCounts(job, counts)
        self.assertEqual(list(found), [job.repartitionTopicOf(each) for each in job.repartitions])
        return list(found.values())

    def test_alone(self) -> None:
        """A repartition that meets no input has a partition for each task."""
        self.assertEqual(self.counts(makeJob(repartitions="xy"), a=2, b=5, c=3), [5, 5])
        job = makeJob(["x", "y"], repartitions="xy")
        self.assertEqual(self.counts(job, a=2, b=5, c=3), [5, 5])

    def test_met(self) -> None:
        """One that meets an input has as many as it, also by way of another group."""
        job = makeJob(["x", "y"], ["c", "z"], ["y", "a"], repartitions="xyzw")
        self.assertEqual(self.counts(job, a=2, b=5, c=3), [2, 2, 3, 5])

    def test_refused(self) -> None:
        """Inputs that meet and have not equally many are named, with their counts."""
        for job in (makeJob(["a", "b"]), makeJob(["a", "x"], ["x", "b"], repartitions="x")):
            with self.assertRaises(ConfigurationError) as caught:
                repartitionCounts(job, {"a": 1, "b": 3, "c": 1})
            self.assertEqual(
                str(caught.exception),
                "job j: a has 1 partition, b has 3 partitions: they must have equally many, since"
                " messages of one key meet in one task",
            )
        self.assertEqual(self.counts(makeJob(["a", "b"]), a=3, b=3, c=1), [])


class TopicTests(ContainerCase):
    """What a container does with the topics of its job."""

    async def _admin(self, work: Any) -> Any:
        settings = {"bootstrap.servers": self.broker.bootstrapServers}
        async with AdminClient(reactor, KafkaAdminSettings.fromProperties(settings)) as admin:
            return checkAll(await work(admin))

    def test_created(self) -> Deferred[None]:
        """
        A repartition topic is created as one that deletes nothing by its age, and keeps the time of
        messages.
        """
        return Deferred.fromCoroutine(self._create())

    async def _create(self) -> None:
        await self.createTopic("lines", 3)
        await self.make(splitAndCount()).run()
        found = await self._admin(lambda admin: admin.describeTopics([BY_WORD]))
        self.assertEqual(len(found[BY_WORD].partitions), 3)
        topic = ConfigResource(ResourceKind.TOPIC, BY_WORD)
        (settings,) = (await self._admin(lambda admin: admin.describeConfigs([topic]))).values()
        self.assertEqual(
            [
                settings[key].value
                for key in ("cleanup.policy", "retention.ms", "message.timestamp.type")
            ],
            ["delete", "-1", "CreateTime"],
        )

    def test_refused(self) -> Deferred[None]:
        """A repartition topic that is there and cannot be used is refused, with the reason."""
        return Deferred.fromCoroutine(self._refuse())

    async def _refuse(self) -> None:
        await self.createTopic("lines", 3)
        await self.createTopic(BY_WORD, 2)
        failure = await self.failureOf(self.make(splitAndCount()).run(), ConfigurationError)
        self.assertIn(
            f"repartition topic {BY_WORD} has 2 partitions, and the inputs have 3", str(failure)
        )
        other = splitAndCount().renamed("other")
        topic = other.repartitionTopicOf(other.repartitions[0])
        await self.createTopic(topic, 3, cleanup_policy="compact")
        failure = await self.failureOf(self.make(other).run(), ConfigurationError)
        self.assertIn(f"repartition topic {topic} has cleanup.policy=compact", str(failure))

    def test_copartitions(self) -> Deferred[None]:
        """Inputs that must have equally many partitions and have not are refused at the start."""
        return Deferred.fromCoroutine(self._refuseCopartitions())

    async def _refuseCopartitions(self) -> None:
        await self.createTopic("lines", 3)
        await self.createTopic("words", 2)
        inputs = [Input("lines"), Input("words")]
        job = splitAndCount(inputs=inputs, copartitions=[["lines", "words", "by-word"]])
        failure = await self.failureOf(self.make(job).run(), ConfigurationError)
        self.assertIn("lines has 3 partitions, words has 2 partitions: they must", str(failure))
