"""
Tests for L{pylogbroker.schemas.levels}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.schemas.levels import DEFAULT_LEVEL, LEVELS


class LevelTests(SynchronousTestCase):
    """The rules."""

    def test_names(self) -> None:
        """They have the names that clients know."""
        names = {
            "NONE",
            "BACKWARD",
            "BACKWARD_TRANSITIVE",
            "FORWARD",
            "FORWARD_TRANSITIVE",
            "FULL",
            "FULL_TRANSITIVE",
        }
        self.assertEqual((set(LEVELS), len(LEVELS), DEFAULT_LEVEL), (names, 7, "BACKWARD"))
