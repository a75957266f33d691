"""
Tests of the real file system.
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import StorageError
from pylogbroker.storage.files import RealFile, RealFileSystem
from tests.contracts import filesystem


class RealFileSystemTests(filesystem.FileSystemContract):
    """The contract, on this machine's files."""

    def setUp(self) -> None:
        self.fileSystem = RealFileSystem()
        self.root = os.path.abspath(self.mktemp())
        os.makedirs(self.root)

    def test_lockOfAnotherProcess(self) -> None:
        """A lock is free again when the process that held it has ended."""
        inward, outward = os.pipe()
        child = os.fork()
        if child == 0:
            self.fileSystem.lock(self.at(".lock"))
            os.write(outward, b"1")
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual(os.read(inward, 1), b"1")
        os.close(inward)
        os.close(outward)
        self.fileSystem.lock(self.at(".lock"))()

    def test_lockOfJava(self) -> None:
        """Java's locks, and ours for Java's, are those of C{lockf}."""
        unlock = self.fileSystem.lock(self.at(".lock"))
        command = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), 2 | 4)"
        tried = [sys.executable, "-c", command, self.at(".lock")]
        refused = subprocess.run(tried, capture_output=True, text=True, check=False)
        self.assertIn("BlockingIOError", refused.stderr)
        unlock()
        subprocess.run(tried, check=True)

    def test_errorsNameTheFile(self) -> None:
        """
        An C{OSError} becomes a L{StorageError} with path, action, reason and number in its text or
        attributes.
        """
        error = self.assertRaises(StorageError, self.fileSystem.list, self.at("none"))
        self.assertEqual(error.path, self.at("none"))
        self.assertEqual(str(error), f"cannot list {self.at('none')}: No such file or directory")

    def test_statusOfWhatCannotBeLookedAt(self) -> None:
        """
        A path that leads through a file, or is too long, is an error or nothing, never an
        C{OSError}.
        """
        self.fails("stat", errno.ENAMETOOLONG, self.fileSystem.status, self.at("x" * 300))

    def test_lockOfADirectory(self) -> None:
        """What cannot be locked for another reason is not taken for locked."""
        os.mkdir(self.at("d"))
        self.fails("open", errno.EISDIR, self.fileSystem.lock, self.at("d"))

    def test_private(self) -> None:
        """A private file is its owner's alone; one that cannot be made so is not opened."""
        path = self.make("a", b"x")
        self.fileSystem.open(path, isPrivate=True).close()
        self.fileSystem.open(self.at("b"), create=True, isPrivate=True).close()
        for each in (path, self.at("b")):
            self.assertEqual(os.stat(each).st_mode & 0o777, 0o600)
        os.chmod(path, 0o640)

        def refuse(descriptor: int, mode: int) -> None:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        self.patch(os, "fchmod", refuse)
        self.fails("restrict", errno.EPERM, self.fileSystem.open, path, isPrivate=True)

    def test_closeOfABadDescriptor(self) -> None:
        """A failing C{close} is a L{StorageError}, too."""
        file = self.fileSystem.open(self.make("a", b""))
        os.close(file.fileno())
        self.fails("close", errno.EBADF, file.close)

    def test_fileSizeLimit(self) -> None:
        """
        A write up to the system's limit of file sizes is short and says so; the next is an error.
        """
        inward, outward = os.pipe()
        child = os.fork()
        if child == 0:  # the limit holds for a whole process
            import signal

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
            file = self.fileSystem.open(self.at("a"), create=True)
            written = file.writeAt(0, [b"12345678", b"12345678"])
            try:
                file.writeAt(10, [b"1"])
            except StorageError as error:
                os.write(outward, f"{written} {error.errno}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        self.assertEqual(os.read(inward, 99), f"10 {errno.EFBIG}".encode())
        os.close(inward)
        os.close(outward)


class PiecewiseReadTests(SynchronousTestCase):
    """A read that the system answers in pieces."""

    def test_piecesArePutTogether(self) -> None:
        """
        C{readAt} asks again until it has all bytes or the file ends, so that a short answer is
        never taken for the end of a segment.
        """
        path = self.mktemp()
        with open(path, "wb") as out:
            out.write(b"0123456789")

        def stingy(descriptor: int, size: int, position: int) -> bytes:
            return os_pread(descriptor, min(size, 3), position)

        os_pread = os.pread
        self.patch(os, "pread", stingy)
        file = RealFile(path, os.open(path, os.O_RDONLY))
        self.assertEqual(file.readAt(1, 8), b"12345678")
        self.assertEqual(file.readAt(4, 100), b"456789")
        self.assertEqual(file.readAt(4, 2), b"45")
        file.close()
