"""
The partition of a key by the rules of today's clients, so that keys go where Java's client, or
librdkafka's, sends them.

Both hash the key's bytes. Hashing is slow in Python, and keys repeat: the hashes of the last
L{REMEMBERED_COUNT_MAX} short keys are cached. In C it takes no longer than to look them up.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from zlib import crc32

from pylogbroker.speedups import chosen, native

MURMUR2, CRC32 = "murmur2", "crc32"

KeyPartitioner = Callable[[bytes, int], int]
"""Called with the key and the number of partitions; gives the index of one of them."""

REMEMBERED_COUNT_MAX = 4_096
REMEMBERED_SIZE_MAX = 64
"""Bytes of a key whose hash is cached, which bounds the cache to 2 MB."""

_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995


def pureMurmur2(key: bytes) -> int:
    """
    The hash of Java's client.

    @return: 0 to 2^32-1.
    """
    size = len(key)
    number = _SEED ^ size
    for word in struct.unpack_from(f"<{size // 4}I", key):
        word = word * _FACTOR & _MASK
        word ^= word >> 24
        number = (number * _FACTOR & _MASK) ^ (word * _FACTOR & _MASK)
    if size & 3:
        number ^= int.from_bytes(key[size & ~3 :], "little")
        number = number * _FACTOR & _MASK
    number ^= number >> 13
    number = number * _FACTOR & _MASK
    return number ^ number >> 15


murmur2 = chosen("murmur2", pureMurmur2)
_rememberedMurmur2 = murmur2 if native is not None else lru_cache(REMEMBERED_COUNT_MAX)(murmur2)


def keyPartition(key: bytes, count: int) -> int:
    """The partition of a key among C{count}, as Java's producer chooses it."""
    number = _rememberedMurmur2(key) if len(key) <= REMEMBERED_SIZE_MAX else murmur2(key)
    return (number & 0x7FFFFFFF) % count


def crc32Partition(key: bytes, count: int) -> int:
    """The partition that librdkafka's C{consistent_random} chooses for a key."""
    return crc32(key) % count


KEY_PARTITIONERS: Mapping[str, KeyPartitioner] = {
    MURMUR2: keyPartition,
    CRC32: crc32Partition,
}
"""By the names of C{partitioner.class}."""
