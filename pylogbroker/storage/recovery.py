"""
Loading a partition's directory, and making its last segment whole again (spec-0.7 log-storage §8).

What must be true after a crash at any moment: the directory loads; every byte that a consumer could see is there; what follows it is whole, valid
entries or nothing. Only the last segment can be torn, because a roll syncs the old file before the new one's name exists, and only its end, because
flushed bytes are synced bytes. So the last segment alone is walked, and cut at the first entry that is not whole and valid: an unknown magic byte is
such an end, not an error that keeps the broker from starting (gotcha 3).

Recovery syncs what it keeps, even where it cuts nothing: after a C{kill -9} the last entries are in the page cache only, and they are shown to
consumers from now on. For the same reason it syncs the directory.

Files that do not fit together are not touched at all: a gap between segments means that something else has been at work here, and a person should
look. Such a partition is left out, alone (gotcha 30).
"""

from __future__ import annotations

from typing import NamedTuple

from pylogbroker.errors import CorruptLogError, StorageError
from pylogbroker.interfaces import IFileSystem, IFormat
from pylogbroker.storage.events import DeletedSegmentPurged, PurgeFailed, Reporter, SegmentTruncated
from pylogbroker.storage.filenames import (
    RETIRED_SUFFIX,
    SEGMENT_SUFFIX,
    parseSegmentName,
    segmentName,
)


class LoadedSegment(NamedTuple):
    """
    A segment as it lies on disk.

    @ivar baseOffset: from its name.
    @ivar path: of the file.
    @ivar size: bytes.
    @ivar modifiedMs: time of the last change, milliseconds since the epoch.
    """

    baseOffset: int
    path: str
    size: int
    modifiedMs: int


class LoadedPartition(NamedTuple):
    """
    A partition's directory, fit to be appended to.

    @ivar segments: at least one, ascending, contiguous.
    @ivar modifiedMs: time of the directory's last change: a segment was made in it, or removed.
    """

    segments: tuple[LoadedSegment, ...]
    modifiedMs: int


def loadPartition(
    fileSystem: IFileSystem, path: str, format: IFormat, recover: bool, report: Reporter
) -> LoadedPartition:
    """
    Load a directory. Blocks.

    @param recover: it was not closed in order; see above.
    @raise CorruptLogError: the files do not fit together. Nothing was changed.
    @raise StorageError: a file cannot be read, cut or synced.
    """
    names = fileSystem.list(path)
    directory = fileSystem.status(path)  # before a leftover's removal makes its time say nothing
    if directory is None:
        raise CorruptLogError(path, "load", "the directory has vanished")
    found = sorted(
        _lookAt(fileSystem, path, name) for name in names if name.endswith(SEGMENT_SUFFIX)
    )
    _requireContiguous(path, found, format)
    for name in names:
        if name.endswith(SEGMENT_SUFFIX + RETIRED_SUFFIX):
            _removeLeftover(fileSystem, f"{path}/{name}", report)
    if not found:
        found = [_createFirst(fileSystem, path)]
        fileSystem.syncDirectory(path)
    elif recover:
        found[-1] = recoverSegment(fileSystem, found[-1], format, report)
        fileSystem.syncDirectory(path)
    return LoadedPartition(tuple(found), directory.modifiedMs)


def recoverSegment(
    fileSystem: IFileSystem, segment: LoadedSegment, format: IFormat, report: Reporter
) -> LoadedSegment:
    """
    Cut a segment file at the first entry that is not whole and valid, and sync it. Blocks.

    @return: the segment as it is now.
    """
    file = fileSystem.open(segment.path)
    try:
        oldSize = file.size()
        scan = format.scan(file.readAt, segment.baseOffset, 0, oldSize)
        size = scan.skipToEnd()
        if size < oldSize:
            file.truncate(size)
        file.sync()
    finally:
        file.close()
    if size < oldSize:
        report(
            SegmentTruncated(segment.path, oldSize, size, scan.reason or "the entry there is cut")
        )
    return segment._replace(size=size)


def _lookAt(fileSystem: IFileSystem, path: str, name: str) -> LoadedSegment:
    full = f"{path}/{name}"
    baseOffset = parseSegmentName(name)
    if baseOffset is None:
        raise CorruptLogError(
            full, "load", "the name of a segment file is its offset in decimal digits"
        )
    status = fileSystem.status(full)
    if status is None or status.isDirectory:
        raise CorruptLogError(full, "load", "it is not a file")
    return LoadedSegment(baseOffset, full, status.size, status.modifiedMs)


def _requireContiguous(path: str, segments: list[LoadedSegment], format: IFormat) -> None:
    for i in range(len(segments) - 1):
        this, following = segments[i], segments[i + 1]
        end = format.nextOffset(this.baseOffset, this.size)
        if end != following.baseOffset or this.baseOffset == following.baseOffset:
            one = f"the one at {this.baseOffset} has {this.size} bytes and ends at {end}"
            raise CorruptLogError(
                path,
                "load",
                f"the segments do not fit together: {one}, the next begins at {following.baseOffset}",
            )


def _createFirst(fileSystem: IFileSystem, path: str) -> LoadedSegment:
    full = f"{path}/{segmentName(0)}"
    file = fileSystem.open(full, create=True)
    file.close()
    status = fileSystem.status(full)
    return LoadedSegment(0, full, 0, 0 if status is None else status.modifiedMs)


def _removeLeftover(fileSystem: IFileSystem, path: str, report: Reporter) -> None:
    try:
        fileSystem.remove(path)
    except StorageError as error:
        report(PurgeFailed(error))
    else:
        report(DeletedSegmentPurged(path))
