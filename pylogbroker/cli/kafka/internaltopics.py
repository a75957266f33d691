"""
The records of today's internal topics for C{dump}, as DumpLogSegments of Kafka 4.x shows them with
C{--offsets-decoder} and C{--transaction-log-decoder}: JSON in Kafka's own field names. A module of
its own, since the coordinators' codecs keep only what a coordinator needs.

A record of a kind that is not known here is named by its number, and its value is left out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from pylogbroker.errors import WireError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.coordinatorrecords import RECORDS
from pylogbroker.protocol.kafka.schemas import ApiMessage
from pylogbroker.records.recordbatch import Record

_OFFSET_TYPES = {0: "OffsetCommit", 1: "OffsetCommit", 2: "GroupMetadata"}
_TRANSACTION_TYPES = {0: "TransactionLog"}
_VERSION_SIZE = 2
_CONSUMER = "consumer"
_MEMBER_FIELDS = {
    "subscription": "ConsumerProtocolSubscription",
    "assignment": "ConsumerProtocolAssignment",
}

Decoder = Callable[[Record], tuple[str | None, str | None]]
"""C{decode(record)}: the texts of key and payload; L{None}: there is none."""


def offsetsText(record: Record) -> tuple[str | None, str | None]:
    """A record of C{__consumer_offsets}."""
    return _texts(record, _OFFSET_TYPES)


def transactionText(record: Record) -> tuple[str | None, str | None]:
    """A record of C{__transaction_state}."""
    return _texts(record, _TRANSACTION_TYPES)


def _texts(record: Record, types: dict[int, str]) -> tuple[str | None, str | None]:
    if record.key is None or len(record.key) < _VERSION_SIZE:
        return f"Missing key at offset {record.offset}, skipping.", None
    number = int.from_bytes(record.key[:_VERSION_SIZE], "big")
    name = types.get(number)
    if name is None:
        return f"Unknown record type {number} at offset {record.offset}, skipping.", None
    try:
        key, _ = RECORDS[f"{name}Key"].decode(record.key, number, _VERSION_SIZE)
        keyText = _json({"type": str(number), "data": _document(key, number)})
        if record.value is None:
            return keyText, "<DELETE>"
        version = int.from_bytes(record.value[:_VERSION_SIZE], "big")
        value, _ = RECORDS[f"{name}Value"].decode(record.value, version, _VERSION_SIZE)
        return keyText, _json({"version": str(version), "data": _document(value, version)})
    except WireError as error:
        return f"Damaged record at offset {record.offset}: {error}", None


def _json(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def _document(message: ApiMessage, version: int) -> dict[str, Any]:
    made = {}
    isConsumer = getattr(message, "protocolType", None) == _CONSUMER
    for name, kind, value in message.shown(version):
        made[name] = _value(value, kind, version)
        if isConsumer and name == "members":
            made[name] = [_member(member, version) for member in value]
    return made


def _member(member: ApiMessage, version: int) -> dict[str, Any]:
    """A consumer's member, whose subscription and assignment are messages, too."""
    made = _document(member, version)
    for field, name in _MEMBER_FIELDS.items():
        data = getattr(member, field)
        own = int.from_bytes(data[:_VERSION_SIZE], "big")
        try:
            found, _ = messages.MESSAGES[name].decode(data, own, _VERSION_SIZE)
        except WireError:
            continue
        made[field] = _document(found, own)
    return made


def _value(value: Any, kind: str, version: int) -> Any:
    if isinstance(value, list):
        return [_value(each, kind, version) for each in value]
    if isinstance(value, ApiMessage):
        return _document(value, version)
    if kind == "uuid":
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value
