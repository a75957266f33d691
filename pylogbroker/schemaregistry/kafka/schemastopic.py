"""
The compacted topic of a registry: all records of its one partition, in order, and writing. A module
of its own, since it knows bytes only.

What must be true:

  - A topic that is not compacted, or has several partitions, is refused, as Confluent's registry
  refuses it: a broker would delete schemas, or their order would be lost. That is checked before
  anything is read, and again every C{checkIntervalMs}; likewise that it is the same topic still.
  - What was read is in the log. When the log was truncated, or does not have the position any more,
  reading ends, and nothing can be changed: a restart reads everything again.
  - A record is written when all replicas in sync have it. Whether a record is in the topic whose
  outcome is unknown is seen when a later one (a NOOP) was read back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pylogbroker.client.kafka.admin.client import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceKind,
    checkAll,
)
from pylogbroker.config.registrysettings import RegistrySettings
from pylogbroker.consumer.kafka.consumer import ConsumerRecord, KafkaConsumer
from pylogbroker.errors import (
    ClosedError,
    ConsumerTimeoutError,
    InvalidRegistryTopicError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    PylogbrokerError,
    TimedOutError,
    copyForReraise,
)
from pylogbroker.net.deferreds import closeAll, gatherAll
from pylogbroker.producer.kafka.producer import KafkaProducer, RecordMetadata
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.retry import RETRY_INTERVAL_MS
from pylogbroker.schemas.kafka.changes import SchemasRecord
from pylogbroker.types import TopicPartition

POLICY = "cleanup.policy"
COMPACT = "compact"
CHUNK_COUNT = 50
"""Records that are applied in one turn of the reactor."""

log = Logger()


class SchemasTopic:
    """
    The topic.

    @ivar position: the offset up to which it is read.
    @ivar problem: why it cannot be read now or at all; L{None}: it can.
    """

    def __init__(self, reactor: Any, settings: RegistrySettings, writeTimeoutMs: int) -> None:
        """
        @param writeTimeoutMs: how long the producer tries to write a record.
        """
        self.position = 0
        self.problem: PylogbrokerError | None = None
        self._clock = reactor
        self._name = settings.topic
        self._place = TopicPartition(settings.topic, 0)
        self._replicaCountMax = settings.kafkastoreTopicReplicationFactor
        self._checkIntervalMs = settings.checkIntervalMs
        access = settings.kafkaProperties()
        self._newProducer = partial(
            KafkaProducer,
            reactor,
            {
                **access,
                "linger.ms": "0",
                "request.timeout.ms": str(writeTimeoutMs),
                "delivery.timeout.ms": str(writeTimeoutMs),
                "max.block.ms": str(writeTimeoutMs),
            },
            isLoggingFailures=False,
        )
        self._admin = AdminClient(
            reactor, {**access, "default.api.timeout.ms": str(settings.timeoutMs)}
        )
        self._consumer = KafkaConsumer(
            reactor,
            {
                **access,
                "auto.offset.reset": "none",
                "allow.auto.create.topics": "false",
                "default.api.timeout.ms": str(settings.timeoutMs),
                "fetch.max.wait.ms": str(settings.pollIntervalMs),
                "consumer.timeout.ms": str(settings.checkIntervalMs),
            },
        )
        self._producer: KafkaProducer = self._newProducer()
        self._checkAtMs = 0.0
        self._topicId: Any = None
        self._readers: dict[Deferred[None], int] = {}  # the offsets that they wait for
        self._ended: PylogbrokerError | None = None
        self._isClosed = False

    # -- the topic

    async def prepare(self) -> None:
        """
        Create the topic unless there is one, and check it. A cluster that cannot be reached is
        tried again.

        @raise InvalidRegistryTopicError: the topic is not compacted, or has several partitions, or
            may not be created.
        """
        while not self._isClosed:
            try:
                if not await self.check():
                    await self._create()
                    continue
                return
            except InvalidRegistryTopicError:
                raise
            except PylogbrokerError as error:
                self._report(error)
            await deferLater(self._clock, RETRY_INTERVAL_MS / 1000)

    async def check(self) -> bool:
        """
        Whether the topic exists.

        @raise InvalidRegistryTopicError: it is not compacted, has several partitions, or is not the
            one that was checked before.
        @raise PylogbrokerError: the cluster cannot be asked.
        """
        found = (await self._admin.describeTopics([self._name]))[self._name]
        if isinstance(found, ResponseError) and found.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            if self._topicId is not None:
                raise InvalidRegistryTopicError(f"the topic {self._name} was deleted")
            return False
        if isinstance(found, PylogbrokerError):
            raise found
        count = len(found.partitions)
        if count != 1:
            raise InvalidRegistryTopicError(
                f"the topic {self._name} has {count} partitions, and must have one: create another,"
                " or name another one with topic="
            )
        resource = ConfigResource(ResourceKind.TOPIC, self._name)
        configs = checkAll(await self._admin.describeConfigs([resource], [POLICY]))[resource]
        policy = configs[POLICY].value if POLICY in configs else None
        if policy != COMPACT:
            raise InvalidRegistryTopicError(
                f"the topic {self._name} has {POLICY}={policy}, and must have {POLICY}={COMPACT}:"
                " otherwise the broker deletes schemas after its retention"
            )
        if self._topicId not in (None, found.topicId):
            raise InvalidRegistryTopicError(
                f"the topic {self._name} was deleted and created again since this registry started"
            )
        self._topicId = found.topicId
        return True

    async def _create(self) -> None:
        brokers = (await self._admin.describeCluster()).brokers
        count = max(min(len(brokers), self._replicaCountMax), 1)
        if count < self._replicaCountMax:
            log.warn(
                "{topic} is created with {count} replicas, since there are no more brokers;"
                " {wanted} are safer",
                topic=self._name,
                count=count,
                wanted=self._replicaCountMax,
            )
        new = NewTopic(self._name, 1, count, {POLICY: COMPACT})
        try:
            checkAll(await self._admin.createTopics([new]))
        except ResponseError as error:
            if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
                return
            if error.isRetriable:
                raise
            raise InvalidRegistryTopicError(
                f"there is no topic {self._name}, and it cannot be created: {error}"
            ) from error

    def _report(self, error: PylogbrokerError) -> None:
        if str(error) != str(self.problem):
            log.warn(
                "{topic} cannot be used now; trying again: {error}", topic=self._name, error=error
            )
        self.problem = error

    # -- reading

    async def follow(self, apply: Callable[[ConsumerRecord], None]) -> None:
        """
        Read all records, from the first on, and new ones as they arrive, until the topic is closed.
        Failed fetches are repeated. Can be cancelled.

        @param apply: called with each record; does not fail.
        @raise InvalidRegistryTopicError: see L{check}; or the log does not have what was read.
        """
        ended: PylogbrokerError = ClosedError(f"{self._name} is no longer read")
        try:
            await self._begin()
            await self._follow(apply)
        except InvalidRegistryTopicError as error:
            ended = error
            raise
        finally:
            self.problem = self._ended = ended
            readers, self._readers = self._readers, {}
            for each in readers:
                each.errback(copyForReraise(ended))

    async def _begin(self) -> None:
        start: int | None = None
        while start is None:
            if self._isClosed:
                return
            try:
                start = (await self._consumer.beginningOffsets([self._place]))[self._place]
            except PylogbrokerError as error:
                self._report(error)
                await deferLater(self._clock, RETRY_INTERVAL_MS / 1000)
        if start:
            log.warn(
                "{topic} begins at {start}: earlier records were deleted, and with them may be"
                " schemas",
                topic=self._name,
                start=start,
            )
        self.position = start
        self._consumer.assign({self._place: start})
        self._checkAtMs = self._nowMs() + self._checkIntervalMs

    async def _follow(self, apply: Callable[[ConsumerRecord], None]) -> None:
        while not self._isClosed:
            try:
                if self._nowMs() >= self._checkAtMs:
                    await self._checkAgain()
                records = self._consumer.takeMany(CHUNK_COUNT)
                for record in records:
                    apply(record)
                self.position = self._consumer.positions.get(self._place, self.position)
                self.problem = None
                self._tell()
                if records:
                    await deferLater(self._clock, 0)
                else:
                    await self._consumer.wait()
            except ConsumerTimeoutError:
                pass  # it is time to check the topic
            except (OffsetOutOfRangeError, LogTruncatedError) as error:
                raise InvalidRegistryTopicError(
                    f"{self._name} does not have what was read from it: {error}. Restart the"
                    " registry, which reads all of it again"
                ) from error
            except PylogbrokerError as error:
                if isinstance(error, InvalidRegistryTopicError):
                    raise
                self._report(error)
                await deferLater(self._clock, RETRY_INTERVAL_MS / 1000)

    async def _checkAgain(self) -> None:
        if not await self.check():
            raise InvalidRegistryTopicError(f"the topic {self._name} was deleted")
        self._checkAtMs = self._nowMs() + self._checkIntervalMs

    def _nowMs(self) -> float:
        return self._clock.seconds() * 1000  # type: ignore[no-any-return]

    def _tell(self) -> None:
        for reader, offset in list(self._readers.items()):
            if offset <= self.position:
                del self._readers[reader]
                # Not from in here: the caller may close this.
                self._clock.callLater(
                    0, lambda reader=reader: reader.called or reader.callback(None)
                )

    def readTo(self, offset: int) -> Deferred[None]:
        """
        Wait until all records before an offset were applied.

        @return: fails with L{InvalidRegistryTopicError} or L{ClosedError} when reading has ended.
            Can be cancelled.
        """
        if self._ended is not None:
            return fail(copyForReraise(self._ended))
        if offset <= self.position:
            return succeed(None)
        reader: Deferred[None] = Deferred(self._forgetReader)
        self._readers[reader] = offset
        return reader

    def _forgetReader(self, reader: Deferred[None]) -> None:
        self._readers.pop(reader, None)

    async def readToEnd(self) -> None:
        """
        Read what the topic has now.

        @raise PylogbrokerError: as L{readTo}; the cluster cannot be asked.
        """
        if self._ended is not None:
            raise copyForReraise(self._ended)
        await self.readTo((await self._consumer.endOffsets([self._place]))[self._place])

    # -- writing

    async def readyToWrite(self) -> None:
        """
        Wait until nothing but the broker holds up L{write}, which takes C{writeTimeoutMs} at most
        then.

        @raise PylogbrokerError: the topic's partition is not found in C{writeTimeoutMs}.
        """
        if self._producer.fatalError is not None:
            old, self._producer = self._producer, self._newProducer()
            await _closeQuietly(old)
        await self._producer.partitionsFor(self._name)

    async def write(self, records: Sequence[SchemasRecord]) -> list[int]:
        """
        Write records, in order; after L{readyToWrite}.

        @return: the offset of each, -1 where the broker does not say it.
        @raise pylogbroker.errors.UnknownOutcomeError: some may be in the topic.
        @raise PylogbrokerError: others may be; one is not.
        """
        sent: list[RecordMetadata] = await gatherAll(
            [self._producer.send(self._name, each.value, each.key, partition=0) for each in records]
        )
        return [each.offset for each in sent]

    # -- the end

    async def close(self) -> None:
        """Close the connections. Does not fail."""
        self._isClosed = True
        await closeAll(self._consumer.close(), _closeQuietly(self._producer), self._admin.close())


async def _closeQuietly(producer: KafkaProducer) -> None:
    try:
        await producer.close()
    except TimedOutError as error:
        log.info("The last records may not be in the topic: {error}", error=error)
