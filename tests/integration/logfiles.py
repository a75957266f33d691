"""
Real log files to send through the broker: those of the loghub collection where they lie beside the
checkout, else those of this machine, and where it has too few, generated ones that look like them.
All go through the same tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.integration.brokerprocess import ROOT

LOGHUB = ROOT.parent / "shared" / "data" / "loghub"
MACHINE = Path("/var/log")
FILE_COUNT = 5
LINE_COUNT = 2000
MACHINE_FILE_SIZE_MIN = 20_000
MACHINE_LINE_COUNT_MIN = 200


class LogFile(NamedTuple):
    """
    @ivar source: where it comes from, for people.
    @ivar data: what is in it, of whatever encoding.
    """

    name: str
    source: str
    data: bytes

    @property
    def lines(self) -> list[bytes]:
        """
        Without the line feeds between them: joined with those they are C{data} again, whether it
        ends in one or not.
        """
        return self.data.split(b"\n")


def logFiles() -> list[LogFile]:
    """What there is: every file of loghub, else five others."""
    found = list(loghubFiles())
    if not found:
        found = list(machineFiles())[:FILE_COUNT]
        found += [generatedFile(seed) for seed in range(FILE_COUNT - len(found))]
    return found


def loghubFiles() -> Iterator[LogFile]:
    """None on most machines."""
    if LOGHUB.is_dir():
        for path in sorted(LOGHUB.glob("*.log")):
            yield LogFile(path.name, "loghub", path.read_bytes())


def machineFiles() -> Iterator[LogFile]:
    """The first lines of the logs under C{/var/log} that can be read and are not too short."""
    for path in sorted(MACHINE.rglob("*.log")):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        if len(data) >= MACHINE_FILE_SIZE_MIN and data.count(b"\n") >= MACHINE_LINE_COUNT_MIN:
            yield LogFile(path.name, str(MACHINE), b"\n".join(data.split(b"\n")[:LINE_COUNT]))


def generatedFile(seed: int) -> LogFile:
    """
    Lines as daemons write them, with the odd things that happen: CR, empty lines, bytes that are no
    UTF-8, a long line, no line feed at the end.
    """
    random = Random(seed)
    lines = []
    for number in range(LINE_COUNT):
        head = (
            f"Jun {number // 600 + 10:2}"
            f" {number // 60 % 24:02}:{number % 60:02}:{random.randrange(60):02}"
            f" host{random.randrange(9)} "
        )
        words = random.choices(
            (
                "session",
                "opened",
                "for",
                "user",
                "root",
                "error",
                "in",
                "state",
                "failed",
                "password",
                "port",
            ),
            k=random.randrange(1, 20),
        )
        body = f"daemon[{random.randrange(32768)}]: {' '.join(words)} {random.randrange(1 << 30):x}"
        lines.append((head + body).encode() + random.choice((b"", b"\r")))
    lines[random.randrange(LINE_COUNT)] = b""
    lines[random.randrange(LINE_COUNT)] = b"\xff\xfe caf\xe9 \x00"
    lines[random.randrange(LINE_COUNT)] = b"long " * 10_000
    return LogFile(
        f"generated_{seed}.log",
        "generated",
        b"\n".join(lines) + random.choice((b"", b"\n", b"\r\n")),
    )
