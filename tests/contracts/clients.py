"""
The two kinds of low-level client behind one face, so that one suite of promises can hold both to
their word.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from pylogbroker import syncclient
from pylogbroker.client.connection import ConnectionLimits
from pylogbroker.client.simpleconsumer import SimpleConsumer
from pylogbroker.client.syncproducer import SyncProducer


class Case(Protocol):
    """What a test case gives."""

    def addCleanup(self, call: Callable[..., object], *args: Any) -> None: ...


class Clients(Protocol):
    """Makes clients whose methods are awaited."""

    def consumer(self, host: str, port: int, **arguments: Any) -> Any:
        """A simple consumer."""
        ...

    def producer(self, host: str, port: int, **arguments: Any) -> Any:
        """A sync producer."""
        ...


class Awaited:
    """An object whose methods are called so that their results can be awaited."""

    def __init__(self, inner: object, call: Callable[..., Awaitable[Any]]) -> None:
        self._inner = inner
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._inner, name)
        return lambda *args, **kwargs: self._call(method, *args, **kwargs)


class TwistedClients:
    """Clients on the test's reactor."""

    def __init__(self, reactor: Any, case: Case) -> None:
        self._reactor = reactor
        self._case = case

    def _awaited(self, client: Any) -> Awaited:
        self._case.addCleanup(client.close)
        return Awaited(client, maybeDeferred)

    def consumer(
        self, host: str, port: int, responseSizeMax: int | None = None, **arguments: Any
    ) -> Awaited:
        """A simple consumer."""
        if responseSizeMax is not None:
            arguments["limits"] = ConnectionLimits(responseSizeMax=responseSizeMax)
        return self._awaited(SimpleConsumer(self._reactor, f"{host}:{port}", **arguments))

    def producer(self, host: str, port: int, **arguments: Any) -> Awaited:
        """A sync producer."""
        return self._awaited(SyncProducer(self._reactor, f"{host}:{port}", **arguments))


class BlockingClients:
    """Clients on threads."""

    def __init__(self, reactor: Any, case: Case) -> None:
        self._reactor = reactor
        self._case = case
        self._threads = ThreadPool(0, 4)
        self._threads.start()
        case.addCleanup(self._threads.stop)

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Deferred[Any]:
        return deferToThreadPool(self._reactor, self._threads, method, *args, **kwargs)

    def _awaited(self, client: Any) -> Awaited:
        self._case.addCleanup(self._call, client.close)
        return Awaited(client, self._call)

    def consumer(self, host: str, port: int, **arguments: Any) -> Awaited:
        """A simple consumer."""
        return self._awaited(syncclient.SimpleConsumer(host, port, **arguments))

    def producer(self, host: str, port: int, **arguments: Any) -> Awaited:
        """A sync producer."""
        return self._awaited(syncclient.SyncProducer(host, port, **arguments))


async def failure(awaited: Awaitable[object], kind: type[BaseException]) -> BaseException:
    """What it fails with."""
    try:
        result = await awaited
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} expected, and it came to {result!r}")
