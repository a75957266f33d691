"""
Tests for L{pylogbroker.cli.commands.produce}, with a real ZooKeeper and brokers that are registered
in it.
"""

from __future__ import annotations

import json
import os

from pylogbroker.cli.commands.produce import FETCH_SIZE
from pylogbroker.client.syncproducer import SyncProducer
from tests.cli.clustercase import ClusterCase
from tests.cli.commands import Outcome, reactor

PAYLOADS = [b"%03d" % number for number in range(300)]


class ReplayTests(ClusterCase):
    """Copying a topic."""

    async def replay(self, *arguments: str) -> Outcome:
        return await self.perform(
            "replay", "--topic", "t", "--to-topic", "u", "--zookeeper", self.servers, *arguments
        )

    async def copied(self, topic: str = "u") -> list[bytes]:
        """All that is in a topic."""
        return [payload for payloads in (await self.stored(topic)).values() for payload in payloads]

    async def test_all(self) -> None:
        """
        Every message is copied once, those of compressed sets and empty ones, too, and as many are
        counted.
        """
        await self.startBrokers(2)
        await self.establish("t", b"", b"first")
        self.broker = self.brokers[1]
        await self.publish("t", b"inside", b"a", b"set", codec=1)
        await self.spread("t", *PAYLOADS)
        result = await self.replay("--json", "--batch-size", "7", "--compression", "gzip")
        expected = sorted([b"", b"first"] * 2 + [b"inside", b"a", b"set"] + PAYLOADS)
        self.assertEqual(sorted(await self.copied()), expected)
        size = sum(map(len, expected))
        self.assertEqual(
            json.loads(result.output),
            {"topic": "t", "toTopic": "u", "messageCount": len(expected), "payloadSize": size},
        )
        self.assertEqual(
            (result.code, result.errors),
            (
                0,
                (
                    f"replayed {len(expected):,} messages ({size} B) of t to u, whose brokers have"
                    " taken them all\n"
                ),
            ),
        )

    async def test_itself(self) -> None:
        """
        A topic that is copied into itself is doubled, and no more: the ends count that were there
        at the start.
        """
        await self.startBrokers(1)
        await self.establish("t", *PAYLOADS)
        result = await self.perform(
            "replay", "--topic", "t", "--to-topic", "t", "--zookeeper", self.servers
        )
        self.assertEqual(result.code, 0)
        self.assertEqual(sorted(await self.copied("t")), sorted(PAYLOADS * 2))

    async def test_some(self) -> None:
        """No more than was asked for, the oldest of a partition first."""
        await self.startBrokers(1)
        await self.establish("t", *PAYLOADS)
        self.assertEqual((await self.replay("--max-messages", "25")).code, 0)
        self.assertEqual(sorted(await self.copied()), PAYLOADS[:25])

    async def test_large(self) -> None:
        """
        A message that is larger than a fetch is copied; one that is too large for the target is
        told.
        """
        await self.startBrokers(1, max_message_size=str(4 * FETCH_SIZE))
        self.broker = self.brokers[0]
        producer = SyncProducer(reactor, self.broker.endpoint, payloadSizeMax=4 * FETCH_SIZE)
        large = b"x" * (2 * FETCH_SIZE)
        await producer.send("t", 0, [b"small", large, b"behind"])
        await producer.confirm("t", 0)
        await producer.close()
        result = await self.replay("--max-message-size", str(4 * FETCH_SIZE))
        self.assertEqual(result.code, 0, result.errors)
        self.assertEqual(sorted(map(len, await self.copied())), [5, 6, 2 * FETCH_SIZE])
        result = await self.replay()
        self.assertEqual(result.code, 1)
        self.assertRegex(result.errors, "(?s)^pylogbroker: .*of 3 messages [012] were confirmed")

    async def test_damaged(self) -> None:
        """What is no message is told with its place."""
        await self.startBrokers(1)
        await self.establish("t", b"good", b"bad", b"good")
        with open(
            os.path.join(self.brokers[0].directory, "t-0", "0" * 20 + ".kafka"), "r+b"
        ) as file:
            file.seek(14 + 10)
            file.write(b"B")
        result = await self.replay()
        self.assertEqual(result.code, 1)
        self.assertIn("the message at offset 14 of t 0-0 is not valid: checksum", result.errors)

    async def test_away(self) -> None:
        """Without all of its brokers a topic is not copied; nor is one that is not there."""
        await self.startBrokers(1)
        self.assertIn("there is no topic t", (await self.replay("--timeout-ms", "5000")).errors)
        await self.establish("t", b"one")
        await self.node("/brokers/topics/t/7", b"1")
        result = await self.replay()
        self.assertEqual(
            result,
            Outcome(1, b"", "pylogbroker: broker 7 cannot be asked: broker 7 is not registered\n"),
        )
        self.assertEqual(await self.copied(), [])
