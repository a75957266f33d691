"""
A payload with a schema, as clients of schema registries write it: magic byte 0, the schema's id in four bytes, big-endian, and the body behind them.
"""

from __future__ import annotations

from struct import Struct

from pylogbroker.errors import InvalidPayloadError

MAGIC = 0
ID_MAX = 2**31 - 1
_HEADER = Struct(">BI")
HEADER_SIZE = _HEADER.size


def frame(schemaId: int, body: bytes) -> bytes:
    """
    @raise ValueError: C{schemaId} is not in 0 … 2^31 - 1.
    """
    if not 0 <= schemaId <= ID_MAX:
        raise ValueError(f"schema id {schemaId} is not in 0..{ID_MAX}")
    return _HEADER.pack(MAGIC, schemaId) + body


def schemaIdOf(payload: bytes) -> int:
    """
    @raise InvalidPayloadError: it is too short, or does not begin with the magic byte and an id.
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
        raise InvalidPayloadError(f"{schemaId} is no schema id")
    return int(schemaId)
