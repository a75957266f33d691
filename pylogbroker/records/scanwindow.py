"""
The bytes of a segment file, read ahead for a scan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pylogbroker.errors import FormatError

SCAN_WINDOW_SIZE = 1 << 20
SHORTER = "the file is shorter than it was"


class ScanWindow:
    """
    A part of a file, read as the scan goes on. What is larger is read in pieces, since a corrupt
    size field may claim a gigabyte.

    @ivar data: the bytes of the window.
    @ivar start: where in the file they begin.
    @ivar read: C{read(position, size)}, of the file itself.
    @ivar size: bytes that are read at once.
    """

    __slots__ = ("_end", "data", "read", "size", "start")

    def __init__(self, read: Callable[[int, int], bytes], start: int, end: int) -> None:
        """@param end: nothing behind it is read."""
        self.read = read
        self._end = end
        self.size = SCAN_WINDOW_SIZE
        self.data = b""
        self.start = start

    def indexOf(self, position: int, size: int) -> int:
        """
        Have a number of bytes in the window; return where in it they begin.

        @raise FormatError: the file has fewer.
        """
        at = position - self.start
        if at + size > len(self.data):
            at, self.start = 0, position
            self.data = self.read(position, min(max(size, self.size), self._end - position))
            if size > len(self.data):
                raise FormatError(SHORTER)
        return at

    def pieces(self, position: int, end: int) -> Iterator[bytes]:
        """
        A range of the file, in pieces of a window's size, which leave the window as it is.

        @raise FormatError: the file has fewer bytes.
        """
        while position < end:
            piece = self.read(position, min(self.size, end - position))
            if not piece:
                raise FormatError(SHORTER)
            position += len(piece)
            yield piece
