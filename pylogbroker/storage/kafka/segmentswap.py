"""
The exchange of segments for their compacted file, and its completion after a crash. A module of its
own, since recovery needs no more of compaction; the order of the steps, and why, is told in
L{pylogbroker.storage.kafka.compaction}.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

from pylogbroker.errors import CorruptLogError, StorageError
from pylogbroker.interfaces import IFileSystem, IRecordFormat, ISegmentIndex
from pylogbroker.storage.events import DamagedFileIgnored, Reporter
from pylogbroker.storage.filenames import (
    BATCH_SUFFIX,
    DELETED_SUFFIX,
    parseSegmentName,
    segmentName,
)
from pylogbroker.storage.jobs import DiskJob
from pylogbroker.storage.kafka.producerstate import snapshotPath
from pylogbroker.storage.kafka.transactionindex import transactionPath
from pylogbroker.storage.recovery import purge
from pylogbroker.storage.segments import Segment

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
_INDEX_SUFFIXES = (".index", ".timeindex")


def removeCleaned(fileSystem: IFileSystem, directory: str) -> None:
    """Remove what a run has left that did not end in an exchange. Blocks."""
    for name in fileSystem.list(directory):
        if name.endswith(CLEANED_SUFFIX):
            fileSystem.remove(f"{directory}/{name}")


@dataclass(eq=False)
class ReplaceJob(DiskJob):
    """
    Exchange a group of segments for their compacted file; the module states the order.

    The old files are held open from the first step on, so that readers who have them go on with
    them.

    @ivar pinned: after the run, those that the job holds.
    @ivar isBegun: whether something is changed: an error then fails the partition.
    @ivar index: of the new segment, after a successful run.
    """

    fileSystem: IFileSystem
    directory: str
    segments: Sequence[Segment]
    size: int
    format: IRecordFormat
    pinned: list[Segment] = field(default_factory=list)
    isBegun: bool = False
    index: ISegmentIndex | None = None

    def run(self) -> None:
        fileSystem, directory = self.fileSystem, self.directory
        first, *others = self.segments
        cleaned, swap = first.path + CLEANED_SUFFIX, first.path + SWAP_SUFFIX
        status = fileSystem.status(cleaned)
        if status is None or status.size != self.size:
            raise StorageError(cleaned, "compact", f"it is not the file of {self.size} bytes")
        for segment in self.segments:
            segment.file.openPinned()
            self.pinned.append(segment)
        self.isBegun = True
        fileSystem.rename(cleaned, swap)
        fileSystem.syncDirectory(directory)
        bases = [segment.baseOffset for segment in others]
        _completeSwap(fileSystem, directory, first.baseOffset, bases)
        self.index = self.format.openIndex(
            fileSystem, first.path, first.baseOffset, self.size, False
        )


def _removeIfThere(fileSystem: IFileSystem, path: str) -> None:
    if fileSystem.status(path) is not None:
        fileSystem.remove(path)


def _completeSwap(
    fileSystem: IFileSystem, directory: str, base: int, others: Sequence[int]
) -> None:
    """
    Put a C{.swap} file, whose name is durable, into the place of segments. The files of the others
    are left with C{.deleted} names.
    """
    path = f"{directory}/{segmentName(base, BATCH_SUFFIX)}"
    for each in (base, *others):
        for suffix in _INDEX_SUFFIXES:
            _removeIfThere(fileSystem, f"{directory}/{segmentName(each, suffix)}")
    _removeIfThere(fileSystem, transactionPath(path, BATCH_SUFFIX))
    for each in others:
        other = f"{directory}/{segmentName(each, BATCH_SUFFIX)}"
        fileSystem.rename(other, other + DELETED_SUFFIX)
    fileSystem.syncDirectory(directory)
    fileSystem.rename(path + SWAP_SUFFIX, path)
    fileSystem.syncDirectory(directory)
    for each in others:
        other = f"{directory}/{segmentName(each, BATCH_SUFFIX)}"
        _removeIfThere(fileSystem, transactionPath(other, BATCH_SUFFIX))
        _removeIfThere(fileSystem, snapshotPath(directory, each))


def completeSwaps(
    fileSystem: IFileSystem,
    directory: str,
    names: Sequence[str],
    format: IRecordFormat,
    report: Reporter,
) -> bool:
    """
    Complete or undo what a crash has interrupted, ours or Apache's. Blocks.

    @return: whether there was something.
    @raise StorageError: a file cannot be read, renamed or removed.
    """
    bases = sorted(
        base for name in names if (base := parseSegmentName(name, BATCH_SUFFIX)) is not None
    )
    swapSuffix = BATCH_SUFFIX + SWAP_SUFFIX
    swaps = sorted(
        base for name in names if (base := parseSegmentName(name, swapSuffix)) is not None
    )
    found = False
    for name in names:
        isSwap = name.endswith(SWAP_SUFFIX) and not name.endswith(swapSuffix)
        if isSwap or name.endswith(CLEANED_SUFFIX):
            purge(fileSystem, f"{directory}/{name}", report)
            found = True
    for base in swaps:
        found = True
        path = f"{directory}/{segmentName(base, swapSuffix)}"
        with closing(fileSystem.open(path, write=False)) as file:
            size = file.size()
            scan = format.scan(file.readAt, base, 0, size)
            end = base
            for entry in scan:
                end = entry.nextOffset
        if scan.position < size:
            problem = CorruptLogError(path, "read", scan.reason or "it is cut")
            if base not in bases:
                raise problem
            report(DamagedFileIgnored(problem))
            fileSystem.remove(path)
            continue
        fileSystem.syncDirectory(directory)
        _completeSwap(fileSystem, directory, base, [each for each in bases if base < each < end])
        bases = [each for each in bases if not base < each < end]
    return found
