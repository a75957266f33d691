"""
Tests of reports.
"""

from __future__ import annotations

import dataclasses

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import StorageError
from pylogbroker.storage import events
from pylogbroker.types import TopicPartition

VALUES = {
    "topicPartition": TopicPartition("t", 0),
    "error": StorageError("/p", "open", "no"),
    "path": "/p",
    "reason": "why",
}


class ReportTests(SynchronousTestCase):
    """Reports are events with fields, and sentences."""

    def test_everyReportIsASentenceOfItsFields(self) -> None:
        """
        The text of every kind of report mentions each of its fields, for logs and for people alike.
        """
        kinds = events.StorageEvent.__subclasses__()
        self.assertTrue(len(kinds) > 5)
        for kind in kinds:
            fields = {
                name: VALUES.get(name, i + 1000)
                for i, name in enumerate(field.name for field in dataclasses.fields(kind))
            }
            text = str(kind(**fields))
            self.assertEqual(text, kind.format.format(**fields))
            for value in fields.values():
                self.assertIn(str(value), text)

    def test_warnings(self) -> None:
        """What an operator should look at is a warning, progress is not."""
        self.assertEqual(
            {kind.__name__ for kind in events.StorageEvent.__subclasses__() if not kind.isWarning},
            {"RecoveryNeeded", "PartitionLoaded", "DeletedSegmentPurged"},
        )
