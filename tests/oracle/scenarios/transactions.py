"""Transactions: partitions, positions, ends, markers, and what readers see of them."""

from __future__ import annotations

from typing import Any

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from tests.oracle.scenarios.groups import awaitCoordinator
from tests.oracle.scenarios.pieces import batch, fetch, listOffsetsBody, makeTopic, produceBody
from tests.oracle.steps import Ask, Setting, Steps, Until, scenario

_CONCURRENT = 51
_COMMITTED = 1


def _init(
    label: str,
    version: int,
    name: str | None,
    producerId: int = -1,
    epoch: int = -1,
    timeoutMs: int = 60_000,
) -> Ask:
    body = messages.InitProducerIdRequest(transactionalId=name, transactionTimeoutMs=timeoutMs)
    if version >= 3:
        body.producerId, body.producerEpoch = producerId, epoch
    return Ask(label, ApiKey.INIT_PRODUCER_ID, version, body)


def _add(
    label: str,
    version: int,
    name: str,
    producerId: int,
    epoch: int,
    topicName: str,
    *partitions: int,
    isVerification: bool = False,
) -> Ask:
    cls = messages.AddPartitionsToTxnRequest
    topics = [cls.AddPartitionsToTxnTopic(name=topicName, partitions=list(partitions))]
    if version >= 4:
        one = cls.AddPartitionsToTxnTransaction(
            transactionalId=name,
            producerId=producerId,
            producerEpoch=epoch,
            verifyOnly=isVerification,
            topics=topics,
        )
        body = cls(transactions=[one])
    else:
        body = cls(
            v3AndBelowTransactionalId=name,
            v3AndBelowProducerId=producerId,
            v3AndBelowProducerEpoch=epoch,
            v3AndBelowTopics=topics,
        )
    return Ask(label, ApiKey.ADD_PARTITIONS_TO_TXN, version, body)


def _addPosition(
    label: str, version: int, name: str, producerId: int, epoch: int, group: str
) -> Ask:
    body = messages.AddOffsetsToTxnRequest(
        transactionalId=name, producerId=producerId, producerEpoch=epoch, groupId=group
    )
    return Ask(label, ApiKey.ADD_OFFSETS_TO_TXN, min(version, 4), body)


def _commitPosition(
    label: str,
    version: int,
    name: str,
    producerId: int,
    epoch: int,
    group: str,
    topicName: str,
    partition: int = 0,
    memberId: str = "",
    generation: int = -1,
) -> Ask:
    cls = messages.TxnOffsetCommitRequest
    part = cls.TxnOffsetCommitRequestPartition(
        partitionIndex=partition, committedOffset=5, committedMetadata="m"
    )
    body = cls(
        transactionalId=name,
        groupId=group,
        producerId=producerId,
        producerEpoch=epoch,
        topics=[cls.TxnOffsetCommitRequestTopic(name=topicName, partitions=[part])],
    )
    if version >= 3:
        body.memberId, body.generationId = memberId, generation
    return Ask(label, ApiKey.TXN_OFFSET_COMMIT, version, body)


def _end(label: str, version: int, name: str, producerId: int, epoch: int, isCommit: bool) -> Ask:
    body = messages.EndTxnRequest(
        transactionalId=name, producerId=producerId, producerEpoch=epoch, committed=isCommit
    )
    return Ask(label, ApiKey.END_TXN, version, body)


def _send(
    label: str,
    version: int,
    setting: Setting,
    name: str,
    topicName: str,
    topicId: bytes,
    producerId: int,
    epoch: int,
    sequence: int,
    partition: int = 0,
) -> Ask:
    records = batch(
        setting.baseMs,
        b"v",
        producerId=producerId,
        producerEpoch=epoch,
        baseSequence=sequence,
        isTransactional=True,
    )
    body = produceBody(version, topicName, topicId, [(partition, records)], transactionalId=name)
    return Ask(label, ApiKey.PRODUCE, version, body)


def _describe(label: str, *names: str) -> Ask:
    body = messages.DescribeTransactionsRequest(transactionalIds=list(names))
    return Ask(label, ApiKey.DESCRIBE_TRANSACTIONS, 0, body)


def _positions(label: str, group: str, isStable: bool = True) -> Ask:
    body = messages.OffsetFetchRequest(groupId=group, topics=None, requireStable=isStable)
    return Ask(label, ApiKey.OFFSET_FETCH, 7, body)


def awaitTransactions() -> Steps:
    """Wait until there is a coordinator of transactions; nothing is recorded."""
    yield from awaitCoordinator()
    body = messages.FindCoordinatorRequest(key="await", keyType=1)
    ask = Ask("coordinator", ApiKey.FIND_COORDINATOR, 2, body, isRecorded=False)
    yield Until(ask, lambda found: found.errorCode == 0)
    yield Until(
        _init("loaded", 4, "await")._replace(isRecorded=False), lambda found: found.errorCode == 0
    )


def _stable(label: str, topicName: str, offset: int) -> Until:
    """The last stable offset, once it is there."""
    body = listOffsetsBody(topicName, [(0, -1)], isolation=_COMMITTED)
    return Until(
        Ask(label, ApiKey.LIST_OFFSETS, 5, body),
        lambda found: found.topics[0].partitions[0].offset == offset,
    )


@scenario()
def transactions(setting: Setting) -> Steps:
    """A transaction that commits, one that aborts, and whatever is refused, in every version."""
    yield from awaitTransactions()
    for version in range(6):
        name = f"transactions-{version}"
        topicId = yield from makeTopic(name, 2)
        group = name
        # Versions 12 and up of Produce add the partition by themselves.
        sends = 13 if version == 5 else 9
        yield _describe("before", name)
        made = yield _init("init", version, name)
        who, epoch = made.producerId, made.producerEpoch
        yield _describe("after init", name)
        if sends == 9:
            yield _send("before it was added", sends, setting, name, name, topicId, who, epoch, 0)
        yield _add("add, another epoch", version, name, who, epoch + 1, name, 0)
        yield _add("add, another producer", version, name, who + 100_000, epoch, name, 0)
        yield _add("add, unknown transaction", version, f"{name}-none", who, epoch, name, 0)
        yield _add("add, no transaction", version, "", who, epoch, name, 0)
        yield _add("add, unknown topic", version, name, who, epoch, "transactions-none", 0)
        yield _add("add, known and unknown", version, name, who, epoch, name, 0, 7)
        if version >= 4:
            yield _add("verify", version, name, who, epoch, name, 0, isVerification=True)
        yield _end("commit of nothing", version, name, who, epoch, True)
        made = yield _init(
            "init again", version, name, who if version >= 3 else -1, epoch if version >= 3 else -1
        )
        who, epoch = made.producerId, made.producerEpoch
        yield _add("add", version, name, who, epoch, name, 0)
        if version >= 4:
            yield _add(
                "verify what was added", version, name, who, epoch, name, 0, 1, isVerification=True
            )
        yield _send("first", sends, setting, name, name, topicId, who, epoch, 0)
        yield _send("first again", sends, setting, name, name, topicId, who, epoch, 0)
        yield _send("second", sends, setting, name, name, topicId, who, epoch, 1)
        yield _send("a gap", sends, setting, name, name, topicId, who, epoch, 5)
        yield _send("without its name", sends, setting, None, name, topicId, who, epoch, 2)  # type: ignore[arg-type]
        yield fetch("uncommitted", 11, name, topicId, 0)
        yield fetch("committed", 11, name, topicId, 0, isolation=_COMMITTED)
        for isolation in (0, 1):
            for timestamp in (-1, -3):
                body = listOffsetsBody(name, [(0, timestamp)], isolation=isolation)
                label = f"offset {timestamp}, isolation {isolation}"
                yield Ask(label, ApiKey.LIST_OFFSETS, 7, body)
        yield _describe("ongoing", name)
        for listed in range(3):
            body = messages.ListTransactionsRequest()
            yield Ask("list", ApiKey.LIST_TRANSACTIONS, listed, body, own=name)
        yield _addPosition("positions", version, name, who, epoch, group)
        yield _addPosition("positions, another epoch", version, name, who, epoch + 1, group)
        yield _addPosition("positions, no group", version, name, who, epoch, "")
        yield _commitPosition("position", version, name, who, epoch, group, name)
        yield _commitPosition(
            "position of an unknown topic", version, name, who, epoch, group, "transactions-none"
        )
        yield _commitPosition(
            "position of an unknown partition", version, name, who, epoch, group, name, 9
        )
        yield _commitPosition("position, no group", version, name, who, epoch, "", name)
        if version >= 3:
            yield _commitPosition(
                "position, a member", version, name, who, epoch, group, name, 0, "nobody", 1
            )
            yield _commitPosition(
                "position, a generation", version, name, who, epoch, group, name, 0, "", 3
            )
        yield _positions("pending, stable", group)
        yield _positions("pending", group, isStable=False)
        for isStable in (True, False):
            cls = messages.OffsetFetchRequest
            asked = [cls.OffsetFetchRequestTopic(name=name, partitionIndexes=[0, 1])]
            body = cls(groupId=group, topics=asked, requireStable=isStable)
            yield Ask(f"pending, named, stable {isStable}", ApiKey.OFFSET_FETCH, 7, body)
        yield _end("another epoch", version, name, who, epoch + 1, True)
        yield _end("another producer", version, name, who + 100_000, epoch, True)
        yield _end("unknown transaction", version, f"{name}-none", who, epoch, True)
        ended = yield _end("commit", version, name, who, epoch, True)
        yield _stable("stable", name, 3)
        yield fetch("after the commit", 11, name, topicId, 0, isolation=_COMMITTED)
        yield Until(
            _positions("committed", group),
            lambda found: found.topics and found.topics[0].partitions[0].errorCode == 0,
        )
        if version == 5:
            epoch = ended.producerEpoch
        yield Until(
            _describe("complete", name),
            lambda found: found.transactionStates[0].transactionState == "CompleteCommit",
        )
        if version < 5:
            yield _end("commit again", version, name, who, epoch, True)
            yield _end("abort what is committed", version, name, who, epoch, False)
        sequence = 0 if version == 5 else 2
        yield Until(
            _add("add for the second", version, name, who, epoch, name, 0),
            lambda found: "51" not in repr(found),
        )
        yield _send("to be aborted", sends, setting, name, name, topicId, who, epoch, sequence)
        plain = batch(setting.baseMs, b"plain")
        body = produceBody(9, name, topicId, [(0, plain)])
        yield Ask("without a transaction", ApiKey.PRODUCE, 9, body)
        yield fetch("while it is open", 11, name, topicId, 3, isolation=_COMMITTED)
        ended = yield _end("abort", version, name, who, epoch, False)
        yield _stable("stable", name, 6)
        for read in (4, 11, 12):
            yield fetch("after the abort", read, name, topicId, 0, isolation=_COMMITTED)
        yield fetch("uncommitted after the abort", 11, name, topicId, 0)
        yield Until(
            _describe("aborted", name),
            lambda found: found.transactionStates[0].transactionState == "CompleteAbort",
        )
        if version == 5:
            epoch = ended.producerEpoch
        again = yield _init("another one", version, name)
        yield _add("fenced", version, name, who, epoch, name, 0)
        yield _end("fenced", version, name, who, epoch, True)
        yield _send("fenced", sends, setting, name, name, topicId, who, epoch, sequence + 1)
        yield _addPosition("fenced", version, name, who, epoch, group)
        yield _commitPosition("fenced", version, name, who, epoch, group, name)
        # What another one left open is aborted.
        who, epoch = again.producerId, again.producerEpoch
        yield _add("left open", version, name, who, epoch, name, 1)
        yield _send("left open", sends, setting, name, name, topicId, who, epoch, 0, partition=1)
        yield Until(
            _init("who aborts it", min(version, 4), name),
            lambda found: found.errorCode != _CONCURRENT,
        )
        body = messages.DescribeProducersRequest()
        body.topics = [
            messages.DescribeProducersRequest.TopicRequest(name=name, partitionIndexes=[0, 1])
        ]
        yield Ask("producers", ApiKey.DESCRIBE_PRODUCERS, 0, body)
        for timeoutMs in (0, -1, 900_001):
            yield _init(f"time-out {timeoutMs}", version, f"{name}-time", timeoutMs=timeoutMs)


@scenario()
def transactionLists(setting: Setting) -> Steps:
    """ListTransactions and DescribeTransactions with every filter."""
    yield from awaitTransactions()
    own = "transaction-lists"
    made = yield _init("init", 4, own)
    topicName = "transaction-lists"
    yield from makeTopic(topicName)
    yield _init("another", 4, f"{own}-2")
    yield _add("add", 3, own, made.producerId, made.producerEpoch, topicName, 0)
    cls, key = messages.ListTransactionsRequest, ApiKey.LIST_TRANSACTIONS
    for version in range(3):
        yield Ask("all", key, version, cls(), own=own)
        for states in (
            ["Ongoing"],
            ["ongoing"],
            ["Empty", "Ongoing"],
            ["Nonsense"],
            ["Nonsense", "Empty"],
            ["Dead"],
        ):
            yield Ask(f"states {states}", key, version, cls(stateFilters=states), own=own)
        body = cls(producerIdFilters=[made.producerId])
        yield Ask("a producer", key, version, body, own=own)
        yield Ask("no producer", key, version, cls(producerIdFilters=[987_654_321]), own=own)
        if version >= 1:
            for durationMs in (0, 1_000_000):
                yield Ask(f"{durationMs} ms", key, version, cls(durationFilter=durationMs), own=own)
        if version >= 2:
            for pattern in ("", "transaction-lists", "transaction-lists.*", ".*2", "(", "none"):
                yield Ask(
                    f"pattern {pattern}", key, version, cls(transactionalIdPattern=pattern), own=own
                )
    yield _describe("several", own, f"{own}-none", "", f"{own}-2")
    yield _describe("none")
    yield _describe("twice", own, own)


@scenario()
def writeTxnMarkers(setting: Setting) -> Steps:
    """Markers as a coordinator sends them, and an operator who ends a hanging transaction."""
    yield from awaitTransactions()
    cls, key = messages.WriteTxnMarkersRequest, ApiKey.WRITE_TXN_MARKERS

    def body(
        version: int,
        name: str,
        producerId: int,
        epoch: int,
        isCommit: bool,
        coordinator: int,
        *partitions: int,
    ) -> Any:
        topic = cls.WritableTxnMarkerTopic(name=name, partitionIndexes=list(partitions))
        marker = cls.WritableTxnMarker(
            producerId=producerId,
            producerEpoch=epoch,
            transactionResult=isCommit,
            topics=[topic],
            coordinatorEpoch=coordinator,
        )
        return cls(markers=[marker])

    for version in (1, 2):
        name = f"write-txn-markers-{version}"
        topicId = yield from makeTopic(name, 2)
        made = yield _init("init", 4, name)
        who, epoch = made.producerId, made.producerEpoch
        yield _add("add", 3, name, who, epoch, name, 0)
        yield _send("send", 9, setting, name, name, topicId, who, epoch, 0)
        yield Ask("nothing", key, version, cls())
        yield Ask(
            "unknown topic", key, version, body(version, "markers-none", who, epoch, False, 0, 0)
        )
        yield Ask("unknown partition", key, version, body(version, name, who, epoch, False, 0, 9))
        yield Ask("old epoch", key, version, body(version, name, who, epoch - 1, False, 0, 0))
        yield Ask("old coordinator", key, version, body(version, name, who, epoch, False, -1, 0))
        yield Ask("abort", key, version, body(version, name, who, epoch, False, 0, 0))
        yield Ask("abort again", key, version, body(version, name, who, epoch, False, 0, 0))
        yield Ask(
            "an unknown producer", key, version, body(version, name, 987_654_321, 0, True, 0, 1)
        )
        yield Ask(
            "a coordinator before", key, version, body(version, name, who, epoch, False, -1, 0)
        )
        yield fetch("stored", 11, name, topicId, 0, isolation=_COMMITTED)
