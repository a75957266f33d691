"""
How fast a mirror is, beside producing and consuming alone, measured side by side::

    python -m tests.long.mirrorspeed --messages 300000 --rounds 3

Messages of 200 bytes, batches of 200. In each round a process produces so many messages to the
source with C{Producer}, as an application does (batches, no confirmation); a process consumes them
with C{ConsumerConnector}; and a mirror, C{twistd pylogbroker-mirror}, copies them to the target.
The exit status is 0 if the mirror's median rate is at least half of the slower of the two.

Then our mirror copies as many from 2011 to a cluster of today, back, and between clusters of today;
and so does MirrorMaker 2 of Apache Kafka 4.3.1 between clusters of today, with the same brokers of
ours. Each is measured from the moment in which the target has a tenth, so that a start does not
count. Beside the rate stands the processor time of the mirror for a million messages.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from random import SystemRandom
from time import monotonic

from kazoo.client import KazooClient

from pylogbroker import __version__
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.brokerprocess import ROOT, BrokerProcess, until
from tests.integration.mirrorends import TODAY, TOPIC, MirrorEnd, OldEnd, TodayEnd
from tests.integration.mirrorprocess import MirrorProcess
from tests.integration.zookeeperprocess import sharedZookeeper
from tests.long.mirrormaker import MirrorMakerProcess

MESSAGE_SIZE = 200
BATCH_COUNT = 200
PARTITION_COUNT = 4
SECONDS_MAX = 600
PART_COUNT = 50_000
"""Messages that are produced at a time."""

BROKER = {
    "enable.zookeeper": "true",
    "num.partitions": str(PARTITION_COUNT),
    "log.flush.interval": "20000",
    "log.default.flush.interval.ms": "200",
    "log.default.flush.scheduler.interval.ms": "100",
}

PRODUCE = """
import sys
from time import monotonic
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react
from pylogbroker.producer.producer import Producer

async def main(reactor):
    producer = Producer(
        reactor,
        {
            "zk.connect": sys.argv[1],
            "producer.type": "async",
            "batch.size": sys.argv[4],
            "queue.time": "100",
        },
    )
    await producer.start()
    begun = monotonic()
    payload = b"x" * int(sys.argv[5])
    for number in range(int(sys.argv[3])):
        if not number % 1000:
            await producer.whenReady()
        producer.send(sys.argv[2], payload)
    await producer.flush()
    print(monotonic() - begun)
    await producer.close()

react(lambda reactor: ensureDeferred(main(reactor)))
"""

CONSUME = """
import sys
from time import monotonic
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react
from pylogbroker.consumer.connector import ConsumerConnector

async def main(reactor):
    settings = {"zk.connect": sys.argv[1], "groupid": "alone-" + sys.argv[2]}
    async with ConsumerConnector(reactor, settings) as consumer:
        begun = monotonic()
        (stream,) = (await consumer.createMessageStreams({sys.argv[2]: 1}))[sys.argv[2]]
        left = int(sys.argv[3])
        async for message in stream:
            left -= 1
            if not left:
                break
        print(monotonic() - begun)

react(lambda reactor: ensureDeferred(main(reactor)))
"""


class Speed:
    """
    Two clusters, and what is done with them.
    """

    def __init__(self, folder: str, name: str, messageCount: int) -> None:
        """
        @param name: of the chroots.
        """
        zookeeper = sharedZookeeper()
        client = KazooClient(zookeeper.servers)
        client.start()
        self.connects = {
            side: f"{zookeeper.servers}/{name}-{side}" for side in ("source", "target")
        }
        for side in self.connects:
            client.ensure_path(f"/{name}-{side}")
        client.stop()
        client.close()
        self.folder = folder
        self.messageCount = messageCount
        self.brokers = {
            side: BrokerProcess(f"{folder}/{side}", {**BROKER, "zk.connect": connect})
            for side, connect in self.connects.items()
        }
        for broker in self.brokers.values():
            broker.start()

    def stop(self) -> None:
        """Stop the brokers."""
        for broker in self.brokers.values():
            broker.kill()

    def _there(self, side: str, topic: str) -> bool:
        with self.brokers[side].client() as client:
            return sum(
                client.end(topic, partition) for partition in range(PARTITION_COUNT)
            ) >= self.messageCount * (MESSAGE_SIZE + 10)

    def _run(self, program: str, topic: str) -> float:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        arguments = [
            self.connects["source"],
            topic,
            str(self.messageCount),
            str(BATCH_COUNT),
            str(MESSAGE_SIZE),
        ]
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        if done.returncode:
            raise AssertionError(done.stderr)
        return float(done.stdout.split()[-1])

    def produce(self, topic: str) -> float:
        """Messages a second, by one producer."""
        seconds = self._run(PRODUCE, topic)
        until(lambda: self._there("source", topic), "all is in the source", SECONDS_MAX, 20)
        return self.messageCount / seconds

    def consume(self, topic: str) -> float:
        """Messages a second, by one consumer."""
        return self.messageCount / self._run(CONSUME, topic)

    def mirror(self, topic: str) -> float:
        """
        Messages a second, by one mirror: from the moment in which it is a member of the group until
        the target has all.
        """
        consumer = {
            "zk.connect": self.connects["source"],
            "groupid": f"mirror-{topic}",
            "autocommit.interval.ms": "1000",
        }
        mirror = MirrorProcess(
            f"{self.folder}/mirror",
            [consumer],
            {"zk.connect": self.connects["target"], "batch.size": str(BATCH_COUNT)},
            "--whitelist",
            topic,
        )
        try:
            mirror.start()
            begun = monotonic()
            until(
                lambda: self._there("target", topic),
                f"all is in the target\n{mirror.log}",
                SECONDS_MAX,
                20,
            )
            return self.messageCount / (monotonic() - begun)
        finally:
            mirror.stop()


class KafkaMirrorSpeed:
    """A mirror with a cluster of today at one end at least, measured once."""

    def __init__(self, folder: str, messageCount: int) -> None:
        """@param folder: exists."""
        self._folder = folder
        self._count = messageCount

    def _end(self, isOld: bool, side: str) -> MirrorEnd:
        directory = f"{self._folder}/{side}"
        if isOld:
            root = f"/speed-{os.path.basename(self._folder)}-{side}"
            return OldEnd(directory, sharedZookeeper(), root)
        return TodayEnd(BackgroundBroker(TODAY, directory))

    def measure(self, isOldSource: bool, isOldTarget: bool, isTheirs: bool) -> tuple[float, float]:
        """
        @param isTheirs: whether MirrorMaker 2 mirrors.
        @return: messages a second, and seconds of the processor for a million.
        """
        source, target = self._end(isOldSource, "source"), self._end(isOldTarget, "target")
        stop: Callable[[], object] = int
        try:
            for end in (source, target):
                end.start()
            if isinstance(source, TodayEnd):
                source.createTopic()
            for first in range(0, self._count, PART_COUNT):
                source.produce(range(first, min(first + PART_COUNT, self._count)))
            if isTheirs:
                assert isinstance(source, TodayEnd)
                assert isinstance(target, TodayEnd)
                theirs = MirrorMakerProcess(
                    f"{self._folder}/mm2", source.address, target.address, TOPIC
                )
                theirs.start()
                stop = theirs.stop
                assert theirs.process is not None
                processId = theirs.process.pid
            else:
                ours = MirrorProcess(
                    f"{self._folder}/mirror",
                    [source.consumerProperties("mirrors")],
                    target.producerProperties(),
                    "--whitelist",
                    TOPIC,
                )
                ours.launch()
                stop = ours.kill
                processId = ours.pid
            return self._watch(target, processId)
        finally:
            stop()
            for end in (source, target):
                end.close()

    def _watch(self, target: MirrorEnd, processId: int) -> tuple[float, float]:
        until(lambda: target.count() >= self._count // 10, "a tenth", SECONDS_MAX, 50)
        firstCount, begun, before = target.count(), monotonic(), cpuSeconds(processId)
        until(lambda: target.count() >= self._count, "all", SECONDS_MAX, 50)
        seconds, used = monotonic() - begun, cpuSeconds(processId) - before
        moved = self._count - firstCount
        return moved / seconds, used / moved * 1e6


def cpuSeconds(processId: int) -> float:
    """What a process has used of the processors."""
    fields = Path(f"/proc/{processId}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measureToday(messageCount: int, roundCount: int) -> None:
    """Print what the mirrors with a cluster of today do."""
    out = sys.stdout
    out.write(f"{'':>28}  messages a second   CPU seconds for a million\n")
    for name, how in KINDS.items():
        rates, costs = [], []
        for _round in range(roundCount):
            folder = tempfile.mkdtemp()
            rate, cost = KafkaMirrorSpeed(folder, messageCount).measure(*how)
            shutil.rmtree(folder)
            rates.append(rate)
            costs.append(cost)
        each = ", ".join(f"{rate:,.0f}" for rate in rates)
        out.write(
            f"{name:>28}  {statistics.median(rates):>17,.0f}   {statistics.median(costs):>25.1f}"
            f"   ({each})\n"
        )
        out.flush()


KINDS = {
    "2011 to today": (True, False, False),
    "today to 2011": (False, True, False),
    "today to today": (False, False, False),
    "today to today, MirrorMaker 2": (False, False, True),
}
"""By name: whether source and target are of 2011, and whether MirrorMaker 2 mirrors."""


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.mirrorspeed",
        description="Measure a mirror beside a producer and a consumer.",
    )
    parser.add_argument(
        "--messages", type=int, default=300_000, help="how many messages in each round (300000)"
    )
    parser.add_argument("--today", action="store_true", help="only those with clusters of today")
    parser.add_argument("--rounds", type=int, default=3, help="how many rounds (3)")
    options = parser.parse_args()
    out = sys.stdout
    out.write(
        f"{options.messages} messages of {MESSAGE_SIZE} bytes, batches of {BATCH_COUNT};"
        f" {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}\n"
    )
    out.write(
        f"pylogbroker {__version__}, Twisted {version('Twisted')}, Python"
        f" {platform.python_version()}, {platform.system()} {platform.release()}\n"
    )
    if options.today:
        measureToday(options.messages, options.rounds)
        return 0
    folder = tempfile.mkdtemp()
    speed = Speed(folder, f"speed{SystemRandom().randrange(1 << 32)}", options.messages)
    rates: dict[str, list[float]] = {"produce": [], "consume": [], "mirror": []}
    try:
        out.write("messages a second     produce     consume      mirror\n")
        for number in range(options.rounds):
            topic = f"round{number}"
            for what, measure in (
                ("produce", speed.produce),
                ("consume", speed.consume),
                ("mirror", speed.mirror),
            ):
                rates[what].append(measure(topic))
            out.write(
                f"{'round ' + str(number + 1):>17} "
                + "".join(f"{rates[what][-1]:>12,.0f}" for what in rates)
                + "\n"
            )
            out.flush()
    finally:
        speed.stop()
        shutil.rmtree(folder)
    medians = {what: statistics.median(each) for what, each in rates.items()}
    out.write(
        f"{'median':>17} " + "".join(f"{median:>12,.0f}" for median in medians.values()) + "\n"
    )
    share = medians["mirror"] / min(medians["produce"], medians["consume"])
    out.write(
        f"the mirror has {share:.2f} of the slower of producing and consuming;"
        f" {'' if share >= 0.5 else 'TOO LITTLE: '}0.5 is asked for\n"
    )
    measureToday(options.messages, options.rounds)
    return 0 if share >= 0.5 else 1


if __name__ == "__main__":
    raise SystemExit(main())
