"""
Tests of the file system that forgets.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import StorageError
from pylogbroker.interfaces import IFile
from pylogbroker.testing.powercut import PowerCutFileSystem, PowerLostError
from tests.contracts import filesystem


class PowerCutFileSystemTests(filesystem.FileSystemContract):
    """The contract, on the double."""

    def setUp(self) -> None:
        self.fileSystem = PowerCutFileSystem()
        self.root = "/data"
        self.fileSystem.makeDirectories(self.root)

    def test_renameAcrossDirectories(self) -> None:
        """The double renames within a directory only, and says so."""
        self.fileSystem.makeDirectories(self.at("d"))
        self.fails("rename", errno.EXDEV, self.fileSystem.rename, self.make("a"), self.at("d/a"))


class ForgettingTests(SynchronousTestCase):
    """What a power cut takes, and what it leaves."""

    def setUp(self) -> None:
        self.now = 5
        self.files = PowerCutFileSystem(lambda: self.now)
        self.files.makeDirectories("/d")
        self.files.syncDirectory("/")

    def make(self, path: str, data: bytes) -> IFile:
        file = self.files.open(path, create=True)
        file.writeAt(0, [data])
        return file

    def found(self, path: str) -> bytes | None:
        return None if self.files.status(path) is None else self.files.contents(path)

    def test_unsyncedBytes(self) -> None:
        """Of a file, only what was synced is left, even if more was written since, or cut off."""
        file = self.make("/d/a", b"12")
        file.sync()
        self.files.syncDirectory("/d")
        file.writeAt(1, [b"xyz"])
        self.files.cutPower()
        self.assertEqual(self.found("/d/a"), b"12")
        file = self.files.open("/d/a")
        file.truncate(0)
        self.files.cutPower()
        self.assertEqual(self.found("/d/a"), b"12")

    def test_unsyncedName(self) -> None:
        """A file that was synced is lost all the same if its directory was not."""
        self.make("/d/a", b"12").sync()
        self.files.cutPower()
        self.assertIsNone(self.found("/d/a"))

    def test_syncedNameOfUnsyncedFile(self) -> None:
        """A file of which only the directory was synced is there, and empty."""
        self.make("/d/a", b"12")
        self.files.syncDirectory("/d")
        self.files.cutPower()
        self.assertEqual(self.found("/d/a"), b"")

    def test_unsyncedDirectory(self) -> None:
        """A directory that is not synced into its parent takes everything in it away."""
        self.files.makeDirectories("/d/e")
        self.make("/d/e/a", b"12").sync()
        self.files.syncDirectory("/d/e")
        self.files.cutPower()
        self.assertEqual(self.files.list("/d"), [])

    def test_unsyncedRenameAndRemoval(self) -> None:
        """Names that were changed or removed without a sync come back."""
        self.make("/d/a", b"1")
        self.make("/d/b", b"2")
        self.files.syncDirectory("/d")
        self.files.rename("/d/a", "/d/c")
        self.files.remove("/d/b")
        self.files.cutPower()
        self.assertEqual(sorted(self.files.list("/d")), ["a", "b"])
        self.files.rename("/d/a", "/d/c")
        self.files.remove("/d/b")
        self.files.syncDirectory("/d")
        self.files.cutPower()
        self.assertEqual(self.files.list("/d"), ["c"])

    def test_openFilesAreUseless(self) -> None:
        """After a cut, files that were open raise L{PowerLostError}, and locks are free."""
        file = self.make("/d/a", b"1")
        release = self.files.lock("/d/.lock")
        self.files.syncDirectory("/d")
        self.files.cutPower()
        self.assertRaises(PowerLostError, file.readAt, 0, 1)
        self.assertRaises(PowerLostError, file.writeAt, 0, [b"x"])
        again = self.files.lock("/d/.lock")
        release()
        self.assertRaises(StorageError, self.files.lock, "/d/.lock")
        again()

    def test_kill(self) -> None:
        """
        When only the process dies, unsynced bytes are still there; a power cut after that takes
        them.
        """
        self.make("/d/a", b"1")
        self.files.syncDirectory("/d")
        self.files.kill()
        self.assertEqual(self.found("/d/a"), b"1")
        self.files.cutPower()
        self.assertEqual(self.found("/d/a"), b"")

    def test_cutAt(self) -> None:
        """
        The power fails before the operation that was named; nothing works then, until the power is
        back.
        """
        self.files.cutAt = self.files.operationCount + 2
        file = self.make("/d/a", b"1")
        self.assertRaises(PowerLostError, file.sync)
        self.assertRaises(PowerLostError, self.files.list, "/d")
        self.assertEqual(self.files.contents("/d/a"), b"1")
        self.files.cutPower()
        self.assertEqual(self.files.list("/d"), [])
        self.make("/d/a", b"1").sync()

    def test_killedAtAnOperation(self) -> None:
        """
        A process that died where the power was to fail loses nothing that was written, and the next
        one is not stopped there.
        """
        self.files.cutAt = self.files.operationCount + 2
        file = self.make("/d/a", b"1")
        self.assertRaises(PowerLostError, file.sync)
        self.files.kill()
        self.assertEqual(self.found("/d/a"), b"1")
        self.files.open("/d/a").sync()

    def test_killedBeforeAnOperation(self) -> None:
        """A process that is killed sooner leaves the cut to come."""
        self.files.cutAt = self.files.operationCount + 1
        self.files.kill()
        self.assertRaises(PowerLostError, self.make, "/d/a", b"1")

    def test_forgottenSyncs(self) -> None:
        """With C{syncs} off, syncs do nothing."""
        self.files.syncs = False
        self.make("/d/a", b"1").sync()
        self.files.syncDirectory("/d")
        self.files.cutPower()
        self.assertEqual(self.files.list("/d"), [])

    def outcomes(self, prepare: Callable[[], None], look: Callable[[], object]) -> set[object]:
        """What can be seen after cuts with many different chances."""
        found = set()
        for seed in range(200):
            self.setUp()
            prepare()
            self.files.cutPower(Random(seed))
            found.add(look())
        return found

    def test_someUnsyncedNamesSurvive(self) -> None:
        """With chance, each new name survives or not by itself."""

        def prepare() -> None:
            self.make("/d/a", b"")
            self.make("/d/b", b"")

        self.assertEqual(
            self.outcomes(prepare, lambda: tuple(sorted(self.files.list("/d")))),
            {(), ("a",), ("b",), ("a", "b")},
        )

    def test_renamesAreAllOrNothing(self) -> None:
        """With chance, a renamed file has its old name or its new one."""

        def prepare() -> None:
            self.make("/d/a", b"")
            self.files.syncDirectory("/d")
            self.files.rename("/d/a", "/d/b")

        self.assertEqual(
            self.outcomes(prepare, lambda: tuple(self.files.list("/d"))), {("a",), ("b",)}
        )

    def test_someUnsyncedBytesSurvive(self) -> None:
        """
        With chance, an unsynced write survives in any part: not at all, whole, cut, grown without
        its bytes; synced bytes always do.
        """

        def prepare() -> None:
            self.files.pageSize = 2
            file = self.make("/d/a", b"AB")
            file.sync()
            self.files.syncDirectory("/d")
            file.writeAt(2, [b"cdef"])

        found = self.outcomes(prepare, lambda: self.found("/d/a"))
        self.assertTrue(
            {b"AB", b"ABc", b"ABcd", b"ABcdef", b"ABcd\0\0", b"AB\0\0ef", b"AB\0\0\0\0"} <= found,
            found,
        )
        self.assertTrue(all(isinstance(data, bytes) and data.startswith(b"AB") for data in found))
        self.assertTrue(
            any(isinstance(data, bytes) and data[2:3] not in (b"", b"c", b"\0") for data in found),
            "junk in a grown file",
        )

    def test_someTruncationsSurvive(self) -> None:
        """
        With chance, an unsynced truncation is lost or not, and what was written behind it may be
        there in either case.
        """

        def prepare() -> None:
            self.files.pageSize = 1
            file = self.make("/d/a", b"ABC")
            file.sync()
            self.files.syncDirectory("/d")
            file.truncate(1)
            file.writeAt(1, [b"x"])

        found = self.outcomes(prepare, lambda: self.found("/d/a"))
        self.assertTrue({b"ABC", b"A", b"Ax", b"AxC", b"A\0"} <= found, found)

    def test_times(self) -> None:
        """Files and directories have the time of their last change by the clock."""
        file = self.make("/d/a", b"1")
        self.now = 7
        file.writeAt(0, [b"1"])
        self.assertEqual(
            (self.files.status("/d/a"), self.files.status("/d")), ((1, 7, False), (0, 5, True))
        )
        self.now = 9
        self.files.rename("/d/a", "/d/b")
        self.assertEqual(
            (self.files.status("/d/b"), self.files.status("/d")), ((1, 7, False), (0, 9, True))
        )


class PlantedFaultTests(SynchronousTestCase):
    """Disks that fail, on demand."""

    def setUp(self) -> None:
        self.files = PowerCutFileSystem()
        self.file = self.files.open("/a", create=True)

    def test_fail(self) -> None:
        """The operation fails as often as was asked, on paths that end so, and has no effect."""
        self.files.fail("write", "a", errno.EIO, 2)
        for _ in range(2):
            self.assertEqual(
                self.assertRaises(StorageError, self.file.writeAt, 0, [b"1"]).errno, errno.EIO
            )
        self.assertEqual(self.file.size(), 0)
        self.assertEqual(self.file.writeAt(0, [b"1"]), 1)
        self.files.open("/b", create=True)

    def test_mend(self) -> None:
        """Mended, everything works again."""
        self.files.fail("fsync", "", errno.EIO, 1000)
        self.assertRaises(StorageError, self.file.sync)
        self.files.mend()
        self.file.sync()

    def test_fullDisk(self) -> None:
        """
        A full disk takes what still fits, then nothing; bytes in place can be overwritten; what is
        removed makes room.
        """
        self.files.sizeMax = 5
        self.assertEqual(self.file.writeAt(0, [b"123"]), 3)
        self.assertEqual(self.file.writeAt(3, [b"456"]), 2)
        self.assertEqual(
            self.assertRaises(StorageError, self.file.writeAt, 5, [b"6"]).errno, errno.ENOSPC
        )
        self.assertEqual(self.file.writeAt(2, [b"xyz"]), 3)
        self.assertEqual(self.files.usedSize, 5)
        self.file.truncate(4)
        self.assertEqual(self.file.writeAt(4, [b"6"]), 1)
        self.assertEqual(self.files.contents("/a"), b"12xy6")
