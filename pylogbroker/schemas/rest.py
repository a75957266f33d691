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


def _path(*pieces: str | int) -> str:
    return "".join(f"/{quote(str(piece), safe='')}" for piece in pieces)


def _asBody(text: str) -> bytes:
    return json.dumps({"schema": text}).encode()


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
    return RegistryCall(
        "GET", _path("schemas", "ids", schemaId), None, lambda answer: _text(answer["schema"])
    )


def registerCall(subject: str, text: str) -> RegistryCall[int]:
    """The id of a schema, which is registered if it is new."""
    return RegistryCall(
        "POST",
        _path("subjects", subject, "versions"),
        _asBody(text),
        lambda answer: int(answer["id"]),
    )


def findCall(subject: str, text: str) -> RegistryCall[SchemaVersion]:
    """A registered schema, by its text."""
    return RegistryCall("POST", _path("subjects", subject), _asBody(text), _registered)


def versionCall(subject: str, version: int | None = None) -> RegistryCall[SchemaVersion]:
    """A version of a subject; L{None} for the latest."""
    return RegistryCall(
        "GET",
        _path("subjects", subject, "versions", "latest" if version is None else version),
        None,
        _registered,
    )


def versionsCall(subject: str) -> RegistryCall[list[int]]:
    """The versions of a subject."""
    return RegistryCall(
        "GET",
        _path("subjects", subject, "versions"),
        None,
        lambda answer: [int(version) for version in answer],
    )


def subjectsCall() -> RegistryCall[list[str]]:
    """All subjects."""
    return RegistryCall(
        "GET", _path("subjects"), None, lambda answer: [_text(subject) for subject in answer]
    )


def compatibilityCall(subject: str, text: str) -> RegistryCall[list[str]]:
    """Reasons why a schema may not become the next version of a subject; C{[]}: it may."""

    def read(answer: Any) -> list[str]:
        return (
            []
            if answer["is_compatible"]
            else [_text(each) for each in answer.get("messages", ())] or ["incompatible"]
        )

    return RegistryCall(
        "POST",
        _path("compatibility", "subjects", subject, "versions") + "?verbose=true",
        _asBody(text),
        read,
    )
