"""
Clients of today's Kafka, at their defaults, go on while brokers of a cluster fail one after
another; and the judges and the network of this trial. The long form, with Java and at random, is
C{python -m tests.long.replication --clients all}.
"""

from __future__ import annotations

import os
import socket
from functools import partial
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.chaosrun import runInFolder, steadyPort
from tests.integration.clusterclients import ClusterClientsTrial
from tests.integration.kafkachaosjudge import Entry
from tests.integration.networkproxy import NetworkProxy
from tests.integration.replicalogs import differences

SEED = 14
"""The sizes of messages and their pauses; the faults come in the same order with each."""
SLOWNESS = 5.0
"""The gate must hold on a machine that has other work; the long form allows no slowness."""


class ClusterClientsTests(SynchronousTestCase):
    """Each kind of fault once."""

    def test_faults(self) -> None:
        """
        A broker is killed (-9), one is restarted in order, one stopped, and one cut off in both
        directions, in one and in the other; after each fault all replicas are in sync again and all
        clients go on. In the end nothing that was acknowledged is lost, nothing of an idempotent
        producer is there twice, and its order is kept; groups have got everything, at kept
        positions; copies in transactions are exact; replicas are the same.
        """
        trial = runInFolder("clusterclients", SEED, partial(ClusterClientsTrial, slowness=SLOWNESS))
        figures = trial.figures
        # There was something to lose, and much was done.
        self.assertGreater(figures.okCount, 500)
        self.assertGreaterEqual(figures.copiedCount, len(trial.copiers) * figures.okCount)
        self.assertGreaterEqual(figures.deliveredCount, len(trial.groups) * figures.okCount)
        self.assertGreater(figures.comparedCount, 100_000)
        kinds = ["cut both", "cut in", "cut out", "kill broker", "restart broker", "stop broker"]
        self.assertEqual(figures.faults, dict.fromkeys(kinds, 1))


class PromiseTests(SynchronousTestCase):
    """What producers may do that are not idempotent does not hide what they may not."""

    def test_repetitions(self) -> None:
        """A producer that tries again may store a message twice; an idempotent one may not."""
        entries = [Entry(0, "aiokafka.0.a"), Entry(1, "java.0.j"), Entry(2, "aiokafka.0.a")]
        kept = ClusterClientsTrial._asPromised([*entries, Entry(3, "java.0.j")])
        self.assertEqual([each.offset for each in kept], [0, 1, 3])

    def test_order(self) -> None:
        """The order counts, but for a producer that does not keep it."""
        entries = [Entry(0, "confluent.1.c"), Entry(1, "java.1.j"), Entry(2, "java.0.j")]
        kept = ClusterClientsTrial._asPromised([*entries, Entry(3, "confluent.0.c")])
        self.assertEqual([each.offset for each in kept], [3, 0, 1, 2])


class ReplicaLogTests(SynchronousTestCase):
    """Logs of replicas are compared byte for byte."""

    def test_differences(self) -> None:
        """A byte that differs is named, and a missing end, unless it may be missing."""
        folders = {number: Path(self.mktemp()) for number in (1, 2, 3)}
        for number, data in ((1, b"abcd"), (2, b"abxd"), (3, b"abc")):
            directory = folders[number] / "t-0"
            directory.mkdir(parents=True)
            (directory / "00000000000000000000.log").write_bytes(data)
        count, wrong = differences(folders, ["t-0"])
        self.assertEqual(count, 3)
        self.assertIn("t-0 of broker 2 has 4 bytes, and another one 4; the first 2", wrong[0])
        self.assertIn("t-0 of broker 3 has 3 bytes, and another one 4; the first 3", wrong[1])
        count, wrong = differences(folders, [], ["t-0"])
        self.assertEqual(len(wrong), 1)


class NetworkTests(SynchronousTestCase):
    """A place in the network that is cut off."""

    def setUp(self) -> None:
        self.network = NetworkProxy()
        self.addCleanup(self.network.close)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.listening.close)
        self.port = steadyPort()
        self.network.serve("a", self.port, self.listening.getsockname()[1])

    def connect(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), 60)
        self.addCleanup(made.close)
        return made

    def connected(self) -> tuple[socket.socket, socket.socket]:
        client = self.connect()
        server, _address = self.listening.accept()
        self.addCleanup(server.close)
        return client, server

    def silent(self, end: socket.socket) -> None:
        """Nothing comes."""
        end.settimeout(0.05)
        self.assertRaises(TimeoutError, end.recv, 10)
        end.settimeout(60)

    def test_oneWay(self) -> None:
        """What goes one way waits, and comes when the cut is healed; the other way is open."""
        client, server = self.connected()
        self.network.cut("a", "out")
        client.sendall(b"there")
        self.assertEqual(server.recv(10), b"there")
        server.sendall(b"back")
        self.silent(client)
        self.network.heal()
        self.assertEqual(client.recv(10), b"back")
        self.network.cut("a", "in")
        server.sendall(b"back")
        self.assertEqual(client.recv(10), b"back")
        client.sendall(b"there")
        self.silent(server)
        self.network.heal()
        self.assertEqual(server.recv(10), b"there")

    def test_newConnections(self) -> None:
        """While one way is cut, no connection is made; the end of one waits, too."""
        client, server = self.connected()
        self.network.cut("a", "in")
        second = self.connect()
        second.sendall(b"second")
        self.listening.settimeout(0.05)
        self.assertRaises(TimeoutError, self.listening.accept)
        self.listening.settimeout(60)
        client.close()
        self.silent(server)
        self.network.heal()
        self.assertEqual(server.recv(10), b"")
        other, _address = self.listening.accept()
        self.addCleanup(other.close)
        other.settimeout(60)
        self.assertEqual(other.recv(10), b"second")

    def test_clients(self) -> None:
        """A connection belongs to the process that has made it, and is cut with its place."""
        self.network.settle("b", os.getpid())
        client, server = self.connected()
        self.network.cut("b", "both")
        client.sendall(b"there")
        server.sendall(b"back")
        self.silent(server)
        self.silent(client)
        self.network.heal()
        self.assertEqual(server.recv(10), b"there")
        self.assertEqual(client.recv(10), b"back")
