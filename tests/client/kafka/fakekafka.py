"""
A cluster of today's Kafka on a clock: brokers whose connections are in memory, which answer as the
protocol wants it until a test says otherwise.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionRefusedError as RefusedError
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from pylogbroker.protocol.framing import FrameDecoder
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ErrorCode
from pylogbroker.protocol.kafka.requests import RequestHeader, decodeRequest
from pylogbroker.protocol.kafka.responses import encodeResponse
from pylogbroker.records.recordbatch import Record, encodeBatch, iterateRecords, readHeader
from pylogbroker.testing.network import MemoryPeer

HOST = "192.0.2.1"
ALL = frozenset(ApiKey)
CUT = object()
"""An answer: the connection is cut instead, and the request is not carried out."""

SILENCE = object()
"""
An answer: there is none, and the request is not carried out. Nor are later ones on the connection,
since answers come in order.
"""

NOTHING = object()
"""An answer: there is none, as the protocol has it."""

Answer = Callable[["FakeKafka", RequestHeader, Any], Any]


class _Connector:
    """What Twisted wants of C{connectTCP}."""

    def __init__(self, peer: MemoryPeer | None) -> None:
        self.peer = peer

    def stopConnecting(self) -> None:
        """There is nothing to stop."""

    def disconnect(self) -> None:
        """There is nothing to stop."""

    def getDestination(self) -> IPv4Address:
        return IPv4Address("TCP", HOST, 1)


class Line:
    """A connection to a broker."""

    def __init__(self, node: int, peer: MemoryPeer) -> None:
        self.node = node
        self.peer = peer
        self.decoder = FrameDecoder(1 << 30)
        self.isSilent = False
        self.isWaiting = False  # a fetch waits; answers come in order


class FakeKafka(Clock):
    """
    A reactor with a cluster behind it. C{run} lets everything happen that takes no time.

    @ivar up: numbers of the brokers that take connections. Number 7 listens on port 9007.
    @ivar versions: first and last version of each request, which brokers advertise and serve.
    @ivar leaders: node and epoch of each partition, by topic.
    @ivar followers: racks of the brokers that follow, by topic and broker. They have all records.
    @ivar topicIds: by topic.
    @ivar answers: what is answered to the next requests of a kind, in order: a function of
        this cluster, header and body; a body; L{CUT}; L{SILENCE}; L{NOTHING}; L{None} for the
        usual answer.
    @ivar requests: (node, header, body) of all that came.
    @ivar lines: the open connections.
    @ivar logs: batches of each partition, as bytes.
    @ivar aborted: first offset and producer of aborted transactions.
    @ivar connectCount: attempts to connect.
    @ivar committed: offsets of the group, by topic and partition.
    @ivar generation: of the group.
    @ivar coordinator: the broker that coordinates all groups and transactions.
    """

    def __init__(self, *nodes: int) -> None:
        super().__init__()
        self.rightNow = 1_000_000.0
        self.up = set(nodes or (1,))
        self.versions = {key: (key.firstVersion, key.lastVersion) for key in ApiKey}
        self.leaders: dict[str, list[tuple[int, int]]] = {}
        self.followers: dict[str, dict[int, str]] = defaultdict(dict)
        self.topicIds: dict[str, bytes] = {}
        self.answers: dict[ApiKey, deque[Any]] = defaultdict(deque)
        self.requests: list[tuple[int, RequestHeader, Any]] = []
        self.lines: list[Line] = []
        self.logs: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.states: dict[tuple[str, int, int], tuple[int, list[tuple[int, int, int]]]] = {}
        self.connectCount = 0
        self.coordinator = min(self.up)
        self.producerId = 0
        self.committed: dict[tuple[str, int], int] = {}
        self.generation = 0
        self.aborted: list[tuple[int, int]] = []
        self.line: Line | None = None  # whose request is answered

    @property
    def servers(self) -> str:
        """For C{bootstrap.servers}."""
        return ",".join(f"{HOST}:{9000 + node}" for node in sorted(self.up))

    def addTopic(self, name: str, *leaders: int) -> None:
        """A topic whose partitions have these leaders, of epoch 5."""
        self.leaders[name] = [(leader, 5) for leader in leaders]
        self.topicIds[name] = name.encode().ljust(16, b"-")

    # -- the network

    def connectTCP(self, host: str, port: int, factory: Any, *_more: Any, **_other: Any) -> Any:
        """Connect, or refuse."""
        self.connectCount += 1
        node = port - 9000
        if node not in self.up:
            self.callLater(0, factory.clientConnectionFailed, None, Failure(RefusedError()))
            return _Connector(None)
        protocol = factory.buildProtocol(IPv4Address("TCP", host, port))
        peer = MemoryPeer(self, protocol)
        self.lines.append(Line(node, peer))
        protocol.makeConnection(peer.transport)
        return _Connector(peer)

    def cut(self, node: int | None = None) -> None:
        """Cut the connections, of one broker or of all."""
        for line in list(self.lines):
            if node in (None, line.node):
                self.lines.remove(line)
                line.peer.cut()

    def run(self, seconds: float = 0) -> None:
        """Let time pass, and everything happen that takes none."""
        self.advance(seconds)
        for _turn in range(200):
            self.advance(0)
            if not self._serve() and not any(
                call.getTime() <= self.seconds() for call in self.getDelayedCalls()
            ):
                return
        raise AssertionError("it does not come to rest")

    def _serve(self) -> bool:
        hasServed = False
        for line in list(self.lines):
            if line.peer.reason is not None or (line.peer.isEnded and not line.peer.arrived):
                self.lines.remove(line)
                if line.peer.reason is None:
                    line.peer.end()
                hasServed = True
                continue
            data = line.peer.take()
            if data:
                line.decoder.feed(data)
                hasServed = True
            while (
                line in self.lines
                and not line.isWaiting
                and (frame := line.decoder.take()) is not None
            ):
                hasServed = True
                self._answer(line, frame)
        return hasServed

    def _answer(self, line: Line, frame: bytes) -> None:
        header, body = decodeRequest(frame, ALL)
        self.requests.append((line.node, header, body))
        if line.isSilent:
            return
        waiting = self.answers[header.apiKey]
        answer = waiting.popleft() if waiting else None
        if callable(answer):
            answer = answer(self, header, body)
        if answer is CUT:
            self.lines.remove(line)
            line.peer.cut()
        elif answer is SILENCE:
            line.isSilent = True
        else:
            if answer is None:
                self.line = line
                answer = self.usual(header, body, line.node)
            if isinstance(answer, bytes):
                line.peer.deliver(answer)
            elif answer is not NOTHING:
                line.peer.deliver(encodeResponse(header, answer))

    # -- usual answers

    def asked(self, key: ApiKey) -> list[Any]:
        """The bodies of the requests of a kind."""
        return [body for _node, header, body in self.requests if header.apiKey is key]

    def usual(self, header: RequestHeader, body: Any, node: int = 1) -> Any:
        """What a broker without troubles answers."""
        made: Any = getattr(self, f"_on{header.apiKey.apiName}")(header, body, node)
        return made

    def _onApiVersions(self, header: RequestHeader, _body: Any, _node: int) -> Any:
        cls = messages.ApiVersionsResponse
        first, last = self.versions[ApiKey.API_VERSIONS]
        isKnown = first <= header.apiVersion <= last
        made = cls(
            errorCode=0 if isKnown else ErrorCode.UNSUPPORTED_VERSION,
            apiKeys=[
                cls.ApiVersion(apiKey=key, minVersion=low, maxVersion=high)
                for key, (low, high) in self.versions.items()
                if isKnown or key is ApiKey.API_VERSIONS
            ],
        )
        if isKnown:
            return made
        return encodeResponse(header._replace(apiVersion=0), made)

    def _onMetadata(self, _header: RequestHeader, body: Any, _node: int) -> Any:
        cls = messages.MetadataResponse
        topics = []
        wanted = body.topics
        if wanted is None:
            part = messages.MetadataRequest.MetadataRequestTopic
            wanted = [part(name=name) for name in self.leaders]
        for each in wanted:
            isKnown = each.name in self.leaders
            topics.append(
                cls.MetadataResponseTopic(
                    errorCode=0 if isKnown else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    name=each.name,
                    topicId=self.topicIds.get(each.name, bytes(16)),
                    partitions=[
                        cls.MetadataResponsePartition(
                            errorCode=0 if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                            partitionIndex=index,
                            leaderId=leader,
                            leaderEpoch=epoch,
                        )
                        for index, (leader, epoch) in enumerate(self.leaders.get(each.name, ()))
                    ],
                )
            )
        return cls(
            brokers=[
                cls.MetadataResponseBroker(nodeId=node, host=HOST, port=9000 + node)
                for node in sorted(self.up)
            ],
            clusterId="fake",
            controllerId=1,
            topics=topics,
        )

    def _onFindCoordinator(self, header: RequestHeader, body: Any, _node: int) -> Any:
        place = {"nodeId": self.coordinator, "host": HOST, "port": 9000 + self.coordinator}
        cls = messages.FindCoordinatorResponse
        if header.apiVersion < 4:
            return cls(**place)
        return cls(coordinators=[cls.Coordinator(key=key, **place) for key in body.coordinatorKeys])

    # -- a group of one member

    def _onJoinGroup(self, header: RequestHeader, body: Any, _node: int) -> Any:
        cls = messages.JoinGroupResponse
        if not body.memberId and header.apiVersion >= 4 and body.groupInstanceId is None:
            return cls(errorCode=ErrorCode.MEMBER_ID_REQUIRED, memberId="m", protocolName="")
        self.generation += 1
        first = body.protocols[0]
        member = cls.JoinGroupResponseMember(memberId="m", metadata=bytes(first.metadata))
        return cls(
            generationId=self.generation,
            protocolName=first.name,
            leader="m",
            memberId="m",
            members=[member],
        )

    def _onSyncGroup(self, _header: RequestHeader, body: Any, _node: int) -> Any:
        [found] = body.assignments
        return messages.SyncGroupResponse(assignment=bytes(found.assignment))

    def _onHeartbeat(self, _header: RequestHeader, _body: Any, _node: int) -> Any:
        return messages.HeartbeatResponse()

    def _onLeaveGroup(self, _header: RequestHeader, _body: Any, _node: int) -> Any:
        return messages.LeaveGroupResponse()

    def _onOffsetCommit(self, _header: RequestHeader, body: Any, _node: int) -> Any:
        cls = messages.OffsetCommitResponse
        made = cls()
        for topic in body.topics:
            parts = []
            for part in topic.partitions:
                self.committed[topic.name, part.partitionIndex] = part.committedOffset
                parts.append(cls.OffsetCommitResponsePartition(partitionIndex=part.partitionIndex))
            made.topics.append(cls.OffsetCommitResponseTopic(name=topic.name, partitions=parts))
        return made

    def _onOffsetFetch(self, header: RequestHeader, body: Any, _node: int) -> Any:
        cls = messages.OffsetFetchResponse
        isOld = header.apiVersion < 8
        part = cls.OffsetFetchResponsePartition if isOld else cls.OffsetFetchResponsePartitions
        topic = cls.OffsetFetchResponseTopic if isOld else cls.OffsetFetchResponseTopics
        wanted = body.topics if isOld else body.groups[0].topics
        topics = [
            topic(
                name=each.name,
                partitions=[
                    part(
                        partitionIndex=number,
                        committedOffset=self.committed.get((each.name, number), -1),
                        metadata="",
                    )
                    for number in each.partitionIndexes
                ],
            )
            for each in wanted
        ]
        if isOld:
            return cls(topics=topics)
        return cls(groups=[cls.OffsetFetchResponseGroup(groupId="g", topics=topics)])

    def _onInitProducerId(self, _header: RequestHeader, _body: Any, _node: int) -> Any:
        self.producerId += 1
        return messages.InitProducerIdResponse(producerId=self.producerId, producerEpoch=0)

    def _onFetch(self, header: RequestHeader, body: Any, node: int) -> Any:
        made = self.fetched(body, node)
        isIdle = not any(
            part.records or part.errorCode or part.preferredReadReplica >= 0
            for topic in made.responses
            for part in topic.partitions
        )
        if not isIdle:
            return made
        line = self.line
        assert line is not None

        line.isWaiting = True

        def late() -> None:
            line.isWaiting = False
            if line in self.lines and not line.isSilent and line.peer.reason is None:
                line.peer.deliver(encodeResponse(header, self.fetched(body, node)))

        self.callLater(body.maxWaitMs / 1000, late)
        return NOTHING

    def fetched(self, body: Any, node: int) -> Any:
        """The response to a fetch."""
        cls = messages.FetchResponse
        made = cls()
        for topic in body.topics:
            name = self.topicOf(topic)
            parts = []
            for part in topic.partitions:
                leader, epoch = self.leaders[name][part.partition]
                code, records, preferred = 0, b"", -1
                followers = self.followers[name]
                if leader != node and node not in followers:
                    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                elif -1 < part.currentLeaderEpoch < epoch:
                    code = ErrorCode.FENCED_LEADER_EPOCH
                elif not 0 <= part.fetchOffset <= self.end(name, part.partition):
                    code = ErrorCode.OFFSET_OUT_OF_RANGE
                elif leader == node and body.rackId in followers.values():
                    preferred = min(key for key, rack in followers.items() if rack == body.rackId)
                else:
                    records = self.read(name, part.partition, part)
                parts.append(
                    cls.PartitionData(
                        partitionIndex=part.partition,
                        errorCode=code,
                        highWatermark=self.end(name, part.partition),
                        abortedTransactions=[
                            cls.AbortedTransaction(producerId=producer, firstOffset=first)
                            for first, producer in self.aborted
                        ]
                        if body.isolationLevel
                        else None,
                        preferredReadReplica=preferred,
                        records=records,
                    )
                )
            made.responses.append(
                cls.FetchableTopicResponse(
                    topic=name, topicId=self.topicIds[name], partitions=parts
                )
            )
        return made

    def read(self, topic: str, partition: int, part: Any) -> bytes:
        """Whole batches from an offset on, as many as fit, one at least."""
        found = b""
        for batch in self.logs[topic, partition]:
            if readHeader(batch).nextOffset > part.fetchOffset:
                if found and len(found) + len(batch) > part.partitionMaxBytes:
                    break
                found += batch
        return found

    def _onListOffsets(self, header: RequestHeader, body: Any, node: int) -> Any:
        cls = messages.ListOffsetsResponse
        made = cls()
        for topic in body.topics:
            parts = []
            for part in topic.partitions:
                offset, timestamp = self.find(topic.name, part.partitionIndex, part.timestamp)
                leader, epoch = self.leaders[topic.name][part.partitionIndex]
                parts.append(
                    cls.ListOffsetsPartitionResponse(
                        partitionIndex=part.partitionIndex,
                        errorCode=0 if leader == node else ErrorCode.NOT_LEADER_OR_FOLLOWER,
                        offset=offset,
                        timestamp=timestamp,
                        leaderEpoch=epoch if header.apiVersion >= 4 else -1,
                    )
                )
            made.topics.append(cls.ListOffsetsTopicResponse(name=topic.name, partitions=parts))
        return made

    def find(self, topic: str, partition: int, time: int) -> tuple[int, int]:
        """Offset and timestamp for a time."""
        records = self.records(topic, partition)
        if time == -1:
            return self.end(topic, partition), -1
        for record in records:
            if record.timestampMs >= time:
                return record.offset, record.timestampMs if time >= 0 else -1
        return (0, -1) if time == -2 else (-1, -1)

    def _onOffsetForLeaderEpoch(self, header: RequestHeader, body: Any, _node: int) -> Any:
        cls = messages.OffsetForLeaderEpochResponse
        made = cls()
        for topic in body.topics:
            parts = []
            for part in topic.partitions:
                log = self.logs[topic.topic, part.partition]
                epoch, end = (part.leaderEpoch, 0) if log else (-1, -1)
                for batch in log:
                    head = readHeader(batch)
                    if head.leaderEpoch <= part.leaderEpoch:
                        epoch, end = head.leaderEpoch, head.nextOffset
                parts.append(
                    cls.EpochEndOffset(partition=part.partition, leaderEpoch=epoch, endOffset=end)
                )
            made.topics.append(cls.OffsetForLeaderTopicResult(topic=topic.topic, partitions=parts))
        return made

    def put(self, topic: str, partition: int, *values: bytes, **more: Any) -> None:
        """Append a batch of messages, of the leader's epoch."""
        end = self.end(topic, partition)
        records = [
            Record(end + index, int(self.seconds() * 1000), None, value)
            for index, value in enumerate(values)
        ]
        epoch = self.leaders[topic][partition][1]
        more = {"baseOffset": end, "leaderEpoch": epoch, **more}
        self.logs[topic, partition].append(encodeBatch(records, **more))

    def topicOf(self, topic: Any) -> str:
        """The name of a topic in a request, which may have its id alone."""
        name = getattr(topic, "name", "") or getattr(topic, "topic", "")
        return name or next(n for n, each in self.topicIds.items() if each == topic.topicId)

    def _onProduce(self, header: RequestHeader, body: Any, node: int) -> Any:
        made = produceResponse(
            self,
            body,
            lambda name, part: self.append(name, part.index, bytes(part.records), node),
        )
        return made if body.acks else NOTHING

    def append(self, topic: str, partition: int, data: bytes, node: int) -> tuple[int, int]:
        """Append a batch as Kafka does: error code and base offset."""
        if self.leaders[topic][partition][0] != node:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        header = readHeader(data)
        end = self.end(topic, partition)
        if header.producerId >= 0:
            place = topic, partition, header.producerId
            epoch, known = self.states.get(place, (header.producerEpoch, []))
            first, last = header.baseSequence, header.baseSequence + header.recordCount - 1
            if header.producerEpoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producerEpoch > epoch:
                known = []
                if first:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            for low, high, offset in known[-5:]:
                if (low, high) == (first, last):
                    return 0, offset
            if known and known[-1][1] + 1 != first:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            self.states[place] = (header.producerEpoch, [*known, (first, last, end)])
        self.logs[topic, partition].append(end.to_bytes(8, "big") + data[8:])
        return 0, end

    def end(self, topic: str, partition: int) -> int:
        """The log end offset."""
        log = self.logs[topic, partition]
        return readHeader(log[-1]).nextOffset if log else 0

    def records(self, topic: str, partition: int = 0) -> list[Record]:
        """What is in a partition."""
        return [
            record
            for batch in self.logs[topic, partition]
            for record in iterateRecords(batch, 0, readHeader(batch))
        ]

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """The values in a partition."""
        return [record.value for record in self.records(topic, partition)]


def produceResponse(
    kafka: FakeKafka, body: Any, carryOut: Callable[[str, Any], tuple[int, int]]
) -> Any:
    """
    The response to a produce request.

    @param carryOut: gives error code and base offset of the records for a partition.
    """
    cls = messages.ProduceResponse
    made = cls()
    for topic in body.topicData:
        name = kafka.topicOf(topic)
        parts = []
        for part in topic.partitionData:
            code, offset = carryOut(name, part)
            parts.append(
                cls.PartitionProduceResponse(index=part.index, errorCode=code, baseOffset=offset)
            )
        made.responses.append(
            cls.TopicProduceResponse(
                name=name, topicId=kafka.topicIds[name], partitionResponses=parts
            )
        )
    return made


def refuse(code: int) -> Answer:
    """An answer to a produce request: an error for each partition."""
    return lambda kafka, _header, body: produceResponse(
        kafka, body, lambda _name, _part: (int(code), -1)
    )


def carryOutAndCut(kafka: FakeKafka, header: RequestHeader, body: Any) -> Any:
    """An answer: the request is carried out, and the connection is cut."""
    for topic in body.topicData:
        name = kafka.topicOf(topic)
        for part in topic.partitionData:
            kafka.append(name, part.index, bytes(part.records), kafka.leaders[name][part.index][0])
    return CUT
