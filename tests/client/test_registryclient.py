"""
Tests for L{pylogbroker.client.registryclient}.
"""

from __future__ import annotations

import socket
from threading import get_ident
from typing import Any
from unittest.mock import patch

from twisted.internet import reactor
from twisted.internet.defer import CancelledError, gatherResults
from twisted.trial.unittest import TestCase

from pylogbroker.client import registryclient
from pylogbroker.client.registryclient import RegistryClient
from pylogbroker.errors import (
    BackpressureError,
    BrokerConnectionError,
    RegistryRefusalError,
    SchemaNotFoundError,
    TimedOutError,
    WireError,
)
from pylogbroker.schemas.rest import ANSWER_SIZE_MAX, CACHED_SIZE_MAX
from pylogbroker.schemas.state import SchemaVersion
from tests.syncclient.registryend import RegistryEnd


class RegistryClientTests(TestCase):
    """What is asked, and what is remembered."""

    timeout = 60

    def setUp(self) -> None:
        self.end = RegistryEnd()
        self.addCleanup(self.end.close)
        self.client = self.makeClient(self.end.url)

    def makeClient(self, url: str, **arguments: Any) -> RegistryClient:
        return RegistryClient(reactor, url, **{"schemaCountMax": 2, **arguments})

    async def test_schema(self) -> None:
        """
        A schema is asked for once, also by several at the same time, and again when it was
        forgotten; what is remembered comes at once.
        """
        for schemaId in (1, 2, 3):
            self.end.schema(schemaId, f'"{schemaId}"')
        self.assertEqual(
            await gatherResults([self.client.schema(1) for _ in range(3)]), ['"1"'] * 3
        )
        self.assertEqual(self.successResultOf(self.client.schema(1)), '"1"')
        for schemaId in (2, 3, 1):
            await self.client.schema(schemaId)
        self.assertEqual(
            [path for _method, path, _body in self.end.asked],
            [f"/schemas/ids/{schemaId}" for schemaId in (1, 2, 3, 1)],
        )

    async def test_sizes(self) -> None:
        """Large schemas are forgotten sooner: no registry fills the memory with them."""
        for schemaId in (1, 2):
            self.end.schema(schemaId, str(schemaId) * (CACHED_SIZE_MAX // 3))
        self.end.schema(3, "3" * (CACHED_SIZE_MAX // 3 + 10))
        client = self.makeClient(self.end.url, schemaCountMax=9)
        for schemaId in (1, 2, 3, 2, 1):
            await client.schema(schemaId)
        self.assertEqual(
            [path for _method, path, _body in self.end.asked],
            [f"/schemas/ids/{schemaId}" for schemaId in (1, 2, 3, 1)],
        )

    async def test_apart(self) -> None:
        """What takes time is done on another thread; what it raises comes back."""
        self.assertNotEqual(await self.client.apart(get_ident), get_ident())
        await self.assertFailure(self.client.apart(lambda: 1 // 0), ZeroDivisionError)

    async def test_cancelled(self) -> None:
        """Who stops waiting does not take the answer from the others."""
        self.end.schema(1, '"int"')
        first, second = self.client.schema(1), self.client.schema(1)
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.assertEqual(await second, '"int"')

    async def test_register(self) -> None:
        """The id of a schema in a subject is asked for once."""
        self.end.answers["POST", "/subjects/a%2Fb/versions"] = (200, {"id": 7})
        self.assertEqual([await self.client.register("a/b", '"int"') for _ in range(2)], [7, 7])
        self.assertEqual(
            [body for _method, _path, body in self.end.asked], [b'{"schema": "\\"int\\""}']
        )

    async def test_questions(self) -> None:
        """Everything else is asked each time."""
        whole = {"subject": "s", "version": 2, "id": 7, "schema": '"int"'}
        self.end.answers = {
            ("POST", "/subjects/s"): (200, whole),
            ("GET", "/subjects/s/versions/2"): (200, whole),
            ("GET", "/subjects/s/versions"): (200, [1, 2]),
            ("GET", "/subjects"): (200, ["s"]),
            ("POST", "/compatibility/subjects/s/versions?verbose=true"): (
                200,
                {"is_compatible": True},
            ),
        }
        found = SchemaVersion("s", 2, 7, '"int"')
        self.assertEqual(
            (await self.client.find("s", '"int"'), await self.client.version("s", 2)),
            (found, found),
        )
        self.assertEqual(
            (await self.client.versions("s"), await self.client.subjects()), ([1, 2], ["s"])
        )
        self.assertEqual(await self.client.incompatibilities("s", '"int"'), [])

    async def test_refused(self) -> None:
        """A no is an error for all who wait, and not remembered."""
        self.end.answers["GET", "/schemas/ids/9"] = (
            404,
            {"error_code": 40403, "message": "Schema 9 not found"},
        )
        for asking in [self.client.schema(9), self.client.schema(9)]:
            await self.assertFailure(asking, SchemaNotFoundError)
        self.end.schema(9, '"int"')
        self.assertEqual(await self.client.schema(9), '"int"')
        self.end.answers["POST", "/subjects/s/versions"] = (
            409,
            {"error_code": 409, "message": "no"},
        )
        await self.assertFailure(self.client.register("s", '"int"'), RegistryRefusalError)

    async def test_noRegistry(self) -> None:
        """Whoever is no registry is told as that; an answer without end is cut."""
        self.end.answers["GET", "/schemas/ids/1"] = (200, b"<html>hello</html>")
        await self.assertFailure(self.client.schema(1), WireError)
        self.end.answers["GET", "/schemas/ids/2"] = (200, b" " * (ANSWER_SIZE_MAX + 1))
        error = await self.assertFailure(self.client.schema(2), WireError)
        self.assertIn("more than", str(error))

    async def test_away(self) -> None:
        """Nobody there, and nobody who answers in time, are told as such."""
        error = await self.assertFailure(
            self.makeClient("http://127.0.0.1:1").schema(1), BrokerConnectionError
        )
        self.assertIn("refused", str(error))
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            await self.assertFailure(self.makeClient(url, timeoutMs=50).schema(1), TimedOutError)

    async def test_tooMuch(self) -> None:
        """So many questions are under way, and no more."""
        with patch.object(registryclient, "ASKED_COUNT_MAX", 1):
            self.end.schema(1, '"int"')
            first = self.client.schema(1)
            await self.assertFailure(self.client.schema(2), BackpressureError)
            await first
            self.assertEqual(await self.client.schema(1), '"int"')
