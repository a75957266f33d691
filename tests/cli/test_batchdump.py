"""Tests for L{pylogbroker.cli.batchdump}, by way of C{dump} and C{verify}."""

from __future__ import annotations

import io
import json
import os
import shutil
from argparse import Namespace
from pathlib import Path

from crc32c import crc32c
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.batchdump import BatchDump
from pylogbroker.cli.commands.dump import verifyFiles
from pylogbroker.cli.kafka.internaltopics import offsetsText, transactionText
from pylogbroker.cli.main import prepare
from pylogbroker.cli.streams import Streams
from pylogbroker.coordinator.offsetstopic import (
    StoredGroup,
    StoredMember,
    encodeGroupMetadataKey,
    encodeStoredGroup,
)
from pylogbroker.records.recordbatch import Record, encodeBatch, readHeader
from tests.cli.test_dump import DumpCase
from tests.goldenfiles import GOLDEN
from tests.oracle.directories import extract
from tests.records.goldenbatches import START_MS, goldenBatches

BATCHES = goldenBatches()
SEGMENT = GOLDEN / "kafka43" / "segment"
NAME = "00000000000000000500"


class TextTests(DumpCase):
    """Lines, as by Apache's own tool."""

    def expected(self, name: str) -> list[str]:
        """What Apache's tool printed, with the paths that we have."""
        text = (SEGMENT / name).read_text(encoding="utf-8")
        return text.replace("Dumping segment/", f"Dumping {SEGMENT}/").splitlines()

    def test_records(self) -> None:
        """Headers, records, markers of Apache's segment: line for line what its tool prints."""
        for flag in ("--records", "--deep", "--open"):
            found = self.dump(flag, f"{SEGMENT / NAME}.log")
            self.assertEqual(found, (0, self.expected("log.txt"), ""))

    def test_batches(self) -> None:
        """Without records, the batches alone, and markers."""
        code, lines, _ = self.dump(f"{SEGMENT / NAME}.log")
        expected = [
            line
            for line in self.expected("log.txt")
            if not line.startswith("|") or "endTxnMarker" in line
        ]
        self.assertEqual((code, lines), (0, expected))

    def test_indexes(self) -> None:
        """The entries of indexes."""
        paths = [f"{SEGMENT / NAME}{suffix}" for suffix in (".index", ".timeindex")]
        self.assertEqual(self.dump(*paths), (0, self.expected("indexes.txt"), ""))

    def test_noPrint(self) -> None:
        """Without payloads, records without keys and values."""
        _, lines, _ = self.dump("--records", "--no-print", f"{SEGMENT / NAME}.log")
        expected = [
            line.split(" key: ")[0].split(" payload: ")[0] for line in self.expected("log.txt")
        ]
        self.assertEqual(lines, expected)

    def test_terminal(self) -> None:
        """On a terminal, control characters of foreign text are escaped."""
        path = self.segment(encodeBatch([Record(0, 0, b"\x1b[2J", b"\n")]), "0.log")
        with open(path, "rb") as file:
            shown = b"".join(
                BatchDump(
                    path, file, os.path.getsize(path), 0, self.options("--records", path), True
                )
            )
        self.assertIn(b"key: \\x1b[2J payload: \\n", shown)

    def options(self, *arguments: str) -> Namespace:
        return prepare(["dump", *arguments], Streams(-1, -1, io.StringIO()))

    def test_attributes(self) -> None:
        """The broker's time, a delete horizon, an unknown codec, records without sequence."""
        data = BATCHES["appendTime"]
        horizon = encodeBatch([Record(5, 0, b"k", None)], baseOffset=5, deleteHorizonMs=77)
        odd = bytearray(encodeBatch([Record(6, 0, b"k", None)], baseOffset=6))
        odd[22] |= 7
        _, lines, errors = self.dump(
            "--records", self.segment(data + horizon + bytes(odd), "0.log")
        )
        self.assertIn(f"LogAppendTime: {START_MS + 99} size", lines[2])
        self.assertIn("sequence: -1", lines[3])
        self.assertIn("deleteHorizonMs: OptionalLong[77]", lines[8])
        self.assertIn("compresscodec: unknown codec 7", lines[-1])
        self.assertIn("checksum", errors)

    def test_controlRecords(self) -> None:
        """Other control records, and broken ones."""
        records = [
            Record(0, 0, b"\0\0\0\2", b"x"),
            Record(1, 0, b"\0\0\0\1", b""),
            Record(2, 0, b"", b""),
        ]
        path = self.segment(encodeBatch(records, isControl=True), "0.log")
        _, lines, _ = self.dump(path)
        self.assertEqual(
            [line.partition("] ")[2] for line in lines[3:]],
            [
                "controlType: 2",
                "controlType: 1",
                "controlType: a control record without a type",
            ],
        )


class FaultTests(DumpCase):
    """Where a file stops being valid."""

    def test_checksum(self) -> None:
        """A batch with a wrong checksum is shown as such, and the walk goes on."""
        bad = BATCHES["mixed"][:-1] + b"x"
        good = encodeBatch([Record(5, 0, None, b"v")], baseOffset=5)
        code, lines, errors = self.dump("--records", self.segment(good + bad + good + bad, "5.log"))
        self.assertEqual(
            [line[-5:] for line in lines if line.startswith("base")],
            [" true", "false", " true", "false"],
        )
        self.assertEqual(code, 1)
        self.assertIn(f"valid up to offset 6 (byte {len(good)}), and no further: checksum", errors)

    def test_offsets(self) -> None:
        """So is one whose offsets go back."""
        good = encodeBatch([Record(5, 0, None, b"v")], baseOffset=5)
        code, lines, errors = self.dump(self.segment(good + good, "5.log"))
        self.assertEqual((code, len(lines)), (1, 4))
        self.assertIn("offset 5 is behind 6", errors)

    def test_sizes(self) -> None:
        """Sizes and magics that make no sense end it."""
        good = encodeBatch([Record(0, 0, None, b"v")])
        for junk, reason in (
            (b"x", "less than a header"),
            (good[:-1], f"batch of {len(good)} bytes and {len(good) - 1} are left"),
            (bytes(200), "message format 0"),
        ):
            code, lines, errors = self.dump(self.segment(good + junk, "0.log"))
            self.assertEqual((code, len(lines)), (1, 3))
            self.assertIn(reason, errors)

    def test_indexes(self) -> None:
        """An index with half an entry."""
        code, lines, errors = self.dump(self.segment(bytes(12), "7.index"))
        self.assertEqual((code, lines[1:]), (1, ["offset: 7 position: 0"]))
        self.assertIn("4 bytes are left", errors)


class JsonTests(DumpCase):
    """For machines."""

    def test_batches(self) -> None:
        """An object for each batch, with its header and, if wanted, its records."""
        binary = Record(0, START_MS, b"\xff", b"v", (("h", None),))
        path = self.segment(encodeBatch([binary]), "0.log")
        _, [line], _ = self.dump("--json", "--records", path)
        document = json.loads(line)
        self.assertEqual(
            document["records"],
            [
                {
                    "offset": 0,
                    "timestampMs": START_MS,
                    "keyBase64": "/w==",
                    "payload": "v",
                    "headers": [{"name": "h", "value": None}],
                }
            ],
        )
        self.assertEqual(
            (document["file"], document["isValid"], document["codec"]), (path, True, 0)
        )
        _, [line], _ = self.dump("--json", "--records", "--no-print", path)
        self.assertEqual(json.loads(line)["records"], [{"offset": 0, "timestampMs": START_MS}])
        _, [line], _ = self.dump("--json", path)
        self.assertNotIn("records", json.loads(line))

    def test_markers(self) -> None:
        """Markers are told."""
        bad = encodeBatch([Record(50, 0, b"", b"")], baseOffset=50, isControl=True)
        _, lines, _ = self.dump("--json", self.segment(BATCHES["commit"] + bad, "42.log"))
        self.assertEqual(
            [json.loads(line)["markers"] for line in lines],
            [[{"isCommit": True, "coordinatorEpoch": 12, "transactionVersion": 0}], [None]],
        )

    def test_indexes(self) -> None:
        """An object for each entry."""
        _, lines, _ = self.dump("--json", f"{SEGMENT / NAME}.timeindex")
        self.assertEqual(set(json.loads(lines[0])), {"file", "timestamp", "offset"})


class LargeTests(DumpCase):
    """Large files."""

    def test_writes(self) -> None:
        """More output than one write takes is whole."""
        batch = encodeBatch([Record(0, 0, None, b"v" * 60_000)])
        data = b"".join(number.to_bytes(8, "big") + batch[8:] for number in range(5))
        _, lines, _ = self.dump("--records", self.segment(data, "0.log"))
        self.assertEqual(len(lines), 12)
        self.assertEqual(readHeader(data).recordCount, 1)


class VerifyTests(DumpCase):
    """C{verify} of today's files."""

    def verify(self, path: str) -> tuple[int, str]:
        errors, output = io.StringIO(), self.mktemp()
        with open(output, "wb") as file:
            streams = Streams(-1, file.fileno(), errors)
            code = verifyFiles(prepare(["verify", "--json", path], streams), streams)
        with open(output, encoding="utf-8") as file:
            return code, file.read()

    def test_apaches(self) -> None:
        """A partition of Apache's is good; its records are counted, compressed ones, too."""
        folder = self.mktemp()
        os.makedirs(f"{folder}/t-0")
        shutil.copy(f"{SEGMENT / NAME}.log", f"{folder}/t-0")
        code, text = self.verify(folder)
        [report] = json.loads(text)["segments"]
        self.assertEqual((code, report["entryCount"], report["messageCount"]), (0, 24, 57))

    def test_junkInside(self) -> None:
        """A batch whose checksum is right and whose records are junk is found."""
        batch = encodeBatch([Record(0, 0, None, b"v")])
        path = self.segment(batch, "0.log")
        self.assertEqual(self.verify(path)[0], 0)
        bad = encodeBatch([Record(0, 0, b"k", b"v")], codec=4)
        bad = bad[:22] + bytes([1]) + bad[23:]
        bad = bad[:17] + crc32c(bad[21:]).to_bytes(4, "big") + bad[21:]
        code, text = self.verify(self.segment(bad, "0.log"))
        self.assertEqual(code, 1)
        self.assertIn("cannot be opened", text)


class DirectoryTests(DumpCase):
    """Files of a directory that Apache Kafka wrote, as its own tool shows them."""

    def setUp(self) -> None:
        super().setUp()
        self.folder = os.path.abspath(self.mktemp())
        os.mkdir(self.folder)
        extract("clean", self.folder)

    def check(self, name: str, pattern: str, *flags: str) -> None:
        """What we print of files is what Apache's tool printed."""
        files = sorted(str(path) for path in Path(self.folder).glob(pattern))
        text = (GOLDEN / "kafka43" / "dumps" / f"{name}.txt").read_text(encoding="utf-8")
        expected = text.replace("Dumping ", f"Dumping {self.folder}/").splitlines()
        self.assertEqual(self.dump(*flags, *files), (0, expected, ""))

    def test_offsets(self) -> None:
        """C{__consumer_offsets}: offsets, groups and members, and what was deleted."""
        self.check("offsets", "__consumer_offsets-*/*.log", "--offsets-decoder")

    def test_transactions(self) -> None:
        """C{__transaction_state}: every state of a transaction."""
        self.check("transactions", "__transaction_state-*/*.log", "--transaction-log-decoder")

    def test_producers(self) -> None:
        """Snapshots of producers, with and without an ongoing transaction."""
        self.check("snapshots", "transactions-*/*.snapshot")

    def test_aborted(self) -> None:
        """Indexes of aborted transactions."""
        self.check("aborted", "transactions-*/*.txnindex")

    def test_json(self) -> None:
        """The same as JSON."""
        [path] = Path(self.folder).glob("__transaction_state-*/*.log")
        _, lines, _ = self.dump("--json", "--transaction-log-decoder", str(path))
        [record] = json.loads(lines[0])["records"]
        self.assertEqual(
            json.loads(record["key"]), {"type": "0", "data": {"transactionalId": "committing"}}
        )
        [path, *_] = sorted(Path(self.folder).glob("transactions-0/*.snapshot"))
        _, lines, _ = self.dump("--json", str(path))
        found = json.loads(lines[0])
        self.assertEqual((found["producerId"], found["currentTxnFirstOffset"]), (0, 0))
        [path] = Path(self.folder).glob("transactions-0/*.txnindex")
        _, lines, _ = self.dump("--json", str(path))
        self.assertEqual(json.loads(lines[0])["lastStableOffset"], 4)

    def test_damagedSnapshot(self) -> None:
        """A snapshot with a wrong checksum is named."""
        [path, *_] = sorted(Path(self.folder).glob("transactions-0/*.snapshot"))
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))
        code, _, errors = self.dump(str(path))
        self.assertEqual(code, 1)
        self.assertIn("a wrong checksum", errors)


class InternalTopicTests(SynchronousTestCase):
    """Records of internal topics that are none."""

    def test_unknown(self) -> None:
        """A kind that is not known is named by its number; its value is left out."""
        found = offsetsText(Record(7, 0, b"\0\x63x", b"y"))
        self.assertEqual(found, ("Unknown record type 99 at offset 7, skipping.", None))

    def test_damaged(self) -> None:
        """What cannot be decoded is said to be damaged; so is a record without a key."""
        text, value = transactionText(Record(7, 0, b"\0\0\0\x09x", None))
        self.assertIsNone(value)
        self.assertIn("Damaged record at offset 7: TransactionLogKey v0", str(text))
        self.assertEqual(
            offsetsText(Record(7, 0, None, b"x")), ("Missing key at offset 7, skipping.", None)
        )

    def test_otherMembers(self) -> None:
        """What members say in a protocol that is not the consumers' is shown as bytes."""
        group = StoredGroup(
            *("connect", 1, "p", "m", 5),
            [StoredMember("m", None, "c", "/h", 1, 2, b"\0\xff", b"")],
        )
        key = encodeGroupMetadataKey("g")
        _, value = offsetsText(Record(0, 0, key, encodeStoredGroup(group)))
        [member] = json.loads(str(value))["data"]["members"]
        self.assertEqual((member["subscription"], member["assignment"]), ("AP8=", ""))
        group = group._replace(protocolType="consumer")
        _, value = offsetsText(Record(0, 0, key, encodeStoredGroup(group)))
        [member] = json.loads(str(value))["data"]["members"]
        self.assertEqual((member["subscription"], member["assignment"]), ("AP8=", ""))
