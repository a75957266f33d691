"""
A segment: one file of a partition, named after the offset of its first byte (spec-0.7 log-storage §1).

Three sizes, each at most the next: C{size} is what has been flushed, C{writtenSize} what has been handed to the system, and only the last segment of
a partition has more of the second than of the first. What is appended but not written is the log's, not the segment's.
"""

from __future__ import annotations

from pylogbroker.storage.descriptors import SegmentFile


class Segment:
    """
    @ivar baseOffset: offset of the first byte.
    @ivar file: the file.
    @ivar size: flushed bytes.
    @ivar writtenSize: bytes in the file.
    @ivar modifiedMs: when it was last appended to, milliseconds since the epoch.
    """

    __slots__ = ("baseOffset", "file", "modifiedMs", "size", "writtenSize")

    def __init__(self, baseOffset: int, file: SegmentFile, size: int, modifiedMs: int) -> None:
        self.baseOffset = baseOffset
        self.file = file
        self.size = size
        self.writtenSize = size
        self.modifiedMs = modifiedMs

    @property
    def path(self) -> str:
        """Of the file."""
        return self.file.path

    def __repr__(self) -> str:
        return f"<Segment {self.baseOffset} {self.size}/{self.writtenSize} bytes>"
