"""
Tests for C{pylogbroker topology}, on a ZooKeeper in this process. Topologies that run are in
L{tests.integration.test_topologies}.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import deferLater

from pylogbroker.cli.commands.topology import states
from pylogbroker.cli.commands.topology.masterstatus import NoStatusError, readStatus
from pylogbroker.errors import ConfigurationError
from pylogbroker.net.httpserver import HttpSite, jsonReply, textReply
from pylogbroker.topologies.plan import MasterLocation
from tests.cli.commands import CommandCase, Outcome, reactor
from tests.topologies.definitions import DEFINITION
from tests.topologies.zookeepercase import TopologyNodesCase

TWO = """
from pylogbroker.topologies import Spout, TopologyBuilder

class Nothing(Spout):
    def nextTuple(self):
        pass

for name in ("one", "two"):
    builder = TopologyBuilder(name)
    builder.setSpout("nothing", Nothing, 2)
    globals()[name] = builder.build()
"""


class StatesTests(TopologyNodesCase, CommandCase):
    """Commands about a topology whose nodes are there."""

    async def topology(self, *words: str) -> Outcome:
        return await self.perform("topology", *words, "--zookeeper", self.server.servers)

    def serve(self, routes: Any) -> int:
        port = reactor.listenTCP(0, HttpSite(reactor, routes), interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        return int(port.getHost().port)

    async def test_list(self) -> None:
        """All that were submitted, as a table and as JSON."""
        self.assertEqual((await self.topology("list", "--json")).document(), [])
        await self.states.submit(DEFINITION)
        await self.states.claimContainer("words", 0, 100, lambda: None)
        await self.states.claimContainer("words", 2, 100, lambda: None)
        expected = {
            "topology": "words",
            "state": "active",
            "user": "someone",
            "containers": 2,
            "running": 1,
            "instances": 3,
        }
        self.assertEqual((await self.topology("list", "--json")).document(), [expected])
        self.assertIn(b"words     active  someone", (await self.topology("list")).output)

    async def test_changes(self) -> None:
        """The state, and that what was killed stays so."""
        for command in ("describe", "activate", "deactivate", "kill"):
            outcome = await self.topology(command, "words")
            self.assertEqual(
                (outcome.code, outcome.errors), (1, "pylogbroker: there is no topology words\n")
            )
        await self.states.submit(DEFINITION)
        outcome = await self.topology("deactivate", "words")
        self.assertEqual(outcome.errors, "topology words is paused; nothing of it runs now\n")
        self.assertEqual(await self.states.state("words"), "paused")
        await self.states.claimContainer("words", 0, 100, lambda: None)
        outcome = await self.topology("activate", "words")
        self.assertEqual(outcome.errors, "topology words is active\n")
        self.patch(states, "KILL_SECONDS_MAX", 0)
        outcome = await self.topology("kill", "words")
        self.assertEqual(
            (outcome.code, outcome.errors),
            (1, "pylogbroker: topology words is being killed, but has not ended within 0 s\n"),
        )
        self.assertEqual(await self.states.state("words"), "killed")
        outcome = await self.topology("activate", "words")
        self.assertIn("topology words was killed; submit it again", outcome.errors)

    async def test_kill(self) -> None:
        """
        Before any container is there, its scheduler removes it; when the scheduler has died, the
        command does, whatever its containers' nodes say.
        """
        await self.states.submit(DEFINITION)
        killing = ensureDeferred(self.topology("kill", "words"))
        while await self.states.state("words") != "killed":
            await deferLater(reactor, 0.02)
        await deferLater(reactor, 0.1)
        self.assertFalse(killing.called)
        self.assertEqual(await self.states.topologies(), ["words"])
        await self.states.remove("words")
        outcome = await killing
        self.assertEqual((outcome.code, outcome.errors), (0, "topology words is killed\n"))
        await self.states.submit(DEFINITION)
        await self.states.claimContainer("words", 0, 100, lambda: None)
        await self.client.delete("/topologies/words/scheduler")
        outcome = await self.topology("kill", "words")
        self.assertEqual((outcome.code, outcome.errors), (0, "topology words is killed\n"))
        self.assertEqual(await self.states.topologies(), [])

    async def test_describe(self) -> None:
        """The plan from ZooKeeper, and the rest from the master, if it answers."""
        await self.states.submit(DEFINITION)
        outcome = await self.topology("describe", "words")
        self.assertIn("there is no master now", outcome.errors)
        text = outcome.output.decode()
        self.assertIn("topology words, active, of someone, from /words.py", text)
        self.assertIn("3 instances in 2 containers; master none", text)
        metrics = {
            "container": 1,
            "source": "1",
            "component": "spout",
            "values": {"emitted.default": 5, "emitted.odd": 2, "acked": 3},
        }
        containers = [
            {
                "number": number,
                "isConnected": True,
                "instances": [{"task": number, "isConnected": number == 1}],
            }
            for number in (1, 2)
        ]
        status = {"containers": containers, "metrics": [metrics, {**metrics, "source": "x"}]}
        port = self.serve({"/status": lambda _query: jsonReply(status)})
        await self.states.announce("words", "127.0.0.1", 1, port)
        outcome = await self.topology("describe", "words")
        rows = [line.split() for line in outcome.output.decode().splitlines()]
        self.assertIn(["1", "spout", "0", "1", "yes", "7", "-", "3", "-"], rows)
        self.assertIn(["2", "bolt", "0", "2", "no", "-", "-", "-", "-"], rows)
        found = (await self.topology("describe", "words", "--json")).document()
        self.assertEqual(found["status"], json.loads(json.dumps(status)))
        self.assertEqual(found["components"][0]["kind"], "spout")

    async def test_silentMaster(self) -> None:
        """A master that does not answer, or says something else."""
        await self.states.submit(DEFINITION)
        port = self.serve({"/status": lambda _query: textReply("no", 500)})
        await self.states.announce("words", "127.0.0.1", 1, port)
        outcome = await self.topology("describe", "words")
        self.assertIn("the master does not answer", outcome.errors)
        listing = self.serve({"/status": lambda _query: jsonReply([1])})
        error = await self.refused(
            readStatus(reactor, MasterLocation("127.0.0.1", 1, listing, 0)), NoStatusError
        )
        self.assertIn("/status: status 200", str(error))

    async def test_runsAlready(self) -> None:
        """A topology of that name runs; nothing of it is touched."""
        await self.states.submit(DEFINITION)
        two = self.write(TWO.replace('"one"', '"words"').encode(), "two.py")
        await self.states.claimContainer("words", 0, 100, lambda: None)
        state = self.mktemp()
        words = ("--topology", "words", "--state-dir", state)
        outcome = await self.topology("submit", two, *words)
        self.assertIn("a topology words runs already, with container 0", outcome.errors)
        self.assertEqual(outcome.code, 1)
        self.assertEqual(await self.states.topologies(), ["words"])
        self.assertFalse(Path(state).exists())


class SubmitTests(CommandCase):
    """What is refused before anything runs."""

    async def submit(self, *words: str) -> Any:
        return await self.perform("topology", "submit", *words)

    async def test_refused(self) -> None:
        """Files, names, containers and settings that cannot be used."""
        two = self.write(TWO.encode(), "two.py")
        config = self.write(b"metrics.interval.ms=0\n", "bad.properties")
        for words, reason in (
            ((two,), "has the topologies one, two: --topology says which one"),
            ((two, "--topology", "three"), "has no topology three; it has: one, two"),
            ((two, "--topology", "one", "--containers", "3"), "2 instances cannot be dealt out"),
            ((two, "--topology", "one", "--config", config), "metrics.interval.ms=0"),
            (
                (two, "--topology", "one", "--set", "topology.message.timeout.secs=x"),
                "topology.message.timeout.secs",
            ),
            ((str(Path(two).parent / "missing.py"),), "missing.py"),
        ):
            error = await self.refused(self.submit(*words), ConfigurationError)
            self.assertIn(reason, str(error))
