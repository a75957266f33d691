"""
Mutations of what TLS sends below the requests, and of other first words at its port: the same ones
for the same seed.

What they begin with is recorded when they are made: the hello of some clients, and records that
would come behind it. With one seed the places of the changes are the same each time; the clients'
own chance is not.
"""

from __future__ import annotations

import ssl
from random import Random

from tests.fuzz import golden, httpmutation
from tests.fuzz.mutation import SIZE_MAX, Mutator

_HEAD_SIZE = 5
RECORDS = (
    b"\x14\x03\x03\x00\x01\x01",
    b"\x15\x03\x03\x00\x02\x01\x00",
    b"\x15\x03\x03\x00\x02\x02\x28",
    b"\x16\x03\x03\x00\x04\x00\x00\x00\x00",
    b"\x16\x03\x03\x00\x04\x0b\x00\x00\x00",
    b"\x17\x03\x03\x00\x20" + bytes(range(32)),
    b"\x18\x03\x03\x00\x03\x01\x40\x00",
    b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + bytes(37),
)
"""Change of the cipher, alerts, empty handshakes, data, a heartbeat, and a hello of SSL 2."""


def hello(context: ssl.SSLContext, name: str | None) -> bytes:
    """A client's first words."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def hellos() -> list[bytes]:
    """The first words of clients of several kinds."""
    found = []
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        for protocols, name in (([], None), (["h2", "http/1.1"], "localhost")):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.minimum_version = context.maximum_version = version
            context.set_alpn_protocols(protocols)
            found.append(hello(context, name))
    return found


class TlsMutator:
    """A source of mutations."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._hellos = hellos()
        self._others = [data for _, data in golden.requests()] + httpmutation.samples()
        self._bytes = Mutator(seed, [*self._hellos, *RECORDS])

    def next(self) -> bytes:
        """One more mutation: the bytes to send."""
        random = self._random
        way = random.random()
        if way < 0.35:
            data = self._bytes.garble(random.choice(self._hellos))
        elif way < 0.65:
            data = self._inside(random.choice(self._hellos))
        elif way < 0.80:
            data = (
                random.choice((b"", random.choice(self._hellos)))
                + self._inside(random.choice(RECORDS))
                + random.choice(RECORDS)
            )
        elif way < 0.90:
            data = random.choice(self._others)
        else:
            data = self._bytes.garble(random.randbytes(random.randrange(64)))
        return data[:SIZE_MAX]

    def _inside(self, record: bytes) -> bytes:
        """
        A record that is changed behind its head, whose size is put right; of a handshake the size
        inside mostly, too.
        """
        body = self._bytes.garble(record[_HEAD_SIZE:])
        if record[0] == 0x16 and len(body) >= 4 and self._random.random() < 0.8:
            body = body[:1] + (len(body) - 4).to_bytes(3, "big") + body[4:]
        return record[:3] + len(body).to_bytes(2, "big") + body
