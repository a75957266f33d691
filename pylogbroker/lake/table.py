"""
Reading the folder of a table.

    ==============================================  ==============================================
    C{topic=T/date=D/hour=H/<run>-<n>.parquet}      rows; C{<run>} is the run that committed them
    C{_manifests/<run>.json}                        what each run did (L{pylogbroker.lake.manifest})
    C{_staging/<run id>/}                           files that are not committed, or not published
    C{_lock}                                        locked by the writer
    ==============================================  ==============================================

Spark ignores names that begin with an underscore, so C{spark.read.parquet(folder)} finds only rows.

A manifest commits a run in one step; then the run is published: its files get their final names. In
between, a plain reader sees the old table, or a part of the run. L{Table.files} sees the whole run
from the commit on: it adds the last manifest's files, staged or not, and omits those that the run
removed. Only the last run can be unpublished, since every writer first publishes the run before its
own.

The folder is the list of files: each run would have to rewrite or read any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import unquote

from pylogbroker.errors import StorageError, TableError
from pylogbroker.interfaces import IFileSystem
from pylogbroker.lake.manifest import MANIFEST_SIZE_MAX, NO_RUN, RunManifest, decodeManifest

MANIFESTS = "_manifests"
STAGING = "_staging"
LOCK = "_lock"
SUFFIX = ".parquet"
LEVELS = ("topic=", "date=", "hour=")
_NUMBER_DIGITS = 12
_FILE = re.compile(rf"(\d{{{_NUMBER_DIGITS}}})-\d{{6}}\.", re.ASCII)
LIST_COUNT_MAX = 10
"""Attempts to list a table that changes meanwhile."""


def manifestName(number: int) -> str:
    """The file name of a run's manifest."""
    return f"{number:0{_NUMBER_DIGITS}d}.json"


def fileName(number: int, index: int, staged: str) -> str:
    """
    A file's final name: the run's number, an index, and the suffixes of its staged name
    (compression).
    """
    _name, dot, ending = staged.rpartition("/")[2].partition(".")
    return f"{number:0{_NUMBER_DIGITS}d}-{index:06d}{dot}{ending}"


def runNumber(path: str) -> int | None:
    """The run that committed a file, or L{None} for a foreign name."""
    found = _FILE.match(path.rpartition("/")[2])
    return None if found is None else int(found[1])


def unknownFileMessage(lastNumber: int) -> str:
    """The error text for a file whose run has no manifest."""
    return (
        f"no manifest knows its run, and the last one is {lastNumber}. Is this folder an"
        " incomplete copy? Then copy the missing part, too"
    )


def topicOf(path: str) -> str:
    """@param path: of a file, below the folder of the table or of the staged files."""
    return unquote(path.partition("/")[0].removeprefix(LEVELS[0]))


class Table:
    """
    A table, which need not exist.

    @ivar folder: an absolute path.
    @ivar fileSystem: the files of its machine.
    """

    def __init__(self, folder: str, fileSystem: IFileSystem) -> None:
        self.folder = folder
        self.fileSystem = fileSystem

    def path(self, *steps: str) -> str:
        return "/".join((self.folder, *steps))

    def manifestCount(self) -> int:
        """@raise TableError: a manifest is missing among the others."""
        if self.fileSystem.status(self.path(MANIFESTS)) is None:
            return 0
        names = {
            name
            for name in self.fileSystem.list(self.path(MANIFESTS))
            if name.endswith(".json") and not name.startswith((".", "_"))
        }
        missing = {manifestName(number + 1) for number in range(len(names))} - names
        if missing:
            raise TableError(
                self.path(MANIFESTS, min(missing)),
                f"it is missing among the {len(names)} manifests,"
                " so the end of the table is unknown",
            )
        return len(names)

    def manifest(self, number: int) -> RunManifest:
        """@raise TableError: the run's manifest cannot be read."""
        path = self.path(MANIFESTS, manifestName(number))
        with closing(self.fileSystem.open(path, write=False)) as file:
            if file.size() > MANIFEST_SIZE_MAX:
                raise TableError(path, f"it has {file.size()} bytes, more than {MANIFEST_SIZE_MAX}")
            manifest = decodeManifest(path, file.readAt(0, MANIFEST_SIZE_MAX))
        if manifest.number != number:
            raise TableError(path, f"it says that it is number {manifest.number}")
        return manifest

    def last(self) -> RunManifest:
        """The last run's manifest, or L{NO_RUN}."""
        count = self.manifestCount()
        return self.manifest(count) if count else NO_RUN

    def since(self, timeMs: int, after: int = 0) -> Iterator[RunManifest]:
        """
        Manifests of runs that began at a time or later, the latest first.

        @param after: the number of a run; it and earlier ones are omitted.
        """
        for number in range(self.manifestCount(), after, -1):
            manifest = self.manifest(number)
            if manifest.startedMs < timeMs:
                return
            yield manifest

    def files(self) -> list[str]:
        """
        Absolute paths of the files with exactly the rows of the committed runs.

        @raise TableError: the table changed L{LIST_COUNT_MAX} times meanwhile.
        """
        for _attempt in range(LIST_COUNT_MAX):
            last = self.last()
            try:
                found = self._committed(last)
            except StorageError:  # a folder was removed meanwhile
                if self.last() == last:
                    raise
                continue
            if self.manifestCount() == last.number:
                return sorted(found)
        raise TableError(self.folder, f"it changed {LIST_COUNT_MAX} times while it was listed")

    def _committed(self, last: RunManifest) -> set[str]:
        found = {self.path(each) for each in self.published()}
        unknown = min(
            (path for path in found if (runNumber(path) or 0) > last.number), default=None
        )
        if unknown is not None and self.manifestCount() == last.number:
            raise TableError(unknown, unknownFileMessage(last.number))
        found -= {self.path(each) for each in last.removed}
        for each in last.added:
            final = self.path(each.path)
            isPublished = self.fileSystem.status(final) is not None
            found.add(final if isPublished else self.path(STAGING, last.runId, each.staged))
        return found

    def published(self) -> Iterator[str]:
        return self._below("", LEVELS)

    def day(self, topic: str, date: str) -> Iterator[str]:
        """
        The files of a topic's day.

        @param topic: as in the name of its folder.
        """
        return self._below(f"{LEVELS[0]}{topic}/{LEVELS[1]}{date}/", LEVELS[2:])

    def days(self) -> Iterator[tuple[str, str]]:
        """Topics and dates, as in the names of folders."""
        for topic in self._names("", LEVELS[0]):
            for date in self._names(topic + "/", LEVELS[1]):
                yield topic.removeprefix(LEVELS[0]), date.removeprefix(LEVELS[1])

    def _names(self, below: str, prefix: str) -> list[str]:
        folder = self.path(below.rstrip("/")) if below else self.folder
        if self.fileSystem.status(folder) is None:
            return []
        return sorted(name for name in self.fileSystem.list(folder) if name.startswith(prefix))

    def _below(self, folder: str, levels: tuple[str, ...]) -> Iterator[str]:
        if not levels:
            yield from (
                folder + name
                for name in self._names(folder, "")
                if name.endswith(SUFFIX) and not name.startswith((".", "_"))
            )
            return
        for name in self._names(folder, levels[0]):
            yield from self._below(f"{folder}{name}/", levels[1:])
