r"""
L{PrincipalMapper}: the names of clients from the subjects of their certificates, by the rules of
C{ssl.principal.mapping.rules}. A module of its own, since only listeners with TLS need it.

A list has rules with commas between them; the first that applies gives the name. C{DEFAULT} gives
the whole subject. C{RULE:pattern/replacement/} applies where the pattern matches the whole subject;
then every match in it is replaced, as by Java's C{replaceAll}: C{$1} is a group, C{\$} a dollar
sign. C{L} or C{U} at the end makes the name's letters small or large. A slash in a pattern or a
replacement has a backslash before it.

As in Kafka a client to which no rule applies is not served, and C{$9} without a ninth group stands
for itself, if there is a group at all. Unlike in Kafka a rule that could fail only when it is
applied is refused at the start; so is a pattern that takes unbounded time, or means something else
to RE2 (L{pylogbroker.cluster.javaregex}); and a pattern matches no subject with a line break.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pylogbroker.cluster.javaregex import JavaRegex
from pylogbroker.errors import (
    ConfigurationError,
    InvalidPatternError,
    PylogbrokerError,
)

_PART = r"((?:\\.|[^\\/])*)"
_RULE = re.compile(rf"(DEFAULT)|RULE:{_PART}/{_PART}/([LU]?)")
_SEPARATOR = re.compile(r"\s*(?:,\s*|$)")
_TOKEN = re.compile(
    r"\\(?P<literal>.)|\$(?P<digits>[0-9]+)|(?P<wrong>[\\$])|(?P<text>[^\\$]+)", re.DOTALL
)
_LINE_BREAKS = frozenset("\n\r\x85\u2028\u2029")


class NoMatchingRuleError(PylogbrokerError):
    """No rule applies to the subject of a client's certificate; its connection is closed."""


class _Rule:
    """One C{RULE:}."""

    def __init__(self, pattern: str, replacement: str, case: str) -> None:
        """@raise ValueError: the replacement is none."""
        self._regex = JavaRegex(pattern)
        self._case = case
        self._parts = _parsed(replacement, self._regex.groupCount)

    def apply(self, subject: str) -> str | None:
        """The name; L{None}: the rule does not apply."""
        if not _LINE_BREAKS.isdisjoint(subject) or not self._regex.matches(subject):
            return None
        found: list[str] = []
        at = start = 0
        while start <= len(subject) and (spans := self._regex.search(subject, start)):
            begin, end = spans[0]
            found.append(subject[at:begin])
            for part in self._parts:
                found.append(
                    part if isinstance(part, str) else subject[slice(*_inside(spans[part]))]
                )
            at = end
            start = end + (begin == end)
        name = "".join(found) + subject[at:]
        return {"L": name.lower, "U": name.upper}.get(self._case, name.__str__)()


def _inside(span: tuple[int, int]) -> tuple[int, int]:
    """An empty span for a group that is not in a match."""
    return span if span[0] >= 0 else (0, 0)


def _parsed(replacement: str, groupCount: int) -> list[str | int]:
    """Texts, and numbers of groups."""
    parts: list[str | int] = []
    for token in _TOKEN.finditer(replacement):
        digits = token["digits"]
        if token["wrong"] is not None:
            raise ValueError(f"{token['wrong']} at the wrong place in {replacement!r}")
        if digits is None:
            parts.append(token["literal"] or token["text"])
            continue
        size = 1
        while size < len(digits) and int(digits[: size + 1]) <= groupCount:
            size += 1
        number = int(digits[:size])
        if number <= groupCount:
            parts += [number, digits[size:]]
        elif groupCount:
            parts.append(token[0])
        else:
            raise ValueError(f"the pattern has no group for {token[0]}")
    return parts


class PrincipalMapper:
    """The rules of a listener."""

    def __init__(self, rules: Sequence[_Rule | None]) -> None:
        """@param rules: L{None}: C{DEFAULT}."""
        self._rules = rules

    @classmethod
    def fromText(cls, key: str, text: str) -> PrincipalMapper:
        """
        @param key: of the setting, for errors.
        @raise ConfigurationError: the text is no list of rules.
        """
        text = text.strip()
        rules: list[_Rule | None] = []
        position = 0
        while position < len(text):
            found = _RULE.match(text, position)
            end = position if found is None else found.end()
            separator = _SEPARATOR.match(text, end)
            if separator is None:
                raise ConfigurationError(
                    f"{key}: no rule at {text[position : position + 100]!r}: it is DEFAULT or"
                    " RULE:pattern/replacement/ with L or U behind it"
                )
            if found is not None:
                rules.append(None if found[1] else _rule(key, found))
            position = separator.end()
        return cls(rules)

    def name(self, subject: str) -> str:
        """
        @param subject: of a client's certificate, by RFC 2253.
        @raise NoMatchingRuleError: no rule applies.
        """
        for rule in self._rules:
            found = subject if rule is None else rule.apply(subject)
            if found is not None:
                return found
        raise NoMatchingRuleError(f"no rule of ssl.principal.mapping.rules applies to {subject!r}")


def _rule(key: str, found: re.Match[str]) -> _Rule:
    try:
        return _Rule(found[2], found[3], found[4])
    except (InvalidPatternError, ValueError) as error:
        raise ConfigurationError(f"{key}: {found[0]!r}: {error}") from error
