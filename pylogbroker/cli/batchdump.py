"""
What C{dump} shows of today's segment files, their indexes and snapshots of producers: lines as by
DumpLogSegments of Kafka 4.x, or JSON. It is a module of its own, since C{dump} itself is about the
format of 2011.

A batch with a wrong checksum is shown, and the walk goes on, as long as sizes make sense.
"""

from __future__ import annotations

import base64
import struct
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, BinaryIO

from pylogbroker.cli.output import asJsonLine
from pylogbroker.errors import CorruptLogError, FormatError
from pylogbroker.interfaces import BatchHeader, EndMarker
from pylogbroker.records.compression import BATCH_CODEC_NAMES
from pylogbroker.records.recordbatch import (
    BATCH_OVERHEAD,
    Record,
    checkCrc,
    controlType,
    iterateRecords,
    readHeader,
    readMarker,
)
from pylogbroker.storage.kafka.producerstate import decodeSnapshot
from pylogbroker.types import escapeUnprintable

SUFFIXES = (".log", ".index", ".timeindex", ".snapshot", ".txnindex")
_SMALL_SIZE_MAX = 64 << 20
"""Bytes of a snapshot of producers, which is read at once."""

_ABORTED_FIELDS = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
_ENTRIES: dict[str, tuple[struct.Struct, tuple[str, ...], tuple[str, ...]]] = {
    "index": (struct.Struct(">ii"), ("offset", "position"), ("offset",)),
    "timeindex": (struct.Struct(">qi"), ("timestamp", "offset"), ("offset",)),
    "txnindex": (struct.Struct(">hqqqq"), _ABORTED_FIELDS, ()),
}
"""By suffix: layout, names of the fields, and those that count from the segment's first offset."""


_TEXTS = ("key", "payload")


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _timed(header: BatchHeader) -> str:
    return "LogAppendTime" if header.isLogAppendTime else "CreateTime"


class BatchDump:
    """
    The output for one file, as pieces.

    @ivar fault: after the walk, where and why the file stops being valid.
    """

    def __init__(
        self, path: str, file: BinaryIO, size: int, base: int, options: Namespace, isTerminal: bool
    ) -> None:
        """
        @param size: bytes in the file.
        @param base: the offset in the file's name.
        """
        self._path = path
        self._file = file
        self._size = size
        self._base = base
        self._options = options
        self._isTerminal = isTerminal
        self.fault: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        if not self._options.json:
            yield f"Dumping {self._path}\n".encode("utf-8", "surrogateescape")
        if self._path.endswith(".log"):
            yield from self._batches()
        elif self._path.endswith(".snapshot"):
            yield from self._producers()
        else:
            yield from self._entries()

    # -- indexes

    def _entries(self) -> Iterator[bytes]:
        layout, names, bases = _ENTRIES[self._path.rpartition(".")[2]]
        count, left = divmod(self._size, layout.size)
        for _ in range(count):
            values = layout.unpack(self._file.read(layout.size))
            yield self._line(
                {
                    name: value + self._base if name in bases else value
                    for name, value in zip(names, values, strict=True)
                }
            )
        if left:
            self.fault = f"{left} bytes are left, less than an entry"

    def _line(self, found: dict[str, Any]) -> bytes:
        return (
            asJsonLine({"file": self._path, **found})
            if self._options.json
            else " ".join(f"{name}: {value}" for name, value in found.items()) + "\n"
        ).encode("utf-8", "surrogateescape")

    # -- snapshots of producers

    def _producers(self) -> Iterator[bytes]:
        try:
            if self._size > _SMALL_SIZE_MAX:
                raise CorruptLogError(self._path, "read", f"it has {self._size} bytes")
            entries = decodeSnapshot(self._file.read(), self._path)
        except CorruptLogError as error:
            self.fault = error.reason
            return
        for entry in entries:
            start = entry.transactionStart
            found: dict[str, Any] = {
                "producerId": entry.producerId,
                "producerEpoch": entry.epoch,
                "coordinatorEpoch": entry.coordinatorEpoch,
                "currentTxnFirstOffset": start if start >= 0 else None,
                "lastTimestamp": entry.timestampMs,
            }
            if entry.batches:
                last = entry.batches[-1]
                count = last.offsetDelta
                found |= {
                    "firstSequence": (last.lastSequence - count) & 0x7FFFFFFF,
                    "lastSequence": last.lastSequence,
                    "lastOffset": last.lastOffset,
                    "offsetDelta": last.offsetDelta,
                    "timestamp": last.timestampMs,
                }
            if not self._options.json:
                found["currentTxnFirstOffset"] = (
                    "OptionalLong.empty" if start < 0 else f"OptionalLong[{start}]"
                )
            yield self._line(found)

    # -- batches

    def _batches(self) -> Iterator[bytes]:
        position, nextOffset = 0, self._base
        if not self._options.json:
            yield f"Log starting offset: {self._base}\n".encode()
        while position < self._size:
            head = self._file.read(BATCH_OVERHEAD)
            try:
                header = readHeader(head)
                if header.size > self._size - position:
                    raise FormatError(
                        f"batch of {header.size} bytes and {self._size - position} are left"
                    )
            except FormatError as error:
                self._stopsAt(nextOffset, position, error.reason)
                return
            data = head + self._file.read(header.size - BATCH_OVERHEAD)
            isValid = True
            records: list[Record] = []
            try:
                checkCrc(data, 0, header)
                if self._options.open or self._options.decoder or header.isControl:
                    records = list(iterateRecords(data, 0, header))
                if header.baseOffset < nextOffset:
                    raise FormatError(f"offset {header.baseOffset} is behind {nextOffset}")
            except FormatError as error:
                isValid = False
                self._stopsAt(nextOffset, position, error.reason)
            yield (
                self._asJson(position, header, isValid, records)
                if self._options.json
                else self._asText(position, header, isValid, records)
            ).encode("utf-8", "surrogateescape")
            position += header.size
            nextOffset = header.nextOffset

    def _stopsAt(self, offset: int, position: int, reason: str) -> None:
        if self.fault is None:
            self.fault = f"valid up to offset {offset} (byte {position}), and no further: {reason}"

    def _asText(
        self, position: int, header: BatchHeader, isValid: bool, records: list[Record]
    ) -> str:
        codec = BATCH_CODEC_NAMES.get(header.codec, f"unknown codec {header.codec}")
        horizon = header.deleteHorizonMs
        lines = [
            f"baseOffset: {header.baseOffset} lastOffset: {header.lastOffset}"
            f" count: {header.recordCount} baseSequence: {header.baseSequence}"
            f" lastSequence: {header.lastSequence} producerId: {header.producerId}"
            f" producerEpoch: {header.producerEpoch} partitionLeaderEpoch: {header.leaderEpoch}"
            f" isTransactional: {_boolean(header.isTransactional)}"
            f" isControl: {_boolean(header.isControl)} deleteHorizonMs: "
            + ("OptionalLong.empty" if horizon is None else f"OptionalLong[{horizon}]")
            + f" position: {position} {_timed(header)}: {header.maxTimestampMs}"
            f" size: {header.size} magic: {header.magic} compresscodec: {codec}"
            f" crc: {header.crc} isvalid: {_boolean(isValid)}"
        ]
        lines += [self._recordText(header, record) for record in records]
        return "\n".join(lines) + "\n"

    def _recordText(self, header: BatchHeader, record: Record) -> str:
        sizes = [-1 if field is None else len(field) for field in (record.key, record.value)]
        sequence = header.baseSequence
        if sequence >= 0:
            sequence = (sequence + record.offset - header.baseOffset) & 0x7FFFFFFF
        text = (
            f"| offset: {record.offset} {_timed(header)}: {record.timestampMs}"
            f" keySize: {sizes[0]} valueSize: {sizes[1]} sequence: {sequence}"
            f" headerKeys: [{','.join(name for name, _ in record.headers)}]"
        )
        if header.isControl:
            return text + _markerText(record)
        if self._options.decoder is not None:
            for name, shown in zip(_TEXTS, self._options.decoder(record), strict=True):
                text += "" if shown is None else f" {name}: {shown}"
        elif self._options.isPrinted:
            for name, field in zip(_TEXTS, (record.key, record.value), strict=True):
                if field is not None:
                    text += f" {name}: {field.decode('utf-8', 'replace')}"
        return escapeUnprintable(text) if self._isTerminal else text

    def _asJson(
        self, position: int, header: BatchHeader, isValid: bool, records: list[Record]
    ) -> str:
        document: dict[str, Any] = {
            "file": self._path,
            "position": position,
            "isValid": isValid,
            **header._asdict(),
            "lastOffset": header.lastOffset,
            "codec": header.codec,
            "isTransactional": header.isTransactional,
            "isControl": header.isControl,
            "isLogAppendTime": header.isLogAppendTime,
        }
        if self._options.open or self._options.decoder:
            document["records"] = [self._recordJson(record) for record in records]
        if header.isControl:
            document["markers"] = [
                None if marker is None else marker._asdict() for marker in map(_marker, records)
            ]
        return asJsonLine(document)

    def _recordJson(self, record: Record) -> dict[str, Any]:
        shown: dict[str, Any] = {"offset": record.offset, "timestampMs": record.timestampMs}
        if self._options.decoder is not None:
            shown.update(zip(_TEXTS, self._options.decoder(record), strict=True))
        elif self._options.isPrinted:
            shown.update(_fieldJson("key", record.key))
            shown.update(_fieldJson("payload", record.value))
            shown["headers"] = [
                {"name": name, **_fieldJson("value", value)} for name, value in record.headers
            ]
        return shown


def _fieldJson(name: str, field: bytes | None) -> dict[str, str | None]:
    """The field as text, or C{…Base64} for other bytes."""
    if field is None:
        return {name: None}
    try:
        return {name: field.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(field).decode()}


def _marker(record: Record) -> EndMarker | None:
    try:
        return readMarker(record)
    except FormatError:
        return None


def _markerText(record: Record) -> str:
    marker = _marker(record)
    if marker is not None:
        kind = "COMMIT" if marker.isCommit else "ABORT"
        return f" endTxnMarker: {kind} coordinatorEpoch: {marker.coordinatorEpoch}"
    try:
        return f" controlType: {controlType(record)}"
    except FormatError as error:
        return f" controlType: {error.reason}"
