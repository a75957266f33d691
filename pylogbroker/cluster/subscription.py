"""
What a member of a group wants to read, as its registration says it (spec-0.7 zookeeper §4.2).

Three kinds: a map of topics to streams, as JSON; a whitelist, C{*<streams>*<pattern>}; a blacklist, C{!<streams>!<pattern>}. Every member reads every
other's registration and must come to the same topics; so patterns mean what they mean to Java: the whole name matches, C{\\d}, C{\\w} and C{\\b} know ASCII
only. Most patterns that people write are the same to Python. Those that are not are refused here by name (L{pylogbroker.cluster.javaregex}), together with
what Python does not know at all. None can keep a member busy for ever (L{pylogbroker.cluster.boundedregex}).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pylogbroker.cluster.boundedregex import boundedMatcher
from pylogbroker.cluster.javaregex import incompatibility
from pylogbroker.cluster.znodes import decodeText
from pylogbroker.errors import InvalidPatternError, ZnodeError

WHITE = "*"
BLACK = "!"
PATTERN_SIZE_MAX = 10_000
_WILDCARD = re.compile(r"([*!])([0-9]+)\1(.*)")
_FIXED_NAMES = re.compile(r"[A-Za-z0-9|-]*")
STREAM_COUNT_MAX = 100_000
"""Of a member, in each topic; more in a registration is taken for garbage."""


class ISubscription(Protocol):
    """What a member wants to read."""

    def streamCounts(self, topics: Iterable[str]) -> dict[str, int]:
        """
        @param topics: all that there are.
        @return: topics that are wanted, and how many streams (threads) of this member take part in each.
        """
        ...

    def encode(self) -> bytes:
        """As the registration has it."""
        ...


@dataclass(frozen=True)
class StaticSubscription:
    """
    Named topics.

    @ivar streams: topics and their numbers of streams, at least 1 each.
    """

    streams: Mapping[str, int]

    def streamCounts(self, topics: Iterable[str]) -> dict[str, int]:
        """The named topics, whether they exist or not."""
        return dict(self.streams)

    def encode(self) -> bytes:
        """C{{ "a": 2,"b": 1 }}; unlike 0.7 we escape names that need it (gotcha 62)."""
        entries = ",".join(
            f"{json.dumps(topic, ensure_ascii=False)}: {count}"
            for topic, count in self.streams.items()
        )
        return f"{{ {entries} }}".encode()


@dataclass(frozen=True)
class WildcardSubscription:
    """
    All topics, present and future, whose names match, or do not.

    @ivar isWhite: whether matching topics are wanted; or else all others.
    @ivar streamCount: for each topic.
    @ivar pattern: normalised.
    """

    isWhite: bool
    streamCount: int
    pattern: str

    @cached_property
    def _matches(self) -> Callable[[str], bool]:
        return boundedMatcher(compilePattern(self.pattern))

    def streamCounts(self, topics: Iterable[str]) -> dict[str, int]:
        """
        @raise InvalidPatternError: the pattern means nothing to us.
        """
        return {topic: self.streamCount for topic in topics if self._matches(topic) == self.isWhite}

    @property
    def needsWatch(self) -> bool:
        """Whether topics may match that nobody has thought of: not for a whitelist of plain names."""
        return not (self.isWhite and _FIXED_NAMES.fullmatch(self.pattern))

    def encode(self) -> bytes:
        """C{*1*pattern}."""
        marker = WHITE if self.isWhite else BLACK
        return f"{marker}{self.streamCount}{marker}{self.pattern}".encode()


def whitelist(pattern: str, streamCount: int = 1) -> WildcardSubscription:
    """
    @param pattern: as people write it: commas mean C{|}, and quotes around it are dropped.
    @raise InvalidPatternError: it means nothing to us.
    """
    return _wildcard(True, pattern, streamCount)


def blacklist(pattern: str, streamCount: int = 1) -> WildcardSubscription:
    """See L{whitelist}."""
    return _wildcard(False, pattern, streamCount)


def _wildcard(isWhite: bool, pattern: str, streamCount: int) -> WildcardSubscription:
    normalised = normalisePattern(pattern)
    boundedMatcher(compilePattern(normalised))
    return WildcardSubscription(isWhite, streamCount, normalised)


def normalisePattern(pattern: str) -> str:
    """What 0.7 does to a pattern before it stores it."""
    return pattern.strip().replace(",", "|").replace(" ", "").lstrip("\"'").rstrip("\"'")


def compilePattern(pattern: str) -> re.Pattern[str]:
    """
    A pattern as Java means it.

    @raise InvalidPatternError: it is none, or Python would read it otherwise.
    """
    if len(pattern) > PATTERN_SIZE_MAX:
        raise InvalidPatternError(
            f"the pattern has {len(pattern)} characters; {PATTERN_SIZE_MAX} are allowed"
        )
    otherwise = incompatibility(pattern)
    if otherwise is not None:
        raise InvalidPatternError(f"the pattern {pattern!r} has {otherwise}")
    try:
        return re.compile(pattern, re.ASCII)
    except (
        re.error,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:  # ValueError: flags that exclude each other
        raise InvalidPatternError(
            f"the pattern {pattern!r} cannot be used: {error} (Java may know it; Python does not)"
        ) from error


def decodeSubscription(path: str, data: bytes | None) -> ISubscription:
    """
    A registration that somebody wrote.

    @raise ZnodeError: it is neither of the three kinds. (A pattern is not looked at before it is used.)
    """
    text = decodeText(path, data)
    found = _WILDCARD.fullmatch(text)
    if found is not None:
        return WildcardSubscription(
            found[1] == WHITE, _streamCount(path, int(found[2][:12])), found[3]
        )
    try:
        streams = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ZnodeError(
            path, repr(text[:100]), f"a subscription is JSON, or *n*pattern, or !n!pattern: {error}"
        ) from error
    if not isinstance(streams, dict) or not all(type(count) is int for count in streams.values()):
        raise ZnodeError(
            path, repr(text[:100]), "a subscription is an object of topics and whole numbers"
        )
    return StaticSubscription(
        {topic: _streamCount(path, count) for topic, count in streams.items()}
    )


def _streamCount(path: str, count: int) -> int:
    if not 0 <= count <= STREAM_COUNT_MAX:
        raise ZnodeError(path, str(count), f"a number of streams is from 0 to {STREAM_COUNT_MAX}")
    return count
