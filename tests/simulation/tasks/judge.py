"""
What is in the topics and stores of a job at the end, against the plain function of its inputs.

With exactly once all must be equal: what was sent for the messages of each partition, of each key
in order; dead letters; stores, what their changelogs say, and the sums of all windows.

With at least once each message was handled, and what was sent for it is there at least once, and at
most as often as it was handled. A count is not below the number of its messages, nor above it by
more than those that were handled again. Of sums only the former holds: a window has no messages of
its own. One thing is accepted: what a container that was thought to be dead writes to a changelog
behind what its successor has read. Such keys are not compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from pylogbroker.tasks.job import DEAD_LETTER
from pylogbroker.tasks.taskinstance import OFFSET_HEADER, PARTITION_HEADER, TOPIC_HEADER
from tests.simulation.cluster.ledger import LogRecord
from tests.simulation.seeds import BrokenPromiseError
from tests.simulation.tasks.plans import COUNTS, ORIGIN, SUMS, Plan, truthOf
from tests.simulation.tasks.streamplans import StreamPlan

Read = Callable[[str], Mapping[int, list[LogRecord]]]
"""The committed records of a topic, by partition."""

Calls = Mapping[tuple[str, int, int], int]
"""How often a job handled a message: by topic, partition and offset."""

IsStale = Callable[[int, str, list[LogRecord]], list[bool]]
"""
Of each record of the changelog of a task and a store, whether a container has written it that has
lost the task.
"""

Entries = Mapping[bytes, bytes]
"""Of a store."""


class Judge:
    """
    What holds of every job.

    @ivar staleCount: keys of changelogs that are not compared.
    """

    def __init__(
        self,
        plan: Plan | StreamPlan,
        isExactlyOnce: bool,
        calls: Calls,
        read: Read,
        isStale: IsStale,
    ) -> None:
        self.staleCount = 0
        self._name = plan.name
        self._isExactlyOnce = isExactlyOnce
        self._calls = calls
        self._read = read
        self._inputs = {topic: read(topic) for topic in (*plan.inputs, *plan.broadcasts)}
        self._divided = plan.inputs
        self._onError = plan.onError
        self._stale: dict[tuple[int, str], set[bytes]] = defaultdict(set)
        self._changelogs: dict[tuple[int, str], dict[bytes, bytes]] = {}
        for name in plan.stores:
            for task, records in read(f"{plan.name}-{name}-changelog").items():
                self._fold(task, name, records, isStale(task, name, records))

    def _fold(self, task: int, name: str, records: list[LogRecord], isStale: list[bool]) -> None:
        found = self._changelogs[task, name] = {}
        for each, isLate in zip(records, isStale, strict=True):
            assert each.key is not None
            if isLate and not self._isExactlyOnce:
                self._stale[task, name].add(each.key)
            if each.value is None:
                found.pop(each.key, None)
            else:
                found[each.key] = each.value
        self.staleCount += len(self._stale[task, name])

    def _broken(self, text: str) -> BrokenPromiseError:
        return BrokenPromiseError(f"{self._name}: {text}")

    def judge(self) -> None:
        """
        @raise BrokenPromiseError: something does not hold.
        """
        for topic in self._divided:
            for task, records in self._inputs[topic].items():
                for each in records:
                    if not self._calls.get((topic, task, each.offset)):
                        raise self._broken(f"{topic}-{task} {each.offset} was skipped")
        if self._onError == DEAD_LETTER:
            self._judgeDead()
        self._judgeOwn()

    def _judgeOwn(self) -> None:
        """What holds of jobs of a kind."""
        raise NotImplementedError

    def _dead(self) -> list[str]:
        """The origins of the messages that must be dead letters."""
        raise NotImplementedError

    def judgeStores(self, stored: Mapping[tuple[int, str], Entries]) -> None:
        """
        @param stored: what containers have, by task and store.
        @raise BrokenPromiseError: it is not what the changelogs say.
        """
        for place in self._changelogs:
            found = stored.get(place)
            if found is None:
                raise self._broken(f"no container has store {place}")
            self.judgeStore(place, found, f"store {place}")

    def judgeStore(self, place: tuple[int, str], found: Entries, what: str) -> None:
        """
        @raise BrokenPromiseError: a store is not what its changelog says.
        """
        stale = self._stale[place]
        self._compare(
            f"{what} and its changelog differ",
            {key: each for key, each in found.items() if key not in stale},
            {key: each for key, each in self._changelogs[place].items() if key not in stale},
        )

    def _compare(self, what: str, found: Mapping[Any, object], due: Mapping[Any, object]) -> None:
        if found != due:
            wrong = {
                key: (found.get(key), due.get(key))
                for key in sorted({*found, *due})
                if found.get(key) != due.get(key)
            }
            raise self._broken(f"{what}: {wrong}")

    def _compareCounts(self, what: str, counts: Counter[str], origins: list[str]) -> None:
        """Each is there, and not more often than it was handled."""
        for origin in origins:
            topic, partition, offset, *_index = origin.split("/")
            most = self._calls[topic, int(partition), int(offset)]
            if not 1 <= counts[origin] <= (1 if self._isExactlyOnce else most):
                raise self._broken(
                    f"{counts[origin]} {what} were sent for {origin}, handled {most} times"
                )

    def _judgeDead(self) -> None:
        counts: Counter[str] = Counter()
        for each in chain(*self._read(f"{self._name}-dead-letters").values()):
            parts = [
                _headerOf(each, name) for name in (TOPIC_HEADER, PARTITION_HEADER, OFFSET_HEADER)
            ]
            counts["/".join(parts)] += 1
        dead = self._dead()
        if extra := counts.keys() - {*dead}:
            raise self._broken(f"dead letters of what has not failed: {sorted(extra)}")
        self._compareCounts("dead letters", counts, dead)


class JobJudge(Judge):
    """Judges a job of a chain."""

    def __init__(
        self, plan: Plan, isExactlyOnce: bool, calls: Calls, read: Read, isStale: IsStale
    ) -> None:
        super().__init__(plan, isExactlyOnce, calls, read, isStale)
        self._plan = plan
        self._truths = [
            truthOf(plan, task, {topic: each.get(task, []) for topic, each in self._inputs.items()})
            for task in range(plan.taskCount)
        ]

    def _judgeOwn(self) -> None:
        if self._plan.output:
            self._judgeSent()
        for task in range(self._plan.taskCount):
            self._judgeCounts(task)
        if self._plan.sums:
            self._judgeSums()

    def _dead(self) -> list[str]:
        return [origin for truth in self._truths for origin in truth.dead]

    # -- what was sent

    def _judgeSent(self) -> None:
        found: dict[str, dict[str, list[tuple[str | None, str]]]] = defaultdict(dict)
        places: dict[tuple[str, str], set[int]] = defaultdict(set)
        for partition, records in self._read(self._plan.output).items():
            for each in records:
                assert each.key is not None
                key, origin = each.key.decode(), _headerOf(each, ORIGIN)
                lane = origin.rsplit("/", 2)[0]
                value = None if each.value is None else each.value.decode()
                found[lane].setdefault(key, []).append((value, origin))
                places[lane, key].add(partition)
        for (lane, key), partitions in places.items():
            if partitions != (
                {int(lane.rpartition("/")[2])} if self._plan.isPinned else partitions
            ):
                raise self._broken(f"messages for {lane} are in partitions {partitions}")
            if len(partitions) > 1:
                raise self._broken(f"key {key} of {lane} is in partitions {partitions}")
        for task, truth in enumerate(self._truths):
            for topic, sent in truth.sent.items():
                due: dict[str, list[tuple[str | None, str]]] = {}
                for one in sent:
                    due.setdefault(one.key, []).append((one.value, one.origin))
                self._compareSent(f"{topic}/{task}", found.pop(f"{topic}/{task}", {}), due)
        if found:
            raise self._broken(f"messages were sent for what is not there: {found}")

    def _compareSent(
        self,
        lane: str,
        found: dict[str, list[tuple[str | None, str]]],
        due: dict[str, list[tuple[str | None, str]]],
    ) -> None:
        if self._isExactlyOnce:
            self._compare(f"what was sent for {lane} is wrong", found, due)
            return
        counts = Counter(origin for _value, origin in chain(*found.values()))
        origins = {origin: value for value, origin in chain(*due.values())}
        if extra := counts.keys() - origins.keys():
            raise self._broken(f"messages were sent for what is not there: {sorted(extra)}")
        self._compareCounts("messages", counts, list(origins))
        if not self._plan.counts:
            for value, origin in chain(*found.values()):
                if value != origins[origin]:
                    raise self._broken(f"{origin} is {value!r}, and not {origins[origin]!r}")

    # -- what was stored

    def _judgeCounts(self, task: int) -> None:
        changelog = self._changelogs.get((task, COUNTS))
        if changelog is None:
            return
        truth = self._truths[task]
        found = {key.decode(): int(each) for key, each in changelog.items()}
        if self._isExactlyOnce:
            self._compare(f"the counts of task {task} are wrong", found, truth.counts)
            return
        stale = {each.decode() for each in self._stale[task, COUNTS]}
        for key in {*found, *truth.counted} - stale:
            topic = key.partition(":")[0]
            offsets = truth.counted.get(key, [])
            most = sum(self._calls[topic, task, each] for each in offsets)
            if not len(offsets) <= found.get(key, 0) <= most:
                raise self._broken(
                    f"task {task} has counted {found.get(key, 0)} of {key}: there are"
                    f" {len(offsets)}, handled {most} times"
                )

    def _judgeSums(self) -> None:
        found: Counter[str] = Counter()
        for each in chain(*self._read(self._plan.sumsTopic).values()):
            assert each.key is not None and each.value is not None
            found[each.key.decode()] += int(each.value)
        due: Counter[str] = Counter()
        stale: set[str] = set()
        for task, truth in enumerate(self._truths):
            due += truth.sums
            stale |= {each.decode() for each in self._stale[task, SUMS]}
            for data, text in self._changelogs.get((task, SUMS), {}).items():
                found[data.decode()] += int(text)
        for key in {*found, *due} - stale:
            isRight = found[key] == due[key] if self._isExactlyOnce else found[key] >= due[key]
            if not isRight:
                raise self._broken(f"the sums of {key} are {found[key]}, and not {due[key]}")


def _headerOf(record: LogRecord, name: str) -> str:
    value = dict(record.headers)[name]
    assert value is not None
    return bytes(value).decode()
