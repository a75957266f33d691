"""
Tests of what the page is made of, and of what it asks for.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

from twisted.internet import reactor
from twisted.trial.unittest import SynchronousTestCase, TestCase

from pylogbroker.console.service import FILES, PAGE
from pylogbroker.protocol.kafka07.requests import encodeOffsets, encodeProduce
from pylogbroker.records.messageset import encodeSet
from pylogbroker.testing.localbroker import LocalBroker
from tests.broker.client import connect
from tests.console.asking import Answer, get


class FileTests(SynchronousTestCase):
    """The page's files."""

    def test_all(self) -> None:
        """Every file in the folder is served, and none else."""
        self.assertEqual(
            sorted(name for _path, name, _kind in FILES),
            sorted(path.name for path in PAGE.iterdir()),
        )

    def test_harmless(self) -> None:
        """
        No markup is made of text, no script is made at run time, nothing is loaded from elsewhere:
        the policy would forbid it, and nobody tries.
        """
        for _path, name, _kind in FILES:
            text = (PAGE / name).read_text(encoding="utf-8")
            for word in (
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "javascript:",
                " style=",
                "onclick=",
            ):
                self.assertNotIn(word, text, name)
            self.assertEqual(
                [
                    found
                    for found in re.findall(r"https?://[^\s\"')]+", text)
                    if not found.startswith("http://www.w3.org/")
                ],
                [],
                name,
            )

    def test_small(self) -> None:
        """
        Each page, with all that it loads, is small enough for its readers to see what it does.
        """
        for page in (each for each in PAGE.iterdir() if each.suffix == ".html"):
            names, left = set[str](), [page.name]
            while left:
                names.add(left[-1])
                text = (PAGE / left.pop()).read_text(encoding="utf-8")
                found = set(re.findall(r'(?:src=|href=|from )"/([\w.]+\.\w+)"', text))
                left += found - names - set(left)
            self.assertLess(4, len(names))
            self.assertLess(sum((PAGE / name).stat().st_size for name in names), 64 << 10)


class RouteTests(TestCase):
    """What it asks for."""

    timeout = 60

    async def start(self, **properties: str) -> None:
        self.broker = LocalBroker(reactor, {"http.listener": "0", **properties})
        self.addCleanup(self.broker.stop)
        await self.broker.start()
        self.client = await connect(self, self.broker.endpoint)
        await self.produce("t", b"hello", b"<script>alert(1)</script>", b"\0\xff")

    async def produce(self, topic: str, *payloads: bytes) -> None:
        self.client.send(
            encodeProduce(topic, 0, encodeSet(payloads)), encodeOffsets(topic, 0, -1, 1)
        )
        await self.client.answer()

    async def get(self, path: str) -> Answer:
        console = self.broker.broker.console
        assert console is not None
        return await get(console.port.getHost().port, path)

    async def messages(self, **query: Any) -> Answer:
        return await self.get(
            "/api/messages?"
            + "&".join(
                f"{name}={quote(str(value))}"
                for name, value in {"broker": 0, "partition": 0, **query}.items()
            )
        )

    async def test_files(self) -> None:
        """Each file has its type."""
        await self.start()
        for path, name, kind in FILES:
            answer = await self.get(path)
            self.assertEqual(
                (answer.status, answer.headers["content-type"], answer.body),
                (200, kind, (PAGE / name).read_bytes()),
            )

    async def test_state(self) -> None:
        """The state, whatever topics are called."""
        await self.start()
        await self.produce("<img src=x>", b"a")
        answer = await self.get("/api/state")
        self.assertEqual(
            (answer.status, answer.headers["content-type"], b"<" in answer.body),
            (200, "application/json", False),
        )
        state = answer.json()
        self.assertEqual([topic["name"] for topic in state["topics"]], ["<img src=x>", "t"])
        self.assertTrue(state["hasMessages"])
        self.assertEqual((await self.get("/api/groups")).json(), {"groups": [], "problems": []})

    async def test_messages(self) -> None:
        """Messages, from an offset on or the last ones."""
        await self.start()
        for query in ({"offset": 15}, {"offset": "last", "count": 2}, {"count": 2}):
            answer = await self.messages(topic="t", **query)
            found = answer.json()
            self.assertNotIn(b"script", answer.body)
            self.assertEqual(
                [base64.b64decode(row["payload"]) for row in found["messages"]],
                [b"<script>alert(1)</script>", b"\0\xff"],
            )
            self.assertEqual(
                (found["offset"], found["nextOffset"], found["start"], found["end"]),
                (15, 62, 0, 62),
            )

    async def test_refused(self) -> None:
        """What cannot be answered is 400, with a sentence."""
        await self.start()
        for query in (
            {"offset": "x"},
            {"offset": -1},
            {"offset": 999},
            {"offset": 10**30},
            {"broker": 5},
            {"broker": "²"},
            {"partition": 7},
            {"partition": ""},
            {"topic": "../t"},
            {"topic": ""},
            {"count": "many"},
        ):
            answer = await self.messages(**{"topic": "t", **query})
            self.assertEqual(answer.status, 400, query)
            self.assertNotEqual(answer.json()["error"], "")
        self.assertEqual(sorted(self.broker.broker.service.directory.logs), [("t", 0)])

    async def test_noMessages(self) -> None:
        """A switch turns it off; the page knows that."""
        await self.start(**{"http.messages": "false"})
        self.assertEqual((await self.messages(topic="t")).status, 404)
        self.assertFalse((await self.get("/api/state")).json()["hasMessages"])

    async def test_rules(self) -> None:
        """
        Where rules say who may fetch what, nobody looks at messages here, since the console knows
        nobody; but for an operator who says so.
        """
        rules = self.mktemp()
        Path(rules).write_text("- both t\n", encoding="ascii")
        await self.start(**{"allow.file": rules})
        self.assertEqual((await self.messages(topic="t")).status, 404)
        self.assertFalse((await self.get("/api/state")).json()["hasMessages"])
        await self.start(**{"allow.file": rules, "http.messages": "true"})
        self.assertEqual((await self.messages(topic="t")).status, 200)

    async def test_noConsole(self) -> None:
        """Another leaves nothing but metrics."""
        await self.start(**{"http.console": "false"})
        self.assertEqual(
            [
                (await self.get(path)).status
                for path in ("/", "/api/state", "/api/messages", "/metrics")
            ],
            [404, 404, 404, 200],
        )
