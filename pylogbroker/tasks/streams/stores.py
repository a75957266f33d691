"""
How the steps of a high-level job lay out their stores. A module of its own, since the compiler
names the serdes, and the operators read and write with them.

What must be true:

  - A step finds what it needs of a message by keys, or by short ranges: what a message costs does
  not grow with the store, but for the depth of the engine.
  - What is over at a time stands together, in the order of time, so that only this is read.

Tumbling and hopping windows: C{start key}. Sessions: C{K size key end start}, with the value, and
C{T end start key}, an empty entry of the index by time. Messages that wait for a join: C{K size key
time number}, with a byte that tells whether it was joined, and the message; and C{T time number
key}. Times and numbers have 8 bytes, sizes 4, all big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from pylogbroker.errors import InvalidPayloadError, MissingTimestampError
from pylogbroker.tasks.serdes import Serde
from pylogbroker.tasks.state.keyvaluestore import KeyValueStore
from pylogbroker.tasks.streams.windows import TIME_MAX, Windowed

STREAM_TIMES = "stream-times"
"""The store of the stream times of all steps of a job."""

BY_KEY, BY_TIME = b"K", b"T"
BEHIND_TIMES = b"U"

TIME = struct.Struct(">q")
PAIR = struct.Struct(">qq")
SIZE = struct.Struct(">I")
OPTIONAL_SIZE = struct.Struct(">i")

INDEXED = ()
"""The value of an entry of an index by time."""


class ValueAndTimestamp(NamedTuple):
    """
    What a table has for a key.

    @ivar timestamp: milliseconds since the epoch: the greatest one of the messages that it is made
        of; -1: they had none.
    """

    value: Any
    timestamp: int


class TimestampedSerde:
    """A L{ValueAndTimestamp}: the timestamp's 8 bytes, and the value's. L{INDEXED} has no bytes."""

    def __init__(self, inner: Serde) -> None:
        """@param inner: of the values."""
        self.name = f"timestamped {inner.name}"
        self._encode, self._decode = inner.encode, inner.decode

    def encode(self, value: Any) -> bytes:
        """See L{Serde}."""
        if not value:
            return b""
        return TIME.pack(value[1]) + self._encode(value[0])

    def decode(self, data: bytes) -> Any:
        """See L{Serde}."""
        if not data:
            return INDEXED
        if len(data) < TIME.size:
            raise InvalidPayloadError(f"{len(data)} bytes where a timestamp has {TIME.size}")
        return ValueAndTimestamp(self._decode(data[TIME.size :]), TIME.unpack_from(data)[0])


class OptionalPairSerde:
    """A pair, of which either may be L{None}: the size of the first, -1 for none, and its bytes."""

    def __init__(self, first: Serde, second: Serde) -> None:
        self.name = f"{first.name} and {second.name}"
        self.first, self.second = first, second

    def encode(self, value: Any) -> bytes:
        """See L{Serde}."""
        found = b""
        for each, serde in zip(value, (self.first, self.second), strict=True):
            data = None if each is None else serde.encode(each)
            found += (
                OPTIONAL_SIZE.pack(-1) if data is None else OPTIONAL_SIZE.pack(len(data)) + data
            )
        return found

    def decode(self, data: bytes) -> tuple[Any, Any]:
        """See L{Serde}."""
        found: list[Any] = []
        at = 0
        for serde in (self.first, self.second):
            if len(data) - at < OPTIONAL_SIZE.size:
                raise InvalidPayloadError(f"{len(data)} bytes are no pair")
            (size,) = OPTIONAL_SIZE.unpack_from(data, at)
            at += OPTIONAL_SIZE.size
            end = at + max(size, 0)
            if size < -1 or end > len(data):
                raise InvalidPayloadError(f"{len(data)} bytes are no pair: a size is {size}")
            found.append(None if size < 0 else serde.decode(data[at:end]))
            at = end
        if at < len(data):
            raise InvalidPayloadError(f"{len(data) - at} bytes behind a pair")
        return found[0], found[1]


class WindowStoreSerde:
    """The key of a tumbling or hopping window; bytes are the bound of a range."""

    def __init__(self, inner: Serde, sizeMs: int) -> None:
        """
        @param inner: of the messages' keys.
        @param sizeMs: of a window.
        """
        self.name = f"window of {inner.name}"
        self._encode, self._decode = inner.encode, inner.decode
        self._sizeMs = sizeMs

    def encode(self, value: Any) -> bytes:
        """See L{Serde}."""
        if type(value) is bytes:
            return value
        return TIME.pack(value[1]) + self._encode(value[0])

    def decode(self, data: bytes) -> Windowed:
        """See L{Serde}."""
        (start,) = TIME.unpack_from(data)
        return Windowed(self._decode(data[TIME.size :]), start, start + self._sizeMs)


class SessionStoreSerde:
    """The key of a session; bytes are an entry of the index by time, or the bound of a range."""

    def __init__(self, inner: Serde) -> None:
        """@param inner: of the messages' keys."""
        self.name = f"session of {inner.name}"
        self._encode, self._decode = inner.encode, inner.decode

    def encode(self, value: Any) -> bytes:
        """See L{Serde}."""
        if type(value) is bytes:
            return value
        key, start, end = value
        data = self._encode(key)
        return BY_KEY + SIZE.pack(len(data)) + data + PAIR.pack(end, start)

    def decode(self, data: bytes) -> Any:
        """See L{Serde}."""
        if data[:1] != BY_KEY:
            return data
        bounds = len(data) - PAIR.size
        end, start = PAIR.unpack_from(data, bounds)
        return Windowed(self._decode(data[1 + SIZE.size : bounds]), start, end)

    def indexed(self, session: Windowed) -> bytes:
        """A session's entry of the index by time."""
        return BY_TIME + PAIR.pack(session[2], session[1]) + self._encode(session[0])

    def sessionOf(self, entry: bytes) -> Windowed:
        """Reverses L{indexed}."""
        end, start = PAIR.unpack_from(entry, 1)
        return Windowed(self._decode(entry[1 + PAIR.size :]), start, end)


class StreamTimeSerde:
    """A stream time, and how many messages have waited for a join: 8 bytes each."""

    name = "stream time"

    def encode(self, value: Any) -> bytes:
        """See L{Serde}."""
        return PAIR.pack(*value)

    def decode(self, data: bytes) -> tuple[int, int]:
        """See L{Serde}."""
        time, number = PAIR.unpack(data)
        return time, number


class StreamTime:
    """
    The stream time of a step, which its task keeps in a store.

    @ivar now: milliseconds since the epoch; -1: no message has reached the step yet.
    """

    def __init__(self, store: KeyValueStore[Any, Any], name: str) -> None:
        """@param name: the step's."""
        self._store, self._name = store, name
        self.now, self._number = -1, 0
        self._isKnown = False

    def observe(self, timestamp: int) -> int:
        """
        A message has come.

        @return: what L{now} was before.
        @raise MissingTimestampError: it has no timestamp.
        """
        if timestamp < 0:
            raise MissingTimestampError(
                f"step {self._name} needs the time of messages, and this one's timestamp is"
                f" {timestamp}"
            )
        if not self._isKnown:
            self.now, self._number = self._store.get(self._name) or (-1, 0)
            self._isKnown = True
        before = self.now
        if timestamp > before:
            self.now = timestamp
            self._store.put(self._name, (timestamp, self._number))
        return before

    def nextNumber(self) -> int:
        """A number that no message of this step has had in this task."""
        self._number += 1
        self._store.put(self._name, (self.now, self._number))
        return self._number

    def forget(self) -> None:
        """The store was taken back to an earlier time."""
        self._isKnown = False


class TimeIndex:
    """
    The entries of a store that are in the order of time, of which those are asked for that time has
    reached. It remembers when the next one is due, so most questions cost nothing.
    """

    def __init__(
        self,
        store: KeyValueStore[Any, Any],
        prefix: bytes,
        end: bytes | None,
        timeOf: Callable[[Any], int],
    ) -> None:
        """
        @param prefix: of the entries' keys, before their times.
        @param end: the key behind them all.
        @param timeOf: the time of a decoded key.
        """
        self._store, self._prefix, self._end, self._timeOf = store, prefix, end, timeOf
        self._next: int | None = None  # no entry that was not asked for is before it

    def added(self, time: int) -> None:
        """An entry was written."""
        if self._next is not None and time < self._next:
            self._next = time

    def due(self, start: int, end: int) -> list[tuple[Any, Any]]:
        """
        Entries in the order of their times.

        @param start: the first time: C{end} of the question before.
        @param end: the time behind the last one.
        """
        if end <= 0 or (self._next is not None and self._next >= end):
            return []
        bound = self._prefix + TIME.pack(end)
        found = list(self._store.range(self._prefix + TIME.pack(max(0, start)), bound))
        following = self._store.first(bound, self._end)
        self._next = TIME_MAX if following is None else self._timeOf(following[0])
        return found

    def forget(self) -> None:
        """The store was taken back to an earlier time."""
        self._next = None


def timeOfIndexed(entry: bytes) -> int:
    """The time of an entry that begins with L{BY_TIME}."""
    time: int = TIME.unpack_from(entry, 1)[0]
    return time


def startOf(key: Windowed) -> int:
    """The beginning of a window."""
    return key.startMs
