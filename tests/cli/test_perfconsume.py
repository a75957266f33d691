"""
Tests for L{pylogbroker.cli.commands.perf}, with a real ZooKeeper and brokers that are registered in
it.
"""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred

from pylogbroker.cli.commands.perf import (
    CONSUME_COLUMNS,
    GROUP_DETAILED_COLUMNS,
    MEGABYTE,
    SIMPLE_DETAILED_COLUMNS,
)
from tests.cli.clustercase import ClusterCase
from tests.cli.commands import Outcome

PAYLOADS = [b"%03d" % number for number in range(200)]


class GroupTests(ClusterCase):
    """By the streams of a group."""

    async def consume(self, *arguments: str) -> Outcome:
        return await self.perform(
            "perf",
            "consume",
            "--zookeeper",
            self.servers,
            "--topic",
            "t",
            "--idle-ms",
            "600",
            *arguments,
        )

    async def test_summary(self) -> None:
        """
        The columns are 0.7's; what they say was read is what the brokers hold; nothing of the group
        is left.
        """
        await self.startBrokers(2)
        await self.establish("t", b"first")
        await self.spread("t", *PAYLOADS)
        for threads in ("1", "3"):
            result = await self.consume("--threads", threads)
            self.assertEqual((result.code, result.errors), (0, ""))
            head, line = result.output.decode().splitlines()
            self.assertEqual(head, ", ".join(CONSUME_COLUMNS))
            values = line.split(", ")
            self.assertEqual(
                (values[2], values[3], values[5]), ("1048576", f"{610 / MEGABYTE:.4f}", "202")
            )
            self.assertEqual(await self.children("/consumers"), [])

    async def test_some(self) -> None:
        """
        No more than was asked for; a group that was named is left where it was, to the message.
        """
        await self.startBrokers(1, num_partitions="1")
        await self.establish("t", *PAYLOADS)
        row = json.loads((await self.consume("--json", "--messages", "30", "--group", "g")).output)
        self.assertEqual(
            (row["data.consumed.in.nMsg"], row["data.consumed.in.MB"]), (30, 90 / MEGABYTE)
        )
        self.assertEqual((await self.admin.get("/consumers/g/offsets/t/0-0"))[0], b"%d" % (30 * 13))
        row = json.loads((await self.consume("--json", "--group", "g")).output)
        self.assertEqual(row["data.consumed.in.nMsg"], 170)

    async def test_detailed(self) -> None:
        """A row each so many messages, with the stream's number."""
        await self.startBrokers(1)
        await self.establish("t", *PAYLOADS)
        result = await self.consume(
            "--show-detailed-stats", "--reporting-interval", "10", "--fetch-size", "150"
        )
        head, *lines = result.output.decode().splitlines()
        self.assertEqual(head, ", ".join(GROUP_DETAILED_COLUMNS))
        self.assertEqual({line.split(", ")[1] for line in lines}, {"0"})
        self.assertEqual(lines[-1].split(", ")[5], "200")

    async def test_latest(self) -> None:
        """From the end on: what comes later."""
        await self.startBrokers(1)
        await self.establish("t", *PAYLOADS)
        reading = Deferred.fromCoroutine(
            self.consume(
                "--from-latest", "--json", "--messages", "5", "--group", "g", "--idle-ms", "20000"
            )
        )

        async def isThere() -> bool:
            return len(await self.children("/consumers/g/offsets/t")) == 2

        await self.until(isThere)
        self.broker = self.brokers[0]
        await self.publish("t", *PAYLOADS[:5])
        self.assertEqual(json.loads((await reading).output)["data.consumed.in.nMsg"], 5)


class SimpleTests(ClusterCase):
    """From one partition."""

    async def consume(self, *arguments: str) -> Outcome:
        return await self.perform(
            "perf", "simple-consume", "--broker", self.broker.endpoint, "--topic", "t", *arguments
        )

    async def test_summary(self) -> None:
        """
        All of a partition is counted, over fetches that cut, and compressed sets; then it ends.
        """
        await self.startBroker()
        await self.publish("t", *PAYLOADS)
        await self.publish("t", *PAYLOADS, codec=1)
        result = await self.consume("--fetch-size", "2000")
        self.assertEqual((result.code, result.errors), (0, ""))
        head, line = result.output.decode().splitlines()
        self.assertEqual(head, ", ".join(CONSUME_COLUMNS))
        values = line.split(", ")
        self.assertEqual(
            (values[2], values[3], values[5]), ("2000", f"{1200 / MEGABYTE:.4f}", "400")
        )

    async def test_some(self) -> None:
        """No more than was asked for; from the end on there is nothing; another partition."""
        await self.startBroker(num_partitions="2")
        await self.publish("t", *PAYLOADS)
        for arguments, count in (
            (("--messages", "30"), 30),
            (("--from-latest",), 0),
            (("--partition", "1"), 0),
        ):
            self.assertEqual(
                json.loads((await self.consume("--json", *arguments)).output)[
                    "data.consumed.in.nMsg"
                ],
                count,
            )
        result = await self.consume("--partition", "2")
        self.assertEqual(
            result, Outcome(1, b"", "pylogbroker: the broker has no partition 2 of topic t\n")
        )

    async def test_detailed(self) -> None:
        """A row each so many messages."""
        await self.startBroker()
        await self.publish("t", *PAYLOADS)
        result = await self.consume(
            "--show-detailed-stats", "--reporting-interval", "50", "--fetch-size", "130"
        )
        head, *lines = result.output.decode().splitlines()
        self.assertEqual(head, ", ".join(SIMPLE_DETAILED_COLUMNS))
        self.assertEqual([line.split(", ")[4] for line in lines], ["50", "100", "150", "200"])
