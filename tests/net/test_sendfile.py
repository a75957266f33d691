"""
Tests of the way of slices to sockets.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

from twisted.internet import reactor
from twisted.internet.endpoints import SSL4ClientEndpoint, UNIXClientEndpoint, connectProtocol
from twisted.internet.ssl import Certificate as TwistedCertificate
from twisted.internet.ssl import optionsForClientTLS, trustRootFromCertificates
from twisted.internet.task import deferLater
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import TestCase

from pylogbroker.broker import service
from pylogbroker.interfaces import EMPTY_SLICE, Slice
from pylogbroker.net import sendfile
from pylogbroker.net.pagecache import PageCache
from pylogbroker.net.sendfile import (
    CACHED_SECONDS,
    RANGE_SIZE_MAX,
    READ_SIZE,
    BufferedSender,
    releaseSlices,
)
from pylogbroker.protocol.kafka07.requests import encodeFetch, encodeMultiFetch, encodeProduce
from pylogbroker.protocol.kafka07.responses import decodeFetch, decodeMultiFetch, fetchHeader
from pylogbroker.records.messageset import encodeSet
from pylogbroker.testing.localbroker import LocalBroker
from tests.broker.client import Client, connect, makeCertificate
from tests.broker.manualbroker import LeadTestCase, Peer, capture, plainServer

NOISE = Random(3).randbytes(900_000)
SET = encodeSet([NOISE, NOISE[::-1], NOISE[1:]])
SIZE = len(SET)
ALL = 10_000_000


class TransferTestCase(LeadTestCase):
    """A broker with 2.7 MB in one segment."""

    properties: dict[str, str] = {}

    def setUp(self) -> None:
        super().setUp()
        self.lead = self.broker(self.properties)
        peer = self.lead.connect()
        peer.send(encodeProduce("t", 0, b""))
        self.lead.settle()
        peer.send(encodeProduce("t", 0, SET))
        self.lead.settle()
        peer.close()
        self.addCleanup(self.nothingPinned)

    def nothingPinned(self) -> None:
        """In the end every slice was let go, whatever became of it."""
        self.lead.settle()
        self.assertEqual(self.lead.pinCounts(), [0])

    def connect(self, sendSize: int = 20_000, *transport: Any) -> Peer:
        peer = self.lead.connect(*transport)
        peer.resize(sendSize)
        return peer

    def slice(self, position: int, size: int) -> Slice:
        """A pinned one."""
        file = self.lead.log().segments[0].file
        assert file.pin()
        return Slice(file, position, size)

    def receiveAll(self, peer: Peer, countMax: int = 200) -> bytes:
        """All that comes, with all the work that it needs."""
        received = b""
        for _ in range(countMax):
            self.lead.settle()
            received += peer.receive()
        return received

    def truncate(self, size: int) -> None:
        """What nobody should do to a segment."""
        self.lead.fileSystem.open(self.lead.log().segments[0].path).truncate(size)


class WarmTests(TransferTestCase):
    """Slices that are in the page cache (row 23)."""

    def test_narrow(self) -> None:
        """
        Through a socket that takes little at a time, a slice arrives byte for byte, in many turns.
        """
        peer = self.connect(5_000)
        peer.send(encodeFetch("t", 0, 0, ALL))
        self.assertTrue(peer.transport.isSending)
        sizes = []
        received = b""
        while data := peer.receive(3_000):
            sizes.append(len(data))
            received += data
        self.assertEqual(received, fetchHeader(0, SIZE) + SET)
        self.assertGreater(len(sizes), SIZE // 3_000 - 1)
        self.assertFalse(peer.transport.isSending)
        self.assertEqual(
            (peer.transport.sentSize, self.lead.counters.requests.writtenSize), (SIZE + 6, SIZE + 6)
        )
        self.assertEqual(self.lead.readWorker.jobs.__len__(), 0)

    def test_nothingLeft(self) -> None:
        """When all is sent the transport is no longer looked at for writing, and keeps no queue."""
        peer = self.connect()
        peer.send(encodeFetch("t", 0, 0, ALL))
        self.assertEqual(len(peer.receive()), SIZE + 6)
        self.assertNotIn(peer.transport, self.lead.reactor.getWriters())
        self.assertIsNone(peer.transport._queue)

    def test_atOnce(self) -> None:
        """What the socket takes at once is sent at once, without another turn of the reactor."""
        peer = self.connect(200_000)
        found, sent = self.slice(0, 50_000), []
        self.assertTrue(
            peer.transport.sendParts(
                [b"header", found],
                self.lead.service.connections.sendContext,
                lambda: sent.append(1),
            )
        )
        self.assertEqual((peer._socket.recv(100_000), sent), (b"header" + SET[:50_000], []))

    def test_order(self) -> None:
        """Bytes and slices leave in the order in which they were given, whoever gave them."""
        peer, flow = self.connect(), self.lead.service.connections.sendContext
        done: list[str] = []
        peer.transport.write(b"first")
        self.assertFalse(
            peer.transport.sendParts(
                [b"second", self.slice(5, 100_000), b"third"], flow, lambda: done.append("sent")
            )
        )
        peer.transport.write(b"fourth")
        peer.transport.writeSequence([b"fif", b"th"])
        peer.transport.write(b"")
        self.assertEqual(done, [])
        self.assertEqual(peer.receive(), b"firstsecond" + SET[5:100_005] + b"thirdfourthfifth")
        self.assertEqual(done, ["sent"])

    def test_emptySlices(self) -> None:
        """Slices without bytes are nothing, and let go."""
        peer, flow = self.connect(), self.lead.service.connections.sendContext
        self.assertTrue(
            peer.transport.sendParts(
                [EMPTY_SLICE, b"a", self.slice(7, 0), b"b", EMPTY_SLICE], flow, list
            )
        )
        self.assertEqual(peer.receive(), b"ab")

    def test_budget(self) -> None:
        """
        However much the socket would take, a connection sends only so much in a turn; then others
        have theirs.
        """
        self.patch(sendfile, "TURN_SIZE_MAX", 30_000)
        peer = self.connect(200_000)
        peer.transport.sendParts(
            [self.slice(0, 150_000)], self.lead.service.connections.sendContext, list
        )
        self.assertEqual(peer.transport.sentSize, 30_000)
        peer.transport.doWrite()
        self.assertEqual(peer.transport.sentSize, 60_000)
        self.assertEqual(peer.receive(), SET[:150_000])

    def test_closedBehind(self) -> None:
        """A connection that is closed behind an answer ends when all of it is sent."""
        peer = self.connect()
        peer.transport.sendParts(
            [self.slice(0, 500_000)], self.lead.service.connections.sendContext, list
        )
        peer.transport.loseConnection()
        self.assertEqual(peer.receive(), SET[:500_000])
        self.assertTrue(peer.closed)

    def test_truncated(self) -> None:
        """
        When the file ends before the slice does, the connection is cut, for the rest was promised
        and does not exist; the log says so, once.
        """
        lines = capture(self)
        self.truncate(1_000_000)
        peer, other = self.connect(), self.connect()
        peer.send(encodeFetch("t", 0, 0, ALL))
        received = peer.receive()
        self.assertEqual((received, peer.closed), (fetchHeader(0, SIZE) + SET[:1_000_000], True))
        self.assertEqual(
            [
                "ends before byte 1000000, which was promised to <peer 2>: cutting it off" in line
                for line in lines()
            ],
            [True],
        )
        other.send(encodeFetch("t", 0, 0, 1000))
        self.assertEqual(other.fetched(), [(0, SET[:1000])])

    def test_truncatedAtOnce(self) -> None:
        """
        So it is when the first attempt, which is made with the request, already comes to the file's
        end.
        """
        lines = capture(self)
        self.truncate(1_000)
        peer = self.connect()
        peer.send(encodeFetch("t", 0, 0, 2_000))
        received = peer.receive()
        self.assertEqual((received, peer.closed), (fetchHeader(0, 2_000) + SET[:1_000], True))
        self.assertEqual(
            ["ends before byte 1000, which was promised" in line for line in lines()], [True]
        )

    def test_broken(self) -> None:
        """A peer that has gone while slices are sent ends the connection, and they are let go."""
        lines = capture(self)
        peer = self.connect()
        peer.send(encodeFetch("t", 0, 0, ALL))
        peer.transport.pauseProducing()
        peer._socket.close()
        self.lead.settle()
        self.assertEqual(self.lead.service.connections.open, {})
        self.assertEqual(len([line for line in lines() if "broke" in line]), 1)

    def test_brokenInBytes(self) -> None:
        """So does one that has gone while bytes are sent."""
        peer = self.connect()
        peer._socket.close()
        peer.transport.write(b"a")
        self.lead.settle()
        self.assertEqual(self.lead.service.connections.open, {})

    def test_lost(self) -> None:
        """A connection that is lost lets all go, and does not say that it was sent."""
        peer, done = self.connect(), []
        peer.transport.sendParts(
            [self.slice(0, 500_000), self.slice(5, 5)],
            self.lead.service.connections.sendContext,
            lambda: done.append(1),
        )
        self.assertGreater(self.lead.pinCounts()[0], 0)
        peer.vanish()
        self.assertEqual((self.lead.pinCounts(), done), ([0], []))

    def test_afterTheEnd(self) -> None:
        """
        A connection that has ended, or is about to, takes nothing more, and lets go what it is
        given.
        """
        flow = self.lead.service.connections.sendContext
        ending = self.connect()
        ending.transport.loseConnection()
        self.assertFalse(ending.transport.sendParts([b"a", self.slice(0, 5)], flow, list))
        ended = self.connect()
        ended.vanish()
        self.assertFalse(ended.transport.sendParts([b"a", self.slice(0, 5)], flow, list))
        ended.transport.write(b"a")
        self.assertEqual(self.lead.pinCounts(), [0])

    def test_letGo(self) -> None:
        """Letting go unpins slices, and passes over bytes and empty ones."""
        releaseSlices([b"a", self.slice(0, 1), EMPTY_SLICE, self.slice(0, 1)])
        self.assertEqual(self.lead.pinCounts(), [0])


class AskedTests(TransferTestCase):
    """What the kernel is asked about data that it has cached."""

    properties = {"warm.bytes": "0"}

    def setUp(self) -> None:
        super().setUp()
        self.asked: list[tuple[int, int]] = []
        real = PageCache._kernelHas

        def isCached(warmth: PageCache, fileno: int, position: int, size: int) -> bool:
            self.asked.append((position, size))
            real(warmth, fileno, position, size)
            return True

        self.patch(PageCache, "_kernelHas", isCached)

    def test_onceForARange(self) -> None:
        """
        A slice is looked up range by range, each once, however little the socket takes at a time.
        """
        peer = self.connect(5_000)
        peer.send(encodeFetch("t", 0, 50, ALL))
        received = b""
        while data := peer.receive(3_000):
            received += data
        self.assertEqual(received, fetchHeader(0, SIZE - 50) + SET[50:])
        starts = range(50, SIZE, RANGE_SIZE_MAX)
        self.assertEqual(
            self.asked, [(start, min(RANGE_SIZE_MAX, SIZE - start)) for start in starts]
        )

    def test_inOneCall(self) -> None:
        """
        What the socket has room for leaves in one C{sendfile}, up to 1 MiB, of which the header
        before it takes nothing.
        """
        sizes: list[int] = []
        real = os.sendfile

        def sendfile(out: int, source: int, position: int, size: int) -> int:
            sizes.append(size)
            return real(out, source, position, size)

        self.patch(os, "sendfile", sendfile)
        peer = self.connect(1 << 20)
        peer.send(encodeFetch("t", 0, 0, 100_000))
        self.assertEqual(peer.receive(), fetchHeader(0, 100_000) + SET[:100_000])
        peer.send(encodeFetch("t", 0, 0, ALL))
        self.assertEqual(sizes, [100_000, RANGE_SIZE_MAX])
        self.assertEqual(self.receiveAll(peer), fetchHeader(0, SIZE) + SET)


class ColdTests(TransferTestCase):
    """Slices that may have to come from the disk."""

    properties = {"warm.bytes": "0"}

    def setUp(self) -> None:
        super().setUp()
        real = os.preadv

        def preadv(fileno: int, buffers: Any, position: int, flags: int = 0) -> int:
            if flags & os.RWF_NOWAIT:
                raise BlockingIOError
            return real(fileno, buffers, position, flags)

        self.patch(os, "preadv", preadv)  # the kernel says that nothing is cached

    def test_byTheWorker(self) -> None:
        """
        Each piece is read in by a worker before it is sent; meanwhile the connection is not looked
        at for writing, and others are served.
        """
        peer, other = self.connect(1_000_000), self.connect()
        peer.send(encodeFetch("t", 0, 0, ALL))
        received, pieceCount = peer.receive(), 0
        while self.lead.readWorker.jobs:
            self.assertEqual(len(self.lead.readWorker.jobs), 1)
            self.assertNotIn(peer.transport, self.lead.reactor.getWriters())
            self.assertFalse(peer.transport.isSending)
            self.assertEqual(len(received), 6 + pieceCount * RANGE_SIZE_MAX)
            other.send(encodeFetch("t", 0, 99_999_999, 1))
            self.assertEqual(other.fetched(), [(1, b"")])
            self.lead.readWorker.perform()
            pieceCount += 1
            received += peer.receive()
        self.assertEqual(received, fetchHeader(0, SIZE) + SET)
        self.assertEqual(pieceCount, -(-SIZE // RANGE_SIZE_MAX))

    def test_narrow(self) -> None:
        """
        A piece that was read in for a connection is sent to its end without reading again, however
        little the socket takes at a time.
        """
        peer = self.connect(5_000)
        size = RANGE_SIZE_MAX + 1
        peer.send(encodeFetch("t", 0, 100_000, size))
        received, jobCount = b"", 0
        for _ in range(4_000):
            jobCount += self.lead.readWorker.performAll()
            received += peer.receive(2_000)
        self.assertEqual(received, fetchHeader(0, size) + SET[100_000 : 100_000 + size])
        self.assertEqual(jobCount, 2)

    def test_notForLong(self) -> None:
        """
        What was read in does not count as cached for ever: a client that stops taking for a second
        has the rest looked up again.
        """
        peer = self.connect(5_000)
        peer.send(encodeFetch("t", 0, 0, 900_000))
        self.lead.settle()
        received = peer.receive(20_000)
        self.assertEqual(self.lead.readWorker.jobs.__len__(), 0)
        self.lead.advance(CACHED_SECONDS)
        received += peer.receive(500_000)
        self.assertEqual(self.lead.readWorker.jobs.__len__(), 1)
        received += self.receiveAll(peer)
        self.assertEqual(received, fetchHeader(0, 900_000) + SET[:900_000])

    def test_failing(self) -> None:
        """When reading in fails, the connection is cut and the reason logged."""
        lines = capture(self)
        peer = self.connect()
        peer.send(encodeFetch("t", 0, 0, ALL))

        def pread(fileno: int, size: int, position: int) -> bytes:
            raise OSError(5, "Input/output error")

        self.patch(os, "pread", pread)
        self.lead.settle()
        self.assertEqual((peer.receive(), peer.closed), (fetchHeader(0, SIZE), True))
        self.assertEqual(len(lines()), 1)
        self.assertIn("at 0 failed: [Errno 5] Input/output error", lines()[0])

    def test_lostMeanwhile(self) -> None:
        """
        A connection that is lost while a worker reads for it leaves the file pinned until the read
        has ended.
        """
        peer = self.connect()
        peer.send(encodeFetch("t", 0, 0, ALL))
        peer.vanish()
        self.assertEqual(self.lead.pinCounts(), [1])
        self.lead.readWorker.perform()
        self.assertEqual(self.lead.pinCounts(), [0])

    def test_writeMeanwhile(self) -> None:
        """What is written while a worker reads waits behind it."""
        peer = self.connect()
        peer.transport.sendParts(
            [self.slice(0, 10)], self.lead.service.connections.sendContext, list
        )
        peer.transport.write(b"behind")
        self.assertNotIn(peer.transport, self.lead.reactor.getWriters())
        self.assertEqual(peer.receive(), b"")
        self.lead.settle()
        self.assertEqual(peer.receive(), SET[:10] + b"behind")

    def test_stalledByUs(self) -> None:
        """A client is not cut off for taking nothing while the disk is slow."""
        lead = self.broker({**self.properties, "reader.idle.ms": "1000"})
        peer = lead.connect()
        peer.send(encodeProduce("t", 0, SET[:900_010]))
        lead.settle()
        peer.send(encodeFetch("t", 0, 0, ALL))
        for _ in range(5):
            lead.advance(1)
        self.assertEqual(lead.counters.connections.slowCount, 0)
        lead.settle()
        received = peer.receive()
        lead.settle()
        self.assertEqual(len(received + peer.receive()), 900_016)


class ReadingTests(TransferTestCase):
    """Transports that cannot send slices."""

    def fetching(self, sizeMax: int = ALL) -> Peer:
        peer = self.connect(20_000, plainServer)
        peer.send(encodeFetch("t", 0, 0, sizeMax))
        return peer

    def test_all(self) -> None:
        """A worker reads, and it arrives byte for byte."""
        peer = self.fetching()
        self.assertEqual(len(self.lead.readWorker.jobs), 1)
        self.assertEqual(self.receiveAll(peer), fetchHeader(0, SIZE) + SET)
        self.assertEqual(self.lead.counters.requests.writtenSize, SIZE + 6)
        self.assertIsNone(peer.transport.producer)

    def test_backPressure(self) -> None:
        """While the peer does not read, nothing more is read for it from the file."""
        peer = self.fetching()
        self.lead.settle()
        outgoing: Any = peer.protocol._sender
        self.assertEqual((outgoing.sentSize, outgoing.isSending), (6 + READ_SIZE, True))
        self.assertEqual(len(peer.receive(READ_SIZE - 100_000)), READ_SIZE - 100_000)
        self.lead.settle()
        self.assertEqual(outgoing.sentSize, 6 + READ_SIZE)
        self.assertEqual(len(self.receiveAll(peer)), SIZE + 6 - READ_SIZE + 100_000)
        self.assertFalse(outgoing.isSending)

    def test_nextWaits(self) -> None:
        """The next request waits until the peer has taken what fills the transport."""
        peer = self.connect(20_000, plainServer)
        peer.send(encodeFetch("t", 0, 0, 200_000), encodeProduce("t", 0, encodeSet([b"behind"])))
        self.lead.settle()
        self.assertEqual(self.lead.log().logEndOffset, SIZE)
        self.receiveAll(peer)
        self.assertEqual(self.lead.log().logEndOffset, SIZE + 16)

    def test_truncated(self) -> None:
        """A file that ends too soon cuts the connection."""
        lines = capture(self)
        self.truncate(READ_SIZE + 10)
        peer = self.fetching()
        self.assertEqual(
            self.receiveAll(peer)[: 6 + READ_SIZE], fetchHeader(0, SIZE) + SET[:READ_SIZE]
        )
        self.assertTrue(peer.closed)
        self.assertEqual(len(lines()), 1)
        self.assertIn("for a client failed: it ends too soon", lines()[0])

    def test_failing(self) -> None:
        """So does a read that fails."""
        lines = capture(self)
        peer = self.fetching()

        def pread(fileno: int, size: int, position: int) -> bytes:
            raise OSError(5, "Input/output error")

        self.patch(os, "pread", pread)
        self.receiveAll(peer, 3)
        self.assertTrue(peer.closed)
        self.assertIn("for a client failed: [Errno 5] Input/output error", lines()[0])

    def test_lost(self) -> None:
        """
        A connection that is lost, while a worker reads for it or while the peer does not, lets all
        go.
        """
        reading, waiting = self.fetching(), self.fetching()
        self.lead.readWorker.jobs.rotate(-1)
        self.lead.readWorker.perform()
        reading.vanish()
        waiting.vanish()
        self.lead.settle()
        self.assertEqual(self.lead.pinCounts(), [0])

    def test_emptySlices(self) -> None:
        """Slices without bytes are nothing; all that is given is sent, and said to be."""
        transport, done = StringTransport(), []
        BufferedSender(
            transport,
            [EMPTY_SLICE, b"a", EMPTY_SLICE, b"b"],
            self.lead.service.connections.sendContext,
            lambda: done.append(1),
        ).start()
        self.assertEqual((transport.value(), transport.producer, done), (b"ab", None, [1]))

    def test_pausedAtTheEnd(self) -> None:
        """The end is said when the transport would take more, and not before."""
        transport, done = StringTransport(), []
        outgoing = BufferedSender(
            transport,
            [b"a", b"b"],
            self.lead.service.connections.sendContext,
            lambda: done.append(1),
        )
        outgoing.pauseProducing()
        outgoing.start()
        self.assertEqual((transport.value(), done), (b"", []))
        outgoing.resumeProducing()
        self.assertEqual((transport.value(), done), (b"ab", [1]))


class SocketTestCase(TestCase):
    """Over real sockets."""

    timeout = 120

    async def serve(self, properties: dict[str, str]) -> LocalBroker:
        broker = LocalBroker(reactor, properties)
        self.addCleanup(broker.stop)
        await broker.start()
        return broker

    async def exchange(self, client: Client) -> None:
        """Publish, and read back in several ways."""
        client.send(encodeProduce("t", 0, SET))
        client.send(
            encodeFetch("t", 0, 0, ALL),
            encodeFetch("t", 0, 900_010, 1_000_000),
            encodeMultiFetch([("t", 0, 0, 500_000), ("t", 0, SIZE, 5)]),
        )
        self.assertEqual(decodeFetch(await client.answer()), (0, SET))
        self.assertEqual(decodeFetch(await client.answer()), (0, SET[900_010:1_900_010]))
        self.assertEqual(decodeMultiFetch(await client.answer()), [(0, SET[:500_000]), (0, b"")])

    def assertNothingPinned(self, broker: LocalBroker) -> None:
        for log in broker.broker.service.directory.logs.values():
            self.assertEqual(
                [segment.file.pinCount for segment in log.segments], [0] * len(log.segments)
            )


class SocketTests(SocketTestCase):
    """The same over real sockets."""

    async def test_tiny(self) -> None:
        """With a send buffer of 4 KB slices arrive byte for byte (row 23)."""
        broker = await self.serve({"socket.send.buffer": "4096"})
        client = await connect(self, broker.endpoint)
        await self.exchange(client)
        self.assertIsInstance(
            next(iter(broker.broker.service.connections.open)).transport,
            sendfile.SendfileTransport,
        )
        self.assertNothingPinned(broker)

    async def test_cold(self) -> None:
        """Data that nothing is known about goes through the workers, and arrives."""
        broker = await self.serve({"warm.bytes": "0"})
        await self.exchange(await connect(self, broker.endpoint))
        self.assertNothingPinned(broker)

    async def test_manyClients(self) -> None:
        """Fifty clients at a time have each their own (row 22)."""
        broker = await self.serve({})
        clients = [await connect(self, broker.endpoint) for _ in range(50)]
        for number, client in enumerate(clients):
            client.send(
                encodeProduce(f"t{number}", 0, encodeSet([b"%d" % number * 1000])),
                encodeFetch(f"t{number}", 0, 0, ALL),
            )
        for number, client in enumerate(clients):
            self.assertEqual(
                decodeFetch(await client.answer()), (0, encodeSet([b"%d" % number * 1000]))
            )

    async def test_unix(self) -> None:
        """A UNIX socket serves, too."""
        path = os.path.abspath(self.mktemp())
        link = f"/tmp/{os.getpid()}-{id(self)}.sock" if len(path) > 100 else path
        await self.serve({"listeners": f"unix:{link}"})
        client = Client()
        await connectProtocol(UNIXClientEndpoint(reactor, link), client)
        self.addCleanup(client.abort)
        await self.exchange(client)


class TlsTests(SocketTestCase):
    """TLS, which cannot use C{sendfile}."""

    async def serveTls(self, properties: dict[str, str] | None = None) -> LocalBroker:
        self.keyPath, self.certificatePath = makeCertificate(Path(self.mktemp()))
        listener = (
            f"ssl:0:interface=127.0.0.1:privateKey={self.keyPath}:certKey={self.certificatePath}"
        )
        return await self.serve({"listeners": listener, **(properties or {})})

    async def connectTls(self, broker: LocalBroker) -> Client:
        certificate = TwistedCertificate.loadPEM(self.certificatePath.read_bytes())
        options = optionsForClientTLS(
            "127.0.0.1", trustRoot=trustRootFromCertificates([certificate])
        )
        client = Client()
        await connectProtocol(
            SSL4ClientEndpoint(reactor, "127.0.0.1", broker.port, options), client
        )
        self.addCleanup(client.abort)
        return client

    async def test_tls(self) -> None:
        """A listener with a certificate serves the same bytes."""
        broker = await self.serveTls()
        await self.exchange(await self.connectTls(broker))
        self.assertNothingPinned(broker)

    async def test_tlsBackPressure(self) -> None:
        """
        A client that does not read makes the broker read no more from the file; when it does it
        gets all of it.
        """
        broker = await self.serveTls()
        client = await self.connectTls(broker)
        client.send(encodeProduce("t", 0, SET), encodeFetch("t", 0, 0, 1))
        await client.answer()
        client.transport.pauseProducing()
        client.send(*[encodeFetch("t", 0, 0, ALL)] * 4)
        connections: Any = broker.broker.service.connections
        (connection,) = connections.open
        outgoing: Any = None
        # A sender also pauses for a moment while the kernel takes more.
        while outgoing is None or connection._sender is not outgoing or not outgoing.isSending:
            outgoing = connection._sender
            for _ in range(100):
                await self.turn()
        for _ in range(100):
            await self.turn()
        # Perhaps not the same answer, if a worker had to read: but never all of them.
        self.assertLess(connection._sender.sentSize, SIZE)
        client.transport.resumeProducing()
        for _ in range(4):
            self.assertEqual(decodeFetch(await client.answer()), (0, SET))
        self.assertNothingPinned(broker)

    async def turn(self) -> None:
        await deferLater(reactor, 0)

    async def test_tlsSendClose(self) -> None:
        """ "Connect, send, close" keeps the data over TLS, too (row 21)."""
        broker = await self.serveTls()
        client = await self.connectTls(broker)
        client.send(*[encodeProduce("t", 0, encodeSet([b"%d" % number])) for number in range(100)])
        client.transport.loseConnection()
        await client.closed
        other = await self.connectTls(broker)
        expected = encodeSet([b"%d" % number for number in range(100)])
        while True:
            other.send(encodeFetch("t", 0, 0, ALL))
            if decodeFetch(await other.answer()) == (0, expected):
                break

    async def test_tlsRefused(self) -> None:
        """What is refused ends a TLS connection, too; so does a client that speaks no TLS."""
        broker = await self.serveTls()
        client = await self.connectTls(broker)
        client.send(b"\x00\x00\x00\x02\x00\x63")
        await client.closed
        plain = await connect(self, broker.endpoint)
        plain.send(encodeFetch("t", 0, 0, 1))
        await plain.closed
        await self.exchange(await self.connectTls(broker))

    async def test_tlsStopped(self) -> None:
        """A broker that stops in the middle of an answer over TLS ends, and lets its slices go."""
        broker = await self.serveTls({"socket.send.buffer": "10000"})
        self.patch(service, "STOP_GRACE_MS", 100)
        client = await self.connectTls(broker)
        client.send(encodeProduce("t", 0, SET), encodeFetch("t", 0, 0, 1))
        await client.answer()
        client.transport.pauseProducing()
        client.send(encodeFetch("t", 0, 0, ALL))
        (connection,) = broker.broker.service.connections.open
        while connection._sender is None:
            await self.turn()
        await broker.stop()
        self.assertNothingPinned(broker)
