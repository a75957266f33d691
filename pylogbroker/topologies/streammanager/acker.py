"""
The acker of a stream manager: the trees of the spouts of its container, by what entries say. A
module of its own, since it knows entries but no connection.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from pylogbroker.errors import WireError
from pylogbroker.topologies.acktrees import AckTrees
from pylogbroker.topologies.messages import (
    ACKED,
    ACKS,
    FAILED,
    FAILS,
    ROOTS,
    decodeNumbers,
    encodeEntry,
    encodeNumbers,
)


class Acker:
    """
    Follows trees, and tells spouts what has become of them.

    @ivar counts: C{acked}, C{failed} and C{timed out} trees.
    """

    def __init__(self, deliver: Callable[[int, bytes], object], treeCountMax: int) -> None:
        """
        @param deliver: called with a spout's task and an entry for it.
        @param treeCountMax: trees of one spout that are followed; those above fail at once.
        """
        self.counts: Counter[str] = Counter()
        self._deliver = deliver
        self._treeCountMax = treeCountMax
        self._spouts: defaultdict[int, AckTrees] = defaultdict(AckTrees)

    def take(self, kind: int, task: int, data: bytes | memoryview) -> None:
        """
        Take in an entry of the kind L{ROOTS}, L{ACKS} or L{FAILS}.

        @param task: the spout's.
        @raise WireError: it is of another kind, or its data are not whole numbers, or pairs.
        """
        trees = self._spouts[task]
        if kind == ACKS:
            self._tell(ACKED, task, trees.acknowledge(decodeNumbers(data, 2)), "acked")
        elif kind == ROOTS:
            numbers = decodeNumbers(data, 2)
            if len(trees) + len(numbers) // 2 > self._treeCountMax:
                self._tell(FAILED, task, numbers[::2], "failed")
            else:
                trees.announce(numbers)
        elif kind == FAILS:
            self._tell(FAILED, task, trees.fail(decodeNumbers(data)), "failed")
        else:
            raise WireError(f"an entry of kind {kind} for an acker")

    def _tell(self, kind: int, task: int, roots: Sequence[int], name: str) -> None:
        if roots:
            self.counts[name] += len(roots)
            self._deliver(task, encodeEntry(kind, task, len(roots), encodeNumbers(roots)))

    def rotate(self) -> None:
        """A part of the time-out has passed: one of C{acktrees.BUCKET_COUNT}."""
        for task, trees in self._spouts.items():
            self._tell(FAILED, task, trees.rotate(), "timed out")

    def forget(self, task: int) -> None:
        """The spout's process is another one, which knows no tree of the former one."""
        self._spouts.pop(task, None)

    @property
    def treeCount(self) -> int:
        """Trees that have not come to their end."""
        return sum(map(len, self._spouts.values()))
