"""
What is true for ever and may be forgotten all the same, since it can be asked for again: the least recently used goes when there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """
    So many values, by key.
    """

    def __init__(self, countMax: int) -> None:
        self._countMax = countMax
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def get(self, key: K) -> V | None:
        """The value, which is then the last to go; L{None}: forgotten, or never known."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Remember it."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._countMax:
            self._values.popitem(last=False)
