"""
Committing to a table: rows and offsets together, whatever dies, and however many try.

What must be true: after any death, at any point, the table has all rows of each run or none, and the offsets say which; the next run goes on from there without
being told. The rule:

 1. Who writes holds the lock on C{_lock}, from before it looks how far the table is until it is done. A second one is told at once, before it has read a
    byte. The system lets go of the lock when the process dies, so that nobody has to clean up.
 2. Files are written to C{_staging/<run id>/}, whose name no other run ever uses: what still writes for a dead run harms nobody.
 3. What no reader would accept as a manifest is refused. The staged files are synced, names and all. Then the manifest is written under another name, and
    synced; the staged files are looked at once more; and the manifest is B{linked} to its number, which fails if that is taken. This is the commit.
 4. The run is published: each staged file is linked to its final name, the folders are synced, the files that the manifest removes are removed, and then the
    staging folder is. All of this can be done twice; whoever takes the lock begins with it, for the last manifest, whose staging folder tells that it may be
    unfinished. All other staging folders are of runs that came to nothing, and go.

Where the lock does not reach (some network file systems, mounted without locks), a run that lives looks like a dead one to the next. So who sweeps first moves
the folder aside, then removes the manifest's other name, and then looks whether the run has committed meanwhile; and who commits does the opposite, first
that name and then a look at the files. Whichever way the two fall together, either the one that commits finds something missing, which is an error before the
commit, or the one that sweeps finds a committed run, whose files it still has and publishes. And of two runs from the same state only one gets the number.
That is for mistakes: a run that commits before the one before it has published would hide it from rule 4. Two writers at a time are safe only with the lock.

Rejected: offsets in ZooKeeper beside the files (two commits, and a death between them loses or doubles); an optimistic commit with a second attempt (the
loser has done all the work for nothing, and a paused publisher could resurrect files that a later compaction removed; with the lock it cannot).

The folder has to be on a local or mounted file system with POSIX semantics: exclusive links, atomic renames of names, C{fsync}, C{flock}.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable
from types import TracebackType

from pylogbroker.errors import (
    DirectoryLockedError,
    PostCommitError,
    StorageError,
    TableBusyError,
    TableError,
)
from pylogbroker.interfaces import IFileSystem
from pylogbroker.lake.commitchecks import TAKEN_FOR_DEAD, checkNames, checkStaged
from pylogbroker.lake.manifest import MANIFEST_SIZE_MAX, Manifest, decodeManifest
from pylogbroker.lake.table import LOCK, MANIFESTS, STAGING, Table, manifestName

_TEMPORARY = "_next-"
_ASIDE = ".aside"
"""Behind the name of a staging folder that is about to be removed."""

_LOCATION = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATTERN_SIGNS = frozenset("{}[]*?\\")
"""What makes a path a pattern, to Spark (C{SparkHadoopUtil.isGlobPath})."""


def localPath(text: str) -> str:
    """
    What somebody calls a table's folder.

    @raise TableError: it is no path of this machine's file systems, or one that Spark would take for a pattern of paths.
    """
    if _LOCATION.match(text) or not text:
        raise TableError(
            repr(text),
            "a table lies in a folder of a local or mounted file system; object stores and HDFS have no exclusive links",
        )
    if found := sorted(_PATTERN_SIGNS.intersection(os.path.abspath(text))):
        raise TableError(
            repr(text),
            f"the path has {' '.join(found)} in it, which Spark takes for a pattern of many paths; give the folder another name",
        )
    return text.rstrip("/") or "/"


class TableWriter:
    """
    The one that may write to a table, as a context manager: what was left unfinished is finished first.

    @ivar table: it.
    """

    def __init__(self, table: Table, fileSystem: IFileSystem) -> None:
        self.table = table
        self._files = fileSystem
        self._release: Callable[[], None] = lambda: None

    def __enter__(self) -> TableWriter:
        """
        @raise TableBusyError: somebody else writes.
        @raise TableError: the table is not what it ought to be.
        """
        for folder in (MANIFESTS, STAGING):
            self._files.makeDirectories(self.table.at(folder))
        try:
            self._release = self._files.lock(self.table.at(LOCK))
        except DirectoryLockedError as error:
            raise TableBusyError(
                self.table.path,
                "another run writes to this table; nothing was loaded. It is free again when that one has ended",
            ) from error
        try:
            self._recover()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release()

    def staging(self, runId: str) -> str:
        """Where a run writes its files; the folder is not there yet."""
        return self.table.at(STAGING, runId)

    def discard(self, runId: str) -> None:
        """A run has come to nothing. What cannot be removed now, since a task still writes there, goes with the next run."""
        self._sweep(self.staging(runId))

    # -- committing

    def commit(self, manifest: Manifest) -> None:
        """
        Commit and publish a run.

        @param manifest: with the number that comes next.
        @raise TableError: readers would not accept the manifest, or a staged file is not what the manifest says, or another run has taken this one for
            dead. Nothing was committed, and the staged files are gone.
        @raise TableBusyError: another run has that number. Nothing was committed, and the staged files are gone.
        @raise StorageError: a file cannot be read, written or synced. Nothing was committed.
        @raise PostCommitError: the run is committed, and could not be published; the next one does that.
        """
        self._link(manifest, self._prepared(manifest))
        try:
            self._files.syncDirectory(self.table.at(MANIFESTS))
            self._drop(self._temporary(manifest.runId))
            self._publish(manifest)
        except (StorageError, TableError) as error:
            raise PostCommitError(
                f"committed as run {manifest.number}, but its files were not all published, which the next run does: {error}"
            ) from error

    def _prepared(self, manifest: Manifest) -> bytes:
        """The manifest as a file, with all that it names on the disk."""
        try:
            data = self._encoded(manifest)
            checkNames(self.table, self._files, manifest)
            checkStaged(self.table, self._files, manifest)
            self._syncStaged(manifest)
        except TableError:
            self.discard(manifest.runId)
            raise
        except StorageError as error:
            if error.errno == errno.ENOENT:
                raise TableError(error.path, f"it is gone; {TAKEN_FOR_DEAD}") from error
            raise
        return data

    def _encoded(self, manifest: Manifest) -> bytes:
        """What can be read again: a manifest that is there and cannot be read would close the table to everybody."""
        name = self.table.at(MANIFESTS, manifestName(manifest.number))
        data = manifest.encode()
        if len(data) > MANIFEST_SIZE_MAX:
            raise TableError(
                name,
                f"it would have {len(data)} bytes, more than {MANIFEST_SIZE_MAX}; nothing was committed",
            )
        decodeManifest(name, data)
        return data

    def _link(self, manifest: Manifest, data: bytes) -> None:
        """The commit."""
        temporary, final = (
            self._temporary(manifest.runId),
            self.table.at(MANIFESTS, manifestName(manifest.number)),
        )
        self._write(temporary, data)
        try:
            checkStaged(self.table, self._files, manifest)
            self._files.link(temporary, final)
        except (StorageError, TableError) as error:
            self._drop(temporary)
            if self._lastIf(manifest.runId) is not None:
                return  # the answer was lost, as network file systems do, and not the link
            self.discard(manifest.runId)
            code = error.errno if isinstance(error, StorageError) else None
            if code == errno.EEXIST:
                raise TableBusyError(
                    final, "another run has committed under this number; nothing of this one was"
                ) from error
            if code == errno.ENOENT:
                raise TableError(temporary, f"it is gone; {TAKEN_FOR_DEAD}") from error
            raise

    def _temporary(self, runId: str) -> str:
        """The other name of a run's manifest."""
        return self.table.at(MANIFESTS, _TEMPORARY + runId)

    def _drop(self, path: str) -> None:
        """Remove a file that may be there."""
        if self._files.status(path) is not None:
            self._files.remove(path)

    def _write(self, path: str, data: bytes) -> None:
        file = self._files.open(path, create=True)
        try:
            view = memoryview(data)
            while view:
                view = view[file.writeAt(len(data) - len(view), [bytes(view)]) :]
            file.sync()
        finally:
            file.close()

    def _syncStaged(self, manifest: Manifest) -> None:
        paths = [f"{self.staging(manifest.runId)}/{each.staged}" for each in manifest.added]
        for path in paths:
            file = self._files.open(path, write=False)
            try:
                file.sync()
            finally:
                file.close()
        folders = [path.rpartition("/")[0] for path in paths]
        if (
            manifest.removed
        ):  # with nothing added, the staging folder alone tells that files may still have to go
            self._files.makeDirectories(self.staging(manifest.runId))
            folders.append(self.staging(manifest.runId))
        self._syncUp(folders)

    def _syncUp(self, folders: Iterable[str]) -> None:
        """Sync folders and those above, up to the one that has the table, the lowest first: the names of files, and the names of the folders themselves."""
        found = {self.table.path.rpartition("/")[0] or "/"}
        for folder in folders:
            while len(folder) >= len(self.table.path):
                found.add(folder)
                folder = folder.rpartition("/")[0]
        for folder in sorted(found, key=len, reverse=True):
            self._files.syncDirectory(folder)

    # -- publishing

    def _publish(self, manifest: Manifest) -> None:
        """Twice, or the half of it once and then all, is the same as once."""
        finals = [self.table.at(each.path) for each in manifest.added]
        for folder in sorted({path.rpartition("/")[0] for path in finals}):
            self._files.makeDirectories(folder)
        for each, final in zip(manifest.added, finals, strict=True):
            status = self._files.status(final)
            if status is None:
                self._linkStaged(manifest, each.staged, final)
            elif status.size != each.size:
                raise TableError(
                    final,
                    f"it has {status.size} bytes, and run {manifest.number} has committed one of {each.size}: somebody has put it there",
                )
        self._syncUp([path.rpartition("/")[0] for path in finals])
        removed = [
            path
            for path in map(self.table.at, manifest.removed)
            if self._files.status(path) is not None
        ]
        for path in removed:
            self._files.remove(path)
        self._syncUp([path.rpartition("/")[0] for path in removed])
        self._sweep(self.staging(manifest.runId))

    def _linkStaged(self, manifest: Manifest, staged: str, final: str) -> None:
        try:
            self._files.link(f"{self.staging(manifest.runId)}/{staged}", final)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                raise TableError(
                    final,
                    f"run {manifest.number} has committed this file, and it is neither there nor staged in {manifest.runId}",
                ) from error
            raise

    def _recover(self) -> None:
        # The manifest of a run that died just behind its commit may not be on the disk yet; its files must not be there before it.
        self._syncUp([self.table.at(MANIFESTS), self.table.at(STAGING)])
        for runId in sorted(
            {name.removesuffix(_ASIDE) for name in self._files.list(self.table.at(STAGING))}
        ):
            self._settle(runId)
        for name in self._files.list(self.table.at(MANIFESTS)):
            if name.startswith(_TEMPORARY):
                self._files.remove(self.table.at(MANIFESTS, name))

    def _settle(self, runId: str) -> None:
        """Publish a run if it is the last that was committed; else see to it that it never will be, and remove its files."""
        there, aside = self.staging(runId), self.staging(runId) + _ASIDE
        last = self._lastIf(runId)
        if last is None:
            try:
                self._moveAside(runId, there, aside)
            except StorageError:  # then it stays as it is, for a later run
                return
            last = self._lastIf(runId)
        if last is None:
            self._sweep(there)
            self._sweep(aside)
            return
        if self._files.status(aside) is not None:
            self._sweep(there)
            self._files.rename(aside, there)
        self._publish(last)

    def _lastIf(self, runId: str) -> Manifest | None:
        """The last manifest, if it is this run's."""
        last = self.table.last()
        return last if last is not None and last.runId == runId else None

    def _moveAside(self, runId: str, there: str, aside: str) -> None:
        """In this order, so that a run that lives finds one of the two missing, or has committed already."""
        if self._files.status(aside) is None:
            self._files.rename(there, aside)
        self._drop(self._temporary(runId))

    def _sweep(self, path: str) -> None:
        """Remove a folder with all that is in it, as far as can be."""
        try:
            status = self._files.status(path)
            if status is None:
                return
            if not status.isDirectory:
                self._files.remove(path)
                return
            for name in self._files.list(path):
                self._sweep(f"{path}/{name}")
            self._files.removeDirectory(path)
        except StorageError:  # a task of a dead run still writes there
            return
