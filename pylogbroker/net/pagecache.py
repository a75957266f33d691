"""
Which ranges of a file can be sent without waiting for the disk.

C{sendfile} of a range that is not in the page cache stops the thread that calls it, here the reactor with all its connections.
A range is sent at once only when it is known to be cached: it was appended a short while ago (a table of the last
pieces remembers), or the kernel says so.

The kernel is asked twice. C{cachestat} (Linux 6.5) counts the cached pages of a whole range, 2 µs for 1 MiB. It also counts pages that are still
on their way from the disk, therefore C{preadv(…, RWF_NOWAIT)} of the last byte must succeed, too; read-ahead fills a range from its start. Where
C{cachestat} is missing or forbidden, the same C{preadv} probes the first byte, the last, and one every 64 KiB, about 20 µs for 1 MiB. That is a
sample: a hole of less than 64 KiB can slip through, and costs what one read-ahead costs.

Rejected: C{mincore}, which needs a mapping; sending every read through a thread, which costs each hot fetch a thread switch.

tmpfs and overlayfs do not know C{RWF_NOWAIT} (C{EOPNOTSUPP}). That is recorded per device, and every range there that is not recent goes through
the worker.
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
_CACHESTAT = 451  # the number of the system call, the same on all architectures that Python's Linux wheels exist for


class _Range(ctypes.Structure):
    _fields_ = (("position", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recentlyEvicted")
    )


def makeCachestat() -> Callable[[int, int, int], int]:
    """
    C{cachestat(2)} as a function of descriptor, position and size that returns how many pages of the range are in the page cache.

    Python's C{PyDLL} keeps the interpreter's lock during the call, which is shorter than taking the lock again from a busy worker.

    The function raises L{OSError}: C{ENOSYS} before Linux 6.5, C{EPERM} in a sandbox that does not know the call or for a file of another user.
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
    Knows, or finds out, what is cached.

    @ivar pieceCountMax: how many pieces of 512 KiB are remembered.
    """

    def __init__(
        self, pieceCountMax: int, cachestat: Callable[[int, int, int], int] | None = None
    ) -> None:
        """
        @param cachestat: see L{makeCachestat}, which is the default.
        """
        self.pieceCountMax = pieceCountMax
        self._cachestat: Callable[[int, int, int], int] | None = cachestat or makeCachestat()
        self._recent: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._blind: set[int] = set()
        self._byte = bytearray(1)

    def remember(self, path: str, position: int, size: int) -> None:
        """Bytes were appended: the pieces that they lie in are warm for now."""
        recent = self._recent
        for index in range(position // PIECE_SIZE, (position + size - 1) // PIECE_SIZE + 1):
            recent[path, index] = None
            recent.move_to_end((path, index))
        while len(recent) > self.pieceCountMax:
            recent.popitem(last=False)

    def isCached(self, path: str, fileno: int, position: int, size: int) -> bool:
        """Whether a range can be sent now. The cost grows with its size; callers ask for at most a few MiB."""
        recent = self._recent
        for index in range(position // PIECE_SIZE, (position + size - 1) // PIECE_SIZE + 1):
            if (path, index) not in recent:
                return self._isCached(fileno, position, size)
        return True

    def _isCached(self, fileno: int, position: int, size: int) -> bool:
        if self._blind and os.fstat(fileno).st_dev in self._blind:
            return False
        probed = self._probePositions(fileno, position, size)
        buffers = (self._byte,)
        try:
            for at in probed:
                os.preadv(fileno, buffers, at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                self._blind.add(os.fstat(fileno).st_dev)
            return False  # of any other error the worker will learn, and can wait
        return bool(probed)

    def _probePositions(self, fileno: int, position: int, size: int) -> tuple[int, ...]:
        """The bytes that must be readable at once; none when the kernel says that not all of the range is cached."""
        last = position + size - 1
        if self._cachestat is not None:
            try:
                pageCount = last // mmap.PAGESIZE - position // mmap.PAGESIZE + 1
                return (last,) if self._cachestat(fileno, position, size) >= pageCount else ()
            except OSError:
                self._cachestat = None  # it is missing, or forbidden, for good
        return (*range(position, position + size, PROBE_STEP_SIZE), last)

    def readIn(self, fileno: int, position: int, size: int) -> None:
        """
        Let the system read a range into its cache, and wait until it is there. Blocks: for a worker.

        The bytes are not copied into this process: the worker would take the processor, and the interpreter, from the connections that are served meanwhile.
        A file that ends before the range does was cut; who sends finds out.
        """
        end = position + size
        os.posix_fadvise(
            fileno, position, size, os.POSIX_FADV_WILLNEED
        )  # all of it at once; each step below then waits for its part of it
        for at in (*range(position, end, PROBE_STEP_SIZE), end - 1):
            os.pread(fileno, 1, at)
