"""Tests for L{pylogbroker.topologies.packings}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError
from pylogbroker.topologies.api import Spout
from pylogbroker.topologies.packings import instancesOf, pack, packByResources, packRoundRobin
from pylogbroker.topologies.plan import InstancePlan, PackingPlan
from pylogbroker.topologies.topology import Resources, Topology, TopologyBuilder


def topologyOf(**components: tuple[int, Resources]) -> Topology:
    """A topology of spouts."""
    builder = TopologyBuilder("t")
    for name, (parallelism, resources) in components.items():
        builder.setSpout(name, Spout, parallelism, resources=resources)
    return builder.build()


def tasksOf(plan: PackingPlan) -> list[list[int]]:
    """Of each container."""
    return [[each.task for each in container.instances] for container in plan.containers]


class PackingTests(SynchronousTestCase):
    """Which container gets what."""

    def test_tasks(self) -> None:
        """Tasks are numbered by component, then by index."""
        topology = topologyOf(a=(2, Resources()), b=(1, Resources()))
        self.assertEqual(
            instancesOf(topology),
            [
                InstancePlan(n, name, at, True)
                for n, name, at in ((1, "a", 0), (2, "a", 1), (3, "b", 0))
            ],
        )

    def test_roundRobin(self) -> None:
        """Instances are dealt out; containers ask for what their instances ask for."""
        topology = topologyOf(a=(2, Resources(0.5, 100)), b=(3, Resources(2, 10)))
        plan = packRoundRobin(topology, 2)
        self.assertEqual(tasksOf(plan), [[1, 3, 5], [2, 4]])
        self.assertEqual(
            [(each.number, each.cpu, each.ramSize) for each in plan.containers],
            [(1, 4.5, 120), (2, 2.5, 110)],
        )
        self.assertEqual(plan.instances, instancesOf(topology))

    def test_noLimit(self) -> None:
        """A container with an instance that has no limit of memory has none."""
        plan = packRoundRobin(topologyOf(a=(1, Resources(1, 0)), b=(1, Resources(1, 9))), 1)
        self.assertEqual(plan.containers[0].ramSize, 0)

    def test_tooManyContainers(self) -> None:
        """No container is empty."""
        topology = topologyOf(a=(2, Resources()))
        for count in (0, 3):
            error = self.assertRaises(ConfigurationError, packRoundRobin, topology, count)
            self.assertIn(f"2 instances cannot be dealt out to {count} containers", str(error))

    def test_byResources(self) -> None:
        """The largest come first, and each goes to the first container with room."""
        topology = topologyOf(
            small=(4, Resources(0.1, 10)),
            large=(2, Resources(0.5, 70)),
            middle=(1, Resources(1, 30)),
        )
        plan = packByResources(topology, Resources(1.5, 100))
        # 70 + 30, 70 + 10 + 10 + 10, 10
        self.assertEqual(tasksOf(plan), [[5, 7], [1, 2, 3, 6], [4]])
        self.assertEqual([each.ramSize for each in plan.containers], [100, 100, 10])
        self.assertEqual(plan.instances, instancesOf(topology))

    def test_fractions(self) -> None:
        """Cores that add up to a container's fill it, in spite of binary fractions."""
        plan = packByResources(topologyOf(a=(3, Resources(0.1))), Resources(0.3))
        self.assertEqual(tasksOf(plan), [[1, 2, 3]])

    def test_unlimited(self) -> None:
        """A container without limits takes all."""
        plan = packByResources(topologyOf(a=(9, Resources(5, 1 << 40))), Resources(0, 0))
        self.assertEqual(len(plan.containers), 1)

    def test_tooLarge(self) -> None:
        """An instance that no container can have is named."""
        topology = topologyOf(a=(1, Resources()), b=(1, Resources(2, 7)))
        for capacity in (Resources(1.5, 0), Resources(0, 6)):
            error = self.assertRaises(ConfigurationError, packByResources, topology, capacity)
            self.assertIn(
                "topology t, component b: an instance asks for 2 cores and 7 bytes", str(error)
            )

    def test_configuration(self) -> None:
        """The configuration gives a number of containers, or what one has."""
        topology = topologyOf(a=(6, Resources(1, 10)))
        self.assertEqual(len(pack(topology).containers), 1)
        self.assertEqual(len(pack(topology, 3).containers), 3)
        counted = topology.withConfig({"topology.stmgrs": 2})
        self.assertEqual(pack(counted), packRoundRobin(topology, 2))
        limited = counted.withConfig({"topology.container.ram.requested": 20})
        self.assertEqual(pack(limited), packByResources(topology, Resources(0, 20)))
        self.assertEqual(pack(limited, 3), packRoundRobin(topology, 3))
        error = self.assertRaises(ConfigurationError, pack, limited, 2)
        self.assertEqual(
            str(error),
            "topology t: the instances of container 1 of 2 ask for 3 cores and 30 bytes, and a"
            " container has 0 and 20",
        )
