"""
Looking whether segment files are whole, without changing anything: what recovery does for the last segment of a partition, for all of them, and what a
broker does when it takes messages in: compressed entries are opened, too.

A broker may be writing meanwhile: then the last entry of the last segment may be seen half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pylogbroker.errors import FormatError, StorageError
from pylogbroker.interfaces import CheckLimits, IFileSystem, IRecordFormat
from pylogbroker.storage.filenames import parseDirectoryName, parseSegmentName
from pylogbroker.storage.recovery import formatOf

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
    @ivar nextOffset: the offset behind those entries.
    @ivar fault: the first thing that is wrong, for people; L{None} for a good one.
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
    Look at one file. Blocks.

    @raise StorageError: it cannot be read.
    """
    baseOffset = parseSegmentName(path.rpartition("/")[2], format.suffix)
    faults = (
        ["the name of a segment file is its offset in decimal digits"] if baseOffset is None else []
    )
    base = nextOffset = baseOffset or 0
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
            nextOffset = entry.nextOffset
            if len(run) >= RUN_COUNT_MAX or runSize >= RUN_SIZE_MAX:
                judge()
        judge()
    finally:
        file.close()
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
        faults[0] if faults else None,
    )


def _judge(format: IRecordFormat, run: list[bytes], position: int) -> tuple[int, list[str]]:
    """
    Count what is inside entries, of which each by itself is whole and valid.

    @param position: of the first, in its file.
    @return: messages; what is wrong.
    """
    batches = format.validatePlain(run, PAYLOAD_SIZE_MAX)
    if batches is not None:
        return batches.messageCount, []
    messageCount, faults = 0, []
    for entry in run:
        try:
            messageCount += format.validate(entry, _LIMITS).messageCount
        except FormatError as error:
            faults.append(
                f"the compressed entry at byte {position} cannot be opened: {error.reason}"
            )
        position += len(entry)
    return messageCount, faults


def verifyPartition(
    fileSystem: IFileSystem, path: str, format: IRecordFormat
) -> Iterator[SegmentReport]:
    """
    Verify the segments of a partition, and that each begins where the one before it ends, or behind
    it in a format whose offsets may have gaps. Blocks.

    @param path: the directory.
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
    The directories of partitions in a log directory, sorted. Blocks.

    @raise StorageError: it cannot be read.
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
