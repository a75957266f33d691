"""
Tests of L{pylogbroker.tasks.reports.jsondocument}, with a container's metrics as the document.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.tasks.reports.containermetrics import (
    ContainerMetrics,
    PartitionMetrics,
    StandbyMetrics,
    StoreMetrics,
    TaskMetrics,
)
from pylogbroker.tasks.reports.jsondocument import DOCUMENT_SIZE_MAX

TASK = TaskMetrics(
    3,
    "running",
    7,
    1,
    {"late": 2},
    (PartitionMetrics("words", 3, 7, 9, 2), PartitionMetrics("lines", 3, None, None, None)),
    (StoreMetrics("counts", 100), StoreMetrics("other", None, 5, 10)),
)


def metrics(*tasks: TaskMetrics) -> ContainerMetrics:
    return ContainerMetrics(
        "count", "1f", "node", "member", 1, 2, 10_000, 7, 1, 4, 0, len(tasks), tasks
    )


class DocumentTests(SynchronousTestCase):
    """Documents, whole and wrong."""

    def changed(self, **changes: Any) -> bytes:
        return json.dumps(json.loads(metrics(TASK).encode()) | changes).encode()

    def test_roundTrip(self) -> None:
        """A document is what it was; unknown fields are left out, missing ones have defaults."""
        standbys = (StandbyMetrics(4, True, 0), StandbyMetrics(5, False, None))
        found = replace(metrics(TASK), standbyCount=2, standbys=standbys)
        self.assertEqual(ContainerMetrics.decode(found.encode()), found)
        later = json.loads(found.encode()) | {"later": {"a": [1]}}
        self.assertEqual(ContainerMetrics.decode(json.dumps(later).encode()), found)
        document = json.loads(found.encode())
        del document["failure"], document["standbys"], document["tasks"][0]["counters"]
        earlier = ContainerMetrics.decode(json.dumps(document).encode())
        self.assertEqual((earlier.failure, earlier.standbys), ("", ()))
        self.assertEqual(document["version"], 1)

    def test_wrong(self) -> None:
        """What is wrong is named, with its place."""
        task = json.loads(metrics(TASK).encode())["tasks"][0]
        for data, reason in (
            (b"{", "Expecting property name"),
            (b"[]", "it is no JSON object"),
            (b"{}", "version is no int"),
            (b"\xff\xfe\xfd", "decode"),
            (b"[" * 100_000, "nested too deep"),
            (b" " * (DOCUMENT_SIZE_MAX + 1), "bytes are more than"),
            (self.changed(version=2), "it has version 2; this program knows 1"),
            (b'{"version":1}', "job is missing"),
            (self.changed(job=7), "job is no str"),
            (self.changed(job="a\nb"), "job has characters that cannot be printed"),
            (
                self.changed(tasks=[{**task, "counters": {"\u202e": 1}}]),
                "tasks[0].counters has characters",
            ),
            (self.changed(handledCount=True), "handledCount is no int"),
            (self.changed(handledCount=2**63), "handledCount is no int"),
            (self.changed(tasks="none"), "tasks is no array"),
            (self.changed(tasks=["none"]), "tasks[0] is no object"),
            (self.changed(tasks=[{**task, "counters": []}]), "tasks[0].counters is no object"),
            (
                self.changed(tasks=[task, {**task, "counters": {"a": "1"}}]),
                "tasks[1].counters.a is no int",
            ),
        ):
            error = self.assertRaises(ValueError, ContainerMetrics.decode, data)
            self.assertIn(reason, str(error))

    def test_large(self) -> None:
        """A document that would be too large has fewer tasks, and says how many there are."""
        large = metrics(*[TASK] * 5_000)
        large = replace(large, standbys=(StandbyMetrics(1, True, 0),) * 40)
        data = large.encode()
        self.assertLessEqual(len(data), DOCUMENT_SIZE_MAX)
        found = ContainerMetrics.decode(data)
        self.assertEqual(found.taskCount, 5_000)
        self.assertEqual((len(found.tasks), len(found.standbys)), (1_250, 10))
