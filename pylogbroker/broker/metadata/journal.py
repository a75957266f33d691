"""
L{MetadataJournal}: the metadata of a broker that is a cluster of one. The changes are in a journal
in its log directory, which only this broker writes, so that none is ever decided anew.

A change for which the disk has no room fails alone. After any other failed write nothing more is
written: what the disk has is unknown until the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.broker.metadatamanager import MetadataManager
from pylogbroker.cluster.metadataimage import MetadataImage, Record, encodeRecords
from pylogbroker.errors import StorageError
from pylogbroker.net.workers import IWorker
from pylogbroker.storage.metadatastore import ENTRY_SIZE_MAX, MetadataStore

log = Logger()


class MetadataJournal:
    """
    An L{pylogbroker.broker.metadatamanager.IMetadataLog} over a L{MetadataStore}.

    @ivar isCurrent: always: no other broker can take over what this one leads.
    """

    isCurrent = True

    def __init__(self, store: MetadataStore, worker: IWorker) -> None:
        """
        @param store: not yet open.
        @param worker: writes.
        """
        self.changeSizeMax = ENTRY_SIZE_MAX
        self._store = store
        self._worker = worker
        self._manager: MetadataManager

    def open(self, manager: MetadataManager, first: Callable[[], list[Record]] = list) -> None:
        """
        Give the manager all changes; a new journal gets a cluster id. Blocks.

        @param first: called for an empty journal; gives its first records, perhaps none.
        @raise pylogbroker.errors.StorageError: the journal cannot be read or created.
        @raise pylogbroker.errors.MetadataError: its records cannot be understood.
        """
        self._manager = manager
        manager.receive(1, self._store.open())
        if not manager.image.clusterId:
            data = encodeRecords(first() or [manager.newCluster()])
            manager.receive(manager.position + 1, [data])
            self._store.append(data, lambda: [data])

    def append(
        self, number: int, records: bytes, image: MetadataImage, guard: Sequence[Any]
    ) -> Deferred[bool]:
        """See L{pylogbroker.broker.metadatamanager.IMetadataLog.append}."""
        assert not guard, "a journal has no nodes to check"
        written = self._worker.submit(
            lambda: self._store.append(records, lambda: [encodeRecords(list(image.records()))])
        )
        return written.addCallbacks(lambda _none: True, self._failed)

    def _failed(self, failure: Failure) -> Failure:
        if self._store.isCertain:
            log.error(
                "The metadata could not be changed, since the disk is full: {reason}",
                reason=failure.value,
            )
        elif isinstance(failure.value, StorageError):
            self._manager.refuse(failure.value)
        return failure

    def close(self) -> None:
        self._store.close()
