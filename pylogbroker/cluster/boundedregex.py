"""
Whether a name matches a pattern, in bounded time, whoever wrote the pattern.

Every member of a group applies the patterns of all others, so that one of them, C{(a+)+b} say, could keep all of them busy for ever: Python's matcher tries one
way after the other, and of these there may be exponentially many; and one way may be long, C{(){1000000000}}. So the steps of all ways are counted
beforehand, with an upper bound that is quick to have. Patterns with few steps, nearly all that people write, are left to L{re}. The others are matched by
walking all ways at once, character by character (Thompson's construction), which takes the length of the name times that of the pattern, and which can do
all but what is not regular: looking ahead and behind, references to groups, groups that do not give back, letters of either case. What takes many steps and
has one of these is refused, and so is what would be too long when its repeats are written out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from re import _constants as sre  # type: ignore[attr-defined] # how re takes a pattern apart is its own affair; tests would tell if it changed
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from pylogbroker.errors import InvalidPatternError

NAME_LENGTH_MAX = 1_000
"""Characters; a longer name matches nothing. (Brokers take topics of 255.)"""

STEP_COUNT_MAX = 100_000_000
"""For L{re}, a fraction of a second: two C{.*} in a row are allowed, and some choices and letters besides; three are not."""

WAY_LENGTH_MAX = 300_000
"""Steps of one way, for L{re}, which remembers them all: some dozens of bytes each."""

PROGRAM_LENGTH_MAX = 2_000
"""Instructions."""

PART_COUNT_MAX = 10 * PROGRAM_LENGTH_MAX
"""Parts that are looked at to make them: those that take no character need none."""

_DOUBLINGS = STEP_COUNT_MAX.bit_length()
_DIGITS = frozenset("0123456789")
_SPACES = frozenset(" \t\n\r\f\v")
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") | _DIGITS
_CATEGORIES = {
    sre.CATEGORY_DIGIT: (_DIGITS, True), sre.CATEGORY_NOT_DIGIT: (_DIGITS, False), sre.CATEGORY_SPACE: (_SPACES, True),
    sre.CATEGORY_NOT_SPACE: (_SPACES, False), sre.CATEGORY_WORD: (_WORD, True), sre.CATEGORY_NOT_WORD: (_WORD, False),
}  # fmt: skip
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT)

_Test = Callable[[str], bool]


def boundedMatcher(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    """
    @param pattern: compiled with C{re.ASCII}.
    @return: says whether a whole name matches.
    @raise InvalidPatternError: that could take for ever.
    """
    try:
        parsed = parser.parse(pattern.pattern, re.ASCII)
        if matchCost(parsed).isSmall:
            return lambda name: len(name) <= NAME_LENGTH_MAX and pattern.fullmatch(name) is not None
        program = _Program(parsed.state.flags)
        program.add(parsed)
    except (_NotRegularError, RecursionError) as error:
        raise InvalidPatternError(
            f"the pattern {pattern.pattern!r} could take for ever to match: {error}"
        ) from error
    return lambda name: len(name) <= NAME_LENGTH_MAX and program.matches(name)


class MatchCost(NamedTuple):
    """
    What parts of a pattern may cost L{re}, from one place in the name; all are upper bounds.

    @ivar ways: in how many they can match, each to be tried on with what is behind them.
    @ivar steps: all that is done to find them.
    @ivar length: steps of the longest.
    """

    ways: int
    steps: int
    length: int

    @property
    def isSmall(self) -> bool:
        """Whether L{re} can be left to it, if this is all of the pattern."""
        return self.ways + self.steps <= STEP_COUNT_MAX and self.length <= WAY_LENGTH_MAX


def matchCost(items: Iterable[Any]) -> MatchCost:
    """
    @param items: parts in a row, as L{re} took them apart: each is tried once for each way in which those before it match.
    """
    ways, steps, length = 1, 0, 0
    for kind, argument in items:
        part = _effortOf(kind, argument)
        steps = min(steps + ways * part.steps, STEP_COUNT_MAX + 1)
        ways = min(ways * part.ways, STEP_COUNT_MAX + 1)
        length += part.length
    return MatchCost(ways, steps, length)


def _effortOf(kind: Any, argument: Any) -> MatchCost:
    """Of one part."""
    if kind in _REPEATS or kind is sre.POSSESSIVE_REPEAT:
        return _effortOfRepeat(*argument)
    if kind is sre.GROUPREF:
        return MatchCost(1, NAME_LENGTH_MAX, 1)
    if kind is sre.IN:
        return MatchCost(1, len(argument), 1)
    inner = [matchCost(each) for each in _choices(kind, argument)] or [MatchCost(1, 0, 0)]
    if kind in (
        sre.ASSERT,
        sre.ASSERT_NOT,
        sre.ATOMIC_GROUP,
    ):  # all ways are tried at the most, but re does not come back for another one
        return MatchCost(
            1,
            1 + sum(each.ways + each.steps for each in inner),
            1 + max(each.length for each in inner),
        )
    return MatchCost(
        sum(each.ways for each in inner),
        1 + sum(each.steps for each in inner),
        1 + max(each.length for each in inner),
    )


def _choices(kind: Any, argument: Any) -> list[Any]:
    """What is inside one part, each time as parts in a row."""
    if kind is sre.BRANCH:
        return list(argument[1])
    if kind is sre.SUBPATTERN:
        return [argument[-1]]
    if kind is sre.ATOMIC_GROUP:
        return [argument]
    if kind in (sre.ASSERT, sre.ASSERT_NOT):
        return [argument[1]]
    if kind is sre.GROUPREF_EXISTS:
        return [argument[1], argument[2] or ()]
    return []


def _effortOfRepeat(low: int, high: int, body: Any) -> MatchCost:
    """Beyond the lowest number each time takes a character, but for a last one, since L{re} stops at the first that takes none."""
    inner = matchCost(body)
    more = min(high - low, NAME_LENGTH_MAX + 1)
    times = low + more
    ways: int = inner.ways ** min(times, _DOUBLINGS)
    return MatchCost(
        (more + 1) * ways, (times + 1) * ways * (inner.steps + 1), (times + 1) * (inner.length + 1)
    )


class _NotRegularError(Exception):
    """A pattern that cannot be walked; the text says why."""


END: tuple[str, Any] = ("character", None)


class _Program:
    """
    A pattern as instructions: a test of a character, a test of a position, or a choice of where to go on. The end is behind the last.
    """

    def __init__(self, flags: int) -> None:
        """
        @param flags: of the whole pattern.
        """
        if flags & (re.IGNORECASE | re.MULTILINE | re.DOTALL | re.LOCALE):
            raise _NotRegularError("it has flags besides")
        self._steps: list[tuple[str, Any]] = []
        self._partCount = 0

    def add(self, items: Collection[Any]) -> None:
        """
        @raise _NotRegularError: it has something that is not regular, or is too long.
        """
        self._partCount += 1 + len(items)
        if self._partCount > PART_COUNT_MAX:
            raise _NotRegularError(
                f"it takes many steps, and has more than {PART_COUNT_MAX} parts when its repeats are written out"
            )
        for kind, argument in items:
            if kind is sre.BRANCH:
                self._addBranches(argument[1])
            elif kind is sre.SUBPATTERN and not argument[1] and not argument[2]:
                self.add(argument[3])
            elif kind in _REPEATS:
                self._addRepeat(*argument)
            elif kind is sre.AT:
                self._append("at", argument)
            else:
                self._append("character", _test(kind, argument))

    def _append(self, kind: str, argument: Any) -> int:
        if len(self._steps) >= PROGRAM_LENGTH_MAX:
            raise _NotRegularError(
                f"it takes many steps, and is longer than {PROGRAM_LENGTH_MAX} of them when it is written out"
            )
        self._steps.append((kind, argument))
        return len(self._steps) - 1

    def _addBranches(self, branches: list[Any]) -> None:
        targets: list[int] = []
        ends = []
        self._append("choice", targets)
        for branch in branches:
            targets.append(len(self._steps))
            self.add(branch)
            ends.append(self._append("choice", []))
        for end in ends:
            self._steps[end][1].append(len(self._steps))

    def _addRepeat(self, low: int, high: int, body: Any) -> None:
        for _time in range(low):
            self.add(body)
        if high == sre.MAXREPEAT:
            targets = [len(self._steps) + 1]
            start = self._append("choice", targets)
            self.add(body)
            self._append("choice", [start])
            targets.append(len(self._steps))
            return
        choices = []
        for _time in range(low, high):
            choices.append(self._append("choice", [len(self._steps) + 1]))
            self.add(body)
        for choice in choices:
            self._steps[choice][1].append(len(self._steps))

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        steps, end = self._steps, len(self._steps)
        places = self._reached([0], name, 0)
        for position, character in enumerate(name):
            onward = [place + 1 for place in places if place < end and steps[place][1](character)]
            places = self._reached(onward, name, position + 1)
        return end in places

    def _reached(self, starts: list[int], name: str, position: int) -> list[int]:
        """Where one can be without taking a character: before the tests of characters, or at the end."""
        seen = set(starts)
        waiting, found = list(starts), []
        while waiting:
            place = waiting.pop()
            kind, argument = self._steps[place] if place < len(self._steps) else END
            if kind == "character":
                found.append(place)
                continue
            onward: list[int] = (
                argument
                if kind == "choice"
                else [place + 1]
                if _isAt(argument, name, position)
                else []
            )
            for each in onward:
                if each not in seen:
                    seen.add(each)
                    waiting.append(each)
        return found


def _test(kind: Any, argument: Any) -> _Test:
    if kind is sre.LITERAL:
        return lambda character: ord(character) == argument
    if kind is sre.NOT_LITERAL:
        return lambda character: ord(character) != argument
    if kind is sre.ANY:
        return lambda character: character != "\n"
    if kind is sre.IN:
        isNegated = argument[0][0] is sre.NEGATE
        tests = [_testIn(*each) for each in argument[isNegated:]]
        return lambda character: any(test(character) for test in tests) != isNegated
    raise _NotRegularError(
        f"it takes many steps, and has a part that can only be tried ({str(kind).lower()})"
    )


def _testIn(kind: Any, argument: Any) -> _Test:
    """A part of a class."""
    if kind is sre.RANGE:
        low, high = argument
        return lambda character: low <= ord(character) <= high
    if kind is sre.CATEGORY:
        characters, isIn = _CATEGORIES[argument]
        return lambda character: (character in characters) == isIn
    return _test(kind, argument)


def _isAt(where: Any, name: str, position: int) -> bool:
    if where in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
        return position == 0
    if where is sre.AT_END_STRING:
        return position == len(name)
    if where is sre.AT_END:
        return name[position:] in ("", "\n")
    isWord = [0 <= each < len(name) and name[each] in _WORD for each in (position - 1, position)]
    return (isWord[0] != isWord[1]) == (where is sre.AT_BOUNDARY)
