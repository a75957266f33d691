"""
Tests for L{pylogbroker.producer.startup}.
"""

from __future__ import annotations

from typing import Any

import pylogbroker.zookeeper.client
from pylogbroker.errors import (
    ClosedError,
    PylogbrokerError,
    TimedOutError,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from tests.producer.producercase import ClusterCase


class StartingTests(ClusterCase):
    """Who is there, and whom that takes how long."""

    def test_noZookeeper(self) -> None:
        """A ZooKeeper that does not answer is a failure of each call, in time; the next call tries again."""
        self.server.disconnect(self.zookeeper)
        producer = self.clustered()
        sending = producer.send("t", b"x")
        self.cluster.pass_(14, 0.5)
        self.failureResultOf(sending, ZookeeperTimeoutException)
        self.server.reconnect(self.zookeeper)
        self.register(0, "a:1")
        self.done(producer.send("t", b"y"))
        self.close(producer)

    def test_closedWhileLooking(self) -> None:
        """Closing is bounded while a topic is being looked up, too."""
        self.server.disconnect(self.zookeeper)
        for mode in ("sync", "async"):
            producer = self.clustered({"producer.type": mode})
            sendings = [
                producer.send("t", b"x"),
                producer.send("t", b"y"),
                producer.send("t", b"y", "k"),
            ]
            closing = producer.close(1000)
            self.cluster.pass_(2)
            self.failureResultOf(closing, TimedOutError)
            for sending in sendings:
                self.failureResultOf(sending, PylogbrokerError)
            self.books()
            self.failureResultOf(producer.start(), ClosedError)

    def test_ownZookeeper(self) -> None:
        """Without a client one is made as zk.connect says; it goes with the producer, and at once when the start fails."""
        made: list[Any] = []

        def make(_reactor: Any, servers: str, _timeout: int, **_options: str) -> Any:
            self.assertEqual(servers, "z:2181")
            made.append(self.server.client())
            return made[-1]

        self.patch(pylogbroker.zookeeper.client, "ZookeeperClient", make)
        self.register(0, "a:1")
        given = {"broker.list": None, "zk.connect": "z:2181"}
        producer = self.producer(given)
        starting, again = producer.start(), producer.start()
        self.done(starting)
        self.successResultOf(again)
        self.assertTrue(made[0].connected)
        self.close(producer)
        self.assertTrue(made[0].isClosed)
        self.server.latency = 0.1
        starting = self.producer(given).start()
        self.cluster.pass_(0.4)
        self.server.disconnect(made[1])
        self.turn()
        self.failureResultOf(starting, ZookeeperError)
        self.assertTrue(made[1].isClosed)
