"""
The data source C{pylogbroker}, registered by the module C{pyspark_pylogbroker} or by
C{spark.dataSource.register(PylogbrokerDataSource)}, with its readers of batches and streams.

The option C{kafka.bootstrap.servers} chooses topics of today's Kafka (L{pylogbroker.spark.kafka});
the readers here are for those of 2011, which carry no keys and times: C{key} and C{timestamp} are
null.

The checkpoint of a stream is the only store of offsets. C{commit} does nothing: Spark calls it
late, and never for the last micro-batch.

What must be true: a micro-batch that Spark repeats after a crash has the same rows. Spark stores
the end of a micro-batch only, and asks anew where the first one begins; by then "latest" has moved,
and what lies between would be lost. So the end says where each partition begins and ends:
C{{"clicks": {"0-0": {"from": 0, "to": 4711}}}}. The same holds for partitions that appear later,
and for jumps over deleted data. The driver decides each end once, at a boundary of entries.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pylogbroker.errors import ConfigurationError, UnreadableRangeError
from pylogbroker.records.columns import (
    completeEntriesSize,
    entrySize,
    offsetAfter,
    sizeBetween,
)
from pylogbroker.records.messageset import SIZE_FIELD_SIZE
from pylogbroker.spark.brokerclients import (
    BrokerClients,
    OffsetRange,
    PartitionDiscovery,
    SegmentBounds,
    isSelected,
)
from pylogbroker.spark.kafka.options import (
    KafkaSinkOptions,
    KafkaSourceOptions,
    isKafka,
)
from pylogbroker.spark.kafka.rangereader import KAFKA_SCHEMA, KAFKA_SCHEMA_WITH_HEADERS
from pylogbroker.spark.kafka.sink import KafkaStreamWriter, checkKafkaColumns, sendRows
from pylogbroker.spark.kafka.source import KafkaBatchReader, KafkaStreamReader
from pylogbroker.spark.options import SinkOptions, SourceOptions, parsePartition
from pylogbroker.spark.rangereader import ARROW_SCHEMA, readSplit
from pylogbroker.spark.sink import BatchWriter, StreamWriter, checkColumns, sendAll
from pylogbroker.spark.splits import (
    InputSplit,
    apportion,
    namedPartitions,
    plannedRanges,
    reportDataLoss,
    splitRanges,
    withinBounds,
)
from pylogbroker.syncclient.simpleconsumer import SimpleConsumer
from pylogbroker.types import EARLIEST, LATEST, PartitionId, byTopic

SCHEMA = from_arrow_schema(ARROW_SCHEMA)
KAFKA_COLUMNS = from_arrow_schema(KAFKA_SCHEMA)
KAFKA_COLUMNS_WITH_HEADERS = from_arrow_schema(KAFKA_SCHEMA_WITH_HEADERS)
FROM, TO = "from", "to"

log = logging.getLogger(__name__)


def _inputPartitions(
    options: SourceOptions, brokers: BrokerClients, ranges: Collection[OffsetRange]
) -> list[InputPartition]:
    cuts = splitRanges(
        ranges,
        options.minPartitions or 0,
        lambda whole: brokers.segmentBounds(whole.topic, whole.partition).starts,
    )
    return [
        InputPartition(InputSplit(each, brokers.address(each.partition.broker))) for each in cuts
    ]


class BatchReader(DataSourceReader):
    """The data source's reader of a batch. Workers get copies, so it holds only options."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """
        One for each split of the batch, whose end is fixed now.

        @raise PylogbrokerError: something to read is missing, or a broker cannot be asked.
        """
        with PartitionDiscovery(self._options) as cluster:
            partitions = namedPartitions(self._options, cluster)
            with cluster.brokers(partitions) as brokers:
                ranges = plannedRanges(self._options, brokers, partitions, EARLIEST)
                return _inputPartitions(self._options, brokers, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split. Spark passes one without a value if there are no splits."""
        return iter(()) if partition.value is None else readSplit(partition.value, self._options)


# -- the checkpoints of streams


def encodeCheckpoint(ranges: Mapping[PartitionId, OffsetRange]) -> dict[str, dict[str, Any]]:
    """The end of a micro-batch, as Spark stores it."""
    return byTopic({key: {FROM: each.start, TO: each.end} for key, each in ranges.items()})


def decodeCheckpoint(stored: Mapping[str, Any]) -> dict[PartitionId, OffsetRange]:
    """
    @raise UnreadableRangeError: L{encodeCheckpoint} has not made it.
    """
    try:
        pairs = [
            (PartitionId(topic, parsePartition(name)), each)
            for topic, partitions in stored.items()
            for name, each in partitions.items()
        ]
        return {key: OffsetRange(*key, int(each[FROM]), int(each[TO])) for key, each in pairs}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableRangeError(
            f"the checkpoint has {stored!r}, which is not an offset of pylogbroker"
        ) from error


# -- the end of a limited micro-batch


def lastEntryBoundary(
    brokers: BrokerClients,
    options: SourceOptions,
    whole: OffsetRange,
    sizeMax: int,
    starts: Sequence[int],
) -> int:
    """
    The last boundary of entries within a number of bytes, whatever the payloads are.

    Starts of segments are boundaries, and so is every end of a whole entry behind a boundary. If a
    segment starts at least half of the way, its start is the answer. Otherwise the driver reads
    from the nearest segment start up to the limit. It trusts size fields: if one is corrupt, the
    reader of that entry fails before a wrong boundary.

    @param sizeMax: bytes; a larger entry is included all the same.
    @param starts: of the partition's segments, ascending.
    @return: more than C{whole.start}, at most C{whole.end}.
    @raise BrokerConnectionError: the broker does not answer.
    """
    sizeMax = max(sizeMax, 1)
    wanted = offsetAfter(whole.start, sizeMax)
    if wanted >= whole.end:
        return whole.end
    index = bisect_right(starts, wanted)
    nearest = max(starts[index - 1] if index else 0, whole.start)
    if 2 * sizeBetween(whole.start, nearest) >= sizeMax:
        return nearest
    found = _stepOver(brokers, options, whole, nearest, wanted)
    if found > whole.start:
        return min(found, whole.end)
    # No whole entry is left: it was deleted meanwhile, or is corrupt. The reader will find out.
    return min(starts[index] if index < len(starts) else whole.end, whole.end)


def _stepOver(
    brokers: BrokerClients, options: SourceOptions, whole: OffsetRange, offset: int, wanted: int
) -> int:
    """The last boundary that is not behind C{wanted}, or the one behind the first entry."""
    topic, (broker, partition) = whole.topic, whole.partition
    while offset < wanted:
        size = min(options.fetchSize, max(sizeBetween(offset, wanted), SIZE_FIELD_SIZE))
        request = partial(
            SimpleConsumer.fetch, topic=topic, partition=partition, offset=offset, sizeMax=size
        )
        data = brokers.call(broker, str(whole), request).data
        complete = completeEntriesSize(data)
        if not complete:
            complete = entrySize(data)
            isBeyond = offsetAfter(offset, complete) > wanted
            if complete == SIZE_FIELD_SIZE or (isBeyond and offset != whole.start):
                break
        offset = offsetAfter(offset, complete)
    return offset


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """
    The data source's reader of a stream. The driver has one; workers get copies that only read.
    """

    def __init__(self, options: SourceOptions, discovery: PartitionDiscovery | None = None) -> None:
        """
        @param discovery: by default one with the options; opened when it is first used.
        """
        self._options = options
        self._discovery = discovery
        self._targets: dict[PartitionId, int] | None = None

    def _cluster(self) -> PartitionDiscovery:
        if self._discovery is None:
            self._discovery = PartitionDiscovery(self._options)
        return self._discovery

    # -- where to begin, and how much at a time

    def initialOffset(self) -> dict[str, Any]:
        """
        The start of a query that has no checkpoint.

        @raise NoBrokersError: a topic does not exist.
        """
        options, cluster = self._options, self._cluster()
        partitions = namedPartitions(options, cluster)
        with cluster.brokers(partitions) as brokers:
            ranges = plannedRanges(options, brokers, partitions, LATEST)
        return encodeCheckpoint(
            {
                PartitionId(each.topic, each.partition): each._replace(end=each.start)
                for each in ranges
            }
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """C{maxBytesPerTrigger}."""
        limit = self._options.maxBytesPerTrigger
        return ReadMaxBytes(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of a run that reads what exists now."""
        partitions = self._cluster().partitions(self._options.selection)
        with self._cluster().brokers(partitions) as brokers:
            self._targets = {each: brokers.segmentBounds(*each).latest for each in partitions}

    # -- the next micro-batch

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """
        The end of the next micro-batch; C{start} if nothing is new.

        @raise pylogbroker.errors.DataLossError: unread data are gone.
        """
        before = decodeCheckpoint(start)
        unchanged = {key: each._replace(start=each.end) for key, each in before.items()}
        partitions = self._present(before)
        with self._cluster().brokers(partitions) as brokers:
            bounds = {each: brokers.segmentBounds(*each) for each in partitions}
            ahead = {each: self._ahead(each, before.get(each), bounds[each]) for each in partitions}
            sizes = {key: each.size for key, each in ahead.items()}
            shares = apportion(sizes, limit.max_bytes) if isinstance(limit, ReadMaxBytes) else {}
            for each, size in shares.items():
                whole = ahead[each]
                if whole.size:
                    end = lastEntryBoundary(
                        brokers, self._options, whole, size, bounds[each].starts
                    )
                    ahead[each] = whole._replace(end=end)
        after = unchanged | ahead
        return start if after == unchanged else encodeCheckpoint(after)

    def _present(self, before: Mapping[PartitionId, OffsetRange]) -> list[PartitionId]:
        """The partitions that exist; discovery waits for all those in the checkpoint."""
        selection = self._options.selection
        partitions = self._cluster().partitions(
            selection, [each for each in before if isSelected(selection, each)]
        )
        for each in sorted(set(before) - set(partitions)):
            end = before[each].end
            why = f"no broker has it any more; {end} of it was read"
            if not isSelected(selection, each):
                why = f"the checkpoint has it up to {end}, and it is no longer subscribed"
            reportDataLoss(self._options, f"topic {each.topic}, partition {each.partition}: {why}")
        if self._targets is not None:
            partitions = [each for each in partitions if each in before or each in self._targets]
        return partitions

    def _ahead(
        self, partition: PartitionId, before: OffsetRange | None, bounds: SegmentBounds
    ) -> OffsetRange:
        """All unread messages of a partition, up to the run's end if there is one."""
        latest = bounds.latest
        if self._targets is not None:
            # A broker that was away when the run's end was fixed: what it has when it is first
            # seen.
            latest = min(latest, self._targets.setdefault(partition, latest))
        if before is None:
            log.info(
                "Topic %s has a new partition %s, which is read from %d",
                *partition,
                bounds.earliest,
            )
        elif bounds.latest < before.end:
            reportDataLoss(
                self._options,
                f"topic {partition.topic}, partition {partition.partition}: the log ends at"
                f" {bounds.latest}, and {before.end} was read: it was emptied or truncated",
            )
        else:
            wanted = OffsetRange(*partition, before.end, max(latest, before.end))
            return withinBounds(self._options, wanted, bounds)
        return OffsetRange(*partition, bounds.earliest, max(latest, bounds.earliest))

    # -- reading it

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The splits of a micro-batch; C{end} describes it."""
        ranges = [each for each in decodeCheckpoint(end).values() if each.size]
        with self._cluster().brokers(ranges) as brokers:
            return _inputPartitions(self._options, brokers, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split."""
        return readSplit(partition.value, self._options)

    def stop(self) -> None:
        """End the query."""
        if self._discovery is not None:
            self._discovery.close()


class PylogbrokerDataSource(DataSource):
    """C{format("pylogbroker")}."""

    @classmethod
    def name(cls) -> str:
        """The name for C{format}."""
        return "pylogbroker"

    def schema(self) -> StructType:
        """
        The columns.

        @raise ConfigurationError: an option is wrong.
        """
        if not isKafka(self.options):
            return SCHEMA
        hasHeaders = KafkaSourceOptions.fromOptions(self.options).includeHeaders
        return KAFKA_COLUMNS_WITH_HEADERS if hasHeaders else KAFKA_COLUMNS

    def reader(self, schema: StructType) -> BatchReader | KafkaBatchReader:
        """
        @raise ConfigurationError: an option is wrong, or the schema is not the source's.
        """
        self._checkSchema(schema)
        if isKafka(self.options):
            return KafkaBatchReader(KafkaSourceOptions.fromOptions(self.options))
        return BatchReader(SourceOptions.fromOptions(self.options))

    def streamReader(self, schema: StructType) -> StreamReader | KafkaStreamReader:
        """
        @raise ConfigurationError: an option is wrong, or the schema is not the source's.
        """
        self._checkSchema(schema)
        for name in self.options:
            if name.lower().startswith("ending"):
                raise ConfigurationError(f"{name} has no meaning for a stream, which has no end")
        if isKafka(self.options):
            return KafkaStreamReader(KafkaSourceOptions.fromOptions(self.options))
        return StreamReader(SourceOptions.fromOptions(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """
        @raise ConfigurationError: an option or a column is wrong, or the mode is not C{append}.
        """
        if isKafka(self.options):
            return BatchWriter(partial(sendRows, self._kafkaSinkOptions(schema, overwrite)))
        return BatchWriter(partial(sendAll, self._sinkOptions(schema, overwrite)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter | KafkaStreamWriter:
        """
        @raise ConfigurationError: as C{writer}.
        """
        if isKafka(self.options):
            return KafkaStreamWriter(self._kafkaSinkOptions(schema, overwrite))
        return StreamWriter(self._sinkOptions(schema, overwrite))

    def _checkSchema(self, schema: StructType) -> None:
        columns = self.schema()
        if schema != columns:
            raise ConfigurationError(
                f"the columns of pylogbroker are fixed: {columns.simpleString()};"
                f" the schema given is {schema.simpleString()}"
            )

    def _sinkOptions(self, schema: StructType, overwrite: bool) -> SinkOptions:
        _checkMode(overwrite)
        options = SinkOptions.fromOptions(self.options)
        checkColumns(schema, options.topic)
        return options

    def _kafkaSinkOptions(self, schema: StructType, overwrite: bool) -> KafkaSinkOptions:
        _checkMode(overwrite)
        options = KafkaSinkOptions.fromOptions(self.options)
        checkKafkaColumns(schema, options)
        return options


def _checkMode(isOverwriting: bool) -> None:
    if isOverwriting:
        raise ConfigurationError("a topic cannot be overwritten: the only mode is append")
