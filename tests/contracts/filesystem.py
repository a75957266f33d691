"""
What every L{pylogbroker.interfaces.IFileSystem} promises: the suite runs on the real one and on the
double.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import DirectoryLockedError, StorageError
from pylogbroker.interfaces import IFileSystem


class FileSystemContract(SynchronousTestCase):
    """
    Sub-classes set C{fileSystem} and C{root}, an empty directory in it. They name it
    C{filesystem.FileSystemContract}, so that trial does not find it, bare, in their module.

    @ivar fileSystem: under test.
    @ivar root: an absolute path.
    """

    fileSystem: IFileSystem
    root: str

    def at(self, name: str) -> str:
        return f"{self.root}/{name}"

    def make(self, name: str, *buffers: bytes) -> str:
        file = self.fileSystem.open(self.at(name), create=True)
        file.writeAt(0, buffers)
        file.close()
        return self.at(name)

    def fails(
        self, action: str, code: int, call: Callable[..., Any], *arguments: Any, **keywords: Any
    ) -> None:
        """The call raises a L{StorageError} that names the action and the system's number."""
        error = self.assertRaises(StorageError, call, *arguments, **keywords)
        self.assertEqual((error.action, error.errno), (action, code))

    def test_writesAndReads(self) -> None:
        """
        What is written at a position is read there; buffers are gathered in order; a gap reads as
        zeros.
        """
        file = self.fileSystem.open(self.at("a"), create=True)
        self.assertEqual(file.writeAt(0, [b"ab", b"", b"cde"]), 5)
        self.assertEqual(file.writeAt(7, [b"z"]), 1)
        self.assertEqual(file.readAt(0, 100), b"abcde\0\0z")
        self.assertEqual(file.readAt(1, 3), b"bcd")
        self.assertEqual(file.readAt(8, 3), b"")
        self.assertEqual(file.size(), 8)
        file.writeAt(1, [b"XY"])
        self.assertEqual(file.readAt(0, 5), b"aXYde")
        file.close()

    def test_tooManyBuffers(self) -> None:
        """1,024 buffers go in one write, 1,025 are refused."""
        file = self.fileSystem.open(self.at("a"), create=True)
        self.assertEqual(file.writeAt(0, [b"x"] * 1024), 1024)
        self.fails("write", errno.EINVAL, file.writeAt, 0, [b"x"] * 1025)
        file.close()

    def test_createOnlyWhatIsNotThere(self) -> None:
        """C{create} refuses an existing file; without it, a file must exist."""
        path = self.make("a", b"1")
        self.fails("create", errno.EEXIST, self.fileSystem.open, path, create=True)
        self.fails("open", errno.ENOENT, self.fileSystem.open, self.at("b"))
        self.fails("open", errno.EISDIR, self.fileSystem.open, self.root)
        self.fails("create", errno.ENOENT, self.fileSystem.open, self.at("none/a"), create=True)
        self.fails("create", errno.ENOTDIR, self.fileSystem.open, self.at("a/b"), create=True)

    def test_readOnly(self) -> None:
        """A file opened without C{write} is read, not written or cut."""
        file = self.fileSystem.open(self.make("a", b"12"), write=False)
        self.assertEqual(file.readAt(0, 9), b"12")
        self.fails("write", errno.EBADF, file.writeAt, 0, [b"x"])
        self.fails("truncate", errno.EINVAL, file.truncate, 0)
        file.close()

    def test_closed(self) -> None:
        """A closed file has no descriptor and refuses everything; closing twice does nothing."""
        file = self.fileSystem.open(self.make("a", b"12"))
        self.assertTrue(file.fileno() >= 0)
        file.close()
        file.close()
        self.assertEqual(file.fileno(), -1)
        self.fails("read", errno.EBADF, file.readAt, 0, 1)
        self.fails("write", errno.EBADF, file.writeAt, 0, [b"x"])
        self.fails("stat", errno.EBADF, file.size)
        self.fails("truncate", errno.EBADF, file.truncate, 0)
        self.fails("fsync", errno.EBADF, file.sync)

    def test_descriptor(self) -> None:
        """The descriptor reads the bytes of the file, those written after it was asked for, too."""
        file = self.fileSystem.open(self.make("a", b"12"))
        descriptor = file.fileno()
        self.assertEqual(os.pread(descriptor, 9, 0), b"12")
        file.writeAt(2, [b"345"])
        self.assertEqual(os.pread(descriptor, 9, 0), b"12345")
        file.truncate(1)
        self.assertEqual(os.pread(descriptor, 9, 0), b"1")
        file.close()

    def test_truncate(self) -> None:
        """A file is cut, or filled up with zeros; C{sync} changes nothing that can be seen."""
        file = self.fileSystem.open(self.make("a", b"12345"))
        file.truncate(2)
        self.assertEqual(file.readAt(0, 9), b"12")
        file.truncate(4)
        file.sync()
        self.assertEqual(file.readAt(0, 9), b"12\0\0")
        file.close()

    def test_list(self) -> None:
        """A directory lists its names; a missing one, or a file, is an error."""
        self.make("a")
        self.make(".b")
        self.fileSystem.makeDirectories(self.at("c/d"))
        self.assertEqual(sorted(self.fileSystem.list(self.root)), [".b", "a", "c"])
        self.fails("list", errno.ENOENT, self.fileSystem.list, self.at("none"))
        self.fails("list", errno.ENOTDIR, self.fileSystem.list, self.at("a"))

    def test_status(self) -> None:
        """Size, kind and time of what is there; L{None} for what is not."""
        path = self.make("a", b"123")
        self.fileSystem.setModified(path, 1_300_000_000_123)
        self.assertEqual(self.fileSystem.status(path), (3, 1_300_000_000_123, False))
        self.assertIsNone(self.fileSystem.status(self.at("none")))
        self.assertIsNone(self.fileSystem.status(self.at("none/a")))
        found = self.fileSystem.status(self.root)
        assert found is not None
        self.assertTrue(found.isDirectory)
        self.fails("set the time of", errno.ENOENT, self.fileSystem.setModified, self.at("none"), 0)

    def test_makeDirectories(self) -> None:
        """Parents are made, too; an existing directory is no error, a file of that name is."""
        self.fileSystem.makeDirectories(self.at("a/b/c"))
        self.fileSystem.makeDirectories(self.at("a/b/c"))
        self.make("a/b/c/d")
        self.fails("create", errno.EEXIST, self.fileSystem.makeDirectories, self.at("a/b/c/d"))

    def test_rename(self) -> None:
        """
        A renamed file has the new name only, replaces what had it, and files that are open go on.
        """
        path = self.make("a", b"1")
        self.make("b", b"2")
        file = self.fileSystem.open(path)
        self.fileSystem.rename(path, self.at("b"))
        self.assertEqual(self.fileSystem.list(self.root), ["b"])
        file.writeAt(1, [b"!"])
        file.close()
        again = self.fileSystem.open(self.at("b"))
        self.assertEqual(again.readAt(0, 9), b"1!")
        again.close()
        self.fails("rename", errno.ENOENT, self.fileSystem.rename, path, self.at("c"))

    def test_link(self) -> None:
        """
        A second name for a file, in another directory, too; of two that want it one gets it; the
        first name may go.
        """
        path = self.make("a", b"1")
        self.fileSystem.makeDirectories(self.at("d"))
        self.fileSystem.link(path, self.at("d/b"))
        self.fails("link", errno.EEXIST, self.fileSystem.link, path, self.at("d/b"))
        self.fileSystem.remove(path)
        file = self.fileSystem.open(self.at("d/b"), write=False)
        self.assertEqual(file.readAt(0, 9), b"1")
        file.close()
        self.fails("link", errno.ENOENT, self.fileSystem.link, path, self.at("c"))
        self.fails("link", errno.ENOENT, self.fileSystem.link, self.at("d/b"), self.at("none/c"))
        self.fails("link", errno.EPERM, self.fileSystem.link, self.at("d"), self.at("e"))

    def test_removeDirectory(self) -> None:
        """An empty directory goes; one with a file, a file, and what is missing are refused."""
        self.fileSystem.makeDirectories(self.at("d"))
        path = self.make("d/a")
        self.fails("remove", errno.ENOTEMPTY, self.fileSystem.removeDirectory, self.at("d"))
        self.fails("remove", errno.ENOTDIR, self.fileSystem.removeDirectory, path)
        self.fileSystem.remove(path)
        self.fileSystem.removeDirectory(self.at("d"))
        self.assertEqual(self.fileSystem.list(self.root), [])
        self.fails("remove", errno.ENOENT, self.fileSystem.removeDirectory, self.at("d"))

    def test_remove(self) -> None:
        """A removed file has no name; who has it open reads on."""
        path = self.make("a", b"1")
        file = self.fileSystem.open(path)
        self.fileSystem.remove(path)
        self.assertEqual(self.fileSystem.list(self.root), [])
        self.assertEqual(file.readAt(0, 9), b"1")
        self.assertEqual(os.pread(file.fileno(), 9, 0), b"1")
        file.close()
        self.fails("remove", errno.ENOENT, self.fileSystem.remove, path)
        self.fails("remove", errno.EISDIR, self.fileSystem.remove, self.root)

    def test_syncDirectory(self) -> None:
        """A directory can be synced; what is missing, or a file, cannot."""
        self.fileSystem.syncDirectory(self.root)
        self.fails("fsync", errno.ENOENT, self.fileSystem.syncDirectory, self.at("none"))
        self.fails("fsync", errno.ENOTDIR, self.fileSystem.syncDirectory, self.make("a"))

    def test_lock(self) -> None:
        """One holds a lock; who comes second is told at once; released, it can be had again."""
        release = self.fileSystem.lock(self.at(".lock"))
        self.assertEqual(self.fileSystem.list(self.root), [".lock"])
        self.assertRaises(DirectoryLockedError, self.fileSystem.lock, self.at(".lock"))
        other = self.fileSystem.lock(self.at(".other"))
        release()
        release()
        again = self.fileSystem.lock(self.at(".lock"))
        self.assertRaises(DirectoryLockedError, self.fileSystem.lock, self.at(".lock"))
        again()
        other()
        self.assertRaises(StorageError, self.fileSystem.lock, self.at("none/.lock"))
