"""
Two clusters as processes and a mirror between them that is killed, while its target is restarted:
nothing is missing, and what is there twice is what the mirror had sent and not committed when it
was killed, message by message.

Each message has a number, and comes from an audited producer (L{tests.integration.mirroraudit} has
what the audit says). The books are kept from outside: after a kill, the offsets in ZooKeeper say
where the next mirror begins, and the target says what it has already; what is both behind such an
offset and in the target will be there once more. In the end the target must have each number once,
and once more for each time that this was so.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from pylogbroker.records.messageset import MessageSet
from tests.integration.brokerprocess import BrokerProcess, until
from tests.integration.mirrorprocess import MirrorProcess
from tests.integration.numberproducer import NumberProducer, numberIn
from tests.integration.zookeeperprocess import ZookeeperProcess

TOPIC = "numbers"
GROUP = "mirrors"
PARTITION_COUNT = 4
MESSAGE_SIZE = 200
WINDOW_MS = 250
AHEAD_COUNT_MAX = 20_000
"""How far the producer may be ahead of the target."""

CALM_PART = 0.1
"""
Of all messages, those that are not sent before nothing more is killed: windows in which nothing is
there twice.
"""

SESSION_MS = "1500"
BROKER = {
    "enable.zookeeper": "true",
    "zk.sessiontimeout.ms": SESSION_MS,
    "num.partitions": str(PARTITION_COUNT),
    "log.flush.interval": "1000",
    "log.default.flush.interval.ms": "50",
    "log.default.flush.scheduler.interval.ms": "50",
}


class MirrorError(AssertionError):
    """The mirror has broken its promise."""


class HangingBroker(BrokerProcess):
    """A broker that can be stopped in its tracks."""

    def hang(self) -> None:
        """C{SIGSTOP}."""
        os.kill(self.pid, signal.SIGSTOP)

    def goOn(self) -> None:
        """C{SIGCONT}."""
        os.kill(self.pid, signal.SIGCONT)


class MirrorFigures(NamedTuple):
    """
    What a run was made of.

    @ivar twiceCount: messages that the target has more than once, each time beyond the first
        counted.
    @ivar killedCount: of these, those that were to be expected after kills.
    @ivar repeatedCount: what mirrors said that they sent again without knowing what had become of
        it.
    """

    messageCount: int = 0
    killCount: int = 0
    restartCount: int = 0
    twiceCount: int = 0
    killedCount: int = 0
    repeatedCount: int = 0


class MirrorTrial:
    """
    @ivar figures: of the run.
    @ivar connects: C{zk.connect} of C{"source"} and C{"target"}.
    @ivar expected: how often each number should be in the target, beyond once.
    """

    def __init__(
        self,
        directory: str,
        zookeeper: ZookeeperProcess,
        name: str,
        seed: int,
        producer: Mapping[str, str] | None = None,
        *arguments: str,
    ) -> None:
        """
        @param name: of the chroots.
        @param producer: more of the target's properties for the mirror.
        @param arguments: more of the mirror's command line.
        """
        self.random = Random(seed)
        self.figures = MirrorFigures()
        self.expected: Counter[int] = Counter()
        self.client = KazooClient(zookeeper.servers)
        self.client.start()
        self.roots = {side: f"/{name}-{side}" for side in ("source", "target")}
        for root in self.roots.values():
            self.client.ensure_path(root)
        self.connects = connects = {
            side: zookeeper.servers + root for side, root in self.roots.items()
        }
        self.source = BrokerProcess(
            f"{directory}/source", {**BROKER, "zk.connect": connects["source"]}
        )
        self.target = HangingBroker(
            f"{directory}/target", {**BROKER, "zk.connect": connects["target"]}
        )
        session = {"zk.sessiontimeout.ms": SESSION_MS, "zk.connectiontimeout.ms": "10000"}
        self.consumerProperties = {
            **session,
            "zk.connect": connects["source"],
            "groupid": GROUP,
            "autocommit.interval.ms": "500",
            "rebalance.backoff.ms": "300",
            "fetcher.backoff.ms": "50",
            "fetch.size": "262144",
        }
        self.producerProperties = {**session, "zk.connect": connects["target"], **(producer or {})}
        self.mirror = MirrorProcess(
            f"{directory}/mirror",
            [self.consumerProperties],
            self.producerProperties,
            "--whitelist",
            TOPIC,
            *arguments,
        )
        self._directory = directory
        self._producer: NumberProducer | None = None

    # -- the whole

    def run(self, messageCount: int, killCount: int, restartCount: int = 1) -> None:
        """
        Mirror so many messages, with kills and restarts at random moments in between. The brokers
        go on.

        @raise MirrorError: something is missing, or is there too often.
        """
        events = ["kill"] * killCount + ["restart"] * restartCount
        self.random.shuffle(events)
        disturbedCount = int(messageCount * (1 - CALM_PART))
        # Equal parts, an event somewhere in the middle of each.
        moments = [
            int(disturbedCount * (index + self.random.uniform(0.3, 0.8)) / len(events))
            for index in range(len(events))
        ]
        audited = {
            "zk.connect": self.connects["source"],
            "audit.window.ms": str(WINDOW_MS),
            "audit.interval.ms": "500",
        }
        producer = self._producer = NumberProducer(
            TOPIC, messageCount, MESSAGE_SIZE, audited, f"{self._directory}/producer.log"
        )
        try:
            self.source.start()
            self.target.start()
            self.mirror.start()
            producer.start()
            for event, moment in zip(events, moments, strict=True):
                self._waitFor(moment, disturbedCount)
                (self._kill if event == "kill" else self._restart)()
            self._waitFor(messageCount, messageCount)
            status = producer.end(60)
            if status:
                raise MirrorError(f"the producer ended with status {status}")
            self._stopMirror()
            self._judge(messageCount)
        except BaseException:
            self.end()
            raise

    def _stopMirror(self) -> None:
        status = self.mirror.stop()
        self._hear()
        if status:
            raise MirrorError(f"the mirror stopped with status {status}\n{self.mirror.log}")

    def end(self) -> None:
        """End all processes, however they are. Twice does no harm."""
        if self._producer is not None:
            self._producer.end()
        for process in (self.mirror, self.target, self.source):
            process.kill()
        self.client.stop()
        self.client.close()

    def targetEnd(self) -> int:
        """Bytes in the target's files."""
        return sum(path.stat().st_size for path in Path(self.target.directory).rglob("*.kafka"))

    def numbers(self) -> list[int]:
        """What the target has."""
        return self._numbers(self.target)

    def _count(self, **changes: int) -> None:
        self.figures = self.figures._replace(
            **{name: getattr(self.figures, name) + change for name, change in changes.items()}
        )

    # -- waiting

    def _waitFor(self, count: int, allowedCount: int) -> None:
        """
        Wait until the target has about C{count} different messages: known duplicates are not
        counted.

        @param allowedCount: how many messages may be sent meanwhile.
        """
        producer = self._producer
        assert producer is not None

        def reached() -> bool:
            if not self.mirror.isRunning:
                raise MirrorError(f"the mirror has ended\n{self.mirror.log}")
            targetCount = sum(self._ends(self.target)) // (MESSAGE_SIZE + 10) - sum(
                self.expected.values()
            )
            producer.allow(min(targetCount + AHEAD_COUNT_MAX, allowedCount))
            return targetCount >= count

        until(reached, f"{count} messages in the target", 600, 20)

    def _ends(self, broker: BrokerProcess) -> list[int]:
        with broker.client() as client:
            return [client.end(TOPIC, partition) for partition in range(PARTITION_COUNT)]

    # -- events

    def _kill(self) -> None:
        self._hear()
        self.mirror.kill()
        self._settle()
        places = self._places()
        committed = [self._committed(partition) for partition in range(PARTITION_COUNT)]
        again = {
            number
            for number in self._numbers(self.target)
            if places[number][1] >= committed[places[number][0]]
        }
        self.expected.update(again)
        self._count(killCount=1, killedCount=len(again))
        self.mirror.start()

    def _settle(self) -> None:
        """Until the target has carried out what had been sent, and all of it is visible."""
        before: list[int] = []

        def still() -> bool:
            nonlocal before
            now = self._ends(self.target)
            same, before = now == before, now
            return same

        until(still, "the target comes to rest", 600, 400)

    def _committed(self, partition: int) -> int:
        try:
            return int(
                self.client.get(
                    f"{self.roots['source']}/consumers/{GROUP}/offsets/{TOPIC}/0-{partition}"
                )[0]
            )
        except NoNodeError:
            return 0

    def _restart(self) -> None:
        self.stopTarget()
        self.target.start()
        self._count(restartCount=1)

    def stopTarget(self) -> None:
        """
        In order.

        @raise MirrorError: it did not.
        """
        status = self.target.stop()
        if status:
            raise MirrorError(f"the target stopped with status {status}\n{self.target.log}")

    def _hear(self) -> None:
        """What the mirror has said."""
        for line in self.mirror.lines:
            if "may be in the log twice" in line or "may have been sent or not" in line:
                self._count(repeatedCount=int(line.partition("] ")[2].split()[0]))

    # -- reading

    def stored(self, broker: BrokerProcess) -> list[bytes]:
        """All messages that a broker has."""
        with broker.client() as client:
            return [
                payload
                for partition in range(PARTITION_COUNT)
                for payload in client.payloads(TOPIC, partition)
            ]

    def _numbers(self, broker: BrokerProcess) -> list[int]:
        return [numberIn(payload) for payload in self.stored(broker)]

    def _places(self) -> dict[int, tuple[int, int]]:
        """Partition and offset of each number in the source."""
        places: dict[int, tuple[int, int]] = {}
        with self.source.client() as client:
            for partition in range(PARTITION_COUNT):
                offset = 0
                for payload, nextOffset in MessageSet(client.readAll(TOPIC, partition)).payloads():
                    places[numberIn(payload)] = partition, offset
                    offset = nextOffset
        return places

    def _judge(self, messageCount: int) -> None:
        found: Any = Counter(self._numbers(self.target))
        missing = [number for number in range(messageCount) if number not in found]
        twice = found - Counter(range(messageCount))
        self._count(messageCount=len(found), twiceCount=sum(twice.values()))
        if missing:
            raise MirrorError(f"{len(missing)} messages are missing, the first is {missing[0]}")
        if len(found) != messageCount:
            raise MirrorError(f"the target has {len(found)} different messages, not {messageCount}")
        committed = [self._committed(partition) for partition in range(PARTITION_COUNT)]
        if committed != self._ends(self.source):
            raise MirrorError(
                f"committed is {committed}, the source ends at {self._ends(self.source)}"
            )
        unexplained = sum((twice - self.expected).values())
        if self.expected - twice or unexplained > self.figures.repeatedCount:
            raise MirrorError(
                f"{sum(twice.values())} messages are there twice, {sum(self.expected.values())}"
                f" were to be expected from kills; of the others ({unexplained}) the mirror has"
                f" told of {self.figures.repeatedCount}; {sum((self.expected - twice).values())}"
                " were expected and are not there"
            )
