"""
Changes of the cluster's metadata: decided one after another, made durable, then visible.

A decision sees the image with all earlier changes and gives records. A log makes them durable
(L{IMetadataLog}): a journal of this broker alone (L{pylogbroker.broker.metadata.journal}), or one
in ZooKeeper that all brokers of a cluster write (L{pylogbroker.broker.metadata.zookeeperlog}). The
image changes when the log has the records, and only then is the caller told.

The changes of a log are numbered, and the image is that of a number. A change is written as the
next one. Where another broker has written that first, the image takes over its change, and the
decisions are made anew: so each is made on the image of all changes before it, by any broker.

While a change is written, later ones wait; what waits is written together. So decisions see the
changes of those before them, which no other code sees yet.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
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

T = TypeVar("T")

WAITING_COUNT_MAX = 10_000
PRODUCER_ID_BLOCK_COUNT = 1_000
"""Producer ids that one change gives away, as Kafka's controller does."""

CONFLICT_COUNT_MAX = 100
"""How often decisions are made anew, since other brokers' changes came first."""

Decision = Callable[[MetadataImage], tuple[list[Record], T]]

log = Logger()


class IMetadataLog(Protocol):
    """
    Where the changes of the metadata are. A log gives them to its L{MetadataManager}, in order, by
    C{receive} and C{restore}; if nothing more can be written or read, it calls C{refuse}.

    @ivar changeSizeMax: bytes of the records of a change.
    @ivar isCurrent: whether no other broker can have taken over what the image says that this one
        leads.
    """

    changeSizeMax: int

    @property
    def isCurrent(self) -> bool: ...

    def append(
        self, number: int, records: bytes, image: MetadataImage, guard: Sequence[Any]
    ) -> Deferred[bool]:
        """
        Write a change. The manager appends one at a time.

        @param number: one behind that of the image on which it was decided.
        @param records: what C{encodeRecords} gives.
        @param image: the image with the change.
        @param guard: see L{MetadataManager.change}.
        @return: fires with C{True} when the change is durable, and with C{False} when another one
            has this number, which the manager has received. Fails if the change is not there, or
            if that is unknown; the failure says which.
        """
        ...

    def close(self) -> None: ...


class _Waiting(NamedTuple):
    decide: Decision[Any]
    guard: Sequence[Any]
    result: Deferred[Any]


class MetadataManager:
    """
    The metadata, as this broker knows them.

    @ivar image: what is durable. Not to be changed.
    @ivar latest: C{image}, with the changes that are being written. Not to be changed.
    @ivar position: the number of the last change in C{image}.
    """

    def __init__(self, metadataLog: IMetadataLog, randomBytes: Callable[[int], bytes]) -> None:
        """
        @param metadataLog: to be opened with this manager.
        @param randomBytes: C{randomBytes(count)}, for ids.
        """
        self.image = self.latest = MetadataImage()
        self.position = 0
        self._log = metadataLog
        self._randomBytes = randomBytes
        self._listeners: list[Callable[[], object]] = []
        self._waiting: list[_Waiting] = []
        self._isWriting = False
        self._refusal: PylogbrokerError | None = None
        self._nextProducerId = self._producerIdEnd = 0

    @property
    def isCurrent(self) -> bool:
        """
        Whether the broker may serve the partitions that C{image} says it leads. C{False}: it may
        have been replaced, and does not know.
        """
        return self._log.isCurrent

    def close(self) -> None:
        """Refuse further changes. To be called when no change is under way."""
        self._refuse(ClosedError("the broker is stopping"))
        self._log.close()

    def listen(self, listener: Callable[[], object]) -> None:
        """Call a function after each change of the image, and when C{isCurrent} becomes true."""
        self._listeners.append(listener)

    def tellListeners(self) -> None:
        """The image, or what this broker may do by it, has changed."""
        for listener in list(self._listeners):
            try:
                listener()
            except Exception:
                log.failure("A listener of the metadata failed: this is a bug")

    # -- what the log gives

    def receive(self, first: int, changes: Sequence[bytes]) -> None:
        """
        Take over changes. Those that the image has already are passed over.

        @param first: the number of the first one; no gap may be before it.
        @param changes: the records of each.
        @raise MetadataError: the records cannot be understood, or do not fit to the image. The text
            names the change.
        """
        assert first <= self.position + 1, (first, self.position)
        changes = changes[self.position + 1 - first :]
        if not changes:
            return
        draft = self.image.copy()
        for number, change in enumerate(changes, self.position + 1):
            try:
                draft.applyAll(decodeRecords(change))
            except MetadataError as error:
                raise MetadataError(f"change {number}: {error}") from error
        self._show(draft, self.position + len(changes))

    def restore(self, number: int, image: MetadataImage) -> None:
        """Take over a snapshot: the image of a change behind C{position}."""
        if number > self.position:
            self._show(image, number)

    def _show(self, image: MetadataImage, number: int) -> None:
        self.image, self.position = image, number
        if not self._isWriting:
            self.latest = image
        self.tellListeners()

    def refuse(self, error: PylogbrokerError) -> None:
        """No change is possible any more, and the image does not change either."""
        if self._refusal is None:
            log.critical("The metadata cannot be changed any more: {reason}", reason=error)
            self._refuse(error)

    def _refuse(self, error: PylogbrokerError) -> None:
        self._refusal = error
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.result.errback(error)

    # -- changes

    def change(self, decide: Decision[T], guard: Sequence[Any] = ()) -> Deferred[T]:
        """
        Change the metadata.

        @param decide: called with an image that has all earlier changes; gives the records, perhaps
            none, and the result. It must not change the image. It is called again when another
            broker has changed the metadata meanwhile.
        @param guard: L{pylogbroker.interfaces.ZookeeperOperation}s that are carried out with the
            change, or prevent it: then the Deferred fails with the reason, a
            L{pylogbroker.errors.MultiFailedException} whose C{index} is that in C{guard}. A change
            with a guard is written alone, as number C{position + 1}. Only for a log in ZooKeeper.
        @return: fires with the result when the records are durable and in C{image}. Fails with what
            C{decide} raises, and nothing is changed; with L{BackpressureError} when too many wait,
            or too many bytes with them, or other brokers were faster L{CONFLICT_COUNT_MAX} times;
            with L{MetadataError} when its records are too large; with the error of the log. Whether
            the change is there, or will be, is unknown after a
            L{pylogbroker.errors.MetadataUnconfirmedError}, and after a
            L{pylogbroker.errors.StorageError} of a disk that is not full.
        """
        result: Deferred[T] = Deferred()
        if self._refusal is not None:
            result.errback(self._refusal)
        elif len(self._waiting) >= WAITING_COUNT_MAX:
            text = f"{len(self._waiting)} changes of the metadata wait already"
            result.errback(BackpressureError(text))
        else:
            self._waiting.append(_Waiting(decide, guard, result))
            self._writeNext()
        return result

    def _writeNext(self) -> None:
        if self._isWriting or not self._waiting:
            return
        count = next((at for at, each in enumerate(self._waiting) if each.guard), None)
        count = len(self._waiting) if count is None else max(count, 1)
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        self._write(batch, 0)

    def _write(self, batch: list[_Waiting], conflictCount: int) -> None:
        self._isWriting = True
        number = self.position + 1
        draft, records, decided = self._decide(batch)
        if not records:
            self._isWriting = False
            self._answer(decided)
            return
        self.latest = draft
        writing = self._log.append(number, encodeRecords(records), draft, batch[0].guard)

        def written(isOurs: bool) -> None:
            if isOurs:
                self._isWriting = False
                if self.position < number:
                    self._show(draft, number)
                else:  # the log was faster to give it, with later ones
                    self.latest = self.image
                self._answer(decided)
            elif conflictCount < CONFLICT_COUNT_MAX:
                self._write(batch, conflictCount + 1)
            else:
                text = f"the metadata were changed {conflictCount} times by other brokers meanwhile"
                failed(Failure(BackpressureError(text)))

        def failed(failure: Failure) -> None:
            self._isWriting = False
            self.latest = self.image
            if not isinstance(failure.value, PylogbrokerError):
                log.failure("Writing metadata failed unexpectedly: this is a bug", failure)
                error = ClosedError(f"writing metadata failed: {failure.value!r}")
                failure = Failure(error)
                self.refuse(error)
            self._answer(
                [
                    (each, value if isinstance(value, Failure) else failure)
                    for each, value in decided
                ]
            )

        writing.addCallbacks(written, failed).addErrback(
            lambda failure: log.failure("Changing metadata failed: this is a bug", failure)
        )

    def _decide(
        self, batch: list[_Waiting]
    ) -> tuple[MetadataImage, list[Record], list[tuple[Deferred[Any], Any]]]:
        """@return: the image with the changes, their records, and what each caller is to get."""
        draft = self.image.copy()
        records: list[Record] = []
        size = 0  # of the changes by themselves; together they are no larger
        decided: list[tuple[Deferred[Any], Any]] = []
        for decide, _guard, result in batch:
            isChanged = False
            try:
                more, value = decide(draft)
                size += self._checkedSize(more, size)
                isChanged = bool(more)
                draft.applyAll(more)
            except Exception:
                decided.append((result, Failure()))
                if isChanged:  # by a part of what is refused
                    draft = self.image.copy()
                    draft.applyAll(records)
            else:
                records += more
                decided.append((result, value))
        return draft, records, decided

    def _checkedSize(self, records: list[Record], sizeBefore: int) -> int:
        """
        The bytes of a change, which is to be written with others.

        @param sizeBefore: of the others.
        @raise MetadataError: the log cannot take it.
        @raise BackpressureError: not together with the others.
        """
        sizeMax = self._log.changeSizeMax
        size = len(encodeRecords(records)) if records else 0
        if size > sizeMax:
            raise MetadataError(f"a change of {size} bytes; {sizeMax} are possible")
        if sizeBefore + size > sizeMax:
            raise BackpressureError(f"changes of the metadata of {sizeBefore} bytes wait already")
        return size

    def _answer(self, decided: list[tuple[Deferred[Any], Any]]) -> None:
        for result, value in decided:
            result.callback(value)  # a Failure makes it fail
        self._writeNext()

    # -- ids

    def newCluster(self) -> ClusterRecord:
        """The first record of a log, with a random id."""
        return ClusterRecord(urlsafe_b64encode(self._randomBytes(16)).decode().rstrip("="))

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
