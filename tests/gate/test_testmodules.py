"""
Tests for L{tests.long.testmodules}, which is run by hand.
"""

from __future__ import annotations

from collections import Counter

from twisted.trial.unittest import SynchronousTestCase

from tests.long.testmodules import Comparison, Content, follow, read

SOURCE = """
class SomeTests(Case):
    def test_a(self):
        self.assertEqual(1, 1)
        with self.assertRaises(ValueError):
            self.fail("no")
    async def test_b(self):
        self.check()
    def check(self):
        assert True
"""


def content(assertCount: int, *tests: str) -> Content:
    return Content(Counter(tests), assertCount)


class TestModulesTests(SynchronousTestCase):
    """Where tests are now, and which are lost."""

    def compare(self, old: dict[str, Content], new: dict[str, Content], notes: str) -> Comparison:
        return Comparison(old, new, [("tests.a", "tests.b")], notes)

    def test_read(self) -> None:
        """Tests are methods that begin so; what asserts is what is called so."""
        self.assertEqual(read(SOURCE), content(3, "SomeTests.test_a", "SomeTests.test_b"))

    def test_follow(self) -> None:
        """A file that was renamed twice is where it was last."""
        renamed = [("tests.a", "tests.b"), ("tests.x", "tests.y"), ("tests.b", "tests.c")]
        self.assertEqual(
            follow(["tests.a", "tests.z"], renamed), {"tests.a": "tests.c", "tests.z": "tests.z"}
        )

    def test_merged(self) -> None:
        """
        Modules that became one are one group: by git's renames, by a note, and by a test that bears
        the same name.
        """
        old = {
            "tests.a": content(1, "A.test_a"),
            "tests.m": content(2, "M.test_m"),
            "tests.n": content(3, "N.test_n"),
        }
        new = {"tests.b": content(6, "A.test_a", "O.test_other", "N.test_n"), "tests.c": content(9)}
        comparison = self.compare(old, new, "tests.m.M -> tests.b.O (as another)\n")
        groups = [(group.old, group.new) for group in comparison.groups]
        self.assertEqual(
            groups, [((), ("tests.c",)), (("tests.a", "tests.m", "tests.n"), ("tests.b",))]
        )
        self.assertEqual(comparison.losses(), [])
        table = comparison.table("abc")
        self.assertIn("| `tests.a`<br>`tests.m`<br>`tests.n` | `tests.b` | 3 → 3 | 6 → 6 |", table)
        self.assertIn("- tests.m.M -> tests.b.O (as another)", table)

    def test_losses(self) -> None:
        """A test or an assertion less is a loss, which names what is gone and what came."""
        old = {"tests.a": content(5, "A.test_a", "A.test_b"), "tests.m": content(2, "M.test_m")}
        new = {"tests.b": content(4, "B.test_a", "B.test_c"), "tests.m": content(2, "M.test_m")}
        self.assertEqual(
            self.compare(old, new, "").losses(),
            ["tests.a -> tests.b: tests 2 -> 2, asserts 5 -> 4\n    - test_b\n    + test_c"],
        )
        new["tests.b"] = content(5, "B.test_a")
        self.assertEqual(len(self.compare(old, new, "").losses()), 1)
        del new["tests.b"]
        self.assertEqual(
            self.compare(old, new, "").losses()[0].splitlines()[0],
            "tests.a -> nothing: tests 2 -> 0, asserts 5 -> 0",
        )
