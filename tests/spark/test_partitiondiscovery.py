"""Tests for the discovery of partitions in L{pylogbroker.spark.brokerclients}."""

from __future__ import annotations

from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import BrokerConnectionError, NoBrokersError, ZookeeperTimeoutException
from pylogbroker.spark.brokerclients import PartitionDiscovery, findPartitions, isSelected
from pylogbroker.spark.options import Selection
from pylogbroker.syncclient.clustermetadata import IClusterMetadata
from pylogbroker.types import BrokerPartition, PartitionId
from tests.spark.sourcecase import HERE, SourceCase

AWAY = BrokerPartition(1, 0)


def at(*brokers: int) -> list[PartitionId]:
    """A partition on each of these brokers."""
    return [PartitionId("t", BrokerPartition(number, 0)) for number in brokers]


class Registry:
    """
    What a ZooKeeper says, which a test changes between two questions.

    @ivar states: of C{held}, one for each question about a topic; the last one stays.
    """

    def __init__(self, *states: dict[str, list[BrokerPartition]] | Exception) -> None:
        self.states = list(states)
        self.isClosed = False

    def _state(self) -> dict[str, list[BrokerPartition]]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, Exception):
            raise state
        return state

    def brokers(self) -> dict[int, BrokerAddress]:
        """All that have a partition."""
        return {
            place.broker: BrokerAddress(place.broker, "h", 1)
            for partitions in self._state().values()
            for place in partitions
        }

    def topics(self) -> list[str]:
        """All."""
        return sorted(self.states[0]) if isinstance(self.states[0], dict) else []

    def partitions(self, name: str) -> list[BrokerPartition]:
        """As it is now."""
        return self._state().get(name, [])

    def close(self) -> None:
        """It was closed."""
        self.isClosed = True

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class FindPlacesTests(SourceCase):
    """Which partitions are to be read."""

    def test_isSelected(self) -> None:
        """
        A partition is selected by its topic's name, by a pattern for the whole of it, or by itself.
        """
        for selection, expected in (
            (Selection(topics=("ab",)), [True, True, False]),
            (Selection(pattern="a."), [True, True, False]),
            (Selection(assigned=(PartitionId("ab", HERE),)), [True, False, False]),
        ):
            self.assertEqual(
                [
                    isSelected(selection, place)
                    for place in (
                        PartitionId("ab", HERE),
                        PartitionId("ab", AWAY),
                        PartitionId("abc", HERE),
                    )
                ],
                expected,
            )

    def test_selections(self) -> None:
        """
        Named topics, topics that match as a whole, or assigned partitions, whether or not a broker
        has them.
        """
        view: IClusterMetadata = Registry({"a": [HERE], "ab": [HERE, AWAY], "b": [AWAY]})
        self.assertEqual(
            findPartitions(view, Selection(topics=("b", "a"))), [("a", HERE), ("b", AWAY)]
        )
        self.assertEqual(
            findPartitions(view, Selection(pattern="a.*")),
            [("a", HERE), ("ab", HERE), ("ab", AWAY)],
        )
        self.assertEqual(findPartitions(view, Selection(pattern="x")), [])
        self.assertEqual(
            findPartitions(view, Selection(assigned=(PartitionId("x", AWAY),))), [("x", AWAY)]
        )

    def test_noSuchTopic(self) -> None:
        """A named topic that no broker has is an error."""
        self.assertIn(
            "topic x",
            str(
                self.assertRaises(
                    NoBrokersError, findPartitions, Registry({}), Selection(topics=("x",))
                )
            ),
        )


class ClusterTests(SourceCase):
    """Patience."""

    def cluster(self, *states: dict[str, list[BrokerPartition]] | Exception) -> PartitionDiscovery:
        """With a registry."""
        self.registry = Registry(*states)
        return PartitionDiscovery(self.options(), self.policy(), self.registry)

    def test_expected(self) -> None:
        """Partitions that should be there are looked for several times."""
        cluster = self.cluster({"t": [HERE]}, {"t": [HERE]}, {"t": [HERE, AWAY]})
        self.assertEqual(
            cluster.partitions(Selection(topics=("t",)), [PartitionId("t", AWAY)]),
            [("t", HERE), ("t", AWAY)],
        )
        self.assertEqual(self.pauses, [0.1, 0.2])

    def test_expectedInVain(self) -> None:
        """What is there in the end is the answer, and the caller sees what is missing."""
        self.assertEqual(
            self.cluster({"t": [HERE]}).partitions(
                Selection(topics=("t",)), [PartitionId("t", AWAY)]
            ),
            [("t", HERE)],
        )
        self.assertEqual(len(self.pauses), 2)

    def test_noBrokerForAMoment(self) -> None:
        """
        A topic that no broker has for a moment is found; one that stays away is an error that gives
        the number of attempts.
        """
        self.assertEqual(
            self.cluster({}, {"t": [HERE]}).partitions(Selection(topics=("t",))), [("t", HERE)]
        )
        error = self.assertRaises(
            NoBrokersError, self.cluster({}).partitions, Selection(topics=("t",))
        )
        self.assertIn("topic t (3 attempts in the brokers 127.0.0.1:", str(error))

    def test_zookeeperAway(self) -> None:
        """
        A ZooKeeper that cannot be asked leaves what is known; when nothing is known it is an error.
        """
        cluster = self.cluster({"t": [HERE]}, ZookeeperTimeoutException("late"))
        self.assertEqual(
            [cluster.partitions(Selection(topics=("t",))) for _time in range(2)],
            [[("t", HERE)]] * 2,
        )
        self.assertRaises(
            ZookeeperTimeoutException,
            self.cluster(ZookeeperTimeoutException("late")).partitions,
            Selection(topics=("t",)),
        )

    def test_brokers(self) -> None:
        """
        Brokers that should be there are looked for, and one that stays away is an error that says
        which there are.
        """
        with self.cluster({"t": []}, {"t": [HERE, AWAY]}).brokers(at(1)) as brokers:
            self.assertEqual(brokers.address(1).port, 1)
        error = self.assertRaises(NoBrokersError, self.cluster({"t": [HERE]}).brokers, at(0, 7, 8))
        self.assertEqual(str(error), "there is no broker 7 after 3 attempts; the brokers are 0")

    def test_addressesWithoutZookeeper(self) -> None:
        """
        Without ZooKeeper brokers are where they were; one that was not there is no guess, but an
        error that says that ZooKeeper is away.
        """
        cluster = self.cluster({"t": [HERE]}, ZookeeperTimeoutException("late"))
        for _time in range(2):
            with cluster.brokers(at(0)) as brokers:
                self.assertEqual(brokers.address(0).port, 1)
        self.assertRaises(ZookeeperTimeoutException, cluster.brokers, at(0, 1))
        self.assertRaises(
            ZookeeperTimeoutException,
            self.cluster(ZookeeperTimeoutException("late")).brokers,
            at(0),
        )

    def test_listedBrokerDown(self) -> None:
        """A broker of a list that gives no answer is looked for again, and then is an error."""
        self.broker.before = lambda request: False
        with PartitionDiscovery(self.options(), self.policy()) as cluster:
            self.assertRaises(
                BrokerConnectionError, cluster.partitions, Selection(topics=("clicks",))
            )
        self.assertEqual(len(self.pauses), 2)

    def test_closing(self) -> None:
        """Leaving it closes the view."""
        cluster = self.cluster({})
        with cluster:
            pass
        self.assertTrue(self.registry.isClosed)
