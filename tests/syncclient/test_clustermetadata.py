"""Tests for L{pylogbroker.syncclient.clustermetadata}, at a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, make_digest_acl
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster.metadata import GetData, Node
from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import (
    ConfigurationError,
    InvalidNameError,
    NoNodeException,
    RemoteUnknownError,
    ZnodeError,
    ZookeeperError,
    ZookeeperTimeoutException,
)
from pylogbroker.protocol.kafka07.requests import encodeFetch
from pylogbroker.protocol.kafka07.responses import fetchHeader
from pylogbroker.syncclient import SimpleConsumer
from pylogbroker.syncclient.clustermetadata import StaticMetadata, ZookeeperMetadata, parseBrokers
from pylogbroker.types import BrokerPartition
from tests.integration.zookeeperprocess import sharedZookeeper
from tests.syncclient.fakebroker import FakeBrokerCase

_numbers = count()


class ZookeeperViewTests(SynchronousTestCase):
    """What the registries say."""

    def setUp(self) -> None:
        shared = sharedZookeeper().servers
        self.chroot = f"/clusterview{next(_numbers)}"
        self.admin = KazooClient(hosts=shared)
        self.admin.start()
        self.addCleanup(self.admin.close)
        self.addCleanup(self.admin.stop)
        self.view = ZookeeperMetadata(shared + self.chroot, timeoutMs=60_000)
        self.addCleanup(self.view.close)

    def put(self, path: str, data: bytes) -> None:
        """Somebody writes a node."""
        self.admin.create(self.chroot + path, data, makepath=True)

    def test_empty(self) -> None:
        """
        A chroot where no broker has been yet has nothing; a chroot that is not there is an error.
        """
        self.assertIn(self.chroot, str(self.assertRaises(NoNodeException, self.view.topics)))
        self.admin.create(self.chroot)
        self.assertEqual(
            (self.view.brokers(), self.view.topics(), self.view.partitions("t")), ({}, [], [])
        )

    def test_registered(self) -> None:
        """
        Brokers with their addresses, topics by name, partitions by broker and number; each time as
        it is now.
        """
        for number in (10, 2):
            self.put(f"/brokers/ids/{number}", b"creator:h%d:9092" % number)
            self.put(f"/brokers/topics/t/{number}", b"2")
        self.put("/brokers/topics/a", b"")
        self.assertEqual(
            self.view.brokers(),
            {number: BrokerAddress(number, f"h{number}", 9092) for number in (2, 10)},
        )
        self.assertEqual(self.view.topics(), ["a", "t"])
        self.assertEqual(
            self.view.partitions("t"),
            [BrokerPartition(*pair) for pair in ((2, 0), (2, 1), (10, 0), (10, 1))],
        )
        self.assertEqual(self.view.partitions("a"), [])
        self.admin.delete(f"{self.chroot}/brokers/topics/t/10")
        self.assertEqual(len(self.view.partitions("t")), 2)

    def test_garbage(self) -> None:
        """Values and names that do not belong there hide themselves alone."""
        for path, data in (
            ("/brokers/ids/1", b"nothing"),
            ("/brokers/ids/x", b"c:h:1"),
            ("/brokers/ids/2", b"c:h:1"),
            ("/brokers/topics/t/1", b"many"),
            ("/brokers/topics/t/2", b"1"),
            ("/brokers/topics/t/3", b"1000000"),
            ("/brokers/topics/t/02", b"1"),
        ):
            self.put(path, data)
        self.assertEqual(list(self.view.brokers()), [2])
        self.assertEqual(self.view.partitions("t"), [BrokerPartition(2, 0)])
        self.assertRaises(InvalidNameError, self.view.partitions, "a/b")

    def test_goneMeanwhile(self) -> None:
        """A node that goes between the list and its reading is not there."""
        self.put("/brokers/ids/1", b"c:h:1")
        self.put("/brokers/topics/t/1", b"1")
        read = self.view._nodes

        def late(nodes: Sequence[Node]) -> list[Any]:
            for node in nodes:
                if isinstance(node, GetData):
                    self.admin.delete(self.chroot + node.path)
            return read(nodes)

        self.patch(self.view, "_nodes", late)
        self.assertEqual((self.view.brokers(), self.view.partitions("t")), ({}, []))

    def test_numbers(self) -> None:
        """A number can be kept, and read again; another takes its place."""
        self.admin.create(self.chroot)
        path = "/pylogbroker/sinks/query"
        self.assertIsNone(self.view.number(path))
        for number in (3, 4):
            self.view.storeNumber(path, number)
            self.assertEqual(self.view.number(path), number)
        self.admin.set(self.chroot + path, b"x")
        self.assertRaises(ZnodeError, self.view.number, path)

    def test_usedAgain(self) -> None:
        """A view that was closed connects again when it is asked; closing twice is nothing."""
        self.admin.create(self.chroot)
        with self.view as view:
            self.assertEqual(view.topics(), [])
        self.view.close()
        self.assertEqual(self.view.topics(), [])

    def test_ownNodes(self) -> None:
        """
        With credentials, nodes that are made belong to them, as far as C{acl} says; without, to
        everybody.
        """
        self.admin.create(self.chroot)
        own = make_digest_acl("me", "secret", all=True)
        for acl, expected in (
            ("private", [own]),
            ("readable", [own, *READ_ACL_UNSAFE]),
            ("open", OPEN_ACL_UNSAFE),
        ):
            with ZookeeperMetadata(
                sharedZookeeper().servers + self.chroot,
                digest="me:secret",
                acl=acl,
                timeoutMs=60_000,
            ) as view:
                view.storeNumber(f"/{acl}", 5)
            self.admin.add_auth("digest", "me:secret")
            self.assertEqual(self.admin.get_acls(f"{self.chroot}/{acl}")[0], expected)
        self.view.storeNumber("/plain", 5)
        self.assertEqual(self.admin.get_acls(f"{self.chroot}/plain")[0], OPEN_ACL_UNSAFE)

    def test_refused(self) -> None:
        """What ZooKeeper refuses is an error that names the path."""
        self.put("/brokers/ids", b"")
        self.admin.set_acls(
            f"{self.chroot}/brokers/ids", [make_digest_acl("user", "password", all=True)]
        )
        self.assertIn("/brokers/ids", str(self.assertRaises(ZookeeperError, self.view.brokers)))
        allowed = ZookeeperMetadata(
            sharedZookeeper().servers + self.chroot, digest="user:password", timeoutMs=60_000
        )
        self.addCleanup(allowed.close)
        self.assertEqual(allowed.brokers(), {})


class UnreachableTests(FakeBrokerCase):
    """A ZooKeeper that does not answer."""

    def test_nobody(self) -> None:
        """Connecting ends after the time that was given, with an error that names the address."""
        view = ZookeeperMetadata(f"127.0.0.1:{self.unusedPort()}", timeoutMs=200)
        self.assertIn(
            "within 200 ms", str(self.assertRaises(ZookeeperTimeoutException, view.topics))
        )

    def test_noAddress(self) -> None:
        """What cannot be an address is refused."""
        self.assertRaises(ConfigurationError, ZookeeperMetadata("127.0.0.1:port").topics)


class StaticViewTests(FakeBrokerCase):
    """What listed brokers say."""

    def view(self) -> StaticMetadata:
        """Of the far end, as broker 4."""
        return StaticMetadata(
            [BrokerAddress(4, "127.0.0.1", self.port)],
            consumer=lambda address: SimpleConsumer(address.host, address.port, timeoutMs=60_000),
        )

    def test_partitions(self) -> None:
        """A broker has partitions up to the first that it knows nothing of, wherever they begin."""
        call = self.start(self.view().partitions, "t")
        far = self.accept()
        for partition, code in enumerate((0, 1, 3)):
            self.assertEqual(far.readFrame(), encodeFetch("t", partition, 0, 0))
            far.write(fetchHeader(code, 0))
        self.assertEqual(self.result(call), [BrokerPartition(4, 0), BrokerPartition(4, 1)])
        self.assertTrue(far.isEnded())

    def test_otherCode(self) -> None:
        """Another error code is an error."""
        call = self.start(self.view().partitions, "t")
        far = self.accept()
        far.readFrame()
        far.write(fetchHeader(-1, 0))
        self.failure(call, RemoteUnknownError)

    def test_topics(self) -> None:
        """Which topics there are nobody can say; who is there was said."""
        with self.view() as view:
            self.assertRaises(ConfigurationError, view.topics)
            self.assertEqual(list(view.brokers()), [4])
        self.assertIn("1 brokers", repr(view))


class ParseBrokersTests(SynchronousTestCase):
    """Lists of brokers."""

    def test_forms(self) -> None:
        """With numbers, or numbered in order."""
        self.assertEqual(
            parseBrokers("7:h:1, 3:g:2"), (BrokerAddress(7, "h", 1), BrokerAddress(3, "g", 2))
        )
        self.assertEqual(
            parseBrokers("h:1,g:2,"), (BrokerAddress(0, "h", 1), BrokerAddress(1, "g", 2))
        )

    def test_refusals(self) -> None:
        """What is no list is refused."""
        for text in ("", "h", "h:1,2:g:2", "1:h:1,1:g:2", "h:port", "1:h:0"):
            self.assertIn("brokers", str(self.assertRaises(ConfigurationError, parseBrokers, text)))
