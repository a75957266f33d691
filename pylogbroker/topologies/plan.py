"""
Where the instances of a topology run, as values that travel. A module of its own, since master,
stream managers, instances and schedulers read it.
"""

from __future__ import annotations

import msgspec

ACTIVE, PAUSED, KILLED = "active", "paused", "killed"
"""States of a topology."""


class InstancePlan(msgspec.Struct, frozen=True):
    """
    An instance.

    @ivar task: its number, unique in the topology, from 1.
    @ivar component: the name of its component.
    @ivar index: among the instances of its component, from 0.
    """

    task: int
    component: str
    index: int


class ContainerPlan(msgspec.Struct, frozen=True):
    """
    A container and its instances. The master runs in one with the number 0, which is in no plan.

    @ivar number: from 1.
    @ivar cpu: cores that it asks for.
    @ivar ramSize: bytes that it asks for; 0: no limit.
    """

    number: int
    instances: tuple[InstancePlan, ...]
    cpu: float = 0
    ramSize: int = 0


class PackingPlan(msgspec.Struct, frozen=True):
    """Which container has which instances."""

    containers: tuple[ContainerPlan, ...]

    @property
    def instances(self) -> list[InstancePlan]:
        """Of all containers, in the order of their tasks."""
        found = [each for container in self.containers for each in container.instances]
        return sorted(found, key=lambda each: each.task)


class PhysicalPlan(msgspec.Struct, frozen=True):
    """
    What the master pushes.

    @ivar epoch: of the master, and so of each plan of it: C{(master's number << 32) + change}.
    @ivar state: L{ACTIVE}, L{PAUSED} or L{KILLED}.
    @ivar packing: which container has which instances.
    @ivar streamManagers: C{host:port} of each container's stream manager.
    """

    topology: str
    epoch: int
    state: str
    packing: PackingPlan
    streamManagers: dict[int, str]

    def containerOf(self, task: int) -> int | None:
        """The container of a task; L{None}: the plan does not have it."""
        for container in self.packing.containers:
            if any(each.task == task for each in container.instances):
                return container.number
        return None
