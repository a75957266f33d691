"""
Who may produce to which topics, and who may fetch them: a file with a rule a line.

    # who           what      topics
    loader          produce   clicks views-*
    "web front"     both      web-*
    *               fetch     public-*
    -               fetch     status

I{Who} is the common name of the client's certificate; C{*} stands for every client, C{-} for a client
without one. I{What} is C{produce}, C{fetch} or C{both}. A topic is a name, or the beginning of one with
C{*} behind it. What no rule allows is not allowed. White space separates; quotes keep it together.

Who may do either may ask for offsets, too.
"""

from __future__ import annotations

import shlex

from pylogbroker.errors import ConfigurationError

PRODUCE = "produce"
FETCH = "fetch"
RIGHTS = {"produce": (PRODUCE,), "fetch": (FETCH,), "both": (PRODUCE, FETCH)}
EVERYBODY = "*"
NOBODY = "-"
FILE_SIZE_MAX = 16 << 20


class _Topics:
    """Names, and beginnings of names."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.beginnings: tuple[str, ...] = ()

    def add(self, pattern: str) -> None:
        if pattern.endswith("*"):
            self.beginnings += (pattern[:-1],)
        else:
            self.names.add(pattern)

    def has(self, topic: str) -> bool:
        return topic in self.names or topic.startswith(self.beginnings)


class AllowList:
    """
    The rules of a file.
    """

    def __init__(self) -> None:
        self._rules: dict[tuple[str, str], _Topics] = {}

    @classmethod
    def parse(cls, text: str) -> AllowList:
        """
        @raise ValueError: a line is no rule; half a sentence that names it.
        """
        made = cls()
        for number, line in enumerate(text.splitlines(), 1):
            try:
                words = shlex.split(line, comments=True)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            if words:
                made._add(number, words)
        return made

    def _add(self, number: int, words: list[str]) -> None:
        if len(words) < 3:
            raise ValueError(f"line {number}: a rule is NAME {'|'.join(RIGHTS)} TOPIC …")
        name, right, *patterns = words
        if right not in RIGHTS:
            raise ValueError(f"line {number}: {right!r} is none of {', '.join(RIGHTS)}")
        for pattern in patterns:
            if "*" in pattern[:-1]:
                raise ValueError(f"line {number}: {pattern!r}: * may stand at the end only")
            for each in RIGHTS[right]:
                self._rules.setdefault((name, each), _Topics()).add(pattern)

    def allows(self, name: str | None, right: str, topic: str) -> bool:
        """
        @param name: of the client's certificate; L{None} for a client without.
        @param right: L{PRODUCE} or L{FETCH}.
        """
        # A certificate with one of the two signs for its name gets what everybody gets, and not
        # what those without get.
        own = NOBODY if name is None else name if name not in (EVERYBODY, NOBODY) else EVERYBODY
        for who in (own, EVERYBODY):
            topics = self._rules.get((who, right))
            if topics is not None and topics.has(topic):
                return True
        return False


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
