"""Tests for L{pylogbroker.cli.commands.metrics}."""

from __future__ import annotations

import json
from typing import Any, cast

from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.server import Site

from pylogbroker.cli import CommandError
from pylogbroker.cli.commands.metrics import readSamples
from pylogbroker.cli.httpget import ANSWER_SIZE_MAX
from tests.cli.commands import CommandCase, Outcome, reactor


class Figures(Resource):
    """A page that says something else each time; after the last always the same."""

    isLeaf = True

    def __init__(self, *pages: bytes) -> None:
        super().__init__()
        self.pages = list(pages)

    def render_GET(self, request: Any) -> bytes:
        if request.path != b"/metrics":
            request.setResponseCode(404)
            return b"nothing"
        return self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]


class SampleTests(SynchronousTestCase):
    """Prometheus' text."""

    def test_read(self) -> None:
        """Names with their labels, whatever is in these, and values as they stand there."""
        text = '# HELP a b\n# TYPE a counter\na 1\n\nb{topic="x}\\"y{",p="1"} 2.5 123\n c\tNaN\n'
        self.assertEqual(
            readSamples(text), {"a": "1", 'b{topic="x}\\"y{",p="1"}': "2.5", "c": "NaN"}
        )

    def test_other(self) -> None:
        """What is something else is refused."""
        self.assertIn("<html>", str(self.assertRaises(CommandError, readSamples, "<html>")))


class MetricsTests(CommandCase):
    """Rows."""

    def serve(self, *pages: bytes) -> str:
        """Returns the address of the page."""
        port = reactor.listenTCP(0, Site(cast(Any, Figures(*pages))), interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return f"http://127.0.0.1:{port.getHost().port}/metrics"

    async def rows(self, url: str, *arguments: str) -> Outcome:
        return await self.perform("metrics", "--url", url, "--interval-ms", "1", *arguments)

    async def test_rows(self) -> None:
        """
        A quoted header, then a row each time; a new header when there are more figures; what is
        gone is empty.
        """
        result = await self.rows(
            self.serve(b"b 2\na 1\n", b"a 3\n", b'a 4\nc{x="y"} 5\n'),
            "--count",
            "3",
            "--date-format",
            "SSS",
        )
        self.assertEqual((result.code, result.errors), (0, ""))
        lines = [line.partition(", ") for line in result.output.decode().splitlines()]
        self.assertEqual(
            [line[2] for line in lines], ['"a", "b"', "1, 2", "3, ", '"a", "c{x=\\"y\\"}"', "4, 5"]
        )
        self.assertEqual([line[0] for line in lines if not line[0].isdigit()], ['"time"'] * 2)

    async def test_chosen(self) -> None:
        """
        Patterns choose figures, by name alone or with labels; JSON has numbers where these are
        some.
        """
        url = self.serve(b'in_total{topic="t"} 5\nin_total{topic="u"} 6\nout_total 1.5\nload NaN\n')
        result = await self.rows(
            url,
            "--count",
            "1",
            "--json",
            "--name",
            "in_total",
            "--name",
            "load",
            "--date-format",
            "yyyy",
        )
        found = json.loads(result.output)
        self.assertEqual(
            {**found, "time": ""},
            {"time": "", 'in_total{topic="t"}': 5, 'in_total{topic="u"}': 6, "load": "NaN"},
        )
        result = await self.rows(
            url, "--count", "1", "--json", "--name", '*topic="u"*', "--name", "out*"
        )
        self.assertEqual(list(json.loads(result.output).values())[1:], [6, 1.5])
        result = await self.rows(url, "--count", "1", "--name", "nothing")
        self.assertEqual(
            result, Outcome(1, b"", f"pylogbroker: {url} has none of these metrics among 4\n")
        )

    async def test_errors(self) -> None:
        """What cannot be asked is an error in a line."""
        url = self.serve(b"a 1\n")
        for wrong, reason in (
            (url + "x", "the answer is 404 Not Found"),
            ("http://127.0.0.1:1/metrics", "refused"),
            ("nonsense", "Unsupported scheme"),
            (f"http://{self.startDeaf(10)}/metrics", "http://127.0.0.1"),
            (self.serve(b"<html>"), "not Prometheus' text format"),
            (self.serve(b"#" * (ANSWER_SIZE_MAX + 1)), "more than"),
        ):
            result = await self.rows(wrong, "--timeout-ms", "20000")
            self.assertEqual((result.code, result.output), (1, b""))
            self.assertRegex(result.errors, "^pylogbroker: .*\n$")
            self.assertIn(reason, result.errors)
