"""
Tests for what C{tests/run} chooses and what it asks of the machine: L{tests.gate.selection},
L{tests.gate.needs}, L{tests.gate.prepare}.
"""

from __future__ import annotations

import os
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.gate.needs import NEEDS, ROOT, Need, needsOf, testFiles, unmet
from tests.gate.prepare import explain
from tests.gate.selection import (
    UnknownTestsError,
    chosenNames,
    modulesOf,
    parser,
    resolve,
    rooms,
    testModules,
)


class NameTests(SynchronousTestCase):
    """Names on the command line."""

    def test_rooms(self) -> None:
        """
        A room stands for its tests, as a word, a folder or a dotted name; so does a module beside
        the rooms.
        """
        for given in ("storage", "tests/storage/", "tests.storage", "tests/storage"):
            self.assertEqual(resolve(given), "tests.storage")
        self.assertEqual(resolve("errors"), "tests.test_errors")
        self.assertEqual(resolve("tests"), "tests")
        self.assertLessEqual({"storage", "errors", "house", "integration"}, set(rooms()))

    def test_parts(self) -> None:
        """Modules, classes and methods are found with and without "tests."."""
        for given in ("gate.test_selection", "tests/gate/test_selection.py"):
            self.assertEqual(resolve(given), "tests.gate.test_selection")
        name = "tests.gate.test_selection.NameTests.test_parts"
        self.assertEqual(resolve(name), name)
        self.assertEqual(modulesOf([name]), ["tests.gate.test_selection"])

    def test_unknown(self) -> None:
        """
        A name without tests is an error that lists the rooms; a folder without tests has none.
        """
        for given in ("storge", "golden", "gate.test_nothing", ""):
            error = self.assertRaises(UnknownTestsError, resolve, given)
            self.assertIn(repr(given), str(error))
            self.assertIn("producer, ", str(error))

    def test_command(self) -> None:
        """
        C{tests/run} ends with the count and a failure for such a name, and installs nothing for it.
        """
        done = subprocess.run(
            [ROOT / "tests" / "run", "storge"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertIn("there are no tests for 'storge'; rooms with tests are:", done.stderr)
        self.assertEqual((done.stdout, done.returncode), ("0 passed, 1 failed\n", 2))

    def test_help(self) -> None:
        """C{tests/run --help} says what is installed with root's rights."""
        done = subprocess.run(
            [ROOT / "tests" / "run", "--help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        for need in NEEDS.values():
            self.assertIn(" ".join(need.packages), done.stdout)
        self.assertIn("/etc/hosts", done.stdout)


class ChoiceTests(SynchronousTestCase):
    """What runs."""

    def chosen(self, *arguments: str) -> list[str]:
        return chosenNames(parser().parse_args(arguments), {"tests.test_limits": 1e6})

    def test_all(self) -> None:
        """Without names every test module runs."""
        self.assertEqual(self.chosen(), testModules())
        self.assertEqual(self.chosen("--checks"), testModules())

    def test_named(self) -> None:
        """Names are resolved."""
        self.assertEqual(self.chosen("storage", "errors"), ["tests.storage", "tests.test_errors"])

    def test_quick(self) -> None:
        """The quick tests are unit tests of all rooms that need no program and take no long."""
        quick = self.chosen("--quick")
        self.assertNotIn("tests.test_limits", quick)
        self.assertIn("tests.test_errors", quick)
        for module in quick:
            self.assertEqual(needsOf(module), frozenset(), module)
            self.assertNotIn(module.split(".")[1], ("integration", "benchmarks", "simulation"))
        package = {path.name for path in (ROOT / "pylogbroker").iterdir() if path.is_dir()}
        self.assertEqual(
            package - {"__pycache__"} - {module.split(".")[1] for module in quick}, set()
        )


class NeedTests(SynchronousTestCase):
    """What tests need of the machine."""

    def test_imported(self) -> None:
        """A module needs what the modules that it imports need, directly or through others."""
        self.assertEqual(needsOf("tests.integration.test_zookeeper"), {"java", "zookeeper"})
        self.assertEqual(needsOf("tests.integration.test_spark"), {"java", "spark"})
        self.assertEqual(needsOf("tests.test_errors"), frozenset())

    def test_words(self) -> None:
        """Modules use the words that there are, and each word is used."""
        used = frozenset().union(*map(needsOf, testFiles()))
        self.assertEqual(used, NEEDS.keys())

    def test_nothingNeeded(self) -> None:
        """Tests that need nothing of the machine lack nothing."""
        self.assertEqual(unmet(["tests.test_errors"]), [])

    def test_explained(self) -> None:
        """Who may not install is told everything that is missing at once, and one command."""
        text = explain(
            [
                Need("a compass", ("compass", "needle"), lambda: False),
                Need("a line in a file", (), lambda: False),
                Need("a map", ("map",), lambda: False),
            ]
        )
        self.assertEqual(
            text.splitlines()[1:],
            [
                "  a compass: compass needle",
                "  a line in a file",
                "  a map: map",
                "On Debian: apt-get install compass needle map",
            ],
        )

    def test_withoutEnvironment(self) -> None:
        """
        What prepares the machine imports the standard library only: there is no environment yet.
        """
        code = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
            "import tests.gate.prepare as prepare; "
            "prepare.main(['errors']); "
            "print([name for name in sys.modules if name.startswith(('twisted', 'hypothesis'))])"
        )
        done = subprocess.run(
            [os.path.realpath(sys.executable), "-I", "-S", "-c", code],
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual(done.stdout.splitlines()[-1], "[]")  # pip may have had something to do
