"""
C{replay} for today's Kafka: copies a topic into another one, also of another cluster. It is a
module of its own, since it reads one topic and writes another.

What must be true: a record keeps its key, value, headers and timestamp, and those of a partition
keep their order. They keep their partition, too, where both topics have as many. Otherwise the key
chooses the partition, as Java's producer would; records without a key that were in one partition
stay together.

Records of open and aborted transactions are left out, unless others are asked for. The ends of the
partitions at the start are the end, so a topic that is copied into itself is doubled once.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack

from pylogbroker.cli import CommandError
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.kafka.publisher import BatchPublisher
from pylogbroker.cli.kafka.records import READ_COMMITTED, readUpTo
from pylogbroker.cli.output import Progress, asJson, formatBytes
from pylogbroker.cli.streams import Streams
from pylogbroker.cluster.kafkapartitioner import keyPartition
from pylogbroker.errors import MessageTooLargeError, PylogbrokerError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError, checkCode
from pylogbroker.records.recordbatch import Record
from pylogbroker.syncclient.connection import monotonic
from pylogbroker.syncclient.kafka.cluster import EARLIEST, LATEST, KafkaCluster
from pylogbroker.syncclient.kafka.recordreader import RecordReader
from pylogbroker.types import TopicPartition, formatCount

_DEFAULT = -1


def replay(options: Namespace, streams: Streams) -> int:
    """
    Copy the records. However it ends, people are told how far it came.
    """
    with ExitStack() as stack:
        source = stack.enter_context(openCluster(options, streams))
        target = source
        if options.toBootstrapServer is not None:
            target = stack.enter_context(
                openCluster(options, streams, options.toBootstrapServer, options.otherAccess)
            )
        copy = _TopicCopy(source, target, options)
        progress = Progress(streams.errors, monotonic)
        try:
            copy.run(progress)
        except PylogbrokerError as error:
            raise CommandError(f"{error}; {copy.state()}") from error
        except BaseException:  # Ctrl-C
            progress.clear()
            streams.say(f"ended: {copy.state()}")
            raise
        finally:
            progress.clear()
    count, size = copy.publisher.count, copy.publisher.size
    if options.json:
        document = {
            "topic": options.topic,
            "toTopic": options.toTopic,
            "messageCount": count,
            "payloadSize": size,
            "arePartitionsKept": copy.arePartitionsKept,
        }
        show(streams, asJson(document))
    how = "into the same partitions" if copy.arePartitionsKept else "into partitions by key"
    streams.say(
        f"replayed {formatCount(count, 'message')} ({formatBytes(size)}) of {options.topic} "
        f"to {options.toTopic}, {how}"
    )
    return 0


class _TopicCopy:
    """
    Copies one partition after the other.

    @ivar publisher: writes to the target.
    @ivar arePartitionsKept: whether both topics have as many partitions.
    """

    def __init__(self, source: KafkaCluster, target: KafkaCluster, options: Namespace) -> None:
        self._source = source
        self._options = options
        self._isCommitted = options.isolationLevel in (None, READ_COMMITTED)
        numbers = source.partitions(options.topic)
        self._targets = _ensureTopic(target, options, len(numbers))
        self.arePartitionsKept = self._targets == numbers
        self.publisher = BatchPublisher(target, options.toTopic, options)
        self._left: int = options.maxMessages
        places = [TopicPartition(options.topic, number) for number in numbers]
        time = EARLIEST if options.fromTime is None else options.fromTime
        self._ends = source.offsetsAt(places, LATEST, self._isCommitted)
        self._positions = source.offsetsAt(places, time, self._isCommitted)
        self._current = places[0]

    def state(self) -> str:
        """How far it came, for people: what is acknowledged, and where the rest begins."""
        waiting = [record.offset for record in self.publisher.waiting]
        positions = dict(self._positions)
        if waiting:  # they are all of one partition
            positions[self._current] = min(waiting)
        texts = [
            f"{where.partition} up to {offset} of {self._ends[where]}"
            for where, offset in positions.items()
        ]
        count = formatCount(self.publisher.count, "message")
        doubt = "; up to a batch of the next ones may be stored, too" if waiting else ""
        return f"{count} acknowledged; copied are partitions {', '.join(texts)}{doubt}"

    def run(self, progress: Progress) -> None:
        """Copy what there is."""
        publisher = self.publisher
        for where, end in self._ends.items():
            if not self._left:
                break
            self._current = where
            for record in self._records(where, end):
                if not self._left:
                    break
                self._left -= 1
                publisher.add(self._partition(where, record), record)
                self._positions[where] = record.offset + 1
                progress.update(publisher.count, publisher.size)
            else:
                self._positions[where] = max(end, self._positions[where])
            publisher.flush()

    def _partition(self, where: TopicPartition, record: Record) -> int:
        sizeMax = self._options.maxMessageSize
        size = len(record.key or b"") + len(record.value or b"")
        if size > sizeMax:
            raise MessageTooLargeError(
                f"the message at offset {record.offset} of {where} has {size:,} bytes, more than"
                f" the {sizeMax:,} of --max-message-size"
            )
        if self.arePartitionsKept:
            return where.partition
        if record.key is not None:
            return self._targets[keyPartition(record.key, len(self._targets))]
        return self._targets[where.partition % len(self._targets)]

    def _records(self, where: TopicPartition, end: int) -> Iterator[Record]:
        """The records of a partition before an offset."""
        reader = RecordReader(
            self._source, {where: self._positions[where]}, isCommitted=self._isCommitted
        )
        for _where, record in readUpTo(end, reader, reader.poll, self._options.timeoutMs):
            if record.offset >= end:
                return
            yield record


def _ensureTopic(target: KafkaCluster, options: Namespace, count: int) -> list[int]:
    """
    Create the topic, if it is missing, with a number of partitions.

    @return: its partitions.
    """
    try:
        return target.partitions(options.toTopic)
    except ResponseError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
    cls = messages.CreateTopicsRequest
    topic = cls.CreatableTopic(
        name=options.toTopic, numPartitions=count, replicationFactor=_DEFAULT
    )
    body = cls(topics=[topic], timeoutMs=options.timeoutMs)
    [found] = target.change(ApiKey.CREATE_TOPICS, body).topics
    if found.errorCode != ErrorCode.TOPIC_ALREADY_EXISTS:
        checkCode(found.errorCode, f"topic {options.toTopic}", found.errorMessage)
    return target.attempt(lambda: target.partitions(options.toTopic))
