"""
Mutations of requests that browsers and scrapers send: the same ones for the same seed.

Some are changes of bytes; more of them are changes of what HTTP is made of: words, header lines,
the values of a query, bodies that nobody wants.
"""

from __future__ import annotations

import re
from random import Random
from urllib.parse import quote_from_bytes

from tests.fuzz.mutation import ODD_NUMBERS, Mutator

SIZE_MAX = 65_536
PATHS = (
    "/",
    "/console.css",
    "/console.js",
    "/chart.js",
    "/icon.svg",
    "/metrics",
    "/api/state",
    "/api/groups",
    "/api/tasks",
    "/tasks",
)
MESSAGES = "/api/messages?topic=probe&broker=0&partition=0"
METHODS = (
    "GET",
    "GET",
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PATCH",
    "PRI",
    "get",
    "",
)
HEADERS = (
    b"Host: localhost",
    b"Host: 127.0.0.1:8067",
    b"Host: [::1]",
    b"Host: evil.example",
    b"Accept: */*",
    b"Accept-Encoding: gzip, deflate, br",
    b"Connection: keep-alive",
    b"Connection: close",
    b"Connection: Upgrade, HTTP2-Settings",
    b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    b"Sec-WebSocket-Version: 13",
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 1_0",
    b"Content-Length : 3",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked, chunked",
    b"Expect: 100-continue",
    b"Range: bytes=0-,5-,-1",
    b"If-None-Match: *",
    b"If-Modified-Since: yesterday",
    b"Cookie: a=b; c",
    b"Content-Type: multipart/form-data; boundary=x",
    b"Content-Type: application/x-www-form-urlencoded",
    b"Origin: null",
    b"X-Forwarded-Host: localhost",
    b"Authorization: Basic !!!",
    b" folded: line",
    b"no colon",
    b": no name",
    b"\x00: \xff",
    b"Te\x0bst: \x0c",
)
WORDS = (
    b"",
    b" ",
    b"\t",
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\0",
    b"%",
    b"%0",
    b"%00",
    b"%ff",
    b"%zz",
    b"..",
    b"../",
    b"//",
    b"/./",
    b"*",
    b"?",
    b"&&",
    b"=",
    b"#",
    b";",
    b"+",
    b"HTTP/1.0",
    b"HTTP/1.1",
    b"HTTP/2.0",
    b"HTTP/9.9",
    b"HTTP/",
    b"http://localhost/",
    b"localhost:0",
    b"0",
    b"-1",
    b"1e9",
    b"0x10",
    b"last",
    "²".encode(),
    "ä".encode(),
    b"\xed\xa0\x80",
    b"<script>",
    b"probe",
    b"offset",
    b"count",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"7fffffffffffffff\r\n",
)
_JOINT = re.compile(rb"([ /?&=:,\r\n]+)")
_QUERY_NAMES = ("topic", "broker", "partition", "offset", "count", "nonsense")


def samples() -> list[bytes]:
    """What is asked for when nobody means harm."""
    found = [f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n" for path in PATHS]
    found += [
        f"GET {MESSAGES}&offset={offset}&count={count} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        for offset, count in ((0, 1), (22, 5), ("last", 100))
    ]
    found += [
        f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n" for path in ("/", "/api/state", MESSAGES)
    ]
    found.append("GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
    found.append("POST /api/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello")
    return [text.encode("ascii") for text in found]


class HttpMutator:
    """A source of mutations."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._samples = samples()
        self._bytes = Mutator(seed, self._samples)

    def next(self) -> bytes:
        """One more mutation: the bytes to send."""
        random = self._random
        way = random.random()
        if way < 0.25:
            data = self._bytes.garble(random.choice(self._samples))
        elif way < 0.50:
            data = self._words(random.choice(self._samples))
        elif way < 0.75:
            data = self._request(self._query())
        elif way < 0.96:
            data = self._request(random.choice((*PATHS, MESSAGES)).encode("ascii"))
        else:
            data = self._bytes.garble(random.randbytes(random.randrange(64)))
        return data[:SIZE_MAX]

    def _words(self, data: bytes) -> bytes:
        """A request with one to three of its words, or what stands between them, exchanged."""
        random = self._random
        pieces = _JOINT.split(data)
        for _ in range(random.choice((1, 1, 2, 3))):
            pieces[random.randrange(len(pieces))] = random.choice(WORDS) * random.choice(
                (1, 1, 1, 2, 5000)
            )
        return b"".join(pieces)

    def _query(self) -> bytes:
        """A look at messages, whose values are odd."""
        random = self._random
        values = {"topic": b"probe", "broker": b"0", "partition": b"0", "offset": b"0"}
        for _ in range(random.choice((1, 1, 2, 3))):
            value = random.choice(
                (
                    b"%d" % (random.choice(ODD_NUMBERS) * random.choice((1, -1))),
                    random.choice(WORDS),
                    random.randbytes(random.randrange(9)),
                )
            )
            values[random.choice(_QUERY_NAMES)] = value
        quoted = b"&".join(
            name.encode("ascii") + b"=" + quote_from_bytes(value).encode("ascii")
            for name, value in values.items()
        )
        return b"/api/messages?" + quoted

    def _request(self, path: bytes) -> bytes:
        """For a path, with odd headers, and sometimes with a body that no header tells of."""
        random = self._random
        lines = [
            random.choice(METHODS).encode("ascii")
            + b" "
            + path
            + b" HTTP/1."
            + random.choice((b"1", b"1", b"1", b"0", b"7"))
        ]
        lines += random.choices(HEADERS, k=random.choice((0, 1, 2, 3, 8, 600)))
        if random.random() < 0.7:
            lines.insert(random.randrange(1, len(lines) + 1), b"Host: localhost")
        return (
            b"\r\n".join(lines)
            + b"\r\n\r\n"
            + (random.choice(WORDS) if random.random() < 0.2 else b"")
        )
