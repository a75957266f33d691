"""
Tests of limits for the whole process.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.limits import MemoryBudget, Reservation


class BudgetTests(SynchronousTestCase):
    """Bytes that many share."""

    def setUp(self) -> None:
        self.budget = MemoryBudget(100)
        self.told: list[str] = []

    def ask(self, name: str, size: int) -> Reservation:
        return self.budget.reserve(size, lambda: self.told.append(name))

    def test_grantedAtOnce(self) -> None:
        """What is there is granted at once, to the last byte, and nobody is called back for it."""
        grants = [self.ask("a", 60), self.ask("b", 40), self.ask("c", 0)]
        self.assertEqual([grant.granted for grant in grants], [True, True, True])
        self.assertEqual([grant.size for grant in grants], [60, 40, 0])
        self.assertEqual((self.budget.size, self.budget.waitingCount, self.told), (100, 0, []))

    def test_waits(self) -> None:
        """What is not there is waited for; who waits is told once, when it has been granted."""
        first = self.ask("first", 60)
        second = self.ask("second", 41)
        self.assertEqual(
            (second.granted, self.budget.size, self.budget.waitingCount), (False, 60, 1)
        )
        first.release()
        self.assertEqual(
            (second.granted, self.budget.size, self.budget.waitingCount, self.told),
            (True, 41, 0, ["second"]),
        )
        second.release()
        self.assertEqual((self.budget.size, self.told), (0, ["second"]))

    def test_neverToBeHad(self) -> None:
        """More than the whole budget can never be had; all of it can."""
        self.assertRaises(ValueError, self.ask, "x", 101)
        self.assertTrue(self.ask("x", 100).granted)

    def test_inOrder(self) -> None:
        """
        Askers are served in the order in which they asked: a large request is not starved by small
        ones that would fit.
        """
        held = self.ask("held", 50)
        large = self.ask("large", 80)
        small = [self.ask(f"small {number}", 10) for number in range(3)]
        self.assertEqual([grant.granted for grant in (large, *small)], [False] * 4)
        held.release()
        self.assertEqual([grant.granted for grant in (large, *small)], [True, True, True, False])
        self.assertEqual(self.told, ["large", "small 0", "small 1"])

    def test_goesAway(self) -> None:
        """Who waits can go away, is then not told, and lets those behind it have what fits now."""
        held = self.ask("held", 50)
        large = self.ask("large", 80)
        small = self.ask("small", 10)
        large.release()
        self.assertEqual(
            (large.granted, small.granted, self.told, self.budget.size),
            (False, True, ["small"], 60),
        )
        held.release()
        self.assertEqual((self.told, self.budget.size), (["small"], 10))

    def test_releasedTwice(self) -> None:
        """Giving back twice does nothing the second time, granted or waiting."""
        held = self.ask("held", 100)
        waiting = self.ask("waiting", 10)
        for _ in range(2):
            waiting.release()
        for _ in range(2):
            held.release()
        self.assertEqual((self.budget.size, self.budget.waitingCount, self.told), (0, 0, []))

    def test_releasesWhenTold(self) -> None:
        """Who is told may give back at once, and ask again, without anybody losing its place."""
        held = self.ask("held", 100)
        grants: list[Reservation] = []

        def told() -> None:
            self.told.append("first")
            grants[0].release()
            self.ask("again", 100)

        grants.append(self.budget.reserve(60, told))
        self.ask("second", 60)
        held.release()
        self.assertEqual(self.told, ["first", "second"])
        self.assertEqual((self.budget.size, self.budget.waitingCount), (60, 1))

    @given(st.lists(st.one_of(st.integers(0, 100), st.integers(-20, -1)), max_size=60))
    def test_neverMoreThanThereIs(self, steps: list[int]) -> None:
        """
        Whatever is asked (a size) and given back (minus the number of an asker): what is out is the
        sum of what is granted, never more than there is; the first who waits is one for whom there
        is too little; grants come in the order of asking.
        """
        budget = MemoryBudget(100)
        grants: list[Reservation] = []
        asked: list[Reservation] = []
        told: list[int] = []

        def ask(size: int, number: int) -> Reservation:
            return budget.reserve(size, lambda: told.append(number))

        for step in steps:
            if step >= 0:
                grants.append(ask(step, len(asked)))
                asked.append(grants[-1])
            elif -step <= len(grants):
                grants.pop(step).release()
            out = sum(grant.size for grant in grants if grant.granted)
            waiting = [grant for grant in grants if not grant.granted]
            self.assertEqual((budget.size, budget.waitingCount), (out, len(waiting)))
            self.assertLessEqual(out, 100)
            if waiting:
                self.assertGreater(out + waiting[0].size, 100)
                self.assertFalse(any(grant.granted for grant in grants[grants.index(waiting[0]) :]))
        self.assertEqual(told, sorted(set(told)))
        self.assertTrue(all(asked[number].granted for number in told))
