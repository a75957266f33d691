"""
Tests for L{pylogbroker.producer.routing}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.discovery import IDiscovery, StaticDiscovery
from pylogbroker.cluster.partitioner import (
    REMEMBERED_COUNT_MAX,
    REMEMBERED_LENGTH_MAX,
    defaultPartitioner,
)
from pylogbroker.errors import (
    InvalidKeyError,
    InvalidPartitionError,
    NoBrokersError,
)
from pylogbroker.producer.producer import ProducerData
from pylogbroker.producer.routing import TopicRoute, TopicRouter
from pylogbroker.types import BrokerPartition
from tests.producer.producercase import ClusterCase


class Known(StaticDiscovery):
    """Partitions that a test says."""

    isStatic = False

    def __init__(self, *places: tuple[int, int]) -> None:
        super().__init__([])
        self._partitions = [BrokerPartition(*place) for place in places]


def routerOf(discovery: IDiscovery, partitioner: Any, random: Callable[[], float]) -> TopicRouter:
    """A router whose discovery has started."""
    router = TopicRouter(Deferred, partitioner, random)
    router.use(discovery)
    return router


class RouterTests(SynchronousTestCase):
    """Where a message goes."""

    places = ((0, 0), (0, 1), (1, 0), (1, 1))

    def router(
        self, partitioner: Any = defaultPartitioner, chance: float = 0.0, *places: tuple[int, int]
    ) -> TopicRouter:
        return routerOf(Known(*(places or self.places)), partitioner, lambda: chance)

    def route(self, router: TopicRouter, topic: str = "t") -> TopicRoute:
        route = router.route(topic)
        assert route is not None
        return route

    def test_key(self) -> None:
        """The same key goes to the same place, by 0.7's hash: hash("test-key") is -1147945308."""
        self.assertEqual(
            self.router().choose("t", "test-key"), BrokerPartition(*self.places[1147945308 % 4])
        )

    def test_chance(self) -> None:
        """Without a key chance decides, over all."""
        self.assertEqual(
            [self.router(chance=chance).choose("t") for chance in (0, 0.3, 0.5, 0.999)],
            [BrokerPartition(*place) for place in self.places],
        )

    def test_avoid(self) -> None:
        """A broker can be avoided, if there is another and no key says otherwise."""
        self.assertEqual(self.router().choose("t", None, 0), (1, 0))
        self.assertEqual(self.router(defaultPartitioner, 0.0, (0, 0)).choose("t", None, 0), (0, 0))
        self.assertEqual(self.router(lambda key, count: 0).choose("t", "k", 0), (0, 0))

    def test_remembered(self) -> None:
        """
        A topic's route remembers where a key goes, but only what would be said again: text, by the
        default partitioner.
        """
        for partitioner, isSteady in ((defaultPartitioner, True), (lambda key, count: 1, False)):
            router = self.router(partitioner)
            route = self.route(router)
            for key in ("k", b"k", 7, None, "long" * REMEMBERED_LENGTH_MAX):
                self.assertEqual(router.indexOn(route, "t", key), router.index("t", key, 4))
            self.assertEqual(
                route.indexes, {"k": router.indexOn(route, "t", "k")} if isSteady else {}
            )
        router = self.router(defaultPartitioner, 0.0, (3, 0))
        self.assertEqual(router.indexOn(self.route(router), "t", None), 0)

    def test_rememberedIsBounded(self) -> None:
        """All routes together remember the latest keys; a key that comes again counts once."""
        router = self.router()
        routes = [self.route(router, topic) for topic in ("t", "u")]
        for number in range(REMEMBERED_COUNT_MAX + 10):
            route = routes[number % 2]
            self.assertEqual(
                router.indexOn(route, "t", f"{number}"), router.index("t", f"{number}", 4)
            )
        self.assertEqual(sum(len(route.indexes) for route in routes), REMEMBERED_COUNT_MAX)
        self.assertNotIn("8", routes[0].indexes)
        self.assertIn("10", routes[0].indexes)
        for _time in range(REMEMBERED_COUNT_MAX):
            router.indexOn(routes[0], "t", "10")
        self.assertIn("12", routes[0].indexes)

    def test_unknownTopic(self) -> None:
        """Without partitions the topic has to be looked up."""
        router = routerOf(Known(), defaultPartitioner, lambda: 0.0)
        self.assertIs(router.choose("t"), None)
        self.assertIs(router.route("t"), None)

    def test_version(self) -> None:
        """A route is good for one version of the discovery; then there is another one."""
        known = Known((0, 0))
        router = routerOf(known, defaultPartitioner, lambda: 0.0)
        route = self.route(router)
        self.assertIs(self.route(router), route)
        known._partitions, known.version = [BrokerPartition(1, 0), BrokerPartition(1, 1)], 1
        self.assertEqual((self.route(router).count, self.route(router).version), (2, 1))
        self.assertIs(router.routes["t"], self.route(router))

    def test_invalidPartition(self) -> None:
        """
        ProducerTest.testInvalidPartition: a partitioner that gives what is no index, or fails, is
        an error with the key in it.
        """
        for result in (-1, 4, None, 1.5):
            error = self.assertRaises(
                InvalidPartitionError,
                self.router(lambda key, count, result=result: result).choose,
                "t",
                "some-key",
            )
            self.assertIn("some-key", str(error))
        self.assertIn(
            "ZeroDivisionError",
            str(
                self.assertRaises(
                    InvalidPartitionError, self.router(lambda key, count: 1 // 0).choose, "t", "k"
                )
            ),
        )
        self.assertRaises(InvalidKeyError, self.router().choose, "t", 1.5)

    def test_static(self) -> None:
        """
        ProducerTest.testSendSingleMessage: with a list of brokers a key means nothing, and the
        partition is -1.
        """
        router = routerOf(
            StaticDiscovery([(0, "a", 1), (7, "b", 1)]),
            lambda key, count: self.fail("asked"),
            lambda: 0.9,
        )
        self.assertEqual(router.choose("t", "key"), BrokerPartition(7, -1))


class LookUpTests(ClusterCase):
    """Where messages go, and who waits to know."""

    def test_newTopic(self) -> None:
        """
        ProducerTest.testZKSendToNewTopic: partition 0 of all brokers first; once one has
        registered, its partitions come to them: 4 mod 5 is broker 1.
        """
        self.register(0, "a:1")
        self.register(1, "b:1")
        producer = self.clustered(partitioner=lambda key, count: len(key) % count)
        self.done(producer.send("new", b"1", "test"))
        self.assertEqual(self.a.log, [("new", 0, b"1")])
        self.topic("new", 0, 4)
        self.done(producer.send("new", b"2", "test"))
        self.assertEqual(self.b.log, [("new", 0, b"2")])
        self.close(producer)

    def test_noBrokers(self) -> None:
        """
        ProducerMethodsTest: without partitions the error is NoBrokersForPartition, whose text has
        the key in it.
        """
        for mode in ("sync", "async"):
            producer = self.clustered({"producer.type": mode, "zk.read.num.retries": 1})
            sending = producer.send("t", b"x", "the-key")
            self.cluster.pass_(1)
            self.assertIn("the-key", str(self.failureResultOf(sending, NoBrokersError).value))
            closing = producer.close()
            self.settle()
            self.successResultOf(closing)

    def test_invalidPartition(self) -> None:
        """
        ProducerTest.testInvalidPartition: a partitioner that returns -1 is an error, in both modes.
        """
        self.register(0, "a:1")
        self.topic("t", 0, 1)
        for mode in ("sync", "async"):
            producer = self.clustered({"producer.type": mode}, partitioner=lambda key, count: -1)
            sendings = [producer.send("t", b"x", "k")]
            self.done(producer.send("t", b"first")) if mode == "sync" else self.settle()
            sendings += [producer.send("t", b"x", "k"), producer.send("t", [b"x"], "k")]
            self.settle()
            for sending in sendings:
                self.failureResultOf(sending, InvalidPartitionError)
            self.close(producer)

    def test_asyncKeys(self) -> None:
        """
        Messages go to the partitions of their keys, in order, also those that were sent before
        anything was known.
        """
        self.register(0, "a:1")
        self.topic("t", 0, 5)
        producer = self.clustered({"producer.type": "async", "batch.size": 3})
        sendings = [producer.send("t", b"%d" % index, "test-key") for index in range(6)]
        self.settle()
        sendings += [producer.send("t", b"%d" % index, "test-key") for index in range(6, 9)]
        self.settle()
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(self.a.log, [("t", 3, b"%d" % index) for index in range(9)])
        self.close(producer)

    def test_allBrokersVanish(self) -> None:
        """When the last broker vanishes, what waited for it fails, with the topic's name."""
        self.register(0, "a:1")
        producer = self.clustered({"producer.type": "async", "zk.read.num.retries": 0})
        sendings = [producer.send("t", b"1"), producer.send("t", b"2", "key")]
        self.settle()
        self.unregister(0)
        for sending in sendings:
            self.assertIn("topic t", str(self.failureResultOf(sending, NoBrokersError).value))
        self.close(producer)

    def test_foreignDiscovery(self) -> None:
        """A discovery of one's own may fail in its own way, or name brokers that are not there."""

        class Strange(StaticDiscovery):
            isStatic = False
            places: list[BrokerPartition] = []

            def partitions(self, name: str) -> list[BrokerPartition]:
                return self.places

            def lookUp(self, name: str) -> Any:
                if name == "broken":
                    raise ZeroDivisionError
                return super().lookUp(name)

        strange = Strange([])
        for mode in ("sync", "async"):
            strange.places = []
            producer = self.clustered({"producer.type": mode}, discovery=strange)
            for topic in ("broken", "t"):
                sending = producer.send(topic, b"x")
                self.settle()
                self.failureResultOf(sending, NoBrokersError)
            strange.places = [BrokerPartition(5, 0)]
            sending = producer.send("t", b"x")
            self.settle()
            self.failureResultOf(sending, NoBrokersError)
            self.close(producer)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)

    def test_unknownTopicInOrder(self) -> None:
        """
        Calls that wait for a topic to be looked up keep the order of each key, also when a later
        one has fewer messages.
        """
        self.register(0, "a:1")
        producer = self.clustered()
        calls = [
            [ProducerData("t", [b"1"], "k"), ProducerData("t", [b"2"], "l")],
            [ProducerData("t", [b"3"], "l")],
        ]
        sendings = [producer.sendMany(call) for call in calls]
        self.settle()
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(self.a.payloads(), [b"1", b"2", b"3"])
        self.close(producer)

    def test_closedBeforeLookedUp(self) -> None:
        """
        Messages that were sent and closed upon before anything was known go in batches all the
        same.
        """
        self.register(0, "a:1")
        producer = self.clustered({"producer.type": "async", "batch.size": 10})
        sendings = [producer.send("t", b"%d" % index) for index in range(25)]
        closing = producer.close()
        self.settle()
        self.successResultOf(closing)
        for sending in sendings:
            self.successResultOf(sending)
        self.assertEqual(
            (self.a.payloads(), producer.counters.batchCount),
            ([b"%d" % index for index in range(25)], 3),
        )
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_failingDiscovery(self) -> None:
        """
        A discovery of the application's own that fails when it is asked costs the message that it
        was asked for, and no other.
        """

        class Failing(StaticDiscovery):
            isFailing = False

            def partitions(self, name: str) -> list[BrokerPartition]:
                if self.isFailing:
                    raise ZeroDivisionError(name)
                return super().partitions(name)

        discovery = Failing([(0, "a", 1)])
        producer = self.producer({"batch.size": 2}, discovery=discovery)
        first = producer.send("t", b"1")
        discovery.isFailing = True
        self.failureResultOf(producer.send("u", b"x"), ZeroDivisionError)
        self.failureResultOf(producer.send("u", [b"x", b"y"]), ZeroDivisionError)
        synchronous = self.producer({"producer.type": "sync"}, discovery=discovery)
        both = synchronous.sendMany([ProducerData("t", [b"x"]), ProducerData("u", [b"y"])])
        self.settle()
        self.failureResultOf(both, ZeroDivisionError)
        discovery.isFailing = False
        self.done(synchronous.send("t", b"0"))
        self.a.log.clear()
        second = producer.send("t", b"2")
        self.settle()
        for sending in (first, second):
            self.successResultOf(sending)
        self.assertEqual(self.a.payloads(), [b"1", b"2"])
        self.settle()
        self.made = synchronous
        self.close(producer)
        self.done(synchronous.close())
