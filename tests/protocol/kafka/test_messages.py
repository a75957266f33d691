"""Every message of today's dialect against kio, which was made from the same definitions."""

from __future__ import annotations

import datetime
import importlib
import io
import re
from dataclasses import fields
from random import Random
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.schemas import ApiMessage
from tests.protocol.kafka.randommessages import allVersions, randomMessage

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def kioClass(name: str, version: int) -> Any:
    """kio's class of a message and version."""
    stem, kind = re.fullmatch(r"(.+?)(Request|Response)?", name).groups()  # type: ignore[union-attr]
    folder = re.sub(r"(?<=.)([A-Z])", r"_\1", stem).lower()
    module = importlib.import_module(f"kio.schema.{folder}.v{version}.{(kind or 'data').lower()}")
    return getattr(module, name)


def toKio(message: ApiMessage, cls: Any, version: int) -> Any:
    """kio's object with the values of ours; both list a version's fields in Kafka's order."""
    names = [field.name for field in message._fields.values() if field.versions.has(version)]
    theirs = fields(cls)
    assert len(names) == len(theirs), (message, cls)
    return cls(
        **{
            field.name: toKioValue(getattr(message, name), field, version)
            for name, field in zip(names, theirs, strict=True)
        }
    )


def toKioValue(value: Any, field: Any, version: int) -> Any:
    if isinstance(value, list):
        return tuple(toKioValue(element, field, version) for element in value)
    if isinstance(value, ApiMessage):
        return toKio(value, NESTED[type(value).__name__], version)
    kind = field.metadata.get("kafka_type")
    if value is None:
        return None
    if kind == "error_code":
        return KioErrorCode(value)
    if kind in ("timedelta_i32", "timedelta_i64"):
        return datetime.timedelta(milliseconds=value)
    if kind == "datetime_i64":
        return EPOCH + datetime.timedelta(milliseconds=value)
    if kind == "uuid":
        return UUID(bytes=value) if any(value) else None
    return value


NESTED: dict[str, Any] = {}
"""kio's classes of the structs of the message in hand."""


class KioTests(SynchronousTestCase):
    """What we encode is what kio encodes."""

    def test_sameBytes(self) -> None:
        """
        Random values of every message and version encode to the bytes that kio makes of them; both
        decode them to what they were.
        """
        random = Random(12)
        for cls, version in allVersions():
            theirs = kioClass(cls.__name__, version)
            module = importlib.import_module(theirs.__module__)
            NESTED.clear()
            NESTED.update(vars(module))
            write, read = entity_writer(theirs), entity_reader(theirs)
            for _ in range(4):
                message = randomMessage(random, cls, version)
                encoded = message.encode(version)
                oracle = toKio(message, theirs, version)
                buffer = io.BytesIO()
                write(buffer, oracle)
                where = f"{cls.__name__} v{version}"
                self.assertEqual(encoded, buffer.getvalue(), where)
                self.assertEqual(cls.decode(encoded, version), (message, len(encoded)), where)
                self.assertEqual(read(encoded, 0)[0], oracle, where)

    def test_unknownName(self) -> None:
        """A message that the table lacks is no attribute of the module."""
        with self.assertRaises(AttributeError):
            messages.TelemetryRequest
