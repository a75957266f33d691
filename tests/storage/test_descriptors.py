"""
Tests of the shared descriptors.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import StorageError
from pylogbroker.interfaces import IFile, IFileSystem
from pylogbroker.storage.files import DescriptorCache, RealFileSystem, SegmentFile
from pylogbroker.testing.powercut import PowerCutFileSystem


class DescriptorCacheTests(SynchronousTestCase):
    """Pinned files are open, and a few idle ones."""

    def setUp(self) -> None:
        self.files = PowerCutFileSystem()
        self.cache = DescriptorCache(self.files, 2)

    def make(self, name: str, writable: bool = False) -> SegmentFile:
        self.files.open(f"/{name}", create=True).writeAt(0, [name.encode()])
        return SegmentFile(self.cache, f"/{name}", writable)

    def use(self, file: SegmentFile) -> None:
        if not file.pin():
            file.openPinned()
        file.unpin()

    def test_pinOpensNothing(self) -> None:
        """
        A file that is not open cannot be pinned without blocking; C{openPinned} does both; open, it
        can be pinned again.
        """
        file = self.make("a")
        self.assertFalse(file.pin())
        self.assertRaises(StorageError, file.fileno)
        file.openPinned()
        self.assertTrue(file.pin())
        self.assertEqual(file.pinCount, 2)
        self.assertEqual(os.pread(file.fileno(), 9, 0), b"a")

    def test_oldestIdleIsClosed(self) -> None:
        """Over the limit, the file that has been idle for longest is closed."""
        a, b, c = self.make("a"), self.make("b"), self.make("c")
        self.use(a)
        self.use(b)
        self.use(a)
        self.use(c)
        self.assertEqual([file.isOpen for file in (a, b, c)], [True, False, True])
        self.assertEqual((self.cache.openCount, self.cache.idleCount), (2, 2))
        self.use(b)
        self.assertEqual([file.isOpen for file in (a, b, c)], [False, True, True])

    def test_pinnedIsNeverClosed(self) -> None:
        """Files with pins stay open over the limit; the last C{unpin} closes what is too many."""
        files = [self.make(name) for name in "abc"]
        for file in files:
            file.openPinned()
        files[0].pin()
        self.assertEqual(self.cache.openCount, 3)
        files[0].unpin()
        self.assertTrue(files[0].isOpen)
        files[0].unpin()
        self.assertEqual([file.isOpen for file in files], [False, True, True])

    def test_manyFilesFewDescriptors(self) -> None:
        """A thousand files, used in turn, never have more descriptors than the limit."""
        cache = self.cache = DescriptorCache(self.files, 10)
        for i in range(1000):
            self.use(self.make(f"f{i}"))
            self.assertTrue(cache.openCount <= 10)
        self.assertEqual(cache.openCount, 10)

    def test_adopt(self) -> None:
        """A file that was just created is open and idle, and counts."""
        self.use(self.make("a"))
        self.use(self.make("b"))
        found = self.cache.adopt(self.files.open("/c", create=True))
        self.assertTrue(found.isOpen and found.writable)
        self.assertEqual(self.cache.openCount, 2)

    def test_closeIdle(self) -> None:
        """All idle files can be closed at once; pinned ones stay."""
        a, b = self.make("a"), self.make("b")
        self.use(a)
        b.openPinned()
        self.cache.closeIdle()
        self.assertEqual(
            (a.isOpen, b.isOpen, self.cache.openCount, self.cache.idleCount), (False, True, 1, 0)
        )

    def test_closingFails(self) -> None:
        """An error on closing an idle file does not fail the opening of another."""
        file = self.make("a")
        file.openPinned()

        def refuse() -> None:
            raise StorageError("/a", "close", "no", errno.EIO)

        file.file.close = refuse  # type: ignore[method-assign]
        file.unpin()
        self.cache.closeIdle()
        self.assertEqual(self.cache.openCount, 0)

    def test_takeOut(self) -> None:
        """A retired file is closed at once if it has no pins, and never opened again."""
        file = self.make("a")
        self.use(file)
        self.assertTrue(file.retire())
        self.assertFalse(file.isOpen)
        self.assertFalse(file.pin())
        self.assertEqual(self.assertRaises(StorageError, file.openPinned).errno, errno.ENOENT)
        self.assertTrue(file.retire())
        self.assertEqual(self.cache.openCount, 0)
        self.assertIn("closed", repr(file))

    def test_takeOutWhilePinned(self) -> None:
        """
        Who holds a file that is taken out reads on, and can hold it once more; the last to let go
        closes it.
        """
        file = self.make("a")
        file.openPinned()
        self.assertFalse(file.retire())
        self.assertTrue(file.pin())
        self.assertEqual(os.pread(file.fileno(), 9, 0), b"a")
        self.assertIn("open, 2 pins", repr(file))
        file.unpin()
        self.assertTrue(file.isOpen)
        file.unpin()
        self.assertFalse(file.isOpen)
        self.assertTrue(file.retire())
        self.assertEqual((self.cache.openCount, self.cache.idleCount), (0, 0))

    def test_takenOutWhileOpening(self) -> None:
        """A file that is taken out while a worker opens it is closed again, and the worker told."""
        file = self.make("a")
        opened: list[IFile] = []

        class Slow(PowerCutFileSystem):
            def open(inner, path: str, **more: Any) -> IFile:  # noqa: N805 - the test's own self is outside
                found = self.files.open(path, **more)
                file.retire()
                opened.append(found)
                return found

        self.cache.fileSystem = Slow()
        self.assertRaises(StorageError, file.openPinned)
        self.assertEqual(self.cache.openCount, 0)
        self.assertEqual(opened[0].fileno(), -1)

    def test_openingTogether(self) -> None:
        """Two workers that open one file share the descriptor."""
        file = self.make("a")
        threads = [threading.Thread(target=file.openPinned) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((file.pinCount, self.cache.openCount), (2, 1))

    def test_outOfDescriptors(self) -> None:
        """
        When the system has no more descriptors, the idle ones are closed and the opening is tried
        once more.
        """
        a, b = self.make("a"), self.make("b")
        self.use(a)
        self.files.fail("open", "/b", errno.EMFILE)
        b.openPinned()
        self.assertEqual((a.isOpen, b.isOpen), (False, True))

    def test_outOfDescriptorsForGood(self) -> None:
        """When closing the idle ones does not mend it, or there are none, the error is told."""
        a, b = self.make("a"), self.make("b")
        self.files.fail("open", "/b", errno.ENFILE)
        self.assertEqual(self.assertRaises(StorageError, b.openPinned).errno, errno.ENFILE)
        self.use(a)
        self.files.fail("open", "/b", errno.ENFILE, 2)
        self.assertEqual(self.assertRaises(StorageError, b.openPinned).errno, errno.ENFILE)
        b.openPinned()

    def test_otherOpeningErrors(self) -> None:
        """Another error closes nothing and is told."""
        a, b = self.make("a"), self.make("b")
        self.use(a)
        self.files.fail("open", "/b", errno.EIO)
        self.assertEqual(self.assertRaises(StorageError, b.openPinned).errno, errno.EIO)
        self.assertTrue(a.isOpen)

    def test_writableOrNot(self) -> None:
        """A file is opened for writing only if it is the last segment's."""
        reading, writing = self.make("a"), self.make("b", writable=True)
        reading.openPinned()
        writing.openPinned()
        self.assertRaises(StorageError, reading.file.writeAt, 0, [b"x"])
        self.assertEqual(writing.file.writeAt(0, [b"x"]), 1)

    def test_failedSyncStaysFailed(self) -> None:
        """After a sync has failed, no later one succeeds: the kernel reports lost bytes once."""
        file = self.make("a", writable=True)
        file.openPinned()
        file.sync()
        self.files.fail("fsync", "/a", errno.EIO)
        first = self.assertRaises(StorageError, file.sync)
        self.assertEqual(first.errno, errno.EIO)
        self.assertIs(self.assertRaises(StorageError, file.sync), first)


class RealDescriptorTests(SynchronousTestCase):
    """The same on this machine's files."""

    def test_descriptorsAreGivenBack(self) -> None:
        """A hundred files used in turn take no more descriptors from the system than the limit."""
        files: IFileSystem = RealFileSystem()
        root = self.mktemp()
        files.makeDirectories(root)
        cache = DescriptorCache(files, 5)
        before = len(os.listdir("/proc/self/fd"))
        for i in range(100):
            files.open(f"{root}/{i}", create=True).close()
            file = SegmentFile(cache, f"{root}/{i}", True)
            file.openPinned()
            file.unpin()
        self.assertEqual(len(os.listdir("/proc/self/fd")) - before, 5)
        cache.closeIdle()
        self.assertEqual(len(os.listdir("/proc/self/fd")) - before, 0)
