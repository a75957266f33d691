"""
Sending to brokers: requests and connections, batches, and messages that need more than one request.

0.7's protocol does not acknowledge produce requests. Two outcomes can still be known:

  - I{written}: the bytes are in the kernel's buffer, or nearly so. 0.7's clients know no more.
  - I{confirmed}: an OFFSETS request followed on the same connection and was answered. A broker
    handles a connection's requests in order. (Kafka 0.7.2 also answers after dropping a payload
    over its own limit. Our broker closes the connection then.)

When a connection breaks, a request that was not begun I{failed} and can be sent elsewhere. One that
was begun and not confirmed is I{unknown}: L{UnknownOutcomeError}.

The OFFSETS request names a partition of the produce request (0 where the broker picks one): a
broker closes the connection for an offline partition. Both requests are written together, so that a
broker that stops in order answers all that it took.

The promises about order and repetition:

  - A broker vanishes or moves. Messages that wait for their batch or for its connection are routed
    again. This is not a retry: nothing of them was sent. (0.7 keeps the old connection; gotcha 39.)
  - A request fails. Its messages are routed again up to C{num.retries} times, if possible to
    another broker. Nothing else is ever sent twice, and the log says so.
  - A call in sync mode makes one request per broker.
  - Handlers of the application see batches before they are sent (L{pylogbroker.producer.plugins}).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.brokerclient import BrokerClient, BrokerClientPool
from pylogbroker.client.connection import ClientConnection
from pylogbroker.client.discovery import BrokerNode
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.errors import (
    BrokerConnectionError,
    ClosedError,
    InvalidTopicError,
    NoBrokersError,
    PylogbrokerError,
    RemoteError,
    UnknownOutcomeError,
    WireError,
)
from pylogbroker.net.deferreds import Waiters, gatherSettled
from pylogbroker.producer.accumulator import BatchAccumulator, PartitionBatch
from pylogbroker.producer.completion import Completions
from pylogbroker.producer.encoding import Encoding
from pylogbroker.producer.plugins import HandlerRunner
from pylogbroker.producer.routing import TopicRouter
from pylogbroker.protocol.brokercalls import offsetsCall
from pylogbroker.protocol.kafka07.requests import COUNT_MAX, encodeMultiProduce, encodeProduce
from pylogbroker.retry import PeriodicReconnect
from pylogbroker.types import LATEST, BrokerPartition

MOVE_COUNT_MAX = 10
"""How often messages may be routed again because their broker vanished before they were sent."""

Part = tuple[str, int, bytes]
"""Topic, partition, message set."""

log = Logger()


class RequestWriter:
    """
    Writes produce requests to one broker and, on request, confirms them. An event handler of the
    application gets one for each batch.
    """

    def __init__(
        self,
        clock: Any,
        client: BrokerClient,
        reconnectPolicy: PeriodicReconnect,
        *,
        isConfirming: bool,
        timeoutMs: float,
    ) -> None:
        """
        @param isConfirming: whether to confirm each request.
        @param timeoutMs: for a confirmation.
        """
        self.name = client.name
        self._clock = clock
        self._client = client
        self._reconnectPolicy = reconnectPolicy
        self._isConfirming = isConfirming
        self._timeoutMs = timeoutMs
        self._connection: ClientConnection | None = None

    def send(self, topic: str, partition: int, messageSet: bytes) -> Deferred[None]:
        """
        Send a PRODUCE request; see L{sendFrame}.

        @raise ValueError: the request exceeds a limit of the protocol.
        """
        return self.sendFrame(encodeProduce(topic, partition, messageSet), topic, partition)

    def multiSend(self, parts: Iterable[Part]) -> Deferred[None]:
        """
        Send a MULTIPRODUCE request, or several for more than 32,767 parts.

        @return: as of L{sendFrame}; fails with C{ValueError} if a request exceeds a limit of the
            protocol.
        """
        parts = list(parts)
        if not 0 < len(parts) <= COUNT_MAX:
            return Deferred.fromCoroutine(self._multiSend(parts))
        try:
            return self.sendFrame(encodeMultiProduce(parts), *parts[-1][:2])
        except ValueError:
            return fail()

    async def _multiSend(self, parts: list[Part]) -> None:
        for start in range(0, len(parts), COUNT_MAX):
            some = parts[start : start + COUNT_MAX]
            try:
                await self.sendFrame(encodeMultiProduce(some), *some[-1][:2])
            except PylogbrokerError as error:
                if not start or isinstance(error, UnknownOutcomeError):
                    raise
                raise self._unknown(error) from error  # the parts before were sent

    def sendFrame(self, frame: bytes, topic: str, partition: int) -> Deferred[None]:
        """
        Send one request. Requests keep the order of the calls.

        @param topic: one in the request.
        @param partition: one of that topic in the request; may be -1.
        @return: fires when the request is written, or confirmed. Fails with L{UnknownOutcomeError}
            when the broker may have it; with another L{PylogbrokerError} when nothing of it was
            sent. Cancelling fails it in one of these ways.
        """
        return Deferred.fromCoroutine(self._sendFrame(frame, topic, partition))

    async def _sendFrame(self, frame: bytes, topic: str, partition: int) -> None:
        connection = self._client.current
        if connection is None:
            try:
                connection = await self._client.connection()
            except CancelledError:
                raise ClosedError(f"there was no connection to {self.name} yet") from None
        try:
            if self._isConfirming:
                call = offsetsCall(topic, max(partition, 0), LATEST, 1)
                answer = connection.request(frame + call.frame, self._timeoutMs)
                self._onBegun(connection)
                data = await answer
                try:
                    call.decode(data)
                except RemoteError as error:  # it proves as much as any answer
                    log.warn(
                        "{name} answered the OFFSETS request behind a produce request with {error}",
                        name=self.name,
                        error=error,
                    )
                except WireError as error:
                    connection.drop(error)
                    raise
            else:
                written = connection.send(frame)
                self._onBegun(connection)
                await written
        except (BrokerConnectionError, WireError, CancelledError) as error:
            raise self._unknown(error) from error

    def _unknown(self, error: BaseException) -> UnknownOutcomeError:
        reason = "it was given up" if isinstance(error, CancelledError) else error
        return UnknownOutcomeError(f"whether {self.name} took a request is unknown: {reason}")

    def _onBegun(self, connection: ClientConnection) -> None:
        nowMs = self._clock.seconds() * 1000
        if connection is not self._connection:
            self._connection = connection
            self._reconnectPolicy.connected(nowMs)
        if self._reconnectPolicy.sent(nowMs):
            self._client.replace().addErrback(_logUncleanEnd, self.name)


class BrokerSender:
    """Sends the batches for one broker."""

    def __init__(self, owner: Sender, node: BrokerNode, requests: RequestWriter) -> None:
        self.node = node
        self.requests = requests
        self.accumulator: BatchAccumulator
        self._owner = owner

    async def send(
        self,
        batches: list[PartitionBatch],
        retriesLeft: int,
        moveCount: int = 0,
        isSync: bool = False,
    ) -> None:
        """
        Send batches in one request and complete their messages. A message that cannot be encoded
        fails alone. If the request fails, L{Sender.onFailed} decides.

        @param isSync: send all or none; a single batch in a PRODUCE request.
        """
        completions, requests = self._owner.completions, self.requests
        try:
            if isSync:
                parts = self._encodeAll(batches)
            else:
                parts, batches = self._encode(batches)
            if parts:
                completions.counters.batchCount += 1
                isSingle = isSync and len(parts) == 1
                await (requests.send(*parts[0]) if isSingle else requests.multiSend(parts))
        except PylogbrokerError as error:
            self._owner.onFailed(self, batches, error, retriesLeft, moveCount)
        except ValueError as error:
            tooLong = InvalidTopicError(f"the messages do not fit in a request: {error}")
            self._owner.onFailed(self, batches, tooLong, retriesLeft, moveCount)
        except Exception as error:
            log.failure("Sending to {name} failed unexpectedly", name=requests.name)
            unknown = UnknownOutcomeError(f"sending failed unexpectedly: {error!r}")
            completions.complete(batches, Failure(unknown))
        else:
            completions.complete(batches)

    def sendSync(self, batches: list[PartitionBatch]) -> Coroutine[Any, Any, None]:
        """Send batches as sync mode does, without a retry."""
        return self.send(batches, 0, MOVE_COUNT_MAX, isSync=True)

    def _encodeAll(self, batches: list[PartitionBatch]) -> list[Part]:
        encode = self._owner.encoding.encodeAll
        return [(each.topic, each.partition, encode(each.values, each.topic)) for each in batches]

    def _encode(self, batches: list[PartitionBatch]) -> tuple[list[Part], list[PartitionBatch]]:
        parts: list[Part] = []
        encoded: list[PartitionBatch] = []
        for batch in batches:
            try:
                data, refused = self._owner.encoding.encode(batch.values, batch.topic)
            except PylogbrokerError as error:
                self._owner.completions.complete([batch], Failure(error))
                continue
            if refused:
                for index, reason in refused.items():
                    self._owner.completions.complete([batch.select([index])], Failure(reason))
                batch = batch.select(at for at in range(len(batch)) if at not in refused)
            if batch.values:
                parts.append((batch.topic, batch.partition, data))
                encoded.append(batch)
        return parts, encoded


class Sender:
    """
    Gets messages to their brokers. Each message has its outcome in the end.

    @ivar brokers: those needed so far, by id.
    @ivar holds: topics of sync calls that wait for a look-up. Later calls for them wait, too, to
        keep their order.
    """

    def __init__(
        self,
        reactor: Any,
        settings: ProducerSettings,
        connectionPool: BrokerClientPool,
        router: TopicRouter,
        encoding: Encoding,
        completions: Completions,
        random: Callable[[], float],
        handlers: HandlerRunner | None = None,
    ) -> None:
        """
        @param random: numbers from 0 up to, not including, 1.
        @param handlers: called with the batches of async mode.
        """
        self.brokers: dict[int, BrokerSender] = {}
        self.holds: dict[str, Waiters[None]] = {}
        self._reactor = reactor
        self._settings = settings
        self._connectionPool = connectionPool
        self._router = router
        self.encoding = encoding
        self.completions = completions
        self._random = random
        self._handlers = handlers
        self._running: dict[Deferred[None], None] = {}

    def start(self, sending: Coroutine[Any, Any, None]) -> Deferred[None]:
        """Start a coroutine. Returns a Deferred that does not fail."""
        return Deferred.fromCoroutine(sending).addErrback(_logUnexpected)

    def run(self, sending: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine that L{cancel} ends."""
        running = self.start(sending)
        if not running.called:
            self._running[running] = None
            running.addBoth(lambda _result: self._running.pop(running))

    # -- brokers

    def get(self, number: int) -> BrokerSender:
        """
        The sender for a broker.

        @raise NoBrokersError: the broker is not alive.
        """
        if number in self.brokers:
            return self.brokers[number]
        settings, handlers = self._settings, self._handlers
        node = self._router.node(number)
        requests = RequestWriter(
            self._reactor,
            self._connectionPool.get(node.address),
            PeriodicReconnect(
                settings.reconnectInterval, settings.reconnectTimeIntervalMs, self._random
            ),
            isConfirming=settings.confirm,
            timeoutMs=settings.socketTimeoutMs,
        )
        sender = self.brokers[number] = BrokerSender(self, node, requests)
        sender.accumulator = BatchAccumulator(
            self._reactor,
            settings.batchSize,
            settings.batchBytes,
            settings.queueTime,
            partial(self._dispatch, sender),
            partial(handlers.poll, sender) if handlers is not None and handlers.isPolling else None,
        )
        return sender

    def onBrokerChange(self, number: int, _node: BrokerNode | None) -> None:
        sender = self.brokers.pop(number, None)
        if sender is None:
            return
        endpoint = sender.node.address
        if all(other.node.address != endpoint for other in self.brokers.values()):
            self._connectionPool.forget(endpoint).addErrback(_logUncleanEnd, endpoint)
        batches = sender.accumulator.close()
        if self._handlers is not None:
            batches = self._handlers.ungroup(batches)
        if batches:
            self._requeue(batches, number, self._settings.numRetries, self._sendFresh)

    def flush(self) -> None:
        for sender in list(self.brokers.values()):
            sender.accumulator.flush()

    def close(self) -> None:
        for sender in self.brokers.values():
            sender.accumulator.close()

    def abort(self, reason: PylogbrokerError) -> None:
        for sender in list(self.brokers.values()):
            self.completions.complete(sender.accumulator.close(), Failure(reason))

    def cancel(self) -> None:
        for running in list(self._running):
            running.cancel()

    # -- async mode

    def _dispatch(self, sender: BrokerSender, batches: list[PartitionBatch]) -> None:
        if self._handlers is None:
            self.start(sender.send(batches, self._settings.numRetries))
        else:
            self.run(self._sendFresh(sender, batches, self._settings.numRetries))

    async def _sendFresh(
        self, sender: BrokerSender, batches: list[PartitionBatch], retriesLeft: int
    ) -> None:
        if self._handlers is not None:
            batches = await self._handlers.beforeSending(sender, batches)
        await sender.send(batches, retriesLeft)

    def onFailed(
        self,
        sender: BrokerSender,
        batches: list[PartitionBatch],
        error: PylogbrokerError,
        retriesLeft: int,
        moveCount: int,
    ) -> None:
        number = sender.node.brokerId
        isMoved = (
            isinstance(error, ClosedError)
            and self.brokers.get(number) is not sender
            and moveCount < MOVE_COUNT_MAX
        )
        if self._router.isStopped or not (isMoved or retriesLeft):
            self.completions.complete(batches, Failure(error))
            return
        if not isMoved:
            retriesLeft -= 1
            self.completions.retry(batches, sender.node.address, error)
        send = partial(BrokerSender.send, moveCount=moveCount + 1)
        self._requeue(batches, number, retriesLeft, send)

    def _requeue(
        self,
        batches: list[PartitionBatch],
        brokerBefore: int,
        retriesLeft: int,
        send: Callable[..., Coroutine[Any, Any, None]],
    ) -> None:
        """
        Route messages again and send them, each topic as soon as it is looked up: otherwise later
        calls for it would overtake.

        @param brokerBefore: the broker to avoid if possible.
        @param send: called with a sender, batches and C{retriesLeft}.
        """
        byTopic: dict[str, PartitionBatch] = {}
        for batch in batches:
            byTopic.setdefault(batch.topic, PartitionBatch(batch.topic)).extend(batch)
        for batch in byTopic.values():
            self.run(self._requeueTopic(batch, brokerBefore, retriesLeft, send))

    async def _requeueTopic(
        self,
        batch: PartitionBatch,
        brokerBefore: int,
        retriesLeft: int,
        send: Callable[..., Coroutine[Any, Any, None]],
    ) -> None:
        byBroker = await self._route(_groupsByKey(batch), brokerBefore, retriesLeft)
        for number, groups in byBroker.items():
            merged: dict[int, PartitionBatch] = {}
            for group in groups:
                whole = PartitionBatch(group.topic, group.partition)
                merged.setdefault(group.partition, whole).extend(group)
            self.run(self._sendTo(number, list(merged.values()), send, retriesLeft))

    async def _route(
        self,
        groups: Iterable[PartitionBatch],
        brokerBefore: int | None = None,
        retriesLeft: int = 0,
    ) -> dict[int, list[PartitionBatch]]:
        """Choose the partition of each group. Returns the groups by broker."""
        byBroker: dict[int, list[PartitionBatch]] = {}
        topics: set[str] = set()
        for group in groups:
            isTheirTurn = group.topic in topics
            topics.add(group.topic)
            try:
                chosen = await self._lookUp(group, brokerBefore, isTheirTurn, retriesLeft)
            except Exception as error:  # a discovery of the application may raise anything
                self.completions.complete([group], Failure(error))
            else:
                group.partition = chosen.partition
                byBroker.setdefault(chosen.broker, []).append(group)
        return byBroker

    async def _lookUp(
        self, group: PartitionBatch, brokerBefore: int | None, isTheirTurn: bool, retriesLeft: int
    ) -> BrokerPartition:
        """A look-up that finds no broker counts as a retry."""
        while True:
            try:
                return await self._router.lookUp(
                    group.topic, group.keys[0], brokerBefore, isTheirTurn
                )
            except NoBrokersError as error:
                if not retriesLeft or self._router.isStopped:
                    raise
                retriesLeft -= 1
                self.completions.retry([group], f"topic {group.topic}", error)

    async def _sendTo(
        self,
        number: int,
        groups: list[PartitionBatch],
        send: Callable[..., Coroutine[Any, Any, None]],
        *arguments: int,
    ) -> None:
        try:
            sender = self.get(number)
        except PylogbrokerError as error:
            self.completions.complete(groups, Failure(error))
        else:
            await send(sender, groups, *arguments)

    # -- sync mode

    async def sendSync(self, groups: list[PartitionBatch]) -> None:
        """
        Send the messages of one sync call, one request for each broker.

        @param groups: batches of one topic and key each.
        """
        topics = {group.topic for group in groups}
        holds = {self.holds[topic] for topic in topics if topic in self.holds}
        mine: Waiters[None] = Waiters()
        if len(topics) > 1:
            self.holds.update(dict.fromkeys(topics, mine))
        await gatherSettled([hold.wait() for hold in holds])
        byBroker = await self._route(groups)
        for number, some in byBroker.items():
            self.run(self._sendTo(number, some, BrokerSender.sendSync))
        for topic in topics:
            if self.holds.get(topic) is mine:
                del self.holds[topic]
        mine.fire(None)


def _logUncleanEnd(failure: Failure, name: str) -> None:
    log.warn(
        "A connection to {name} did not end well: {reason}",
        name=name,
        reason=failure.getErrorMessage(),
    )


def _logUnexpected(failure: Failure) -> None:
    """Log an error that only a defect of ours can cause."""
    log.failure("Messages may be unaccounted for: a step of sending failed unexpectedly", failure)


def _groupsByKey(batch: PartitionBatch) -> Iterator[PartitionBatch]:
    keyless = [index for index, key in enumerate(batch.keys) if key is None]
    if keyless:
        yield batch.select(keyless)
    for index, key in enumerate(batch.keys):
        if key is not None:
            yield batch.select([index])
