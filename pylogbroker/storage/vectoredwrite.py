"""
Writing whole sets: a file never ends in the middle of one, not even when the disk becomes full there.

A gather-write takes at most 1,024 buffers, and may take fewer bytes than it was given: that is how a disk becomes full. Then, before anything else
happens, the file is cut back to the last buffer that got there whole. What was cut off is the caller's to try again.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import NamedTuple

from pylogbroker.errors import StorageError
from pylogbroker.interfaces import IFile

BUFFER_COUNT_MAX = 1024
"""Of one gather-write: IOV_MAX on Linux."""


class WriteResult(NamedTuple):
    """
    How far a write has come.

    @ivar bufferCount: buffers that are in the file, whole.
    @ivar size: bytes of those.
    @ivar problem: why it did not go on; L{None}: all are there.
    """

    bufferCount: int
    size: int
    problem: StorageError | None


def writeAll(file: IFile, position: int, buffers: Sequence[bytes], size: int) -> WriteResult:
    """
    Write buffers at the end of a file.

    @param position: the end of the file.
    @param size: bytes of all buffers.
    @return: the file ends behind the buffers that are counted.
    @raise StorageError: it ends somewhere else, and could not be cut: nothing may be written to it any more.
    """
    bufferCount = doneSize = 0
    problem: StorageError | None = None
    while problem is None and bufferCount < len(buffers):
        batch = (
            buffers[bufferCount : bufferCount + BUFFER_COUNT_MAX]
            if len(buffers) > BUFFER_COUNT_MAX or bufferCount
            else buffers
        )
        batchCount = len(batch)
        batchSize = (
            size - doneSize if bufferCount + batchCount == len(buffers) else sum(map(len, batch))
        )
        taken = 0
        try:
            taken = file.writeAt(position + doneSize, batch)
        except StorageError as error:
            problem = error
        if taken != batchSize:
            batchCount, batchSize = _wholePrefix(batch, taken)
            if problem is None and batchCount == 0:
                problem = StorageError(
                    file.path,
                    "write",
                    f"only {taken} bytes of {len(batch[0])} were taken, as on a full disk",
                    errno.ENOSPC,
                )
            file.truncate(position + doneSize + batchSize)
        bufferCount += batchCount
        doneSize += batchSize
    return WriteResult(bufferCount, doneSize, problem)


def _wholePrefix(batch: Sequence[bytes], taken: int) -> tuple[int, int]:
    """How many of the buffers are whole in so many bytes, which are not all, and their size."""
    size = 0
    for count, buffer in enumerate(batch):
        if size + len(buffer) > taken:
            return count, size
        size += len(buffer)
    raise AssertionError("all were taken")
