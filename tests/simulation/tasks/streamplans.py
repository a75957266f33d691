"""
Random jobs of several inputs and of the high-level API, and the plain functions of the inputs that
say what must come of them. A module of its own, since L{tests.simulation.tasks.plans} has the jobs
of one input whose outputs name their origin.

A message of a stream has a number of its own as its text. So what comes of several messages can
name them, and has the same text however often one of them is handled. A text that is C{bad} fails.
Where the order of messages decides, such as for what is late, a job has one input and no
repartition; elsewhere its windows have a grace period that no message exceeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

from pylogbroker.tasks.api import (
    Config,
    IncomingMessageEnvelope,
    MessageCollector,
    OutgoingMessageEnvelope,
    StreamTask,
    TaskContext,
    TaskCoordinator,
)
from pylogbroker.tasks.job import DEAD_LETTER, MEMORY, ROCKSDB, SKIP, Input, Job, Output, Store
from pylogbroker.tasks.serdes import STRING
from pylogbroker.tasks.streams import (
    ON_CHANGE,
    ON_CLOSE,
    HoppingWindow,
    JoinWindow,
    KSink,
    KStream,
    KTable,
    SessionWindow,
    TumblingWindow,
    ValueAndTimestamp,
    Windowed,
    buildJob,
    stream,
    table,
)
from pylogbroker.tasks.streams.steps import AGGREGATE, COUNT, INNER, LEFT, OUTER, REDUCE
from pylogbroker.testing.simulatednetwork import Process
from tests.simulation.cluster.ledger import LogRecord
from tests.simulation.tasks.plans import BAD, KEYS, PARTITION_COUNTS, Diary, Message

FORWARD, AGGREGATION, WINDOW_JOIN, TABLE_JOIN, TABLES, LOOKUP = KINDS = (
    "forward",
    "aggregation",
    "window join",
    "table join",
    "tables",
    "lookup",
)
KIND_WEIGHTS = (1, 5, 3, 2, 2, 2)

OUT, MERGED, LOOKED_UP, TABLE = "out", "merged", "looked-up", "table1"
LONG_MS = 3_600_000
"""A grace period that no message exceeds."""

EARLY_MS_MAX = 1_500
"""How far the timestamp of a message is behind the clock, at most."""


class Item(NamedTuple):
    """
    What a message has become before it is aggregated or joined.

    @ivar origin: topic, partition and offset of the message.
    @ivar time: of the message.
    """

    origin: tuple[str, int, int]
    key: str | None
    text: str | None
    time: int

    @property
    def isWhole(self) -> bool:
        """Whether it has a key and a text."""
        return self.key is not None and self.text is not None


class Due(NamedTuple):
    """
    What a window, or a key, must have.

    @ivar isOpen: whether it is in the store at the end.
    @ivar isClosed: whether it was closed.
    """

    items: list[Item]
    isOpen: bool
    isClosed: bool

    @property
    def time(self) -> int:
        """The greatest time of its messages."""
        return max(each.time for each in self.items)


# -- the functions of jobs


def checked(text: str | None) -> str | None:
    """@raise ValueError: the message is bad."""
    if text == BAD:
        raise ValueError("a bad message")
    return text


def isKept(_key: str | None, text: str | None) -> bool:
    """What a filter keeps."""
    return text is None or int(text) % 4 != 0


def doubled(text: str | None) -> list[str | None]:
    """Each message once more, and tombstones once."""
    return [text] if text is None else [text, f"{text}0000"]


def newKey(key: str | None, text: str | None) -> str | None:
    """Another key."""
    if key is None or text is None:
        return key
    return KEYS[(KEYS.index(key) + int(text)) % len(KEYS)]


def greater(one: str, other: str) -> str:
    """Of two texts, as numbers."""
    return max(one, other, key=int)


def together(_key: str, text: str, texts: str) -> str:
    """A set of texts with one more."""
    return " ".join(sorted({*texts.split(), *text.split()}))


def pair(left: str | None, right: str | None) -> str:
    """What a join gives."""
    return f"{left}+{right}"


# -- jobs


@dataclass(frozen=True)
class StreamPlan:
    """
    A job.

    @ivar kind: of L{KINDS}.
    @ivar counts: the partitions of each input.
    @ivar rekeyed: inputs whose messages get other keys, and go through a repartition.
    @ivar isDoubled: whether two messages come of one.
    @ivar operation: of an aggregation.
    @ivar window: of an aggregation or a window join; L{None}: there is none.
    @ivar how: of a join.
    @ivar isTableLive: whether the table goes on while its stream does.
    @ivar isBootstrap: whether the table of a lookup is bootstrapped.
    @ivar isBroadcast: whether it is broadcast.
    """

    name: str
    kind: str
    counts: tuple[tuple[str, int], ...]
    rekeyed: tuple[str, ...] = ()
    isFiltered: bool = False
    isDoubled: bool = False
    operation: str = COUNT
    window: HoppingWindow | SessionWindow | JoinWindow | None = None
    emit: str = ON_CHANGE
    how: str = INNER
    engine: str = ROCKSDB
    onError: str = SKIP
    isTableLive: bool = False
    isBootstrap: bool = True
    isBroadcast: bool = False

    windowMs = 0

    @property
    def inputs(self) -> tuple[str, ...]:
        """Topics that are divided among the tasks."""
        return tuple(topic for topic, _ in self.counts if topic not in self.broadcasts)

    @property
    def broadcasts(self) -> tuple[str, ...]:
        """Topics of which each task reads all."""
        return (TABLE,) if self.isBroadcast else ()

    @property
    def hasTable(self) -> bool:
        """Whether a table is there before the job begins."""
        return self.kind in (TABLE_JOIN, LOOKUP)

    @property
    def streams(self) -> tuple[str, ...]:
        """Its inputs without that table."""
        return tuple(topic for topic, _ in self.counts if topic != TABLE)

    @property
    def taskCount(self) -> int:
        """The partitions of the input that has most."""
        return max(count for topic, count in self.counts if topic in self.inputs)

    @property
    def stores(self) -> dict[str, str]:
        """The engine of each store."""
        return {each.name: each.engine for each in self.definition.stores}

    @property
    def repartitions(self) -> list[str]:
        """Topics."""
        return [self.definition.repartitionTopicOf(each) for each in self.definition.repartitions]

    @cached_property
    def definition(self) -> Job:
        """The job, without a diary."""
        return self._lookup() if self.kind == LOOKUP else self._streams()

    def channelOf(self, topic: str) -> str:
        """The repartition that the messages of an input go through; empty: none."""
        if self.kind == AGGREGATION and len(self.streams) > 1:
            return MERGED if self.rekeyed else ""
        return f"keyed-{topic}" if topic in self.rekeyed else ""

    def settled(self) -> StreamPlan:
        """The same, which does nothing by itself."""
        return self

    def job(self, diary: Diary, process: Process, random: Random) -> Job:
        """The job for a container."""
        given = self.definition
        return replace(given, task=lambda: DiaryTask(given.task(), self.name, diary, process))

    def message(self, random: Random, number: int, nowMs: int) -> Message:
        """A message of an input."""
        topics = [*self.streams, *((TABLE,) if self.hasTable and self.isTableLive else ())]
        return self._message(random.choice(topics), random, number, nowMs)

    def tableMessage(self, random: Random, number: int, nowMs: int) -> Message:
        """A message of the table."""
        return self._message(TABLE, random, number, nowMs)

    def _message(self, topic: str, random: Random, number: int, nowMs: int) -> Message:
        kind = random.random()
        key = None if kind < 0.03 else random.choice(KEYS)
        text: str | None = str(number)
        if kind > 0.92:
            text = None
        elif kind > 0.88 and topic != TABLE:
            text = BAD
        time = nowMs - int(random.random() * random.choice((0, 300, EARLY_MS_MAX)))
        return Message(topic, key, text, time)

    # -- what it does

    def _lookup(self) -> Job:
        known = Input(TABLE, STRING, STRING, self.isBootstrap, self.isBroadcast)
        (topic,) = self.streams
        return Job(
            self.name,
            LookupTask,
            [Input(topic, STRING, STRING), known],
            [Output(OUT, STRING, STRING)],
            [Store(LOOKED_UP, STRING, STRING, engine=self.engine)],
            copartitions=[] if self.isBroadcast else [(topic, TABLE)],
            onError=self.onError,
        )

    def _streams(self) -> Job:
        result = self._result()
        sink: KSink = (result.toStream() if isinstance(result, KTable) else result).to(OUT)
        return buildJob(self.name, sink, onError=self.onError, engine=self.engine)

    def _source(self, topic: str) -> KStream:
        found = stream(topic, STRING, STRING).mapValues(checked, message=STRING)
        if self.isFiltered:
            found = found.filter(isKept)
        if self.isDoubled:
            found = found.flatMapValues(doubled, message=STRING)
        if topic not in self.rekeyed:
            return found
        name = f"keyed-{topic}"
        if self.isFiltered:
            return found.map(lambda key, text: (newKey(key, text), text), STRING, STRING, name)
        return found.selectKey(newKey, STRING, name)

    def _result(self) -> KStream | KTable:
        if self.kind == TABLES:
            one, other = (
                table(each, STRING, STRING).mapValues(checked, message=STRING)
                for each in self.streams
            )
            joining = {INNER: one.join, LEFT: one.leftJoin, OUTER: one.outerJoin}
            return joining[self.how](other, pair, message=STRING)
        sources = [self._source(each) for each in self.streams]
        if self.kind == FORWARD:
            return sources[0].repartition() if self.rekeyed else sources[0]
        if self.kind == TABLE_JOIN:
            known = table(TABLE, STRING, STRING)
            joined = sources[0].leftJoin if self.how == LEFT else sources[0].join
            return joined(known, pair, message=STRING)
        if self.kind == WINDOW_JOIN:
            assert isinstance(self.window, JoinWindow)
            left, right = sources
            if self.how == INNER:
                return left.join(right, pair, self.window, STRING)
            both = left.leftJoin if self.how == LEFT else left.outerJoin
            return both(right, pair, self.window, STRING)
        merged = sources[0] if len(sources) == 1 else sources[0].merge(sources[1], MERGED)
        grouped = merged.groupByKey()
        if self.window is None:
            if self.operation == AGGREGATE:
                return grouped.aggregate(str, together, message=STRING)
            return grouped.count() if self.operation == COUNT else grouped.reduce(greater)
        assert not isinstance(self.window, JoinWindow)
        windows = grouped.window(self.window, self.emit)
        if self.operation == AGGREGATE:
            return windows.aggregate(str, together, together, STRING)
        return windows.count() if self.operation == COUNT else windows.reduce(greater)


def randomStreamPlan(random: Random) -> StreamPlan:
    """Any of them."""
    kind = random.choices(KINDS, KIND_WEIGHTS)[0]
    count, other = random.choice(PARTITION_COUNTS), random.choice(PARTITION_COUNTS)
    plan = StreamPlan(
        "job1",
        kind,
        (("in1", count),),
        isFiltered=random.random() < 0.5,
        isDoubled=random.random() < 0.3,
        engine=random.choice((MEMORY, ROCKSDB, ROCKSDB)),
        onError=random.choice((SKIP, DEAD_LETTER)),
    )
    isRekeyed = random.random() < 0.4
    if kind == FORWARD:
        return replace(plan, rekeyed=("in1",) if isRekeyed else ())
    if kind == AGGREGATION:
        return _aggregation(plan, random, isRekeyed, other)
    if kind == LOOKUP:
        isBroadcast = random.random() < 0.5
        return replace(
            plan,
            counts=(("in1", count), (TABLE, other if isBroadcast else count)),
            isTableLive=random.random() < 0.5,
            isBroadcast=isBroadcast,
            isBootstrap=random.random() < 0.7,
        )
    if kind == TABLES:
        how = random.choice((INNER, LEFT, OUTER))
        return replace(plan, counts=(("in1", count), ("in2", count)), how=how)
    if kind == TABLE_JOIN:
        return replace(
            plan,
            counts=(("in1", count), (TABLE, other if isRekeyed else count)),
            rekeyed=("in1",) if isRekeyed else (),
            how=random.choice((INNER, LEFT)),
            isTableLive=random.random() < 0.5,
        )
    rekeyed = random.choice((("in1",), ("in2",), ("in1", "in2"))) if isRekeyed else ()
    before, after = random.choice(((200, 200), (0, 1_000), (500, 0)))
    return replace(
        plan,
        counts=(("in1", count), ("in2", other if isRekeyed else count)),
        rekeyed=rekeyed,
        window=JoinWindow(before, after, random.choice((0, LONG_MS, LONG_MS))),
        how=random.choice((INNER, INNER, LEFT, OUTER)),
    )


def _aggregation(plan: StreamPlan, random: Random, isRekeyed: bool, other: int) -> StreamPlan:
    ((topic, count),) = plan.counts
    isMerged = random.random() < 0.25
    counts = plan.counts
    if isMerged:
        counts = (*counts, ("in2", other if isRekeyed else count))
    isOrdered = not isMerged and not isRekeyed
    graceMs = random.choice((0, 0, 300, LONG_MS)) if isOrdered else LONG_MS
    return replace(
        plan,
        counts=counts,
        rekeyed=(topic,) if isRekeyed else (),
        operation=random.choice((COUNT, COUNT, REDUCE, AGGREGATE, AGGREGATE)),
        window=random.choice(
            (
                None,
                TumblingWindow(random.choice((100, 700)), graceMs),
                HoppingWindow(800, 300, graceMs),
                SessionWindow(random.choice((50, 300)), graceMs),
                SessionWindow(200, graceMs),
            )
        ),
        emit=random.choice((ON_CHANGE, ON_CLOSE)) if isOrdered else ON_CHANGE,
    )


class DiaryTask(StreamTask):
    """A task, and what it is given is written down."""

    def __init__(self, inner: StreamTask, job: str, diary: Diary, process: Process) -> None:
        self.inner = inner
        self.job = job
        self.diary = diary
        self.reactor = process

    def init(self, config: Config, context: TaskContext) -> None:
        self.diary.begins(self.job, context.partition, self.reactor)
        self.inner.init(config, context)

    def process(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> Any:
        self.diary.handles(self.job, envelope, self.reactor)
        self.inner.process(envelope, collector, coordinator)


class LookupTask(StreamTask):
    """Joins the messages of a stream with what a table has."""

    def init(self, config: Config, context: TaskContext) -> None:
        self.known = context.getStore(LOOKED_UP)

    def process(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> Any:
        key, text = envelope.key, checked(envelope.message)
        if envelope.topic == TABLE:
            if key is not None:
                self.known.delete(key) if text is None else self.known.put(key, text)
        elif key is not None and text is not None:
            collector.send(OutgoingMessageEnvelope(OUT, key, pair(text, self.known.get(key))))


# -- the plain functions


Inputs = Mapping[str, Mapping[int, Sequence[LogRecord]]]
"""The records that count, by topic and partition."""


def textOf(record: LogRecord) -> str | None:
    """The text of a message."""
    return None if record.value is None else record.value.decode()


def _keyOf(record: LogRecord) -> str | None:
    return None if record.key is None else record.key.decode()


def badOf(inputs: Inputs, topics: Iterable[str]) -> list[tuple[str, int, int]]:
    """The messages that fail."""
    return [
        (topic, partition, each.offset)
        for topic in topics
        for partition, records in inputs[topic].items()
        for each in records
        if textOf(each) == BAD
    ]


def itemsOf(plan: StreamPlan, inputs: Inputs, topic: str) -> list[Item]:
    """What the messages of a stream become, those of each partition in order."""
    found: list[Item] = []
    for partition, records in inputs[topic].items():
        for record in records:
            key, text = _keyOf(record), textOf(record)
            if text == BAD or (plan.isFiltered and plan.kind != LOOKUP and not isKept(key, text)):
                continue
            isDoubled = plan.isDoubled and plan.kind != LOOKUP
            for each in doubled(text) if isDoubled else [text]:
                new = newKey(key, each) if topic in plan.rekeyed else key
                found.append(Item((topic, partition, record.offset), new, each, record.timestampMs))
    return found


def aggregated(operation: str, items: Iterable[Item]) -> int | str:
    """The value of an aggregation."""
    texts = [each.text for each in items if each.text is not None]
    if operation == COUNT:
        return len(texts)
    return max(texts, key=int) if operation == REDUCE else " ".join(sorted({*texts}))


def windowsOf(plan: StreamPlan, inputs: Inputs) -> dict[Any, Due]:
    """What an aggregation must have for each key, or for each key and window."""
    items = [
        each for topic in plan.streams for each in itemsOf(plan, inputs, topic) if each.isWhole
    ]
    window = plan.window
    if window is None:
        keys: dict[Any, list[Item]] = defaultdict(list)
        for each in items:
            keys[each.key].append(each)
        return {key: Due(some, True, False) for key, some in keys.items()}
    found: dict[Any, Due] = {}
    if window.graceMs == LONG_MS:  # the order does not matter
        tasks = [items]
    else:
        numbers = sorted({each.origin[1] for each in items})
        tasks = [[each for each in items if each.origin[1] == task] for task in numbers]
    divide = _sessionsOf if isinstance(window, SessionWindow) else _fixedOf
    for some in tasks:
        found.update(divide(window, some))
    return found


def _fixedOf(window: Any, items: Iterable[Item]) -> dict[Any, Due]:
    found: dict[Windowed, list[Item]] = defaultdict(list)
    now, openMs = -1, window.sizeMs + window.graceMs
    for each in items:
        now = max(now, each.time)
        last = each.time // window.advanceMs * window.advanceMs
        for start in range(last, each.time - window.sizeMs, -window.advanceMs):
            if start > now - openMs:
                found[Windowed(each.key, start, start + window.sizeMs)].append(each)
    return {
        key: Due(some, key.startMs > now - openMs, key.startMs <= now - openMs)
        for key, some in found.items()
    }


def _sessionsOf(window: Any, items: Iterable[Item]) -> dict[Any, Due]:
    found: dict[str | None, list[tuple[int, int, list[Item]]]] = defaultdict(list)
    now, gap, grace = -1, window.gapMs, window.graceMs
    for each in items:
        now = max(now, each.time)
        lastClosed = now - grace - 1
        start, end = each.time, each.time + gap
        near = [one for one in found[each.key] if one[0] <= end and one[1] >= start]
        if end <= lastClosed or any(one[1] <= lastClosed for one in near):
            continue
        merged = [item for one in near for item in one[2]]
        start, end = min([start, *(one[0] for one in near)]), max([end, *(one[1] for one in near)])
        found[each.key] = [one for one in found[each.key] if one not in near]
        found[each.key].append((start, end, [*merged, each]))
    return {
        Windowed(key, start, end): Due(some, end >= now - grace - gap, end < now - grace)
        for key, sessions in found.items()
        for start, end, some in sessions
    }


def pairsOf(plan: StreamPlan, inputs: Inputs) -> list[tuple[str, Item, Item]]:
    """The pairs of a window join, if no message comes late."""
    window = plan.window
    assert isinstance(window, JoinWindow)
    lefts, rights = (
        [each for each in itemsOf(plan, inputs, topic) if each.isWhole] for topic in plan.streams
    )
    return [
        (left.key, left, right)
        for left in lefts
        for right in rights
        if left.key is not None
        and left.key == right.key
        and left.time - window.beforeMs <= right.time <= left.time + window.afterMs
    ]


def lastOf(inputs: Inputs, topic: str) -> dict[str, ValueAndTimestamp]:
    """What a table has at the end."""
    found: dict[str, ValueAndTimestamp] = {}
    for records in inputs[topic].values():
        for each in records:
            key, text = _keyOf(each), textOf(each)
            if key is None or text == BAD:
                continue
            if text is None:
                found.pop(key, None)
            else:
                found[key] = ValueAndTimestamp(text, each.timestampMs)
    return found


def possibleOf(
    inputs: Inputs, topic: str, ends: Mapping[tuple[str, int], int]
) -> Callable[[str], set[str | None]]:
    """
    What a table can have for a key while its stream is read.

    @param ends: where its partitions ended before.
    """
    found: dict[str, set[str | None]] = {}
    for partition, records in inputs[topic].items():
        for each in records:
            key = _keyOf(each)
            if key is None:
                continue
            if each.offset < ends.get((topic, partition), 0):
                found[key] = {textOf(each)}
            else:
                found.setdefault(key, {None}).add(textOf(each))
    return lambda key: found.get(key, {None})


joinedTables = {
    INNER: lambda left, right: None if left is None or right is None else pair(left, right),
    LEFT: lambda left, right: None if left is None else pair(left, right),
    OUTER: lambda left, right: None if left is None and right is None else pair(left, right),
}
