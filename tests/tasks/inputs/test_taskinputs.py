"""
Tests of L{pylogbroker.tasks.inputs.taskinputs} and L{pylogbroker.tasks.inputs.purger}, in
containers on a real broker in the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.routing import checkAll
from pylogbroker.client.kafka.admin.topics import EARLIEST, LATEST
from pylogbroker.config.kafka.clientsettings import KafkaAdminSettings
from pylogbroker.config.kafka.tasksettings import AT_LEAST_ONCE, EXACTLY_ONCE
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.tasks.api import StreamTask
from pylogbroker.tasks.job import MEMORY, Input, Job, Repartition, Store
from pylogbroker.tasks.serdes import INTEGER, STRING
from pylogbroker.types import TopicPartition
from tests.tasks.jobs import publish, splitAndCount
from tests.tasks.test_container import ContainerCase

TASKS = 2
COUNT = 400
"""Messages of a partition."""

IDLE_SECONDS = 0.3

Got = tuple[str, int, int]
"""A topic, a partition, and an offset."""


class InputCase(ContainerCase):
    """
    Containers of a job that notes what it gets.

    @ivar got: by task.
    """

    def setUp(self) -> Deferred[None]:  # type: ignore[override]
        self.got: dict[int, list[Got]] = {}
        return super().setUp()

    def job(self, *inputs: Input, **changes: Any) -> Job:
        """A job that reads these."""
        case = self

        class Noting(StreamTask):
            """Notes what it gets, and keeps the last message of each key."""

            def init(self, config: Any, context: Any) -> None:
                """Begin."""
                self.got = case.got.setdefault(context.partition, [])
                self.store = context.getStore("last")

            def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
                """Note."""
                self.got.append((envelope.topic, envelope.partition, envelope.offset))
                self.store.put(envelope.topic, envelope.offset)

        store = Store("last", STRING, INTEGER, engine=MEMORY)
        return Job("noting", Noting, inputs, stores=[store], **changes)

    async def send(self, topic: str, partition: int, timestamps: Iterable[int]) -> None:
        """Messages with these timestamps."""
        producer = KafkaProducer(reactor, {"bootstrap.servers": self.broker.bootstrapServers})
        try:
            for timestamp in timestamps:
                await producer.whenReady()
                producer.sendNoWait(topic, b"m", b"k", (), timestamp, partition)
            await producer.flush()
        finally:
            await producer.close()

    async def sendAll(self, topic: str, partition: int, count: int, timestamp: int = 1) -> None:
        """Messages of one time."""
        await self.send(topic, partition, [timestamp] * count)


class RankTests(SynchronousTestCase):
    """The order at equal timestamps."""

    def test_ranks(self) -> None:
        """Bootstrapped inputs, the others in the order of the job, repartitions."""
        inputs = [
            Input("b"),
            Input("t", isBootstrap=True),
            Input("a"),
            Input("s", isBootstrap=True, isBroadcast=True),
        ]
        ranks = Job("j", StreamTask, inputs, repartitions=[Repartition("r")]).ranks
        self.assertEqual(
            sorted(ranks, key=ranks.__getitem__), ["t", "s", "b", "a", "j-r-repartition"]
        )


class MergeTests(InputCase):
    """Several inputs, as they were written before the container came."""

    def test_merged(self) -> Deferred[None]:
        """
        A task that catches up gets its inputs by their timestamps, and at equal ones in the order
        of the job; with queues of few messages or bytes, and although one input ends long before
        the others.
        """
        return Deferred.fromCoroutine(self._merge())

    async def _merge(self) -> None:
        random = Random(5)
        topics = ("clicks", "views", "users")
        expected: dict[int, list[Got]] = {}
        for topic in topics:
            await self.createTopic(topic, TASKS)
        for task in range(TASKS):
            timed: list[tuple[int, int, Got]] = []
            for rank, topic in enumerate(topics):
                now, times = 0, []
                for offset in range(COUNT // 10 if topic == "users" else COUNT):
                    now += random.choice((0, 0, 1, 2))
                    times.append(now)
                    timed.append((now, rank, (topic, task, offset)))
                await self.send(topic, task, times)
            expected[task] = [got for _now, _rank, got in sorted(timed)]
        for name, limit in (
            ("counted", {"buffered_records_per_partition": "5"}),
            ("measured", {"input_buffer_max_bytes": "1000"}),
        ):
            settings: dict[str, Any] = {"max_poll_records": "7", **limit}
            self.got.clear()
            container = self.make(self.job(*map(Input, topics)).renamed(name), **settings)
            await container.run()
            self.assertEqual(self.got, expected)
            self.assertEqual(container.handledCount, sum(map(len, expected.values())))

    def test_tableFirst(self) -> Deferred[None]:
        """
        What is bootstrapped comes whole, whatever its timestamps, and before the first message of
        another input; behind a restart it goes on from its position.
        """
        return Deferred.fromCoroutine(self._bootstrap())

    async def _bootstrap(self) -> None:
        await self.createTopic("clicks", 1)
        await self.createTopic("users", 1)
        await self.sendAll("clicks", 0, COUNT, 1)
        await self.sendAll("users", 0, COUNT, 9)
        inputs = [Input("clicks"), Input("users", isBootstrap=True)]
        job = self.job(*inputs)
        for guarantee in (AT_LEAST_ONCE, EXACTLY_ONCE):
            job = job.renamed(f"job-{guarantee}")
            await self.make(job, processing_guarantee=guarantee).run()
            users, clicks = (
                [(topic, 0, offset) for offset in range(COUNT)] for topic in ("users", "clicks")
            )
            self.assertEqual(self.got.pop(0), users + clicks)
        await self.sendAll("users", 0, 1)
        await self.make(job, processing_guarantee=EXACTLY_ONCE).run()
        self.assertEqual(self.got[0], [("users", 0, COUNT)])

    def test_tableGrows(self) -> Deferred[None]:
        """A table that gets more while a task starts does not keep it from its end."""
        return Deferred.fromCoroutine(self._grow())

    async def _grow(self) -> None:
        await self.createTopic("clicks", 1)
        await self.createTopic("users", 1)
        await self.sendAll("clicks", 0, COUNT, 1)
        await self.sendAll("users", 0, COUNT, 9)
        job = self.job(Input("clicks"), Input("users", isBootstrap=True))
        await self.make(job).run()
        self.got.clear()
        await self.sendAll("clicks", 0, COUNT, 1)
        container = self.make(job)
        ask = container._bootstrapEnds

        async def askLater(places: Any) -> Any:
            await self.sendAll("users", 0, 1)
            return await ask(places)

        container._bootstrapEnds = askLater  # type: ignore[method-assign]
        await container.run()
        clicks = [offset for topic, _task, offset in self.got[0] if topic == "clicks"]
        self.assertEqual(clicks, list(range(COUNT, 2 * COUNT)))

    def test_idle(self) -> Deferred[None]:
        """With C{max.task.idle.ms} an input at its end is waited for; to the end, it is not."""
        return Deferred.fromCoroutine(self._idle())

    async def _idle(self) -> None:
        for topic in ("clicks", "views"):
            await self.createTopic(topic, 1)
        await self.sendAll("clicks", 0, 1)
        job = self.job(Input("clicks"), Input("views"))
        patient: dict[str, Any] = {"max_task_idle_ms": "3600000"}
        await self.make(job, **patient).run()
        self.assertEqual(self.got.pop(0), [("clicks", 0, 0)])
        container = self.make(job, isUntilEnd=False, **patient)
        ended = container.run()
        await self.sendAll("clicks", 0, 1, 5)
        await self.until(lambda: 0 in self.got)
        await deferLater(reactor, IDLE_SECONDS)
        self.assertEqual(self.got[0], [])
        await self.sendAll("views", 0, 1, 4)
        await self.until(lambda: self.got[0])
        self.assertEqual(self.got[0], [("views", 0, 0)])
        await container.stop()
        await ended
        ms = str(int(IDLE_SECONDS * 1_000))
        container = self.make(job, isUntilEnd=False, max_task_idle_ms=ms)
        ended = container.run()
        await self.until(lambda: len(self.got[0]) == 2)
        self.assertEqual(self.got[0][1], ("clicks", 0, 1))
        await container.stop()
        await ended


class BroadcastTests(InputCase):
    """Inputs that each task gets whole."""

    def test_all(self) -> Deferred[None]:
        """
        Each task gets all partitions, from the beginning at each start, before the other inputs if
        they are bootstrapped; they have no positions.
        """
        return Deferred.fromCoroutine(self._broadcast())

    async def _broadcast(self) -> None:
        await self.createTopic("clicks", TASKS)
        await self.createTopic("rates", 3)
        for partition in range(3):
            await self.sendAll("rates", partition, COUNT, 7)
        for task in range(TASKS):
            await self.sendAll("clicks", task, 1)
        rates = [("rates", partition, offset) for partition in range(3) for offset in range(COUNT)]
        job = self.job(Input("clicks"), Input("rates", isBootstrap=True, isBroadcast=True))
        settings: dict[str, Any] = {
            "max_poll_records": "50",
            "buffered_records_per_partition": "20",
        }
        for start, guarantee in enumerate((AT_LEAST_ONCE, EXACTLY_ONCE)):
            await self.make(job, processing_guarantee=guarantee, **settings).run()
            clicks = [[("clicks", task, 0)] if not start else [] for task in range(TASKS)]
            self.assertEqual(self.got, {task: rates + clicks[task] for task in range(TASKS)})
            self.got.clear()
        self.assertEqual(await self.positions("noting", "rates"), dict.fromkeys(range(4), 0))

    def test_later(self) -> Deferred[None]:
        """What comes later is given to each task, too, and what is not bootstrapped is merged."""
        return Deferred.fromCoroutine(self._goOn())

    async def _goOn(self) -> None:
        await self.createTopic("clicks", TASKS)
        await self.createTopic("rates", 1)
        await self.send("rates", 0, [3, 6])
        for task in range(TASKS):
            await self.send("clicks", task, [1, 4, 9])
        job = self.job(Input("clicks"), Input("rates", isBroadcast=True))
        container = self.make(job, isUntilEnd=False)
        ended = container.run()

        def merged(task: int) -> list[Got]:
            order = [("clicks", 0), ("rates", 0), ("clicks", 1), ("rates", 1), ("clicks", 2)]
            return [(topic, task if topic == "clicks" else 0, offset) for topic, offset in order]

        await self.until(lambda: sum(map(len, self.got.values())) == 5 * TASKS)
        self.assertEqual(self.got, {task: merged(task) for task in range(TASKS)})
        await self.send("rates", 0, [20])
        await self.until(lambda: all(each[-1] == ("rates", 0, 2) for each in self.got.values()))
        for each in container.status():
            wanted = {TopicPartition("clicks", each.partition): 3, TopicPartition("rates", 0): 3}
            self.assertEqual(each.positions, wanted)
        await container.stop()
        await ended


class PurgeTests(InputCase):
    """Repartition topics do not grow for ever."""

    def test_purged(self) -> Deferred[None]:
        """What was handled and committed is deleted."""
        return Deferred.fromCoroutine(self._purge())

    async def _purge(self) -> None:
        await self.createTopic("lines", 1)
        await publish(reactor, self.broker.bootstrapServers, "lines", [(None, b"a b c")])
        settings: dict[str, Any] = {
            "commit_interval_ms": "50",
            "repartition_purge_interval_ms": "50",
        }
        container = self.make(splitAndCount(), isUntilEnd=False, **settings)
        ended = container.run()
        place = TopicPartition("split-and-count-by-word-repartition", 0)
        given = {"bootstrap.servers": self.broker.bootstrapServers}
        async with AdminClient(reactor, KafkaAdminSettings.fromProperties(given)) as admin:
            bounds: list[int] = []
            while bounds != [3, 3]:
                await deferLater(reactor, 0.05)
                bounds = []
                for time in (EARLIEST, LATEST):
                    try:
                        found = checkAll(await admin.listOffsets({place: time}))
                    except Exception:
                        break  # the container has not made it yet
                    bounds.append(found[place].offset)
        await container.stop()
        await ended
        await publish(reactor, self.broker.bootstrapServers, "lines", [(None, b"a")])
        await self.make(splitAndCount()).run()
        self.assertEqual(await self.counts(), {"a": 2, "b": 1, "c": 1})
