"""
Tests for L{pylogbroker.cli.commands.cluster}, with a real ZooKeeper and brokers that are registered
in it.
"""

from __future__ import annotations

import json
from typing import Any

from tests.cli.clustercase import ClusterCase
from tests.cli.commands import Outcome

PAYLOADS = [b"%d" % number for number in range(30)]


class TopicsTests(ClusterCase):
    """What there is."""

    async def show(self, *arguments: str) -> Outcome:
        return await self.perform("topic", "list", *arguments, "--zookeeper", self.servers)

    async def describe(self, *arguments: str) -> Outcome:
        return await self.perform("topic", "describe", *arguments, "--zookeeper", self.servers)

    async def sizes(self, topic: str) -> dict[tuple[int, int], int]:
        """The truth: bytes in each partition."""
        return {
            place: sum(10 + len(payload) for payload in payloads)
            for place, payloads in (await self.stored(topic)).items()
        }

    async def test_tables(self) -> None:
        """
        A line each, with brokers, partitions and bytes; of named topics a line for each partition,
        with where it begins and ends.
        """
        await self.startBrokers(2)
        await self.establish("t", b"one")
        await self.spread("t", *PAYLOADS)
        self.broker = self.brokers[0]
        await self.publish("u", b"one")
        sizes = await self.sizes("t")
        self.assertEqual(len(sizes), 4)
        result = await self.show()
        self.assertEqual((result.code, result.errors), (0, ""))
        lines = [line.split() for line in result.output.decode().splitlines()]
        rows = [["t", "2", "4", str(sum(sizes.values()))], ["u", "1", "2", "13"]]
        self.assertEqual(lines, [["TOPIC", "BROKERS", "PARTITIONS", "SIZE"], *rows])
        detailed = [
            ["t", f"{broker}-{partition}", "0", str(size), str(size)]
            for (broker, partition), size in sorted(sizes.items())
        ]
        result = await self.describe("t")
        self.assertEqual(
            [line.split() for line in result.output.decode().splitlines()],
            [["TOPIC", "PARTITION", "START", "END", "SIZE"], *detailed],
        )

    async def test_json(self) -> None:
        """The same for machines."""
        await self.startBrokers(1, num_partitions="1", log_file_size="100")
        await self.establish("t", b"x" * 90)
        await self.establish("t", b"y" * 40)
        document: dict[str, Any] = json.loads((await self.show("--json")).output)
        partitions = [{"broker": 0, "partition": 0, "start": 0, "end": 150, "size": 150}]
        self.assertEqual(
            document,
            {"topics": [{"topic": "t", "size": 150, "partitions": partitions}], "problems": []},
        )

    async def test_away(self) -> None:
        """Of a broker that cannot be asked sizes are not known, and it is told why."""
        await self.startBrokers(1)
        await self.spread("t", b"one")
        await self.node("/brokers/topics/t/7", b"1")
        result = await self.describe("t")
        self.assertEqual(
            (result.code, result.errors),
            (0, "pylogbroker: broker 7 cannot be asked: broker 7 is not registered\n"),
        )
        self.assertEqual(
            result.output.decode().splitlines()[3].split(), ["t", "7-0", "-", "-", "-"]
        )
        self.assertEqual(
            (await self.show()).output.decode().splitlines()[1].split(), ["t", "2", "3", "-"]
        )

    async def test_none(self) -> None:
        """A cluster without topics is no error; a topic that is not there is one."""
        self.assertEqual(await self.show(), Outcome(0, b"", "there are no topics\n"))
        self.assertEqual(
            await self.describe("t"),
            Outcome(1, b"", "pylogbroker: there is no topic t; there are: none\n"),
        )
