"""
Java property files, as C{java.util.Properties.load} reads them, since the files of a Kafka 0.7
installation must work here unchanged.

What must be true: the same file gives the same pairs as in Java: comments begin with C{#} or C{!};
a line that ends in an odd number of backslashes goes on in the next one, whose leading white space
is dropped; the key ends at the first C{=}, C{:} or white space that no backslash stands before;
C{\\t \\n \\r \\f \\uXXXX} are escapes and any other escaped character is itself; white space at the
*end* of a value is part of the value.

Two things differ on purpose. A file is read as UTF-8, and as ISO 8859-1 (Java's choice) only if it
is not valid UTF-8: a topic name outside of ASCII means what the editor showed. And a key that comes
twice, of which Java silently takes the last, is reported.

Every pair remembers where it stood, so that an error found later in its value can still name file
and line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from pylogbroker.errors import ConfigurationError

_WHITE = " \t\f"
_PAIR = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u([0-9a-fA-F]{4})?|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _ignore(message: str) -> None:
    """For callers who do not listen."""


class Properties(dict[str, str]):
    """
    Keys and values of a property file, which know where they come from.
    """

    def __init__(self, pairs: Mapping[str, str] | None = None) -> None:
        super().__init__(pairs or {})
        self._locations: dict[str, str] = {}

    def put(self, key: str, value: str, location: str) -> None:
        """
        Set a value.

        @param location: where it stands, for people: C{"broker.properties:12"}.
        """
        self[key] = value
        self._locations[key] = location

    def location(self, key: str) -> str:
        """Where a key was set; C{""} when that is unknown."""
        return self._locations.get(key, "")

    def withOverrides(self, assignments: Iterable[str]) -> Properties:
        """
        A copy in which some values are replaced.

        @param assignments: C{"key=value"} each, as C{--set} takes them; the value is taken as it
            is, without escapes.
        @raise ConfigurationError: one of them has no C{=}, or nothing before it.
        """
        result = Properties(self)
        result._locations.update(self._locations)
        for assignment in assignments:
            key, equals, value = assignment.partition("=")
            key = key.strip()
            if not equals or not key:
                raise ConfigurationError(f"--set {assignment}: must be key=value")
            result.put(key, value, "--set")
        return result


def _logicalLines(text: str) -> Iterator[tuple[int, str]]:
    """
    Comments and blank lines left out, continued lines joined.

    @return: (number of the line in which it begins, from 1; the text without leading white space,
        which may be nothing).
    """
    begun = 0
    parts: list[str] = []
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(_WHITE)
        if not parts:
            if not line or line[0] in "#!":
                continue
            begun = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            parts.append(line[:-1])
            continue
        yield begun, "".join(parts) + line
        parts = []
    yield begun, "".join(parts)


def _unescape(text: str, location: str) -> str:
    def replacement(match: re.Match[str]) -> str:
        escaped = match.group(1)
        if escaped[0] != "u":
            return _ESCAPED.get(escaped, escaped)
        if match.group(2) is None:
            raise ConfigurationError(f"{location}: \\u must be followed by four hexadecimal digits")
        return chr(int(match.group(2), 16))

    # Two escapes may spell one character beyond U+FFFF, as a pair of UTF-16 halves. A lone half
    # stays what it is, as in Java.
    return (
        _ESCAPE.sub(replacement, text)
        .encode("utf-16-le", "surrogatepass")
        .decode("utf-16-le", "surrogatepass")
    )


def parseProperties(
    text: str, source: str = "", warn: Callable[[str], None] = _ignore
) -> Properties:
    """
    Read a property file's text.

    @param source: the file's name, for places and errors.
    @param warn: called with a sentence for each key that comes twice; the last one counts.
    @raise ConfigurationError: a broken C{\\u} escape; names file and line.
    """
    result = Properties()
    for number, line in _logicalLines(text):
        if not line:
            continue
        location = f"{source}:{number}" if source else f"line {number}"
        key, value = (_unescape(part, location) for part in _PAIR.findall(line)[0])
        if key in result:
            warn(f"{location}: {key} was set before ({result.location(key)}); this line counts")
        result.put(key, value, location)
    return result


def formatProperties(pairs: Mapping[str, str]) -> str:
    """
    The text of a property file. Keys have no white space and no separators.
    """
    lines = []
    for key, value in pairs.items():
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"{key}={escaped}\n")
    return "".join(lines)


def readProperties(path: str, warn: Callable[[str], None] = _ignore) -> Properties:
    """
    Read a property file. Blocks.

    @raise ConfigurationError: it cannot be read, or is broken; names the file.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return parseProperties(text, path, warn)
