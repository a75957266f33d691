"""
Which topology of a file is meant, with which configuration. A module of its own, since instances
and the command must choose alike.
"""

from __future__ import annotations

from collections.abc import Mapping

from pylogbroker.errors import ConfigurationError
from pylogbroker.topologies.multilang.definitions import loadAnyTopologies
from pylogbroker.topologies.topology import Topology


def chosenTopology(path: str, name: str | None, config: Mapping[str, str]) -> Topology:
    """
    A topology of a file, with other keys over its configuration. Blocks.

    @param name: L{None}: the only one.
    @raise ConfigurationError: the file cannot be used; it has no such topology, or several; a key
        has a wrong value.
    """
    found = loadAnyTopologies(path)
    if name is None and len(found) > 1:
        raise ConfigurationError(
            f"{path} has the topologies {', '.join(found)}: --topology says which one"
        )
    name = name or next(iter(found))
    if name not in found:
        raise ConfigurationError(f"{path} has no topology {name}; it has: {', '.join(found)}")
    return found[name].withConfig(config)
