"""
A mirror as a process between two clusters of which one at least is of today, with kills of the
mirror and of either broker; a group of the source moves to the target with translated positions.

What must be true in the end:

  - The target has each message; twice those that a killed mirror had sent and not committed, number
  by number, and what a mirror told of when a target of 2011 was killed.
  - The messages of a source partition are in one target partition, in their order. A repetition
  goes back at most once for each kill.
  - Between clusters of today, key, headers, timestamp and partition are as they were. From 2011
  there are no keys and headers, and the timestamp is that of mirroring.
  - A group that has read up to P of a source partition, and goes on in the target where the mirror
  says, finds each message from P on. It reads again at most what lies between P and the last sync
  before, and what the mirror had repeated of it; with a table in ZooKeeper also what was in flight
  at that sync.
"""

from __future__ import annotations

import struct
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from confluent_kafka import KafkaException

from pylogbroker.mirror.offsetsyncs import COUNT_MAX, translate
from pylogbroker.types import BrokerPartition, PartitionId
from tests.integration.brokerprocess import until
from tests.integration.mirrorends import (
    FIRST_TIME_MS,
    PARTITION_COUNT,
    TOPIC,
    Entry,
    MirrorEnd,
    OldEnd,
    TodayEnd,
    entryOf,
    headersOf,
    keyOf,
)
from tests.integration.mirrorprocess import MirrorProcess
from tests.integration.mirrortrial import MirrorError

MIRRORS = "mirrors"
READERS = "readers"
KINDS = ("mirror", "source", "target")
"""What can be killed."""

REST_COUNT = 5
"""A target that has the same ends at this many looks, a tenth of a second apart, is at rest."""

FIRST_PART = 20
"""This part of all messages comes before all others."""


class KafkaMirrorFigures(NamedTuple):
    """
    What a run was made of.

    @ivar twiceCount: messages that the target has more than once, each time beyond the first
        counted.
    @ivar killedCount: of these, those that were to be expected after kills of the mirror.
    @ivar toldCount: what mirrors said that they sent again without knowing what had become of it.
    @ivar syncCount: pairs of offsets that the mirrors wrote down.
    @ivar movedCount: messages that the group had read in the source.
    @ivar restCount: messages that it had to read in the target.
    @ivar againCount: messages that it read again in the target.
    @ivar boundCount: how many it could have read again.
    """

    messageCount: int = 0
    mirrorKillCount: int = 0
    sourceKillCount: int = 0
    targetKillCount: int = 0
    twiceCount: int = 0
    killedCount: int = 0
    toldCount: int = 0
    syncCount: int = 0
    movedCount: int = 0
    restCount: int = 0
    againCount: int = 0
    boundCount: int = 0


class KafkaMirrorTrial:
    """
    @ivar figures: of the run.
    @ivar source: the end that is mirrored.
    @ivar target: the end that it is mirrored to.
    @ivar expected: how often each number should be in the target, beyond once.
    @ivar twice: how often each number is there, beyond once.
    """

    def __init__(self, directory: str, source: MirrorEnd, target: MirrorEnd, seed: int) -> None:
        self.figures = KafkaMirrorFigures()
        self.expected: Counter[int] = Counter()
        self.twice: Counter[int] = Counter()
        self._random = Random(seed)
        self._directory = directory
        self.source = source
        self.target = target
        self._mirror: MirrorProcess | None = None
        self._beganMs = 0
        self._sentCount = 0
        self._positions: dict[int, int] = {}  # of the group in the source
        self._sent: list[list[Entry]] = []
        self._stored: list[list[Entry]] = []

    def run(self, messageCount: int, kills: Sequence[str]) -> None:
        """
        @param kills: L{KINDS}, in any order.
        @raise MirrorError: something is missing, or is there too often, or out of order.
        """
        events = list(kills)
        self._random.shuffle(events)
        parts = len(events) + 1
        try:
            self.source.start()
            self.target.start()
            if isinstance(self.source, TodayEnd):
                self.source.createTopic()
            self._beganMs = int(time.time() * 1000)
            self._startMirror()
            self._begin(messageCount // FIRST_PART)
            for part in range(parts):
                before = self._sentCount
                self._sentCount = messageCount * (part + 1) // parts
                self.source.produce(range(before, self._sentCount))
                if part == parts // 2:
                    self._leaveSource()
                if part < len(events):
                    self._waitFor(int(self._random.uniform(before, self._sentCount)))
                    self._kill(events[part])
            self._waitFor(messageCount)
            self._judge()
            self._move()
        finally:
            self.end()

    def end(self) -> None:
        """End all processes, however they are. Twice does no harm."""
        if self._mirror is not None:
            self._mirror.kill()
        self.target.close()
        self.source.close()

    def _count(self, **more: int) -> None:
        known = self.figures._asdict()
        self.figures = self.figures._replace(
            **{name: known[name] + count for name, count in more.items()}
        )

    def _begin(self, count: int) -> None:
        """
        Mirror some messages, and wait until the mirror has written down where they are: tables in
        ZooKeeper do not go back further.
        """
        self._sentCount = count
        self.source.produce(range(count))
        self._waitFor(count)
        if self.source.isOld or self.target.isOld:
            until(
                lambda: (
                    sum(bool(each.entries) for each in self._tables().values()) == PARTITION_COUNT
                ),
                "the first entries of all tables",
                20,
                50,
            )

    # -- the mirror, and kills

    def _startMirror(self) -> None:
        if self._mirror is None:
            self._mirror = MirrorProcess(
                f"{self._directory}/mirror",
                [self.source.consumerProperties(MIRRORS)],
                self.target.producerProperties(),
                "--whitelist",
                TOPIC,
            )
        self._mirror.start()

    @property
    def _running(self) -> MirrorProcess:
        assert self._mirror is not None
        return self._mirror

    def _checkMirror(self) -> None:
        if not self._running.isRunning:
            raise MirrorError(f"the mirror has ended\n{self._running.log}")

    def _waitFor(self, count: int) -> None:
        """Wait until the target has C{count} different messages."""
        twiceCount = sum(self.expected.values())

        def reached() -> bool:
            self._checkMirror()
            return self.target.count() - twiceCount >= count

        until(reached, f"{count} messages in the target", 120, 20)

    def _kill(self, kind: str) -> None:
        if kind == "mirror":
            self._hear()
            self._running.kill()
            self._expect()
            self._startMirror()
        else:
            end = self.source if kind == "source" else self.target
            end.kill()
            end.start()
        self._count(**{f"{kind}KillCount": 1})

    def _expect(self) -> None:
        """What is in the target, and behind what is committed in the source, comes again."""
        seen: list[list[int]] = []

        def rests() -> bool:
            """Requests that the mirror had sent may wait in the broker."""
            seen.append(self.target.ends())
            return len(seen) >= REST_COUNT and seen[-REST_COUNT:] == REST_COUNT * seen[-1:]

        until(rests, "the target comes to rest", 60, 100)
        committed = self.source.committed(MIRRORS)
        behind = {
            entry.number
            for partition, entries in enumerate(self.source.read())
            for entry in entries
            if entry.offset >= committed.get(partition, 0)
        }
        again = [
            entry.number
            for entries in self.target.read()
            for entry in entries
            if entry.number in behind
        ]
        self.expected.update(set(again))
        self._count(killedCount=len(set(again)))

    def _hear(self) -> None:
        """What the mirror has said of messages whose fate it does not know."""
        for line in self._running.lines:
            if "may be in the log twice" in line or "may have been sent or not" in line:
                self._count(toldCount=int(line.partition("] ")[2].split()[0]))

    # -- what is in the target

    def _judge(self) -> None:
        self._hear()
        self._sent, found = self.source.read(), self.target.read()
        self._stored = found
        counts = Counter(entry.number for entries in found for entry in entries)
        missing = [number for number in range(self._sentCount) if number not in counts]
        if missing:
            raise MirrorError(f"{len(missing)} messages are missing, the first is {missing[0]}")
        twice = self.twice = counts - Counter(range(self._sentCount))
        self._count(messageCount=len(counts), twiceCount=sum(twice.values()))
        if len(counts) != self._sentCount:
            raise MirrorError(f"the target has {len(counts)} messages, not {self._sentCount}")
        unexplained = sum((twice - self.expected).values())
        toldCount = self.figures.toldCount if self.target.isOld else 0
        if self.expected - twice or unexplained > toldCount:
            raise MirrorError(
                f"{sum(twice.values())} messages are there twice, {sum(self.expected.values())}"
                f" were to be expected from kills; of the others ({unexplained}) the mirror has"
                f" told of {toldCount}"
            )
        self._checkOrder(found)
        for partition, entries in enumerate(found):
            for entry in entries:
                self._checkRest(partition, entry)

    def _checkOrder(self, found: Sequence[Sequence[Entry]]) -> None:
        figures = self.figures
        backMax = figures.mirrorKillCount + (figures.targetKillCount if self.target.isOld else 0)
        for partition in range(PARTITION_COUNT):
            rows = [
                [entry.number for entry in entries if entry.number % PARTITION_COUNT == partition]
                for entries in found
            ]
            full = [row for row in rows if row]
            if len(full) != 1:
                raise MirrorError(f"source partition {partition} is in {len(full)} of the target's")
            (row,) = full
            backCount = sum(after <= before for before, after in pairwise(row))
            if backCount > backMax:
                raise MirrorError(f"source partition {partition} goes back {backCount} times")
            firsts = list(dict.fromkeys(row))
            if firsts != sorted(firsts):
                raise MirrorError(f"source partition {partition} is not in order")

    def _checkRest(self, partition: int, entry: Entry) -> None:
        if entry.rest is None:
            return
        number, (key, headers, timestamp) = entry.number, entry.rest
        if self.source.isOld:
            isRight = key is None and not headers and timestamp >= self._beganMs
        else:
            isRight = (
                key == keyOf(number)
                and headers == headersOf(number)
                and timestamp == FIRST_TIME_MS + number
                and partition == number % PARTITION_COUNT
            )
        if not isRight:
            raise MirrorError(f"message {number} arrived in partition {partition} as {entry}")

    # -- the group that moves

    def _leaveSource(self) -> None:
        """The group has read a part of each partition, and is gone."""
        wanted = {
            partition: entries[int(self._random.uniform(0.3, 0.9) * len(entries))].offset
            for partition, entries in enumerate(self.source.read())
        }
        self.source.commit(READERS, wanted)
        self._positions = wanted

    def _syncs(self) -> dict[int, list[tuple[int, int]]]:
        """By source partition, what the mirrors have written down: offsets of source and target."""
        source, target = self.source, self.target
        syncs: dict[int, list[tuple[int, int]]] = {}
        if isinstance(source, TodayEnd) and isinstance(target, TodayEnd):
            for message in source.messages("mm2-offset-syncs.target.internal", [(0, 0)]):
                *_topic, partition = struct.unpack(f">h{len(TOPIC)}si", message.key())
                upstream, downstream = struct.unpack(">qq", message.value())
                syncs.setdefault(partition, []).append((upstream + 1, downstream + 1))
        else:
            for partitionId, table in self._tables().items():
                home = table.fixedTarget
                assert home is not None
                syncs[partitionId.partition.partition] = [
                    (offset, ends.get(home, 0)) for offset, ends in table.entries
                ]
        return {partition: sorted(entries) for partition, entries in syncs.items()}

    def _tables(self) -> dict[PartitionId, Any]:
        """In the ZooKeeper of the end that has one."""
        end = self.source if isinstance(self.source, OldEnd) else self.target
        assert isinstance(end, OldEnd)
        return end.tables(MIRRORS)

    def _translated(self) -> dict[int, int]:
        """By target partition, where the group goes on."""
        target = self.target
        if isinstance(self.source, TodayEnd) and isinstance(target, TodayEnd):
            return target.committed(READERS)  # the mirror commits there
        places = {
            PartitionId(TOPIC, BrokerPartition(0, partition)): offset
            for partition, offset in self._positions.items()
        }
        tables = self._tables()
        if len(tables) < PARTITION_COUNT:
            return {}
        moved = translate(places, tables, {})
        offsets = {each.partition.partition: offset for each, offset in moved.items()}
        target.commit(READERS, offsets)
        return offsets

    def _move(self) -> None:
        """The group goes on in the target."""
        allowed: dict[int, int] = {}
        again: dict[int, int] = {}
        starts: dict[int, int] = {}

        def isThere() -> bool:
            nonlocal starts, allowed, again
            self._checkMirror()
            try:
                starts = self._translated()
            except KafkaException:
                return False  # the mirror commits in the group just now
            if len(starts) < PARTITION_COUNT:
                return False
            syncs = self._syncs()
            allowed = {each: self._allowed(each, syncs[each]) for each in self._positions}
            again = {each: len(self._again(each, starts)) for each in self._positions}
            return all(again[each] <= allowed[each] for each in allowed)

        try:
            until(isThere, "positions within the bound", 20, 200)
        except AssertionError as error:
            raise MirrorError(
                f"{error}: the group was at {self._positions} and goes on at {starts}; it would"
                f" read {again} again, where {allowed} is allowed\n{self._running.log}"
            ) from None
        status = self._running.stop()
        if status:
            raise MirrorError(f"the mirror stopped with status {status}\n{self._running.log}")
        rest = {
            entry.number
            for partition, entries in enumerate(self._sent)
            for entry in entries
            if entry.offset >= self._positions[partition]
        }
        read = {entry.number for entry in self._readInTarget(starts)}
        missed = rest - read
        if missed:
            raise MirrorError(f"the group misses {len(missed)} messages, such as {min(missed)}")
        self._count(
            movedCount=self._sentCount - len(rest),
            restCount=len(rest),
            againCount=len(read - rest),
            boundCount=sum(allowed.values()),
            syncCount=sum(map(len, self._syncs().values())),
        )
        if self.figures.againCount != sum(again.values()):
            raise MirrorError(f"the group has read {len(read - rest)} messages again, not {again}")
        self.moved(read)

    def moved(self, read: set[int]) -> None:
        """
        The mirror has stopped, and the group has read all from its translated positions on; they
        are still those of the group. Further readers are for subclasses.

        @param read: the numbers.
        @raise MirrorError: another reader differs.
        """

    def _readInTarget(self, starts: Mapping[int, int]) -> list[Entry]:
        target = self.target
        if isinstance(target, TodayEnd):
            return [entryOf(message) for message in target.readAsGroup(READERS, starts)]
        return [entry for entries in target.read(target.committed(READERS)) for entry in entries]

    def _before(self, partition: int, start: int = 0) -> set[int]:
        """What lies between an offset of the source and the group's position."""
        return {
            entry.number
            for entry in self._sent[partition]
            if start <= entry.offset < self._positions[partition]
        }

    def _again(self, partition: int, starts: Mapping[int, int]) -> set[int]:
        """What the group reads again of a source partition."""
        return self._before(partition) & {
            entry.number
            for place, entries in enumerate(self._stored)
            for entry in entries
            if entry.offset >= starts.get(place, 0)
        }

    def _allowed(self, partition: int, syncs: Sequence[tuple[int, int]]) -> int:
        """How much it may read again of a source partition."""
        position, sent = self._positions[partition], self._sent[partition]
        index = bisect_right(syncs, position, key=lambda each: each[0])
        if self.source.isOld or self.target.isOld:
            # The end of the target was an earlier one by the messages that were in flight, or that
            # it had when it answered last.
            while index > 1 and syncs[index - 2][1] == syncs[index - 1][1]:
                index -= 1
            index -= 1
        count = len(self._before(partition, syncs[index - 1][0] if index > 0 else 0))
        if len(syncs) > COUNT_MAX:  # the mirror does not have all of them
            count += sum(entry.offset >= position for entry in sent) // 3
        before = self._before(partition)
        return count + sum(self.twice[number] for number in before)
