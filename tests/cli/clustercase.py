"""
What the tests of the commands with C{--zookeeper} share: brokers that are registered in a chroot of
their own of a real ZooKeeper.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from glob import glob
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pylogbroker.producer.producer import Producer
from pylogbroker.testing.localbroker import LocalBroker
from pylogbroker.zookeeper.client import ZookeeperClient
from pylogbroker.zookeeper.ephemeral import createPersistent
from tests.cli.commands import CommandCase, Outcome, reactor
from tests.integration.chroots import freshChroot, registered


class ClusterCase(CommandCase):
    """
    @ivar servers: of ZooKeeper, with the chroot.
    @ivar admin: a client of it.
    """

    timeout = 120

    async def setUp(self) -> None:  # type: ignore[override]
        self.servers = await freshChroot("commands")
        self.admin: Any = ZookeeperClient(reactor, self.servers)
        self.addCleanup(self.admin.close)
        await self.admin.connect()
        self.brokers: list[LocalBroker] = []

    async def startBrokers(self, brokerCount: int = 2, **properties: str) -> None:
        """Brokers of two partitions each; keys with underscores for dots."""
        for number in range(brokerCount):
            self.brokers.append(await self._startBroker(number, properties))

    async def _startBroker(
        self, number: int, properties: Mapping[str, str], directory: str | None = None
    ) -> LocalBroker:
        broker = LocalBroker(
            reactor,
            {
                **registered(self.servers, number),
                **{key.replace("_", "."): value for key, value in properties.items()},
            },
            directory,
        )
        self.addCleanup(broker.stop)
        await broker.start()
        return broker

    async def restartAged(self, topic: str, times: Sequence[float], **properties: str) -> None:
        """
        Start the only broker anew with its data, the segments of partition 0 last written to at
        given times.

        @param times: seconds since the epoch, of as many segments, the oldest first.
        """
        [old] = self.brokers
        await old.broker.stop()
        for path, seconds in zip(
            sorted(glob(os.path.join(old.directory, f"{topic}-0", "*.kafka"))), times, strict=False
        ):
            os.utime(path, (seconds, seconds))
        await self._startBroker(0, properties, old.directory)

    async def establish(self, topic: str, *payloads: bytes) -> None:
        """
        Have a topic on all brokers, with the same messages in partition 0 of each, by default
        C{first}: a producer stays with the brokers that have a topic (0.7's way).
        """
        for broker in self.brokers:
            self.broker = broker
            await self.publish(topic, *(payloads or (b"first",)))

        async def isRegistered() -> bool:
            return len(await self.children(f"/brokers/topics/{topic}")) == len(self.brokers)

        await self.until(isRegistered)

    async def spread(self, topic: str, *payloads: bytes) -> None:
        """Put messages into the cluster; each payload is its own key."""
        producer = Producer(reactor, {"zk.connect": self.servers, "confirm": "true"})
        for payload in payloads:
            await producer.send(topic, payload, payload)
        await producer.close()

    async def stored(self, topic: str) -> dict[tuple[int, int], list[bytes]]:
        """All that the brokers hold, by broker and partition, without what holds nothing."""
        found = {}
        for number, broker in enumerate(self.brokers):
            self.broker = broker
            for partition in range(2):
                if messages := await self.messages(topic, partition):
                    found[number, partition] = messages
        return found

    async def node(self, path: str, data: bytes) -> None:
        """Somebody writes a node."""
        await createPersistent(self.admin, path)
        await self.admin.set(path, data)

    async def children(self, path: str) -> list[str]:
        """Sorted; none of a node that is not there."""
        return list(await self.admin.get_children(path)) if await self.admin.exists(path) else []

    async def until(self, holds: Any) -> None:
        """Wait until a coroutine function returns something true."""
        while not await Deferred.fromCoroutine(holds()):
            await deferLater(reactor, 0.02)

    async def consumed(self, *arguments: str, output: int = -1) -> Outcome:
        """C{consume}."""
        return await self.perform("consume", "--zookeeper", self.servers, *arguments, output=output)
