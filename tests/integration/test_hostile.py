"""
Clients that mean ill, or know no better: the memory of C{twistd pylogbroker} stays within its
limits, and others are served meanwhile.

Memory is what the system counts for the process (C{VmRSS}, and its peak). The limits are those that
L{pylogbroker.broker.requestmemory} and the settings state; a test that comes close to one is a
reason to look, and one far below it, too.
"""

from __future__ import annotations

import resource
import selectors
import shutil
import socket
import struct
import sys
import tempfile

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.broker.requestmemory import HELD_SIZE_TOTAL, ORDINARY_SIZE_TOTAL
from pylogbroker.config.brokersettings import BrokerSettings
from pylogbroker.protocol.kafka07.requests import encodeFetch, encodeOffsets, encodeProduce
from pylogbroker.records.messageset import encodeSet
from tests.integration.brokerprocess import DEFAULTS, BrokerProcess, until
from tests.integration.rawclient import PROBE_TOPIC, RawClient

MIB = 1 << 20
CONNECTION_COUNT = 5_000
IDLE_SIZE_MAX = 2 << 10
DESCRIPTOR_COUNT = CONNECTION_COUNT + 1_000
SLACK_COUNT = 5
"""Descriptors of clients before, which the broker may not have closed yet when it was looked."""

OWN_SIZE_MAX = 16 * MIB
"""
What the broker may need for its own affairs, such as serving the others, while a test goes on.
"""


def memoryLimit(connectionCount: int, properties: dict[str, str] | None = None) -> int:
    """How much the memory of a broker may grow for requests, in bytes, by its settings."""
    settings = BrokerSettings.fromProperties(
        {**DEFAULTS, "log.dir": "x", **(properties or {})}, lambda _warning: None
    )
    # One frame at a time is joined from its pieces, and then its message set is taken out of it: it
    # is there twice for a moment.
    received = (
        HELD_SIZE_TOTAL
        + ORDINARY_SIZE_TOTAL
        + settings.maxRequestMemoryBytes
        + settings.maxSocketRequestBytes
    )
    return received + connectionCount * IDLE_SIZE_MAX + OWN_SIZE_MAX


class HostileCase(SynchronousTestCase):
    """A broker as a process, which can be measured."""

    def setUp(self) -> None:
        soft, self.hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if self.hard < DESCRIPTOR_COUNT:
            self.hard = DESCRIPTOR_COUNT  # which root may
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTOR_COUNT, self.hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, self.hard))
        self.sockets: list[socket.socket] = []

    def serve(self, properties: dict[str, str] | None = None) -> None:
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        self.broker = BrokerProcess(folder + "/logs", properties, descriptorCounts=(256, self.hard))
        self.addCleanup(self.broker.kill)
        self.broker.start()
        self.addCleanup(self.closeAll)
        self.other = self.broker.client()
        self.addCleanup(self.other.close)
        self.assertOthersAreServed()
        self.sizeBefore = self.broker.rssSize()
        self.broker.forgetRssMax()

    def closeAll(self) -> None:
        for each in self.sockets:
            each.close()

    def connect(self, sendBufferSize: int = 0, receiveBufferSize: int = 0) -> socket.socket:
        found = socket.socket()
        self.sockets.append(found)
        found.settimeout(20)
        for option, size in (
            (socket.SO_SNDBUF, sendBufferSize),
            (socket.SO_RCVBUF, receiveBufferSize),
        ):
            if size:
                found.setsockopt(socket.SOL_SOCKET, option, size)
        found.connect(("127.0.0.1", self.broker.port))
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found

    def connectMany(self) -> None:
        """And wait until the broker has taken all of them."""
        before = self.broker.descriptorCount()
        for _each in range(CONNECTION_COUNT):
            self.connect(sendBufferSize=4096)
        until(
            lambda: self.broker.descriptorCount() > before + CONNECTION_COUNT - SLACK_COUNT,
            "all connections are taken",
        )

    def assertOthersAreServed(self, size: int = 100) -> None:
        """Produce and fetch, over an old connection and over a new one."""
        self.other.roundTrip("others", bytes(size))
        with self.broker.client() as another:
            another.roundTrip("others", bytes(size))

    @property
    def growth(self) -> int:
        """By how much the memory has grown, at its peak."""
        return self.broker.rssSizeMax() - self.sizeBefore

    def report(self, sentence: str) -> None:
        sys.stdout.write(f"[{sentence}] ")


class CrowdTests(HostileCase):
    """Many connections."""

    def test_idleConnections(self) -> None:
        """
        Five thousand idle connections cost less than 2 KiB of memory each, also when each has asked
        something once.
        """
        self.serve()
        self.assertEqual(
            self.broker.descriptorLimit(), self.hard, "the broker raises its own limit"
        )
        self.connectMany()
        fresh = (self.broker.rssSize() - self.sizeBefore) / CONNECTION_COUNT
        self.assertOthersAreServed()
        request = encodeOffsets(PROBE_TOPIC, 0, -1, 1)
        for each in self.sockets:
            each.sendall(request)
        for each in self.sockets:
            self.assertEqual(len(each.recv(100)), 18)
        used = (self.broker.rssSize() - self.sizeBefore) / CONNECTION_COUNT
        self.report(
            f"{CONNECTION_COUNT} idle connections: {fresh:.0f} bytes each, {used:.0f} when each has"
            " asked something"
        )
        self.assertLess(fresh, IDLE_SIZE_MAX)
        self.assertLess(used, IDLE_SIZE_MAX)
        self.assertOthersAreServed()
        before = self.broker.descriptorCount()
        self.closeAll()
        until(
            lambda: self.broker.descriptorCount() < before - CONNECTION_COUNT + SLACK_COUNT,
            "all connections are closed",
        )
        self.assertOthersAreServed()

    def test_burst(self) -> None:
        """
        A thousand clients that come in one moment are all taken at once: none has to try again a
        second later.
        """
        self.serve()
        before = self.broker.descriptorCount()
        with selectors.DefaultSelector() as waiting:
            for _each in range(1_000):
                found = socket.socket()
                self.sockets.append(found)
                found.setblocking(False)
                found.connect_ex(("127.0.0.1", self.broker.port))
                waiting.register(found, selectors.EVENT_WRITE)
            while waiting.get_map():
                ready = waiting.select(20)
                self.assertTrue(ready)
                for key, _events in ready:
                    waiting.unregister(key.fileobj)
        until(
            lambda: self.broker.descriptorCount() > before + 1_000 - SLACK_COUNT,
            "all connections are taken",
        )
        self.assertOthersAreServed()


class LargeRequestTests(HostileCase):
    """Requests of 100 MB."""

    def frameHead(self, size: int) -> bytes:
        """The beginning of a PRODUCE request with one message, in a frame of so many bytes."""
        topic = b"large"
        setSize = size - 2 - 2 - len(topic) - 8
        return struct.pack(
            f">ihh{len(topic)}siiiBBI", size, 0, len(topic), topic, 0, setSize, setSize - 4, 1, 0, 0
        )

    def push(self, sender: socket.socket, data: memoryview, sent: int) -> int:
        """Send what the broker takes now. Returns how much of the data has been sent."""
        try:
            while sent < len(data):
                sent += sender.send(data[sent : sent + 65536])
        except BlockingIOError:
            pass
        return sent

    def test_halfSent(self) -> None:
        """
        Five thousand half-sent frames of 100 MB stay within the limits, however the memory for them
        is asked for.
        """
        # The system's own buffers would take some GB on both ends together, which a small machine
        # does not have; the broker takes in the same.
        self.serve({"socket.receive.buffer": "16384"})
        data = memoryview(self.frameHead(100_000_000) + bytes(MIB))
        sent: dict[socket.socket, int] = {}
        for _each in range(CONNECTION_COUNT):
            sender = self.connect(sendBufferSize=4096)
            sender.setblocking(False)
            sent[sender] = self.push(sender, data, 0)
        self.assertOthersAreServed()
        for _round in range(3):
            for sender in sent:
                sent[sender] = self.push(sender, data, sent[sender])
            self.assertOthersAreServed()
        self.assertOthersAreServed(size=900_000)
        limit = memoryLimit(CONNECTION_COUNT)
        total = sum(sent.values())
        self.report(
            f"{CONNECTION_COUNT} half-sent frames: {total / MIB:.0f} MiB sent, memory grew by"
            f" {self.growth / MIB:.0f} MiB of {limit / MIB:.0f}"
        )
        self.assertLess(self.growth, limit)
        self.assertGreater(total, 50 * MIB)
        before = self.broker.descriptorCount()
        self.closeAll()
        until(
            lambda: self.broker.descriptorCount() < before - CONNECTION_COUNT + SLACK_COUNT,
            "all connections are closed",
        )
        self.assertOthersAreServed(size=900_000)

    def test_wholeOnes(self) -> None:
        """
        Frames of 100 MB that do come to their end, from five clients at once, wait for one
        another's memory, and are all carried out.
        """
        self.serve()
        clientCount, size = 5, 100_000_000
        payload = bytes(999_000)
        entry = encodeSet([payload])
        count = size // len(entry)
        data = memoryview(encodeProduce("large", 0, entry * count))
        sent = {self.connect(): 0 for _each in range(clientCount)}
        for sender in sent:
            sender.setblocking(False)
        with selectors.DefaultSelector() as waiting:
            for sender in sent:
                waiting.register(sender, selectors.EVENT_WRITE)
            while waiting.get_map():
                ready = waiting.select(30)
                self.assertTrue(ready, "the broker takes no more")
                for key, _events in ready:
                    writable = key.fileobj
                    assert isinstance(writable, socket.socket)
                    sent[writable] = self.push(
                        writable, data[: sent[writable] + MIB], sent[writable]
                    )
                    if sent[writable] == len(data):
                        waiting.unregister(writable)
            self.assertOthersAreServed()
        end = clientCount * count * len(entry)
        until(lambda: self.other.end("large") == end, "all is stored")
        limit = (
            memoryLimit(clientCount) + 2 * size
        )  # what is appended and not flushed yet; above 64 MiB the next has to wait
        self.report(
            f"{clientCount} whole frames of 100 MB: memory grew by {self.growth / MIB:.0f} MiB of"
            f" {limit / MIB:.0f}"
        )
        self.assertLess(self.growth, limit)
        for number in range(clientCount):
            self.assertEqual(
                self.other.fetch("large", 0, number * count * len(entry), len(entry)), (0, entry)
            )

    def test_tooLarge(self) -> None:
        """
        A frame over the limit closes its connection when its four first bytes are there; nothing is
        kept of it.
        """
        self.serve()
        for _each in range(100):
            with self.broker.client() as client:
                client.send(struct.pack(">i", 104_857_601))
                self.assertTrue(client.isClosed())
        self.assertOthersAreServed()
        self.assertLess(self.growth, OWN_SIZE_MAX)


class SlowTests(HostileCase):
    """Clients that take, or send, next to nothing."""

    def fill(self, size: int) -> bytes:
        """A log of so many bytes. Returns it."""
        entry = encodeSet([bytes(range(250)) * 3_990])
        for _each in range(size // len(entry)):
            self.other.produce("full", 0, entry)
        self.other.processed()
        return entry

    def test_neverReads(self) -> None:
        """
        Peers that ask for 100 MB each, in one answer or in a hundred, and never read them, cost
        next to nothing.
        """
        self.serve()
        entry = self.fill(100 * MIB)
        end = self.other.end("full")
        self.assertGreater(end, 99 * MIB)
        self.sizeBefore = self.broker.rssSize()
        self.broker.forgetRssMax()
        peerCount = 50
        for number in range(peerCount):
            peer = self.connect(receiveBufferSize=4096)
            if number % 2:
                peer.sendall(encodeFetch("full", 0, 0, 1 << 30))
            else:
                peer.sendall(
                    b"".join(
                        encodeFetch("full", 0, offset, len(entry))
                        for offset in range(0, end, len(entry))
                    )
                )
            self.assertOthersAreServed()
        self.report(
            f"{peerCount} peers that do not read 100 MB: memory grew by {self.growth / MIB:.1f} MiB"
        )
        self.assertLess(self.growth, OWN_SIZE_MAX)
        # They can have it all the same, later.
        with self.broker.client() as client:
            self.assertEqual(client.fetch("full", 0, 0, len(entry)), (0, entry))
        head = RawClient.over(self.sockets[1]).receive(6 + len(entry))
        self.assertEqual(head, struct.pack(">ih", 2 + end, 0) + entry)

    def test_byteByByte(self) -> None:
        """
        Peers that send a byte now and then, of small requests and of one of 100 MB, cost what they
        have sent; small ones are carried out in the end.
        """
        self.serve()
        data = encodeSet([b"one byte after the other", b"and another one"])
        request = encodeProduce("slow", 0, data)
        slow = [self.connect() for _each in range(50)]
        large = self.connect()
        large.sendall(struct.pack(">ihh", 100_000_000, 0, 20_000))
        for number in range(len(request)):
            for peer in slow:
                peer.send(request[number : number + 1])
            for _each in range(500):
                large.send(b"x")
            self.other.roundTrip(
                "others", b"meanwhile"
            )  # the pause, and the proof that others are served
        self.assertOthersAreServed()
        until(
            lambda: self.other.end("slow") == len(slow) * len(data),
            "all small requests are carried out",
        )
        sent = len(request) * (len(slow) + 500)
        self.report(f"{sent} bytes one by one: memory grew by {self.growth / MIB:.1f} MiB")
        self.assertLess(self.growth, OWN_SIZE_MAX)
