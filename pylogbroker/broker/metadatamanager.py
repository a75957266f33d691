"""
Changes of the cluster's metadata: decided one after another, made durable, then visible.

A decision sees the image with all earlier changes and gives records. A worker writes them; the
image changes when they are synced, and only then is the caller told. While one change is written,
later ones wait, and what waits is written together, with one C{fsync}: so decisions see the changes
of those before them, which no other code sees yet.

A write for which the disk has no room fails its changes alone. After any other failed write nothing
more is written: what the disk has is unknown until the next start.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.cluster.metadataimage import (
    ClusterRecord,
    MetadataImage,
    ProducerIdsRecord,
    Record,
    decodeRecords,
    encodeRecords,
)
from pylogbroker.errors import BackpressureError, ClosedError, MetadataError, PylogbrokerError
from pylogbroker.net.workers import IWorker
from pylogbroker.storage.metadatastore import ENTRY_SIZE_MAX, MetadataStore

T = TypeVar("T")

WAITING_COUNT_MAX = 10_000
PRODUCER_ID_BLOCK_COUNT = 1_000
"""Producer ids that one change gives away, as Kafka's controller does."""

Decision = Callable[[MetadataImage], tuple[list[Record], T]]

log = Logger()


class MetadataManager:
    """
    The metadata of one broker.

    @ivar image: what is durable. Not to be changed.
    @ivar latest: C{image}, with the changes that are being written. Not to be changed.
    @ivar version: grows with each change of the image.
    """

    def __init__(
        self,
        store: MetadataStore,
        worker: IWorker,
        randomBytes: Callable[[int], bytes],
    ) -> None:
        """
        @param store: not yet open.
        @param randomBytes: C{randomBytes(count)}, for ids.
        """
        self.image = self.latest = MetadataImage()
        self.version = 0
        self._store = store
        self._worker = worker
        self._randomBytes = randomBytes
        self._listeners: list[Callable[[], object]] = []
        self._waiting: list[tuple[Decision[Any], Deferred[Any]]] = []
        self._isWriting = False
        self._refusal: PylogbrokerError | None = None
        self._nextProducerId = self._producerIdEnd = 0

    # -- start and stop

    def open(self, first: Callable[[], list[Record]] = list) -> None:
        """
        Read the store; a new one gets a cluster id. Blocks.

        @param first: called for an empty store; gives its first records, perhaps none.
        @raise pylogbroker.errors.StorageError: the store cannot be read or created.
        @raise pylogbroker.errors.MetadataError: its records cannot be understood.
        """
        for change in self._store.open():
            for record in decodeRecords(change):
                self.image.apply(record)
        if not self.image.clusterId:
            records = first()
            if not records:
                clusterId = urlsafe_b64encode(self._randomBytes(16)).decode().rstrip("=")
                records = [ClusterRecord(clusterId)]
            for record in records:
                self.image.apply(record)
            self._store.append(encodeRecords(records), lambda: [encodeRecords(records)])
        self._nextProducerId = self._producerIdEnd = self.image.nextProducerId

    def close(self) -> None:
        """Refuse further changes. To be called when no change is under way."""
        self._refuse(ClosedError("the broker is stopping"))
        self._store.close()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call a function after each change of the image."""
        self._listeners.append(listener)

    # -- changes

    def change(self, decide: Decision[T]) -> Deferred[T]:
        """
        Change the metadata.

        @param decide: called with an image that has all earlier changes; gives the records, perhaps
            none, and the result. It must not change the image.
        @return: fires with the result when the records are durable and in C{image}. Fails with what
            C{decide} raises, and nothing is changed; with L{BackpressureError} when too many wait,
            or too many bytes with them; with L{MetadataError} when its records are too large; with
            a L{pylogbroker.errors.StorageError} when the disk is full, or failed, now or earlier:
            then it is unknown whether a restart brings the change back.
        """
        result: Deferred[T] = Deferred()
        if self._refusal is not None:
            result.errback(self._refusal)
        elif len(self._waiting) >= WAITING_COUNT_MAX:
            text = f"{len(self._waiting)} changes of the metadata wait already"
            result.errback(BackpressureError(text))
        else:
            self._waiting.append((decide, result))
            self._writeNext()
        return result

    def _writeNext(self) -> None:
        if self._isWriting or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        draft = self.image.copy()
        records: list[Record] = []
        size = 0  # of the changes by themselves; together they are no larger
        decided: list[tuple[Deferred[Any], Any]] = []
        for decide, result in waiting:
            isChanged = False
            try:
                more, value = decide(draft)
                size += _checkedSize(more, size)
                for record in more:
                    draft.apply(record)
                    isChanged = True
            except Exception:
                decided.append((result, Failure()))
                if isChanged:  # by a part of what is refused
                    draft = self.image.copy()
                    for record in records:
                        draft.apply(record)
            else:
                records += more
                decided.append((result, value))
        if not records:
            self._answer(decided)
            return
        data = encodeRecords(records)
        self._isWriting = True
        self.latest = draft
        writing = self._worker.submit(
            lambda: self._store.append(data, lambda: [encodeRecords(list(draft.records()))])
        )
        writing.addCallbacks(
            self._written, self._failed, callbackArgs=(draft, decided), errbackArgs=(decided,)
        )

    def _answer(self, decided: list[tuple[Deferred[Any], Any]]) -> None:
        for result, value in decided:
            result.callback(value)  # a Failure makes it fail
        self._writeNext()

    def _written(
        self, _none: None, draft: MetadataImage, decided: list[tuple[Deferred[Any], Any]]
    ) -> None:
        self._isWriting = False
        self.image = draft
        self.version += 1
        for listener in self._listeners:
            listener()
        self._answer(decided)

    def _failed(self, failure: Failure, decided: list[tuple[Deferred[Any], Any]]) -> None:
        self._isWriting = False
        error = failure.value
        self.latest = self.image
        if not isinstance(error, PylogbrokerError):
            log.failure("Writing metadata failed unexpectedly: this is a bug", failure)
            error = ClosedError(f"writing metadata failed: {error!r}")
        elif self._store.isCertain:
            log.error(
                "The metadata could not be changed, since the disk is full: {reason}", reason=error
            )
            self._answer([(result, failure) for result, _ in decided])
            return
        else:
            log.critical("The metadata cannot be changed any more: {reason}", reason=error)
        for result, value in decided:
            result.callback(value if isinstance(value, Failure) else Failure(error))
        self._refuse(error)

    def _refuse(self, error: PylogbrokerError) -> None:
        self._refusal = error
        waiting, self._waiting = self._waiting, []
        for _, result in waiting:
            result.errback(error)

    # -- ids

    def newTopicId(self) -> UUID:
        """A random id, as Kafka's: none of its text forms begins with a dash, and none is zero."""
        while True:
            found = UUID(bytes=self._randomBytes(16), version=4)
            if not urlsafe_b64encode(found.bytes).startswith(b"-"):
                return found

    def newProducerId(self) -> Deferred[int]:
        """
        @return: fires with an id that was never given away, not even before a restart. Fails as
            L{change}.
        """
        if self._nextProducerId < self._producerIdEnd:
            self._nextProducerId += 1
            result: Deferred[int] = Deferred()
            result.callback(self._nextProducerId - 1)
            return result

        def decide(image: MetadataImage) -> tuple[list[Record], int]:
            first = image.nextProducerId
            return [ProducerIdsRecord(first + PRODUCER_ID_BLOCK_COUNT)], first

        def use(first: int) -> int:
            if self._nextProducerId >= self._producerIdEnd:
                self._nextProducerId = first
                self._producerIdEnd = first + PRODUCER_ID_BLOCK_COUNT
            self._nextProducerId += 1
            return self._nextProducerId - 1

        return self.change(decide).addCallback(use)


def _checkedSize(records: list[Record], sizeBefore: int) -> int:
    """
    The bytes of a change, which is to be written with others.

    @param sizeBefore: of the others.
    @raise MetadataError: the journal cannot take it.
    @raise BackpressureError: not together with the others.
    """
    size = len(encodeRecords(records)) if records else 0
    if size > ENTRY_SIZE_MAX:
        raise MetadataError(f"a change of {size} bytes; {ENTRY_SIZE_MAX} are possible")
    if sizeBefore + size > ENTRY_SIZE_MAX:
        raise BackpressureError(f"changes of the metadata of {sizeBefore} bytes wait already")
    return size
