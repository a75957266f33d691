"""
What the chaos trials of today's protocol have in common (L{tests.integration.kafkachaos},
L{tests.long.replicationchaos}): brokers that are killed, stopped and restarted, what is read of
their logs, and the books of producers and groups.
"""

from __future__ import annotations

import signal
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import Any, ClassVar, NamedTuple

from tests.integration.chaosjudge import Fault
from tests.integration.chaosrun import END_SECONDS_MAX, BrokenError, ChaosRun, Member
from tests.integration.kafkachaosjudge import (
    BROKER,
    Allowance,
    Commit,
    Entry,
    Sent,
    Tenure,
    judgeCopies,
    judgeGroup,
    judgeLogs,
)
from tests.integration.kafkachaosrecords import commitsOf, lateTimesOf, sentBy, tenuresOf
from tests.integration.numberedmessages import CLICKS, COPIES, placed, valueName
from tests.oracle.directoryrecording import readRecords

COPIERS = "copiers"
"""The group of the applications that copy L{CLICKS} to L{COPIES} in transactions."""
CLIENT_PROPERTIES = {
    "request.timeout.ms": "3000",
    "socket.connection.setup.timeout.ms": "2000",
    "retry.backoff.max.ms": "500",
}
CONSUMER_PROPERTIES = {
    **CLIENT_PROPERTIES,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "auto.commit.interval.ms": "500",
    "fetch.max.wait.ms": "200",
}


class Deliveries(NamedTuple):
    """
    What groups got.

    @ivar againCount: deliveries of messages that were delivered before.
    @ivar overlapCount: times that a stopped member took itself for the owner of another's.
    """

    deliveredCount: int
    againCount: int
    overlapCount: int


class KafkaChaosRun(ChaosRun):
    """
    One run of a trial of today's protocol.

    @cvar partitionCount: of each topic.
    @cvar groups: of each group, the topic that it reads.
    @cvar startSeconds: how long a broker may take until it serves.
    @cvar awaySeconds: how long a killed broker is away, at least and at most.
    @cvar stopSeconds: how long a broker is stopped, at least and at most.
    """

    partitionCount: ClassVar[int]
    groups: ClassVar[Mapping[str, str]]
    startSeconds: ClassVar[float]
    awaySeconds: ClassVar[tuple[float, float]]
    stopSeconds: ClassVar[tuple[float, float]]

    def __init__(
        self,
        folder: str,
        seed: int,
        seconds: float,
        tell: Callable[[str], None] = lambda text: None,
        slowness: float = 1.0,
    ) -> None:
        """See L{ChaosRun}."""
        super().__init__(folder, seed, seconds, tell, slowness)
        self._brokers: defaultdict[int, list[Member]] = defaultdict(list)
        self._isBrokerAway = False
        self._producers: list[Member] = []
        self._members: list[Member] = []
        self._logs: dict[str, list[Entry]] = {}

    @property
    @abstractmethod
    def _bootstrapServers(self) -> str:
        """Of the cluster."""

    def _processes(self) -> list[Member]:
        brokers = [each for started in self._brokers.values() for each in started]
        return [*self._producers, *self._members, *brokers]

    def _clear(self) -> None:
        for member in self._processes():
            member.kill()

    # -- brokers

    @abstractmethod
    def _startProcess(self, number: int) -> Member:
        """Start the process of a broker, with the data that it had."""

    @abstractmethod
    def _take(self, act: Callable[[], None]) -> int | None:
        """A broker to disturb; L{None}: it cannot be now, and is done later."""

    @abstractmethod
    def _release(self, kind: str, number: int, begin: float, what: str) -> None:
        """A broker serves again; note the fault, and when the next one may come."""

    def _launchBroker(self, number: int) -> None:
        self._brokers[number].append(self._startProcess(number))

    def _isServing(self, number: int) -> bool:
        broker = self._brokers[number][-1]
        if not broker.isHere:
            text = broker.log.read_text(encoding="utf-8")[-2000:]
            raise BrokenError(f"{broker.name} has ended by itself: {text}")
        return any(broker.lines("serving"))

    def _startBroker(self, number: int, begin: float, what: str) -> None:
        self._launchBroker(number)
        deadline = monotonic() + self.startSeconds

        def look() -> None:
            if self._isServing(number):
                self._release(BROKER, number, begin, what)
            elif monotonic() > deadline:
                raise BrokenError(f"broker {number} has not started within {self.startSeconds} s")
            else:
                self._later(0.05, look)

        look()

    def _killBroker(self) -> None:
        number = self._take(self._killBroker)
        if number is None:
            return
        self._isBrokerAway = True
        begin = monotonic()
        self._tell(f"kill -9 broker {number}")
        self._brokers[number][-1].kill()
        self._later(
            self._random.uniform(*self.awaySeconds),
            lambda: self._startBroker(number, begin, "kill broker"),
        )

    def _stopBroker(self) -> None:
        number = self._take(self._stopBroker)
        if number is None:
            return
        self._isBrokerAway = True
        begin = monotonic()
        broker = self._brokers[number][-1]
        self._tell(f"stop broker {number}")
        broker.signal(signal.SIGSTOP)

        def goOn() -> None:
            broker.signal(signal.SIGCONT)
            self._release("stop", number, begin, "stop broker")

        self._later(self._random.uniform(*self.stopSeconds), goOn)

    def _restartBroker(self) -> None:
        number = self._take(self._restartBroker)
        if number is None:
            return
        self._isBrokerAway = True
        begin = monotonic()
        broker = self._brokers[number][-1]
        self._tell(f"restart broker {number}")
        broker.leave()

        def goOn() -> None:
            if broker.isRunning and monotonic() < begin + END_SECONDS_MAX:
                self._later(0.05, goOn)
                return
            self._endWell(broker)
            self._tell(f"broker {number} has ended in {monotonic() - begin:.1f} s")
            self._startBroker(number, begin, "restart broker")

        goOn()

    # -- afterwards

    def _read(self, topic: str, isolation: str = "read_committed") -> dict[str, list[Entry]]:
        places = [(topic, number) for number in range(self.partitionCount)]
        records: Any = readRecords(self._bootstrapServers, places, isolation)
        return {
            placed(topic, number): [
                Entry(record[0], valueName(record[4])) for record in records[f"{topic}-{number}"]
            ]
            for number in range(self.partitionCount)
        }

    def _attempt(self, condition: Callable[[], bool], what: str, secondsMax: float) -> None:
        """What has not come by then is broken, and the run goes on."""
        try:
            self._until(condition, what, secondsMax)
        except BrokenError as error:
            self._broken.append(str(error))

    def _readLogs(self, secondsMax: float) -> dict[str, int]:
        """
        Read the logs when all is copied.

        @param secondsMax: how long that may take.
        @return: the last offset of each partition that has a message.
        """
        self._logs = self._read(CLICKS)
        count = sum(map(len, self._logs.values()))
        copies: dict[str, list[Entry]] = {}

        def isCopied() -> bool:
            copies.update(self._read(COPIES))
            return sum(map(len, copies.values())) >= count

        self._attempt(isCopied, f"{count} messages are copied", secondsMax)
        self._logs |= copies
        return {place: entries[-1].offset for place, entries in self._logs.items() if entries}

    # -- the books

    def _wasKilled(self, member: Member) -> float | None:
        """When."""
        times = [each.end for each in self._faults if each[:2] == ("kill", member.name)]
        return times[0] if times else None

    def _logsOf(self, topic: str) -> dict[str, list[Entry]]:
        return {place: self._logs[place] for place in self._logs if place.startswith(topic)}

    def _judgeProducers(self) -> dict[str, Sent]:
        """What each producer sent, when it was compared with the logs."""
        producers = {}
        for member in self._producers:
            isKilled = self._wasKilled(member) is not None
            producers[member.name], wrong = sentBy(member.lines(), isKilled)
            self._broken += [f"{member.name}: {each}" for each in wrong]
        self._broken += judgeLogs(producers, self._logsOf(CLICKS))
        return producers

    def _judgeCopies(self) -> int:
        """How much was copied, when it was compared with the original."""
        copiedCount = 0
        for number in range(self.partitionCount):
            copies = self._logs[placed(COPIES, number)]
            copiedCount += len(copies)
            found = judgeCopies(self._logs[placed(CLICKS, number)], copies)
            self._broken += [f"partition {number}: {each}" for each in found]
        return copiedCount

    def _judgeGroups(self, faults: Iterable[Fault], noticeSeconds: float) -> Deliveries:
        """
        Compare what the members of each group got and committed with the logs.

        @param faults: beside the times when a member had no turn.
        @param noticeSeconds: see L{Allowance}; of a machine that is not slow.
        """
        known = [*faults]
        for member in self._members:
            known += lateTimesOf(member.name, member.lines())
        delivered = again = overlaps = 0
        for group, topic in self.groups.items():
            tenures: list[Tenure] = []
            commits: list[Commit] = []
            for member in self._members:
                if member.group == group:
                    lines = [*member.lines()]
                    had, wrong = tenuresOf(member.name, lines, self._wasKilled(member))
                    tenures += had
                    self._broken += wrong
                    commits += commitsOf(lines) if group != COPIERS else ()
            verdict = judgeGroup(
                {
                    place: entries if group != COPIERS else []
                    for place, entries in self._logsOf(topic).items()
                },
                tenures,
                commits,
                known,
                Allowance(self._slowness * noticeSeconds),
            )
            self._broken += [f"{group}: {each}" for each in verdict.faults]
            delivered += verdict.deliveredCount
            again += verdict.againCount
            overlaps += verdict.overlapCount
        return Deliveries(delivered, again, overlaps)


def outcomesOf(producers: Mapping[str, Sent]) -> Counter[str]:
    """How many messages have each outcome."""
    return Counter(outcome for sent in producers.values() for outcome in sent.outcomes.values())
