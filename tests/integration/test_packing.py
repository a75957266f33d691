"""
What is in the wheel and in the sdist, and that both work where this tree is not.
"""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker import __version__
from tests.integration.brokerprocess import BrokerProcess
from tests.integration.wheels import ROOT, buildSdist, buildWheel, cleanEnvironment, copyTree

WITHOUT_THE_TREE = (
    "import sys; sys.path = [{wheel!r}] + [entry for entry in sys.path[1:] if entry != {root!r}]; "
)


class WheelTests(SynchronousTestCase):
    """C{pip wheel} of a copy of the sources."""

    def setUp(self) -> None:
        folder = Path(self.mktemp()).absolute()
        tree = folder / "tree"
        copyTree(tree)
        # What an earlier build has left must not come along.
        stale = tree / "build" / "lib" / "pylogbroker"
        stale.mkdir(parents=True)
        (stale / "stale.py").touch()
        wheel = buildWheel(tree, folder)
        self.unpacked = folder / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            self.names = {name for name in archive.namelist() if ".dist-info/" not in name}
            archive.extractall(self.unpacked)

    def test_contents(self) -> None:
        """
        Every module, the plugin, the sample configuration, the console's page, the mark that types
        are there; no tests, no C{__init__.py} of Twisted's, nothing stale.
        """
        modules = {str(path.relative_to(ROOT)) for path in (ROOT / "pylogbroker").rglob("*.py")}
        others = {
            "pyspark_pylogbroker.py",
            "twisted/plugins/pylogbroker_plugin.py",
            "pylogbroker/config/broker.properties",
            "pylogbroker/py.typed",
        }
        page = {
            str(path.relative_to(ROOT))
            for path in (ROOT / "pylogbroker" / "console" / "page").iterdir()
        }
        self.assertEqual(self.names, modules | others | page)

    def test_requirements(self) -> None:
        """A plain install brings the fast CRC-32; there is no extra for it."""
        (metadata,) = self.unpacked.glob("*.dist-info/METADATA")
        lines = metadata.read_text(encoding="utf-8").splitlines()
        needed = [line for line in lines if line.startswith("Requires-Dist: zlib-ng")]
        self.assertIn("Requires-Dist: zlib-ng>=0.5", needed)
        self.assertNotIn("Provides-Extra: fast", lines)

    def test_entryPoints(self) -> None:
        """The command, and the plugin that pytest finds by itself."""
        (found,) = self.unpacked.glob("*.dist-info/entry_points.txt")
        text = found.read_text(encoding="utf-8")
        self.assertIn("[console_scripts]\npylogbroker = pylogbroker.__main__:main\n", text)
        self.assertIn("[pytest11]\npylogbroker = pylogbroker.testing.pytestplugin\n", text)

    def runWheel(self, code: str) -> str:
        """Run code that finds the wheel's contents and not this tree."""
        code = WITHOUT_THE_TREE.format(wheel=str(self.unpacked), root=str(ROOT)) + code
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.unpacked.parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    def test_plugin(self) -> None:
        """C{twistd --help} shows it."""
        self.assertIn(
            " pylogbroker ",
            self.runWheel(
                "sys.argv = ['twistd', '--help']; from twisted.scripts.twistd import run; run()"
            ),
        )

    def test_sample(self) -> None:
        """The sample configuration is found beside its module, and is the one of the tree."""
        found = self.runWheel(
            "from pylogbroker.config.brokersettings import samplePath; print(samplePath())"
        ).strip()
        self.assertEqual(found, str(self.unpacked / "pylogbroker" / "config" / "broker.properties"))
        self.assertEqual(
            Path(found).read_bytes(), (ROOT / "etc" / "broker.properties").read_bytes()
        )


class FreshEnvironmentTests(SynchronousTestCase):
    """
    A new environment, which gets the wheel with its requirements, and then the sdist in its place.
    """

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).absolute()
        self.folder.mkdir()
        copyTree(self.folder / "tree")
        venv.create(self.folder / "venv", with_pip=True)
        self.programs = self.folder / "venv" / "bin"

    def execute(self, program: str, *arguments: str) -> str:
        """Run a program of the environment, away from the tree; returns what it prints."""
        done = subprocess.run(
            [str(self.programs / program), *arguments],
            cwd=self.folder,
            env=cleanEnvironment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def install(self, *arguments: str) -> list[str]:
        """C{pip install}; returns what it has installed of ours, without what pip says about it."""
        self.execute(
            "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments
        )
        code = "from importlib.metadata import files; print(*files('pylogbroker'), sep='\\n')"
        names = self.execute("python", "-c", code).splitlines()
        return sorted(
            name for name in names if ".dist-info/" not in name and "__pycache__" not in name
        )

    def tryOut(self, name: str) -> None:
        """The version, a broker, and messages there and back."""
        self.assertEqual(
            self.execute("pylogbroker", "--version").strip(),
            f"pylogbroker {__version__} (pure Python; the C speed-up was not built)",
        )
        where = self.execute("python", "-c", "import pylogbroker; print(pylogbroker.__file__)")
        self.assertTrue(Path(where).is_relative_to(self.folder / "venv"), where)
        broker = BrokerProcess(str(self.folder / name), programs=self.programs).start()
        self.addCleanup(broker.kill)
        (self.folder / "lines").write_text("one\ntwo\nthree\n", encoding="utf-8")
        topic = ("--broker", f"127.0.0.1:{broker.port}", "--topic", "greetings")
        self.execute("pylogbroker", "produce", "lines", *topic)
        self.assertEqual(
            self.execute("pylogbroker", "consume", *topic, "--from-beginning"), "one\ntwo\nthree\n"
        )
        self.assertEqual(broker.stop(), 0)

    def test_wheelAndSdist(self) -> None:
        """
        Both install the same files, with what they need; the commands and the plugin of twistd
        work.
        """
        tree = self.folder / "tree"
        ofWheel = self.install(str(buildWheel(tree, self.folder)))
        self.tryOut("wheel")
        self.execute("python", "-m", "pip", "uninstall", "-q", "-y", "pylogbroker")
        ofSdist = self.install("--no-deps", str(buildSdist(tree, self.folder)))
        self.tryOut("sdist")
        self.assertEqual(ofSdist, ofWheel)
        self.assertIn("pylogbroker/config/broker.properties", ofSdist)
        self.assertIn("../../../bin/pylogbroker", ofSdist)


class EditableTests(SynchronousTestCase):
    """This environment, into which the tests' installation has put the tree itself."""

    def test_plugin(self) -> None:
        """C{twistd --help} shows it, from any folder."""
        folder = Path(self.mktemp())
        folder.mkdir()
        twistd = Path(sys.executable).with_name("twistd")
        out = subprocess.run(
            [str(twistd), "--help"], cwd=folder, capture_output=True, text=True, check=True
        ).stdout
        self.assertIn(" pylogbroker ", out)
