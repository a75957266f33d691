"""Tests for L{pylogbroker.syncclient.connection}, on real sockets."""

from __future__ import annotations

import socket
import ssl
import struct

from pylogbroker.errors import BrokerConnectionError, FrameSizeError, TimedOutError, WireError
from pylogbroker.net.endpointstrings import endpoint
from pylogbroker.syncclient.connection import BrokerSocket
from tests.integration.certificates import Authority
from tests.syncclient.fakebroker import PATIENCE_SECONDS, Connection, FakeBrokerCase, ManualTime

MUCH = b"x" * (32 << 20)
"""More than the kernel keeps for a far end that does not read."""


class SocketCase(FakeBrokerCase):
    """The way to a broker that nobody has used yet."""

    def setUp(self) -> None:
        super().setUp()
        self.socket = self.build(self.port)

    def build(self, port: int, **arguments: object) -> BrokerSocket:
        made = BrokerSocket("127.0.0.1", port, random=lambda: 0.0, **arguments)  # type: ignore[arg-type]
        self.addCleanup(made.drop)
        return made

    def connected(self) -> Connection:
        self.socket.connect()
        return self.accept()


class ConnectTests(SocketCase):
    """Connecting."""

    def test_once(self) -> None:
        """A connection that looks alive is kept."""
        self.assertFalse(self.socket.isConnected)
        self.connected()
        self.socket.connect()
        self.assertTrue(self.socket.isConnected)
        self.assertEqual(self.socket.serial, 1)

    def test_endedMeanwhile(self) -> None:
        """
        A connection that the broker has ended, or reset, or written to without being asked, is not
        used: a new one is made.
        """
        for serial, end in enumerate(
            (Connection.close, Connection.reset, lambda each: each.write(b"surprise")), 1
        ):
            far = self.connected()
            self.assertEqual(self.socket.serial, serial)
            end(far)
            self.untilHeard(self.socket)
        self.socket.connect()
        self.assertEqual(self.socket.serial, 4)

    def test_retries(self) -> None:
        """
        A refused attempt is followed by others, later and later, until the next would come too
        late; the error says why the last one failed.
        """
        time = ManualTime()
        lonely = self.build(
            self.unusedPort(), connectTimeoutMs=100, clock=time.clock, pause=time.pause
        )
        error = self.assertRaises(BrokerConnectionError, lonely.connect)
        self.assertEqual(time.pauses, [0.010, 0.020, 0.040])
        self.assertIn("refused", str(error))
        self.assertIn("within 100 ms", str(error))

    def test_lessTime(self) -> None:
        """The caller may have less time."""
        time = ManualTime()
        lonely = self.build(
            self.unusedPort(), connectTimeoutMs=100, clock=time.clock, pause=time.pause
        )
        self.assertRaises(BrokerConnectionError, lonely.connect, 15)
        self.assertEqual(time.pauses, [0.010])

    def test_comesUp(self) -> None:
        """A broker that comes up meanwhile is found; the next failure is then a first one again."""
        time = ManualTime()
        port = self.unusedPort()

        def pause(seconds: float) -> None:
            time.pause(seconds)
            lonely._address = ("127.0.0.1", self.port)

        lonely = self.build(port, clock=time.clock, pause=pause)
        lonely.connect()
        self.accept().close()
        self.untilHeard(lonely)
        lonely._address = ("127.0.0.1", port)
        lonely.connect()
        self.assertEqual(time.pauses, [0.010, 0.010])

    def test_noAnswer(self) -> None:
        """An attempt without an answer is a time-out."""
        time = ManualTime()
        # Nobody accepts, and the backlog is full: Linux then lets further attempts wait.
        full = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.addCleanup(full.close)
        for _ in range(4):
            waiting = socket.socket()
            self.addCleanup(waiting.close)
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        silent = self.build(
            full.getsockname()[1], connectTimeoutMs=50, clock=time.clock, pause=time.pause
        )
        self.assertRaises(TimedOutError, silent.connect)

    def test_notConnected(self) -> None:
        """Without a connection nothing can be written or read."""
        self.assertRaises(BrokerConnectionError, self.socket.write, b"x", 1000)
        self.assertRaises(BrokerConnectionError, self.socket.read, 1000)


class ExchangeTests(SocketCase):
    """Requests and answers."""

    def test_exchange(self) -> None:
        """
        What is written arrives; what is answered is read, without its size field, however it is cut
        up.
        """
        far = self.connected()
        for answer in (b"a", b"answer" * 100_000):
            self.socket.write(b"question", 1000)
            self.assertEqual(far.read(8), b"question")
            reading = self.start(self.socket.read, 60_000)
            framed = struct.pack(">i", len(answer)) + answer
            for start in (0, 1, 3, 4):
                far.write(framed[start : {0: 1, 1: 3, 3: 4, 4: None}[start]])
            self.assertEqual(self.result(reading), answer)

    def test_large(self) -> None:
        """A large request is written while the broker reads."""
        far = self.connected()
        writing = self.start(self.socket.write, MUCH, 60_000)
        self.assertEqual(len(far.read(len(MUCH))), len(MUCH))
        self.result(writing)

    def test_brokerTakesNothing(self) -> None:
        """
        A broker that does not read is given up; the connection is dropped, since half a request is
        out.
        """
        self.connected()
        self.assertIn(
            "took nothing for 20 ms",
            str(self.assertRaises(TimedOutError, self.socket.write, MUCH, 20)),
        )
        self.assertFalse(self.socket.isConnected)

    def test_noAnswer(self) -> None:
        """
        An answer that does not come, or not all of it, is given up; the connection is dropped,
        since it may still come.
        """
        for some in (b"", b"\0\0\0\5ab"):
            far = self.connected()
            far.write(some)
            self.assertIn(
                "within 20 ms", str(self.assertRaises(TimedOutError, self.socket.read, 20))
            )
            self.assertFalse(self.socket.isConnected)

    def test_noTimeLeft(self) -> None:
        """Without time left there is no answer."""
        self.connected()
        self.assertRaises(TimedOutError, self.socket.read, 0)

    def test_ended(self) -> None:
        """
        A connection that is ended, or reset, before the answer is whole, is lost; an end may be a
        refusal, and the text says so.
        """
        far = self.connected()
        far.write(b"\0\0\0\5ab")
        far.close()
        self.assertIn(
            "refuses", str(self.assertRaises(BrokerConnectionError, self.socket.read, 60_000))
        )
        far = self.connected()
        self.socket.write(b"question", 1000)
        far.reset()
        self.assertIn(
            "was lost", str(self.assertRaises(BrokerConnectionError, self.socket.read, 60_000))
        )
        self.assertFalse(self.socket.isConnected)

    def test_lostWriting(self) -> None:
        """So it is when that happens while a request is written."""
        far = self.connected()
        writing = self.start(self.socket.write, MUCH, 60_000)
        far.read(1)
        far.reset()
        self.assertIn("was lost", self.failure(writing, BrokerConnectionError))
        self.assertFalse(self.socket.isConnected)

    def test_tooLarge(self) -> None:
        """An answer that announces more than is accepted is refused when its size is there."""
        self.socket = self.build(self.port, responseSizeMax=10)
        far = self.connected()
        far.write(struct.pack(">i", 11))
        self.assertRaises(FrameSizeError, self.socket.read, 60_000)
        self.assertFalse(self.socket.isConnected)

    def test_tooMuch(self) -> None:
        """Bytes behind the answer were not asked for."""
        far = self.connected()
        far.write(b"\0\0\0\1ab")
        self.assertRaises(WireError, self.socket.read, 60_000)
        self.assertFalse(self.socket.isConnected)

    def test_interrupted(self) -> None:
        """An interrupt drops the connection: nobody knows what is half done."""

        class InterruptError(BaseException):
            pass

        def interrupt(_seconds: float | None = None) -> None:
            raise InterruptError

        for call in (lambda: self.socket.write(b"x", 1000), lambda: self.socket.read(1000)):
            self.connected()
            live = self.socket._socket
            assert live is not None
            self.socket._socket = type(
                "Interrupted", (), {"settimeout": lambda *_args: interrupt(), "close": live.close}
            )()
            self.assertRaises(InterruptError, call)
            self.assertFalse(self.socket.isConnected)


class CloseTests(SocketCase):
    """The end."""

    def test_orderly(self) -> None:
        """
        Our side is ended first; when the broker has read that and ended its own, it is closed. What
        it still sends is not read.
        """
        far = self.connected()
        self.socket.write(b"last words", 1000)
        closing = self.start(self.socket.close, 60_000)
        self.assertEqual(far.read(100), b"last words")
        far.write(b"noted")
        far.close()
        self.result(closing)
        self.assertFalse(self.socket.isConnected)

    def test_bounded(self) -> None:
        """A broker that does not end its side is not waited for."""
        self.connected()
        self.assertIn("within 20 ms", str(self.assertRaises(TimedOutError, self.socket.close, 20)))
        self.assertFalse(self.socket.isConnected)

    def test_reset(self) -> None:
        """A reset is no orderly end."""
        far = self.connected()
        self.socket.write(b"unread", 1000)
        closing = self.start(self.socket.close, 60_000)
        far.reset()
        self.failure(closing, BrokerConnectionError)

    def test_notConnected(self) -> None:
        """There is nothing to close, and to drop."""
        self.socket.close()
        self.socket.drop()


class TlsTests(SocketCase):
    """The same with TLS."""

    def setUp(self) -> None:
        super().setUp()
        self.authority = Authority(self.mktemp())
        self.socket = self.secure("127.0.0.1", self.port)

    def secure(self, host: str, port: int, **arguments: object) -> BrokerSocket:
        """The way to a broker that shows a certificate of our authority."""
        made = BrokerSocket(
            *endpoint(f"tls:{host}:{port}:trustRoots={self.authority.trustFolder()}"),
            random=lambda: 0.0,
            **arguments,  # type: ignore[arg-type]
        )
        self.addCleanup(made.drop)
        return made

    def served(
        self, authority: Authority | None = None, near: BrokerSocket | None = None
    ) -> Connection:
        """Connect, to who has a certificate of an authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain((authority or self.authority).issue("broker"))
        connecting = self.start((near or self.socket).connect)
        accepted = self.listener.accept()[0]
        accepted.settimeout(PATIENCE_SECONDS)
        self.addCleanup(accepted.close)
        far = Connection(context.wrap_socket(accepted, server_side=True))
        self.addCleanup(far.close)
        self.result(connecting)
        return far

    def test_exchange(self) -> None:
        """Requests and answers, small and large."""
        far = self.served()
        for size in (1, 5 << 20):
            writing = self.start(self.socket.write, b"q" * size, 60_000)
            self.assertEqual(far.read(size), b"q" * size)
            self.result(writing)
            reading = self.start(self.socket.read, 60_000)
            far.write(struct.pack(">i", size) + b"a" * size)
            self.assertEqual(self.result(reading), b"a" * size)

    def test_idle(self) -> None:
        """
        What TLS sends by itself behind the handshake does not make a connection look dead; its end,
        and what nobody asked for, do.
        """
        far = self.served()
        self.untilHeard(self.socket)  # a ticket for the next session
        self.socket.connect()
        self.assertEqual(self.socket.serial, 1)
        far.close()
        self.untilHeard(self.socket)
        far = self.served()
        self.assertEqual(self.socket.serial, 2)
        far.write(b"surprise")
        while self.socket._isAlive(self.socket._live()):
            pass
        self.served()
        self.assertEqual(self.socket.serial, 3)

    def test_foreignAuthority(self) -> None:
        """A broker that somebody else vouches for is not spoken to, nor tried again."""
        time = ManualTime()
        near = self.secure(
            "127.0.0.1",
            self.port,
            connectTimeoutMs=PATIENCE_SECONDS * 1000,
            clock=time.clock,
            pause=time.pause,
        )
        refused = self.start(near.connect)
        accepted = self.accept()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(Authority(self.mktemp(), "somebody else").issue("broker"))
        self.assertRaises(OSError, context.wrap_socket, accepted.socket, server_side=True)
        self.assertIn(
            "has not shown that it is what it should be",
            self.failure(refused, BrokerConnectionError),
        )
        self.assertEqual((time.pauses, near.isConnected), ([], False))

    def test_close(self) -> None:
        """
        Both say that they are done; a broker that does not leaves it unknown what it has taken.
        """
        far = self.served()
        self.socket.write(b"last", 1000)
        closing = self.start(self.socket.close, 60_000)
        self.assertEqual(far.read(5), b"last")
        far.socket.unwrap()  # type: ignore[attr-defined]
        self.result(closing)
        self.assertFalse(self.socket.isConnected)
        far = self.served()
        closing = self.start(self.socket.close, 60_000)
        far.reset()
        self.failure(closing, BrokerConnectionError)
        self.served()
        self.assertRaises(TimedOutError, self.socket.close, 20)

    def test_silent(self) -> None:
        """A handshake that does not come to its end is a time-out."""
        near = self.secure("127.0.0.1", self.port, connectTimeoutMs=50)
        self.assertRaises(TimedOutError, near.connect)
        self.assertFalse(near.isConnected)
