"""
HTTP as bytes, for tests of the site: requests are written by hand, so that the wrong ones can be,
too.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol
from twisted.internet.protocol import Protocol


class Answer(NamedTuple):
    """
    @ivar headers: by name in lower case.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def request(path: str, method: str = "GET", host: str = "localhost", more: str = "") -> bytes:
    """@param more: header lines, each with its end."""
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode("latin-1")


def parse(data: bytes) -> tuple[Answer, bytes]:
    """The first answer in what has come, and the rest."""
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    size = int(headers.get("content-length", "0"))
    return Answer(int(first.split(" ")[1]), headers, rest[:size]), rest[size:]


class _Collector(Protocol):
    """All that comes until the other end closes."""

    def __init__(self) -> None:
        self.received = b""
        self.over: Deferred[bytes] = Deferred()

    def dataReceived(self, data: bytes) -> None:
        self.received += data

    def connectionLost(self, reason: Any = None) -> None:
        self.over.callback(self.received)


async def get(port: int, path: str, more: str = "") -> Answer:
    """Ask a site on the loopback interface."""
    collector = _Collector()
    await connectProtocol(clientFromString(reactor, f"tcp:127.0.0.1:{port}"), collector)
    assert collector.transport is not None
    collector.transport.write(
        request(path, host=f"127.0.0.1:{port}", more=f"Connection: close\r\n{more}")
    )
    return parse(await collector.over)[0]


def figures(text: bytes) -> dict[str, float]:
    """What a scrape has, by name with labels."""
    return {
        name: float(value)
        for name, _, value in (
            line.rpartition(" ") for line in text.decode().splitlines() if not line.startswith("#")
        )
    }
