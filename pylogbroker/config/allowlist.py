"""
Who may produce to which topics, and who may fetch them: a file with a rule a line.

    # who           what      topics
    loader          produce   clicks views-*
    "web front"     both      web-*
    *               fetch     public-*
    -               fetch     status

I{Who} is the common name of the client's certificate; C{*} stands for every client, C{-} for a
client without one. I{What} is C{produce}, C{fetch} or C{both}. A topic is a name, or the beginning
of one with C{*} behind it. A request that no rule allows is refused. White space separates words;
quotes keep it together.

A client with either right may also ask for offsets.
"""

from __future__ import annotations

import shlex

from pylogbroker.errors import ConfigurationError

PRODUCE = "produce"
FETCH = "fetch"
RIGHTS = {"produce": (PRODUCE,), "fetch": (FETCH,), "both": (PRODUCE, FETCH)}
EVERY_CLIENT = "*"
WITHOUT_CERTIFICATE = "-"
FILE_SIZE_MAX = 16 << 20


class AllowList:
    """The rules of a file."""

    def __init__(self) -> None:
        self._topics: set[tuple[str, str, str]] = set()
        self._prefixes: dict[tuple[str, str], tuple[str, ...]] = {}

    @classmethod
    def parse(cls, text: str) -> AllowList:
        """
        @raise ValueError: a line is no rule; half a sentence that names it.
        """
        made = cls()
        for number, line in enumerate(text.splitlines(), 1):
            try:
                if words := shlex.split(line, comments=True):
                    made._add(words)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
        return made

    def _add(self, words: list[str]) -> None:
        if len(words) < 3:
            raise ValueError(f"a rule is NAME {'|'.join(RIGHTS)} TOPIC …")
        name, right, *patterns = words
        if right not in RIGHTS:
            raise ValueError(f"{right!r} is none of {', '.join(RIGHTS)}")
        for pattern in patterns:
            if "*" in pattern[:-1]:
                raise ValueError(f"{pattern!r}: * may stand at the end only")
            for each in RIGHTS[right]:
                if pattern.endswith("*"):
                    prefixes = self._prefixes.get((name, each), ())
                    self._prefixes[name, each] = (*prefixes, pattern[:-1])
                else:
                    self._topics.add((name, each, pattern))

    def allows(self, name: str | None, right: str, topic: str) -> bool:
        """
        @param name: of the client's certificate; L{None} for a client without.
        @param right: L{PRODUCE} or L{FETCH}.
        """
        # A certificate whose name is one of the two signs gets the rights of every client only.
        own = WITHOUT_CERTIFICATE if name is None else name
        if name == WITHOUT_CERTIFICATE:
            own = EVERY_CLIENT
        return any(
            (who, right, topic) in self._topics
            or topic.startswith(self._prefixes.get((who, right), ()))
            for who in (own, EVERY_CLIENT)
        )


def readAllowList(path: str) -> AllowList:
    """
    Read a file of rules. Blocks.

    @raise ConfigurationError: it cannot be read, or a line is no rule; names both.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = file.read(FILE_SIZE_MAX + 1)
        if len(content) > FILE_SIZE_MAX:
            raise ValueError(f"more than {FILE_SIZE_MAX} characters")
        return AllowList.parse(content)
    except OSError as error:
        raise ConfigurationError(f"allow.file={path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # and UnicodeDecodeError
        raise ConfigurationError(f"allow.file={path}: {error}") from error
