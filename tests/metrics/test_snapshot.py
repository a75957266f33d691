"""
Tests of the values that a picture is made of.
"""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.metrics.brokermetrics import (
    BlockedRequest,
    BrokerSnapshot,
    PartitionSnapshot,
    ThrottledPartition,
)


class PictureTests(SynchronousTestCase):
    """Plain values."""

    def test_plain(self) -> None:
        """
        A picture is nothing but numbers, texts and truths: it can be written down, and does not
        change.
        """
        picture = BrokerSnapshot(
            1,
            "h:1",
            2,
            1,
            None,
            {"requests": {"produceCount": 1}},
            (PartitionSnapshot("t", 0, 0, 1, 2, 1, 1, 1, 1, ""),),
            1,
            {},
            1,
            2,
            3,
            (ThrottledPartition("", -1, "flush", 1),),
            (BlockedRequest("p", "produce", "t", 0, "flush"),),
            {"flush": 1},
            0.5,
            4,
        )
        self.assertEqual(
            json.loads(json.dumps(picture))[6], [["t", 0, 0, 1, 2, 1, 1, 1, 1, "", False, 0]]
        )
        with self.assertRaises(AttributeError):
            picture.brokerId = 2  # type: ignore[misc] # that is the point
