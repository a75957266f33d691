"""Patterns of members, with Kafka's reasons for what is none."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.coordinator.consumergroups.topicregex import (
    PATTERN_SIZE_MAX,
    checkPattern,
    matchingTopics,
)
from pylogbroker.errors import InvalidPatternError


class PatternTests(SynchronousTestCase):
    """Patterns."""

    def test_wholeNames(self) -> None:
        """A pattern matches a name from end to end."""
        names = ["orders", "orders-eu", "x"]
        self.assertEqual(matchingTopics("orders", names), {"orders"})
        self.assertEqual(matchingTopics("ORDERS|(?i)ORDERS.*", names), {"orders", "orders-eu"})

    def test_reasons(self) -> None:
        """What is no pattern is refused in Kafka's words."""
        for pattern, reason in (
            ("(", "missing closing )"),
            ("[", "missing closing ]"),
            (")", "regexp/syntax: internal error"),
            ("a**", "invalid nested repetition operator"),
            ("\\1", "invalid escape sequence"),
            ("(?=a)", "invalid or unsupported Perl syntax"),
            ("(?<=a)b", "invalid named capture"),
            ("(?P<n", "invalid named capture"),
            ("x{2000}", "invalid repeat count"),
            ("*", "missing argument to repetition operator"),
            ("\\", "trailing backslash at end of expression"),
            ("x" * (PATTERN_SIZE_MAX + 1), f"more than {PATTERN_SIZE_MAX} characters"),
        ):
            error = self.assertRaises(InvalidPatternError, checkPattern, pattern)
            self.assertEqual(str(error), reason)
        checkPattern("x" * PATTERN_SIZE_MAX)
