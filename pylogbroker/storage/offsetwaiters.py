"""
The purgatory of a partition: one-shot callbacks that wait for a mark to reach an offset. A module
of its own, since acknowledgements and long polls wait here, too.

At most one callback waits per connection, and a moving mark mostly reaches all, so C{advance} looks
at all. It removes a due callback before calling it: the callback may wait again, or cancel another.
"""

from __future__ import annotations

from collections.abc import Callable

from pylogbroker.errors import StorageError

OffsetCallback = Callable[[StorageError | None], None]
"""
Called once: with L{None} when the mark is reached, with the failure when it never will be. It must
not raise.
"""


class OffsetWaiters:
    """
    The callbacks that wait for one mark of one partition.

    @ivar waiting: the same dictionary for life, so that a hot path can test it without a call.
    """

    __slots__ = ("_nextKey", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[int, OffsetCallback]] = {}
        self._nextKey = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def wait(self, offset: int, callback: OffsetCallback) -> Callable[[], None]:
        """
        Wait for an offset. Returns what cancels the call, without effect once C{callback} was
        called.
        """
        key = self._nextKey
        self._nextKey += 1
        self.waiting[key] = (offset, callback)

        def cancel() -> None:
            self.waiting.pop(key, None)

        return cancel

    def advance(self, mark: int) -> None:
        if not self.waiting:
            return
        for key in [key for key, (offset, _) in self.waiting.items() if offset <= mark]:
            found = self.waiting.pop(key, None)
            if found is not None:
                found[1](None)

    def fail(self, failure: StorageError) -> None:
        while self.waiting:
            _, callback = self.waiting.pop(next(iter(self.waiting)))
            callback(failure)
