"""
Tests for L{pylogbroker.client.offsetlookup}; with brokers and ZooKeeper they are used in
C{test_groups}.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from twisted.internet import reactor as _reactor
from twisted.internet.defer import Deferred, succeed
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.client import offsetlookup
from pylogbroker.client.offsetlookup import (
    AGE_MS_MAX,
    UNKNOWN,
    MessageAgeBounds,
    OffsetLookup,
    ages,
)
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.errors import (
    BrokerConnectionError,
    ConnectionLostError,
    NoBrokersError,
    TimedOutError,
)
from pylogbroker.protocol.kafka07.requests import encodeOffsets
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.types import LATEST, BrokerPartition, OffsetBounds, PartitionId

reactor: Any = _reactor

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


class Partition:
    """
    Segments as a broker answers for them (spec-0.7 wire-protocol §10).

    @ivar count: of requests.
    """

    def __init__(self, segments: list[tuple[int, int]], end: int, aheadMs: int = 0) -> None:
        """
        @param segments: where each starts, and how long ago it was last written to.
        @param aheadMs: of the broker's clock.
        """
        self.known = [(start, NOW_MS - ageMs) for start, ageMs in segments]
        if end > segments[-1][0]:
            self.known.append((end, NOW_MS + aheadMs))
        self.count = 0

    def offsetsBefore(self, time: int, countMax: int) -> Awaitable[list[int]]:
        self.count += 1
        last = next(
            (
                index
                for index in range(len(self.known), 0, -1)
                if time == LATEST or self.known[index - 1][1] <= time
            ),
            0,
        )
        found: Deferred[list[int]] = succeed(
            [start for start, _ in reversed(self.known[:last])][:countMax]
        )
        return found

    def ages(self, test: SynchronousTestCase, offset: int) -> MessageAgeBounds:
        return test.successResultOf(
            Deferred.fromCoroutine(ages(self.offsetsBefore, offset, NOW_MS))
        )


class AgeTests(SynchronousTestCase):
    """How long ago a message was written."""

    def test_bounds(self) -> None:
        """
        It was no later than its segment was last written to, and no earlier than the one before;
        known to a second, or to a sixteenth.
        """
        partition = Partition([(0, 9 * HOUR_MS), (100, 4 * HOUR_MS), (200, 500)], 250)
        for offset, least, most in (
            (100, 4 * HOUR_MS, 9 * HOUR_MS),
            (199, 4 * HOUR_MS, 9 * HOUR_MS),
            (200, 500, 4 * HOUR_MS),
            (240, 500, 4 * HOUR_MS),
        ):
            found = partition.ages(self, offset)
            assert found.least is not None and found.most is not None
            self.assertTrue(least - max(1_000, least // 16) <= found.least <= least, found)
            self.assertTrue(most <= found.most <= most + max(1_000, most // 15), found)

    def test_first(self) -> None:
        """In the first segment that there is nobody knows how old a message may be."""
        self.assertEqual(
            Partition([(100, 60_000)], 150).ages(self, 120)._replace(least=None),
            MessageAgeBounds(None, None),
        )
        self.assertIsNot(Partition([(100, 60_000)], 150).ages(self, 120).least, None)

    def test_gone(self) -> None:
        """What is before the first segment was deleted: nothing is known."""
        self.assertEqual(Partition([(100, 60_000)], 150).ages(self, 99), UNKNOWN)

    def test_future(self) -> None:
        """
        A file that was written to in what is the future to us says nothing, or zero; nor does one
        from before computers say anything.
        """
        self.assertEqual(Partition([(0, -HOUR_MS)], 50, aheadMs=HOUR_MS).ages(self, 10), UNKNOWN)
        self.assertEqual(Partition([(0, -HOUR_MS)], 50).ages(self, 10), MessageAgeBounds(0, None))
        self.assertEqual(Partition([(0, AGE_MS_MAX * 2)], 50).ages(self, 10), UNKNOWN)

    def test_requests(self) -> None:
        """It does not take many requests, however old a message is."""
        partition = Partition([(0, 400 * 24 * HOUR_MS), (100, 300 * 24 * HOUR_MS)], 150)
        partition.ages(self, 120)
        self.assertLess(partition.count, 80)


class Silent(Factory):
    """
    Listens, and answers nothing.

    @ivar size: bytes heard.
    """

    size = 0

    def buildProtocol(self, addr: Any) -> Protocol:
        protocol = Protocol()
        vars(protocol)["dataReceived"] = self.hear
        return protocol

    def hear(self, data: bytes) -> None:
        self.size += len(data)


class HangUp(Factory):
    """
    Ends each connection when it is asked something, and listens no more after the second: when a
    question was asked, and asked again.

    @ivar count: of connections.
    """

    count = 0
    ended: Any

    def buildProtocol(self, addr: Any) -> Protocol:
        protocol = Protocol()
        self.count += 1

        def hangUp(_data: bytes) -> None:
            if self.count == 2:
                self.ended()
            protocol.transport.loseConnection()  # type: ignore[union-attr]

        vars(protocol)["dataReceived"] = hangUp
        return protocol


class LogEndsTests(TestCase):
    """
    The brokers of a cluster: 0 is one, nobody answers where 7 should be, and nobody knows 8.

    @ivar asked: who was looked for.
    """

    timeout = 60

    async def setUp(self) -> None:  # type: ignore[override]
        self.broker = LocalBroker(reactor, {"num.partitions": "2"})
        self.addCleanup(self.broker.stop)
        await self.broker.start()
        producer = SyncProducer(reactor, self.broker.endpoint)
        await producer.send("t", 0, [b"first"])
        await producer.confirm("t", 0)
        await producer.close()
        self.asked: list[int] = []
        self.ends = OffsetLookup(reactor, self.find, 20_000, 200)
        self.addCleanup(lambda: Deferred.fromCoroutine(self.ends.close()))

    async def find(self, number: int) -> BrokerRegistration:
        self.asked.append(number)
        if number == 8:
            raise NoBrokersError("nobody knows 8")
        return BrokerRegistration("x", self.broker.host, self.broker.port if number == 0 else 1)

    def patient(self) -> OffsetLookup:
        """Waits for as many new connections as it takes."""
        ends = OffsetLookup(reactor, self.find, 20_000)
        self.addCleanup(lambda: Deferred.fromCoroutine(ends.close()))
        return ends

    async def test_ends(self) -> None:
        """Where a partition begins and ends, over one connection."""
        place = "t", BrokerPartition(0, 0)
        self.assertEqual(
            (
                await self.ends.start(*place),
                await self.ends.end(*place),
                await self.ends.before(*place, LATEST, 5),
            ),
            (0, 15, [15, 0]),
        )
        self.assertIs(await self.ends.consumer(0), await self.ends.consumer(0))
        self.assertEqual(await self.ends.ages(*place, 0), MessageAgeBounds(0, None))

    async def test_bounds(self) -> None:
        """
        Of many partitions in the order in which they were given; of a broker that cannot be asked,
        why, and the others are told all the same.
        """
        places = [
            PartitionId("t", BrokerPartition(*pair))
            for pair in ((7, 0), (0, 1), (8, 0), (0, 0), (7, 1))
        ]
        found = await self.ends.bounds(places)
        self.assertEqual(list(found), places)
        self.assertEqual(
            [found[places[index]] for index in (1, 3)], [OffsetBounds(0, 0), OffsetBounds(0, 15)]
        )
        self.assertIsInstance(found[places[2]], NoBrokersError)
        for index in (0, 4):  # on a busy machine it is noticed late that nobody answers
            self.assertIsInstance(found[places[index]], BrokerConnectionError)
        self.assertEqual(sorted(self.asked), [0, 7, 8])
        self.assertEqual(await self.ends.bounds([]), {})

    async def test_silent(self) -> None:
        """
        A broker that has answered nothing is asked no more: the rest of its partitions is as
        unknown.
        """
        self.patch(offsetlookup, "BATCH_COUNT_MAX", 2)
        silent = Silent()
        port = reactor.listenTCP(0, silent, interface="127.0.0.1")
        self.addCleanup(port.stopListening)

        async def find(_number: int) -> BrokerRegistration:
            return BrokerRegistration("x", "127.0.0.1", port.getHost().port)

        ends = OffsetLookup(reactor, find, 200)
        found = await ends.bounds(
            [PartitionId("t", BrokerPartition(0, number)) for number in range(5)]
        )
        await ends.close()
        self.assertEqual({type(each) for each in found.values()}, {TimedOutError})
        self.assertEqual(
            (len(found), silent.size), (5, 2 * 2 * len(encodeOffsets("t", 0, LATEST, 1)))
        )

    async def test_unknownPartition(self) -> None:
        """
        A partition that its broker does not have is told so, and the others are told all the same,
        however many are asked for together.
        """
        self.patch(offsetlookup, "BATCH_COUNT_MAX", 1)
        places = [PartitionId("t", BrokerPartition(0, number)) for number in (0, 1)]
        self.assertEqual(
            list((await self.ends.bounds(places)).values()),
            [OffsetBounds(0, 15), OffsetBounds(0, 0)],
        )
        found = await self.ends.bounds([PartitionId("t", BrokerPartition(0, 5))])
        self.assertEqual([type(each) for each in found.values()], [ConnectionLostError])

    async def test_refusedAmongOthers(self) -> None:
        """
        The broker that refuses one partition ends the connection, over which others were asked for
        at the same time: these are told all the same.
        """
        places = [PartitionId("t", BrokerPartition(0, number)) for number in (5, 0, 1, 6)]
        found = await self.patient().bounds(places)
        self.assertEqual(list(found), places)
        self.assertEqual(
            [found[places[1]], found[places[2]]], [OffsetBounds(0, 15), OffsetBounds(0, 0)]
        )
        self.assertEqual(
            [type(found[places[index]]) for index in (0, 3)], [ConnectionLostError] * 2
        )

    async def test_refusedFirst(self) -> None:
        """A broker that refuses all that it is asked for first is asked for the rest."""
        self.patch(offsetlookup, "BATCH_COUNT_MAX", 2)
        places = [PartitionId("t", BrokerPartition(0, number)) for number in (5, 6, 0)]
        self.assertEqual(
            [type(each) for each in (await self.patient().bounds(places)).values()],
            [ConnectionLostError, ConnectionLostError, OffsetBounds],
        )

    async def test_refusedOften(self) -> None:
        """
        A broker that refuses very much is left alone: what it was not asked for alone is as unknown
        as the others.
        """
        self.patch(offsetlookup, "REFUSED_COUNT_MAX", 1)
        self.patch(offsetlookup, "BATCH_COUNT_MAX", 2)
        places = [PartitionId("t", BrokerPartition(0, number)) for number in (5, 6, 0)]
        self.assertEqual(
            [type(each) for each in (await self.patient().bounds(places)).values()],
            [ConnectionLostError] * 3,
        )

    async def test_lostForGood(self) -> None:
        """
        When there is no connection any more, those whose connection was lost are not asked for one
        after the other.
        """
        hangUp = HangUp()
        port = reactor.listenTCP(0, hangUp, interface="127.0.0.1")
        hangUp.ended = port.stopListening

        async def find(_number: int) -> BrokerRegistration:
            return BrokerRegistration("x", "127.0.0.1", port.getHost().port)

        ends = OffsetLookup(reactor, find, 20_000, 200)
        found = await ends.bounds(
            [PartitionId("t", BrokerPartition(0, number)) for number in range(5)]
        )
        await ends.close()
        self.assertEqual((len(found), hangUp.count), (5, 2))
        self.assertNotIsInstance(
            found[PartitionId("t", BrokerPartition(0, 0))], ConnectionLostError
        )

    async def test_nothingKnown(self) -> None:
        """Where a broker knows of no offset, a partition begins and ends at 0."""

        async def nothing(*_question: Any) -> list[int]:
            return []

        self.patch(self.ends, "before", nothing)
        place = "t", BrokerPartition(0, 0)
        self.assertEqual((await self.ends.start(*place), await self.ends.end(*place)), (0, 0))
