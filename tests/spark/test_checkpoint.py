"""Tests for L{pylogbroker.spark.checkpoint}."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import PylogbrokerError
from pylogbroker.spark.checkpoint import apportion, decodeProgress, encodeProgress
from pylogbroker.spark.splits import OffsetRange
from pylogbroker.types import BrokerPartition, PartitionId

PLACES = st.tuples(
    st.sampled_from(("a", "b.c")), st.builds(BrokerPartition, st.integers(0, 3), st.integers(0, 3))
)


def ranges(offsets: dict[PartitionId, tuple[int, int]]) -> dict[PartitionId, OffsetRange]:
    """Of start and size."""
    return {
        place: OffsetRange(*place, start, start + size) for place, (start, size) in offsets.items()
    }


class ProgressTests(SynchronousTestCase):
    """What a checkpoint keeps."""

    @given(
        st.dictionaries(PLACES, st.tuples(st.integers(0, 2**40), st.integers(0, 2**20)), max_size=5)
    )
    def test_roundTrip(self, offsets: dict[PartitionId, tuple[int, int]]) -> None:
        """What goes into a checkpoint comes out of it, through JSON and whatever the order."""
        found = ranges(offsets)
        self.assertEqual(decodeProgress(json.loads(json.dumps(encodeProgress(found)))), found)
        self.assertEqual(
            json.dumps(encodeProgress(found)),
            json.dumps(encodeProgress(dict(reversed(found.items())))),
        )

    def test_foreign(self) -> None:
        """A checkpoint of something else is refused."""
        for kept in (
            {"t": {"0-0": 5}},
            {"t": {"0-0": {"from": 1}}},
            {"t": 5},
            {"t": {"zero": {"from": 1, "to": 2}}},
            {"t": {"0-0": {"from": "x", "to": 2}}},
        ):
            self.assertRaises(PylogbrokerError, decodeProgress, kept)

    @given(
        st.dictionaries(PLACES, st.tuples(st.just(0), st.integers(0, 10_000)), max_size=5),
        st.integers(1, 20_000),
    )
    def test_shares(self, offsets: dict[PartitionId, tuple[int, int]], sizeMax: int) -> None:
        """All fits, or the shares are in proportion and add up to the limit, give or take a byte for each."""
        found = ranges(offsets)
        shares, total = apportion(found, sizeMax), sum(each.size for each in found.values())
        if total <= sizeMax:
            self.assertEqual(shares, {place: each.size for place, each in found.items()})
        else:
            self.assertTrue(sizeMax <= sum(shares.values()) < sizeMax + len(shares))
            self.assertTrue(all(shares[place] > 0 for place, each in found.items() if each.size))
