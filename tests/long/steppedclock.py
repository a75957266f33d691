"""
Runs a module with a wall clock that can be stepped::

    python -m tests.long.steppedclock FILE MODULE ARGUMENTS

The wall clock is the machine's, and the seconds that C{FILE} has (a double, little-endian), which
another process may change at any time (L{WallClock}). The monotonic clock is the machine's.

The time namespaces of Linux have no wall clock of their own. Rejected: Debian's libfaketime 0.9.10,
whose C{clock_nanosleep} fails with EINVAL for Python's C{time.sleep}.
"""

from __future__ import annotations

import mmap
import runpy
import struct
import sys
import time
from pathlib import Path

_SECONDS = struct.Struct("<d")


class WallClock:
    """
    The wall clock of a process.

    @ivar path: of the file that the process is given.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(_SECONDS.pack(0))

    def step(self, seconds: float) -> None:
        """
        Set it.

        @param seconds: how far it is ahead of the machine's from now on; may be negative.
        """
        with self.path.open("r+b") as file:
            file.write(_SECONDS.pack(seconds))


def _main() -> None:
    path, module = sys.argv[1:3]
    with open(path, "rb") as file:
        ahead = mmap.mmap(file.fileno(), _SECONDS.size, prot=mmap.PROT_READ)
    machineTime, machineTimeNs = time.time, time.time_ns

    def stepped() -> float:
        return machineTime() + float(_SECONDS.unpack_from(ahead)[0])

    def steppedNs() -> int:
        return machineTimeNs() + int(_SECONDS.unpack_from(ahead)[0] * 1e9)

    # Before anything else is imported, which may take the functions by their names.
    time.time, time.time_ns = stepped, steppedNs
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
