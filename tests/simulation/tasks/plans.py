"""
Random jobs, their tasks, and the plain function of the inputs that says what must come of them.

A task counts the messages of each key and topic, sends some for each message, under the same key or
another one, and sums up what it gets until the next window. A tombstone takes a count back. A
message that is C{bad} fails when it has written and sent already.

What a message has become can be told from the headers of what was sent for it: its topic,
partition, offset, and a number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar, NamedTuple, Protocol

from twisted.internet.task import deferLater

from pylogbroker.tasks.api import (
    Config,
    IncomingMessageEnvelope,
    MessageCollector,
    OutgoingMessageEnvelope,
    StreamTask,
    TaskContext,
    TaskCoordinator,
)
from pylogbroker.tasks.job import (
    DEAD_LETTER,
    MEMORY,
    ROCKSDB,
    SKIP,
    STOP,
    Input,
    Job,
    Output,
    Store,
)
from pylogbroker.tasks.serdes import STRING
from pylogbroker.testing.simulatednetwork import Process
from tests.simulation.cluster.ledger import LogRecord

KEYS = "abcdef"
BAD = "bad"
COUNTS, SUMS = "counts", "sums"
ORIGIN = "origin"
"""The header."""

PARTITION_COUNTS = (1, 2, 2, 3)


@dataclass(frozen=True)
class Plan:
    """
    A job.

    @ivar inputs: topics.
    @ivar taskCount: partitions of the input that has most.
    @ivar output: a topic; empty: none.
    @ivar isRekeyed: whether what it sends has another key.
    @ivar isPinned: whether what a task sends stays in its partition.
    @ivar counts: the engine of the store; empty: there is none.
    @ivar sums: likewise; what it has is sent in each window, to a topic of its own.
    @ivar commitEvery: a task asks for a commit behind each so-manieth offset; 0: behind none.
    """

    name: str
    inputs: tuple[str, ...]
    taskCount: int
    output: str = ""
    isRekeyed: bool = False
    isPinned: bool = False
    counts: str = ""
    sums: str = ""
    windowMs: int = 0
    onError: str = STOP
    isAsync: bool = False
    commitEvery: int = 0

    @property
    def sumsTopic(self) -> str:
        """Where the sums of windows go."""
        return f"{self.name}-sums"

    @property
    def stores(self) -> dict[str, str]:
        """The engine of each store."""
        return {name: each for name, each in ((COUNTS, self.counts), (SUMS, self.sums)) if each}

    @property
    def topics(self) -> list[str]:
        """What it writes, beside changelogs and dead letters."""
        return [self.output] * bool(self.output) + [self.sumsTopic] * bool(self.sums)

    repartitions: ClassVar[Sequence[str]] = ()
    broadcasts: ClassVar[Sequence[str]] = ()

    def settled(self) -> Plan:
        """The same, which does nothing by itself: a window would go on with what is restored."""
        return replace(self, windowMs=0)

    def job(self, diary: Diary, process: Process, random: Random) -> Job:
        """The job for a container."""

        def makeTask() -> StreamTask:
            if self.isAsync:
                return AsyncPlannedTask(self, diary, process, Random(random.getrandbits(32)))
            return PlannedTask(self, diary, process)

        return Job(
            self.name,
            makeTask,
            [Input(each, STRING, STRING) for each in self.inputs],
            [Output(each, STRING, STRING) for each in self.topics],
            [Store(name, STRING, STRING, engine=engine) for name, engine in self.stores.items()],
            windowMs=self.windowMs,
            onError=self.onError,
        )


def randomPlans(random: Random, partitionCounts: Mapping[str, int]) -> list[Plan]:
    """
    A chain of jobs: each reads what the one before has sent, and perhaps another topic.

    @param partitionCounts: of the first inputs.
    """
    plans: list[Plan] = []
    counts = dict(partitionCounts)
    first = list(counts)
    onError = random.choice((SKIP, DEAD_LETTER))  # of those who read what may be bad
    jobCount = random.choice((1, 1, 1, 2, 2, 3))
    for number in range(1, jobCount + 1):
        name = f"job{number}"
        own = [plans[-1].output] if plans else [first[0]]
        if random.random() < 0.3:
            own.append(first[-1])
        inputs = tuple(dict.fromkeys(own))
        taskCount = max(counts[each] for each in inputs)
        hasOutput = number < jobCount or random.random() < 0.8
        output = f"out{number}" if hasOutput else ""
        kinds = (MEMORY, ROCKSDB, ROCKSDB)
        hasCounts = random.random() < 0.75 or not output
        store = random.choice(kinds) if hasCounts else ""
        sums = random.choice(kinds) if hasCounts and random.random() < 0.3 else ""
        isFirst = any(each in first for each in inputs)
        plans.append(
            Plan(
                name,
                inputs,
                taskCount,
                output,
                isRekeyed=random.random() < 0.5,
                isPinned=random.random() < 0.2,
                counts=store,
                sums=sums,
                windowMs=random.choice((100, 700)) if sums else 0,
                onError=onError if isFirst else STOP,
                isAsync=random.random() < 0.3,
                commitEvery=random.choice((0, 0, 0, 3, 7)),
            )
        )
        if output:
            counts[output] = taskCount
    return plans


class Message(NamedTuple):
    """
    A message of an input.

    @ivar timestamp: L{None}: now.
    """

    topic: str
    key: str | None
    text: str | None
    timestamp: int | None = None


def randomMessage(random: Random, topics: Sequence[str]) -> Message:
    """A message of one of the first inputs of a chain."""
    topic, key, kind = random.choice(topics), random.choice(KEYS), random.random()
    text = BAD if kind < 0.05 else None if kind < 0.15 else str(random.randrange(100))
    return Message(topic, key, text)


# -- what a message becomes


def fanout(number: int) -> int:
    """How many messages are sent for one."""
    return (1, 0, 1, 2)[number % 4]


def keyOf(plan: Plan, key: str, number: int, index: int) -> str:
    """The key of one of them."""
    if not plan.isRekeyed:
        return key
    return KEYS[(2 * KEYS.index(key) + number + index) % len(KEYS)]


def valueOf(number: int, index: int, count: int, keyCount: int) -> str:
    """
    What it says.

    @param count: of the key in the topic so far.
    @param keyCount: the keys that have been counted in the topic so far.
    """
    return str((number + index + 7 * count + 31 * keyCount) % 1_000)


class Diary(Protocol):
    """Is told what tasks do."""

    def begins(self, job: str, partition: int, process: Process) -> None:
        """A task begins in a process."""

    def handles(self, job: str, envelope: IncomingMessageEnvelope, process: Process) -> None:
        """A task is given a message."""


class PlannedTask(StreamTask):
    """See the module."""

    def __init__(self, plan: Plan, diary: Diary, reactor: Process) -> None:
        self.plan = plan
        self.diary = diary
        self.reactor = reactor

    def init(self, config: Config, context: TaskContext) -> None:
        self.partition = context.partition
        self.diary.begins(self.plan.name, context.partition, self.reactor)
        self.counts = context.getStore(COUNTS) if self.plan.counts else None
        self.sums = context.getStore(SUMS) if self.plan.sums else None

    def process(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> Any:
        self.note(envelope)
        self.send(envelope, collector, coordinator, *self.store(envelope))

    def note(self, envelope: IncomingMessageEnvelope) -> None:
        """It was given a message."""
        self.diary.handles(self.plan.name, envelope, self.reactor)

    def store(self, envelope: IncomingMessageEnvelope) -> tuple[int, int]:
        """@return: the count of the key, and that of the topic's keys."""
        key, text, count, keyCount = envelope.key, envelope.message, 0, 0
        number = _numberOf(text)
        if self.counts is not None:
            counted = f"{envelope.topic}:{key}"
            if text is None:
                self.counts.delete(counted)
            else:
                count = int(self.counts.get(counted) or "0") + 1
                self.counts.put(counted, str(count))
            found = self.counts.range(f"{envelope.topic}:", f"{envelope.topic};")
            keyCount = sum(1 for _entry in found)
        if self.sums is not None and number:
            self.sums.put(key, str(int(self.sums.get(key) or "0") + number))
        return count, keyCount

    def send(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
        count: int,
        keyCount: int,
    ) -> None:
        """Send what the message becomes."""
        plan, key, text = self.plan, envelope.key, envelope.message
        number = _numberOf(text)
        for index in range(fanout(number)) if plan.output else ():
            origin = f"{envelope.topic}/{envelope.partition}/{envelope.offset}/{index}"
            collector.send(
                OutgoingMessageEnvelope(
                    plan.output,
                    keyOf(plan, key, number, index),
                    None if text is None else valueOf(number, index, count, keyCount),
                    partition=self.partition if plan.isPinned else None,
                    headers=[(ORIGIN, origin.encode())],
                )
            )
        if text == BAD:
            raise ValueError("a bad message")
        if plan.commitEvery and envelope.offset % plan.commitEvery == 0:
            coordinator.commit()

    def window(self, collector: MessageCollector, coordinator: TaskCoordinator) -> Any:
        if self.sums is not None:
            for key, text in self.sums.all():
                collector.send(OutgoingMessageEnvelope(self.plan.sumsTopic, key, text))
                self.sums.delete(key)


class AsyncPlannedTask(PlannedTask):
    """The same with coroutines: others go on while it waits."""

    def __init__(self, plan: Plan, diary: Diary, reactor: Process, random: Random) -> None:
        super().__init__(plan, diary, reactor)
        self.random = random

    async def _pause(self) -> None:
        if self.random.random() < 0.3:
            await deferLater(self.reactor, self.random.choice((0.0, 0.01, 0.1)))

    async def process(
        self,
        envelope: IncomingMessageEnvelope,
        collector: MessageCollector,
        coordinator: TaskCoordinator,
    ) -> None:
        self.note(envelope)
        await self._pause()
        stored = self.store(envelope)
        await self._pause()
        self.send(envelope, collector, coordinator, *stored)

    async def window(self, collector: MessageCollector, coordinator: TaskCoordinator) -> None:
        await self._pause()
        super().window(collector, coordinator)


def _numberOf(text: str | None) -> int:
    return int(text) if text and text != BAD else 0


# -- the plain function


class Sent(NamedTuple):
    """What must have been sent. The origin is that of L{ORIGIN}."""

    key: str
    value: str | None
    origin: str


class Truth(NamedTuple):
    """
    What comes of the messages of one task.

    @ivar sent: for each message, in order, by topic.
    @ivar counts: of each topic and key, C{topic:key}.
    @ivar sums: of each key: what was sent in windows, and what waits for one.
    @ivar dead: the origins of messages that fail.
    @ivar counted: the messages that a count is of, likewise.
    """

    sent: dict[str, list[Sent]]
    counts: dict[str, int]
    sums: Counter[str]
    dead: list[str]
    counted: dict[str, list[int]]


def truthOf(plan: Plan, partition: int, records: Mapping[str, Iterable[LogRecord]]) -> Truth:
    """
    The plain function.

    @param records: of the partition in each input, those that count.
    """
    sent: dict[str, list[Sent]] = {}
    counts: dict[str, int] = {}
    counted: dict[str, list[int]] = defaultdict(list)
    sums: Counter[str] = Counter()
    dead: list[str] = []
    for topic, some in records.items():
        mine: dict[str, int] = {}
        made = sent[topic] = []
        for record in some:
            assert record.key is not None
            key, text = record.key.decode(), record.value and record.value.decode()
            origin = f"{topic}/{partition}/{record.offset}"
            if text == BAD:
                dead.append(origin)
                continue
            number = 0 if text is None else int(text)
            if text is None:
                mine.pop(key, None)
                counted[f"{topic}:{key}"] = []
            else:
                mine[key] = mine.get(key, 0) + 1
                counted[f"{topic}:{key}"].append(record.offset)
            sums[key] += number
            count, keyCount = (mine.get(key, 0), len(mine)) if plan.counts else (0, 0)
            for index in range(fanout(number)):
                value = None if text is None else valueOf(number, index, count, keyCount)
                made.append(Sent(keyOf(plan, key, number, index), value, f"{origin}/{index}"))
        counts.update((f"{topic}:{key}", count) for key, count in mine.items())
    return Truth(sent, counts, sums, dead, counted)
