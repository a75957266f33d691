"""
Whether a name matches a pattern, in bounded time, whoever wrote the pattern.

Every member of a group applies the patterns of all others, so that one of them, C{(a+)+b} say, could keep all of them busy for ever: Python's matcher tries one
way after the other, and of these there may be exponentially many. So the ways are counted beforehand, with an upper bound that is quick to have. Patterns
with few ways, nearly all that people write, are left to L{re}. The others are matched by walking all ways at once, character by character (Thompson's
construction), which takes the length of the name times that of the pattern, and which can do all but what is not regular: looking ahead
and behind, references to groups, groups that do not give back, letters of either case. What has many ways and one of these is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from re import _constants as sre  # type: ignore[attr-defined] # how re takes a pattern apart is its own affair; tests would tell if it changed
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from pylogbroker.errors import InvalidPatternError

NAME_LENGTH_MAX = 1_000
"""Characters; a longer name matches nothing. (Brokers take topics of 255.)"""

WAY_COUNT_MAX = 10_000_000
"""For L{re}: two C{.*} in a row are allowed, and some choices besides; three are not."""

PROGRAM_LENGTH_MAX = 2_000

_DOUBLINGS = WAY_COUNT_MAX.bit_length()
_DIGITS = frozenset("0123456789")
_SPACES = frozenset(" \t\n\r\f\v")
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") | _DIGITS
_CATEGORIES = {
    sre.CATEGORY_DIGIT: (_DIGITS, True), sre.CATEGORY_NOT_DIGIT: (_DIGITS, False), sre.CATEGORY_SPACE: (_SPACES, True),
    sre.CATEGORY_NOT_SPACE: (_SPACES, False), sre.CATEGORY_WORD: (_WORD, True), sre.CATEGORY_NOT_WORD: (_WORD, False),
}  # fmt: skip
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT)

_Test = Callable[[str], bool]


def matcher(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    """
    @param pattern: compiled with C{re.ASCII}.
    @return: says whether a whole name matches.
    @raise InvalidPatternError: that could take for ever.
    """
    try:
        parsed = parser.parse(pattern.pattern, re.ASCII)
        if wayCount(parsed) <= WAY_COUNT_MAX:
            return lambda name: len(name) <= NAME_LENGTH_MAX and pattern.fullmatch(name) is not None
        program = _Program(parsed.state.flags)
        program.add(parsed)
    except (_NotRegularError, RecursionError) as error:
        raise InvalidPatternError(f"the pattern {pattern.pattern!r} could take for ever to match: {error}") from error
    return lambda name: len(name) <= NAME_LENGTH_MAX and program.matches(name)


def wayCount(items: Iterable[Any]) -> int:
    """
    Of a pattern that was taken apart.

    @return: how many ways L{re} may try at the most, or more than C{WAY_COUNT_MAX}.
    """
    count = 1
    for kind, argument in items:
        count = min(count * _waysOf(kind, argument), WAY_COUNT_MAX + 1)
    return count


def _waysOf(kind: Any, argument: Any) -> int:
    """Of one part."""
    if kind is sre.BRANCH:
        return sum([wayCount(branch) for branch in argument[1]])
    if kind is sre.SUBPATTERN:
        return wayCount(argument[-1])
    if kind in _REPEATS or kind is sre.POSSESSIVE_REPEAT:
        low, high, body = argument
        inner, high = wayCount(body), min(high, NAME_LENGTH_MAX)
        times: int = max(high - low + 1, 1)
        product: int = times * inner ** min(max(low, high), _DOUBLINGS)
        return product
    if kind is sre.ATOMIC_GROUP:
        return wayCount(argument)
    if kind in (sre.ASSERT, sre.ASSERT_NOT):
        return wayCount(argument[1])
    if kind is sre.GROUPREF_EXISTS:
        return wayCount(argument[1]) + wayCount(argument[2] or ())
    return 1


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

    def add(self, items: Iterable[Any]) -> None:
        """
        @raise _NotRegularError: it has something that is not regular, or is too long.
        """
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
            raise _NotRegularError(f"it has many ways, and written out more than {PROGRAM_LENGTH_MAX} parts")
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
            onward: list[int] = argument if kind == "choice" else [place + 1] if _isAt(argument, name, position) else []
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
    raise _NotRegularError(f"it has many ways, and a part that can only be tried ({str(kind).lower()})")


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
