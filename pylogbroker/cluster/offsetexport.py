"""
Offsets as lines of text, in the formats of two tools of 0.7.

C{/consumers/<group>/offsets/<topic>/<broker>-<partition>:<offset>}: a group's, of ExportZkOffsets
and ImportZkOffsets (spec-0.7 tools §5).

C{tcp://<host>:<port>\\t<topic>\\t<partition>\\t<offset>}: the Hadoop consumer's (§11), whose
output is the input of the next run. Offset -1 means the earliest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from pylogbroker.cluster import paths
from pylogbroker.cluster.paths import CONSUMERS, GroupPaths
from pylogbroker.cluster.znodes import decodeNumber, decodePartition
from pylogbroker.errors import FormatError, InvalidNameError, ZnodeError
from pylogbroker.types import BrokerPartition

_GROUP_LINE = re.compile(rf"({CONSUMERS}/([^/]*)/offsets/([^/]*)/([^/]*)):([^:]*)")


class GroupOffset(NamedTuple):
    """A group's offset for a partition."""

    group: str
    topic: str
    partition: BrokerPartition
    offset: int

    @property
    def path(self) -> str:
        """@raise InvalidNameError: the group or the topic has no valid name."""
        return GroupPaths(self.group).offset(self.topic, self.partition)

    def encode(self) -> str:
        return f"{self.path}:{self.offset}"


def decodeOffsetLine(line: str) -> GroupOffset:
    """
    @param line: without its end.
    @raise ZnodeError: it is not valid.
    """
    found = _GROUP_LINE.fullmatch(line)
    if found is None:
        raise ZnodeError(
            repr(line[:200]),
            repr(line.rpartition(":")[2][:20]),
            "a line is /consumers/<group>/offsets/<topic>/<broker>-<partition>:<offset>",
        )
    path, group, topic, name, number = found.groups()
    offset = decodeNumber(path, number.encode("utf-8", "surrogateescape"))
    if offset < 0:
        raise ZnodeError(path, number, "an offset is not negative")
    decoded = GroupOffset(group, topic, decodePartition(path, name), offset)
    try:
        decoded.path  # noqa: B018 - the names are looked at
    except InvalidNameError as error:
        raise ZnodeError(path, number, str(error)) from error
    return decoded


def decodeOffsetLines(lines: Iterable[str]) -> list[GroupOffset]:
    """
    Decode a file. Empty lines are skipped. (0.7 stops at the first.)

    @param lines: without their ends.
    @raise ZnodeError: a line is not valid, or contradicts another; the text names its number.
    """
    found: dict[str, GroupOffset] = {}
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            each = decodeOffsetLine(line.strip())
            if found.setdefault(each.path, each) != each:
                raise ZnodeError(
                    each.path, str(each.offset), f"another line has {found[each.path].offset}"
                )
        except ZnodeError as error:
            raise ZnodeError(f"line {index + 1}", repr(line.strip()[:200]), error.reason) from error
    return list(found.values())


FROM_EARLIEST = -1
_LINE = re.compile(r"tcp://([^\s/]+):([0-9]{1,5})/?\t([^\t]+)\t([0-9]{1,10})\t(-1|[0-9]{1,19})")
LONG_MAX = 2**63 - 1


class EtlOffset(NamedTuple):
    """The offset for a partition of a broker known by its address."""

    host: str
    port: int
    topic: str
    partition: int
    offset: int

    def encode(self) -> str:
        return f"tcp://{self.host}:{self.port}\t{self.topic}\t{self.partition}\t{self.offset}"


def decodeEtlLines(lines: Iterable[str]) -> list[EtlOffset]:
    """
    Decode a file. Empty lines are skipped.

    @param lines: without their ends.
    @raise FormatError: a line is not valid, or contradicts another; the text and C{position} give
        its number.
    """
    found: dict[tuple[str, int, str, int], EtlOffset] = {}
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        each = _decoded(line.strip(" \r\n"), index)
        if found.setdefault(each[:4], each) != each:
            raise FormatError(
                f"line {index + 1}: {line.strip()[:200]!r}: another line has offset "
                f"{found[each[:4]].offset}",
                index,
            )
    return list(found.values())


def _decoded(line: str, index: int) -> EtlOffset:
    parts = _LINE.fullmatch(line)
    if parts is None:
        raise FormatError(
            f"line {index + 1}: {line[:200]!r}: a line is tcp://<host>:<port>, topic, partition "
            "and offset, with tabs between",
            index,
        )
    each = EtlOffset(parts[1], int(parts[2]), parts[3], int(parts[4]), int(parts[5]))
    if each.port > 65535 or each.offset > LONG_MAX or each.partition >= 2**31:
        raise FormatError(f"line {index + 1}: {line[:200]!r}: a number is too large", index)
    try:
        paths.topic(each.topic)
    except InvalidNameError as error:
        raise FormatError(f"line {index + 1}: {error}", index) from error
    return each
