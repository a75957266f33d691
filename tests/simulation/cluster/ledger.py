"""
What the clients of a simulated cluster were told, and whether the partitions' logs agree with it.

 - an acknowledged message is at its offset; one that was refused is not in the log; none is there
   twice, since all producers are idempotent;
 - the messages of a producer are in order in each partition;
 - what a consumer was given is at its offset;
 - the copies of a topic that were committed are its messages, in order, each once;
 - what a reader of committed messages was given are those, without a gap;
 - all messages were given to a group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from pylogbroker.records.recordbatch import Headers, iterateRecords, readHeader
from tests.simulation.seeds import BrokenPromiseError

Place = tuple[str, int]
"""Topic and partition."""


class Outcome(Enum):
    """Of a message, beside its offset."""

    WAITING = "waiting"
    UNKNOWN = "unknown"
    REFUSED = "refused"


class LogRecord(NamedTuple):
    """
    A record in a log.

    @ivar producerId: -1: of none.
    @ivar timestampMs: of the record.
    """

    offset: int
    key: bytes | None
    value: bytes | None
    producerId: int
    isTransactional: bool
    isControl: bool
    timestampMs: int
    headers: Headers


def recordsOf(data: bytes) -> Iterator[LogRecord]:
    """The records of a log's bytes."""
    position = 0
    while position < len(data):
        header = readHeader(data, position)
        for each in iterateRecords(data, position, header):
            yield LogRecord(
                each.offset,
                None if each.key is None else bytes(each.key),
                None if each.value is None else bytes(each.value),
                header.producerId,
                header.isTransactional,
                header.isControl,
                each.timestampMs,
                tuple(each.headers),
            )
        position += header.size


def committedOf(place: Place, records: list[LogRecord]) -> list[LogRecord]:
    """
    What readers of committed messages get.

    @raise BrokenPromiseError: a transaction is open.
    """
    found: list[LogRecord] = []
    isCommitted: dict[int, bool] = {}
    for each in reversed(records):
        if each.isControl:
            assert each.key is not None
            isCommitted[each.producerId] = each.key[3] == 1
        elif not each.isTransactional:
            found.append(each)
        elif each.producerId not in isCommitted:
            raise BrokenPromiseError(f"{place}: the transaction with {each} is open at the end")
        elif isCommitted[each.producerId]:
            found.append(each)
    return found[::-1]


class Ledger:
    """
    @ivar outcomes: of each message that was sent: its place and offset, or another outcome.
    @ivar targets: the partition that each message is for.
    @ivar read: what consumers were given, by partition and offset.
    @ivar delivered: the offsets that each group was given, by partition.
    @ivar audited: what the reader of committed messages was given, by partition, in order.
    @ivar owners: of each group, generation and partition, the member that it was assigned to.
    @ivar committed: the last position that was told of each group and partition.
    @ivar doubtful: positions whose commit was not answered soon, of each group and partition: the
        request may have been sent again, and arrive late. OffsetCommit has no number that would
        tell it from the next one, so it puts the position back (in Kafka, too).
    @ivar ends: the last end that was told of each partition.
    """

    def __init__(self) -> None:
        self.outcomes: dict[bytes, int | Outcome] = {}
        self.targets: dict[bytes, Place] = {}
        self.read: dict[Place, dict[int, bytes | None]] = defaultdict(dict)
        self.delivered: dict[tuple[str, Place], set[int]] = defaultdict(set)
        self.audited: dict[Place, list[tuple[int, bytes | None]]] = defaultdict(list)
        self.owners: dict[tuple[str, int, Place], str] = {}
        self.committed: dict[tuple[str, Place], int] = {}
        self.doubtful: dict[tuple[str, Place], set[int]] = defaultdict(set)
        self.ends: dict[Place, int] = {}
        self.leaders: dict[tuple[Place, int], str] = {}

    # -- while it goes on

    def wasRead(self, place: Place, offset: int, value: bytes | None) -> None:
        """
        A consumer was given a message.

        @raise BrokenPromiseError: another one was at its offset before.
        """
        before = self.read[place].setdefault(offset, value)
        if before != value:
            raise BrokenPromiseError(f"{place}: at {offset} was {before!r}, and now is {value!r}")

    def wasAssigned(self, group: str, generation: int, place: Place, member: str) -> None:
        """
        A member was assigned a partition.

        @raise BrokenPromiseError: another one was, in the same generation.
        """
        other = self.owners.setdefault((group, generation, place), member)
        if other != member:
            raise BrokenPromiseError(
                f"{group}: {other} and {member} own {place} in generation {generation}"
            )

    def wasCommitted(self, group: str, place: Place, offset: int) -> None:
        """
        The coordinator has told a position.

        @raise BrokenPromiseError: it went back.
        """
        before = self.committed.get((group, place), 0)
        if offset < before and offset not in self.doubtful[group, place]:
            raise BrokenPromiseError(
                f"{group}: the committed position of {place} went back from {before} to {offset}"
            )
        self.committed[group, place] = offset

    def ended(self, place: Place, offset: int) -> None:
        """
        A broker has told the end of a partition.

        @raise BrokenPromiseError: it went back.
        """
        before = self.ends.get(place, 0)
        if offset < before:
            raise BrokenPromiseError(f"the end of {place} went back from {before} to {offset}")
        self.ends[place] = offset

    def leads(self, place: Place, epoch: int, process: str) -> None:
        """
        A broker has begun to lead a partition.

        @raise BrokenPromiseError: another process has led it in the same epoch.
        """
        other = self.leaders.setdefault((place, epoch), process)
        if other != process:
            raise BrokenPromiseError(f"{place}: {other} and {process} lead in epoch {epoch}")

    # -- at the end

    def judge(self, place: Place, records: list[LogRecord]) -> None:
        """
        Compare the log of a partition that producers write to with what was told.

        @raise BrokenPromiseError: they differ.
        """
        byOffset = {each.offset: each.value for each in records if not each.isControl}
        offsets: dict[bytes, int] = {}
        for each in records:
            if each.value is None or each.isControl:
                continue
            if each.value in offsets:
                raise BrokenPromiseError(
                    f"{place}: {each.value!r} is twice in the log: at {offsets[each.value]} and"
                    f" {each.offset}"
                )
            offsets[each.value] = each.offset
        for value, outcome in self.outcomes.items():
            if self.targets[value] != place:
                continue
            if isinstance(outcome, int) and byOffset.get(outcome) != value:
                raise BrokenPromiseError(
                    f"{place}: {value!r} was acknowledged at {outcome}, where"
                    f" {byOffset.get(outcome)!r} is; lost"
                )
            if outcome is Outcome.REFUSED and value in offsets:
                raise BrokenPromiseError(f"{place}: {value!r} was refused, and is in the log")
        self._judgeOrder(place, offsets)
        for offset, found in self.read[place].items():
            if byOffset.get(offset) != found:
                raise BrokenPromiseError(
                    f"{place}: {found!r} was read at {offset}, where {byOffset.get(offset)!r} is"
                )

    def _judgeOrder(self, place: Place, offsets: dict[bytes, int]) -> None:
        last: dict[str, int] = {}
        for value in offsets:
            name, _, number = value.decode().rpartition(".")
            if int(number) <= last.get(name, -1):
                raise BrokenPromiseError(
                    f"{place}: message {number} of {name} is behind {last[name]}"
                )
            last[name] = int(number)

    def judgeDelivered(self, group: str, place: Place, records: list[LogRecord]) -> None:
        """
        Whether a group was given all.

        @raise BrokenPromiseError: it was not.
        """
        delivered = self.delivered[group, place]
        missing = [each for each in records if not each.isControl and each.offset not in delivered]
        if missing:
            raise BrokenPromiseError(f"{group} was never given {missing[0]} of {place}")

    def judgeCopies(
        self, source: Place, records: list[LogRecord], target: Place, copies: list[LogRecord]
    ) -> None:
        """
        Compare a partition with its copies, which were made in transactions.

        @raise BrokenPromiseError: they differ.
        """
        committed = committedOf(target, copies)
        wanted = [each.value for each in records if not each.isControl]
        found = [each.value for each in committed]
        for at, (one, other) in enumerate(zip(wanted, found, strict=False)):
            if one != other:
                raise BrokenPromiseError(
                    f"copy {at} of {source} is {other!r}, and the message {one!r}: not whole"
                )
        if len(wanted) != len(found):
            raise BrokenPromiseError(
                f"{source} has {len(wanted)} messages, and {len(found)} committed copies"
            )
        given = self.audited[target]
        expected = [(each.offset, each.value) for each in committed][: len(given)]
        if given != expected:
            at = next(at for at, pair in enumerate(given) if expected[at : at + 1] != [pair])
            raise BrokenPromiseError(
                f"{target}: a reader of committed messages was given {given[at]}, and"
                f" {expected[at : at + 1]} is committed"
            )
