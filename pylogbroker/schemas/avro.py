"""
Encoding values to payloads and decoding them, by Avro schemas with an id.

A payload has the format of schema registries: magic byte 0, the schema's id in four bytes,
big-endian, and the Avro body.

Encoder and decoder make no requests: ids and schemas are looked up beforehand, or by a function
that may block. So an encoder can be called in a producer, and a decoder in a stream.

An encoder has one schema, and suits C{Producer(encoder=…)}. A decoder decodes payloads of any
schema in its cache, as its reader's schema says if it has one
(L{pylogbroker.schemas.logicaltypes}).
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from struct import Struct
from typing import Any, NamedTuple

import fastavro
from fastavro.read import SchemaResolutionError

from pylogbroker.errors import (
    EncodingError,
    IncompatibleReaderSchemaError,
    InvalidPayloadError,
    InvalidSchemaError,
    SchemaNotFoundError,
    describeError,
)
from pylogbroker.schemas.logicaltypes import readerFor
from pylogbroker.schemas.lru import SCHEMA_COUNT_MAX, LruCache
from pylogbroker.schemas.schemaparser import PARSED_SIZE_MAX, parseSchema
from pylogbroker.schemas.schematext import exceedsDepth

MAGIC = 0
ID_MAX = 2**31 - 1
_HEADER = Struct(">BI")
HEADER_SIZE = _HEADER.size

VALUE_DEPTH_MAX = 100
"""The deepest value of a recursive schema; well within what can be decoded again."""


def frame(schemaId: int, body: bytes) -> bytes:
    """
    @raise ValueError: C{schemaId} is not in 0 … 2^31 - 1.
    """
    if not 0 <= schemaId <= ID_MAX:
        raise ValueError(f"schema id {schemaId} is not in 0..{ID_MAX}")
    return _HEADER.pack(MAGIC, schemaId) + body


def schemaIdOf(payload: bytes) -> int:
    """
    @raise InvalidPayloadError: the payload does not begin with the magic byte and an id.
    """
    if len(payload) < HEADER_SIZE:
        raise InvalidPayloadError(
            f"{len(payload)} bytes are too few for a magic byte and a schema id"
        )
    magic, schemaId = _HEADER.unpack_from(payload)
    if magic != MAGIC:
        raise InvalidPayloadError(
            f"the payload begins with byte {magic}, not with magic byte {MAGIC}"
        )
    if schemaId > ID_MAX:
        raise InvalidPayloadError(f"{schemaId} is not a schema id")
    return int(schemaId)


class AvroEncoder:
    """
    Encodes values of one schema.

    @ivar schemaId: the schema's id in the registry.
    @ivar text: the schema.
    """

    def __init__(self, schemaId: int, text: str) -> None:
        """
        @raise InvalidSchemaError: the schema cannot be used.
        """
        parsed = parseSchema(text)
        self.schemaId = schemaId
        self.text = parsed.text
        self._schema = parsed.schema
        self._isRecursive = parsed.isRecursive

    def encode(self, value: Any) -> bytes:
        """
        @raise EncodingError: the value does not fit the schema.
        """
        if self._isRecursive and exceedsDepth(value, VALUE_DEPTH_MAX):
            raise EncodingError(f"a value that is nested more than {VALUE_DEPTH_MAX} deep")
        body = BytesIO()
        try:
            fastavro.schemaless_writer(body, self._schema, value)
        except Exception as error:  # fastavro raises errors of many types
            raise EncodingError(
                f"a value that does not fit schema {self.schemaId}: {describeError(error)}"
            ) from error
        return frame(self.schemaId, body.getvalue())

    __call__ = encode


def _lookUpNothing(schemaId: int) -> str:
    raise SchemaNotFoundError(f"schema {schemaId} has not been looked up")


class BodyDecoder(NamedTuple):
    """
    Decodes the bodies that one schema has written.

    @ivar size: characters of the schema's text.
    @ivar read: decodes a body; L{None}: the schema cannot be used.
    @ivar reason: why it cannot.
    """

    size: int
    read: Callable[[BytesIO], Any] | None
    reason: str = ""


class AvroDecoder:
    """
    Decodes payloads. Not thread-safe, except for L{prepare}.
    """

    def __init__(
        self,
        readerSchema: str | None = None,
        find: Callable[[int], str] = _lookUpNothing,
        schemaCountMax: int = SCHEMA_COUNT_MAX,
    ) -> None:
        """
        @param readerSchema: the schema to read all values with; L{None}: each value's own.
        @param find: returns the text of a schema that is not in the cache, or raises; may block.
        @param schemaCountMax: the most schemas in the cache; and again that number of schemas that
            cannot be used.
        @raise InvalidSchemaError: C{readerSchema} cannot be used.
        """
        self._reader = None if readerSchema is None else parseSchema(readerSchema)
        self._find = find
        self._reads: LruCache[int, Callable[[BytesIO], Any]] = LruCache(
            schemaCountMax, PARSED_SIZE_MAX
        )
        self._unusable: LruCache[int, str] = LruCache(schemaCountMax, PARSED_SIZE_MAX)

    def isCached(self, schemaId: int) -> bool:
        """Whether the cache has a schema, or that it cannot be used."""
        return schemaId in self._reads or schemaId in self._unusable

    def prepare(self, text: str) -> BodyDecoder:
        """
        Prepare to decode what a schema has written. The largest schema takes some tenths of a
        second. From any thread.
        """
        reader = self._reader
        try:
            writer = parseSchema(text)
            if reader is not None and reader.text == writer.text:
                reader = None
            return BodyDecoder(len(text), readerFor(writer, reader))
        except InvalidSchemaError as error:
            return BodyDecoder(len(text), None, str(error))

    def cache(self, schemaId: int, prepared: BodyDecoder) -> None:
        """
        Add a schema to the cache. An unusable schema stays so, since ids are for ever. (The cache
        has the reason as text: an error that is raised again and again grows.)
        """
        if prepared.read is None:
            self._unusable.put(schemaId, prepared.reason, len(prepared.reason))
        else:
            self._reads.put(schemaId, prepared.read, prepared.size)

    def decode(self, payload: bytes) -> Any:
        """
        @raise InvalidPayloadError: the payload has no frame, or its body does not fit its schema.
        @raise IncompatibleReaderSchemaError: the reader's schema cannot read it.
        @raise SchemaNotFoundError: its schema is not in the cache, and C{find} has none.
        @raise InvalidSchemaError: its schema cannot be used.
        """
        schemaId = schemaIdOf(payload)
        read = self._reads.get(schemaId) or self._lookUp(schemaId)
        body = BytesIO(payload)
        body.seek(HEADER_SIZE)
        try:
            value = read(body)
        except SchemaResolutionError as error:
            raise IncompatibleReaderSchemaError(
                f"the reader's schema cannot read schema {schemaId}: {error}"
            ) from error
        except Exception as error:  # fastavro raises errors of many types
            raise InvalidPayloadError(
                f"a body that does not fit schema {schemaId}: {describeError(error)}"
            ) from error
        if body.tell() != len(payload):
            raise InvalidPayloadError(
                f"{len(payload) - body.tell()} bytes too many behind a body of schema {schemaId}"
            )
        return value

    __call__ = decode

    def _lookUp(self, schemaId: int) -> Callable[[BytesIO], Any]:
        reason = self._unusable.get(schemaId)
        if reason is not None:
            raise InvalidSchemaError(reason)
        prepared = self.prepare(self._find(schemaId))
        self.cache(schemaId, prepared)
        if prepared.read is None:
            raise InvalidSchemaError(prepared.reason)
        return prepared.read
