"""
The offsets that a run loads: from the end of the table to the end of the log, unless the caller
requests another start.

 - A partition that was never loaded begins at its oldest message.
 - Lost messages are never skipped silently. If the table ends at 100 and the log begins at 200, the
   run fails, unless the caller allows the loss.
 - A requested start before the oldest message becomes that message, with a note (as in 0.7's Hadoop
   consumer, spec-0.7 tools §11). A start behind the log's end is refused.
 - A start before the table's end loads the range B{again}: the same commit removes its old rows
   (rejected: duplicate rows). Rows whose messages retention has deleted stay.
 - A requested start other than the table's end is committed even without messages. Otherwise the
   next run would not know of it.
 - A log that ends before the table was created anew, or is another log. Only the user knows which
   rows are right then.

Offsets are positions: bytes in logs of Kafka 0.7, numbers in those of today's, where compaction and
transactions leave gaps. Nothing here counts with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pylogbroker.errors import LoadError
from pylogbroker.types import EARLIEST, LATEST, AnyPartition, OffsetBounds


class PlannedRange(NamedTuple):
    """
    A part of a partition to load.

    @ivar isAgain: whether it replaces rows of the table.
    """

    partition: AnyPartition
    fromOffset: int
    toOffset: int
    isAgain: bool

    @property
    def isEmpty(self) -> bool:
        return self.fromOffset == self.toOffset


class LoadPlan(NamedTuple):
    """
    The ranges of a run.

    @ivar ranges: an empty range only moves the end of the table.
    @ivar notes: sentences for the user.
    """

    ranges: tuple[PlannedRange, ...]
    notes: tuple[str, ...]

    @property
    def isEmpty(self) -> bool:
        return all(each.isEmpty for each in self.ranges)


def planRanges(
    positions: Mapping[AnyPartition, int],
    bounds: Mapping[AnyPartition, OffsetBounds],
    startOffsets: Mapping[AnyPartition, int] | None = None,
    *,
    isLossFatal: bool = True,
) -> LoadPlan:
    """
    @param positions: where the table ends, by partition.
    @param bounds: of the partitions to load.
    @param startOffsets: requested starts: an offset, L{EARLIEST} or L{LATEST}.
    @param isLossFatal: whether messages deleted before they were loaded are an error.
    @raise LoadError: a partition cannot be loaded; the text names all of them.
    """
    wanted = startOffsets or {}
    ranges: list[PlannedRange] = []
    notes: list[str] = []
    problems = [
        f"{each}: there is no such partition to begin at an offset of"
        for each in wanted.keys() - bounds.keys()
    ]
    for each in sorted(bounds):
        position, end = positions.get(each), bounds[each].end
        try:
            start = _start(each, position, bounds[each], wanted.get(each), isLossFatal, notes)
        except LoadError as error:
            problems.append(str(error))
            continue
        if start < end or (each in wanted and start != position):
            ranges.append(PlannedRange(each, start, end, start < (position or 0)))
    if problems:
        raise LoadError("\n".join(problems))
    return LoadPlan(tuple(ranges), tuple(notes))


def _start(
    partition: AnyPartition,
    position: int | None,
    bounds: OffsetBounds,
    wanted: int | None,
    isLossFatal: bool,
    notes: list[str],
) -> int:
    if wanted is not None:
        offset = {EARLIEST: bounds.start, LATEST: bounds.end}.get(wanted, wanted)
        if offset > bounds.end:
            raise LoadError(
                f"{partition}: the log ends at {bounds.end}, and cannot be loaded from {offset}"
            )
        if offset < bounds.start:
            notes.append(
                f"{partition}: the oldest message is at {bounds.start};"
                f" the load begins there, not at {offset}"
            )
            offset = bounds.start
        if position is not None and offset > position:
            notes.append(f"{partition}: offsets {position} to {offset} are skipped, as requested")
        return offset
    if position is None:
        return bounds.start
    if position > bounds.end:
        raise LoadError(
            f"{partition}: the log ends at {bounds.end}, and the table has it up to {position}:"
            " was the log created anew? A start has to be given"
        )
    if position >= bounds.start:
        return position
    lost = f"{partition}: offsets {position} to {bounds.start} were deleted before they were loaded"
    if isLossFatal:
        raise LoadError(f"{lost}; with failOnDataLoss=false the load continues behind them")
    notes.append(lost)
    return bounds.start


def advancePositions(
    positions: Mapping[AnyPartition, int], plan: LoadPlan
) -> dict[AnyPartition, int]:
    """Where the table ends after a plan."""
    return {**positions, **{each.partition: each.toOffset for each in plan.ranges}}
