"""Brokers of a cluster that follow the metadata log, on one clock."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from pylogbroker.broker.metadata.zookeeperlog import ZookeeperLog
from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.kafka.metadatalog import HEAD, Change, Head, changePath
from pylogbroker.cluster.metadataimage import MetadataImage, decodeRecords, encodeRecords
from pylogbroker.testing.worker import ManualWorker
from pylogbroker.testing.zookeeper import FakeZookeeper

SESSION_MS = 6_000


class ImmediateWorker(ManualWorker):
    """Runs its jobs at once."""

    def submit(self, work: Callable[[], Any]) -> Deferred[Any]:
        submitted = super().submit(work)
        self.perform()
        return submitted


class Member:
    """
    A broker's metadata.

    @ivar client: of ZooKeeper.
    """

    def __init__(self, cluster: Cluster, brokerId: int) -> None:
        self.client = cluster.server.client(SESSION_MS)
        self.log = ZookeeperLog(
            cluster.clock,
            cluster.clock.seconds,
            self.client,
            brokerId,
            ImmediateWorker(),
            cluster.random,
        )
        self.manager = MetadataManager(self.log, cluster.random.randbytes)

    def close(self) -> None:
        self.manager.close()
        self.client.close()


class Cluster:
    """
    A ZooKeeper in memory, and brokers that follow the log in it.

    @ivar images: the records of each image that any broker has had, by its number.
    """

    def __init__(self, random: Random, latencyMs: float = 0) -> None:
        self.clock = Clock()
        self.random = random
        self.server = FakeZookeeper(self.clock, latencyMs)
        self.members: list[Member] = []
        self.brokers: list[Any] = []
        self.images: dict[int, bytes] = {}

    def member(self) -> Member:
        """A broker that has read the log; the first one makes the cluster."""
        made = Member(self, len(self.members))
        made.manager.listen(lambda: self.compare(made.manager))
        self.settle(made.client.connect())
        if not self.settle(made.log.open(made.manager)):
            self.settle(made.log.create([made.manager.newCluster()]))
            assert self.settle(made.log.open(made.manager))
        self.members.append(made)
        return made

    def compare(self, manager: MetadataManager) -> None:
        found = encodeRecords(sorted(manager.image.records(), key=repr))
        assert self.images.setdefault(manager.position, found) == found, manager.position

    def imageAt(self, number: int) -> MetadataImage:
        """The image of a number, from all changes up to it."""
        image = MetadataImage()
        for each in range(1, number + 1):
            path = changePath(each)
            for record in decodeRecords(Change.decode(path, self.server.get(path)[0]).records):
                image.apply(record)
        return image

    def settle(self, waiting: Deferred[Any], seconds: float = 60) -> Any:
        """The result, which comes within a time of the clock."""
        outcomes: list[Any] = []
        waiting.addBoth(outcomes.append)
        end = self.clock.seconds() + seconds
        while not outcomes and self.clock.seconds() < end:
            self.clock.advance(0.01)
        assert outcomes, "nothing came"
        if isinstance(outcomes[0], Failure):
            outcomes[0].raiseException()
        return outcomes[0]

    def run(self, seconds: float, step: float = 0.05) -> None:
        for _step in range(round(seconds / step)):
            self.clock.advance(step)

    @property
    def head(self) -> Head:
        return Head.decode(self.server.get(HEAD)[0])
