"""
The two programs in C: the yardstick that the broker is held against, and the load that is quick
enough to measure servers with.

Both are compiled anew for each run, into the run's own folder: half a second, and never an old one.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
NEEDS = ("compiler",)


class Programs:
    """
    Where they are.

    @ivar yardstick: a server; see C{yardstick.c}.
    @ivar load: clients; see C{load.c}.
    @ivar compiler: its name and version.
    """

    def __init__(self, folder: Path) -> None:
        """
        @param folder: to compile into.
        @raise RuntimeError: there is no compiler, or it failed; says why.
        """
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise RuntimeError("no C compiler: on Debian, apt-get install gcc libc6-dev zlib1g-dev")
        self.compiler = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, check=True
        ).stdout.splitlines()[0]
        self.yardstick = self._compile(compiler, folder, "yardstick")
        self.load = self._compile(compiler, folder, "load")

    @staticmethod
    def _compile(compiler: str, folder: Path, name: str) -> str:
        target = str(folder / name)
        done = subprocess.run(
            [
                compiler,
                "-O2",
                "-Wall",
                "-o",
                target,
                str(SOURCES / f"{name}.c"),
                "-lz",
                "-lpthread",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{name}.c does not compile (zlib1g-dev missing?):\n{done.stderr}")
        return target

    def runLoad(self, what: str, port: int, topic: str, *numbers: float) -> dict[str, float]:
        """
        Run the load and wait for its end.

        @return: what it printed: C{seconds}, C{cpu} and more, by name.
        @raise RuntimeError: it failed; says how.
        """
        done = subprocess.run(
            [self.load, what, str(port), topic, *map(str, numbers)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=300,
        )
        if done.returncode:
            raise RuntimeError(f"load {what} failed: {done.stderr.strip()}")
        words = done.stdout.split()
        return {name: float(value) for name, value in zip(words[::2], words[1::2], strict=True)}
