"""
Installs the programs that the chosen tests need and that the machine does not have, and the Python
packages; C{tests/run} begins with it.

With root's rights and C{apt-get} it installs Debian packages, and adds C{localhost} to
C{/etc/hosts}. Otherwise it names everything that is missing at once, and ends with 1. Imports
nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.gate.commands import execute
from tests.gate.needs import HOSTS, NEEDS, ROOT, Need, unmet
from tests.gate.schedule import TABLE, readSeconds
from tests.gate.selection import UnknownTestsError, chosenNames, modulesOf, parser

PYTHON_MIN = (3, 11)
ENVIRONMENT_FOLDER = ROOT / ".venv"
PYTHON = ENVIRONMENT_FOLDER / "bin" / "python"
HOSTS_LINE = "127.0.0.1 localhost\n"
APT = ("apt-get", "install", "-y", "-q", "--no-install-recommends")


def canMakeEnvironment() -> bool:
    """True if this Python can make a virtual environment, or there is one."""
    return importlib.util.find_spec("ensurepip") is not None or isUsable(PYTHON)


ENVIRONMENT = Need("Python's venv, for .venv", ("python3-venv",), canMakeEnvironment)


def explain(missing: Sequence[Need]) -> str:
    """What a user without root's rights is told: each need, and one command for all packages."""
    packages = [package for need in missing for package in need.packages]
    lines = ["tests/run: the chosen tests need more than this machine has:"]
    lines += [
        f"  {need.what}" + (f": {' '.join(need.packages)}" if need.packages else "")
        for need in missing
    ]
    if packages:
        lines.append(f"On Debian: apt-get install {' '.join(packages)}")
    return "\n".join(lines)


def install(missing: Sequence[Need]) -> int:
    """
    Install as root.

    @return: the exit status of C{apt-get}.
    """
    packages = [package for need in missing for package in need.packages]
    if NEEDS["spark"] in missing:
        with HOSTS.open("a", encoding="utf-8") as file:
            file.write(HOSTS_LINE)
    if not packages:
        return 0
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}

    def run(*command: str) -> int:
        print(f"tests/run: {' '.join(command)}", flush=True)
        return execute("apt-get", command, environment)

    return run(*APT, *packages) and (run("apt-get", "update", "-q") or run(*APT, *packages))


def isUsable(python: Path) -> bool:
    """Whether an interpreter is there, is recent enough, and has pip."""
    code = f"import sys, pip; raise SystemExit(sys.version_info < {PYTHON_MIN})"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def makeEnvironment() -> int:
    """
    See to it that C{.venv} is there, with the package and what its tests require. Nothing is
    installed again before the requirements change.

    @return: the exit status of what failed, or 0.
    """
    stamp = ENVIRONMENT_FOLDER / "tests-installed"
    if not isUsable(PYTHON):
        shutil.rmtree(ENVIRONMENT_FOLDER, ignore_errors=True)
        status = execute("venv", [sys.executable, "-m", "venv", ENVIRONMENT_FOLDER])
        if status:
            return status
    parts = ("setup.py", "pyproject.toml", "pylogbroker/__init__.py")
    digest = hashlib.sha256(b"".join((ROOT / part).read_bytes() for part in parts)).hexdigest()
    if stamp.exists() and stamp.read_text(encoding="ascii").startswith(digest):
        return 0
    pip: list[str | Path] = [
        PYTHON,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    status = execute("pip install", [*pip, "-e", ".[test]"])
    if not status:
        stamp.write_text(f"{digest}\n", encoding="ascii")
    return status


def main(arguments: list[str]) -> int:
    """
    See to it that the chosen tests find what they need, programs and Python packages.

    @param arguments: those of C{tests/run}.
    @return: the exit status.
    """
    options = parser().parse_args(arguments)
    try:
        names = chosenNames(options, readSeconds(TABLE.read_text(encoding="utf-8")))
    except UnknownTestsError as error:
        print(f"tests/run: {error}", file=sys.stderr)
        return 2
    missing = [*([] if canMakeEnvironment() else [ENVIRONMENT]), *unmet(modulesOf(names))]
    if not missing:
        return makeEnvironment()
    if os.geteuid() == 0 and shutil.which("apt-get"):
        return install(missing) or makeEnvironment()
    print(explain(missing), file=sys.stderr)
    return 1


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        raise SystemExit("tests/run: interrupted") from None
