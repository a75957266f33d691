"""
What consumer groups leave in a real ZooKeeper, beside what 0.7.2 left there; and a group that is
shared with its algorithm.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from pylogbroker.client.syncproducer import SyncProducer
from pylogbroker.cluster.subscription import blacklist, whitelist
from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.records.messageset import encodeMessage, encodeSet
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.consumer.model07 import Consumer07
from tests.goldenfiles import GOLDEN
from tests.integration.chroots import freshChroot, registered

ALPHA_SIZE, BETA_SIZE = 282, 276
"""
Bytes that were in partition 0 of each topic when 0.7.2's tree was written down, and in no other
partition.
"""


def treeOf072(number: int) -> str:
    """
    A section of the file: 0 with all consumers, 1 the group C{grp} when its second member had left.
    """
    section = (GOLDEN / "zookeeper-tree.txt").read_text(encoding="utf-8").split("\n\n")[number]
    return "".join(f"{line}\n" for line in section.splitlines() if line.startswith("/"))


def timeless(tree: str) -> str:
    """
    Without what is time or chance: consumer ids by their rank, the broker's creation, the counts of
    commits.
    """
    for group in ("grp", "wlgrp", "blgrp"):
        for rank, name in enumerate(
            sorted(set(re.findall(rf"\b{group}_vm-\d{{13}}-[0-9a-f]{{8}}", tree)))
        ):
            tree = tree.replace(name, f"{group}_vm-MILLIS-RANDOM{rank}")
    tree = re.sub(r"-\d{13}:127\.0\.0\.1:\d+'", "-MILLIS:127.0.0.1:PORT'", tree)
    tree = re.sub(r"(offsets/\w+/\d+-\d+ .*) version=\d+", r"\1", tree)
    return re.sub(r" +(?=EPHEMERAL|persistent)", " ", tree)


class TreeTests(TestCase):
    """In a chroot of their own."""

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.servers = await freshChroot("tree")
        self.zookeeper = ZookeeperClient(reactor, self.servers)
        await self.zookeeper.connect()
        self.addCleanup(self.zookeeper.close)
        self.broker = LocalBroker(reactor, registered(self.servers))
        await self.broker.start()
        self.addCleanup(self.broker.stop)

    async def produce(self, **sizes: int) -> None:
        """So many bytes of log in partition 0 of topics."""
        producer = SyncProducer(reactor, self.broker.endpoint)
        for topic, size in sizes.items():
            await producer.send(topic, 0, encodeSet([b"x" * (size - len(encodeMessage(b"")))]))
        await producer.close()
        for topic in sizes:
            await self.until(
                partial(self.zookeeper.exists, f"/brokers/topics/{topic}/0"),
                "the topic is registered",
            )

    async def until(self, holds: Callable[[], Any], text: str) -> None:
        for _attempt in range(600):
            found = holds()
            if await found if isinstance(found, Deferred) else found:
                return
            await deferLater(reactor, 0.05)
        raise AssertionError(f"it did not come to this: {text}")

    async def tree(self, path: str = "") -> str:
        """As in C{golden/zookeeper-tree.txt}."""
        lines = []
        for name in sorted(await self.zookeeper.get_children(path or "/")):
            data, stat = await self.zookeeper.get(f"{path}/{name}")
            kind, value = (
                "EPHEMERAL " if stat.ephemeralOwner else "persistent",
                repr(data.decode()) if data else "None/empty",
            )
            lines.append(
                f"{path + '/' + name:<78} {kind} value={value} len={len(data or b'')}"
                f" version={stat.version}\n{await self.tree(f'{path}/{name}')}"
            )
        return "".join(lines)

    async def consumer(self, group: str) -> ConsumerConnector:
        consumer = ConsumerConnector(
            reactor,
            {
                "zk.connect": self.servers,
                "groupid": group,
                "rebalance.backoff.ms": "100",
                "fetcher.backoff.ms": "20",
            },
            hostName="vm",
        )
        await consumer.connect()
        self.addCleanup(consumer.shutdown)
        return consumer

    async def read(self, stream: MessageStream, size: int) -> None:
        """Messages, until they have so many bytes in the log."""
        while size:
            message = await stream.__anext__()
            size -= len(encodeMessage(message.value))

    async def test_equals072(self) -> None:
        """
        Two members of a group with a fixed topic, one with a whitelist and one with a blacklist:
        the tree is that of 0.7.2, byte for byte but for times, ids and counts of commits. So it is
        when a member has left, and when all have.
        """
        await self.produce(alpha=ALPHA_SIZE, beta=BETA_SIZE)
        white, black = await self.consumer("wlgrp"), await self.consumer("blgrp")
        members = [await self.consumer("grp"), await self.consumer("grp")]
        (whiteStream,) = await white.createMessageStreamsByFilter(whitelist("alpha|beta"))
        (blackStream,) = await black.createMessageStreamsByFilter(blacklist("beta"))
        streams = [
            (await member.createMessageStreams({"alpha": 1}))["alpha"][0] for member in members
        ]
        await self.until(
            lambda: (
                [len(member.owned) for member in members] == [1, 1]
                and all(member.isOwning for member in members)
            ),
            "each has its share",
        )
        await self.read(whiteStream, ALPHA_SIZE + BETA_SIZE)
        await self.read(blackStream, ALPHA_SIZE)
        (reader,) = [
            stream
            for member, stream in zip(members, streams, strict=True)
            if any(place.partition.partition == 0 for place in member.owned)
        ]
        await self.read(reader, ALPHA_SIZE)
        for consumer in (white, black, *members):
            await self.untilBegun(consumer)
            await consumer.commitOffsets()
        self.assertEqual(timeless(await self.tree()), timeless(treeOf072(0)))

        left, stays = sorted(members, key=lambda member: member.consumerId, reverse=True)
        await left.shutdown()
        await self.until(lambda: stays.isOwning and len(stays.owned) == 2, "the other has all")
        self.assertEqual(
            timeless(f"{await self.line('/consumers/grp')}{await self.tree('/consumers/grp')}"),
            timeless(treeOf072(1)),
        )

        for consumer in (white, black, stays):
            await consumer.shutdown()
        remaining = "".join(
            line
            for line in treeOf072(0).splitlines(True)
            if "EPHEMERAL" not in line or line.startswith("/brokers")
        )
        self.assertEqual(timeless(await self.tree()), timeless(remaining))

    async def untilBegun(self, consumer: ConsumerConnector) -> None:
        await self.until(
            lambda: len(consumer.positions) == len(consumer.owned), "all positions are known"
        )

    async def untilShared(self, theirs: Consumer07, ours: ConsumerConnector) -> None:
        await self.until(
            lambda: len(theirs.owned) == len(ours.owned) == 1 and ours.isOwning, "each has one"
        )

    async def line(self, path: str) -> str:
        parent, _slash, name = path.rpartition("/")
        return next(
            line
            for line in (await self.tree(parent)).splitlines(True)
            if line.startswith(f"{parent}/{name} ")
        )

    async def test_sharedWith07(self) -> None:
        """
        A consumer that follows spec-0.7 zookeeper §4 to the letter and ours agree on every share,
        as ours comes and goes, and come to rest.
        """
        await self.produce(alpha=ALPHA_SIZE)
        theirs = Consumer07(
            reactor, ZookeeperClient(reactor, self.servers), "grp", "a", {"alpha": 1}, backoffMs=300
        )
        await theirs.start()
        self.addCleanup(theirs.stop)
        await self.until(lambda: len(theirs.owned) == 2, "they are alone")
        for _time in range(2):
            ours = await self.consumer("grp")
            await ours.createMessageStreams({"alpha": 1})
            await self.untilShared(theirs, ours)
            for name, thread in (("0-0", "grp_a-0"), ("0-1", f"{ours.consumerId}-0")):
                self.assertEqual(
                    (await self.zookeeper.get(f"/consumers/grp/owners/alpha/{name}"))[0],
                    thread.encode(),
                )
            attemptCount = theirs.attemptCount
            await deferLater(reactor, 1)
            self.assertEqual(
                (theirs.attemptCount, ours.isOwning), (attemptCount, True), "nobody fights"
            )
            await ours.shutdown()
            await self.until(lambda: len(theirs.owned) == 2, "they are alone again")
