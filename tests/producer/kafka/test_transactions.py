"""
Tests of L{pylogbroker.producer.kafka.transactions}, on a clock, with a coordinator in memory that
loses, refuses and repeats.
"""

from __future__ import annotations

from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pylogbroker.errors import (
    ClosedError,
    ConfigurationError,
    PylogbrokerError,
    TimedOutError,
    TransactionAbortedError,
    TransactionStateError,
    UnknownOutcomeError,
    UnsupportedVersionError,
)
from pylogbroker.producer.kafka.producer import KafkaProducer
from pylogbroker.producer.kafka.transactions import (
    NEXT_PHASES,
    ProducerTransactionState,
    TransactionPhase,
    isCertain,
    isFatal,
)
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.protocol.kafka.requests import RequestHeader
from pylogbroker.records.recordbatch import iterateRecords, readHeader
from pylogbroker.types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from tests.client.kafka.fakekafka import NOTHING, FakeKafka, refuse

_E = ErrorCode
PLACE = TopicPartition("source", 0)
GROUP = ConsumerGroupMetadata("g", 3, "member")
STEPS = (
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.PRODUCE,
    ApiKey.END_TXN,
)
PASSING = (
    _E.COORDINATOR_NOT_AVAILABLE,
    _E.NOT_COORDINATOR,
    _E.COORDINATOR_LOAD_IN_PROGRESS,
    _E.CONCURRENT_TRANSACTIONS,
)


class TransactionalKafka(FakeKafka):
    """
    A cluster with a coordinator of one transactional id.

    @ivar level: C{transaction.version}.
    @ivar visible: values that are committed.
    @ivar positions: those that are committed.
    @ivar chance: of faults; L{None}: there are none.
    """

    def __init__(self, level: int = 2) -> None:
        super().__init__(1, 2)
        self.level = level
        self.visible: list[bytes] = []
        self.positions: dict[TopicPartition, int] = {}
        self.chance: Random | None = None
        self.producer = (7, -1)
        self.isOpen = False
        self.lastEnd: tuple[int, bool] | None = None  # epoch and decision
        self.places: set[tuple[str, int]] = set()
        self.pending: list[bytes] = []
        self.offsets: dict[TopicPartition, int] = {}

    # -- the coordinator

    def decide(self, isCommit: bool) -> None:
        """End the transaction that is open."""
        if isCommit:
            self.visible += self.pending
            self.positions |= self.offsets
        self.isOpen = False
        self.places, self.pending, self.offsets = set(), [], {}

    def fence(self) -> None:
        """Another producer, or the time, ends the transaction."""
        self.decide(False)
        self.producer = self.producer[0], self.producer[1] + 1
        self.lastEnd = None

    def _check(self, body: Any) -> int:
        if (body.producerId, body.producerEpoch) != self.producer:
            return _E.PRODUCER_FENCED
        return 0

    def _onInitProducerId(self, header: RequestHeader, body: Any, node: int) -> Any:
        cls = messages.InitProducerIdResponse
        if body.transactionalId is None:
            return super()._onInitProducerId(header, body, node)
        given = body.producerId, body.producerEpoch
        before = self.producer[0], self.producer[1] - 1
        if given[0] != -1 and given not in (self.producer, before):
            return cls(errorCode=_E.PRODUCER_FENCED)
        if given != before or given[0] == -1:
            self.fence()
        return cls(producerId=self.producer[0], producerEpoch=self.producer[1])

    def _onAddPartitionsToTxn(self, _header: RequestHeader, body: Any, _node: int) -> Any:
        cls = messages.AddPartitionsToTxnResponse
        given = body.v3AndBelowProducerId, body.v3AndBelowProducerEpoch
        code = 0 if given == self.producer else int(_E.PRODUCER_FENCED)
        results = []
        for topic in body.v3AndBelowTopics:
            if not code:
                self.isOpen = True
                self.places |= {(topic.name, number) for number in topic.partitions}
            parts = [
                cls.AddPartitionsToTxnPartitionResult(
                    partitionIndex=number, partitionErrorCode=code
                )
                for number in topic.partitions
            ]
            results.append(
                cls.AddPartitionsToTxnTopicResult(name=topic.name, resultsByPartition=parts)
            )
        return cls(resultsByTopicV3AndBelow=results)

    def _onAddOffsetsToTxn(self, _header: RequestHeader, body: Any, _node: int) -> Any:
        code = self._check(body)
        if not code:
            self.isOpen = True
            self.places.add(("__consumer_offsets", 0))
        return messages.AddOffsetsToTxnResponse(errorCode=code)

    def _onTxnOffsetCommit(self, header: RequestHeader, body: Any, _node: int) -> Any:
        code = self._check(body)
        if not code and header.apiVersion >= 5:
            self.isOpen = True
        elif not code and ("__consumer_offsets", 0) not in self.places:
            code = _E.INVALID_TXN_STATE
        return self._committed(body, code)

    def _committed(self, body: Any, code: int) -> Any:
        cls = messages.TxnOffsetCommitResponse
        topics = []
        for topic in body.topics:
            parts = []
            for part in topic.partitions:
                if not code:
                    place = TopicPartition(topic.name, part.partitionIndex)
                    self.offsets[place] = part.committedOffset
                parts.append(
                    cls.TxnOffsetCommitResponsePartition(
                        partitionIndex=part.partitionIndex, errorCode=code
                    )
                )
            topics.append(cls.TxnOffsetCommitResponseTopic(name=topic.name, partitions=parts))
        return cls(topics=topics)

    def _onEndTxn(self, header: RequestHeader, body: Any, _node: int) -> Any:
        cls = messages.EndTxnResponse
        isBumping = header.apiVersion >= 5
        isRepeated = self.lastEnd == (body.producerEpoch, body.committed) and not self.isOpen
        if not isRepeated:
            code = self._check(body)
            if not code and not self.isOpen and body.committed:
                code = _E.INVALID_TXN_STATE
            if code:
                return cls(errorCode=code)
            self.decide(body.committed)
            self.lastEnd = (body.producerEpoch, body.committed)
            if isBumping:
                self.producer = self.producer[0], self.producer[1] + 1
        if isBumping:
            return cls(producerId=self.producer[0], producerEpoch=self.producer[1])
        return cls()

    def _onApiVersions(self, header: RequestHeader, body: Any, node: int) -> Any:
        made = super()._onApiVersions(header, body, node)
        if not isinstance(made, bytes):
            cls = messages.ApiVersionsResponse
            made.finalizedFeatures = [
                cls.FinalizedFeatureKey(name="transaction.version", maxVersionLevel=self.level)
            ]
        return made

    def append(self, topic: str, partition: int, data: bytes, node: int) -> tuple[int, int]:
        header = readHeader(data)
        if not header.isTransactional:
            return super().append(topic, partition, data, node)
        if (header.producerId, header.producerEpoch) != self.producer:
            return _E.INVALID_PRODUCER_EPOCH, -1
        if self.level >= 2:
            self.isOpen = True
        elif (topic, partition) not in self.places:
            return _E.INVALID_TXN_STATE, -1
        before = self.end(topic, partition)
        result = super().append(topic, partition, data, node)
        if self.end(topic, partition) != before:
            self.pending += [each.value or b"" for each in iterateRecords(data, 0, header)]
        return result

    # -- faults

    def usual(self, header: RequestHeader, body: Any, node: int = 1) -> Any:
        chance = self.chance
        if chance is None or header.apiKey not in STEPS:
            return super().usual(header, body, node)
        drawn = chance.random()
        if drawn < 0.02:
            self.fence()
        if drawn < 0.08:
            self.callLater(0, self.cut, node)
            return NOTHING
        if drawn < 0.14:
            super().usual(header, body, node)
            self.callLater(0, self.cut, node)
            return NOTHING
        if drawn < 0.24:
            return self.refused(header, body, chance.choice(PASSING))
        if drawn < 0.26:
            return self.refused(header, body, _E.TRANSACTION_ABORTABLE)
        return super().usual(header, body, node)

    def refused(self, header: RequestHeader, body: Any, code: int) -> Any:
        """An answer with an error, to any step."""
        key = header.apiKey
        if key is ApiKey.PRODUCE:
            return refuse(code)(self, header, body)
        if key is ApiKey.TXN_OFFSET_COMMIT:
            return self._committed(body, code)
        if key is ApiKey.FIND_COORDINATOR:
            made = super().usual(header, body)
            for each in made.coordinators:
                each.errorCode = code
            return made
        if key is ApiKey.ADD_PARTITIONS_TO_TXN:
            before, self.producer = self.producer, (-1, -1)
            made = self._onAddPartitionsToTxn(header, body, 1)
            self.producer = before
            for topic in made.resultsByTopicV3AndBelow:
                for part in topic.resultsByPartition:
                    part.partitionErrorCode = code
            return made
        return getattr(messages, f"{key.apiName}Response")(errorCode=code)


class TransactionCase(SynchronousTestCase):
    """A coordinator, and producers with transactions."""

    level = 2

    def setUp(self) -> None:
        self.kafka = TransactionalKafka(self.level)
        self.kafka.addTopic("t", 1, 2)
        self.addCleanup(lambda: self.assertEqual(self.kafka.getDelayedCalls(), []))

    def make(self, **settings: str) -> KafkaProducer:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        made = KafkaProducer(
            self.kafka,
            {"bootstrap.servers": self.kafka.servers, "transactional.id": "x", **given},
            random=lambda: 0.5,
            isLoggingFailures=False,
        )
        self.addCleanup(self.end, made)
        return made

    def end(self, producer: KafkaProducer) -> None:
        closing = producer.close(1000)
        closing.addErrback(lambda failure: failure.trap(TimedOutError))
        self.kafka.run(0.1)
        self.kafka.run(30)
        self.successResultOf(closing)

    def done(self, work: Any, seconds: float = 300) -> Any:
        """The result of a coroutine, for which time passes."""
        running = Deferred.fromCoroutine(work)
        outcome: list[Any] = []
        running.addBoth(outcome.append)
        for _step in range(round(seconds / 0.05)):
            if outcome:
                break
            self.kafka.run(0.05)
        self.assertTrue(outcome, "it does not end")
        if hasattr(outcome[0], "raiseException"):
            outcome[0].raiseException()
        return outcome[0]

    async def commit(self, producer: KafkaProducer, *values: bytes) -> None:
        async with producer.transaction():
            for number, value in enumerate(values):
                producer.send("t", value, partition=number % 2).addErrback(lambda _f: None)


class AnyOrderTests(TransactionCase):
    """The judge: what was told is what is visible, whatever is lost, refused or repeated."""

    seeds = range(25)

    def test_random(self) -> None:
        """What was committed is visible, once; what was aborted is not; the unknown is whole."""
        unknownCount = committedCount = 0
        for seed in self.seeds:
            self.kafka = TransactionalKafka(self.level)
            self.kafka.addTopic("t", 1, 2)
            chance = self.kafka.chance = Random(seed)
            told: list[tuple[bool | None, list[bytes], int]] = []
            self.done(self.work(chance, told), 3_000)
            self.kafka.chance = None
            seen = set(self.kafka.visible)
            self.assertEqual(len(seen), len(self.kafka.visible), seed)
            position = 0
            for outcome, values, offset in told:
                found = seen.intersection(values)
                self.assertIn(
                    found,
                    ([set(values)], [set()], [set(), set(values)])[
                        {True: 0, False: 1, None: 2}[outcome]
                    ],
                    (seed, values),
                )
                position = offset if values and found else position
            self.assertEqual(self.kafka.positions.get(PLACE, 0), position, seed)
            unknownCount += sum(each[0] is None for each in told)
            committedCount += sum(each[0] is True for each in told)
        self.assertGreater(committedCount, len(self.seeds))
        self.assertGreater(unknownCount, 0)

    async def work(self, chance: Random, told: list[tuple[bool | None, list[bytes], int]]) -> None:
        producer = self.make(delivery_timeout_ms="4000", request_timeout_ms="1000", linger_ms="0")
        number = 0
        for offset in range(1, 9):
            values = []
            outcome: bool | None = False
            try:
                async with producer.transaction() as transaction:
                    for _message in range(chance.randint(1, 6)):
                        values.append(b"%d" % number)
                        sent = producer.send("t", values[-1], partition=chance.randint(0, 1))
                        sent.addErrback(lambda _failure: None)
                        number += 1
                        if chance.random() < 0.3:
                            await sent
                    await transaction.sendOffsets({PLACE: offset}, GROUP)
                    if chance.random() < 0.2:
                        raise ZeroDivisionError
                outcome = True
            except ZeroDivisionError:
                pass
            except UnknownOutcomeError as error:
                outcome = None if "whether transaction" in str(error) else False
            except PylogbrokerError:
                pass
            told.append((outcome, values, offset))
            if producer.fatalError is not None:
                await producer.close()
                producer = self.make(
                    delivery_timeout_ms="4000", request_timeout_ms="1000", linger_ms="0"
                )
        await producer.close()


class AnyOrderExplicitTests(AnyOrderTests):
    """Likewise with C{transaction.version} 1."""

    level = 1


class StepTests(TransactionCase):
    """Single steps, with C{transaction.version} 2."""

    def test_implicit(self) -> None:
        """With version 2 partitions are not added by themselves, and each transaction is newer."""
        producer = self.make()
        for value in (b"1", b"2"):
            self.done(self.commit(producer, value, value + b"!"))
        self.assertEqual(sorted(self.kafka.visible), [b"1", b"1!", b"2", b"2!"])
        self.assertEqual(self.kafka.asked(ApiKey.ADD_PARTITIONS_TO_TXN), [])
        epochs = [body.producerEpoch for body in self.kafka.asked(ApiKey.END_TXN)]
        self.assertEqual(epochs, [0, 1])
        self.assertEqual(len(self.kafka.asked(ApiKey.INIT_PRODUCER_ID)), 1)

    def test_positions(self) -> None:
        """Positions go with epoch, text and member."""

        async def work(producer: KafkaProducer) -> None:
            async with producer.transaction() as transaction:
                await transaction.sendOffsets({}, GROUP)
                await transaction.sendOffsets({PLACE: OffsetAndMetadata(5, 2, "text")}, GROUP)

        self.done(work(self.make()))
        [body] = self.kafka.asked(ApiKey.TXN_OFFSET_COMMIT)
        self.assertEqual((body.generationId, body.memberId), (3, "member"))
        part = body.topics[0].partitions[0]
        self.assertEqual((part.committedLeaderEpoch, part.committedMetadata), (2, "text"))
        self.assertEqual(self.kafka.positions, {PLACE: 5})

    def test_lostMember(self) -> None:
        """A member that has lost its partitions aborts, and may go on."""

        async def work(producer: KafkaProducer) -> None:
            async with producer.transaction() as transaction:
                await transaction.sendOffsets({PLACE: 5}, GROUP)

        self.kafka.answers[ApiKey.TXN_OFFSET_COMMIT].append(
            lambda kafka, _header, body: kafka._committed(body, _E.ILLEGAL_GENERATION)
        )
        producer = self.make()
        with self.assertRaisesRegex(ResponseError, "ILLEGAL_GENERATION"):
            self.done(work(producer))
        self.done(work(producer))
        self.assertEqual(self.kafka.positions, {PLACE: 5})

    def test_outside(self) -> None:
        """A message outside of a transaction, and a transaction in another, are refused."""
        producer = self.make()
        failure = self.failureResultOf(producer.send("t", b"x"), TransactionStateError)
        self.assertIn("transactional.id", str(failure.value))

        async def twice() -> None:
            async with producer.transaction(), producer.transaction():
                pass

        with self.assertRaisesRegex(TransactionStateError, "one transaction at a time"):
            self.done(twice())

    def test_settings(self) -> None:
        """Transactions need an id, and idempotence."""
        with self.assertRaisesRegex(ConfigurationError, "enable.idempotence"):
            self.make(enable_idempotence="false")
        with self.assertRaisesRegex(ConfigurationError, "transactional.id"):
            self.make(transactional_id="").transaction()

    def test_unknown(self) -> None:
        """When the answer to a commit stays lost, the outcome is unknown, and that is the end."""
        producer = self.make(delivery_timeout_ms="4000", request_timeout_ms="1000")
        self.done(self.commit(producer, b"1"))

        def lost(kafka: Any, header: Any, body: Any) -> Any:
            kafka.callLater(0, kafka.cut)
            return NOTHING

        self.kafka.answers[ApiKey.END_TXN].extend([lost] * 1_000)
        with self.assertRaisesRegex(UnknownOutcomeError, "replace the producer"):
            self.done(self.commit(producer, b"2"))
        with self.assertRaises(UnknownOutcomeError):
            self.done(self.commit(producer, b"3"))
        failure = self.failureResultOf(producer.send("t", b"4"), TransactionStateError)
        self.assertIn("whether transaction x was committed is unknown", str(failure.value))
        self.assertIsInstance(producer.fatalError, TransactionStateError)

    def test_closed(self) -> None:
        """Closing aborts what is open, and no transaction begins any more."""
        producer = self.make()

        async def work() -> None:
            async with producer.transaction():
                await producer.send("t", b"x", partition=0)
                await producer.close()

        with self.assertRaises(TransactionAbortedError):
            self.done(work())
        [body] = self.kafka.asked(ApiKey.END_TXN)
        self.assertFalse(body.committed)
        with self.assertRaises(ClosedError):
            self.done(self.commit(producer, b"2"))

    def test_givenUp(self) -> None:
        """
        A coroutine that is given up in a transaction, and closed, waits for nothing. The
        transaction is aborted when the producer is closed.
        """
        producer = self.make()

        async def stay() -> None:
            async with producer.transaction():
                await producer.send("t", b"1", partition=0)
                await Deferred()

        self.done(self.commit(producer))  # so that the next one begins at once
        coroutine = stay()
        Deferred.fromCoroutine(coroutine)
        for _step in range(20):
            self.kafka.run(0.05)
        self.assertTrue(self.kafka.isOpen)
        coroutine.close()
        self.end(producer)
        self.assertEqual(self.kafka.visible, [])
        self.assertFalse(self.kafka.isOpen)


class ExplicitStepTests(TransactionCase):
    """Single steps, with C{transaction.version} 1."""

    level = 1

    def test_explicit(self) -> None:
        """Partitions are added first; behind an abort there is another epoch."""
        producer = self.make()

        async def fail() -> None:
            async with producer.transaction():
                await producer.send("t", b"0", partition=0)
                raise ZeroDivisionError

        self.done(self.commit(producer, b"1", b"2"))
        self.done(self.commit(producer, b"3"))
        self.assertRaises(ZeroDivisionError, self.done, fail())
        self.done(self.commit(producer, b"4"))
        self.assertEqual(sorted(self.kafka.visible), [b"1", b"2", b"3", b"4"])
        epochs = [body.producerEpoch for body in self.kafka.asked(ApiKey.END_TXN)]
        self.assertEqual(epochs, [0, 0, 0, 1])

    def test_noEpoch(self) -> None:
        """A broker that gives no new epoch ends the producer behind an abort."""
        self.kafka.versions[ApiKey.INIT_PRODUCER_ID] = (0, 2)
        producer = self.make()

        async def fail() -> None:
            async with producer.transaction():
                await producer.send("t", b"0", partition=0)
                raise ZeroDivisionError

        self.assertRaises(ZeroDivisionError, self.done, fail())
        with self.assertRaisesRegex(UnsupportedVersionError, "replace the producer"):
            self.done(self.commit(producer, b"1"))

    def test_memberUnknown(self) -> None:
        """A broker that takes no member in a transaction is an error."""
        self.kafka.versions[ApiKey.TXN_OFFSET_COMMIT] = (0, 2)
        producer = self.make()

        async def work() -> None:
            async with producer.transaction() as transaction:
                await transaction.sendOffsets({PLACE: 1}, GROUP)

        with self.assertRaisesRegex(UnsupportedVersionError, "TxnOffsetCommit"):
            self.done(work())


class StateTests(SynchronousTestCase):
    """The table, and what follows from a code."""

    def test_table(self) -> None:
        """Each phase but FATAL leads somewhere, and other steps are refused."""
        for phase, nexts in NEXT_PHASES.items():
            self.assertEqual(bool(nexts), phase is not TransactionPhase.FATAL)
            for other in set(TransactionPhase) - nexts:
                state = ProducerTransactionState()
                state.phase = phase
                self.assertRaises(TransactionStateError, state.move, other)

    def test_codes(self) -> None:
        """What ends a producer, and what leaves the end of a transaction open."""
        fatal = {code for code in _E if isFatal(ResponseError(code))}
        self.assertIn(_E.PRODUCER_FENCED, fatal)
        self.assertIn(_E.INVALID_PRODUCER_EPOCH, fatal)
        self.assertNotIn(_E.TRANSACTION_ABORTABLE, fatal)
        self.assertTrue(isCertain(_E.CONCURRENT_TRANSACTIONS))
        self.assertTrue(isCertain(_E.PRODUCER_FENCED))
        self.assertFalse(isCertain(_E.COORDINATOR_NOT_AVAILABLE))
        self.assertFalse(isCertain(_E.UNKNOWN_SERVER_ERROR))
