"""
Tests of what throws mutations at a live broker. That a good run is found good is shown by
C{tests.integration.test_mutations}; here, that a bad one is not.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from twisted.logger import LogLevel
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz import httpmutation, ports, watching
from tests.fuzz.figures import Figures, describe
from tests.fuzz.httpmutation import HttpMutator
from tests.fuzz.live import observer
from tests.fuzz.mutations import run
from tests.fuzz.tlsmutation import TlsMutator, hellos


class ObserverTests(SynchronousTestCase):
    """What a broker logs."""

    def test_errors(self) -> None:
        """
        An error, a critical event, an event with a failure, and one of the old logging system that
        is an error: a line each, on one line.
        """
        lines: list[str] = []
        kinds: Counter[str] = Counter()
        observe = observer(kinds, lines.append)
        observe({"log_level": LogLevel.error, "log_format": "one\ntwo"})
        observe({"log_level": LogLevel.critical, "log_format": "worse"})
        observe(
            {
                "log_level": LogLevel.warn,
                "log_format": "with",
                "log_failure": Failure(ValueError("why")),
            }
        )
        observe({"log_format": "old", "isError": 1})
        self.assertEqual(lines[:2], ['LOGGED error "one\\ntwo"', 'LOGGED critical "worse"'])
        self.assertIn("ValueError: why", lines[2])
        self.assertEqual(lines[3], 'LOGGED info "old"')
        self.assertTrue(all("\n" not in line for line in lines))
        self.assertEqual(kinds, {})

    def test_warnings(self) -> None:
        """Warnings are counted by kind; what is less is not."""
        lines: list[str] = []
        kinds: Counter[str] = Counter()
        observe = observer(kinds, lines.append)
        for number in range(3):
            observe({"log_level": LogLevel.warn, "log_format": "closed {n}", "n": number})
        observe({"log_level": LogLevel.info, "log_format": "fine"})
        self.assertEqual((lines, kinds), ([], {"closed {n}": 3}))


class RunTests(SynchronousTestCase):
    """Small runs, with a broker in a process of its own."""

    def test_memoryCounts(self) -> None:
        """
        A broker over the bound on its memory is a fault; the bound here is one that no process
        keeps.
        """
        self.patch(watching, "RSS_SIZE_MAX", 1 << 20)
        figures = run(100, 1)
        self.assertTrue(any("MiB" in fault for fault in figures.faults), figures)

    def test_answersCount(self) -> None:
        """
        A watcher that is answered otherwise than it must be is a fault; here it expects what is not
        there.
        """
        self.patch(watching, "PROBES", [probe[:-1] + b"?" for probe in watching.PROBES])
        figures = run(1, 1)
        self.assertTrue(any("the watcher" in fault for fault in figures.faults), figures)

    def test_eachIsTried(self) -> None:
        """Every mutation is tried once, however often its connection was cut."""
        figures = run(300, 7)
        self.assertEqual((figures.triedCount, figures.faults), (300, []))
        self.assertGreater(figures.connectionCount, 50)

    def test_openDoorIsSeen(self) -> None:
        """
        A broker that lets mutations through which it must refuse is found out: here one whose rules
        allow everything.
        """
        self.patch(ports, "OPEN_TOPICS", ("*",))
        self.patch(ports.AllowedPort, "_isOpen", staticmethod(lambda topic: topic == "t1"))
        figures = run(2_000, 3, kind="allowed")
        said = "\n".join(figures.faults)
        self.assertIn("which may not be", said)
        self.assertIn("what nobody may see", said)

    def test_changesAreSeen(self) -> None:
        """
        A segment that is not what it was, and a topic that may not be there, are a fault each; what
        may grow may.
        """
        folder = Path(self.mktemp())
        for name in ("probe-0", "watched-0"):
            (folder / name).mkdir(parents=True)
            (folder / name / "00000000000000000000.kafka").write_bytes(b"one")
        port = ports.HandshakePort(str(folder))
        before = ports.segments(str(folder))
        self.assertEqual(ports.changes(port, before, str(folder)), [])
        for name in ("probe-0", "watched-0"):
            (folder / name / "00000000000000000000.kafka").write_bytes(b"two")
        (folder / "never-1").mkdir()
        self.assertEqual(
            ports.changes(port, before, str(folder)),
            [
                "there is a topic 'never', which may not be",
                "probe-0/00000000000000000000.kafka is not what it was",
            ],
        )

    def test_requestsAreCounted(self) -> None:
        """Where nothing may get through, the broker's counters tell of what did."""
        self.assertEqual(
            ports.HttpPort("").requestFaults(Figures(broker={"produceCount": 2})),
            ["2 requests to produce, and not 1"],
        )
        self.assertEqual(
            ports.HandshakePort("").requestFaults(
                Figures(watchCount=5, broker={"produceCount": 7})
            ),
            [],
        )
        self.assertEqual(
            len(
                ports.HandshakePort("").requestFaults(
                    Figures(watchCount=5, broker={"produceCount": 8})
                )
            ),
            1,
        )

    def test_faultsAreSaid(self) -> None:
        """The figures close with the number of faults, and the faults themselves."""
        self.assertEqual(
            list(describe(Figures(faults=["this", "that"])))[-3:], ["faults: 2", "  this", "  that"]
        )
        self.assertEqual(list(describe(Figures()))[-1], "faults: 0")


class PageAnswersTests(SynchronousTestCase):
    """Reading answers of the page."""

    def test_anyPieces(self) -> None:
        """A probe's answer is found however the stream is cut, and once."""
        stream = (
            b'HTTP/1.1 400 Bad Request\r\n\r\n{"error":"there is no broker 7000003, or'
            b' nobody"}HTTP/1.1 200 OK\r\n' + b"x" * 200
        )
        for size in (1, 7, 40, 1000):
            answers = ports.PageAnswers()
            for at in range(0, len(stream), size):
                answers.feed(stream[at : at + size])
            self.assertEqual((answers.count, answers.reached), (1, 3), size)


class MutatorTests(SynchronousTestCase):
    """What is thrown at HTTP and at TLS."""

    def test_sameForSeed(self) -> None:
        """
        A seed decides the mutations of HTTP; all are within the limit on their size, and few of
        them are the same.
        """
        first, second = (HttpMutator(5) for _ in range(2))
        found = [first.next() for _ in range(500)]
        self.assertEqual(found, [second.next() for _ in range(500)])
        self.assertGreater(len(set(found)), 400)
        self.assertLessEqual(max(map(len, found)), httpmutation.SIZE_MAX)

    def test_hellos(self) -> None:
        """
        What is thrown at TLS begins with what clients say: records of a handshake. Most of it still
        looks like one.
        """
        self.assertEqual({record[:1] for record in hellos()}, {b"\x16"})
        mutator = TlsMutator(5)
        found = [mutator.next() for _ in range(500)]
        self.assertGreater(sum(data[:2] == b"\x16\x03" for data in found), 250)
        self.assertGreater(len(set(found)), 350)
