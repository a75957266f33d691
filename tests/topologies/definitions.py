"""
A small topology as the machinery sees it, for tests.
"""

from __future__ import annotations

from pylogbroker.topologies.plan import (
    ComponentPlan,
    ContainerPlan,
    InstancePlan,
    PackingPlan,
    TopologyDefinition,
)

PACKING = PackingPlan(
    (
        ContainerPlan(1, (InstancePlan(1, "spout", 0), InstancePlan(3, "bolt", 1))),
        ContainerPlan(2, (InstancePlan(2, "bolt", 0),)),
    )
)

DEFINITION = TopologyDefinition(
    "words",
    "/words.py",
    "someone",
    1_000,
    (ComponentPlan("spout", True, 1), ComponentPlan("bolt", False, 2)),
    PACKING,
)
