"""
Three brokers with three replicas of each partition, and clients of today's Kafka at their default
settings (those of Python here, Java's in L{tests.long.allclusterclients}), which go on while one
broker at a time is killed (-9), restarted in order, stopped for longer than its session with
ZooKeeper, or cut off: from the clients, from the other brokers and from ZooKeeper, in both
directions or in one (L{tests.integration.networkproxy}).

Each producer publishes numbered messages to one topic; each group reads that topic; and each
application that copies it in transactions has its own target. Settings are changed only where a
client needs it for its promise: C{acks=all} and idempotence where they are not the default.

After each fault all replicas must be in sync again, and every client must go on. In the end

  - what was acknowledged is there, once if the producer is idempotent, in order for each producer
  and partition;
  - each group has got everything, and its positions are the ends of the logs;
  - the copies of committed transactions are the original;
  - the logs of all replicas are the same, byte for byte.

The judges are those of L{tests.integration.kafkachaosjudge}.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from pylogbroker.programs.localcluster import FIRST_ID, brokerProperties
from tests.integration.chaosrun import BrokenError, Member, steadyPort
from tests.integration.kafkachaosjudge import BROKER, Entry, Sent, judgeCopies, judgeLogs
from tests.integration.kafkachaosrecords import sentBy
from tests.integration.kafkachaosrun import KafkaChaosRun, outcomesOf
from tests.integration.networkproxy import NetworkProxy
from tests.integration.numberedmessages import CLICKS, COPIES, placed
from tests.integration.replicalogs import differences
from tests.integration.zookeeperprocess import ZookeeperProcess

BROKERS = (FIRST_ID, FIRST_ID + 1, FIRST_ID + 2)
PARTITION_COUNT = 3
COORDINATOR_PARTITION_COUNT = 3
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
SESSION_MS = 2_000
FAULT_SECONDS = 2 * SESSION_MS / 1000
"""How long a broker is away that is stopped or cut off."""
START_SECONDS = 300.0
RECOVERY_SECONDS = 120.0
"""From the end of a fault until replicas are in sync and all clients go on."""
DRAIN_SECONDS = 120.0
LOOK_SECONDS = 0.5
MODERN = {"group_protocol": "consumer"}
"""KIP-848."""
PAUSE_SECONDS = 0.25
OUR_PAUSE_SECONDS = (0.3, 1.8)
"""Between bunches of 1 to 8: some four messages a second, as the others send."""
PASSING = ("tool", "ouradmin")
"""Topics that tools and administrators create and delete."""
PROGRESS_WORDS = ("ok", "got", "copied", "done")

BROKER_PROPERTIES = {
    "zk.sessiontimeout.ms": str(SESSION_MS),
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": str(COORDINATOR_PARTITION_COUNT),
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": str(COORDINATOR_PARTITION_COUNT),
    "transaction.state.log.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "replica.fetch.wait.max.ms": "200",
    "replica.fetch.backoff.ms": "50",
    "replica.lag.time.max.ms": "2000",
    "auto.create.topics.enable": "false",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    # Each replica compacts the coordinators' topics by itself; the logs are compared.
    "log.cleaner.backoff.ms": "3600000",
}


class Figures(NamedTuple):
    """
    What a run was made of.

    @ivar recoverySeconds: after each fault, until replicas were in sync and all clients went on.
    @ivar toolCount: runs of tools.
    """

    seconds: float = 0
    faults: dict[str, int] = {}
    sentCount: int = 0
    okCount: int = 0
    copiedCount: int = 0
    deliveredCount: int = 0
    againCount: int = 0
    recoverySeconds: tuple[float, ...] = ()
    toolCount: int = 0
    comparedCount: int = 0


def target(client: str) -> str:
    """The topic that a client copies to."""
    return f"{COPIES}-{client}"


class ClusterClientsTrial(KafkaChaosRun):
    """
    One run, with clients that need no JVM. Without seconds, each kind of fault comes once.

    @cvar copiers: clients that copy the topic in transactions.
    @cvar mayRepeat: producers that are not idempotent, and try again.
    @cvar mayDisorder: producers that have many requests in flight and try each of them again.
    @cvar mayGiveUp: producers that never try again.
    """

    copiers: ClassVar[tuple[str, ...]] = ("ours", "confluent", "aiokafka")
    mayRepeat: ClassVar[tuple[str, ...]] = ("confluent", "aiokafka")
    mayDisorder: ClassVar[tuple[str, ...]] = ("confluent",)
    mayGiveUp: ClassVar[tuple[str, ...]] = ()
    partitionCount = PARTITION_COUNT
    groups: Mapping[str, str] = {}  # type: ignore[misc]  # of each run
    startSeconds = START_SECONDS
    awaySeconds = (0.0, 4.0)
    stopSeconds = (FAULT_SECONDS, 2 * FAULT_SECONDS)

    def __init__(
        self,
        folder: str,
        seed: int,
        seconds: float = 0,
        tell: Callable[[str], None] = lambda text: None,
        slowness: float = 1.0,
        makeZookeeper: Callable[[str], ZookeeperProcess] = ZookeeperProcess,
    ) -> None:
        """
        See L{ChaosRun}.

        @param makeZookeeper: of its directory.
        """
        super().__init__(folder, seed, seconds, tell, slowness)
        self.figures = Figures()
        self._zookeeper = makeZookeeper(str(Path(folder) / "zookeeper"))
        self._network = NetworkProxy()
        self._ports = {number: (steadyPort(), steadyPort()) for number in BROKERS}
        self._zookeeperPorts = {number: steadyPort() for number in BROKERS}
        self._admin: Any = None
        self._copiers: list[Member] = []
        self._recoveries: list[float] = []

    # -- the whole of it

    def _carryOut(self) -> None:
        self._begin()
        if self._seconds:
            self._disturbAtRandom()
        else:
            for fault in self._faultsInTurn():
                fault()
                self._recover()
        self._recover()
        self._drain()
        self._endMembers()
        self._endBrokers()
        self._judge()

    def _end(self, seconds: float, faults: dict[str, int]) -> None:
        self.figures = self.figures._replace(
            seconds=seconds,
            faults=faults,
            recoverySeconds=tuple(round(each, 1) for each in self._recoveries),
        )

    def _begin(self) -> None:
        begun = monotonic()
        self._zookeeper.start()
        for number in BROKERS:
            self._network.serve(
                "zookeeper",
                self._zookeeperPorts[number],
                self._zookeeper.port,
                self._place(number),
            )
            self._network.serve(self._place(number), *self._ports[number])
            self._launchBroker(number)
        self._until(lambda: all(map(self._isServing, BROKERS)), "brokers serve", START_SECONDS)
        self._admin = AdminClient({"bootstrap.servers": self._bootstrapServers, "log_level": 3})
        topics = [NewTopic(name, PARTITION_COUNT, 3) for name in self._topics()]
        for waiting in self._admin.create_topics(topics).values():
            waiting.result()
        self._tell(f"brokers serve after {monotonic() - begun:.1f} s")
        self._startClients()
        stuck: list[str] = []

        def haveBegun() -> bool:
            stuck[:] = self._stuck({})
            self._pause(LOOK_SECONDS)
            return not stuck

        try:
            self._until(haveBegun, "each client has begun", START_SECONDS)
        except BrokenError as error:
            raise BrokenError(f"{error}: {stuck}") from None
        self._tell(f"clients have begun after {monotonic() - begun:.1f} s")

    def _topics(self) -> list[str]:
        """Those of the clients."""
        return [CLICKS, *map(target, self.copiers)]

    # -- clients

    @property
    def _bootstrapServers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port, _own in self._ports.values())

    def _member(self, name: str, module: str, program: str, group: str = "", **of: Any) -> Member:
        options = {
            "program": program,
            "seed": self._random.random(),
            "pause": PAUSE_SECONDS,
            "partitions": PARTITION_COUNT,
            "topic": CLICKS,
            **of,
        }
        return Member(self._folder, f"tests.integration.{module}", name, options, group)

    def _startClients(self) -> None:
        self._producers = [*self._makeProducers()]
        self._members = [*self._makeConsumers()]
        self._copiers = [*self._makeCopiers()]
        self._copiers.append(self._ours("ouradmin", "admin", self._dotted()))
        self.groups = {each.group: CLICKS for each in self._members}

    def _dotted(self, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": self._bootstrapServers, **_keys(".", more)}

    def _grouped(self, group: str, **more: Any) -> dict[str, Any]:
        """A member of a group."""
        given = self._dotted(group_id=group, auto_offset_reset="earliest", **more)
        return {"group": group, "properties": given}

    def _copying(self, client: str, isAutomatic: Any) -> dict[str, Any]:
        """
        @param isAutomatic: the client's word for false: its transactions have the positions.
        """
        name = f"copier-{client}"
        given = {"auto_offset_reset": "earliest", "enable_auto_commit": isAutomatic}
        return {
            "target": target(client),
            "producer": self._dotted(transactional_id=name),
            "consumer": self._dotted(group_id=name, **given),
        }

    def _python(self, **more: Any) -> dict[str, Any]:
        return {"bootstrap_servers": self._bootstrapServers, **more}

    def _ours(self, name: str, program: str, properties: Any, **more: Any) -> Member:
        return self._member(name, "kafkachaosmember", program, properties=properties, **more)

    def _makeProducers(self) -> Iterator[Member]:
        dotted, python = self._dotted(), self._python()
        yield self._ours("ours", "producer", dotted, pauseSeconds=OUR_PAUSE_SECONDS)
        yield self._member("confluent", "confluentmember", "keyproducer", properties=dotted)
        once = self._dotted(enable_idempotence=True)
        yield self._member("confluentonce", "confluentmember", "keyproducer", properties=once)
        yield self._member(
            "aiokafka", "aiokafkamember", "producer", properties={**python, "acks": "all"}
        )
        idempotent = self._python(enable_idempotence=True)
        yield self._member("aiokafkaonce", "aiokafkamember", "producer", properties=idempotent)
        yield self._member("kafkapython", "kafkapythonmember", "producer", properties=python)

    def _makeConsumers(self) -> Iterator[Member]:
        def python(group: str) -> dict[str, Any]:
            given = self._python(group_id=group, auto_offset_reset="earliest")
            return {"group": group, "properties": given}

        dotted = self._grouped
        yield self._ours("ourclassic", "consumer", **dotted("ourclassic"))
        handled = dotted("ourmodern", **MODERN, enable_auto_commit="false")
        yield self._ours("ourmodern", "consumer", **handled)
        yield self._member(
            "confluentclassic", "confluentmember", "consumer", **dotted("confluentclassic")
        )
        handled = dotted("confluentmodern", **MODERN, enable_auto_commit=False)
        yield self._member("confluentmodern", "confluentmember", "consumer", **handled)
        yield self._member("aiogroup", "aiokafkamember", "consumer", **python("aiogroup"))
        yield self._member("pythongroup", "kafkapythonmember", "consumer", **python("pythongroup"))

    def _makeCopiers(self) -> Iterator[Member]:
        dotted = self._copying
        yield self._member("copier-ours", "kafkachaosmember", "copier", **dotted("ours", "false"))
        yield self._member(
            "copier-confluent", "confluentmember", "copier", **dotted("confluent", False)
        )
        name = "copier-aiokafka"
        consumer = {"group_id": name, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        yield self._member(
            name,
            "aiokafkamember",
            "copier",
            target=target("aiokafka"),
            producer=self._python(transactional_id=name),
            consumer=self._python(**consumer),
        )

    def _processes(self) -> list[Member]:
        return [*super()._processes(), *self._copiers]

    # -- brokers

    @staticmethod
    def _place(number: int) -> str:
        return f"broker{number}"

    def _startProcess(self, number: int) -> Member:
        port, own = self._ports[number]
        properties = {
            **brokerProperties(
                BROKER_PROPERTIES,
                number,
                str(self._folder),
                own,
                f"127.0.0.1:{self._zookeeperPorts[number]}",
            ),
            "listeners": f"PLAINTEXT://127.0.0.1:{own}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        }
        name = f"broker{number}-{len(self._brokers[number])}"
        made = self._member(name, "kafkachaosmember", "broker", properties=properties)
        self._network.settle(self._place(number), made.pid)
        return made

    def _take(self, act: Callable[[], None]) -> int:
        raise NotImplementedError  # the faults of this trial come one after another

    def _release(self, kind: str, number: int, begin: float, what: str) -> None:
        self._note(kind, f"{BROKER}{number}", begin, what)

    # -- faults

    def _faultsInTurn(self) -> Iterator[Callable[[], None]]:
        """Each broker is disturbed twice."""
        first, second, third = self._random.sample(BROKERS, 3)
        yield partial(self._kill, first)
        yield partial(self._cut, second, "both", FAULT_SECONDS)
        yield partial(self._pauseProcess, third, FAULT_SECONDS)
        yield partial(self._cut, first, "in", FAULT_SECONDS)
        yield partial(self._restart, second)
        yield partial(self._cut, third, "out", FAULT_SECONDS)

    def _disturbAtRandom(self) -> None:
        deadline = monotonic() + self._seconds
        while monotonic() < deadline:
            number, seconds = self._random.choice(BROKERS), self._random.uniform(*self.stopSeconds)
            self._random.choice(
                [
                    partial(self._kill, number, self._random.uniform(*self.awaySeconds)),
                    partial(self._restart, number),
                    partial(self._pauseProcess, number, seconds),
                    *(partial(self._cut, number, way, seconds) for way in ("both", "in", "out")),
                ]
            )()
            if self._random.random() < 0.5:
                self._recover()
            else:
                self._pause(self._random.uniform(0, 4))

    def _kill(self, number: int, seconds: float | None = None) -> None:
        """@param seconds: until it is started again; L{None}: until it is out of sync."""
        begin = monotonic()
        self._tell(f"kill -9 broker {number}")
        self._brokers[number][-1].kill()
        if seconds is None:
            self._untilOut(number)
        else:
            self._pause(seconds)
        self._startAgain(number, begin, "kill broker")

    def _restart(self, number: int) -> None:
        begin = monotonic()
        self._tell(f"restart broker {number}")
        broker = self._brokers[number][-1]
        broker.leave()
        self._endWell(broker)
        self._startAgain(number, begin, "restart broker")

    def _startAgain(self, number: int, begin: float, what: str) -> None:
        self._launchBroker(number)
        self._until(lambda: self._isServing(number), f"broker {number} serves", START_SECONDS)
        self._release(BROKER, number, begin, what)

    def _pauseProcess(self, number: int, seconds: float) -> None:
        begin = monotonic()
        self._tell(f"stop broker {number}")
        broker = self._brokers[number][-1]
        broker.signal(signal.SIGSTOP)
        self._pause(seconds)
        broker.signal(signal.SIGCONT)
        self._release("stop", number, begin, "stop broker")

    def _cut(self, number: int, direction: str, seconds: float) -> None:
        begin = monotonic()
        self._tell(f"cut broker {number} off: {direction}")
        self._network.cut(self._place(number), direction)
        self._pause(seconds)
        self._network.heal()
        self._release("stop", number, begin, f"cut {direction}")

    # -- what goes on

    def _partitions(self) -> Iterator[tuple[str, Any]]:
        """@raise KafkaException: no broker answers."""
        for name, topic in self._admin.list_topics(timeout=10).topics.items():
            for number, each in topic.partitions.items():
                yield f"{name}-{number}", each

    def _untilOut(self, number: int) -> None:
        """A broker is in no in-sync set."""

        def isOut() -> bool:
            try:
                return not any(number in each.isrs for _name, each in self._partitions())
            except KafkaException:
                return False

        self._until(isOut, f"broker {number} is out of sync", RECOVERY_SECONDS * self._slowness)

    def _outOfSync(self) -> list[str]:
        try:
            return [
                f"{name}: leader {each.leader}, in sync {sorted(each.isrs)}"
                for name, each in self._partitions()
                if not name.startswith(PASSING)
                if set(each.isrs) != set(BROKERS) or each.leader not in BROKERS
            ]
        except KafkaException as error:
            return [str(error)]

    def _progress(self) -> dict[str, int]:
        return {
            each.name: sum(1 for _line in each.lines(*PROGRESS_WORDS))
            for each in (*self._producers, *self._members, *self._copiers)
        }

    def _stuck(self, before: Mapping[str, int]) -> list[str]:
        """
        The clients that have done nothing since.

        @raise BrokenError: one has ended.
        """
        for each in (*self._producers, *self._members, *self._copiers):
            if not each.isRunning:
                text = each.log.read_text(encoding="utf-8")[-2000:]
                raise BrokenError(f"{each.name} has ended by itself: {text}")
        return [name for name, count in self._progress().items() if count <= before.get(name, 0)]

    def _recover(self) -> None:
        """All replicas are in sync again, and all clients go on."""
        begun, before = monotonic(), self._progress()
        secondsMax = self._slowness * RECOVERY_SECONDS
        wrong: list[str] = []
        last: list[str] = []

        def isRecovered(look: Callable[[], list[str]]) -> bool:
            wrong[:] = look()
            if wrong:
                last[:] = wrong
                self._pause(LOOK_SECONDS)
            return not wrong

        for what, look in (
            ("replicas are in sync", self._outOfSync),
            ("all clients go on", lambda: self._stuck(before)),
        ):
            last.clear()
            try:
                self._until(partial(isRecovered, look), what, secondsMax)
            except BrokenError as error:
                raise BrokenError(f"{error}: {wrong}") from None
            self._tell(f"{what} after {monotonic() - begun:.1f} s, at last {last[:3]}")
        self._recoveries.append(monotonic() - begun)

    # -- the end

    def _drain(self) -> None:
        """Let the producers end, the copies be complete, and the groups read and commit all."""
        for member in self._producers:
            member.leave()
        for member in self._producers:
            self._endWell(member)
        self._logs = self._read(CLICKS)
        count = sum(map(len, self._logs.values()))
        secondsMax = self._slowness * DRAIN_SECONDS
        for client in self.copiers:
            self._attempt(
                lambda client=client: self._isCopied(client, count),  # type: ignore[misc]
                f"{client} has copied {count} messages",
                secondsMax,
            )
        ends = {
            number: len(self._logs[placed(CLICKS, number)]) for number in range(PARTITION_COUNT)
        }
        for group in self.groups:
            found: dict[int, int] = {}

            def isThere(group: str = group, found: dict[int, int] = found) -> bool:
                found.update(self._positions(group))
                return found == ends

            self._attempt(isThere, f"positions of {group}: {found}, ends: {ends}", secondsMax)

    def _isCopied(self, client: str, count: int) -> bool:
        copies = self._read(target(client))
        self._logs |= copies
        if sum(map(len, copies.values())) >= count:
            return True
        self._pause(LOOK_SECONDS)
        return False

    def _positions(self, group: str) -> dict[int, int]:
        asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        try:
            found = asked[group].result()
        except KafkaException:
            return {}
        return {each.partition: each.offset for each in found.topic_partitions}

    def _endMembers(self) -> None:
        for member in (*self._members, *self._copiers):
            member.leave()
        for member in (*self._members, *self._copiers):
            self._endWell(member)

    def _endBrokers(self) -> None:
        self._attempt(
            lambda: not self._outOfSync(),
            "replicas are in sync at the end",
            self._slowness * DRAIN_SECONDS,
        )
        for number in BROKERS:
            self._brokers[number][-1].leave()
        for number in BROKERS:
            self._endWell(self._brokers[number][-1])
        self._zookeeper.stop()

    # -- the books

    def _judge(self) -> None:
        producers = self._judgeProducers()
        for client in self.copiers:
            for number in range(PARTITION_COUNT):
                found = judgeCopies(
                    self._logs[placed(CLICKS, number)], self._logs[placed(target(client), number)]
                )
                self._broken += [f"copies of {client}, partition {number}: {x}" for x in found]
        delivered = self._judgeGroups(self._faults, FAULT_SECONDS)
        self._judgeLogFiles(self._processes())
        folders = {number: self._folder / self._place(number) for number in BROKERS}
        names = (CLICKS, *map(target, self.copiers))
        whole = [f"{name}-{index}" for name in names for index in range(PARTITION_COUNT)]
        beginnings = [
            f"{name}-{index}"
            for name in (OFFSETS, TRANSACTIONS)
            for index in range(COORDINATOR_PARTITION_COUNT)
        ]
        count, wrong = differences(folders, whole, beginnings)
        self._broken += wrong
        self.figures = self.figures._replace(
            sentCount=sum(len(sent.numbers) for sent in producers.values()),
            okCount=outcomesOf(producers)["ok"],
            copiedCount=sum(
                len(entries) for place, entries in self._logs.items() if place.startswith(COPIES)
            ),
            deliveredCount=delivered.deliveredCount,
            againCount=delivered.againCount,
            comparedCount=count,
        )

    def _judgeProducers(self) -> dict[str, Sent]:
        """Each at what it promises."""
        producers = {}
        for member in self._producers:
            sent, wrong = sentBy(member.lines())
            self._broken += [f"{member.name}: {each}" for each in wrong]
            name = member.name
            if name not in self.mayGiveUp:
                lost = [n for n in sent.numbers if sent.outcomes.get(n) != "ok"]
                if lost:
                    self._broken.append(f"{name} has given up {lost[:10]}, {len(lost)} in all")
            producers[name] = sent._replace(places={}) if name in self.mayRepeat else sent
        logs = {place: self._asPromised(entries) for place, entries in self._logsOf(CLICKS).items()}
        self._broken += judgeLogs(producers, logs)
        return producers

    @classmethod
    def _asPromised(cls, entries: list[Entry]) -> list[Entry]:
        """Without what producers may do that are not idempotent: repetitions, another order."""
        seen: set[str] = set()
        kept: dict[str, list[Entry]] = {}
        for entry in entries:
            name = entry.value.partition(".")[0]
            if name not in cls.mayRepeat or entry.value not in seen:
                kept.setdefault(name, []).append(entry)
            seen.add(entry.value)
        for name in cls.mayDisorder:
            kept.get(name, []).sort(key=lambda entry: int(entry.value.split(".")[1]))
        return [entry for part in kept.values() for entry in part]

    def _clear(self) -> None:
        self._network.heal()
        super()._clear()
        self._zookeeper.kill()
        self._network.close()


def _keys(separator: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings whose names have underscores here."""
    return {key.replace("_", separator): value for key, value in settings.items()}
