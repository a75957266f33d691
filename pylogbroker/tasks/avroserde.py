"""Avro, by the ids of schemas. A module of its own, since it needs the extra C{avro}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pylogbroker.errors import SchemaNotFoundError
from pylogbroker.schemas.avro import AvroDecoder, AvroEncoder


class AvroSerde:
    """
    Values of an Avro schema, framed as schema registries do: magic byte 0, the id in four bytes,
    the body.
    """

    name = "avro"

    def __init__(
        self, schemaId: int, schema: str, find: Callable[[int], str] | None = None
    ) -> None:
        """
        @param schemaId: of what is encoded.
        @param schema: its text; what is decoded is read as it says.
        @param find: gives the text of a schema with another id, or raises; may block. By default
            only C{schemaId} is known.
        @raise InvalidSchemaError: the schema cannot be used.
        """

        def findAny(number: int) -> str:
            if number == schemaId:
                return schema
            if find is None:
                raise SchemaNotFoundError(f"schema {number} is not known, only {schemaId} is")
            return find(number)

        self.encode: Callable[[Any], bytes] = AvroEncoder(schemaId, schema).encode
        self.decode: Callable[[bytes], Any] = AvroDecoder(schema, findAny).decode
