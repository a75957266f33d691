"""
Commands that the gate runs, none of which stays silent for long. Imports nothing but the standard
library.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.gate.needs import ROOT

SILENCE_SECONDS_MAX = 8.0
"""After this time without a line, whoever waits is told what runs."""


def duration(seconds: float) -> str:
    """C{"45 s"} or C{"12 min"}."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def execute(
    what: str,
    command: Sequence[str | Path],
    environment: Mapping[str, str] | None = None,
    silenceSecondsMax: float = SILENCE_SECONDS_MAX,
) -> int:
    """
    Run a command in the checkout, and say every few seconds that it still runs. If this is
    interrupted, the command is killed.

    @param what: for the person who waits.
    @param environment: of the command; by default ours.
    @param silenceSecondsMax: how long this may say nothing.
    @return: the exit status.
    """
    began = time.monotonic()
    with subprocess.Popen(
        [*command],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            while True:
                try:
                    return process.wait(silenceSecondsMax)
                except subprocess.TimeoutExpired:
                    print(f"{what} runs ({duration(time.monotonic() - began)})", flush=True)
        except BaseException:
            process.kill()
            raise
