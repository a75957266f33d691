"""
Topics of Kafka 0.7 in a run of the loader, and the lines of 0.7's Hadoop consumer
(L{pylogbroker.cluster.offsetexport}). The lines name brokers by address, the table by id; ZooKeeper
or the list of brokers translates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, cast

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from pylogbroker.cluster.offsetexport import FROM_EARLIEST, EtlOffset, decodeEtlLines
from pylogbroker.config.propertytypes import BrokerAddress
from pylogbroker.errors import LoadError
from pylogbroker.lake.loadplan import PlannedRange
from pylogbroker.records.columns import sizeBetween
from pylogbroker.spark.brokerclients import PartitionDiscovery
from pylogbroker.spark.loader.stagedfiles import byPartition
from pylogbroker.spark.loader.topicsource import FoundLogs, TopicSource, checkFolder
from pylogbroker.spark.options import SourceOptions, parseOffsets
from pylogbroker.spark.splits import existingBounds
from pylogbroker.types import EARLIEST, AnyPartition, OffsetBounds, PartitionId


class Kafka07Topics(TopicSource):
    """Topics of Kafka 0.7."""

    kind = PartitionId
    title = "Kafka 0.7"

    def __init__(self, given: Mapping[str, str]) -> None:
        """
        @param given: the data source's options.
        @raise ConfigurationError: an option is wrong.
        """
        self.given = given
        self.options = SourceOptions.fromOptions(given)
        self.isLossFatal = self.options.failOnDataLoss

    def logs(self, positions: Mapping[AnyPartition, int]) -> FoundLogs:
        """
        See L{TopicSource.logs}. A partition that no broker has now is left for later, with a note.
        """
        options = self.options
        known = [each for each in positions if isinstance(each, PartitionId)]
        expected = [each for each in known if each.topic in options.selection.topics]
        with PartitionDiscovery(options) as cluster:
            partitions = cluster.partitions(options.selection, expected)
            topics = dict.fromkeys(each.topic for each in partitions)
            for topic in topics:
                checkFolder(topic)
            with cluster.brokers(partitions) as brokers:
                found = existingBounds(options, brokers, partitions)
        away = [
            f"{each}: no broker has this partition now; it is loaded when its broker is back"
            for each in sorted(known)
            if each.topic in topics and each not in found
        ]
        return FoundLogs(
            {key: OffsetBounds(bounds.earliest, bounds.latest) for key, bounds in found.items()},
            tuple(away),
        )

    def parseOffsets(self, text: str) -> int | Mapping[Any, int]:
        """See L{TopicSource.parseOffsets}."""
        return parseOffsets(text)

    def assigned(self, name: str) -> str | int:
        """See L{TopicSource.assigned}."""
        return name

    def lossColumns(self, fresh: StructType) -> StructType:
        """See L{TopicSource.lossColumns}."""
        found = StructType()
        return found.add("nextOffset", "long") if "nextOffset" in fresh.fieldNames() else found

    def lossNotes(
        self, rows: DataFrame | None, ranges: Collection[PlannedRange]
    ) -> tuple[str, ...]:
        """See L{TopicSource.lossNotes}."""
        return dataLossNotes(rows, ranges)

    def logSize(self, ranges: Collection[PlannedRange]) -> int:
        """See L{TopicSource.logSize}."""
        return sum(sizeBetween(each.fromOffset, each.toOffset) for each in ranges)


def dataLossNotes(rows: DataFrame | None, ranges: Collection[PlannedRange]) -> tuple[str, ...]:
    """
    A sentence for each range of which messages were deleted while it was read.

    The entries of a range follow one another, so the rows cover the whole log between the ends of
    the range, or something is gone. (All but the last message of a compressed set have their own
    offset as the next one, and cover nothing.)

    @param rows: of the ranges, as they were written; L{None}: there are none.
    """
    covered: Mapping[AnyPartition, Row] = {}
    if rows is not None:
        if "nextOffset" not in rows.columns:
            return ()  # a transform has dropped it
        offsets = sql.col("offset"), sql.col("nextOffset")
        size: Any = sizeBetween(*cast("tuple[Any, Any]", offsets))
        covered = byPartition(rows, ranges, sql.sum(size).alias("size"))
    notes = []
    for partition, fromOffset, toOffset, _again in ranges:
        size = sizeBetween(fromOffset, toOffset)
        if partition in covered:
            size -= covered[partition]["size"]
        if size > 0:
            notes.append(
                f"{partition}: of offsets {fromOffset} to {toOffset}, {size} bytes have no"
                " rows: they were deleted before they were read"
            )
    return tuple(notes)


# -- the lines of 0.7's Hadoop consumer


def startOffsetsOf(
    lines: Iterable[str], brokers: Mapping[int, BrokerAddress]
) -> dict[str, dict[str, int]]:
    """
    Start offsets for L{pylogbroker.spark.loader.load}.

    @param brokers: by id.
    @raise pylogbroker.errors.FormatError: a line cannot be decoded.
    @raise LoadError: no broker has the address of a line.
    """
    numbers = {(address.host, address.port): number for number, address in brokers.items()}
    found: dict[str, dict[str, int]] = {}
    for each in decodeEtlLines(lines):
        number = numbers.get((each.host, each.port))
        if number is None:
            known = ", ".join(f"{host}:{port}" for host, port in sorted(numbers)) or "none"
            raise LoadError(
                f"tcp://{each.host}:{each.port}: there is no such broker now; there are {known}"
            )
        offset = EARLIEST if each.offset == FROM_EARLIEST else each.offset
        found.setdefault(each.topic, {})[f"{number}-{each.partition}"] = offset
    return found


def linesOf(
    positions: Mapping[AnyPartition, int],
    brokers: Mapping[int, BrokerAddress],
    isWanted: Callable[[str], bool] = lambda topic: True,
) -> list[str]:
    """
    Lines of the table's positions, without line ends.

    @param positions: of topics of Kafka 0.7.
    @param isWanted: whether a topic must be complete. Of other topics, partitions whose broker is
        gone are left out.
    @raise LoadError: the address of a wanted topic's broker is unknown.
    """
    lines = []
    for key, offset in sorted(positions.items()):
        assert isinstance(key, PartitionId)
        address = brokers.get(key.partition.broker)
        if address is None:
            if not isWanted(key.topic):
                continue
            raise LoadError(f"{key}: its broker is not there now, so its address is unknown")
        number = key.partition.partition
        lines.append(EtlOffset(address.host, address.port, key.topic, number, offset).encode())
    return lines
