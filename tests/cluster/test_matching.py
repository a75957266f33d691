"""Tests for L{pylogbroker.cluster.matching}."""

from __future__ import annotations

import re
from re import _parser as parser  # type: ignore[attr-defined]

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster import matching
from pylogbroker.cluster.matching import NAME_LENGTH_MAX, WAY_COUNT_MAX, matcher
from pylogbroker.errors import InvalidPatternError

CHARACTERS = st.sampled_from(
    [*"ab-_.1\n", "ä", "[ab]", "[^a]", r"\d", r"\w", r"\W", r"\S", r"\s", r"\D", "[a-b_]", r"[\d-]", r"[^\w]", ".", "^", "$", r"\b", r"\A", r"\Z"]
)
REGULAR = st.recursive(
    CHARACTERS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,3}", "{0,2}?", "{2,}"])).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)
NAMES = st.text(st.sampled_from([*"ab-_.1\nä"]), max_size=8)


def slow(text: str) -> bool:
    """Whether L{re} would be used no more for a pattern that ends like this."""
    return matching.wayCount(parser.parse(text, re.ASCII)) > matching.WAY_COUNT_MAX


class MatcherTests(SynchronousTestCase):
    """Whether names match."""

    @settings(max_examples=1_000, deadline=None)
    @given(REGULAR, st.lists(NAMES, max_size=5))
    def test_asRe(self, pattern: str, names: list[str]) -> None:
        """What is walked gives what C{re} gives."""
        compiled = re.compile(pattern, re.ASCII)
        self.patch(matching, "WAY_COUNT_MAX", 0)
        try:
            walk = matcher(compiled)
        finally:
            self.patch(matching, "WAY_COUNT_MAX", WAY_COUNT_MAX)
        for name in names:
            self.assertEqual(walk(name), compiled.fullmatch(name) is not None, (pattern, name))

    def test_catastrophes(self) -> None:
        """Patterns that take C{re} longer than anybody lives are answered, and rightly."""
        for pattern, good in (
            ("(a+)+b", "a" * 900 + "b"),
            ("(a|a)*b", "a" * 900 + "b"),
            ("(a|aa)+[b]", "a" * 900 + "b"),
            ("a?" * 300 + "a" * 300, "a" * 450),
            ("(.*)(.*)(.*)(.*)(.*)x", "a" * 900 + "x"),
            ("((a{1,9}){1,9}){1,9}b", "a" * 90 + "b"),
            ("(a*?)*?b", "a" * 900 + "b"),
            (r"(\w+\s?)*!", "a" * 900 + "!"),
        ):
            self.assertTrue(slow(pattern), pattern)
            matches = matcher(re.compile(pattern, re.ASCII))
            self.assertTrue(matches(good), pattern)
            self.assertFalse(matches(good + "?"), pattern)

    def test_usual(self) -> None:
        """What people write is left to C{re}, also what cannot be walked."""
        for pattern, good, bad in (
            (".*", "a", "a\n"),
            ("a|b|c", "b", "d"),
            (r"log\..*-(eu|us)-.*", "log.a-eu-1", "log.a-as-1"),
            ("(?!__).*", "a", "__a"),
            ("(?i)LOG.*", "log", "lag"),
            (r"(a|b)\1", "aa", "ab"),
            ("(?>a+)b", "aab", "aaa"),
            ("a++b", "aab", "aaa"),
            ("(?s:a.)(?<=[^x])", "a\n", "a"),
            ("(a)?(?(1)b|c)", "ab", "ac"),
            ("(a)?(?(1)b)", "ab", "a"),
        ):
            self.assertFalse(slow(pattern), pattern)
            matches = matcher(re.compile(pattern, re.ASCII))
            self.assertEqual((matches(good), matches(bad)), (True, False), pattern)

    def test_refused(self) -> None:
        """What has many ways and can only be tried is refused, and so is what would be too long."""
        for pattern in (
            "(?!x)(a+)+b", "(?i)(a+)+b", r"(a+)+\1", "((?:a+)++)+b", "(?>(a+)+)b", "(?s)(a+)+b", "(?i:a+)(b+)+c", "(x)?(?(1)(a+)+|b)",
            "(((a{0,99}){0,99}){0,99})b", "(((" + "a" * 700 + "+)+)*){3}",
        ):  # fmt: skip
            error = self.assertRaises(InvalidPatternError, matcher, re.compile(pattern, re.ASCII))
            self.assertIn("could take for ever", str(error))

    def test_longNames(self) -> None:
        """A name that no broker takes matches nothing."""
        for pattern in (".*", "(.*)(.*)(.*)"):
            matches = matcher(re.compile(pattern, re.ASCII))
            self.assertEqual((matches("x" * NAME_LENGTH_MAX), matches("x" * (NAME_LENGTH_MAX + 1))), (True, False))
