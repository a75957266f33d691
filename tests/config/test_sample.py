"""
Tests for L{pylogbroker.config.brokersettings}.
"""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.brokersettings import SAMPLE_NAME as NAME
from pylogbroker.config.brokersettings import samplePath, sampleText
from pylogbroker.config.properties import parseProperties

ROOT = Path(__file__).resolve().parent.parent.parent


class SampleTests(SynchronousTestCase):
    """Where the sample configuration is found."""

    def package(self) -> Path:
        """A folder as that of C{pylogbroker.config}, two levels under a tree."""
        package = Path(self.mktemp()) / "pylogbroker" / "config"
        package.mkdir(parents=True)
        return package

    def test_thisInstallation(self) -> None:
        """The sample that this installation carries is the one of the source tree."""
        self.assertEqual(sampleText(), (ROOT / "etc" / NAME).read_text(encoding="utf-8"))
        self.assertIn("log.dir", parseProperties(sampleText()))

    def test_besideTheModule(self) -> None:
        """In a wheel it lies beside the module, which comes first."""
        package = self.package()
        (package.parent.parent / "etc").mkdir()
        for folder in (package, package.parent.parent / "etc"):
            (folder / NAME).write_text("port=1\n")
        self.assertEqual(samplePath(package), package / NAME)

    def test_inTheTree(self) -> None:
        """In a source tree it lies in C{etc/}."""
        package = self.package()
        etc = package.parent.parent / "etc"
        etc.mkdir()
        (etc / NAME).write_text("port=1\n")
        self.assertEqual(samplePath(package), etc / NAME)

    def test_nowhere(self) -> None:
        """An installation without it says so, and what to do."""
        self.assertIn(
            "install pylogbroker again",
            str(self.assertRaises(FileNotFoundError, samplePath, self.package())),
        )
