"""
Tests for L{pylogbroker.client.znodewarnings}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.client import znodewarnings as module
from pylogbroker.client.znodewarnings import ZnodeWarnings
from pylogbroker.errors import ZnodeError


class ComplaintsTests(SynchronousTestCase):
    """What is said of nodes."""

    def setUp(self) -> None:
        self.complaints = ZnodeWarnings()
        self.said: list[str] = []

    def complain(self, path: str, value: str = "x") -> None:
        self.complaints.complain(
            path, ZnodeError(path, value, "it is bad"), lambda: self.said.append(f"{path}={value}")
        )

    def test_once(self) -> None:
        """Each node is named once with each value that it gets."""
        for value in ("x", "x", "y", "y", "x"):
            self.complain("/a", value)
        self.complain("/b")
        self.assertEqual(self.said, ["/a=x", "/a=y", "/a=x", "/b=x"])

    def test_again(self) -> None:
        """One that was good meanwhile, or gone, is named again; others are not."""
        for path in ("/a/b", "/a/c", "/a/b/d", "/ab/b"):
            self.complain(path)
        self.said.clear()
        self.complaints.fine("/a/c")
        self.complaints.children("/a", ["c"])
        for path in ("/a/b", "/a/c", "/a/b/d", "/ab/b"):
            self.complain(path)
        self.assertEqual(self.said, ["/a/b=x", "/a/c=x", "/a/b/d=x"])
        self.complaints.children("/a", ["b", "c"])
        self.complain("/a/b/d")
        self.assertEqual(len(self.said), 3)

    def test_limit(self) -> None:
        """No more than so many are kept, and named, at a time."""
        self.patch(module, "COMPLAINT_COUNT_MAX", 2)
        self.complaints.children("/", [])
        for path in ("/a", "/b", "/c"):
            self.complain(path)
        self.complain("/b", "y")
        self.complaints.fine("/a")
        self.complain("/c")
        self.assertEqual(self.said, ["/a=x", "/b=x", "/b=y", "/c=x"])
