"""Tests for L{pylogbroker.cli.commands.dump}."""

from __future__ import annotations

import io
import json
import os
import shutil

from pylogbroker.cli.commands.dump import verifyFiles
from pylogbroker.cli.main import buildParser
from pylogbroker.cli.streams import Streams
from tests.cli.commands import ROOT, CommandCase, Outcome, performAtOnce


class VerifyTests(CommandCase):
    """Files of a live broker."""

    def verify(self, *arguments: str) -> Outcome:
        errors, path = io.StringIO(), self.mktemp()
        with open(path, "wb") as file:
            code = verifyFiles(
                buildParser().parse_args(["verify", *arguments]), Streams(-1, file.fileno(), errors)
            )
        with open(path, "rb") as file:
            return Outcome(code, file.read(), errors.getvalue())

    async def test_live(self) -> None:
        """
        Under a broker that runs: every segment, its size, and as many messages as were published.
        """
        broker = await self.startBroker(log_file_size="100")
        for number in range(10):
            await self.publish("t", b"%d" % number * 30, b"x")
        await self.publish("u", b"a", b"b", b"c", codec=1)
        result = self.verify(broker.directory)
        self.assertEqual(
            (result.code, result.errors), (0, "6 segments with 23 messages: all good\n")
        )
        lines = [line.split() for line in result.output.decode().splitlines()]
        self.assertEqual(
            lines[0], ["PARTITION", "OFFSET", "SIZE", "ENTRIES", "MESSAGES", "VERDICT"]
        )
        self.assertEqual(lines[1], ["t-0", "0", "102", "4", "4", "good"])
        self.assertEqual(lines[2], ["t-0", "102", "102", "4", "4", "good"])
        self.assertEqual(
            (lines[-1][0], lines[-1][1], *lines[-1][3:]), ("u-0", "0", "1", "3", "good")
        )

    async def test_damaged(self) -> None:
        """What is damaged is told, in table and JSON, and makes the exit code 1."""
        broker = await self.startBroker()
        await self.publish("t", b"one", b"two")
        path = os.path.join(broker.directory, "t-0", "0" * 20 + ".kafka")
        with open(path, "r+b") as file:
            file.seek(25)
            file.write(b"x")
        result = self.verify(broker.directory)
        self.assertEqual(result.code, 1)
        self.assertIn(
            "valid up to offset 13 (byte 13), and no further: checksum", result.output.decode()
        )
        self.assertIn(f"pylogbroker: {path}: valid up to offset 13", result.errors)
        self.assertIn("1 segment with 1 message: 1 of them not good", result.errors)
        [segment] = json.loads(self.verify(path, "--json").output)["segments"]
        self.assertEqual(
            (segment["validSize"], segment["size"], segment["messageCount"]), (13, 26, 1)
        )

    def test_nothing(self) -> None:
        """
        A path at which nothing is is an error, and so is a directory without segment files; the
        others are looked at.
        """
        folder = self.mktemp()
        os.makedirs(os.path.join(folder, "gtk-3"))  # as in /etc: a name like a partition's
        result = self.verify(folder)
        self.assertEqual(
            (result.code, result.errors),
            (
                1,
                (
                    f"pylogbroker: cannot verify {folder}: it is neither a partition nor a log"
                    " directory: no segment files are in it\n0 segments with 0 messages: nothing"
                    " was looked at\n"
                ),
            ),
        )
        result = self.verify("/nonexistent", "--json")
        self.assertEqual(
            (result.code, json.loads(result.output)),
            (1, {"segments": [], "problems": ["cannot verify /nonexistent: nothing is there"]}),
        )
        result = self.verify("/nonexistent")
        self.assertEqual(
            (result.output, result.errors.splitlines()[-1]),
            (b"", "0 segments with 0 messages: nothing was looked at"),
        )


class IndexTests(CommandCase):
    """The indexes of a segment of today's format, recorded of Apache Kafka."""

    GOLDEN = ROOT / "tests" / "golden" / "kafka43" / "segment"

    def setUp(self) -> None:
        self.folder = self.mktemp()
        shutil.copytree(self.GOLDEN, self.folder)
        self.stem = os.path.join(self.folder, f"{500:020}")

    def fault(self) -> str:
        """What is wrong with the segment."""
        outcome = performAtOnce("verify", f"{self.stem}.log", "--json")
        [segment] = outcome.document()["segments"]
        self.assertEqual(outcome.code, 0 if segment["fault"] is None else 1)
        return segment["fault"] or "good"

    def change(self, suffix: str, position: int, data: bytes) -> None:
        """Overwrite bytes of an index; the next change begins with the recorded one."""
        path = f"{self.stem}.{suffix}"
        shutil.copy(self.GOLDEN / os.path.basename(path), path)
        with open(path, "r+b") as file:
            file.seek(position)
            file.write(data)

    def test_good(self) -> None:
        """They fit; entries that are not used yet, and a missing index, are no fault."""
        self.assertEqual(self.fault(), "good")
        for suffix in ("index", "timeindex"):
            with open(f"{self.stem}.{suffix}", "ab") as file:
                file.write(bytes(2400))
        self.assertEqual(self.fault(), "good")
        os.remove(f"{self.stem}.index")
        self.assertEqual(self.fault(), "good")

    def test_damaged(self) -> None:
        """An entry that is out of order, or that points elsewhere, is named."""
        size = os.path.getsize(f"{self.stem}.index")
        self.assertGreaterEqual(size, 16)
        for suffix, position, data, text in (
            ("index", 8, bytes(4), "index: entry 1 does not follow the one before it"),
            ("index", 4, b"\0\0\0\1", "index: entry 0 points to byte 1, where no batch begins"),
            ("index", size - 4, b"\x7f" * 4, "where no batch begins"),
            ("index", 0, bytes(4), "index: entry 0 has offset 500, and the batch at byte"),
        ):
            self.change(suffix, position, data)
            self.assertIn(text, self.fault())
        shutil.copy(self.GOLDEN / os.path.basename(f"{self.stem}.index"), self.folder)
        for position, data, text in (
            (8, b"\x7f" * 4, "timeindex: entry 0 has offset"),
            (12, bytes(8), "timeindex: entry 1 does not follow the one before it"),
        ):
            self.change("timeindex", position, data)
            self.assertIn(text, self.fault())

    def test_unreadable(self) -> None:
        """An index that cannot be read is an error."""
        os.remove(f"{self.stem}.index")
        os.mkdir(f"{self.stem}.index")
        outcome = performAtOnce("verify", f"{self.stem}.log")
        self.assertEqual(outcome.code, 1)
        self.assertIn("Is a directory", outcome.errors)
