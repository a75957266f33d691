"""
Tests for L{pylogbroker.cli.commands.group}, with a real ZooKeeper and brokers that are registered
in it.
"""

from __future__ import annotations

import json

from pylogbroker.consumer.connector import ConsumerConnector
from tests.cli.clustercase import ClusterCase
from tests.cli.commands import Outcome, reactor

GOOD = b"Rebalance operation successful !\n"


class GroupVerifyTests(ClusterCase):
    """Whether a group has shared its partitions out."""

    async def verify(self, *arguments: str) -> Outcome:
        return await self.perform("group", "verify", *arguments, "--zookeeper", self.servers)

    async def member(self, consumerId: str) -> ConsumerConnector:
        settings = {
            "zk.connect": self.servers,
            "groupid": "g",
            "consumerid": consumerId,
            "rebalance.backoff.ms": "100",
        }
        consumer = ConsumerConnector(reactor, settings)
        self.addCleanup(consumer.shutdown)
        await consumer.connect()
        await consumer.createMessageStreams({"t": 1})
        return consumer

    async def test_group(self) -> None:
        """
        Right when two members have shared; wrong when a node is gone, or somebody else's; right
        again when it was mended.
        """
        await self.startBrokers(2)
        await self.establish("t", b"one")
        await self.member("one")
        await self.member("two")

        async def isShared() -> bool:
            return len(await self.children("/consumers/g/owners/t")) == 4

        await self.until(isShared)
        self.assertEqual(
            await self.verify("g"), Outcome(0, GOOD, "looked at 4 partitions of 1 group\n")
        )
        # A live member would put its owner nodes back at once; in this group there are only nodes.
        for name in await self.children("/consumers/g/ids"):
            data, _stat = await self.admin.get(f"/consumers/g/ids/{name}")
            await self.node(f"/consumers/h/ids/{name}", data)
        for name in await self.children("/consumers/g/owners/t"):
            data, _stat = await self.admin.get(f"/consumers/g/owners/t/{name}")
            await self.node(f"/consumers/h/owners/t/{name}", data)
        self.assertEqual((await self.verify("h")).output, GOOD)
        path = "/consumers/h/owners/t/0-0"
        owner, _stat = await self.admin.get(path)
        await self.admin.delete(path)
        result = await self.verify("h")
        self.assertEqual(result.code, 1)
        self.assertEqual(
            result.output.decode().splitlines()[1:],
            ["h      t      0-0        -      it has no owner", "Rebalance operation failed !"],
        )
        await self.node(path, b"g_three-0")
        document = json.loads((await self.verify("--json")).output)
        reason = "the owner is no thread of a member that wants this topic"
        fault = {"topic": "t", "broker": 0, "partition": 0, "owner": "g_three-0", "reason": reason}
        self.assertEqual(
            document,
            {
                "groups": [
                    {"group": "g", "partitionCount": 4, "faults": []},
                    {"group": "h", "partitionCount": 4, "faults": [fault]},
                ],
                "problems": [],
                "successful": False,
            },
        )
        await self.admin.set(path, owner)
        self.assertEqual((await self.verify("h")).output, GOOD)

    async def test_garbage(self) -> None:
        """
        What cannot be read is named, and is a failure; a group that is not there is an error; so is
        one without members: it has nothing to share.
        """
        self.assertEqual(
            await self.verify("g"),
            Outcome(1, b"", "pylogbroker: there is no consumer group g; there are: none\n"),
        )
        await self.node("/consumers/g/offsets/t/0-0", b"1")
        nothing = "pylogbroker: there is nothing to verify: no"
        self.assertEqual(await self.verify("g"), Outcome(1, b"", f"{nothing} members in g\n"))
        self.assertEqual(
            await self.verify(), Outcome(1, b"", f"{nothing} consumer group with members\n")
        )
        await self.node("/consumers/g/ids/g_a", b'{ "t": 1 }')
        await self.node("/consumers/g/ids/g_b", b"nonsense")
        await self.node("/consumers/g/owners/t/odd", b"g_a-0")
        result = await self.verify()
        self.assertEqual((result.code, result.output), (1, b"Rebalance operation failed !\n"))
        self.assertIn("/consumers/g/ids/g_b", result.errors)
        self.assertIn("'odd'", result.errors)
        await self.admin.set("/consumers/g/ids/g_b", b"*1*[a[b]]")
        await self.node("/brokers/topics/t/0", b"1")
        result = await self.verify()
        self.assertEqual(result.code, 1)
        self.assertIn("which only Java knows", result.errors)
