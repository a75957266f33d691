"""
A cluster of processes that is given no rest: a real ZooKeeper, three brokers of four partitions,
four producers, a group of three members and one of one. From a seed: members join, leave, are
killed and stopped; brokers are killed and stopped; sessions are ended by others; ZooKeeper is
restarted; connections are cut in the middle of a frame. In the end the books must balance
(L{tests.integration.chaosjudge}).

What is done is decided by the seed alone; what comes of it depends on the machine, too. Each
process writes down what it sees (L{chaosmember}), and its log lies beside that; where something is
found, the directory is kept.

After the last fault the groups must be stable within session time-out + one tick + three back-off
times: each partition has one owner, the one that 0.7's arithmetic gives it to, and that is what the
members themselves think; and it stays so.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from pylogbroker.cluster.assignment import assign
from pylogbroker.records.messageset import MessageSet
from pylogbroker.types import BrokerPartition
from tests.integration.brokerprocess import BrokerProcess
from tests.integration.chaosjudge import (
    ZOOKEEPER,
    Bounds,
    Entry,
    Sender,
    Sent,
    judgeGroup,
    judgeLogs,
)
from tests.integration.chaosmember import TOPIC
from tests.integration.chaosrun import (
    BrokenError,
    ChaosRun,
    Member,
    steadyPort,
)
from tests.integration.cuttingproxy import ANSWER, REQUEST, CuttingProxy
from tests.integration.rawclient import RawClient
from tests.integration.test_golden import readDirectory
from tests.integration.zookeeperprocess import TICK_MS, ZookeeperProcess

BROKER_COUNT = 3
PARTITION_COUNT = 4
SESSION_MS = 3_000
START_SECONDS = 600
"""For all processes to be there, on a machine that has other work; nothing is measured by it."""
BACKOFF_MS = 500
COMMIT_MS = 500
SETTLE_SECONDS = (SESSION_MS + TICK_MS + 3 * BACKOFF_MS) / 1000
STOP_SECONDS = SESSION_MS / 1000 + 1.5
"""How long a process is stopped: longer than its session lasts."""

BOUNDS = Bounds(
    commitSeconds=COMMIT_MS / 1000 + 2 * SESSION_MS / 1000,
    noticeSeconds=(2 * SESSION_MS + TICK_MS) / 1000,
)
SHARED, SINGLE = "shared", "single"
MEMBER_COUNT_MAX = 5
DRAIN_SECONDS_MAX = 600.0
CHROOT = "/chaos"
GROUP_PROPERTIES = {
    "zk.sessiontimeout.ms": str(SESSION_MS),
    "rebalance.backoff.ms": str(BACKOFF_MS),
    "autocommit.interval.ms": str(COMMIT_MS),
}
BROKER_PROPERTIES = {
    "num.partitions": str(PARTITION_COUNT),
    "enable.zookeeper": "true",
    "zk.sessiontimeout.ms": str(SESSION_MS),
    "zk.connectiontimeout.ms": "30000",  # a broker may begin in the midst of a restart of ZooKeeper
    "hostname": "127.0.0.1",
    "log.file.size": "300000",
    "log.flush.interval": "50",
    "log.default.flush.interval.ms": "200",
    "log.default.flush.scheduler.interval.ms": "50",
}
PRODUCERS: tuple[dict[str, str], ...] = (
    {},
    {"compression.codec": "gzip", "num.retries": "2"},
    {"compression.codec": "snappy"},
    {"num.retries": "3"},
)
"""The properties of each, beside those that all have."""


class Figures(NamedTuple):
    """
    What a run was made of.

    @ivar settledSeconds: from the last fault until the groups were stable.
    @ivar duplicates: messages that a group got again, by excuse.
    """

    seconds: float = 0
    faults: dict[str, int] = {}
    sentCount: int = 0
    okCount: int = 0
    failedCount: int = 0
    unknownCount: int = 0
    unknownLoggedCount: int = 0
    repeatedCount: int = 0
    twiceLoggedCount: int = 0
    loggedCount: int = 0
    deliveredCount: int = 0
    duplicates: dict[str, int] = {}
    settledSeconds: float = 0


class ChaosTrial(ChaosRun):
    """One run."""

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
        self.figures = Figures()
        self._bounds = Bounds(*(slowness * seconds for seconds in BOUNDS))
        self._zookeeper = ZookeeperProcess(f"{folder}/zookeeper", steadyPort())
        self._brokers: list[BrokerProcess] = []
        self._proxies: list[CuttingProxy] = []
        self._producers: list[Member] = []
        self._members: list[Member] = []
        self._isBrokerBusy = [False] * BROKER_COUNT
        self._launches = [0] * BROKER_COUNT
        self._logs: dict[str, list[Entry]] = {}
        self._brokerLogs: list[str] = []

    # -- the whole of it

    def _carryOut(self) -> None:
        self._begin()
        self._disturb(
            [
                self._newcomer,
                self._leave,
                self._killMember,
                self._killMember,
                self._stopMember,
                self._expire,
                self._expire,
                self._killBroker,
                self._killBroker,
                self._stopBroker,
                self._restartZookeeper,
                self._cutRequest,
                self._cutAnswer,
            ]
        )
        lastFault = self._rest()
        self._settle(lastFault)
        self._drain()
        self._endMembers()
        self._endBrokers()
        self._judge()

    def _end(self, seconds: float, faults: dict[str, int]) -> None:
        self.figures = self.figures._replace(seconds=seconds, faults=faults)

    def _begin(self) -> None:
        self._zookeeper.start()
        client = self._client()
        client.create(CHROOT)
        client.stop()
        client.close()
        for number in range(BROKER_COUNT):
            port = steadyPort()
            changes = {
                **BROKER_PROPERTIES,
                "brokerid": str(number),
                "port": str(port),
                "zk.connect": self._zookeeper.servers + CHROOT,
            }
            broker = BrokerProcess(str(self._folder / f"broker{number}"), changes)
            broker.port = port
            self._brokers.append(broker)
            self._proxies.append(CuttingProxy(port))
        for broker in self._brokers:
            broker.launch()
        self._ports = {
            broker.port: proxy.port
            for broker, proxy in zip(self._brokers, self._proxies, strict=True)
        }
        for broker in self._brokers:
            broker.waitForLine(" serves ", START_SECONDS)
        for number, properties in enumerate(PRODUCERS):
            session = {
                "zk.connect": self._zookeeper.servers + CHROOT,
                "zk.sessiontimeout.ms": str(SESSION_MS),
            }
            options = {
                "program": "producer",
                "seed": self._random.random(),
                "properties": {**session, **properties},
            }
            self._producers.append(self._member(f"p{number}", options))
        for group in (SHARED,) * 3 + (SINGLE,):
            self._join(group)
        self._until(
            lambda: all(any(member.lines("ok")) for member in self._producers),
            "something of each producer is confirmed",
            START_SECONDS,
        )
        self._until(
            lambda: all(any(member.lines("joined")) for member in self._members),
            "all members have joined",
            START_SECONDS,
        )

    def _member(self, name: str, options: dict[str, Any], group: str = "") -> Member:
        """
        Every other one reaches the brokers by way of the proxies, and the others see refused
        connections.
        """
        isProxied = len(self._producers if not group else self._members) % 2 == 0
        ports = {port: proxied if isProxied else port for port, proxied in self._ports.items()}
        module = "tests.integration.chaosmember"
        return Member(self._folder, module, name, {**options, "ports": ports}, group)

    def _join(self, group: str) -> Member:
        properties = {
            **GROUP_PROPERTIES,
            "zk.connect": self._zookeeper.servers + CHROOT,
            "groupid": group,
        }
        member = self._member(
            f"c{len(self._members)}", {"program": "consumer", "properties": properties}, group
        )
        self._members.append(member)
        return member

    def _client(self, **options: Any) -> Any:
        client = KazooClient(self._zookeeper.servers, timeout=SESSION_MS / 1000, **options)
        client.start(timeout=300)
        return client

    # -- faults

    def _here(self, group: str) -> list[Member]:
        return [
            each
            for each in self._members
            if each.group == group and each.isHere and not each.isStopped
        ]

    def _newcomer(self) -> None:
        if len(self._here(SHARED)) < MEMBER_COUNT_MAX:
            self._note("join", self._join(SHARED).name, monotonic())

    def _leave(self) -> None:
        members = self._here(SHARED)
        if len(members) > 2:
            member = self._random.choice(members)
            member.leave()
            self._note("leave", member.name, monotonic())

    def _killMember(self) -> None:
        members = self._here(SHARED) + self._here(SINGLE)
        if not members:
            self._again(self._killMember)
            return
        member = self._random.choice(members)
        begin = monotonic()
        member.kill()
        self._note("kill", member.name, begin, "kill member")
        if member.group == SINGLE or len(self._here(SHARED)) < 2:
            self._later(
                self._random.uniform(0.2, 2),
                lambda: self._note("join", self._join(member.group).name, monotonic()),
            )

    def _stopMember(self) -> None:
        members = self._here(SHARED) + self._here(SINGLE)
        if not members:
            self._again(self._stopMember)
            return
        self._stop(self._random.choice(members), STOP_SECONDS)

    def _expire(self) -> None:
        """End somebody's session, from outside."""
        found = [
            each
            for each in self._here(SHARED) + self._here(SINGLE) + self._producers
            if any(each.lines("session"))
        ]
        if not found:
            self._again(self._expire)
            return
        member = self._random.choice(found)
        _word, _ns, session, password = list(member.lines("session"))[-1]
        begin = monotonic()
        try:
            client = self._client(client_id=(int(session), bytes.fromhex(password)))
            isTheirs = client.client_id[0] == int(session)
            client.stop()
            client.close()
        except (KazooException, KazooTimeoutError):
            isTheirs = False
        if isTheirs:
            self._note("expire", member.name, begin, "expire session")
        else:  # it was over already
            self._again(self._expire)

    def _freeBroker(self) -> int | None:
        free = [number for number in range(BROKER_COUNT) if not self._isBrokerBusy[number]]
        return self._random.choice(free) if free else None

    def _killBroker(self) -> None:
        number = self._freeBroker()
        if number is None:
            self._again(self._killBroker)
            return
        self._isBrokerBusy[number] = True
        broker = self._brokers[number]
        begin = monotonic()
        broker.kill()
        self._keepLog(number)

        def start() -> None:
            broker.launch()
            self._isBrokerBusy[number] = False  # it may be killed while it starts
            self._launches[number] += 1
            self._look(number, self._launches[number], begin)

        self._later(self._random.uniform(0, 3), start)

    def _look(self, number: int, launch: int, begin: float) -> None:
        """The fault is over when the broker serves, or is killed anew."""
        broker = self._brokers[number]
        if (
            self._launches[number] == launch
            and broker.isRunning
            and not any(" serves " in line for line in broker.lines)
        ):
            self._later(0.05, lambda: self._look(number, launch, begin))
        else:
            self._note("broker", f"broker{number}", begin, "kill broker")

    def _keepLog(self, number: int) -> None:
        """A broker's log begins anew with each start."""
        lines = self._brokers[number].lines
        with (self._folder / f"broker{number}.log").open("a", encoding="utf-8") as log:
            log.write("\n".join(lines) + "\n")

    def _stopBroker(self) -> None:
        number = self._freeBroker()
        if number is None:
            self._again(self._stopBroker)
            return
        broker = self._brokers[number]
        if not broker.isRunning:
            raise BrokenError(
                f"broker {number} has ended by itself:\n" + "\n".join(broker.lines[-20:])
            )
        begin = monotonic()
        self._isBrokerBusy[number] = True
        os.kill(broker.pid, signal.SIGSTOP)

        def goOn() -> None:
            os.kill(broker.pid, signal.SIGCONT)
            self._isBrokerBusy[number] = False
            self._note("broker", f"broker{number}", begin, "stop broker")

        self._later(STOP_SECONDS, goOn)

    def _restartZookeeper(self) -> None:
        begin = monotonic()
        self._zookeeper.stop()
        self._pause(self._random.uniform(0, 1.5))
        self._zookeeper.start()
        self._note("zookeeper", ZOOKEEPER, begin, "restart zookeeper")

    def _cut(self, direction: str) -> None:
        number = self._random.randrange(BROKER_COUNT)
        self._proxies[number].cutNext(direction)
        self._note("cut", f"broker{number}", monotonic(), f"cut in {direction}")

    def _cutRequest(self) -> None:
        self._cut(REQUEST)

    def _cutAnswer(self) -> None:
        self._cut(ANSWER)

    # -- afterwards

    def _rest(self) -> float:
        """
        Undo what is not undone yet.

        @return: when the last fault was over.
        """
        self._finishAgenda()
        for number, broker in enumerate(self._brokers):
            if not any(" serves " in line for line in broker.lines):
                raise BrokenError(f"broker{number} does not serve: {broker.log}")
        return max(fault.end for fault in self._faults)

    def _owners(self, client: Any) -> dict[str, dict[str, str]]:
        """Of each group: who has which partition, as ZooKeeper says."""
        found: dict[str, dict[str, str]] = {}
        for group in (SHARED, SINGLE):
            path = f"{CHROOT}/consumers/{group}/owners/{TOPIC}"
            found[group] = {}
            try:
                for place in client.get_children(path):
                    found[group][place] = client.get(f"{path}/{place}")[0].decode()
            except NoNodeError:
                continue
        return found

    def _expected(self) -> dict[str, dict[str, str]]:
        """The same, as 0.7's arithmetic says."""
        partitions = [
            BrokerPartition(broker, index)
            for broker in range(BROKER_COUNT)
            for index in range(PARTITION_COUNT)
        ]
        found = {}
        for group in (SHARED, SINGLE):
            ids = [
                list(member.lines("joining"))[-1][2]
                for member in self._here(group)
                if any(member.lines("joining"))
            ]
            share = assign(partitions, dict.fromkeys(ids, 1))
            found[group] = {
                str(partition): thread for thread, places in share.items() for partition in places
            }
        return found

    def _believed(self) -> dict[str, list[str]]:
        """Of each group: what its members think is theirs."""
        found: dict[str, list[str]] = {}
        for group in (SHARED, SINGLE):
            found[group] = []
            for member in self._here(group):
                owned = list(member.lines("owned"))
                if owned and owned[-1][2] == "owning":
                    found[group] += [
                        place.rpartition("/")[2] for place in owned[-1][3].split(",") if place
                    ]
        return found

    def _isStable(self, client: Any) -> bool:
        owners = self._owners(client)
        return owners == self._expected() and all(
            sorted(believed) == sorted(owners[group])
            for group, believed in self._believed().items()
        )

    def _settle(self, lastFault: float) -> None:
        """
        Watch until the time is over within which the groups must be stable. A slow machine has
        longer, unless they are stable.
        """
        client = self._client()
        stableSince: float | None = None
        secondsMax = self._slowness * SETTLE_SECONDS
        while True:
            now = monotonic()
            if not self._isStable(client):
                stableSince = None
            elif stableSince is None:
                stableSince = now
            if now > lastFault + (SETTLE_SECONDS if stableSince is not None else secondsMax):
                break
            self._pause(0.05)
        settled = -1.0 if stableSince is None else stableSince - lastFault
        if stableSince is None:
            self._broken.append(
                f"{secondsMax} s after the last fault the groups are not stable:"
                f" {self._owners(client)}, expected {self._expected()}, the members think"
                f" {self._believed()}"
            )
            self._until(lambda: self._isStable(client), "the groups are stable", 300)
            self._broken.append(f"they were {monotonic() - lastFault:.1f} s after it")
        self.figures = self.figures._replace(settledSeconds=settled)
        self._settled = self._owners(client)
        client.stop()
        client.close()

    def _drain(self) -> None:
        """Let the producers end, and the groups read all."""
        for member in self._producers:
            member.leave()
        for member in self._producers:
            self._endWell(member)
        self._readLogs()
        ends = {place: entries[-1].nextOffset for place, entries in self._logs.items() if entries}
        seen: dict[str, dict[str, int]] = {}

        def isRead() -> bool:
            for group in (SHARED, SINGLE):
                seen[group] = {}
                for delivery in self._deliveries(group):
                    seen[group][delivery.place] = max(
                        delivery.nextOffset, seen[group].get(delivery.place, 0)
                    )
            return all(found == ends for found in seen.values())

        try:
            self._until(isRead, f"the groups have read all: {ends}", DRAIN_SECONDS_MAX)
        except BrokenError as error:
            self._broken.append(f"{error}, but up to {seen}")
        client = self._client()
        owners = self._owners(client)
        client.stop()
        client.close()
        if owners != self._settled:
            self._broken.append(
                f"the groups were not left alone, and did not stay: {self._settled} became {owners}"
            )

    def _readLogs(self) -> None:
        for number, broker in enumerate(self._brokers):
            directory = Path(broker.directory)
            with broker.client() as client:
                for index in range(PARTITION_COUNT):
                    segments = (directory / f"{TOPIC}-{index}").glob("*.kafka")
                    size = sum(path.stat().st_size for path in segments)
                    try:
                        self._until(
                            partial(self._isFlushed, client, index, size),
                            f"broker{number} has flushed {TOPIC}-{index}",
                            10,
                        )
                        data = client.readAll(TOPIC, index)
                    except (AssertionError, OSError) as error:
                        raise BrokenError(f"broker{number}: {error}") from error
                    self._logs[f"{TOPIC}/{number}-{index}"] = self._entries(data)

    @staticmethod
    def _isFlushed(client: RawClient, index: int, size: int) -> bool:
        return client.end(TOPIC, index) == size

    @staticmethod
    def _entries(data: bytes) -> list[Entry]:
        found = []
        start = 0
        for outer in MessageSet(data).shallow():
            inside = MessageSet(data[start : outer.nextOffset], start)
            found += [
                Entry(
                    each.message.payload.decode().rpartition(".")[0],
                    each.nextOffset,
                    outer.nextOffset if outer.message.codec else 0,
                )
                for each in inside
            ]
            start = outer.nextOffset
        return found

    def _deliveries(self, group: str) -> list[Sender]:
        return [
            Sender(int(ns) / 1e9, member.name, place, int(nextOffset), value)
            for member in self._members if member.group == group
            for _word, ns, place, nextOffset, value in member.lines("got")
        ]  # fmt: skip

    def _endMembers(self) -> None:
        here = [member for member in self._members if member.isHere]
        for member in here:
            member.leave()
        for member in self._members:
            self._endWell(member, (0, -signal.SIGKILL))
        client = self._client()
        for group in (SHARED, SINGLE):
            stored = {}
            path = f"{CHROOT}/consumers/{group}/offsets/{TOPIC}"
            for place in client.get_children(path):
                stored[f"{TOPIC}/{place}"] = int(client.get(f"{path}/{place}")[0])
            ends = {
                place: entries[-1].nextOffset for place, entries in self._logs.items() if entries
            }
            if {place: offset for place, offset in stored.items() if place in ends} != ends:
                self._broken.append(
                    f"the positions of {group} are {stored}, the logs end at {ends}"
                )
        if left := [place for owners in self._owners(client).values() for place in owners]:
            self._broken.append(f"all members have left, and these have owners: {left}")
        client.stop()
        client.close()

    def _endBrokers(self) -> None:
        for number, broker in enumerate(self._brokers):
            self._keepLog(number)
            status = broker.stop()
            if status:
                self._broken.append(f"broker{number} has ended with {status}")
            found = {
                f"{topic}/{number}-{index}": data
                for (topic, index), data in readDirectory(Path(broker.directory)).items()
                if topic == TOPIC
            }
            for place, data in found.items():
                if self._entries(data) != self._logs[place]:
                    self._broken.append(f"{place}: the files do not hold what was fetched")

    # -- the books

    def _judge(self) -> None:
        producers = {
            member.name: self._sentBy(member, properties)
            for member, properties in zip(self._producers, PRODUCERS, strict=True)
        }
        self._broken += judgeLogs(producers, self._logs)
        outcomes = Counter(
            outcome for sent in producers.values() for outcome in sent.outcomes.values()
        )
        copies = Counter(
            ".".join(entry.value.split(".")[:2])
            for entries in self._logs.values()
            for entry in entries
        )
        unknown = [
            f"{name}.{number}"
            for name, sent in producers.items()
            for number, outcome in sent.outcomes.items()
            if outcome == "unknown"
        ]
        duplicates: Counter[str] = Counter()
        delivered = 0
        for group in (SHARED, SINGLE):
            deliveries = self._deliveries(group)
            delivered += len(deliveries)
            result = judgeGroup(self._logs, deliveries, self._faults, self._bounds)
            self._broken += [f"{group}: {each}" for each in result.faults]
            duplicates.update(result.duplicates)
        self._judgeLogFiles([*self._producers, *self._members])
        self.figures = self.figures._replace(
            sentCount=sum(len(sent.numbers) for sent in producers.values()),
            okCount=outcomes["ok"],
            failedCount=outcomes["failed"],
            unknownCount=outcomes["unknown"],
            unknownLoggedCount=sum(1 for each in unknown if copies[each]),
            repeatedCount=sum(sent.repeatedCount for sent in producers.values()),
            twiceLoggedCount=sum(count - 1 for count in copies.values()),
            loggedCount=sum(copies.values()),
            deliveredCount=delivered,
            duplicates=dict(sorted(duplicates.items())),
        )

    def _sentBy(self, member: Member, properties: dict[str, str]) -> Sent:
        numbers, outcomes, counters = [], {}, {}
        times: dict[int, tuple[float, float]] = {}
        viewTimes = []
        for words in member.lines():
            if words[0] == "sent":
                numbers.append(int(words[2]))
                times[int(words[2])] = int(words[1]) / 1e9, int(words[1]) / 1e9
            elif words[0] in ("ok", "failed", "unknown"):
                if int(words[2]) in outcomes:
                    self._broken.append(f"{member.name}: two outcomes of {words[2]}")
                outcomes[int(words[2])] = words[0]
                times[int(words[2])] = times[int(words[2])][0], int(words[1]) / 1e9
            elif words[0] == "view":
                viewTimes.append(int(words[1]) / 1e9)
            elif words[0] == "end":
                counters = json.loads(" ".join(words[2:]))
        if not counters:
            self._broken.append(f"{member.name} has no last word")
        tally = Counter(outcomes.values())
        counted = {
            word: counters.get(f"{name}Count")
            for word, name in (("ok", "written"), ("failed", "failed"), ("unknown", "unknown"))
        }
        if counted != {word: tally[word] for word in counted}:
            self._broken.append(
                f"{member.name}: its counters say {counted}, its callers were told {dict(tally)}"
            )
        return Sent(
            numbers,
            outcomes,
            counters.get("repeatedCount", 0),
            "num.retries" in properties,
            times,
            viewTimes,
        )

    def _clear(self) -> None:
        for member in [*self._producers, *self._members]:
            member.kill()
        for number, broker in enumerate(self._brokers):
            if broker.isRunning:
                self._keepLog(number)
            broker.kill()
        for proxy in self._proxies:
            proxy.close()
        self._zookeeper.stop()
