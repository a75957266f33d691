"""
Where the instances of a topology run, as values that travel. A module of its own, since master,
stream managers, instances and schedulers read it.
"""

from __future__ import annotations

from typing import Any

import msgspec

ACTIVE, PAUSED, KILLED = "active", "paused", "killed"
"""States of a topology."""


class InstancePlan(msgspec.Struct, frozen=True):
    """
    An instance.

    @ivar task: its number, unique in the topology, from 1.
    @ivar component: the name of its component.
    @ivar index: among the instances of its component, from 0.
    @ivar isSpout: whether its component is a spout: back pressure stops it.
    """

    task: int
    component: str
    index: int
    isSpout: bool = False


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

    def containerOf(self, task: int) -> ContainerPlan | None:
        """The container of a task; L{None}: the plan does not have it."""
        for container in self.containers:
            if any(each.task == task for each in container.instances):
                return container
        return None


class InputPlan(msgspec.Struct, frozen=True):
    """
    What a bolt gets.

    @ivar grouping: its kind: C{shuffle}, C{fields}, …
    @ivar fields: of a fields grouping.
    """

    component: str
    stream: str
    grouping: str
    fields: tuple[str, ...] = ()


class ComponentPlan(msgspec.Struct, frozen=True):
    """
    A component, as tools show it.

    @ivar outputs: the fields of each stream.
    """

    name: str
    isSpout: bool
    parallelism: int
    outputs: dict[str, tuple[str, ...]] = {}
    inputs: tuple[InputPlan, ...] = ()


class TopologyDefinition(msgspec.Struct, frozen=True):
    """
    A topology that was submitted: what its node in ZooKeeper says.

    @ivar file: the path of the file that builds it.
    @ivar user: whose it is.
    @ivar timeMs: when it was submitted, since the epoch.
    @ivar config: of the topology, over what its file says; C{topology.*} keys.
    """

    name: str
    file: str
    user: str
    timeMs: int
    components: tuple[ComponentPlan, ...]
    packing: PackingPlan
    config: dict[str, Any] = {}


class MasterLocation(msgspec.Struct, frozen=True):
    """
    The master that acts: what its ephemeral node says.

    @ivar port: where stream managers and metrics managers connect.
    @ivar statusPort: of its HTTP server; 0: it has none.
    @ivar epoch: of all of its plans; see L{PhysicalPlan}.
    """

    host: str
    port: int
    statusPort: int
    epoch: int


EPOCH_BITS = 32
"""Bits of an epoch that count the plans of one master."""


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
