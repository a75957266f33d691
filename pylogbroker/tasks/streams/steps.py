"""
The steps of a high-level job, as data: the fluent API makes them, the compiler completes them, and
`task plan` and the engines read them.

A step has parents, from which messages come. Functions are the author's. The steps of a job
(C{Job.steps}) have names, and stand behind their parents; each that needs equal keys in one task
has a L{RepartitionStep} before it, if its messages have got other keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, TypeAlias

from pylogbroker.tasks.serdes import Serde
from pylogbroker.tasks.streams.windows import ON_CHANGE, AggregationWindow, JoinWindow

COUNT, REDUCE, AGGREGATE = OPERATIONS = ("count", "reduce", "aggregate")

INNER, LEFT, OUTER = JOINS = ("inner", "left", "outer")

_JOIN_KINDS = {INNER: "join", LEFT: "leftJoin", OUTER: "outerJoin"}

_numbers = count()

Joiner: TypeAlias = Callable[[Any, Any], Any]
"""Of a left and a right message."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PlanStep:
    """
    A step.

    @ivar parents: where its messages come from: the left one first, for a join.
    @ivar key: the serde of the keys that it gives; L{None}: not known.
    @ivar message: of the messages, likewise.
    @ivar name: unique in a job; empty: not given yet.
    @ivar isTable: whether it gives changes of a table, and not messages of a stream.
    @ivar number: greater than those of its parents.
    """

    kind: ClassVar[str] = ""
    isKeyed: ClassVar[bool] = False
    """Whether messages of one key must reach one task."""

    isTimed: ClassVar[bool] = False
    """Whether it keeps its stream time."""

    parents: tuple[PlanStep, ...] = ()
    key: Serde | None = None
    message: Serde | None = None
    name: str = ""
    isTable: bool = False
    number: int = field(default_factory=_numbers.__next__)

    @property
    def kindName(self) -> str:
        """What people call it."""
        return self.kind

    @property
    def changesKey(self) -> bool:
        """Whether what it gives may have other keys than the topics from which it comes."""
        return any(each.changesKey for each in self.parents)

    @property
    def stores(self) -> tuple[str, ...]:
        """The names of its stores."""
        return ()

    @property
    def reads(self) -> str:
        """The topic, or the repartition, that it reads; empty: none."""
        return ""

    @property
    def writes(self) -> str:
        """The topic, or the repartition, that it writes; empty: none."""
        return ""

    @property
    def details(self) -> str:
        """What there is to say of it, in a few words."""
        return ""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StreamSource(PlanStep):
    """
    The messages of a topic.

    @ivar timestamp: C{timestamp(key, message)} is a message's time; L{None}: its own timestamp.
    """

    kind: ClassVar[str] = "stream"
    topic: str
    timestamp: Callable[[Any, Any], int] | None = None

    @property
    def reads(self) -> str:
        """See L{PlanStep}."""
        return self.topic


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TableSource(StreamSource):
    """The last message of each key of a topic."""

    kind: ClassVar[str] = "table"

    @property
    def stores(self) -> tuple[str, ...]:
        """See L{PlanStep}."""
        return (self.name,)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class FunctionStep(PlanStep):
    """
    A step with a function.

    @ivar function: of the author.
    """

    function: Callable[..., Any]


class Filter(FunctionStep):
    """Those messages for which C{function(key, message)} is true."""

    __slots__ = ()
    kind = "filter"


class MapValues(FunctionStep):
    """C{function(message)} in place of each message."""

    __slots__ = ()
    kind = "mapValues"


class FlatMapValues(FunctionStep):
    """Each of C{function(message)} in place of a message."""

    __slots__ = ()
    kind = "flatMapValues"


class Peek(FunctionStep):
    """The messages as they are, of which C{function(key, message)} is told."""

    __slots__ = ()
    kind = "peek"


class _KeyChange(FunctionStep):
    __slots__ = ()

    @property
    def changesKey(self) -> bool:
        """See L{PlanStep}."""
        return True


class Map(_KeyChange):
    """The pair C{function(key, message)} in place of each key and message."""

    __slots__ = ()
    kind = "map"


class FlatMap(_KeyChange):
    """Each pair of C{function(key, message)} in place of a key and message."""

    __slots__ = ()
    kind = "flatMap"


class SelectKey(_KeyChange):
    """C{function(key, message)} in place of each key."""

    __slots__ = ()
    kind = "selectKey"


class TableGroup(_KeyChange):
    """
    The changes of a table under other keys, for a L{TableAggregation}: for each row
    C{function(key, value)} is the pair of its group and its message there. What it gives are pairs
    of the message that a row had and the one that it has, L{None} where there is none. Its store
    has, by the keys of the table, what each row has given.
    """

    __slots__ = ()
    kind = "groupBy"

    @property
    def stores(self) -> tuple[str, ...]:
        """See L{PlanStep}."""
        return (self.name,)


class Merge(PlanStep):
    """The messages of all parents."""

    __slots__ = ()
    kind = "merge"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RepartitionStep(PlanStep):
    """
    The same messages, by way of a topic of the job, in the tasks of their keys.

    @ivar channel: the name of the job's repartition: the step's, or that of the step before it,
        where none was asked for.
    """

    kind: ClassVar[str] = "repartition"
    channel: str = ""

    @property
    def reads(self) -> str:
        """See L{PlanStep}."""
        return self.channel

    @property
    def writes(self) -> str:
        """See L{PlanStep}."""
        return self.channel

    @property
    def changesKey(self) -> bool:
        """See L{PlanStep}."""
        return False


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Aggregation(PlanStep):
    """
    One value for each key.

    @ivar operation: one of L{OPERATIONS}.
    @ivar initial: C{initial()} is the value before the first message of a key.
    @ivar aggregator: C{aggregator(key, message, value)} gives the next value; for L{REDUCE}
        C{aggregator(value, message)}.
    """

    kind: ClassVar[str] = "aggregate"
    isKeyed: ClassVar[bool] = True
    operation: str
    initial: Callable[[], Any] | None = None
    aggregator: Callable[..., Any] | None = None

    @property
    def kindName(self) -> str:
        """See L{PlanStep}."""
        return self.operation

    @property
    def stores(self) -> tuple[str, ...]:
        """See L{PlanStep}."""
        return (self.name,)

    @property
    def changesKey(self) -> bool:
        """See L{PlanStep}."""
        return False


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class WindowedAggregation(Aggregation):
    """
    One value for each key and window.

    @ivar window: the kind of windows.
    @ivar merger: C{merger(key, value, value)} gives that of two sessions that have become one.
    @ivar emit: when it gives results.
    @ivar lateTopic: where late messages go; empty: nowhere.
    """

    isTimed: ClassVar[bool] = True
    window: AggregationWindow
    merger: Callable[[Any, Any, Any], Any] | None = None
    emit: str = ON_CHANGE
    lateTopic: str = ""

    @property
    def writes(self) -> str:
        """See L{PlanStep}."""
        return self.lateTopic

    @property
    def details(self) -> str:
        """See L{PlanStep}."""
        return f"{self.window}, {self.emit}"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TableAggregation(Aggregation):
    """
    One value for each group of a table's rows.

    @ivar subtractor: C{subtractor(key, message, value)} gives the value without a message that is
        in it; for L{REDUCE} C{subtractor(value, message)}. The aggregator adds one.
    """

    subtractor: Callable[..., Any] | None = None

    @property
    def details(self) -> str:
        """See L{PlanStep}."""
        return "of a table"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class JoinStep(PlanStep):
    """
    A join.

    @ivar joiner: C{joiner(left, right)} gives the message.
    @ivar how: one of L{JOINS}.
    """

    isKeyed: ClassVar[bool] = True
    joiner: Joiner
    how: str = INNER

    @property
    def kindName(self) -> str:
        """See L{PlanStep}."""
        return _JOIN_KINDS[self.how]

    @property
    def changesKey(self) -> bool:
        """See L{PlanStep}."""
        return False


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class WindowJoin(JoinStep):
    """
    Pairs of messages of a key of two streams that are near one another in time.

    @ivar window: how near.
    """

    isTimed: ClassVar[bool] = True
    window: JoinWindow

    @property
    def stores(self) -> tuple[str, ...]:
        """See L{PlanStep}."""
        return (f"{self.name}-left", f"{self.name}-right")

    @property
    def details(self) -> str:
        """See L{PlanStep}."""
        return str(self.window)


class StreamTableJoin(JoinStep):
    """The messages of a stream, each with what the table has for its key."""

    __slots__ = ()

    @property
    def details(self) -> str:
        """See L{PlanStep}."""
        return "stream with table"


class TableJoin(JoinStep):
    """The table of what two tables have for each key."""

    __slots__ = ()

    @property
    def details(self) -> str:
        """See L{PlanStep}."""
        return "table with table"


class ToStream(PlanStep):
    """The changes of a table, as messages."""

    __slots__ = ()
    kind = "toStream"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Sink(PlanStep):
    """
    A topic to which messages go.

    @ivar topic: an output of the job.
    """

    kind: ClassVar[str] = "to"
    topic: str

    @property
    def writes(self) -> str:
        """See L{PlanStep}."""
        return self.topic


def ancestorsOf(steps: Iterable[PlanStep]) -> list[PlanStep]:
    """The steps and all from which their messages come, each behind its parents."""
    found: dict[int, PlanStep] = {}
    waiting = list(steps)
    while waiting:
        step = waiting.pop()
        if step.number not in found:
            found[step.number] = step
            waiting += step.parents
    return [found[number] for number in sorted(found)]


def originsOf(step: PlanStep) -> list[PlanStep]:
    """The sources and repartitions in whose partitions a step's messages are."""
    found: dict[int, PlanStep] = {}
    waiting, seen = [step], set()
    while waiting:
        each = waiting.pop()
        if each.number in seen:
            continue
        seen.add(each.number)
        if not each.parents or isinstance(each, RepartitionStep):
            found[each.number] = each
        else:
            waiting += each.parents
    return [found[number] for number in sorted(found)]
