"""
Values to payloads and back, by Avro schemas with an id.

Neither of the two asks anybody for anything: a schema's id is found, and schemas are fetched, beforehand or by whoever may wait. So an encoder can be
called in the middle of a producer, and a decoder in a stream, and neither blocks.

An encoder is for one schema; it is what C{Producer(encoder=…)} takes. A decoder reads what any schema has written, as far as it has learnt it,
and gives it as its reader's schema says, if it has one; what numbers and bytes then stand for is said in L{pylogbroker.schemas.logical}.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple

import fastavro
from fastavro.read import SchemaResolutionError

from pylogbroker.errors import (
    EncodingError,
    IncompatibleSchemaError,
    InvalidPayloadError,
    InvalidSchemaError,
    UnknownSchemaError,
    describeError,
)
from pylogbroker.schemas.canonical import exceedsDepth
from pylogbroker.schemas.framing import HEADER_SIZE, frame, schemaIdOf
from pylogbroker.schemas.logical import readerFor
from pylogbroker.schemas.lru import LruCache
from pylogbroker.schemas.parsing import PARSED_SIZE_MAX, parseSchema

SCHEMA_COUNT_MAX = 1_000
"""Schemas that a decoder knows at a time."""

VALUE_DEPTH_MAX = 100
"""How deep values of recursive schemas may be nested: well within what can be read again."""


class AvroEncoder:
    """
    Makes payloads of values, by one schema.

    @ivar schemaId: what the registry calls it.
    @ivar text: the schema.
    """

    def __init__(self, schemaId: int, text: str) -> None:
        """
        @raise InvalidSchemaError: it cannot be used.
        """
        parsed = parseSchema(text)
        self.schemaId = schemaId
        self.text = parsed.text
        self._schema = parsed.schema
        self._isRecursive = parsed.isRecursive

    def encode(self, value: Any) -> bytes:
        """
        @raise EncodingError: the value is not of the schema.
        """
        if self._isRecursive and exceedsDepth(value, VALUE_DEPTH_MAX):
            raise EncodingError(f"a value that is nested more than {VALUE_DEPTH_MAX} deep")
        body = BytesIO()
        try:
            fastavro.schemaless_writer(body, self._schema, value)
        except Exception as error:  # the library raises whatever its parts do
            raise EncodingError(
                f"a value that is not of schema {self.schemaId}: {describeError(error)}"
            ) from error
        return frame(self.schemaId, body.getvalue())

    __call__ = encode


def _nobody(schemaId: int) -> str:
    raise UnknownSchemaError(f"nobody has looked for schema {schemaId} yet")


class Look(NamedTuple):
    """
    What was found out about a writer's schema.

    @ivar size: characters of its text.
    @ivar read: reads a body that it has written; L{None}: it cannot be used.
    @ivar why: not.
    """

    size: int
    read: Callable[[BytesIO], Any] | None
    why: str = ""


class AvroDecoder:
    """
    Makes values of payloads. For one thread at a time, but for L{look}.
    """

    def __init__(
        self,
        readerSchema: str | None = None,
        find: Callable[[int], str] = _nobody,
        schemaCountMax: int = SCHEMA_COUNT_MAX,
    ) -> None:
        """
        @param readerSchema: how values are wanted, whoever wrote them; L{None}: as they were written.
        @param find: gives the text of a schema that was not learnt, or raises; for those who may wait there and then.
        @param schemaCountMax: how many schemas are known at a time, and of how many more it is known that they cannot be used.
        @raise InvalidSchemaError: C{readerSchema} cannot be used.
        """
        self._reader = None if readerSchema is None else parseSchema(readerSchema)
        self._find = find
        self._reads: LruCache[int, Callable[[BytesIO], Any]] = LruCache(
            schemaCountMax, PARSED_SIZE_MAX
        )
        self._unusable: LruCache[int, str] = LruCache(schemaCountMax, PARSED_SIZE_MAX)

    def knows(self, schemaId: int) -> bool:
        """Whether what this schema has written can be read now."""
        return schemaId in self._reads

    def isNew(self, schemaId: int) -> bool:
        """Whether nothing is known of a schema, not even that it cannot be used."""
        return schemaId not in self._reads and schemaId not in self._unusable

    def look(self, text: str) -> Look:
        """
        Find out how to read what a schema has written. Takes time: some tenths of a second for the largest one. From any thread.
        """
        try:
            return Look(len(text), self._reading(text))
        except InvalidSchemaError as error:
            return Look(len(text), None, str(error))

    def take(self, schemaId: int, look: Look) -> None:
        """Remember what was found out. What cannot be used never can be, as ids are for ever. (Why is kept as a text: an error that is raised again grows.)"""
        if look.read is None:
            self._unusable.put(schemaId, look.why, len(look.why))
        else:
            self._reads.put(schemaId, look.read, look.size)

    def learn(self, schemaId: int, text: str) -> None:
        """
        Both at once.

        @raise InvalidSchemaError: the schema cannot be used; or that was found before, and then the text is not looked at again.
        """
        self._learnt(schemaId, lambda _schemaId: text)

    def decode(self, payload: bytes) -> Any:
        """
        @raise InvalidPayloadError: it is not framed, or its body is not what its schema says, to the last byte.
        @raise IncompatibleSchemaError: the reader's schema cannot read it.
        @raise UnknownSchemaError: its schema was not learnt, and C{find} has none.
        @raise InvalidSchemaError: its schema cannot be used.
        """
        schemaId = schemaIdOf(payload)
        read = self._reads.get(schemaId)
        if read is None:
            read = self._learnt(schemaId, self._find)
        body = BytesIO(payload)
        body.seek(HEADER_SIZE)
        try:
            value = read(body)
        except SchemaResolutionError as error:
            raise IncompatibleSchemaError(
                f"the reader's schema cannot read schema {schemaId}: {error}"
            ) from error
        except Exception as error:  # the library raises whatever its parts do
            raise InvalidPayloadError(
                f"a body that is not of schema {schemaId}: {describeError(error)}"
            ) from error
        if body.tell() != len(payload):
            raise InvalidPayloadError(
                f"{len(payload) - body.tell()} bytes too many behind a body of schema {schemaId}"
            )
        return value

    __call__ = decode

    def _learnt(self, schemaId: int, find: Callable[[int], str]) -> Callable[[BytesIO], Any]:
        why = self._unusable.get(schemaId)
        if why is not None:
            raise InvalidSchemaError(why)
        look = self.look(find(schemaId))
        self.take(schemaId, look)
        if look.read is None:
            raise InvalidSchemaError(look.why)
        return look.read

    def _reading(self, text: str) -> Callable[[BytesIO], Any]:
        writer, reader = parseSchema(text), self._reader
        if reader is not None and reader.text == writer.text:
            reader = None
        isRecursive = writer.isRecursive or (reader is not None and reader.isRecursive)
        wanted: tuple[str | None, Any] = (None, None)
        if reader is not None:
            wanted = reader.text, reader.schema
        return readerFor(writer.text, writer.schema, *wanted, isRecursive)
