"""
Reading topics as they grow: C{spark.readStream.format("pylogbroker")}.

The checkpoint is the offset store, and the only one: what C{commit} is told is a hint that comes late, and for the last micro-batch never. So nothing is
done there. What a micro-batch is stands in its end alone (L{pylogbroker.spark.checkpoint}), which is decided in the driver, once, at boundaries of entries.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from pylogbroker.spark.batchlimit import lastEntryBoundary
from pylogbroker.spark.brokerclients import BrokerClients
from pylogbroker.spark.checkpoint import apportion, decodeProgress, encodeProgress
from pylogbroker.spark.fetching import reportDataLoss
from pylogbroker.spark.options import SourceOptions
from pylogbroker.spark.partitionbounds import fetchBounds
from pylogbroker.spark.partitiondiscovery import Cluster, isSelected
from pylogbroker.spark.ranges import checkNamed, checkTopics, expectedPlaces, inBounds, startOf
from pylogbroker.spark.reading import readSplit
from pylogbroker.spark.splits import InputSplit, OffsetRange, SegmentBounds, splitRanges
from pylogbroker.types import LATEST, PartitionId

log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    What Spark asks of a stream: the driver has one, and the workers have copies that only read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster: Cluster | None = None
        self._targets: dict[PartitionId, int] | None = None

    def _live(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options.cluster)
        return self._cluster

    # -- where to begin, and how much at a time

    def initialOffset(self) -> dict[str, Any]:
        """
        Where to begin, if there is no checkpoint.

        @raise NoBrokersError: a topic does not exist.
        """
        options, cluster = self._options, self._live()
        places = cluster.places(options.selection, expectedPlaces(options))
        checkNamed("startingOffsets", options.starting, places)
        ranges = {}
        with cluster.brokers(partition.broker for _topic, partition in places) as brokers:
            known = {place: fetchBounds(brokers, *place) for place in places}
            checkTopics(options, brokers, known)
            for place, bounds in known.items():
                start = startOf(options, brokers, place, bounds, LATEST)
                ranges[place] = inBounds(options, OffsetRange(*place, start, start), bounds)
        return encodeProgress(ranges)

    def getDefaultReadLimit(self) -> ReadLimit:
        """C{maxBytesPerTrigger}."""
        return (
            ReadMaxBytes(self._options.triggerSizeMax)
            if self._options.triggerSizeMax
            else ReadAllAvailable()
        )

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that this run will read."""
        places = self._live().places(self._options.selection)
        with self._live().brokers(partition.broker for _topic, partition in places) as brokers:
            self._targets = {place: fetchBounds(brokers, *place).latest for place in places}

    # -- the next micro-batch

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """
        The end of the next micro-batch; C{start}, if there is nothing new.

        @raise pylogbroker.errors.DataLossError: data are gone that were not read.
        """
        before = decodeProgress(start)
        after = {place: each._replace(start=each.end) for place, each in before.items()}
        places = self._present(before)
        with self._live().brokers(partition.broker for _topic, partition in places) as brokers:
            bounds = {place: fetchBounds(brokers, *place) for place in places}
            ahead = {
                place: self._ahead(place, before.get(place), bounds[place]) for place in places
            }
            after |= self._limited(brokers, ahead, bounds, limit)
        isNew = any(
            place not in before or each.size or each.start != before[place].end
            for place, each in after.items()
        )
        return encodeProgress(after) if isNew else start

    def _present(self, before: Mapping[PartitionId, OffsetRange]) -> list[PartitionId]:
        """The partitions that are there, after all that are known have been looked for."""
        selection = self._options.selection
        places = self._live().places(
            selection, [place for place in before if isSelected(selection, place)]
        )
        for place in sorted(set(before) - set(places)):
            read = before[place].end
            why = f"no broker has it any more, of which {read} was read"
            if not isSelected(selection, place):
                why = f"the checkpoint has it up to {read}, and it is not subscribed any more"
            reportDataLoss(
                self._options, f"topic {place.topic}, partition {place.partition}: {why}"
            )
        if self._targets is not None:
            places = [place for place in places if place in before or place in self._targets]
        return places

    def _ahead(
        self, place: PartitionId, before: OffsetRange | None, bounds: SegmentBounds
    ) -> OffsetRange:
        """All that there is to read of a partition; of one whose broker was away when a run's end was fixed, what is there when it is first seen."""
        latest = (
            bounds.latest
            if self._targets is None
            else min(bounds.latest, self._targets.setdefault(place, bounds.latest))
        )
        if before is None:
            log.info(
                "Topic %s has a new partition %s, which is read from %d on", *place, bounds.earliest
            )
            return OffsetRange(*place, bounds.earliest, max(latest, bounds.earliest))
        if bounds.latest < before.end:
            reportDataLoss(
                self._options,
                f"topic {place[0]}, partition {place[1]}: the log ends at {bounds.latest}, and {before.end} was read: it was emptied or cut",
            )
            return OffsetRange(*place, bounds.earliest, max(latest, bounds.earliest))
        return inBounds(
            self._options, OffsetRange(*place, before.end, max(latest, before.end)), bounds
        )

    def _limited(
        self,
        brokers: BrokerClients,
        ahead: Mapping[PartitionId, OffsetRange],
        bounds: Mapping[PartitionId, SegmentBounds],
        limit: ReadLimit,
    ) -> dict[PartitionId, OffsetRange]:
        if not isinstance(limit, ReadMaxBytes):
            return dict(ahead)
        shares = apportion(ahead, limit.max_bytes)
        return {
            place: each._replace(
                end=lastEntryBoundary(
                    brokers, self._options, each, shares[place], bounds[place].starts
                )
            )
            if each.size
            else each
            for place, each in ahead.items()
        }

    # -- reading it

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits of a micro-batch, which its end describes."""
        ranges = [each for each in decodeProgress(end).values() if each.size]
        with self._live().brokers(each.partition.broker for each in ranges) as brokers:
            cuts = splitRanges(
                ranges,
                self._options.minPartitionCount,
                lambda whole: fetchBounds(brokers, whole.topic, whole.partition).starts,
            )
            return [
                InputPartition(InputSplit(each, brokers.address(each.partition.broker)))
                for each in cuts
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split."""
        return readSplit(partition.value, self._options)

    def stop(self) -> None:
        """The query is over."""
        if self._cluster is not None:
            self._cluster.close()
