"""
The HTTP API of the registry: the routes, codes and JSON of Confluent's registry, for Avro. A module
of its own, because the registry itself knows no HTTP.

Subjects are text from strangers: they arrive percent-encoded, may contain anything but control
characters, and leave as JSON. A change needs a JSON media type; otherwise a page of another site
could make a browser post one.

Rejected: Klein for the routes (decision 12).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from pylogbroker.errors import InvalidSchemaError, RegistryRefusalError
from pylogbroker.net.httpserver import HttpRequest, HttpResponse, HttpSite, jsonReply
from pylogbroker.schemaregistry.registry import INVALID_SCHEMA, NOT_ALLOWED, NOT_READY, Registry
from pylogbroker.schemas.logrecords import LEVELS, TRANSITIVE
from pylogbroker.schemas.rest import MEDIA_TYPE
from pylogbroker.schemas.state import (
    LEVEL_NOT_FOUND,
    MODE_NOT_FOUND,
    SCHEMA_NOT_FOUND,
    VERSION_NOT_FOUND,
    SchemaVersion,
)

T = TypeVar("T")

INVALID_VERSION = 42202
INVALID_LEVEL = 42203
INVALID_MODE = 42204
INVALID_SUBJECT = 42208
TOO_MANY = 429
NAME_SIZE_MAX = 1_024
"""Characters of a subject's name."""

_KINDS = frozenset((MEDIA_TYPE, "application/vnd.schemaregistry+json", "application/json"))
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_AVRO = "AVRO"
_MODE = {"mode": "READWRITE"}


class _Call(NamedTuple):
    """
    A request that matches a route.

    @ivar pieces: the decoded parts of the path that match a C{*}.
    """

    asked: HttpRequest
    pieces: tuple[str, ...]

    def flag(self, name: str) -> bool:
        return self.asked.query.get(name, "").lower() == "true"

    @property
    def isDeletedOnly(self) -> bool:
        return self.flag("deletedOnly") or self.flag("deleted_only")  # Java's and Python's clients

    def number(self, name: str, default: int) -> int:
        text = self.asked.query.get(name, str(default))
        if not re.fullmatch(r"-?[0-9]{1,9}", text):
            raise RegistryRefusalError(400, f"{name} must be a number, not {text[:40]!r}")
        return int(text)

    def page(self, found: list[T]) -> list[T]:
        """
        A part of a list: from C{offset} on, and at most C{limit} items unless that is negative.
        """
        rest, limit = found[max(0, self.number("offset", 0)) :], self.number("limit", -1)
        return rest if limit < 0 else rest[:limit]

    @property
    def subject(self) -> str:
        name = self.pieces[0]
        if not name or len(name) > NAME_SIZE_MAX or _CONTROLS.search(name):
            raise RegistryRefusalError(
                INVALID_SUBJECT,
                f"The specified subject is not a valid one: 1 to {NAME_SIZE_MAX} characters, none"
                " of them a control character",
            )
        return name

    @property
    def version(self) -> int | None:
        """L{None} for the latest."""
        text = self.pieces[1]
        if text in ("latest", "-1"):
            return None
        if not re.fullmatch(r"[0-9]{1,9}", text) or not int(text):
            raise RegistryRefusalError(
                INVALID_VERSION,
                f"The specified version '{text[:40]}' is not a valid version id: a number from 1"
                ' on, or "latest"',
            )
        return int(text)

    @property
    def schemaId(self) -> int:
        text = self.pieces[0]
        if not re.fullmatch(r"[0-9]{1,10}", text):
            raise RegistryRefusalError(
                SCHEMA_NOT_FOUND, f"Schema {text[:40]} not found: an id is a number"
            )
        return int(text)

    def json(self) -> dict[str, Any]:
        """The body, decoded."""
        if self.asked.kind not in _KINDS:
            raise RegistryRefusalError(
                415,
                f"The body must have the Content-Type {MEDIA_TYPE} or application/json, not"
                f" {self.asked.kind[:80]!r}",
            )
        try:
            value = json.loads(self.asked.body)
        except (ValueError, RecursionError) as error:
            raise RegistryRefusalError(400, f"The body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise RegistryRefusalError(400, "The body is not a JSON object")
        return value

    def newSchema(self) -> str:
        """The schema in the body, which gets the next id and version."""
        body = self.json()
        for name in ("id", "version"):
            if body.get(name) not in (None, 0, -1):
                raise RegistryRefusalError(
                    NOT_ALLOWED,
                    f"The registry assigns the {name} of a schema: there is no mode IMPORT",
                )
        return self.schema()

    def schema(self) -> str:
        """The schema in the body."""
        body = self.json()
        kind = body.get("schemaType") or _AVRO
        if kind != _AVRO:
            raise RegistryRefusalError(
                INVALID_SCHEMA, f"Schemas of type {str(kind)[:40]} are not supported; {_AVRO} is"
            )
        if body.get("references"):
            raise RegistryRefusalError(
                INVALID_SCHEMA,
                "References are not supported: put the referenced schemas into the schema",
            )
        for name in ("metadata", "ruleSet"):  # rules encrypt fields: never ignore them silently
            if body.get(name):
                raise RegistryRefusalError(
                    INVALID_SCHEMA,
                    f"{name} is not supported and would have no effect: leave it out",
                )
        text = body.get("schema")
        if not isinstance(text, str) or not text.strip():
            raise RegistryRefusalError(
                INVALID_SCHEMA, 'Empty schema: "schema" must be the schema\'s text'
            )
        return text


Route = Callable[[Registry, _Call], Any]


def _asJson(registered: SchemaVersion) -> dict[str, Any]:
    return {
        "subject": registered.subject,
        "version": registered.version,
        "id": registered.schemaId,
        "schema": registered.text,
    }


def _version(registry: Registry, call: _Call) -> SchemaVersion:
    return registry.state.version(call.subject, call.version, call.flag("deleted"))


def _subjects(registry: Registry, call: _Call) -> list[str]:
    prefix = call.asked.query.get("subjectPrefix", "")
    found = registry.state.subjects(call.flag("deleted") or call.isDeletedOnly)
    left = set(registry.state.subjects()) if call.isDeletedOnly else ()
    return call.page([name for name in found if name.startswith(prefix) and name not in left])


def _versions(registry: Registry, call: _Call) -> list[int]:
    found = registry.state.versions(call.subject, call.flag("deleted") or call.isDeletedOnly)
    left = (
        {number for number, _text in registry.state.earlier(call.subject)}
        if call.isDeletedOnly
        else ()
    )
    return call.page([number for number in found if number not in left])


async def _register(registry: Registry, call: _Call) -> dict[str, Any]:
    return {"id": await registry.register(call.subject, call.newSchema())}


async def _find(registry: Registry, call: _Call) -> dict[str, Any]:
    subject = call.subject
    _canonical, identity = await registry.canonicalize(call.schema())
    registry.state.versions(subject, call.flag("deleted"))
    found = registry.state.find(subject, identity, call.flag("deleted"))
    if found is None:
        raise RegistryRefusalError(SCHEMA_NOT_FOUND, "Schema not found")
    return _asJson(found)


async def _deleteSubject(registry: Registry, call: _Call) -> list[int]:
    return await registry.deleteSubject(call.subject, call.flag("permanent"))


async def _deleteVersion(registry: Registry, call: _Call) -> int:
    isPermanent = call.flag("permanent")
    number = call.version
    if number is None:
        number = registry.state.version(call.subject, None, isPermanent).version
    return await registry.deleteVersion(call.subject, number, isPermanent)


async def _schema(registry: Registry, call: _Call) -> dict[str, Any]:
    return {"schema": await registry.schema(call.schemaId)}


async def _schemaText(registry: Registry, call: _Call) -> Any:
    return json.loads(await registry.schema(call.schemaId))


def _usages(registry: Registry, call: _Call) -> list[tuple[str, int]]:
    wanted = call.asked.query.get("subject")
    return [
        usage
        for usage in registry.state.usagesOf(call.schemaId, call.flag("deleted"))
        if wanted in (None, usage[0])
    ]


def _schemaVersions(registry: Registry, call: _Call) -> list[dict[str, Any]]:
    return [
        {"subject": subject, "version": version}
        for subject, version in call.page(_usages(registry, call))
    ]


def _schemaSubjects(registry: Registry, call: _Call) -> list[str]:
    return call.page(sorted({subject for subject, _version in _usages(registry, call)}))


def _level(registry: Registry, call: _Call) -> dict[str, Any]:
    if not call.pieces:
        return {"compatibilityLevel": registry.state.level()}
    own = registry.state.ownLevel(call.subject)
    if not own and not call.flag("defaultToGlobal"):
        raise RegistryRefusalError(
            LEVEL_NOT_FOUND,
            f"Subject '{call.subject}' does not have subject-level compatibility configured",
        )
    return {"compatibilityLevel": registry.state.level(call.subject)}


async def _setLevel(registry: Registry, call: _Call) -> dict[str, Any]:
    body = call.json()
    level = body.pop("compatibility", None)
    others = sorted(name for name, value in body.items() if value)
    if others:
        raise RegistryRefusalError(
            NOT_ALLOWED,
            f"Only compatibility can be set, not {', '.join(others)[:200]}",
        )
    if not isinstance(level, str) or level.upper() not in LEVELS:
        raise RegistryRefusalError(
            INVALID_LEVEL, f"Invalid compatibility level. Valid values are {', '.join(LEVELS)}"
        )
    return {
        "compatibility": await registry.setLevel(call.subject if call.pieces else "", level.upper())
    }


async def _deleteLevel(registry: Registry, call: _Call) -> dict[str, Any]:
    return {"compatibilityLevel": await registry.setLevel(call.subject if call.pieces else "", "")}


def _mode(registry: Registry, call: _Call) -> dict[str, str]:
    if call.pieces and not call.flag("defaultToGlobal"):
        _deleteMode(registry, call)
    return _MODE


def _deleteMode(registry: Registry, call: _Call) -> None:
    raise RegistryRefusalError(
        MODE_NOT_FOUND, f"Subject '{call.subject}' does not have subject-level mode configured"
    )


def _setMode(registry: Registry, call: _Call) -> dict[str, str]:
    if call.json().get("mode") != _MODE["mode"]:
        raise RegistryRefusalError(INVALID_MODE, "Invalid mode. The only mode is READWRITE")
    return _MODE


async def _check(registry: Registry, call: _Call) -> dict[str, Any]:
    """Compatibility with one version, or with all versions that the level names."""
    subject = call.subject
    text = call.schema()
    level = registry.state.level(subject)
    earlier = registry.state.earlier(subject)
    if len(call.pieces) > 1:
        number, level = call.version, level.removesuffix(TRANSITIVE)
        earlier = (
            earlier[-1:] if number is None else [each for each in earlier if each[0] == number]
        )
        if number is not None and not earlier:
            raise RegistryRefusalError(VERSION_NOT_FOUND, f"Version {number} not found.")
    problems = await registry.incompatibilities(text, earlier, level)
    return {
        "is_compatible": not problems,
        **({"messages": problems} if call.flag("verbose") else {}),
    }


def _referencedBy(registry: Registry, call: _Call) -> list[int]:
    _version(registry, call)
    return []


ROUTES: dict[str, dict[str, Route]] = {
    "": {"GET": lambda registry, call: {}},
    "subjects": {"GET": _subjects},
    "subjects/*": {"POST": _find, "DELETE": _deleteSubject},
    "subjects/*/versions": {"GET": _versions, "POST": _register},
    "subjects/*/versions/*": {
        "GET": lambda registry, call: _asJson(_version(registry, call)),
        "DELETE": _deleteVersion,
    },
    "subjects/*/versions/*/schema": {
        "GET": lambda registry, call: json.loads(_version(registry, call).text)
    },
    "subjects/*/versions/*/referencedby": {"GET": _referencedBy},
    "schemas/types": {"GET": lambda registry, call: [_AVRO]},
    "schemas/ids/*": {"GET": _schema},
    "schemas/ids/*/schema": {"GET": _schemaText},
    "schemas/ids/*/subjects": {"GET": _schemaSubjects},
    "schemas/ids/*/versions": {"GET": _schemaVersions},
    "config": {"GET": _level, "PUT": _setLevel, "DELETE": _deleteLevel},
    "config/*": {"GET": _level, "PUT": _setLevel, "DELETE": _deleteLevel},
    "mode": {"GET": _mode, "PUT": _setMode},
    "mode/*": {"GET": _mode, "PUT": _setMode, "DELETE": _deleteMode},
    "compatibility/subjects/*/versions": {"POST": _check},
    "compatibility/subjects/*/versions/*": {"POST": _check},
    "contexts": {"GET": lambda registry, call: call.page(["."])},
}
"""Functions by path, with C{*} for a variable part, and by method."""


def _routeOf(path: str) -> tuple[dict[str, Route], tuple[str, ...]] | None:
    pieces = path.strip("/").split("/")
    for pattern, methods in ROUTES.items():
        words = pattern.split("/")
        if len(words) == len(pieces) and all(
            word in ("*", piece) for word, piece in zip(words, pieces, strict=True)
        ):
            return methods, tuple(
                _decoded(piece) for word, piece in zip(words, pieces, strict=True) if word == "*"
            )
    return None


def _decoded(piece: str) -> str:
    try:
        return unquote(piece, errors="strict")
    except UnicodeDecodeError:
        raise RegistryRefusalError(400, "The path is not UTF-8") from None


def _reply(value: object, status: int = 200) -> HttpResponse:
    return jsonReply(value, status, MEDIA_TYPE)


def _refusal(code: int, reason: str) -> HttpResponse:
    return _reply(
        {"error_code": code, "message": reason}, RegistryRefusalError(code, reason).status
    )


class RegistrySite(HttpSite):
    """
    The HTTP server of a registry.

    @ivar inFlightCount: requests without an answer yet.
    """

    methods = "GET, HEAD, POST, PUT, DELETE"

    def __init__(
        self,
        reactor: Any,
        registry: Registry,
        names: tuple[str, ...],
        requestSizeMax: int,
        requestCountMax: int,
    ) -> None:
        """
        @param requestSizeMax: bytes of a body.
        @param requestCountMax: the most requests in flight.
        """
        super().__init__(reactor, {}, names, "hosts", max(requestCountMax, 64))
        self.bodySizeMax = requestSizeMax
        self.inFlightCount = 0
        self._registry = registry
        self._requestCountMax = requestCountMax

    def answer(self, asked: HttpRequest) -> Deferred[HttpResponse]:
        """Answer a request, always with JSON."""
        self.inFlightCount += 1
        return (
            Deferred.fromCoroutine(self._route(asked))
            .addCallbacks(_reply, self._failed)
            .addBoth(self._over)
        )

    async def _route(self, asked: HttpRequest) -> Any:
        if self.inFlightCount > self._requestCountMax:
            raise RegistryRefusalError(
                TOO_MANY, f"{self._requestCountMax} requests are in flight already"
            )
        match = _routeOf(asked.path)
        if match is None:
            raise RegistryRefusalError(404, "HTTP 404 Not Found")
        methods, pieces = match
        route = methods.get("GET" if asked.method == "HEAD" else asked.method)
        if route is None:
            raise RegistryRefusalError(405, "HTTP 405 Method Not Allowed")
        if not self._registry.isReady:
            raise RegistryRefusalError(NOT_READY, "The registry has not read its topic yet")
        found = route(self._registry, _Call(asked, pieces))
        return await found if isinstance(found, Coroutine) else found

    def _failed(self, failure: Failure) -> HttpResponse:
        error = failure.value
        if isinstance(error, InvalidSchemaError):
            return _refusal(INVALID_SCHEMA, f"Invalid schema: {error}")
        if isinstance(error, RegistryRefusalError):
            return _refusal(error.code, str(error))
        failure.raiseException()
        raise AssertionError

    def _over(self, result: Any) -> Any:
        self.inFlightCount -= 1
        return result
