"""
Length-prefixed frames: C{int32 size}, then so many bytes.

One buffer, and a position in it. What must be true: the cost of a frame is linear in its size, however it is cut up (a 100 MB frame
in 64 KiB pieces, or byte by byte); a size over the limit is refused when its four bytes are there, before anything is
allocated for it; frames that nobody takes stay in the buffer, which is how a connection holds requests back.

A frame that was taken must not stay in memory because of a byte that came behind it, since nobody counts it any more: what is left is copied when it is
smaller than what stands before it, and that is more than L{SLACK_SIZE_MAX}.

So bytes that come while others are held are kept in a list, and joined once, when somebody asks for a frame and it is whole. A list of very small
pieces would be many times as large as what is in it (two bytes are an object of forty), so that those are joined early: never are there more
pieces than one for each L{PIECE_SIZE_MIN} bytes held, and a few. Rejected: a C{bytearray} that grows and is cut at the front (every slice of it
is a copy more, and 200-byte slices of C{bytes} are the quickest there are); Twisted's C{Int32StringReceiver}, which is quadratic in large frames.
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
        self._pieces: list[bytes] | None = (
            None  # behind the buffer, while its frame is not whole; None costs an idle connection nothing
        )
        self._heldSize = 0
        self._neededSize = SIZE_FIELD_SIZE

    def feed(self, data: bytes) -> None:
        """Take in bytes as they came."""
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
        @raise FrameSizeError: its size is not positive, or over the limit. It is raised again whenever the decoder is asked again.
        """
        if self._pieces is not None and not self._gather(self._pieces):
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

    def _advance(self, position: int) -> None:
        """Drop what is before a position."""
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
        """Bytes of the unfinished frame at the front, with its size field, once L{take} has seen that field; else 0."""
        return self._neededSize if self._neededSize > SIZE_FIELD_SIZE else 0

    @property
    def missing(self) -> int:
        """Bytes that the unfinished frame at the front still lacks; 0 while its size is not known, or when it is whole."""
        return max(self.frameSize - self._heldSize, 0)
