"""
A table's folder, for who reads it.

    ==============================================  ==============================================================================
    C{topic=T/date=D/hour=H/<run>-<n>.parquet}      the rows; C{<run>} is the number of the run that committed the file
    C{_manifests/<run>.json}                        what each run did, 1, 2, 3 … without a gap (L{pylogbroker.lake.manifest})
    C{_staging/<run id>/}                           files of a run that is not committed, or not published
    C{_lock}                                        who writes holds a lock on it (L{pylogbroker.lake.commit})
    ==============================================  ==============================================================================

Spark leaves out names that begin with an underscore, so C{spark.read.parquet(folder)} finds the rows and nothing else.

A run is committed by its manifest, in one step, and then published: its files get their final names. Between the two, a plain reader sees
the table of before, or a part of the run. L{Table.files} sees all of it from the commit on: to the files with final names it adds those of the last
manifest, staged or not, and leaves out those that it removed. Only the last one can be unpublished, since whoever commits publishes first what the one
before has left.

No list of all files is kept: it would have to be rewritten, or read whole, by each run. The folder is the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

from pylogbroker.errors import StorageError, TableError
from pylogbroker.interfaces import IFileSystem
from pylogbroker.lake.manifest import MANIFEST_SIZE_MAX, Manifest, decodeManifest

MANIFESTS = "_manifests"
STAGING = "_staging"
LOCK = "_lock"
SUFFIX = ".parquet"
LEVELS = ("topic=", "date=", "hour=")
_NUMBER_DIGITS = 12
_FILE = re.compile(rf"(\d{{{_NUMBER_DIGITS}}})-\d{{6}}\.", re.ASCII)
LOOK_COUNT_MAX = 10


def manifestName(number: int) -> str:
    """Of a run's manifest."""
    return f"{number:0{_NUMBER_DIGITS}d}.json"


def fileName(number: int, index: int, staged: str) -> str:
    """Of a run's file: its number and index, and how the file is compressed, which stands behind the first dot of the name that it was written under."""
    _name, dot, ending = staged.rpartition("/")[2].partition(".")
    return f"{number:0{_NUMBER_DIGITS}d}-{index:06d}{dot}{ending}"


def runNumber(path: str) -> int | None:
    """Of the run that committed a file; L{None}: somebody else has put it there."""
    found = _FILE.match(path.rpartition("/")[2])
    return None if found is None else int(found[1])


def unknownFileMessage(lastNumber: int) -> str:
    """What there is to say of a file whose run has no manifest."""
    return f"no manifest tells of its run, and the last one is {lastNumber}. Is this folder a copy, of which a part is missing? Then take the rest of it along"


def topicOf(path: str) -> str:
    """
    @param path: of a file, below the table's folder or the one of the staged files.
    """
    return unquote(path.partition("/")[0].removeprefix(LEVELS[0]))


class Table:
    """
    A table. It need not be there.

    @ivar path: its folder; absolute.
    """

    def __init__(self, path: str, fileSystem: IFileSystem) -> None:
        self.path = path
        self._files = fileSystem

    def at(self, *steps: str) -> str:
        """A path in it."""
        return "/".join((self.path, *steps))

    def manifestCount(self) -> int:
        """
        How many runs were committed.

        @raise TableError: one is missing among them.
        """
        if self._files.status(self.at(MANIFESTS)) is None:
            return 0
        names = {
            name
            for name in self._files.list(self.at(MANIFESTS))
            if name.endswith(".json") and not name.startswith((".", "_"))
        }
        missing = {manifestName(number + 1) for number in range(len(names))} - names
        if missing:
            raise TableError(
                self.at(MANIFESTS, min(missing)),
                f"it is missing among the {len(names)} manifests: how far the table is loaded is not known",
            )
        return len(names)

    def manifest(self, number: int) -> Manifest:
        """
        One run's.

        @raise TableError: it cannot be read.
        """
        path = self.at(MANIFESTS, manifestName(number))
        file = self._files.open(path, write=False)
        try:
            if file.size() > MANIFEST_SIZE_MAX:
                raise TableError(path, f"it has {file.size()} bytes, more than {MANIFEST_SIZE_MAX}")
            manifest = decodeManifest(path, file.readAt(0, MANIFEST_SIZE_MAX))
        finally:
            file.close()
        if manifest.number != number:
            raise TableError(path, f"it says that it is number {manifest.number}")
        return manifest

    def last(self) -> Manifest | None:
        """The last run's; L{None} for a table to which nothing was ever loaded."""
        count = self.manifestCount()
        return self.manifest(count) if count else None

    def since(self, timeMs: int, after: int = 0) -> Iterator[Manifest]:
        """
        The latest first: those of runs that began at a time or later.

        @param after: the number of a run; those up to it are left out.
        """
        for number in range(self.manifestCount(), after, -1):
            manifest = self.manifest(number)
            if manifest.startedMs < timeMs:
                return
            yield manifest

    def files(self) -> list[str]:
        """
        The files that have exactly the rows of the committed runs; absolute paths.

        @raise TableError: it changed again and again while it was looked at.
        """
        for _look in range(LOOK_COUNT_MAX):
            last = self.last()
            try:
                found = self._committed(last)
            except StorageError:  # a folder that has gone meanwhile
                if self.last() == last:
                    raise
                continue
            if self.manifestCount() == (last.number if last else 0):
                return sorted(found)
        raise TableError(self.path, f"it changed {LOOK_COUNT_MAX} times while it was looked at")

    def _committed(self, last: Manifest | None) -> set[str]:
        found = {self.at(path) for path in self.published()}
        number = last.number if last is not None else 0
        foreign = min((path for path in found if (runNumber(path) or 0) > number), default=None)
        if foreign is not None and self.manifestCount() == number:
            raise TableError(foreign, unknownFileMessage(number))
        if last is not None:
            found -= {self.at(path) for path in last.removed}
            for each in last.added:
                final = self.at(each.path)
                found.add(
                    final
                    if self._files.status(final) is not None
                    else self.at(STAGING, last.runId, each.staged)
                )
        return found

    def published(self) -> Iterator[str]:
        """Files with final names; paths below the folder."""
        return self._below("", LEVELS)

    def day(self, topic: str, date: str) -> Iterator[str]:
        """
        Those of a topic's day.

        @param topic: as it stands in the folder's name.
        """
        return self._below(f"{LEVELS[0]}{topic}/{LEVELS[1]}{date}/", LEVELS[2:])

    def days(self) -> Iterator[tuple[str, str]]:
        """Topics and dates, as they stand in folders' names."""
        for topic in self._names("", LEVELS[0]):
            for date in self._names(topic + "/", LEVELS[1]):
                yield topic.removeprefix(LEVELS[0]), date.removeprefix(LEVELS[1])

    def _names(self, below: str, beginning: str) -> list[str]:
        where = self.at(below.rstrip("/")) if below else self.path
        return (
            sorted(name for name in self._files.list(where) if name.startswith(beginning))
            if self._files.status(where) is not None
            else []
        )

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
