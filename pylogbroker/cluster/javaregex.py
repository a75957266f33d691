r"""
What Java and Python read alike in a pattern (C{java.util.regex.Pattern}; C{re}, with C{re.ASCII}).

Members of a group must come to the same topics, and 0.7's ask Java. So only that is let through which is known to mean the same to both: what one of them
reads otherwise, or refuses and the other takes without a word, is named. What is let through Python may still refuse, or both; it says so itself.
Rejected: to translate from the one to the other. Nobody needs a group's filter so badly, and what is refused by name can be written otherwise.

Tried against Java 17 with hundreds of thousands of patterns made at random. Known to differ still: C{((^|a)){2}}, a group that is to be repeated a number of
times, and can be nothing at first only. Java does not come back to the first time; no rule for it is short enough to be worth it. And to Java before 19
C{\b} takes letters beyond ASCII for parts of words.
"""

from __future__ import annotations

import re

WIDE_COUNT_MAX = 100
"""Ranges and characters beyond Latin-1 in classes: for each class that has some, Python lays out a table, which takes it milliseconds."""

_CHARACTER = r"[afnrtdDwWsS] | [^A-Za-z0-9] | x[0-9A-Fa-f]{2} | u(?![dD][89A-Fa-f])[0-9A-Fa-f]{4}"
_OUTSIDE = re.compile(
    rf"""
    \\ (?: {_CHARACTER} | [AZzbB] | [1-9][0-9]?(?![0-9]) )
    | \( (?: (?!\?) | \? (?: [:=!>] | <[=!] | [ims]+(?:-[ims]+)?[:)] | -[ims]+: ) )
    | \{{ [0-9]{{1,9}} (?: ,[0-9]{{0,9}} )? \}}
    | \[\^?\]?
    | [^\\(\[{{]
    """,
    re.VERBOSE | re.DOTALL,
)
_INSIDE = re.compile(
    rf"\\ (?: {_CHARACTER} ) | ([&|~-])(?!\1) | [^\\\[&|~-]", re.VERBOSE | re.DOTALL
)
_GROUP = re.compile(r"\(\?[^:)]{0,3}")
_REFERENCE = re.compile(r"\\[1-9]")
_QUANTIFIER = re.compile(r"(?:[*+?]|\{[0-9,]+\})(\+)?")
_REPEAT = re.compile(r"\{[^}]{0,20}\}?")


def incompatibility(pattern: str) -> str | None:
    """
    What in a pattern does not mean the same to Java and Python, for people.

    @return: L{None}: nothing; but it may be no pattern to either.
    """
    position = wideCount = 0
    isInside = False
    groups: list[str] = []  # that are open, as they begin
    while position < len(pattern):
        found = (_INSIDE if isInside else _OUTSIDE).match(pattern, position)
        if found is None:
            return _named(pattern, position, isInside)
        token, position = found[0], found.end()
        if isInside:
            isInside = token != "]"
            wideCount += token[-1] > "\xff" or token.startswith("\\u")
            if wideCount > WIDE_COUNT_MAX:
                return f"more than {WIDE_COUNT_MAX} characters beyond Latin-1 in classes, which takes Python too long"
            continue
        isInside = token.startswith("[")
        reason = _nestedOtherwise(groups, token, _QUANTIFIER.match(pattern, position))
        if reason is not None:
            return reason
    return None


def _nestedOtherwise(groups: list[str], token: str, quantifier: re.Match[str] | None) -> str | None:
    """
    What depends on the groups around a token, and on what is behind it.

    @param groups: is brought up to date.
    """
    repeated = quantifier if token == ")" else None
    if repeated is not None and repeated[1]:
        return f"a group that is repeated and does not give back ({repeated[0]}), which Python does not always get right"
    if (repeated is not None or _REFERENCE.match(token)) and any(
        each.startswith("(?<") for each in groups
    ):
        return "a reference to a group, or a group that is repeated, in a look-behind, which Java refuses"
    if token == ")":
        del groups[-1:]
    elif token.startswith("(") and not token.endswith(")"):
        groups.append(token)
    return None


def _named(pattern: str, position: int, isInside: bool) -> str:
    """What is there."""
    where = " in a character class" if isInside else ""
    if pattern.startswith("&&", position):
        return f"an intersection (&&){where}, which Python reads otherwise"
    if pattern[position] in "|~-":
        return f"{pattern[position] * 2}{where}, which a later Python is going to read otherwise"
    if pattern[position] == "[":
        return "a character class inside another, which Python reads otherwise"
    if pattern[position] == "{":
        return _namedRepeat(_shown(_REPEAT, pattern, position))
    if pattern[position] == "(":
        return f"a group that begins with {_shown(_GROUP, pattern, position)}, which Java and Python do not both know"
    return f"the escape {pattern[position : position + 2]}{where}, which Java and Python do not read alike"


def _namedRepeat(text: str) -> str:
    if "|" in text:
        return f"{text}, which Java refuses: in a list of topics a comma means 'or', so {text.replace('|', ',')} cannot be written"
    return f"{text}, which is no number of repeats to Java; a brace that is meant is written \\{{"


def _shown(form: re.Pattern[str], pattern: str, position: int) -> str:
    found = form.match(pattern, position)
    return found[0] if found is not None else pattern[position]
