"""
Tests of what is known about the page cache.
"""

from __future__ import annotations

import errno
import mmap
import os

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.net.pagecache import PIECE_SIZE, PROBE_STEP_SIZE, PageCache, makeCachestat


class RecentTests(SynchronousTestCase):
    """What was appended a short while ago."""

    def test_remembered(self) -> None:
        """
        All pieces that were appended to are warm, without a look at the file; their neighbours are
        not.
        """
        warmth = PageCache(10)
        warmth.markCached("a", PIECE_SIZE - 1, 2)
        warm = [index for index in range(4) if warmth.isCached("a", -1, index * PIECE_SIZE, 1)]
        self.assertEqual(warm, [0, 1])
        self.assertFalse(warmth.isCached("b", -1, 0, 1))

    def test_exactEnd(self) -> None:
        """
        A piece that ends where the appended bytes begin, or begins where they end, is not among
        them.
        """
        warmth = PageCache(10)
        warmth.markCached("a", PIECE_SIZE, PIECE_SIZE)
        self.assertEqual(
            [warmth.isCached("a", -1, index * PIECE_SIZE, 1) for index in range(3)],
            [False, True, False],
        )

    def test_limited(self) -> None:
        """Only so many are remembered, the latest."""
        warmth = PageCache(3)
        for index in (0, 1, 2, 0, 3):
            warmth.markCached("a", index * PIECE_SIZE, 1)
        self.assertEqual(
            [index for index in range(4) if warmth.isCached("a", -1, index * PIECE_SIZE, 1)],
            [0, 2, 3],
        )
        warmth.markCached("b", 0, 100 * PIECE_SIZE)
        self.assertEqual(
            [index for index in range(100) if warmth.isCached("b", -1, index * PIECE_SIZE, 1)],
            [97, 98, 99],
        )

    def test_none(self) -> None:
        """Told to remember nothing, it does not."""
        warmth = PageCache(0)
        warmth.markCached("a", 0, 1)
        self.assertFalse(warmth.isCached("a", -1, 0, 1))


def noCachestat(fileno: int, position: int, size: int) -> int:
    """A kernel before Linux 6.5."""
    raise OSError(errno.ENOSYS, "")


class KernelTestCase(SynchronousTestCase):
    """A file of one piece, and a kernel whose probes the test answers."""

    def setUp(self) -> None:
        self.path = self.mktemp()
        with open(self.path, "wb") as out:
            out.write(os.urandom(PIECE_SIZE))
            out.flush()
            os.fsync(out.fileno())
        self.fileno = os.open(self.path, os.O_RDONLY)
        self.addCleanup(os.close, self.fileno)
        self.warmth = PageCache(0, noCachestat)

    def answering(self, *answers: object) -> list[int]:
        """Let the kernel answer probes so; returns the positions that were asked about."""
        asked: list[int] = []
        left = list(answers)

        def preadv(fileno: int, buffers: object, position: int, flags: int) -> int:
            self.assertEqual((fileno, flags), (self.fileno, os.RWF_NOWAIT))
            asked.append(position)
            answer = left.pop(0) if left else 1
            if isinstance(answer, OSError):
                raise answer
            return 1

        self.patch(os, "preadv", preadv)
        return asked


class CachestatTests(KernelTestCase):
    """What C{cachestat} says, where the kernel has it."""

    def test_wholeRange(self) -> None:
        """
        A range is warm when all pages that it touches are cached, and its last byte can be read
        without waiting: pages on their way from the disk count as cached, too. No other byte is
        probed.
        """
        ranges: list[tuple[int, int, int]] = []

        def cachestat(fileno: int, position: int, size: int) -> int:
            ranges.append((fileno, position, size))
            return 3

        warmth = PageCache(0, cachestat)
        asked = self.answering(1, BlockingIOError(errno.EAGAIN, ""))
        start = mmap.PAGESIZE - 1
        self.assertTrue(warmth.isCached(self.path, self.fileno, start, mmap.PAGESIZE + 2))
        self.assertEqual(ranges, [(self.fileno, start, mmap.PAGESIZE + 2)])
        self.assertEqual(asked, [2 * mmap.PAGESIZE])
        self.assertFalse(warmth.isCached(self.path, self.fileno, start, mmap.PAGESIZE + 2))
        self.assertEqual(len(asked), 2)

    def test_pageMissing(self) -> None:
        """A range of which one page is not cached is cold, and no byte of it is probed."""
        asked = self.answering()
        warmth = PageCache(0, lambda *_: 2)
        self.assertFalse(warmth.isCached(self.path, self.fileno, 0, 2 * mmap.PAGESIZE + 1))
        self.assertEqual(asked, [])

    def test_missingCall(self) -> None:
        """A kernel or a sandbox without the call is asked once; from then on bytes are probed."""
        calls: list[int] = []

        def cachestat(fileno: int, position: int, size: int) -> int:
            calls.append(fileno)
            raise OSError(errno.EPERM, "")

        asked = self.answering()
        warmth = PageCache(0, cachestat)
        for _ in range(2):
            self.assertTrue(warmth.isCached(self.path, self.fileno, 0, PROBE_STEP_SIZE + 1))
        self.assertEqual((len(calls), len(asked)), (1, 6))

    def test_forReal(self) -> None:
        """
        The kernel counts the pages of a range that was just written, or says that it has no such
        call, or that it is forbidden.
        """
        try:
            count = makeCachestat()(self.fileno, 1, 2 * mmap.PAGESIZE)
        except OSError as error:
            self.assertIn(error.errno, (errno.ENOSYS, errno.EPERM))
        else:
            with open("/proc/mounts", encoding="utf-8") as mounts:
                isOverlay = " / overlay " in mounts.read()
            self.assertIn(count, (0, 3) if isOverlay else (3,))

    def test_badDescriptor(self) -> None:
        """An error of the kernel is raised with its number."""
        error = self.assertRaises(OSError, makeCachestat(), -1, 0, 1)
        self.assertIn(error.errno, (errno.EBADF, errno.ENOSYS, errno.EPERM))


class CachedTests(KernelTestCase):
    """What probes of single bytes say, where there is no C{cachestat}."""

    def test_sampled(self) -> None:
        """
        A piece is warm when its first byte, its last, and one every 64 KiB between can be read
        without waiting.
        """
        asked = self.answering()
        self.assertTrue(self.warmth.isCached(self.path, self.fileno, 100, 2 * PROBE_STEP_SIZE))
        self.assertEqual(asked, [100, 100 + PROBE_STEP_SIZE, 99 + 2 * PROBE_STEP_SIZE])

    def test_cold(self) -> None:
        """It is not as soon as one of them would have to wait."""
        asked = self.answering(1, BlockingIOError(errno.EAGAIN, ""))
        self.assertFalse(self.warmth.isCached(self.path, self.fileno, 0, PIECE_SIZE))
        self.assertEqual(len(asked), 2)

    def test_unknown(self) -> None:
        """
        A file system that does not know the flag is asked once; from then on everything not recent
        is cold there.
        """
        asked = self.answering(OSError(errno.EOPNOTSUPP, ""))
        self.assertFalse(self.warmth.isCached(self.path, self.fileno, 0, 1))
        self.assertFalse(self.warmth.isCached(self.path, self.fileno, 0, 1))
        self.assertEqual(len(asked), 1)
        other = os.memfd_create("other")
        self.addCleanup(os.close, other)
        self.fileno = other
        self.assertTrue(self.warmth.isCached("other", other, 0, 1))
        self.assertEqual(len(asked), 3)

    def test_broken(self) -> None:
        """Another error is for the worker to meet; nothing is concluded from it."""
        asked = self.answering(OSError(errno.EIO, ""))
        self.assertFalse(self.warmth.isCached(self.path, self.fileno, 0, 1))
        self.assertTrue(self.warmth.isCached(self.path, self.fileno, 0, 1))
        self.assertEqual(len(asked), 3)

    def test_forReal(self) -> None:
        """
        What was read in is warm on a file system that can say so; on another one, nothing is that
        is not recent.
        """
        try:
            os.preadv(self.fileno, [bytearray(1)], 0, os.RWF_NOWAIT)
            canSay = True
        except OSError as error:
            canSay = error.errno != errno.EOPNOTSUPP
        self.warmth.prefetch(self.fileno, 0, PIECE_SIZE)
        self.assertEqual(self.warmth.isCached(self.path, self.fileno, 0, PIECE_SIZE), canSay)

    def test_readIn(self) -> None:
        """
        Reading in asks for a whole piece at once and waits for every part of it; a file that ends
        sooner is no error.
        """
        told: list[tuple[str, int, int]] = []

        def fadvise(fileno: int, position: int, size: int, advice: int) -> None:
            self.assertEqual((fileno, advice), (self.fileno, os.POSIX_FADV_WILLNEED))
            told.append(("ask", position, size))
            realFadvise(fileno, position, size, advice)

        def pread(fileno: int, size: int, position: int) -> bytes:
            told.append(("wait", position, size))
            return realPread(fileno, size, position)

        realFadvise, realPread = os.posix_fadvise, os.pread
        self.patch(os, "posix_fadvise", fadvise)
        self.patch(os, "pread", pread)
        self.warmth.prefetch(self.fileno, 1000, PROBE_STEP_SIZE + 5)
        waits = [
            ("wait", position, 1)
            for position in (1000, 1000 + PROBE_STEP_SIZE, 1004 + PROBE_STEP_SIZE)
        ]
        self.assertEqual(told, [("ask", 1000, PROBE_STEP_SIZE + 5), *waits])
        self.warmth.prefetch(self.fileno, PIECE_SIZE - 10, PROBE_STEP_SIZE)

    def test_readInFails(self) -> None:
        """A disk that cannot read says so to who asked."""

        def pread(fileno: int, size: int, position: int) -> bytes:
            raise OSError(errno.EIO, "")

        self.patch(os, "pread", pread)
        self.assertRaises(OSError, self.warmth.prefetch, self.fileno, 0, 10)
