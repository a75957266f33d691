"""
Tests for L{pylogbroker.lake.commitchecks}; what comes of it in a run is in L{tests.lake.test_commit}.
"""

from __future__ import annotations

from dataclasses import replace

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import TableError
from pylogbroker.lake.commitchecks import checkNames, checkStaged
from pylogbroker.lake.table import Table, fileName
from pylogbroker.testing.powercut import PowerCutFileSystem
from tests.lake.tables import HOUR, PATH, manifest, write


class CheckingTests(SynchronousTestCase):
    """Before a commit."""

    def setUp(self) -> None:
        self.files = PowerCutFileSystem()
        self.table = Table(PATH, self.files)
        [added] = manifest(2).added
        self.manifest = replace(manifest(2), added=(added._replace(size=3),))
        self.staged = f"{PATH}/_staging/run2/{added.staged}"

    def test_staged(self) -> None:
        """Each file is there, with its size; one that is gone, or has another one, is named."""
        self.assertIn(
            f"{self.staged}: it is gone",
            str(self.assertRaises(TableError, checkStaged, self.table, self.files, self.manifest)),
        )
        write(self.files, self.staged, b"1234")
        self.assertIn(
            "it has 4 bytes, and not 3",
            str(self.assertRaises(TableError, checkStaged, self.table, self.files, self.manifest)),
        )
        self.files.remove(self.staged)
        write(self.files, self.staged, b"123")
        checkStaged(self.table, self.files, self.manifest)

    def test_names(self) -> None:
        """Files of earlier runs, and somebody else's, may be beside the new ones; those of this run or a later one may not."""
        checkNames(self.table, self.files, self.manifest)
        for name in (fileName(1, 0, "x.parquet"), "theirs.parquet"):
            write(self.files, f"{PATH}/{HOUR}7/{name}", b"x")
        checkNames(self.table, self.files, self.manifest)
        for number in (2, 5):
            name = f"{PATH}/{HOUR}7/{fileName(number, 3, 'x.parquet')}"
            write(self.files, name, b"x")
            self.assertIn(
                f"{name}: no manifest tells of its run",
                str(
                    self.assertRaises(TableError, checkNames, self.table, self.files, self.manifest)
                ),
            )
            self.files.remove(name)
