"""
Offsets by topic and partition, as JSON: C{{"clicks": {"0-0": 4711, "1-0": -2}}}. People write it in options.
"""

from __future__ import annotations

import json
from typing import Any

from pylogbroker.cluster import paths
from pylogbroker.cluster.znodes import decodePartition
from pylogbroker.errors import ConfigurationError, PylogbrokerError
from pylogbroker.types import EARLIEST, BrokerPartition

OffsetMap = dict[str, dict[BrokerPartition, int]]


def _object(option: str, text: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:  # JSON has a rule for it, which drops one of them without a word
                raise ConfigurationError(f"{option}: {name} stands there twice")
            found[name] = value
        return found

    try:
        found = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{option}={text}: neither a word that is known nor JSON: {error}"
        ) from error
    if not isinstance(found, dict) or not found:
        raise ConfigurationError(f"{option}={text}: it should be an object of topics")
    return found


def parsePartition(option: str, name: object) -> BrokerPartition:
    """
    @param name: C{"<broker>-<partition>"}.
    @raise ConfigurationError: it is something else.
    """
    try:
        return decodePartition(option, str(name))
    except PylogbrokerError as error:
        raise ConfigurationError(f"{option}: {name!r} is not <broker>-<partition>") from error


def _checkedTopic(option: str, name: str) -> str:
    try:
        paths.topic(name)
    except PylogbrokerError as error:
        raise ConfigurationError(f"{option}: {error}") from error
    return name


def parseOffsets(option: str, text: str) -> OffsetMap:
    """
    @param option: its name, for texts.
    @return: offsets; -1 for the latest, -2 for the earliest.
    @raise ConfigurationError: it is something else.
    """
    found: OffsetMap = {}
    for name, partitions in _object(option, text).items():
        if not isinstance(partitions, dict):
            raise ConfigurationError(
                f"{option}: {name} should have an object of partitions and offsets"
            )
        offsets = found[_checkedTopic(option, name)] = {}
        for partition, offset in partitions.items():
            if type(offset) is not int or not EARLIEST <= offset < 2**63:
                raise ConfigurationError(
                    f"{option}: {name} {partition} has {offset!r}, which is no offset, nor -1 (latest) or -2 (earliest)"
                )
            if (number := parsePartition(option, partition)) in offsets:
                raise ConfigurationError(
                    f"{option}: {name} {number} stands there twice, once as {partition!r}"
                )
            offsets[number] = offset
    return found


def parseAssignment(option: str, text: str) -> dict[str, tuple[BrokerPartition, ...]]:
    """
    @param text: C{{"clicks": ["0-0", "1-0"]}}.
    @raise ConfigurationError: it is something else.
    """
    found = {}
    for name, partitions in _object(option, text).items():
        if not isinstance(partitions, list) or not partitions:
            raise ConfigurationError(f"{option}: {name} should have a list of partitions")
        found[_checkedTopic(option, name)] = tuple(
            sorted({parsePartition(option, partition) for partition in partitions})
        )
    return found
