"""
Producers and consumer groups at brokers that are registered in a real ZooKeeper.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater
from twisted.internet.utils import getProcessOutputAndValue
from twisted.trial.unittest import TestCase

from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.errors import NoNodeException, ZookeeperTimeoutException
from pylogbroker.producer.producer import Producer
from pylogbroker.testing import LocalBroker
from pylogbroker.zookeeper.client import ZookeeperClient
from tests.consumer.groupcase import deleteTree
from tests.integration.chroots import freshChroot, registered

ROOT = Path(__file__).resolve().parent.parent.parent


class ClusterTestCase(TestCase):
    """Two brokers of two partitions each, in a chroot of their own."""

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.servers = await freshChroot("groups")
        self.brokers: list[LocalBroker] = []
        for number in (0, 1):
            broker = LocalBroker(reactor, registered(self.servers, number))
            await broker.start()
            self.addCleanup(broker.stop)
            self.brokers.append(broker)


class GroupTests(ClusterTestCase):
    """From a producer that finds its brokers to the members of a group that share what it sent."""

    async def member(self) -> tuple[ConsumerConnector, MessageStream]:
        settings = {
            "zk.connect": self.servers,
            "groupid": "g",
            "rebalance.backoff.ms": "100",
            "fetcher.backoff.ms": "20",
            "autocommit.interval.ms": "200",
        }
        consumer = ConsumerConnector(reactor, settings)
        await consumer.connect()
        self.addCleanup(consumer.shutdown)
        streams: dict[str, list[MessageStream]] = await consumer.createMessageStreams({"clicks": 1})
        return consumer, streams["clicks"][0]

    async def test_sharedOnce(self) -> None:
        """
        What a confirming producer sent, two members read: each message once, and those of a key in
        their order.
        """
        producer = Producer(
            reactor,
            {
                "zk.connect": self.servers,
                "producer.type": "async",
                "batch.size": "20",
                "queue.time": "50",
                "confirm": "true",
            },
        )
        await producer.start()
        await producer.send(
            "clicks", b"0:0", key="key 0"
        )  # the topic comes into being, and is registered
        members = [await self.member() for _ in range(2)]
        total = 400
        await gatherResults(
            [
                producer.send("clicks", b"%d:%d" % (number % 7, number), key=f"key {number % 7}")
                for number in range(1, total)
            ]
        )
        await producer.close()
        self.assertEqual(
            (
                producer.counters.writtenCount,
                producer.counters.failedCount,
                producer.counters.unknownCount,
            ),
            (total, 0, 0),
        )

        read: list[Any] = []
        done: Deferred[None] = Deferred()

        async def drain(stream: MessageStream) -> None:
            async for message in stream:
                read.append(message)
                if len(read) == total:
                    done.callback(None)

        drains = [Deferred.fromCoroutine(drain(stream)) for _consumer, stream in members]
        await done.addTimeout(60, reactor)
        for consumer, _stream in members:
            await consumer.shutdown()
        await gatherResults(drains)

        pairs = [tuple(map(int, message.value.split(b":"))) for message in read]
        self.assertEqual(sorted(number for _key, number in pairs), list(range(total)))
        for key in range(7):
            self.assertEqual(
                [number for each, number in pairs if each == key],
                [number for number in range(total) if number % 7 == key],
            )


class DeletedGroupTests(ClusterTestCase):
    """
    Somebody deletes all nodes of a group: an operator, or 0.7's C{ConsoleConsumer --from-beginning}
    that is started into it.
    """

    async def until(self, holds: Callable[[], Awaitable[Any]]) -> None:
        """Wait for something to be so."""
        while not await holds():
            await deferLater(reactor, 0.02)

    async def tree(self, path: str) -> dict[str, bytes | None]:
        """The nodes without children below a path, and what is in them."""
        found: dict[str, bytes | None] = {}
        try:
            for name in await self.operator.get_children(path):
                below = await self.tree(f"{path}/{name}")
                found.update(
                    below or {f"{path}/{name}": (await self.operator.get(f"{path}/{name}"))[0]}
                )
        except NoNodeException:
            pass
        return found

    async def test_comesBack(self) -> None:
        """
        Registration, owner nodes and stored offsets come back though no message does, C{group
        verify} is content, and nothing comes twice.
        """
        self.operator = ZookeeperClient(reactor, self.servers)
        await self.operator.connect()
        self.addCleanup(self.operator.close)
        producer = Producer(reactor, {"zk.connect": self.servers, "confirm": "true"})
        await producer.start()
        self.addCleanup(producer.close)
        await producer.send("clicks", b"first", key="a")
        consumer = ConsumerConnector(
            reactor,
            {
                "zk.connect": self.servers,
                "groupid": "g",
                "rebalance.backoff.ms": "100",
                "fetcher.backoff.ms": "20",
                "autocommit.interval.ms": "200",
            },
        )
        await consumer.connect()
        self.addCleanup(consumer.shutdown)
        [stream] = (await consumer.createMessageStreams({"clicks": 1}))["clicks"]
        self.assertEqual((await stream.__anext__()).value, b"first")

        async def isWhole() -> bool:
            tree = await self.tree("/consumers/g")
            kinds = Counter(path.split("/")[3] for path in tree)
            return consumer.isOwning and kinds == {
                "ids": 1,
                "owners": len(consumer.owned),
                "offsets": len(consumer.owned),
            }

        await self.until(isWhole)
        before = await self.tree("/consumers/g")
        await deleteTree(self.operator, "/consumers/g")
        await self.until(isWhole)
        self.assertEqual(await self.tree("/consumers/g"), before)
        environment = {"PYTHONPATH": str(ROOT), **os.environ}
        output, errors, status = await getProcessOutputAndValue(
            sys.executable,
            ["-m", "pylogbroker", "group", "verify", "g", "--zookeeper", self.servers],
            env=environment,
        )
        self.assertEqual(status, 0, (output, errors))
        await producer.send("clicks", b"second", key="a")
        self.assertEqual((await stream.__anext__()).value, b"second")


class WrongPlaceTests(ClusterTestCase):
    """A ZooKeeper that is not there, or not what was meant."""

    async def both(self, servers: str, kind: type[Exception], text: str) -> None:
        """A producer and a member of a group fail alike, in time, and leave nothing behind."""
        producer = Producer(reactor, {"zk.connect": servers, "zk.connectiontimeout.ms": "1000"})
        consumer = ConsumerConnector(
            reactor, {"zk.connect": servers, "zk.connectiontimeout.ms": "1000", "groupid": "g"}
        )
        startings: tuple[Deferred[Any], ...] = (producer.start(), consumer.connect())
        for starting in startings:
            error = await self.assertFailure(starting, kind)
            self.assertIn(text, str(error))
        await producer.close()
        await consumer.shutdown()

    async def test_unreachable(self) -> None:
        """One that cannot be reached is a timed error that names it."""
        await self.both(
            "127.0.0.1:1",
            ZookeeperTimeoutException,
            "no connection to ZooKeeper at 127.0.0.1:1 within 1000 ms",
        )

    async def test_missingChroot(self) -> None:
        """A chroot that does not exist is an error that names it."""
        await self.both(f"{self.servers}/no", NoNodeException, "/no of ")


class PageTests(ClusterTestCase):
    """What the README says of clusters."""

    async def test_readme(self) -> None:
        """
        The README's commands for a cluster do what it says: lines come in at one end and out at the
        other, and the group is up to date.
        """
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        [commands] = [
            text
            for text in re.findall(r"^```sh\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
            if "pylogbroker group describe" in text
        ]
        path = self.mktemp()
        Path(path).write_text(
            "".join(f"line {number}\n" for number in range(100)), encoding="utf-8"
        )
        outputs = []
        for command in (
            commands.replace("/var/log/dpkg.log", path)
            .replace("localhost:2181", self.servers)
            .splitlines()
        ):
            words = [
                *command.split()[1:],
                *(("--max-messages", "100") if "consume" in command else ()),
            ]
            environment = {"PYTHONPATH": str(ROOT), **os.environ}
            output, errors, status = await getProcessOutputAndValue(
                sys.executable, ["-m", "pylogbroker", *words], env=environment
            )
            self.assertEqual(status, 0, errors)
            outputs.append(output)
        self.assertEqual(
            sorted(outputs[1].splitlines()), sorted(b"line %d" % number for number in range(100))
        )
        title, members, _headings, *rows = outputs[2].splitlines()
        self.assertEqual((title, members), (b"group readers", b"  no members"))
        lags = {row.split()[4] for row in rows}
        self.assertTrue(
            b"0" in lags and lags <= {b"0", b"-"}, outputs[2]
        )  # a partition that got nothing may have no offset yet
