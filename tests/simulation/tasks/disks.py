"""
The disks of the machines that containers run on: stores that outlive a container, and forget
batches when the power is cut.

A batch of a store is there or not, as RocksDB promises; after a power cut the last ones may be
missing. A store that a living process has open is locked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random

from pylogbroker.errors import DirectoryLockedError
from pylogbroker.tasks.job import ROCKSDB, Store
from pylogbroker.tasks.state.engines import ChangelogMark, IStoreEngine
from pylogbroker.tasks.state.keyvaluestore import Entry
from pylogbroker.tasks.state.memoryengine import MemoryEngine
from pylogbroker.testing.simulatednetwork import Process


class StoreFile:
    """
    A store on a disk.

    @ivar batches: as they were written.
    @ivar isDamaged: whether it must not be used.
    @ivar writtenAt: by the clock of its machine.
    @ivar owner: the process that has it open.
    """

    def __init__(self) -> None:
        self.batches: list[tuple[list[Entry], ChangelogMark]] = []
        self.isDamaged = False
        self.writtenAt = 0.0
        self.owner: Process | None = None


class Disk:
    """
    @ivar files: by job, task and store.
    @ivar folderIds: by job.
    @ivar counts: of the world.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self.files: dict[tuple[str, int, str], StoreFile] = {}
        self.counts = counts
        self.folderIds: dict[str, bytes] = {}

    def cutPower(self, random: Random) -> None:
        """What was written last may be gone. No process is left."""
        for file in self.files.values():
            lostCount = random.choice((0, 0, 1, 2, 5))
            if lostCount and file.batches:
                self.counts["batches of stores lost"] += 1
                del file.batches[-lostCount:]

    def free(self) -> list[tuple[str, int, str]]:
        """The stores that no process has."""
        return [key for key, file in self.files.items() if file.owner is None or file.owner.isDead]


class DiskDirectory:
    """An L{IStateDirectory<pylogbroker.tasks.state.statedirectory.IStateDirectory>} of a job."""

    def __init__(self, disk: Disk, job: str, process: Process) -> None:
        self._disk = disk
        self._job = job
        self._process = process

    def tasks(self) -> list[int]:
        return sorted({task for job, task, _store in self._disk.files if job == self._job})

    def folderId(self, newId: bytes) -> bytes:
        return self._disk.folderIds.setdefault(self._job, newId)

    def open(self, task: int, store: Store, retentionMs: int) -> IStoreEngine:
        if store.engine != ROCKSDB:
            return MemoryEngine()
        file = self._disk.files.setdefault((self._job, task, store.name), StoreFile())
        if file.owner is not None and not file.owner.isDead:
            self._disk.counts["stores locked"] += 1
            raise DirectoryLockedError(f"{self._job}/{task}/{store.name}", "open", "it is locked")
        file.owner = self._process
        made = DiskEngine(file, self._process)
        if file.isDamaged or self._process.seconds() - file.writtenAt > retentionMs / 1000:
            made.clear()
        file.isDamaged = False
        self._disk.counts["stores with something opened"] += made.mark is not None
        return made


class DiskEngine:
    """An engine over a store on a disk."""

    def __init__(self, file: StoreFile, process: Process) -> None:
        self._file = file
        self._process = process
        self._memory = MemoryEngine()
        for batch in file.batches:
            self._memory.write(*batch)

    @property
    def mark(self) -> ChangelogMark | None:
        return self._memory.mark

    @property
    def size(self) -> int:
        return self._memory.size

    def get(self, key: bytes) -> bytes | None:
        return self._memory.get(key)

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        return self._memory.range(start, end)

    def write(self, entries: Iterable[Entry], mark: ChangelogMark) -> None:
        batch = list(entries), mark
        self._file.batches.append(batch)
        self._file.writtenAt = self._process.seconds()
        self._memory.write(*batch)

    def clear(self) -> None:
        self._file.batches.clear()
        self._memory.clear()

    def close(self) -> None:
        if self._file.owner is self._process:
            self._file.owner = None
        self._memory.close()
