"""
Answers the clients of the contract as Apache Kafka did when the conversation was recorded
(L{tests.contracts.conversations}), and tells what a client says that it did not say then.

The answers are the recorded ones, and so are the ids that clients repeat. Only ports are replaced.

B{Matching.} A client's requests of a kind come in their recorded order, each with the same version
and the same body but for times. These are free, since they depend on the time they take:

  - the order of different kinds, of clients, and of what a connection begins with;
  - to ask again what was asked again then, any number of times;
  - how often metadata are asked for; they must have been asked for in these words;
  - heartbeats that say nothing new, and fetches. Each partition of a fetch must have been asked for
  with that offset then, or it is behind what came then. It is answered from the partition's record.

B{Order.} An answer is sent once all requests have come that came before it then: thus a member of a
group that waits for another one waits here, too. A request that the client has sent before an
answer does not depend on that answer, so no such wait is without end.

A difference is told to C{failed}, with what differs. So is a request that was recorded and has not
come, by L{ReplayServer.missing}.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory
from twisted.protocols.basic import Int32StringReceiver

from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.requests import RequestHeader, decodeHeader
from pylogbroker.protocol.kafka.responses import frameResponse
from pylogbroker.records import recordbatch
from tests.contracts.conversations import (
    CONNECTION_KEYS,
    HEARTBEATS,
    Conversation,
    Exchange,
    RequestText,
    decodeBody,
    isPlainHeartbeat,
)
from tests.contracts.kafkaclients import LISTENERS
from tests.contracts.recorder import FRAME_SIZE_MAX, serverString
from tests.oracle.comparer import compareValues

WAIT_SECONDS_MAX = 20
"""Of an answer for the requests before it; then it is told which have not come."""

_ALL_KEYS = frozenset(ApiKey)
_WITH_PORTS = frozenset((ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER))
_FREE_FETCH_FIELDS = ("topics", "maxWaitMs")
_HEARTBEAT_MS = 100


class _Asked(NamedTuple):
    """A request of a client."""

    client: str
    key: ApiKey
    version: int
    text: Any
    request: Any


class _Recorded(NamedTuple):
    """An exchange, and its place in the record."""

    number: int
    exchange: Exchange
    text: Any


class _Answers:
    """What is answered to equal questions, one after the other, each once its time has come."""

    def __init__(self) -> None:
        self.all: list[tuple[int, Any]] = []  # after how many exchanges, and what
        self._next = 0

    def news(self, isReady: Callable[[int], bool]) -> Any:
        """The next answer; L{None}: its time has not come, or there is none."""
        if self._next >= len(self.all) or not isReady(self.all[self._next][0]):
            return None
        self._next += 1
        return self.all[self._next - 1][1]

    def take(self, isReady: Callable[[int], bool]) -> Any:
        """The next answer, or else the one before again; L{None}: there is neither."""
        found = self.news(isReady)
        if found is None and self._next:
            found = self.all[self._next - 1][1]
        return found


class ReplayServer:
    """
    Serves one recorded conversation.

    @ivar ports: by listener.
    @ivar failures: what differs from the record.
    """

    def __init__(
        self,
        reactor: Any,
        conversation: Conversation,
        keystore: str,
        failed: Callable[[str], None],
    ) -> None:
        """
        @param keystore: a PEM file with a key and its certificate, for the listeners with TLS.
        @param failed: called with each difference.
        """
        self.reactor = reactor
        self.ports: dict[str, int] = {}
        self.failures: list[str] = []
        self._conversation = conversation
        self._keystore = keystore
        self._failed = failed
        self._listening: list[Any] = []
        self._connections: set[_Connection] = set()
        self._text = RequestText(time.time_ns() // 1_000_000)
        self._arrived: set[int] = set()
        self._ordered: set[int] = set()
        self._queues: dict[tuple[str, ApiKey], deque[_Recorded]] = {}
        self._latest: dict[tuple[str, ApiKey], _Recorded] = {}
        self._repeatable: dict[tuple[Any, ...], _Answers] = {}
        self._fetches: dict[str, _ClientFetches] = {}
        self._load()

    def _load(self) -> None:
        text = RequestText(self._conversation.timeMs)
        for number, each in enumerate(self._conversation.exchanges):
            found = text.of(each.key, each.version, each.request)
            if each.key is ApiKey.FETCH:
                self._fetches.setdefault(each.client, _ClientFetches()).add(each, found)
            elif _isFree(each.key, each.request):
                if each.answer is None:  # the client closed the connection
                    continue
                place = _repeatableKey(each.client, each.key, each.version, found)
                answers = self._repeatable.setdefault(place, _Answers())
                answers.all.append((each.after, self._bodyOf(each)))
            else:
                self._ordered.add(number)
                queue = self._queues.setdefault((each.client, each.key), deque())
                queue.append(_Recorded(number, each, found))

    async def listen(self) -> None:
        """Take the ports."""
        for listener in LISTENERS:
            endpoint = serverFromString(self.reactor, serverString(listener, self._keystore))
            factory = Factory.forProtocol(_Connection)
            factory.server = self  # type: ignore[attr-defined]
            port = await endpoint.listen(factory)
            self._listening.append(port)
            self.ports[listener] = port.getHost().port

    async def stop(self) -> None:
        """Free the ports, and cut the connections."""
        for port in self._listening:
            await port.stopListening()
        for each in list(self._connections):
            each.transport.abortConnection()

    def missing(self) -> list[str]:
        """What was recorded and has not come."""
        return [
            f"{each.exchange.client}: {each.exchange.name} was recorded, and not sent"
            for queue in self._queues.values()
            for each in queue
        ]

    # -- for connections

    def opened(self, connection: _Connection) -> None:
        self._connections.add(connection)

    def closed(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    def fail(self, text: str) -> None:
        """Tell a difference."""
        self.failures.append(text)
        self._failed(text)

    def isReady(self, after: int) -> bool:
        """Whether all requests have come that came before an answer."""
        return all(number in self._arrived for number in self._ordered if number < after)

    def waitsFor(self, after: int) -> str:
        """What an answer waits for."""
        return ", ".join(
            f"{each.client}: {each.name}"
            for number, each in enumerate(self._conversation.exchanges[:after])
            if number in self._ordered and number not in self._arrived
        )

    def arrived(self, frame: bytes) -> tuple[RequestHeader, _Reply | None]:
        """
        Find the answer to a request.

        @return: L{None}: there is no answer.
        """
        header, position = decodeHeader(frame, _ALL_KEYS)
        key, version = header.apiKey, header.apiVersion
        request = decodeBody(key, "Request", version, frame[position:])
        text = self._text.of(key, version, request)
        asked = _Asked(header.clientId or "", key, version, text, request)
        if key is ApiKey.FETCH:
            return header, self._fetched(asked)
        if _isFree(key, request):
            return header, self._repeated(asked)
        return header, self._inOrder(asked)

    def turn(self) -> None:
        """Send the answers whose time has come."""
        for each in list(self._connections):
            each.sendReady()

    def _inOrder(self, asked: _Asked) -> _Reply | None:
        place = asked.client, asked.key
        queue: deque[_Recorded] = self._queues.get(place, deque())
        latest = self._latest.get(place)
        canRepeat = latest is not None and latest.exchange.isRepeated and _isSame(latest, asked)
        isNext = bool(queue) and _isSame(queue[0], asked)
        if isNext and (not canRepeat or self.isReady(queue[0].number)):
            found = self._latest[place] = queue.popleft()
            self._arrived.add(found.number)
            self.reactor.callLater(0, self.turn)
            return self._reply(found.exchange)
        if latest is not None and canRepeat:
            return self._reply(latest.exchange)
        self.fail(self._difference(asked, queue[0] if queue else None))
        return None

    def _reply(self, exchange: Exchange) -> _Reply | None:
        if exchange.answer is None:
            return None
        isReady = self.isReady
        return _Reply(
            lambda: self._bodyOf(exchange)() if isReady(exchange.after) else None, exchange.after
        )

    def _bodyOf(self, exchange: Exchange) -> Callable[[], bytes]:
        """Gives the body of an answer."""
        answer = exchange.answer
        assert answer is not None
        if exchange.key in _WITH_PORTS:
            return partial(self._withPorts, exchange)
        return lambda: answer

    def _withPorts(self, exchange: Exchange) -> bytes:
        names = {port: name for name, port in self._conversation.ports.items()}

        def replace(value: Any) -> None:
            if getattr(value, "port", None) in names:
                value.port = self.ports[names[value.port]]
            for name in value._fields:
                found = getattr(value, name)
                for item in found if isinstance(found, list) else ():
                    if hasattr(item, "_fields"):
                        replace(item)

        response = exchange.response
        replace(response)
        return response.encode(exchange.version)

    def _difference(self, asked: _Asked, expected: _Recorded | None) -> str:
        name = f"{asked.client}: {asked.key.apiName} v{asked.version}"
        if expected is None:
            return f"{name} was sent, and no more of it was recorded: {asked.text}"
        if asked.version != expected.exchange.version:
            return f"{name} was sent, {expected.exchange.name} was recorded"
        found = "; ".join(
            f"{path}: {recorded!r} was recorded, {sent!r} was sent"
            for path, recorded, sent in compareValues(expected.text, asked.text)
        )
        return f"{name} differs from the record: {found}"

    # -- what may come at any time

    def _repeated(self, asked: _Asked) -> _Reply | None:
        found = self._repeatable.get(_repeatableKey(*asked[:4]))
        if asked.key in HEARTBEATS:
            quiet = _quietHeartbeat(asked)

            def beaten() -> bytes:
                body = found and found.news(self.isReady)
                return body() if body else quiet

            return _Reply(beaten, 0)
        if found is None:
            self.fail(self._difference(asked, None))
            return None

        def answer() -> bytes | None:
            body = found.take(self.isReady)
            return body() if body else None

        return _Reply(answer, found.all[0][0])

    def _fetched(self, asked: _Asked) -> _Reply | None:
        fetches = self._fetches.get(asked.client)
        unknown = "no fetch of it was recorded" if fetches is None else fetches.unknown(asked)
        if fetches is None or unknown:
            self.fail(f"{asked.client}: Fetch v{asked.version}: {unknown}")
            return None
        return _Reply(
            lambda: fetches.answer(asked, self.isReady),
            0,
            asked.request.maxWaitMs / 1000,
            lambda: fetches.answer(asked, self.isReady, isLate=True),
        )


def _isSame(recorded: _Recorded, asked: _Asked) -> bool:
    return recorded.exchange.version == asked.version and recorded.text == asked.text


def _isFree(key: ApiKey, request: Any) -> bool:
    """Whether a request may come at any time, any number of times."""
    if key in CONNECTION_KEYS or key is ApiKey.METADATA:
        return True
    return key in HEARTBEATS and isPlainHeartbeat(request)


def _repeatableKey(client: str, key: ApiKey, version: int, text: Any) -> tuple[Any, ...]:
    return client, key, version, repr(text)


def _quietHeartbeat(asked: _Asked) -> bytes:
    if asked.key is ApiKey.HEARTBEAT:
        return messages.HeartbeatResponse().encode(asked.version)
    return messages.ConsumerGroupHeartbeatResponse(
        memberId=asked.request.memberId,
        memberEpoch=asked.request.memberEpoch,
        heartbeatIntervalMs=_HEARTBEAT_MS,
        assignment=None,
    ).encode(asked.version)


class _ClientFetches:
    """
    The fetches of one client.

    What is known of a partition at an offset is a list of C{PartitionData}s with messages or an
    error, or an empty one. An offset behind messages is known, too: the record may have ended
    before the client asked for it.
    """

    def __init__(self) -> None:
        self._heads: list[Any] = []
        self._shapes: set[str] = set()
        self._parts: dict[tuple[Any, ...], _Answers] = {}
        self._quiet: dict[tuple[Any, ...], Any] = {}

    def add(self, exchange: Exchange, text: Any) -> None:
        self._heads.append((exchange.version, _headOf(text)))
        answered = {} if exchange.answer is None else _partsOf(exchange.response)
        for place, offset, shape in _partitions(text):
            self._shapes.add(shape)
            answers = self._parts.setdefault((*place, offset), _Answers())
            part = answered.get(place)
            if part is None:
                continue
            if part.errorCode or part.records:
                answers.all.append((exchange.after, part))
                self._parts.setdefault((*place, _endOf(offset, part.records)), _Answers())
            else:
                self._quiet[(*place, offset)] = part

    def unknown(self, asked: _Asked) -> str:
        """What of a request was not recorded; empty: nothing."""
        if (asked.version, _headOf(asked.text)) not in self._heads:
            return f"none was recorded with {asked.version, _headOf(asked.text)}"
        return ", ".join(
            f"this was not recorded: offset {offset} of {shape}"
            for place, offset, shape in _partitions(asked.text)
            if shape not in self._shapes or (*place, offset) not in self._parts
        )

    def answer(
        self, asked: _Asked, isReady: Callable[[int], bool], isLate: bool = False
    ) -> bytes | None:
        """
        @param isLate: whether to answer although there is nothing.
        """
        cls = messages.FetchResponse
        topics: dict[Any, Any] = {}
        hasNews = False
        for (topic, number), offset, _shape in _partitions(asked.text):
            part = self._parts[topic, number, offset].take(isReady)
            hasNews = hasNews or part is not None
            if part is None:
                part = self._quiet.get((topic, number, offset)) or cls.PartitionData(
                    partitionIndex=number, highWatermark=offset, lastStableOffset=offset
                )
            if topic not in topics:
                isNamed = asked.version < _FETCH_IDS_VERSION
                topics[topic] = cls.FetchableTopicResponse(
                    **({"topic": topic} if isNamed else {"topicId": bytes.fromhex(topic)})
                )
            topics[topic].partitions.append(part)
        if not hasNews and not isLate:
            return None
        return cls(responses=list(topics.values())).encode(asked.version)


_FETCH_IDS_VERSION = 13


def _headOf(text: Any) -> Any:
    return {name: value for name, value in text.items() if name not in _FREE_FETCH_FIELDS}


def _partitions(text: Any) -> Iterator[tuple[tuple[str, int], int, str]]:
    """Topic and number of each partition in a request, its offset, and what else it asks for."""
    for topic in text["topics"]:
        name = topic.get("topicId") or topic["topic"]
        for part in topic["partitions"]:
            number = part["partition"]
            rest = {key: value for key, value in part.items() if key != "fetchOffset"}
            yield (name, number), part["fetchOffset"], f"{name} {rest}"


def _partsOf(response: Any) -> dict[tuple[str, int], Any]:
    found = {}
    for topic in response.responses:
        name = topic.topic or bytes(topic.topicId).hex()
        for part in topic.partitions:
            found[name, part.partitionIndex] = part
    return found


def _endOf(offset: int, records: bytes | None) -> int:
    """The offset behind batches, the last of which may be cut."""
    position, data = 0, bytes(records or b"")
    while position + recordbatch.BATCH_OVERHEAD <= len(data):
        header = recordbatch.readHeader(data, position)
        position += header.size
        if position <= len(data):
            offset = header.baseOffset + header.lastOffsetDelta + 1
    return offset


class _Reply:
    """
    The answer to a request, in its turn on its connection.

    @ivar answer: gives the body; L{None}: it is not ready.
    @ivar after: exchanges it waits for.
    @ivar waitSeconds: then C{late} gives it; L{None}: it is told what it waits for.
    """

    def __init__(
        self,
        answer: Callable[[], bytes | None],
        after: int,
        waitSeconds: float | None = None,
        late: Callable[[], bytes | None] | None = None,
    ) -> None:
        self.answer = answer
        self.after = after
        self.waitSeconds = waitSeconds
        self.late = late
        self.header: RequestHeader | None = None
        self.timer: Any = None


class _Connection(Int32StringReceiver):
    """A client's connection: answers leave in the order of the requests."""

    transport: Any

    MAX_LENGTH = FRAME_SIZE_MAX

    def connectionMade(self) -> None:
        self._server: ReplayServer = self.factory.server
        self._replies: deque[_Reply] = deque()
        self._server.opened(self)

    def connectionLost(self, reason: Any = None) -> None:
        self._server.closed(self)
        for each in self._replies:
            self._stop(each)

    @staticmethod
    def _stop(reply: _Reply) -> None:
        if reply.timer is not None and reply.timer.active():
            reply.timer.cancel()

    def stringReceived(self, string: bytes) -> None:
        header, reply = self._server.arrived(string)
        if reply is None:
            return
        reply.header = header
        self._replies.append(reply)
        seconds = WAIT_SECONDS_MAX if reply.waitSeconds is None else reply.waitSeconds
        reply.timer = self._server.reactor.callLater(seconds, self._over, reply)
        self.sendReady()

    def sendReady(self) -> None:
        """Send what is ready, up to the first answer that is not."""
        while self._replies:
            found = self._replies[0].answer()
            if found is None:
                return
            self._send(found)

    def _send(self, body: bytes) -> None:
        reply = self._replies.popleft()
        self._stop(reply)
        assert reply.header is not None
        self.sendString(frameResponse(reply.header, body)[4:])

    def _over(self, reply: _Reply) -> None:
        if reply.late is None:
            self._server.fail(
                f"{reply.header} was not answered, since this was recorded before its answer and "
                f"was not sent: {self._server.waitsFor(reply.after)}"
            )
            return
        found = reply.late()
        if found is not None and self._replies[0] is reply:
            self._send(found)
            self.sendReady()
