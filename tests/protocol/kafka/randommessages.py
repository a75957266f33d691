"""Random values for any message of today's dialect."""

from __future__ import annotations

from random import Random
from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.schemas import ApiMessage

INTEGERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
ERROR_CODES = (-1, 0, 1, 3, 35, 100)
TEXTS = ("", "a", "orders", "Straße", "x" * 200)
DAY_MS = 86_400_000


def allVersions() -> list[tuple[type[ApiMessage], int]]:
    """Every message at every version that it has."""
    made = []
    for name in messages.MESSAGES:
        cls = messages.MESSAGES[name]
        first, last = cls._versions
        made += [(cls, version) for version in range(first, last + 1)]
    return made


def randomMessage(random: Random, cls: type[ApiMessage], version: int, countMax: int = 3) -> Any:
    """A message with random values in the fields that a version has."""
    return cls(
        **{
            name: _value(random, field, version, countMax)
            for name, field in cls._fields.items()
            if field.versions.has(version) and not (field.tag >= 0 and random.random() < 0.4)
        }
    )


def _value(random: Random, field: Any, version: int, countMax: int) -> Any:
    if field.nullable.has(version) and random.random() < 0.2:
        return None
    if field.isArray:
        count = random.randrange(countMax + 1)
        return [_element(random, field, version, countMax) for _ in range(count)]
    return _element(random, field, version, countMax)


def _element(random: Random, field: Any, version: int, countMax: int) -> Any:
    if field.struct is not None:
        return randomMessage(random, field.struct, version, countMax)
    if "rrorCode" in field.name:
        return random.choice(ERROR_CODES)
    if field.name.endswith("Ms"):
        return random.randrange(DAY_MS)
    if field.kind == "bool":
        return random.random() < 0.5
    if field.kind == "string":
        return random.choice(TEXTS)
    if field.kind in ("bytes", "records"):
        return random.randbytes(random.choice((0, 1, 127, 128, 300)))
    if field.kind == "uuid":
        return random.choice((bytes(16), random.randbytes(16)))
    if field.kind == "float64":
        return random.uniform(-1e9, 1e9)
    if field.kind in ("uint16", "uint32"):
        return random.randrange(1 << int(field.kind[4:]))
    limit = 1 << INTEGERS[field.kind]
    return random.choice((-limit, -1, 0, 1, limit - 1, random.randrange(limit)))
