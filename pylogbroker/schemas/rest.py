"""
Requests to a schema registry and the decoding of its answers, as values and bytes. The clients for
threads and for Twisted share this module.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pylogbroker.errors import RegistryRefusalError, SchemaNotFoundError, WireError
from pylogbroker.schemas.state import SCHEMA_NOT_FOUND, SchemaVersion

T = TypeVar("T")

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
ANSWER_SIZE_MAX = 16 << 20
"""Bytes of an answer."""

CACHED_SIZE_MAX = 32 << 20
"""Characters of the schemas in a client's cache. A registry may send large ones."""


@dataclass(frozen=True, slots=True)
class RegistryCall(Generic[T]):
    """
    A request to a registry.

    @ivar path: with the query.
    @ivar body: of the request; L{None} for none.
    @ivar read: makes the result of the answer's JSON; raises L{KeyError}, L{TypeError},
        L{ValueError} or L{OverflowError} if it cannot.
    """

    method: str
    path: str
    body: bytes | None
    read: Callable[[Any], T]

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Accept": MEDIA_TYPE}
        return headers if self.body is None else headers | {"Content-Type": MEDIA_TYPE}

    def decode(self, status: int, body: bytes) -> T:
        """
        @param status: of HTTP.
        @raise SchemaNotFoundError: the registry has no such schema.
        @raise RegistryRefusalError: the registry refuses for another reason; the text is its own.
        @raise WireError: the answer is not a registry's.
        """
        try:
            answer = json.loads(body)
            if 200 <= status < 300:
                return self.read(answer)
            code, reason = int(answer["error_code"]), str(answer["message"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise WireError(
                f"{self.method} {self.path}: not a registry's answer: HTTP {status}, {body[:200]!r}"
            ) from error
        raise (
            SchemaNotFoundError(reason)
            if code == SCHEMA_NOT_FOUND
            else RegistryRefusalError(code, reason)
        )


def _call(
    read: Callable[[Any], T], *path: str | int, text: str | None = None, query: str = ""
) -> RegistryCall[T]:
    """A request for C{path}; with C{text}, which is a schema, it is a POST."""
    url = "".join(f"/{quote(str(piece), safe='')}" for piece in path) + query
    if text is None:
        return RegistryCall("GET", url, None, read)
    return RegistryCall("POST", url, json.dumps({"schema": text}).encode(), read)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(type(value))
    return value


def _registered(answer: Any) -> SchemaVersion:
    return SchemaVersion(
        _text(answer["subject"]), int(answer["version"]), int(answer["id"]), _text(answer["schema"])
    )


def schemaCall(schemaId: int) -> RegistryCall[str]:
    """The text of a schema."""
    return _call(lambda answer: _text(answer["schema"]), "schemas", "ids", schemaId)


def registerCall(subject: str, text: str) -> RegistryCall[int]:
    """The id of a schema, which is registered if it is new."""
    return _call(lambda answer: int(answer["id"]), "subjects", subject, "versions", text=text)


def findCall(subject: str, text: str) -> RegistryCall[SchemaVersion]:
    """A registered schema, by its text."""
    return _call(_registered, "subjects", subject, text=text)


def versionCall(subject: str, version: int | None = None) -> RegistryCall[SchemaVersion]:
    """A version of a subject; L{None} for the latest."""
    number = "latest" if version is None else version
    return _call(_registered, "subjects", subject, "versions", number)


def versionsCall(subject: str) -> RegistryCall[list[int]]:
    """The versions of a subject."""
    return _call(lambda answer: list(map(int, answer)), "subjects", subject, "versions")


def subjectsCall() -> RegistryCall[list[str]]:
    """All subjects."""
    return _call(lambda answer: list(map(_text, answer)), "subjects")


def compatibilityCall(subject: str, text: str) -> RegistryCall[list[str]]:
    """Reasons why a schema may not become the next version of a subject; C{[]}: it may."""

    def read(answer: Any) -> list[str]:
        if answer["is_compatible"]:
            return []
        return list(map(_text, answer.get("messages", ()))) or ["incompatible"]

    path = "compatibility", "subjects", subject, "versions"
    return _call(read, *path, text=text, query="?verbose=true")
