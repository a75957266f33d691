"""
What the processes of a topology say to one another: control messages, and batches of tuples. A
module of its own, since all kinds of processes speak so.

A frame is a length of four bytes and a body. The first byte of a body says which of two it is:

  - L{CONTROL}: a message of the classes here, in MessagePack, with its class as tag.
  - L{BATCH}: a number of eight bytes, and entries. An entry has a kind, a task, a count, a size,
  and as many bytes. A stream manager routes entries by task and never looks into their bytes.

Entries of the kind L{TUPLES} hold tuples in MessagePack, for the instance that is the task, as
L{pylogbroker.topologies.instance.collectors} describes them. The others hold numbers of eight
bytes. L{ROOTS} and L{ACKS}, whose numbers are pairs, and L{FAILS} are for the acker of the spout
that is the task. L{ACKED} and L{FAILED} come from there, for the spout.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, pack, unpack
from typing import NamedTuple, TypeAlias

import msgspec

from pylogbroker.errors import WireError
from pylogbroker.topologies.plan import PhysicalPlan

FRAME_SIZE_MAX = 64 << 20
"""Bytes of a frame's body."""

CONTROL, BATCH = 0, 1

TUPLES, ROOTS, ACKS, FAILS, ACKED, FAILED = range(6)
"""Kinds of entries."""

STREAM_MANAGER, INSTANCE, METRICS_MANAGER = "stream-manager", "instance", "metrics-manager"
"""Roles of those that connect."""

_ENTRY = Struct(">BIII")
_BATCH = Struct(">BQ")
_BATCH_HEAD = Struct(">iBQ")
_CONTROL_HEAD = Struct(">iB")


class Hello(msgspec.Struct, tag=True, frozen=True):
    """
    The first frame of a connection to a stream manager, to the master or to a metrics manager.

    @ivar topology: the name of the topology; that of another one is refused.
    @ivar role: L{STREAM_MANAGER}, L{INSTANCE} or L{METRICS_MANAGER}.
    @ivar id: the number of the container, or the task of the instance.
    @ivar incarnation: a number that each new process draws.
    @ivar epoch: of the plan that it has; 0: none.
    @ivar received: the number of the last batch that it has from the one that it connects to; 0:
        none, or the other's incarnation is not known.
    @ivar peer: the other's incarnation that C{received} is about; 0: not known.
    @ivar address: C{host:port} where it can be reached itself; empty: nowhere.
    @ivar attempt: counts the connections that the process has made to the other one: what it says
        on a former one may arrive behind what it says on a later one, and is refused.
    """

    topology: str
    role: str
    id: int
    incarnation: int
    epoch: int = 0
    received: int = 0
    peer: int = 0
    address: str = ""
    attempt: int = 0


class Welcome(msgspec.Struct, tag=True, frozen=True):
    """The answer to a L{Hello}; its fields are those of the one that answers."""

    incarnation: int
    received: int = 0


class Refused(msgspec.Struct, tag=True, frozen=True):
    """The answer to a L{Hello} that cannot be taken; the connection is closed."""

    reason: str


class Confirm(msgspec.Struct, tag=True, frozen=True):
    """
    All batches up to this number have arrived, and do not take up the receiver's room any more: so
    the sender may send as many bytes again (C{link.py}).
    """

    number: int


class PlanPushed(msgspec.Struct, tag=True, frozen=True):
    """A physical plan; one with a lower epoch than the last is refused."""

    plan: PhysicalPlan


class BackPressure(msgspec.Struct, tag=True, frozen=True):
    """
    From a stream manager to all others: spouts must stop (or may go on) for its sake; and from a
    stream manager to its own spouts: they must stop, or may go on.
    """

    container: int
    isOn: bool


class Metrics(msgspec.Struct, tag=True, frozen=True):
    """
    What a process has counted since it began, or measures now; to the metrics manager of its
    container, which passes it on to the master.

    @ivar container: the number of the container.
    @ivar source: the task of an instance, or the role.
    @ivar timeMs: milliseconds since the epoch.
    """

    container: int
    source: str
    component: str
    incarnation: int
    timeMs: int
    values: dict[str, float]


Control: TypeAlias = Hello | Welcome | Refused | Confirm | PlanPushed | BackPressure | Metrics

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


class BatchEntry(NamedTuple):
    """
    A part of a batch.

    @ivar kind: L{TUPLES}, L{ROOTS}, …
    @ivar task: whom it is for.
    @ivar amount: how many are in it.
    """

    kind: int
    task: int
    amount: int
    data: bytes | memoryview


class EntryPlace(NamedTuple):
    """
    Where an entry stands in the body of a batch, with its head.

    @ivar kind: L{TUPLES}, L{ROOTS}, …
    @ivar task: whom it is for.
    @ivar amount: how many are in it.
    @ivar dataStart: where its data begin, behind its head.
    """

    kind: int
    task: int
    amount: int
    start: int
    dataStart: int
    end: int


def encodeControl(message: Control) -> bytes:
    """A frame, with its size."""
    body = _encoder.encode(message)
    return _CONTROL_HEAD.pack(1 + len(body), CONTROL) + body


def decodeControl(body: bytes) -> Control:
    """
    @param body: of a frame whose first byte is L{CONTROL}.
    @raise WireError: it is no message that is known.
    """
    try:
        return _decoder.decode(memoryview(body)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"a control message cannot be decoded: {error}") from error


def encodeEntry(kind: int, task: int, amount: int, data: bytes | memoryview) -> bytes:
    """
    An entry, as it stands in a batch.

    @param amount: how many tuples, roots, … are in it.
    """
    return b"".join((_ENTRY.pack(kind, task, amount, len(data)), data))


def encodeBatch(number: int, entries: Sequence[bytes | memoryview]) -> bytes:
    """
    A frame, with its size.

    @param entries: one or several encoded entries in each.
    """
    size = sum(map(len, entries)) + _BATCH.size
    return b"".join((_BATCH_HEAD.pack(size, BATCH, number), *entries))


def batchNumber(body: bytes) -> int:
    """
    The number of a batch.

    @raise WireError: it has none.
    """
    if len(body) < _BATCH.size:
        raise WireError(f"a batch of {len(body)} bytes has no number")
    number: int = _BATCH.unpack_from(body)[1]
    return number


def decodeBatch(body: bytes) -> list[BatchEntry]:
    """
    The entries of a batch; their data are views of the body.

    @param body: of a frame whose first byte is L{BATCH}.
    @raise WireError: an entry is not whole, or of no kind that is known.
    """
    view = memoryview(body)
    return [
        BatchEntry(kind, task, amount, view[dataStart:end])
        for kind, task, amount, _start, dataStart, end in entryPlaces(body)
    ]


def entryPlaces(body: bytes) -> list[EntryPlace]:
    """
    Where the entries of a batch stand.

    @raise WireError: an entry is not whole, or of no kind that is known.
    """
    places = []
    at, end = _BATCH.size, len(body)
    headSize, unpackFrom = _ENTRY.size, _ENTRY.unpack_from
    while at < end:
        dataStart = at + headSize
        if dataStart > end:
            raise WireError(f"a batch ends within an entry's head, at byte {at}")
        kind, task, amount, size = unpackFrom(body, at)
        entryEnd = dataStart + size
        if kind > FAILED:
            raise WireError(f"an entry at byte {at} is of the unknown kind {kind}")
        if entryEnd > end:
            raise WireError(f"an entry of {size} bytes at byte {at} has only {end - dataStart}")
        places.append(EntryPlace(kind, task, amount, at, dataStart, entryEnd))
        at = entryEnd
    return places


def encodeNumbers(numbers: Sequence[int]) -> bytes:
    """The data of an entry of numbers of 64 bits without sign."""
    return pack(f">{len(numbers)}Q", *numbers)


def decodeNumbers(data: bytes | memoryview, group: int = 1) -> tuple[int, ...]:
    """
    @param group: how many belong together.
    @raise WireError: it is not made of whole numbers, or of whole groups.
    """
    count, rest = divmod(len(data), 8)
    if rest or count % group:
        raise WireError(f"numbers of 8 bytes, {group} together, in {len(data)} bytes")
    return unpack(f">{count}Q", data)
