"""
The topics of a group's member, by its registration (spec-0.7 zookeeper §4.2).

There are three kinds: a map of topics to streams, as JSON; a whitelist, C{*<streams>*<pattern>}; a
blacklist, C{!<streams>!<pattern>}. L{pylogbroker.cluster.javaregex} defines patterns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pylogbroker.cluster.javaregex import TopicPattern
from pylogbroker.cluster.znodes import decodeText
from pylogbroker.errors import ZnodeError

WHITE = "*"
BLACK = "!"
_WILDCARD = re.compile(r"([*!])([0-9]+)\1(.*)")
STREAM_COUNT_MAX = 100_000
"""Streams of a member in each topic; a registration with more counts as garbage."""


class ISubscription(Protocol):
    """The topics that a member reads."""

    def streamCounts(self, topics: Iterable[str]) -> dict[str, int]:
        """
        @param topics: all existing ones.
        @return: the topics to read, each with the number of this member's streams (threads).
        """
        ...

    def encode(self) -> bytes:
        """The registration."""
        ...


@dataclass(frozen=True)
class StaticSubscription:
    """
    Named topics.

    @ivar streams: topics and their numbers of streams, at least 1 each.
    """

    streams: Mapping[str, int]

    def streamCounts(self, topics: Iterable[str]) -> dict[str, int]:
        """The named topics, existing or not."""
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
    All present and future topics whose names match a whitelist or do not match a blacklist.

    @ivar pattern: normalised.
    """

    isWhite: bool
    streamCount: int
    pattern: str

    @cached_property
    def _matches(self) -> Callable[[str], bool]:
        return TopicPattern(self.pattern).matches

    def streamCounts(self, topics: Iterable[str]) -> dict[str, int]:
        """
        @raise InvalidPatternError: the pattern cannot be used.
        """
        return {topic: self.streamCount for topic in topics if self._matches(topic) == self.isWhite}

    def encode(self) -> bytes:
        marker = WHITE if self.isWhite else BLACK
        return f"{marker}{self.streamCount}{marker}{self.pattern}".encode()


def whitelist(pattern: str, streamCount: int = 1) -> WildcardSubscription:
    """
    @param pattern: commas mean C{|}, and quotes around it are dropped.
    @raise InvalidPatternError: it cannot be used.
    """
    return _wildcard(True, pattern, streamCount)


def blacklist(pattern: str, streamCount: int = 1) -> WildcardSubscription:
    """See L{whitelist}."""
    return _wildcard(False, pattern, streamCount)


def _wildcard(isWhite: bool, pattern: str, streamCount: int) -> WildcardSubscription:
    normalised = normalisePattern(pattern)
    TopicPattern(normalised)
    return WildcardSubscription(isWhite, streamCount, normalised)


def normalisePattern(pattern: str) -> str:
    """A pattern as 0.7 stores it."""
    return pattern.strip().replace(",", "|").replace(" ", "").lstrip("\"'").rstrip("\"'")


def decodeSubscription(path: str, data: bytes | None) -> ISubscription:
    """
    A member's registration.

    @raise ZnodeError: it is none of the three kinds. (A pattern is checked when used.)
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
