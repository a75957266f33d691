"""
Looking whether segment files are whole, without changing anything: what recovery does for the last segment of a partition, for all of them, and what a
broker does when it takes messages in: compressed entries are opened, too.

A broker may be writing meanwhile: then the last entry of the last segment may be seen half.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pylogbroker.errors import FormatError, StorageError
from pylogbroker.interfaces import CheckLimits, IFileSystem, IFormat
from pylogbroker.storage.filenames import SEGMENT_SUFFIX, parseDirectoryName, parseSegmentName

PAYLOAD_SIZE_MAX = 2**31 - 1
RUN_COUNT_MAX = 1_000
RUN_SIZE_MAX = 1 << 20
"""Entries, and bytes of them, that are looked at together."""

_LIMITS = CheckLimits(payloadSizeMax=PAYLOAD_SIZE_MAX)


class SegmentReport(NamedTuple):
    """
    What was found in a segment file.

    @ivar baseOffset: from its name.
    @ivar size: bytes.
    @ivar validSize: bytes up to the first entry that is not whole and valid: what a recovery would keep.
    @ivar entryCount: entries up to there.
    @ivar messageCount: messages up to there, those inside compressed entries counted one by one.
    @ivar fault: the first thing that is wrong, for people; L{None} for a good one.
    """

    path: str
    baseOffset: int
    size: int
    validSize: int
    entryCount: int
    messageCount: int
    fault: str | None


def verifySegment(fileSystem: IFileSystem, path: str, format: IFormat) -> SegmentReport:
    """
    Look at one file. Blocks.

    @raise StorageError: it cannot be read.
    """
    baseOffset = parseSegmentName(path.rpartition("/")[2])
    faults = (
        ["the name of a segment file is its offset in decimal digits"] if baseOffset is None else []
    )
    base = baseOffset or 0
    file = fileSystem.open(path, write=False)
    try:
        size = file.size()
        scan = format.scan(file.readAt, base, 0, size)
        run: list[bytes] = []
        runStart = runSize = entryCount = messageCount = 0

        def judge() -> None:
            nonlocal messageCount, runStart, runSize
            count, fault = _judge(format, run, runStart)
            messageCount += count
            faults.extend(fault)
            runStart = scan.position
            runSize = 0
            run.clear()

        for entry in scan:
            run.append(file.readAt(entry.position, entry.size))
            runSize += entry.size
            entryCount += 1
            if len(run) >= RUN_COUNT_MAX or runSize >= RUN_SIZE_MAX:
                judge()
        judge()
    finally:
        file.close()
    if scan.position < size:
        faults.append(
            f"valid up to offset {base + scan.position} (byte {scan.position}), and no further: {scan.reason or 'the entry there is cut'}"
        )
    return SegmentReport(
        path, base, size, scan.position, entryCount, messageCount, faults[0] if faults else None
    )


def _judge(format: IFormat, run: list[bytes], position: int) -> tuple[int, list[str]]:
    """
    Count what is inside entries, of which each by itself is whole and valid.

    @param position: of the first, in its file.
    @return: messages; what is wrong.
    """
    messageCount, index, faults = 0, 0, []
    while index < len(run):
        done, count = format.checkPlain(run[index:], PAYLOAD_SIZE_MAX)
        position += sum(map(len, run[index : index + done]))
        messageCount += count
        index += done
        if index < len(run):
            try:
                messageCount += format.check(run[index], _LIMITS).messageCount
            except FormatError as error:
                faults.append(
                    f"the compressed entry at byte {position} cannot be opened: {error.reason}"
                )
            position += len(run[index])
            index += 1
    return messageCount, faults


def verifyPartition(fileSystem: IFileSystem, path: str, format: IFormat) -> Iterator[SegmentReport]:
    """
    Look at the segments of a partition, and whether each begins where the one before it ends. Blocks.

    @param path: the directory.
    @raise StorageError: a file cannot be read.
    """
    found = [name for name in fileSystem.list(path) if name.endswith(SEGMENT_SUFFIX)]
    end: int | None = None
    for _offset, name in sorted((parseSegmentName(name) or 0, name) for name in found):
        verdict = verifySegment(fileSystem, f"{path}/{name}", format)
        if end is not None and end != verdict.baseOffset and verdict.fault is None:
            verdict = verdict._replace(fault=f"the segment before it ends at {end}")
        end = format.nextOffset(verdict.baseOffset, verdict.size)
        yield verdict


def partitionPaths(fileSystem: IFileSystem, path: str) -> list[str]:
    """
    The directories of partitions in a log directory, sorted. Blocks.

    @raise StorageError: it cannot be read.
    """
    found = []
    for name in sorted(fileSystem.list(path)):
        status = fileSystem.status(f"{path}/{name}")
        if status is not None and status.isDirectory and parseDirectoryName(name) is not None:
            found.append(f"{path}/{name}")
    return found


def verify(fileSystem: IFileSystem, path: str, format: IFormat) -> Iterator[SegmentReport]:
    """
    Look at a segment file, a partition's directory, or a whole log directory. Blocks.

    @raise StorageError: nothing is there, or it holds no segments, or a file cannot be read.
    """
    path = path.rstrip("/") or "/"
    status = fileSystem.status(path)
    if status is None:
        raise StorageError(path, "verify", "nothing is there")
    if not status.isDirectory:
        yield verifySegment(fileSystem, path, format)
        return
    hasSegments = any(name.endswith(SEGMENT_SUFFIX) for name in fileSystem.list(path))
    places = [path] if hasSegments else partitionPaths(fileSystem, path)
    if not places:
        raise StorageError(
            path,
            "verify",
            "it is neither a partition nor a log directory: no segment files are in it",
        )
    for place in places:
        yield from verifyPartition(fileSystem, place, format)
