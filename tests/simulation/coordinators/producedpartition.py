"""
A partition that producers with transactional ids write to. What it knows of its producers is
storage's own code; nothing that it has is lost. A module of its own, since it is read beside the
storage, apart from coordinators and their clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pylogbroker.interfaces import BatchHeader, EndMarker
from pylogbroker.records.recordbatch import CONTROL_ATTRIBUTE, TRANSACTIONAL_ATTRIBUTE
from pylogbroker.storage.kafka.producerstate import ProducerStateManager

EXPIRATION_MS = 1 << 60


class ProducedRecord(NamedTuple):
    """
    A record.

    @ivar number: of its transaction.
    @ivar value: another one for each record that a producer makes, however often it sends it.
    """

    number: int
    value: int


Decided = Callable[[ProducedRecord, bool], None]
"""Called when a marker commits, or aborts, a record."""


class ProducedPartition:
    """
    @ivar producers: what it knows of them.
    @ivar unmarked: the records of transactions that are ongoing here, by producer id.
    """

    def __init__(self, onDecided: Decided) -> None:
        self.producers = ProducerStateManager("p", EXPIRATION_MS)
        self.unmarked: dict[int, list[ProducedRecord]] = {}
        self._onDecided = onDecided
        self._endOffset = 0

    @property
    def isOpen(self) -> bool:
        """Whether a transaction is ongoing here."""
        return bool(self.unmarked) or bool(self.producers.ongoing)

    def append(self, producer: tuple[int, int], sequence: int, record: ProducedRecord) -> bool:
        """
        Append a producer's record.

        @return: whether it is there only now; otherwise it was there before.
        @raise PylogbrokerError: it is refused.
        """
        header = _header(producer, sequence, TRANSACTIONAL_ATTRIBUTE)
        if self.producers.check(header) is not None:
            return False
        self._add(header, record)
        return True

    def appendOffsets(self, producer: tuple[int, int], record: ProducedRecord) -> None:
        """
        Append what a coordinator writes in a producer's transaction.

        @raise PylogbrokerError: it is refused.
        """
        header = _header(producer, 0, TRANSACTIONAL_ATTRIBUTE)
        self.producers.checkEpoch(header)
        self._add(header, record)

    def _add(self, header: BatchHeader, record: ProducedRecord) -> None:
        self.producers.append(header, self._endOffset, 0)
        self._endOffset += 1
        self.unmarked.setdefault(header.producerId, []).append(record)

    def mark(self, producer: tuple[int, int], marker: EndMarker) -> None:
        """
        Append an end marker.

        @raise PylogbrokerError: it is refused.
        """
        header = _header(producer, -1, TRANSACTIONAL_ATTRIBUTE | CONTROL_ATTRIBUTE)
        self.producers.checkMarker(header, marker)
        self.producers.append(header, self._endOffset, 0, marker)
        self._endOffset += 1
        for record in self.unmarked.pop(producer[0], ()):
            self._onDecided(record, marker.isCommit)


def _header(producer: tuple[int, int], sequence: int, attributes: int) -> BatchHeader:
    """Of a batch with one record."""
    return BatchHeader(0, 0, 0, 2, 0, attributes, 0, 0, 0, *producer, sequence, 1)
