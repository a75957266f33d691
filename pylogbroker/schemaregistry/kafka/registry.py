"""
The registry on a compacted topic of today's Kafka, in the format of Confluent's registry: each can
take over the topic from the other, and both can serve it at a time. A module of its own, since the
records of 2011's topic say on what they rest, and these do not.

What must be true: a change that was answered is in the topic, and stays there. Confluent's records
say what is so, and not on what that rests, so that no reader can refuse one that came too late.
Therefore only the registry that leads writes (L{pylogbroker.schemaregistry.kafka.leadership}), one
change after another:

  1. At the beginning of a term, and when the outcome of a write is unknown, it writes a NOOP and
  reads it back, or the topic to its end if the broker does not say where the NOOP is. Then it knows
  everything that was written before.
  2. It decides what to write (L{pylogbroker.schemas.kafka.changes}).
  3. It checks that it still leads, for long enough; it writes, and reads back what it wrote.
  4. It compares the state with what the change should have made of it, and checks again that it
  leads. Only then the client has its answer.

If the state is another one, a registry that did not lead any more has written meanwhile: the change
is decided anew. If such a record was skipped, because it gives an id another schema, it must not
stay the last one of its key: a compaction would keep it in place of the right one. So the registry
that leads writes the right value again, as Confluent's does.

Rejected: transactions. Confluent's registry reads without regard to them, and would see what an
aborted one wrote.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, DeferredLock, TimeoutError  # noqa: A004
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from pylogbroker.config.kafka.clientsettings import KafkaConsumerSettings
from pylogbroker.config.registrysettings import RegistrySettings
from pylogbroker.consumer.kafka.consumer import ConsumerRecord
from pylogbroker.errors import (
    InvalidEntryError,
    InvalidRegistryTopicError,
    NotLeaderError,
    PylogbrokerError,
    RegistryRefusalError,
    UnknownOutcomeError,
)
from pylogbroker.net.workers import IWorker
from pylogbroker.retry import RETRY_INTERVAL_MS
from pylogbroker.schemaregistry.kafka.leadership import UNKNOWN_LEADER, Leadership
from pylogbroker.schemaregistry.kafka.schemastopic import SchemasTopic
from pylogbroker.schemaregistry.registry import (
    ATTEMPT_COUNT_MAX,
    STORE_FAILED,
    TIMED_OUT,
    BaseRegistry,
)
from pylogbroker.schemas.kafka.changes import (
    PlannedChange,
    SchemasRecord,
    checkSubject,
    comparedVersions,
    levelChange,
    modeChange,
    put,
    registration,
    remove,
    subjectDeletion,
    versionDeletion,
)
from pylogbroker.schemas.kafka.election import RegistryIdentity
from pylogbroker.schemas.kafka.state import KafkaRegistryState
from pylogbroker.schemas.kafka.topicrecords import (
    NoopKey,
    RegistryKey,
    decodeKey,
    decodeValue,
    encodeKey,
)
from pylogbroker.schemas.state import NOT_ALLOWED

REPAIR_COUNT_MAX = 10_000
"""Keys whose value is to be written again; more are only logged."""

_NOOP = (SchemasRecord(encodeKey(NoopKey()), None),)

Plan = Callable[[], Awaitable[PlannedChange]]


class KafkaRegistry(BaseRegistry):
    """
    The registry on one topic.

    @ivar leadership: L{None} until it has started.
    """

    state: KafkaRegistryState

    def __init__(self, reactor: Any, settings: RegistrySettings, worker: IWorker) -> None:
        """
        @param worker: for parsing and comparing schemas.
        @raise ConfigurationError: C{broker.endpoint} is not an endpoint.
        """
        super().__init__(reactor, worker, settings.timeoutMs)
        self.state = KafkaRegistryState()
        self.leadership: Leadership | None = None
        self._settings = settings
        self._writeTimeoutMs = max(
            min(settings.timeoutMs, settings.kafkagroupSessionTimeoutMs) // 2, 1
        )
        self._topic = SchemasTopic(reactor, settings, self._writeTimeoutMs)
        self._lock = DeferredLock()
        self._readyTerm = 0  # in which the topic was read to its end
        self._isUncertain = False  # whether a write may be in the topic that was not read back
        self._appliedCount = 0
        self._repairs: dict[RegistryKey, None] = {}
        self._repairing: Deferred[Any] | None = None

    # -- the topic

    async def follow(self, identity: RegistryIdentity) -> None:
        """
        Check the topic, read it, and take part in the election, until it is cancelled.

        @param identity: of this registry, for the others.
        @raise InvalidRegistryTopicError: the topic cannot be used, or not any more. From then on
            all changes are refused.
        """
        try:
            await self._topic.prepare()
            beginning = Deferred.fromCoroutine(self._begin(identity))
            beginning.addErrback(self._notBegun)
            try:
                await self._topic.follow(self._apply)
            finally:
                beginning.cancel()
        except InvalidRegistryTopicError as error:
            self._refusal = error
            if self.leadership is not None:  # another one may lead
                await self.leadership.close()
            raise
        except CancelledError:
            pass

    async def _begin(self, identity: RegistryIdentity) -> None:
        while True:  # until all is read that was there
            try:
                await self._topic.readToEnd()
                break
            except InvalidRegistryTopicError:
                raise
            except PylogbrokerError as error:
                self._log.warn("The topic's end is not known yet: {error}", error=error)
                await deferLater(self._clock, RETRY_INTERVAL_MS / 1000)
        self._becomeReady()
        settings = self._settings
        member = KafkaConsumerSettings.fromProperties(
            {
                **settings.kafkaProperties(),
                "group.id": settings.schemaRegistryGroupId,
                "session.timeout.ms": str(settings.kafkagroupSessionTimeoutMs),
                "heartbeat.interval.ms": str(settings.kafkagroupHeartbeatIntervalMs),
                "max.poll.interval.ms": str(settings.kafkagroupRebalanceTimeoutMs),
            }
        )
        self.leadership = Leadership(self._clock, member, identity, self._writeTimeoutMs)
        self.leadership.start()

    def _notBegun(self, reason: Failure) -> None:
        if not reason.check(CancelledError, InvalidRegistryTopicError):
            self._log.failure("The registry has not begun: this is a bug", reason)

    def _apply(self, record: ConsumerRecord) -> None:
        try:
            key = decodeKey(record.key)
            value = None if record.value is None else decodeValue(key, record.value)
        except InvalidEntryError as error:
            self._skip(record.offset, error)
            return
        if isinstance(key, NoopKey):
            return
        self._appliedCount += 1
        try:
            self.state.apply(key, value, bytes(record.key or b""))
            self._repairs.pop(key, None)
        except InvalidEntryError as error:
            self._skip(record.offset, error)
            isLeading = self.leadership is not None and self.leadership.isLeading
            if (isLeading or self.state.value(key)) and len(self._repairs) < REPAIR_COUNT_MAX:
                self._repairs[key] = None
            if isLeading and self._repairing is None:
                self._repairing = Deferred.fromCoroutine(self._change(self._nothing))
                self._repairing.addBoth(self._repaired)

    async def _nothing(self) -> PlannedChange:
        return PlannedChange(None, [])

    def _repaired(self, result: Any) -> None:
        self._repairing = None
        if isinstance(result, Failure) and not result.check(CancelledError):
            self._log.warn(
                "What a skipped record has replaced is written again before the next change:"
                " {reason}",
                reason=result.getErrorMessage(),
            )

    def _readToEnd(self) -> Deferred[None]:
        return Deferred.fromCoroutine(self._topic.readToEnd())

    @property
    def _problem(self) -> object:
        return self._topic.problem

    async def close(self) -> None:
        """Leave the group, and close the connections. Changes in flight may still take effect."""
        if self._repairing is not None:
            self._repairing.cancel()
        if self.leadership is not None:
            await self.leadership.close()
        await self._topic.close()

    # -- changes

    async def _change(self, plan: Plan) -> Any:
        """
        Write a change, when the earlier ones are done.

        @param plan: decides from the state what to write; called again when the state has changed
            meanwhile.
        """
        if self._refusal is not None:
            raise RegistryRefusalError(STORE_FAILED, f"Nothing can be changed: {self._refusal}")
        waiting = self._lock.run(lambda: Deferred.fromCoroutine(self._write(plan)))
        try:
            return await waiting.addTimeout(self._timeoutMs / 1000, self._clock)
        except TimeoutError:
            raise RegistryRefusalError(TIMED_OUT, self._whyLate()) from None
        except InvalidEntryError as error:
            raise RegistryRefusalError(NOT_ALLOWED, str(error)) from error
        except RegistryRefusalError:
            raise
        except InvalidRegistryTopicError as error:
            raise RegistryRefusalError(STORE_FAILED, str(error)) from error

    def _whyLate(self) -> str:
        why: object = self._topic.problem
        if why is None:
            why = "an election is under way, or the broker does not answer"
        return (
            f"The change was not done within {self._timeoutMs} ms, and may still take effect: {why}"
        )

    async def _write(self, plan: Plan) -> Any:
        if self.leadership is None:
            raise NotLeaderError(UNKNOWN_LEADER, "This registry has not joined the group yet")
        term = await self.leadership.begin()
        try:
            for _attempt in range(ATTEMPT_COUNT_MAX):
                await self._catchUp(term)
                appliedCount = self._appliedCount
                change = await plan()
                if appliedCount != self._appliedCount:
                    continue  # decided from a state that is past
                if not change.records or await self._store(term, change):
                    self.leadership.check(term)
                    return change.result
            raise RegistryRefusalError(
                STORE_FAILED,
                f"other registries wrote to the topic meanwhile, {ATTEMPT_COUNT_MAX} times",
            )
        finally:
            self.leadership.end()

    async def _catchUp(self, term: int) -> None:
        """Read all that was written before, and write again what has lost its place."""
        if self._readyTerm != term or self._isUncertain:
            await self._appendNoop(term)
            self._readyTerm = term
        while self._repairs:
            key = next(iter(self._repairs))
            value = self.state.value(key)
            records = remove(self.state, key) if value is None else [put(self.state, key, value)]
            self._log.warn("{key} is written again, since a skipped record has it", key=key)
            del self._repairs[key]  # another skipped record brings it back, also meanwhile
            try:
                await self._append(term, records)
            except BaseException:
                self._repairs[key] = None
                raise

    async def _append(self, term: int, records: Sequence[SchemasRecord]) -> None:
        """Write records, and read them back, unless the broker does not say where they are."""
        assert self.leadership is not None
        try:
            await self._topic.readyToWrite()
        except PylogbrokerError as error:
            raise RegistryRefusalError(
                STORE_FAILED, f"The topic cannot be written to now: {error}"
            ) from error
        self.leadership.checkBefore(term)
        self._isUncertain = True
        try:
            offsets = await self._written(records)
        except PylogbrokerError as error:
            isPartial = len(records) > 1 or isinstance(error, UnknownOutcomeError)
            outcome = "may still take effect" if isPartial else "was not stored"
            raise RegistryRefusalError(STORE_FAILED, f"The change {outcome}: {error}") from error
        if min(offsets) >= 0:
            await self._topic.readTo(max(offsets) + 1)
            self._isUncertain = False

    async def _appendNoop(self, term: int) -> None:
        """
        Write a NOOP, and read it back. If the broker does not say where it is, as for a batch that
        it already has, the topic is read to its end.
        """
        await self._append(term, _NOOP)
        if self._isUncertain:
            try:
                await self._topic.readToEnd()
            except PylogbrokerError as error:
                raise RegistryRefusalError(
                    STORE_FAILED, f"The change may still take effect: {error}"
                ) from error
            self._isUncertain = False

    def _written(self, records: Sequence[SchemasRecord]) -> Deferred[list[int]]:
        """Write records. Cancelling stops waiting; the leadership waits for the outcome, too."""
        leadership, outcome = self.leadership, Deferred[list[int]]()
        assert leadership is not None

        def done(result: Any) -> None:
            leadership.end()
            outcome.callback(result)

        leadership.hold()
        Deferred.fromCoroutine(self._topic.write(records)).addBoth(done)
        return outcome

    async def _store(self, term: int, change: PlannedChange) -> bool:
        """Whether the change was made; else another registry has written."""
        await self._append(term, change.records)
        if self._isUncertain:
            await self._appendNoop(term)
        return change.key is None or self.state.value(change.key) == change.value

    def checkSubject(self, subject: str) -> None:
        checkSubject(subject)

    async def _registerNew(self, subject: str, text: str, identity: str) -> int:
        async def plan() -> PlannedChange:
            found = self.state.find(subject, identity)
            if found is not None:
                return PlannedChange(found.schemaId, [])
            earlier = comparedVersions(self.state, subject)
            self._checkLimits(self.state.versionCount(subject), len(text))
            if earlier:
                await self._judge(subject, text, earlier, self.state.level(subject))
            return registration(self.state, subject, text, identity)

        found: int = await self._change(plan)
        return found

    async def deleteVersion(self, subject: str, version: int, isPermanent: bool) -> int:
        async def plan() -> PlannedChange:
            return versionDeletion(self.state, subject, version, isPermanent)

        number: int = await self._change(plan)
        return number

    async def deleteSubject(self, subject: str, isPermanent: bool) -> list[int]:
        async def plan() -> PlannedChange:
            return subjectDeletion(self.state, subject, isPermanent)

        numbers: list[int] = await self._change(plan)
        return numbers

    async def setLevel(self, subject: str, level: str) -> str:
        async def plan() -> PlannedChange:
            self._checkLimits(0, 0)
            return levelChange(self.state, subject, level)

        found: str = await self._change(plan)
        return found

    async def setMode(self, subject: str, mode: str) -> str:
        async def plan() -> PlannedChange:
            if mode and subject and not self.state.ownMode(subject):
                self._checkLimits(0, 0)
            return modeChange(self.state, subject, mode)

        found: str = await self._change(plan)
        return found
