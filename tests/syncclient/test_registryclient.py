"""
Tests for L{pylogbroker.syncclient.registryclient}.
"""

from __future__ import annotations

import socket

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    BrokerConnectionError,
    ConfigurationError,
    RegistryRefusalError,
    SchemaNotFoundError,
    WireError,
)
from pylogbroker.schemas.rest import ANSWER_SIZE_MAX
from pylogbroker.schemas.state import SchemaVersion
from pylogbroker.syncclient.registryclient import RegistryClient
from tests.syncclient.registryend import RegistryEnd


class RegistryClientTests(SynchronousTestCase):
    """What is asked, and what is remembered."""

    def setUp(self) -> None:
        self.end = RegistryEnd()
        self.addCleanup(self.end.close)
        self.client = RegistryClient(self.end.url, timeoutMs=20_000, schemaCountMax=2)

    def test_schema(self) -> None:
        """A schema is asked for once, and again when it was forgotten."""
        for schemaId in (1, 2, 3):
            self.end.schema(schemaId, f'"{schemaId}"')
        self.assertEqual(
            [self.client.schema(schemaId) for schemaId in (1, 1, 2, 3, 1)],
            ['"1"', '"1"', '"2"', '"3"', '"1"'],
        )
        self.assertEqual(
            [path for _method, path, _body in self.end.asked],
            [f"/schemas/ids/{schemaId}" for schemaId in (1, 2, 3, 1)],
        )

    def test_register(self) -> None:
        """The id of a schema in a subject is asked for once."""
        self.end.answers["POST", "/subjects/a%2Fb/versions"] = (200, {"id": 7})
        self.assertEqual([self.client.register("a/b", '"int"') for _ in range(2)], [7, 7])
        self.assertEqual(
            [body for _method, _path, body in self.end.asked], [b'{"schema": "\\"int\\""}']
        )

    def test_questions(self) -> None:
        """Everything else is asked each time."""
        whole = {"subject": "s", "version": 2, "id": 7, "schema": '"int"'}
        self.end.answers = {
            ("POST", "/subjects/s"): (200, whole),
            ("GET", "/subjects/s/versions/latest"): (200, whole),
            ("GET", "/subjects/s/versions"): (200, [1, 2]),
            ("GET", "/subjects"): (200, ["s"]),
            ("POST", "/compatibility/subjects/s/versions?verbose=true"): (
                200,
                {"is_compatible": False, "messages": ["why"]},
            ),
        }
        found = SchemaVersion("s", 2, 7, '"int"')
        for _ in range(2):
            self.assertEqual(
                (self.client.find("s", '"int"'), self.client.version("s")), (found, found)
            )
            self.assertEqual(
                (
                    self.client.versions("s"),
                    self.client.subjects(),
                    self.client.incompatibilities("s", '"int"'),
                ),
                ([1, 2], ["s"], ["why"]),
            )
        self.assertEqual(len(self.end.asked), 10)

    def test_refused(self) -> None:
        """A no is not remembered: the next call asks again."""
        self.end.answers["GET", "/schemas/ids/9"] = (
            404,
            {"error_code": 40403, "message": "Schema 9 not found"},
        )
        self.assertRaises(SchemaNotFoundError, self.client.schema, 9)
        self.end.schema(9, '"int"')
        self.assertEqual(self.client.schema(9), '"int"')
        self.end.answers["POST", "/subjects/s/versions"] = (
            409,
            {"error_code": 409, "message": "no"},
        )
        self.assertEqual(
            self.assertRaises(RegistryRefusalError, self.client.register, "s", '"int"').code, 409
        )

    def test_noRegistry(self) -> None:
        """Whoever is no registry is told as that; an answer without end is not read to its end."""
        self.end.answers["GET", "/schemas/ids/1"] = (200, b"<html>hello</html>")
        self.assertIn(
            "not a registry's answer", str(self.assertRaises(WireError, self.client.schema, 1))
        )
        self.end.answers["GET", "/schemas/ids/2"] = (200, b" " * (ANSWER_SIZE_MAX + 1))
        self.assertIn(
            "more than", str(self.assertRaises(BrokerConnectionError, self.client.schema, 2))
        )

    def test_password(self) -> None:
        """An error names host and port of a registry, and not a password in its address."""
        self.end.close()
        address = self.end.url.removeprefix("http://")
        client = RegistryClient(f"http://:secret@{address}", timeoutMs=20_000)
        error = self.assertRaises(BrokerConnectionError, client.schema, 1)
        self.assertIn(f"no registry answers: {address}: ", str(error))

    def test_away(self) -> None:
        """
        The next address is asked when one does not answer, or says that it cannot; when none does,
        the error names them all.
        """
        with socket.create_server(("127.0.0.1", 0)) as taken:
            silent = f"http://127.0.0.1:{taken.getsockname()[1]}"
            ill = RegistryEnd()
            self.addCleanup(ill.close)
            ill.answers["GET", "/schemas/ids/1"] = (
                503,
                {"error_code": 50301, "message": "not yet"},
            )
            self.end.schema(1, '"int"')
            several = RegistryClient(
                f"http://127.0.0.1:1, {silent},{ill.url},{self.end.url}/", timeoutMs=100
            )
            self.assertEqual(several.schema(1), '"int"')
            error = self.assertRaises(
                BrokerConnectionError,
                RegistryClient(f"http://127.0.0.1:1,{silent}", timeoutMs=100).schema,
                1,
            )
        self.assertRegex(
            str(error),
            r"no registry answers: 127\.0\.0\.1:1: .*refused; 127\.0\.0\.1:\d+: timed out",
        )
        self.assertEqual(
            self.assertRaises(RegistryRefusalError, RegistryClient(ill.url).schema, 1).code, 50301
        )

    def test_tls(self) -> None:
        """An address with C{https} is spoken to in TLS, and not if it has none."""
        error = self.assertRaises(
            BrokerConnectionError,
            RegistryClient(self.end.url.replace("http:", "https:"), timeoutMs=5_000).schema,
            1,
        )
        self.assertIn("SSL", str(error))

    def test_addresses(self) -> None:
        """What is no address is told as that, before anything is asked."""
        for url in (
            "",
            "localhost:8081",
            "ftp://h",
            "http://",
            "http://h:port",
            "http://user:pw@h",
            "http://h?a=b",
            "http://h,",
        ):
            self.assertIn(
                "no registry's address",
                str(self.assertRaises(ConfigurationError, RegistryClient, url)),
            )
