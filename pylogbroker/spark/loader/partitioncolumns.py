"""
The columns that name the partition of a row: C{broker} and C{partition} of topics of Kafka 0.7,
C{partition} of topics of today's Kafka. A module of its own, since counting, replacing and
compacting need them, whatever the topics are.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, Row
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from pylogbroker.types import AnyPartition, BrokerPartition, PartitionId, TopicPartition

KAFKA07_COLUMNS = ("broker", "partition")
KAFKA_COLUMNS = ("partition",)


def partitionColumns(partitions: Iterable[AnyPartition]) -> tuple[str, ...]:
    """
    The columns beside C{topic}, of type int.

    @param partitions: of a table, all of one kind; without any, those of Kafka 0.7.
    """
    isKafka = isinstance(next(iter(partitions), None), TopicPartition)
    return KAFKA_COLUMNS if isKafka else KAFKA07_COLUMNS


def countedColumns(names: Iterable[str]) -> StructType:
    """
    The columns by which rows are counted, which every table has.

    @param names: of L{partitionColumns}.
    """
    found = StructType().add("topic", "string")
    for name in names:
        found = found.add(name, "integer")
    return (
        found.add("offset", "long")
        .add("eventTime", "timestamp")
        .add("isArrival", "boolean")
        .add("host", "string")
    )


def isOf(partition: AnyPartition) -> Column:
    """Whether a row is of a partition."""
    found = sql.col("topic") == partition.topic
    if isinstance(partition, TopicPartition):
        return found & (sql.col("partition") == partition.partition)
    broker, number = partition.partition
    return found & (sql.col("broker") == broker) & (sql.col("partition") == number)


def partitionOf(row: Row) -> AnyPartition:
    """
    @param row: has C{topic} and the columns of L{partitionColumns}, and not those of the other
        kind.
    """
    if "broker" in row:
        return PartitionId(row["topic"], BrokerPartition(row["broker"], row["partition"]))
    return TopicPartition(row["topic"], row["partition"])
