"""
The house rules that a tool can read: names, rooms and their tests, docstrings, what lies at the
top.

The import contracts themselves are import-linter's (C{pyproject.toml}); here is checked that no
room was left out of them.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pylogbroker"
TESTS = ROOT / "tests"

MEANINGLESS = ("helper", "util", "common", "misc")
FLOORS_WITHOUT_TWISTED = {
    "errors", "types", "limits", "retry", "interfaces", "records", "protocol", "storage", "cluster",
    "config", "schemas", "audit", "metrics", "lake", "coordinator", "replication",
}  # fmt: skip
ROOMS_WITHOUT_TWISTED = {"syncclient", "spark"}
BESIDE_THE_ROOMS = {
    "contracts",
    "integration",
    "simulation",
    "benchmarks",
    "long",
    "gate",
    "golden",
    "fuzz",
    "oracle",
}
WITHOUT_TESTS = {"__init__", "__main__", "interfaces"}
"""Modules beside the rooms that do nothing by themselves."""

TOP_LEVEL = {
    "setup.py", "pylogbroker", "pyspark_pylogbroker.py", "twisted", "tests", "docs", "etc",
    "pyproject.toml", "Makefile", "README.md", "CONTRIBUTING.md", "NEWS.md", "LICENSE",
}  # fmt: skip
LEFT_BY_TOOLS = re.compile(
    r"\..*|build|dist|.*\.egg-info|_trial_temp.*|htmlcov|__pycache__|twistd\.(pid|log).*"
)


def modules() -> list[Path]:
    """Every module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def rooms() -> list[str]:
    """The folders of the package."""
    return sorted(path.name for path in PACKAGE.iterdir() if any(path.glob("*.py")))


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


OVERRIDDEN = {"do_handshake", "create_connection", "parse_known_args"}
"""What we override of OpenSSL's, kazoo's and argparse's."""

TXZOOKEEPERS = {
    "add_auth", "add_session_listener", "exists_and_watch", "get_and_watch", "get_children",
    "get_children_and_watch", "session_timeout", "set_session_callback",
}  # fmt: skip
"""Names that applications written for txzookeeper know, and what stands beside them."""

HERONPYS = {
    "add_task_hook", "component_id", "direct_task", "get_cluster_config", "get_component_id",
    "get_component_tasks", "get_sources", "get_task_id", "get_topology_name", "need_task_ids",
    "register_metric", "task_hook", "time_bucket_in_sec", "tup_id",
}  # fmt: skip
"""Names that components for heronpy call."""

PYTEST_FIXTURES = {"kafka_broker_properties", "kafka_broker_session"}
"""pytest passes fixtures to parameters of their names, which are snake_case by its custom."""


MODULE_COUNT_MAX = 12
"""Of a folder, without C{__init__} and C{__main__}."""

FIELDS_NOUNS = {"framing", "encoding", "routing"}
"""Gerunds that the field uses as nouns."""

SAME_API = {"RegistryClient", "SimpleConsumer", "SyncProducer"}
APIS = {"client", "syncclient"}
"""The same API, for Twisted and for threads."""

TWISTEDS_CLASSES = {"Options"}
"""The name under which C{twistd} looks for the options of a plugin's module."""

REASON = re.compile(r"[Aa] module of its own,? (?:since|because|so that) \S+ \S+ \S+")
API_PAGE = ROOT / "docs" / "api.md"


@cache
def moduleFiles() -> dict[str, Path]:
    """
    Every module of the package, by its dotted name; a folder's C{__init__} has the folder's name.
    """
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in modules()
    }


def room(module: str) -> str:
    """C{"pylogbroker.storage.segment"} → C{"storage"}."""
    return f"{module}.".split(".")[1]


def importersOf() -> dict[str, set[str]]:
    """
    For each module those that import it, or a name from it; modules that are loaded by name, like
    plugins, have none.
    """
    importers: dict[str, set[str]] = {name: set() for name in moduleFiles()}
    for importer, path in moduleFiles().items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    name = whole if whole in importers else node.module
                    if name in importers and name != importer:
                        importers[name].add(importer)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name in importers and alias.name != importer:
                        importers[alias.name].add(importer)
    return importers


def words(name: str) -> list[str]:
    """C{"fetchSizeMax"} → fetch, size, max."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def ownNames(tree: ast.Module) -> Iterator[tuple[int, str, ast.AST]]:
    """Line, name and node of each class, function and parameter that a module defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name, node
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg, node


class NameTests(SynchronousTestCase):
    """Names mean something and are camelCase."""

    def test_noMeaninglessWords(self) -> None:
        """
        No class, function, parameter or module of ours has a word in its name that says nothing.
        """
        found = []
        for path in modules():
            where = path.relative_to(ROOT)
            found += [str(where) for word in words(path.stem) if word in MEANINGLESS]
            for line, name, _ in ownNames(parsed(path)):
                if any(
                    word in MEANINGLESS or word.rstrip("s") in MEANINGLESS for word in words(name)
                ):
                    found.append(f"{where}:{line} {name}")
        self.assertEqual(found, [])

    def test_camelCase(self) -> None:
        """Functions and parameters are camelCase, as in Twisted and Kafka's own API."""
        found = []
        for path in modules():
            for line, name, node in ownNames(parsed(path)):
                # "opt_" is how twisted.python.usage finds options.
                bare = name.strip("_").removeprefix("opt_")
                isPythons = name.startswith("__") and name.endswith("__")
                if (
                    "_" in bare
                    and not isPythons
                    and not isinstance(node, ast.ClassDef)
                    and name not in TXZOOKEEPERS | OVERRIDDEN | HERONPYS | PYTEST_FIXTURES
                ):
                    found.append(f"{path.relative_to(ROOT)}:{line} {name}")
        self.assertEqual(found, [])

    def test_timesHaveAUnit(self) -> None:
        """A parameter that is a time-out or an interval ends in its unit."""
        found = []
        for path in modules():
            for line, name, node in ownNames(parsed(path)):
                parts = words(name)
                isTime = "timeout" in parts or "interval" in parts
                if (
                    isinstance(node, ast.arg)
                    and isTime
                    and name not in TXZOOKEEPERS
                    and not ({"ms", "seconds", "hours", "minutes", "count"} & set(parts[-2:]))
                ):
                    found.append(f"{path.relative_to(ROOT)}:{line} {name}")
        self.assertEqual(found, [])


class ModuleTests(SynchronousTestCase):
    """A reader finds a thing by the name of its module, and each name means one thing."""

    def test_classNamesAreUnique(self) -> None:
        """No two public classes share a name, except the same API for Twisted and for threads."""
        homes: dict[str, list[str]] = {}
        for name, path in moduleFiles().items():
            for node in parsed(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(name)
        shared = {
            name
            for name, modules in homes.items()
            if len(modules) > 1
            and name not in TWISTEDS_CLASSES
            and not (name in SAME_API and {room(module) for module in modules} == APIS)
        }
        self.assertEqual(shared, set())

    def test_noGerunds(self) -> None:
        """No module's name ends in a gerund, except the field's nouns."""
        found = {
            name
            for name, path in moduleFiles().items()
            if path.stem.endswith("ing") and name.rpartition(".")[2] not in FIELDS_NOUNS
        }
        self.assertEqual(found, set())

    def test_aDozenModules(self) -> None:
        """A folder has at most a dozen modules."""
        counts = Counter(path.parent for path in modules() if not path.stem.startswith("__"))
        large = {
            str(folder.relative_to(PACKAGE))
            for folder, count in counts.items()
            if count > MODULE_COUNT_MAX
        }
        self.assertEqual(large, set())

    def test_singleImportersGiveAReason(self) -> None:
        """
        A module that one other module imports says in its opening paragraph why it is "a module of
        its own, since ..." (or "because", "so that"). Commands do not, nor do modules that
        applications import: those that the API page names, and those that the C{__init__} of their
        folder offers.
        """
        offered = set(re.findall(r"pylogbroker(?:\.\w+)+", API_PAGE.read_text(encoding="utf-8")))
        found = set()
        for name, importers in importersOf().items():
            if len(importers) != 1 or room(name) == "cli" or name in offered:
                continue
            (importer,) = importers
            opening = (ast.get_docstring(parsed(moduleFiles()[name])) or "").split("\n\n")[0]
            if not name.startswith(f"{importer}.") and not REASON.search(" ".join(opening.split())):
                found.add(name)
        self.assertEqual(found, set())


class DocstringTests(SynchronousTestCase):
    """What is public is explained."""

    def test_modulesOpenWithProse(self) -> None:
        """Every module has a docstring of its own that begins with a sentence."""
        found = []
        for path in modules():
            prose = ast.get_docstring(parsed(path)) or ""
            if len(prose.split()) < 3:
                found.append(str(path.relative_to(ROOT)))
        self.assertEqual(found, [])

    def test_publicClassesAndFunctions(self) -> None:
        """Every public class, and every public function of a module, has a docstring."""
        found = []
        for path in modules():
            for node in parsed(path).body:
                if (
                    isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                    and not node.name.startswith("_")
                    and not ast.get_docstring(node)
                ):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
        self.assertEqual(found, [])

    def test_testsStateTheirPromise(self) -> None:
        """Every test has a docstring that says what it promises."""
        found = []
        for path in sorted(TESTS.rglob("test_*.py")):
            for node in ast.walk(parsed(path)):
                if (
                    isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                    and node.name.startswith("test_")
                    and not ast.get_docstring(node)
                ):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
        self.assertEqual(found, [])


class MirrorTests(SynchronousTestCase):
    """C{tests/} mirrors the rooms of the package, not its files."""

    def test_everyRoomHasTests(self) -> None:
        """C{pylogbroker/x/} has C{tests/x/}, with test modules in it."""
        self.assertEqual(
            [room for room in rooms() if not list((TESTS / room).rglob("test_*.py"))], []
        )

    def test_everyModuleOfFloor0HasTests(self) -> None:
        """
        C{pylogbroker/x.py}, which is in no room, has C{tests/test_x.py}, unless it does nothing by
        itself.
        """
        alone = {path.stem for path in PACKAGE.glob("*.py")} - WITHOUT_TESTS
        tested = {path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py")}
        self.assertEqual(alone ^ tested, {"house"})

    def test_everyFolderIsARoom(self) -> None:
        """
        A folder in C{tests/} bears the name of a room, or is one of those for what concerns several
        rooms.
        """
        folders = {path.name for path in TESTS.iterdir() if any(path.glob("*.py"))}
        self.assertEqual(folders - set(rooms()) - BESIDE_THE_ROOMS, set())

    def test_testFoldersArePackages(self) -> None:
        """Every folder with tests has an C{__init__.py}, or trial would not look into it."""
        folders = {path.parent for path in TESTS.rglob("test_*.py")}
        self.assertEqual(
            [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()], []
        )


class TopLevelTests(SynchronousTestCase):
    """What lies where."""

    def test_nothingElseAtTheTop(self) -> None:
        """The top level holds what was agreed, and what tools leave there."""
        found = {path.name for path in ROOT.iterdir() if not LEFT_BY_TOOLS.fullmatch(path.name)}
        self.assertEqual(found - TOP_LEVEL, set())

    def test_twistedFoldersAreNoPackages(self) -> None:
        """
        C{twisted/} and C{twisted/plugins/} have no C{__init__.py}, or they would hide Twisted
        itself.
        """
        self.assertEqual(
            sorted(str(path.relative_to(ROOT)) for path in (ROOT / "twisted").rglob("__init__.py")),
            [],
        )


class ImportTests(SynchronousTestCase):
    """What an import brings with it."""

    def test_packageImportsNothing(self) -> None:
        """C{import pylogbroker} imports nothing else."""
        code = (
            "import sys; before = set(sys.modules); import pylogbroker; "
            "print(sorted(set(sys.modules) - before))"
        )
        out = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        self.assertEqual(out.strip(), "['pylogbroker']")

    def test_contractsNameEveryRoom(self) -> None:
        """Every room that has to do without Twisted is in a contract that forbids it."""
        contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
            "importlinter"
        ]["contracts"]
        named = {
            module.split(".")[1]
            for contract in contracts
            if "twisted" in contract.get("forbidden_modules", ())
            for module in contract["source_modules"]
        }
        rooms = {
            path.stem
            for path in PACKAGE.iterdir()
            if path.suffix == ".py" or (path / "__init__.py").exists()
        }
        self.assertEqual((FLOORS_WITHOUT_TWISTED | ROOMS_WITHOUT_TWISTED) & rooms, named)
