"""
Pages of HTTP servers of ours, for commands. A module of its own, since metrics of any server and
the status of a topology's master are such.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from twisted.web.client import Agent, RequestTransmissionFailed, ResponseDone, ResponseFailed
from twisted.web.error import Error, SchemeNotSupported
from twisted.web.http import PotentialDataLoss

from pylogbroker.cli import CommandError

ANSWER_SIZE_MAX = 16 << 20
"""Bytes."""


class _Body(Protocol):
    """Collects the body of an answer."""

    def __init__(self, done: Deferred[bytes]) -> None:
        self._done = done
        self._data = bytearray()

    def dataReceived(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > ANSWER_SIZE_MAX and self.transport is not None:
            self.transport.abortConnection()  # type: ignore[attr-defined]

    def connectionLost(self, reason: Failure = Failure(ResponseDone())) -> None:  # noqa: B008 - Twisted's signature
        if len(self._data) > ANSWER_SIZE_MAX:
            self._done.errback(CommandError(f"the answer has more than {ANSWER_SIZE_MAX:,} bytes"))
        elif reason.check(ResponseDone, PotentialDataLoss):
            self._done.callback(bytes(self._data))
        else:
            self._done.errback(reason)


async def httpGet(reactor: Any, url: str, timeoutMs: int) -> str:
    """
    Get a page.

    @return: its text.
    @raise CommandError: there is no answer within the time-out, or it is another one than 200, or
        larger than L{ANSWER_SIZE_MAX}; names the URL.
    """

    async def ask() -> bytes:
        agent = Agent(reactor, connectTimeout=timeoutMs / 1000)
        response: Any = await agent.request(b"GET", url.encode())
        if response.code != 200:
            raise CommandError(
                f"{url}: the answer is {response.code} {response.phrase.decode('ascii', 'replace')}"
            )
        done: Deferred[bytes] = Deferred()
        response.deliverBody(_Body(done))
        return await done

    def late(_result: object, _seconds: float) -> None:
        raise CommandError(f"{url}: no answer within {timeoutMs} ms")

    try:
        return (
            await Deferred.fromCoroutine(ask()).addTimeout(timeoutMs / 1000, reactor, late) or b""
        ).decode("utf-8", "replace")
    except (RequestTransmissionFailed, ResponseFailed) as error:
        raise CommandError(
            f"{url}: {'; '.join(str(reason.value) for reason in error.reasons)}"
        ) from error
    except (
        OSError,
        ConnectError,
        ConnectionClosed,
        Error,
        SchemeNotSupported,
        ValueError,
    ) as error:
        raise CommandError(f"{url}: {error}") from error
