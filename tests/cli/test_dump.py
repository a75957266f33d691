"""Tests for L{pylogbroker.cli.commands.dump}."""

from __future__ import annotations

import io
import json
import os

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.commands.dump import READ_SIZE, dump
from pylogbroker.cli.main import prepare
from pylogbroker.cli.streams import Streams
from pylogbroker.errors import StorageError
from pylogbroker.records.compression import GZIP, SNAPPY
from pylogbroker.records.messageset import encodeMessage, encodeSet, wrapCompressed

GOLDEN = os.path.join(os.path.dirname(__file__), "..", "golden", "segment-sample.kafka")


class DumpCase(SynchronousTestCase):
    """What the cases below share."""

    def segment(self, data: bytes, name: str = "00000000000000001000.kafka") -> str:
        folder = self.mktemp()
        os.makedirs(folder)
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(data)
        return path

    def dump(self, *arguments: str) -> tuple[int, list[str], str]:
        """@return: exit code; lines of output; what else was said."""
        errors, path = io.StringIO(), self.mktemp()
        with open(path, "wb") as file:
            streams = Streams(-1, file.fileno(), errors)
            options = prepare(["dump", *arguments], streams)
            self.assertTrue(options.command.isBlocking)
            code = dump(options, streams)
        with open(path, encoding="utf-8", newline="\n") as file:
            return code, file.read().splitlines(), errors.getvalue()


class JsonTests(DumpCase):
    """For machines."""

    def test_entries(self) -> None:
        """
        An object for each entry, and inside it, when wrappers are opened, the messages of a
        wrapper.
        """
        path = self.segment(encodeMessage(b"one") + encodeSet([b"a", b"\xff"], GZIP), "0.kafka")
        code, lines, _errors = self.dump("--json", "--open", path)
        first, second = map(json.loads, lines)
        self.assertEqual(
            first,
            {
                "file": path,
                "offset": 0,
                "isValid": True,
                "payloadSize": 3,
                "magic": 1,
                "codec": 0,
                "payload": "one",
            },
        )
        self.assertEqual((code, second["offset"], second["codec"]), (0, 13, GZIP))
        messages = [
            {"payloadSize": 1, "magic": 1, "payload": "a"},
            {"payloadSize": 1, "magic": 1, "payloadBase64": "/w=="},
        ]
        self.assertEqual(second["messages"], messages)
        _code, lines, _errors = self.dump("--json", "--open", "--no-print", path)
        self.assertEqual(json.loads(lines[1])["messages"], [{"payloadSize": 1, "magic": 1}] * 2)
        self.assertNotIn("payload", json.loads(lines[0]))

    def test_fault(self) -> None:
        """What is not valid says so, and where that is is told as ever."""
        path = self.segment(encodeMessage(b"one")[:-1] + b"x")
        code, [line], errors = self.dump("--json", path)
        self.assertEqual((code, json.loads(line)["isValid"]), (1, False))
        self.assertIn("valid up to offset 1000", errors)


class ValidTests(DumpCase):
    """Segments without a fault, as 0.7's DumpLogSegments shows them (spec-0.7 tools §6)."""

    def test_messages(self) -> None:
        """
        Each message has a line with its own offset, and one with its payload; the tail is behind
        the last.
        """
        path = self.segment(
            encodeMessage(b"one") + encodeMessage(b"two!", magic=0) + encodeMessage(b"")
        )
        self.assertEqual(
            self.dump(path),
            (
                0,
                [
                    f"Dumping {path}",
                    "Starting offset: 1000",
                    (
                        "offset: 1000 isvalid: true payloadsize: 3 magic: 1 compresscodec:"
                        " NoCompressionCodec"
                    ),
                    "payload:\tone",
                    (
                        "offset: 1013 isvalid: true payloadsize: 4 magic: 0 compresscodec:"
                        " NoCompressionCodec"
                    ),
                    "payload:\ttwo!",
                    (
                        "offset: 1026 isvalid: true payloadsize: 0 magic: 1 compresscodec:"
                        " NoCompressionCodec"
                    ),
                    "payload:\t",
                    "tail of the log is at offset: 1036",
                ],
                "",
            ),
        )

    def test_noPrint(self) -> None:
        """Payloads can be left out, with 0.7's spelling, too."""
        path = self.segment(encodeSet([b"one", b"two"]))
        code, lines, _ = self.dump("--no-print", path)
        self.assertEqual(
            (code, [line.split()[0] for line in lines]),
            (0, ["Dumping", "Starting", "offset:", "offset:", "tail"]),
        )
        self.assertEqual(self.dump("-noprint", path), self.dump("--no-print", path))

    def test_text(self) -> None:
        """Payloads are shown as UTF-8; what is not valid in them is replaced."""
        self.assertIn(
            "payload:\té�x", self.dump(self.segment(encodeMessage("é".encode() + b"\xffx")))[1]
        )

    def test_wrappers(self) -> None:
        """Compressed entries are shown as they stand in the file."""
        for codec, name in ((GZIP, "GZIPCompressionCodec"), (SNAPPY, "SnappyCompressionCodec")):
            data = encodeSet([b"one", b"two"], codec)
            lines = self.dump("--no-print", self.segment(data))[1]
            self.assertEqual(
                lines[2],
                f"offset: 1000 isvalid: true payloadsize: {len(data) - 10} magic: 1 compresscodec:"
                f" {name}",
            )
            self.assertEqual(len(lines), 4)

    def test_open(self) -> None:
        """They can be opened; the messages inside, at every depth, are indented."""
        inner = wrapCompressed(SNAPPY, encodeSet([b"one"])) + encodeMessage(b"two!", magic=0)
        path = self.segment(wrapCompressed(GZIP, inner))
        inside = [
            "  payloadsize: 3 magic: 1",
            "  payload:\tone",
            "  payloadsize: 4 magic: 0",
            "  payload:\ttwo!",
        ]
        # The wrapper's own payload is shown above them, and compressed bytes may look like line
        # ends.
        self.assertEqual(self.dump("--open", path)[1][-len(inside) - 1 : -1], inside)
        self.assertEqual(self.dump("--open", "--no-print", path)[1][3:-1], inside[::2])

    def test_empty(self) -> None:
        """An empty segment is valid."""
        self.assertEqual(self.dump(self.segment(b""))[::2], (0, ""))

    def test_many(self) -> None:
        """A segment of more than one buffer of input and output is shown whole."""
        path = self.segment(encodeSet([b"x" * 1000] * 2000))
        self.assertGreater(os.path.getsize(path), READ_SIZE)
        code, lines, _ = self.dump("--no-print", path)
        self.assertEqual(
            (code, len(lines), lines[-1]), (0, 2003, "tail of the log is at offset: 2021000")
        )

    def test_golden(self) -> None:
        """
        A segment that 0.7.2 wrote is valid to its end; its name says no offset, which is said.
        """
        code, lines, errors = self.dump("--no-print", GOLDEN)
        self.assertEqual(
            (code, lines[1], lines[-1]),
            (0, "Starting offset: 0", f"tail of the log is at offset: {os.path.getsize(GOLDEN)}"),
        )
        self.assertIn("does not begin with an offset", errors)


class FaultTests(DumpCase):
    """Segments that are not valid to their ends."""

    def fault(self, data: bytes, *arguments: str) -> tuple[list[str], str]:
        """@return: the lines between head and tail; where and why it stops being valid."""
        path = self.segment(encodeMessage(b"good") + data)
        code, lines, errors = self.dump("--no-print", *arguments, path)
        self.assertEqual(code, 1)
        self.assertTrue(lines[-1].startswith("tail of the log is at offset: "))
        beginning = f"pylogbroker: {path}: valid up to offset "
        self.assertTrue(errors.startswith(beginning), errors)
        return lines[3:-1], errors.removeprefix(beginning).rstrip("\n")

    def test_checksum(self) -> None:
        """
        A message with a wrong checksum is shown as such, and so are those after it; the first of
        them is told.
        """
        bad = encodeMessage(b"bad")[:-1] + b"?"
        lines, fault = self.fault(bad + encodeMessage(b"good") + bad)
        self.assertEqual(
            [line.split()[1:4] for line in lines],
            [
                ["1014", "isvalid:", "false"],
                ["1027", "isvalid:", "true"],
                ["1041", "isvalid:", "false"],
            ],
        )
        self.assertTrue(fault.startswith("1014 (byte 14), and no further: checksum is"), fault)

    def test_magic(self) -> None:
        """A message of a magic that nobody knows is not valid."""
        lines, fault = self.fault(b"\0\0\0\6\7\0abcd")
        self.assertEqual(
            lines,
            [
                "offset: 1014 isvalid: false payloadsize: 0 magic: 7 compresscodec:"
                " NoCompressionCodec"
            ],
        )
        self.assertEqual(fault, "1014 (byte 14), and no further: magic byte is 7")

    def test_shortHeader(self) -> None:
        """
        A message of magic 1 that is too short for its header is not valid, and has no payload.
        """
        lines, fault = self.fault(b"\0\0\0\5\1\0abc")
        self.assertEqual(
            lines,
            [
                "offset: 1014 isvalid: false payloadsize: 0 magic: 1 compresscodec:"
                " NoCompressionCodec"
            ],
        )
        self.assertIn("less than the header of magic 1", fault)

    def test_cut(self) -> None:
        """
        Where the file ends inside an entry, or inside a size field, or a size cannot be, the walk
        ends.
        """
        for data, reason in (
            (encodeMessage(b"cut")[:-1], "size field is 9 and 8 bytes follow"),
            (b"\0\0\0", "3 bytes are left, less than a size field"),
            (b"\0\0\0\4abcd", "size field is 4"),
            (b"\xff\xff\xff\xffabcd", "size field is -1"),
        ):
            self.assertEqual(self.fault(data), ([], f"1014 (byte 14), and no further: {reason}"))

    def test_wrapper(self) -> None:
        """
        A wrapper that cannot be opened is a fault when it is to be opened, since recovery would
        keep it.
        """
        data = encodeMessage(b"no gzip", codec=GZIP)
        self.assertEqual(self.dump(self.segment(data))[0], 0)
        _, fault = self.fault(data, "--open")
        self.assertTrue(fault.startswith("1014 (byte 14), and no further: "), fault)

    def test_unknownCodec(self) -> None:
        """A codec that nobody knows is shown as such."""
        lines, fault = self.fault(encodeMessage(b"?", codec=3), "--open")
        self.assertEqual(
            lines,
            ["offset: 1014 isvalid: true payloadsize: 1 magic: 1 compresscodec: unknown codec 3"],
        )
        self.assertIn("codec 3", fault)

    def test_unreadable(self) -> None:
        """A file that cannot be read is told; the others are shown."""
        path = self.segment(encodeMessage(b"good"))
        code, lines, errors = self.dump("/nonexistent", os.path.dirname(path), path)
        self.assertEqual((code, lines[0]), (1, f"Dumping {path}"))
        self.assertEqual(
            errors.splitlines(),
            [
                "pylogbroker: /nonexistent: cannot be read: No such file or directory",
                f"pylogbroker: {os.path.dirname(path)}: cannot be read: Is a directory",
            ],
        )

    def test_output(self) -> None:
        """Output that cannot be written is no fault of the file, and ends the command."""
        path = self.segment(encodeMessage(b"good"))
        with open("/dev/full", "wb", 0) as full:
            streams = Streams(-1, full.fileno(), io.StringIO())
            options = prepare(["dump", path], streams)
            self.assertRaises(StorageError, dump, options, streams)
        source, sink = os.pipe()
        os.close(source)
        self.addCleanup(os.close, sink)
        self.assertRaises(BrokenPipeError, dump, options, Streams(-1, sink, io.StringIO()))

    def test_terminal(self) -> None:
        """A terminal never gets compressed bytes or control characters."""
        data = encodeSet([b"plain \x1b[2J"]) + encodeSet([b"inside \x07"], GZIP)
        path = self.segment(data)
        for option in ("--no-print", "--open", ""):
            source, sink = os.openpty()
            self.addCleanup(os.close, source)
            streams = Streams(-1, sink, io.StringIO())
            dump(prepare(["dump", *filter(None, [option]), path], streams), streams)
            os.close(sink)
            shown = os.read(source, 1 << 16)
            self.assertEqual([byte for byte in shown if byte < 32 and byte not in b"\t\r\n"], [])
            self.assertEqual(b"compressed bytes" in shown, option != "--no-print")
            self.assertEqual(b"inside" in shown, option == "--open")
