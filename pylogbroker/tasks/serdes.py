"""
Serdes: how keys, messages and values become bytes and come back. A module of its own, since job
files import it.

C{STRING}, C{INTEGER} and C{LONG} have the bytes of Kafka's serializers of these names, and of
Samza's. L{None} is never given to a serde: it is no key, or a tombstone.
L{pylogbroker.tasks.avroserde.AvroSerde} is a module of its own, since it needs the extra C{avro}.
"""

from __future__ import annotations

import json
import struct
from math import isinf
from typing import Any, Protocol

from pylogbroker.errors import EncodingError, InvalidPayloadError, describeError


class Serde(Protocol):
    """
    Encodes and decodes values of one kind.

    @ivar name: for people.
    """

    name: str

    def encode(self, value: Any) -> bytes:
        """@raise EncodingError: the value is none of this kind."""
        ...

    def decode(self, data: bytes) -> Any:
        """@raise InvalidPayloadError: the bytes are none of this kind."""
        ...


class BytesSerde:
    """Bytes, as they are."""

    name = "bytes"

    def encode(self, value: Any) -> bytes:
        if type(value) is not bytes:
            raise EncodingError(f"{type(value).__name__} where bytes are expected")
        return value

    def decode(self, data: bytes) -> bytes:
        return data


class StringSerde:
    """Text, in UTF-8."""

    name = "string"

    def encode(self, value: Any) -> bytes:
        try:
            return str.encode(value)
        except (TypeError, UnicodeEncodeError) as error:
            raise EncodingError(f"{value!r:.80} is no text in UTF-8: {error}") from error

    def decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InvalidPayloadError(f"no text in UTF-8: {error}") from error


class NumberSerde:
    """A signed number of a fixed size, big-endian."""

    def __init__(self, name: str, form: str) -> None:
        self.name = name
        self._struct = struct.Struct(form)

    def __reduce__(self) -> tuple[Any, ...]:
        """A serde goes to Spark's workers, and a C{Struct} cannot be pickled."""
        return NumberSerde, (self.name, self._struct.format)

    def encode(self, value: Any) -> bytes:
        try:
            return self._struct.pack(value)
        except struct.error as error:
            bits = self._struct.size * 8
            raise EncodingError(f"{value!r:.80} is no {self.name} of {bits} bits") from error

    def decode(self, data: bytes) -> int:
        try:
            return int(self._struct.unpack(data)[0])
        except struct.error as error:
            raise InvalidPayloadError(
                f"{len(data)} bytes where {self.name} has {self._struct.size}"
            ) from error


def _refuseConstant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _finiteFloat(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError(f"{text} is no number of JSON that a float can hold")
    return number


_JSON_DECODER = json.JSONDecoder(parse_float=_finiteFloat, parse_constant=_refuseConstant)
_JSON_ENCODER = json.JSONEncoder(  # C{json.dumps} makes one for each call
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


class JsonSerde:
    """
    What JSON can say. A value is encoded to the same bytes each time, so it can be a key: the names
    of an object are sorted, and there are no spaces.
    """

    name = "json"

    def encode(self, value: Any) -> bytes:
        try:
            return _JSON_ENCODER.encode(value).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise EncodingError(f"no JSON: {describeError(error)}") from error

    def decode(self, data: bytes) -> Any:
        try:
            return _JSON_DECODER.decode(data.decode())
        except (ValueError, RecursionError) as error:
            raise InvalidPayloadError(f"no JSON: {describeError(error)}") from error


BYTES = BytesSerde()
STRING = StringSerde()
INTEGER = NumberSerde("integer", ">i")
LONG = NumberSerde("long", ">q")
JSON = JsonSerde()
