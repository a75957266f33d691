"""
Tests for L{pylogbroker.schemaregistry.routes}. What Confluent's client makes of them is in
L{tests.integration.test_registry}.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred

from pylogbroker.net.httpserver import HttpRequest, HttpResponse
from pylogbroker.schemaregistry.registry import Registry
from pylogbroker.schemaregistry.routes import ROUTES, RegistrySite
from pylogbroker.schemas.rest import MEDIA_TYPE
from tests.schemaregistry.registrycase import RegistryCase
from tests.schemas.schematexts import field, record

X = record("A", field("x", "int"))
XY = record("A", field("x", "int"), field("y", "int"))
X_AND_MORE = record("A", field("x", "int"), field("y", "int", default=0))


class RoutesTests(RegistryCase):
    """Requests and answers."""

    async def setUp(self) -> None:  # type: ignore[override]
        await super().setUp()
        self.service = await self.startService()
        self.web: RegistrySite = self.service.web

    async def ask(
        self,
        method: str,
        path: str,
        value: Any = None,
        kind: str = "application/json",
        **query: str,
    ) -> tuple[int, Any]:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        reply: HttpResponse = await maybeDeferred(
            self.web.answer, HttpRequest(method, path, query, kind, body)
        )
        self.assertEqual(reply.kind, MEDIA_TYPE)
        self.assertNotIn(b"<", reply.body)
        return reply.status, json.loads(reply.body)

    async def refused(self, code: int, *arguments: Any, **query: str) -> str:
        status, answer = await self.ask(*arguments, **query)
        self.assertEqual(
            (answer["error_code"], status), (code, code if code < 1000 else code // 100), answer
        )
        return str(answer["message"])

    async def test_subjects(self) -> None:
        """Registering, finding, listing, reading, deleting."""
        self.assertEqual(await self.ask("GET", "/"), (200, {}))
        self.assertEqual(
            await self.ask(
                "POST",
                "/subjects/a%2Fb/versions",
                {"schema": X, "schemaType": "AVRO", "references": []},
            ),
            (200, {"id": 1}),
        )
        self.assertEqual(await self.ask("GET", "/subjects"), (200, ["a/b"]))
        self.assertEqual(await self.ask("GET", "/subjects", subjectPrefix="c"), (200, []))
        self.assertEqual(await self.ask("GET", "/subjects/a%2Fb/versions"), (200, [1]))
        whole = {"subject": "a/b", "version": 1, "id": 1, "schema": X.replace(" ", "")}
        for path in (
            "/subjects/a%2Fb/versions/1",
            "/subjects/a%2Fb/versions/latest",
            "/subjects/a%2Fb/versions/-1",
        ):
            self.assertEqual(await self.ask("GET", path), (200, whole))
            self.assertEqual(await self.ask("HEAD", path), (200, whole))
        self.assertEqual(
            await self.ask("GET", "/subjects/a%2Fb/versions/1/schema"), (200, json.loads(X))
        )
        self.assertEqual(
            await self.ask("GET", "/subjects/a%2Fb/versions/1/referencedby"), (200, [])
        )
        self.assertEqual(await self.ask("POST", "/subjects/a%2Fb", {"schema": X}), (200, whole))
        await self.refused(40403, "POST", "/subjects/a%2Fb", {"schema": XY})
        await self.refused(40401, "POST", "/subjects/c", {"schema": X})
        self.assertEqual(await self.ask("DELETE", "/subjects/a%2Fb/versions/latest"), (200, 1))
        self.assertEqual(
            await self.ask("GET", "/subjects/a%2Fb/versions", deleted="true"), (200, [1])
        )
        self.assertEqual(
            await self.ask("POST", "/subjects/a%2Fb", {"schema": X}, deleted="true"), (200, whole)
        )
        self.assertEqual(await self.ask("DELETE", "/subjects/a%2Fb", permanent="true"), (200, [1]))
        await self.refused(40401, "GET", "/subjects/a%2Fb/versions", deleted="true")

    async def test_schemas(self) -> None:
        """By id."""
        await self.ask("POST", "/subjects/s/versions", {"schema": X})
        self.assertEqual(
            await self.ask("GET", "/schemas/ids/1"), (200, {"schema": X.replace(" ", "")})
        )
        self.assertEqual(await self.ask("GET", "/schemas/ids/1/schema"), (200, json.loads(X)))
        self.assertEqual(await self.ask("GET", "/schemas/ids/1/subjects"), (200, ["s"]))
        self.assertEqual(
            await self.ask("GET", "/schemas/ids/1/versions"),
            (200, [{"subject": "s", "version": 1}]),
        )
        self.assertEqual(await self.ask("GET", "/schemas/types"), (200, ["AVRO"]))
        self.assertEqual(await self.ask("GET", "/contexts"), (200, ["."]))
        for path in (
            "/schemas/ids/2",
            "/schemas/ids/x",
            "/schemas/ids/99999999999",
            "/schemas/ids/2/subjects",
        ):
            await self.refused(40403, "GET", path)

    async def test_places(self) -> None:
        """Of a schema that is in several subjects, one may be asked for."""
        for name in ("s", "t"):
            await self.ask("POST", f"/subjects/{name}/versions", {"schema": X})
        self.assertEqual(await self.ask("GET", "/schemas/ids/1/subjects"), (200, ["s", "t"]))
        self.assertEqual(
            await self.ask("GET", "/schemas/ids/1/subjects", subject="t"), (200, ["t"])
        )
        self.assertEqual(
            await self.ask("GET", "/schemas/ids/1/versions", subject="t"),
            (200, [{"subject": "t", "version": 1}]),
        )

    async def test_pages(self) -> None:
        """Lists may be asked for in pieces, and who turns pages comes to an end."""
        for name in "abc":
            await self.ask("POST", f"/subjects/{name}/versions", {"schema": X})
        await self.ask("POST", "/subjects/a/versions", {"schema": X_AND_MORE})
        lists: dict[str, list[Any]] = {
            "/subjects": list("abc"),
            "/subjects/a/versions": [1, 2],
            "/schemas/ids/1/subjects": list("abc"),
            "/contexts": ["."],
        }
        for path, whole in lists.items():
            self.assertEqual(await self.ask("GET", path, offset="0", limit="-1"), (200, whole))
            self.assertEqual(await self.ask("GET", path, limit="1"), (200, whole[:1]))
            self.assertEqual(await self.ask("GET", path, offset="1", limit="1"), (200, whole[1:2]))
            self.assertEqual(await self.ask("GET", path, offset="9"), (200, []))
        [one] = (await self.ask("GET", "/schemas/ids/1/versions", offset="1", limit="1"))[1]
        self.assertEqual(one, {"subject": "b", "version": 1})
        await self.refused(400, "GET", "/subjects", offset="x")

    async def test_deletedOnly(self) -> None:
        """What was deleted may be asked for alone, as Java's and as Python's clients write it."""
        for name in ("s", "t"):
            await self.ask("POST", f"/subjects/{name}/versions", {"schema": X})
        await self.ask("POST", "/subjects/s/versions", {"schema": X_AND_MORE})
        await self.ask("DELETE", "/subjects/s/versions/1")
        await self.ask("DELETE", "/subjects/t")
        for name in ("deletedOnly", "deleted_only"):
            self.assertEqual(await self.ask("GET", "/subjects", **{name: "true"}), (200, ["t"]))
            self.assertEqual(
                await self.ask("GET", "/subjects/s/versions", **{name: "True"}), (200, [1])
            )
        self.assertEqual(
            await self.ask("GET", "/subjects/s/versions", deleted_only="False"), (200, [2])
        )

    async def test_notTaken(self) -> None:
        """
        What would not be heeded is refused, and named: rules and metadata of a schema, an id of
        one's own, other settings than the rule.
        """
        for name in ("metadata", "ruleSet"):
            for path in (
                "/subjects/s/versions",
                "/subjects/s",
                "/compatibility/subjects/s/versions",
            ):
                self.assertIn(
                    name,
                    await self.refused(
                        42201, "POST", path, {"schema": X, name: {"properties": {}}}
                    ),
                )
        for name in ("id", "version"):
            self.assertIn(
                name,
                await self.refused(42205, "POST", "/subjects/s/versions", {"schema": X, name: 7}),
            )
        self.assertIn(
            "overrideRuleSet",
            await self.refused(
                42205,
                "PUT",
                "/config",
                {"compatibility": "FULL", "overrideRuleSet": {"domainRules": [{}]}},
            ),
        )
        self.assertEqual(
            await self.ask("GET", "/config"), (200, {"compatibilityLevel": "BACKWARD"})
        )
        self.assertEqual(
            await self.ask(
                "PUT", "/config", {"compatibility": "FULL", "normalize": False, "alias": None}
            ),
            (200, {"compatibility": "FULL"}),
        )
        self.assertEqual(
            await self.ask(
                "POST",
                "/subjects/s/versions",
                {"schema": X, "id": -1, "version": None, "metadata": None},
            ),
            (200, {"id": 1}),
        )

    async def test_compatibility(self) -> None:
        """Against one version, and against all that count, with and without the reasons."""
        await self.ask("POST", "/subjects/s/versions", {"schema": X})
        one, all_ = (
            "/compatibility/subjects/s/versions/latest",
            "/compatibility/subjects/s/versions",
        )
        for path in (one, all_):
            self.assertEqual(
                await self.ask("POST", path, {"schema": X}), (200, {"is_compatible": True})
            )
            self.assertEqual(
                await self.ask("POST", path, {"schema": XY}), (200, {"is_compatible": False})
            )
            _, answer = await self.ask("POST", path, {"schema": XY}, verbose="true")
            self.assertIn("reader_field_missing_default_value", answer["messages"][0])
        self.assertEqual(
            await self.ask("POST", "/compatibility/subjects/new/versions", {"schema": X}),
            (200, {"is_compatible": True}),
        )
        self.assertEqual(
            await self.ask("POST", "/compatibility/subjects/new/versions/latest", {"schema": X}),
            (200, {"is_compatible": True}),
        )
        await self.refused(40402, "POST", "/compatibility/subjects/new/versions/1", {"schema": X})
        await self.ask("POST", "/subjects/s/versions", {"schema": X_AND_MORE})
        self.assertEqual(
            await self.ask("POST", "/compatibility/subjects/s/versions/1", {"schema": XY}),
            (200, {"is_compatible": False}),
        )
        self.assertEqual(
            await self.ask("POST", "/compatibility/subjects/s/versions/2", {"schema": XY}),
            (200, {"is_compatible": True}),
        )
        await self.refused(40402, "POST", "/compatibility/subjects/s/versions/9", {"schema": X})
        await self.refused(42201, "POST", one, {"schema": "nothing"})

    async def test_config(self) -> None:
        """Rules and modes."""
        self.assertEqual(
            await self.ask("GET", "/config"), (200, {"compatibilityLevel": "BACKWARD"})
        )
        self.assertEqual(
            await self.ask("PUT", "/config", {"compatibility": "full"}),
            (200, {"compatibility": "FULL"}),
        )
        await self.refused(40408, "GET", "/config/s")
        self.assertEqual(
            await self.ask("GET", "/config/s", defaultToGlobal="true"),
            (200, {"compatibilityLevel": "FULL"}),
        )
        self.assertEqual(
            await self.ask("PUT", "/config/s", {"compatibility": "NONE"}),
            (200, {"compatibility": "NONE"}),
        )
        self.assertEqual(await self.ask("GET", "/config/s"), (200, {"compatibilityLevel": "NONE"}))
        self.assertEqual(
            await self.ask("DELETE", "/config/s"), (200, {"compatibilityLevel": "NONE"})
        )
        await self.refused(40401, "DELETE", "/config/s")
        self.assertEqual(
            await self.ask("DELETE", "/config"), (200, {"compatibilityLevel": "BACKWARD"})
        )
        for value in ({"compatibility": "SIDEWAYS"}, {}, {"compatibility": 5}):
            await self.refused(42203, "PUT", "/config/s", value)
        self.assertEqual(await self.ask("GET", "/mode"), (200, {"mode": "READWRITE"}))
        self.assertEqual(
            await self.ask("PUT", "/mode", {"mode": "READWRITE"}), (200, {"mode": "READWRITE"})
        )
        await self.refused(42204, "PUT", "/mode", {"mode": "IMPORT"})
        await self.refused(40409, "GET", "/mode/s")
        await self.refused(40409, "DELETE", "/mode/s")
        self.assertEqual(
            await self.ask("GET", "/mode/s", defaultToGlobal="true"), (200, {"mode": "READWRITE"})
        )

    async def test_refused(self) -> None:
        """Bodies, names and paths that are none."""
        post = "POST", "/subjects/s/versions"
        await self.refused(400, *post, b"{")
        await self.refused(400, *post, b"[" * 100_000)
        await self.refused(400, *post, [])
        await self.refused(415, *post, {"schema": X}, "text/plain")
        for body in (
            {},
            {"schema": 5},
            {"schema": " "},
            {"schema": X, "schemaType": "JSON"},
            {"schema": X, "references": [{"name": "a"}]},
        ):
            await self.refused(42201, *post, body)
        for name in ("a%0Ab", "%00", "%E2%80%A8", "x" * 2_000):
            await self.refused(42208, "POST", f"/subjects/{name}/versions", {"schema": X})
        await self.refused(400, "POST", "/subjects/%ff/versions", {"schema": X})
        for version in ("0", "-2", "x", "1" * 30):
            await self.refused(42202, "GET", f"/subjects/s/versions/{version}")
        await self.refused(404, "GET", "/nothing")
        await self.refused(404, "GET", "/subjects/a/b/c/d/e")
        for path in ROUTES:
            await self.refused(405, "PATCH", "/" + path.replace("*", "1"))

    async def test_underWay(self) -> None:
        """So many requests may be under way; one more is told to come again, and then may."""
        self.web._requestCountMax = 1
        body = json.dumps({"schema": X}).encode()
        asked = HttpRequest("POST", "/subjects/s/versions", {}, "application/json", body)
        waiting = Deferred.fromCoroutine(self.web.answer(asked))
        await self.refused(429, "GET", "/subjects")
        await waiting
        self.assertEqual(
            (await self.ask("GET", "/subjects"), self.web.inFlightCount), ((200, ["s"]), 0)
        )

    async def test_notReady(self) -> None:
        """Before the topic has been read nothing is answered: it might be wrong."""
        self.service.registry.isReady = False
        self.assertIn("not read its topic", await self.refused(50301, "GET", "/subjects"))

    async def test_bug(self) -> None:
        """A bug is not hidden: the site logs it, and answers 500."""

        class Broken(Registry):
            isReady = True

            def __init__(self) -> None:
                """Without a state."""

        web = RegistrySite(None, Broken(), (), 1, 1)
        with self.assertRaises(AttributeError):
            await web.answer(HttpRequest("GET", "/subjects", {}, "", b""))
