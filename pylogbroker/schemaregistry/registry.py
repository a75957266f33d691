"""
The registry: a client's change becomes a record of the topic, and the record's outcome the answer.

A change is checked (on a worker, since parsing is slow), appended with the revisions that the check
used, and takes effect when it is read from the log (L{pylogbroker.schemas.state}). If another
client or registry was first, the change is checked again. A subject has one change at a time here.

Reads are answered from memory, even while the broker is away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredLock, TimeoutError  # noqa: A004
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import (
    ClosedError,
    InvalidEntryError,
    InvalidRegistryTopicError,
    PylogbrokerError,
    RegistryRefusalError,
)
from pylogbroker.net.workers import IWorker
from pylogbroker.schemaregistry.topiclog import TopicLog
from pylogbroker.schemas import compatibility
from pylogbroker.schemas.logrecords import (
    Change,
    ChangeEnvelope,
    DeleteSubject,
    DeleteVersion,
    Initialize,
    Register,
    SetLevel,
    decodeRecord,
    encodeRecord,
)
from pylogbroker.schemas.schemaparser import parseSchema
from pylogbroker.schemas.schematext import fingerprint
from pylogbroker.schemas.state import (
    INCOMPATIBLE,
    INVALID_MODE,
    MODE_NOT_FOUND,
    NOT_ALLOWED,
    READWRITE,
    STALE,
    SUBJECT_NOT_FOUND,
    BaseRegistryState,
    RegistryState,
    SchemaVersion,
)
from pylogbroker.types import formatCount

T = TypeVar("T")

ATTEMPT_COUNT_MAX = 20
"""Checks of one schema, if other changes come first."""

SUBJECT_COUNT_MAX = 100_000
VERSION_COUNT_MAX = 1_000
"""Versions of a subject, without those that were permanently deleted."""

TEXTS_SIZE_MAX = 256 << 20
"""Characters of all schemas together. Each takes one byte of memory in ASCII text, four at most."""

STORE_FAILED = 50001
TIMED_OUT = 50002
NOT_READY = 50301


class BaseRegistry(ABC):
    """
    What registries of both kinds of topics have in common.

    @ivar state: what was read from the topic.
    @ivar isReady: whether all records that the topic had at the start are read.
    @ivar skippedCount: records that could not be decoded.
    """

    state: BaseRegistryState
    _log = Logger()

    def __init__(self, clock: Any, worker: IWorker, timeoutMs: float) -> None:
        """
        @param worker: for parsing and comparing schemas.
        @param timeoutMs: for a change.
        """
        self.isReady = False
        self.skippedCount = 0
        self._clock = clock
        self._worker = worker
        self._timeoutMs = timeoutMs
        self._refusal: InvalidRegistryTopicError | None = None

    def _becomeReady(self) -> None:
        self.isReady = True
        self._log.info(
            "The registry has {subjects}",
            subjects=formatCount(len(self.state.subjects(True)), "subject"),
        )

    def _skip(self, offset: int, error: InvalidEntryError) -> None:
        self.skippedCount += 1
        self._log.error(
            "Skipped the record at offset {offset}, which cannot be decoded: {error}",
            offset=offset,
            error=error,
        )

    @abstractmethod
    def checkSubject(self, subject: str) -> None:
        """
        @raise RegistryRefusalError: the topic may have the subject, but it is not served.
        """

    async def schema(self, schemaId: int) -> str:
        """
        The text of a schema. For an unknown id the topic is read first, since another registry on
        the topic may have just assigned the id.

        @raise RegistryRefusalError: there is no schema with this id.
        """
        try:
            return self.state.schema(schemaId)
        except RegistryRefusalError:
            await self.refresh()
            return self.state.schema(schemaId)

    async def refresh(self) -> None:
        """
        Read what is in the topic now.

        @raise RegistryRefusalError: it cannot be read, or not in time.
        """
        try:
            await self._readToEnd().addTimeout(self._timeoutMs / 1000, self._clock)
        except TimeoutError:
            raise RegistryRefusalError(
                TIMED_OUT, f"The topic cannot be read now: {self._problem}"
            ) from None
        except (InvalidRegistryTopicError, ClosedError) as error:
            raise RegistryRefusalError(
                STORE_FAILED, f"The topic cannot be read any more: {error}"
            ) from error
        except PylogbrokerError as error:
            raise RegistryRefusalError(
                STORE_FAILED, f"The topic cannot be read now: {error}"
            ) from error

    @abstractmethod
    def _readToEnd(self) -> Deferred[None]:
        """Read what the topic has now, however long that takes."""

    @property
    @abstractmethod
    def _problem(self) -> object:
        """Why the topic cannot be read now; L{None}: it can."""

    async def canonicalize(self, text: str) -> tuple[str, str]:
        """
        The canonical text and the fingerprint of a schema, made by the worker.

        @raise InvalidSchemaError: it is not a schema.
        """

        def parse() -> tuple[str, str]:
            canonical = parseSchema(text).text
            return canonical, fingerprint(canonical)

        return await self._worker.submit(parse)

    async def incompatibilities(
        self, text: str, earlier: list[tuple[int, str]], level: str
    ) -> list[str]:
        """L{pylogbroker.schemas.compatibility.incompatibilities}, on the worker."""
        return await self._worker.submit(
            lambda: compatibility.incompatibilities(text, earlier, level)
        )

    async def register(self, subject: str, text: str) -> int:
        """
        The id of a schema, which becomes the subject's next version unless it is a version.

        @raise InvalidSchemaError: the text is not a schema.
        @raise RegistryRefusalError: the schema is incompatible, or cannot be stored.
        """
        canonical, identity = await self.canonicalize(text)
        found = self.state.find(subject, identity)
        if found is not None:
            return found.schemaId
        return await self._registerNew(subject, canonical, identity)

    @abstractmethod
    async def _registerNew(self, subject: str, text: str, identity: str) -> int:
        """The id of a schema that the subject may not have."""

    @abstractmethod
    async def deleteVersion(self, subject: str, version: int, isPermanent: bool) -> int:
        """
        @raise RegistryRefusalError: there is no such version, or it has to be deleted in the other
            way first.
        """

    @abstractmethod
    async def deleteSubject(self, subject: str, isPermanent: bool) -> list[int]:
        """
        @return: the deleted versions.
        @raise RegistryRefusalError: there is no such subject, or it has to be deleted in the other
            way first.
        """

    @abstractmethod
    async def setLevel(self, subject: str, level: str) -> str:
        """
        @param subject: C{""}: the general level.
        @param level: C{""}: remove the level.
        @return: the level that was set or removed.
        @raise RegistryRefusalError: the change cannot be stored.
        """

    @abstractmethod
    async def setMode(self, subject: str, mode: str) -> str:
        """
        @param subject: C{""}: the general mode.
        @param mode: C{""}: remove the mode.
        @return: the mode that was set or removed.
        @raise RegistryRefusalError: it cannot be set.
        """

    async def _judge(
        self, subject: str, text: str, earlier: list[tuple[int, str]], level: str
    ) -> None:
        """
        @raise RegistryRefusalError: the schema is incompatible with an earlier one.
        """
        problems = await self.incompatibilities(text, earlier, level)
        if problems:
            raise RegistryRefusalError(
                INCOMPATIBLE,
                "Schema being registered is incompatible with an earlier schema for subject"
                f' "{subject}" ({level}): {problems}',
            )

    def _checkLimits(self, versionCount: int, size: int) -> None:
        state = self.state
        if (
            versionCount >= VERSION_COUNT_MAX
            or state.subjectCount >= SUBJECT_COUNT_MAX
            or state.textsSize + size > TEXTS_SIZE_MAX
        ):
            raise RegistryRefusalError(
                NOT_ALLOWED,
                f"The registry is full. The limits are {VERSION_COUNT_MAX} versions of a subject"
                f" that are not permanently deleted, {SUBJECT_COUNT_MAX} subjects,"
                f" {TEXTS_SIZE_MAX} characters of schemas",
            )


class Registry(BaseRegistry):
    """
    The registry on one topic of a broker of 2011.
    """

    state: RegistryState

    def __init__(
        self,
        clock: Any,
        log: TopicLog,
        worker: IWorker,
        newRequest: Callable[[], str],
        timeoutMs: float,
    ) -> None:
        """
        @param worker: for parsing and comparing schemas.
        @param newRequest: returns unique ids.
        @param timeoutMs: for a change.
        """
        super().__init__(clock, worker, timeoutMs)
        self.state = RegistryState()
        self._topicLog = log
        self._newRequest = newRequest
        self._waiting: dict[str, Deferred[Any]] = {}
        self._locks: dict[str, DeferredLock] = {}
        self._initializing: Deferred[Any] | None = None

    # -- the log

    async def follow(self) -> None:
        """
        Read the topic, and initialize it if it is new, until it is cancelled.

        @raise InvalidRegistryTopicError: the topic is not a registry's, or was truncated. From then
            on all changes are refused.
        """
        try:
            await self._topicLog.follow(self._apply, self._caughtUp)
        except InvalidRegistryTopicError as error:
            self._refusal = error
            for waiting in list(self._waiting.values()):
                waiting.errback(RegistryRefusalError(STORE_FAILED, str(error)))
            raise
        except CancelledError:
            pass
        finally:
            if self._initializing is not None:
                self._initializing.cancel()  # the record would not be read

    def _caughtUp(self) -> None:
        if self.state.isInitialized:
            self._becomeReady()
        else:
            self._initializing = Deferred.fromCoroutine(self._initialize())
            self._initializing.addErrback(self._notInitialized)

    def _notInitialized(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.warn(
                "The topic is not initialized: {reason}", reason=failure.getErrorMessage()
            )

    async def _initialize(self) -> None:
        while not self.state.isInitialized and self._refusal is None:
            try:
                await self._append(Initialize())
            except RegistryRefusalError as error:
                self._log.warn(
                    "The first record of a new topic has not been read back yet: {error}",
                    error=error,
                )

    def _apply(self, payload: bytes, offset: int) -> None:
        try:
            record = decodeRecord(payload)
        except InvalidEntryError as error:
            if not self.state.isInitialized:
                raise InvalidRegistryTopicError(
                    f"the topic does not begin with a registry's first record, but with {error}"
                ) from error
            self._skip(offset, error)
            return
        if not self.state.isInitialized and not isinstance(record.change, Initialize):
            raise InvalidRegistryTopicError(
                "the topic does not begin with a registry's first record"
            )
        try:
            outcome = self.state.apply(record)
        except RegistryRefusalError as error:
            outcome = Failure(error)
        if isinstance(record.change, Initialize) and not self.isReady:
            self._becomeReady()
        waiting = self._waiting.get(record.request)
        if waiting is not None and not waiting.called:
            waiting.callback(outcome)

    async def _append(self, change: Change) -> Any:
        """Append a record, and wait for its outcome."""
        if self._refusal is not None:
            raise RegistryRefusalError(STORE_FAILED, f"Nothing can be changed: {self._refusal}")
        request = self._newRequest()
        try:
            payload = encodeRecord(ChangeEnvelope(request, change))
        except InvalidEntryError as error:
            raise RegistryRefusalError(NOT_ALLOWED, str(error)) from error
        waiting: Deferred[Any] = Deferred()
        self._waiting[request] = waiting
        sending = Deferred.fromCoroutine(self._topicLog.append(payload))
        sending.addErrback(lambda failure: failure.trap(CancelledError))
        try:
            return await waiting.addTimeout(self._timeoutMs / 1000, self._clock)
        except TimeoutError:
            raise RegistryRefusalError(TIMED_OUT, self._whyLate(sending.called)) from None
        finally:
            del self._waiting[request]
            sending.cancel()

    def _whyLate(self, isSent: bool) -> str:
        why: object = self._topicLog.problem
        if why is None and isSent:
            why = (
                "the broker has not flushed it yet (topic.flush.intervals.ms), or has dropped it"
                " (max.message.size)"
            )
        elif why is None:
            why = "the broker does not accept it (max.message.size may be too small)"
        return (
            f"The change was not read back within {self._timeoutMs} ms, and may still take effect:"
            f" {why}"
        )

    # -- requests

    def _readToEnd(self) -> Deferred[None]:
        return self._topicLog.refresh()

    @property
    def _problem(self) -> object:
        return self._topicLog.problem

    async def close(self) -> None:
        """Close the connections. Does not fail."""
        await self._topicLog.close()

    def checkSubject(self, subject: str) -> None:
        """Do nothing: all are served."""

    async def _registerNew(self, subject: str, text: str, identity: str) -> int:
        return await self._serialize(subject, lambda: self._register(subject, text, identity))

    async def _register(self, subject: str, text: str, identity: str) -> int:
        for _attempt in range(ATTEMPT_COUNT_MAX):
            found = self.state.find(subject, identity)
            if found is not None:
                return found.schemaId
            try:
                return await self._checkAndAppend(subject, text, identity)
            except RegistryRefusalError as error:
                if error.code != STALE:
                    raise
        raise RegistryRefusalError(
            STORE_FAILED, f"other changes of {subject} came first, {ATTEMPT_COUNT_MAX} times"
        )

    async def _checkAndAppend(self, subject: str, text: str, identity: str) -> int:
        earlier, level, basis = (
            self.state.earlier(subject),
            self.state.level(subject),
            self.state.basis(subject),
        )
        self._checkLimits(self.state.versionCount(subject), len(text))
        await self._judge(subject, text, earlier, level)
        registered: SchemaVersion = await self._append(Register(subject, text, identity, basis))
        return registered.schemaId

    async def deleteVersion(self, subject: str, version: int, isPermanent: bool) -> int:
        change = DeleteVersion(subject, version, isPermanent)
        return await self._serialize(subject, lambda: self._append(change))

    async def deleteSubject(self, subject: str, isPermanent: bool) -> list[int]:
        return await self._serialize(
            subject, lambda: self._append(DeleteSubject(subject, isPermanent))
        )

    async def setLevel(self, subject: str, level: str) -> str:
        if subject and not level and not self.state.ownLevel(subject):
            raise RegistryRefusalError(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
        self._checkLimits(0, 0)
        return await self._serialize(subject, lambda: self._append(SetLevel(subject, level)))

    async def setMode(self, subject: str, mode: str) -> str:
        """The topic has no modes, so there is only one."""
        if not mode:
            raise RegistryRefusalError(
                MODE_NOT_FOUND, f"Subject '{subject}' does not have subject-level mode configured"
            )
        if mode != READWRITE:
            raise RegistryRefusalError(INVALID_MODE, f"Invalid mode. The only mode is {READWRITE}")
        return mode

    async def _serialize(
        self, subject: str, act: Callable[[], Coroutine[Deferred[Any], Any, T]]
    ) -> T:
        """Run a change when earlier changes of the subject are done."""
        lock = self._locks.setdefault(subject, DeferredLock())
        try:
            return await lock.run(lambda: Deferred.fromCoroutine(act()))
        finally:
            if not lock.locked:
                self._locks.pop(subject, None)
