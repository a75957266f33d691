"""
Tests for L{pylogbroker.mirror.service}: whole mirrors, in this process, between whole clusters.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.cluster.subscription import blacklist
from pylogbroker.mirror.offsetsyncs import readTables, translate
from pylogbroker.mirror.service import REPORT_SECONDS, MirrorService, MirrorSettings
from pylogbroker.mirror.sourcecluster import SourceCluster
from pylogbroker.types import BrokerPartition, PartitionId
from tests.mirror.clusters import SESSION_MS, Cluster, MirrorCase, reactor

OFFSETS = "/consumers/mirrors/offsets"


def payloads(name: str, count: int, start: int = 0) -> list[bytes]:
    """C{name-00000} and so on."""
    return [f"{name}-{number:05}".encode() for number in range(start, start + count)]


class MirrorServiceTests(MirrorCase):
    """What mirrors do."""

    async def both(self, brokerCount: int = 1, partitionCount: int = 2) -> tuple[Cluster, Cluster]:
        source, target = (
            self.cluster("source", brokerCount, partitionCount),
            self.cluster("target", brokerCount, partitionCount),
        )
        await source.start()
        await target.start()
        return source, target

    async def test_mirrors(self) -> None:
        """
        Topics that match are mirrored, those that come later, too, and no others; when all is
        confirmed, all is committed.
        """
        source, target = await self.both()
        await source.produce("t1", "0-0", payloads("a", 700))
        await source.produce("other", "0-0", payloads("x", 5))
        mirror = self.mirror([source], target)
        mirror.startService()
        await source.produce("t1", "0-1", payloads("b", 300), codec=1)
        await self.until(lambda: mirror.counters.confirmedCount == 1000)
        await source.produce("t2", "0-0", payloads("c", 10))
        await self.until(lambda: mirror.counters.confirmedCount == 1010)
        self.assertEqual(await target.messages("t1"), payloads("a", 700) + payloads("b", 300))
        self.assertEqual(await target.messages("t2"), payloads("c", 10))
        self.assertEqual(await target.messages("other"), [])
        await self.until(lambda: source.node(f"{OFFSETS}/t1/0-0") == b"%d" % (700 * 17))
        await self.until(lambda: source.node(f"{OFFSETS}/t2/0-0") == b"170")
        await mirror.stopService()
        snapshot: Any = mirror.counters.snapshot()
        self.assertEqual(
            (snapshot["takenCount"], snapshot["underWayCount"], snapshot["repeatedCount"]),
            (1010, 0, 0),
        )
        self.assertEqual(snapshot["topics"]["t2"], {"messageCount": 10, "size": 70})
        self.assertGreater(snapshot["commitCount"], 2)

    async def test_severalSources(self) -> None:
        """
        Several sources are mirrored into one target, with several streams and producers; a
        blacklist leaves out what it names.
        """
        one, two, target = self.cluster("one"), self.cluster("two"), self.cluster("target", 2)
        for cluster in (one, two, target):
            await cluster.start()
        await one.produce("t1", "0-0", payloads("a", 500))
        await two.produce("t1", "0-1", payloads("b", 500))
        await two.produce("not", "0-1", payloads("x", 500))
        mirror = self.mirror([one, two], target, blacklist("not"), streamCount=2, producerCount=3)
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 1000)
        self.assertEqual(await target.messages("t1"), payloads("a", 500) + payloads("b", 500))
        await mirror.stopService()

    async def test_goesOn(self) -> None:
        """
        A mirror that was stopped in order has dropped nothing that it had read, and the next one
        sends nothing twice.
        """
        source, target = await self.both()
        total = []
        for run in range(3):
            total += payloads("a", 2000, 2000 * run)
            await source.produce("t", f"0-{run % 2}", payloads("a", 2000, 2000 * run))
            mirror = self.mirror([source], target)
            mirror.startService()
            await self.until(lambda mirror=mirror: mirror.counters.confirmedCount)  # type: ignore[misc]
            await mirror.stopService()
            self.assertEqual(mirror.counters.underWayCount, 0)
        mirror = self.mirror([source], target)
        mirror.startService()
        await self.until(
            lambda: (
                source.node(f"{OFFSETS}/t/0-0") == b"68000"
                and source.node(f"{OFFSETS}/t/0-1") == b"34000"
            )
        )
        await mirror.stopService()
        self.assertEqual(await target.messages("t"), total)

    async def test_share(self) -> None:
        """
        Two mirrors of a group share the partitions; when one leaves, the other has all, and nothing
        is sent twice.
        """
        source, target = await self.both(partitionCount=4)
        first, second = self.mirror([source], target), self.mirror([source], target)
        first.startService()
        await self.until(lambda: first.sources[0].isOwning)
        second.startService()
        for partition in range(4):
            await source.produce("t", f"0-{partition}", payloads(f"a{partition}", 500))
        await self.until(lambda: all(each.sources[0].isOwning for each in (first, second)))
        await self.until(
            lambda: first.counters.confirmedCount + second.counters.confirmedCount == 2000
        )
        await self.until(lambda: len(self.owned(first)) == len(self.owned(second)) == 2)
        for partition in range(4):
            await source.produce("t", f"0-{partition}", payloads(f"b{partition}", 500))
        await self.until(
            lambda: first.counters.confirmedCount + second.counters.confirmedCount == 4000
        )
        self.assertGreaterEqual(second.counters.confirmedCount, 1000)
        await second.stopService()
        await self.until(lambda: len(self.owned(first)) == 4)
        for partition in range(4):
            await source.produce("t", f"0-{partition}", payloads(f"c{partition}", 5))
        await self.until(
            lambda: first.counters.confirmedCount + second.counters.confirmedCount == 4020
        )
        await first.stopService()
        self.assertEqual(max(Counter(await target.messages("t")).values()), 1)

    def owned(self, mirror: MirrorService) -> list[PartitionId]:
        (source,) = mirror.sources
        assert isinstance(source, SourceCluster)
        consumer = source._consumer
        return list(consumer.owned) if consumer is not None else []

    async def test_droppedByTheTarget(self) -> None:
        """
        A message that only the target's broker finds too large is not committed, however often it
        is dropped there; it is found among others and named in the figures; what was before it
        arrives, what is behind it waits, and not in memory; other partitions go on, however much is
        behind it; when the limit was raised it arrives, and what is behind it in its order.
        """
        source, target = self.cluster("source"), self.cluster("target")
        target.properties = {"max.message.size": "100"}
        await source.start()
        await target.start()
        large = b"x" * 200
        await source.produce("t", "0-0", [*payloads("a", 10), large, *payloads("c", 500)])
        mirror = self.mirror(
            [source], target, producer={"queue.size": "50", "batch.size": "10"}, isKeeping=True
        )
        mirror.startService()
        await self.until(lambda: mirror.counters.stuck)
        [stuck] = mirror.counters.stuck.values()
        self.assertEqual(
            (
                stuck.labels["topic"],
                stuck.labels["broker"],
                stuck.labels["partition"],
                stuck.offset,
                stuck.size,
            ),
            ("t", "0", "0", 170, 200),
        )
        await source.produce("t", "0-1", payloads("b", 300))
        confirmedCount = mirror.counters.confirmedCount
        await self.until(lambda: mirror.counters.confirmedCount == confirmedCount + 300)
        self.assertIn(source.node(f"{OFFSETS}/t/0-0"), (None, b"0"))
        self.assertEqual(
            {*await target.messages("t")} - {*payloads("c", 500)},
            {*payloads("a", 10), *payloads("b", 300)},
        )
        await target.stopBroker(0)
        target.properties = {}
        await target.startBroker(0)
        end = 10 * 17 + 210 + 500 * 17
        await self.until(lambda: source.node(f"{OFFSETS}/t/0-0") == b"%d" % end)
        await mirror.stopService()
        [found] = [each for each in (await target.read("t")).values() if large in each]
        self.assertEqual(found.count(large), 1)
        self.assertEqual(found[found.index(large) + 1 :], payloads("c", 500))
        self.assertEqual((mirror.counters.stuck, mirror.counters.underWayCount), ({}, 0))

    async def test_targetAway(self) -> None:
        """
        A target that is not there is waited for, at the start and later, by a mirror whose memory
        stays as it is; then all arrives.
        """
        source, target = await self.both()
        await target.stopBroker(0)
        await source.produce("t", "0-0", payloads("a", 5000))
        small = {"fetch.size": "4096", "queuedchunks.max": "2"}
        mirror = self.mirror(
            [source],
            target,
            producer={"queue.size": "1000", "zk.read.num.retries": "0"},
            consumer=small,
        )
        mirror.startService()
        await self.until(lambda: mirror.counters.retriedCount)
        self.assertLessEqual(mirror.counters.underWayCount, 3000)
        self.assertEqual(mirror.counters.confirmedCount, 0)
        self.assertIn(source.node(f"{OFFSETS}/t/0-0"), (None, b"0"))
        await target.startBroker(0)
        await self.until(lambda: mirror.counters.confirmedCount == 5000)
        await target.stopBroker(0)
        await source.produce("t", "0-1", payloads("b", 50))
        await self.until(lambda: mirror.counters.underWayCount)
        await target.startBroker(0)
        await self.until(lambda: mirror.counters.confirmedCount == 5050)
        await mirror.stopService()
        self.assertEqual(await target.messages("t"), payloads("a", 5000) + payloads("b", 50))

    async def test_targetAwayAtTheEnd(self) -> None:
        """
        A mirror that stops while its target is away gives up after its time, commits nothing of it,
        and its successor sends it.
        """
        source, target = await self.both()
        await target.stopBroker(0)
        await source.produce("t", "0-0", payloads("a", 50))
        mirror = self.mirror(
            [source], target, producer={"close.timeout.ms": "200", "zk.read.num.retries": "0"}
        )
        mirror.startService()
        await self.until(lambda: mirror.counters.takenCount == 50)
        with capturedLogs() as events:
            await mirror.stopService()
        self.assertTrue(any("come again" in event.get("log_format", "") for event in events))
        self.assertIn(source.node(f"{OFFSETS}/t/0-0"), (None, b"0"))
        await target.startBroker(0)
        again = self.mirror([source], target)
        again.startService()
        await self.until(lambda: again.counters.confirmedCount == 50)
        await again.stopService()
        self.assertEqual(await target.messages("t"), payloads("a", 50))

    async def test_sourceAway(self) -> None:
        """A source's broker that goes and comes back is waited for."""
        source, target = await self.both()
        await source.produce("t", "0-0", payloads("a", 50))
        mirror = self.mirror([source], target)
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 50)
        await source.stopBroker(0)
        await source.startBroker(0)
        await source.produce("t", "0-0", payloads("b", 50))
        await self.until(lambda: mirror.counters.confirmedCount == 100)
        await mirror.stopService()
        self.assertEqual(await target.messages("t"), payloads("a", 50) + payloads("b", 50))

    async def test_nothingThere(self) -> None:
        """
        Neither source nor target need be there at the start: a mirror looks for both until they
        are.
        """
        source, target = await self.both()
        await source.produce("t", "0-0", payloads("a", 5))
        mirror = self.mirror([source], target)
        for cluster in (source, target):
            cluster.away = 2
        mirror.startService()
        await self.until(lambda: mirror.counters.confirmedCount == 5)
        self.assertEqual((source.away, target.away), (0, 0))
        await mirror.stopService()

    async def test_stoppedBefore(self) -> None:
        """
        A mirror that has found nothing yet can be stopped: while it looks for the target, and while
        it looks for a source.
        """
        for away in ("source", "target"):
            source, target = await self.both()
            {"source": source, "target": target}[away].away = 1 << 30
            mirror = self.mirror([source], target)
            mirror.startService()
            await self.until(
                lambda source=source, target=target: source.away + target.away < 1 << 30  # type: ignore[misc]
            )
            await mirror.stopService()
            self.assertFalse(mirror.sources[0].isOwning)
            await source.stop()
            await target.stop()

    async def test_keepsPartitions(self) -> None:
        """
        When asked, all of a source partition goes to one target partition, in order, over restarts
        of the mirror and of the target.
        """
        source, target = await self.both(partitionCount=3)
        written: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        for run in range(3):
            mirror = self.mirror([source], target, isKeeping=True, producerCount=2)
            mirror.startService()
            for partition, sent in written.items():
                sent += payloads(f"{partition}", 400, 400 * run)
                await source.produce(
                    "t", f"0-{partition}", payloads(f"{partition}", 400, 400 * run)
                )
            await self.until(lambda mirror=mirror: mirror.counters.confirmedCount == 1200)  # type: ignore[misc]
            await mirror.stopService()
            await target.stopBroker(0)
            await target.startBroker(0)
        found = await target.read("t")
        self.assertEqual(sorted(found.values()), sorted(written.values()))

    async def check(self, isKeeping: bool) -> None:
        """
        Wherever a group stands in the source, from the translated offsets on it finds all that it
        has not read; and not much more.
        """
        source, target = await self.both(brokerCount=2)
        mirror = self.mirror([source], target, isKeeping=isKeeping, producer={"batch.size": "10"})
        mirror.startService()
        place = {
            name: PartitionId("t", BrokerPartition(*map(int, name.split("-"))))
            for name in ("0-0", "0-1", "1-0", "1-1")
        }
        count = 0
        for round_ in range(12):
            for name in place:
                await source.produce("t", name, payloads(name, 30, 30 * round_), codec=round_ % 2)
                count += 30
            await self.until(lambda count=count: mirror.counters.confirmedCount == count)  # type: ignore[misc]
            await mirror.sources[0].record()
        await mirror.stopService()
        session = source.zookeeper.client(SESSION_MS)
        await session.connect()
        tables = await readTables(session, "mirrors", ["t"])
        await session.close()
        self.assertEqual(set(tables), set(place.values()))
        standing = await source.read("t")
        ends = {}
        for rounds in (0, 1, 5, 9, 12):
            # Where a group stands after so many rounds: at the end of a set.
            positions, left = {}, set()
            for name, each in place.items():
                left |= set(standing[name][30 * rounds :])
                positions[each] = await self.offsetAfter(source, name, rounds)
            targets = [BrokerPartition(broker, index) for broker in (0, 1) for index in (0, 1)]
            found = {
                at.partition: offset
                for at, offset in translate(positions, tables, {"t": targets}).items()
            }
            seen = [
                payload for there in (await target.read("t", found)).values() for payload in there
            ]
            self.assertLessEqual(left, set(seen))
            ends[rounds] = len(seen)
        self.assertEqual(ends[12], 0)
        self.assertLessEqual(ends[9], 4 * 30 * 4)

    async def offsetAfter(self, source: Cluster, name: str, rounds: int) -> int:
        consumer = SimpleConsumer(reactor, source.endpoint(int(name[0])))
        messages = await consumer.fetch("t", int(name[2]), 0, 1 << 22)
        await consumer.close()
        offset = 0
        for count, (_payload, nextOffset) in enumerate(messages.payloads()):
            if count == 30 * rounds:
                break
            offset = nextOffset
        return offset

    async def test_translation(self) -> None:
        """A group's offsets are translated, never beyond what it has read."""
        await self.check(isKeeping=False)

    async def test_translationKeeping(self) -> None:
        """With partitions kept, too."""
        await self.check(isKeeping=True)

    async def test_expired(self) -> None:
        """
        A mirror whose session has expired joins again, and goes on where it was: nothing is sent
        twice, since nobody else had the partitions.
        """
        source, target = await self.both()
        mirror = self.mirror([source], target)
        mirror.startService()
        await source.produce("t", "0-0", payloads("a", 100))
        await self.until(lambda: mirror.counters.confirmedCount == 100)
        (member,) = mirror.sources
        assert isinstance(member, SourceCluster)
        session: Any = member._zookeeper
        source.zookeeper.expire(session)
        await source.produce("t", "0-0", payloads("b", 100))
        await self.until(lambda: mirror.counters.confirmedCount == 200)
        await mirror.stopService()
        self.assertEqual(await target.messages("t"), payloads("a", 100) + payloads("b", 100))


class TellingTests(SynchronousTestCase):
    """What the log says now and then."""

    def test_tells(self) -> None:
        """How much was mirrored, once a minute at most, and only when there was something."""
        clock = Clock()
        settings = MirrorSettings.fromProperties(
            [{"zk.connect": "a", "groupid": "g"}],
            {"broker.list": "0:h:1"},
            blacklist("x"),
            self.fail,
        )
        never: Any = Never()
        service = MirrorService(clock, settings, sourceZookeepers=lambda index: never)
        service.startService()
        with capturedLogs() as events:
            clock.advance(REPORT_SECONDS)
            self.assertEqual(events, [])
            service.counters.confirmed("t", 5, 50)
            clock.advance(REPORT_SECONDS)
            clock.advance(REPORT_SECONDS)
        self.assertEqual([event["confirmedCount"] for event in events], [5])
        self.successResultOf(service.stopService())


class Never:
    """A ZooKeeper that never answers."""

    def connect(self, timeoutMs: int) -> Any:
        return Deferred()

    async def close(self) -> None:
        pass
