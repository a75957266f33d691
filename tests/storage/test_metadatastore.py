"""The journal of metadata."""

from __future__ import annotations

import errno
import os
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import CorruptLogError, StorageError
from pylogbroker.storage import metadatastore
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.storage.metadatastore import ENTRY_SIZE_MAX, MAGIC, MetadataStore
from pylogbroker.testing.powercut import PowerCutFileSystem, PowerLostError


class StoreTests(SynchronousTestCase):
    """L{MetadataStore}."""

    def setUp(self) -> None:
        self.files = PowerCutFileSystem()
        self.files.makeDirectories("/log")
        self.files.syncDirectory("/")
        self.changes: list[bytes] = []

    def opened(self) -> tuple[MetadataStore, list[bytes]]:
        store = MetadataStore(self.files, "/log")
        found = store.open()
        self.addCleanup(store.close)
        return store, found

    def append(self, store: MetadataStore, data: bytes) -> None:
        self.changes.append(data)
        store.append(data, lambda: [b"".join(self.changes)])

    def test_private(self) -> None:
        """Only the owner may read the journal; also one of earlier versions, and a snapshot."""
        self.patch(metadatastore, "SNAPSHOT_SIZE_MIN", 300)
        directory = self.mktemp()
        os.mkdir(directory)
        store = MetadataStore(RealFileSystem(), directory)
        self.addCleanup(store.close)

        def mode() -> int:
            return os.stat(store.path).st_mode & 0o777

        store.open()
        self.assertEqual(mode(), 0o600)
        before = os.stat(store.path).st_ino
        for _ in range(4):
            store.append(b"x" * 100, lambda: [b"all"])
        self.assertNotEqual(os.stat(store.path).st_ino, before)
        self.assertEqual(mode(), 0o600)
        store.close()
        os.chmod(store.path, 0o644)
        store.open()
        self.assertEqual(mode(), 0o600)

    def test_changesStay(self) -> None:
        """Changes are there after a restart, in order, and the store goes on."""
        store, found = self.opened()
        self.assertEqual(found, [])
        self.append(store, b"one")
        self.append(store, b"two")
        store.close()
        store.close()
        store, found = self.opened()
        self.assertEqual(found, [b"one", b"two"])
        self.append(store, b"three")
        self.assertEqual(self.opened()[1], [b"one", b"two", b"three"])

    def test_powerCuts(self) -> None:
        """
        After a power cut before any operation, whatever the disk kept, what was appended is there,
        and of a torn change nothing; also while a snapshot replaces the file.
        """
        self.patch(metadatastore, "SNAPSHOT_SIZE_MIN", 300)
        isCut = True
        cut = 0
        while isCut:
            cut += 1
            for seed in range(4):
                self.setUp()
                done = isCut = False
                durable = b""
                try:
                    self.files.cutAt = self.files.operationCount + cut
                    store = MetadataStore(self.files, "/log")
                    store.open()
                    for number in range(12):
                        self.append(store, f"<{number:04}{'x' * 40}>".encode())
                        durable = b"".join(self.changes)
                    done = True
                except PowerLostError:
                    isCut = True
                self.assertNotEqual(done, isCut)
                self.files.cutPower(Random(seed))
                self.files.cutAt = None
                found = b"".join(MetadataStore(self.files, "/log").open())
                self.assertIn(found, (durable, b"".join(self.changes)))
        self.assertGreater(cut, 25)

    def test_tornEnd(self) -> None:
        """A torn last change is cut off."""
        store, _ = self.opened()
        self.append(store, b"one")
        end = store.size
        self.append(store, b"two")
        with_ = self.files.open(store.path)
        for size in range(end, store.size):
            with_.truncate(size)
            self.assertEqual(self.opened()[1], [b"one"])
            self.assertEqual(self.files.status(store.path).size, end)  # type: ignore[union-attr]

    def test_damageInside(self) -> None:
        """A damaged change before whole ones is an error that names the byte."""
        store, _ = self.opened()
        self.append(store, b"one")
        position = store.size
        self.append(store, b"two")
        self.append(store, b"three")
        self.files.open(store.path).writeAt(position + 8, [b"T"])
        error = self.assertRaises(CorruptLogError, MetadataStore(self.files, "/log").open)
        self.assertIn(f"byte {position} is damaged", str(error))

    def test_notAJournal(self) -> None:
        """Another file of this name is left alone."""
        self.files.open("/log/metadata.journal", create=True).writeAt(0, [b"hello"])
        error = self.assertRaises(CorruptLogError, MetadataStore(self.files, "/log").open)
        self.assertIn("does not begin", str(error))
        self.assertEqual(self.files.contents("/log/metadata.journal"), b"hello")

    def test_snapshot(self) -> None:
        """A long journal is replaced by a snapshot, which is opened like any other."""
        self.patch(metadatastore, "SNAPSHOT_SIZE_MIN", 100)
        store, _ = self.opened()
        self.files.open("/log/metadata.journal.tmp", create=True)  # of an interrupted attempt
        for number in range(20):
            self.append(store, b"%02d" % number * 10)
        self.assertLess(store.size, len(MAGIC) + 20 * 28)
        self.assertEqual(b"".join(self.opened()[1]), b"".join(self.changes))

    def test_limits(self) -> None:
        """An empty or a huge change is refused."""
        store, _ = self.opened()
        for data in (b"", bytes(ENTRY_SIZE_MAX + 1)):
            self.assertRaises(ValueError, store.append, data, list)

    def test_diskFull(self) -> None:
        """
        A full disk is reported with the file's name, and leaves the journal as it was: the next
        change is written. So it is when only a part of a change found room.
        """
        store, _ = self.opened()
        self.append(store, b"zero")
        self.files.fail("write", "metadata.journal", errno.ENOSPC)
        error = self.assertRaises(StorageError, store.append, b"one", list)
        self.assertIn("/log/metadata.journal", str(error))
        self.assertTrue(store.isCertain)
        self.files.sizeMax = self.files.usedSize + 20
        self.assertRaises(StorageError, store.append, b"two" * 50, list)
        self.assertTrue(store.isCertain)
        self.assertEqual(self.files.status(store.path).size, store.size)  # type: ignore[union-attr]
        self.files.sizeMax = None
        self.append(store, b"three")
        self.assertEqual(self.opened()[1], [b"zero", b"three"])

    def test_snapshotOnFullDisk(self) -> None:
        """A snapshot that finds no room leaves the journal as it was."""
        self.patch(metadatastore, "SNAPSHOT_SIZE_MIN", 40)
        store, _ = self.opened()
        self.append(store, b"one")
        self.files.fail("write", "metadata.journal.tmp", errno.ENOSPC)
        self.assertRaises(StorageError, store.append, b"two" * 40, lambda: [b"one"])
        self.assertTrue(store.isCertain)
        self.append(store, b"three" * 40)
        self.assertEqual(b"".join(self.opened()[1]), b"one" + b"three" * 40)

    def test_failedSync(self) -> None:
        """After a failed sync nobody knows what the disk has."""
        store, _ = self.opened()
        self.files.fail("fsync", "metadata.journal", errno.EIO)
        self.assertRaises(StorageError, store.append, b"one", list)
        self.assertFalse(store.isCertain)
