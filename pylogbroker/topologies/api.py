"""
What the author of a topology writes and calls: Heron's API, in Python. A module of its own, since
the files of topologies import it.

A L{Spout} emits tuples, a L{Bolt} gets them and may emit more::

    class SplitSentences(Bolt):
        outputs = ["word"]

        def process(self, tup):
            for word in tup.values[0].split():
                self.emit([word], anchors=[tup])
            self.ack(tup)

What must be true:

  - Each instance of a component is an object of its own, in a process of its own. Its methods are
  called one at a time, on one thread, which may block. C{emit}, C{ack} and C{fail} are called on
  that thread, too.
  - Tuples from one instance to another one arrive in the order in which they were emitted.
  - Values travel as MessagePack: L{None}, booleans, integers of 64 bits, floats, strings, bytes,
  dates and times, lists and dicts. A Python tuple or a set arrives as a list. A C{datetime} with a
  time zone arrives as one in UTC, other dates and times arrive as strings in ISO 8601.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

DEFAULT_STREAM = "default"

TICK_COMPONENT, TICK_STREAM = "__system", "__tick"
"""Where a tick tuple says that it comes from."""

SYSTEM_TASK = -1
"""The task of what no instance has emitted: tick tuples, and heartbeats to subprocesses."""


class StreamTuple(msgspec.Struct, eq=False):
    """
    A tuple that a bolt gets.

    @ivar id: of this tuple; another one for each instance that gets it.
    @ivar component: the name of the component that has emitted it.
    @ivar stream: the name of its stream.
    @ivar task: the number of the instance that has emitted it.
    @ivar values: in the order of the stream's fields.
    @ivar fields: the names of the values.
    @ivar roots: for the acker, the spout's task, the root and the edge of each tree that it belongs
        to, one after the other.
    """

    id: int
    component: str
    stream: str
    task: int
    values: Sequence[Any]
    fields: Sequence[str]
    roots: Sequence[int] = ()
    edges: int = 0  # the collector's: XORed, of what is anchored to it; negative: it is done

    def __getitem__(self, field: str) -> Any:
        """
        The value of a field.

        @raise KeyError: the stream has no such field.
        """
        try:
            return self.values[self.fields.index(field)]
        except ValueError:
            raise KeyError(field) from None

    @property
    def isTick(self) -> bool:
        """Whether it is a tick tuple: time has passed, and it has no values but the interval."""
        return self.component == TICK_COMPONENT and self.stream == TICK_STREAM

    def __repr__(self) -> str:
        return f"<StreamTuple of {self.component}.{self.stream}: {self.values!r}>"


class TopologyContext(NamedTuple):
    """
    Where an instance is.

    @ivar topology: the name of the topology.
    @ivar component: the name of the component.
    @ivar taskId: of this instance, unique in the topology.
    @ivar taskIndex: of this instance among those of its component, from 0.
    @ivar componentTasks: the tasks of each component, in the order of their indexes.
    @ivar streams: the fields of each stream of each component.
    @ivar seconds: the time of the instance's clock, in seconds since the epoch; it does not jump
        when the wall clock is set. Use it in place of C{time.time}: a simulation sets it.
    @ivar random: numbers from 0 up to, not including, 1.
    @ivar counter: called with a name and a number, adds to a metric of this instance.
    @ivar inputs: what a bolt gets: by component and stream, the grouping.
    @ivar consumers: the bolts that get each stream of this component, and the grouping.
    @ivar callFromThread: called on any thread with a function, runs it on the component's thread
        between two other calls, in the order of the calls. If the function raises, the instance
        fails, as it does when C{process} raises. L{None}: the component has no thread of its own,
        as in the simulator.
    """

    topology: str
    component: str
    taskId: int
    taskIndex: int
    componentTasks: Mapping[str, Sequence[int]]
    streams: Mapping[str, Mapping[str, Sequence[str]]]
    seconds: Callable[[], float]
    random: Callable[[], float]
    counter: Callable[[str, int], None]
    inputs: Mapping[tuple[str, str], Grouping] = MappingProxyType({})
    consumers: Mapping[str, Mapping[str, Grouping]] = MappingProxyType({})
    callFromThread: Callable[[Callable[[], None]], None] | None = None

    @property
    def parallelism(self) -> int:
        """How many instances the component has."""
        return len(self.componentTasks[self.component])


@dataclass(frozen=True)
class Grouping:
    """
    Which instances of a bolt get a tuple. Use the constants, and L{fields} and L{custom}.

    @ivar kind: C{shuffle}, C{fields}, C{all}, C{global}, C{none}, C{direct}, C{local-or-shuffle}
        or C{custom}.
    @ivar fieldNames: of a fields grouping.
    @ivar chooser: of a custom grouping: makes an L{ICustomGrouping}.
    """

    kind: str
    fieldNames: tuple[str, ...] = ()
    chooser: Callable[[], ICustomGrouping] | None = None

    SHUFFLE: ClassVar[Grouping]
    ALL: ClassVar[Grouping]
    GLOBAL: ClassVar[Grouping]
    NONE: ClassVar[Grouping]
    DIRECT: ClassVar[Grouping]
    LOCAL_OR_SHUFFLE: ClassVar[Grouping]

    @classmethod
    def fields(cls, *names: str) -> Grouping:
        """Tuples with equal values of these fields go to one instance."""
        return cls("fields", names)

    @classmethod
    def custom(cls, chooser: Callable[[], ICustomGrouping]) -> Grouping:
        """The author's: C{chooser} is called once in each instance that emits."""
        return cls("custom", (), chooser)


Grouping.SHUFFLE = Grouping("shuffle")
Grouping.ALL = Grouping("all")
Grouping.GLOBAL = Grouping("global")
Grouping.NONE = Grouping("none")
Grouping.DIRECT = Grouping("direct")
Grouping.LOCAL_OR_SHUFFLE = Grouping("local-or-shuffle")


class ICustomGrouping(Protocol):
    """A grouping of the author's."""

    def prepare(self, context: TopologyContext, stream: str, targetTasks: Sequence[int]) -> None:
        """Called once, before the first tuple."""

    def chooseTasks(self, values: Sequence[Any]) -> Sequence[int]:
        """The target tasks that get a tuple."""


class ICollector(Protocol):
    """What an instance gives its component, to emit and to acknowledge."""

    def emit(
        self,
        values: Sequence[Any],
        stream: str,
        tupleId: Any,
        anchors: Sequence[StreamTuple],
        directTask: int | None,
    ) -> Sequence[int]:
        """See C{emit} of spouts and bolts."""

    def ack(self, tup: StreamTuple) -> None:
        """See L{Bolt.ack}."""

    def fail(self, tup: StreamTuple) -> None:
        """See L{Bolt.fail}."""


class Component:
    """
    What spouts and bolts share.

    @cvar outputs: what it emits: the names of the fields of the default stream, or for each stream
        its fields.
    @cvar config: of the component, unless the topology's author gives other values.
    """

    outputs: ClassVar[Sequence[str] | Mapping[str, Sequence[str]]] = ()
    config: ClassVar[Mapping[str, Any]] = {}
    collector: ICollector  # set by the instance before C{initialize}

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """Called once, before anything else. C{config} is the topology's and the component's."""

    def close(self) -> None:
        """Called once, when the instance ends in order."""


class Spout(Component):
    """A source of tuples."""

    def nextTuple(self) -> None:
        """
        Emit a tuple, or several, or none. It is called again and again while the topology is
        active, unless too many tuples are pending or there is back pressure. It should not block
        for long: C{ack} and C{fail} wait meanwhile.
        """
        raise NotImplementedError

    def ack(self, tupleId: Any) -> None:
        """The tuple with this id, and all that came of it, was handled."""

    def fail(self, tupleId: Any) -> None:
        """The tuple with this id has failed, or was not handled in time."""

    def activate(self) -> None:
        """The topology was activated."""

    def deactivate(self) -> None:
        """The topology was deactivated: C{nextTuple} is not called any more."""

    def emit(
        self,
        values: Sequence[Any],
        tupleId: Any = None,
        stream: str = DEFAULT_STREAM,
        directTask: int | None = None,
    ) -> Sequence[int]:
        """
        Emit a tuple.

        @param tupleId: given to C{ack} or C{fail} afterwards; L{None}: the tuple is not tracked.
        @param directTask: for a stream with a direct grouping, the task that gets it.
        @return: the tasks that get it.
        @raise TupleError: the stream is not declared, it has another number of fields, or a value
            cannot be encoded.
        """
        return self.collector.emit(values, stream, tupleId, (), directTask)


class Bolt(Component):
    """
    Handles tuples.

    @cvar isAutoAnchored: what C{process} emits is anchored to the tuple that it handles, unless
        C{anchors} is given.
    @cvar isAutoAcked: a tuple is acknowledged when C{process} returns, and failed when it raises.
    """

    isAutoAnchored: ClassVar[bool] = False
    isAutoAcked: ClassVar[bool] = False

    def process(self, tup: StreamTuple) -> None:
        """Handle a tuple. With C{topology.tick.tuple.freq.secs} some have C{isTick}."""
        raise NotImplementedError

    def idle(self) -> None:
        """No tuple waits any more: the time to send what was collected."""

    def emit(
        self,
        values: Sequence[Any],
        stream: str = DEFAULT_STREAM,
        anchors: Sequence[StreamTuple] | None = None,
        directTask: int | None = None,
    ) -> Sequence[int]:
        """
        Emit a tuple.

        @param anchors: it belongs to the trees of these tuples: they are acknowledged when it is.
        @return: the tasks that get it.
        @raise TupleError: as for L{Spout.emit}.
        """
        if anchors is None:
            anchors = self._current if self.isAutoAnchored else ()
        return self.collector.emit(values, stream, None, anchors, directTask)

    def ack(self, tup: StreamTuple) -> None:
        """The tuple is handled. What is neither acknowledged nor failed times out."""
        self.collector.ack(tup)

    def fail(self, tup: StreamTuple) -> None:
        """The tuple cannot be handled: its trees fail at once."""
        self.collector.fail(tup)

    _current: Sequence[StreamTuple] = ()  # set by the instance around C{process}
