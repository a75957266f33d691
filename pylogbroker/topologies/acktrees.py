"""
Trees of tuples, as the acker of a stream manager follows them: which tuples of a spout are handled
with all that came of them. A module of its own, since it is arithmetic, without a connection.

A root is the tree of one tuple of a spout. Each tuple that belongs to it has an edge, a random
number of 64 bits. The tree's value is all edges XORed that were announced or acknowledged: each
edge comes in twice, once when its tuple is emitted and once when that is acknowledged. So the value
is 0 when all are acknowledged, and by chance with a probability of 2**-64.

What must be true:

  - A root comes to one end at most: completed, failed, or timed out.
  - An edge is announced before its tuple can be acknowledged. A stream manager handles an
  instance's announcements before it passes the tuples on. An emitting bolt announces its new edges
  with the acknowledgement of what they are anchored to.
  - What is said about an unknown root is ignored: it has come to its end.

Time-outs are those of a wheel of L{BUCKET_COUNT} buckets, which turns once in the time-out. So a
tree times out between once and C{1 + 1 / BUCKET_COUNT} times the time-out after it was announced.
An announcement costs no timer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

BUCKET_COUNT = 8


class AckTrees:
    """The trees of one spout task."""

    __slots__ = ("_buckets",)

    def __init__(self, bucketCount: int = BUCKET_COUNT) -> None:
        """@param bucketCount: calls of L{rotate} in the time-out."""
        # The newest first: most trees come to their end soon. The bucket behind the last whole one
        # is why no tree times out early.
        self._buckets: deque[dict[int, int]] = deque({} for _ in range(bucketCount + 1))

    def __len__(self) -> int:
        """How many trees are not at their end."""
        return sum(map(len, self._buckets))

    def announce(self, numbers: Sequence[int]) -> None:
        """
        Take in new roots.

        @param numbers: of each tree its root and its edges XORed, flat. A tree whose edges are 0
            belongs to a tuple that has no receiver: it must not be announced.
        """
        self._buckets[0].update(zip(numbers[::2], numbers[1::2], strict=True))

    def acknowledge(self, numbers: Sequence[int]) -> list[int]:
        """
        Take in acknowledgements.

        @param numbers: of each its root, and XORed the edges that are acknowledged and those that
            are announced with it; flat.
        @return: the roots that are completed by them, which are forgotten.
        """
        completed = []
        buckets = self._buckets
        for root, edges in zip(numbers[::2], numbers[1::2], strict=True):
            for bucket in buckets:
                value = bucket.get(root)
                if value is not None:
                    if value == edges:
                        del bucket[root]
                        completed.append(root)
                    else:
                        bucket[root] = value ^ edges
                    break
        return completed

    def fail(self, roots: Iterable[int]) -> list[int]:
        """
        Take in failures.

        @return: those of the roots that were not at their end, which are forgotten.
        """
        return [
            root
            for root in roots
            if any(bucket.pop(root, None) is not None for bucket in self._buckets)
        ]

    def rotate(self) -> list[int]:
        """
        Turn the wheel.

        @return: the roots that have timed out, which are forgotten.
        """
        expired = self._buckets.pop()
        self._buckets.appendleft({})
        return list(expired)
