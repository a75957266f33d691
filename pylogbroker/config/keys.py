"""
A role's settings as one table, a row for each key: what reads a property file, what the reference page is printed from and what
the shipped sample file is checked against. Nothing about a key is said anywhere else.

Every mistake of a file is reported, not only the first: whoever repairs a configuration over a slow line wants the whole list.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from pylogbroker.config.properties import Properties
from pylogbroker.config.propertytypes import PropertyType
from pylogbroker.errors import ConfigurationError


class ConfigKey(NamedTuple):
    """
    One key.

    @ivar key: as in the property file.
    @ivar setting: the name of the settings object's attribute, units last; C{""} for a key that is accepted and has no effect.
    @ivar kind: type and range.
    @ivar default: as it would stand in a property file; L{None} with C{required}, or when C{defaultSetting} says it.
    @ivar sentence: what it means, for the operator.
    @ivar isKafkaKey: whether the key is Kafka 0.7's, with its meaning; otherwise it is ours.
    @ivar used: whether this release does anything with it.
    @ivar required: whether it must be given.
    @ivar derived: what the default is derived from, for people.
    """

    key: str
    setting: str
    kind: PropertyType
    default: str | None
    sentence: str
    isKafkaKey: bool = True
    used: bool = True
    required: bool = False
    derived: str = ""


def _ignore(message: str) -> None:
    """What is wrong with a default is found by the tests."""


def readSettings(
    rows: Sequence[ConfigKey], properties: Mapping[str, str], warn: Callable[[str], None]
) -> dict[str, object]:
    """
    Judge all values.

    @param properties: best a L{Properties}, which knows file and line.
    @param warn: called with a sentence for each key that nobody knows (and its nearest neighbour) and each part of a value that was skipped.
    @return: the values by setting; L{None} for what was not given and has no default of its own.
    @raise ConfigurationError: required keys are missing, or values are wrong; names them all.
    """
    problems: list[str] = []
    known = {row.key for row in rows}
    for key in properties:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1, 0.5)
            warn(
                f"{_shown(properties, key)}: there is no such key and it has no effect"
                + (f"; did you mean {near[0]}?" if near else "")
            )
    values: dict[str, object] = {}
    for row in rows:
        value: object = None
        if row.key in properties:
            where = _shown(properties, row.key, getattr(row.kind, "isSecret", False))
            try:
                value = row.kind.parse(
                    properties[row.key],
                    lambda text, where=where: warn(f"{where}: {text}"),  # type: ignore[misc]
                )
            except ValueError as error:
                problems.append(f"{where}: {error}")
        elif row.required:
            problems.append(f"{row.key} is missing: {row.sentence}")
        elif row.default is not None:
            value = row.kind.parse(row.default, _ignore)
        if row.setting:
            values[row.setting] = value
    if problems:
        raise ConfigurationError("\n".join(problems))
    return values


def _shown(properties: Mapping[str, str], key: str, isSecret: bool = False) -> str:
    place = properties.place(key) if isinstance(properties, Properties) else ""
    return f"{place + ': ' if place else ''}{key}={'…' if isSecret else properties[key]}"


def asMarkdown(rows: Iterable[ConfigKey], isBrief: bool = False) -> str:
    """
    The rows as Markdown tables, Kafka's keys first, then ours, then those without effect: the reference page under C{docs/} is this text.

    @param isBrief: leave out headings, and tables without rows.
    """
    rows = list(rows)
    parts = []
    for title, chosen in (
        ("Kafka's own", [row for row in rows if row.isKafkaKey and row.used]),
        ("pylogbroker's", [row for row in rows if not row.isKafkaKey and row.used]),
        ("Known, without effect in this release", [row for row in rows if not row.used]),
    ):
        if isBrief and not chosen:
            continue
        lines = [
            *(() if isBrief else (f"### {title}", "")),
            "| key | type | default | meaning |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{row.key}` | {_type(row)} | {_default(row)} | {row.sentence.replace('|', chr(92) + '|')} |"
            for row in chosen
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _type(row: ConfigKey) -> str:
    return (row.kind.name + (f", {row.kind.range}" if row.kind.range else "")).replace("|", "\\|")


def _default(row: ConfigKey) -> str:
    if row.required:
        return "required"
    return row.derived or (f"`{row.default}`" if row.default else "none")
