"""
Tests for L{pylogbroker.cli.commands.perf}, with a real ZooKeeper and brokers that are registered in
it.
"""

from __future__ import annotations

import json

from pylogbroker.cli.commands.perf import MEGABYTE, PRODUCE_COLUMNS, PRODUCE_DETAILED_COLUMNS
from tests.cli.clustercase import ClusterCase
from tests.cli.commands import Outcome


class PerfProduceTests(ClusterCase):
    """How fast messages can be published."""

    async def produce(self, *arguments: str) -> Outcome:
        return await self.perform("perf", "produce", "--topic", "t", *arguments)

    async def truth(self) -> tuple[int, int]:
        """Messages that the brokers hold, and bytes of them."""
        payloads = [payload for found in (await self.stored("t")).values() for payload in found]
        return len(payloads), sum(map(len, payloads))

    async def test_summary(self) -> None:
        """
        The columns are 0.7's; what they say was sent is what the brokers hold, in both modes and by
        several producers, to the last message.
        """
        await self.startBrokers(2)
        await self.establish("t", b"")
        before = len(self.brokers)
        for index, mode in enumerate(
            ((), ("--async",), ("--async", "--threads", "3", "--confirm"))
        ):
            result = await self.produce(
                "--zookeeper",
                self.servers,
                "--messages",
                "1003",
                "--message-size",
                "50",
                "--batch-size",
                "40",
                *mode,
            )
            self.assertEqual((result.code, result.errors), (0, ""))
            head, line = result.output.decode().splitlines()
            self.assertEqual(head, ", ".join(PRODUCE_COLUMNS))
            values = line.split(", ")
            self.assertEqual(values[2:6], ["0", "50", "40", f"{1003 * 50 / MEGABYTE:.2f}"])
            self.assertEqual(values[7], "1003")
            self.assertLessEqual(values[0], values[1])
            self.assertEqual(
                await self.truth(), (before + (index + 1) * 1003, (index + 1) * 1003 * 50)
            )

    async def test_broker(self) -> None:
        """One broker, without ZooKeeper; sizes by chance and compression; JSON."""
        await self.startBrokers(1)
        place = ("--broker", self.brokers[0].endpoint.replace("tcp:", ""))
        result = await self.produce(
            *place, "--messages", "100", "--vary-message-size", "--compression", "gzip", "--json"
        )
        self.assertEqual((result.code, result.errors), (0, ""))
        row = json.loads(result.output)
        count, size = await self.truth()
        self.assertEqual(
            (row["total.data.sent.in.nMsg"], row["total.data.sent.in.MB"], row["compression"]),
            (count, size / MEGABYTE, 1),
        )
        self.assertEqual(count, 100)
        self.assertTrue(100 < size < 100 * 100)

    async def test_detailed(self) -> None:
        """
        A row each so many messages, with the sum so far and the producer's number, and none for
        all.
        """
        await self.startBrokers(1)
        arguments = (
            "--messages",
            "100",
            "--batch-size",
            "10",
            "--show-detailed-stats",
            "--reporting-interval",
            "30",
        )
        result = await self.produce("--zookeeper", self.servers, *arguments)
        head, *lines = result.output.decode().splitlines()
        self.assertEqual(head, ", ".join(PRODUCE_DETAILED_COLUMNS))
        self.assertEqual([line.split(", ")[2] for line in lines], ["0"] * 3)
        self.assertEqual([line.split(", ")[7] for line in lines], ["30", "60", "90"])
        result = await self.produce("--zookeeper", self.servers, *arguments, "--hide-header")
        self.assertEqual(len(result.output.splitlines()), 3)

    async def test_away(self) -> None:
        """Without brokers it is an error, in both modes."""
        for mode in ((), ("--async",)):
            result = await self.produce(
                "--broker", "127.0.0.1:1", "--timeout-ms", "300", "--messages", "5", *mode
            )
            self.assertEqual(result.code, 1)
            self.assertIn("pylogbroker: ", result.errors)
        result = await self.produce("--broker", "tls:localhost:9093", "--messages", "5")
        self.assertEqual(
            result.errors,
            "pylogbroker: --broker tls:localhost:9093: here it is a name or an IPv4 address, a"
            " colon and a port\n",
        )
