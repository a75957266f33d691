"""
What a run loads of each partition: from where the table ends to where the log ends, unless somebody wants it otherwise.

Rules, and why:

 - A partition of which nothing was loaded begins at its oldest message.
 - What was promised is not skipped in silence: when the table ends at 100 and the log begins at 200, messages are lost, and the run fails, unless told to
   go on.
 - A beginning that somebody asks for is a wish: one before the oldest message becomes that, with a note (as 0.7's Hadoop consumer did, spec-0.7 tools §11);
   one beyond the end is refused.
 - A beginning before the table's end loads the range B{again}: the rows that came of it are taken out in the same commit. (Rejected: to let rows stand
   twice. A table that equals its topic is the promise; who wants copies has a second table.) What retention has deleted meanwhile cannot be loaded again,
   and its rows stay.
 - A beginning that is not where the table ends is committed even if nothing lies behind it now: the range is empty then, moves the table's end, and takes out
   the rows behind it. Else the next run would know nothing of it, and go on where nobody wanted it to.
 - A log that ends before the table does was made anew, or is another one. Nobody but the user can know which rows are right then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pylogbroker.errors import LoadError
from pylogbroker.types import EARLIEST, LATEST, OffsetBounds, PartitionId


class PlannedRange(NamedTuple):
    """
    What to load of a partition.

    @ivar isAgain: whether the table may have rows of it, which go.
    """

    place: PartitionId
    fromOffset: int
    toOffset: int
    isAgain: bool

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return self.toOffset - self.fromOffset


class LoadPlan(NamedTuple):
    """
    What to load.

    @ivar ranges: an empty one moves the table's end, as was asked for, and has nothing to read.
    @ivar notes: what somebody should know, a sentence each.
    """

    ranges: tuple[PlannedRange, ...]
    notes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes of the logs."""
        return sum(each.size for each in self.ranges)


def planRanges(
    positions: Mapping[PartitionId, int],
    bounds: Mapping[PartitionId, OffsetBounds],
    beginnings: Mapping[PartitionId, int] | None = None,
    *,
    isLossFatal: bool = True,
) -> LoadPlan:
    """
    @param positions: up to where the table has each partition.
    @param bounds: of the partitions to load.
    @param beginnings: where to begin instead: an offset, L{EARLIEST} or L{LATEST}.
    @param isLossFatal: whether messages that were deleted before they were loaded are an error.
    @raise LoadError: a partition cannot be loaded as it ought to be; the text says which, all of them.
    """
    wanted = beginnings or {}
    ranges: list[PlannedRange] = []
    notes: list[str] = []
    problems: list[str] = []
    for place in wanted.keys() - bounds.keys():
        problems.append(f"{place}: there is no such partition to begin at an offset of")
    for place in sorted(bounds):
        try:
            fromOffset = _beginning(
                place, positions.get(place), bounds[place], wanted.get(place), isLossFatal, notes
            )
        except LoadError as error:
            problems.append(str(error))
            continue
        if fromOffset < bounds[place].end or (
            place in wanted and fromOffset != positions.get(place)
        ):
            ranges.append(
                PlannedRange(
                    place, fromOffset, bounds[place].end, fromOffset < positions.get(place, 0)
                )
            )
    if problems:
        raise LoadError("\n".join(problems))
    return LoadPlan(tuple(ranges), tuple(notes))


def _beginning(
    place: PartitionId,
    position: int | None,
    bounds: OffsetBounds,
    wish: int | None,
    isLossFatal: bool,
    notes: list[str],
) -> int:
    """Where to begin; what there is to say goes to the notes."""
    if wish is not None:
        return _wished(place, position, bounds, wish, notes)
    if position is None:
        return bounds.start
    if position > bounds.end:
        raise LoadError(
            f"{place}: the log ends at {bounds.end}, and the table has it up to {position}: was it made anew? A beginning has to be given"
        )
    if position >= bounds.start:
        return position
    lost = f"{place}: offsets {position} to {bounds.start} were deleted before they were loaded"
    if isLossFatal:
        raise LoadError(f"{lost}; with failOnDataLoss=false the load goes on behind them")
    notes.append(lost)
    return bounds.start


def _wished(
    place: PartitionId, position: int | None, bounds: OffsetBounds, wish: int, notes: list[str]
) -> int:
    offset = {EARLIEST: bounds.start, LATEST: bounds.end}.get(wish, wish)
    if offset > bounds.end:
        raise LoadError(
            f"{place}: the log ends at {bounds.end}, and cannot be loaded from {offset} on"
        )
    if offset < bounds.start:
        notes.append(
            f"{place}: the oldest message is at {bounds.start}; the load begins there, and not at {offset}"
        )
        offset = bounds.start
    if position is not None and offset > position:
        notes.append(f"{place}: offsets {position} to {offset} are skipped, as was asked for")
    return offset


def advanced(positions: Mapping[PartitionId, int], plan: LoadPlan) -> dict[PartitionId, int]:
    """Up to where the table has each partition, with a plan carried out."""
    return {**positions, **{each.place: each.toOffset for each in plan.ranges}}
