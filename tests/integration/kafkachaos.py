"""
A broker of today's protocol and its Twisted clients, as processes that are given no rest:
idempotent producers, a classic group with a static member, a group of KIP-848, and applications
that copy a topic in transactions. From a seed: members join, leave, are killed and stopped for
longer than a session; producers and copying applications are killed; the broker is killed, stopped
and restarted; connections are cut in the middle of a frame; requests are answered late, with errors
that pass, or not at all. In the end the books must balance (L{tests.integration.kafkachaosjudge}).

Half of the clients reach the broker by way of a proxy that cuts connections, at a listener whose
advertised address is the proxy's. The seed also decides the groups' assignors and whether
acknowledgements wait for the disk: C{kill -9} must lose nothing in either case.

After the last fault, within L{SETTLE_SECONDS}, each partition has one owner in each group, and it
stays so. At the end the broker is killed once more, and the logs must be the same.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.integration import kafkachaosrun
from tests.integration.chaosrun import BrokenError, Member, steadyPort
from tests.integration.cuttingproxy import ANSWER, REQUEST, CuttingProxy
from tests.integration.kafkachaosjudge import BROKER
from tests.integration.kafkachaosrecords import TENURE_WORDS, lateTimesOf, ownedBy
from tests.integration.kafkachaosrun import CLIENT_PROPERTIES, COPIERS, KafkaChaosRun, outcomesOf
from tests.integration.numberedmessages import CLICKS, COPIES, placed

PARTITION_COUNT = 4
SESSION_MS = 3_000
HEARTBEAT_MS = 500
START_SECONDS = 600
"""For all processes to be there, on a machine that has other work; nothing is measured by it."""
SETTLE_SECONDS = (2 * SESSION_MS + 4 * HEARTBEAT_MS) / 1000
STOP_SECONDS = SESSION_MS / 1000 + 1.5
"""How long a client is stopped: longer than its session lasts."""
BROKER_STOP_SECONDS = (1.0, 5.0)
BROKER_AWAY_SECONDS = (0.0, 3.0)
SERVICE_SECONDS = 2.0
"""How long the broker is left alone between two faults of it, so that clients can go on."""
DRAIN_SECONDS_MAX = 600.0
MEMBER_COUNT_MAX = 4
CLASSIC, MODERN = "classic", "modern"
TOPICS = {CLASSIC: CLICKS, MODERN: COPIES, COPIERS: CLICKS}
"""Of each group, the topic that it reads."""
ASSIGNORS = ("range", "roundrobin", "cooperative-sticky")
REMOTE_ASSIGNORS = ("uniform", "range")
BROKER_ID = 0
STATIC = "static"
"""C{group.instance.id} of one member of the classic group."""

BROKER_PROPERTIES = {
    "brokerid": str(BROKER_ID),
    "enable.zookeeper": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.assignment.interval.ms": "200",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.segment.bytes": "1048576",
    "listener.security.protocol.map": "DIRECT:PLAINTEXT,PROXIED:PLAINTEXT",
}
CONSUMER_PROPERTIES = {**kafkachaosrun.CONSUMER_PROPERTIES, "max.poll.interval.ms": "20000"}
CLASSIC_PROPERTIES = {
    "session.timeout.ms": str(SESSION_MS),
    "heartbeat.interval.ms": str(HEARTBEAT_MS),
}
PRODUCERS: tuple[dict[str, str], ...] = (
    {},
    {"compression.type": "gzip", "delivery.timeout.ms": "4000", "linger.ms": "20"},
    {"compression.type": "lz4", "batch.size": "2000"},
)
"""The properties of each, beside those that all have. One gives up while the broker is away."""
TRANSACTION_MS = 15_000
"""Longer than a client is stopped: its transaction is open still when it goes on."""

_REQUESTS = (
    "Produce", "Fetch", "Heartbeat", "ConsumerGroupHeartbeat", "JoinGroup", "SyncGroup",
    "OffsetCommit", "OffsetFetch", "FindCoordinator", "InitProducerId", "TxnOffsetCommit", "EndTxn",
)  # fmt: skip
_ERRORS = (
    ("Produce", "NOT_ENOUGH_REPLICAS"),
    ("Produce", "NOT_LEADER_OR_FOLLOWER"),
    ("Fetch", "NOT_LEADER_OR_FOLLOWER"),
    ("Heartbeat", "COORDINATOR_NOT_AVAILABLE"),
    ("ConsumerGroupHeartbeat", "COORDINATOR_LOAD_IN_PROGRESS"),
    ("JoinGroup", "COORDINATOR_NOT_AVAILABLE"),
    ("SyncGroup", "NOT_COORDINATOR"),
    ("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS"),
    ("OffsetFetch", "NOT_COORDINATOR"),
    ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
    ("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS"),
    ("TxnOffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS"),
    ("EndTxn", "CONCURRENT_TRANSACTIONS"),
    ("EndTxn", "COORDINATOR_NOT_AVAILABLE"),
)
DELAY_MS = (300, 2_000)
NOTICE_SECONDS = (4 * HEARTBEAT_MS + DELAY_MS[1]) / 1000
"""How long a member that goes on, at a broker that is there, may not know what happened."""


class Figures(NamedTuple):
    """
    What a run was made of.

    @ivar abortedCount: messages of the copies that no reader of committed ones sees.
    @ivar againCount: deliveries of messages that were delivered before.
    @ivar overlapCount: times that a stopped member took itself for the owner of another's.
    @ivar settledSeconds: from the last fault until the groups were stable.
    """

    seconds: float = 0
    faults: dict[str, int] = {}
    assignor: str = ""
    isFlushed: bool = False
    sentCount: int = 0
    okCount: int = 0
    failedCount: int = 0
    unknownCount: int = 0
    unknownLoggedCount: int = 0
    loggedCount: int = 0
    copiedCount: int = 0
    abortedCount: int = 0
    deliveredCount: int = 0
    againCount: int = 0
    overlapCount: int = 0
    settledSeconds: float = 0


class KafkaChaosTrial(KafkaChaosRun):
    """One run."""

    partitionCount = PARTITION_COUNT
    groups = TOPICS
    startSeconds = START_SECONDS
    awaySeconds = BROKER_AWAY_SECONDS
    stopSeconds = BROKER_STOP_SECONDS

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
        isFlushed = bool(seed // len(ASSIGNORS) % 2)
        self.figures = Figures(assignor=ASSIGNORS[seed % len(ASSIGNORS)], isFlushed=isFlushed)
        self._remoteAssignor = REMOTE_ASSIGNORS[seed % len(REMOTE_ASSIGNORS)]
        self._port, proxiedPort = steadyPort(), steadyPort()
        self._proxy = CuttingProxy(proxiedPort)
        self._brokerProperties = {
            **BROKER_PROPERTIES,
            "log.dir": str(Path(folder) / "data"),
            "listeners": (f"DIRECT://127.0.0.1:{self._port},PROXIED://127.0.0.1:{proxiedPort}"),
            "advertised.listeners": (
                f"DIRECT://127.0.0.1:{self._port},PROXIED://127.0.0.1:{self._proxy.port}"
            ),
            "log.flush.acks.all": str(isFlushed).lower(),
            "log.flush.before.read": str(isFlushed).lower(),
        }
        self._brokerFreeAt = 0.0
        self._static: Member | None = None

    # -- the whole of it

    def _carryOut(self) -> None:
        self._begin()
        self._disturb(
            [
                self._newcomer,
                self._leave,
                self._killMember,
                self._killMember,
                self._killMember,
                self._stopMember,
                self._stopMember,
                self._killCopier,
                self._stopCopier,
                self._killProducer,
                self._killBroker,
                self._stopBroker,
                self._restartBroker,
                self._cutRequest,
                self._cutAnswer,
                self._refuse,
                self._refuse,
                self._delay,
                self._disconnect,
                self._disconnect,
            ]
        )
        lastFault = self._rest()
        self._settle(lastFault)
        self._drain()
        self._endMembers()
        self._endBroker()
        self._judge()

    def _end(self, seconds: float, faults: dict[str, int]) -> None:
        self.figures = self.figures._replace(seconds=seconds, faults=faults)

    def _begin(self) -> None:
        self._launchBroker(BROKER_ID)
        self._until(self._isBrokerServing, "the broker serves", START_SECONDS)
        admin = AdminClient({"bootstrap.servers": self._bootstrapServers})
        topics = [NewTopic(name, PARTITION_COUNT) for name in (CLICKS, COPIES)]
        for waiting in admin.create_topics(topics).values():
            waiting.result()
        for number in range(len(PRODUCERS)):
            self._startProducer(number)
        self._join(CLASSIC, STATIC)
        for group in (CLASSIC, CLASSIC, MODERN, MODERN):
            self._join(group)
        for number in range(2):
            self._startCopier(number)
        self._until(
            lambda: all(any(member.lines("ok")) for member in self._producers),
            "something of each producer is acknowledged",
            START_SECONDS,
        )
        self._until(
            lambda: all(any(member.lines("assigned")) for member in self._members),
            "all members have joined",
            START_SECONDS,
        )

    @property
    def _bootstrapServers(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _member(self, name: str, options: dict[str, Any], group: str = "") -> Member:
        module = "tests.integration.kafkachaosmember"
        return Member(self._folder, module, name, options, group)

    def _servers(self) -> dict[str, str]:
        """Every other client reaches the broker by way of the proxy."""
        count = len(self._producers) + len(self._members)
        port = self._port if count % 2 else self._proxy.port
        return {"bootstrap.servers": f"127.0.0.1:{port}"}

    def _startProducer(self, number: int) -> Member:
        properties = {
            **CLIENT_PROPERTIES,
            **self._servers(),
            "close.timeout.ms": "60000",
            **PRODUCERS[number],
        }
        options = {"program": "producer", "seed": self._random.random(), "properties": properties}
        member = self._member(f"p{len(self._producers)}", options, str(number))
        self._producers.append(member)
        return member

    def _join(self, group: str, instance: str = "") -> Member:
        isByHand = len(self._members) % 2 == 0
        properties = {
            **CONSUMER_PROPERTIES,
            **self._servers(),
            "group.id": group,
            "enable.auto.commit": str(not isByHand).lower(),
        }
        if group == CLASSIC:
            properties |= {
                **CLASSIC_PROPERTIES,
                "partition.assignment.strategy": self.figures.assignor,
                "group.instance.id": instance,
            }
        else:
            properties |= {
                "group.protocol": "consumer",
                "group.remote.assignor": self._remoteAssignor,
            }
        options = {
            "program": "consumer",
            "seed": self._random.random(),
            "topic": TOPICS[group],
            "properties": properties,
        }
        member = self._member(f"c{len(self._members)}", options, group)
        self._members.append(member)
        if instance:
            self._static = member
        return member

    def _startCopier(self, number: int) -> Member:
        servers = self._servers()
        producer = {
            **CLIENT_PROPERTIES,
            **servers,
            "transactional.id": f"copier{number}",
            "transaction.timeout.ms": str(TRANSACTION_MS),
            "linger.ms": "0",
        }
        consumer = {
            **CONSUMER_PROPERTIES,
            **CLASSIC_PROPERTIES,
            **servers,
            "group.id": COPIERS,
            "enable.auto.commit": "false",
            "partition.assignment.strategy": self.figures.assignor,
        }
        options = {
            "program": "copier",
            "seed": self._random.random(),
            "producer": producer,
            "consumer": consumer,
        }
        member = self._member(f"copier{number}-{len(self._members)}", options, COPIERS)
        self._members.append(member)
        return member

    # -- clients

    def _here(self, *groups: str) -> list[Member]:
        return [
            each
            for each in self._members
            if each.group in groups and each.isHere and not each.isStopped
        ]

    def _newcomer(self) -> None:
        group = self._random.choice((CLASSIC, MODERN))
        if len(self._here(group)) < MEMBER_COUNT_MAX:
            self._note("join", self._join(group).name, monotonic())

    def _leave(self) -> None:
        members = [
            each
            for each in self._here(CLASSIC, MODERN)
            if len(self._here(each.group)) > 1 and any(each.lines("assigned"))
        ]
        if members:
            member = self._random.choice(members)
            member.leave()
            self._note("leave", member.name, monotonic())
            if member is self._static:
                self._replaceStatic()

    def _replaceStatic(self) -> None:
        """It comes back before or after its session is over."""

        def join() -> None:
            self._note("join", self._join(CLASSIC, STATIC).name, monotonic())

        self._later(self._random.uniform(0.2, SESSION_MS / 1000 + 2), join)

    def _choose(self, act: Callable[[], None], *groups: str) -> Member | None:
        members = self._here(*groups)
        if not members:
            self._again(act)
            return None
        return self._random.choice(members)

    def _killMember(self) -> None:
        member = self._choose(self._killMember, CLASSIC, MODERN)
        if member is None:
            return
        begin = monotonic()
        member.kill()
        self._note("kill", member.name, begin, f"kill {member.group} member")
        if member is self._static:
            self._replaceStatic()
        elif len(self._here(member.group)) < 2:
            self._later(
                self._random.uniform(0.2, 2),
                lambda: self._note("join", self._join(member.group).name, monotonic()),
            )

    def _stopMember(self) -> None:
        member = self._choose(self._stopMember, CLASSIC, MODERN)
        if member is not None:
            self._stop(member, STOP_SECONDS)

    def _killCopier(self) -> None:
        member = self._choose(self._killCopier, COPIERS)
        if member is None:
            return
        begin = monotonic()
        member.kill()
        self._note("kill", member.name, begin, "kill copier")
        number = int(member.name[len("copier")])
        self._later(
            self._random.uniform(0.2, 3),
            lambda: self._note("join", self._startCopier(number).name, monotonic()),
        )

    def _stopCopier(self) -> None:
        member = self._choose(self._stopCopier, COPIERS)
        if member is not None:
            self._stop(member, STOP_SECONDS)

    def _killProducer(self) -> None:
        member = self._random.choice([each for each in self._producers if each.isHere])
        begin = monotonic()
        member.kill()
        self._note("kill", member.name, begin, "kill producer")
        self._startProducer(int(member.group))

    # -- the broker

    @property
    def _broker(self) -> Member:
        return self._brokers[BROKER_ID][-1]

    def _startProcess(self, number: int) -> Member:
        options = {"program": "broker", "properties": self._brokerProperties}
        return self._member(f"broker{len(self._brokers[number])}", options)

    def _isBrokerServing(self) -> bool:
        return self._isServing(BROKER_ID)

    def _take(self, act: Callable[[], None]) -> int | None:
        if self._isBrokerAway or monotonic() < self._brokerFreeAt:
            self._again(act)
            return None
        return BROKER_ID

    def _release(self, kind: str, number: int, begin: float, what: str) -> None:
        self._isBrokerAway = False
        self._brokerFreeAt = monotonic() + SERVICE_SECONDS
        self._note(kind, BROKER, begin, what)

    # -- connections and answers

    def _cutRequest(self) -> None:
        self._proxy.cutNext(REQUEST)
        self._note("cut", BROKER, monotonic(), "cut in request")

    def _cutAnswer(self) -> None:
        self._proxy.cutNext(ANSWER)
        self._note("cut", BROKER, monotonic(), "cut in answer")

    def _order(self, act: Callable[[], None], what: str, **order: Any) -> None:
        """Orders that come while the broker is away are of no use."""
        if self._isBrokerAway:
            self._again(act)
        else:
            self._broker.tell(order)
            self._note("order", BROKER, monotonic(), what)

    def _refuse(self) -> None:
        request, error = self._random.choice(_ERRORS)
        count = self._random.randrange(1, 6)
        self._order(self._refuse, "answer with an error", request=request, error=error, count=count)

    def _delay(self) -> None:
        self._order(
            self._delay,
            "answer late",
            request=self._random.choice(_REQUESTS),
            delayMs=self._random.randrange(*DELAY_MS),
            count=self._random.randrange(1, 4),
        )

    def _disconnect(self) -> None:
        self._order(
            self._disconnect,
            "lose an answer",
            request=self._random.choice(_REQUESTS),
            isHandled=self._random.random() < 0.7,
            count=self._random.randrange(1, 4),
        )

    # -- afterwards

    def _rest(self) -> float:
        """
        Undo what is not undone yet, and let no request meet a fault any more.

        @return: when the last fault was over.
        """
        self._finishAgenda()
        self._until(self._isBrokerServing, "the broker serves", START_SECONDS)
        self._broker.tell({})
        return monotonic()

    def _owners(self) -> dict[str, dict[str, list[str]]]:
        """Of each group: what its members take for their own."""
        return {
            group: {
                member.name: sorted(ownedBy(member.lines(*TENURE_WORDS)))
                for member in self._here(group)
            }
            for group in TOPICS
        }

    @staticmethod
    def _isStable(owners: dict[str, dict[str, list[str]]]) -> bool:
        return all(
            sorted(place for places in owners[group].values() for place in places)
            == [placed(topic, number) for number in range(PARTITION_COUNT)]
            for group, topic in TOPICS.items()
        )

    def _settle(self, lastFault: float) -> None:
        """
        Watch until the time is over within which the groups must be stable. A slow machine has
        longer, unless they are stable.
        """
        secondsMax = self._slowness * SETTLE_SECONDS
        stableSince: float | None = None
        while True:
            now = monotonic()
            owners = self._owners()
            if not self._isStable(owners):
                stableSince = None
            elif stableSince is None:
                stableSince = now
            if now > lastFault + (SETTLE_SECONDS if stableSince is not None else secondsMax):
                break
            self._pause(0.2)
        if stableSince is None:
            self._broken.append(
                f"{secondsMax} s after the last fault the groups are not stable: {owners}"
            )
            self._until(lambda: self._isStable(self._owners()), "the groups are stable", 300)
            self._broken.append(f"they were {monotonic() - lastFault:.1f} s after it")
        settled = -1.0 if stableSince is None else stableSince - lastFault
        self.figures = self.figures._replace(settledSeconds=settled)
        self._settled = self._owners()

    def _drain(self) -> None:
        """Let the producers end, the copies be complete, and the groups read all."""
        for member in self._producers:
            if member.isHere:
                member.leave()
                self._endWell(member)
        last = self._readLogs(DRAIN_SECONDS_MAX)
        seen: dict[str, dict[str, int]] = {}

        def isRead() -> bool:
            for group in (CLASSIC, MODERN):
                seen[group] = {}
                for member in self._members:
                    if member.group == group:
                        for _word, _ns, place, offset, _value in member.lines("got"):
                            seen[group][place] = max(int(offset), seen[group].get(place, 0))
            return seen[CLASSIC] | seen[MODERN] == last

        try:
            self._until(isRead, f"the groups have read all: {last}", DRAIN_SECONDS_MAX)
        except BrokenError as error:
            self._broken.append(f"{error}, but up to {seen}")
        owners = self._owners()
        if owners != self._settled:
            self._broken.append(
                f"the groups were not left alone, and did not stay: {self._settled} became {owners}"
            )

    def _endMembers(self) -> None:
        for member in self._members:
            if member.isHere:
                member.leave()
        for member in self._members:
            self._endWell(member, (0, -signal.SIGKILL))
        for group, topic in TOPICS.items():
            consumer = Consumer({"bootstrap.servers": self._bootstrapServers, "group.id": group})
            places = [TopicPartition(topic, number) for number in range(PARTITION_COUNT)]
            try:
                for found in consumer.committed(places, timeout=60):
                    entries = self._logs[placed(topic, found.partition)]
                    _first, end = consumer.get_watermark_offsets(
                        TopicPartition(topic, found.partition), timeout=60
                    )
                    least = entries[-1].offset + 1 if entries else 0
                    if not least <= max(found.offset, 0) <= end:
                        self._broken.append(
                            f"the position of {group} in {topic}-{found.partition} is"
                            f" {found.offset}, and not {least} … {end}"
                        )
            except KafkaException as error:
                raise BrokenError(f"the positions of {group}: {error}") from error
            finally:
                consumer.close()

    def _endBroker(self) -> None:
        """Kill it once more: the logs are the same."""
        self._aborted = self._read(COPIES, "read_uncommitted")
        self._broker.kill()
        self._launchBroker(BROKER_ID)
        self._until(self._isBrokerServing, "the broker serves", START_SECONDS)
        for place, entries in (self._read(CLICKS) | self._read(COPIES)).items():
            if entries != self._logs[place]:
                self._broken.append(f"{place} has changed by the last kill")
        self._broker.leave()
        self._endWell(self._broker)

    # -- the books

    def _judge(self) -> None:
        producers = self._judgeProducers()
        copiedCount = self._judgeCopies()
        faults = self._faults.copy()
        for broker in self._brokers[BROKER_ID]:
            faults += lateTimesOf(BROKER, broker.lines())
        delivered = self._judgeGroups(faults, NOTICE_SECONDS)
        self._judgeLogFiles(self._processes())
        outcomes = outcomesOf(producers)
        clicks = self._logsOf(CLICKS)
        logged = {
            entry.value.rpartition(".")[0] for entries in clicks.values() for entry in entries
        }
        unknown = [
            f"{name}.{number}"
            for name, sent in producers.items()
            for number in sent.numbers
            if sent.outcomes.get(number, "unknown") == "unknown"
        ]
        self.figures = self.figures._replace(
            sentCount=sum(len(sent.numbers) for sent in producers.values()),
            okCount=outcomes["ok"],
            failedCount=outcomes["failed"],
            unknownCount=len(unknown),
            unknownLoggedCount=sum(each in logged for each in unknown),
            loggedCount=sum(map(len, clicks.values())),
            copiedCount=copiedCount,
            abortedCount=sum(map(len, self._aborted.values())) - copiedCount,
            deliveredCount=delivered.deliveredCount,
            againCount=delivered.againCount,
            overlapCount=delivered.overlapCount,
        )

    def _clear(self) -> None:
        super()._clear()
        self._proxy.close()
