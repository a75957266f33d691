"""
The high-level API: streams and tables of which each method gives another one. A module of its own,
since job files import it, by way of C{pylogbroker.tasks.streams}::

    clicks = stream("clicks", key=STRING, message=JSON)
    counts = (
        clicks.filter(isHuman)
        .selectKey(pageOf, key=STRING)
        .groupByKey()
        .window(TumblingWindow(sizeMs=60_000, graceMs=10_000))
        .count()
    )
    pageViews = buildJob("page-views", counts.toStream().to("page-views"))

Names are Kafka Streams' where it has them. Nothing runs here: the methods make the steps of
L{pylogbroker.tasks.streams.steps}, which L{pylogbroker.tasks.streams.compiler} makes a job of.

A function of the author is called for each message, maybe again after a failure, and in a table
also when another step reads it: it should give the same result each time. C{key} and C{message} are
serdes of what a step gives. They are needed where the messages reach a store, a repartition or a
topic. A step that makes other keys or messages forgets the serdes it is not given. C{name} names a
step, and its stores and topics; by default it is named by its kind and a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any, overload

from pylogbroker.errors import ConfigurationError
from pylogbroker.tasks.serdes import BYTES, LONG, Serde
from pylogbroker.tasks.streams.steps import (
    AGGREGATE,
    COUNT,
    INNER,
    LEFT,
    OUTER,
    REDUCE,
    Aggregation,
    Filter,
    FlatMap,
    FlatMapValues,
    FunctionStep,
    Joiner,
    Map,
    MapValues,
    Merge,
    Peek,
    PlanStep,
    RepartitionStep,
    SelectKey,
    Sink,
    StreamSource,
    StreamTableJoin,
    TableAggregation,
    TableGroup,
    TableJoin,
    TableSource,
    ToStream,
    WindowedAggregation,
    WindowJoin,
)
from pylogbroker.tasks.streams.stores import OptionalPairSerde
from pylogbroker.tasks.streams.windows import (
    EMITS,
    ON_CHANGE,
    ON_CLOSE,
    AggregationWindow,
    HoppingWindow,
    JoinWindow,
    SessionWindow,
    WindowedSerde,
)


def stream(
    topic: str,
    key: Serde = BYTES,
    message: Serde = BYTES,
    name: str = "",
    timestamp: Callable[[Any, Any], int] | None = None,
) -> KStream:
    """
    The messages of a topic.

    @param name: by default the topic's.
    @param timestamp: C{timestamp(key, message)} is the time of a message, in milliseconds since the
        epoch, or -1: none; by default it is the message's timestamp. It sets no order: topics are
        read by the timestamps of their messages.
    """
    if timestamp is not None:
        _checkFunction(StreamSource.kind, name or topic, timestamp)
    source = StreamSource(topic=topic, key=key, message=message, name=name, timestamp=timestamp)
    return KStream(source)


def table(topic: str, key: Serde = BYTES, message: Serde = BYTES, name: str = "") -> KTable:
    """
    What a topic has for each key: its last message. Messages without a key are left out. A task
    reads the topic to its present end before it gets a message of a stream, and afterwards before
    those of the same time.

    @param name: also of its store; by default the topic's.
    """
    return KTable(TableSource(topic=topic, key=key, message=message, name=name, isTable=True))


class _Node:
    """
    A stream, a table, or what becomes one.

    @ivar step: which gives its messages.
    """

    def __init__(self, step: PlanStep) -> None:
        self.step = step

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.step.name or self.step.kindName}>"

    def _function(
        self,
        kind: type[FunctionStep],
        function: Callable[..., Any],
        key: Serde | None,
        message: Serde | None,
        name: str,
    ) -> FunctionStep:
        """The step of a function, behind this one."""
        _checkFunction(kind.kind, name, function)
        return kind(parents=(self.step,), function=function, key=key, message=message, name=name)


class KStream(_Node):
    """Messages, each of which stands for itself."""

    def filter(self, predicate: Callable[[Any, Any], Any], name: str = "") -> KStream:
        """Those for which C{predicate(key, message)} is true."""
        return KStream(self._function(Filter, predicate, self.step.key, self.step.message, name))

    def filterNot(self, predicate: Callable[[Any, Any], Any], name: str = "") -> KStream:
        """Those for which C{predicate(key, message)} is false."""
        return self.filter(lambda key, message: not predicate(key, message), name)

    def map(
        self,
        mapper: Callable[[Any, Any], tuple[Any, Any]],
        key: Serde | None = None,
        message: Serde | None = None,
        name: str = "",
    ) -> KStream:
        """The pair C{mapper(key, message)} in place of each."""
        return KStream(self._function(Map, mapper, key, message, name))

    def mapValues(
        self, mapper: Callable[[Any], Any], message: Serde | None = None, name: str = ""
    ) -> KStream:
        """C{mapper(message)} in place of each message, under the same key."""
        return KStream(self._function(MapValues, mapper, self.step.key, message, name))

    def flatMap(
        self,
        mapper: Callable[[Any, Any], Iterable[tuple[Any, Any]]],
        key: Serde | None = None,
        message: Serde | None = None,
        name: str = "",
    ) -> KStream:
        """The pairs C{mapper(key, message)} in place of each."""
        return KStream(self._function(FlatMap, mapper, key, message, name))

    def flatMapValues(
        self, mapper: Callable[[Any], Iterable[Any]], message: Serde | None = None, name: str = ""
    ) -> KStream:
        """The messages C{mapper(message)} in place of each, under the same key."""
        return KStream(self._function(FlatMapValues, mapper, self.step.key, message, name))

    def selectKey(
        self, mapper: Callable[[Any, Any], Any], key: Serde | None = None, name: str = ""
    ) -> KStream:
        """The same messages under the keys C{mapper(key, message)}."""
        return KStream(self._function(SelectKey, mapper, key, self.step.message, name))

    def peek(self, action: Callable[[Any, Any], Any], name: str = "") -> KStream:
        """This stream; C{action(key, message)} is called for each message."""
        return KStream(self._function(Peek, action, self.step.key, self.step.message, name))

    def merge(self, other: KStream, name: str = "") -> KStream:
        """The messages of both, in no order of their own."""
        mine, its = self.step, other.step
        return KStream(
            Merge(
                parents=(mine, its),
                key=mine.key if mine.key is its.key else None,
                message=mine.message if mine.message is its.message else None,
                name=name,
            )
        )

    def repartition(self, name: str = "") -> KStream:
        """The same messages, each in the task of its key, by way of a topic of the job."""
        step = self.step
        return KStream(
            RepartitionStep(parents=(step,), key=step.key, message=step.message, name=name)
        )

    def groupByKey(self) -> KGroupedStream:
        """Messages of one key together."""
        return KGroupedStream(self.step)

    def groupBy(
        self, selector: Callable[[Any, Any], Any], key: Serde | None = None, name: str = ""
    ) -> KGroupedStream:
        """
        Messages together that have the same C{selector(key, message)}, which becomes their key.
        """
        return self.selectKey(selector, key, name).groupByKey()

    @overload
    def join(
        self,
        other: KStream,
        joiner: Joiner,
        window: JoinWindow,
        message: Serde | None = None,
        name: str = "",
    ) -> KStream: ...

    @overload
    def join(
        self, other: KTable, joiner: Joiner, *, message: Serde | None = None, name: str = ""
    ) -> KStream: ...

    def join(
        self,
        other: KStream | KTable,
        joiner: Joiner,
        window: JoinWindow | None = None,
        message: Serde | None = None,
        name: str = "",
    ) -> KStream:
        """
        C{joiner(mine, its)} for each pair of messages of one key: with a stream, of those that are
        near one another in time; with a table, of each message with what the table has then.

        @param window: how near, for a stream.
        @raise ConfigurationError: a window for a table, or none for a stream.
        """
        return self._join(other, joiner, window, INNER, message, name)

    @overload
    def leftJoin(
        self,
        other: KStream,
        joiner: Joiner,
        window: JoinWindow,
        message: Serde | None = None,
        name: str = "",
    ) -> KStream: ...

    @overload
    def leftJoin(
        self, other: KTable, joiner: Joiner, *, message: Serde | None = None, name: str = ""
    ) -> KStream: ...

    def leftJoin(
        self,
        other: KStream | KTable,
        joiner: Joiner,
        window: JoinWindow | None = None,
        message: Serde | None = None,
        name: str = "",
    ) -> KStream:
        """
        As L{join}, and C{joiner(mine, None)} for each message that has no other one: with a stream,
        once none can come any more.
        """
        return self._join(other, joiner, window, LEFT, message, name)

    def outerJoin(
        self,
        other: KStream,
        joiner: Joiner,
        window: JoinWindow,
        message: Serde | None = None,
        name: str = "",
    ) -> KStream:
        """As L{leftJoin}, and C{joiner(None, its)} likewise."""
        return self._join(other, joiner, window, OUTER, message, name)

    def _join(
        self,
        other: KStream | KTable,
        joiner: Joiner,
        window: JoinWindow | None,
        how: str,
        message: Serde | None,
        name: str,
    ) -> KStream:
        _checkFunction("join", name, joiner)
        parents, key = (self.step, other.step), self.step.key
        if isinstance(other, KTable):
            if window is not None:
                raise ConfigurationError(
                    f"{_called('join', name)}: with a table there is no window"
                )
            if how == OUTER:
                raise ConfigurationError(
                    f"{_called('join', name)}: a stream has no outer join with a table"
                )
            _refuseFinal(name, other)
            return KStream(
                StreamTableJoin(
                    parents=parents, key=key, message=message, joiner=joiner, how=how, name=name
                )
            )
        if not isinstance(window, JoinWindow):
            raise ConfigurationError(
                f"{_called('join', name)}: two streams are joined in a JoinWindow, not {window!r}"
            )
        return KStream(
            WindowJoin(
                parents=parents,
                key=key,
                message=message,
                joiner=joiner,
                how=how,
                window=window,
                name=name,
            )
        )

    def to(
        self,
        topic: str,
        key: Serde | None = None,
        message: Serde | None = None,
        name: str = "",
    ) -> KSink:
        """
        Send the messages to a topic.

        @param key: by default the stream's.
        @param message: likewise.
        """
        step = self.step
        return KSink(
            Sink(
                parents=(step,),
                topic=topic,
                key=key or step.key,
                message=message or step.message,
                name=name,
            )
        )


class KSink(_Node):
    """A topic that a job writes, for L{pylogbroker.tasks.streams.compiler.buildJob}."""


class KGroupedStream(_Node):
    """
    Messages, those of one key together. Those without a key, or without a message, are left out and
    counted.
    """

    def window(self, window: AggregationWindow, emit: str = ON_CHANGE) -> WindowedStream:
        """
        Those of one window together.

        @param emit: L{ON_CHANGE}: a result for each message; L{ON_CLOSE}: one when the window is
            closed.
        @raise ConfigurationError: that is none.
        """
        if not isinstance(window, HoppingWindow | SessionWindow):
            raise ConfigurationError(f"{window!r} is no window in which messages are aggregated")
        if emit not in EMITS:
            raise ConfigurationError(f"emit={emit!r} is none of {', '.join(EMITS)}")
        return WindowedStream(self.step, window, emit)

    def count(self, name: str = "") -> KTable:
        """The table of the counts of messages."""
        return self._aggregated(COUNT, None, None, LONG, name)

    def reduce(self, reducer: Callable[[Any, Any], Any], name: str = "") -> KTable:
        """The table of messages that are made one, two at a time: C{reducer(value, message)}."""
        _checkFunction(REDUCE, name, reducer)
        return self._aggregated(REDUCE, None, reducer, self.step.message, name)

    def aggregate(
        self,
        initial: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        message: Serde | None = None,
        name: str = "",
    ) -> KTable:
        """
        The table of values that begin with C{initial()}, and after each message are
        C{aggregator(key, message, value)}; L{None} removes the key.

        @param message: of the values.
        """
        _checkFunction(AGGREGATE, name, initial, aggregator)
        return self._aggregated(AGGREGATE, initial, aggregator, message, name)

    def _aggregated(
        self,
        operation: str,
        initial: Callable[[], Any] | None,
        aggregator: Callable[..., Any] | None,
        message: Serde | None,
        name: str,
    ) -> KTable:
        return KTable(
            Aggregation(
                parents=(self.step,),
                key=self.step.key,
                message=message,
                operation=operation,
                initial=initial,
                aggregator=aggregator,
                name=name,
                isTable=True,
            )
        )


class WindowedStream(_Node):
    """
    Messages, those of one key and one window together. The tables that come of it have keys of the
    kind L{Windowed<pylogbroker.tasks.streams.windows.Windowed>}, and forget closed windows.
    """

    def __init__(
        self, step: PlanStep, window: AggregationWindow, emit: str, lateTopic: str = ""
    ) -> None:
        super().__init__(step)
        self._window, self._emit, self._lateTopic = window, emit, lateTopic

    def lateTo(self, topic: str) -> WindowedStream:
        """
        The same, and messages for windows that are closed go to a topic; they are counted in any
        case.
        """
        return WindowedStream(self.step, self._window, self._emit, topic)

    def count(self, name: str = "") -> KTable:
        """See L{KGroupedStream}."""
        return self._aggregated(COUNT, None, None, None, LONG, name)

    def reduce(self, reducer: Callable[[Any, Any], Any], name: str = "") -> KTable:
        """See L{KGroupedStream}; also makes one value of those of two sessions."""
        _checkFunction(REDUCE, name, reducer)
        return self._aggregated(REDUCE, None, reducer, None, self.step.message, name)

    def aggregate(
        self,
        initial: Callable[[], Any],
        aggregator: Callable[[Any, Any, Any], Any],
        merger: Callable[[Any, Any, Any], Any] | None = None,
        message: Serde | None = None,
        name: str = "",
    ) -> KTable:
        """
        See L{KGroupedStream}.

        @param merger: C{merger(key, earlier, later)} makes one value of those of two sessions.
        @raise ConfigurationError: there is none, and the windows are sessions.
        """
        if isinstance(self._window, SessionWindow) and merger is None:
            raise ConfigurationError(
                f"{_called(AGGREGATE, name)}: sessions become one: it needs a merger"
            )
        _checkFunction(AGGREGATE, name, initial, aggregator, *(() if merger is None else (merger,)))
        return self._aggregated(AGGREGATE, initial, aggregator, merger, message, name)

    def _aggregated(
        self,
        operation: str,
        initial: Callable[[], Any] | None,
        aggregator: Callable[..., Any] | None,
        merger: Callable[[Any, Any, Any], Any] | None,
        message: Serde | None,
        name: str,
    ) -> KTable:
        key = self.step.key
        return KTable(
            WindowedAggregation(
                parents=(self.step,),
                key=None if key is None else WindowedSerde(key),
                message=message,
                operation=operation,
                initial=initial,
                aggregator=aggregator,
                merger=merger,
                window=self._window,
                emit=self._emit,
                lateTopic=self._lateTopic,
                name=name,
                isTable=True,
            )
        )


class KGroupedTable(_Node):
    """
    The rows of a table, those of one group together. When a row changes, or goes to another group,
    its earlier message is taken out of its group's value. Rows that have no group, or no message
    there, are left out and counted.
    """

    def count(self, name: str = "") -> KTable:
        """The table of the counts of rows; one that has lost all has 0."""
        return self._aggregated(COUNT, None, None, None, LONG, name)

    def reduce(
        self,
        adder: Callable[[Any, Any], Any],
        subtractor: Callable[[Any, Any], Any],
        name: str = "",
    ) -> KTable:
        """
        The table of messages that are made one: C{adder(value, message)} with one more, and
        C{subtractor(value, message)} without one that is in it. L{None} removes the group.
        """
        _checkFunction(REDUCE, name, adder, subtractor)
        pairs = self.step.message
        message = pairs.second if isinstance(pairs, OptionalPairSerde) else None
        return self._aggregated(REDUCE, None, adder, subtractor, message, name)

    def aggregate(
        self,
        initial: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        subtractor: Callable[[Any, Any, Any], Any],
        message: Serde | None = None,
        name: str = "",
    ) -> KTable:
        """
        The table of values that begin with C{initial()}: C{adder(group, message, value)} with one
        more message, and C{subtractor(group, message, value)} without one that is in it. L{None}
        removes the group.

        @param message: of the values.
        """
        _checkFunction(AGGREGATE, name, initial, adder, subtractor)
        return self._aggregated(AGGREGATE, initial, adder, subtractor, message, name)

    def _aggregated(
        self,
        operation: str,
        initial: Callable[[], Any] | None,
        adder: Callable[..., Any] | None,
        subtractor: Callable[..., Any] | None,
        message: Serde | None,
        name: str,
    ) -> KTable:
        return KTable(
            TableAggregation(
                parents=(self.step,),
                key=self.step.key,
                message=message,
                operation=operation,
                initial=initial,
                aggregator=adder,
                subtractor=subtractor,
                name=name,
                isTable=True,
            )
        )


class KTable(_Node):
    """One value for each key. L{None} is none: it removes what was there."""

    def groupBy(
        self,
        grouper: Callable[[Any, Any], tuple[Any, Any]],
        key: Serde | None = None,
        message: Serde | None = None,
        name: str = "",
    ) -> KGroupedTable:
        """
        Rows of one group together: C{grouper(key, value)} is the pair of a row's group and its
        message there.

        @param key: of the groups.
        @param message: of the messages.
        @raise ConfigurationError: the table has windows: it forgets those that are closed.
        """
        waiting: list[PlanStep] = [self.step]
        while waiting:
            step = waiting.pop()
            if isinstance(step, WindowedAggregation):
                raise ConfigurationError(
                    f"{_called('groupBy', name)}: a table of windows forgets those that are closed:"
                    " it cannot be grouped"
                )
            waiting += (each for each in step.parents if each.isTable)
        pairs = None if message is None else OptionalPairSerde(message, message)
        return KGroupedTable(self._function(TableGroup, grouper, key, pairs, name))

    def filter(self, predicate: Callable[[Any, Any], Any], name: str = "") -> KTable:
        """The table of those for which C{predicate(key, value)} is true."""
        step = self._function(Filter, predicate, self.step.key, self.step.message, name)
        return KTable(replace(step, isTable=True))

    def mapValues(
        self, mapper: Callable[[Any], Any], message: Serde | None = None, name: str = ""
    ) -> KTable:
        """The table of C{mapper(value)} for each value."""
        step = self._function(MapValues, mapper, self.step.key, message, name)
        return KTable(replace(step, isTable=True))

    def join(
        self, other: KTable, joiner: Joiner, message: Serde | None = None, name: str = ""
    ) -> KTable:
        """The table of C{joiner(mine, its)} for each key that both have."""
        return self._join(other, joiner, INNER, message, name)

    def leftJoin(
        self, other: KTable, joiner: Joiner, message: Serde | None = None, name: str = ""
    ) -> KTable:
        """As L{join}, and C{joiner(mine, None)} where the other one has nothing."""
        return self._join(other, joiner, LEFT, message, name)

    def outerJoin(
        self, other: KTable, joiner: Joiner, message: Serde | None = None, name: str = ""
    ) -> KTable:
        """As L{leftJoin}, and C{joiner(None, its)} where this one has nothing."""
        return self._join(other, joiner, OUTER, message, name)

    def _join(
        self, other: KTable, joiner: Joiner, how: str, message: Serde | None, name: str
    ) -> KTable:
        _checkFunction("join", name, joiner)
        _refuseFinal(name, self, other)
        return KTable(
            TableJoin(
                parents=(self.step, other.step),
                key=self.step.key,
                message=message,
                joiner=joiner,
                how=how,
                name=name,
                isTable=True,
            )
        )

    def toStream(self, name: str = "") -> KStream:
        """Each change, as a message; L{None} where a key is removed."""
        step = self.step
        return KStream(ToStream(parents=(step,), key=step.key, message=step.message, name=name))


def _called(kind: str, name: str) -> str:
    return f"step {name}" if name else f"a {kind}"


def _checkFunction(kind: str, name: str, *functions: Callable[..., Any]) -> None:
    for each in functions:
        if not callable(each):
            raise ConfigurationError(f"{_called(kind, name)}: {each!r} is no function")
        if iscoroutinefunction(each):
            raise ConfigurationError(
                f"{_called(kind, name)}: {each.__name__} is a coroutine function; steps do not wait"
            )


def _refuseFinal(name: str, *tables: KTable) -> None:
    for each in tables:
        step = each.step
        while len(step.parents) == 1 and not isinstance(step, Aggregation):
            (step,) = step.parents
        if isinstance(step, WindowedAggregation) and step.emit == ON_CLOSE:
            raise ConfigurationError(
                f"{_called('join', name)}: results that come when windows are closed are no table"
                " to join: use toStream()"
            )
