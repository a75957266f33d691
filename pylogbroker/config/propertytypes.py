"""
The types of property values, as strict as Kafka 0.7: it refuses what the 0.7 broker refuses, and
skips, with a warning, what the 0.7 broker skips (spec-0.7 config, general rules).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Generic, NamedTuple, TypeVar

from pylogbroker.types import HOST

T = TypeVar("T")
Warn = Callable[[str], None]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
PORT_MAX = 65_535

_NUMBER = re.compile(r"[+-]?[0-9]+")
_BROKER_NUMBER = re.compile(r"[+-]?[0-9]{1,10}")
_SERVER = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?"
)
_NAMED_LISTENER = re.compile(r"[^:/|]*://[^/|]*:[0-9]+(?![^,\s])")
_JAVA_TRIM = "".join(map(chr, range(33)))


class PropertyType(ABC, Generic[T]):
    """
    The type of a property's value.

    @ivar name: for the reference page.
    @ivar range: the valid values, for the reference page; C{""} if all are valid.
    @ivar isSecret: true if no log and no error may show the value.
    """

    name = "string"
    range = ""
    isSecret = False

    @abstractmethod
    def parse(self, text: str, warn: Warn) -> T:
        """
        Convert a value.

        @param warn: called with half a sentence for each part that was skipped.
        @raise ValueError: the text is not valid; half a sentence that follows C{key=value:}.
        """
        ...


class Nullable(PropertyType[T | None]):
    """Another type, or L{None} for an empty text."""

    def __init__(self, inner: PropertyType[T]) -> None:
        self.inner = inner
        self.name = inner.name
        self.range = inner.range

    def parse(self, text: str, warn: Warn) -> T | None:
        return self.inner.parse(text, warn) if text else None


class Integer(PropertyType[int]):
    """A whole number without white space around it."""

    def __init__(self, low: int = -INT_MAX - 1, high: int = INT_MAX) -> None:
        self.low = low
        self.high = high
        self.name = "int" if high <= INT_MAX else "long"
        if low >= -1:
            self.range = f"≥ {low}" if high in (INT_MAX, LONG_MAX) else f"{low} … {high}"

    def parse(self, text: str, warn: Warn) -> int:
        if not _NUMBER.fullmatch(text):
            spaces = (
                " (white space around it is part of the value)"
                if _NUMBER.fullmatch(text.strip())
                else ""
            )
            raise ValueError(f"is not a whole number{spaces}")
        if not self.low <= int(text) <= self.high:
            raise ValueError(f"must be from {self.low} to {self.high}")
        return int(text)


class Enum(PropertyType[T]):
    """One of a few words, each of which stands for a value."""

    def __init__(self, values: Mapping[str, T]) -> None:
        self.values = values
        self.range = ", ".join(f"`{word}`" for word in values)

    def parse(self, text: str, warn: Warn) -> T:
        if text not in self.values:
            raise ValueError(f"must be one of {', '.join(self.values)}")
        return self.values[text]


class Boolean(PropertyType[bool]):
    """Exactly C{true} or C{false}."""

    name = "bool"
    range = "`true`, `false`"

    def parse(self, text: str, warn: Warn) -> bool:
        if text not in ("true", "false"):
            raise ValueError("must be exactly true or false")
        return text == "true"


class Text(PropertyType[str]):
    """
    Any text.

    @ivar empty: whether it may be empty.
    """

    def __init__(self, empty: bool = True) -> None:
        self.empty = empty
        self.range = "" if empty else "not empty"

    def parse(self, text: str, warn: Warn) -> str:
        if not text and not self.empty:
            raise ValueError("must not be empty")
        return text


class Host(PropertyType[str]):
    """
    A name or an address, or nothing; an IPv6 address has no brackets. It is not resolved.
    """

    range = "a name or an address"

    def parse(self, text: str, warn: Warn) -> str:
        if text and not isHost(text):
            raise ValueError("must be a host's name or address, of letters, digits, dots, - and _")
        return text


def isHost(text: str) -> bool:
    """Whether a text is a host name, or an IPv4 or IPv6 address."""
    if HOST.fullmatch(text):
        return True
    try:
        return bool(IPv6Address(text))
    except ValueError:
        return False


def isServer(text: str, defaultPort: int = 0) -> bool:
    """
    Whether a text is C{host:port}; an IPv6 address stands in brackets.

    @param defaultPort: the port of a text that names none; 0 if the text must name one.
    """
    found = _SERVER.fullmatch(text)
    return (
        found is not None
        and isHost(found["v6"] or found["host"])
        and 0 < int(found["port"] or defaultPort) <= PORT_MAX
    )


class ZookeeperServers(PropertyType[str]):
    """
    C{host:port,host:port/path}, or nothing. Ports are optional, IPv6 addresses stand in brackets,
    and white space around a server is ignored.
    """

    range = "`host:port,host:port/path`"

    def parse(self, text: str, warn: Warn) -> str:
        servers, _, _path = text.partition("/")
        for server in servers.split(",") if text.strip() else ():
            if not isServer(server.strip(), defaultPort=2181):
                raise ValueError(f"{server.strip()!r} is not a host with a port")
        return text


class Secret(str):
    """A text whose C{repr} hides it from logs and tracebacks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'" if self else "''"


class SecretText(PropertyType[str]):
    """C{user:password}, or nothing. Errors do not repeat the text."""

    range = "`user:password`"
    isSecret = True

    def parse(self, text: str, warn: Warn) -> str:
        user, colon, password = text.partition(":")
        if text and not (user and colon and password):
            raise ValueError("must be user:password")
        return Secret(text)


class EndpointTemplate(PropertyType[str]):
    """
    A client endpoint string with C{{host}} and C{{port}} in the place of a broker's; or nothing.
    """

    range = "with `{host}` and `{port}`"

    def parse(self, text: str, warn: Warn) -> str:
        if text and ("{host}" not in text or "{port}" not in text):
            raise ValueError("must have {host} and {port} in it")
        return text


class BarSeparatedList(PropertyType[tuple[str, ...]]):
    """
    Texts with C{|} between them. White space around a text is dropped; inner white space stays,
    because endpoint strings hold file names.
    """

    name = "list"
    range = "separated by `|`"

    def parse(self, text: str, warn: Warn) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split("|") if part.strip())


class PrincipalList(PropertyType[frozenset[str]]):
    """Users as Kafka writes them, with C{;} between them: C{User:alice;User:CN=bob,O=example}."""

    range = "`User:` and a name"

    def parse(self, text: str, warn: Warn) -> frozenset[str]:
        names = [name.strip() for name in text.split(";") if name.strip()]
        for name in names:
            if ":" not in name:
                raise ValueError(f"{name!r} has no type, such as in User:{name}")
        return frozenset(names)


class CommaSeparatedList(PropertyType[tuple[str, ...]]):
    """Texts with C{,} between them. White space around a text is dropped."""

    name = "list"
    range = "separated by `,`"

    def parse(self, text: str, warn: Warn) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())


class ListenerList(PropertyType[tuple[str, ...]]):
    """
    Kafka's C{NAME://HOST:PORT} with C{,} between them, or Twisted endpoint strings with C{|}.
    """

    name = "list"
    range = "separated by `,`; endpoint strings by `|`"

    @staticmethod
    def isKafkas(text: str) -> bool:
        """Whether a text is no endpoint string."""
        return _NAMED_LISTENER.match(text) is not None

    def parse(self, text: str, warn: Warn) -> tuple[str, ...]:
        inner: PropertyType[tuple[str, ...]] = BAR_SEPARATED_LIST
        if self.isKafkas(text.strip()):
            inner = COMMA_SEPARATED_LIST
        return inner.parse(text, warn)


class TopicList(PropertyType[frozenset[str]]):
    """Topics with C{,} between them; white space around a topic is part of its name, as in 0.7."""

    name = "topic list"
    range = "`topic1,topic2`"

    def parse(self, text: str, warn: Warn) -> frozenset[str]:
        topics = frozenset(topic for topic in text.split(",") if topic)
        for topic in sorted(topics):
            _warnOfSpace(topic, warn)
        return topics


class TopicMap(PropertyType[Mapping[str, int]]):
    """
    C{topic1:v1,topic2:v2}. Only the value is trimmed, not the topic. A malformed entry is skipped
    with a warning; a value below 1 is an error (spec-0.7 config, "Topic map").

    @ivar high: the largest value; an entry above it is malformed.
    """

    name = "topic map"
    range = "values > 0"

    def __init__(self, high: int = INT_MAX) -> None:
        self.high = high

    def parse(self, text: str, warn: Warn) -> Mapping[str, int]:
        result: dict[str, int] = {}
        # Java's split drops empty parts at the end, too.
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
            _warnOfSpace(topic, warn)
            result[topic] = int(value)
        return result


class AddressMap(PropertyType[Mapping[str, int]]):
    """C{address1:n1,address2:n2}: numbers of IP addresses."""

    name = "address map"
    range = "numbers ≥ 0"

    def parse(self, text: str, warn: Warn) -> Mapping[str, int]:
        result: dict[str, int] = {}
        for entry in filter(None, map(str.strip, text.split(","))):
            address, _, value = entry.rpartition(":")
            if not _NUMBER.fullmatch(value) or not 0 <= int(value) <= INT_MAX:
                raise ValueError(f"{entry!r} is not address:number")
            result[str(ip_address(address.strip("[]")))] = int(value)
        return result


def _warnOfSpace(topic: str, warn: Warn) -> None:
    if topic != topic.strip():
        warn(f"names a topic {topic!r}; the white space counts as part of the name")


class PropertyList(PropertyType[Mapping[str, str]]):
    """
    C{k1=v1,k2=v2}; each entry must have exactly one C{=} (spec-0.7 config, "Props list").
    """

    name = "props list"
    range = "`k1=v1,k2=v2`"

    def parse(self, text: str, warn: Warn) -> Mapping[str, str]:
        result: dict[str, str] = {}
        for entry in text.split(",") if text else ():
            if entry.count("=") != 1:
                raise ValueError(f"{entry!r} must have exactly one =")
            key, _, value = entry.partition("=")
            result[key] = value
        return result


class BrokerAddress(NamedTuple):
    """One entry of C{broker.list}."""

    brokerId: int
    host: str
    port: int


class BrokerList(PropertyType[tuple[BrokerAddress, ...]]):
    """
    C{id:host:port,…}. The parser ignores a fourth part; white space belongs to the part around it
    (spec-0.7 producer §1, config §3).
    """

    name = "broker list"
    range = "`id:host:port,…`"

    def parse(self, text: str, warn: Warn) -> tuple[BrokerAddress, ...]:
        found: dict[int, BrokerAddress] = {}
        for entry in text.rstrip(",").split(",") if text.rstrip(",") else ():
            fields = entry.split(":")
            if len(fields) < 3:
                raise ValueError(f"{entry!r} is not id:host:port")
            number, host, port = fields[:3]
            if not _BROKER_NUMBER.fullmatch(number) or not -INT_MAX - 1 <= int(number) <= INT_MAX:
                raise ValueError(
                    f"{entry!r}: {number!r} is not a broker's number (white space is part of it)"
                )
            if not HOST.fullmatch(host):
                raise ValueError(f"{entry!r}: {host!r} is not a host")
            if not _BROKER_NUMBER.fullmatch(port) or not 0 < int(port) <= PORT_MAX:
                raise ValueError(f"{entry!r}: {port!r} is not a port from 1 to {PORT_MAX}")
            if int(number) in found:
                warn(f"names broker {int(number)} twice; the last counts")
            found[int(number)] = BrokerAddress(int(number), host, int(port))
        return tuple(found.values())


# -- the types that several roles use

ANY_INTEGER = Integer()
NOT_NEGATIVE = Integer(0)
POSITIVE = Integer(1)
SIZE = Integer(1, LONG_MAX)
BOOLEAN = Boolean()
TEXT = Text()
NOT_EMPTY = Text(empty=False)
NULLABLE_TEXT = Nullable(TEXT)
BAR_SEPARATED_LIST = BarSeparatedList()
COMMA_SEPARATED_LIST = CommaSeparatedList()
TOPIC_MAP = TopicMap()
