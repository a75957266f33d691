"""
Tests for L{pylogbroker.cli.commands.cluster}, with a real ZooKeeper and brokers that are registered
in it.
"""

from __future__ import annotations

import json

from tests.cli.clustercase import ClusterCase
from tests.cli.commands import Outcome


class BrokersTests(ClusterCase):
    """Who is there."""

    async def show(self, *arguments: str) -> Outcome:
        return await self.perform("broker", "list", "--zookeeper", self.servers, *arguments)

    async def test_table(self) -> None:
        """Each broker with its address, what it holds, and that it answers."""
        await self.startBrokers(2)
        await self.establish("t", b"one")
        result = await self.show()
        self.assertEqual((result.code, result.errors), (0, ""))
        lines = [line.split() for line in result.output.decode().splitlines()]
        rows = [
            [str(number), "127.0.0.1", str(broker.port), "1", "2", "yes"]
            for number, broker in enumerate(self.brokers)
        ]
        self.assertEqual(
            lines, [["BROKER", "HOST", "PORT", "TOPICS", "PARTITIONS", "ANSWERS"], *rows]
        )

    async def test_silent(self) -> None:
        """
        One that does not answer is told, and makes the exit code 1; the others are shown as ever.
        """
        await self.startBrokers(1)
        deaf = self.startDeaf(0)
        await self.node("/brokers/ids/7", f"x:{deaf}".encode())
        result = await self.show("--json", "--timeout-ms", "5000")
        document = json.loads(result.output)
        self.assertEqual(result.code, 1)
        port = self.brokers[0].port
        place = {"host": "127.0.0.1", "topicCount": 0, "partitionCount": 0}
        self.assertEqual(
            document["brokers"],
            [
                {"broker": 0, "port": port, "answers": True, **place},
                {"broker": 7, "port": int(deaf.split(":")[1]), "answers": False, **place},
            ],
        )
        [problem] = document["problems"]
        self.assertIn(f"broker 7 at {deaf} does not answer", problem)
        result = await self.show("--timeout-ms", "5000")
        self.assertEqual(result.output.splitlines()[2].split()[-1], b"no")
        self.assertIn(f"broker 7 at {deaf} does not answer", result.errors)

    async def test_none(self) -> None:
        """A cluster without brokers is no error."""
        self.assertEqual(await self.show(), Outcome(0, b"", "there are no brokers\n"))
