"""
Tests of what throws mutations at a live broker. That a good run is found good is shown by C{tests.integration.test_mutations}; here, that a bad one is not.
"""

from __future__ import annotations

from collections import Counter

from twisted.logger import LogLevel
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.fuzz import mutations
from tests.fuzz.live import observer
from tests.fuzz.mutations import Figures, describe, run


class ObserverTests(SynchronousTestCase):
    """What a broker logs."""

    def test_errors(self) -> None:
        """An error, a critical event, an event with a failure, and one of the old logging system that is an error: a line each, on one line."""
        lines: list[str] = []
        kinds: Counter[str] = Counter()
        observe = observer(kinds, lines.append)
        observe({"log_level": LogLevel.error, "log_format": "one\ntwo"})
        observe({"log_level": LogLevel.critical, "log_format": "worse"})
        observe({"log_level": LogLevel.warn, "log_format": "with", "log_failure": Failure(ValueError("why"))})
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
        """A broker over the bound on its memory is a fault; the bound here is one that no process keeps."""
        self.patch(mutations, "RSS_SIZE_MAX", 1 << 20)
        figures = run(100, 1)
        self.assertTrue(any("MiB" in fault for fault in figures.faults), figures)

    def test_answersCount(self) -> None:
        """A watcher that is answered otherwise than it must be is a fault; here it expects what is not there."""
        self.patch(mutations, "PROBES", [probe[:-1] + b"?" for probe in mutations.PROBES])
        self.patch(mutations, "prepare", lambda port: None)
        figures = run(1, 1)
        self.assertTrue(any("the watcher" in fault for fault in figures.faults), figures)

    def test_eachIsTried(self) -> None:
        """Every mutation is tried once, however often its connection was cut."""
        figures = run(300, 7)
        self.assertEqual((figures.triedCount, figures.faults), (300, []))
        self.assertGreater(figures.connectionCount, 50)

    def test_faultsAreSaid(self) -> None:
        """The figures close with the number of faults, and the faults themselves."""
        self.assertEqual(list(describe(Figures(faults=["this", "that"])))[-3:], ["faults: 2", "  this", "  that"])
        self.assertEqual(list(describe(Figures()))[-1], "faults: 0")
