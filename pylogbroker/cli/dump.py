"""
C{pylogbroker dump}: what stands in segment files, as 0.7's DumpLogSegments prints it (spec-0.7 tools §6).

Like there, an entry whose checksum is wrong is shown and the walk goes on, as long as the size fields make sense. Other than there, the first thing
that is not valid is told at the end, and makes the exit code 1: up to there, and no further, a broker keeps the file when it recovers.

This is the one command that needs no broker and no reactor. It reads an entry at a time.
"""

from __future__ import annotations

import argparse
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from pylogbroker.cli.arguments import addJson
from pylogbroker.cli.messageformats import payloadAsJson
from pylogbroker.cli.streams import Streams, writeAtOnce
from pylogbroker.cli.tables import asJsonLine
from pylogbroker.errors import FormatError
from pylogbroker.records.messageset import (
    HEADER_SIZE_0,
    HEADER_SIZE_1,
    SIZE_FIELD_SIZE,
    MessageSet,
    readEntry,
)
from pylogbroker.types import Message

READ_SIZE = 1 << 20
WRITE_SIZE = 64 << 10

_CODEC_NAMES = {0: "NoCompressionCodec", 1: "GZIPCompressionCodec", 2: "SnappyCompressionCodec"}
_EXAMPLES = """\
examples:
  pylogbroker dump /tmp/pylogbroker-logs/dpkg-0/00000000000000000000.kafka
  pylogbroker dump --no-print --open /tmp/pylogbroker-logs/*/*.kafka
  pylogbroker dump --json /tmp/pylogbroker-logs/dpkg-0/00000000000000000000.kafka
"""


def addArguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.epilog = _EXAMPLES
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
    parser.add_argument(
        "--open",
        dest="isOpened",
        action="store_true",
        help="open compressed entries and show the messages inside, indented",
    )
    addJson(
        parser, "each entry as a JSON object in a line; those inside, with --open, as its messages"
    )


def dump(options: argparse.Namespace, streams: Streams) -> int:
    """
    Show the files one after the other.

    @return: the exit code: 1 when one of them is not valid to its end, or cannot be read.
    @raise BrokenPipeError: nobody reads the output any more.
    @raise StorageError: it cannot be written.
    """
    faults = []
    for path in options.files:
        try:
            with open(path, "rb", READ_SIZE) as file:
                fault = _dumpFile(
                    path, file, options, lambda data: writeAtOnce(streams.output, data), streams.say
                )
        except BrokenPipeError:
            raise
        except OSError as error:
            fault = f"cannot be read: {error.strerror or error}"
        if fault is not None:
            faults.append(f"{path}: {fault}")
    for fault in faults:
        streams.say(f"pylogbroker: {fault}")
    return 1 if faults else 0


class _Found(NamedTuple):
    """
    An entry as it stands in the file, good or bad.

    @ivar position: byte in the file.
    @ivar data: with its size field.
    @ivar error: what is wrong with it.
    """

    position: int
    data: bytes
    error: FormatError | None

    @property
    def magic(self) -> int:
        return self.data[SIZE_FIELD_SIZE]

    @property
    def payloadStart(self) -> int:
        """Where in C{data}; at its end for an entry that is too short for its header."""
        return min(
            SIZE_FIELD_SIZE + (HEADER_SIZE_0 if self.magic == 0 else HEADER_SIZE_1), len(self.data)
        )

    @property
    def codec(self) -> int:
        return 0 if self.magic == 0 else self.data[SIZE_FIELD_SIZE + 1] & 3


def _entries(file: BinaryIO, fileSize: int) -> Iterator[_Found | str]:
    """The entries of a file, and, where it stops making sense before its end, why."""
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


def _dumpFile(
    path: str,
    file: BinaryIO,
    options: argparse.Namespace,
    write: Callable[[bytes], None],
    say: Callable[[str], None],
) -> str | None:
    """
    @return: where and why the file stops being valid; L{None} when it does not.
    """
    stem = re.match(r"[0-9]+(?=\.)", os.path.basename(path))
    base = int(stem.group()) if stem else 0
    if stem is None:
        say(f"pylogbroker: {path}: the name does not begin with an offset; counting from 0")
    pieces = (
        []
        if options.isJson
        else [f"Dumping {path}\nStarting offset: {base}\n".encode("utf-8", "surrogateescape")]
    )
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
        if options.isOpened and entry.error is None and entry.codec:
            try:
                inside = [
                    message
                    for message, _nextOffset in MessageSet(entry.data, base + entry.position)
                ]
            except FormatError as error:
                found(entry.position, error.reason)
        text = (
            _asJson(entry, inside, path, base, options)
            if options.isJson
            else _asText(entry, inside, base, options.isPrinted)
        )
        pieces.append(text)
        gathered += len(text)
        offset = base + entry.position + len(entry.data)
        if gathered > WRITE_SIZE:
            write(b"".join(pieces))
            pieces, gathered = [], 0
    if not options.isJson:
        pieces.append(f"tail of the log is at offset: {offset}\n".encode())
    write(b"".join(pieces))
    return fault


def _asText(entry: _Found, inside: Iterable[Message], base: int, isPrinted: bool) -> bytes:
    """As 0.7 shows it, and the messages inside a wrapper, at every depth, indented."""
    codec = _CODEC_NAMES.get(entry.codec, f"unknown codec {entry.codec}")
    payload = entry.data[entry.payloadStart :]
    line = (
        f"offset: {base + entry.position} isvalid: {'false' if entry.error else 'true'} payloadsize: {len(payload)} "
        f"magic: {entry.magic} compresscodec: {codec}\n"
    )
    pieces = [line.encode(), _payload(payload) if isPrinted else b""]
    for message in inside:
        pieces.append(f"  payloadsize: {len(message.payload)} magic: {message.magic}\n".encode())
        if isPrinted:
            pieces.append(b"  " + _payload(message.payload))
    return b"".join(pieces)


def _asJson(
    entry: _Found, inside: Iterable[Message], path: str, base: int, options: argparse.Namespace
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
    if options.isOpened and entry.codec:
        document["messages"] = [
            {"payloadSize": len(each.payload), "magic": each.magic, **(payloadAsJson(each.payload) if options.isPrinted else {})} for each in inside
        ]  # fmt: skip
    return asJsonLine(document).encode("utf-8", "surrogateescape")


def _payload(payload: bytes) -> bytes:
    return b"payload:\t" + payload.decode("utf-8", "replace").encode() + b"\n"
