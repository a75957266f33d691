"""
The two programs in C: the yardstick that the broker is held against, and the load that is quick
enough to measure servers with.

Both are compiled anew for each run, into the run's own folder: half a second, and never an old one.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
NEEDS = ("compiler",)


def _findCompiler() -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("no C compiler: on Debian, apt-get install gcc libc6-dev zlib1g-dev")
    return compiler


def compileC(source: Path, folder: Path, options: Sequence[str] = ()) -> str:
    """
    Compile a program of one file.

    @return: its path.
    @raise RuntimeError: there is no compiler, or it failed; says why.
    """
    target = str(folder / source.stem)
    command = [_findCompiler(), "-O2", "-Wall", *options, "-o", target, str(source)]
    command += ["-lz", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source.name} does not compile (zlib1g-dev missing?):\n{done.stderr}")
    return target


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
        compiler = _findCompiler()
        self.compiler = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, check=True
        ).stdout.splitlines()[0]
        self.yardstick = compileC(SOURCES / "yardstick.c", folder)
        self.load = compileC(SOURCES / "load.c", folder)

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
