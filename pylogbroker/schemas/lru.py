"""
A cache of schemas, which never change and can be requested again: limited in number and in size.
"""

from __future__ import annotations

import math
from typing import Generic, TypeVar

from cachetools import LRUCache

K = TypeVar("K")
V = TypeVar("V")

SCHEMA_COUNT_MAX = 1_000
"""Schemas in the cache of a client or a decoder, by default."""


class LruCache(Generic[K, V]):
    """C{cachetools.LRUCache} with both limits. Not thread-safe."""

    def __init__(self, countMax: int, sizeMax: float = math.inf) -> None:
        """
        @param sizeMax: the sum of the sizes given to L{put}.
        """
        self._countMax = countMax
        self._cache: LRUCache[K, tuple[V, int]] = LRUCache(sizeMax, lambda item: item[1])

    def __len__(self) -> int:
        return len(self._cache)

    def __contains__(self, key: K) -> bool:
        return key in self._cache

    def get(self, key: K) -> V | None:
        """The value, which becomes the most recently used; L{None}: not in the cache."""
        item = self._cache.get(key)
        return None if item is None else item[0]

    def put(self, key: K, value: V, size: int = 0) -> None:
        """Add or replace a value. A value larger than the cache is not kept."""
        self._cache.pop(key, None)
        if size <= self._cache.maxsize:
            self._cache[key] = value, size
        if len(self._cache) > self._countMax:
            self._cache.popitem()
