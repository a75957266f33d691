"""
Every tool as a process on a live cluster of processes, its figures compared with the truth: what
the brokers hold, and what stands in ZooKeeper.

The tests of each command (C{tests/cli}) go into its corners; here is shown that what it says is so.
"""

from __future__ import annotations

import json
import os
from itertools import count
from typing import Any

from pylogbroker.cli.commands.perf import MEGABYTE
from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.records.messageset import encodeSet
from pylogbroker.types import BrokerPartition
from tests.cli.commands import CommandCase, Outcome, reactor
from tests.integration.toolcluster import PARTITION_COUNT, ToolCluster, sharedCluster

_numbers = count()
PAYLOADS = [b"message %05d" % number for number in range(1_000)]
PLACES = [
    BrokerPartition(broker, partition)
    for broker in range(2)
    for partition in range(PARTITION_COUNT)
]


class ToolTests(CommandCase):
    """
    @ivar topic: with messages in all partitions.
    @ivar truth: what the brokers hold of it.
    """

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.cluster: ToolCluster = await sharedCluster()
        self.topic = f"tools{next(_numbers)}"
        await self.cluster.establish(self.topic)
        await self.cluster.spread(self.topic, PAYLOADS)
        self.truth = await self.cluster.stored(self.topic)
        self.assertEqual(sorted(self.truth), PLACES)
        self.ends = {place: messages[-1][1] for place, messages in self.truth.items()}
        self.payloads = sorted(
            payload for messages in self.truth.values() for payload, _nextOffset in messages
        )

    async def handle(self, *arguments: str) -> Outcome:
        """A tool, as a process."""
        return await self.spawn(*arguments)[0].ended

    async def inCluster(self, *arguments: str) -> Outcome:
        """One that is told where ZooKeeper is, and must succeed."""
        result = await self.handle(*arguments, "--zookeeper", self.cluster.servers)
        self.assertEqual(result.code, 0, result.errors)
        return result

    def address(self, number: int) -> str:
        """Where it is."""
        return f"127.0.0.1:{self.cluster.brokers[number].port}"

    async def test_offsets(self) -> None:
        """Begin, end, and where the segments of a partition begin, as their files are called."""
        for place, end in self.ends.items():
            arguments = (
                "offset",
                "list",
                "--broker",
                self.address(place.broker),
                "--topic",
                self.topic,
                "--partition",
                str(place.partition),
            )
            self.assertEqual(await self.handle(*arguments), Outcome(0, b"%d\n" % end, ""))
            self.assertEqual(
                await self.handle(*arguments, "--time", "earliest"), Outcome(0, b"0\n", "")
            )
            folder = os.path.join(
                self.cluster.brokers[place.broker].directory, f"{self.topic}-{place.partition}"
            )
            starts = {int(name.partition(".")[0]) for name in os.listdir(folder)}
            self.assertGreater(len(starts), 1)
            found = set(map(int, (await self.handle(*arguments, "--count", "1000")).output.split()))
            self.assertEqual(found, starts | {end})

    async def test_brokers(self) -> None:
        """Who is there, where, and that they answer."""
        found = json.loads((await self.inCluster("broker", "list", "--json")).output)["brokers"]
        places = [(each["broker"], each["host"], each["port"], each["answers"]) for each in found]
        self.assertEqual(
            places,
            [
                (number, "127.0.0.1", broker.port, True)
                for number, broker in enumerate(self.cluster.brokers)
            ],
        )

    async def test_topics(self) -> None:
        """The partitions of a topic and their sizes."""
        [found] = json.loads(
            (await self.inCluster("topic", "describe", self.topic, "--json")).output
        )["topics"]
        self.assertEqual(
            {
                BrokerPartition(each["broker"], each["partition"]): (each["start"], each["end"])
                for each in found["partitions"]
            },
            {place: (0, end) for place, end in self.ends.items()},
        )
        self.assertEqual(found["size"], sum(self.ends.values()))

    async def test_groups(self) -> None:
        """Where a group is, and how far it is behind."""
        offsets = {place: messages[len(messages) // 2][1] for place, messages in self.truth.items()}
        await self.cluster.put(f"{self.topic}-group", self.topic, offsets)
        [found] = json.loads(
            (await self.inCluster("group", "describe", f"{self.topic}-group", "--json")).output
        )["groups"]
        told = {
            BrokerPartition(each["broker"], each["partition"]): (
                each["offset"],
                each["end"],
                each["lag"],
            )
            for each in found["partitions"]
        }
        self.assertEqual(
            told,
            {
                place: (offsets[place], end, end - offsets[place])
                for place, end in self.ends.items()
            },
        )

    async def test_exportImportReset(self) -> None:
        """
        Positions go out, are reset to the end and to the beginning, and come in again as they were.
        """
        group = f"{self.topic}-group"
        offsets = {place: messages[len(messages) // 3][1] for place, messages in self.truth.items()}
        await self.cluster.put(group, self.topic, offsets)
        path = os.path.join(self.mktemp())
        await self.inCluster("group", "export", group, "--output", path)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(
                file.read(),
                "".join(
                    f"/consumers/{group}/offsets/{self.topic}/{place}:{offsets[place]}\n"
                    for place in PLACES
                ),
            )
        for where, expected in (
            (("--to-latest",), self.ends),
            (("--to-earliest",), dict.fromkeys(PLACES, 0)),
            (("--to-datetime", "2001-01-01"), dict.fromkeys(PLACES, 0)),
        ):
            before = await self.cluster.positions(group, self.topic)
            shown = json.loads(
                (await self.inCluster("group", "reset", group, *where, "--json")).output
            )["changes"]
            told = {
                BrokerPartition(each["broker"], each["partition"]): (each["old"], each["new"])
                for each in shown
            }
            self.assertEqual(told, {place: (before[place], expected[place]) for place in PLACES})
            self.assertEqual(await self.cluster.positions(group, self.topic), before)
            await self.inCluster("group", "reset", group, *where, "--execute")
            self.assertEqual(await self.cluster.positions(group, self.topic), expected)
        await self.inCluster("group", "import", path, "--execute")
        self.assertEqual(await self.cluster.positions(group, self.topic), offsets)

    async def test_verifyGroup(self) -> None:
        """
        A group that owns all its partitions has shared well; with a member that has died a moment
        ago, and holds them by name only, it has not.
        """
        group = f"{self.topic}-group"
        consumer = ConsumerConnector(
            reactor, {"zk.connect": self.cluster.servers, "groupid": group, "consumerid": "one"}
        )
        self.addCleanup(consumer.shutdown)
        await consumer.connect()
        await consumer.createMessageStreams({self.topic: 2})
        result = await self.inCluster("group", "verify", group)
        self.assertEqual(
            result[1:],
            (b"Rebalance operation successful !\n", "looked at 4 partitions of 1 group\n"),
        )
        await consumer.shutdown()
        self.addCleanup(self.cluster.forget, f"/consumers/{group}/ids/{group}_two")
        await self.cluster.node(
            f"/consumers/{group}/owners/{self.topic}/0-0", f"{group}_one-0".encode()
        )
        await self.cluster.node(
            f"/consumers/{group}/ids/{group}_two", b'{ "%s": 1 }' % self.topic.encode()
        )
        result = await self.handle(
            "group", "verify", group, "--json", "--zookeeper", self.cluster.servers
        )
        faults = json.loads(result.output)["groups"][0]["faults"]
        self.assertEqual(result.code, 1)
        self.assertEqual(
            [(each["broker"], each["partition"]) for each in faults],
            [tuple(place) for place in PLACES],
        )
        self.assertEqual([each["owner"] for each in faults], [f"{group}_one-0", None, None, None])

    async def test_replay(self) -> None:
        """A copy of a topic has the same messages."""
        found = json.loads(
            (
                await self.inCluster(
                    "replay", "--topic", self.topic, "--to-topic", f"{self.topic}-copy", "--json"
                )
            ).output
        )
        size = sum(map(len, self.payloads))
        self.assertEqual((found["messageCount"], found["payloadSize"]), (len(self.payloads), size))
        copied = await self.cluster.stored(f"{self.topic}-copy")
        self.assertEqual(
            sorted(payload for messages in copied.values() for payload, _nextOffset in messages),
            self.payloads,
        )

    async def test_metrics(self) -> None:
        """The figures of a broker, before and after a load, differ by the load."""
        place = BrokerPartition(1, 0)
        names = ("messages_in", "bytes_in")
        arguments = [
            word
            for name in names
            for word in ("--name", f'pylogbroker_topic_{name}_total{{topic="{self.topic}"}}')
        ]
        url = f"http://127.0.0.1:{self.cluster.figuresPort(place.broker)}/metrics"

        async def figures() -> list[int]:
            result = await self.handle(
                "metrics", "--url", url, "--count", "1", "--json", *arguments
            )
            self.assertEqual((result.code, result.errors), (0, ""))
            found = json.loads(result.output)
            return [
                found[f'pylogbroker_topic_{name}_total{{topic="{self.topic}"}}'] for name in names
            ]

        before = await figures()
        data = encodeSet([b"x" * 10] * 7)
        producer = SyncProducer(reactor, self.address(place.broker))
        await producer.send(self.topic, place.partition, data)
        await producer.confirm(self.topic, place.partition)
        await producer.close()
        self.assertEqual(
            [after - old for after, old in zip(await figures(), before, strict=True)],
            [7, len(data)],
        )

    async def test_segments(self) -> None:
        """
        C{verify} finds all segments good, with as many messages and bytes as there are; C{dump}
        shows each message.
        """
        for place, messages in self.truth.items():
            folder = os.path.join(
                self.cluster.brokers[place.broker].directory, f"{self.topic}-{place.partition}"
            )
            result = await self.handle("verify", folder, "--json")
            segments: list[dict[str, Any]] = json.loads(result.output)["segments"]
            self.assertEqual((result.code, {each["fault"] for each in segments}), (0, {None}))
            self.assertEqual(sum(each["messageCount"] for each in segments), len(messages))
            self.assertEqual(sum(each["size"] for each in segments), messages[-1][1])
            result = await self.handle(
                "dump", *[os.path.join(folder, name) for name in sorted(os.listdir(folder))]
            )
            self.assertEqual(result.code, 0)
            shown = [
                line.partition(b"\t")[2]
                for line in result.output.splitlines()
                if line.startswith(b"payload:\t")
            ]
            self.assertEqual(shown, [payload for payload, _nextOffset in messages])

    async def test_perfProduce(self) -> None:
        """
        What the tool says it has sent is what the brokers hold; its rates are these by the time
        that it took.
        """
        topic = f"{self.topic}-perf"
        arguments = (
            "--topic",
            topic,
            "--messages",
            "5000",
            "--message-size",
            "200",
            "--async",
            "--json",
        )
        found = json.loads((await self.inCluster("perf", "produce", *arguments)).output)
        payloads = [
            payload
            for messages in (await self.cluster.stored(topic)).values()
            for payload, _nextOffset in messages
        ]
        self.assertEqual((len(payloads), sum(map(len, payloads))), (5_000, 1_000_000))
        self.assertEqual(
            (found["total.data.sent.in.nMsg"], found["total.data.sent.in.MB"]),
            (5_000, 1_000_000 / MEGABYTE),
        )
        self.assertAlmostEqual(found["MB.sec"] / found["nMsg.sec"], 200 / MEGABYTE)

    async def test_perfConsume(self) -> None:
        """
        What the tools say they have read is what the brokers hold: of the whole topic as a group,
        and of each partition.
        """
        size = sum(map(len, self.payloads))
        found = json.loads(
            (
                await self.inCluster(
                    "perf", "consume", "--topic", self.topic, "--idle-ms", "1000", "--json"
                )
            ).output
        )
        self.assertEqual(
            (found["data.consumed.in.nMsg"], found["data.consumed.in.MB"]),
            (len(self.payloads), size / MEGABYTE),
        )
        for place, messages in self.truth.items():
            arguments = ("--topic", self.topic, "--partition", str(place.partition), "--json")
            result = await self.handle(
                "perf", "simple-consume", "--broker", self.address(place.broker), *arguments
            )
            found = json.loads(result.output)
            self.assertEqual(found["data.consumed.in.nMsg"], len(messages))
            self.assertEqual(
                found["data.consumed.in.MB"],
                sum(len(payload) for payload, _nextOffset in messages) / MEGABYTE,
            )


class WaitingTests(CommandCase):
    """Tools that are asked about what is not there any more."""

    timeout = 120

    async def test_gone(self) -> None:
        """A tool that cannot reach ZooKeeper says so in a line, within its time-out."""
        for arguments in (
            ("topic", "list"),
            ("broker", "list"),
            ("group", "verify"),
            ("group", "export"),
            ("replay", "--topic", "a", "--to-topic", "b"),
        ):
            result = await self.spawn(
                *arguments, "--zookeeper", "127.0.0.1:1", "--timeout-ms", "500"
            )[0].ended
            self.assertEqual((result.code, result.output), (1, b""))
            self.assertRegex(result.errors, "pylogbroker: .*\n$")
            self.assertNotIn("Traceback", result.errors)
