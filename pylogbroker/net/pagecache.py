"""
Which ranges of a file can be sent without waiting for the disk.

C{sendfile} of a range that is not in the page cache stops the thread that calls it, here the reactor with all its connections.
So a piece is sent at once only when it is known to be *warm*: it was appended a short while ago (a table of the last
pieces remembers), or the kernel says that it is cached. It says so through C{preadv(…, RWF_NOWAIT)}, which fails with C{EAGAIN} rather than
wait: one byte at the first, the last and every 64 KiB of the piece costs about 20 µs a megabyte. That is a sample: a hole of less than
64 KiB can slip through, and costs what one read-ahead costs. Rejected: C{mincore}, which needs a mapping and ctypes, and answers by page;
sending every read through a thread, which costs each hot fetch a thread switch.

tmpfs and overlayfs do not know the flag (C{EOPNOTSUPP}). That is learnt, per device, and there everything not recent goes through the worker.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict

PIECE_SIZE = 512 << 10
PROBE_STEP_SIZE = 64 << 10


class PageCache:
    """
    Knows, or finds out, what is warm.

    @ivar pieceCountMax: how many pieces of 512 KiB are remembered.
    """

    def __init__(self, pieceCountMax: int) -> None:
        self.pieceCountMax = pieceCountMax
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
        """
        Whether a piece can be sent now.

        @param size: at most L{PIECE_SIZE}, and the piece lies between two multiples of it.
        """
        return (path, position // PIECE_SIZE) in self._recent or self._isCached(
            fileno, position, size
        )

    def _isCached(self, fileno: int, position: int, size: int) -> bool:
        if self._blind and os.fstat(fileno).st_dev in self._blind:
            return False
        end = position + size
        buffers = (self._byte,)
        try:
            for at in (*range(position, end, PROBE_STEP_SIZE), end - 1):
                os.preadv(fileno, buffers, at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                return False  # whatever it is, the worker will meet it, and can wait
            self._blind.add(os.fstat(fileno).st_dev)
            return False
        return True

    def readIn(self, fileno: int, position: int, size: int) -> None:
        """
        Let the system read a piece into its cache, and wait until it is there. Blocks: for a worker.

        The bytes are not copied into this process: the worker would take the processor, and the interpreter, from the connections that are served meanwhile.
        A file that ends before the piece does was cut; who sends finds out.
        """
        end = position + size
        os.posix_fadvise(
            fileno, position, size, os.POSIX_FADV_WILLNEED
        )  # all of it at once; each step below then waits for its part of it
        for at in (*range(position, end, PROBE_STEP_SIZE), end - 1):
            os.pread(fileno, 1, at)
