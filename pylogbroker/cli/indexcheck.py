"""
Whether the indexes beside a segment of today's format fit it, for C{verify}. It is a module of its
own, since recovery rebuilds indexes and does not check them.

What must be true of C{.index}: offsets and positions ascend; at each position a batch begins, whose
last offset is at most the entry's (Apache notes the last one of what was appended together). Of
C{.timeindex}: timestamps and offsets do not descend, and the offsets are in the segment. Unused
entries at the end are zeros, in a file that Apache has allocated ahead. A missing index is no
fault: the broker rebuilds it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from pylogbroker.errors import FormatError, StorageError
from pylogbroker.records.recordbatch import BATCH_OVERHEAD, readHeader
from pylogbroker.storage.recovery import SegmentReport

SUFFIX = ".log"
_OFFSETS, _TIMES = struct.Struct(">ii"), struct.Struct(">qi")
_INDEX_SIZE_MAX = 64 << 20


def indexFault(report: SegmentReport) -> str | None:
    """
    @param report: of a segment without a fault.
    @return: the first fault of its indexes, for people; L{None} without one.
    @raise StorageError: a file cannot be read.
    """
    stem = report.path.removesuffix(SUFFIX)
    try:
        return _offsetsFault(report, f"{stem}.index") or _timesFault(report, f"{stem}.timeindex")
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(error.filename or stem, "verify", reason, error.errno) from error


def _entries(path: str, layout: struct.Struct) -> Iterator[tuple[int, tuple[int, int]]]:
    """Numbers and entries, without the unused ones at the end; none of a missing file."""
    try:
        with open(path, "rb") as file:
            data = file.read(_INDEX_SIZE_MAX)
    except FileNotFoundError:
        return
    count = len(data) // layout.size
    while count and not any(data[(count - 1) * layout.size : count * layout.size]):
        count -= 1
    for number in range(count):
        first, second = layout.unpack_from(data, number * layout.size)
        yield number, (first, second)


def _offsetsFault(report: SegmentReport, path: str) -> str | None:
    name, before = os.path.basename(path), (-1, -1)
    with open(report.path, "rb") as log:
        size = os.fstat(log.fileno()).st_size
        for number, entry in _entries(path, _OFFSETS):
            where = f"{name}: entry {number}"
            if entry[0] <= before[0] or entry[1] <= before[1]:
                return f"{where} does not follow the one before it"
            before = entry
            offset, position = report.baseOffset + entry[0], entry[1]
            try:
                head = os.pread(log.fileno(), BATCH_OVERHEAD, position)
                header = readHeader(head)
            except FormatError:
                return f"{where} points to byte {position}, where no batch begins"
            if position + header.size > size or header.baseOffset < report.baseOffset:
                return f"{where} points to byte {position}, where no batch begins"
            if header.lastOffset > offset:
                return (
                    f"{where} has offset {offset}, and the batch at byte {position} ends at"
                    f" {header.lastOffset}"
                )
    return None


def _timesFault(report: SegmentReport, path: str) -> str | None:
    name, before = os.path.basename(path), (-1, -1)
    for number, entry in _entries(path, _TIMES):
        if entry[0] < before[0] or entry[1] < before[1]:
            return f"{name}: entry {number} does not follow the one before it"
        before = entry
        offset = report.baseOffset + entry[1]
        # A broker that runs may have appended since.
        if offset >= report.nextOffset and os.path.getsize(report.path) <= report.size:
            return f"{name}: entry {number} has offset {offset}, which the segment does not hold"
    return None
