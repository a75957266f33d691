"""
Compatibility of schemas: which schema may follow which. A module of its own, since it alone uses
the library C{avro.compatibility}.

The library C{avro} decides whether one schema can read what another has written
(C{avro.compatibility}, a port of the Java class that other registries use). Three things are ours:
the parser qualifies aliases first; the number of steps is limited, since two unions of thousands of
branches would take minutes; and fields are looked up in a dictionary.

A subject may have a thousand versions, and a C{_TRANSITIVE} level compares with all of them. So
their total size is limited; equal texts are compared once; schemas that are still parsed come
first, before others evict them; and only one of the others is in memory. The number of reported
problems is limited, too.
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
from pylogbroker.schemas.logicaltypes import ParsedSchema
from pylogbroker.schemas.logrecords import BACKWARD, FORWARD, FULL, NONE, TRANSITIVE
from pylogbroker.schemas.schemaparser import isParsed, parseSchema

STEP_COUNT_MAX = 100_000
"""Pairs of schemas in one comparison; they take some tenths of a second."""

COMPARED_SIZE_MAX = 16 << 20
"""Characters of all schemas in one comparison; they take some seconds if they have to be parsed."""

PROBLEM_COUNT_MAX = 20
"""Reported problems; then no more versions are compared."""

PROBLEM_SIZE_MAX = 4_000
"""Characters of a reported problem."""


class _Checker(ReaderWriterCompatibilityChecker):
    """
    The library's checker with a limit. (The library's own memory of pairs has a hash by which most
    of them collide.)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # the library's
        self._leftCount = STEP_COUNT_MAX
        self._known: dict[tuple[int, int], Any] = {}

    def compare(
        self, reader: Any, writer: Any, token: str = "/", location: list[str] | None = None
    ) -> Any:
        """The library's C{get_compatibility}, which calls itself by that name."""
        pair = id(reader), id(writer)  # the caller holds the trees
        if pair not in self._known:
            self._leftCount -= 1
            if self._leftCount < 0:
                raise InvalidSchemaError("schemas that are too complicated to be compared")
            self._known[pair] = CompatibleResult  # for a recursion; the final result replaces it
            self._known[pair] = self.calculate_compatibility(
                reader, writer, [*(location or []), token]
            )
        return self._known[pair]

    get_compatibility = compare  # type: ignore[assignment] # its names are not ours

    def fields(self, reader: Any, writer: Any, location: list[str]) -> Any:
        """
        The library's C{check_reader_writer_record_fields}, in time that grows linearly with the
        fields.
        """
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
        """Forget pairs: their trees may be freed, and others get the same C{id}."""
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
    Reasons why a new schema is incompatible with earlier ones. Slow: for a worker.

    @param earlier: version and text, the oldest first. Only C{_TRANSITIVE} levels use all of them.
    @param level: one of L{pylogbroker.schemas.logrecords.LEVELS}.
    @return: at most L{PROBLEM_COUNT_MAX} sentences, about the latest versions first; empty:
        compatible.
    @raise InvalidSchemaError: a schema cannot be used, or they are too complicated or too large.
    """
    new = parseSchema(text)
    if not level.endswith(TRANSITIVE):
        earlier = earlier[-1:]
    kind = level.removesuffix(TRANSITIVE)
    versions = {old: version for version, old in earlier if kind != NONE}
    if sum(map(len, versions)) > COMPARED_SIZE_MAX:
        raise InvalidSchemaError(
            f"{len(versions)} earlier schemas of more than {COMPARED_SIZE_MAX} characters"
            " together: too large to be compared"
        )
    checker = _Checker()
    found: list[tuple[int, str]] = []
    for old, version in sorted(
        versions.items(), key=lambda each: (not isParsed(each[0]), -each[1])
    ):
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


def _earlier(version: int, text: str) -> ParsedSchema:
    try:
        return parseSchema(text)
    except InvalidSchemaError as error:  # an earlier release has accepted it
        raise InvalidSchemaError(
            f"version {version} cannot be used any more, and blocks comparisons until it is"
            f" deleted: {error}"
        ) from error


def _whyNot(checker: _Checker, reader: ParsedSchema, writer: ParsedSchema) -> list[str]:
    try:
        result = checker.compare(reader.tree, writer.tree)
    except InvalidSchemaError:
        raise
    except Exception as error:  # an unknown type, or RecursionError
        raise InvalidSchemaError(
            f"schemas that cannot be compared: {describeError(error)}"
        ) from error
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = ", ".join(sorted({kind.value for kind in result.incompatibilities}))
    said = f"{kinds} at {', '.join(sorted(result.locations))}: {'; '.join(sorted(result.messages))}"
    return [said if len(said) <= PROBLEM_SIZE_MAX else f"{said[:PROBLEM_SIZE_MAX]} …"]
