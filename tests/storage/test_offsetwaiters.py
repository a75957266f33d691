"""
Tests of one-shot notices.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import StorageError
from pylogbroker.storage.partitionlog import OffsetCallback, OffsetWaiters


class NoticesTests(SynchronousTestCase):
    """Who waits is told once, or not at all."""

    def setUp(self) -> None:
        self.notices = OffsetWaiters()
        self.told: list[tuple[str, StorageError | None]] = []

    def teller(self, name: str) -> OffsetCallback:
        return lambda failure: self.told.append((name, failure))

    def test_toldOnce(self) -> None:
        """A notice comes when the mark reaches the offset, not before, and once."""
        self.notices.wait(10, self.teller("a"))
        self.notices.advance(9)
        self.assertEqual(self.told, [])
        self.notices.advance(10)
        self.notices.advance(11)
        self.assertEqual(self.told, [("a", None)])
        self.assertEqual(len(self.notices), 0)

    def test_allThatAreDue(self) -> None:
        """All that are due are told in the order in which they asked; the others wait on."""
        for name, offset in (("a", 5), ("b", 20), ("c", 4)):
            self.notices.wait(offset, self.teller(name))
        self.notices.advance(10)
        self.assertEqual(self.told, [("a", None), ("c", None)])
        self.assertEqual(len(self.notices), 1)

    def test_cancelled(self) -> None:
        """
        Who has cancelled is not told, and holds no memory; to cancel late, or twice, does nothing.
        """
        cancel = self.notices.wait(1, self.teller("a"))
        late = self.notices.wait(1, self.teller("b"))
        cancel()
        cancel()
        self.assertEqual(len(self.notices), 1)
        self.notices.advance(1)
        late()
        self.assertEqual(self.told, [("b", None)])

    def test_cancelledByAnother(self) -> None:
        """A callback can cancel one that is due in the same move."""
        cancels: list[Callable[[], object]] = []
        self.notices.wait(1, lambda failure: cancels[0]())
        cancels.append(self.notices.wait(1, self.teller("b")))
        self.notices.advance(1)
        self.assertEqual(self.told, [])

    def test_askingAgain(self) -> None:
        """A callback can ask for the next offset; it is not told of the same move twice."""

        def askAgain(failure: StorageError | None) -> None:
            self.notices.wait(2, self.teller("next"))

        self.notices.wait(1, askAgain)
        self.notices.advance(1)
        self.assertEqual(self.told, [])
        self.notices.advance(2)
        self.assertEqual(self.told, [("next", None)])

    def test_failure(self) -> None:
        """All are told of a failure."""
        failure = StorageError("/p", "fsync", "no")
        self.notices.wait(1, self.teller("a"))
        self.notices.wait(2, self.teller("b"))
        self.notices.fail(failure)
        self.assertEqual(self.told, [("a", failure), ("b", failure)])
        self.notices.advance(5)
        self.assertEqual(len(self.told), 2)
