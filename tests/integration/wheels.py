"""
The packages that users install, built from a copy of this tree: the wheel and the sdist.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = (
    "setup.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "pylogbroker",
    "pyspark_pylogbroker.py",
    "twisted",
    "etc",
)


def copyTree(tree: Path) -> None:
    """What a wheel is built from."""
    tree.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, tree / name, ignore=shutil.ignore_patterns("__pycache__", "dropin.cache")
            )
        else:
            shutil.copy(source, tree / name)


def buildWheel(tree: Path, folder: Path) -> Path:
    """
    @param tree: the copy.
    @param folder: where to put it.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(folder),
        str(tree),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    [wheel] = folder.glob("*.whl")
    return wheel


def buildSdist(tree: Path, folder: Path) -> Path:
    """
    @param tree: the copy.
    @param folder: where to put it.
    """
    code = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    command = [sys.executable, "-c", code, str(folder)]
    run = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    [sdist] = folder.glob("*.tar.gz")
    return sdist


def cleanEnvironment() -> dict[str, str]:
    """
    The environment variables of this process without those that bring this tree, or Spark, to a
    Python that is started: pip, too, would take what lies in C{PYTHONPATH} for installed.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV", "COVERAGE"))
    }
