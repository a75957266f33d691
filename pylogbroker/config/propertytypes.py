"""
The types that a property's value can have, with 0.7's strictness: what its broker refuses is refused, what it skips is skipped with a warning
(spec-0.7 config, general rules).

A kind turns a value's text into a Python value. It raises L{ValueError} with a half sentence that goes behind C{key=value:}.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address
from typing import Protocol

from pylogbroker.types import HOST

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
PORT_MAX = 65_535

_NUMBER = re.compile(r"[+-]?[0-9]+")
_SERVER = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?"
)
_JAVA_TRIM = "".join(map(chr, range(33)))


class PropertyType(Protocol):
    """
    @ivar name: for the reference page.
    @ivar range: which values are right, for the reference page; C{""} for all.
    """

    @property
    def name(self) -> str: ...

    @property
    def range(self) -> str: ...

    def parse(self, text: str, warn: Callable[[str], None]) -> object:
        """
        @param warn: called with half a sentence for each part that was skipped.
        @raise ValueError: it is wrong; half a sentence.
        """
        ...


class Integer:
    """
    A whole number without white space around it.

    @ivar factor: what it is multiplied with, from the property's unit to the setting's.
    """

    def __init__(self, low: int = -INT_MAX - 1, high: int = INT_MAX, factor: int = 1) -> None:
        self.low = low
        self.high = high
        self.factor = factor

    @property
    def name(self) -> str:
        return "int" if self.high <= INT_MAX else "long"

    @property
    def range(self) -> str:
        if self.low < -1:
            return ""
        return f"≥ {self.low}" if self.high in (INT_MAX, LONG_MAX) else f"{self.low} … {self.high}"

    def parse(self, text: str, warn: Callable[[str], None]) -> int:
        if not _NUMBER.fullmatch(text):
            spaces = (
                " (white space around it is part of the value)"
                if _NUMBER.fullmatch(text.strip())
                else ""
            )
            raise ValueError(f"is not a whole number{spaces}")
        number = int(text)
        if not self.low <= number <= self.high:
            raise ValueError(f"must be from {self.low} to {self.high}")
        return number * self.factor


class Boolean:
    """Exactly C{true} or C{false}."""

    name = "bool"
    range = "`true`, `false`"

    def parse(self, text: str, warn: Callable[[str], None]) -> bool:
        if text not in ("true", "false"):
            raise ValueError("must be exactly true or false")
        return text == "true"


class Text:
    """
    Any text.

    @ivar empty: whether it may be empty.
    """

    name = "string"

    def __init__(self, empty: bool = True) -> None:
        self.empty = empty

    @property
    def range(self) -> str:
        return "" if self.empty else "not empty"

    def parse(self, text: str, warn: Callable[[str], None]) -> str:
        if not text and not self.empty:
            raise ValueError("must not be empty")
        return text


class Host:
    """
    A name, or an address; an IPv6 address without brackets. Nothing is looked up.

    @ivar empty: as in L{Text}.
    """

    name = "string"

    def __init__(self, empty: bool = True) -> None:
        self.empty = empty

    @property
    def range(self) -> str:
        return "a name or an address"

    def parse(self, text: str, warn: Callable[[str], None]) -> str:
        if not (isHost(text) or (not text and self.empty)):
            raise ValueError("must be a host's name or address, of letters, digits, dots, - and _")
        return text


def isHost(text: str) -> bool:
    """Whether it is a host's name, or an IPv4 or IPv6 address."""
    if HOST.fullmatch(text):
        return True
    try:
        return bool(IPv6Address(text))
    except ValueError:
        return False


def isServer(text: str, orPort: int = 0) -> bool:
    """
    Whether it is a host and a port, with a colon between them; an IPv6 address in brackets.

    @param orPort: the port, where none is named; 0: one must be.
    """
    found = _SERVER.fullmatch(text)
    return (
        found is not None
        and isHost(found["v6"] or found["host"])
        and 0 < int(found["port"] or orPort) <= PORT_MAX
    )


class ZookeeperServers:
    """
    C{host:port,host:port/path}, or nothing: ports may be left out, IPv6 addresses stand in brackets. White space around each counts for nothing.
    """

    name = "string"
    range = "`host:port,host:port/path`"

    def parse(self, text: str, warn: Callable[[str], None]) -> str:
        servers, _, _path = text.partition("/")
        for server in servers.split(",") if text.strip() else ():
            if not isServer(server.strip(), orPort=2181):
                raise ValueError(f"{server.strip()!r} is not a host with a port")
        return text


class Secret(str):
    """A text that does not show itself in C{repr}, and so in no log and no traceback."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'" if self else "''"


class SecretText:
    """
    A name and a password with C{:} between, or nothing. Errors do not repeat it.
    """

    name = "string"
    range = "`user:password`"
    isSecret = True

    def parse(self, text: str, warn: Callable[[str], None]) -> Secret:
        user, colon, password = text.partition(":")
        if text and not (user and colon and password):
            raise ValueError("must be user:password")
        return Secret(text)


class Enum:
    """One of a few words."""

    name = "string"

    def __init__(self, *words: str) -> None:
        self.words = words

    @property
    def range(self) -> str:
        return ", ".join(f"`{word}`" for word in self.words)

    def parse(self, text: str, warn: Callable[[str], None]) -> str:
        if text not in self.words:
            raise ValueError(f"must be one of {', '.join(self.words)}")
        return text


class EndpointTemplate:
    """A client endpoint string in which C{{host}} and C{{port}} stand for a broker's; or nothing."""

    name = "string"
    range = "with `{host}` and `{port}`"

    def parse(self, text: str, warn: Callable[[str], None]) -> str:
        if text and ("{host}" not in text or "{port}" not in text):
            raise ValueError("must have {host} and {port} in it")
        return text


class TextList:
    """
    Texts with C{|} between them. White space around each is dropped; blanks inside stay, since endpoint strings hold file names.
    """

    name = "list"
    range = "separated by `|`"

    def parse(self, text: str, warn: Callable[[str], None]) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split("|") if part.strip())


class TopicMap:
    """
    C{topic1:v1,topic2:v2}. Only the value is trimmed, not the topic. A malformed entry is skipped with a warning; a value that is not above
    0 is an error (spec-0.7 config, "Topic map").

    @ivar high: the largest value; an entry above it counts as malformed.
    @ivar factor: as in L{Integer}.
    """

    name = "topic map"

    def __init__(self, high: int = INT_MAX, factor: int = 1) -> None:
        self.high = high
        self.factor = factor

    @property
    def range(self) -> str:
        return "values > 0"

    def parse(self, text: str, warn: Callable[[str], None]) -> Mapping[str, int]:
        result: dict[str, int] = {}
        # Java's split, too, drops what is empty at the end.
        for entry in text.rstrip(",").split(",") if text.rstrip(",") else ():
            topic, colon, value = entry.partition(":")
            value = value.strip(_JAVA_TRIM)
            if not _NUMBER.fullmatch(value) or int(value) > self.high:
                warn(
                    f"skipped {entry!r}, which is not topic:number"
                    + (f" with a number up to {self.high}" if colon else "")
                )
                continue
            if int(value) <= 0:
                raise ValueError(f"{topic} must have a value above 0")
            if topic != topic.strip():
                warn(f"names a topic {topic!r}; the white space counts as part of the name")
            result[topic] = int(value) * self.factor
        return result


class PropertyList:
    """
    C{k1=v1,k2=v2}; each entry must have exactly one C{=} (spec-0.7 config, "Props list").
    """

    name = "props list"
    range = "`k1=v1,k2=v2`"

    def parse(self, text: str, warn: Callable[[str], None]) -> Mapping[str, str]:
        result: dict[str, str] = {}
        for entry in text.split(",") if text else ():
            if entry.count("=") != 1:
                raise ValueError(f"{entry!r} must have exactly one =")
            key, _, value = entry.partition("=")
            result[key] = value
        return result
