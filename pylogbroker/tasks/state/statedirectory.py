"""
The stores of a job on the disk of this machine. A module of its own, since a container can be given
another disk than the machine's.

  - Each task has a folder in that of the job, and in it one for each store.
  - A store that was not written for longer than its changelog keeps deletions is emptied: a key may
  be in it whose deletion is gone from the changelog.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Protocol

from twisted.logger import Logger

from pylogbroker.cluster.kafka.taskassignor import FOLDER_ID_SIZE
from pylogbroker.storage.files import storageError
from pylogbroker.tasks.job import ROCKSDB, Store
from pylogbroker.tasks.state.engines import IStoreEngine
from pylogbroker.tasks.state.memoryengine import MemoryEngine
from pylogbroker.tasks.state.rocksdbengine import RocksDbEngine

FOLDER_ID = "folder-id"
"""The file that names a job's folder, so that containers know whether they share it."""

log = Logger()


class IStateDirectory(Protocol):
    """The stores of a job on a disk. They outlive the container."""

    def tasks(self) -> Iterable[int]:
        """The tasks that have something there."""

    def folderId(self, newId: bytes) -> bytes:
        """
        What names it: containers that share it get the same. Blocks.

        @param newId: L{FOLDER_ID_SIZE} bytes by lot, for one that has no name yet.
        @raise StorageError: the file cannot be read or written.
        """

    def open(self, task: int, store: Store, retentionMs: int) -> IStoreEngine:
        """
        Open a store, which is new if it is not there. Blocks.

        @param retentionMs: a store that was written before that is emptied.
        @raise DirectoryLockedError: another container has it open.
        @raise StorageError: the files fail.
        """


class StateDirectory:
    """An L{IStateDirectory}, of a folder."""

    def __init__(self, path: Path, nowMs: Callable[[], float]) -> None:
        """
        @param path: of the job's folder, which need not be there.
        @param nowMs: the time in milliseconds since the epoch, of the clock that files have.
        """
        self._path = path
        self._nowMs = nowMs

    def tasks(self) -> list[int]:
        """See the interface."""
        try:
            return sorted(int(each.name) for each in self._path.iterdir() if each.name.isdecimal())
        except OSError:  # there is none yet
            return []

    def folderId(self, newId: bytes) -> bytes:
        """See the interface."""
        path, new = self._path / FOLDER_ID, self._path / f"{FOLDER_ID}.{newId.hex()}"
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            if _folderIdIn(path) is None:  # missing, or cut when the power was
                path.unlink(missing_ok=True)
                new.write_text(newId.hex(), encoding="ascii")
                try:
                    os.link(new, path)  # whole, unless another container has come first
                except FileExistsError:
                    pass
                new.unlink()
            return _folderIdIn(path) or newId
        except OSError as error:
            raise storageError(str(path), "read", error) from error

    def open(self, task: int, store: Store, retentionMs: int) -> IStoreEngine:
        """See the interface."""
        if store.engine != ROCKSDB:
            return MemoryEngine()
        folder = self._path / str(task) / store.name
        writtenAtMs = _newestFileMs(folder)
        made = RocksDbEngine(str(folder), partial(_logDamage, folder))
        if made.mark is not None and self._nowMs() - writtenAtMs > retentionMs:
            try:
                made.clear()
            except BaseException:
                made.close()
                raise
        return made


def _folderIdIn(path: Path) -> bytes | None:
    try:
        found = bytes.fromhex(path.read_text(encoding="ascii", errors="replace"))
    except (FileNotFoundError, ValueError):
        return None
    return found if len(found) == FOLDER_ID_SIZE else None


def _newestFileMs(folder: Path) -> float:
    """When a folder was written last, in milliseconds since the epoch; 0: it has no file."""
    try:
        return max((each.stat().st_mtime * 1000 for each in folder.iterdir()), default=0)
    except OSError:
        return 0


def _logDamage(folder: Path, reason: str) -> None:
    log.warn(
        "Store {folder} is damaged, and built anew: {reason}", folder=str(folder), reason=reason
    )
