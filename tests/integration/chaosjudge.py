"""
Judges a chaos run (L{tests.integration.chaos}) by what its processes wrote down and what is in the
logs. Pure: it is given values, and names what is broken in sentences.

A duplicate delivery is excused when one of the two members that got the message was killed, stopped
or lost its session, or ZooKeeper was away, near enough in time: what had not been committed by then
(L{Bounds.commitSeconds}) up to when the member knew of it (L{Bounds.noticeSeconds}); or when the
message stands in a compressed set that the member before had not come to the end of, since in the
middle no position can be kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

FAULT_COUNT_MAX = 20
"""Of one kind that are named."""

EXCUSING = frozenset(("kill", "stop", "expire", "zookeeper"))
"""Kinds of faults after which a message may come twice."""

ZOOKEEPER = "zookeeper"


class Entry(NamedTuple):
    """
    A message in a partition's log.

    @ivar value: C{producer.number.key}.
    @ivar nextOffset: what a reader is told.
    @ivar wrapperEnd: the offset behind the wrapper that it stands in; 0: it stands in none.
    """

    value: str
    nextOffset: int
    wrapperEnd: int = 0


class Sender(NamedTuple):
    """A message that a member got; C{seconds} of the machine's clock."""

    seconds: float
    member: str
    place: str
    nextOffset: int
    value: str


class Fault(NamedTuple):
    """
    Something that was done.

    @ivar target: a process, or L{ZOOKEEPER}.
    """

    kind: str
    target: str
    begin: float
    end: float


class Bounds(NamedTuple):
    """How far a fault's effects reach, in seconds."""

    commitSeconds: float
    noticeSeconds: float


class Sent(NamedTuple):
    """
    What a producer wrote down.

    @ivar outcomes: C{ok}, C{failed} or C{unknown}, of each number that has one.
    @ivar repeatedCount: messages that it reported as sent again after an unknown outcome.
    @ivar isRetrying: whether it tries again at all.
    @ivar times: when each was sent, and when its outcome was told, in seconds.
    @ivar viewTimes: when the producer began to use another list of brokers or partitions, in
        seconds, in order.
    """

    numbers: Sequence[int]
    outcomes: Mapping[int, str]
    repeatedCount: int = 0
    isRetrying: bool = False
    times: Mapping[int, tuple[float, float]] = {}
    viewTimes: Sequence[float] = ()


Logs = Mapping[str, Sequence[Entry]]


class Group(NamedTuple):
    """
    What came of a group's deliveries.

    @ivar duplicates: how many messages came again, by excuse.
    """

    faults: list[str]
    duplicates: dict[str, int]


def some(kind: str, found: Iterable[object]) -> list[str]:
    """One sentence for many of a kind."""
    found = list(found)
    if not found:
        return []
    return [
        f"{kind}: {len(found)}: {', '.join(map(str, found[:FAULT_COUNT_MAX]))}"
        f"{' …' if len(found) > FAULT_COUNT_MAX else ''}"
    ]


def _movedNumbers(sent: Sent) -> set[int]:
    """
    Messages that were under way while the producer's list of partitions changed. One that waits for
    a broker that has gone is given another place; and if its key had another home meanwhile, later
    messages are there already.
    """
    views = sent.viewTimes
    return {
        number
        for number, (begin, end) in sent.times.items()
        if bisect_left(views, begin) < bisect_right(views, end)
    }


def judgeLogs(producers: Mapping[str, Sent], logs: Logs) -> list[str]:
    """
    Sent = in the logs + reported failed or unknown; twice only by a reported retry; a key's
    confirmed messages in order where nothing was tried again, but for those that were under way
    while the producer's list of partitions changed.
    """
    copies: Counter[str] = Counter()
    keyed: dict[str, set[str]] = {}
    for entries in logs.values():
        for entry in entries:
            name, number, _key = entry.value.split(".")
            copies[f"{name}.{number}"] += 1
            keyed.setdefault(name, set()).add(number)
    faults: list[str] = []
    known: set[str] = set()
    for name, sent in producers.items():
        ids = {number: f"{name}.{number}" for number in sent.numbers}
        known.update(ids.values())
        told = {each: sent.outcomes.get(number) for number, each in ids.items()}
        faults += some(
            "sent, and nothing was ever said of it",
            (each for each, outcome in told.items() if outcome is None),
        )
        faults += some(
            "confirmed, and in no log",
            (each for each, outcome in told.items() if outcome == "ok" and not copies[each]),
        )
        faults += some(
            "reported failed, and in a log",
            (each for each, outcome in told.items() if outcome == "failed" and copies[each]),
        )
        extra = [each for each in ids.values() if copies[each] > 1]
        if sum(copies[each] - 1 for each in extra) > sent.repeatedCount:
            faults += some(
                f"more often in the logs than {name}'s {sent.repeatedCount} reported retries"
                " explain",
                extra,
            )
        if not sent.isRetrying:
            moved = {ids[number] for number in _movedNumbers(sent) if number in ids}
            confirmed = {
                each for each, outcome in told.items() if outcome == "ok" and each not in moved
            }
            faults += some(
                "a key's confirmed messages out of order", _disordered(name, confirmed, logs)
            )
    faults += some("in a log, and never sent", sorted(copies.keys() - known))
    return faults


def _disordered(name: str, confirmed: Collection[str], logs: Logs) -> Iterable[str]:
    """
    Messages of a producer that stand behind a later one of their key. What was reported unknown may
    come late: a broker that hangs carries out what lies in a connection that was cut after what
    came over a new one.
    """
    for place, entries in logs.items():
        last: dict[str, int] = {}
        for entry in entries:
            producer, number, key = entry.value.split(".")
            if (
                producer == name and key != "0" and f"{name}.{number}" in confirmed
            ):  # 0 stands for no key
                if last.get(key, -1) >= int(number):
                    yield f"{name}.{number} behind {last[key]} in {place}"
                last[key] = int(number)


def judgeGroup(
    logs: Logs, deliveries: Sequence[Sender], faults: Sequence[Fault], bounds: Bounds
) -> Group:
    """Everything was delivered, in order; twice only with an excuse."""
    indices = {
        (place, entry.nextOffset, entry.value): index
        for place, entries in logs.items()
        for index, entry in enumerate(entries)
    }
    got: dict[str, dict[int, list[Sender]]] = {place: {} for place in logs}
    strangers = []
    for delivery in sorted(deliveries):
        index = indices.get((delivery.place, delivery.nextOffset, delivery.value))
        if index is None:
            strangers.append(delivery)
        else:
            got[delivery.place].setdefault(index, []).append(delivery)
    found = some("delivered, and in no log", strangers)
    # A message in a wrapper has the wrapper's beginning as its next offset, unless it is the last.
    ends = {
        (each.member, each.place, each.nextOffset): each.seconds
        for each in sorted(deliveries, reverse=True)
    }
    duplicates: Counter[str] = Counter()
    missing, unexcused, disordered = [], [], []
    for place, entries in logs.items():
        latest = -1.0
        for index, entry in enumerate(entries):
            times = got[place].get(index)
            if times is None:
                missing.append(f"{entry.value} in {place} before {entry.nextOffset}")
                continue
            if times[0].seconds < latest:
                disordered.append(f"{entry.value} in {place} before {entry.nextOffset}")
            latest = times[0].seconds
            for position, again in enumerate(times[1:], 1):
                excuse = excuseOf(times[:position], again, faults, bounds)
                if excuse is None and entry.wrapperEnd:
                    cameToEnd = [
                        ends.get((each.member, place, entry.wrapperEnd), again.seconds)
                        for each in times[:position]
                    ]
                    excuse = "compressed set" if max(cameToEnd) >= again.seconds else None
                duplicates[excuse or "none"] += 1
                if excuse is None:
                    first = times[position - 1]
                    unexcused.append(
                        f"{entry.value} in {place}: {first.member} at {first.seconds:.3f},"
                        f" {again.member} at {again.seconds:.3f}"
                    )
    found += some("in a log, and not delivered", missing)
    found += some("delivered after what stands behind it", disordered)
    found += some("delivered again without a reason", unexcused)
    return Group(found, dict(duplicates))


def excuseOf(
    before: Sequence[Sender], again: Sender, faults: Iterable[Fault], bounds: Bounds
) -> str | None:
    """The kind of fault by which a message came again, if there is one."""
    for first in before:
        for fault in faults:
            if fault.kind not in EXCUSING or fault.target not in (
                first.member,
                again.member,
                ZOOKEEPER,
            ):
                continue
            if (
                first.seconds <= fault.end + bounds.noticeSeconds
                and first.seconds >= fault.begin - bounds.commitSeconds
                and again.seconds >= fault.begin
            ):
                return fault.kind
    return None
