"""
Tests for L{pylogbroker.producer.routing}.
"""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.discovery import StaticDiscovery
from pylogbroker.cluster.partitioner import (
    REMEMBERED_COUNT_MAX,
    REMEMBERED_LENGTH_MAX,
    defaultPartitioner,
)
from pylogbroker.errors import InvalidKeyError, InvalidPartitionError
from pylogbroker.producer.routing import Router, TopicRoute
from pylogbroker.types import BrokerPartition


class Known(StaticDiscovery):
    """Partitions that a test says."""

    isStatic = False

    def __init__(self, *places: tuple[int, int]) -> None:
        super().__init__([])
        self._partitions = [BrokerPartition(*place) for place in places]


class RouterTests(SynchronousTestCase):
    """Where a message goes."""

    places = ((0, 0), (0, 1), (1, 0), (1, 1))

    def router(
        self, partitioner: Any = defaultPartitioner, chance: float = 0.0, *places: tuple[int, int]
    ) -> Router:
        return Router(Known(*(places or self.places)), partitioner, lambda: chance)

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
        """A topic's route remembers where a key goes, but only what would be said again: text, by the default partitioner."""
        for partitioner, isSteady in ((defaultPartitioner, True), (lambda key, count: 1, False)):
            router = self.router(partitioner)
            route = TopicRoute(router.partitions("t"), router)
            for key in ("k", b"k", 7, None, "long" * REMEMBERED_LENGTH_MAX):
                self.assertEqual(route.choose("t", key), router.index("t", key, 4))
            self.assertEqual(route.indexes, {"k": route.choose("t", "k")} if isSteady else {})
        router = self.router(defaultPartitioner, 0.0, (3, 0))
        self.assertEqual(TopicRoute(router.partitions("t"), router).indexes, {None: 0})

    def test_rememberedIsBounded(self) -> None:
        """All routes together remember so many, the latest; a key that comes again counts once."""
        router = self.router()
        routes = [TopicRoute(router.partitions("t"), router) for _topic in range(2)]
        for number in range(REMEMBERED_COUNT_MAX + 10):
            route = routes[number % 2]
            self.assertEqual(route.choose("t", f"{number}"), router.index("t", f"{number}", 4))
        self.assertEqual(sum(len(route.indexes) for route in routes), REMEMBERED_COUNT_MAX)
        self.assertNotIn("8", routes[0].indexes)
        self.assertIn("10", routes[0].indexes)
        for _time in range(REMEMBERED_COUNT_MAX):
            routes[0].choose("t", "10")
        self.assertIn("12", routes[0].indexes)

    def test_unknownTopic(self) -> None:
        """Without partitions the topic has to be looked up."""
        self.assertIs(Router(Known(), defaultPartitioner, lambda: 0.0).choose("t"), None)

    def test_invalidPartition(self) -> None:
        """ProducerTest.testInvalidPartition: a partitioner that gives what is no index, or fails, is an error with the key in it."""
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
        """ProducerTest.testSendSingleMessage: with a list of brokers a key means nothing, and the partition is -1."""
        router = Router(
            StaticDiscovery([(0, "a", 1), (7, "b", 1)]),
            lambda key, count: self.fail("asked"),
            lambda: 0.9,
        )
        self.assertEqual(router.choose("t", "key"), BrokerPartition(7, -1))
