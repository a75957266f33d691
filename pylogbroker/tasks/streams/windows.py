"""
Windows on the time of events, and the keys of their results.

A message belongs to windows by its timestamp. I{Stream time} is the greatest timestamp that a step
has seen in its task. A window is closed when stream time has passed its end by the grace period.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from pylogbroker.errors import ConfigurationError, EncodingError, InvalidPayloadError
from pylogbroker.tasks.serdes import Serde

ON_CHANGE, ON_CLOSE = EMITS = ("on-change", "on-close")
"""A windowed aggregation gives a result at each change, or once, when the window is closed."""

TIME_MAX = 0x7FFFFFFFFFFFFFFF

_TIME = struct.Struct(">q")
_BOUNDS = struct.Struct(">qq")


class Windowed(NamedTuple):
    """
    The key of a window's result.

    @ivar key: of the messages.
    @ivar startMs: milliseconds since the epoch: the first timestamp of the window.
    @ivar endMs: milliseconds since the epoch: the first one behind a tumbling or hopping window;
        for a session the last timestamp of its messages and the gap.
    """

    key: Any
    startMs: int
    endMs: int


def _check(window: object, least: int, **times: int) -> None:
    for name, value in times.items():
        if type(value) is not int or not least <= value <= TIME_MAX:
            raise ConfigurationError(
                f"{type(window).__name__}: {name}={value!r} is no number of milliseconds"
                f" from {least} on"
            )


@dataclass(frozen=True, slots=True)
class HoppingWindow:
    """
    Windows of one size that begin at each multiple of C{advanceMs}, and so overlap.

    @ivar sizeMs: of a window.
    @ivar advanceMs: from the beginning of one to that of the next, at most C{sizeMs}.
    @ivar graceMs: how long a window is open behind its end, in stream time.
    @raise ConfigurationError: the times are none, or the windows would leave gaps.
    """

    sizeMs: int
    advanceMs: int
    graceMs: int = 0

    def __post_init__(self) -> None:
        _check(self, 1, sizeMs=self.sizeMs, advanceMs=self.advanceMs)
        _check(self, 0, graceMs=self.graceMs)
        if self.advanceMs > self.sizeMs:
            raise ConfigurationError(
                f"{type(self).__name__}: advanceMs={self.advanceMs} is more than"
                f" sizeMs={self.sizeMs}: messages would be in no window"
            )

    def startsOf(self, timestamp: int) -> Iterable[int]:
        """The beginnings of the windows of a timestamp, the earliest one first."""
        advance = self.advanceMs
        first = max(0, timestamp - self.sizeMs + advance) // advance * advance
        return range(first, timestamp + 1, advance)

    def __str__(self) -> str:
        hops = "" if self.advanceMs == self.sizeMs else f" each {self.advanceMs:,} ms"
        kind = "hopping" if hops else "tumbling"
        return f"{kind} windows of {self.sizeMs:,} ms{hops}, grace {self.graceMs:,} ms"


class TumblingWindow(HoppingWindow):
    """Windows of one size, each of which begins at the end of the one before."""

    __slots__ = ()

    def __init__(self, sizeMs: int, graceMs: int = 0) -> None:
        """
        @param sizeMs: of a window.
        @param graceMs: how long a window is open behind its end, in stream time.
        @raise ConfigurationError: the times are none.
        """
        super().__init__(sizeMs, sizeMs, graceMs)


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """
    Windows that last as long as messages of a key follow one another within C{gapMs}.

    @ivar gapMs: the greatest distance of two messages that follow one another in a session.
    @ivar graceMs: how long a session is open behind its end, in stream time.
    @raise ConfigurationError: the times are none.
    """

    gapMs: int
    graceMs: int = 0

    def __post_init__(self) -> None:
        _check(self, 1, gapMs=self.gapMs)
        _check(self, 0, graceMs=self.graceMs)

    def __str__(self) -> str:
        return f"sessions with gaps of {self.gapMs:,} ms, grace {self.graceMs:,} ms"


@dataclass(frozen=True, slots=True)
class JoinWindow:
    """
    How far apart two messages of a key may be that are joined: the right one is at most C{beforeMs}
    before the left one, and at most C{afterMs} behind it.

    A message waits for others until stream time is C{beforeMs + afterMs + graceMs} beyond it.

    @ivar graceMs: how late messages may be.
    @raise ConfigurationError: the times are none.
    """

    beforeMs: int
    afterMs: int
    graceMs: int = 0

    def __post_init__(self) -> None:
        _check(self, 0, beforeMs=self.beforeMs, afterMs=self.afterMs, graceMs=self.graceMs)

    @property
    def waitMs(self) -> int:
        """How long a message waits for others, in stream time."""
        return self.beforeMs + self.afterMs + self.graceMs

    def __str__(self) -> str:
        return (
            f"from {self.beforeMs:,} ms before to {self.afterMs:,} ms behind,"
            f" grace {self.graceMs:,} ms"
        )


AggregationWindow: TypeAlias = HoppingWindow | SessionWindow
"""What messages of a key are aggregated in; a tumbling window is a hopping one."""


class WindowedSerde:
    """
    The key of a window's result: the key's own bytes, and behind them the beginning and the end of
    the window, 8 bytes each, big-endian.
    """

    def __init__(self, inner: Serde) -> None:
        """@param inner: of the messages' keys."""
        self.name = f"windowed {inner.name}"
        self._encode, self._decode = inner.encode, inner.decode

    def encode(self, value: Any) -> bytes:
        """See L{Serde}."""
        if type(value) is not Windowed:
            raise EncodingError(f"{value!r:.80} is no Windowed key")
        try:
            return self._encode(value.key) + _BOUNDS.pack(value.startMs, value.endMs)
        except struct.error as error:
            raise EncodingError(f"{value!r:.80}: {error}") from error

    def decode(self, data: bytes) -> Windowed:
        """See L{Serde}."""
        size = len(data) - _BOUNDS.size
        if size < 0:
            raise InvalidPayloadError(f"{len(data)} bytes where a window alone has {_BOUNDS.size}")
        return Windowed(self._decode(data[:size]), *_BOUNDS.unpack_from(data, size))


class TimeWindowedSerde:
    """
    The key of a tumbling or hopping window's result as Kafka Streams' C{TimeWindowedSerializer} has
    it: the key's own bytes, and behind them the beginning of the window, 8 bytes, big-endian.
    """

    def __init__(self, inner: Serde, sizeMs: int) -> None:
        """
        @param inner: of the messages' keys.
        @param sizeMs: of a window: its end is not among the bytes.
        """
        self.name = f"time-windowed {inner.name}"
        self._encode, self._decode = inner.encode, inner.decode
        self._sizeMs = sizeMs

    def encode(self, value: Any) -> bytes:
        """See L{Serde}."""
        if type(value) is not Windowed or value.endMs - value.startMs != self._sizeMs:
            raise EncodingError(f"{value!r:.80} is no key of a window of {self._sizeMs:,} ms")
        try:
            return self._encode(value.key) + _TIME.pack(value.startMs)
        except struct.error as error:
            raise EncodingError(f"{value!r:.80}: {error}") from error

    def decode(self, data: bytes) -> Windowed:
        """See L{Serde}."""
        size = len(data) - _TIME.size
        if size < 0:
            raise InvalidPayloadError(f"{len(data)} bytes where a window alone has {_TIME.size}")
        (start,) = _TIME.unpack_from(data, size)
        return Windowed(self._decode(data[:size]), start, start + self._sizeMs)
