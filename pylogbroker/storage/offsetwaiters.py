"""
One-shot notices: tell me when a mark has come this far.

Those who wait are few (a connection each, at the most), and when a mark moves mostly all of them are due, so a walk over all is the right search.
What is due is taken out before any callback runs: a callback may ask again, or cancel another, without being told twice.
"""

from __future__ import annotations

from collections.abc import Callable

from pylogbroker.errors import StorageError

NoticeCallback = Callable[[StorageError | None], None]
"""Called once: with L{None} when the mark is reached, with the failure when it never will be. It must not raise."""


class OffsetWaiters:
    """
    Who waits for one mark of one partition.

    @ivar waiting: empty when nobody does; the same dictionary for life, so that a hot path can look at it without a call.
    """

    __slots__ = ("_nextKey", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[int, NoticeCallback]] = {}
        self._nextKey = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, offset: int, callback: NoticeCallback) -> Callable[[], None]:
        """
        Wait for an offset.

        @return: what stops the waiting; does nothing once the callback was called.
        """
        key = self._nextKey
        self._nextKey += 1
        self.waiting[key] = (offset, callback)

        def cancel() -> None:
            self.waiting.pop(key, None)

        return cancel

    def moved(self, mark: int) -> None:
        """The mark is here now."""
        if not self.waiting:
            return
        for key in [key for key, (offset, _) in self.waiting.items() if offset <= mark]:
            found = self.waiting.pop(key, None)
            if found is not None:
                found[1](None)

    def fail(self, failure: StorageError) -> None:
        """The mark will not move any more."""
        while self.waiting:
            _, callback = self.waiting.pop(next(iter(self.waiting)))
            callback(failure)
