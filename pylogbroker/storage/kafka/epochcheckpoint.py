"""
The file C{leader-epoch-checkpoint} of a partition's directory. It is a module of its own, since
what reasons with epochs alone, as replication does, touches no files.
"""

from __future__ import annotations

from collections.abc import Iterable

from pylogbroker.errors import CorruptLogError
from pylogbroker.interfaces import IFileSystem
from pylogbroker.storage.kafka.checkpoints import (
    LEADER_EPOCHS,
    readCheckpoint,
    readNumber,
    writeCheckpoint,
)
from pylogbroker.storage.kafka.epochs import EpochStart, LeaderEpochs


def readEpochs(fileSystem: IFileSystem, directory: str) -> LeaderEpochs:
    """
    The epochs in a partition's directory; none if it has no such file. Blocks.

    @raise CorruptLogError: the file cannot be read.
    """
    path = f"{directory}/{LEADER_EPOCHS}"
    entries = []
    for line in readCheckpoint(fileSystem, path) or ():
        if len(line) != 2:
            raise CorruptLogError(path, "read", f"{' '.join(line)[:80]!r} is no epoch")
        entries.append(EpochStart(*(readNumber(path, each) for each in line)))
    return LeaderEpochs(entries)


def writeEpochs(fileSystem: IFileSystem, directory: str, entries: Iterable[EpochStart]) -> None:
    """Replace C{leader-epoch-checkpoint} durably. Blocks."""
    writeCheckpoint(
        fileSystem,
        f"{directory}/{LEADER_EPOCHS}",
        (f"{epoch} {startOffset}" for epoch, startOffset in entries),
    )
