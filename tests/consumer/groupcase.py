"""
What tests of groups share: a cluster on a clock, members, and what they got.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.consumer.connector import ConsumerConnector
from pylogbroker.consumer.stream import MessageStream
from pylogbroker.errors import NoNodeException, NotEmptyException
from pylogbroker.types import BrokerPartition, PartitionId
from tests.consumer.fakebroker import FarCluster

START = 1_795_194_789.952
SESSION_TIMEOUT = 6.0


def place(text: str, topic: str = "t") -> PartitionId:
    """C{"0-1"} of a topic."""
    broker, _, partition = text.partition("-")
    return PartitionId(topic, BrokerPartition(int(broker), int(partition)))


def drain(*streams: MessageStream) -> list[Any]:
    """The values of all that can be had now."""
    values = []
    for stream in streams:
        while (message := stream.take()) is not None:
            values.append(message.value)
    return values


async def deleteTree(zookeeper: Any, path: str) -> None:
    """
    Delete a node and all below, as C{deleteall} of ZooKeeper's shell does; what is made again
    meanwhile stays, and so does what is above it.
    """
    try:
        for name in await zookeeper.get_children(path):
            await deleteTree(zookeeper, f"{path}/{name}")
        await zookeeper.delete(path)
    except (NoNodeException, NotEmptyException):
        pass


class GroupCase(SynchronousTestCase):
    """A cluster with one broker, 0, and a topic C{t} of two partitions."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(START)
        self.cluster = FarCluster(self.clock)
        self.broker = self.cluster.addBroker(0, {"t": 2})
        self.sessions: dict[ConsumerConnector, Any] = {}
        self.memberCount = 0

    def member(
        self, properties: Mapping[str, str] | None = None, **arguments: Any
    ) -> ConsumerConnector:
        """A member of the group C{g}, connected."""
        session = self.cluster.zookeeper.client()
        self.memberCount += 1
        member = ConsumerConnector(
            self.clock,
            {
                "groupid": "g",
                "consumerid": f"m{self.memberCount}",
                "rebalance.backoff.ms": "200",
                **(properties or {}),
            },
            session,
            hostName="vm",
            random=Random(self.memberCount),
            endpointFor=self.cluster.endpointFor,
            **arguments,
        )
        self.sessions[member] = session
        self.cluster.do(member.connect())
        self.addCleanup(self.end, member)
        return member

    def end(self, member: ConsumerConnector) -> None:
        """Shut down, however long it takes."""
        done: list[object] = []
        member.shutdown().addBoth(done.append)
        self.cluster.advance(60)
        self.assertEqual(done, [None])

    def streams(
        self, member: ConsumerConnector, topics: dict[str, int] | None = None, decode: Any = None
    ) -> list[MessageStream]:
        """Join, and wait until it is settled."""
        return self.soon(member.createMessageStreams(topics or {"t": 1}, decode))[
            next(iter(topics or {"t": 1}))
        ]

    def soon(self, doing: Deferred[Any], seconds: float = 3) -> Any:
        """The result of what takes a little."""
        self.cluster.advance(seconds)
        return self.successResultOf(doing)

    def offset(self, text: str, topic: str = "t") -> str | None:
        """What is stored."""
        found = self.cluster.zookeeper.tree().get(f"/consumers/g/offsets/{topic}/{text}")
        return None if found is None else found[0].decode()

    def owners(self, topic: str = "t") -> dict[str, str]:
        """Who has what, by ZooKeeper."""
        root = f"/consumers/g/owners/{topic}/"
        return {
            path.removeprefix(root): data.decode()
            for path, (data, _owner) in self.cluster.zookeeper.tree().items()
            if path.startswith(root)
        }
