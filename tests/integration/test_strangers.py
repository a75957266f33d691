"""
Clients of another kind on the broker's port: Kafka of the years between, a browser, TLS. Each is
sent away with one line in the log that names it. Today's Kafka is answered on the same port.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import struct
import tempfile
import urllib.error
import urllib.request

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.brokerprocess import BrokerProcess

SECONDS_MAX = 300


def apiVersions() -> bytes:
    """
    What a client of Kafka 2.4 and later sends first: ApiVersions 3, with a header of version 2 (a
    tag buffer behind the client's name).
    """
    header = struct.pack(">hhih", 18, 3, 1, 7) + b"rdkafka" + b"\x00"
    body = (
        b"\x0blibrdkafka" + b"\x062.3.0" + b"\x00"
    )  # compact strings: one more than their size, then the bytes; a tag buffer
    return struct.pack(">i", len(header) + len(body)) + header + body


def head(key: int, version: int) -> bytes:
    """Its correlation id is 1."""
    return struct.pack(">hhih", key, version, 1, 8) + b"producer"


def metadata() -> bytes:
    """Metadata 1 for all topics. Its key, 3, is MULTIPRODUCE in 0.7."""
    body = head(3, 1) + struct.pack(">i", -1)
    return struct.pack(">i", len(body)) + body


def produce() -> bytes:
    """Produce 2, of Kafka 0.10, which Kafka 4 does not serve; with no topics."""
    body = head(0, 2) + struct.pack(">hii", 1, 1000, 0)
    return struct.pack(">i", len(body)) + body


class StrangerTests(SynchronousTestCase):
    """C{twistd pylogbroker}, and programs that mean somebody else."""

    def setUp(self) -> None:
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        self.broker = BrokerProcess(folder + "/logs")
        self.addCleanup(self.broker.kill)
        self.broker.start()
        self.friend = self.broker.client()
        self.addCleanup(self.friend.close)
        self.friend.roundTrip("friends", b"before")

    def assertNamed(self, name: str) -> None:
        """
        One line of the log names it; those who speak the protocol are served, over their old
        connections and over new ones.
        """
        self.broker.waitForLine(
            f"127.0.0.1:[0-9]+ seems to speak {name}, not the protocol of Kafka 0.7: closed"
        )
        self.friend.roundTrip("friends", b"old connection")
        with self.broker.client() as friend:
            friend.roundTrip("friends", b"new connection")
        self.assertEqual(self.broker.log.count("seems to speak"), 1)
        self.assertNotIn("Traceback", self.broker.log)

    def assertSentAway(self, greeting: bytes) -> None:
        with self.broker.client(SECONDS_MAX) as client:
            client.send(greeting)
            self.assertTrue(client.isClosed())

    def test_todaysKafka(self) -> None:
        """
        A client of today's Kafka asks for the versions, and has its answer; those of 0.7 are served
        on.
        """
        with self.broker.client(SECONDS_MAX) as client:
            client.send(apiVersions())
            answer = client.receive(10)
        size, correlation, code = struct.unpack(">iih", answer)
        self.assertGreater(size, 10)
        self.assertEqual((correlation, code), (1, 0))
        self.friend.roundTrip("friends", b"old connection")
        self.assertNotIn("seems to speak", self.broker.log)
        self.assertNotIn("Traceback", self.broker.log)

    def test_withoutVersions(self) -> None:
        """Likewise one that begins with Metadata, as the further connections of some do."""
        with self.broker.client(SECONDS_MAX) as client:
            client.send(metadata())
            size, correlation = struct.unpack(">ii", client.receive(8))
        self.assertGreater(size, 8)
        self.assertEqual(correlation, 1)
        self.friend.roundTrip("friends", b"old connection")
        self.assertNotIn("seems to speak", self.broker.log)

    def test_olderKafka(self) -> None:
        """One of Kafka 0.10 produces without asking for versions, and is closed."""
        self.assertSentAway(produce())
        self.assertNamed("the protocol of Kafka 0.8 or later")

    def test_http(self) -> None:
        """C{urllib} asks for a page, and is closed without one."""
        with self.assertRaises((urllib.error.URLError, OSError)) as caught:
            urllib.request.urlopen(
                f"http://127.0.0.1:{self.broker.port}/metrics", timeout=SECONDS_MAX
            )
        self.assertNotIsInstance(caught.exception, TimeoutError)
        self.assertNamed("HTTP")

    def test_tls(self) -> None:
        """C{ssl} begins a handshake, and is closed."""
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.broker.port), SECONDS_MAX) as plain,
            self.assertRaises(OSError) as caught,
        ):
            context.wrap_socket(plain)
        self.assertNotIsInstance(caught.exception, TimeoutError)
        self.assertNamed("TLS")

    def test_manyTimes(self) -> None:
        """A scanner that comes a hundred times fills no log: one line, for now."""
        for _time in range(100):
            self.assertSentAway(produce())
        self.assertNamed("the protocol of Kafka 0.8 or later")
