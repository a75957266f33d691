"""
C{dump} and C{verify}: what segment files hold, and whether they are valid.

Like 0.7's DumpLogSegments (spec-0.7 tools §6), C{dump} shows an entry with a wrong checksum and
goes on, as long as the size fields make sense. Unlike it, C{dump} reports the first invalid entry
at the end, and exits with 1: a recovering broker keeps the file up to that entry. Both commands
only read; they need no broker and no reactor.
"""

from __future__ import annotations

import os
import re
import struct
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from pylogbroker.cli.arguments import addJson, flag
from pylogbroker.cli.output import asJson, asJsonLine, payloadAsJson, tableOfRows
from pylogbroker.cli.streams import Streams, writeAtOnce
from pylogbroker.errors import FormatError, StorageError
from pylogbroker.records.kafka07format import Kafka07Format
from pylogbroker.records.messageset import (
    HEADER_SIZE_0,
    HEADER_SIZE_1,
    SIZE_FIELD_SIZE,
    MessageSet,
    readEntry,
)
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.storage.recovery import SegmentReport, verify
from pylogbroker.types import Message, escapeUnprintable

READ_SIZE = 1 << 20
WRITE_SIZE = 64 << 10

_CODEC_NAMES = {0: "NoCompressionCodec", 1: "GZIPCompressionCodec", 2: "SnappyCompressionCodec"}
_DUMP_EXAMPLES = """\
examples:
  pylogbroker dump /tmp/pylogbroker-logs/dpkg-0/00000000000000000000.kafka
  pylogbroker dump --no-print --open /tmp/pylogbroker-logs/*/*.kafka
  pylogbroker dump --json /tmp/pylogbroker-logs/dpkg-0/00000000000000000000.kafka
"""
_VERIFY_EXAMPLES = """\
examples:
  pylogbroker verify /tmp/pylogbroker-logs
  pylogbroker verify /tmp/pylogbroker-logs/dpkg-0 --json

It checks the sizes and checksums of all entries, opens compressed ones, and checks that each
segment starts where the one before it ends. The exit code is 1 when something is wrong. While a
broker runs, the last entry of a partition may be incomplete.
"""


def addDumpArguments(parser: ArgumentParser) -> None:
    """Arguments of C{dump}."""
    parser.epilog = _DUMP_EXAMPLES
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="a segment file; its name is the offset at which it begins",
    )
    parser.add_argument(
        "--no-print",
        "-noprint",
        dest="isPrinted",
        action="store_false",
        help="leave the payloads out",
    )
    flag(parser, "--open", "decompress entries and show the messages inside, indented")
    addJson(parser, "print each entry as a JSON object in a line; --open adds the messages inside")


def dump(options: Namespace, streams: Streams) -> int:
    """
    Print the entries of files.

    @return: 1 when a file is not valid to its end, or cannot be read.
    @raise BrokenPipeError: the reader of the output has closed its end.
    @raise StorageError: the output cannot be written.
    """
    faults = []
    for path in options.files:
        try:
            with open(path, "rb", READ_SIZE) as file:
                fault = _dumpFile(path, file, options, streams)
        except BrokenPipeError:
            raise
        except OSError as error:
            fault = f"cannot be read: {error.strerror or error}"
        if fault is not None:
            faults.append(f"{path}: {fault}")
    for fault in faults:
        streams.warn(fault)
    return 1 if faults else 0


class _Found(NamedTuple):
    """
    An entry of the file, valid or not.

    @ivar position: byte in the file.
    @ivar data: the bytes, size field included.
    @ivar error: the reason why the entry is invalid.
    """

    position: int
    data: bytes
    error: FormatError | None

    @property
    def magic(self) -> int:
        return self.data[SIZE_FIELD_SIZE]

    @property
    def payloadStart(self) -> int:
        """Index in C{data}; its end for an entry that is too short for its header."""
        return min(
            SIZE_FIELD_SIZE + (HEADER_SIZE_0 if self.magic == 0 else HEADER_SIZE_1), len(self.data)
        )

    @property
    def codec(self) -> int:
        return 0 if self.magic == 0 else self.data[SIZE_FIELD_SIZE + 1] & 3


def _entries(file: BinaryIO, fileSize: int) -> Iterator[_Found | str]:
    """The entries of a file; then a text, when the size fields stop making sense."""
    position = 0
    while position < fileSize:
        left = fileSize - position - SIZE_FIELD_SIZE
        head = file.read(SIZE_FIELD_SIZE)
        if left < 0:
            yield f"{fileSize - position} bytes are left, less than a size field"
            return
        (size,) = struct.unpack(">i", head)
        if size < HEADER_SIZE_0:
            yield f"size field is {size}"
            return
        if size > left:
            yield f"size field is {size} and {left} bytes follow"
            return
        data = head + file.read(size)
        try:
            readEntry(data, 0, len(data), True)
        except FormatError as error:
            yield _Found(position, data, error)
        else:
            yield _Found(position, data, None)
        position += len(data)


def _dumpFile(path: str, file: BinaryIO, options: Namespace, streams: Streams) -> str | None:
    """
    @return: where and why the file stops being valid; L{None} for a valid one.
    """
    stem = re.match(r"[0-9]+(?=\.)", os.path.basename(path))
    base = int(stem.group()) if stem else 0
    if stem is None:
        streams.warn(f"{path}: the name does not begin with an offset; counting from 0")
    pieces = (
        []
        if options.json
        else [f"Dumping {path}\nStarting offset: {base}\n".encode("utf-8", "surrogateescape")]
    )
    isTerminal = os.isatty(streams.output)
    offset, gathered = base, 0
    fault: str | None = None

    def found(position: int, reason: str) -> None:
        nonlocal fault
        fault = (
            fault
            or f"valid up to offset {base + position} (byte {position}), and no further: {reason}"
        )

    for entry in _entries(file, os.fstat(file.fileno()).st_size):
        if isinstance(entry, str):
            found(offset - base, entry)
            continue
        if entry.error is not None:
            found(entry.position, entry.error.reason)
        inside: list[Message] = []
        if options.open and entry.error is None and entry.codec:
            try:
                inside = [
                    message
                    for message, _nextOffset in MessageSet(entry.data, base + entry.position)
                ]
            except FormatError as error:
                found(entry.position, error.reason)
        text = (
            _asJson(entry, inside, path, base, options)
            if options.json
            else _asText(entry, inside, base, options.isPrinted, isTerminal)
        )
        pieces.append(text)
        gathered += len(text)
        offset = base + entry.position + len(entry.data)
        if gathered > WRITE_SIZE:
            writeAtOnce(streams.output, b"".join(pieces))
            pieces, gathered = [], 0
    if not options.json:
        pieces.append(f"tail of the log is at offset: {offset}\n".encode())
    writeAtOnce(streams.output, b"".join(pieces))
    return fault


def _asText(
    entry: _Found, inside: Iterable[Message], base: int, isPrinted: bool, isTerminal: bool
) -> bytes:
    """0.7's format, with the messages inside a wrapper, at every depth, indented."""
    codec = _CODEC_NAMES.get(entry.codec, f"unknown codec {entry.codec}")
    payload = entry.data[entry.payloadStart :]
    line = (
        f"offset: {base + entry.position} isvalid: {'false' if entry.error else 'true'} "
        f"payloadsize: {len(payload)} "
        f"magic: {entry.magic} compresscodec: {codec}\n"
    )
    pieces = [line.encode()]
    if isPrinted:
        isHidden = isTerminal and entry.codec
        pieces.append(_hidden(payload) if isHidden else _payload(payload, isTerminal))
    for message in inside:
        pieces.append(f"  payloadsize: {len(message.payload)} magic: {message.magic}\n".encode())
        if isPrinted:
            pieces.append(b"  " + _payload(message.payload, isTerminal))
    return b"".join(pieces)


def _asJson(
    entry: _Found, inside: Iterable[Message], path: str, base: int, options: Namespace
) -> bytes:
    payload = entry.data[entry.payloadStart :]
    document: dict[str, Any] = {
        "file": path,
        "offset": base + entry.position,
        "isValid": entry.error is None,
        "payloadSize": len(payload),
    }
    document.update({"magic": entry.magic, "codec": entry.codec})
    if options.isPrinted:
        document.update(payloadAsJson(payload))
    if options.open and entry.codec:
        document["messages"] = [
            {
                "payloadSize": len(each.payload),
                "magic": each.magic,
                **(payloadAsJson(each.payload) if options.isPrinted else {}),
            }
            for each in inside
        ]
    return asJsonLine(document).encode("utf-8", "surrogateescape")


def _payload(payload: bytes, isTerminal: bool) -> bytes:
    text = payload.decode("utf-8", "replace")
    return f"payload:\t{escapeUnprintable(text) if isTerminal else text}\n".encode()


def _hidden(payload: bytes) -> bytes:
    """A compressed payload on a terminal, which its bytes could garble."""
    return f"payload:\t{len(payload):,} compressed bytes; --open shows the messages\n".encode()


def addVerifyArguments(parser: ArgumentParser) -> None:
    """Arguments of C{verify}."""
    parser.epilog = _VERIFY_EXAMPLES
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="a log directory, the directory of a partition, or a segment file",
    )
    addJson(parser)


def verifyFiles(options: Namespace, streams: Streams) -> int:
    """
    Verify segment files, and print a line for each.

    @return: 1 when something is wrong.
    @raise BrokenPipeError: the reader of the output has closed its end.
    @raise StorageError: the output cannot be written.
    """
    verdicts: list[SegmentReport] = []
    problems: list[str] = []
    for path in options.paths:
        try:
            verdicts += verify(RealFileSystem(), path, [Kafka07Format()])
        except StorageError as error:
            problems.append(str(error))
    if options.json:
        text = asJson({"segments": [each._asdict() for each in verdicts], "problems": problems})
    else:
        rows = [
            (
                _partition(each),
                each.baseOffset,
                each.size,
                each.entryCount,
                each.messageCount,
                each.fault or "good",
            )
            for each in verdicts
        ]
        headings = ("PARTITION", "OFFSET", "SIZE", "ENTRIES", "MESSAGES", "VERDICT")
        text = tableOfRows(headings, rows)
    writeAtOnce(streams.output, text.encode("utf-8", "surrogateescape"))
    for problem in problems:
        streams.warn(problem)
    faultCount = sum(each.fault is not None for each in verdicts)
    for each in verdicts:
        if each.fault is not None:
            streams.warn(f"{each.path}: {each.fault}")
    count = sum(each.messageCount for each in verdicts)
    verdict = (
        f"{faultCount:,} of them not good"
        if faultCount
        else "all good"
        if verdicts
        else "nothing was looked at"
    )
    streams.say(f"{len(verdicts):,} segments with {count:,} messages: {verdict}")
    return 1 if faultCount or problems else 0


def _partition(verdict: SegmentReport) -> str:
    return verdict.path.rpartition("/")[0].rpartition("/")[2] or "."
