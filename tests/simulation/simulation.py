"""
One life of a cluster, as a seed decides it: two brokers, two producers, a group of up to three
consumers, some dozen steps, and what must hold afterwards.

All that is left to chance is taken from C{Random(seed)}: the same seed and the same code do the
same. (Python's own hashes of text differ from run to run, and nothing here goes by the order of a
set.)

What must hold is of two kinds. What the L{Ledger} knows: nothing is lost, nothing comes twice or
out of order without a reason. And what can be seen in ZooKeeper and in the members: within a
session's time-out, a tick and three back-offs of the last fault, each partition has one owner, the
one that says so itself, and it stays so.

With C{isGroupDeleted}, an operator also deletes all nodes of the group now and then, and once when
it has settled. This draws on a chance of its own: the rest of a seed's life stays the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from twisted.internet.defer import Deferred
from twisted.logger import LogEvent, LogLevel, formatEvent, globalLogPublisher

from pylogbroker.cluster import paths
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.errors import NoNodeException, NotEmptyException, ZookeeperError
from pylogbroker.testing.zookeeper import FakeZookeeper
from pylogbroker.types import BrokerPartition, PartitionId
from tests.simulation.brokers import SimulatedBroker
from tests.simulation.clients import Connect, SimulatedMember, SimulatedProducer
from tests.simulation.ledger import Ledger, Log
from tests.simulation.world import StuckError, World

TOPIC = "t"
GROUP = "g"
BROKER_COUNT = 2
PARTITION_COUNT = 2
MEMBER_COUNT_MAX = 3
SESSION_SECONDS = 3.0
TICK_SECONDS = 1.0
BACKOFF_SECONDS = 0.5
SETTLE_SECONDS = SESSION_SECONDS + TICK_SECONDS + 3 * BACKOFF_SECONDS
LOOK_SECONDS = 0.25
STOP_SECONDS_MAX = 30.0
DRAIN_SECONDS_MAX = 60.0
DELETION_CHANCE = 0.2
"""That an operator deletes the group's nodes after a step, if he does so at all."""

STEPS = {
    "publish": 6,
    "join": 3,
    "leave": 2,
    "crash": 1,
    "expire": 1,
    "disconnect": 2,
    "zookeeper away": 1,
    "broker stops": 1,
    "broker is killed": 1,
    "broker starts": 3,
    "cut": 3,
    "nothing": 1,
}
"""What can happen, and how often it does."""


class Outcome(NamedTuple):
    """
    What became of a seed.

    @ivar faults: what did not hold; empty if all did.
    @ivar steps: what happened, and when.
    @ivar figures: how often what.
    @ivar fingerprint: of all that was delivered, and when.
    """

    seed: int
    faults: list[str]
    steps: list[str]
    figures: Counter[str]
    fingerprint: int


@dataclass
class Plants:
    """
    What a test may put in the place of the members' parts, to see that it is found out.

    @ivar connect: makes members.
    @ivar session: what a member has for its ZooKeeper client.
    """

    connect: Connect = ConsumerConnector
    session: Callable[[Any], Any] = field(default=lambda session: session)

    def make(self, reactor: Any, properties: Any, session: Any, **more: Any) -> ConsumerConnector:
        """A member."""
        return self.connect(reactor, properties, self.session(session), **more)


class Simulation:
    """
    See the module. Make one, call C{run}.
    """

    def __init__(
        self, seed: int, plants: Plants | None = None, isGroupDeleted: bool = False
    ) -> None:
        self.seed = seed
        self.isGroupDeleted = isGroupDeleted
        self.operatorRandom = Random(~seed)
        self.random = random = Random(seed)
        self.plants = plants or Plants()
        self.steps: list[str] = []
        self.faults: list[str] = []
        self.figures: Counter[str] = Counter()
        self.ledger = Ledger()
        self.world = World(random.choice((0.0005, 0.002, 0.02)))
        self.zookeeper = FakeZookeeper(self.world.clock, random.choice((0.0, 2.0, 20.0)))
        self.sessions: list[Any] = []
        self.members: list[SimulatedMember] = []
        self.memberCount = 0
        self.consumerProperties = {
            "groupid": GROUP,
            "rebalance.backoff.ms": str(int(BACKOFF_SECONDS * 1000)),
            "zk.sessiontimeout.ms": str(int(SESSION_SECONDS * 1000)),
            "autocommit.interval.ms": random.choice(("300", "2000")),
            "fetcher.backoff.ms": random.choice(("200", "1000")),
            "fetch.size": random.choice(("100", "1000", "1000000")),
            "queuedchunks.max": random.choice(("1", "3")),
        }
        brokerProperties = {
            "num.partitions": str(PARTITION_COUNT),
            "log.flush.interval": random.choice(("1", "1", "5")),
            "log.default.flush.interval.ms": "500",
            "log.default.flush.scheduler.interval.ms": "500",
            "log.file.size": random.choice(("1000", "1000000")),
            "zk.sessiontimeout.ms": str(int(SESSION_SECONDS * 1000)),
        }
        self.brokers = [self._broker(number, brokerProperties) for number in range(BROKER_COUNT)]
        self.producers = [self._producer(f"p{number}") for number in range(2)]

    def newSession(self) -> Any:
        """A client of ZooKeeper, not connected."""
        session = self.zookeeper.client(int(SESSION_SECONDS * 1000))
        self.sessions.append(session)
        return session

    def _broker(self, number: int, properties: Mapping[str, str]) -> SimulatedBroker:
        return SimulatedBroker(
            self.world, self.newSession, number, properties, Random(self.random.getrandbits(32))
        )

    def _producer(self, name: str) -> SimulatedProducer:
        random = self.random
        isAsync = random.random() < 0.7
        properties = {
            "producer.type": "async" if isAsync else "sync",
            "batch.size": random.choice(("1", "5", "20")),
            "queue.time": "200",
            "num.retries": random.choice(("0", "0", "3")),
            "compression.codec": random.choice(("0", "0", "1")),
            "connect.timeout.ms": "2000",
            "socket.timeout.ms": "3000",
        }
        return SimulatedProducer(
            self.world,
            self.newSession(),
            name,
            properties,
            self.ledger,
            Random(random.getrandbits(32)),
        )

    # -- a life

    def run(self) -> Outcome:
        """From beginning to end."""
        observer: Any = self._logged
        globalLogPublisher.addObserver(observer)
        try:
            self._begin()
            for _step in range(self.random.randint(10, 16)):
                self._step()
                if self.isGroupDeleted and self.operatorRandom.random() < DELETION_CHANCE:
                    self._deleteGroup()
                self.world.advance(
                    self.random.choice((0.0, 0.01, 0.1, 0.4, 1.0, 2.5)) * self.random.random()
                )
            self._end()
        except StuckError as error:
            self.faults.append(str(error))
        finally:
            globalLogPublisher.removeObserver(observer)
        return Outcome(
            self.seed,
            self.faults,
            self.steps,
            self.figures,
            crc32(repr(self.ledger.deliveries).encode()),
        )

    def _logged(self, event: LogEvent) -> None:
        """What the package says was never to happen."""
        if event.get("log_level") is LogLevel.critical and str(
            event.get("log_namespace", "")
        ).startswith(("pylogbroker", "twisted", "tests")):
            failure = event.get("log_failure")
            self.faults.append(
                f"logged: {formatEvent(event)}{': ' + failure.getTraceback() if failure else ''}"
            )

    def _say(self, text: str) -> None:
        self.steps.append(f"{self.world.now:8.3f} {text}")

    def _begin(self) -> None:
        for broker in self.brokers:
            broker.start()
        for producer in self.producers:
            producer.session.connect()
        self.world.advance(0.5)
        for _member in range(self.random.randint(1, MEMBER_COUNT_MAX)):
            self._join()
            self.world.advance(self.random.choice((0.0, 0.05, 0.5)))

    def _step(self) -> None:
        name = self.random.choices(list(STEPS), list(STEPS.values()))[0]
        act = {
            "publish": self._publish,
            "join": self._join,
            "leave": self._leave,
            "crash": self._crash,
            "expire": self._expire,
            "disconnect": self._disconnect,
            "zookeeper away": self._zookeeperAway,
            "broker stops": self._brokerStops,
            "broker is killed": self._brokerIsKilled,
            "broker starts": self._brokerStarts,
            "cut": self._cut,
            "nothing": lambda: "",
        }[name]
        done = act()
        if done is not None:
            self.figures[name] += 1
            self._say(f"{name} {done}")

    # -- what can happen; each says what it did, or None if there was nothing to do

    def _publish(self) -> str:
        producer, count = self.random.choice(self.producers), self.random.randint(1, 20)
        producer.publish(TOPIC, count)
        self.figures["messages"] += count
        return f"{count} by {producer.name}"

    @property
    def _present(self) -> list[SimulatedMember]:
        """Members that run, and stay."""
        return [member for member in self.members if not member.isOver and not member.isLeaving]

    def _join(self) -> str | None:
        if len(self._present) >= MEMBER_COUNT_MAX:
            return None
        self.memberCount += 1
        session = self.newSession()
        random = Random(self.random.getrandbits(32))
        name = f"m{self.memberCount}"
        member = SimulatedMember(
            self.world,
            session,
            name,
            self.consumerProperties,
            self.ledger,
            random,
            self.plants.make,
        )
        self.members.append(member)
        member.start(TOPIC)
        return name

    def _someMember(self) -> SimulatedMember | None:
        present = self._present
        return self.random.choice(present) if present else None

    def _leave(self) -> str | None:
        member = self._someMember()
        if member is None:
            return None
        member.leave()
        return member.name

    def _crash(self) -> str | None:
        member = self._someMember()
        if member is None:
            return None
        member.crash()
        self._away(member.session)
        return member.name

    def _troubled(self, session: Any, seconds: float = 0) -> str:
        """Whoever it belongs to. Returns who that is."""
        for member in self.members:
            if member.session is session:
                member.trouble(seconds)
                return member.name
        others: list[SimulatedBroker | SimulatedProducer] = [*self.brokers, *self.producers]
        return next(
            (other.name for other in others if other.session is session), "somebody who is gone"
        )

    def _expire(self) -> str | None:
        connected = [session for session in self.sessions if session.connected]
        if not self.zookeeper.isRunning or not connected:
            return None
        session = self.random.choice(connected)
        name = self._troubled(session)
        self.zookeeper.expire(session)
        return name

    def _away(self, session: Any) -> None:
        """Its process is dead: it will not connect again, nor for the first time."""
        self.sessions.remove(session)
        self.zookeeper.disconnect(session)
        session.isClosed = True

    def _disconnect(self) -> str | None:
        connected = [session for session in self.sessions if session.connected]
        if not connected:
            return None
        session = self.random.choice(connected)
        seconds = self.random.choice((0.1, 1.0, 1.5)) * self.random.random() * SESSION_SECONDS
        name = self._troubled(session, seconds)
        self.zookeeper.disconnect(session)
        self.world.clock.callLater(seconds, self._reconnect, session)
        return f"{name} for {seconds:.3f} s"

    def _reconnect(self, session: Any) -> None:
        if session in self.sessions:
            self.zookeeper.reconnect(session)

    def _zookeeperAway(self) -> str | None:
        if not self.zookeeper.isRunning:
            return None
        seconds = self.random.random() * 2 * SESSION_SECONDS
        self._stopZookeeper(seconds)
        return f"for {seconds:.3f} s"

    def _stopZookeeper(self, seconds: float) -> None:
        reconnecting = 0.3
        for session in self.sessions:
            self._troubled(session, seconds + reconnecting)
        self.zookeeper.stop()
        self.world.clock.callLater(
            seconds, self._startZookeeper, Random(self.random.getrandbits(32)), reconnecting
        )

    def _startZookeeper(self, random: Random, reconnecting: float) -> None:
        self.zookeeper.start()
        for session in self.sessions:
            self.world.clock.callLater(random.random() * reconnecting, self._reconnect, session)

    def _brokerStops(self) -> str | None:
        up = [broker for broker in self.brokers if broker.isUp]
        if not up:
            return None
        broker = self.random.choice(up)
        broker.stop()
        return broker.name

    def _brokerIsKilled(self) -> str | None:
        up = [broker for broker in self.brokers if broker.isUp]
        if not up:
            return None
        broker = self.random.choice(up)
        broker.kill()
        if broker.session in self.sessions:
            self._away(broker.session)
        return broker.name

    def _brokerStarts(self) -> str | None:
        down = [broker for broker in self.brokers if broker.isGone]
        if not down:
            return None
        broker = self.random.choice(down)
        broker.start()
        return broker.name

    def _cut(self) -> str | None:
        wires = [wire for wire in self.world.wires if not wire.isOver and wire.budget is None]
        if not wires:
            return None
        wire = self.random.choice(wires)
        wire.budget = self.random.choice((0, 10, 100, 1000)) * self.random.randint(1, 9) // 9
        return f"{wire.client.name} from {wire.server.name} in {wire.budget} bytes"

    def _deleteGroup(self) -> None:
        """
        What C{deleteall} of ZooKeeper's shell does, or 0.7's C{ConsoleConsumer --from-beginning};
        it takes a while, and the order is anybody's guess.
        """
        if not self.zookeeper.isRunning:
            return
        self.figures["group deleted"] += 1
        self._say("group deleted")
        for member in self.members:
            member.trouble(SETTLE_SECONDS)
        operator = self.zookeeper.client()
        Deferred.fromCoroutine(self._delete(operator)).addErrback(
            lambda failure: failure.trap(ZookeeperError)
        ).addBoth(lambda _result: operator.close())

    async def _delete(self, operator: Any) -> None:
        await operator.connect()
        await self._deleteTree(operator, f"/consumers/{GROUP}")

    async def _deleteTree(self, operator: Any, path: str) -> None:
        try:
            names = await operator.get_children(path)
            self.operatorRandom.shuffle(names)
            for name in names:
                await self._deleteTree(operator, f"{path}/{name}")
            await operator.delete(path)
        except (NoNodeException, NotEmptyException):
            pass  # it has gone by itself, or somebody has put something there meanwhile

    # -- the end

    def _end(self) -> None:
        """No more faults; then all that must hold."""
        world = self.world
        for wire in world.wires:
            wire.budget = None
        if not self._waitFor(
            lambda: (
                self.zookeeper.isRunning
                and all(broker.isUp or broker.isGone for broker in self.brokers)
            ),
            STOP_SECONDS_MAX,
        ):
            self.faults.append("a broker does not stop")
        for session in list(self.sessions):
            self.zookeeper.reconnect(session)
        for broker in self.brokers:
            if not broker.isUp:
                broker.start()
        if not self._present:
            self._join()
        self._say("no more faults")
        since = world.now
        world.advance(SETTLE_SECONDS)
        self.faults += [
            f"{SETTLE_SECONDS} s after the last fault: {text}" for text in self.unstable()
        ]
        if self.isGroupDeleted:
            self._deleteGroup()
            world.advance(SETTLE_SECONDS)
            self.faults += [
                f"{SETTLE_SECONDS} s after the group's nodes were deleted: {text}"
                for text in (*self.unstable(), *self.uncommitted())
            ]
        for producer in self.producers:
            producer.close()
        if not self._waitFor(self._isDrained, DRAIN_SECONDS_MAX):
            self.faults += self._undrained()
        self.figures["virtual ms"] += int(world.now * 1000)
        self.figures["settling ms"] += int((world.now - since) * 1000)
        self.faults += [f"at the end: {text}" for text in self.unstable()]
        self._judge()

    def _waitFor(self, holds: Any, seconds: float) -> bool:
        end = self.world.clock.rightNow + seconds
        while not holds():
            if self.world.clock.rightNow >= end:
                return False
            self.world.advance(LOOK_SECONDS)
        return True

    def unstable(self) -> list[str]:
        """Why the group is not settled; empty if it is."""
        tree = self.zookeeper.tree()
        found = [
            f"broker {broker.number} is not registered"
            for broker in self.brokers
            if paths.brokerId(broker.number) not in tree
        ]
        present = self._present
        found += [
            f"{member.connector} is not settled"
            for member in present
            if not member.connector.isOwning
        ]
        if not present:
            found.append("there is no member")
        places = [
            PartitionId(TOPIC, BrokerPartition(int(path.rpartition("/")[2]), number))
            for path, (data, _session) in tree.items()
            if path.startswith(f"{paths.topic(TOPIC)}/")
            for number in range(int(data))
        ]
        claims = Counter(place for member in present for place in member.connector.owned)
        for place in places:
            node = tree.get(f"/consumers/{GROUP}/owners/{TOPIC}/{place.partition}")
            owners = [
                member
                for member in present
                if node is not None and member.connector.owned.get(place, "").encode() == node[0]
            ]
            if (
                len(owners) != 1
                or claims[place] != 1
                or node is None
                or node[1] != owners[0].session.session_id
            ):
                found.append(
                    f"{place}: in ZooKeeper {node}, {claims[place]} members say that they have it"
                )
        return found

    def uncommitted(self) -> list[str]:
        """Partitions whose stored offsets are not there."""
        tree = self.zookeeper.tree()
        return [
            f"{place}: no stored offset"
            for member in self._present
            for place in member.connector.owned
            if f"/consumers/{GROUP}/offsets/{TOPIC}/{place.partition}" not in tree
        ]

    def _isDrained(self) -> bool:
        """Whether all is settled, flushed and delivered."""
        if not all(producer.isClosed for producer in self.producers) or not all(
            broker.isServing for broker in self.brokers
        ):
            return False
        return all(broker.unflushedCount() == 0 for broker in self.brokers) and not any(
            self.ledger.undelivered(self.logs())
        )

    def _undrained(self) -> list[str]:
        found = [
            f"{producer.name} does not come to its end"
            for producer in self.producers
            if not producer.isClosed
        ]
        return found + [
            f"{broker.name} does not serve" for broker in self.brokers if not broker.isServing
        ]

    def logs(self) -> dict[PartitionId, Log]:
        """What is in the brokers' files."""
        return {
            PartitionId(which.topic, BrokerPartition(broker.number, which.partition)): log
            for broker in self.brokers
            if broker.service is not None
            for which, log in broker.logs().items()
        }

    def _judge(self) -> None:
        logs = self.logs()
        for broker in self.brokers:
            self.faults += broker.faults()
        for producer in self.producers:
            self.ledger.repeats.setdefault(producer.name, (0, 0))
            self.faults += producer.faults()
        for member in self.members:
            self.faults += member.failures
        self.faults += self.ledger.faults(logs)
        self.figures.update(self.ledger.counts())
        self.figures["in the logs again"] += self.ledger.duplicateCount(logs)
        self.figures["in the logs"] += sum(map(len, logs.values()))
        self.figures["in wrappers"] += self.ledger.insideCount(logs)
        self.figures["delivered"] += len(self.ledger.deliveries)
        self.figures["delivered again"] += len(self.ledger.deliveries) - len(
            {delivery[2:] for delivery in self.ledger.deliveries}
        )
        self.figures["rolled"] += sum(broker.rollCount() for broker in self.brokers)
        self.figures["sent again"] += sum(
            retried for _repeated, retried in self.ledger.repeats.values()
        )
        self.figures["calls"] += self.world.callCount


def simulate(seed: int, plants: Plants | None = None, isGroupDeleted: bool = False) -> Outcome:
    """Run a seed."""
    return Simulation(seed, plants, isGroupDeleted).run()
