"""
Collectors: what an instance emits, acknowledges and fails, until it is sent. A module of its own,
since it is the cost of each tuple that is emitted; it has no clock and no connection.

What must be true:

  - A tuple is grouped and encoded when it is emitted: what the author does with the values
  afterwards changes nothing, and an error is raised where the author emits.
  - Tuples for one task are sent in the order in which they were emitted, across its streams.
  - Roots, acknowledgements and failures are sent before the tuples that were emitted with them: so
  the acker knows a root before any instance can acknowledge it.
  - A tuple is acknowledged or failed once; what is anchored to it comes before.

The data of an entry of tuples is one MessagePack array: the task that has emitted them, the name of
the stream, and the tuples. A tuple is the array of its values; with tracking (at least once) it is
an array of its roots, flat, and that array.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Any, NamedTuple, NoReturn

import msgspec

from pylogbroker.errors import TupleError, describeError
from pylogbroker.topologies.api import StreamTuple, TopologyContext
from pylogbroker.topologies.groupings import Chooser, chooserOf
from pylogbroker.topologies.messages import (
    ACKS,
    FAILS,
    FRAME_SIZE_MAX,
    ROOTS,
    TUPLES,
    encodeEntry,
    encodeNumbers,
)
from pylogbroker.topologies.topology import StreamId, Topology

TUPLE_SIZE_MAX = FRAME_SIZE_MAX // 4
"""Bytes of a tuple's values, encoded."""

FLUSH_SIZE = 32 << 10
"""Bytes of tuples at which they are sent, though the author's code has not returned."""

CONTROL_SIZE = 18
"""Bytes that a root, an acknowledgement or a failure counts for."""

DONE = -1
"""C{StreamTuple.edges} of a tuple that is acknowledged or failed."""

_ARRAY = Struct(">cI")  # the head of an array of up to 2**32 - 1
_ONE_ROOT = Struct(">3sIcQcQ")  # a tuple of two: an array of a task, a root and an edge; and values
_NO_ROOTS = b"\x92\x90"

_encode = msgspec.msgpack.Encoder().encode


class EncodedEntry(NamedTuple):
    """
    An entry of a batch, to be sent.

    @ivar data: the entry, encoded.
    @ivar amount: how many tuples or numbers are in it.
    """

    data: bytes
    amount: int


def _numbersEntry(kind: int, task: int, amount: int, numbers: Sequence[int]) -> EncodedEntry:
    return EncodedEntry(encodeEntry(kind, task, amount, encodeNumbers(numbers)), amount)


class _Output:
    """A stream of the component: the tasks that get it, and what its tuples have in common."""

    __slots__ = ("choose", "count", "directTasks", "fields", "isRead", "name", "prefix", "size")

    def __init__(self, name: str, fields: Sequence[str], task: int) -> None:
        self.name = name
        self.fields = fields
        self.size = len(fields)
        self.count = 0
        self.prefix = b"\x93" + _encode(task) + _encode(name)
        self.isRead = False
        self.choose: Chooser = _noTask
        self.directTasks: frozenset[int] | None = None  # None: no grouping of it is direct


def _noTask(values: Sequence[Any]) -> Sequence[int]:
    return ()


def _allOf(choosers: Sequence[Chooser], values: Sequence[Any]) -> Sequence[int]:
    return [task for choose in choosers for task in choose(values)]


class _Buffer:
    """The tuples for one task, all of one stream; C{entries} has those before."""

    __slots__ = ("entries", "output", "task", "tuples")

    def __init__(self, task: int) -> None:
        self.task = task
        self.output: _Output | None = None
        self.tuples: list[bytes] = []
        self.entries: list[EncodedEntry] = []


class Collector:
    """
    The collector of an instance whose tuples are not tracked (at most once). Those with tracking
    inherit from it.

    @ivar size: bytes that wait to be taken, about.
    @ivar emittedCount: how many tuples were emitted.
    @ivar ackedCount: how many tuples were acknowledged.
    @ivar failedCount: how many tuples have failed.
    @ivar untracked: ids of a spout's tuples that need no acker: they are to be acknowledged at
        once.
    """

    def __init__(
        self,
        topology: Topology,
        context: TopologyContext,
        flush: Callable[[], object],
        flushSize: int = FLUSH_SIZE,
    ) -> None:
        """
        @param flush: called within an emit when L{size} is over C{flushSize}; it calls L{take}.
        """
        self.size = 0
        self.emittedCount = 0
        self.ackedCount = 0
        self.failedCount = 0
        self.untracked: deque[Any] = deque()
        self._flush = flush
        self._flushSize = flushSize
        self._where = f"topology {topology.name}, component {context.component}"
        self._buffers: dict[int, _Buffer] = {}
        self._filled: list[_Buffer] = []  # those with tuples; one with entries may be there twice
        self._outputs: dict[str, _Output] = {
            name: _Output(name, spec.fields, context.taskId)
            for name, spec in topology.components[context.component].outputs.items()
        }

    def replan(
        self, topology: Topology, context: TopologyContext, localTasks: Sequence[int]
    ) -> None:
        """
        Group from now on by the tasks of a plan; before the first call, nothing can be emitted.

        @param localTasks: the tasks of the instance's container.
        """
        for tasks in context.componentTasks.values():
            for task in tasks:
                self._buffers.setdefault(task, _Buffer(task))
        for name, output in self._outputs.items():
            consumers = topology.consumersOf(StreamId(context.component, name))
            choosers = [
                chooserOf(grouping, context, name, bolt, localTasks)
                for bolt, grouping in consumers.items()
                if grouping.kind != "direct"
            ]
            output.isRead = bool(consumers)
            if len(choosers) == 1:
                (output.choose,) = choosers
            else:
                output.choose = partial(_allOf, choosers) if choosers else _noTask
            if consumers and not choosers:
                output.directTasks = frozenset(
                    task for bolt in consumers for task in context.componentTasks[bolt]
                )

    @property
    def emittedCounts(self) -> dict[str, int]:
        """How many tuples were emitted on each stream."""
        return {name: output.count for name, output in self._outputs.items()}

    def emit(
        self,
        values: Sequence[Any],
        stream: str,
        tupleId: Any,
        anchors: Sequence[StreamTuple],
        directTask: int | None,
    ) -> Sequence[int]:
        """See L{ICollector}."""
        output, tasks, data = self._encoded(values, stream, directTask)
        for task in tasks:
            self._append(task, output, data)
        if tupleId is not None:
            self.untracked.append(tupleId)
        if self.size >= self._flushSize:
            self._flush()
        return tasks

    def ack(self, tup: StreamTuple) -> None:
        """See L{ICollector}."""
        if tup.edges >= 0:
            tup.edges = DONE
            self.ackedCount += 1

    def fail(self, tup: StreamTuple) -> None:
        """See L{ICollector}."""
        if tup.edges >= 0:
            tup.edges = DONE
            self.failedCount += 1

    def take(self) -> list[EncodedEntry]:
        """What is to be sent, in its order; it is forgotten."""
        if not self.size:
            return []
        taken = self._control()
        for buffer in self._filled:
            if buffer.tuples:
                self._close(buffer)
            taken += buffer.entries
            buffer.entries.clear()
        self._filled.clear()
        self.size = 0
        return taken

    def _control(self) -> list[EncodedEntry]:
        return []

    def _append(self, task: int, output: _Output, data: bytes) -> None:
        buffer = self._buffers[task]
        if buffer.output is not output:
            if buffer.tuples:
                self._close(buffer)
            buffer.output = output
        if not buffer.tuples:
            self._filled.append(buffer)
        buffer.tuples.append(data)
        self.size += len(data)

    def _close(self, buffer: _Buffer) -> None:
        tuples = buffer.tuples
        count = len(tuples)
        assert buffer.output is not None  # the tuples are of it
        data = b"".join((buffer.output.prefix, _ARRAY.pack(b"\xdd", count), *tuples))
        buffer.entries.append(EncodedEntry(encodeEntry(TUPLES, buffer.task, count, data), count))
        tuples.clear()

    def _encoded(
        self, values: Sequence[Any], stream: str, directTask: int | None
    ) -> tuple[_Output, Sequence[int], bytes]:
        """Checked, grouped and encoded. Without a receiver, it is not encoded."""
        output = self._outputs.get(stream)
        if output is None or not isinstance(values, list | tuple) or len(values) != output.size:
            self._refuse(output, values, stream)
        try:
            if directTask is None and output.directTasks is None:
                tasks = output.choose(values)
            else:
                tasks = self._direct(output, directTask)
            data = _encode(values) if tasks else b""
            if len(data) > TUPLE_SIZE_MAX:  # a batch with it has to fit a frame
                raise TupleError(f"a tuple of {len(data)} bytes; {TUPLE_SIZE_MAX} are accepted")
        except TupleError as error:
            raise TupleError(f"{self._where}, stream {stream}: {error}") from None
        except Exception as error:  # of msgspec's, or of a custom grouping
            raise self._encodingError(output, values, error) from error
        output.count += 1
        self.emittedCount += 1
        return output, tasks, data

    def _refuse(self, output: _Output | None, values: Any, stream: str) -> NoReturn:
        where = f"{self._where}, stream {stream}"
        if output is None:
            declared = ", ".join(self._outputs) or "none"
            raise TupleError(f"{where}: it is not declared; declared: {declared}")
        if not isinstance(values, list | tuple):
            raise TupleError(f"{where}: {values!r:.100}: values are a list or a tuple")
        raise TupleError(
            f"{where}: {len(values)} values for the fields {', '.join(output.fields) or 'none'}:"
            f" {values!r:.100}"
        )

    def _direct(self, output: _Output, directTask: int | None) -> Sequence[int]:
        if not output.isRead:
            return ()
        if output.directTasks is None:
            raise TupleError(f"no grouping of it is direct, and task {directTask} is to get it")
        if directTask is None:
            raise TupleError("its grouping is direct, and no directTask is given")
        if directTask not in output.directTasks:
            raise TupleError(
                f"task {directTask} does not get it directly, but"
                f" {', '.join(map(str, sorted(output.directTasks)))}"
            )
        return (directTask,)

    def _encodingError(
        self, output: _Output, values: Sequence[Any], error: Exception
    ) -> TupleError:
        where = f"{self._where}, stream {output.name}"
        for field, value in zip(output.fields, values, strict=True):
            try:
                _encode(value)
            except Exception as reason:
                return TupleError(
                    f"{where}, field {field}: {value!r:.100} cannot be encoded:"
                    f" {describeError(reason)}"
                )
        return TupleError(f"{where}: {type(error).__name__}: {describeError(error)}")


class SpoutCollector(Collector):
    """
    The collector of an instance of a spout whose tuples are tracked (at least once).

    @ivar pending: by root, the ids of tuples that are neither acknowledged nor failed, and when
        they were emitted; the oldest first.
    """

    def __init__(
        self,
        topology: Topology,
        context: TopologyContext,
        flush: Callable[[], object],
        randomBits: Callable[[int], int],
        flushSize: int = FLUSH_SIZE,
    ) -> None:
        """
        @param randomBits: from a number of bits to a random number of that size, such as
            C{random.Random().getrandbits}.
        """
        super().__init__(topology, context, flush, flushSize)
        self.pending: dict[int, tuple[Any, float]] = {}
        self._task = context.taskId
        self._seconds = context.seconds
        self._randomBits = randomBits
        self._roots: list[int] = []

    def emit(
        self,
        values: Sequence[Any],
        stream: str,
        tupleId: Any,
        anchors: Sequence[StreamTuple],
        directTask: int | None,
    ) -> Sequence[int]:
        """See L{ICollector}."""
        output, tasks, data = self._encoded(values, stream, directTask)
        if tupleId is None or not tasks:
            if tupleId is not None:
                self.untracked.append(tupleId)
            data = _NO_ROOTS + data
            for task in tasks:
                self._append(task, output, data)
        else:
            bits = self._randomBits
            root, edges = bits(64), 0
            for task in tasks:
                edge = bits(64)
                edges ^= edge
                head = _ONE_ROOT.pack(b"\x92\x93\xce", self._task, b"\xcf", root, b"\xcf", edge)
                self._append(task, output, head + data)
            self._roots += (root, edges)
            self.size += CONTROL_SIZE
            self.pending[root] = tupleId, self._seconds()
        if self.size >= self._flushSize:
            self._flush()
        return tasks

    def _control(self) -> list[EncodedEntry]:
        roots = self._roots
        if not roots:
            return []
        self._roots = []
        return [_numbersEntry(ROOTS, self._task, len(roots) // 2, roots)]


class BoltCollector(Collector):
    """The collector of an instance of a bolt whose tuples are tracked (at least once)."""

    def __init__(
        self,
        topology: Topology,
        context: TopologyContext,
        flush: Callable[[], object],
        randomBits: Callable[[int], int],
        flushSize: int = FLUSH_SIZE,
    ) -> None:
        """
        @param randomBits: as of L{SpoutCollector}.
        """
        super().__init__(topology, context, flush, flushSize)
        self._randomBits = randomBits
        self._acks: dict[int, list[int]] = {}  # by the task of the spout
        self._fails: dict[int, list[int]] = {}

    def emit(
        self,
        values: Sequence[Any],
        stream: str,
        tupleId: Any,
        anchors: Sequence[StreamTuple],
        directTask: int | None,
    ) -> Sequence[int]:
        """
        See L{ICollector}.

        @raise TupleError: an anchor is acknowledged or failed already.
        """
        for anchor in anchors:
            if anchor.edges < 0:
                raise TupleError(
                    f"{self._where}, stream {stream}: the anchor {anchor!r} is acknowledged or"
                    " failed already"
                )
        output, tasks, data = self._encoded(values, stream, directTask)
        if len(anchors) == 1 and len(anchors[0].roots) == 3:
            (anchor,) = anchors
            spoutTask, root, _edge = anchor.roots
            for task in tasks:
                edge = self._randomBits(64)
                anchor.edges ^= edge
                head = _ONE_ROOT.pack(b"\x92\x93\xce", spoutTask, b"\xcf", root, b"\xcf", edge)
                self._append(task, output, head + data)
        else:
            for task in tasks:
                head = _encode(self._newRoots(anchors)) if anchors else b"\x90"
                self._append(task, output, b"\x92" + head + data)
        if self.size >= self._flushSize:
            self._flush()
        return tasks

    def _newRoots(self, anchors: Sequence[StreamTuple]) -> list[int]:
        """Of a tuple that is anchored: an edge for each anchor, in all the trees of it."""
        trees: dict[tuple[int, int], int] = {}
        for anchor in anchors:
            edge = self._randomBits(64)
            anchor.edges ^= edge
            roots = anchor.roots
            for tree in zip(roots[::3], roots[1::3], strict=True):
                trees[tree] = trees.get(tree, 0) ^ edge
        return [number for tree, edge in trees.items() for number in (*tree, edge)]

    def ack(self, tup: StreamTuple) -> None:
        """See L{ICollector}."""
        edges = tup.edges
        if edges < 0:
            return
        tup.edges = DONE
        self.ackedCount += 1
        roots = tup.roots
        for at in range(0, len(roots), 3):
            self._acks.setdefault(roots[at], []).extend((roots[at + 1], roots[at + 2] ^ edges))
            self.size += CONTROL_SIZE
        if self.size >= self._flushSize:
            self._flush()

    def fail(self, tup: StreamTuple) -> None:
        """See L{ICollector}."""
        if tup.edges < 0:
            return
        tup.edges = DONE
        self.failedCount += 1
        roots = tup.roots
        for at in range(0, len(roots), 3):
            self._fails.setdefault(roots[at], []).append(roots[at + 1])
            self.size += CONTROL_SIZE
        if self.size >= self._flushSize:
            self._flush()

    def _control(self) -> list[EncodedEntry]:
        acks, self._acks = self._acks, {}
        fails, self._fails = self._fails, {}
        return [
            *(_numbersEntry(ACKS, task, len(pairs) // 2, pairs) for task, pairs in acks.items()),
            *(_numbersEntry(FAILS, task, len(roots), roots) for task, roots in fails.items()),
        ]
