"""
A client on a real reactor that knows frames and nothing else; and a certificate for brokers that
speak TLS.
"""

from __future__ import annotations

import datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure

from pylogbroker.protocol.framing import FrameDecoder


class Client(Protocol):
    """
    @ivar receivedSize: bytes that have come.
    @ivar closed: fires when the connection has ended.
    """

    transport: Any

    def __init__(self) -> None:
        self.receivedSize = 0
        self.closed: Deferred[None] = Deferred()
        self._decoder = FrameDecoder(2**31 - 1)
        self._waiting: list[Deferred[bytes]] = []

    def send(self, *frames: bytes) -> None:
        """Send at once."""
        self.transport.write(b"".join(frames))

    def answer(self) -> Deferred[bytes]:
        """The next answer, without its size field."""
        waiting: Deferred[bytes] = Deferred()
        self._waiting.append(waiting)
        self._give()
        return waiting

    def _give(self) -> None:
        while self._waiting and (frame := self._decoder.take()) is not None:
            self._waiting.pop(0).callback(frame)

    def dataReceived(self, data: bytes) -> None:
        self.receivedSize += len(data)
        self._decoder.feed(data)
        self._give()

    def abort(self) -> Deferred[None]:
        """Cut the connection, if it is not over; fires when it is."""
        if not self.closed.called:
            self.transport.abortConnection()
        return self.closed

    def connectionLost(self, reason: Failure | None = None) -> None:
        self.closed.callback(None)


async def connect(case: Any, endpoint: str) -> Client:
    """
    Connect a client, which is closed at the end of the test.

    @param endpoint: a client endpoint string.
    """
    client = Client()
    await connectProtocol(clientFromString(reactor, endpoint), client)
    case.addCleanup(client.abort)
    return client


def makeCertificate(directory: Path) -> tuple[Path, Path]:
    """
    A self-signed certificate for 127.0.0.1.

    @return: the files of the key and of the certificate.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    directory.mkdir(parents=True, exist_ok=True)
    keyPath, certificatePath = directory / "key.pem", directory / "certificate.pem"
    keyPath.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    certificatePath.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return keyPath, certificatePath
