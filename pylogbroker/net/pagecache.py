"""
L{PageCache}: which ranges of files can be sent without waiting for the disk.

C{sendfile} of a range outside the page cache blocks the reactor with all its connections. A range
is sent at once only if it was flushed recently (a table of the last pieces), or the kernel says
that it is cached.

C{cachestat} (Linux 6.5) counts the cached pages of a range, in 2 µs for 1 MiB. It also counts pages
that are still being read, so C{preadv(…, RWF_NOWAIT)} of the last byte must succeed, too. Without
C{cachestat}, C{preadv} probes the first byte, the last, and one every 64 KiB: about 20 µs for 1
MiB. A smaller hole may be missed, and costs one read-ahead.

tmpfs and overlayfs do not support C{RWF_NOWAIT}, which is recorded per device: a worker reads every
range there that is not recent. Rejected: C{mincore}, which needs a mapping; sending all data by
threads, which costs each cached fetch a thread switch.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections import OrderedDict
from collections.abc import Callable

PIECE_SIZE = 512 << 10
PROBE_STEP_SIZE = 64 << 10
_CACHESTAT = 451  # the same number on all architectures for which Linux wheels of Python exist

Cachestat = Callable[[int, int, int], int]
"""From descriptor, position and size to the number of cached pages in the range."""


class _Range(ctypes.Structure):
    _fields_ = (("position", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recentlyEvicted")
    )


def makeCachestat() -> Cachestat:
    """
    C{cachestat(2)} as a function. It raises L{OSError}: C{ENOSYS} before Linux 6.5; C{EPERM} in a
    sandbox, or for a file of another user.

    C{PyDLL} keeps the interpreter's lock: the call is shorter than taking the lock back from a busy
    worker.
    """
    syscall = ctypes.PyDLL(None, use_errno=True).syscall
    syscall.argtypes = (
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_uint,
    )
    syscall.restype = ctypes.c_long
    asked, counts = _Range(), _Counts()
    askedAt, countsAt = ctypes.addressof(asked), ctypes.addressof(counts)

    def cachestat(fileno: int, position: int, size: int) -> int:
        asked.position, asked.size = position, size
        if syscall(_CACHESTAT, fileno, askedAt, countsAt, 0):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        cached: int = counts.cached
        return cached

    return cachestat


class PageCache:
    """
    The recently cached ranges, and the kernel's word on others.

    @ivar pieceCountMax: pieces of 512 KiB that are remembered after an append.
    """

    def __init__(self, pieceCountMax: int, cachestat: Cachestat | None = None) -> None:
        """
        @param cachestat: by default L{makeCachestat}'s.
        """
        self.pieceCountMax = pieceCountMax
        self._cachestat: Cachestat | None = cachestat or makeCachestat()
        self._recent: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._unsupportedDevices: set[int] = set()
        self._byte = bytearray(1)

    def markCached(self, path: str, position: int, size: int) -> None:
        """Bytes were appended: the pieces around them are cached for now."""
        recent = self._recent
        for index in range(position // PIECE_SIZE, (position + size - 1) // PIECE_SIZE + 1):
            recent[path, index] = None
            recent.move_to_end((path, index))
        while len(recent) > self.pieceCountMax:
            recent.popitem(last=False)

    def isCached(self, path: str, fileno: int, position: int, size: int) -> bool:
        """Whether a range can be sent now. The cost grows with C{size}: a few MiB at most."""
        recent = self._recent
        for index in range(position // PIECE_SIZE, (position + size - 1) // PIECE_SIZE + 1):
            if (path, index) not in recent:
                return self._kernelHas(fileno, position, size)
        return True

    def _kernelHas(self, fileno: int, position: int, size: int) -> bool:
        devices = self._unsupportedDevices
        if devices and os.fstat(fileno).st_dev in devices:
            return False
        positions = self._probePositions(fileno, position, size)
        buffers = (self._byte,)
        try:
            for each in positions:
                os.preadv(fileno, buffers, each, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                devices.add(os.fstat(fileno).st_dev)
            return False  # the worker will meet any other error, and can wait
        return bool(positions)

    def _probePositions(self, fileno: int, position: int, size: int) -> tuple[int, ...]:
        last = position + size - 1
        if self._cachestat is not None:
            try:
                pageCount = last // mmap.PAGESIZE - position // mmap.PAGESIZE + 1
                return (last,) if self._cachestat(fileno, position, size) >= pageCount else ()
            except OSError:
                self._cachestat = None  # missing, or forbidden
        return (*range(position, position + size, PROBE_STEP_SIZE), last)

    def prefetch(self, fileno: int, position: int, size: int) -> None:
        """
        Read a range into the page cache. Blocks: for a worker.

        The bytes are not copied into this process, which would hold the interpreter. A file that
        ends before the range is no error here: the sender finds out.
        """
        end = position + size
        # The whole range at once; each step below waits for its part.
        os.posix_fadvise(fileno, position, size, os.POSIX_FADV_WILLNEED)
        for each in (*range(position, end, PROBE_STEP_SIZE), end - 1):
            os.pread(fileno, 1, each)
