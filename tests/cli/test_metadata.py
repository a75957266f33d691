"""C{metadata move}, with a real ZooKeeper."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.task import deferLater

from pylogbroker.cluster.kafka.metadatalog import HEAD, ROOT
from pylogbroker.errors import StorageError
from pylogbroker.testing.localbroker import LocalBroker
from tests.cli.clustercase import ClusterCase


class MoveTests(ClusterCase):
    """A broker that was a cluster of one, and then is the first of several."""

    async def begin(self, number: int, name: str) -> str:
        """A broker with a topic, stopped. Returns its directory."""
        directory = self.mktemp()
        broker = await self._startBroker(number, {}, directory)
        await broker.broker.service.kafka.topics.create(name, 3)
        self.clusterId = broker.broker.service.kafka.metadata.image.clusterId
        await broker.stop()
        return directory

    def image(self, broker: LocalBroker) -> Any:
        return broker.broker.service.kafka.metadata.image

    async def move(self, directory: str, *more: str) -> Any:
        return await self.perform(
            "metadata", "move", "--log-dir", directory, "--zookeeper", self.servers, *more
        )

    async def test_move(self) -> None:
        """
        The metadata are in ZooKeeper, the directory says so, and the broker serves the same topics
        with the setting; without it, it does not start.
        """
        directory = await self.begin(4, "t")
        clusterId = self.clusterId
        outcome = await self.move(directory, "--dry-run")
        self.assertEqual(outcome.code, 0, outcome.errors)
        self.assertIn("would move 1 topic with 3 partitions of broker 4", outcome.errors)
        self.assertIs(await self.admin.exists(ROOT), None)
        outcome = await self.move(directory)
        self.assertEqual(outcome.code, 0, outcome.errors)
        self.assertIn("1 topic among them", outcome.errors)
        self.assertIn(f"belongs to cluster {clusterId} now", outcome.errors)
        self.assertFalse(os.path.exists(f"{directory}/metadata.journal"))
        with self.assertRaises(StorageError):
            await self._startBroker(4, {}, directory)
        again = await self.move(directory)
        self.assertEqual(again.code, 1)
        self.assertIn("are in ZooKeeper already", again.errors)
        broker = await self._startBroker(4, {"metadata_store": "zookeeper"}, directory)
        found = self.image(broker)
        self.assertEqual((found.clusterId, list(found.topics)), (clusterId, ["t"]))
        self.assertEqual([each.leader for each in found.topics["t"].partitions], [4] * 3)
        outcome = await self.move(directory)
        self.assertIn("another broker has it", outcome.errors)
        await broker.stop()

    async def test_intoCluster(self) -> None:
        """A second broker brings its topics; one with a topic of the same name is refused."""
        first, second, third = [
            await self.begin(number, name) for number, name in ((1, "a"), (2, "b"), (3, "a"))
        ]
        self.assertEqual((await self.move(first)).code, 0)
        outcome = await self.move(second)
        self.assertEqual(outcome.code, 0, outcome.errors)
        before = await self.admin.get(HEAD)
        outcome = await self.move(third)
        self.assertEqual(outcome.code, 1)
        self.assertIn("topics of these names already: a. Nothing was changed", outcome.errors)
        self.assertEqual(await self.admin.get(HEAD), before)
        self.assertTrue(os.path.exists(f"{third}/metadata.journal"))
        brokers = [
            await self._startBroker(number, {"metadata_store": "zookeeper"}, directory)
            for number, directory in ((1, first), (2, second))
        ]
        for each in brokers:
            image = self.image(each)
            self.assertEqual(set(image.topics), {"a", "b"})
            self.assertIn(image.clusterId, Path(each.directory, "meta.properties").read_text())

        def leaders() -> list[int]:
            return [each.leader for each in self.image(brokers[0]).topics["b"].partitions]

        for _turn in range(500):  # broker 1 learns of them a little later
            if leaders() == [2] * 3:
                break
            await deferLater(reactor, 0.02)
        self.assertEqual(leaders(), [2] * 3)

    async def test_interrupted(self) -> None:
        """A move that was interrupted before it renamed the journal is repeated."""
        directory = await self.begin(1, "a")
        self.assertEqual((await self.move(directory)).code, 0)
        before = await self.admin.get(HEAD)
        os.rename(f"{directory}/metadata.journal.moved", f"{directory}/metadata.journal")
        outcome = await self.move(directory)
        self.assertEqual(outcome.code, 0, outcome.errors)
        self.assertIn("wrote 0 records", outcome.errors)
        self.assertEqual(await self.admin.get(HEAD), before)

    async def test_nothingToMove(self) -> None:
        """A new directory needs no move, and a missing one is an error."""
        directory = self.mktemp()
        self.assertIn("there is no directory", (await self.move(directory)).errors)
        os.mkdir(directory)
        self.assertIn("needs no move", (await self.move(directory)).errors)
        self.assertEqual(os.listdir(directory), [".lock"])
        os.mkdir(f"{directory}/__cluster_metadata-0")
        self.assertIn("is Apache Kafka's", (await self.move(directory)).errors)
