"""
L{OffsetMap}: the latest offset of each key, in bounded memory, for compaction. A module of its own,
since this loop is half of compaction's cost, and so a candidate for C.

Keys are kept as hashes of L{HASH_SIZE} bytes, with the offset in L{SLOT_SIZE} bytes: a table with
open addressing, in three arrays. A dict of Python objects would take eight times as much. Two keys
with one hash would lose the older one's record; with a cryptographic hash of 128 bits nobody finds
such keys.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from struct import Struct

HASH_SIZE = 16
SLOT_SIZE = HASH_SIZE + 8
LOAD_MAX = 0.75
"""Used slots of the table."""

_HASH = Struct("=Qq")
_COUNT_LEAST = 16


class OffsetMap:
    """
    Offsets by key.

    @ivar countMax: keys that fit.
    @ivar latestOffset: everything up to it has been put in; -1: nothing.
    """

    def __init__(self, size: int, countMax: int) -> None:
        """
        @param size: bytes at most, but a few keys always fit.
        @param countMax: keys that can come; less memory is taken if they are few.
        """
        wanted = min(size // SLOT_SIZE, int(countMax / LOAD_MAX) + 1)
        self._slotCount = count = max(wanted, _COUNT_LEAST)
        self._high = array("Q", bytes(8)) * count
        self._low = array("q", bytes(8)) * count
        self._offsets = array("q", b"\xff" * 8) * count
        self.countMax = int(count * LOAD_MAX)
        self.latestOffset = -1
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def isFull(self) -> bool:
        return self._count >= self.countMax

    def put(self, key: bytes, offset: int) -> None:
        """Set a key's offset, which is above all earlier ones. The map must not be full."""
        high, low = _HASH.unpack(blake2b(key, digest_size=HASH_SIZE).digest())
        count, offsets = self._slotCount, self._offsets
        slot = high % count
        while offsets[slot] >= 0:
            if self._high[slot] == high and self._low[slot] == low:
                offsets[slot] = offset
                return
            slot += 1
            if slot == count:
                slot = 0
        self._high[slot], self._low[slot], offsets[slot] = high, low, offset
        self._count += 1

    def get(self, key: bytes) -> int:
        """The latest offset of a key; -1: it is not in the map."""
        high, low = _HASH.unpack(blake2b(key, digest_size=HASH_SIZE).digest())
        count, offsets = self._slotCount, self._offsets
        slot: int = high % count
        while offsets[slot] >= 0:
            if self._high[slot] == high and self._low[slot] == low:
                return offsets[slot]
            slot += 1
            if slot == count:
                slot = 0
        return -1
