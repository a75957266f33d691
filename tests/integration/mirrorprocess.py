"""
C{twistd pylogbroker-mirror} as a process, for tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.integration.brokerprocess import BrokerProcess

START_SECONDS_MAX = 300.0


def writeProperties(path: str, properties: Mapping[str, str]) -> str:
    """A property file; returns its path."""
    Path(path).write_text(
        "".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8"
    )
    return path


class MirrorProcess(BrokerProcess):
    """
    A mirror. Its port, if it was told to C{--listen}, is that of its figures.
    """

    def __init__(
        self,
        directory: str,
        consumers: Sequence[Mapping[str, str]],
        producer: Mapping[str, str],
        *arguments: str,
    ) -> None:
        """
        @param directory: for its property files.
        @param arguments: more of the command line.
        """
        super().__init__(directory)
        Path(directory).mkdir(exist_ok=True)
        words: list[str] = []
        for index, properties in enumerate(consumers):
            words += [
                "--consumer",
                writeProperties(f"{directory}/consumer{index}.properties", properties),
            ]
        self._arguments = [
            *words,
            "--producer",
            writeProperties(f"{directory}/producer.properties", producer),
            *arguments,
        ]

    def start(self) -> MirrorProcess:
        """Returns itself, when it is a member of its sources' groups."""
        self.launch()
        self.waitForLine(": mirroring ", START_SECONDS_MAX)
        if "--listen" in self._arguments:
            self.port = int(self.waitForLine(r" served on .*:(\d+)")[1])
        return self

    def launch(self) -> None:
        """Start it and wait for nothing."""
        self._spawn(["pylogbroker-mirror", *self._arguments], self.directory)

    def cpuTicks(self) -> int:
        """What it has used of the processors."""
        fields = (
            Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        )
        return int(fields[11]) + int(fields[12])
