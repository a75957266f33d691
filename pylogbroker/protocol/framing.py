"""
Length-prefixed frames: C{int32 size}, then as many bytes.

The decoder is one buffer with a position. What must be true:

  - The cost of a frame is linear in its size, however it is cut up.
  - A size over the limit is refused when its four bytes are there, before any allocation.
  - Frames that are not taken stay in the buffer: so a connection holds requests back.
  - A taken frame does not stay in memory because of bytes behind it. What is left is copied when it
    is smaller than what stands before it, and that is more than L{SLACK_SIZE_MAX}.

Bytes that arrive while others are held are kept in a list and joined once, when a frame may be
whole. Very small pieces (two bytes are an object of forty) are joined early: there is at most one
piece for each L{PIECE_SIZE_MIN} bytes held, and L{PIECE_COUNT_MIN}.

Rejected: a C{bytearray} that is cut at the front (each slice is one more copy); Twisted's
C{Int32StringReceiver}, which is quadratic in large frames.
"""

from __future__ import annotations

import struct

from pylogbroker.errors import FrameSizeError

SIZE_FIELD_SIZE = 4
PIECE_SIZE_MIN = 512
PIECE_COUNT_MIN = 16
SLACK_SIZE_MAX = 4 << 10
_SIZE = struct.Struct(">i")


class FrameDecoder:
    """
    Bytes in, frames out.

    @ivar sizeMax: the largest size field that is accepted.
    """

    __slots__ = ("_buffer", "_heldSize", "_neededSize", "_pieces", "_position", "sizeMax")

    def __init__(self, sizeMax: int) -> None:
        self.sizeMax = sizeMax
        self._buffer = b""
        self._position = 0
        # Behind the buffer, while its frame is not whole. None costs an idle connection nothing.
        self._pieces: list[bytes] | None = None
        self._heldSize = 0
        self._neededSize = SIZE_FIELD_SIZE

    def feed(self, data: bytes) -> None:
        """Take in bytes."""
        if not self._heldSize:
            self._buffer = data
            self._position = 0
            self._heldSize = len(data)
            return
        held = self._heldSize = self._heldSize + len(data)
        pieces = self._pieces
        if pieces is None:
            self._pieces = [self._buffer[self._position :], data]
            self._buffer, self._position = b"", 0
        else:
            pieces.append(data)
            if len(pieces) > PIECE_COUNT_MIN + held // PIECE_SIZE_MIN:
                self._pieces = [b"".join(pieces)]

    def _gather(self, pieces: list[bytes]) -> bool:
        """Join the pieces if they may hold a whole frame. Returns whether they may."""
        if self._heldSize < self._neededSize:
            return False
        self._buffer = b"".join(pieces)
        self._pieces = None
        return True

    def take(self) -> bytes | None:
        """
        The next frame, without its size field.

        @return: L{None} while it is not whole.
        @raise FrameSizeError: its size is not positive, or over the limit; raised again by each
            later call.
        """
        pieces = self._pieces
        if pieces is not None:
            isWhole = self._heldSize == self._neededSize > SIZE_FIELD_SIZE <= len(pieces[0])
            if isWhole:  # and nothing behind it, as large responses come: one copy
                return self._join(pieces)
            if not self._gather(pieces):
                return None
        position = self._position
        left = len(self._buffer) - position
        if left < SIZE_FIELD_SIZE:
            return None
        (size,) = _SIZE.unpack_from(self._buffer, position)
        if not 0 < size <= self.sizeMax:
            raise FrameSizeError(
                f"frame of {size} bytes announced; 1 to {self.sizeMax} are accepted"
            )
        start = position + SIZE_FIELD_SIZE
        if left < SIZE_FIELD_SIZE + size:
            self._neededSize = SIZE_FIELD_SIZE + size
            return None
        frame = self._buffer[start : start + size]
        self._advance(start + size)
        return frame

    def _join(self, pieces: list[bytes]) -> bytes:
        """The frame that the pieces are, without its size field."""
        pieces[0] = memoryview(pieces[0])[SIZE_FIELD_SIZE:]  # type: ignore[call-overload]
        frame = b"".join(pieces)
        self._pieces = None
        self._heldSize = 0
        self._neededSize = SIZE_FIELD_SIZE
        return frame

    def _advance(self, position: int) -> None:
        self._heldSize -= position - self._position
        self._position = position
        self._neededSize = SIZE_FIELD_SIZE
        if not self._heldSize:
            self._buffer, self._position = b"", 0
        elif position - self._heldSize > SLACK_SIZE_MAX:
            self._buffer, self._position = self._buffer[position:], 0

    @property
    def heldSize(self) -> int:
        """Bytes taken in and not taken out."""
        return self._heldSize

    @property
    def frameSize(self) -> int:
        """
        Bytes of the unfinished frame at the front, with its size field, once L{take} has seen that
        field; else 0.
        """
        return self._neededSize if self._neededSize > SIZE_FIELD_SIZE else 0
