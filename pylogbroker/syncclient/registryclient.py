"""
A schema registry's client for threads and for Spark's workers, in a module of its own, since
applications import it.

Ids last for ever, so the schema of an id and the id of a schema in a subject are cached, within a
limit; nothing else is. A request without an answer is sent again, to the next address if there are
several: all requests are safe to repeat.
"""

from __future__ import annotations

import ssl
from http.client import HTTP_PORT, HTTPS_PORT, HTTPConnection, HTTPException, HTTPSConnection
from threading import Lock
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from pylogbroker.errors import BrokerConnectionError, ConfigurationError, describeError
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
from pylogbroker.syncclient.connection import TIMEOUT_MS

T = TypeVar("T")


class RegistryClient:
    """
    A client of our schema registry, or another one with the same routes. Thread-safe.

    All methods raise L{pylogbroker.errors.BrokerConnectionError} when no address answers;
    L{pylogbroker.errors.WireError} when the answer is not a registry's;
    L{pylogbroker.errors.RegistryRefusalError} when it refuses, and
    L{pylogbroker.errors.SchemaNotFoundError} when it has no such schema.
    """

    def __init__(
        self,
        url: str,
        *,
        timeoutMs: float = TIMEOUT_MS,
        context: ssl.SSLContext | None = None,
        schemaCountMax: int = SCHEMA_COUNT_MAX,
    ) -> None:
        """
        @param url: C{http://HOST:PORT} or C{https://…}; several, separated by commas, for
            registries that know the same.
        @param timeoutMs: for connecting, and for each piece of an answer.
        @param context: for C{https}: whom to trust, and own certificates; by default the system's.
        @param schemaCountMax: schemas in the cache; L{CACHED_SIZE_MAX} bounds it, too.
        @raise ConfigurationError: C{url} is not valid.
        """
        self._bases = [_base(each.strip()) for each in url.split(",")]
        self._timeoutSeconds = timeoutMs / 1000
        self._context = context
        self._texts: LruCache[int, str] = LruCache(schemaCountMax, CACHED_SIZE_MAX)
        self._ids: LruCache[tuple[str, str], int] = LruCache(schemaCountMax, CACHED_SIZE_MAX)
        self._lock = Lock()

    def schema(self, schemaId: int) -> str:
        """The text of a schema."""
        with self._lock:
            text = self._texts.get(schemaId)
        if text is None:
            text = self.ask(schemaCall(schemaId))
            with self._lock:
                self._texts.put(schemaId, text, len(text))
        return text

    def register(self, subject: str, text: str) -> int:
        """
        The id of a schema, which becomes the subject's next version if it is new. Refused with code
        409 if it is incompatible.
        """
        with self._lock:
            schemaId = self._ids.get((subject, text))
        if schemaId is None:
            schemaId = self.ask(registerCall(subject, text))
            with self._lock:
                self._ids.put((subject, text), schemaId, len(text))
        return schemaId

    def find(self, subject: str, text: str) -> SchemaVersion:
        """Id and version of a registered schema."""
        return self.ask(findCall(subject, text))

    def version(self, subject: str, version: int | None = None) -> SchemaVersion:
        """A version of a subject; by default the latest."""
        return self.ask(versionCall(subject, version))

    def versions(self, subject: str) -> list[int]:
        """The versions of a subject."""
        return self.ask(versionsCall(subject))

    def subjects(self) -> list[str]:
        """All subjects."""
        return self.ask(subjectsCall())

    def incompatibilities(self, subject: str, text: str) -> list[str]:
        """What makes a schema incompatible as the subject's next version; C{[]}: nothing."""
        return self.ask(compatibilityCall(subject, text))

    def ask(self, call: RegistryCall[T]) -> T:
        """Send any request."""
        problems: list[str] = []
        for base in self._bases:
            try:
                status, body = self._exchange(base, call)
            except (OSError, HTTPException) as error:
                problem = describeError(error)
            else:
                isLast = len(problems) + 1 == len(self._bases)
                if isLast or status not in (502, 503, 504):
                    return call.decode(status, body)
                problem = f"HTTP {status}"
            problems.append(f"{base.hostname}:{_portOf(base)}: {problem}")
        raise BrokerConnectionError(f"no registry answers: {'; '.join(problems)}")

    def _exchange(self, base: SplitResult, call: RegistryCall[T]) -> tuple[int, bytes]:
        host, port, seconds = base.hostname or "", _portOf(base), self._timeoutSeconds
        if base.scheme == "https":
            connection: HTTPConnection = HTTPSConnection(
                host, port, timeout=seconds, context=self._context
            )
        else:
            connection = HTTPConnection(host, port, timeout=seconds)
        try:
            connection.request(
                call.method, base.path.rstrip("/") + call.path, call.body, call.headers
            )
            response = connection.getresponse()
            body = response.read(ANSWER_SIZE_MAX + 1)
            if len(body) > ANSWER_SIZE_MAX:
                raise HTTPException(f"an answer of more than {ANSWER_SIZE_MAX} bytes")
            return response.status, body
        finally:
            connection.close()


def _base(url: str) -> SplitResult:
    try:
        base = urlsplit(url)
        _port = base.port
    except ValueError as error:
        raise ConfigurationError(f"{url!r} is no registry's address: {error}") from error
    if (
        base.scheme not in ("http", "https")
        or not base.hostname
        or base.query
        or base.fragment
        or base.username
    ):
        raise ConfigurationError(f"{url!r} is no registry's address; http://HOST:PORT is one")
    return base


def _portOf(base: SplitResult) -> int:
    return base.port or (HTTPS_PORT if base.scheme == "https" else HTTP_PORT)
