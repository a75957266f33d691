"""
Reads records of partitions whose positions are known; a module of its own, since a tool that only
administers needs none of it.

Fetches are sent without sessions and in a version that names topics. A batch is checked before its
records are given out; markers of transactions are stepped over. Records of open and aborted
transactions are read, too, unless the reader is for what is committed: then a partition ends where
its first open transaction begins, and the broker names the aborted ones in what it sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pylogbroker.errors import FormatError, MessageTooLargeError, OffsetOutOfRangeError
from pylogbroker.interfaces import BatchHeader
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.records.recordbatch import (
    BATCH_OVERHEAD,
    Record,
    checkCrc,
    iterateRecords,
    readHeader,
)
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.types import TopicPartition

NAMED_VERSION = 12
"""The last version of Fetch, and of Produce, that names topics instead of giving their ids."""

FETCH_SIZE = 1 << 20
RESPONSE_SIZE = 50 << 20

AbortedTransaction = tuple[int, int]
"""The offset at which it begins, and its producer's id."""

FetchedBatches = tuple[TopicPartition, bytes, list[AbortedTransaction]]
"""What a partition sent, the last batch perhaps cut, and which transactions in it are aborted."""


class RecordReader:
    """
    Partitions, and how far each has been read.

    @ivar positions: the next offset of each; may be changed between two polls.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        positions: Mapping[TopicPartition, int],
        fetchSize: int = FETCH_SIZE,
        isCommitted: bool = False,
    ) -> None:
        """
        @param fetchSize: bytes of one partition in a response; a larger batch comes whole.
        @param isCommitted: leave out records of open and aborted transactions.
        """
        self._isCommitted = isCommitted
        self._cluster = cluster
        self._fetchSize = fetchSize
        self.positions = dict(positions)

    def poll(self, waitMs: int, isRetried: bool = True) -> Iterator[tuple[TopicPartition, Record]]:
        """
        Fetch once from every leader, and give out what came; the position of a partition is behind
        each record before it is given out.

        @param waitMs: how long the first leader may wait for a record.
        @param isRetried: whether errors that pass are tried again until the cluster's time-out.
        @raise OffsetOutOfRangeError: a position is not in the log.
        @raise ResponseError: a partition cannot be read, and that does not pass.
        @raise FormatError: a batch is damaged.
        """
        for where, data, aborted in self.fetch(waitMs) if isRetried else self._fetch(waitMs):
            for batch, at, header in self.batches(where, data, aborted):
                try:
                    for record in iterateRecords(batch, at, header):
                        if record.offset >= self.positions[where]:
                            self.positions[where] = record.offset + 1
                            yield where, record
                except FormatError as error:
                    raise _placed(error, where, header.baseOffset) from error

    def fetch(self, waitMs: int) -> list[FetchedBatches]:
        """
        Fetch once from every leader.

        @return: of the partitions that have something, for C{batches}.
        @raise OffsetOutOfRangeError: as C{poll}.
        @raise ResponseError: as C{poll}.
        """
        return self._cluster.attempt(lambda: self._fetch(waitMs))

    def _fetch(self, waitMs: int) -> list[FetchedBatches]:
        cls = messages.FetchRequest
        byLeader: dict[int, dict[str, list[int]]] = {}
        for where in self.positions:
            topics = byLeader.setdefault(self._cluster.leader(where), {})
            topics.setdefault(where.topic, []).append(where.partition)
        found: list[FetchedBatches] = []
        for number, topics in byLeader.items():
            body = cls(
                maxWaitMs=0 if found else waitMs,
                minBytes=1,
                maxBytes=RESPONSE_SIZE,
                isolationLevel=int(self._isCommitted),
                topics=[
                    cls.FetchTopic(
                        topic=name,
                        partitions=[
                            cls.FetchPartition(
                                partition=index,
                                fetchOffset=self.positions[TopicPartition(name, index)],
                                partitionMaxBytes=self._fetchSize,
                            )
                            for index in indexes
                        ],
                    )
                    for name, indexes in topics.items()
                ],
            )
            response = self._cluster.broker(number).request(
                ApiKey.FETCH, body, body.maxWaitMs, NAMED_VERSION
            )
            found += self._contents(response)
        return found

    def _contents(self, response: Any) -> Iterator[FetchedBatches]:
        if response.errorCode:
            raise ResponseError(response.errorCode, "fetch")
        for topic in response.responses:
            for part in topic.partitions:
                where = TopicPartition(topic.topic, part.partitionIndex)
                if part.errorCode == ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise OffsetOutOfRangeError(
                        f"{where} has no offset {self.positions[where]}: its log begins or ends"
                        " elsewhere"
                    )
                if part.errorCode:
                    raise ResponseError(part.errorCode, str(where))
                if part.records:
                    aborted = part.abortedTransactions or ()
                    begins = [(each.firstOffset, each.producerId) for each in aborted]
                    yield where, bytes(part.records), begins

    def batches(
        self, where: TopicPartition, data: bytes, aborted: Iterable[AbortedTransaction] = ()
    ) -> Iterator[tuple[bytes, int, BatchHeader]]:
        """
        The batches to read: checked, without markers, and without aborted transactions if the
        reader is for what is committed. The partition's position is behind a batch when the next
        one is asked for.

        @return: bytes, the position of a batch in them, and its header.
        @raise FormatError: a batch is damaged.
        @raise MessageTooLargeError: the first batch does not fit in a response.
        """
        begins = deque(sorted(aborted))
        producers = set[int]()  # in an aborted transaction at this place
        for at, header in self.checkedBatches(where, data):
            while begins and begins[0][0] <= header.lastOffset:
                producers.add(begins.popleft()[1])
            if header.isControl:
                producers.discard(header.producerId)
            elif not (header.isTransactional and header.producerId in producers):
                yield data, at, header

    def checkedBatches(
        self, where: TopicPartition, data: bytes
    ) -> Iterator[tuple[int, BatchHeader]]:
        """
        All whole batches, with those that hold markers. The partition's position is behind a batch
        when the next one is asked for.

        @return: the position of a batch in the bytes, and its header.
        @raise FormatError: a batch is damaged.
        @raise MessageTooLargeError: the first batch does not fit in a response.
        """
        at, before = 0, self.positions[where]
        while len(data) - at >= BATCH_OVERHEAD:
            try:
                header = readHeader(data, at)
                if header.size > len(data) - at:
                    break
                checkCrc(data, at, header)
            except FormatError as error:
                raise _placed(error, where, self.positions[where]) from error
            yield at, header
            self.positions[where] = max(self.positions[where], header.nextOffset)
            at += header.size
        if data and at == 0 and self.positions[where] == before:
            raise MessageTooLargeError(
                f"the batch at offset {before} of {where} has more than {len(data)} bytes"
            )


def _placed(error: FormatError, where: TopicPartition, offset: int) -> FormatError:
    return type(error)(f"{where}, batch at offset {offset}: {error.reason}", error.position)
