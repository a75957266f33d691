"""
Topologies as their authors build them: components, streams, groupings, configuration. A module of
its own, since the files of topologies, the machinery and the tools read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pylogbroker.topologies.api import DEFAULT_STREAM, Bolt, Component, Grouping, Spout


class StreamId(NamedTuple):
    """A stream of a component."""

    component: str
    stream: str = DEFAULT_STREAM


class StreamSpec(NamedTuple):
    """
    What a component emits on a stream.

    @ivar fields: the names of the values.
    """

    fields: tuple[str, ...]


class Resources(NamedTuple):
    """
    What an instance asks for.

    @ivar cpu: cores.
    @ivar ramSize: bytes; 0: no limit.
    """

    cpu: float = 1.0
    ramSize: int = 0


DEFAULT_RESOURCES = Resources()


class ComponentSpec(NamedTuple):
    """
    A component of a topology.

    @ivar factory: makes the object of an instance: the author's class.
    @ivar parallelism: how many instances it has.
    @ivar config: of this component, over the topology's.
    @ivar outputs: its streams.
    @ivar inputs: of a bolt: the streams that it gets, and how they are grouped.
    """

    name: str
    isSpout: bool
    factory: Callable[[], Component]
    parallelism: int
    config: Mapping[str, Any]
    outputs: Mapping[str, StreamSpec]
    inputs: Mapping[StreamId, Grouping]
    resources: Resources


class Topology(NamedTuple):
    """
    A topology, checked: what C{TopologyBuilder.build} gives.

    @ivar components: by name, in the order in which they were added.
    @ivar config: Storm's and Heron's keys, such as C{topology.message.timeout.secs}.
    """

    name: str
    components: Mapping[str, ComponentSpec]
    config: Mapping[str, Any]


Inputs = Mapping[str | StreamId, Grouping]
"""Of a bolt: by component (its default stream) or stream."""


class TopologyBuilder:
    """
    Builds a topology::

        builder = TopologyBuilder("word-count")
        builder.setSpout("sentences", Sentences, parallelism=2)
        builder.setBolt("split", Split, 3, {"sentences": Grouping.SHUFFLE})
        builder.setBolt("count", Count, 3, {"split": Grouping.fields("word")})
        wordCount = builder.build()
    """

    def __init__(self, name: str, config: Mapping[str, Any] | None = None) -> None: ...

    def setSpout(
        self,
        name: str,
        factory: Callable[[], Spout],
        parallelism: int = 1,
        *,
        config: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        resources: Resources = DEFAULT_RESOURCES,
    ) -> None: ...

    def setBolt(
        self,
        name: str,
        factory: Callable[[], Bolt],
        parallelism: int = 1,
        inputs: Inputs | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        resources: Resources = DEFAULT_RESOURCES,
    ) -> None: ...

    def build(self) -> Topology:
        """
        @raise ConfigurationError: a component is there twice, an input is not there, a field of a
            grouping is not of the stream, a parallelism is not positive, there is no spout.
        """
        raise NotImplementedError


def loadTopologies(path: str) -> dict[str, Topology]:
    """
    The topologies among the global names of a Python file, by their names.

    @raise ConfigurationError: the file cannot be read or run, or has none.
    """
    raise NotImplementedError
