"""Tests for L{pylogbroker.cluster.boundedregex}."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster import boundedregex
from pylogbroker.cluster.boundedregex import NAME_LENGTH_MAX, STEP_COUNT_MAX, boundedMatcher
from pylogbroker.errors import InvalidPatternError

CHARACTERS = st.sampled_from(
    [
        *"ab-_.1\n",
        "ä",
        "[ab]",
        "[^a]",
        r"\d",
        r"\w",
        r"\W",
        r"\S",
        r"\s",
        r"\D",
        "[a-b_]",
        r"[\d-]",
        r"[^\w]",
        ".",
        "^",
        "$",
        r"\b",
        r"\A",
        r"\Z",
    ]
)
REGULAR = st.recursive(
    CHARACTERS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(
            inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,3}", "{0,2}?", "{2,}"])
        ).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)
REPEATED = st.recursive(
    st.sampled_from(
        [*"ab", ".", "[ab]", "^", "$", r"\b", "", "(?=a)", "(?!b)", "(?<=a)", r"(a)\1"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(st.sampled_from(["(?:", "(?=", "(?!", "(?>"]), inner).map(
            lambda pair: f"{pair[0]}{pair[1]})"
        ),
        st.tuples(
            inner,
            st.sampled_from(
                [
                    "*",
                    "+",
                    "*?",
                    "{2}",
                    "{3,5}",
                    "*+",
                    "{9,}",
                    "{40}",
                    "{1000000000}",
                    "{0,4000000000}",
                ]
            ),
        ).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)
NAMES = st.text(st.sampled_from([*"ab-_.1\nä"]), max_size=8)


def slow(text: str) -> bool:
    """Whether L{re} would be used no more for a pattern that ends like this."""
    return not boundedregex.matchCost(parser.parse(text, re.ASCII)).isSmall


BrokerSender = tuple[int, int]
"""Where it has come to in the name, and after how many steps."""


class Backtracker:
    """
    Goes all ways that C{re} may go, and more: each character fits, each condition holds, and in the end nothing matches.

    @ivar count: of its steps.
    @ivar longest: steps of one way.
    """

    def __init__(self, nameLength: int, stepCountMax: int) -> None:
        self.count = self.longest = 0
        self._nameLength = nameLength
        self._stepCountMax = stepCountMax

    def _step(self, way: BrokerSender, count: int = 1) -> BrokerSender:
        self.count += count
        if self.count > self._stepCountMax:
            raise AssertionError(f"it takes more than {self._stepCountMax} steps")
        self.longest = max(self.longest, way[1] + 1)
        return (way[0], way[1] + 1)

    def ends(self, items: Sequence[Any], way: BrokerSender) -> Iterator[BrokerSender]:
        """Where parts in a row end that begin here."""
        if not items:
            yield way
            return
        for end in self._endsOf(items[0], way):
            yield from self.ends(items[1:], end)

    def _endsOf(self, part: tuple[Any, Any], way: BrokerSender) -> Iterator[BrokerSender]:
        name, argument = str(part[0]), part[1]
        if name.endswith("_REPEAT"):
            yield from self._repeated(argument, 0, way)
            return
        way = self._step(
            way,
            {"GROUPREF": self._nameLength, "IN": len(argument) if name == "IN" else 0}.get(name, 1),
        )
        if name in ("SUBPATTERN", "ATOMIC_GROUP", "BRANCH", "ASSERT", "ASSERT_NOT"):
            for inner in (
                argument[1]
                if name == "BRANCH"
                else [argument]
                if name == "ATOMIC_GROUP"
                else argument[-1:]
            ):
                ends = self.ends(list(inner), way)
                if name in ("SUBPATTERN", "BRANCH"):
                    yield from ends
                elif (
                    found := list(ends)
                ):  # any one of them; the one that leaves most of the name, and has come the longest way, is the worst
                    position = way[0] if name.startswith("ASSERT") else min(end[0] for end in found)
                    yield position, max(end[1] for end in found)
        elif name in ("AT", "GROUPREF"):
            yield way
        elif way[0] < self._nameLength:
            yield (way[0] + 1, way[1])

    def _repeated(
        self, repeat: tuple[int, int, Any], times: int, way: BrokerSender
    ) -> Iterator[BrokerSender]:
        """Beyond the lowest number it ends with the first time that takes no character."""
        low, high, body = repeat
        if times < high:
            for end in self.ends(list(body), self._step(way)):
                if times < low or end[0] > way[0]:
                    yield from self._repeated(repeat, times + 1, end)
                else:
                    yield end
        if times >= low:
            yield way


class MatcherTests(SynchronousTestCase):
    """Whether names match."""

    @settings(max_examples=1_000, deadline=None)
    @given(REGULAR, st.lists(NAMES, max_size=5))
    def test_asRe(self, pattern: str, names: list[str]) -> None:
        """What is walked gives what C{re} gives."""
        compiled = re.compile(pattern, re.ASCII)
        self.patch(boundedregex, "STEP_COUNT_MAX", 0)
        try:
            walk = boundedMatcher(compiled)
        finally:
            self.patch(boundedregex, "STEP_COUNT_MAX", STEP_COUNT_MAX)
        for name in names:
            self.assertEqual(walk(name), compiled.fullmatch(name) is not None, (pattern, name))

    @settings(max_examples=1_000, deadline=None)
    @given(REPEATED)
    def test_stepsAreBounded(self, pattern: str) -> None:
        """However repeats are nested, and of whatever: all that C{re} can do with a name takes no more steps than were counted beforehand."""
        parsed = parser.parse(pattern, re.ASCII)
        self.patch(boundedregex, "NAME_LENGTH_MAX", 5)
        try:
            bound = boundedregex.matchCost(parsed)
        finally:
            self.patch(boundedregex, "NAME_LENGTH_MAX", NAME_LENGTH_MAX)
        if bound.ways + bound.steps <= 3_000:
            for length in (0, 1, 5):
                walk = Backtracker(length, bound.steps)
                self.assertLessEqual(len(list(walk.ends(list(parsed), (0, 0)))), bound.ways)
                self.assertLessEqual(walk.longest, bound.length)

    @settings(max_examples=500, deadline=None)
    @given(REPEATED, NAMES)
    def test_anyRepeat(self, pattern: str, name: str) -> None:
        """Any of them is answered or refused: this test comes to its end."""
        try:
            boundedMatcher(re.compile(pattern, re.ASCII))(name)
        except InvalidPatternError as error:
            self.assertIn("could take for ever", str(error))

    def test_nothingManyTimes(self) -> None:
        """What takes no character is not repeated for ever."""
        for pattern in (
            "(){1000000000}", "(^){1000000000}", "(?:){4000000000}", "(?:a{0}){4000000000}", "(?=a){1000000000}a", "((){65535}){65535}", "(|a){1000000000}",
            "(?=(?:(?:){60000}a|b)*c)", "(a+)+" + "()" * 4_000 + "(){20000}", ".*.*" + "(){900}" * 100, ".*.*" + "(?=a*)" * 900,
        ):  # fmt: skip
            error = self.assertRaises(
                InvalidPatternError, boundedMatcher, re.compile(pattern, re.ASCII)
            )
            self.assertIn("could take for ever", str(error))
        for pattern in (
            "(){1000}a",
            "(?:(?=a)){2}a",
            "(^){9}a",
            "(?:){1000}a",
            "(|a){20}",
            "((){9}a|b)*",
        ):
            matches = boundedMatcher(re.compile(pattern, re.ASCII))
            self.assertEqual((matches("a"), matches("c")), (True, False), pattern)

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
            matches = boundedMatcher(re.compile(pattern, re.ASCII))
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
            matches = boundedMatcher(re.compile(pattern, re.ASCII))
            self.assertEqual((matches(good), matches(bad)), (True, False), pattern)

    def test_refused(self) -> None:
        """What has many ways and can only be tried is refused, and so is what would be too long."""
        for pattern in (
            "(?!x)(a+)+b", "(?i)(a+)+b", r"(a+)+\1", "((?:a+)++)+b", "(?>(a+)+)b", "(?s)(a+)+b", "(?i:a+)(b+)+c", "(x)?(?(1)(a+)+|b)",
            "(((a{0,99}){0,99}){0,99})b", "(((" + "a" * 700 + "+)+)*){3}",
        ):  # fmt: skip
            error = self.assertRaises(
                InvalidPatternError, boundedMatcher, re.compile(pattern, re.ASCII)
            )
            self.assertIn("could take for ever", str(error))

    def test_longNames(self) -> None:
        """A name that no broker takes matches nothing."""
        for pattern in (".*", "(.*)(.*)(.*)"):
            matches = boundedMatcher(re.compile(pattern, re.ASCII))
            self.assertEqual(
                (matches("x" * NAME_LENGTH_MAX), matches("x" * (NAME_LENGTH_MAX + 1))),
                (True, False),
            )
