"""
Topologies: graphs of spouts and bolts, as Heron runs them.
"""

from pylogbroker.topologies.api import Bolt, Grouping, ICustomGrouping, Spout, StreamTuple
from pylogbroker.topologies.topology import (
    Resources,
    StreamId,
    Topology,
    TopologyBuilder,
)

__all__ = [
    "Bolt",
    "Grouping",
    "ICustomGrouping",
    "Resources",
    "Spout",
    "StreamId",
    "StreamTuple",
    "Topology",
    "TopologyBuilder",
]
