"""
Tests for the streams of L{pylogbroker.spark.datasource}, without Spark.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import (
    ConfigurationError,
    DataLossError,
    NoBrokersError,
    PylogbrokerError,
    ZookeeperTimeoutException,
)
from pylogbroker.protocol.kafka07.requests import Fetch
from pylogbroker.records.messageset import encodeMessage, encodeSet
from pylogbroker.spark.brokerclients import OffsetRange, PartitionDiscovery
from pylogbroker.spark.datasource import (
    StreamReader,
    decodeCheckpoint,
    encodeCheckpoint,
    lastEntryBoundary,
)
from pylogbroker.spark.splits import apportion
from pylogbroker.syncclient.clustermetadata import IClusterMetadata, StaticMetadata
from pylogbroker.types import BrokerPartition, PartitionId
from tests.spark.sourcecase import HERE, SourceCase

Progress = dict[str, Any]


def sets(*payloads: bytes) -> list[bytes]:
    """Each payload ten times."""
    return [encodeSet([payload] * 10) for payload in payloads]


class GoingView(StaticMetadata):
    """
    A look at a cluster that can go away, as one through ZooKeeper does.
    """

    isAway = False

    def brokers(self) -> dict[int, BrokerAddress]:
        """All of them, or an error while ZooKeeper is away."""
        self._check()
        return super().brokers()

    def partitions(self, name: str) -> list[BrokerPartition]:
        """All of them, or an error while ZooKeeper is away."""
        self._check()
        return super().partitions(name)

    def _check(self) -> None:
        if self.isAway:
            raise ZookeeperTimeoutException("late")


class StreamCase(SourceCase):
    """Has a stream, and brokers 0 and 1."""

    def setUp(self) -> None:
        super().setUp()
        self.other = self.serve(number=1)
        self.log = self.broker.log()

    def reader(self, metadata: IClusterMetadata | None = None, **options: Any) -> StreamReader:
        """A query that was started, or started again."""
        listed = f"{self.broker.listed},{self.other.listed}"
        cluster = self.options(brokers=listed)
        reader = StreamReader(
            self.options(**{"brokers": listed, "startingOffsets": "earliest", **options}),
            PartitionDiscovery(cluster, self.policy(), metadata),
        )
        self.addCleanup(reader.stop)
        return reader

    def next(self, reader: StreamReader, start: Progress) -> Progress:
        """The end of the next micro-batch, as a checkpoint would have it."""
        found: Progress = json.loads(
            json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit()))
        )
        return found

    def rows(self, reader: StreamReader, end: Progress) -> list[bytes]:
        """Of a micro-batch; Spark may ask with any start."""
        partitions = pickle.loads(pickle.dumps(reader.partitions({}, end)))
        return [
            value
            for partition in partitions
            for batch in reader.read(partition)
            for value in batch.column("value").to_pylist()
        ]


class MicroBatchTests(StreamCase):
    """From one end to the next."""

    def test_microBatches(self) -> None:
        """
        Each micro-batch has what came since the last, on all brokers; when nothing came the end is
        the start.
        """
        self.log.append(*sets(b"a"))
        reader = self.reader()
        start = self.next(reader, reader.initialOffset())
        self.assertEqual(self.rows(reader, start), [b"a"] * 10)
        self.assertEqual(self.next(reader, start), start)
        self.log.append(*sets(b"b"))
        self.other.log().append(*sets(b"c"))
        self.assertEqual(self.rows(reader, self.next(reader, start)), [b"b"] * 10 + [b"c"] * 10)

    def test_firstMicroBatchAgain(self) -> None:
        """
        The first micro-batch of a query that begins at the latest is the same when it is repeated,
        though the latest is elsewhere by then.
        """
        self.log.append(*sets(b"before"))
        reader = self.reader(startingOffsets="latest")
        start = reader.initialOffset()
        self.log.append(*sets(b"first"))
        end = self.next(reader, start)
        self.log.append(*sets(b"later"))
        again = self.reader(startingOffsets="latest")
        again.initialOffset()
        self.assertEqual(self.rows(again, end), [b"first"] * 10)
        self.assertEqual(self.rows(again, self.next(again, end)), [b"later"] * 10)

    def test_limit(self) -> None:
        """
        With a limit there are more micro-batches, each exactly behind the last, and no more than
        the limit when entries are smaller.
        """
        self.log.append(*sets(*[b"%02d" % number for number in range(8)]))
        self.other.log().append(*sets(b"x", b"y"))
        reader = self.reader(maxBytesPerTrigger=300, fetchSize=64)
        self.assertEqual(reader.getDefaultReadLimit(), ReadMaxBytes(300))
        start, batches = reader.initialOffset(), []
        while (end := self.next(reader, start)) != start:
            batches.append(self.rows(reader, end))
            start = end
        self.assertLessEqual(max(map(len, batches)), 300 // 12 + 2)
        self.assertEqual(
            sorted(value for batch in batches for value in batch),
            [b"%02d" % (number // 10) for number in range(80)] + [b"x"] * 10 + [b"y"] * 10,
        )
        everything = reader.latestOffset(self.reader().initialOffset(), ReadAllAvailable())
        self.assertEqual(len(self.rows(reader, everything)), 100)

    def test_splits(self) -> None:
        """A large micro-batch is cut at segments when more splits are wanted."""
        self.log.append(*sets(b"a", b"b", b"c", b"d"))
        reader = self.reader(minPartitions=4)
        end = self.next(reader, reader.initialOffset())
        self.assertEqual(len(reader.partitions({}, end)), 4)
        self.assertEqual(len(self.rows(reader, end)), 40)

    def test_newPartitions(self) -> None:
        """Partitions that appear are read from their beginning, wherever the query began."""
        reader = self.reader(startingOffsets="latest")
        start = reader.initialOffset()
        self.broker.partitionCount = 2
        self.broker.log(partition=1).append(*sets(b"new"))
        end = self.next(reader, start)
        self.assertEqual(self.rows(reader, end), [b"new"] * 10)
        self.assertEqual(end["clicks"]["0-1"], {"from": 0, "to": self.broker.log(partition=1).end})

    def test_withoutZookeeper(self) -> None:
        """
        A stream whose ZooKeeper goes away goes on with what it knows: it plans micro-batches, reads
        them, and fixes the end of a run.
        """
        view = GoingView([self.broker.address, self.other.address])
        reader = self.reader(view)
        start = reader.initialOffset()
        view.isAway = True
        self.log.append(*sets(b"a"))
        reader.prepareForTriggerAvailableNow()
        self.log.append(*sets(b"late"))
        end = self.next(reader, start)
        self.assertEqual(self.rows(reader, end), [b"a"] * 10)
        self.assertEqual(self.next(reader, end), end)

    def test_onlyWhatIsThere(self) -> None:
        """
        With "available now" the end of the run is fixed when it begins; new messages and new
        partitions are for the next.
        """
        self.log.append(*sets(b"a", b"b"))
        reader = self.reader(maxBytesPerTrigger=150)
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        self.log.append(*sets(b"late"))
        self.broker.partitionCount = 2
        self.broker.log(partition=1).append(*sets(b"late"))
        values: list[bytes] = []
        while (end := self.next(reader, start)) != start:
            values += self.rows(reader, end)
            start = end
        self.assertEqual(values, [b"a"] * 10 + [b"b"] * 10)
        self.assertNotIn("0-1", start["clicks"])

    def test_awayWhenTheEndIsFixed(self) -> None:
        """
        With "available now" a partition that was read before and whose broker is away at first is
        read up to what is there when it is seen.
        """
        self.broker.partitionCount = 2
        self.broker.log(partition=1).append(*sets(b"a"))
        reader = self.reader()
        start = self.next(reader, reader.initialOffset())
        self.broker.log(partition=1).append(*sets(b"b"))
        self.broker.partitionCount = 1
        reader.prepareForTriggerAvailableNow()
        self.broker.partitionCount = 2
        end = self.next(reader, start)
        self.assertEqual(self.rows(reader, end), [b"b"] * 10)
        self.broker.log(partition=1).append(*sets(b"late"))
        self.assertEqual(self.next(reader, end), end)

    def test_namedPartitions(self) -> None:
        """Offsets to begin at must name every partition."""
        self.assertRaises(
            ConfigurationError, self.reader(startingOffsets='{"clicks": {"0-0": 0}}').initialOffset
        )

    def test_noSuchTopic(self) -> None:
        """
        A stream of a topic that no broker has does not start; a stream of a topic without messages
        does, wherever it is to start.
        """
        for starting in ("earliest", "latest", None):
            reader = self.reader(subscribe="views", startingOffsets=starting)
            error = self.assertRaises(NoBrokersError, reader.initialOffset)
            self.assertIn(
                f"topic views does not exist in the brokers 127.0.0.1:{self.broker.address.port}, ",
                str(error),
            )
        self.other.log("views")
        for starting in ("earliest", "latest", '{"views": {"0-0": 0, "1-0": -1}}'):
            reader = self.reader(subscribe="views", startingOffsets=starting)
            start = reader.initialOffset()
            self.assertEqual(self.next(reader, start), start)

    def test_topicIsGone(self) -> None:
        """
        A topic that a running stream has read and that is gone is lost data, as an emptied log is.
        """
        self.log.append(*sets(b"a"))
        reader = self.reader()
        start = self.next(reader, reader.initialOffset())
        self.broker.logs.clear()
        self.assertRaises(DataLossError, self.next, reader, start)

    def test_notStarted(self) -> None:
        """
        A reader that was never asked anything can be stopped; one for the workers is never more.
        """
        StreamReader(self.options()).stop()
        self.assertEqual(StreamReader(self.options()).getDefaultReadLimit(), ReadAllAvailable())


class LossTests(StreamCase):
    """Data that go before they are read."""

    def test_deleted(self) -> None:
        """
        Retention under a stream is an error that names both offsets, or a jump that the next end
        tells of.
        """
        starts = self.log.append(*sets(b"a"))
        reader = self.reader()
        start = self.next(reader, reader.initialOffset())
        starts = self.log.append(*sets(b"b", b"c"))
        self.log.deleteBefore(starts[1])
        text = str(self.assertRaises(DataLossError, reader.latestOffset, start, ReadAllAvailable()))
        self.assertIn(f"{starts[0]} was deleted; the earliest offset left is {starts[1]}", text)
        lenient = self.reader(failOnDataLoss="false")
        end = self.next(lenient, start)
        self.assertEqual(end["clicks"]["0-0"], {"from": starts[1], "to": self.log.end})
        self.assertEqual(self.rows(lenient, end), [b"c"] * 10)

    def test_deletedAfterPlanning(self) -> None:
        """Retention between planning and reading is noticed by who reads."""
        self.log.append(*sets(b"a"))
        reader = self.reader()
        end = self.next(reader, reader.initialOffset())
        [start] = self.log.append(*sets(b"b"))
        self.log.deleteBefore(start)
        self.assertRaises(DataLossError, self.rows, reader, end)
        self.assertEqual(self.rows(self.reader(failOnDataLoss="false"), end), [])

    def test_emptied(self) -> None:
        """
        A log that ends before what was read was emptied: an error, or it is read from its
        beginning.
        """
        self.log.append(*sets(b"a", b"b"))
        reader = self.reader()
        start = self.next(reader, reader.initialOffset())
        self.broker.logs.clear()
        self.broker.log().append(*sets(b"new"))
        self.assertIn(
            "it was emptied or truncated",
            str(self.assertRaises(DataLossError, reader.latestOffset, start, ReadAllAvailable())),
        )
        lenient = self.reader(failOnDataLoss="false")
        end = self.next(lenient, start)
        self.assertEqual(self.rows(lenient, end), [b"new"] * 10)
        self.assertEqual(self.next(lenient, end), end)

    def test_partitionIsGone(self) -> None:
        """
        A partition that no broker has any more is an error; or its position is kept until it is
        back.
        """
        self.broker.partitionCount = 2
        self.broker.log(partition=1).append(*sets(b"a"))
        reader = self.reader()
        start = self.next(reader, reader.initialOffset())
        self.broker.partitionCount = 1
        text = str(self.assertRaises(DataLossError, reader.latestOffset, start, ReadAllAvailable()))
        self.assertIn(
            f"partition 0-1: no broker has it any more; {self.broker.log(partition=1).end} of it"
            " was read",
            text,
        )
        self.assertEqual(len(self.pauses), 2)
        lenient = self.reader(failOnDataLoss="false")
        self.log.append(*sets(b"b"))
        end = self.next(lenient, start)
        self.assertEqual(self.rows(lenient, end), [b"b"] * 10)
        self.broker.partitionCount = 2
        self.broker.log(partition=1).append(*sets(b"c"))
        self.assertEqual(self.rows(lenient, self.next(lenient, end)), [b"c"] * 10)

    def test_notSubscribedAnyMore(self) -> None:
        """
        A query that goes on with a topic less is told what its checkpoint has, at once; or the
        topic's place is kept for when it is named again.
        """
        self.log.append(*sets(b"a"))
        self.broker.log("views").append(*sets(b"x"))
        reader = self.reader(subscribe="clicks,views")
        start = self.next(reader, reader.initialOffset())
        expected = (
            "topic views, partition 0-0: the checkpoint has it up to"
            f" {self.broker.log('views').end}, and it is no longer subscribed"
        )
        for options in (
            {"subscribe": "clicks"},
            {"subscribe": None, "assign": '{"clicks": ["0-0", "1-0"]}'},
        ):
            self.assertIn(
                expected,
                str(
                    self.assertRaises(
                        DataLossError,
                        self.reader(**options).latestOffset,
                        start,
                        ReadAllAvailable(),
                    )
                ),
            )
        self.assertEqual(self.pauses, [])
        lenient = self.reader(failOnDataLoss="false")
        self.log.append(*sets(b"b"))
        end = self.next(lenient, start)
        self.assertEqual(self.rows(lenient, end), [b"b"] * 10)
        self.broker.log("views").append(*sets(b"y"))
        again = self.reader(subscribe="clicks,views")
        self.assertEqual(self.rows(again, self.next(again, end)), [b"y"] * 10)


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
        self.assertEqual(decodeCheckpoint(json.loads(json.dumps(encodeCheckpoint(found)))), found)
        self.assertEqual(
            json.dumps(encodeCheckpoint(found)),
            json.dumps(encodeCheckpoint(dict(reversed(found.items())))),
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
            self.assertRaises(PylogbrokerError, decodeCheckpoint, kept)

    @given(
        st.dictionaries(PLACES, st.tuples(st.just(0), st.integers(0, 10_000)), max_size=5),
        st.integers(1, 20_000),
    )
    def test_shares(self, offsets: dict[PartitionId, tuple[int, int]], sizeMax: int) -> None:
        """
        All fits, or the shares are in proportion and add up to the limit, give or take a byte for
        each.
        """
        sizes = {place: each.size for place, each in ranges(offsets).items()}
        shares, total = apportion(sizes, sizeMax), sum(sizes.values())
        if total <= sizeMax:
            self.assertEqual(shares, sizes)
        else:
            self.assertTrue(sizeMax <= sum(shares.values()) < sizeMax + len(shares))
            self.assertTrue(all(shares[place] > 0 for place, size in sizes.items() if size))


EMBEDDED = encodeSet([b"x" * 5, b"", b"y"])


class BoundaryTests(SourceCase):
    """Where to stop."""

    def boundary(self, start: int, end: int, sizeMax: int, fetchSize: int = 64) -> int:
        """From a start on."""
        brokers = self.brokers()
        starts = brokers.segmentBounds("clicks", HERE).starts
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
        """
        Whatever the payloads, it is the end of an entry, behind the start, and beyond the limit
        only for an entry that is larger itself.
        """
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
        """
        Otherwise it is stepped from the last segment's start on, and no more is read than the
        limit.
        """
        self.broker.log().append(encodeSet([b"x" * 90] * 2), encodeSet([b"x" * 90] * 50))
        self.assertEqual(self.boundary(0, 5_200, 1_250, fetchSize=350), 1_200)
        fetches = [request for request in self.broker.requests if isinstance(request, Fetch)]
        self.assertEqual([request.offset for request in fetches], [200, 500, 800, 1_100, 1_200])
        self.assertLessEqual(max(request.offset + request.sizeMax for request in fetches), 1_250)

    def test_deletedOrCorrupt(self) -> None:
        """
        Where nothing whole is to be had it is the next boundary that is sure, so that the reader
        finds out.
        """
        log = self.broker.log()
        starts = log.append(b"\0\0\0\0" + b"x" * 500, encodeSet([b"x" * 500]))
        self.assertEqual(self.boundary(0, log.end, 100), starts[1])
        self.assertEqual(self.boundary(0, starts[1], 100), starts[1])
        log.fetch = lambda offset, sizeMax: None  # type: ignore[method-assign]
        self.assertEqual(self.boundary(starts[1], log.end, 100), log.end)
