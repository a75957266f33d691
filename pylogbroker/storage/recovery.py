"""
Loading a partition's directory, recovering its last segment (spec-0.7 log-storage §8), and
verifying segments without changing them.

What must be true after a crash at any moment: the directory loads; every byte that a consumer could
see is there, followed only by whole, valid entries. Only the end of the last segment can be torn: a
roll syncs the old file before the new one's name exists, and flushed bytes are synced. So recovery
cuts the last segment at the first entry that is not whole and valid, or has an unknown magic byte
(gotcha 3).

Recovery always syncs the file and the directory: after a C{kill -9} the last entries are in the
page cache only, and consumers see them from now on.

A partition whose files do not fit together stays unchanged and offline, alone (gotcha 30).

Verification checks all segments as recovery checks the last, and opens compressed entries. While a
broker writes, it may see half of the last entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

from pylogbroker.errors import CorruptLogError, FormatError, StorageError
from pylogbroker.interfaces import CheckLimits, IFileSystem, IRecordFormat
from pylogbroker.storage.events import (
    DeletedSegmentPurged,
    PurgeFailed,
    Reporter,
    SegmentTruncated,
)
from pylogbroker.storage.filenames import (
    DELETED_SUFFIX,
    parseDirectoryName,
    parseSegmentName,
    segmentName,
)
from pylogbroker.storage.files import DescriptorCache, SegmentFile
from pylogbroker.storage.segments import Segment

_VERIFY_LIMITS = CheckLimits(payloadSizeMax=2**31 - 1)


class LoadedSegment(NamedTuple):
    """
    A segment's file.

    @ivar size: bytes.
    @ivar modifiedMs: last change, milliseconds since the epoch.
    """

    baseOffset: int
    path: str
    size: int
    modifiedMs: int


class LoadedPartition(NamedTuple):
    """
    A partition's directory, fit to be appended to.

    @ivar path: of the directory.
    @ivar segments: at least one, ascending, all bytes synced.
    @ivar modifiedMs: when a segment was last created or removed (the directory's time).
    """

    path: str
    format: IRecordFormat
    segments: tuple[Segment, ...]
    logEndOffset: int
    modifiedMs: int

    @property
    def firstAppendMs(self) -> int | None:
        """
        An estimate of the last segment's first append, so that its age survives a restart (gotcha
        19), in milliseconds since the epoch; L{None}: the segment is empty.

        A file's time is that of its I{last} append, and birth times do not survive a copy. But a
        segment is created at the last append to the one before it, or if that is deleted, not later
        than the directory's last change. The estimate may be early by the time without appends
        (then the segment rolls early, once) or late by one retention period. Restarts do not move
        it.
        """
        last = self.segments[-1]
        if last.size == 0:
            return None
        return min(
            last.modifiedMs,
            self.segments[-2].modifiedMs if len(self.segments) > 1 else self.modifiedMs,
        )


def loadPartition(
    cache: DescriptorCache,
    path: str,
    formats: Sequence[IRecordFormat],
    recover: bool,
    report: Reporter,
) -> LoadedPartition:
    """
    Load a directory. Blocks.

    @param formats: allowed ones; a directory without segments gets the first.
    @param recover: the directory was not closed in order; see the module.
    @raise CorruptLogError: the files do not fit together. Nothing was changed.
    @raise StorageError: a file cannot be read, cut or synced.
    """
    fileSystem = cache.fileSystem
    names = fileSystem.list(path)
    directory = fileSystem.status(path)  # before a purge changes its time
    if directory is None:
        raise CorruptLogError(path, "load", "the directory has vanished")
    chosen = formatOf(path, names, formats) or formats[0]
    found = statSegments(fileSystem, path, names, chosen)
    for name in names:
        if name.endswith(chosen.suffix + DELETED_SUFFIX):
            purge(fileSystem, f"{path}/{name}", report)
    if not found:
        found = [createSegment(fileSystem, path, 0, chosen)]
    elif recover:
        found[-1] = recoverSegment(fileSystem, found[-1], chosen, report)
        fileSystem.syncDirectory(path)
    segments = []
    for base, file, size, modifiedMs in found:
        isLast = base == found[-1].baseOffset
        index = chosen.openIndex(fileSystem, file, base, size, recover and isLast)
        segments.append(Segment(base, SegmentFile(cache, file, isLast), size, modifiedMs, index))
    logEndOffset = segments[-1].index.findEnd(segments[-1].size)
    return LoadedPartition(path, chosen, tuple(segments), logEndOffset, directory.modifiedMs)


def formatOf(
    path: str, names: Sequence[str], formats: Sequence[IRecordFormat]
) -> IRecordFormat | None:
    """
    The format of a partition's files, or L{None} without segments.

    @param names: of the files.
    @raise CorruptLogError: the files have two formats.
    """
    found = [each for each in formats if any(name.endswith(each.suffix) for name in names)]
    if len(found) > 1:
        suffixes = " and ".join(each.suffix for each in found)
        raise CorruptLogError(path, "load", f"segments of two formats: {suffixes}")
    return found[0] if found else None


def recoverSegment(
    fileSystem: IFileSystem, segment: LoadedSegment, format: IRecordFormat, report: Reporter
) -> LoadedSegment:
    """Cut a segment file at the first entry that is not whole and valid, and sync it. Blocks."""
    with closing(fileSystem.open(segment.path)) as file:
        oldSize = file.size()
        scan = format.scan(file.readAt, segment.baseOffset, 0, oldSize)
        size = scan.skipToEnd()
        if size < oldSize:
            file.truncate(size)
        file.sync()
    if size < oldSize:
        report(
            SegmentTruncated(segment.path, oldSize, size, scan.reason or "the entry there is cut")
        )
    return segment._replace(size=size)


def createSegment(
    fileSystem: IFileSystem, path: str, baseOffset: int, format: IRecordFormat
) -> LoadedSegment:
    """Make an empty segment file durably. Blocks."""
    name = segmentName(baseOffset, format.suffix)
    fileSystem.open(f"{path}/{name}", create=True).close()
    fileSystem.syncDirectory(path)
    return _statSegment(fileSystem, path, name, format)


def statSegments(
    fileSystem: IFileSystem, path: str, names: Sequence[str], format: IRecordFormat
) -> list[LoadedSegment]:
    """
    The segment files of a partition, ascending. Blocks.

    @raise CorruptLogError: they do not fit together.
    """
    found = sorted(
        _statSegment(fileSystem, path, name, format)
        for name in names
        if name.endswith(format.suffix)
    )
    _requireContiguous(path, found, format)
    return found


def _statSegment(
    fileSystem: IFileSystem, path: str, name: str, format: IRecordFormat
) -> LoadedSegment:
    full = f"{path}/{name}"
    baseOffset = parseSegmentName(name, format.suffix)
    if baseOffset is None:
        raise CorruptLogError(
            full, "load", "the name of a segment file is its offset in decimal digits"
        )
    status = fileSystem.status(full)
    if status is None or status.isDirectory:
        raise CorruptLogError(full, "load", "it is not a file")
    return LoadedSegment(baseOffset, full, status.size, status.modifiedMs)


def _requireContiguous(path: str, segments: list[LoadedSegment], format: IRecordFormat) -> None:
    for this, following in pairwise(segments):
        end = format.contiguousEnd(this.baseOffset, this.size)
        if this.baseOffset == following.baseOffset or end not in (None, following.baseOffset):
            one = f"the one at {this.baseOffset} has {this.size} bytes"
            if end is not None:
                one += f" and ends at {end}"
            raise CorruptLogError(
                path,
                "load",
                f"the segments do not fit together: {one}, the next begins at"
                f" {following.baseOffset}",
            )


def purge(fileSystem: IFileSystem, path: str, report: Reporter) -> None:
    """Remove a file that was deleted before the last stop. Blocks."""
    try:
        fileSystem.remove(path)
    except StorageError as error:
        report(PurgeFailed(error))
    else:
        report(DeletedSegmentPurged(path))


class SegmentReport(NamedTuple):
    """
    The result of verifying a segment file.

    @ivar size: bytes.
    @ivar validSize: bytes that recovery would keep.
    @ivar entryCount: valid entries.
    @ivar messageCount: messages in them, also inside compressed entries.
    @ivar nextOffset: the offset behind them.
    @ivar fault: the first fault, for people, or L{None}.
    """

    path: str
    baseOffset: int
    size: int
    validSize: int
    entryCount: int
    messageCount: int
    nextOffset: int
    fault: str | None


def verifySegment(fileSystem: IFileSystem, path: str, format: IRecordFormat) -> SegmentReport:
    """
    Verify one file. Blocks.

    @raise StorageError: the file cannot be read.
    """
    baseOffset = parseSegmentName(path.rpartition("/")[2], format.suffix)
    faults = (
        ["the name of a segment file is its offset in decimal digits"] if baseOffset is None else []
    )
    base = nextOffset = baseOffset or 0
    entryCount = messageCount = 0
    with closing(fileSystem.open(path, write=False)) as file:
        size = file.size()
        scan = format.scan(file.readAt, base, 0, size)
        for entry in scan:
            entryCount += 1
            nextOffset = entry.nextOffset
            data = file.readAt(entry.position, entry.size)
            try:
                batches = format.validatePlain(
                    [data], _VERIFY_LIMITS.payloadSizeMax
                ) or format.validate(data, _VERIFY_LIMITS)
                messageCount += batches.messageCount
            except FormatError as error:
                faults.append(
                    f"the compressed entry at byte {entry.position} cannot be opened:"
                    f" {error.reason}"
                )
    if scan.position < size:
        faults.append(
            f"valid up to offset {nextOffset} (byte {scan.position}), and no further:"
            f" {scan.reason or 'the entry there is cut'}"
        )
    return SegmentReport(
        path,
        base,
        size,
        scan.position,
        entryCount,
        messageCount,
        nextOffset,
        next(iter(faults), None),
    )


def verifyPartition(
    fileSystem: IFileSystem, path: str, format: IRecordFormat
) -> Iterator[SegmentReport]:
    """
    Verify the segments of a partition, and that each begins where the one before it ends, or behind
    it in a format whose offsets may have gaps. Blocks.

    @raise StorageError: a file cannot be read.
    """
    found = [name for name in fileSystem.list(path) if name.endswith(format.suffix)]
    last: SegmentReport | None = None
    for _, name in sorted((parseSegmentName(name, format.suffix) or 0, name) for name in found):
        verdict = verifySegment(fileSystem, f"{path}/{name}", format)
        if last is not None and verdict.fault is None:
            end = format.contiguousEnd(last.baseOffset, last.size)
            if verdict.baseOffset < last.nextOffset or end not in (None, verdict.baseOffset):
                end = last.nextOffset if end is None else end
                verdict = verdict._replace(fault=f"the segment before it ends at {end}")
        last = verdict
        yield verdict


def partitionPaths(fileSystem: IFileSystem, path: str) -> list[str]:
    """
    The partition directories in a log directory, sorted. Blocks.

    @raise StorageError: the directory cannot be read.
    """
    found = []
    for name in sorted(fileSystem.list(path)):
        status = fileSystem.status(f"{path}/{name}")
        if status is not None and status.isDirectory and parseDirectoryName(name) is not None:
            found.append(f"{path}/{name}")
    return found


def verify(
    fileSystem: IFileSystem, path: str, formats: Sequence[IRecordFormat]
) -> Iterator[SegmentReport]:
    """
    Verify a segment file, a partition's directory, or a whole log directory. Blocks.

    @param formats: that segments may have.
    @raise StorageError: nothing is there, or it holds no segments, or a file cannot be read.
    """
    path = path.rstrip("/") or "/"
    status = fileSystem.status(path)
    if status is None:
        raise StorageError(path, "verify", "nothing is there")
    if not status.isDirectory:
        yield verifySegment(fileSystem, path, formatOf(path, [path], formats) or formats[0])
        return
    hasSegments = formatOf(path, fileSystem.list(path), formats) is not None
    partitions = 0
    for each in [path] if hasSegments else partitionPaths(fileSystem, path):
        found = formatOf(each, fileSystem.list(each), formats)
        if found is not None:
            partitions += 1
            yield from verifyPartition(fileSystem, each, found)
    if not partitions:
        raise StorageError(
            path,
            "verify",
            "it is neither a partition nor a log directory: no segment files are in it",
        )
