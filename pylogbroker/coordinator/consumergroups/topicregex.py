"""
The patterns by which members of KIP-848's groups subscribe: RE2's, as Kafka's, matched in linear
time against whole names. A module of its own, since the texts of errors are those of Kafka's
library.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from pylogbroker.errors import InvalidPatternError

if TYPE_CHECKING:
    import re2

PATTERN_SIZE_MAX = 10_000
"""Characters."""

_TEXTS = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "unexpected )": "regexp/syntax: internal error",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "no argument for repetition operator": "missing argument to repetition operator",
    "trailing \\": "trailing backslash at end of expression",
}
"""Kafka's words for RE2's; others are the same."""


def checkPattern(pattern: str) -> None:
    """@raise InvalidPatternError: it is none; the text is the reason alone."""
    _compiled(pattern)


def matchingTopics(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """
    Those names that a pattern matches from end to end.

    @raise InvalidPatternError: it is none; the text is the reason alone.
    """
    compiled = _compiled(pattern)
    return frozenset(name for name in names if compiled.fullmatch(name) is not None)


@cache
def _options() -> re2.Options:
    import re2

    options = re2.Options()
    options.log_errors = False
    return options


def _compiled(pattern: str) -> re2._Regexp:
    """RE2 is imported with the first pattern: most brokers have none, and it takes 2 MiB."""
    import re2

    if len(pattern) > PATTERN_SIZE_MAX:
        raise InvalidPatternError(f"more than {PATTERN_SIZE_MAX} characters")
    try:
        return re2.compile(pattern, _options())
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        what, _, where = text.partition(": ")
        if where.startswith("(?<"):
            what = "invalid named capture group"
        raise InvalidPatternError(_TEXTS.get(what, what)) from error
