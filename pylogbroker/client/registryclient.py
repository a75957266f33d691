"""
A schema registry's client on Twisted, in a module of its own, since applications import it;
L{pylogbroker.syncclient.registryclient} says what is cached.

Each request has its own connection, so there is nothing to close. Concurrent callers of one schema
share a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.web.client import Agent, ResponseDone, ResponseFailed
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgent, IBodyProducer
from zope.interface import implementer

from pylogbroker.client.brokerclient import TIMEOUT_MS
from pylogbroker.errors import (
    BackpressureError,
    BrokerConnectionError,
    PylogbrokerError,
    TimedOutError,
    WireError,
    describeError,
)
from pylogbroker.net.deferreds import Waiters
from pylogbroker.schemas.lru import SCHEMA_COUNT_MAX, LruCache
from pylogbroker.schemas.rest import (
    ANSWER_SIZE_MAX,
    CACHED_SIZE_MAX,
    RegistryCall,
    compatibilityCall,
    findCall,
    registerCall,
    schemaCall,
    subjectsCall,
    versionCall,
    versionsCall,
)
from pylogbroker.schemas.state import SchemaVersion

T = TypeVar("T")

ASKED_COUNT_MAX = 1_000
"""Requests that may be under way."""


@implementer(IBodyProducer)
class _Body:
    def __init__(self, data: bytes) -> None:
        self.length = len(data)
        self._data = data

    def startProducing(self, consumer: Any) -> Deferred[None]:
        consumer.write(self._data)
        return succeed(None)

    def stopProducing(self) -> None:
        """Do nothing: all is written."""

    pauseProducing = resumeProducing = stopProducing


class _Collecting(Protocol):
    def __init__(self) -> None:
        self._data = bytearray()
        self.over: Deferred[bytes] = Deferred(lambda _over: self._drop())

    def dataReceived(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > ANSWER_SIZE_MAX:
            self._drop()

    def _drop(self) -> None:
        self.transport.abortConnection()  # type: ignore[union-attr] # as twisted.web gives it

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self.over.called:
            return
        if len(self._data) > ANSWER_SIZE_MAX:
            self.over.errback(WireError(f"an answer of more than {ANSWER_SIZE_MAX} bytes"))
        elif reason.check(ResponseDone):
            self.over.callback(bytes(self._data))
        else:
            self.over.errback(reason)


class RegistryClient:
    """
    A client of our schema registry, or another one with the same routes.

    All L{Deferred}s fail with L{pylogbroker.errors.BrokerConnectionError} without an answer
    (L{pylogbroker.errors.TimedOutError}: in time); with L{pylogbroker.errors.WireError} when it is
    no registry; with L{pylogbroker.errors.RegistryRefusalError} when it refuses,
    L{pylogbroker.errors.SchemaNotFoundError} when it lacks the schema; with
    L{pylogbroker.errors.BackpressureError} when too many requests are under way.
    """

    def __init__(
        self,
        reactor: Any,
        url: str,
        *,
        timeoutMs: float = TIMEOUT_MS,
        agent: IAgent | None = None,
        schemaCountMax: int = SCHEMA_COUNT_MAX,
    ) -> None:
        """
        @param url: C{http://HOST:PORT} or C{https://…}.
        @param timeoutMs: for an answer, connecting included.
        @param agent: by default Twisted's, with the system's trusted authorities.
        @param schemaCountMax: schemas in the cache; L{CACHED_SIZE_MAX} bounds it, too.
        """
        self._reactor = reactor
        self._url = url.rstrip("/")
        self._timeoutMs = timeoutMs
        self._agent = Agent(reactor, connectTimeout=timeoutMs / 1000) if agent is None else agent
        self._texts: LruCache[int, str] = LruCache(schemaCountMax, CACHED_SIZE_MAX)
        self._ids: LruCache[tuple[str, str], int] = LruCache(schemaCountMax, CACHED_SIZE_MAX)
        self._asked: dict[int, Waiters[str]] = {}
        self._askedCount = 0

    def schema(self, schemaId: int) -> Deferred[str]:
        """The text of a schema; fires at once from the cache."""
        text = self._texts.get(schemaId)
        if text is not None:
            return succeed(text)
        isAsked = schemaId in self._asked
        answer = self._asked.setdefault(schemaId, Waiters()).wait()
        if not isAsked:
            self.ask(schemaCall(schemaId)).addBoth(self._found, schemaId)
        return answer

    def _found(self, result: str | Failure, schemaId: int) -> None:
        if not isinstance(result, Failure):
            self._texts.put(schemaId, result, len(result))
        self._asked.pop(schemaId).fire(result)

    def register(self, subject: str, text: str) -> Deferred[int]:
        """
        The id of a schema; a new one becomes the subject's next version. Fires at once from the
        cache.

        @return: fails with a L{pylogbroker.errors.RegistryRefusalError} of code 409 if it is
            incompatible.
        """
        schemaId = self._ids.get((subject, text))
        if schemaId is not None:
            return succeed(schemaId)

        def registered(found: int) -> int:
            self._ids.put((subject, text), found, len(text))
            return found

        return self.ask(registerCall(subject, text)).addCallback(registered)

    def find(self, subject: str, text: str) -> Deferred[SchemaVersion]:
        return self.ask(findCall(subject, text))

    def version(self, subject: str, version: int | None = None) -> Deferred[SchemaVersion]:
        """A version of a subject; by default the latest."""
        return self.ask(versionCall(subject, version))

    def versions(self, subject: str) -> Deferred[list[int]]:
        return self.ask(versionsCall(subject))

    def subjects(self) -> Deferred[list[str]]:
        return self.ask(subjectsCall())

    def incompatibilities(self, subject: str, text: str) -> Deferred[list[str]]:
        """Reasons why a schema cannot be the subject's next version; C{[]}: compatible."""
        return self.ask(compatibilityCall(subject, text))

    def apart(self, work: Callable[[], T]) -> Deferred[T]:
        """
        Run slow work, such as parsing a schema, on a reactor thread.

        @return: fires with the result of C{work}, or fails with its exception.
        """
        return deferToThreadPool(self._reactor, self._reactor.getThreadPool(), work)

    def ask(self, call: RegistryCall[T]) -> Deferred[T]:
        if self._askedCount >= ASKED_COUNT_MAX:
            return fail(
                BackpressureError(
                    f"{self._askedCount} questions to {self._url} are under way already"
                )
            )
        return Deferred.fromCoroutine(self._ask(call))

    async def _ask(self, call: RegistryCall[T]) -> T:
        status, body = await self.exchange(call.method, call.path, call.headers, call.body)
        return call.decode(status, body)

    async def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        """
        Send any request to the registry.

        @param path: with the query.
        @return: the status and the body of the answer, whatever they are.
        @raise BrokerConnectionError: there is no answer; L{TimedOutError}: in time.
        @raise WireError: the answer is too large.
        """
        self._askedCount += 1
        try:
            return await Deferred.fromCoroutine(
                self._exchange(method, path, headers, body)
            ).addTimeout(self._timeoutMs / 1000, self._reactor, self._late)
        except (PylogbrokerError, CancelledError):
            raise
        except Exception as error:  # twisted.web's and twisted.internet's, of many kinds
            raise BrokerConnectionError(f"{self._url} cannot be asked: {_reason(error)}") from error
        finally:
            self._askedCount -= 1

    def _late(self, _result: object, _seconds: float) -> tuple[int, bytes]:
        raise TimedOutError(f"{self._url} did not answer within {self._timeoutMs:.0f} ms")

    async def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        response = await self._agent.request(
            method.encode(),
            (self._url + path).encode(),
            Headers({name: [value] for name, value in headers.items()}),
            None if body is None else _Body(body),
        )
        collecting = _Collecting()
        response.deliverBody(collecting)
        return response.code, await collecting.over


def _reason(error: Exception) -> str:
    return (
        "; ".join(describeError(reason.value) for reason in error.reasons)
        if isinstance(error, ResponseFailed)
        else describeError(error)
    )
