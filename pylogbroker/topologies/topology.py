"""
Topologies as their authors build them: components, streams, groupings, configuration. A module of
its own, since the files of topologies, the machinery and the tools read it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

from pylogbroker.errors import ConfigurationError
from pylogbroker.tasks.job import runFile
from pylogbroker.topologies.api import DEFAULT_STREAM, Bolt, Component, Grouping, Spout

RELIABILITY_MODE = "topology.reliability.mode"
MESSAGE_TIMEOUT_SECS = "topology.message.timeout.secs"
ENABLE_MESSAGE_TIMEOUTS = "topology.enable.message.timeouts"
MAX_SPOUT_PENDING = "topology.max.spout.pending"
TICK_TUPLE_FREQ_SECS = "topology.tick.tuple.freq.secs"
CONTAINER_COUNT = "topology.stmgrs"
CONTAINER_CPU = "topology.container.cpu.requested"
CONTAINER_RAM = "topology.container.ram.requested"

ATMOST_ONCE, ATLEAST_ONCE = RELIABILITY_MODES = ("ATMOST_ONCE", "ATLEAST_ONCE")

NAME_SIZE_MAX = 180
"""Of a topology, a component or a stream, which have folders, files and nodes of their names."""

GROUPING_KINDS = (
    "shuffle",
    "fields",
    "all",
    "global",
    "none",
    "direct",
    "local-or-shuffle",
    "custom",
)

_NAME = re.compile(r"(?!\.\.?$)(?!__)[A-Za-z0-9._-]+")


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
    @ivar resources: of each instance.
    """

    name: str
    isSpout: bool
    factory: Callable[[], Component]
    parallelism: int
    config: Mapping[str, Any]
    outputs: Mapping[str, StreamSpec]
    inputs: Mapping[StreamId, Grouping]
    resources: Resources


class TopologyOptions(NamedTuple):
    """
    What the machinery reads of a configuration.

    @ivar isAtLeastOnce: whether trees of tuples are tracked: C{topology.reliability.mode} is
        C{ATLEAST_ONCE}. The default is C{ATMOST_ONCE}, as in Heron.
    @ivar messageTimeoutMs: how long a tree may take before it fails
        (C{topology.message.timeout.secs}); 0: for ever (C{topology.enable.message.timeouts} is
        false).
    @ivar maxSpoutPending: how many tracked tuples of an instance of a spout may be pending.
    @ivar tickMs: how often a bolt gets a tick tuple (C{topology.tick.tuple.freq.secs}); 0: never.
    @ivar containerCount: C{topology.stmgrs}: how many containers the topology is packed into.
    @ivar capacity: what a container has (C{topology.container.cpu.requested}, and in bytes
        C{topology.container.ram.requested}); 0: no limit.
    """

    isAtLeastOnce: bool = False
    messageTimeoutMs: int = 30_000
    maxSpoutPending: int = 1_000
    tickMs: int = 0
    containerCount: int = 1
    capacity: Resources = Resources(0, 0)

    @classmethod
    def of(cls, config: Mapping[str, Any], where: str) -> TopologyOptions:
        """
        Read them. As in Heron, a number may be a string.

        @param where: what has the configuration, for errors.
        @raise ConfigurationError: a value is none that its key can have.
        """
        mode = str(config.get(RELIABILITY_MODE, ATMOST_ONCE))
        if mode not in RELIABILITY_MODES:
            raise ConfigurationError(
                f"{where}: {RELIABILITY_MODE}={mode!r} is none of {', '.join(RELIABILITY_MODES)}"
            )
        timeouts = str(config.get(ENABLE_MESSAGE_TIMEOUTS, True)).lower()
        if timeouts not in ("true", "false"):
            raise ConfigurationError(
                f"{where}: {ENABLE_MESSAGE_TIMEOUTS}={timeouts!r} is neither true nor false"
            )
        defaults = cls()
        timeoutMs = _milliseconds(config, MESSAGE_TIMEOUT_SECS, defaults.messageTimeoutMs, where)
        if not timeoutMs:
            raise ConfigurationError(
                f"{where}: {MESSAGE_TIMEOUT_SECS} is 0: {ENABLE_MESSAGE_TIMEOUTS}=false turns"
                " time-outs off"
            )
        return cls(
            mode == ATLEAST_ONCE,
            timeoutMs if timeouts == "true" else 0,
            _count(config, MAX_SPOUT_PENDING, defaults.maxSpoutPending, where),
            _milliseconds(config, TICK_TUPLE_FREQ_SECS, defaults.tickMs, where),
            _count(config, CONTAINER_COUNT, defaults.containerCount, where),
            Resources(
                _number(config, CONTAINER_CPU, 0, where),
                int(_number(config, CONTAINER_RAM, 0, where)),
            ),
        )


def _number(config: Mapping[str, Any], key: str, default: float, where: str) -> float:
    value = config.get(key, default)
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{where}: {key}={value!r} is no number") from None
    if not isfinite(number) or number < 0:
        raise ConfigurationError(f"{where}: {key}={value!r} is no number from 0")
    return number


def _milliseconds(config: Mapping[str, Any], key: str, defaultMs: int, where: str) -> int:
    seconds = _number(config, key, defaultMs / 1000, where)
    return max(1, round(seconds * 1000)) if seconds else 0


def _count(config: Mapping[str, Any], key: str, default: int, where: str) -> int:
    number = _number(config, key, default, where)
    if number < 1 or number != int(number):
        raise ConfigurationError(f"{where}: {key}={config[key]!r} is no whole number from 1")
    return int(number)


class Topology(NamedTuple):
    """
    A topology, checked: what C{TopologyBuilder.build} gives.

    @ivar components: by name, in the order in which they were added.
    @ivar config: Storm's and Heron's keys, such as C{topology.message.timeout.secs}.
    """

    name: str
    components: Mapping[str, ComponentSpec]
    config: Mapping[str, Any]

    @property
    def options(self) -> TopologyOptions:
        """Of the topology's configuration."""
        return TopologyOptions.of(self.config, f"topology {self.name}")

    def configOf(self, component: str) -> dict[str, Any]:
        """The topology's configuration, and over it the component's."""
        return {**self.config, **self.components[component].config}

    def optionsOf(self, component: str) -> TopologyOptions:
        """Of the configuration of a component."""
        where = f"topology {self.name}, component {component}"
        return TopologyOptions.of(self.configOf(component), where)

    def consumersOf(self, stream: StreamId) -> dict[str, Grouping]:
        """The bolts that get a stream, and how it is grouped."""
        return {
            name: spec.inputs[stream]
            for name, spec in self.components.items()
            if stream in spec.inputs
        }

    def withConfig(self, config: Mapping[str, Any]) -> Topology:
        """
        The same topology with other keys over its configuration.

        @raise ConfigurationError: a value is none that its key can have.
        """
        changed = self._replace(config={**self.config, **config})
        _checkOptions(changed)
        return changed


Inputs = Mapping[str | StreamId, Grouping]
"""Of a bolt: by component (its default stream) or stream."""

Outputs = Sequence[str] | Mapping[str, Sequence[str]]
"""The fields of the default stream, or of each stream."""


class TopologyBuilder:
    """
    Builds a topology::

        builder = TopologyBuilder("word-count")
        builder.setSpout("sentences", Sentences, parallelism=2)
        builder.setBolt("split", Split, 3, {"sentences": Grouping.SHUFFLE})
        builder.setBolt("count", Count, 3, {"split": Grouping.fields("word")})
        wordCount = builder.build()

    A factory is a class of the author's, or a function without parameters that makes an object of
    it, such as C{functools.partial(Sentences, path)}.
    """

    def __init__(self, name: str, config: Mapping[str, Any] | None = None) -> None:
        """
        @raise ConfigurationError: the name cannot be one.
        """
        _checkName("a topology's name", name)
        self._name = name
        self._where = f"topology {name}"
        self._config = _checkedConfig(config, self._where)
        self._components: dict[str, ComponentSpec] = {}

    def setSpout(
        self,
        name: str,
        factory: Callable[[], Spout],
        parallelism: int = 1,
        *,
        config: Mapping[str, Any] | None = None,
        outputs: Outputs | None = None,
        resources: Resources = DEFAULT_RESOURCES,
    ) -> None:
        """
        Add a spout.

        @param parallelism: how many instances it has.
        @param config: over the topology's.
        @param outputs: in place of the class's.
        @raise ConfigurationError: an argument is none that a spout can have.
        """
        self._add(name, Spout, factory, parallelism, config, outputs, {}, resources)

    def setBolt(
        self,
        name: str,
        factory: Callable[[], Bolt],
        parallelism: int = 1,
        inputs: Inputs | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        outputs: Outputs | None = None,
        resources: Resources = DEFAULT_RESOURCES,
    ) -> None:
        """
        Add a bolt.

        @param parallelism: how many instances it has.
        @param inputs: what it gets. Components may be named that are added later.
        @param config: over the topology's.
        @param outputs: in place of the class's.
        @raise ConfigurationError: an argument is none that a bolt can have.
        """
        self._add(name, Bolt, factory, parallelism, config, outputs, inputs or {}, resources)

    def _add(
        self,
        name: str,
        kind: type[Component],
        factory: Callable[[], Component],
        parallelism: int,
        config: Mapping[str, Any] | None,
        outputs: Outputs | None,
        inputs: Inputs,
        resources: Resources,
    ) -> None:
        _checkName(f"{self._where}: a component's name", name)
        where = f"{self._where}, component {name}"
        if name in self._components:
            raise ConfigurationError(f"{where}: it is there twice")
        if type(parallelism) is not int or parallelism < 1:
            raise ConfigurationError(
                f"{where}: parallelism={parallelism!r} is no whole number from 1"
            )
        made = _madeClass(where, kind, factory)
        self._components[name] = ComponentSpec(
            name,
            kind is Spout,
            factory,
            parallelism,
            _checkedConfig({**made.config, **(config or {})}, where),
            _checkedOutputs(where, made.outputs if outputs is None else outputs),
            _checkedInputs(where, inputs),
            _checkedResources(where, resources),
        )

    def build(self) -> Topology:
        """
        Check the topology as a whole.

        @raise ConfigurationError: there is no spout; an input does not exist; a stream lacks a
            field of its grouping; a stream is grouped directly and otherwise; a bolt gets nothing;
            or a key of the configuration has a value that it cannot have.
        """
        components = dict(self._components)
        if not any(each.isSpout for each in components.values()):
            raise ConfigurationError(f"{self._where}: it has no spout")
        topology = Topology(self._name, components, self._config)
        _checkOptions(topology)
        for spec in components.values():
            where = f"{self._where}, component {spec.name}"
            for stream, grouping in spec.inputs.items():
                self._checkInput(where, stream, grouping)
            if not spec.isSpout and not spec.inputs and not topology.optionsOf(spec.name).tickMs:
                raise ConfigurationError(f"{where}: it gets nothing: no stream, no tick tuples")
            for name in spec.outputs:
                consumers = topology.consumersOf(StreamId(spec.name, name))
                _checkDirect(f"{where}, stream {name}", consumers)
        return topology

    def _checkInput(self, where: str, stream: StreamId, grouping: Grouping) -> None:
        source = self._components.get(stream.component)
        if source is None:
            raise ConfigurationError(f"{where}: its input {stream.component} is no component")
        spec = source.outputs.get(stream.stream)
        if spec is None:
            raise ConfigurationError(
                f"{where}: its input {stream.component} has no stream {stream.stream!r}, but"
                f" {', '.join(source.outputs) or 'none'}"
            )
        for name in grouping.fieldNames:
            if name not in spec.fields:
                raise ConfigurationError(
                    f"{where}: its grouping by {name!r} of {stream.component}.{stream.stream},"
                    f" which has the fields {', '.join(spec.fields) or 'none'}"
                )


def _checkDirect(where: str, consumers: Mapping[str, Grouping]) -> None:
    direct = [bolt for bolt, each in consumers.items() if each.kind == "direct"]
    others = [bolt for bolt in consumers if bolt not in direct]
    if direct and others:
        raise ConfigurationError(
            f"{where}: its grouping is direct for {direct[0]}, and {consumers[others[0]].kind} for"
            f" {others[0]}: a stream is direct for all or none"
        )


def _checkOptions(topology: Topology) -> None:
    whole = topology.options
    for name in topology.components:
        mine = topology.optionsOf(name)
        if mine != whole._replace(maxSpoutPending=mine.maxSpoutPending, tickMs=mine.tickMs):
            raise ConfigurationError(
                f"topology {topology.name}, component {name}: a component can have"
                f" {MAX_SPOUT_PENDING} and {TICK_TUPLE_FREQ_SECS} of its own, and no other key"
                " of the topology's"
            )


def _checkName(what: str, name: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > NAME_SIZE_MAX:
        raise ConfigurationError(
            f"{what}: {name!r}: a name has 1 to {NAME_SIZE_MAX} of A-Z a-z 0-9 . _ -, and does not"
            " begin with __"
        )


def _checkedConfig(config: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    checked: dict[Any, Any] = dict(config or {})
    for key in checked:
        if not isinstance(key, str):
            raise ConfigurationError(f"{where}: the key {key!r} of its configuration is no string")
    return checked


def _madeClass(where: str, kind: type[Component], factory: Any) -> type[Component]:
    made: Any = factory
    while isinstance(made, partial):
        made = made.func
    word = kind.__name__
    if isinstance(made, Component):
        raise ConfigurationError(
            f"{where}: {made!r} is an object; each instance has one of its own: give its class"
        )
    if not isinstance(made, type):
        if not callable(made):
            raise ConfigurationError(f"{where}: {made!r} makes no {word}: it cannot be called")
        made = type(factory())
    if not issubclass(made, kind):
        raise ConfigurationError(f"{where}: {made.__name__} is no {word}")
    found: type[Component] = made
    return found


def _checkedOutputs(where: str, outputs: Any) -> dict[str, StreamSpec]:
    if not outputs and not isinstance(outputs, str):
        return {}
    streams = outputs if isinstance(outputs, Mapping) else {DEFAULT_STREAM: outputs}
    checked = {}
    for name, fields in streams.items():
        _checkName(f"{where}: a stream's name", name)
        if isinstance(fields, str) or not isinstance(fields, Iterable):
            raise ConfigurationError(
                f"{where}, stream {name}: {fields!r} is no list of the names of its fields"
            )
        names = tuple(fields)
        for field in names:
            if not isinstance(field, str) or not field:
                raise ConfigurationError(f"{where}, stream {name}: the field {field!r} is no name")
            if names.count(field) > 1:
                raise ConfigurationError(f"{where}, stream {name}: its field {field} is twice")
        checked[name] = StreamSpec(names)
    return checked


def _checkedInputs(where: str, inputs: Any) -> dict[StreamId, Grouping]:
    if not isinstance(inputs, Mapping):
        raise ConfigurationError(f"{where}: its inputs {inputs!r} are no mapping to groupings")
    checked: dict[StreamId, Grouping] = {}
    for key, grouping in inputs.items():
        parts = (key,) if isinstance(key, str) else key
        if not isinstance(parts, tuple) or not all(isinstance(each, str) for each in parts):
            raise ConfigurationError(f"{where}: its input {key!r} is no component, and no stream")
        stream = StreamId(*parts)
        if stream in checked:
            raise ConfigurationError(f"{where}: its input {'.'.join(stream)} is there twice")
        if not isinstance(grouping, Grouping) or grouping.kind not in GROUPING_KINDS:
            raise ConfigurationError(
                f"{where}: {grouping!r} of its input {'.'.join(stream)} is no grouping"
            )
        if (grouping.kind == "fields") != bool(grouping.fieldNames):
            raise ConfigurationError(
                f"{where}: the {grouping.kind} grouping of its input {'.'.join(stream)} has the"
                f" fields {grouping.fieldNames}"
            )
        if (grouping.kind == "custom") != callable(grouping.chooser):
            raise ConfigurationError(
                f"{where}: the {grouping.kind} grouping of its input {'.'.join(stream)} has the"
                f" chooser {grouping.chooser!r}"
            )
        checked[stream] = grouping
    return checked


def _checkedResources(where: str, resources: Any) -> Resources:
    try:
        cpu, ramSize = resources
        if isfinite(cpu) and cpu >= 0 and isinstance(ramSize, int) and ramSize >= 0:
            return Resources(cpu, ramSize)
    except (TypeError, ValueError):  # no two numbers
        pass
    raise ConfigurationError(
        f"{where}: {resources!r}: resources are cores and bytes, and neither is negative"
    )


def loadTopologies(path: str) -> dict[str, Topology]:
    """
    Run a topology file. Blocks.

    @return: the topologies among its global names, by their names.
    @raise ConfigurationError: the file cannot be read or raises; it has no topology, or two of one
        name.
    """
    topologies: dict[str, Topology] = {}
    found = runFile(path)
    for value in found.values():
        if isinstance(value, Topology) and topologies.setdefault(value.name, value) is not value:
            raise ConfigurationError(f"{path}: two topologies are named {value.name}")
    if not topologies:
        builders = [key for key, value in found.items() if isinstance(value, TopologyBuilder)]
        hint = f"; {builders[0]} only builds one: keep what its build() gives" if builders else ""
        raise ConfigurationError(f"{path}: no global name in it is a Topology{hint}")
    return topologies
