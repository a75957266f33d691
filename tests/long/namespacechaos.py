"""
The trial of L{tests.long.replicationchaos} in a network of namespaces: three brokers, an ensemble
of three of Apache's ZooKeeper, and the clients have a node each. Beside brokers that are killed,
paused and restarted, from the seed:

  - a broker is cut off: from all, in one direction, from another broker alone, or from ZooKeeper;
  - the cluster is cut in two: one broker and the leader of ZooKeeper or another member on one side,
    or two brokers and one member; the clients are on either side, or reach both;
  - a member of ZooKeeper is killed, paused, or cut off; the leader or another one;
  - the disk of a broker is full;
  - the wall clock of a broker is stepped, by up to L{STEP_SECONDS_MAX};
  - an application with transactions is paused for longer than its transaction may last.

There are two more clients: applications that take turns in one C{transactional.id}, append to lists
and read them (L{tests.long.appender}). L{tests.integration.listappend} judges these.
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic

from tests.integration.chaosrun import Member
from tests.integration.kafkachaosrun import CLIENT_PROPERTIES
from tests.integration.listappend import TransactionsVerdict, judgeTransactions
from tests.long.appender import LISTS, transactionsOf
from tests.long.namespaces import Disk, Network
from tests.long.replicationchaos import (
    BROKERS,
    CONSUMER_PROPERTIES,
    PARTITION_COUNT,
    TRANSACTION_MS,
    ReplicationTrial,
)
from tests.long.steppedclock import WallClock
from tests.long.zookeeperensemble import ZookeeperEnsemble

CLIENTS = "clients"
BROKER_NODES = {number: f"broker{number}" for number in BROKERS}
ZOOKEEPER_NODES = ("zookeeper1", "zookeeper2", "zookeeper3")
PORT = 9092
DISK_SIZE = 192 << 20
LEFT_SIZE_MAX = 1 << 16
STEP_SECONDS_MAX = 180.0
CUT_SECONDS = (1.0, 12.0)
"""How long a fault of the network, of a disk or of ZooKeeper lasts."""
ZOOKEEPER_SECONDS_MAX = 60.0
APPENDER_STOP_SECONDS = (2.0, TRANSACTION_MS / 1000 + 5)
APPENDER_COUNT = 2

Pairs = set[tuple[str, str]]


def between(one: Iterable[str], other: Iterable[str]) -> Pairs:
    """Both directions."""
    others = [*other]
    return {pair for a in one for b in others if a != b for pair in ((a, b), (b, a))}


class NamespaceTrial(ReplicationTrial):
    """
    One run; see the module. L{tests.long.namespaces.isolate} must have been called.

    @ivar transactions: what was found about the appenders.
    """

    topics = (*ReplicationTrial.topics, LISTS)
    pauseSeconds = (0.05, 0.5)
    drainSeconds = 600.0

    def __init__(
        self,
        folder: str,
        seed: int,
        seconds: float,
        tell: Callable[[str], None] = lambda text: None,
        slowness: float = 1.0,
    ) -> None:
        """See L{ReplicationTrial}."""
        super().__init__(folder, seed, seconds, tell, slowness)
        self.transactions = TransactionsVerdict([], 0, 0, 0, 0)
        self._network = Network((CLIENTS, *BROKER_NODES.values(), *ZOOKEEPER_NODES))
        self._ensemble = ZookeeperEnsemble(self._network, ZOOKEEPER_NODES, self._folder)
        self._disks: dict[int, Disk] = {}
        self._clocks: dict[int, WallClock] = {}
        self._lists: dict[str, Sequence[str]] = {}

    # -- the world

    def _startZookeeper(self) -> str:
        self._network.start()
        for number in BROKERS:
            self._disks[number] = Disk(self._folder / f"disk{number}", DISK_SIZE)
            self._clocks[number] = WallClock(self._folder / f"clock{number}")
        for name in ZOOKEEPER_NODES:
            self._ensemble.start(name)
        self._until(self._isQuorum, "ZooKeeper serves", ZOOKEEPER_SECONDS_MAX)
        return self._ensemble.servers

    def _isQuorum(self) -> bool:
        return all(map(self._ensemble.mode, ZOOKEEPER_NODES))

    def _stopZookeeper(self) -> None:
        self._ensemble.clear()

    def _clear(self) -> None:
        super()._clear()
        self._ensemble.clear()
        for number, disk in self._disks.items():
            disk.free()
            # What stays where something is broken.
            shutil.copytree(disk.path, self._folder / f"copy{number}", dirs_exist_ok=True)
            disk.unmount()
        self._network.stop()

    def _address(self, number: int) -> str:
        return f"{self._network.address(BROKER_NODES[number])}:{PORT}"

    def _directory(self, number: int) -> str:
        return str(self._disks[number].path)

    def _broker(self, number: int, name: str, properties: Mapping[str, str]) -> Member:
        address = self._network.address(BROKER_NODES[number])
        own = {"listen.interface": address, "hostname": address, "port": str(PORT)}
        clock = [sys.executable, "-m", "tests.long.steppedclock", str(self._clocks[number].path)]
        return self._member(
            name,
            program="broker",
            properties={**properties, **own},
            seed=0,
            command=[*self._network.command(BROKER_NODES[number]), *clock],
        )

    def _startClients(self) -> None:
        super()._startClients()
        servers = {"bootstrap.servers": self._bootstrapServers}
        self._members += [
            self._member(
                f"appender{number}",
                of="appender",
                program="appender",
                partitions=PARTITION_COUNT,
                producer={
                    **CLIENT_PROPERTIES,
                    **servers,
                    "transactional.id": "appender",
                    "transaction.timeout.ms": str(TRANSACTION_MS),
                    "linger.ms": "0",
                },
                consumer={
                    **{
                        key: value
                        for key, value in CONSUMER_PROPERTIES.items()
                        if key in ("isolation.level", "fetch.max.wait.ms", *CLIENT_PROPERTIES)
                    },
                    **servers,
                },
            )
            for number in range(APPENDER_COUNT)
        ]

    # -- faults

    def _again(self, act: Callable[[], None]) -> None:
        """The next one comes soon; what waits for its turn would outlast the run."""

    def _acts(self) -> list[Callable[[], None]]:
        return [
            *super()._acts(),
            self._cutBroker,
            self._cutOneWay,
            self._cutFromBroker,
            self._cutFromZookeeper,
            self._cutInTwo,
            self._cutInTwo,
            self._disturbZookeeper,
            self._fillDisk,
            self._stepClock,
            self._stopAppender,
        ]

    def _cut(self, pairs: Pairs, what: str, target: str) -> None:
        """Cut for a while."""
        begin = monotonic()
        self._isBrokerAway = True
        self._tell(f"begin: {what} {target}")
        self._network.cut(pairs)

        def goOn() -> None:
            self._network.heal()
            self._releaseAll("stop", target, begin, what)

        self._later(self._random.uniform(*CUT_SECONDS), goOn)

    def _others(self, name: str) -> list[str]:
        return [each for each in self._network.nodes if each != name]

    def _cutBroker(self) -> None:
        number = self._take(self._cutBroker)
        if number is not None:
            name = BROKER_NODES[number]
            self._cut(between([name], self._others(name)), "cut off", name)

    def _cutOneWay(self) -> None:
        number = self._take(self._cutOneWay)
        if number is None:
            return
        name = BROKER_NODES[number]
        if self._random.random() < 0.5:
            self._cut({(name, each) for each in self._others(name)}, "cut what it sends", name)
        else:
            self._cut({(each, name) for each in self._others(name)}, "cut what it gets", name)

    def _cutFromBroker(self) -> None:
        number = self._take(self._cutFromBroker)
        if number is not None:
            name = BROKER_NODES[number]
            other = self._random.choice([each for each in BROKER_NODES.values() if each != name])
            self._cut(between([name], [other]), "cut from another broker", f"{name}-{other}")

    def _cutFromZookeeper(self) -> None:
        number = self._take(self._cutFromZookeeper)
        if number is not None:
            name = BROKER_NODES[number]
            self._cut(between([name], ZOOKEEPER_NODES), "cut from ZooKeeper", name)

    def _cutInTwo(self) -> None:
        number = self._take(self._cutInTwo)
        if number is None:
            return
        leaders = [each for each in ZOOKEEPER_NODES if self._ensemble.mode(each) == "leader"]
        if self._random.random() < 0.5 and leaders:
            member = leaders[0]
        else:
            member = self._random.choice([each for each in ZOOKEEPER_NODES if each not in leaders])
        names = [BROKER_NODES[number]]
        if self._random.random() < 0.3:
            names.append(self._random.choice([*{*BROKER_NODES.values()} - {*names}]))
        minority = {*names, member}
        majority = {*BROKER_NODES.values(), *ZOOKEEPER_NODES} - minority
        pairs = between(minority, majority)
        clients = self._random.choice(("both", "majority", "minority"))
        if clients == "majority":
            pairs |= between([CLIENTS], minority)
        elif clients == "minority":
            pairs |= between([CLIENTS], majority)
        what = f"{len(names)} of 3 brokers and a member of ZooKeeper cut off"
        self._cut(pairs, what, f"{'+'.join(sorted(minority))}, clients reach {clients}")

    def _disturbZookeeper(self) -> None:
        if self._isBrokerAway:
            self._again(self._disturbZookeeper)
            return
        name = self._random.choice(ZOOKEEPER_NODES)
        kind = self._random.choice(("kill", "pause", "cut off"))
        role = self._ensemble.mode(name)
        what = f"{kind} ZooKeeper's {role}"
        if kind == "cut off":
            self._cut(between([name], self._others(name)), what, name)
            return
        begin = monotonic()
        self._isBrokerAway = True
        self._tell(f"begin: {what} {name}")
        if kind == "kill":
            self._ensemble.kill(name)
        else:
            self._ensemble.signal(name, signal.SIGSTOP)

        def goOn() -> None:
            if kind == "kill":
                self._ensemble.start(name)
            else:
                self._ensemble.signal(name, signal.SIGCONT)
            self._releaseAll("stop", name, begin, what)

        self._later(self._random.uniform(*CUT_SECONDS), goOn)

    def _fillDisk(self) -> None:
        number = self._take(self._fillDisk)
        if number is None:
            return
        begin = monotonic()
        self._isBrokerAway = True
        self._tell(f"begin: disk full of broker {number}")
        self._disks[number].fill(self._random.randrange(LEFT_SIZE_MAX))

        def goOn() -> None:
            self._disks[number].free()
            self._releaseAll("stop", f"broker{number}", begin, "disk full")

        self._later(self._random.uniform(*CUT_SECONDS), goOn)

    def _stepClock(self) -> None:
        number = self._random.choice(BROKERS)
        seconds = self._random.uniform(-STEP_SECONDS_MAX, STEP_SECONDS_MAX)
        self._clocks[number].step(seconds)
        self._note("stop", f"broker{number}", monotonic(), "clock step")
        self._tell(f"the clock of broker {number} is {seconds:.1f} s ahead")

    def _stopAppender(self) -> None:
        appenders = [each for each in self._appenders() if not each.isStopped]
        if len(appenders) == APPENDER_COUNT:
            self._stop(self._random.choice(appenders), self._random.uniform(*APPENDER_STOP_SECONDS))

    def _appenders(self) -> list[Member]:
        return [each for each in self._members if each.name.startswith("appender")]

    # -- afterwards

    def _recover(self) -> None:
        self._network.heal()
        super()._recover()

    def _readLists(self) -> None:
        found = self._read(LISTS)
        self._lists = {place: [each.value for each in found[place]] for place in found}

    def _endMembers(self) -> None:
        super()._endMembers()
        self._readLists()

    def _judge(self) -> None:
        super()._judge()
        history = [
            each
            for member in self._appenders()
            for each in transactionsOf(member.name, member.lines())
        ]
        self.transactions = judgeTransactions(history, self._lists)
        self._broken += [f"lists: {each}" for each in self.transactions.faults]
