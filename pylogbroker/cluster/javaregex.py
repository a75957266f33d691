r"""
Topic filters with the meaning of C{java.util.regex.Pattern}, matched in linear time.

Every member of a group applies the patterns of all others, and must find the same topics as 0.7's
members, which ask Java. No pattern may keep a member busy for ever, C{(a+)+b} say. So RE2 matches
the patterns, and we accept only those with the same meaning to Java and RE2. A refusal names the
part that differs.

RE2 has no lookahead, lookbehind, back references, possessive quantifiers or atomic groups. Three
spellings are translated: C{\uHHHH}, C{\Z} and an escaped character beyond ASCII. RE2 ignores the
case of all letters and Java only that of ASCII, so C{(?i)} is limited to ASCII patterns.

In 60,000 random patterns, two differences to Java 17 are known. Before Java 19, C{\b} counts
letters beyond ASCII as parts of words. And Java does not match C{((^|a)){2}} with an empty first
repetition.

Rejected: Python's C{re}, which backtracks. An upper bound of its steps needs its private parser.
"""

from __future__ import annotations

import re

import re2

from pylogbroker.errors import InvalidPatternError

PATTERN_SIZE_MAX = 10_000
"""Characters."""

NAME_LENGTH_MAX = 1_000
"""Characters of a topic's name; a longer name matches nothing. (Brokers take topics of 255.)"""

REPEAT_COUNT_MAX = 1_000
"""Of C{{n}}; RE2 reads a larger number as text."""

_CHARACTER = r"[afnrtdDwWsS] | [^A-Za-z0-9] | x[0-9A-Fa-f]{2} | u(?![dD][89A-Fa-f])[0-9A-Fa-f]{4}"
_OUTSIDE = re.compile(
    rf"""
    \\ (?: {_CHARACTER} | [AZbB] )
    | \( (?: (?!\?) | \? (?: : | [ims]+(?:-[ims]+)?[:)] | -[ims]+: ) )
    | \{{ [0-9]{{1,9}} (?: ,[0-9]{{0,9}} )? \}}
    | \[\^?\]?
    | [^\\(\[{{]
    """,
    re.VERBOSE | re.DOTALL,
)
_INSIDE = re.compile(
    rf"\\ (?: {_CHARACTER} ) | ([&|~-])(?!\1) | [^\\\[&|~-]", re.VERBOSE | re.DOTALL
)
_FLAGS = re.compile(r"\(\?[ims-]*i[ims-]*[:)]")
_QUANTIFIER = re.compile(r"(?:[*+?]|\{[0-9,]+\})\+")
_REPEAT = re.compile(r"\{[^}]{0,20}\}?")
_GROUP = re.compile(r"\(\?[^:)]{0,3}")
_GROUPS = {
    "(?=": "looks ahead",
    "(?!": "looks ahead",
    "(?<=": "looks behind",
    "(?<!": "looks behind",
    "(?>": "does not give back (an atomic group)",
}
_FOLDED = str.maketrans("\u017f\u212a", "\u2603\u2603")
"""
Letters beyond ASCII whose other case is s and k, to RE2; any other character without case stands in
for them.
"""

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


class JavaRegex:
    """
    A pattern.

    @ivar pattern: as it was given.
    @ivar groupCount: pairs of parentheses that capture.
    """

    def __init__(self, pattern: str) -> None:
        """
        @raise InvalidPatternError: it is no pattern, or Java and RE2 would read it differently; the
            text names the part.
        """
        if len(pattern) > PATTERN_SIZE_MAX:
            raise InvalidPatternError(
                f"the pattern has {len(pattern)} characters; {PATTERN_SIZE_MAX} are allowed"
            )
        self.pattern = pattern
        self._isFolding = _FLAGS.search(pattern) is not None
        if self._isFolding and (not pattern.isascii() or "\\u" in pattern):
            raise InvalidPatternError(
                f"the pattern {pattern!r} ignores case and has characters beyond ASCII, whose "
                "case Java does not ignore"
            )
        try:
            self._compiled = re2.compile(_translated(pattern), _OPTIONS)
        except (re2.error, ValueError, RecursionError) as error:
            reason = error.args[0] if error.args else error
            text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(error)
            raise InvalidPatternError(f"the pattern {pattern!r} cannot be used: {text}") from error
        self.groupCount: int = self._compiled.groups

    def matches(self, text: str) -> bool:
        """Whether it matches the whole text."""
        return self._compiled.fullmatch(self._folded(text)) is not None

    def search(self, text: str, start: int) -> list[tuple[int, int]] | None:
        """
        The first match from a place on.

        @return: where it begins and ends, and likewise of each group; -1 of a group that is not in
            it. L{None}: there is no match.
        """
        found = self._compiled.search(self._folded(text), start)
        if found is None:
            return None
        return [found.span(number) for number in range(self.groupCount + 1)]

    def _folded(self, text: str) -> str:
        return text.translate(_FOLDED) if self._isFolding else text


class TopicPattern:
    """
    A whitelist's or blacklist's pattern.

    @ivar pattern: as it was given.
    """

    def __init__(self, pattern: str) -> None:
        """@raise InvalidPatternError: as L{JavaRegex}."""
        self.pattern = pattern
        self._regex = JavaRegex(pattern)

    def matches(self, name: str) -> bool:
        return len(name) <= NAME_LENGTH_MAX and self._regex.matches(name)


def _translated(pattern: str) -> str:
    position, tokens = 0, []
    isInside = False
    while position < len(pattern):
        found = (_INSIDE if isInside else _OUTSIDE).match(pattern, position)
        if found is None:
            raise ValueError(_difference(pattern, position, isInside))
        token = found[0]
        if isInside:
            isInside = token != "]"
        else:
            isInside = token.startswith("[")
            _check(pattern, position, token)
        tokens.append(_translatedToken(token))
        position = found.end()
    return "".join(tokens)


def _translatedToken(token: str) -> str:
    if token == "\\Z":
        return "\\z"
    if token.startswith("\\u"):
        return f"\\x{{{token[2:]}}}"
    return token[1:] if token.startswith("\\") and not token.isascii() else token


def _check(pattern: str, position: int, token: str) -> None:
    if token.startswith("{") and any(
        int(number or 0) > REPEAT_COUNT_MAX for number in token[1:-1].split(",")
    ):
        raise ValueError(f"{token} repeats more than {REPEAT_COUNT_MAX} times")
    if position and token.startswith("(?") and token.endswith(")"):
        raise ValueError(f"the flags {token} are not at its beginning")
    if possessive := _QUANTIFIER.match(pattern, position):
        raise ValueError(
            f"the quantifier {possessive[0]} does not give back, which takes unbounded time"
        )


def _difference(pattern: str, position: int, isInside: bool) -> str:
    where = " in a character class" if isInside else ""
    if pattern.startswith("&&", position):
        return f"it has an intersection (&&){where}, which only Java knows"
    if pattern[position] in "|~-":
        return f"it has {pattern[position] * 2}{where}, which is easily mistaken for set arithmetic"
    if pattern[position] == "[":
        return "it has a character class inside another, which only Java knows"
    if pattern[position] == "{":
        return _repeatDifference(_shown(_REPEAT, pattern, position))
    if pattern[position] == "(":
        for start, meaning in _GROUPS.items():
            if pattern.startswith(start, position):
                return f"it has a group {start}…) that {meaning}, which takes unbounded time"
        return (
            f"it has a group that begins with {_shown(_GROUP, pattern, position)}, which Java "
            "and RE2 do not both know"
        )
    if pattern[position + 1 : position + 2] in set("123456789"):
        return (
            f"it refers back to a group ({pattern[position : position + 2]}), which takes "
            "unbounded time"
        )
    return (
        f"it has the escape {pattern[position : position + 2]}{where}, which Java and RE2 do not "
        "read alike"
    )


def _repeatDifference(text: str) -> str:
    if "|" in text:
        return (
            f"it has {text}, which Java refuses: in a list of topics a comma means 'or', so "
            f"{text.replace('|', ',')} cannot be written"
        )
    return (
        f"it has {text}, which is no number of repeats to Java; a brace that is meant is written "
        "\\{"
    )


def _shown(form: re.Pattern[str], pattern: str, position: int) -> str:
    found = form.match(pattern, position)
    return found[0] if found is not None else pattern[position]
