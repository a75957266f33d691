"""
Packings: which container gets which instances of a topology. A module of its own, since master,
schedulers and the simulator pack alike.

Tasks are numbered from 1, by components in their order and then by index. They do not depend on
the packing: a topology that is packed otherwise keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pylogbroker.errors import ConfigurationError
from pylogbroker.topologies.plan import ContainerPlan, InstancePlan, PackingPlan
from pylogbroker.topologies.topology import Resources, Topology


def instancesOf(topology: Topology) -> list[InstancePlan]:
    """All instances, in the order of their tasks."""
    instances: list[InstancePlan] = []
    for spec in topology.components.values():
        for index in range(spec.parallelism):
            instances.append(InstancePlan(len(instances) + 1, spec.name, index, spec.isSpout))
    return instances


def pack(topology: Topology, containerCount: int | None = None) -> PackingPlan:
    """
    Pack a topology as its configuration says: by the resources of a container if it gives them,
    else into C{topology.stmgrs} containers.

    @param containerCount: in place of the configuration's.
    @raise ConfigurationError: it cannot be packed so; or a container with its share of a given
        number of them would need more than it has.
    """
    capacity = topology.options.capacity
    if containerCount is None and any(capacity):
        return packByResources(topology, capacity)
    if containerCount is None:
        containerCount = topology.options.containerCount
    packing = packRoundRobin(topology, containerCount)
    for container in packing.containers:
        asked = _sumOf(topology, container.instances)
        if not _fits(asked, capacity, capacity):
            raise ConfigurationError(
                f"topology {topology.name}: the instances of container {container.number} of"
                f" {len(packing.containers)} ask for {asked.cpu:g} cores and {asked.ramSize} bytes,"
                f" and a container has {capacity.cpu:g} and {capacity.ramSize}"
            )
    return packing


def packRoundRobin(topology: Topology, containerCount: int) -> PackingPlan:
    """
    Deal the instances out, one after the other: as Heron's C{RoundRobinPacking}, each container has
    equally many, give or take one, and the instances of a component are spread.

    @param containerCount: how many containers, without the master's.
    @raise ConfigurationError: there are more containers than instances.
    """
    instances = instancesOf(topology)
    if not 1 <= containerCount <= len(instances):
        raise ConfigurationError(
            f"topology {topology.name}: {len(instances)} instances cannot be dealt out to"
            f" {containerCount} containers"
        )
    return PackingPlan(
        tuple(
            _container(topology, at + 1, instances[at::containerCount])
            for at in range(containerCount)
        )
    )


def packByResources(topology: Topology, capacity: Resources) -> PackingPlan:
    """
    First fit decreasing, as Heron's C{FirstFitDecreasingPacking}: the instances that ask for most
    come first, and each goes to the first container that has room, or to a new one.

    @param capacity: of a container; cores or bytes of 0: no limit.
    @raise ConfigurationError: one instance alone asks for more.
    """
    asked = {name: spec.resources for name, spec in topology.components.items()}
    bins: list[list[InstancePlan]] = []
    left: list[Resources] = []
    # sorted() keeps the order of equal ones, so that the answer is always the same.
    for instance in sorted(
        instancesOf(topology),
        key=lambda each: (asked[each.component].ramSize, asked[each.component].cpu),
        reverse=True,
    ):
        its = asked[instance.component]
        for at, room in enumerate(left):
            if _fits(its, room, capacity):
                break
        else:
            if not _fits(its, capacity, capacity):
                raise ConfigurationError(
                    f"topology {topology.name}, component {instance.component}: an instance asks"
                    f" for {its.cpu:g} cores and {its.ramSize} bytes, and a container has"
                    f" {capacity.cpu:g} and {capacity.ramSize}"
                )
            at = len(bins)
            bins.append([])
            left.append(capacity)
        bins[at].append(instance)
        left[at] = Resources(left[at].cpu - its.cpu, left[at].ramSize - its.ramSize)
    return PackingPlan(
        tuple(
            _container(topology, at + 1, sorted(each, key=lambda instance: instance.task))
            for at, each in enumerate(bins)
        )
    )


def _fits(asked: Resources, room: Resources, capacity: Resources) -> bool:
    """Whether a container with this capacity, of which C{room} is left, can have what is asked."""
    return all(
        not each or need <= left + 1e-9  # cores are fractions: 0.1 * 3 fits into 0.3
        for need, left, each in zip(asked, room, capacity, strict=True)
    )


def _sumOf(topology: Topology, instances: Sequence[InstancePlan]) -> Resources:
    asked = [topology.components[each.component].resources for each in instances]
    return Resources(sum(each.cpu for each in asked), sum(each.ramSize for each in asked))


def _container(topology: Topology, number: int, instances: Sequence[InstancePlan]) -> ContainerPlan:
    cpu, ramSize = _sumOf(topology, instances)
    if not all(topology.components[each.component].resources.ramSize for each in instances):
        ramSize = 0  # one without a limit: the container has none
    return ContainerPlan(number, tuple(instances), cpu, ramSize)
