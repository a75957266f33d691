"""
Judges a chaos run of today's protocol (L{tests.integration.kafkachaos}) by what its processes wrote
down and what is in the logs. Pure: it is given values, and names what is broken in sentences.

What must hold:

  - B{Producers.} What was acknowledged is in the log, where the acknowledgement said. What failed
  is in no log. Nothing is there twice. The messages of a producer in a partition are in the order
  in which they were sent, so those of a key are. All of this is without exception: the producers
  are idempotent.
  - B{Groups.} Each message of the log was delivered. What a member gets of a partition, from its
  assignment on, is the log without a gap, from no earlier than the latest position that any member
  was told to be committed before; so a message comes again only if it was not committed. A position
  is committed behind messages that were handled before.
  - B{Owners.} A partition has one owner. A member that was stopped, or had no turn, may take itself
  for the owner until L{Allowance.noticeSeconds} after it goes on and the broker is there. So may
  one whose broker was stopped: when that goes on, it takes all sessions for over.
  - B{Copies.} What is committed of the output is the input: each message once, in order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from tests.integration.chaosjudge import Fault, some

BROKER = "broker"
"""The target of a fault."""

NO_OFFSET = -1
"""The broker had stored the batch before, and did not say where."""


class Entry(NamedTuple):
    """
    A message in a partition's log.

    @ivar value: C{producer.number.key}.
    """

    offset: int
    value: str


Logs = Mapping[str, Sequence[Entry]]
"""By partition, C{topic/number}."""


class Sent(NamedTuple):
    """
    What a producer wrote down.

    @ivar outcomes: C{ok}, C{failed} or C{unknown}, of each number that has one.
    @ivar places: partition and offset of those that were acknowledged.
    @ivar isKilled: it was; then some have no outcome.
    """

    numbers: Sequence[int]
    outcomes: Mapping[int, str]
    places: Mapping[int, tuple[str, int]]
    isKilled: bool = False


def judgeLogs(producers: Mapping[str, Sent], logs: Logs) -> list[str]:
    """What is broken between producers and logs; see the module."""
    copies = Counter(entry.value for entries in logs.values() for entry in entries)
    offsets = {
        (place, entry.offset): entry.value for place, entries in logs.items() for entry in entries
    }
    values = {value.rpartition(".")[0]: value for value in copies}
    faults: list[str] = []
    known: set[str] = set()
    for name, sent in producers.items():
        outcomes = {f"{name}.{number}": sent.outcomes.get(number) for number in sent.numbers}
        known |= outcomes.keys()
        if not sent.isKilled:
            faults += some(
                "sent, and nothing was ever said of it",
                (each for each, outcome in outcomes.items() if outcome is None),
            )
        faults += some(
            "acknowledged, and in no log",
            (each for each, outcome in outcomes.items() if outcome == "ok" and each not in values),
        )
        faults += some(
            "failed, and in a log",
            (each for each, outcome in outcomes.items() if outcome == "failed" and each in values),
        )
        faults += some(
            "acknowledged at an offset that has something else",
            (
                f"{name}.{number} at {place} {offset}"
                for number, (place, offset) in sent.places.items()
                if offset != NO_OFFSET
                and offsets.get((place, offset), "").rpartition(".")[0] != f"{name}.{number}"
            ),
        )
    faults += some("in the logs more than once", (each for each in copies if copies[each] > 1))
    faults += some("in a log, and never sent", sorted(values.keys() - known))
    faults += some("out of order", _disordered(logs))
    faults += some("keys in two partitions", _divided(logs))
    return faults


def _disordered(logs: Logs) -> Iterable[str]:
    """Messages that stand behind a later one of their producer in the same partition."""
    for place, entries in logs.items():
        latest: dict[str, int] = {}
        for entry in entries:
            name, number, _key = entry.value.split(".")
            if latest.get(name, -1) > int(number):
                yield f"{entry.value} behind {latest[name]} in {place}"
            latest[name] = max(int(number), latest.get(name, -1))


def _divided(logs: Logs) -> Iterable[str]:
    """Keys with messages in more than one partition; key 0 stands for none."""
    homes: dict[str, set[str]] = {}
    for place, entries in logs.items():
        for entry in entries:
            homes.setdefault(entry.value.rpartition(".")[2], set()).add(place)
    for key, places in homes.items():
        if key != "0" and len(places) > 1:
            yield f"{key} in {', '.join(sorted(places))}"


def judgeCopies(source: Sequence[Entry], copies: Sequence[Entry]) -> list[str]:
    """What is broken between a partition and its copy; see the module."""
    expected, found = [each.value for each in source], [each.value for each in copies]
    if expected == found:
        return []
    faults = some("not copied", (Counter(expected) - Counter(found)).elements())
    faults += some("copied more than once", (Counter(found) - Counter(expected)).elements())
    wanted = set(expected)
    faults += some("copied, and not in the input", (each for each in found if each not in wanted))
    places = {value: index for index, value in enumerate(expected)}
    order = [places[value] for value in found if value in places]
    faults += some(
        "copied in another order",
        (
            f"{expected[index]} behind {expected[before]}"
            for before, index in pairwise(order)
            if index < before
        ),
    )
    return faults


class Tenure(NamedTuple):
    """
    A partition's time with a member, and what the member got of it.

    @ivar begin: seconds of the machine's clock, before the first message.
    @ivar end: after the last one; infinite: it has the partition still.
    @ivar got: time, offset and value of each message.
    """

    member: str
    place: str
    begin: float
    end: float
    got: Sequence[tuple[float, int, str]]


class Commit(NamedTuple):
    """A position of which a member was told that it is committed."""

    seconds: float
    place: str
    offset: int


class Allowance(NamedTuple):
    """
    What a member is allowed that could not do anything.

    @ivar noticeSeconds: how long it takes to notice that its partitions went to others.
    """

    noticeSeconds: float


class GroupVerdict(NamedTuple):
    """
    What came of a group.

    @ivar againCount: deliveries of messages that were delivered before.
    @ivar overlapCount: partitions that had two owners, as allowed.
    """

    faults: list[str]
    deliveredCount: int
    againCount: int
    overlapCount: int


def judgeGroup(
    logs: Logs,
    tenures: Sequence[Tenure],
    commits: Sequence[Commit],
    faults: Sequence[Fault],
    allowance: Allowance,
) -> GroupVerdict:
    """
    See the module.

    @param faults: those of the kind C{stop}, of members and of L{BROKER}, and of the kind
        C{broker} (it was away) count.
    """
    found: list[str] = []
    indices = {
        (place, entry.offset, entry.value): index
        for place, entries in logs.items()
        for index, entry in enumerate(entries)
    }
    strangers, gaps, again = [], [], []
    firstTimes: dict[str, dict[int, float]] = {place: {} for place in logs}
    deliveredCount = againCount = 0
    committed = _Committed(commits)
    for tenure in sorted(tenures, key=lambda each: each.begin):
        last: int | None = None
        for number, (seconds, offset, value) in enumerate(tenure.got):
            deliveredCount += 1
            index = indices.get((tenure.place, offset, value))
            what = f"{value} at {tenure.place} {offset} to {tenure.member}"
            if index is None:
                strangers.append(what)
                continue
            if last is not None and index != last + 1:
                gaps.append(f"{what} behind {logs[tenure.place][last].value}")
            last = index
            position = committed.at(tenure.place, tenure.begin)
            if not number and offset < position:
                again.append(f"{what}, where {position} was committed")
            times = firstTimes[tenure.place]
            againCount += index in times
            times[index] = min(seconds, times.get(index, inf))
    found += some("delivered, and in no log", strangers)
    found += some("delivered with a gap, or twice to one owner", gaps)
    found += some("delivered again, although committed", again)
    found += some(
        "in a log, and not delivered",
        (
            f"{entry.value} at {place} {entry.offset}"
            for place, entries in logs.items()
            for index, entry in enumerate(entries)
            if index not in firstTimes[place]
        ),
    )
    found += some("committed before it was handled", _early(logs, firstTimes, commits))
    overlaps = list(_overlaps(tenures, faults, allowance))
    found += some("two owners", (what for what, isAllowed in overlaps if not isAllowed))
    return GroupVerdict(
        found, deliveredCount, againCount, sum(isAllowed for _what, isAllowed in overlaps)
    )


class _Committed:
    """The furthest position that was known to be committed at a time."""

    def __init__(self, commits: Iterable[Commit]) -> None:
        self._times: dict[str, list[float]] = {}
        self._offsets: dict[str, list[int]] = {}
        for seconds, place, offset in sorted(commits):
            offsets = self._offsets.setdefault(place, [])
            self._times.setdefault(place, []).append(seconds)
            offsets.append(max(offset, offsets[-1] if offsets else 0))

    def at(self, place: str, seconds: float) -> int:
        count = bisect_left(self._times.get(place, []), seconds)
        return self._offsets[place][count - 1] if count else 0


def _early(
    logs: Logs, firstTimes: Mapping[str, Mapping[int, float]], commits: Iterable[Commit]
) -> Iterable[str]:
    """Positions that were committed before all messages in front of them were delivered."""
    handledAt: dict[str, list[float]] = {}
    for place, entries in logs.items():
        latest = 0.0
        handledAt[place] = []
        for index in range(len(entries)):
            latest = max(latest, firstTimes[place].get(index, inf))
            handledAt[place].append(latest)
    offsets = {place: [entry.offset for entry in entries] for place, entries in logs.items()}
    for seconds, place, offset in commits:
        count = bisect_left(offsets.get(place, []), offset)
        if count and handledAt[place][count - 1] > seconds:
            yield f"{place} {offset} at {seconds:.3f}"


def _overlaps(
    tenures: Iterable[Tenure], faults: Sequence[Fault], allowance: Allowance
) -> Iterable[tuple[str, bool]]:
    """Tenures of a partition that had begun when another one's did, and whether that is allowed."""
    current: dict[str, list[Tenure]] = {}
    for later in sorted(tenures, key=lambda each: each.begin):
        owners = current.setdefault(later.place, [])
        owners[:] = [each for each in owners if each.end > later.begin]
        for earlier in owners:
            isAllowed = earlier.end <= _noticeTime(earlier.member, later.begin, faults, allowance)
            yield (
                f"{later.place}: {earlier.member} until {earlier.end:.3f}, {later.member} from"
                f" {later.begin:.3f}",
                isAllowed,
            )
        owners.append(later)


def _noticeTime(
    member: str, seconds: float, faults: Sequence[Fault], allowance: Allowance
) -> float:
    """
    Up to when a member may not know that its partitions went to another one at a time: from when it
    or the broker was stopped, while either is away, and until it must have noticed.
    """
    known = sorted(
        (
            fault
            for fault in faults
            if fault.kind == "broker" or (fault.kind == "stop" and fault.target in (member, BROKER))
        ),
        key=lambda each: each.begin,
    )
    latest = 0.0
    for first in known:
        if first.kind == "stop" and first.begin <= seconds:
            end = first.end + allowance.noticeSeconds
            for fault in known:
                if first.begin <= fault.begin <= end:
                    end = max(end, fault.end + allowance.noticeSeconds)
            if seconds <= end:
                latest = max(latest, end)
    return latest
