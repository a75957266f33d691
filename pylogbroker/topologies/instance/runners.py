"""
Runners: they call the author's code for what comes in, and hand over what it emits. A module of its
own, since it knows neither threads nor connections: an executor calls L{Runner.turn}, and it is all
the same whether on a thread, in a simulation or in a test.

What must be true:

  - The author's methods are called by C{turn} alone, one at a time.
  - A turn ends soon: after L{InstanceSettings.flushDelay} seconds or a number of tuples. What was
  emitted is handed over at its end. One call of the author's code may take longer.
  - A batch counts as handled when the last of its tuples is: until then it takes up room, which is
  what holds back the sender.
  - A spout's C{nextTuple} is called only while the topology is active and fewer tuples than
  C{topology.max.spout.pending} are pending. The output must have room, and no back pressure.
  - Each id that a spout has emitted comes back once, by C{ack} or C{fail}: also when the stream
  manager is another one meanwhile, or never answers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from traceback import extract_tb
from typing import Any, NamedTuple, TypeAlias

import msgspec

import pylogbroker
from pylogbroker.errors import ComponentFailedError, WireError, describeError
from pylogbroker.topologies.api import (
    SYSTEM_TASK,
    TICK_COMPONENT,
    TICK_STREAM,
    Bolt,
    Spout,
    StreamTuple,
    TopologyContext,
)
from pylogbroker.topologies.instance.collectors import (
    FLUSH_SIZE,
    BoltCollector,
    Collector,
    EncodedEntry,
    SpoutCollector,
)
from pylogbroker.topologies.messages import ACKED, FAILED, TUPLES, BatchEntry, decodeNumbers
from pylogbroker.topologies.plan import PackingPlan
from pylogbroker.topologies.topology import StreamId, Topology

TURN_COUNT_MAX = 10_000
"""Tuples that a turn handles, or calls of C{nextTuple}."""

TIMEOUT_FACTOR = 2
"""
Message time-outs behind which a spout fails a tuple by itself. The acker's time-out comes first,
unless what it says is lost.
"""

_PACKAGE = str(Path(pylogbroker.__file__).parent)

_decode = msgspec.msgpack.Decoder().decode


class InstanceSettings(NamedTuple):
    """
    How an instance trades latency for throughput.

    @ivar flushSize: bytes of tuples at which they are sent, though a turn is not over.
    @ivar flushDelay: seconds of a turn.
    @ivar outputSizeMax: bytes that may wait for the stream manager: a spout is not asked for more,
        and a bolt's C{emit} waits.
    @ivar idleDelay: seconds behind a C{nextTuple} that has emitted nothing; they double up to
        C{idleDelayMax}.
    """

    flushSize: int = FLUSH_SIZE
    flushDelay: float = 0.005
    outputSizeMax: int = 1 << 20
    idleDelay: float = 0.001
    idleDelayMax: float = 0.032


DEFAULT_SETTINGS = InstanceSettings()


class RunnerOutput(NamedTuple):
    """
    Where a runner hands over.

    @ivar send: called with entries, and the number of the last batch that is handled. It may block.
    @ivar mayEmit: whether a spout may emit.
    @ivar report: called with the text of an error that the instance survives.
    @ivar wake: called on any thread, has C{turn} called soon; L{None}: there is no thread.
    """

    send: Callable[[list[EncodedEntry], int], object]
    mayEmit: Callable[[], bool]
    report: Callable[[str], object]
    wake: Callable[[], object] | None = None


class _InputError(WireError):
    """What has come in is wrong. The author's code may raise other errors of the wire."""


class _Batch(NamedTuple):
    number: int
    entries: Sequence[BatchEntry]


_Item: TypeAlias = _Batch | Callable[[], object]


class Runner:
    """
    The runner of an instance: what runners of spouts and of bolts share.

    All but L{turn} may be called from another thread.

    @ivar handledCount: tuples that were handled, or calls of C{nextTuple}.
    @ivar isClosed: whether the author's object was closed: turns do nothing any more.
    """

    def __init__(
        self,
        topology: Topology,
        packing: PackingPlan,
        task: int,
        output: RunnerOutput,
        seconds: Callable[[], float],
        random: Random,
        settings: InstanceSettings = DEFAULT_SETTINGS,
    ) -> None:
        """
        @param packing: which container has which instances.
        @param task: the number of this instance.
        @param seconds: the clock.
        @param random: used by turns alone.
        @raise KeyError: the packing has no such task.
        """
        self.handledCount = 0
        self.isClosed = False
        self._instance = {each.task: each for each in packing.instances}[task]
        self._topology = topology
        self._spec = topology.components[self._instance.component]
        self._options = topology.optionsOf(self._spec.name)
        self._output = output
        self._seconds = seconds
        self._random = random
        self._settings = settings
        self._packing = packing
        self._counters: Counter[str] = Counter()
        self._busySeconds = 0.0
        self._inbox: deque[_Item] = deque()
        self._handledNumber = self._sentNumber = 0
        self._isClosing = False
        self._hasBegun = False
        self._method = "__init__"
        self._collector = self._newCollector(self._newContext())

    def _newCollector(self, context: TopologyContext) -> Collector:
        return Collector(self._topology, context, self._flush, self._settings.flushSize)

    def _newContext(self) -> TopologyContext:
        tasks: dict[str, list[int]] = {name: [] for name in self._topology.components}
        for each in self._packing.instances:
            tasks[each.component].append(each.task)
        return TopologyContext(
            self._topology.name,
            self._spec.name,
            self._instance.task,
            self._instance.index,
            tasks,
            {
                name: {stream: each.fields for stream, each in spec.outputs.items()}
                for name, spec in self._topology.components.items()
            },
            self._seconds,
            self._random.random,
            self._count,
            {(each.component, each.stream): how for each, how in self._spec.inputs.items()},
            {
                stream: self._topology.consumersOf(StreamId(self._spec.name, stream))
                for stream in self._spec.outputs
            },
            None if self._output.wake is None else self._callFromThread,
        )

    def _count(self, name: str, number: int) -> None:
        self._counters[name] += number

    def _callFromThread(self, function: Callable[[], None]) -> None:
        def call() -> None:
            self._method = "a call from a thread"
            function()

        self._inbox.append(call)
        assert self._output.wake is not None  # the context would not have this
        self._output.wake()

    # What an executor calls.

    def turn(self, countMax: int = TURN_COUNT_MAX) -> float | None:
        """
        Handle what has come in, for a while. The first turn makes the author's object.

        @param countMax: how many tuples, or calls of C{nextTuple}.
        @return: the seconds behind which there is more to do; L{None}: when something comes in.
        @raise ComponentFailedError: the author's code has raised.
        @raise WireError: what has come in cannot be decoded.
        """
        if self.isClosed:
            return None
        begun = self._seconds()
        wait: float | None = None
        try:
            if not self._hasBegun:
                self._begin()
            if self._isClosing:
                self._method = "close"
                self.component.close()
                self.isClosed = True
            else:
                wait = self._work(countMax, begun + self._settings.flushDelay)
        except _InputError:
            raise
        except (Exception, SystemExit) as error:  # the author's code
            where = f"{self.where}, in {self._method}"
            # With the author's frames, since a Failure does not show those of a cause.
            raise ComponentFailedError(where, _describe(error)).with_traceback(
                error.__traceback__
            ) from error
        self._busySeconds += self._seconds() - begun
        self._flush()
        return wait

    def _begin(self) -> None:
        self._hasBegun = True
        self.component: Any = self._spec.factory()
        self.component.collector = self._collector
        self._method = "a grouping"
        context = self._newContext()
        self._changePacking(self._packing)
        self._method = "initialize"
        self.component.initialize(self._topology.configOf(self._spec.name), context)

    def _changePacking(self, packing: PackingPlan) -> None:
        self._packing = packing
        container = packing.containerOf(self._instance.task)
        local = () if container is None else [each.task for each in container.instances]
        self._collector.replan(self._topology, self._newContext(), local)

    def _work(self, countMax: int, deadline: float) -> float | None:
        raise NotImplementedError

    def _flush(self) -> None:
        entries = self._collector.take()
        if entries or self._handledNumber > self._sentNumber:
            self._sentNumber = self._handledNumber
            self._output.send(entries, self._handledNumber)

    # What a gateway calls.

    def take(self, number: int, entries: Sequence[BatchEntry]) -> None:
        """
        A batch has come in.

        @param number: higher than any before.
        """
        self._inbox.append(_Batch(number, entries))

    def setActive(self, isActive: bool) -> None:
        """The topology is active, or it is not."""

    def replan(self, packing: PackingPlan) -> None:
        """The instances are elsewhere."""
        self._inbox.append(lambda: self._changePacking(packing))

    def close(self) -> None:
        """Have the next turn be the last one; what waits is left."""
        self._isClosing = True

    def metrics(self) -> dict[str, float]:
        """What was counted since the beginning, and what waits now."""
        collector = self._collector
        return {
            "handled": self.handledCount,
            "busySeconds": self._busySeconds,
            "waitingBatches": len(self._inbox),
            "acked": collector.ackedCount,
            "failed": collector.failedCount,
            **{f"emitted.{name}": number for name, number in collector.emittedCounts.items()},
            **{f"counter.{name}": number for name, number in dict(self._counters).items()},
        }

    @property
    def where(self) -> str:
        """The instance, for people."""
        return (
            f"topology {self._topology.name}, component {self._spec.name}, task"
            f" {self._instance.task} (index {self._instance.index})"
        )


class SpoutRunner(Runner):
    """The runner of an instance of a spout."""

    component: Spout

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._isActive = False
        self._idleDelay = self._settings.idleDelay
        self._timeout = self._options.messageTimeoutMs * TIMEOUT_FACTOR / 1000
        self._nextExpiry = 0.0
        self._completeSeconds = 0.0
        self._stoppedSince: float | None = None
        self._stoppedSeconds = 0.0

    def _newCollector(self, context: TopologyContext) -> Collector:
        if not self._options.isAtLeastOnce:
            self._pending: dict[int, tuple[Any, float]] = {}
            return super()._newCollector(context)
        collector = SpoutCollector(
            self._topology, context, self._flush, self._random.getrandbits, self._settings.flushSize
        )
        self._pending = collector.pending
        return collector

    def setActive(self, isActive: bool) -> None:
        """See L{Runner.setActive}: C{activate} or C{deactivate} is called if it changes."""
        self._inbox.append(lambda: self._changeActive(isActive))

    def failPending(self) -> None:
        """The acker is another one: fail all that is pending."""
        self._inbox.append(lambda: self._failThose(list(self._pending)))

    def metrics(self) -> dict[str, float]:
        """See L{Runner.metrics}."""
        since = self._stoppedSince
        stoppedSeconds = self._stoppedSeconds + (0 if since is None else self._seconds() - since)
        return {
            **super().metrics(),
            "pending": len(self._pending),
            "completeSeconds": self._completeSeconds,
            "stoppedSeconds": stoppedSeconds,
        }

    def _changeActive(self, isActive: bool) -> None:
        if isActive == self._isActive:
            return
        self._isActive = isActive
        self._goOn()
        self._method = "activate" if isActive else "deactivate"
        if isActive:
            self.component.activate()
        else:
            self.component.deactivate()

    def _work(self, countMax: int, deadline: float) -> float | None:
        inbox = self._inbox
        while inbox:
            item = inbox.popleft()
            if isinstance(item, _Batch):
                self._end(item)
            else:
                item()
        wait = self._expire() if self._pending and self._timeout else None
        if self._isActive:
            asked = self._ask(countMax, deadline)
            wait = min((each for each in (wait, asked) if each is not None), default=None)
        return 0.0 if self._ackUntracked() else wait

    def _ask(self, countMax: int, deadline: float) -> float | None:
        """Call C{nextTuple} while it may be."""
        collector, pending, seconds = self._collector, self._pending, self._seconds
        pendingMax, mayEmit = self._options.maxSpoutPending, self._output.mayEmit
        nextTuple = self.component.nextTuple
        self._method = "nextTuple"
        called = 0
        wait: float | None = None
        while len(pending) < pendingMax:
            if not mayEmit():
                if self._stoppedSince is None:
                    self._stoppedSince = seconds()
                break
            if self._stoppedSince is not None:
                self._goOn()
            before = collector.emittedCount
            nextTuple()
            called += 1
            if collector.emittedCount == before:
                wait = self._idleDelay if called == 1 else self._settings.idleDelay
                self._idleDelay = min(wait * 2, self._settings.idleDelayMax)
                break
            if called >= countMax or seconds() >= deadline:
                wait = 0.0
                self._idleDelay = self._settings.idleDelay
                break
        self.handledCount += called
        return wait

    def _goOn(self) -> None:
        """Nothing stops it any more."""
        if self._stoppedSince is not None:
            self._stoppedSeconds += self._seconds() - self._stoppedSince
            self._stoppedSince = None

    def _ackUntracked(self) -> bool:
        """
        At most once, a tuple is acknowledged when it is sent.

        @return: whether C{ack} has emitted others with ids.
        """
        untracked = self._collector.untracked
        if untracked:
            self._flush()
            self._method = "ack"
            for _ in range(len(untracked)):
                self._collector.ackedCount += 1
                self.component.ack(untracked.popleft())
        return bool(untracked)

    def _end(self, batch: _Batch) -> None:
        """The acker says how trees have come to their ends."""
        for kind, _task, _amount, data in batch.entries:
            if kind not in (ACKED, FAILED):
                raise _InputError(f"{self.where}: a spout got an entry of kind {kind}")
            try:
                roots = decodeNumbers(data)
            except WireError as error:
                raise _InputError(f"{self.where}: {error}") from error
            if kind == ACKED:
                self._ackThose(roots)
            else:
                self._failThose(roots)
        self._handledNumber = batch.number

    def _ackThose(self, roots: Sequence[int]) -> None:
        self._method = "ack"
        now = self._seconds()
        for root in roots:
            found = self._pending.pop(root, None)
            if found is not None:  # it was not failed before
                self._collector.ackedCount += 1
                self._completeSeconds += now - found[1]
                self.component.ack(found[0])

    def _failThose(self, roots: Sequence[int]) -> None:
        self._method = "fail"
        for root in roots:
            found = self._pending.pop(root, None)
            if found is not None:
                self._collector.failedCount += 1
                self.component.fail(found[0])

    def _expire(self) -> float:
        """Fail what the acker is silent about; returns the seconds until the next look."""
        now = self._seconds()
        if now >= self._nextExpiry:
            self._nextExpiry = now + self._timeout / 8
            expired = []
            for root, (_id, emitted) in self._pending.items():
                if now < emitted + self._timeout:
                    break
                expired.append(root)
            self._failThose(expired)
        return self._nextExpiry - now


class BoltRunner(Runner):
    """The runner of an instance of a bolt."""

    component: Bolt

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._ids = count(1)
        self._tuples: Iterator[StreamTuple] = iter(())
        self._executed: Counter[str] = Counter()
        self._hasTick = False

    def _newCollector(self, context: TopologyContext) -> Collector:
        if not self._options.isAtLeastOnce:
            return super()._newCollector(context)
        return BoltCollector(
            self._topology, context, self._flush, self._random.getrandbits, self._settings.flushSize
        )

    def tick(self) -> None:
        """Have C{process} called with a tick tuple, unless one waits."""
        if not self._hasTick:
            self._hasTick = True
            self._inbox.append(self._beginTick)

    def metrics(self) -> dict[str, float]:
        """See L{Runner.metrics}."""
        executed = {f"executed.{name}": number for name, number in dict(self._executed).items()}
        return {**super().metrics(), **executed}

    def _changePacking(self, packing: PackingPlan) -> None:
        super()._changePacking(packing)
        self._sources = {
            each.task: (
                each.component,
                {
                    name: spec.fields
                    for name, spec in self._topology.components[each.component].outputs.items()
                },
            )
            for each in packing.instances
        }

    def _beginTick(self) -> None:
        self._hasTick = False
        tick = StreamTuple(
            next(self._ids),
            TICK_COMPONENT,
            TICK_STREAM,
            SYSTEM_TASK,
            (self._options.tickMs / 1000,),
            ("seconds",),
        )
        self._tuples = iter([tick])

    def _work(self, countMax: int, deadline: float) -> float | None:
        inbox, seconds = self._inbox, self._seconds
        kind = type(self.component)
        isAutomatic = kind.isAutoAnchored or kind.isAutoAcked
        process = self._processAutomatically if isAutomatic else self.component.process
        left = countMax
        while True:
            self._method = "process"
            for tup in self._tuples:
                process(tup)
                left -= 1
                if not left or seconds() >= deadline:
                    self.handledCount += countMax - left
                    return 0.0
            if not inbox:
                self.handledCount += countMax - left
                self._method = "idle"
                self.component.idle()
                return None
            item = inbox.popleft()
            if isinstance(item, _Batch):
                self._tuples = self._decoded(item)
            else:
                item()

    def _processAutomatically(self, tup: StreamTuple) -> None:
        bolt = self.component
        if bolt.isAutoAnchored:
            bolt._current = (tup,)
        try:
            bolt.process(tup)
        except Exception as error:
            if not bolt.isAutoAcked:
                raise
            self._collector.fail(tup)
            self._output.report(f"{self.where}, in process: {_describe(error)}; the tuple failed")
        else:
            if bolt.isAutoAcked:
                self._collector.ack(tup)
        finally:
            bolt._current = ()

    def _decoded(self, batch: _Batch) -> Iterator[StreamTuple]:
        """The tuples of a batch, which is handled when the last one is asked for another one."""
        ids, isTracked = self._ids, self._options.isAtLeastOnce
        for entry in batch.entries:
            component, stream, source, fields, tuples = self._decodedEntry(entry)
            if isTracked:
                for roots, values in tuples:
                    yield StreamTuple(next(ids), component, stream, source, values, fields, roots)
            else:
                for values in tuples:
                    yield StreamTuple(next(ids), component, stream, source, values, fields)
            self._executed[f"{component}.{stream}"] += len(tuples)
        self._handledNumber = batch.number

    def _decodedEntry(self, entry: BatchEntry) -> tuple[str, str, int, Sequence[str], list[Any]]:
        if entry.kind != TUPLES or entry.task != self._instance.task:
            raise _InputError(
                f"{self.where}: a bolt got an entry of kind {entry.kind} for task {entry.task}"
            )
        try:
            source, stream, tuples = _decode(entry.data)
            component, streams = self._sources[source]
            return component, stream, source, streams[stream], tuples
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise _InputError(f"{self.where}: tuples cannot be decoded: {error}") from error
        except KeyError as error:
            raise _InputError(f"{self.where}: a tuple of an unknown source, {error}") from error


def newRunner(
    topology: Topology,
    packing: PackingPlan,
    task: int,
    output: RunnerOutput,
    seconds: Callable[[], float],
    random: Random,
    settings: InstanceSettings = DEFAULT_SETTINGS,
) -> SpoutRunner | BoltRunner:
    """The runner of an instance; see L{Runner}."""
    names = {each.task: each.component for each in packing.instances}
    kind = SpoutRunner if topology.components[names[task]].isSpout else BoltRunner
    return kind(topology, packing, task, output, seconds, random, settings)


def _describe(error: BaseException) -> str:
    """What was raised, and the author's line: the last one that is not of this package."""
    frames = extract_tb(error.__traceback__)
    authors = [each for each in frames if not each.filename.startswith(_PACKAGE)]
    frame = (authors or frames)[-1]
    return (
        f"{type(error).__name__}: {describeError(error)}, at line {frame.lineno} of"
        f" {frame.filename}"
    )
