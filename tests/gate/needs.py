"""
What the tests need of the machine besides Python packages, and which tests need it.

A module under C{tests/} that uses a program of the machine says so in a constant, C{NEEDS =
("java",)}. A test module needs what it says, and what the modules of C{tests/} say that it imports,
directly or through others. So a run of a few unit tests asks for no browser.

Imports nothing but the standard library, since C{tests/run} asks before there is an environment.
"""

from __future__ import annotations

import ast
import os
import shutil
import socket
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
HOSTS = Path("/etc/hosts")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DEBIANS_ZOOKEEPER = Path("/usr/share/java/zookeeper.jar")


class Need(NamedTuple):
    """
    One thing that tests may need of the machine.

    @ivar what: what it is, for a person.
    @ivar packages: Debian's packages that bring it.
    @ivar isMet: true if it is there already.
    """

    what: str
    packages: tuple[str, ...]
    isMet: Callable[[], bool]


def _compiles() -> bool:
    try:
        return (
            subprocess.run(
                ["cc", "-E", "-"],
                input=b"#include <zlib.h>\n",
                capture_output=True,
                check=False,
            ).returncode
            == 0
        )
    except OSError:
        return False


def _hasZookeeper() -> bool:
    jars = ROOT.glob(".venv/lib/python3*/site-packages/pyspark/jars/zookeeper-*.jar")
    return os.path.exists(DEBIANS_ZOOKEEPER) or any(jars)


def _knowsLocalhost() -> bool:
    try:
        return bool(socket.getaddrinfo("localhost", None))
    except OSError:
        return False


def _hasBrowser() -> bool:
    return bool(shutil.which("chromedriver") and any(map(shutil.which, BROWSERS)))


NEEDS: Mapping[str, Need] = {
    "compiler": Need(
        "a C compiler and zlib's headers, for the yardstick of the benchmarks",
        ("gcc", "libc6-dev", "zlib1g-dev"),
        _compiles,
    ),
    "pythonheaders": Need(
        "the headers of Python, for the C speed-up",
        ("python3-dev",),
        lambda: Path(sysconfig.get_path("include"), "Python.h").exists(),
    ),
    "java": Need(
        "Java, for Spark, Kafka's tools, and Apache's ZooKeeper",
        ("default-jre-headless",),
        lambda: shutil.which("java") is not None,
    ),
    "maven": Need(
        "Maven, for Apache Kafka's tools and Java client",
        ("maven",),
        lambda: shutil.which("mvn") is not None,
    ),
    "zookeeper": Need(
        "Apache's ZooKeeper, which ours is compared with", ("zookeeper",), _hasZookeeper
    ),
    "systemd": Need(
        "systemd-analyze, for the units in etc/systemd",
        ("systemd",),
        lambda: shutil.which("systemd-analyze") is not None,
    ),
    "browser": Need(
        "Chromium and its driver, for the console",
        ("chromium", "chromium-driver"),
        _hasBrowser,
    ),
    "spark": Need(
        f'the line "127.0.0.1 localhost" in {HOSTS}, for Spark',
        (),
        _knowsLocalhost,
    ),
}
"""By the word that test modules use."""


@cache
def testFiles() -> Mapping[str, Path]:
    """Every Python module under C{tests/}, by its dotted name; a package has its folder's name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "tests").rglob("*.py")
    }


@cache
def _read(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """What one module says that it needs, and which modules of C{tests/} it imports."""
    words: set[str] = set()
    imported: set[str] = set()
    tree = ast.parse(testFiles()[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module)
            imported.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "NEEDS" for target in node.targets
        ):
            words.update(ast.literal_eval(node.value))
    return frozenset(words), frozenset(imported & testFiles().keys())


@cache
def needsOf(module: str) -> frozenset[str]:
    """
    What a module of C{tests/} needs, in the words of L{NEEDS}.

    @param module: its dotted name.
    """
    words: set[str] = set()
    seen: set[str] = set()
    pending = [module]
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            own, imported = _read(name)
            words |= own
            pending += imported
    return frozenset(words)


def unmet(modules: Iterable[str]) -> list[Need]:
    """What test modules need and the machine does not have, in the order of L{NEEDS}."""
    words = frozenset().union(*map(needsOf, modules))
    return [need for word, need in NEEDS.items() if word in words and not need.isMet()]
