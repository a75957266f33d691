"""
What somebody else has written into ZooKeeper and nobody can use is named in the log: once, as long as it stays as it is.

Nodes are read again and again, with every watch that fires and for every topic that is looked up. A line for each reading would say nothing new, and
hide what is new. One for each sentence and a length of time (L{pylogbroker.net.ratelimitedlog}) would leave out the second node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pylogbroker.errors import PylogbrokerError

COMPLAINT_COUNT_MAX = 1_000
"""Of one reader, at a time; who has so many entries that cannot be used need not be told of one more."""


class ZnodeWarnings:
    """
    Of one who reads.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def complain(self, path: str, error: PylogbrokerError, say: Callable[[], object]) -> None:
        """
        A node cannot be used.

        @param error: its text is what tells one state of the node from another.
        @param say: called if that has not been said.
        """
        text = str(error)
        if self._texts.get(path) != text and (
            path in self._texts or len(self._texts) < COMPLAINT_COUNT_MAX
        ):
            self._texts[path] = text
            say()

    def fine(self, path: str) -> None:
        """A node can be used, or is gone."""
        self._texts.pop(path, None)

    def children(self, path: str, names: Iterable[str]) -> None:
        """These are the children of a node now: what was said of others, and of what was below them, is over."""
        if not self._texts:
            return
        prefix, left = f"{path}/", set(names)
        for each in [
            each
            for each in self._texts
            if each.startswith(prefix) and each[len(prefix) :].partition("/")[0] not in left
        ]:
            del self._texts[each]
