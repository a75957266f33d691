"""
Which schema may follow which.

Whether one schema can read what another has written is decided by the library C{avro} (C{avro.compatibility}, Apache's port of the Java class that other
registries use). Two things are ours: aliases are qualified before it sees them (L{pylogbroker.schemas.parsing}), and a comparison takes so many steps at
most, since two schemas of some kilobytes, unions of thousands of branches, would take it minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from avro.compatibility import CompatibleResult, ReaderWriterCompatibilityChecker, SchemaCompatibilityType

from pylogbroker.errors import InvalidSchemaError, reasonOf
from pylogbroker.schemas.levels import BACKWARD, FORWARD, FULL, NONE, TRANSITIVE
from pylogbroker.schemas.parsing import Parsed, parseSchema

STEP_COUNT_MAX = 100_000
"""Pairs of schemas that are compared for one question; some tenths of a second."""


class _Checker(ReaderWriterCompatibilityChecker):
    """
    One that does not go on for ever. (The library's own memory of pairs hashes them so that most collide.)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # the library's
        self._leftCount = STEP_COUNT_MAX
        self._known: dict[tuple[int, int], Any] = {}

    def compare(self, reader: Any, writer: Any, token: str = "/", location: list[str] | None = None) -> Any:
        """The library's C{get_compatibility}, which calls itself by that name."""
        pair = id(reader), id(writer)  # of trees that are held by who asks
        if pair not in self._known:
            self._leftCount -= 1
            if self._leftCount < 0:
                raise InvalidSchemaError("schemas that are too complicated to be compared")
            self._known[pair] = CompatibleResult  # what is under way is not what will speak against it
            self._known[pair] = self.calculate_compatibility(reader, writer, [*(location or []), token])
        return self._known[pair]

    get_compatibility = compare  # type: ignore[assignment] # its names are not ours


def incompatibilities(text: str, earlier: Sequence[tuple[int, str]], level: str) -> list[str]:
    """
    What speaks against a new schema. Takes time: for a worker.

    @param earlier: version and text of those that are there, the oldest first. Without C{_TRANSITIVE} only the last counts.
    @param level: one of L{pylogbroker.schemas.levels.LEVELS}.
    @return: sentences; empty: nothing.
    @raise InvalidSchemaError: one is none, or they are too complicated.
    """
    new = parseSchema(text)
    if not level.endswith(TRANSITIVE):
        earlier = earlier[-1:]
    kind = level.removesuffix(TRANSITIVE)
    checker = _Checker()
    found: list[str] = []
    for version, parsed in [(version, parseSchema(old)) for version, old in reversed(earlier) if kind != NONE]:
        if kind in (BACKWARD, FULL):
            found += [f"the new schema cannot read what version {version} has written: {why}" for why in _whyNot(checker, new, parsed)]
        if kind in (FORWARD, FULL):
            found += [f"version {version} cannot read what the new schema writes: {why}" for why in _whyNot(checker, parsed, new)]
    return found


def _whyNot(checker: _Checker, reader: Parsed, writer: Parsed) -> list[str]:
    try:
        result = checker.compare(reader.tree, writer.tree)
    except InvalidSchemaError:
        raise
    except Exception as error:  # a type that it does not know, or RecursionError
        raise InvalidSchemaError(f"schemas that cannot be compared: {reasonOf(error)}") from error
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = ", ".join(sorted({kind.value for kind in result.incompatibilities}))
    return [f"{kinds} at {', '.join(sorted(result.locations))}: {'; '.join(sorted(result.messages))}"]
