"""
What is true for ever and may be forgotten all the same, since it can be asked for again: the least recently used goes when there are too many,
or when they are too large together.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """
    So many values, by key. For one thread at a time.
    """

    def __init__(self, countMax: int, sizeMax: float = math.inf) -> None:
        """
        @param sizeMax: of all together, in what L{put} is told.
        """
        self._countMax = countMax
        self._sizeMax = sizeMax
        self._size = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        """The value, which is then the last to go; L{None}: forgotten, or never known."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: K, value: V, size: int = 0) -> None:
        """Remember it; unless it is larger than all may be together."""
        _value, before = self._values.pop(key, (None, 0))
        self._size -= before
        if size > self._sizeMax:
            return
        self._values[key] = value, size
        self._size += size
        while len(self._values) > self._countMax or self._size > self._sizeMax:
            _key, (_value, gone) = self._values.popitem(last=False)
            self._size -= gone
