"""
Builds the C speed-up for tests, in a folder of its own, and runs test cases with it: C{python -m
tests.nativemodule FOLDER [arguments of trial]}.

Modules of this checkout run then, with C{pylogbroker._speedups} from the folder.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

NEEDS = ("compiler", "pythonheaders")
ROOT = Path(__file__).resolve().parent.parent


def build(folder: Path, flags: Mapping[str, str] | None = None) -> Path:
    """
    @param flags: variables for the compiler, such as C{CFLAGS}.
    @return: the module's file.
    @raise RuntimeError: it does not compile; says why.
    """
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(folder / "lib")]
    done = subprocess.run(
        [*command, "--build-temp", str(folder / "objects")],
        cwd=ROOT,
        env={**os.environ, **(flags or {}), "PYLOGBROKER_SPEEDUPS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the C speed-up does not compile:\n{done.stdout}{done.stderr}")
    (path,) = (folder / "lib" / "pylogbroker").iterdir()
    return path


@cache
def builtFolder() -> Path:
    """Where the module was built, once in a process; in trial's folder, which goes with the run."""
    folder = Path(mkdtemp(prefix="speedups-", dir=Path.cwd()))
    build(folder, {"CFLAGS": "-Wall -Wextra -Wshadow -Wconversion -Werror"})
    return folder


def loadModule(path: Path) -> Any:
    """The module, beside the functions in Python that this process goes on using."""
    from pylogbroker.speedups import MODULE  # not before main() has said where to look for it

    spec = importlib.util.spec_from_file_location(MODULE, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def nativeModule() -> Any:
    """L{loadModule}, of one that was built for this process."""
    (path,) = (builtFolder() / "lib" / "pylogbroker").iterdir()
    return loadModule(path)


def run(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run test cases with the module, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tests.nativemodule", str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def main(arguments: list[str]) -> None:
    import pylogbroker

    pylogbroker.__path__.append(str(Path(arguments[0]) / "lib" / "pylogbroker"))
    from pylogbroker import speedups

    if speedups.native is None:
        raise SystemExit(f"not with the C speed-up: {speedups.description}")
    from twisted.scripts import trial

    sys.argv = ["trial", *arguments[1:]]
    trial.run()


if __name__ == "__main__":
    main(sys.argv[1:])
