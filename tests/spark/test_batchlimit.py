"""Tests for L{pylogbroker.spark.batchlimit}."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pylogbroker.protocol.kafka07.requests import Fetch
from pylogbroker.records.messageset import encodeMessage, encodeSet
from pylogbroker.spark.batchlimit import lastEntryBoundary
from pylogbroker.spark.partitionbounds import fetchBounds
from tests.spark.sourcecase import HERE, SourceCase

EMBEDDED = encodeSet([b"x" * 5, b"", b"y"])


class BoundaryTests(SourceCase):
    """Where to stop."""

    def boundary(self, start: int, end: int, sizeMax: int, fetchSize: int = 64) -> int:
        """From a start on."""
        brokers = self.brokers()
        starts = fetchBounds(brokers, "clicks", HERE).starts
        self.broker.requests.clear()
        return lastEntryBoundary(
            brokers, self.options(fetchSize=fetchSize), self.range(start, end), sizeMax, starts
        )

    @given(
        st.lists(
            st.lists(
                st.one_of(st.binary(max_size=30), st.just(EMBEDDED), st.just(b"x" * 100)),
                min_size=1,
                max_size=6,
            ),
            min_size=1,
            max_size=4,
        ),
        st.integers(0, 300),
        st.data(),
    )
    def test_alwaysABoundary(
        self, segments: list[list[bytes]], sizeMax: int, data: st.DataObject
    ) -> None:
        """Whatever the payloads, it is the end of an entry, behind the start, and beyond the limit only for an entry that is larger itself."""
        self.broker.logs.clear()
        self.broker.log().append(*[encodeSet(payloads) for payloads in segments])
        edges = [0]
        for payloads in segments:
            for payload in payloads:
                edges.append(edges[-1] + len(encodeMessage(payload)))
        start = data.draw(st.sampled_from(edges[:-1]))
        found = self.boundary(start, edges[-1], sizeMax)
        self.assertIn(found, edges)
        self.assertGreater(found, start)
        self.assertLessEqual(found, max(start + sizeMax, edges[edges.index(start) + 1]))

    def test_allOfIt(self) -> None:
        """Where the limit is not reached it is the end, and nothing is read."""
        self.broker.log().append(encodeSet([b"one", b"two"]))
        self.assertEqual(self.boundary(0, 26, 26), 26)
        self.assertEqual(self.broker.requests, [])

    def test_segments(self) -> None:
        """The start of a segment that is at least half as far is taken, and nothing is read."""
        starts = self.broker.log().append(*[encodeSet([b"x" * 90] * 10)] * 3)
        self.assertEqual(self.boundary(0, 3_000, 1_900), starts[1])
        self.assertEqual(self.broker.requests, [])
        self.assertEqual(self.boundary(0, 3_000, 2_050), starts[2])

    def test_steps(self) -> None:
        """Otherwise it is stepped from the last segment's start on, and no more is read than the limit."""
        self.broker.log().append(encodeSet([b"x" * 90] * 2), encodeSet([b"x" * 90] * 50))
        self.assertEqual(self.boundary(0, 5_200, 1_250, fetchSize=350), 1_200)
        fetches = [request for request in self.broker.requests if isinstance(request, Fetch)]
        self.assertEqual([request.offset for request in fetches], [200, 500, 800, 1_100, 1_200])
        self.assertLessEqual(max(request.offset + request.sizeMax for request in fetches), 1_250)

    def test_deletedOrCorrupt(self) -> None:
        """Where nothing whole is to be had it is the next boundary that is sure, so that the reader finds out."""
        log = self.broker.log()
        starts = log.append(b"\0\0\0\0" + b"x" * 500, encodeSet([b"x" * 500]))
        self.assertEqual(self.boundary(0, log.end, 100), starts[1])
        self.assertEqual(self.boundary(0, starts[1], 100), starts[1])
        log.fetch = lambda offset, sizeMax: None  # type: ignore[method-assign]
        self.assertEqual(self.boundary(starts[1], log.end, 100), log.end)
