"""
C{twistd pylogbroker} with C{enable.zookeeper} at a real ZooKeeper.
"""

from __future__ import annotations

import os
import re
import signal
from itertools import count
from typing import Any

from kazoo.client import KazooClient
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.protocol.kafka07.requests import encodeProduce
from pylogbroker.records.messageset import encodeSet
from tests.contracts.zookeeperbench import freePort
from tests.goldenfiles import GOLDEN
from tests.integration.brokerprocess import BrokerProcess, until
from tests.integration.zookeeperprocess import sharedZookeeper

SESSION_MS = 2_000
_numbers = count()


def treeOf072() -> str:
    """
    The broker's part of what 0.7.2 wrote (hostname=127.0.0.1, port=29095, num.partitions=2, topics
    alpha and beta).
    """
    section = (GOLDEN / "zookeeper-tree.txt").read_text(encoding="utf-8").split("\n\n")[0]
    return "".join(f"{line}\n" for line in section.splitlines() if line.startswith("/brokers"))


class RegistrationTests(SynchronousTestCase):
    """Brokers as processes; each test has a chroot of its own."""

    def setUp(self) -> None:
        self.chroot = f"/registration{next(_numbers)}"
        servers = sharedZookeeper().servers
        outer = KazooClient(servers)
        outer.start()
        outer.create(self.chroot)
        outer.stop()
        outer.close()
        self.kazoo: Any = KazooClient(servers + self.chroot)
        self.kazoo.start()
        self.addCleanup(self.kazoo.close)
        self.addCleanup(self.kazoo.stop)

    def broker(self, directory: str | None = None, **changes: str) -> BrokerProcess:
        properties = {
            "enable.zookeeper": "true",
            "zk.connect": sharedZookeeper().servers + self.chroot,
            "zk.sessiontimeout.ms": str(SESSION_MS),
            "num.partitions": "2",
            **{key.replace("_", "."): value for key, value in changes.items()},
        }
        broker = BrokerProcess(os.path.abspath(directory or self.mktemp()), properties)
        self.addCleanup(broker.kill)
        return broker

    def tree(self, path: str = "") -> str:
        """As in C{golden/zookeeper-tree.txt}."""
        lines = []
        for name in sorted(self.kazoo.get_children(path or "/")):
            data, stat = self.kazoo.get(f"{path}/{name}")
            kind, value = (
                "EPHEMERAL " if stat.ephemeralOwner else "persistent",
                repr(data.decode()) if data else "None/empty",
            )
            lines.append(
                f"{path + '/' + name:<78} {kind} value={value} len={len(data or b'')}"
                f" version={stat.version}\n{self.tree(f'{path}/{name}')}"
            )
        return "".join(lines)

    def produce(self, broker: BrokerProcess, *topics: str) -> None:
        client = broker.client()
        self.addCleanup(client.close)
        for topic in topics:
            client.send(encodeProduce(topic, 0, encodeSet([b"x"])))

    def test_tree(self) -> None:
        """
        The tree is that of 0.7.2, byte for byte but for the time; an orderly end takes the entries
        away at once and leaves the parents.
        """
        broker = self.broker().start()
        self.produce(broker, "alpha", "beta")
        until(lambda: self.kazoo.exists("/brokers/topics/beta/0"), "the topics are registered")

        def timeless(tree: str) -> str:
            return re.sub(r"-\d{13}:", "-MILLIS:", tree)

        self.assertEqual(
            timeless(self.tree()).replace(f":{broker.port}'", ":29095'"), timeless(treeOf072())
        )
        self.assertEqual(broker.stop(), 0)
        self.assertEqual(
            self.tree(),
            "".join(line for line in treeOf072().splitlines(True) if "EPHEMERAL" not in line),
        )

    def test_duplicate(self) -> None:
        """
        A second broker with the same number ends with status 1 and one line that names both; the
        first goes on.
        """
        first = self.broker().start()
        second = self.broker()
        second.launch()
        self.assertEqual(second.wait(), 1)
        said = [line for line in second.lines if "pylogbroker: brokerid=0: " in line]
        self.assertTrue(said, second.log)
        self.assertIn(f"127.0.0.1:{first.port}", said[0])
        self.assertRegex(said[0], r"this one is 127\.0\.0\.1:\d+")
        self.assertNotIn("Traceback", second.log)
        self.assertTrue(first.isRunning)
        self.assertIsNotNone(self.kazoo.exists("/brokers/ids/0"))

    def test_fastRestart(self) -> None:
        """
        A broker that was killed and is started at once waits for its old session to end, and is
        then registered for good, with its topics.
        """
        broker = self.broker(
            self.mktemp(), zk_sessiontimeout_ms="8000"
        ).start()  # longer than a start takes on a busy machine
        self.produce(broker, "alpha")
        until(lambda: self.kazoo.exists("/brokers/topics/alpha/0"), "the topic is registered")
        broker.kill()
        self.assertIsNotNone(self.kazoo.exists("/brokers/ids/0"))
        again = self.broker(broker.directory, zk_sessiontimeout_ms="8000").start()
        again.waitForLine("/brokers/ids/0 is taken by a broker at")
        until(lambda: self.kazoo.exists("/brokers/topics/alpha/0"), "the topic is registered")
        data, stat = self.kazoo.get("/brokers/ids/0")
        self.assertTrue(data.endswith(f":{again.port}".encode()))
        self.assertEqual(
            self.kazoo.get("/brokers/topics/alpha/0")[1].ephemeralOwner, stat.ephemeralOwner
        )

    def test_expiry(self) -> None:
        """
        A broker whose machine stands still for so long that its session expires is registered again
        when it goes on, with its topics, and serves.
        """
        broker = self.broker().start()
        self.produce(broker, "alpha")
        until(lambda: self.kazoo.exists("/brokers/topics/alpha/0"), "the topic is registered")
        before = self.kazoo.get("/brokers/ids/0")
        os.kill(broker.pid, signal.SIGSTOP)
        until(lambda: not self.kazoo.exists("/brokers/ids/0"), "the session has expired")
        os.kill(broker.pid, signal.SIGCONT)
        until(lambda: self.kazoo.exists("/brokers/topics/alpha/0"), "the topic is registered again")
        data, stat = self.kazoo.get("/brokers/ids/0")
        self.assertEqual(data.split(b":")[1:], before[0].split(b":")[1:])
        self.assertNotEqual((data, stat.ephemeralOwner), (before[0], before[1].ephemeralOwner))
        self.assertEqual(
            self.kazoo.get("/brokers/topics/alpha/0")[1].ephemeralOwner, stat.ephemeralOwner
        )
        self.produce(broker, "beta")
        until(lambda: self.kazoo.exists("/brokers/topics/beta/0"), "a new topic is registered")

    def test_deletedBySomebody(self) -> None:
        """Entries that somebody deletes are back a moment later, and the log says why."""
        broker = self.broker().start()
        self.produce(broker, "alpha")
        until(lambda: self.kazoo.exists("/brokers/topics/alpha/0"), "the topic is registered")
        session = self.kazoo.get("/brokers/ids/0")[1].ephemeralOwner
        for path in ("/brokers/topics/alpha/0", "/brokers/ids/0"):
            self.kazoo.delete(path)
        until(lambda: self.kazoo.exists("/brokers/topics/alpha/0"), "all is registered again")
        self.assertEqual(self.kazoo.get("/brokers/ids/0")[1].ephemeralOwner, session)
        self.assertIn("/brokers/ids/0 was deleted, and not by this broker", broker.log)

    def failsWith(self, text: str, **changes: str) -> None:
        broker = self.broker(**changes)
        broker.launch()
        self.assertEqual(broker.wait(), 1)
        self.assertIn(text, broker.log)
        self.assertNotIn("Traceback", broker.log)

    def test_unreachable(self) -> None:
        """Without a ZooKeeper the start ends with status 1 when its time is over."""
        port = freePort()
        text = f"pylogbroker: no connection to ZooKeeper at 127.0.0.1:{port} within 500 ms"
        self.failsWith(text, zk_connect=f"127.0.0.1:{port}", zk_connectiontimeout_ms="500")

    def test_missingChroot(self) -> None:
        """So it does with a chroot that does not exist, which is named."""
        self.failsWith("the chroot /nowhere of", zk_connect=f"{sharedZookeeper().servers}/nowhere")

    def test_literal(self) -> None:
        """And with an address that cannot be told."""
        self.failsWith("IPv6", hostname="::1")

    def test_several(self) -> None:
        """Brokers come and go, without a master; each has its own entries."""
        brokers = [self.broker(brokerid=str(number)) for number in range(3)]
        for broker in brokers:
            broker.start()
            self.produce(broker, "alpha")
        until(
            lambda: (
                self.kazoo.exists("/brokers/topics")
                and len(self.kazoo.get_children("/brokers/topics/alpha")) == 3
            ),
            "all have the topic",
        )
        self.assertEqual(sorted(self.kazoo.get_children("/brokers/ids")), ["0", "1", "2"])
        brokers[1].stop()
        brokers[2].kill()
        self.assertEqual(sorted(self.kazoo.get_children("/brokers/topics/alpha")), ["0", "2"])
        until(
            lambda: self.kazoo.get_children("/brokers/topics/alpha") == ["0"],
            "the killed one's session ends",
        )
