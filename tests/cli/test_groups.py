"""
Tests for L{pylogbroker.cli.commands.group}, with a real ZooKeeper and brokers that are registered
in it.
"""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.commands.group import formatAges
from pylogbroker.client.offsetlookup import MessageAgeBounds
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.consumer.connector import ConsumerConnector
from tests.cli.clustercase import ClusterCase
from tests.cli.commands import Outcome, reactor


class GroupsTests(ClusterCase):
    """Who is where."""

    async def groups(self, *arguments: str) -> Outcome:
        return await self.perform("group", "describe", *arguments, "--zookeeper", self.servers)

    async def member(self, group: str, consumerId: str) -> ConsumerConnector:
        settings = {
            "zk.connect": self.servers,
            "groupid": group,
            "consumerid": consumerId,
            "autocommit.enable": "false",
        }
        consumer = ConsumerConnector(reactor, settings)
        self.addCleanup(consumer.shutdown)
        await consumer.connect()
        return consumer

    async def test_table(self) -> None:
        """A table for people has members, owners, offsets, log ends and lags."""
        await self.startBrokers(1)
        producer = SyncProducer(reactor, self.brokers[0].endpoint)
        for partition, count in ((0, 6), (1, 4)):
            await producer.send("t", partition, [b"x"] * count)
        await producer.confirm("t", 1)
        await producer.close()
        consumer = await self.member("g", "one")
        [stream] = (await consumer.createMessageStreams({"t": 1}))["t"]
        for _number in range(10):
            await stream.__anext__()
        await consumer.commitOffsets()
        result = await self.groups()
        lines = result.output.decode().splitlines()
        self.assertEqual((result.code, result.errors), (0, ""))
        self.assertEqual(lines[:2], ["group g", '  member g_one  { "t": 1 }'])
        self.assertEqual(
            lines[2].split(), ["TOPIC", "PARTITION", "OFFSET", "END", "LAG", "BEHIND", "OWNER"]
        )
        rows = [
            ["t", "0-0", "66", "66", "0", "0s", "g_one-0"],
            ["t", "0-1", "44", "44", "0", "0s", "g_one-0"],
        ]
        self.assertEqual([line.split() for line in lines[3:]], rows)

    async def test_behind(self) -> None:
        """
        A lag is told in bytes, and in time where segments tell it: a message was written between
        the last writing of the segment before and that of its own.
        """
        await self.startBrokers(1, num_partitions="1", log_file_size="20")
        for number in range(3):
            await self.spread("t", b"%d" % number * 20)  # 30 bytes in the log, a segment each
        now = reactor.seconds()
        await self.restartAged(
            "t", [now - 3600 * hours for hours in (9, 5, 1)], num_partitions="1", log_file_size="20"
        )
        for group, offset in (
            ("start", b"0"),
            ("middle", b"30"),
            ("end", b"90"),
            ("beyond", b"91"),
            ("bad", b"x"),
        ):
            await self.node(f"/consumers/{group}/offsets/t/0-0", offset)
        result = await self.groups("--json")
        found = {
            each["group"]: (each["partitions"][0], each["problems"])
            for each in json.loads(result.output)["groups"]
        }
        hour = 3_600_000

        def told(group: str) -> tuple[Any, ...]:
            partition = found[group][0]
            return partition["offset"], partition["end"], partition["lag"]

        def between(value: int | None, least: float, most: float) -> None:
            assert value is not None
            self.assertTrue(least <= value <= most, (value, least, most))

        self.assertEqual(told("start"), (0, 90, 90))
        self.assertEqual(found["start"][0]["behindMsMax"], None)
        between(found["start"][0]["behindMsMin"], 8.4 * hour, 9.1 * hour)
        self.assertEqual(told("middle"), (30, 90, 60))
        between(found["middle"][0]["behindMsMin"], 4.6 * hour, 5.1 * hour)
        between(found["middle"][0]["behindMsMax"], 9 * hour, 9.7 * hour)
        self.assertEqual(
            (told("end"), found["end"][0]["behindMsMin"], found["end"][0]["behindMsMax"]),
            ((90, 90, 0), 0, 0),
        )
        self.assertEqual(
            (told("beyond"), found["beyond"][1]),
            ((91, 90, -1), ["t 0-0: the offset 91 is behind the end of the log, 90"]),
        )
        self.assertEqual(told("bad"), (None, 90, None))
        self.assertIn("/consumers/bad/offsets/t/0-0", found["bad"][1][0])
        self.assertEqual((result.code, result.errors), (0, ""))
        self.assertRegex(
            (await self.groups("middle")).output.decode(), r"t +0-0 +30 +90 +60 +[45]h-(9|10)h +-\n"
        )

    async def test_json(self) -> None:
        """A document for programs has the same; what nobody has committed is null."""
        await self.startBrokers(1)
        await self.spread("t", b"one")
        consumer = await self.member("g", "one")
        await consumer.createMessageStreams({"t": 1})
        [report] = json.loads((await self.groups("g", "--json")).output)["groups"]
        self.assertEqual(
            (report["group"], report["members"], report["problems"]),
            ("g", [{"id": "g_one", "subscription": '{ "t": 1 }'}], []),
        )
        self.assertEqual(
            [
                {key: each[key] for key in ("topic", "broker", "partition", "owner")}
                for each in report["partitions"]
            ],
            [
                {"topic": "t", "broker": 0, "partition": partition, "owner": "g_one-0"}
                for partition in (0, 1)
            ],
        )

    async def test_problems(self) -> None:
        """
        What others have written and cannot be read, and a broker that does not answer, is named;
        the rest is shown.
        """
        await self.startBrokers(1)
        await self.spread("t", b"one")
        await self.node("/consumers/g/ids/g_garbage", b"garbage")
        await self.node("/consumers/g/ids/g_java", rb"*1*[a[b]]")
        await self.node("/consumers/g/ids/g_white", b"*1*t")
        await self.node("/consumers/g/offsets/t/0-0", b"0")
        await self.node("/consumers/g/offsets/t/garbage", b"0")
        await self.node("/consumers/g/owners/t/0-0", b"g_gone-0")
        await self.node("/brokers/ids/7", b"c:127.0.0.1:1")
        await self.node("/brokers/topics/t/7", b"1")
        await self.node("/brokers/topics/t/8", b"-1")
        result = await self.perform(
            "group", "describe", "g", "--zookeeper", self.servers, "--timeout-ms", "2000"
        )
        self.assertEqual(result.code, 0)
        for part in (
            "/consumers/g/ids/g_garbage",
            "/consumers/g/ids/g_java",
            "/consumers/g/offsets/t/garbage",
            "'g_gone-0', is no thread of a member",
            "broker 7 cannot be asked",
            "/brokers/topics/t/8 has the value -1",
        ):
            self.assertIn(part, result.errors)
        self.assertRegex(
            result.output.decode(),
            r"(?s)group g\n  member g_java .*  member g_white  \*1\*t\n.*t +0-0 .* g_gone-0\n.*t"
            r" +7-0 +- +- +- +- +-\n$",
        )

    async def test_none(self) -> None:
        """No groups at all are said; a group that is not there is an error that says which are."""
        self.assertEqual(await self.groups(), Outcome(0, b"", "there are no consumer groups\n"))
        await self.node("/consumers/there", b"")
        self.assertEqual(
            await self.groups("no"),
            Outcome(1, b"", "pylogbroker: there is no consumer group no; there are: there\n"),
        )
        self.assertEqual((await self.groups()).output, b"group there\n  no members\n")

    async def test_unreachable(self) -> None:
        """
        A ZooKeeper that is not there, or has no such chroot, is an error that names it, within the
        time-out.
        """
        result = await self.perform(
            "group", "describe", "--zookeeper", "127.0.0.1:1", "--timeout-ms", "300"
        )
        self.assertEqual(result.code, 1)
        self.assertRegex(
            result.errors,
            "^pylogbroker: no connection to ZooKeeper at 127.0.0.1:1 within 300 ms.*\n$",
        )
        result = await self.perform("group", "describe", "--zookeeper", f"{self.servers}/no")
        self.assertRegex(
            result.errors, r"^pylogbroker: the chroot \S+/no of \S+ does not exist.*\n$"
        )


class AgesTests(SynchronousTestCase):
    """Ages for people."""

    def test_shown(self) -> None:
        """A range in a unit that fits, rounded outwards; or one end of it; or nothing."""
        for ages, text in (
            (MessageAgeBounds(0, 0), "0s"),
            (MessageAgeBounds(1_999, 90_001), "1s-91s"),
            (MessageAgeBounds(119_999, 120_000), "119s-2m"),
            (MessageAgeBounds(7_199_999, None), ">119m"),
            (MessageAgeBounds(None, 7_200_001), "<3h"),
            (MessageAgeBounds(172_800_000, 10**12), "2d-11575d"),
            (MessageAgeBounds(None, None), "-"),
        ):
            self.assertEqual(formatAges(ages), text)
