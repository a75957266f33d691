"""
The registry: what its clients want becomes entries of its topic, and comes back from there as answers.

A change goes this way: judge (on a worker, since reading schemas takes time), append an entry that says on what was judged, wait until it comes out of the
log, and tell what it then was (L{pylogbroker.schemas.state}). If somebody was quicker, here or at another registry on the same topic, judge again. Of one
subject one change at a time is on its way from here.

Questions are answered from memory, also while the broker is away: what was registered stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredLock, TimeoutError  # noqa: A004
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import (
    ClosedError,
    InvalidEntryError,
    InvalidRegistryTopicError,
    RegistryError,
)
from pylogbroker.net.workers import IWorker
from pylogbroker.schemaregistry.topiclog import TopicLog
from pylogbroker.schemas.canonical import fingerprint
from pylogbroker.schemas.compatibility import incompatibilities
from pylogbroker.schemas.logrecords import (
    Change,
    DeleteSubject,
    DeleteVersion,
    Entry,
    Initialize,
    Register,
    SetLevel,
    decodeEntry,
    encodeEntry,
)
from pylogbroker.schemas.parsing import parseSchema
from pylogbroker.schemas.state import STALE, SUBJECT_NOT_FOUND, Registered, RegistryState

T = TypeVar("T")

ATTEMPT_COUNT_MAX = 20
"""How often a schema is judged anew since others were quicker."""

SUBJECT_COUNT_MAX = 100_000
VERSION_COUNT_MAX = 1_000
"""Of a subject, those that are not deleted for good."""

TEXTS_SIZE_MAX = 256 << 20
"""Bytes of all schemas together."""

NOT_ALLOWED = 42205
INVALID_SCHEMA = 42201
INCOMPATIBLE = 409
STORE_FAILED = 50001
TIMED_OUT = 50002
NOT_READY = 50301


def understood(text: str) -> tuple[str, str]:
    """
    Canonical text and identity of a schema. Takes time: for a worker.

    @raise InvalidSchemaError: it is none.
    """
    canonical = parseSchema(text).text
    return canonical, fingerprint(canonical)


class Registry:
    """
    @ivar state: what is known.
    @ivar isReady: whether everything that was in the topic at the start has been read.
    @ivar skippedCount: entries that could not be read.
    """

    _log = Logger()

    def __init__(
        self,
        clock: Any,
        log: TopicLog,
        worker: IWorker,
        newRequest: Callable[[], str],
        timeoutMs: float,
    ) -> None:
        """
        @param worker: for what takes time with schemas.
        @param newRequest: gives texts that nobody else has.
        @param timeoutMs: for a change.
        """
        self.state = RegistryState()
        self.isReady = False
        self.skippedCount = 0
        self._clock = clock
        self._topicLog = log
        self._worker = worker
        self._newRequest = newRequest
        self._timeoutMs = timeoutMs
        self._waiting: dict[str, Deferred[Any]] = {}
        self._locks: dict[str, DeferredLock] = {}
        self._refusal: InvalidRegistryTopicError | None = None
        self._beginning: Deferred[None] | None = None

    # -- the log

    def follow(self) -> Deferred[None]:
        """
        Read the topic, and begin it if it is new.

        @return: fires when it was stopped by cancelling. Fails with L{InvalidRegistryTopicError}; from then on nothing is changed any more.
        """
        return Deferred.fromCoroutine(self._follow())

    async def _follow(self) -> None:
        try:
            await self._topicLog.follow(self._apply, self._caughtUp)
        except InvalidRegistryTopicError as error:
            self._refusal = error
            for waiting in list(self._waiting.values()):
                waiting.errback(RegistryError(STORE_FAILED, str(error)))
            raise
        except CancelledError:
            pass
        finally:
            if self._beginning is not None:
                self._beginning.cancel()  # nobody would read the entry, and the producer is about to be closed

    def _caughtUp(self) -> None:
        if self.state.hasBegun:
            self._becomeReady()
        else:
            self._beginning = Deferred.fromCoroutine(self._begin())
            self._beginning.addErrback(self._notBegun)

    async def _begin(self) -> None:
        while not self.state.hasBegun and self._refusal is None:
            try:
                await self._carryOut(Initialize())
            except RegistryError as error:
                self._log.warn(
                    "The first entry of a new topic has not come back yet: {error}", error=error
                )

    def _notBegun(self, failure: Failure) -> None:
        if not failure.check(CancelledError):
            self._log.warn("No first entry yet: {reason}", reason=failure.getErrorMessage())

    def _becomeReady(self) -> None:
        self.isReady = True
        self._log.info(
            "The registry has {subjectCount} subjects", subjectCount=len(self.state.subjects(True))
        )

    def _apply(self, payload: bytes, offset: int) -> None:
        try:
            entry = decodeEntry(payload)
        except InvalidEntryError as error:
            if not self.state.hasBegun:
                raise InvalidRegistryTopicError(
                    f"the topic does not begin with a registry's first entry, but with {error}"
                ) from error
            self.skippedCount += 1
            self._log.error(
                "An entry at offset {offset} cannot be read, and is skipped: {error}",
                offset=offset,
                error=error,
            )
            return
        if not self.state.hasBegun and not isinstance(entry.change, Initialize):
            raise InvalidRegistryTopicError(
                "the topic does not begin with a registry's first entry"
            )
        waiting = self._waiting.get(entry.request)
        try:
            outcome = self.state.apply(entry)
        except RegistryError as error:
            if waiting is not None and not waiting.called:
                waiting.errback(error)
            return
        if isinstance(entry.change, Initialize) and not self.isReady:
            self._becomeReady()
        if waiting is not None and not waiting.called:
            waiting.callback(outcome)

    async def _carryOut(self, change: Change) -> Any:
        """Append, and wait for what comes of it."""
        if self._refusal is not None:
            raise RegistryError(STORE_FAILED, f"Nothing can be changed: {self._refusal}")
        request = self._newRequest()
        try:
            payload = encodeEntry(Entry(request, change))
        except InvalidEntryError as error:
            raise RegistryError(NOT_ALLOWED, str(error)) from error
        waiting: Deferred[Any] = Deferred()
        self._waiting[request] = waiting
        sending = self._topicLog.append(payload)
        sending.addErrback(lambda failure: failure.trap(CancelledError))
        try:
            return await waiting.addTimeout(self._timeoutMs / 1000, self._clock)
        except TimeoutError:
            raise RegistryError(TIMED_OUT, self._whyLate(sending.called)) from None
        finally:
            del self._waiting[request]
            sending.cancel()

    def _whyLate(self, isSent: bool) -> str:
        late = (
            f"The change did not come back within {self._timeoutMs} ms, and may still come to be: "
        )
        if self._topicLog.problem is not None:
            return late + str(self._topicLog.problem)
        if not isSent:
            return late + "the broker does not take it (max.message.size may be too small)"
        return (
            late
            + "the broker has it, and does not show it before it flushes (topic.flush.intervals.ms), or it dropped it (max.message.size)"
        )

    # -- what clients want

    async def schema(self, schemaId: int) -> str:
        """
        The text of a schema. One that another registry on the topic has just given out is known here, too: who has the id may have it from there.

        @raise RegistryError: there is none of that id.
        """
        try:
            return self.state.schema(schemaId)
        except RegistryError:
            await self._refresh()
            return self.state.schema(schemaId)

    async def _refresh(self) -> None:
        try:
            await self._topicLog.refresh().addTimeout(self._timeoutMs / 1000, self._clock)
        except TimeoutError:
            raise RegistryError(
                TIMED_OUT, f"The topic cannot be read now: {self._topicLog.problem}"
            ) from None
        except (InvalidRegistryTopicError, ClosedError) as error:
            raise RegistryError(
                STORE_FAILED, f"The topic cannot be read any more: {error}"
            ) from error

    async def understand(self, text: str) -> tuple[str, str]:
        """
        Canonical text and identity.

        @raise InvalidSchemaError: it is no schema.
        """
        return await self._worker.submit(lambda: understood(text))

    async def problems(self, text: str, earlier: list[tuple[int, str]], level: str) -> list[str]:
        """What speaks against a schema; see L{incompatibilities}."""
        return await self._worker.submit(lambda: incompatibilities(text, earlier, level))

    async def register(self, subject: str, text: str) -> int:
        """
        The id of a schema, which becomes the subject's next version unless it is one.

        @raise InvalidSchemaError: it is no schema.
        @raise RegistryError: it may not follow those that are there; or it was not to be stored.
        """
        canonical, identity = await self.understand(text)
        return await self._inTurn(subject, lambda: self._register(subject, canonical, identity))

    async def _register(self, subject: str, text: str, identity: str) -> int:
        for _attempt in range(ATTEMPT_COUNT_MAX):
            found = self.state.find(subject, identity)
            if found is not None:
                return found.schemaId
            try:
                registered: Registered = await self._judgeAndAppend(subject, text, identity)
                return registered.schemaId
            except RegistryError as error:
                if error.code != STALE:
                    raise
        raise RegistryError(
            STORE_FAILED, f"{ATTEMPT_COUNT_MAX} times others have changed {subject} meanwhile"
        )

    async def _judgeAndAppend(self, subject: str, text: str, identity: str) -> Any:
        earlier, level, basis = (
            self.state.earlier(subject),
            self.state.level(subject),
            self.state.basis(subject),
        )
        self._checkRoom(self.state.versionCount(subject), len(text))
        problems = await self.problems(text, earlier, level)
        if problems:
            raise RegistryError(
                INCOMPATIBLE,
                f'Schema being registered is incompatible with an earlier schema for subject "{subject}" ({level}): {problems}',
            )
        return await self._carryOut(Register(subject, text, identity, basis))

    def _checkRoom(self, versionCount: int, size: int) -> None:
        state = self.state
        if (
            versionCount >= VERSION_COUNT_MAX
            or state.subjectCount >= SUBJECT_COUNT_MAX
            or state.textsSize + size > TEXTS_SIZE_MAX
        ):
            most = f"{VERSION_COUNT_MAX} versions of a subject that are not deleted for good, {SUBJECT_COUNT_MAX} subjects, {TEXTS_SIZE_MAX} bytes of schemas"
            raise RegistryError(NOT_ALLOWED, f"There is no more room: {most} is the most")

    async def deleteVersion(self, subject: str, version: int, isPermanent: bool) -> int:
        """
        @raise RegistryError: there is none, or it is not its turn.
        """
        change = DeleteVersion(subject, version, isPermanent)
        return await self._inTurn(subject, lambda: self._carryOut(change))

    async def deleteSubject(self, subject: str, isPermanent: bool) -> list[int]:
        """
        @return: the versions.
        @raise RegistryError: there is none, or it is not its turn.
        """
        return await self._inTurn(
            subject, lambda: self._carryOut(DeleteSubject(subject, isPermanent))
        )

    async def setLevel(self, subject: str, level: str) -> str:
        """
        @param subject: C{""}: for all that have no level of their own.
        @param level: C{""}: none any more.
        @return: the level that was set, or taken away.
        @raise RegistryError: it was not to be stored.
        """
        if subject and not level and not self.state.ownLevel(subject):
            raise RegistryError(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
        self._checkRoom(0, 0)
        return await self._inTurn(subject, lambda: self._carryOut(SetLevel(subject, level)))

    async def _inTurn(self, subject: str, act: Callable[[], Coroutine[Deferred[Any], Any, T]]) -> T:
        """Of one subject one change at a time. Its lock is there as long as somebody holds it or waits for it."""
        lock = self._locks.setdefault(subject, DeferredLock())
        try:
            return await lock.run(lambda: Deferred.fromCoroutine(act()))
        finally:
            if not lock.locked:
                self._locks.pop(subject, None)
