"""
A cluster of processes that is given no rest, and whether the books balance in the end; the long
form is C{python -m tests.long.chaos}.
"""

from __future__ import annotations

import socket
import struct
import threading
from functools import partial
from random import SystemRandom

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.chaos import ChaosTrial
from tests.integration.chaosjudge import (
    ZOOKEEPER,
    Bounds,
    Entry,
    Fault,
    Sender,
    Sent,
    judgeGroup,
    judgeLogs,
)
from tests.integration.chaosrun import runInFolder
from tests.integration.cuttingproxy import ANSWER, REQUEST, CuttingProxy

SECONDS = 30
SLOWNESS = 10.0
"""The gate must hold on a machine that has other work; the long form allows no slowness."""

BOUNDS = Bounds(commitSeconds=2, noticeSeconds=3)


class ChaosTests(SynchronousTestCase):
    """Half a minute of faults, from a seed."""

    def chaos(self) -> None:
        seed = SystemRandom().randrange(1 << 32)
        trial = runInFolder("chaos", seed, partial(ChaosTrial, seconds=SECONDS, slowness=SLOWNESS))
        figures = trial.figures
        # There was something to lose, and much was done.
        self.assertGreater(figures.okCount, 1_000)
        self.assertGreaterEqual(figures.deliveredCount, 2 * figures.loggedCount)
        self.assertEqual(
            set(figures.faults) - {"join", "leave"},
            {
                "kill member",
                "stop member",
                "expire session",
                "kill broker",
                "stop broker",
                "restart zookeeper",
                "cut in request",
                "cut in answer",
            },
        )

    def test_firstSeed(self) -> None:
        """
        Members join, leave, are killed and stopped, brokers too, sessions end, ZooKeeper is
        restarted, connections are cut inside a frame: all that was sent is in the logs or was
        reported, each group got all that is there, in order, and twice only for a reason; in the
        end each partition has its one owner.
        """
        self.chaos()

    def test_secondSeed(self) -> None:
        """The same, with other chances."""
        self.chaos()


LOGS = {
    "t/0-0": [Entry("p0.0.1", 10), Entry("p0.1.2", 20), Entry("p0.2.1", 30)],
    "t/1-0": [Entry("p0.3.0", 0, 15), Entry("p0.4.0", 15, 15)],
}
SENT = Sent(range(6), {0: "ok", 1: "ok", 2: "unknown", 3: "ok", 4: "ok", 5: "failed"})
DELIVERIES = [
    Sender(100 + index, "c0", place, each.nextOffset, each.value)
    for place, entries in LOGS.items()
    for index, each in enumerate(entries)
]


class JudgeTests(SynchronousTestCase):
    """What the books would show if something were broken."""

    def judged(self, deliveries: list[Sender], *faults: Fault) -> str:
        return "\n".join(judgeGroup(LOGS, deliveries, faults, BOUNDS).faults)

    def test_balanced(self) -> None:
        """Books that balance are found to."""
        self.assertEqual(judgeLogs({"p0": SENT}, LOGS), [])
        self.assertEqual(judgeGroup(LOGS, DELIVERIES, [], BOUNDS), ([], {}))

    def test_outcomes(self) -> None:
        """
        What was confirmed and is in no log is found, as is what was reported failed and is in one,
        what nobody sent, and what was never told of.
        """
        self.assertIn(
            "confirmed, and in no log: 1: p0.5",
            judgeLogs({"p0": SENT._replace(outcomes={**SENT.outcomes, 5: "ok"})}, LOGS)[0],
        )
        self.assertIn(
            "reported failed, and in a log: 1: p0.1",
            judgeLogs({"p0": SENT._replace(outcomes={**SENT.outcomes, 1: "failed"})}, LOGS)[0],
        )
        self.assertIn(
            "in a log, and never sent: 1: p0.4",
            judgeLogs({"p0": SENT._replace(numbers=[0, 1, 2, 3, 5])}, LOGS)[0],
        )
        self.assertIn(
            "nothing was ever said of it: 1: p0.6",
            judgeLogs({"p0": SENT._replace(numbers=range(7))}, LOGS)[0],
        )

    def test_twiceInALog(self) -> None:
        """A second copy is found, unless a retry was reported that may have made it."""
        logs = {**LOGS, "t/2-0": [Entry("p0.0.1", 10)]}
        self.assertIn("p0.0", judgeLogs({"p0": SENT}, logs)[0])
        self.assertEqual(
            judgeLogs({"p0": SENT._replace(repeatedCount=1, isRetrying=True)}, logs), []
        )

    def test_keysOutOfOrder(self) -> None:
        """
        A key's messages that stand in another order than they were sent in are found, unless one is
        unknown or the producer tries again.
        """
        logs = {**LOGS, "t/0-0": [LOGS["t/0-0"][2], LOGS["t/0-0"][1], LOGS["t/0-0"][0]]}
        self.assertEqual(judgeLogs({"p0": SENT}, logs), [])
        confirmed = SENT._replace(outcomes={**SENT.outcomes, 2: "ok"})
        self.assertIn("p0.0 behind 2", judgeLogs({"p0": confirmed}, logs)[0])
        self.assertEqual(judgeLogs({"p0": confirmed._replace(isRetrying=True)}, logs), [])

    def test_keysOfMovedMessages(self) -> None:
        """
        One that was under way while the producer's list of partitions changed may stand behind
        later ones; one that was not, may not.
        """
        logs = {**LOGS, "t/0-0": [LOGS["t/0-0"][2], LOGS["t/0-0"][1], LOGS["t/0-0"][0]]}
        outcomes = {**SENT.outcomes, 2: "ok"}
        times = {0: (100.0, 100.3), 1: (100.1, 100.3), 2: (100.2, 100.21)}
        sent = SENT._replace(outcomes=outcomes, times=times)
        for viewTime, isExcused in ((100.05, True), (100.15, True), (99.9, False), (100.4, False)):
            found = judgeLogs({"p0": sent._replace(viewTimes=[10, viewTime])}, logs)
            self.assertEqual(found == [], isExcused, viewTime)

    def test_notDelivered(self) -> None:
        """A message that a group did not get is found, and one that nobody can have given it."""
        self.assertIn(
            "not delivered: 1: p0.1.2",
            self.judged([each for each in DELIVERIES if each.value != "p0.1.2"]),
        )
        self.assertIn(
            "delivered, and in no log: 1",
            self.judged([*DELIVERIES, Sender(200, "c0", "t/0-0", 40, "p0.9.9")]),
        )

    def test_notInOrder(self) -> None:
        """A message that came after what stands behind it is found."""
        self.assertIn(
            "p0.2.1",
            self.judged([DELIVERIES[0], DELIVERIES[1]._replace(seconds=150), *DELIVERIES[2:]]),
        )

    def test_twice(self) -> None:
        """
        A message that came twice is found, unless a member that got it was disturbed at the right
        time, or it stands in a compressed set.
        """
        again = DELIVERIES[1]._replace(seconds=110, member="c1")
        self.assertIn("without a reason: 1: p0.1.2", self.judged([*DELIVERIES, again]))
        for fault in (
            Fault("kill", "c0", 102, 102),
            Fault("stop", "c1", 103, 107),
            Fault("expire", "c0", 99, 99),
            Fault("zookeeper", ZOOKEEPER, 101, 102),
        ):
            self.assertEqual(self.judged([*DELIVERIES, again], fault), "")
        for fault in (
            Fault("kill", "c2", 102, 102),  # another
            Fault("kill", "c0", 104, 104),  # it had long been committed
            Fault("kill", "c1", 111, 111),  # afterwards
            Fault("expire", "c0", 97, 97),  # it had long been known
            Fault("leave", "c0", 102, 102),
            Fault("broker", "broker0", 102, 102),
        ):
            self.assertIn("without a reason", self.judged([*DELIVERIES, again], fault))

    def test_twiceInsideACompressedSet(self) -> None:
        """
        A message of a compressed set may come twice if the member that got it did not come to the
        set's end before, and not else.
        """
        first, last = DELIVERIES[3:]
        again = [first._replace(seconds=200, member="c1"), last._replace(seconds=201, member="c1")]
        self.assertEqual(self.judged([*DELIVERIES[:3], first, *again]), "")
        self.assertIn("p0.3.0", self.judged([*DELIVERIES, again[0]]))


class ProxyTests(SynchronousTestCase):
    """The proxy that cuts."""

    def test_cutsInsideAFrame(self) -> None:
        """
        Frames go through as they are, until one is cut: some bytes of it come, and then the end, on
        both sides.
        """
        frame = struct.pack(">i", 1000) + b"x" * 1000
        for direction in (REQUEST, ANSWER):
            listening = socket.create_server(("127.0.0.1", 0))
            self.addCleanup(listening.close)
            proxy = CuttingProxy(listening.getsockname()[1])
            self.addCleanup(proxy.close)
            client = socket.create_connection(("127.0.0.1", proxy.port), 10)
            self.addCleanup(client.close)
            broker, _address = listening.accept()
            self.addCleanup(broker.close)
            broker.settimeout(10)
            sender, receiver = (client, broker) if direction == REQUEST else (broker, client)
            sender.sendall(frame * 3)
            self.assertEqual(receiver.recv(3 * len(frame), socket.MSG_WAITALL), frame * 3)
            proxy.cutNext(direction)
            # The proxy may have closed before all is sent.
            threading.Thread(target=sender.sendall, args=(frame,), daemon=True).start()
            got = b""
            while data := receiver.recv(1 << 16):
                got += data
            self.assertTrue(frame.startswith(got))
            self.assertGreater(len(got), 0)
            self.assertLess(len(got), len(frame))
            self.assertEqual(sender.recv(1), b"")
            self.assertEqual(proxy.cutCount, 1)
