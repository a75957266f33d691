"""
Offsets as lines of 0.7's Hadoop consumer (spec-0.7 tools §11): C{tcp://<host>:<port>\\t<topic>\\t<partition>\\t<offset>}. What it wrote at the end of a
run was the input of the next. An offset of -1 means the earliest here, and not the latest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from pylogbroker.cluster import paths
from pylogbroker.errors import FormatError, InvalidNameError

FROM_EARLIEST = -1
_LINE = re.compile(r"tcp://([^\s/]+):([0-9]{1,5})/?\t([^\t]+)\t([0-9]{1,10})\t(-1|[0-9]{1,19})")
LONG_MAX = 2**63 - 1


class EtlOffset(NamedTuple):
    """Where to begin, or go on, with a partition of a broker that is known by its address."""

    host: str
    port: int
    topic: str
    partition: int
    offset: int

    def encode(self) -> str:
        """A line, without its end."""
        return f"tcp://{self.host}:{self.port}\t{self.topic}\t{self.partition}\t{self.offset}"


def decodeEtlLines(lines: Iterable[str]) -> list[EtlOffset]:
    """
    A file. Empty lines are left out.

    @param lines: without their ends.
    @raise FormatError: a line is none, or says of a partition what another line says otherwise; the text names its number, and so does C{position}.
    """
    found: dict[tuple[str, int, str, int], EtlOffset] = {}
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        each = _decoded(line.strip(" \r\n"), index)
        if found.setdefault(each[:4], each) != each:
            raise FormatError(
                f"line {index + 1}: {line.strip()[:200]!r}: another line has offset {found[each[:4]].offset}",
                index,
            )
    return list(found.values())


def _decoded(line: str, index: int) -> EtlOffset:
    parts = _LINE.fullmatch(line)
    if parts is None:
        raise FormatError(
            f"line {index + 1}: {line[:200]!r}: a line is tcp://<host>:<port>, topic, partition and offset, with tabs between",
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
