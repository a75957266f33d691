"""
Kafka's files beside the segments: checkpoints, epochs, aborted transactions, ids.
"""

from __future__ import annotations

import errno
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import CorruptLogError, StorageError
from pylogbroker.storage.kafka import checkpoints
from pylogbroker.storage.kafka.checkpoints import (
    LastRegistration,
    MetaProperties,
    decodeId,
    encodeId,
    readMetaProperties,
    readOffsets,
    readRegistration,
    readSmallFile,
    readTopicId,
    replaceFile,
    writeMetaProperties,
    writeOffsets,
    writeRegistration,
    writeTopicId,
)
from pylogbroker.storage.kafka.epochcheckpoint import readEpochs, writeEpochs
from pylogbroker.storage.kafka.epochs import (
    UNDEFINED,
    EpochStart,
    LeaderEpochs,
)
from pylogbroker.storage.kafka.transactionindex import AbortedTransaction, TransactionIndex
from pylogbroker.testing.powercut import PowerCutFileSystem, PowerLostError
from pylogbroker.types import TopicPartition

ID = UUID("f3a1b0c4-1234-4abc-8def-0123456789ab")


class FileCase(SynchronousTestCase):
    """A directory C{/d} in memory."""

    def setUp(self) -> None:
        self.files = PowerCutFileSystem()
        self.files.makeDirectories("/d")
        self.files.syncDirectory("/")

    def put(self, name: str, data: bytes) -> None:
        replaceFile(self.files, f"/d/{name}", data)

    def content(self, name: str) -> bytes:
        return self.files.contents(f"/d/{name}")


class CheckpointTests(FileCase):
    """Offsets by partition."""

    def test_format(self) -> None:
        """Version, count, and a line for each partition, as Apache writes them."""
        offsets = {TopicPartition("a-b", 0): 5, TopicPartition("c", 12): 1 << 62}
        writeOffsets(self.files, "/d/x", offsets)
        self.assertEqual(self.content("x"), b"0\n2\na-b 0 5\nc 12 4611686018427387904\n")
        self.assertEqual(readOffsets(self.files, "/d/x"), offsets)

    def test_missingAndEmpty(self) -> None:
        """Without a file, and in an empty checkpoint, there are no offsets."""
        self.assertEqual(readOffsets(self.files, "/d/x"), {})
        writeOffsets(self.files, "/d/x", {})
        self.assertEqual((self.content("x"), readOffsets(self.files, "/d/x")), (b"0\n0\n", {}))
        self.put("empty", b"")
        self.assertRaises(CorruptLogError, readOffsets, self.files, "/d/empty")

    def test_corrupt(self) -> None:
        """Another version, a wrong count, a line without an offset: refused, with the file."""
        for text in (
            "1\n0\n",
            "0\n2\na 0 5\n",
            "0\n1\na 0\n",
            "0\n1\na 0 x\n",
            "0\n1\na ٣ 5\n",
            "\xff",
        ):
            self.put("x", text.encode())
            error = self.assertRaises(CorruptLogError, readOffsets, self.files, "/d/x")
            self.assertEqual(error.path, "/d/x")

    def test_sizeLimit(self) -> None:
        """A file above the limit is not read."""
        self.put("x", bytes(11))
        self.assertEqual(readSmallFile(self.files, "/d/x", 11), bytes(11))
        self.assertRaises(CorruptLogError, readSmallFile, self.files, "/d/x", 10)

    def test_powerCutAtEveryStep(self) -> None:
        """After a power cut at any step the file is the old one or the new one."""
        for step in range(20):
            self.setUp()
            self.put("x", b"old")
            self.files.cutAt = self.files.operationCount + step
            try:
                self.put("x", b"new")
            except PowerLostError:
                pass
            else:
                break
            self.files.cutPower()
            self.assertIn(self.content("x"), (b"old", b"new"))
            self.put("x", b"again")  # whatever the first attempt left
            self.assertEqual(self.content("x"), b"again")
        self.files.cutPower()
        self.assertEqual((self.content("x"), step), (b"new", 5))

    def test_fullDisk(self) -> None:
        """On a full disk the old file stays, and the next attempt may succeed."""
        self.put("x", b"old")
        self.files.sizeMax = self.files.usedSize + 2
        error = self.assertRaises(StorageError, self.put, "x", b"newer")
        self.assertEqual((error.errno, self.content("x")), (errno.ENOSPC, b"old"))
        self.files.sizeMax = None
        self.put("x", b"newer")
        self.assertEqual(self.content("x"), b"newer")


class IdTests(FileCase):
    """Ids of topics and directories."""

    def test_topicId(self) -> None:
        """C{partition.metadata} holds the topic's id as Apache writes it."""
        self.assertIsNone(readTopicId(self.files, "/d"))
        writeTopicId(self.files, "/d", ID)
        self.assertEqual(
            self.content("partition.metadata"), b"version: 0\ntopic_id: 86GwxBI0SryN7wEjRWeJqw"
        )
        self.assertEqual(readTopicId(self.files, "/d"), ID)
        for text in (b"version: 1\ntopic_id: 86GwxBI0SryN7wEjRWeJqw", b"version: 0\ntopic_id: x"):
            self.put("partition.metadata", text)
            self.assertRaises(CorruptLogError, readTopicId, self.files, "/d")

    @given(st.uuids())
    def test_anyId(self, id: UUID) -> None:
        """Every id survives its 22 characters."""
        self.assertEqual((decodeId(encodeId(id)), len(encodeId(id))), (id, 22))

    def test_noId(self) -> None:
        """What is no id is refused."""
        self.assertRaises(ValueError, decodeId, "x")

    def test_metaProperties(self) -> None:
        """C{meta.properties} tells cluster, node and directory."""
        self.assertIsNone(readMetaProperties(self.files, "/d"))
        found = MetaProperties("5L6g3nShT-eMCtK--X86sw", 7, ID)
        for each in (found, found._replace(directoryId=None)):
            writeMetaProperties(self.files, "/d", each)
            self.assertEqual(readMetaProperties(self.files, "/d"), each)

    def test_apachesMetaProperties(self) -> None:
        """Apache's file is read, with its date and escapes."""
        self.put(
            "meta.properties",
            b"#\n#Sun Nov 22 17:00:00 UTC 2026\ncluster.id=a\\:b\nversion=1\nnode.id=1\n"
            b"directory.id=86GwxBI0SryN7wEjRWeJqw\n",
        )
        self.assertEqual(readMetaProperties(self.files, "/d"), MetaProperties("a:b", 1, ID))

    def test_corruptMetaProperties(self) -> None:
        """Another version, no node or a wrong id are refused."""
        for text in (
            b"version=0\ncluster.id=a\nbroker.id=1\n",
            b"version=1\ncluster.id=a\n",
            b"version=1\nnode.id=1\n",
            b"version=1\ncluster.id=a\nnode.id=1\ndirectory.id=x\n",
        ):
            self.put("meta.properties", text)
            self.assertRaises(CorruptLogError, readMetaProperties, self.files, "/d")

    def test_names(self) -> None:
        """The offset checkpoints have Apache's names."""
        self.assertEqual(
            checkpoints.CHECKPOINTS,
            (
                "recovery-point-offset-checkpoint",
                "replication-offset-checkpoint",
                "log-start-offset-checkpoint",
                "cleaner-offset-checkpoint",
            ),
        )


class RegistrationTests(FileCase):
    """What is kept of a broker's registration."""

    def test_kept(self) -> None:
        """Epoch and way of acknowledging are kept; another content is an error."""
        self.assertEqual(readRegistration(self.files, "/d"), LastRegistration(-1, True))
        for found in (LastRegistration(7, True), LastRegistration(12, False)):
            writeRegistration(self.files, "/d", found)
            self.assertEqual(readRegistration(self.files, "/d"), found)
        for data in (b"0\n0\n", b"0\n1\n1 2\n", b"0\n1\nx\n", b"0\n1\n1 flushed 2\n"):
            self.put("broker-epoch-checkpoint", data)
            self.assertRaises(CorruptLogError, readRegistration, self.files, "/d")

    def test_withoutWay(self) -> None:
        """A file without the way may be of a broker that acknowledged before it flushed."""
        self.put("broker-epoch-checkpoint", b"0\n1\n5\n")
        self.assertEqual(readRegistration(self.files, "/d"), LastRegistration(5, False))


class LeaderEpochTests(FileCase):
    """Which leader wrote which offsets."""

    def setUp(self) -> None:
        super().setUp()
        self.epochs = LeaderEpochs([EpochStart(0, 0), EpochStart(2, 10), EpochStart(5, 30)])

    def test_file(self) -> None:
        """The file has a line for each epoch."""
        self.assertEqual(readEpochs(self.files, "/d").entries, ())
        writeEpochs(self.files, "/d", self.epochs.entries)
        self.assertEqual(self.content("leader-epoch-checkpoint"), b"0\n3\n0 0\n2 10\n5 30\n")
        self.assertEqual(readEpochs(self.files, "/d").entries, self.epochs.entries)
        self.put("leader-epoch-checkpoint", b"0\n1\n0 0 0\n")
        self.assertRaises(CorruptLogError, readEpochs, self.files, "/d")

    def test_endOffsetFor(self) -> None:
        """An epoch ends where the next one begins; the latest one ends at the log's end."""
        answers = {
            5: (5, 44), 4: (2, 30), 2: (2, 30), 1: (0, 10), 0: (0, 10), 6: UNDEFINED, -1: UNDEFINED,
            -2: (-2, 0),
        }  # fmt: skip
        for epoch, answer in answers.items():
            self.assertEqual(self.epochs.endOffsetFor(epoch, 44), answer, epoch)
        later = LeaderEpochs([EpochStart(3, 7)])
        self.assertEqual(later.endOffsetFor(1, 9), (1, 7))
        self.assertEqual(LeaderEpochs().endOffsetFor(0, 9), UNDEFINED)

    def test_epochOf(self) -> None:
        """Each offset has the epoch that wrote it."""
        found = [self.epochs.epochOf(offset) for offset in (0, 9, 10, 29, 30, 99)]
        self.assertEqual(found, [0, 0, 2, 2, 5, 5])
        self.assertEqual((LeaderEpochs().epochOf(3), LeaderEpochs().latest), (-1, -1))

    def test_assign(self) -> None:
        """A new epoch is added; what contradicts it is dropped; a known one changes nothing."""
        self.assertFalse(self.epochs.assign(5, 35))
        self.assertTrue(self.epochs.assign(6, 40))
        self.assertEqual((self.epochs.latest, self.epochs.entries[-1]), (6, (6, 40)))
        self.assertTrue(self.epochs.assign(7, 10))
        self.assertEqual(self.epochs.entries, ((0, 0), (7, 10)))
        self.assertTrue(self.epochs.assign(7, 3))
        self.assertEqual(self.epochs.entries, ((0, 0), (7, 3)))

    def test_lastOf(self) -> None:
        """The last record's epoch; an epoch that begins at the log end has none."""
        found = [self.epochs.lastOf(end) for end in (0, 1, 10, 11, 30, 31)]
        self.assertEqual(found, [-1, 0, 0, 2, 2, 5])

    def test_truncate(self) -> None:
        """With the log's start or end, epochs go, or begin later."""
        self.assertFalse(self.epochs.truncateFromStart(0))
        self.assertTrue(self.epochs.truncateFromStart(15))
        self.assertEqual(self.epochs.entries, ((2, 15), (5, 30)))
        self.assertFalse(self.epochs.truncateFromStart(3))
        self.assertTrue(self.epochs.truncateFromEnd(30))
        self.assertFalse(self.epochs.truncateFromEnd(30))
        self.assertEqual(self.epochs.entries, ((2, 15),))
        self.assertTrue(self.epochs.truncateFromEnd(15))
        self.assertEqual(self.epochs.entries, ())


class TransactionIndexTests(FileCase):
    """Aborted transactions of a segment."""

    ENTRIES = (
        AbortedTransaction(7, 0, 10, 5),
        AbortedTransaction(8, 5, 20, 12),
        AbortedTransaction(7, 12, 30, 31),
    )

    def made(self) -> TransactionIndex:
        index = TransactionIndex("/d/0.txnindex")
        for entry in self.ENTRIES:
            index.add(entry)
        return index

    def test_file(self) -> None:
        """An entry has 34 bytes: version, producer, first, last and last stable offset."""
        index = TransactionIndex("/d/0.txnindex")
        index.save(self.files)
        self.assertIsNone(self.files.status("/d/0.txnindex"))
        index.remove(self.files)
        index = self.made()
        self.assertFalse(index.isSaved)
        index.save(self.files)
        self.assertTrue(index.isSaved)
        data = self.content("0.txnindex")
        self.assertEqual(len(data), 3 * 34)
        self.assertEqual(
            data[:34].hex(), "0000" + "".join(f"{number:016x}" for number in (7, 0, 10, 5))
        )
        again = TransactionIndex.load(self.files, "/d/0.txnindex")
        self.assertEqual((tuple(again.entries), again.isSaved), (self.ENTRIES, True))
        again.remove(self.files)
        self.assertEqual(TransactionIndex.load(self.files, "/d/0.txnindex").entries, [])

    def test_corrupt(self) -> None:
        """A cut file, another version, and offsets that go back are refused."""
        index = self.made()
        index.save(self.files)
        data = self.content("0.txnindex")
        for bad in (data[:-1], b"\0\1" + data[2:], data[34:68] + data[:34]):
            self.put("0.txnindex", bad)
            self.assertRaises(CorruptLogError, TransactionIndex.load, self.files, "/d/0.txnindex")

    def test_collect(self) -> None:
        """
        A reader gets the transactions that overlap its range; the search ends where all is decided.
        """
        for start, end, wanted, isComplete in (
            (0, 5, (0,), True),
            (0, 6, (0, 1), True),
            (11, 13, (1, 2), True),
            (21, 40, (2,), False),
            (31, 32, (), False),
        ):
            found: list[AbortedTransaction] = []
            self.assertEqual(self.made().collect(start, end, found), isComplete)
            self.assertEqual(found, [self.ENTRIES[each] for each in wanted])
