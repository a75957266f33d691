"""
A segment: one file of a partition, named after its base offset (spec-0.7 log-storage §1).

C{size ≤ writtenSize}; only in the last segment of a partition they differ. Bytes that are appended
and not yet written belong to the log, not to the segment.
"""

from __future__ import annotations

from pylogbroker.interfaces import ISegmentIndex
from pylogbroker.storage.descriptors import SegmentFile


class Segment:
    """
    @ivar baseOffset: no offset in the segment is below it.
    @ivar file: the file.
    @ivar size: flushed bytes.
    @ivar writtenSize: bytes in the file.
    @ivar modifiedMs: time of the last append, milliseconds since the epoch.
    @ivar index: where offsets are in the file.
    """

    __slots__ = ("baseOffset", "file", "index", "modifiedMs", "size", "writtenSize")

    def __init__(
        self, baseOffset: int, file: SegmentFile, size: int, modifiedMs: int, index: ISegmentIndex
    ) -> None:
        self.baseOffset = baseOffset
        self.file = file
        self.size = size
        self.writtenSize = size
        self.modifiedMs = modifiedMs
        self.index = index

    @property
    def path(self) -> str:
        """Of the file."""
        return self.file.path

    def __repr__(self) -> str:
        return f"<Segment {self.baseOffset} {self.size}/{self.writtenSize} bytes>"
