"""
What is looked at before a run is committed: that its files are what the manifest says, and that their names are nobody else's.
"""

from __future__ import annotations

from pylogbroker.errors import TableError
from pylogbroker.interfaces import IFileSystem
from pylogbroker.lake.manifest import Manifest
from pylogbroker.lake.table import STAGING, Table, runNumber, unknownFileMessage

TAKEN_FOR_DEAD = "nothing was committed. Another run that writes to this table has taken this one for dead: the lock does not reach from there to here"


def checkStaged(table: Table, fileSystem: IFileSystem, manifest: Manifest) -> None:
    """
    That all is there that the manifest promises.

    @raise TableError: a file is not, or has another size.
    """
    for each in manifest.added:
        path = table.at(STAGING, manifest.runId, each.staged)
        status = fileSystem.status(path)
        if status is None or status.size != each.size:
            found = "is gone" if status is None else f"has {status.size} bytes, and not {each.size}"
            raise TableError(path, f"it {found}; {TAKEN_FOR_DEAD}")


def checkNames(table: Table, fileSystem: IFileSystem, manifest: Manifest) -> None:
    """
    That no file of this run or a later one is where the run's files will be. So it is in a copy of a table in which the manifests are older than the files:
    rows would come twice there, or those of that file stay in place of the run's.

    @raise TableError: there is one.
    """
    for folder in sorted({each.path.rpartition("/")[0] for each in manifest.added}):
        if fileSystem.status(table.at(folder)) is None:
            continue
        for name in fileSystem.list(table.at(folder)):
            if (runNumber(name) or 0) >= manifest.number:
                raise TableError(
                    table.at(folder, name),
                    f"{unknownFileMessage(manifest.number - 1)}; nothing was committed",
                )
