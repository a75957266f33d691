"""
Tests of L{pylogbroker.tasks.state.statedirectory}.
"""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import StorageError
from pylogbroker.tasks.state.statedirectory import FOLDER_ID, StateDirectory

ONE, OTHER = b"1" * 16, b"2" * 16


class FolderIdTests(SynchronousTestCase):
    """What names a folder of stores."""

    def test_shared(self) -> None:
        """Who comes first names it; it keeps its name, and has no task by it."""
        path = Path(self.mktemp())
        found = [StateDirectory(path, lambda: 0.0).folderId(each) for each in (ONE, OTHER)]
        self.assertEqual(found, [ONE, ONE])
        self.assertEqual([each.name for each in path.iterdir()], [FOLDER_ID])
        self.assertEqual(StateDirectory(path, lambda: 0.0).tasks(), [])
        self.assertEqual(StateDirectory(Path(self.mktemp()), lambda: 0.0).folderId(OTHER), OTHER)

    def test_cut(self) -> None:
        """A name that was cut, or is none, is replaced."""
        path = Path(self.mktemp())
        path.mkdir()
        for text in ("", "31", "no hex"):
            (path / FOLDER_ID).write_text(text, encoding="ascii")
            self.assertEqual(StateDirectory(path, lambda: 0.0).folderId(ONE), ONE)

    def test_notWritable(self) -> None:
        """A folder that cannot be made is an error that names it."""
        path = Path(self.mktemp())
        path.write_text("a file", encoding="ascii")
        error = self.assertRaises(StorageError, StateDirectory(path, lambda: 0.0).folderId, ONE)
        self.assertIn(str(path), str(error))
