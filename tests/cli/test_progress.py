"""Tests for L{pylogbroker.cli.output}."""

from __future__ import annotations

import io

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cli.output import Progress, formatBytes


class Terminal(io.StringIO):
    """A text file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class AmountTests(SynchronousTestCase):
    """Bytes for people."""

    def test_units(self) -> None:
        """The unit grows with the number, and never shows a thousand of one."""
        for size, text in (
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (999_949, "999.9 kB"),
            (999_951, "1.0 MB"),
            (1.5e6, "1.5 MB"),
            (2.5e12, "2500.0 GB"),
        ):
            self.assertEqual(formatBytes(size), text)


class ProgressTests(SynchronousTestCase):
    """A line on a terminal."""

    def setUp(self) -> None:
        self.clock = Clock()

    def test_line(self) -> None:
        """It shows counts, share and rate, in place, and is taken away again."""
        errors = Terminal()
        progress = Progress(errors, self.clock.seconds, 4_000_000)
        self.clock.advance(2)
        progress.update(5000, 1_000_000)
        line = "5,000 messages, 1.0 MB, 25 %, 2,500 messages/s".ljust(79)
        self.assertEqual(errors.getvalue(), "\r" + line)
        progress.clear()
        self.assertEqual(errors.getvalue(), "\r" + line + "\r" + " " * 79 + "\r")

    def test_stages(self) -> None:
        """Where there are several things to do, it says which is being done."""
        errors = Terminal()
        progress = Progress(errors, self.clock.seconds)
        self.clock.advance(2)
        progress.update(5000, 1_000_000, "reading, 1 of 4 tasks")
        self.assertIn(
            "\rreading, 1 of 4 tasks: 5,000 messages, 1.0 MB, 2,500 messages/s", errors.getvalue()
        )

    def test_unknownSize(self) -> None:
        """Without a size there is no share."""
        errors = Terminal()
        progress = Progress(errors, self.clock.seconds)
        self.clock.advance(1)
        progress.update(1, 5)
        self.assertEqual(errors.getvalue().strip(), "1 message, 5 B, 1 messages/s")

    def test_notTooOften(self) -> None:
        """It is shown a few times a second at most."""
        errors = Terminal()
        progress = Progress(errors, self.clock.seconds)
        for _ in range(100):
            self.clock.advance(0.01)
            progress.update(1, 1)
        self.assertIn(errors.getvalue().count("\r"), (4, 5))

    def test_noTerminal(self) -> None:
        """Into a file goes nothing."""
        errors = io.StringIO()
        progress = Progress(errors, self.clock.seconds)
        self.clock.advance(1)
        progress.update(1, 1)
        progress.clear()
        self.assertEqual(errors.getvalue(), "")

    def test_closed(self) -> None:
        """A terminal that is gone is left alone."""
        errors = Terminal()
        progress = Progress(errors, self.clock.seconds)
        self.clock.advance(1)
        errors.close()
        progress.update(1, 1)
        self.clock.advance(1)
        progress.update(1, 1)
        progress.clear()
