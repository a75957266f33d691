"""
What a long run says of itself, for C{docs/results}: what was tried, by what, with which seed.
"""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pylogbroker.records.compression import zlib

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("twisted", "cramjam", "crcmod", "zlib-ng")


def say(line: str) -> None:
    """One line, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def opening(options: Mapping[str, str], *packages: str) -> None:
    """
    Say how the run was started, and with which versions.

    @param packages: names, beside those that are always named.
    """
    found = {
        **options,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    for name in (*packages, *PACKAGES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    found["CRC-32 by"] = zlib.__name__
    found["revision"] = revision()
    for name, what in found.items():
        say(f"{name}: {what}")


def revision() -> str:
    """The commit that is checked out, and whether what is tried differs from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", "pylogbroker", "tests/fuzz")
    return f"{git('rev-parse', '--short', 'HEAD')}{' and changes' if changed else ''}"
