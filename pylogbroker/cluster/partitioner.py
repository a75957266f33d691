"""
The default partitioner (spec-0.7 producer §2): C{abs(hash(key)) mod n} with Java's hash.

Our producers and 0.7's send a key to the same partition. One value is mended: the absolute value of
-2^31 is negative in Java and made such a key fail; here it goes to 0 (gotcha 40).

Text is hashed like a Java C{String}, over its UTF-16 code units; a whole number of 32 bits like an
C{Integer}, one of 64 bits like a C{Long}. Java hashes byte arrays by identity, which is useless;
here bytes are hashed as text of one character a byte, so C{b"key"} and C{"key"} share a partition.

Hashing is slow in Python, and keys repeat: the hashes of the last L{REMEMBERED_COUNT_MAX} short
keys are cached.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from pylogbroker.errors import InvalidKeyError

Partitioner = Callable[[object, int], int]
"""Called with the key and the number of partitions; gives the index of one of them."""

REMEMBERED_COUNT_MAX = 4_096
REMEMBERED_LENGTH_MAX = 64
"""Characters of a key whose hash is cached, which bounds the cache to 2 MB."""

_INT_BITS = 32
_INT_MASK = 2**32 - 1
_INT_MIN = -(2**31)


def _signed(value: int) -> int:
    value &= _INT_MASK
    return value - 2**32 if value >= 2**31 else value


def _textHash(text: str) -> int:
    value = 0
    for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"):
        value = (31 * value + unit) & _INT_MASK
    return _signed(value)


_rememberedTextHash = lru_cache(REMEMBERED_COUNT_MAX)(_textHash)


def javaHash(key: object) -> int:
    """
    @param key: text, bytes, or a whole number of up to 64 bits.
    @return: -2^31..2^31-1.
    @raise InvalidKeyError: it is something else.
    """
    if isinstance(key, bytes):
        key = key.decode("latin-1")
    if isinstance(key, str):
        return _rememberedTextHash(key) if len(key) <= REMEMBERED_LENGTH_MAX else _textHash(key)
    if isinstance(key, int) and not isinstance(key, bool) and -(2**63) <= key < 2**63:
        return (
            key
            if _INT_MIN <= key < -_INT_MIN
            else _signed(key ^ ((key & (2**64 - 1)) >> _INT_BITS))
        )
    raise InvalidKeyError(
        "the default partitioner knows keys of text, bytes and whole numbers of up to 64 bits, "
        f"not {key!r}"
    )


def defaultPartitioner(key: object, partitionCount: int) -> int:
    """
    @param partitionCount: at least 1.
    @return: 0..partitionCount-1.
    @raise InvalidKeyError: see L{javaHash}.
    """
    value = javaHash(key)
    return 0 if value == _INT_MIN else abs(value) % partitionCount
