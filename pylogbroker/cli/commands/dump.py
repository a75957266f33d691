"""
C{dump} and C{verify}: what segment files hold, and whether they are valid.

Like 0.7's DumpLogSegments (spec-0.7 tools §6), C{dump} shows an entry with a wrong checksum and
goes on, as long as the size fields make sense. Unlike it, C{dump} reports the first invalid entry
at the end, and exits with 1: a recovering broker keeps the file up to that entry. Both commands
only read; they need no broker and no reactor. Files of today's format are shown by
L{pylogbroker.cli.batchdump}.
"""

from __future__ import annotations

import os
import re
import struct
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

from pylogbroker.cli import batchdump
from pylogbroker.cli.arguments import (
    AT_BROKERS,
    BOOTSTRAP,
    JSON,
    Command,
    either,
    flag,
    isCurrent,
    option,
    rejectOptions,
    repeated,
    topic,
)
from pylogbroker.cli.indexcheck import SUFFIX, indexFault
from pylogbroker.cli.kafka.internaltopics import offsetsText, transactionText
from pylogbroker.cli.kafka.verify import verifyTopics
from pylogbroker.cli.output import asJson, asJsonLine, payloadAsJson, tableOfRows
from pylogbroker.cli.streams import Streams, writeAtOnce
from pylogbroker.errors import FormatError, StorageError
from pylogbroker.interfaces import IRecordFormat
from pylogbroker.records.kafka07format import Kafka07Format
from pylogbroker.records.kafkaformat import CHECKED_RULES, KafkaFormat
from pylogbroker.records.messageset import (
    HEADER_SIZE_0,
    HEADER_SIZE_1,
    SIZE_FIELD_SIZE,
    MessageSet,
    readEntry,
)
from pylogbroker.storage.files import RealFileSystem
from pylogbroker.storage.recovery import SegmentReport, verify
from pylogbroker.types import Message, escapeUnprintable, formatCount

READ_SIZE = 1 << 20
WRITE_SIZE = 64 << 10

FORMATS: tuple[IRecordFormat, ...] = (Kafka07Format(), KafkaFormat(CHECKED_RULES))
"""What C{verify} knows."""

_CODEC_NAMES = {0: "NoCompressionCodec", 1: "GZIPCompressionCodec", 2: "SnappyCompressionCodec"}


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


class _Entry(NamedTuple):
    """
    An entry of the file, valid or not.

    @ivar position: byte in the file.
    @ivar data: the bytes, size field included.
    @ivar payload: empty for an entry that is too short for its header.
    @ivar error: the reason why the entry is invalid.
    """

    position: int
    data: bytes
    magic: int
    codec: int
    payload: bytes
    error: FormatError | None = None


def _entries(file: BinaryIO, fileSize: int) -> Iterator[_Entry | str]:
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
        magic, attributes = data[SIZE_FIELD_SIZE : SIZE_FIELD_SIZE + 2]
        headerSize, codec = (HEADER_SIZE_1, attributes & 3) if magic else (HEADER_SIZE_0, 0)
        entry = _Entry(position, data, magic, codec, data[SIZE_FIELD_SIZE + headerSize :])
        try:
            readEntry(data, 0, len(data), True)
        except FormatError as error:
            entry = entry._replace(error=error)
        yield entry
        position += len(data)


def _dumpFile(path: str, file: BinaryIO, options: Namespace, streams: Streams) -> str | None:
    """
    @return: where and why the file stops being valid; L{None} for a valid one.
    """
    stem = re.match(r"[0-9]+(?=\.)", os.path.basename(path))
    offset = base = int(stem.group()) if stem else 0
    if stem is None:
        streams.warn(f"{path}: the name does not begin with an offset; counting from 0")
    isTerminal = os.isatty(streams.output)
    if path.endswith(batchdump.SUFFIXES):
        size = os.fstat(file.fileno()).st_size
        found = batchdump.BatchDump(path, file, size, base, options, isTerminal)
        _writePieces(found, streams)
        return found.fault
    head = f"Dumping {path}\nStarting offset: {base}\n"
    pieces = [] if options.json else [head.encode("utf-8", "surrogateescape")]
    gathered = 0
    fault: str | None = None

    def stopsAt(offset: int, reason: str) -> None:
        nonlocal fault
        fault = (
            fault or f"valid up to offset {offset} (byte {offset - base}), and no further: {reason}"
        )

    for entry in _entries(file, os.fstat(file.fileno()).st_size):
        if isinstance(entry, str):
            stopsAt(offset, entry)
            continue
        inside: list[Message] = []
        if entry.error is not None:
            stopsAt(offset, entry.error.reason)
        elif options.open and entry.codec:
            try:
                inside = [message for message, _nextOffset in MessageSet(entry.data, offset)]
            except FormatError as error:
                stopsAt(offset, error.reason)
        text = (
            _asJson(entry, offset, inside, path, options)
            if options.json
            else _asText(entry, offset, inside, options.isPrinted, isTerminal)
        )
        pieces.append(text)
        gathered += len(text)
        offset += len(entry.data)
        if gathered > WRITE_SIZE:
            writeAtOnce(streams.output, b"".join(pieces))
            pieces, gathered = [], 0
    if not options.json:
        pieces.append(f"tail of the log is at offset: {offset}\n".encode())
    writeAtOnce(streams.output, b"".join(pieces))
    return fault


def _writePieces(pieces: Iterable[bytes], streams: Streams) -> None:
    """Write in large writes, with bounded memory."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size > WRITE_SIZE:
            writeAtOnce(streams.output, b"".join(gathered))
            gathered, size = [], 0
    writeAtOnce(streams.output, b"".join(gathered))


def _asText(
    entry: _Entry, offset: int, inside: Iterable[Message], isPrinted: bool, isTerminal: bool
) -> bytes:
    """0.7's format, with the messages inside a wrapper, at every depth, indented."""
    codec = _CODEC_NAMES.get(entry.codec, f"unknown codec {entry.codec}")
    line = (
        f"offset: {offset} isvalid: {'false' if entry.error else 'true'} "
        f"payloadsize: {len(entry.payload)} "
        f"magic: {entry.magic} compresscodec: {codec}\n"
    )
    pieces = [line.encode()]
    if isPrinted:
        if isTerminal and entry.codec:  # whose bytes could garble the terminal
            text = f"{len(entry.payload):,} compressed bytes; --open shows the messages"
            pieces.append(f"payload:\t{text}\n".encode())
        else:
            pieces.append(_payload(entry.payload, isTerminal))
    for message in inside:
        pieces.append(f"  payloadsize: {len(message.payload)} magic: {message.magic}\n".encode())
        if isPrinted:
            pieces.append(b"  " + _payload(message.payload, isTerminal))
    return b"".join(pieces)


def _asJson(
    entry: _Entry, offset: int, inside: Iterable[Message], path: str, options: Namespace
) -> bytes:
    def shown(payload: bytes) -> dict[str, str]:
        return payloadAsJson(payload) if options.isPrinted else {}

    document: dict[str, Any] = {
        "file": path,
        "offset": offset,
        "isValid": entry.error is None,
        "payloadSize": len(entry.payload),
        "magic": entry.magic,
        "codec": entry.codec,
        **shown(entry.payload),
    }
    if options.open and entry.codec:
        document["messages"] = [
            {"payloadSize": len(each.payload), "magic": each.magic, **shown(each.payload)}
            for each in inside
        ]
    return asJsonLine(document).encode("utf-8", "surrogateescape")


def _payload(payload: bytes, isTerminal: bool) -> bytes:
    text = payload.decode("utf-8", "replace")
    return f"payload:\t{escapeUnprintable(text) if isTerminal else text}\n".encode()


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
            verdicts += map(_withIndexes, verify(RealFileSystem(), path, FORMATS))
        except StorageError as error:
            problems.append(str(error))
    if options.json:
        text = asJson({"segments": [each._asdict() for each in verdicts], "problems": problems})
    else:
        rows = [
            (
                os.path.basename(os.path.dirname(each.path)) or ".",
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
    faulty = [each for each in verdicts if each.fault is not None]
    for each in faulty:
        streams.warn(f"{each.path}: {each.fault}")
    count = sum(each.messageCount for each in verdicts)
    verdict = (
        f"{len(faulty):,} of them not good"
        if faulty
        else "all good"
        if verdicts
        else "nothing was looked at"
    )
    segments, messages = formatCount(len(verdicts), "segment"), formatCount(count, "message")
    streams.say(f"{segments} with {messages}: {verdict}")
    return 1 if faulty or problems else 0


def _withIndexes(report: SegmentReport) -> SegmentReport:
    if report.fault is None and report.path.endswith(SUFFIX):
        return report._replace(fault=indexFault(report))
    return report


def prepareVerify(options: Namespace, streams: Streams) -> None:
    """Check that either files or a cluster are named."""
    if isCurrent(options):
        if options.paths:
            options.parser.error("PATH: not with --bootstrap-server")
        if options.against is None:
            rejectOptions(options, "needs --against", "--ignore-timestamps")
        return
    rejectOptions(options, "needs --bootstrap-server", "--against", "--ignore-timestamps")
    if options.topics:
        options.parser.error("--topic: needs --bootstrap-server")
    if not options.paths:
        options.parser.error("name a PATH, or give --bootstrap-server")


COMMANDS = (
    Command(
        "dump",
        dump,
        (
            option(
                "files FILE", "a segment file; its name is the offset at which it begins", nargs="+"
            ),
            flag(
                "--no-print -noprint",
                "leave the payloads out",
                dest="isPrinted",
                action="store_false",
            ),
            flag(
                "--open --records --deep",
                "open entries and batches, and show what is inside; 2011's only if compressed",
                dest="open",
            ),
            either(
                flag(
                    "--offsets-decoder",
                    "show the records of today's topic __consumer_offsets",
                    dest="decoder",
                    action="store_const",
                    const=offsetsText,
                ),
                flag(
                    "--transaction-log-decoder",
                    "show the records of today's topic __transaction_state",
                    dest="decoder",
                    action="store_const",
                    const=transactionText,
                ),
            ),
            flag(
                "--json",
                "print each entry as a JSON object in a line; --open adds the messages inside",
            ),
        ),
        """\
examples:
  pylogbroker dump /tmp/pylogbroker-logs/dpkg-0/00000000000000000000.kafka
  pylogbroker dump --no-print --open /tmp/pylogbroker-logs/*/*.kafka
  pylogbroker dump --json /tmp/pylogbroker-logs/dpkg-0/00000000000000000000.kafka
  pylogbroker dump --records /tmp/pylogbroker-logs/orders-0/00000000000000000000.log

Of today's files it shows what Kafka's own tool shows: the header of each batch, with --records its
records, with their keys and payloads; of .index, .timeindex and .txnindex files the entries, of
.snapshot files the producers. With --offsets-decoder or --transaction-log-decoder the records of an
internal topic are shown field by field.
""",
        isBlocking=True,
    ),
    Command(
        "verify",
        verifyFiles,
        (
            option(
                "paths PATH",
                "a log directory, the directory of a partition, or a segment file; without "
                "--bootstrap-server, one at least",
                nargs="*",
            ),
            BOOTSTRAP,
            option(
                "--against HOST:PORT",
                "with --bootstrap-server: another cluster, which must have the same records in the "
                "same partitions, as a mirror's target has",
            ),
            option(
                "--against-config FILE",
                "as --config, for that cluster; by default, the same for both",
                dest="otherAccessFile",
            ),
            flag(
                "--ignore-timestamps",
                "with --against: records may differ in their timestamps, as in topics with "
                "LogAppendTime",
            ),
            repeated(
                "--topic TOPIC",
                "with --bootstrap-server: a topic; can be repeated; by default, all, or with "
                "--against all but internal ones",
                "topics",
                topic,
            ),
            *AT_BROKERS,
            JSON,
        ),
        """\
examples:
  pylogbroker verify /tmp/pylogbroker-logs
  pylogbroker verify /tmp/pylogbroker-logs/dpkg-0 --json
  pylogbroker verify --bootstrap-server log1:9092
  pylogbroker verify --bootstrap-server log1:9092 --topic payments --against log1:9092

Of files it checks the sizes and checksums of all entries and batches, opens them, and checks that
each segment starts where the one before it ends, and of today's format that the indexes fit. While
a broker runs, the last entry of a partition may be incomplete.

With --bootstrap-server it reads partitions from their beginnings to the ends that they have at the
start, and checks checksums, records, the order of offsets and leader epochs, and, unless the topic
is compacted, that no offset is missing.

With --against it compares committed records with those of the other cluster: key, value, headers
and timestamp. They must be there in their order. A record may come again there, as behind a mirror
that was killed, and the cluster may have deleted its oldest ones. The exit code is 1 when something
is wrong or missing.
""",
        prepareVerify,
        isBlocking=True,
        current=verifyTopics,
    ),
)
