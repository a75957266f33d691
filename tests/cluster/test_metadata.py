"""
Tests for L{pylogbroker.cluster.metadata}. Its queries are tested where they are carried out:
C{tests.client.test_clustermetadata}, C{tests.syncclient}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.cluster import metadata as module
from pylogbroker.cluster.metadata import ZnodeWarnings
from pylogbroker.errors import ZnodeError


class ZnodeWarningsTests(SynchronousTestCase):
    """Reports of unusable nodes."""

    def setUp(self) -> None:
        self.reported: list[str] = []
        self.warnings = ZnodeWarnings(lambda text: self.reported.append(text.partition(":")[0]))

    def warn(self, path: str, value: str = "x") -> None:
        self.warnings.warnOnce(path, ZnodeError(path, value, "it is bad"))

    def expect(self, *reports: tuple[str, str]) -> None:
        self.assertEqual(
            self.reported, [f"{path} has the value {value}" for path, value in reports]
        )

    def test_once(self) -> None:
        """Each node is named once with each value that it gets."""
        for value in ("x", "x", "y", "y", "x"):
            self.warn("/a", value)
        self.warn("/b")
        self.expect(("/a", "x"), ("/a", "y"), ("/a", "x"), ("/b", "x"))

    def test_again(self) -> None:
        """One that was good meanwhile, or gone, is named again; others are not."""
        for path in ("/a/b", "/a/c", "/a/b/d", "/ab/b"):
            self.warn(path)
        self.reported.clear()
        self.warnings.clear("/a/c")
        self.warnings.retainChildren("/a", ["c"])
        for path in ("/a/b", "/a/c", "/a/b/d", "/ab/b"):
            self.warn(path)
        self.expect(("/a/b", "x"), ("/a/c", "x"), ("/a/b/d", "x"))
        self.warnings.retainChildren("/a", ["b", "c"])
        self.warn("/a/b/d")
        self.assertEqual(len(self.reported), 3)

    def test_limit(self) -> None:
        """No more than so many are kept, and named, at a time."""
        self.patch(module, "WARNING_COUNT_MAX", 2)
        self.warnings.retainChildren("/", [])
        for path in ("/a", "/b", "/c"):
            self.warn(path)
        self.warn("/b", "y")
        self.warnings.clear("/a")
        self.warn("/c")
        self.expect(("/a", "x"), ("/b", "x"), ("/b", "y"), ("/c", "x"))
