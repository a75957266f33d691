"""
Tests for L{pylogbroker.zookeeper.server.service}, L{pylogbroker.zookeeper.server.connection} and
L{pylogbroker.zookeeper.server.groupcommit}: sessions, order, limits, and what waits for the disk.
"""

from __future__ import annotations

import errno
import struct
from typing import Any

from kazoo.protocol import serialization as wire
from twisted.internet.defer import Deferred
from twisted.logger import Logger, formatEvent, globalLogPublisher
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import ZookeeperError
from pylogbroker.zookeeper.server import connection, groupcommit, service, transactionlog, words
from pylogbroker.zookeeper.server.connection import FRAME_SIZE_MAX
from pylogbroker.zookeeper.server.transactions import Transaction, decodeTransaction
from tests.zookeeper.server.serverbench import TICK_MS, Peer, ServerBench, create

NO_NODE = -101
UNIMPLEMENTED = -6
EPHEMERAL = 1


class ServerCase(SynchronousTestCase):
    """A bench whose server has started."""

    settings: dict[str, Any] = {}

    def setUp(self) -> None:
        self.bench = ServerBench(**self.settings)
        self.bench.start()
        self.logged: list[str] = []
        observer: Any = self._observe
        globalLogPublisher.addObserver(observer)
        self.addCleanup(globalLogPublisher.removeObserver, observer)

    def _observe(self, event: Any) -> None:
        if event.get("log_format"):
            self.logged.append(str(event["log_format"]))

    def assertLogged(self, text: str) -> None:
        self.assertTrue(any(text in each for each in self.logged), self.logged)


class SyncTests(ServerCase):
    """Nothing leaves the server before what it tells of is synced."""

    def test_writeWaits(self) -> None:
        """A write is answered when the worker has synced it, not before."""
        bench = self.bench
        client = bench.client()
        client.request(create("/a"))
        bench.clock.advance(0)
        self.assertEqual((client.frames(), len(bench.worker.jobs)), ([], 1))
        bench.worker.performAll()
        (reply,) = client.replies()
        self.assertEqual((reply.error, reply.zxid), (0, bench.server.tree.zxid))

    def test_connectWaits(self) -> None:
        """The number of a session is told when its transaction is synced."""
        peer = self.bench.peer()
        peer.sendConnect()
        self.bench.clock.advance(0)
        self.assertEqual(peer.frames(), [])
        self.bench.settle()
        peer.connected()
        self.assertGreater(peer.sessionId, 0)

    def test_readWaits(self) -> None:
        """
        A read of a node that another client has just changed waits for that change; a read of
        another node does not. Neither names a transaction that may be lost.
        """
        bench = self.bench
        writer, reader, other = bench.client(), bench.client(), bench.client()
        bench.ask(writer, create("/a", b"old"))
        bench.ask(writer, create("/b", b"b"))
        synced = bench.server.commits.syncedZxid
        writer.request(wire.SetData("/a", b"new", -1))
        reader.request(wire.GetData("/a", None))
        other.request(wire.GetData("/b", None))
        self.assertEqual(reader.frames(), [])
        (reply,) = other.replies()
        self.assertEqual((reply.error, reply.zxid), (0, synced))
        bench.settle()
        (reply,) = reader.replies()
        self.assertIn(b"new", reply.body)

    def test_missingWaits(self) -> None:
        """That a node is not there, since it has just been deleted, is told when that is synced."""
        bench = self.bench
        writer, reader = bench.client(), bench.client()
        bench.ask(writer, create("/a"))
        writer.request(wire.Delete("/a", -1))
        reader.request(wire.Exists("/a", None))
        self.assertEqual(reader.frames(), [])
        bench.settle()
        self.assertEqual([each.error for each in reader.replies()], [NO_NODE])

    def test_eventWaits(self) -> None:
        """A watch event is sent when its transaction is synced, before the answer of its writer."""
        bench = self.bench
        client, other = bench.client(), bench.client()
        bench.ask(client, create("/a"))
        bench.ask(client, wire.GetData("/a", True))
        other.request(wire.SetData("/a", b"x", -1))
        client.request(wire.SetData("/a", b"y", -1))
        self.assertEqual(client.frames(), [])
        bench.settle()
        event, reply = client.replies()
        self.assertEqual((event.xid, event.zxid, event.body[:4]), (-1, -1, struct.pack(">i", 3)))
        self.assertEqual(reply.error, 0)

    def test_groupCommit(self) -> None:
        """What comes while a batch is being synced is one batch, with one job."""
        bench = self.bench
        client = bench.client()
        for i in range(5):
            client.request(create(f"/first{i}"))
        bench.clock.advance(0)
        for i in range(50):
            client.request(create(f"/next{i}"))
        bench.clock.advance(0)
        self.assertEqual(len(bench.worker.jobs), 1)
        bench.worker.perform()
        self.assertEqual((len(client.frames()), len(bench.worker.jobs)), (5, 1))
        bench.worker.perform()
        self.assertEqual((len(client.frames()), len(bench.worker.jobs)), (50, 0))

    def test_killed(self) -> None:
        """After a kill, everything that was answered is there, and the session goes on."""
        bench = self.bench
        client = bench.client()
        bench.ask(client, create("/a", b"data"))
        bench.ask(client, create("/e", b"", EPHEMERAL))
        stats = {path: bench.server.tree.stat(path) for path in bench.server.tree.nodes}
        bench.kill()
        tree = bench.server.tree
        self.assertEqual({path: tree.stat(path) for path in tree.nodes}, stats)
        again = bench.client(sessionId=client.sessionId, password=client.password)
        self.assertEqual(again.sessionId, client.sessionId)
        self.assertIn(b"data", bench.ask(again, wire.GetData("/a", None)).body)

    def test_diskFails(self) -> None:
        """When the log cannot be synced, nothing is answered, and the server ends."""
        bench = self.bench
        client = bench.client()
        failed = bench.server.whenFailed()
        bench.fileSystem.fail("fsync", ".log", errno.EIO)
        client.request(create("/a"))
        bench.settle()
        self.assertEqual(client.frames(), [])
        self.assertTrue(client.transport.isAborted)
        self.assertIn("fsync", str(self.failureResultOf(failed, ZookeeperError).value))
        self.failureResultOf(bench.server.whenFailed(), ZookeeperError)
        self.assertLogged("The transactions cannot be written")
        self.assertTrue(bench.peer().isClosed)
        bench.stop()
        bench.fileSystem.cutPower()
        bench.kill()
        self.assertEqual(bench.server.tree.children("/"), ["zookeeper"])

    def test_diskFull(self) -> None:
        """So it is when the disk is full."""
        bench = self.bench
        client = bench.client()
        failed = bench.server.whenFailed()
        bench.fileSystem.sizeMax = bench.fileSystem.usedSize
        client.request(create("/a", bytes(1000)))
        bench.settle()
        self.failureResultOf(failed, ZookeeperError)
        self.assertEqual(client.frames(), [])

    def test_stop(self) -> None:
        """A stop writes what waits, answers it, and keeps the sessions."""
        bench = self.bench
        client = bench.client()
        client.request(create("/a"))
        bench.stop()
        self.assertEqual(len(client.frames()), 1)
        self.assertTrue(client.isClosed)
        bench.make()
        bench.start()
        self.assertIn("/a", bench.server.tree.nodes)
        self.assertIn(client.sessionId, bench.server.tree.sessions)

    def test_whileStopping(self) -> None:
        """A request that comes while the server stops is not taken, and not answered."""
        bench = self.bench
        client = bench.client()
        client.request(create("/a"))
        stopped = Deferred.fromCoroutine(bench.server.stop())
        client.request(create("/b"))
        bench.settle()
        self.successResultOf(stopped)
        self.assertEqual(len(client.frames()), 1)
        bench.make()
        bench.start()
        self.assertEqual(bench.server.tree.children("/"), ["zookeeper", "a"])


class SessionTests(ServerCase):
    """Sessions begin, go on and end."""

    def test_timeout(self) -> None:
        """A time-out is granted between two ticks and the server's longest."""
        for wanted, granted in ((1, 2 * TICK_MS), (7_000, 7_000), (10**9, 120_000)):
            self.assertEqual(self.bench.client(wanted).timeoutMs, granted)

    def test_oldClient(self) -> None:
        """A client of ZooKeeper 3.3 gets a response without the field that it does not know."""
        peer = self.bench.peer()
        peer.sendConnect(isOld=True)
        self.bench.settle()
        (frame,) = peer.frames()
        self.assertEqual(len(frame), 4 + 4 + 8 + 4 + 16)

    def test_expires(self) -> None:
        """
        A silent client's session ends, with its ephemeral nodes and its connection; a ping keeps
        another.
        """
        bench = self.bench
        silent, other = bench.client(4_000), bench.client(4_000)
        bench.ask(silent, create("/e", b"", EPHEMERAL))
        bench.ask(other, create("/f", b"", EPHEMERAL))
        for _ in range(6):
            bench.clock.advance(1)
            other.send(struct.pack(">ii", -2, 11))
        bench.settle()
        self.assertTrue(silent.isClosed)
        self.assertFalse(other.isClosed)
        self.assertEqual({each.xid for each in other.replies()}, {-2})
        self.assertNotIn("/e", bench.server.tree.nodes)
        self.assertIn("/f", bench.server.tree.nodes)
        late = bench.client(sessionId=silent.sessionId, password=silent.password)
        self.assertEqual((late.sessionId, late.timeoutMs, late.isClosed), (0, 0, True))

    def test_paused(self) -> None:
        """Time in which the process did not run ends no session."""
        bench = self.bench
        client = bench.client(4_000)
        bench.clock.advance(3_600)
        self.assertIn(client.sessionId, bench.server.tree.sessions)
        for _ in range(6):
            bench.clock.advance(1)
        self.assertNotIn(client.sessionId, bench.server.tree.sessions)

    def test_late(self) -> None:
        """Time by which ticks are late, however little, does not count either."""
        bench = self.bench
        client = bench.client(4_000)
        for _ in range(4):
            bench.clock.advance(1.9)  # ticks are due at whole seconds
        self.assertIn(client.sessionId, bench.server.tree.sessions)
        for _ in range(6):
            bench.clock.advance(1)
        self.assertNotIn(client.sessionId, bench.server.tree.sessions)

    def test_lateInTurns(self) -> None:
        """A tick behind a late one comes early: no time is lost, and a session ends in its time."""
        bench = self.bench
        client = bench.client(4_000)
        for seconds in (1.2, 0.8, 1.2, 0.8, 1.2):
            bench.clock.advance(seconds)
        self.assertNotIn(client.sessionId, bench.server.tree.sessions)

    def test_unreadPing(self) -> None:
        """A ping that is in the socket when the last tick of a time-out comes keeps the session."""
        bench = self.bench
        client = bench.client(4_000)
        for _ in range(4):
            bench.clock.advance(1)
        client.send(struct.pack(">ii", -2, 11))
        for _ in range(3):
            bench.clock.advance(1)
        self.assertIn(client.sessionId, bench.server.tree.sessions)
        for _ in range(3):
            bench.clock.advance(1)
        self.assertNotIn(client.sessionId, bench.server.tree.sessions)

    def test_slowDisk(self) -> None:
        """A client that is not read, since too much waits for the disk, keeps its session."""
        self.patch(groupcommit, "OUTSTANDING_COUNT_MAX", 1)
        bench = self.bench
        client, other = bench.client(4_000), bench.client(4_000)
        client.request(create("/a"))
        for _ in range(10):
            for each in (client, other):
                each.send(struct.pack(">ii", -2, 11))
            bench.clock.advance(1)
        self.assertEqual(len(bench.server.tree.sessions), 2)
        bench.settle()
        self.assertEqual((len(client.frames()), len(other.frames())), (11, 10))

    def test_afterStart(self) -> None:
        """After a start a session has its whole time-out, and then ends."""
        bench = self.bench
        client = bench.client(4_000)
        bench.ask(client, create("/e", b"", EPHEMERAL))
        bench.clock.advance(0.9)
        bench.kill()
        for _ in range(3):
            bench.clock.advance(1)
        self.assertIn("/e", bench.server.tree.nodes)
        for _ in range(3):
            bench.clock.advance(1)
        self.assertNotIn("/e", bench.server.tree.nodes)

    def test_reattached(self) -> None:
        """
        A session moves to a new connection, and the old one is closed; its watches are gone, and
        its loss does not touch the session.
        """
        bench = self.bench
        client = bench.client()
        bench.ask(client, wire.Exists("/a", True))
        again = bench.client(sessionId=client.sessionId, password=client.password)
        self.assertTrue(client.isClosed)
        client.lose()
        self.assertEqual(bench.ask(again, create("/a")).error, 0)
        self.assertEqual(bench.server.watches.count, 0)

    def test_wrongPassword(self) -> None:
        """A session is only its owner's."""
        client = self.bench.client()
        thief = self.bench.client(sessionId=client.sessionId, password=b"x" * 16)
        self.assertEqual((thief.sessionId, thief.isClosed), (0, True))
        self.assertFalse(client.isClosed)

    def test_closed(self) -> None:
        """A client's close is answered, ends the session and its nodes, then the connection."""
        bench = self.bench
        client = bench.client()
        bench.ask(client, create("/e", b"", EPHEMERAL))
        client.raw(-11)
        client.request(create("/late"))
        self.assertFalse(client.isClosed)
        bench.settle()
        (reply,) = client.replies()
        self.assertEqual((reply.error, client.isClosed), (0, True))
        self.assertEqual(bench.server.tree.children("/"), ["zookeeper"])
        self.assertEqual(bench.server.tree.sessions, {})

    def test_fromTheFuture(self) -> None:
        """A client that has seen a later transaction comes from another server: it is refused."""
        peer = self.bench.peer()
        peer.sendConnect(lastZxid=1_000)
        self.assertTrue(peer.isClosed)
        self.assertEqual(peer.frames(), [])
        self.assertLogged("comes from another server")

    def test_noSession(self) -> None:
        """A connection that begins no session is closed."""
        bench = self.bench
        peer = bench.peer()
        for _ in range(12):
            bench.clock.advance(1)
        self.assertTrue(peer.transport.isAborted)
        self.assertLogged("has begun no session")

    def test_endless(self) -> None:
        """A connection whose session is over, and whose client does not let it end, is aborted."""
        bench = self.bench
        client = bench.client(4_000)
        for _ in range(8):
            bench.clock.advance(1)
            bench.settle()
        self.assertTrue(client.transport.isAborted)

    def test_container(self) -> None:
        """A container goes some time after its last child; one that never had a child stays."""
        bench = self.bench
        client = bench.client(100_000)
        for path in ("/c", "/new"):
            bench.ask(client, create(path, b"", 4), 19)
        bench.ask(client, create("/c/a"))
        for _ in range(70):
            bench.clock.advance(1)
        self.assertIn("/c", bench.server.tree.nodes)
        bench.ask(client, wire.Delete("/c/a", -1))
        for _ in range(70):
            bench.clock.advance(1)
        self.assertNotIn("/c", bench.server.tree.nodes)
        self.assertIn("/new", bench.server.tree.nodes)


class LimitTests(ServerCase):
    """Everything has a limit, and bad input costs its connection only."""

    settings = {"connectionCountMax": 4, "sessionCountMax": 3, "watchCountMax": 3}

    def refused(self, data: bytes, peer: Peer | None = None) -> None:
        other = self.bench.client()
        peer = peer or self.bench.client()
        peer.connection.dataReceived(data)
        self.assertTrue(peer.transport.isAborted)
        self.assertEqual(self.bench.ask(other, wire.Exists("/", None)).error, 0)
        self.assertLogged("is closed: {error}")

    def test_size(self) -> None:
        """A frame above the limit."""
        self.refused(struct.pack(">i", FRAME_SIZE_MAX + 1))

    def test_negativeSize(self) -> None:
        """A frame of a negative size."""
        self.refused(struct.pack(">i", -5))

    def test_firstFrame(self) -> None:
        """A first frame is small."""
        self.refused(struct.pack(">i", 5_000), self.bench.peer())

    def test_cut(self) -> None:
        """A request that is cut."""
        self.refused(struct.pack(">iiii", 12, 1, 1, 100))

    def test_version(self) -> None:
        """Another version of the protocol."""
        self.refused(struct.pack(">ii", 4, 7), self.bench.peer())

    def test_behind(self) -> None:
        """Bytes behind a request."""
        body = bytes(wire.Delete("/a", 0).serialize()) + b"x"
        self.refused(struct.pack(">iii", len(body) + 8, 1, 2) + body)

    def test_unknown(self) -> None:
        """A request of an unknown type is refused, and the connection goes on."""
        client = self.bench.client()
        client.raw(77, b"anything")
        self.assertEqual([each.error for each in client.replies()], [UNIMPLEMENTED])
        self.assertFalse(client.isClosed)
        self.assertLogged("unknown type")

    def test_logRate(self) -> None:
        """What clients cause is one line of a kind in ten seconds."""
        client = self.bench.client()
        for _ in range(50):
            client.raw(77)
        self.assertEqual(len([each for each in self.logged if "unknown type" in each]), 1)
        self.bench.clock.advance(10)
        self.bench.client().raw(78)
        self.assertEqual(len([each for each in self.logged if "unknown type" in each]), 2)

    def test_logLength(self) -> None:
        """A line quotes little of what a client sent."""
        events: list[Any] = []
        observer: Any = events.append
        self.patch(self.bench.server, "clientLog", Logger(observer=observer))
        client = self.bench.client()
        scheme = b"x" * 500_000
        client.raw(100, struct.pack(">ii", 0, len(scheme)) + scheme + struct.pack(">i", 0))
        (event,) = events
        text = formatEvent(event)
        self.assertIn("no authentication by the scheme 'xxx", text)
        self.assertLess(len(text), 500)

    def test_connections(self) -> None:
        """A connection too many is closed at once."""
        peers = [self.bench.peer() for _ in range(5)]
        self.assertEqual([each.isClosed for each in peers], [False] * 4 + [True])
        peers[0].lose()
        self.assertFalse(self.bench.peer().isClosed)

    def test_sessions(self) -> None:
        """A session too many is refused."""
        for _ in range(3):
            self.bench.client()
        peer = self.bench.peer()
        peer.sendConnect()
        self.bench.settle()
        self.assertTrue(peer.isClosed)
        self.assertEqual(peer.frames(), [])
        self.assertLogged("there are {count} sessions")

    def test_watches(self) -> None:
        """A watch too many costs the connection, and its watches."""
        client = self.bench.client()
        for i in range(3):
            self.bench.ask(client, wire.Exists(f"/{i}", True))
        client.request(wire.Exists("/x", True))
        self.assertTrue(client.transport.isAborted)
        client.lose()
        self.assertEqual(self.bench.server.watches.count, 0)

    def test_watchesAtOnce(self) -> None:
        """So does a renewal of too many."""
        client = self.bench.client()
        paths = struct.pack(">i", 5) + b"".join(
            struct.pack(">i", 2) + f"/{i}".encode() for i in range(5)
        )
        client.raw(101, struct.pack(">q", 0) + struct.pack(">i", 0) + paths + struct.pack(">i", 0))
        self.assertTrue(client.transport.isAborted)

    def test_watchPaths(self) -> None:
        """The memory of watches and their paths has a limit: of a connection, and of all."""
        sizes = {"watchCountMax": 100, "watchSizeMax": 20_000, "watchesSizeMax": 30_000}
        bench = self.bench = ServerBench(**sizes)
        bench.start()
        first, second, third = bench.client(), bench.client(), bench.client()
        path = "/" + 17_000 * "x"
        bench.ask(first, wire.Exists(path, True))
        bench.ask(first, wire.Exists(path, True))
        self.assertFalse(first.isClosed)
        bench.ask(second, wire.Exists("/" + 9_000 * "x", True))
        third.request(wire.Exists(path, True))
        first.request(wire.Exists(path[:5_000], True))
        self.assertTrue(first.transport.isAborted)
        self.assertTrue(third.transport.isAborted)
        self.assertFalse(second.isClosed)
        first.lose()
        third.lose()
        self.assertEqual(bench.server.watches.size, bench.server.watches.sizeOf(second.connection))
        bench.ask(bench.client(), wire.Exists(path, True))
        second.lose()
        self.assertEqual(bench.server.watches.count, 1)

    def test_outstanding(self) -> None:
        """
        While too many transactions wait for the disk, no client's requests are taken, and nothing
        is read; then all go on.
        """
        self.patch(groupcommit, "OUTSTANDING_COUNT_MAX", 10)
        bench = self.bench
        first, second = bench.client(), bench.client()
        for i in range(12):
            first.request(create(f"/a{i}"))
        second.request(create("/b"))
        self.assertEqual(bench.server.commits.outstandingCount, 10)
        for each in (first, second):
            self.assertEqual(each.transport.producerState, "paused")
        bench.settle()
        self.assertEqual((len(first.frames()), len(second.frames())), (12, 1))
        for each in (first, second):
            self.assertEqual(each.transport.producerState, "producing")

    def test_unread(self) -> None:
        """
        A client that does not read gets no more requests taken; when it reads, all is answered in
        order.
        """
        bench = self.bench
        client = bench.client()
        bench.ask(client, create("/a", b"data"))
        client.connection.pauseProducing()
        for _ in range(5):
            client.request(wire.GetData("/a", None))
        self.assertEqual((client.frames(), client.transport.producerState), ([], "paused"))
        client.connection.resumeProducing()
        self.assertEqual([each.error for each in client.replies()], [0] * 5)
        self.assertEqual(client.transport.producerState, "producing")

    def test_held(self) -> None:
        """A connection whose answers wait in great number is not read."""
        self.patch(connection, "HELD_COUNT_MAX", 3)
        bench = self.bench
        client, other = bench.client(), bench.client()
        bench.ask(other, create("/a"))
        other.request(wire.SetData("/a", b"x", -1))
        for _ in range(5):
            client.request(wire.GetData("/a", None))
        self.assertEqual(client.transport.producerState, "paused")
        bench.settle()
        self.assertEqual(len(client.frames()), 5)

    def test_unreadEvents(self) -> None:
        """A client that does not read its watch events is cut off."""
        self.patch(connection, "UNREAD_EVENTS_SIZE_MAX", 1_000)
        bench = self.bench
        client, other = bench.client(), bench.client()
        path = b"/a"
        client.raw(106, struct.pack(">i", len(path)) + path + struct.pack(">i", 0))
        bench.settle()
        client.connection.pauseProducing()
        bench.ask(other, create("/a"))
        for _ in range(100):
            bench.ask(other, wire.SetData("/a", b"x", -1))
        self.assertTrue(client.transport.isAborted)
        self.assertLogged("does not read its watch events")

    def test_unreadEventsOwnNumbers(self) -> None:
        """Answers with the number of events, as clients may want, make no room for more."""
        self.patch(connection, "UNREAD_EVENTS_SIZE_MAX", 1_000)
        bench = self.bench
        client, other = bench.client(), bench.client()
        client.raw(106, struct.pack(">i", 2) + b"/a" + struct.pack(">i", 0))
        bench.ask(other, create("/a", bytes(9_000)))
        client.send(struct.pack(">ii", -1, 4) + struct.pack(">i", 2) + b"/a\0")
        bench.settle()
        client.connection.pauseProducing()
        for _ in range(100):
            bench.ask(other, wire.SetData("/a", b"x", -1))
        self.assertTrue(client.transport.isAborted)
        self.assertLogged("does not read its watch events")

    def test_memoryWaits(self) -> None:
        """A session does not end while its client waits for memory that another one takes."""
        bench = self.bench
        bench.server.memory.sizeMax = 150_000
        first, second = bench.client(60_000), bench.client(4_000)
        for each in (first, second):
            each.connection.dataReceived(struct.pack(">i", 100_000))
        for _ in range(20):
            bench.clock.advance(1)
        self.assertEqual(len(bench.server.tree.sessions), 2)
        self.assertFalse(second.isClosed)
        first.lose()
        for _ in range(6):
            bench.clock.advance(1)
        self.assertTrue(second.isClosed)

    def test_memory(self) -> None:
        """
        Large frames on their way share a memory: one that has no room waits, unread, until another
        is through or lost.
        """
        bench = self.bench
        bench.server.memory.sizeMax = 150_000
        first, second, third = bench.client(), bench.client(), bench.client()
        head = struct.pack(">i", 100_000)
        for each in (first, second, third):
            each.connection.dataReceived(head)
        self.assertEqual(
            [each.transport.producerState for each in (first, second, third)],
            ["producing", "paused", "paused"],
        )
        first.lose()
        self.assertEqual(second.transport.producerState, "producing")
        body = bytes(create("/a", bytes(99_000)).serialize())
        padding = 100_000 - 8 - len(body)
        body = bytes(create("/a", bytes(99_000 + padding)).serialize())
        second.connection.dataReceived(struct.pack(">ii", 1, 1) + body)
        self.assertEqual(third.transport.producerState, "producing")
        bench.settle()
        self.assertEqual([each.error for each in second.replies()], [0])

    def unreadAnswer(self) -> tuple[Peer, Peer]:
        """A client that does not read its answer, which takes all the memory, and another."""
        self.patch(service, "OUTPUT_SIZE_MAX", 100_000)
        bench = self.bench
        client, other = bench.client(4_000), bench.client(4_000)
        bench.ask(other, create("/large", bytes(100_000)))
        bench.ask(other, create("/small", b"s"))
        write = client.transport.write

        def writeUnread(data: bytes) -> None:
            write(data)  # the transport calls it when it has too much
            client.connection.pauseProducing()

        self.patch(client.transport, "write", writeUnread)
        client.request(wire.GetData("/large", None))
        return client, other

    def ping(self, peer: Peer, seconds: int) -> None:
        for _ in range(seconds):
            peer.send(struct.pack(">ii", -2, 11))
            self.bench.clock.advance(1)

    def test_room(self) -> None:
        """
        While unread answers take all the memory for them, requests for large ones wait, unread, and
        others go on. They go on when the client reads, or its silence ends its session.
        """
        for hasRead in (True, False):
            bench = self.bench = ServerBench()
            bench.start()
            client, other = self.unreadAnswer()
            self.assertIn(b"s", bench.ask(other, wire.GetData("/small", None)).body)
            for request in (wire.GetData("/large", None), wire.GetData("/small", None)):
                other.request(request)
            self.assertEqual((other.frames(), other.transport.producerState), ([], "paused"))
            self.ping(other, 20 if not hasRead else 2)
            if hasRead:
                client.connection.resumeProducing()
            else:
                self.assertTrue(client.transport.isAborted)
                self.assertNotIn(client.sessionId, bench.server.tree.sessions)
                client.lose()
            bench.settle()
            sizes = [len(each) for each in other.frames()][:2]
            self.assertGreater(sizes[0], 100_000)
            self.assertLess(sizes[1], 200)
            self.assertEqual(other.transport.producerState, "producing")

    def test_roomInTurn(self) -> None:
        """All that wait are served, in order, each in a turn of its own."""
        client, other = self.unreadAnswer()
        third = self.bench.client()
        served: list[tuple[Peer, int]] = []
        turns: list[int] = []
        callLater = self.bench.clock.callLater

        def countTurns(delay: float, function: Any, *arguments: Any) -> Any:
            turns.append(0)
            return callLater(delay, function, *arguments)

        self.patch(self.bench.clock, "callLater", countTurns)
        for each in (other, third):
            each.request(wire.GetData("/large", None))

            def write(data: bytes, each: Peer = each) -> None:
                served.append((each, len(turns)))

            self.patch(each.transport, "write", write)
        client.connection.resumeProducing()
        self.assertEqual(served, [])
        self.bench.settle()
        self.assertEqual(served, [(other, 1), (third, 2)])

    def test_largeAnswers(self) -> None:
        """Every kind of large answer waits for room: data, lists, several reads and changes."""
        bench = self.bench
        other = bench.client()
        bench.ask(other, create("/large", bytes(100_000)))
        bench.ask(other, create("/small"))
        for i in range(3):
            bench.ask(other, create(f"/{i}{30_000 * 'x'}", b"", EPHEMERAL))
        self.patch(service, "OUTPUT_SIZE_MAX", 0)
        multi = wire.Transaction([wire.SetData("/small", b"", -1)] * 1_000)
        requests: list[tuple[int, bytes]] = [
            (4, bytes(wire.GetData("/large", None).serialize())),
            (8, bytes(wire.GetChildren("/", None).serialize())),
            (12, bytes(wire.GetChildren2("/", None).serialize())),
            (14, bytes(multi.serialize())),
            (103, struct.pack(">i", 1) + b"/"),
        ]
        for opCode, body in requests:
            client = bench.client(sessionId=other.sessionId, password=other.password)
            client.raw(opCode, body)
            bench.settle()
            self.assertEqual((client.frames(), client.transport.producerState), ([], "paused"))
            self.assertFalse(client.isClosed)
            client.lose()
        other.lose()
        client = bench.client(sessionId=other.sessionId, password=other.password)
        for request in (wire.Exists("/large", None), wire.GetChildren("/small", None)):
            self.assertEqual(bench.ask(client, request).error, 0)

    def test_roomForEvents(self) -> None:
        """A client that does not read events is closed earlier while there is no room."""
        self.patch(connection, "SMALL_ANSWER_SIZE", 1_000)
        self.patch(service, "OUTPUT_SIZE_MAX", 500)
        bench = self.bench
        client, other = bench.client(), bench.client()
        client.raw(106, struct.pack(">i", 2) + b"/a" + struct.pack(">i", 0))
        bench.settle()
        client.connection.pauseProducing()
        bench.ask(other, create("/a"))
        for _ in range(100):
            bench.ask(other, wire.SetData("/a", b"x", -1))
        self.assertTrue(client.transport.isAborted)

    def test_splitEverywhere(self) -> None:
        """A client's bytes may come in any pieces."""
        bench = self.bench
        frames = []
        for i in range(3):
            body = struct.pack(">ii", i, 1) + bytes(create(f"/a{i}").serialize())
            frames.append(struct.pack(">i", len(body)) + body)
        data = b"".join(frames)
        client = bench.client()
        for each in data:
            client.connection.dataReceived(bytes([each]))
        bench.settle()
        self.assertEqual(
            [(each.xid, each.error) for each in client.replies()], [(0, 0), (1, 0), (2, 0)]
        )


class TreeLimitTests(ServerCase):
    """The tree has a limit."""

    settings = {"treeSizeMax": 10_000}

    def test_size(self) -> None:
        """Above it, nodes and data are refused, and can be deleted."""
        bench = self.bench
        client = bench.client()
        self.assertEqual(bench.ask(client, create("/a", bytes(5_000))).error, 0)
        self.assertEqual(bench.ask(client, create("/b", bytes(5_000))).error, -125)
        self.assertEqual(bench.ask(client, wire.SetData("/a", bytes(9_000), -1)).error, -125)
        self.assertEqual(bench.ask(client, wire.Delete("/a", -1)).error, 0)
        self.assertEqual(bench.ask(client, create("/b", bytes(5_000))).error, 0)


class SnapshotTests(SynchronousTestCase):
    """Snapshots bound the log, and change nothing else."""

    def setUp(self) -> None:
        self.bench = ServerBench(snapshotCount=20)
        self.bench.segmentSizeMax = 4_096
        self.bench.make()
        self.bench.start()

    def names(self, directory: str) -> list[str]:
        return sorted(self.bench.fileSystem.list(f"/srv/zookeeper/{directory}"))

    def fill(self, client: Peer, count: int) -> None:
        for i in range(count):
            self.bench.ask(client, create(f"/{i:05d}-", bytes(100), 2))

    def test_bounded(self) -> None:
        """Two snapshots stay, with the log from the older one on; a start takes the latest."""
        bench = self.bench
        client = bench.client()
        self.fill(client, 200)
        snapshots = self.names("snapshots")
        self.assertEqual(len(snapshots), 2)
        older = int(snapshots[0].partition(".")[2], 16)
        segments = [each for each in self.names("log/transactions-0") if each.endswith(".log")]
        self.assertGreater(int(segments[1].removesuffix(".log")), older - 50)
        stats = {path: bench.server.tree.stat(path) for path in bench.server.tree.nodes}
        bench.kill()
        tree = bench.server.tree
        self.assertEqual({path: tree.stat(path) for path in tree.nodes}, stats)
        self.assertIn(client.sessionId, tree.sessions)
        bench.stop()
        bench.make()
        bench.start()
        tree = bench.server.tree
        self.assertEqual({path: tree.stat(path) for path in tree.nodes}, stats)

    def test_whileWriting(self) -> None:
        """
        A snapshot has the tree as it was when it began, whatever changes meanwhile, and gets its
        name when the log is synced so far.
        """
        bench = self.bench
        client = bench.client()
        for i in range(30):
            client.request(create(f"/a{i}"))
        bench.clock.advance(0)
        bench.worker.performAll()
        self.assertEqual(len(bench.snapshotWorker.jobs), 1)
        client.request(wire.Delete("/a0", -1))
        bench.snapshotWorker.performAll()
        bench.settle()
        self.assertEqual(len(self.names("snapshots")), 1)
        bench.kill()
        self.assertNotIn("/a0", bench.server.tree.nodes)
        self.assertIn("/a1", bench.server.tree.nodes)

    def test_fails(self) -> None:
        """A snapshot that cannot be written costs nothing; it is tried again later."""
        bench = self.bench
        client = bench.client(100_000)
        bench.fileSystem.fail("fsync", f"{20:016x}.tmp", errno.ENOSPC)
        self.fill(client, 30)
        self.assertEqual(self.names("snapshots"), [])
        self.fill(client, 5)
        self.assertEqual(self.names("snapshots"), [])
        for _ in range(61):
            bench.clock.advance(1)
        self.fill(client, 5)
        self.assertEqual(len(self.names("snapshots")), 1)

    def test_stopWaits(self) -> None:
        """A stop waits for the snapshot that is being written."""
        bench = self.bench
        client = bench.client()
        for i in range(30):
            client.request(create(f"/a{i}"))
        bench.clock.advance(0)
        bench.worker.performAll()
        bench.stop()
        self.assertEqual(len(self.names("snapshots")), 1)

    def stopAfter(self, count: int) -> None:
        """A server that writes no snapshot before it stops."""
        self.patch(transactionlog, "LAST_SNAPSHOT_TRANSACTION_COUNT", 30)
        bench = self.bench = ServerBench()
        bench.start()
        client = bench.client()
        for i in range(count):
            bench.ask(client, create(f"/{i}", b"", EPHEMERAL))
        bench.stop()

    def test_atStop(self) -> None:
        """A stop writes one, and the next start reads no log."""
        self.stopAfter(40)
        bench = self.bench
        self.assertEqual(self.names("snapshots"), [f"snapshot.{41:016x}"])
        read: list[bytes] = []

        def count(data: bytes) -> Transaction:
            read.append(data)
            return decodeTransaction(data)

        self.patch(transactionlog, "decodeTransaction", count)
        bench.make()
        bench.start()
        self.assertEqual((len(bench.server.tree.nodes), len(read)), (44, 0))
        bench.ask(bench.client(), create("/more"))
        bench.kill()
        self.assertEqual((len(bench.server.tree.nodes), len(read)), (45, 2))

    def test_fewAtStop(self) -> None:
        """It writes none for a few transactions, or behind a snapshot that has them."""
        self.stopAfter(20)
        self.assertEqual(self.names("snapshots"), [])
        self.stopAfter(40)
        self.bench.make()
        self.bench.start()
        self.bench.stop()
        self.assertEqual(len(self.names("snapshots")), 1)

    def test_failsAtStop(self) -> None:
        """A stop without room for it says so, and closes the log in order."""
        bench = self.bench
        self.patch(transactionlog, "LAST_SNAPSHOT_TRANSACTION_COUNT", 5)
        self.fill(bench.client(), 9)
        bench.fileSystem.fail("fsync", f"{10:016x}.tmp", errno.ENOSPC)
        bench.stop()
        self.assertEqual(self.names("snapshots"), [])
        bench.make()
        bench.start()
        self.assertEqual(bench.server.tree.zxid, 10)

    def test_diskFailsMeanwhile(self) -> None:
        """A snapshot of what could not be logged gets no name."""
        bench = self.bench
        client = bench.client()
        for i in range(30):
            client.request(create(f"/a{i}"))
        bench.clock.advance(0)
        client.request(create("/b"))
        bench.fileSystem.fail("fsync", ".log", errno.EIO, 1)
        failed = bench.server.whenFailed()
        bench.settle()
        self.failureResultOf(failed, ZookeeperError)
        self.assertEqual(self.names("snapshots"), [])


class WordTests(ServerCase):
    """Four-letter words."""

    def ask(self, word: bytes) -> str:
        peer = self.bench.peer()
        peer.connection.dataReceived(word)
        self.assertTrue(peer.isClosed)
        return peer.transport.value().decode()

    def test_words(self) -> None:
        """Each has its answer, and ends the connection."""
        client = self.bench.client()
        self.bench.ask(client, create("/e", b"", EPHEMERAL))
        self.bench.ask(client, wire.Exists("/x", True))
        self.assertEqual(self.ask(b"ruok"), "imok")
        self.assertEqual(self.ask(b"isro"), "rw")
        for word in (b"srvr", b"stat"):
            text = self.ask(word)
            self.assertIn("Mode: standalone\n", text)
            self.assertIn("Node count: 5\n", text)
            self.assertIn("Zookeeper version: 3.9.0", text)
        self.assertIn(f"session {client.sessionId:#x}", self.ask(b"stat"))
        self.assertIn(f"session {client.sessionId:#x}", self.ask(b"cons"))
        self.assertIn("zk_znode_count\t5\n", self.ask(b"mntr"))
        self.assertIn("zk_ephemerals_count\t1\n", self.ask(b"mntr"))
        self.assertIn(f"tickTime={TICK_MS}\n", self.ask(b"conf"))
        self.assertIn("zookeeper.version=3.9.0", self.ask(b"envi"))
        self.assertIn(f"{client.sessionId:#x}:\n\t/e\n", self.ask(b"dump"))
        self.assertEqual(self.ask(b"wchs"), "Total watches:1\n")

    def test_dumpLimit(self) -> None:
        """A dump has a limit, and says that it leaves something out."""
        self.patch(words, "DUMP_SIZE_MAX", 60)
        first, second = self.bench.client(), self.bench.client()
        self.bench.ask(first, create("/a", b"", EPHEMERAL))
        for i in range(9):
            self.bench.ask(second, create(f"/b{i}{9 * 'x'}", b"", EPHEMERAL))
        text = self.ask(b"dump")
        self.assertIn(f"Sessions (2):\n{first.sessionId:#x}:\n\t/a\n{second.sessionId:#x}:\n", text)
        self.assertTrue(text.endswith("(and more)\n"), text)
        self.assertNotIn("/b8", text)

    def test_session(self) -> None:
        """Within a session the same bytes are a frame's size."""
        client = self.bench.client()
        client.connection.dataReceived(b"ruok")
        self.assertTrue(client.transport.isAborted)
