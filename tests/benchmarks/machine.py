"""
What figures depend on besides the code: the machine, its system, the versions in use. And the
machine's worst habit, cured as far as can be.

B{Memory that is not there.} A virtual machine may give free memory back to its host (a balloon with
free page reporting). Whoever touches such a page next waits for the host, in the middle of a system
call: filling the page cache takes twice the CPU time, now and then, for no reason that can be seen
inside. So before each measurement as much memory as it will need is touched and freed again; then
it is there (L{warmMemory}).
"""

from __future__ import annotations

import importlib.metadata
import mmap
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.servers import ROOT, SETTINGS

WARM_SIZE_MAX = 2 << 30


def warmMemory(size: int) -> None:
    """
    See to it that free memory is really there.

    @param size: bytes; no more than a quarter of what is available are touched.
    """
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = min(size, WARM_SIZE_MAX, available // 4)
    if size > 0:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def describe(folder: Path, compiler: str, pythonPath: Sequence[Path]) -> list[tuple[str, str]]:
    """
    The surroundings of a run, as (what, value).

    @param folder: where the data are.
    @param pythonPath: the broker's, besides the usual one.
    """
    return [
        ("pylogbroker", _revision()),
        (
            "Python",
            (
                f"{platform.python_version()} ({platform.python_implementation()}), Twisted"
                f" {importlib.metadata.version('twisted')}"
            ),
        ),
        ("CRC-32 of the broker", checksumName(pythonPath)),
        ("CRC-32 and inflate of the yardstick", f"zlib; {compiler}, -O2"),
        (
            "machine",
            (
                f"{os.cpu_count()} × {_processor()},"
                f" {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 20} MiB"
            ),
        ),
        ("system", f"{platform.system()} {platform.release()}; data on {_fileSystem(folder)}"),
        (
            "settings",
            "etc/broker.properties with "
            + " ".join(f"{key}={value}" for key, value in SETTINGS.items() if key != "port"),
        ),
    ]


def checksumName(pythonPath: Sequence[Path] = ()) -> str:
    """What the broker takes CRC-32 from, with its version."""
    code = (
        "from pylogbroker.records.compression import zlib; print(zlib.__name__.rpartition('.')[2])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*pythonPath, ROOT)))}
    name = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{name} of the standard library"


def _revision() -> str:
    version = importlib.metadata.version("pylogbroker") if _isInstalled() else "not installed"
    try:
        revision = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return version
    return f"{version}, revision {revision}"


def _isInstalled() -> bool:
    try:
        importlib.metadata.version("pylogbroker")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def load() -> str:
    """How many processes wanted a processor in the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def _fileSystem(folder: Path) -> str:
    """The type of the file system that a folder is on: that of the longest mount point above it."""
    path = str(folder.resolve())
    found = ("", "?")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4]
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= len(
            found[0]
        ):
            found = point, rest.split()[0]
    return found[1]
