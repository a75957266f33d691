"""
Judges transactions that append to lists and read them, as Elle does (Kingsbury and Alvaro, 2020):
each value is appended once, so a read says which appends it has seen, and in which order. From that
follows which transaction must come before which; a cycle is an anomaly. Pure: it is given a
history, and names what is broken in sentences.

A list is a partition, and a read is all that a reader with C{isolation.level=read_committed} gets
of it. Kafka does not isolate the transactions of different ids from each other: their messages may
alternate, and readers see one partition of a transaction earlier than another. What it promises is
that the transactions of B{one} C{transactional.id} follow each other, whichever process writes
them, since each new producer fences the ones before. So the transactions of a history have one id,
and are alone in their lists; a read comes behind the first append that was acknowledged to its
transaction, when the marks of the one before are written. Then the history must be strictly
serializable:

  - B{Values}: what was committed is there, what was aborted is seen by no reader, nothing is there
  twice, a transaction is there as a whole (C{G1a}, and lost or partial commits).
  - B{Reads}: each is a beginning of the list at the end. None ends between two appends of one
  transaction (C{G1b}).
  - B{Order}: no cycle of these edges: C{ww}, the next append to a list; C{wr}, a read that ends
  with an append; C{rw}, the append that a read did not see; C{rt}, a beginning after the end. It is
  named by the kinds that it needs: C{G0} has only C{ww}, C{G1c} also C{wr}, C{G-single} one C{rw},
  C{G2} several; C{-realtime} also has C{rt}.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from tests.integration.chaosjudge import some

Lists = Mapping[str, Sequence[str]]
"""By partition, the values at the end."""

OK, ABORTED, UNKNOWN = "ok", "aborted", "unknown"
LEVELS = (("ww",), ("ww", "wr"), ("ww", "wr", "rw"), ("ww", "wr", "rw", "rt"))
"""The kinds of edges in which a cycle is looked for, one after the other."""


class Append(NamedTuple):
    """A value, to a list."""

    place: str
    value: str


class Read(NamedTuple):
    """The whole list."""

    place: str
    values: Sequence[str]


class Transaction(NamedTuple):
    """
    What an application wrote down.

    @ivar outcome: L{OK}; L{ABORTED}: it cannot have been committed; else L{UNKNOWN}.
    @ivar begin: seconds, before its first step.
    @ivar end: when the application knew the outcome; infinite: it never did.
    """

    name: str
    steps: Sequence[Append | Read]
    outcome: str
    begin: float = 0
    end: float = inf


class TransactionsVerdict(NamedTuple):
    """
    What came of a history.

    @ivar edgeCount: how many edges the graph had.
    """

    faults: list[str]
    committedCount: int
    abortedCount: int
    readCount: int
    edgeCount: int


def judgeTransactions(transactions: Sequence[Transaction], lists: Lists) -> TransactionsVerdict:
    """
    See the module.

    @param lists: what a reader of committed messages gets of each partition at the end.
    """
    history = _History(transactions, lists)
    faults = [*history.judgeValues(), *history.judgeReads()]
    edges = history.edges()
    faults += some("a cycle", _cycles(edges))
    return TransactionsVerdict(
        faults,
        sum(each.name in history.committed for each in transactions),
        sum(each.name not in history.committed for each in transactions),
        sum(isinstance(step, Read) for each in transactions for step in each.steps),
        len(edges),
    )


Edges = dict[tuple[str, str], str]
"""From one transaction to the one that comes behind it; the kind that is first in L{LEVELS}."""


class _History:
    def __init__(self, transactions: Sequence[Transaction], lists: Lists) -> None:
        self._transactions = transactions
        self._lists = lists
        self._outcomes = {each.name: each.outcome for each in transactions}
        self._appends = {
            each.name: [step for step in each.steps if isinstance(step, Append)]
            for each in transactions
        }
        self._writers = {
            (step.place, step.value): name
            for name, appends in self._appends.items()
            for step in appends
        }
        self._there = {(place, value) for place, values in lists.items() for value in values}
        self.committed = {
            each.name
            for each in transactions
            if each.outcome == OK
            or (each.outcome == UNKNOWN and any(step in self._there for step in self._of(each)))
        }

    def _of(self, transaction: Transaction) -> Iterator[tuple[str, str]]:
        return ((step.place, step.value) for step in self._appends[transaction.name])

    def judgeValues(self) -> list[str]:
        faults = some("never appended, and in a list", sorted(self._there - self._writers.keys()))
        for place, values in self._lists.items():
            counts = Counter(values)
            faults += some(
                f"more than once in {place}", (each for each in values if counts[each] > 1)
            )
        missing = {
            each.name: [step for step in self._of(each) if step not in self._there]
            for each in self._transactions
            if each.name in self.committed
        }
        for name, steps in missing.items():
            if steps:
                what = "in part" if len(steps) < len(self._appends[name]) else "not at all"
                faults += [f"{name} is committed ({self._outcomes[name]}), and there {what}"]
        faults += some(
            "G1a, aborted and in a list",
            (
                f"{value} in {place}"
                for place, value in sorted(self._there)
                if self._isAborted(place, value)
            ),
        )
        return faults

    def _isAborted(self, place: str, value: str) -> bool:
        return self._outcomes.get(self._writers.get((place, value), "")) == ABORTED

    def _reads(self) -> Iterator[tuple[Transaction, Read]]:
        for each in self._transactions:
            for step in each.steps:
                if isinstance(step, Read):
                    yield each, step

    def judgeReads(self) -> list[str]:
        aborted: dict[str, str] = {}
        strange, between = [], []
        for reader, (place, values) in self._reads():
            found = self._lists.get(place, ())
            for value in values:
                if self._isAborted(place, value):
                    aborted.setdefault(value, f"{value} of {place} by {reader.name}")
            if [*values] != [*found[: len(values)]]:
                strange.append(f"{len(values)} of {place} by {reader.name}")
            elif values and self._isBetween(place, values[-1]):
                between.append(f"{values[-1]} of {place} by {reader.name}")
        return [
            *some("G1a, aborted and read", aborted.values()),
            *some("read, and no beginning of the list at the end", strange),
            *some("G1b, read between two appends of a transaction", between),
        ]

    def _isBetween(self, place: str, value: str) -> bool:
        """Whether its transaction appended to the list again."""
        writer = self._writers.get((place, value))
        if writer is None:
            return False
        values = [step.value for step in self._appends[writer] if step.place == place]
        return value != values[-1]

    def edges(self) -> Edges:
        edges: Edges = {}

        def add(one: str | None, other: str | None, kind: str) -> None:
            if one == other or one is None or other is None:
                return
            if one in self.committed and other in self.committed:
                edges.setdefault((one, other), kind)

        writers = {
            place: [self._writers.get((place, value)) for value in values]
            for place, values in self._lists.items()
        }
        for found in writers.values():
            for one, other in pairwise(found):
                add(one, other, "ww")
        for reader, (place, values) in self._reads():
            if values:
                add(self._writers.get((place, values[-1])), reader.name, "wr")
        for reader, (place, values) in self._reads():
            following = writers.get(place, [])[len(values) : len(values) + 1]
            for other in following:
                add(reader.name, other, "rw")
        for one, other in self._following():
            add(one, other, "rt")
        return edges

    def _following(self) -> Iterator[tuple[str, str]]:
        """
        Which transaction began when which had ended: of those that had ended, the ones that ended
        no earlier than another of them began. All others follow from these.
        """
        known = [each for each in self._transactions if each.name in self.committed]
        byEnd = sorted((each for each in known if each.end < inf), key=lambda each: each.end)
        ends = [each.end for each in byEnd]
        latestBegins: list[float] = []
        for each in byEnd:
            latestBegins.append(max(each.begin, latestBegins[-1] if latestBegins else -inf))
        for later in known:
            count = bisect_left(ends, later.begin)
            if count:
                first = bisect_left(ends, latestBegins[count - 1])
                for earlier in byEnd[first:count]:
                    yield earlier.name, later.name


def _cycles(edges: Edges) -> Iterator[str]:
    """Of the simplest kind of cycle that there is, a shortest one in each knot."""
    for kinds in LEVELS:
        successors: defaultdict[str, list[str]] = defaultdict(list)
        for (one, other), kind in edges.items():
            if kind in kinds:
                successors[one].append(other)
        found = [_shortest(knot, successors) for knot in _knots(successors)]
        if found:
            for cycle in found:
                steps = [edges[one, other] for one, other in pairwise(cycle)]
                text = "".join(
                    f" -{kind}-> {name}" for kind, name in zip(steps, cycle[1:], strict=True)
                )
                yield f"{_nameOf(steps)}: {cycle[0]}{text}"
            return


def _nameOf(kinds: Sequence[str]) -> str:
    name = "G0"
    if "wr" in kinds:
        name = "G1c"
    if "rw" in kinds:
        name = "G-single" if kinds.count("rw") == 1 else "G2"
    return f"{name}-realtime" if "rt" in kinds else name


def _knots(successors: Mapping[str, Sequence[str]]) -> Iterator[set[str]]:
    """The strongly connected parts with more than one member (Tarjan's algorithm, with a stack)."""
    numbers: dict[str, int] = {}
    lows: dict[str, int] = {}
    path: list[str] = []
    onPath: set[str] = set()
    work: list[tuple[str, Iterator[str]]] = []

    def enter(node: str) -> None:
        numbers[node] = lows[node] = len(numbers)
        path.append(node)
        onPath.add(node)
        work.append((node, iter(successors.get(node, ()))))

    for root in [*successors]:
        if root not in numbers:
            enter(root)
        while work:
            node, rest = work[-1]
            for each in rest:
                if each not in numbers:
                    enter(each)
                    break
                if each in onPath:
                    lows[node] = min(lows[node], numbers[each])
            else:
                work.pop()
                if work:
                    before = work[-1][0]
                    lows[before] = min(lows[before], lows[node])
                if lows[node] == numbers[node]:
                    at = path.index(node)
                    knot = {*path[at:]}
                    del path[at:]
                    onPath.difference_update(knot)
                    if len(knot) > 1:
                        yield knot


def _shortest(knot: Iterable[str], successors: Mapping[str, Sequence[str]]) -> list[str]:
    """A shortest cycle through one of its members; it begins and ends with that."""
    members = {*knot}
    best: list[str] = []
    for start in sorted(members)[:_START_COUNT_MAX]:
        cycle = _back(start, members, successors)
        if not best or len(cycle) < len(best):
            best = cycle
    return best


_START_COUNT_MAX = 50


def _back(start: str, members: set[str], successors: Mapping[str, Sequence[str]]) -> list[str]:
    before: dict[str, str] = {}
    waiting = deque([start])
    while start not in before:  # each member of a knot has a way back
        node = waiting.popleft()
        for each in successors.get(node, ()):
            if each in members and each not in before:
                before[each] = node
                waiting.append(each)
    cycle = [start]
    node = before[start]
    while node != start:
        cycle.append(node)
        node = before[node]
    return [*cycle, start][::-1]
