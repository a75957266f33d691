"""
The long form of C{tests.integration.test_kafkamirror}, with Apache Kafka 4.3.1 at either end::

    python -m tests.long.kafkamirror --messages 200000 --kills 6

In each direction our mirror runs between two brokers, of which each may be Apache's, ours of today,
or ours of 2011; the mirror and both brokers are killed in turn. A group moves in the middle; at its
translated positions confluent-kafka and Java's console consumer read the rest. Between clusters of
today, Java's C{RemoteClusterUtils} reads our checkpoints, and Apache's formatters our topics. Then
our mirror takes over from MirrorMaker 2. The exit status is 0 if all that must be true
(L{tests.integration.kafkamirrortrial}) was true in all directions.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

import confluent_kafka
from confluent_kafka import KafkaException

from pylogbroker.consumer.kafka.assignedpartition import ConsumerRecord
from pylogbroker.mirror.checkpoints import decodeCheckpoint
from pylogbroker.testing.backgroundbroker import BackgroundBroker
from tests.integration.brokerprocess import until
from tests.integration.kafkamirrortrial import KINDS, MIRRORS, READERS, KafkaMirrorTrial
from tests.integration.kafkatools import JavaProcess
from tests.integration.mirrorends import (
    PARTITION_COUNT,
    TODAY,
    TOPIC,
    MirrorEnd,
    OldEnd,
    TodayEnd,
)
from tests.integration.mirrorprocess import MirrorProcess
from tests.integration.mirrortrial import MirrorError
from tests.integration.zookeeperprocess import sharedZookeeper
from tests.long.mirrormaker import IDENTITY, MirrorMakerProcess, fetchMirrorMaker
from tests.long.telling import addSeed, seedOf, tell, tellFigures, tellStart
from tests.oracle.apachebroker import VERSION, ApacheServer

OLD, OURS, APACHE = "2011", "ours", "apache"
DIRECTIONS = (
    (OLD, APACHE),
    (APACHE, OLD),
    (APACHE, OURS),
    (OURS, APACHE),
    (APACHE, APACHE),
    (OLD, OURS),
    (OURS, OLD),
    (OURS, OURS),
)
FACTORS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
"""Apache's broker needs to be told that it is alone."""

TIMEOUT_MS = 10_000
_FORMATTERS = "org.apache.kafka.connect.mirror.formatters"


class JavaMirrorTrial(KafkaMirrorTrial):
    """
    One whose group Java reads, too.

    @ivar java: a L{JavaProcess} with MirrorMaker 2's classes.
    """

    java: JavaProcess

    def moved(self, read: set[int]) -> None:
        """Java's consumer reads what confluent-kafka has read, from the same positions."""
        target = self.target
        if not isinstance(target, TodayEnd):
            return
        positions = target.committed(READERS)
        if isinstance(self.source, TodayEnd):
            translated = translateOffsets(self.java, target.address)
            if translated != positions:
                raise MirrorError(f"Java translates to {translated}, the mirror to {positions}")
            self._checkFormatters(self.source.address, target.address)
        count = sum(map(len, target.read(positions)))
        run = self.java.run(
            "consumer.ConsoleConsumer",
            *("--bootstrap-server", target.address, "--topic", TOPIC, "--group", READERS),
            *("--timeout-ms", str(6 * TIMEOUT_MS), "--max-messages", str(count)),
        )
        found = {int(line.split()[0]) for line in run.lines if line.endswith("...")}
        if found != read:
            raise MirrorError(
                f"Java has read {len(found)}, confluent-kafka {len(read)}: {run.lines[-3:]}"
            )

    def _checkFormatters(self, source: str, target: str) -> None:
        """Apache's formatters print our syncs and checkpoints."""
        for address, topic, formatter, words in (
            (source, "mm2-offset-syncs.target.internal", "OffsetSyncFormatter", "OffsetSync{"),
            (target, "source.checkpoints.internal", "CheckpointFormatter", "Checkpoint{"),
        ):
            run = self.java.run(
                "consumer.ConsoleConsumer",
                *("--bootstrap-server", address, "--topic", topic, "--from-beginning"),
                *("--formatter", f"{_FORMATTERS}.{formatter}", "--timeout-ms", str(TIMEOUT_MS)),
            )
            lines = [line for line in run.lines if line.startswith(words)]
            if len(lines) < PARTITION_COUNT or not all(TOPIC in line for line in lines):
                raise MirrorError(f"{formatter} prints {run.lines[:5]}")


def translateOffsets(java: JavaProcess, address: str) -> dict[int, int]:
    """C{RemoteClusterUtils.translateOffsets} of the group."""
    properties = {"bootstrap.servers": address, "replication.policy.class": IDENTITY}
    found = java.kafka.connect.mirror.RemoteClusterUtils.translateOffsets(
        properties, "source", READERS, java.jvm.java.time.Duration.ofSeconds(20)
    )
    return {place.partition(): found[place].offset() for place in found}


def checkpointsIn(target: TodayEnd) -> dict[int, int]:
    """The checkpoints of the group, as our mirror decodes them."""
    topic, found = "source.checkpoints.internal", {}
    for message in target.messages(topic, [(0, 0)]):
        key, value = message.key(), message.value()
        record = ConsumerRecord(topic, 0, message.offset(), 0, key, value, (), 0, 0)
        checkpoint = decodeCheckpoint(record)
        if checkpoint.group == READERS:
            found[checkpoint.place.partition] = checkpoint.downstream
    return found


def makeEnd(kind: str, folder: str, side: str, seed: int) -> MirrorEnd:
    """A cluster, not started."""
    if kind == OLD:
        return OldEnd(f"{folder}/{side}", sharedZookeeper(), f"/kafkamirror-{side}-{seed}")
    if kind == OURS:
        return TodayEnd(BackgroundBroker(TODAY, f"{folder}/{side}"))
    return TodayEnd(ApacheServer(Path(folder, side), {**TODAY, **FACTORS}))


# -- taking over from MirrorMaker 2


def connectOffsets(target: TodayEnd) -> dict[int, int]:
    """Behind what MirrorMaker 2 has mirrored, as it keeps it in the target."""
    found: dict[int, int] = {}
    numbers = [(number, 0) for number in range(25)]  # its number of partitions
    for message in target.messages("mm2-offsets.source.internal", numbers):
        connector, place = json.loads(message.key())
        if connector == "MirrorSourceConnector" and message.value() is not None:
            found[place["partition"]] = json.loads(message.value())["offset"] + 1
    return found


class TakeOver:
    """
    MirrorMaker 2 mirrors a half of the messages, our mirror the others.
    """

    def __init__(self, folder: str, source: TodayEnd, target: TodayEnd, java: JavaProcess) -> None:
        self._source = source
        self._target = target
        self._java = java
        self._theirs = MirrorMakerProcess(
            f"{folder}/mm2", source.address, target.address, TOPIC, {"offset.lag.max": "100"}
        )
        self._folder = folder

    def run(self, messageCount: int) -> dict[str, float]:
        """
        Returns figures.

        @raise MirrorError: something is missing or repeated, or a position is wrong.
        """
        source, target = self._source, self._target
        half = messageCount // 2
        source.createTopic()
        source.produce(range(half))
        early = {number: (number + 1) * half // PARTITION_COUNT // 5 for number in range(4)}
        source.commit(READERS, early)
        self._theirs.start()
        try:
            until(lambda: target.count() >= half, "MirrorMaker 2 has mirrored a half", 240, 500)
            until(
                lambda: len(target.committed(READERS)) == PARTITION_COUNT, "its positions", 60, 500
            )
        finally:
            self._theirs.stop()
        before = translateOffsets(self._java, target.address)
        read = checkpointsIn(target)
        if read != before:
            raise MirrorError(f"Java reads {before} of their checkpoints, we {read}")
        positions = connectOffsets(target)
        share = half // PARTITION_COUNT
        again = {number: share - position for number, position in positions.items()}
        if len(again) != PARTITION_COUNT or min(again.values()) < 0:
            raise MirrorError(f"MirrorMaker 2 has mirrored up to {positions} of {share}")
        source.commit(MIRRORS, positions)
        source.produce(range(half, messageCount))
        mirror = MirrorProcess(
            f"{self._folder}/mirror",
            [source.consumerProperties(MIRRORS)],
            target.producerProperties(),
            "--whitelist",
            TOPIC,
        )
        try:
            mirror.start()
            allCount = messageCount + sum(again.values())
            until(lambda: target.count() >= allCount, "ours has mirrored the rest", 120, 100)
            first = self._translated(early, before)
            late = dict.fromkeys(range(4), (half + messageCount) // 2 // PARTITION_COUNT)
            source.commit(READERS, late)
            moved = {number: late[number] + again[number] for number in late}
            second = self._translated(moved, dict(first))
            mirror.stop()
        finally:
            mirror.kill()
        for partition, entries in enumerate(target.read()):
            row = list(range(partition, messageCount, PARTITION_COUNT))
            wanted = [*row[:share], *row[positions[partition] :]]
            if [entry.number for entry in entries] != wanted:
                raise MirrorError("a message is missing, repeated or out of order")
        return {
            "mirrored by them": half,
            "mirrored by us": messageCount - half,
            "behind their position": sum(again.values()),
            "behind, theirs": sum(early[each] - before[each] for each in early),
            "behind, by theirs": sum(early[each] - first[each] for each in early),
            "behind, by ours": sum(late[each] + again[each] - second[each] for each in late),
        }

    def _translated(self, wanted: Mapping[int, int], before: Mapping[int, int]) -> dict[int, int]:
        """
        By our mirror.

        @param wanted: the exact positions, which a translated one may not be behind.
        """
        found: dict[int, int] = {}

        def isThere() -> bool:
            found.update(translateOffsets(self._java, self._target.address))
            return all(before[each] <= found[each] for each in wanted) and found != dict(before)

        try:
            until(isThere, "our checkpoints", 15, 500)
        except AssertionError:
            pass  # what MirrorMaker 2 had found is as good
        if any(found[each] > wanted[each] for each in wanted):
            raise MirrorError(f"{wanted} is translated to {found}")
        return dict(found)


def main() -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.long.kafkamirror",
        description="Mirror from and to Apache Kafka with kills, and look for what is missing.",
    )
    names = ["-".join(direction) for direction in DIRECTIONS]
    parser.add_argument("--messages", type=int, default=200_000, help="in each direction (200000)")
    parser.add_argument("--kills", type=int, default=6, help="in each direction (6)")
    parser.add_argument(
        "--directions", nargs="*", choices=names, default=names, help=f"by default {names}"
    )
    parser.add_argument(
        "--takeover", type=int, default=20_000, help="messages of the take-over; 0: none (20000)"
    )
    addSeed(parser, "the moments")
    options = parser.parse_args()
    seed = seedOf(options)
    tellStart(
        f"seed {seed}, {options.messages} messages and {options.kills} kills in each direction",
        f"Apache Kafka {VERSION}",
        f"librdkafka {confluent_kafka.libversion()[0]}",
    )
    begun = monotonic()
    java = JavaProcess(fetchMirrorMaker())
    kills = [KINDS[number % len(KINDS)] for number in range(options.kills)]
    wrongCount = 0
    for name in options.directions:
        folder = tempfile.mkdtemp()
        ends = [
            makeEnd(kind, folder, side, seed + names.index(name))
            for kind, side in zip(name.split("-"), ("source", "target"), strict=True)
        ]
        trial = JavaMirrorTrial(folder, ends[0], ends[1], seed)
        trial.java = java
        tell(f"\n{name}")
        try:
            trial.run(options.messages, kills)
        except (AssertionError, KafkaException) as error:
            wrongCount += 1
            tell(f"WRONG: {error}\nthe directory is {folder}")
        else:
            shutil.rmtree(folder)
        tellFigures(trial.figures._asdict())
    for kind in (APACHE, OURS) if options.takeover else ():
        folder = tempfile.mkdtemp()
        tell(f"\nfrom MirrorMaker 2 to our mirror, {kind} at both ends")
        made = [makeEnd(kind, folder, side, seed) for side in ("source", "target")]
        for end in made:
            end.start()
        try:
            assert isinstance(made[0], TodayEnd)
            assert isinstance(made[1], TodayEnd)
            tellFigures(TakeOver(folder, made[0], made[1], java).run(options.takeover))
        except (AssertionError, KafkaException) as error:
            wrongCount += 1
            tell(f"WRONG: {error}\nthe directory is {folder}")
        finally:
            for end in made:
                end.close()
    java.close()
    tell("")
    tellFigures({"seconds": monotonic() - begun})
    tell("all that must be true was true" if not wrongCount else f"{wrongCount} were WRONG")
    return 1 if wrongCount else 0


if __name__ == "__main__":
    raise SystemExit(main())
