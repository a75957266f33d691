"""
Reading one range of a partition, to its exact end.

What must be true: what comes out is the whole range, each message once and in order, or an error; only where data are gone and the user has said that
this may be is something left out, and then it is logged. So the range must end where an entry ends: one that crosses the end is refused, since then the
end was no boundary, and whoever reads on from there would read garbage or read messages twice.

Memory is bounded: a fetch is C{fetchSize}, grows for a larger entry to just that entry's size, and never beyond C{fetchSizeMax}.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pylogbroker.errors import (
    BrokerConnectionError,
    DataLossError,
    FormatError,
    RemoteOffsetOutOfRangeError,
    UnreadableRangeError,
)
from pylogbroker.records.columns import ColumnBatch, columnBatches
from pylogbroker.records.messageset import SIZE_FIELD_SIZE, MessageSet
from pylogbroker.spark.brokerclients import BrokerClients
from pylogbroker.spark.options import SourceOptions
from pylogbroker.spark.partitionbounds import fetchBounds
from pylogbroker.spark.splits import OffsetRange

log = logging.getLogger(__name__)


def reportDataLoss(options: SourceOptions, text: str) -> None:
    """
    Data are gone.

    @raise DataLossError: unless the user has said that this may be.
    """
    if options.failOnDataLoss:
        raise DataLossError(f"{text}; with failOnDataLoss=false it would be left out")
    log.warning("%s; it is left out, since failOnDataLoss=false", text)


class RangeReader:
    """
    One range.
    """

    def __init__(self, whole: OffsetRange, brokers: BrokerClients, options: SourceOptions) -> None:
        self._range = whole
        self._brokers = brokers
        self._options = options
        self._offset = whole.start
        self._sizeMax = options.fetchSize
        self._vainCount = 0

    def __iter__(self) -> Iterator[ColumnBatch]:
        """
        The messages, in order.

        @raise DataLossError: some are gone.
        @raise UnreadableRangeError: some cannot be read.
        @raise ConnectionError: the broker gives no answer.
        """
        while self._offset < self._range.end:
            fetched = self._fetch()
            if isinstance(fetched.error, RemoteOffsetOutOfRangeError) or (
                fetched.error is None and not fetched.data
            ):
                self._findOut()
            elif fetched.error is not None:
                raise UnreadableRangeError(f"{self._at()}: {fetched.error}") from fetched.error
            elif self._isWhole(fetched.data):
                yield from self._walk(fetched)

    def _at(self) -> str:
        return (
            f"topic {self._range.topic}, partition {self._range.partition}, offset {self._offset}"
        )

    def _fetch(self) -> MessageSet:
        """What is there from here on, and nothing from behind the end."""
        topic, partition, size = (
            self._range.topic,
            self._range.partition,
            min(self._sizeMax, self._range.end - self._offset),
        )
        return self._brokers.ask(
            partition.broker,
            self._at(),
            lambda consumer: consumer.fetch(topic, partition.partition, self._offset, size),
        )

    def _walk(self, fetched: MessageSet) -> Iterator[ColumnBatch]:
        try:
            for stretch in columnBatches(fetched.data, self._offset):
                yield stretch
                self._offset = stretch.behind
        except FormatError as error:
            self._offset = fetched.baseOffset + error.position
            raise UnreadableRangeError(f"{self._at()}: {error.reason}") from error
        self._vainCount = 0
        self._sizeMax = self._options.fetchSize

    def _isWhole(self, data: bytes) -> bool:
        """Whether the first entry came whole. If not, the next fetch will be large enough, or there will be none."""
        left = self._range.end - self._offset
        needed = SIZE_FIELD_SIZE + max(
            int.from_bytes(data[:SIZE_FIELD_SIZE], "big", signed=True), 0
        )
        if needed <= len(data):
            return True
        if needed > left:
            raise UnreadableRangeError(
                f"{self._at()}: the entry there has {needed} bytes and crosses {self._range.end}, where the range should end: that is no entry's"
                " boundary, or the entry is corrupt"
            )
        if needed > self._options.fetchSizeMax:
            raise UnreadableRangeError(
                f"{self._at()}: the entry there has {needed} bytes, more than fetchSizeMax={self._options.fetchSizeMax}, or is corrupt"
            )
        if needed <= self._sizeMax:
            self._inVain(
                f"the entry there has {needed} bytes, of which the broker gives {len(data)}"
            )
        self._sizeMax = max(needed, self._sizeMax)
        return False

    def _inVain(self, text: str) -> None:
        """The broker gave less than there should be; perhaps it has just come back."""
        self._vainCount += 1
        if self._vainCount > self._options.cluster.retryCount:
            raise BrokerConnectionError(f"{self._at()}: {text}")

    def _findOut(self) -> None:
        """Why there is nothing, and what follows from that."""
        bounds = fetchBounds(self._brokers, self._range.topic, self._range.partition)
        end = self._range.end
        if self._offset < bounds.earliest:
            reportDataLoss(
                self._options,
                f"{self._at()}: it was deleted before it was read; the earliest that is left is {bounds.earliest}",
            )
            self._offset = min(bounds.earliest, end)
        elif bounds.latest < end:
            reportDataLoss(
                self._options,
                f"{self._at()}: the log ends at {bounds.latest}, before {end}, where it ended when this was planned: it was emptied or cut",
            )
            self._offset = end
        else:
            self._inVain(
                f"the broker gives nothing, though it has {bounds.earliest} to {bounds.latest}"
            )
