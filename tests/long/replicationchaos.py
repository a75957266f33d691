"""
Three brokers as processes, and clients that go on while one broker after another is killed (-9),
stopped for longer than its session with ZooKeeper, or restarted in order, at moments of a seed. All
topics have three replicas, of which two must be in sync (C{min.insync.replicas=2}).

The clients are ours (an idempotent producer, a classic group of two members, a group of KIP-848, an
application that copies a topic in transactions) and confluent-kafka's (an idempotent producer, a
group). They are left alone, and have two minutes for each message, so each message must be
acknowledged. The judge is that of L{tests.integration.kafkachaos}. After the last fault all
replicas must be in sync again, all producers and groups must go on, and at the end the replicas'
logs must be the same, byte for byte.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from pylogbroker.programs.localcluster import FIRST_ID, brokerProperties
from tests.integration import kafkachaosrun
from tests.integration.chaosrun import BrokenError, Member, steadyPort
from tests.integration.kafkachaosjudge import BROKER
from tests.integration.kafkachaosrecords import commitsOf
from tests.integration.kafkachaosrun import CLIENT_PROPERTIES, COPIERS, KafkaChaosRun, outcomesOf
from tests.integration.numberedmessages import CLICKS, COPIES, PAUSE_SECONDS
from tests.integration.replicalogs import differences
from tests.integration.zookeeperprocess import ZookeeperProcess

BROKERS = (FIRST_ID, FIRST_ID + 1, FIRST_ID + 2)
PARTITION_COUNT = 3
OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
COORDINATOR_PARTITION_COUNT = 2
ZOOKEEPER_SESSION_MS = 3_000
SESSION_MS = 10_000
START_SECONDS = 300
RECOVERY_SECONDS = 60.0
"""From the last fault until all replicas are in sync and all clients go on."""
DRAIN_SECONDS = 120.0
STOP_SECONDS = (ZOOKEEPER_SESSION_MS / 1000 + 0.5, ZOOKEEPER_SESSION_MS / 1000 + 4)
AWAY_SECONDS = (0.0, 6.0)
"""How long a killed or stopped process is away: some are back before their session is over."""
SERVICE_SECONDS = (0.0, 4.0)
"""From the end of a fault to the next one; replicas may still be out of sync."""
PROGRESS = ("ok", "committed", "copied")
"""The words with which a client says that it goes on."""
OTHERS_SHARE = 0.3
"""How often any broker is taken; otherwise it is the leader of any partition."""
NOTICE_SECONDS = SESSION_MS / 1000
GROUPS = {"classic": CLICKS, "modern": COPIES, "confluent": CLICKS, COPIERS: CLICKS}
"""Of each group, the topic that it reads."""

BROKER_PROPERTIES = {
    "zk.sessiontimeout.ms": str(ZOOKEEPER_SESSION_MS),
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": str(COORDINATOR_PARTITION_COUNT),
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": str(COORDINATOR_PARTITION_COUNT),
    "transaction.state.log.replication.factor": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "1000",
    "replica.lag.time.max.ms": "4000",
    "replica.fetch.backoff.ms": "200",
    "log.segment.bytes": "1048576",
}
CONSUMER_PROPERTIES = {**kafkachaosrun.CONSUMER_PROPERTIES, "max.poll.interval.ms": "60000"}
CLASSIC_PROPERTIES = {
    "session.timeout.ms": str(SESSION_MS),
    "heartbeat.interval.ms": "1000",
    "partition.assignment.strategy": "range",
}
CONFLUENT_PROPERTIES = {
    "socket.timeout.ms": "3000",
    "socket.connection.setup.timeout.ms": "2000",
    "retry.backoff.max.ms": "500",
    "log_level": 3,
}
TRANSACTION_MS = 15_000


class Figures(NamedTuple):
    """
    What a run was made of.

    @ivar isCompacting: the coordinators' topics are compacted, by each broker at its own time, so
        their replicas are compared only where they are not.
    @ivar ackSecondsMax: the longest time in which no message of any producer was acknowledged.
    @ivar recoverySeconds: from the last fault until all replicas were in sync.
    @ivar comparedCount: bytes of a replica that were the same in all three.
    """

    seconds: float = 0
    faults: dict[str, int] = {}
    isFlushed: bool = False
    isCompacting: bool = False
    sentCount: int = 0
    okCount: int = 0
    copiedCount: int = 0
    abortedCount: int = 0
    deliveredCount: int = 0
    againCount: int = 0
    ackSecondsMax: float = 0
    recoverySeconds: float = 0
    comparedCount: int = 0

    @property
    def messageCells(self) -> list[str]:
        """The figures of messages, for the table: below L{MESSAGE_COLUMNS}."""
        return [
            f"{self.sentCount:,}",
            f"{self.okCount:,}",
            f"{self.copiedCount:,}",
            f"{self.abortedCount:,}",
            f"{self.deliveredCount:,}",
            f"{self.againCount:,}",
            f"{self.ackSecondsMax:.1f}",
            f"{self.recoverySeconds:.1f}",
            f"{self.comparedCount:,}",
        ]


MESSAGE_COLUMNS = (
    "sent",
    "acknowledged",
    "copied",
    "aborted",
    "delivered",
    "delivered again",
    "longest time without an acknowledgement (s)",
    "in sync (s)",
    "bytes compared",
)
SETTINGS = (
    f"in sync within {RECOVERY_SECONDS} s after the last fault",
    f"brokers: {BROKER_PROPERTIES}",
    f"clients: {CLIENT_PROPERTIES}",
    f"members: {CONSUMER_PROPERTIES}",
    f"confluent-kafka: {CONFLUENT_PROPERTIES}",
)
"""Of a run, for its page."""


class ReplicationTrial(KafkaChaosRun):
    """
    One run.

    @cvar topics: of the clients.
    @cvar pauseSeconds: between a producer's messages, at least and at most.
    @cvar drainSeconds: how long the copies, and the groups, may take at the end.
    """

    partitionCount = PARTITION_COUNT
    topics: ClassVar[Sequence[str]] = (CLICKS, COPIES)
    pauseSeconds = PAUSE_SECONDS
    drainSeconds = DRAIN_SECONDS
    groups = GROUPS
    startSeconds = START_SECONDS
    awaySeconds = AWAY_SECONDS
    stopSeconds = STOP_SECONDS

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
        self.figures = Figures(isFlushed=bool(seed % 2), isCompacting=bool(seed // 2 % 2))
        self._zookeeper: ZookeeperProcess | None = None
        self._zookeeperServers = ""
        self._ports = {number: steadyPort() for number in BROKERS}
        self._admin: Any = None

    # -- the whole of it

    def _carryOut(self) -> None:
        self._begin()
        self._disturb(self._acts())
        self._finishAgenda()
        self._recover()
        self._drain()
        self._endMembers()
        self._aborted = self._read(COPIES, "read_uncommitted")
        self._endBrokers()
        self._judge()
        self._compareLogs()

    def _end(self, seconds: float, faults: dict[str, int]) -> None:
        self.figures = self.figures._replace(seconds=seconds, faults=faults)

    def _acts(self) -> list[Callable[[], None]]:
        """The kinds of faults."""
        return [self._killBroker, self._stopBroker, self._restartBroker]

    def _begin(self) -> None:
        self._zookeeperServers = self._startZookeeper()
        for number in BROKERS:
            self._launchBroker(number)
        self._until(lambda: all(map(self._isServing, BROKERS)), "brokers serve", START_SECONDS)
        self._admin = AdminClient({"bootstrap.servers": self._bootstrapServers, "log_level": 3})
        topics = [NewTopic(name, PARTITION_COUNT, 3) for name in self.topics]
        for waiting in self._admin.create_topics(topics).values():
            waiting.result()
        self._startClients()
        self._until(
            lambda: (
                all(any(each.lines("ok")) for each in self._producers)
                and all(any(each.lines(*PROGRESS)) for each in self._members)
            ),
            "each producer has an acknowledgement, and each member has committed",
            START_SECONDS,
        )

    @property
    def _bootstrapServers(self) -> str:
        return ",".join(map(self._address, BROKERS))

    def _startZookeeper(self) -> str:
        """Returns where it serves."""
        self._zookeeper = ZookeeperProcess(str(self._folder / "zookeeper")).start()
        return self._zookeeper.servers

    def _stopZookeeper(self) -> None:
        assert self._zookeeper is not None
        self._zookeeper.stop()

    def _address(self, number: int) -> str:
        """Of a broker."""
        return f"127.0.0.1:{self._ports[number]}"

    def _member(
        self,
        name: str,
        group: str = "",
        *,
        of: str = "ours",
        command: Sequence[str] = (sys.executable, "-m"),
        **options: Any,
    ) -> Member:
        module = {
            "ours": "tests.integration.kafkachaosmember",
            "confluent": "tests.integration.confluentmember",
            "appender": "tests.long.appender",
        }[of]
        given = {"seed": self._random.random(), **options}
        return Member(self._folder, module, name, given, group, command)

    def _startClients(self) -> None:
        servers = {"bootstrap.servers": self._bootstrapServers}
        ours = {**CLIENT_PROPERTIES, **servers, "close.timeout.ms": "120000"}
        self._producers.append(
            self._member(
                "ours", program="producer", properties=ours, pauseSeconds=self.pauseSeconds
            )
        )
        confluent: dict[str, Any] = {**CONFLUENT_PROPERTIES, **servers}
        self._producers.append(
            self._member(
                "confluent",
                of="confluent",
                program="producer",
                partitions=PARTITION_COUNT,
                pauseSeconds=self.pauseSeconds,
                properties={**confluent, "enable.idempotence": True, "message.timeout.ms": 120_000},
            )
        )
        consumer = {**CONSUMER_PROPERTIES, **servers}
        classic = {**consumer, **CLASSIC_PROPERTIES}
        self._members = [
            *(
                self._member(
                    f"classic{number}",
                    "classic",
                    program="consumer",
                    topic=CLICKS,
                    properties={
                        **classic,
                        "group.id": "classic",
                        "enable.auto.commit": "true" if number else "false",
                    },
                )
                for number in range(2)
            ),
            self._member(
                "modern",
                "modern",
                program="consumer",
                topic=COPIES,
                properties={**consumer, "group.id": "modern", "group.protocol": "consumer"},
            ),
            self._member(
                "confluentconsumer",
                "confluent",
                of="confluent",
                program="consumer",
                topic=CLICKS,
                properties={
                    **confluent,
                    "group.id": "confluent",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "session.timeout.ms": SESSION_MS,
                },
            ),
            self._member(
                "copier",
                COPIERS,
                program="copier",
                producer={
                    **CLIENT_PROPERTIES,
                    **servers,
                    "transactional.id": "copier",
                    "transaction.timeout.ms": str(TRANSACTION_MS),
                    "linger.ms": "0",
                },
                consumer={**classic, "group.id": COPIERS, "enable.auto.commit": "false"},
            ),
        ]

    # -- brokers

    def _startProcess(self, number: int) -> Member:
        isFlushed = str(self.figures.isFlushed).lower()
        properties = brokerProperties(
            {
                **BROKER_PROPERTIES,
                "log.flush.acks.all": isFlushed,
                "log.flush.before.read": isFlushed,
                "log.cleaner.backoff.ms": "5000" if self.figures.isCompacting else "3600000",
            },
            number,
            self._directory(number),
            self._ports[number],
            self._zookeeperServers,
        )
        return self._broker(number, f"broker{number}-{len(self._brokers[number])}", properties)

    def _directory(self, number: int) -> str:
        """Where a broker has its log directory."""
        return str(self._folder)

    def _broker(self, number: int, name: str, properties: Mapping[str, str]) -> Member:
        """The process of a broker."""
        return self._member(name, program="broker", properties=properties, seed=0)

    def _leaders(self) -> list[int]:
        """Of each partition."""
        try:
            topics = self._admin.list_topics(timeout=10).topics
        except KafkaException:
            return []
        return [each.leader for topic in topics.values() for each in topic.partitions.values()]

    def _take(self, act: Callable[[], None]) -> int | None:
        if self._isBrokerAway:
            self._again(act)
            return None
        if self._random.random() < OTHERS_SHARE:
            return self._random.choice(BROKERS)
        leaders = sorted(each for each in self._leaders() if each in BROKERS)
        return self._random.choice(leaders or BROKERS)

    def _release(self, kind: str, number: int, begin: float, what: str) -> None:
        self._releaseAll(kind, f"{BROKER}{number}", begin, what)

    def _releaseAll(self, kind: str, target: str, begin: float, what: str) -> None:
        """A fault has ended; note it, and when the next one may come."""
        self._note(kind, target, begin, what)

        def free() -> None:
            self._isBrokerAway = False

        self._later(self._random.uniform(*SERVICE_SECONDS), free)

    # -- afterwards

    def _outOfSync(self) -> list[str]:
        """Partitions whose replicas are not all in sync."""
        try:
            topics = self._admin.list_topics(timeout=10).topics
        except KafkaException as error:
            return [str(error)]
        return [
            f"{name}-{number}: leader {each.leader}, in sync {sorted(each.isrs)}"
            for name, topic in topics.items()
            for number, each in topic.partitions.items()
            if set(each.isrs) != set(BROKERS) or each.leader not in BROKERS
        ]

    def _recover(self) -> None:
        """After the last fault all replicas are in sync, and all clients go on."""
        begun = monotonic()
        before = {each.name: self._progress(each) for each in self._producers + self._members}
        self._tell("no more faults")
        wrong: list[str] = []

        def isRecovered() -> bool:
            wrong[:] = self._outOfSync()
            return not wrong

        try:
            self._until(isRecovered, "replicas are in sync", self._slowness * RECOVERY_SECONDS)
        except BrokenError as error:
            self._broken.append(f"{error}: {wrong}")
        recovered = monotonic() - begun
        self._tell(f"in sync after {recovered:.1f} s")
        self.figures = self.figures._replace(recoverySeconds=recovered)

        def stuck() -> list[str]:
            return [
                each.name
                for each in self._producers + self._members
                if self._progress(each) <= before[each.name]
            ]

        try:
            self._until(lambda: not stuck(), "all clients go on", self._slowness * RECOVERY_SECONDS)
        except BrokenError as error:
            self._broken.append(f"{error}, but not {stuck()}")

    @staticmethod
    def _progress(member: Member) -> int:
        return sum(1 for _line in member.lines(*PROGRESS))

    def _drain(self) -> None:
        """Let the producers end, the copies be complete, and the groups read and commit all."""
        for member in self._producers:
            member.leave()
        for member in self._producers:
            self._endWell(member)
        secondsMax = self._slowness * self.drainSeconds
        last = self._readLogs(secondsMax)
        for group, topic in GROUPS.items():
            if group == COPIERS:
                continue
            wanted = {place: last[place] + 1 for place in last if place.startswith(topic)}
            found: dict[str, int] = {}

            def isCommitted(
                group: str = group, wanted: dict[str, int] = wanted, found: dict[str, int] = found
            ) -> bool:
                for member in self._members:
                    if member.group == group:
                        for each in commitsOf(member.lines("committed")):
                            found[each.place] = max(each.offset, found.get(each.place, 0))
                return all(found.get(place, 0) >= offset for place, offset in wanted.items())

            self._attempt(isCommitted, f"{group} has committed {wanted}, but {found}", secondsMax)

    def _endMembers(self) -> None:
        for member in self._members:
            member.leave()
        for member in self._members:
            self._endWell(member)

    def _endBrokers(self) -> None:
        self._attempt(
            lambda: not self._outOfSync(),
            "replicas are in sync at the end",
            self._slowness * self.drainSeconds,
        )
        for number in BROKERS:
            self._brokers[number][-1].leave()
        for number in BROKERS:
            self._endWell(self._brokers[number][-1])
        self._stopZookeeper()

    # -- the books

    def _compareLogs(self) -> None:
        """
        What clients have is the same in all replicas, byte for byte.
        """
        coordinators = [
            f"{topic}-{index}"
            for topic in (OFFSETS, TRANSACTIONS)
            for index in range(COORDINATOR_PARTITION_COUNT)
        ]
        count, wrong = differences(
            {number: Path(self._directory(number), f"broker{number}") for number in BROKERS},
            [f"{topic}-{index}" for topic in self.topics for index in range(PARTITION_COUNT)],
            () if self.figures.isCompacting else coordinators,
        )
        self._broken += wrong
        self.figures = self.figures._replace(comparedCount=count)

    def _judge(self) -> None:
        producers = self._judgeProducers()
        ackTimes = sorted(
            int(words[1]) for member in self._producers for words in member.lines("ok")
        )
        outcomes = outcomesOf(producers)
        for outcome in ("failed", "unknown"):
            if outcomes[outcome]:
                self._broken.append(f"{outcomes[outcome]} messages {outcome} within two minutes")
        copiedCount = self._judgeCopies()
        delivered = self._judgeGroups(
            (each._replace(target=BROKER) for each in self._faults), NOTICE_SECONDS
        )
        self._judgeLogFiles(self._processes())
        self.figures = self.figures._replace(
            sentCount=sum(len(sent.numbers) for sent in producers.values()),
            okCount=outcomes["ok"],
            copiedCount=copiedCount,
            abortedCount=sum(map(len, self._aborted.values())) - copiedCount,
            deliveredCount=delivered.deliveredCount,
            againCount=delivered.againCount,
            ackSecondsMax=max((after - before for before, after in pairwise(ackTimes)), default=0)
            / 1e9,
        )

    def _clear(self) -> None:
        super()._clear()
        if self._zookeeper is not None:
            self._zookeeper.kill()
