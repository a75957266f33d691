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
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from pylogbroker.errors import InvalidSchemaError, NotLeaderError, RegistryRefusalError
from pylogbroker.net.httpserver import HttpRequest, HttpResponse, HttpSite, jsonReply
from pylogbroker.schemaregistry.registry import NOT_READY, BaseRegistry
from pylogbroker.schemas.kafka.changes import checkComparable
from pylogbroker.schemas.logrecords import LEVELS, NONE, TRANSITIVE
from pylogbroker.schemas.rest import MEDIA_TYPE
from pylogbroker.schemas.state import (
    INCOMPATIBLE,
    INVALID_MODE,
    INVALID_SCHEMA,
    LEVEL_NOT_FOUND,
    MODE_NOT_FOUND,
    NOT_ALLOWED,
    SCHEMA_NOT_FOUND,
    VERSION_NOT_FOUND,
    BaseRegistryState,
    SchemaVersion,
)

T = TypeVar("T")

INVALID_VERSION = 42202
INVALID_LEVEL = 42203
INVALID_SUBJECT = 42208
TOO_MANY = 429
NAME_SIZE_MAX = 1_024
"""Characters of a subject's name."""

_KINDS = frozenset((MEDIA_TYPE, "application/vnd.schemaregistry+json", "application/json"))
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_AVRO = "AVRO"

_UNSUPPORTED = {
    "references": "References are not supported: put the referenced schemas into the schema",
    # rules encrypt fields: never ignore them silently
    "metadata": "metadata is not supported and would have no effect: leave it out",
    "ruleSet": "ruleSet is not supported and would have no effect: leave it out",
}


class _Call(NamedTuple):
    """
    A request that matches a route. The methods below the parts of the request are the routes.

    @ivar pieces: the decoded parts of the path that match a C{*}.
    """

    registry: BaseRegistry
    asked: HttpRequest
    pieces: tuple[str, ...]

    # -- parts

    @property
    def state(self) -> BaseRegistryState:
        return self.registry.state

    def flag(self, *names: str) -> bool:
        return any(self.asked.query.get(name, "").lower() == "true" for name in names)

    @property
    def isDeletedOnly(self) -> bool:
        return self.flag("deletedOnly", "deleted_only")  # Java's and Python's clients

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
        self.registry.checkSubject(name)
        return name

    @property
    def subjectOrAll(self) -> str:
        """C{""} for the general setting."""
        return self.subject if self.pieces else ""

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
        for name, reason in _UNSUPPORTED.items():
            if body.get(name):
                raise RegistryRefusalError(INVALID_SCHEMA, reason)
        text = body.get("schema")
        if not isinstance(text, str) or not text.strip():
            raise RegistryRefusalError(
                INVALID_SCHEMA, 'Empty schema: "schema" must be the schema\'s text'
            )
        return text

    # -- routes

    def listSubjects(self) -> list[str]:
        prefix = self.asked.query.get("subjectPrefix", "")
        found = self.state.subjects(self.flag("deleted") or self.isDeletedOnly)
        left = set(self.state.subjects()) if self.isDeletedOnly else ()
        return self.page([name for name in found if name.startswith(prefix) and name not in left])

    def listVersions(self) -> list[int]:
        found = self.state.versions(self.subject, self.flag("deleted") or self.isDeletedOnly)
        left = dict(self.state.earlier(self.subject)) if self.isDeletedOnly else ()
        return self.page([number for number in found if number not in left])

    async def register(self) -> dict[str, Any]:
        return {"id": await self.registry.register(self.subject, self.newSchema())}

    async def findSchema(self) -> dict[str, Any]:
        subject = self.subject
        _canonical, identity = await self.registry.canonicalize(self.schema())
        self.state.versions(subject, self.flag("deleted"))
        found = self.state.find(subject, identity, self.flag("deleted"))
        if found is None:
            raise RegistryRefusalError(SCHEMA_NOT_FOUND, "Schema not found")
        return self.asJson(found)

    async def deleteSubject(self) -> list[int]:
        return await self.registry.deleteSubject(self.subject, self.flag("permanent"))

    def foundVersion(self) -> SchemaVersion:
        return self.state.version(self.subject, self.version, self.flag("deleted"))

    async def deleteVersion(self) -> int:
        isPermanent = self.flag("permanent")
        number = self.version or self.state.version(self.subject, None, isPermanent).version
        return await self.registry.deleteVersion(self.subject, number, isPermanent)

    async def schemaText(self) -> str:
        return await self.registry.schema(self.schemaId)

    async def schemaById(self) -> dict[str, Any]:
        text = await self.schemaText()
        return {**self.state.schemaAttributes(self.schemaId), "schema": text}

    async def schemaJson(self) -> Any:
        text = await self.schemaText()
        return _asDocument(text, self.state.schemaAttributes(self.schemaId))

    def versionJson(self) -> Any:
        found = self.foundVersion()
        return _asDocument(found.text, self.state.attributes(found.subject, found.version))

    def asJson(self, found: SchemaVersion) -> dict[str, Any]:
        return {
            "subject": found.subject,
            "version": found.version,
            "id": found.schemaId,
            **self.state.attributes(found.subject, found.version),
            "schema": found.text,
        }

    def usages(self) -> list[tuple[str, int]]:
        wanted = self.asked.query.get("subject")
        return [
            usage
            for usage in self.state.usagesOf(self.schemaId, self.flag("deleted"))
            if wanted in (None, usage[0])
        ]

    def schemaVersions(self) -> list[dict[str, Any]]:
        return [
            {"subject": subject, "version": version}
            for subject, version in self.page(self.usages())
        ]

    def schemaSubjects(self) -> list[str]:
        return self.page(sorted({subject for subject, _version in self.usages()}))

    def level(self) -> dict[str, Any]:
        subject = self.subjectOrAll
        config = self.state.config(subject)
        isSet = self.state.ownLevel(subject) or config is not None
        if subject and not isSet and not self.flag("defaultToGlobal"):
            raise RegistryRefusalError(
                LEVEL_NOT_FOUND,
                f"Subject '{subject}' does not have subject-level compatibility configured",
            )
        others = {name: value for name, value in (config or {}).items() if name != "subject"}
        return {**others, "compatibilityLevel": self.state.level(subject)}

    async def setLevel(self) -> dict[str, Any]:
        body = self.json()
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
        return {"compatibility": await self.registry.setLevel(self.subjectOrAll, level.upper())}

    async def deleteLevel(self) -> dict[str, Any]:
        return {"compatibilityLevel": await self.registry.setLevel(self.subjectOrAll, "")}

    def mode(self) -> dict[str, str]:
        subject = self.subjectOrAll
        if subject and not self.state.ownMode(subject) and not self.flag("defaultToGlobal"):
            raise RegistryRefusalError(
                MODE_NOT_FOUND, f"Subject '{subject}' does not have subject-level mode configured"
            )
        return {"mode": self.state.mode(subject)}

    async def deleteMode(self) -> dict[str, str]:
        return {"mode": await self.registry.setMode(self.subject, "")}

    async def setMode(self) -> dict[str, str]:
        mode = self.json().get("mode")
        if not isinstance(mode, str) or not mode:
            raise RegistryRefusalError(INVALID_MODE, "Invalid mode: the body must have a mode")
        return {"mode": await self.registry.setMode(self.subjectOrAll, mode.upper())}

    async def checkCompatibility(self) -> dict[str, Any]:
        """Compatibility with one version, or with all versions that the level names."""
        level, text = self.state.level(self.subject), self.schema()
        earlier = self.state.earlier(self.subject)
        if len(self.pieces) > 1:
            number, level = self.version, level.removesuffix(TRANSITIVE)
            if number is not None:  # NONE, BACKWARD, FORWARD and FULL compare with the last one
                earlier = [each for each in earlier if each[0] == number]
                if not earlier:
                    raise RegistryRefusalError(VERSION_NOT_FOUND, f"Version {number} not found.")
        problems = await self._incompatibilities(text, earlier, level)
        return {
            "is_compatible": not problems,
            **({"messages": problems} if self.flag("verbose") else {}),
        }

    async def _incompatibilities(
        self, text: str, earlier: list[tuple[int, str]], level: str
    ) -> list[str]:
        if level == NONE:
            return []
        compared = earlier if level.endswith(TRANSITIVE) else earlier[-1:]
        try:
            checkComparable(self.state, self.subject, [number for number, _text in compared])
        except RegistryRefusalError as error:
            if error.code != INCOMPATIBLE:
                raise
            return [str(error)]
        return await self.registry.incompatibilities(text, compared, level)

    def referencedBy(self) -> list[int]:
        found = self.foundVersion()
        return self.state.referencedBy(found.subject, found.version)


def _asDocument(text: str, attributes: Mapping[str, Any]) -> Any:
    """The schema itself. That of Protobuf is no JSON, so it is a text."""
    try:
        return json.loads(text)
    except ValueError:
        if "schemaType" not in attributes:
            raise
        return text


Route = Callable[[_Call], Any]
Forward = Callable[[str, HttpRequest], Awaitable[HttpResponse]]
_CONFIG: dict[str, Route] = {
    "GET": _Call.level,
    "PUT": _Call.setLevel,
    "DELETE": _Call.deleteLevel,
}
ROUTES: dict[str, dict[str, Route]] = {
    "": {"GET": lambda call: {}},
    "subjects": {"GET": _Call.listSubjects},
    "subjects/*": {"POST": _Call.findSchema, "DELETE": _Call.deleteSubject},
    "subjects/*/versions": {"GET": _Call.listVersions, "POST": _Call.register},
    "subjects/*/versions/*": {
        "GET": lambda call: call.asJson(call.foundVersion()),
        "DELETE": _Call.deleteVersion,
    },
    "subjects/*/versions/*/schema": {"GET": _Call.versionJson},
    "subjects/*/versions/*/referencedby": {"GET": _Call.referencedBy},
    "schemas/types": {"GET": lambda call: [_AVRO]},
    "schemas/ids/*": {"GET": _Call.schemaById},
    "schemas/ids/*/schema": {"GET": _Call.schemaJson},
    "schemas/ids/*/subjects": {"GET": _Call.schemaSubjects},
    "schemas/ids/*/versions": {"GET": _Call.schemaVersions},
    "config": _CONFIG,
    "config/*": _CONFIG,
    "mode": {"GET": _Call.mode, "PUT": _Call.setMode},
    "mode/*": {"GET": _Call.mode, "PUT": _Call.setMode, "DELETE": _Call.deleteMode},
    "compatibility/subjects/*/versions": {"POST": _Call.checkCompatibility},
    "compatibility/subjects/*/versions/*": {"POST": _Call.checkCompatibility},
    "contexts": {"GET": lambda call: call.page(list(call.state.contexts))},
}
"""Functions by path, with C{*} for a variable part, and by method."""


def _routeOf(path: str) -> tuple[dict[str, Route], tuple[str, ...]] | None:
    for pattern, methods in ROUTES.items():
        match = re.fullmatch(pattern.replace("*", "([^/]*)"), path.strip("/"))
        if match is not None:
            return methods, tuple(map(_decoded, match.groups()))
    return None


def _decoded(piece: str) -> str:
    try:
        return unquote(piece, errors="strict")
    except UnicodeDecodeError:
        raise RegistryRefusalError(400, "The path is not UTF-8") from None


class RegistrySite(HttpSite):
    """
    The HTTP server of a registry.

    @ivar inFlightCount: requests without an answer yet.
    """

    methods = "GET, HEAD, POST, PUT, DELETE"

    def __init__(
        self,
        reactor: Any,
        registry: BaseRegistry,
        names: tuple[str, ...],
        requestSizeMax: int,
        requestCountMax: int,
        forward: Forward | None = None,
    ) -> None:
        """
        @param requestSizeMax: bytes of a body.
        @param requestCountMax: the most requests in flight.
        @param forward: passes a change on to the registry that leads, by its URL.
        """
        super().__init__(reactor, {}, names, "hosts", max(requestCountMax, 64))
        self.bodySizeMax = requestSizeMax
        self.inFlightCount = 0
        self._registry = registry
        self._requestCountMax = requestCountMax
        self._forward = forward

    async def answer(self, asked: HttpRequest) -> HttpResponse:
        """Answer a request, always with JSON."""
        self.inFlightCount += 1
        try:
            try:
                return jsonReply(await self._route(asked), kind=MEDIA_TYPE)
            except NotLeaderError as error:
                if self._forward is None or asked.isForwarded or not error.url:
                    raise
                return await self._forward(error.url, asked)
        except InvalidSchemaError as error:
            refusal = RegistryRefusalError(INVALID_SCHEMA, f"Invalid schema: {error}")
        except RegistryRefusalError as error:
            refusal = error
        finally:
            self.inFlightCount -= 1
        answer = {"error_code": refusal.code, "message": str(refusal)}
        return jsonReply(answer, refusal.status, MEDIA_TYPE)

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
        found = route(_Call(self._registry, asked, pieces))
        return await found if isinstance(found, Coroutine) else found
