"""
Tests for L{pylogbroker.zookeeper.server.transactionlog}: what a start finds after an orderly stop,
a kill, a power cut at any step, or damage.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ConfigurationError, CorruptLogError
from pylogbroker.testing.powercut import PowerCutFileSystem, PowerLostError
from pylogbroker.zookeeper.server.datatree import OPEN_ACLS, DataTree
from pylogbroker.zookeeper.server.transactionlog import Entry, Snapshot, TransactionLog
from pylogbroker.zookeeper.server.transactions import (
    CreateNode,
    CreateSession,
    DeleteNode,
    Several,
    Transaction,
    encodeTransaction,
)
from tests.zookeeper.server.powercuts import PowerCutTrial
from tests.zookeeper.server.serverbench import DIRECTORY

LOG = f"{DIRECTORY}/log/transactions-0"
SNAPSHOTS = f"{DIRECTORY}/snapshots"


class LogCase(SynchronousTestCase):
    """A log on a file system in memory."""

    def setUp(self) -> None:
        self.fileSystem = PowerCutFileSystem()
        self.reported: list[str] = []
        self.tree = DataTree()
        self.log = self.opened()

    def made(self) -> TransactionLog:
        return TransactionLog(
            self.fileSystem,
            DIRECTORY,
            lambda: 1,
            lambda event: self.reported.append(str(event)),
            segmentSizeMax=2_000,
        )

    def opened(self) -> TransactionLog:
        log = self.made()
        self.tree = log.open()
        return log

    def append(self, *transactions: Transaction) -> None:
        entries = []
        for each in transactions:
            self.tree.apply(each, self.tree.zxid + 1, 1)
            entries.append(Entry(1, encodeTransaction(each)))
        self.log.append(entries)

    def create(self, *paths: str, size: int = 10) -> None:
        self.append(*(CreateNode(path, bytes(size), OPEN_ACLS, 0) for path in paths))

    def snapshot(self) -> int:
        snapshot = Snapshot.of(self.tree)
        self.log.nameSnapshot(snapshot.zxid, self.log.writeSnapshot(snapshot))
        return snapshot.zxid

    def damage(self, path: str, position: int = -5) -> None:
        with_ = self.fileSystem.open(path)
        position %= with_.size()
        byte = with_.readAt(position, 1)[0]
        with_.writeAt(position, [bytes([byte ^ 0xFF])])
        with_.close()

    def segments(self) -> list[str]:
        names = self.fileSystem.list(LOG)
        return sorted(f"{LOG}/{name}" for name in names if name.endswith(".log"))


class OpenTests(LogCase):
    """Opening."""

    def test_again(self) -> None:
        """After a close, and after a kill, the tree is as it was."""
        self.append(CreateSession(5, 4_000, b"secret"))
        self.create("/a", "/a/b")
        self.append(
            Several((DeleteNode("/a/b"), CreateNode("/c", None, OPEN_ACLS, 5))),
        )
        before = self.tree
        self.log.close()
        self.log.close()
        self.log = self.opened()
        for _ in range(2):
            self.assertEqual(
                (self.tree.zxid, self.tree.nodes, self.tree.sessions),
                (before.zxid, before.nodes, before.sessions),
            )
            self.assertEqual(self.tree.ephemerals(5), ["/c"])
            self.fileSystem.kill()
            self.log = self.opened()

    def test_locked(self) -> None:
        """Two servers cannot share a directory."""
        error = self.assertRaises(ConfigurationError, self.made().open)
        self.assertIn(DIRECTORY, str(error))

    def test_apaches(self) -> None:
        """The data of Apache's server is refused, and not touched."""
        self.log.close()
        self.fileSystem.makeDirectories(f"{DIRECTORY}/version-2")
        error = self.assertRaises(ConfigurationError, self.made().open)
        self.assertIn("version-2", str(error))

    def test_large(self) -> None:
        """A transaction may be as large as a segment; larger groups are several batches."""
        self.log.close()
        log = TransactionLog(self.fileSystem, DIRECTORY, lambda: 1, lambda event: None)
        self.tree, self.log = log.open(), log
        self.create(*(f"/{i}" for i in range(5)), size=1_000_000)
        log.close()
        self.log = self.opened()
        self.assertEqual(self.tree.zxid, 5)


class SnapshotTests(LogCase):
    """Snapshots, and damage."""

    def fill(self, name: str) -> int:
        self.create(*(f"/{name}{i}" for i in range(10)), size=500)
        self.create(*(f"/{name}-{i}" for i in range(10)), size=500)
        return self.snapshot()

    def test_damagedSnapshot(self) -> None:
        """When the latest snapshot is damaged, the one before and the log behind it are taken."""
        older, newer = self.fill("a"), self.fill("b")
        nodes = dict(self.tree.nodes)
        self.log.close()
        self.damage(f"{SNAPSHOTS}/snapshot.{newer:016x}")
        self.log = self.opened()
        self.assertEqual(self.tree.nodes, nodes)
        self.assertTrue(any(f"{newer:016x}" in each for each in self.reported))
        self.log.close()
        self.damage(f"{SNAPSHOTS}/snapshot.{older:016x}")
        error = self.assertRaises(CorruptLogError, self.made().open)
        self.assertIn(f"{older:016x}", str(error))

    def test_cutSnapshot(self) -> None:
        """A snapshot without its end is no snapshot."""
        zxid = self.fill("a")
        self.log.close()
        file = self.fileSystem.open(f"{SNAPSHOTS}/snapshot.{zxid:016x}")
        file.truncate(0)
        file.close()
        error = self.assertRaises(CorruptLogError, self.made().open)
        self.assertIn("not whole", str(error))

    def test_trimmed(self) -> None:
        """The log below the older of two snapshots goes."""
        for name in "abcd":
            self.fill(name)
        self.assertEqual(len(self.fileSystem.list(SNAPSHOTS)), 2)
        first = int(self.segments()[0].rpartition("/")[2].removesuffix(".log"))
        self.assertGreater(first, 30)

    def test_due(self) -> None:
        """A snapshot is due after many transactions, or many bytes."""
        self.log.close()
        log = TransactionLog(
            self.fileSystem, DIRECTORY, lambda: 1, lambda event: None, snapshotTransactionCount=5
        )
        self.tree, self.log = log.open(), log
        self.create("/a", "/b", "/c", "/d")
        self.assertFalse(log.isSnapshotDue)
        self.create("/e")
        self.assertTrue(log.isSnapshotDue)
        self.snapshot()
        self.assertFalse(log.isSnapshotDue)
        log.close()
        log = TransactionLog(self.fileSystem, DIRECTORY, lambda: 1, lambda event: None)
        self.tree, self.log = log.open(), log
        self.create(*(f"/x{i}" for i in range(17)), size=1_000_000)
        self.assertTrue(log.isSnapshotDue)

    def test_lostLog(self) -> None:
        """A log that ends before a snapshot is an error: something has been lost."""
        self.fill("a")
        self.log.close()
        for path in self.segments():
            self.fileSystem.remove(path)
        error = self.assertRaises(CorruptLogError, self.made().open)
        self.assertIn("do not follow the snapshot", str(error))

    def test_lostSnapshot(self) -> None:
        """So is a log that begins behind what the snapshots have."""
        for name in "abcd":
            self.fill(name)
        self.log.close()
        for name in self.fileSystem.list(SNAPSHOTS):
            self.fileSystem.remove(f"{SNAPSHOTS}/{name}")
        self.assertRaises(CorruptLogError, self.made().open)

    def test_foreignTransaction(self) -> None:
        """A transaction that does not fit to the tree is an error that names it."""
        self.create("/a")
        for each in (DeleteNode("/nowhere"),):
            self.log.append([Entry(1, encodeTransaction(each))])
        self.log.close()
        error = self.assertRaises(CorruptLogError, self.made().open)
        self.assertIn("transaction 2 does not fit", str(error))

    def test_unreadable(self) -> None:
        """So is one that cannot be decoded."""
        self.log.append([Entry(1, b"nonsense")])
        self.log.close()
        self.assertRaises(CorruptLogError, self.made().open)

    def test_damagedLog(self) -> None:
        """A byte that has changed in a closed log is found by the checksum."""
        self.create("/a", "/b")
        self.create("/c")
        self.log.close()
        self.damage(self.segments()[0], 100)
        error = self.assertRaises(CorruptLogError, self.made().open)
        self.assertIn("checksum", str(error))


class PowerCutTests(SynchronousTestCase):
    """Cuts at every step; C{python -m tests.long.zookeeper} does the same for long."""

    def test_everyStep(self) -> None:
        """
        Whatever step the power is cut before, with or without what was not synced: everything that
        was answered is there, nothing is half there, and the server goes on.
        """
        count = PowerCutTrial(0, None).run()
        self.assertGreater(count, 100)
        for cutAt in range(count):
            trial = PowerCutTrial(cutAt, cutAt)
            trial.run()
            self.assertTrue(trial.wasCut)
            self.flushLoggedErrors(PowerLostError)

    def test_killed(self) -> None:
        """Likewise when the process is killed."""
        for cutAt in range(1, 120, 17):
            PowerCutTrial(cutAt, cutAt, isKill=True).run()
            self.flushLoggedErrors(PowerLostError)

    def test_canFail(self) -> None:
        """On a disk that does not sync, the same trial finds what is lost."""
        found = 0
        for cutAt in range(40, 120, 10):
            trial = PowerCutTrial(cutAt, cutAt)
            trial.bench.fileSystem.syncs = False
            try:
                trial.run()
            except AssertionError:
                found += 1
            except CorruptLogError:
                found += 1
            self.flushLoggedErrors(PowerLostError)
        self.assertGreater(found, 0)
