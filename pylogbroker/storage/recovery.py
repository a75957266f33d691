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

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from pylogbroker.errors import CorruptLogError, StorageError
from pylogbroker.interfaces import IFileSystem, IRecordFormat, ISegmentIndex
from pylogbroker.storage.events import DeletedSegmentPurged, PurgeFailed, Reporter, SegmentTruncated
from pylogbroker.storage.filenames import RETIRED_SUFFIX, parseSegmentName, segmentName


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

    @ivar format: of all segments.
    @ivar segments: at least one, ascending.
    @ivar indexes: of the segments.
    @ivar logEndOffset: the offset behind the last message.
    @ivar modifiedMs: time of the directory's last change: a segment was created or removed.
    """

    format: IRecordFormat
    segments: tuple[LoadedSegment, ...]
    indexes: tuple[ISegmentIndex, ...]
    logEndOffset: int
    modifiedMs: int


def loadPartition(
    fileSystem: IFileSystem,
    path: str,
    formats: Sequence[IRecordFormat],
    recover: bool,
    report: Reporter,
) -> LoadedPartition:
    """
    Load a directory. Blocks.

    @param formats: those that the segments may have; a directory without segments gets the first.
    @param recover: the directory was not closed in order; see the module.
    @raise CorruptLogError: the files do not fit together. Nothing was changed.
    @raise StorageError: a file cannot be read, cut or synced.
    """
    names = fileSystem.list(path)
    directory = fileSystem.status(path)  # before a leftover's removal makes its time say nothing
    if directory is None:
        raise CorruptLogError(path, "load", "the directory has vanished")
    chosen = formatOf(path, names, formats) or formats[0]
    found = sorted(
        _lookAt(fileSystem, path, name, chosen) for name in names if name.endswith(chosen.suffix)
    )
    _requireContiguous(path, found, chosen)
    for name in names:
        if name.endswith(chosen.suffix + RETIRED_SUFFIX):
            _removeLeftover(fileSystem, f"{path}/{name}", report)
    if not found:
        found = [_createFirst(fileSystem, path, chosen)]
        fileSystem.syncDirectory(path)
    elif recover:
        found[-1] = recoverSegment(fileSystem, found[-1], chosen, report)
        fileSystem.syncDirectory(path)
    indexes = [
        chosen.openIndex(
            fileSystem, each.path, each.baseOffset, each.size, recover and each is found[-1]
        )
        for each in found
    ]
    logEndOffset = indexes[-1].findEnd(found[-1].size)
    return LoadedPartition(chosen, tuple(found), tuple(indexes), logEndOffset, directory.modifiedMs)


def formatOf(
    path: str, names: Sequence[str], formats: Sequence[IRecordFormat]
) -> IRecordFormat | None:
    """
    The format that a partition's files have.

    @param names: of the files.
    @return: L{None}: the directory has no segments.
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


def _lookAt(fileSystem: IFileSystem, path: str, name: str, format: IRecordFormat) -> LoadedSegment:
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


def _createFirst(fileSystem: IFileSystem, path: str, format: IRecordFormat) -> LoadedSegment:
    full = f"{path}/{segmentName(0, format.suffix)}"
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
