"""
Which schema may follow which.

Whether one schema can read what another has written is decided by the library C{avro} (C{avro.compatibility}, Apache's port of the Java class that other
registries use). Three things are ours: aliases are qualified before it sees them (L{pylogbroker.schemas.parsing}); a comparison takes so many steps at most,
since two schemas of some kilobytes, unions of thousands of branches, would take it minutes; and fields are looked for once, which it does anew for each.

A subject may have a thousand versions, and a C{_TRANSITIVE} rule asks about all of them each time. So what they amount to is limited; versions with the
same text are looked at once; those that are still kept as parsed come first, so that the others do not drive them out before they are of use; and of the
others one at a time is in memory. What is said is limited, too: a version that does not fit is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from avro.compatibility import (
    CompatibleResult,
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityResult,
    SchemaCompatibilityType,
    incompatible,
)
from avro.compatibility import SchemaIncompatibilityType as Kind

from pylogbroker.errors import InvalidSchemaError, describeError
from pylogbroker.schemas.levels import BACKWARD, FORWARD, FULL, NONE, TRANSITIVE
from pylogbroker.schemas.parsing import Parsed, isKept, parseSchema

STEP_COUNT_MAX = 100_000
"""Pairs of schemas that are compared for one question; some tenths of a second."""

COMPARED_SIZE_MAX = 16 << 20
"""Characters of all schemas that are compared for one question; some seconds, if they have to be parsed."""

PROBLEM_COUNT_MAX = 20
"""Sentences about what speaks against a schema; then no more versions are looked at."""

PROBLEM_SIZE_MAX = 4_000
"""Characters of such a sentence."""


class _Checker(ReaderWriterCompatibilityChecker):
    """
    One that does not go on for ever. (The library's own memory of pairs hashes them so that most collide.)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # the library's
        self._leftCount = STEP_COUNT_MAX
        self._known: dict[tuple[int, int], Any] = {}

    def compare(
        self, reader: Any, writer: Any, token: str = "/", location: list[str] | None = None
    ) -> Any:
        """The library's C{get_compatibility}, which calls itself by that name."""
        pair = id(reader), id(writer)  # of trees that are held by who asks
        if pair not in self._known:
            self._leftCount -= 1
            if self._leftCount < 0:
                raise InvalidSchemaError("schemas that are too complicated to be compared")
            self._known[pair] = (
                CompatibleResult  # what is under way is not what will speak against it
            )
            self._known[pair] = self.calculate_compatibility(
                reader, writer, [*(location or []), token]
            )
        return self._known[pair]

    get_compatibility = compare  # type: ignore[assignment] # its names are not ours

    def fields(self, reader: Any, writer: Any, location: list[str]) -> Any:
        """The library's C{check_reader_writer_record_fields}, but in time that grows with the fields, not with their square."""
        written = {field.name: field for field in writer.fields}
        results = []
        for number, field in enumerate(reader.fields):
            where = [*location, "fields", str(number)]
            name = next(
                (
                    name
                    for name in (field.name, *(field.props.get("aliases") or ()))
                    if name in written
                ),
                None,
            )
            if name is not None:
                results.append(self.compare(field.type, written[name].type, "type", where))
            elif not field.has_default:
                results.append(
                    incompatible(Kind.reader_field_missing_default_value, field.name, where)
                )
        return _together(
            [
                result
                for result in results
                if result.compatibility is not SchemaCompatibilityType.compatible
            ]
        )

    check_reader_writer_record_fields = fields

    def forget(self) -> None:
        """Trees that were compared are about to go, and others may take their place in memory."""
        self._known.clear()


def _together(results: list[Any]) -> Any:
    if not results:
        return CompatibleResult
    return SchemaCompatibilityResult(
        SchemaCompatibilityType.incompatible,
        [kind for result in results for kind in result.incompatibilities],
        {message for result in results for message in result.messages},
        {place for result in results for place in result.locations},
    )


def incompatibilities(text: str, earlier: Sequence[tuple[int, str]], level: str) -> list[str]:
    """
    What speaks against a new schema. Takes time: for a worker.

    @param earlier: version and text of those that are there, the oldest first. Without C{_TRANSITIVE} only the last counts.
    @param level: one of L{pylogbroker.schemas.levels.LEVELS}.
    @return: sentences, about the latest versions first; empty: nothing. Not more than L{PROBLEM_COUNT_MAX}, though there may be more to say.
    @raise InvalidSchemaError: one is none, or they are too complicated, or too large together.
    """
    new = parseSchema(text)
    if not level.endswith(TRANSITIVE):
        earlier = earlier[-1:]
    kind = level.removesuffix(TRANSITIVE)
    versions = {old: version for version, old in earlier if kind != NONE}
    if sum(map(len, versions)) > COMPARED_SIZE_MAX:
        raise InvalidSchemaError(
            f"{len(versions)} earlier schemas of more than {COMPARED_SIZE_MAX} characters together: too large to be compared"
        )
    checker = _Checker()
    found: list[tuple[int, str]] = []
    for old, version in sorted(versions.items(), key=lambda each: (not isKept(each[0]), -each[1])):
        parsed = _earlier(version, old)
        if kind in (BACKWARD, FULL):
            found += [
                (version, f"the new schema cannot read what version {version} has written: {why}")
                for why in _whyNot(checker, new, parsed)
            ]
        if kind in (FORWARD, FULL):
            found += [
                (version, f"version {version} cannot read what the new schema writes: {why}")
                for why in _whyNot(checker, parsed, new)
            ]
        checker.forget()
        if len(found) >= PROBLEM_COUNT_MAX:
            break
    return [said for _version, said in sorted(found, key=lambda each: -each[0])][:PROBLEM_COUNT_MAX]


def _earlier(version: int, text: str) -> Parsed:
    try:
        return parseSchema(text)
    except InvalidSchemaError as error:  # it was taken when less was refused
        raise InvalidSchemaError(
            f"version {version} cannot be used any more, and nothing be compared with it until it is deleted: {error}"
        ) from error


def _whyNot(checker: _Checker, reader: Parsed, writer: Parsed) -> list[str]:
    try:
        result = checker.compare(reader.tree, writer.tree)
    except InvalidSchemaError:
        raise
    except Exception as error:  # a type that it does not know, or RecursionError
        raise InvalidSchemaError(
            f"schemas that cannot be compared: {describeError(error)}"
        ) from error
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = ", ".join(sorted({kind.value for kind in result.incompatibilities}))
    said = f"{kinds} at {', '.join(sorted(result.locations))}: {'; '.join(sorted(result.messages))}"
    return [said if len(said) <= PROBLEM_SIZE_MAX else f"{said[:PROBLEM_SIZE_MAX]} …"]
