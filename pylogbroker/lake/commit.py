"""
Committing runs to a table: rows and offsets in one step, despite crashes and concurrent writers.

What must be true: after a crash at any point, the table has all rows of each run or none, and its
offsets say which. The next run continues from there.

 1. A writer holds the lock on C{_lock} from before it looks where the table ends until it is done.
 A second writer is refused at once. The system releases the lock when the process dies.
 2. Files are written to C{_staging/<run id>/}, a unique name, so a late task of a dead run does no
 harm.
 3. A manifest that readers would not accept is refused. The staged files and their names are
 synced. The manifest is written under a temporary name and synced. The staged files are checked
 again. Then the manifest is B{linked} to its number, which fails if the number is taken. This is
 the commit.
 4. The run is published: each staged file is linked to its final name, the folders are synced,
 files that the manifest removes are removed, and at last the staging folder. All this can be
 repeated. The next writer does it for the last manifest if its staging folder exists. Other staging
 folders are of failed runs, and are removed.

On network file systems mounted without locks, a live run looks dead to the next one. So the next
one moves the staging folder aside, removes the temporary manifest, then looks whether the run has
committed. The committing run does the opposite: first the temporary manifest, then a check of the
files. In any order, either the committing run finds something missing before the commit, or the
next one finds a committed run and publishes its files. Only one of two runs from the same state
gets the number. This guards against mistakes only: a run that commits before its predecessor is
published would hide that run from rule 4.

Rejected: offsets in ZooKeeper beside the files (two commits, and a crash between them loses or
duplicates rows). An optimistic commit with a second attempt (the loser's work is wasted, and a
paused publisher could restore files that a later compaction removed).

The folder must be on a mounted POSIX file system: exclusive links, atomic renames, C{fsync},
C{flock}.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager

from pylogbroker.errors import (
    DirectoryLockedError,
    PostCommitError,
    StorageError,
    TableBusyError,
    TableError,
)
from pylogbroker.lake.manifest import MANIFEST_SIZE_MAX, RunManifest, decodeManifest
from pylogbroker.lake.table import (
    LOCK,
    MANIFESTS,
    STAGING,
    Table,
    manifestName,
    runNumber,
    unknownFileMessage,
)

TAKEN_FOR_DEAD = (
    "nothing was committed. Another run that writes to this table has taken this one for dead:"
    " the lock does not work across the two machines"
)
_TEMPORARY = "_next-"
_ASIDE = ".aside"
"""Suffix of a staging folder that is about to be removed."""

_LOCATION = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATTERN_SIGNS = frozenset("{}[]*?\\")
"""Characters that make a path a pattern to Spark (C{SparkHadoopUtil.isGlobPath})."""


def localPath(text: str) -> str:
    """
    The checked path of a table's folder.

    @raise TableError: it is not a path on this machine, or Spark would take it for a pattern.
    """
    if _LOCATION.match(text) or not text:
        raise TableError(
            repr(text),
            "a table needs a folder on a local or mounted file system;"
            " object stores and HDFS have no exclusive links",
        )
    if found := sorted(_PATTERN_SIGNS.intersection(os.path.abspath(text))):
        raise TableError(
            repr(text),
            f"the path contains {' '.join(found)}, so Spark would take it for a pattern of paths;"
            " rename the folder",
        )
    return text.rstrip("/") or "/"


def checkStaged(table: Table, manifest: RunManifest) -> None:
    """@raise TableError: a staged file of the manifest is missing, or has another size."""
    for each in manifest.added:
        path = table.path(STAGING, manifest.runId, each.staged)
        status = table.fileSystem.status(path)
        if status is None or status.size != each.size:
            found = "is gone" if status is None else f"has {status.size} bytes, not {each.size}"
            raise TableError(path, f"it {found}; {TAKEN_FOR_DEAD}")


def checkNames(table: Table, manifest: RunManifest) -> None:
    """
    Check that no file of this run or a later one is already published. A table copied with
    manifests older than the files has such files; its rows would be duplicates.

    @raise TableError: there is one.
    """
    for folder in sorted({os.path.dirname(each.path) for each in manifest.added}):
        if table.fileSystem.status(table.path(folder)) is None:
            continue
        for name in table.fileSystem.list(table.path(folder)):
            if (runNumber(name) or 0) >= manifest.number:
                raise TableError(
                    table.path(folder, name),
                    f"{unknownFileMessage(manifest.number - 1)}; nothing was committed",
                )


class TableWriter:
    """
    The only writer of a table, as a context manager. Entering it first completes an unfinished run.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self._files = table.fileSystem
        self._release: Callable[[], None] = lambda: None

    def __enter__(self) -> TableWriter:
        """
        @raise TableBusyError: another run writes to the table.
        @raise TableError: the table is damaged.
        """
        for folder in (MANIFESTS, STAGING):
            self._files.makeDirectories(self.table.path(folder))
        try:
            self._release = self._files.lock(self.table.path(LOCK))
        except DirectoryLockedError as error:
            raise TableBusyError(
                self.table.folder,
                "another run writes to this table; nothing was loaded. Try again when it has ended",
            ) from error
        try:
            self._recover()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._release()

    def staging(self, runId: str) -> str:
        """The folder for a run's files; the caller creates it."""
        return self.table.path(STAGING, runId)

    @contextmanager
    def newRun(self, startedMs: int) -> Iterator[str]:
        """
        The id of a run, as a context manager that stages its files. If that fails, the files are
        removed; the next run removes those of late tasks.
        """
        runId = f"{startedMs}-{uuid.uuid4().hex}"
        try:
            yield runId
        except BaseException:
            self._discard(runId)
            raise

    # -- committing

    def commit(self, manifest: RunManifest) -> None:
        """
        Commit and publish a run.

        @param manifest: with the next number.
        @raise TableError: readers would not accept the manifest, or a staged file is missing or has
            another size. Nothing was committed; the staged files are removed.
        @raise TableBusyError: another run has that number. As above.
        @raise StorageError: a file cannot be read, written or synced. Nothing was committed.
        @raise PostCommitError: the run is committed; the next run publishes it.
        """
        self._link(manifest, self._prepared(manifest))
        try:
            self._files.syncDirectory(self.table.path(MANIFESTS))
            self._drop(self._temporary(manifest.runId))
            self._publish(manifest)
        except (StorageError, TableError) as error:
            raise PostCommitError(
                f"committed as run {manifest.number}, but its files were not all published,"
                f" which the next run does: {error}"
            ) from error

    def _prepared(self, manifest: RunManifest) -> bytes:
        try:
            name = self.table.path(MANIFESTS, manifestName(manifest.number))
            data = manifest.encode()
            if len(data) > MANIFEST_SIZE_MAX:
                raise TableError(
                    name,
                    f"it would have {len(data)} bytes, more than {MANIFEST_SIZE_MAX};"
                    " nothing was committed",
                )
            decodeManifest(name, data)
            checkNames(self.table, manifest)
            checkStaged(self.table, manifest)
            self._syncStaged(manifest)
        except TableError:
            self._discard(manifest.runId)
            raise
        except StorageError as error:
            if error.errno == errno.ENOENT:
                raise TableError(error.path, f"it is gone; {TAKEN_FOR_DEAD}") from error
            raise
        return data

    def _link(self, manifest: RunManifest, data: bytes) -> None:
        temporary, final = (
            self._temporary(manifest.runId),
            self.table.path(MANIFESTS, manifestName(manifest.number)),
        )
        self._write(temporary, data)
        try:
            checkStaged(self.table, manifest)
            self._files.link(temporary, final)
        except (StorageError, TableError) as error:
            self._drop(temporary)
            if self._lastIf(manifest.runId) is not None:
                return  # the link succeeded, and a network file system lost the answer
            self._discard(manifest.runId)
            code = error.errno if isinstance(error, StorageError) else None
            if code == errno.EEXIST:
                raise TableBusyError(
                    final,
                    "another run has committed this number; nothing of this run was committed",
                ) from error
            if code == errno.ENOENT:
                raise TableError(temporary, f"it is gone; {TAKEN_FOR_DEAD}") from error
            raise

    def _temporary(self, runId: str) -> str:
        return self.table.path(MANIFESTS, _TEMPORARY + runId)

    def _drop(self, path: str) -> None:
        if self._files.status(path) is not None:
            self._files.remove(path)

    def _write(self, path: str, data: bytes) -> None:
        with closing(self._files.open(path, create=True)) as file:
            view = memoryview(data)
            while view:
                view = view[file.writeAt(len(data) - len(view), [bytes(view)]) :]
            file.sync()

    def _syncStaged(self, manifest: RunManifest) -> None:
        paths = [f"{self.staging(manifest.runId)}/{each.staged}" for each in manifest.added]
        for path in paths:
            with closing(self._files.open(path, write=False)) as file:
                file.sync()
        folders = list(map(os.path.dirname, paths))
        if manifest.removed:  # the staging folder shows that the removal may be unfinished
            self._files.makeDirectories(self.staging(manifest.runId))
            folders.append(self.staging(manifest.runId))
        self._syncUp(folders)

    def _syncUp(self, folders: Iterable[str]) -> None:
        found = {os.path.dirname(self.table.folder)}
        for folder in folders:
            while len(folder) >= len(self.table.folder):
                found.add(folder)
                folder = folder.rpartition("/")[0]
        for folder in sorted(found, key=len, reverse=True):
            self._files.syncDirectory(folder)

    # -- publishing

    def _publish(self, manifest: RunManifest) -> None:
        finals = [self.table.path(each.path) for each in manifest.added]
        for folder in sorted(set(map(os.path.dirname, finals))):
            self._files.makeDirectories(folder)
        for each, final in zip(manifest.added, finals, strict=True):
            status = self._files.status(final)
            if status is None:
                try:
                    self._files.link(f"{self.staging(manifest.runId)}/{each.staged}", final)
                except StorageError as error:
                    if error.errno == errno.ENOENT:
                        raise TableError(
                            final,
                            f"run {manifest.number} has committed this file, which is neither"
                            f" published nor staged in {manifest.runId}",
                        ) from error
                    raise
            elif status.size != each.size:
                raise TableError(
                    final,
                    f"it has {status.size} bytes, and run {manifest.number} has committed"
                    f" {each.size}: another program has written it",
                )
        self._syncUp(map(os.path.dirname, finals))
        removed = [
            path
            for path in map(self.table.path, manifest.removed)
            if self._files.status(path) is not None
        ]
        for path in removed:
            self._files.remove(path)
        self._syncUp(map(os.path.dirname, removed))
        self._discard(manifest.runId)

    def _recover(self) -> None:
        # A run may have crashed just after its commit. Its manifest must be on disk before its
        # files.
        self._syncUp([self.table.path(MANIFESTS), self.table.path(STAGING)])
        for runId in sorted(
            {name.removesuffix(_ASIDE) for name in self._files.list(self.table.path(STAGING))}
        ):
            self._completeOrRemove(runId)
        for name in self._files.list(self.table.path(MANIFESTS)):
            if name.startswith(_TEMPORARY):
                self._files.remove(self.table.path(MANIFESTS, name))

    def _completeOrRemove(self, runId: str) -> None:
        folder, aside = self.staging(runId), self.staging(runId) + _ASIDE
        last = self._lastIf(runId)
        if last is None:
            # In this order, so that a live run finds one of the two missing, or has committed.
            try:
                if self._files.status(aside) is None:
                    self._files.rename(folder, aside)
                self._drop(self._temporary(runId))
            except StorageError:  # a later run tries again
                return
            last = self._lastIf(runId)
        if last is None:
            self._remove(folder)
            self._remove(aside)
            return
        if self._files.status(aside) is not None:
            self._remove(folder)
            self._files.rename(aside, folder)
        self._publish(last)

    def _lastIf(self, runId: str) -> RunManifest | None:
        last = self.table.last()
        return last if last.runId == runId else None

    def _discard(self, runId: str) -> None:
        self._remove(self.staging(runId))

    def _remove(self, path: str) -> None:
        try:
            status = self._files.status(path)
            if status is None:
                return
            if not status.isDirectory:
                self._files.remove(path)
                return
            for name in self._files.list(path):
                self._remove(f"{path}/{name}")
            self._files.removeDirectory(path)
        except StorageError:  # a task of a dead run still writes there
            return
