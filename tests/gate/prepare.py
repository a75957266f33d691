"""
Installs the programs that the chosen tests need and that the machine does not have; C{tests/run}
begins with it.

With root's rights and C{apt-get} it installs Debian packages, and adds C{localhost} to
C{/etc/hosts}. Otherwise it names everything that is missing at once, and ends with 1. Imports
nothing but the standard library.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from tests.gate.needs import HOSTS, NEEDS, ROOT, Need, unmet
from tests.gate.schedule import TABLE, readSeconds
from tests.gate.selection import UnknownTestsError, chosenNames, modulesOf, parser

HOSTS_LINE = "127.0.0.1 localhost\n"
APT = ("apt-get", "install", "-y", "-q", "--no-install-recommends")


def canMakeEnvironment() -> bool:
    """True if this Python can make a virtual environment, or there is one."""
    return os.path.exists(ROOT / ".venv" / "bin" / "python") or (
        importlib.util.find_spec("ensurepip") is not None
    )


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
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, check=False
        ).returncode

    return run(*APT, *packages) and (run("apt-get", "update", "-q") or run(*APT, *packages))


def main(arguments: list[str]) -> int:
    """
    See to it that the chosen tests find what they need.

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
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        return install(missing)
    if missing:
        print(explain(missing), file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
