"""
The brokers of one producer, and messages that need more than one batch or request. A module of its
own, since the promises about order and repetition depend on it.

  - A broker vanishes or moves. Messages that wait for their batch or for its connection are routed
    again. This is not a retry: nothing of them was sent. (0.7 keeps the old connection; gotcha 39.)
  - A request fails. Its messages are routed again up to C{num.retries} times, if possible to
    another broker. Nothing else is ever sent twice, and the log says so.
  - A call in sync mode makes one request per broker.
  - Handlers of the application see batches before they are sent (L{pylogbroker.producer.plugins}).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.brokerclientpool import BrokerClientPool
from pylogbroker.client.discovery import BrokerNode
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.errors import ClosedError, NoBrokersError, PylogbrokerError
from pylogbroker.net.deferreds import Waiters, gatherSettled
from pylogbroker.producer.accumulator import BatchAccumulator, PartitionBatch
from pylogbroker.producer.brokersender import BrokerSender, RequestSender, logUnexpected
from pylogbroker.producer.completion import Completions
from pylogbroker.producer.encoding import Encoding
from pylogbroker.producer.plugins import HandlerRunner
from pylogbroker.producer.routing import TopicRouter
from pylogbroker.retry import PeriodicReconnect
from pylogbroker.types import BrokerPartition

MOVE_COUNT_MAX = 10
"""How often messages may be routed again because their broker vanished before they were sent."""

_Send = Callable[[BrokerSender, list[PartitionBatch], int], Coroutine[Any, Any, None]]
"""Sends batches to a broker, with the number of retries that are left."""

log = Logger()


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
        self._encoding = encoding
        self._completions = completions
        self._random = random
        self._handlers = handlers
        self._running: dict[Deferred[None], None] = {}

    def run(self, sending: Coroutine[Any, Any, None]) -> None:
        running = Deferred.fromCoroutine(sending)
        if not running.called:
            self._running[running] = None
        running.addErrback(logUnexpected).addBoth(self._ended, running)

    def _ended(self, _result: None, running: Deferred[None]) -> None:
        self._running.pop(running, None)

    # -- brokers

    def get(self, number: int) -> BrokerSender:
        """
        The sender for a broker.

        @raise NoBrokersError: the broker is not alive.
        """
        sender = self.brokers.get(number)
        return self._open(number) if sender is None else sender

    def _open(self, number: int) -> BrokerSender:
        settings, handlers = self._settings, self._handlers
        node = self._router.node(number)
        requests = RequestSender(
            self._reactor,
            self._connectionPool.get(node.endpoint),
            PeriodicReconnect(
                settings.reconnectInterval, settings.reconnectTimeIntervalMs, self._random
            ),
            isConfirming=settings.confirm,
            timeoutMs=settings.socketTimeoutMs,
        )
        sender = BrokerSender(
            node, requests, self._encoding, self._completions, settings.numRetries, self._onFailed
        )
        sender.accumulator = BatchAccumulator(
            self._reactor,
            settings.batchSize,
            settings.batchBytes,
            settings.queueTime,
            sender.dispatch if handlers is None else partial(self._dispatchHandled, sender),
            partial(handlers.poll, sender) if handlers is not None and handlers.isPolling else None,
        )
        self.brokers[number] = sender
        return sender

    def onBrokerChange(self, number: int, _node: BrokerNode | None) -> None:
        sender = self.brokers.pop(number, None)
        if sender is None:
            return
        endpoint = sender.node.endpoint
        if all(other.node.endpoint != endpoint for other in self.brokers.values()):
            self._connectionPool.forget(endpoint).addErrback(self._logNotClosed, endpoint)
        batches = sender.accumulator.close()
        if self._handlers is not None:
            batches = self._handlers.ungroup(batches)
        if batches:
            self.run(self._requeue(batches, number, self._settings.numRetries, self._sendFresh))

    def _logNotClosed(self, failure: Failure, endpoint: str) -> None:
        log.warn(
            "The connection to {endpoint} did not end well: {reason}",
            endpoint=endpoint,
            reason=failure.getErrorMessage(),
        )

    def flush(self) -> None:
        for sender in list(self.brokers.values()):
            sender.accumulator.flush()

    def close(self) -> None:
        for sender in self.brokers.values():
            sender.accumulator.close()

    def abort(self, reason: PylogbrokerError) -> None:
        for sender in list(self.brokers.values()):
            self._completions.complete(sender.accumulator.close(), Failure(reason))

    def cancel(self) -> None:
        for running in list(self._running):
            running.cancel()

    # -- async mode

    def _dispatchHandled(self, sender: BrokerSender, batches: list[PartitionBatch]) -> None:
        self.run(self._sendFresh(sender, batches, self._settings.numRetries))

    async def _sendFresh(
        self, sender: BrokerSender, batches: list[PartitionBatch], retriesLeft: int
    ) -> None:
        if self._handlers is not None:
            batches = await self._handlers.beforeSending(sender, batches)
        await sender.send(batches, retriesLeft)

    async def _onFailed(
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
            self._completions.complete(batches, Failure(error))
            return
        if not isMoved:
            retriesLeft -= 1
            self._completions.retry(batches, sender.node.endpoint, error)
        send = partial(BrokerSender.send, moveCount=moveCount + 1)
        await self._requeue(batches, number, retriesLeft, send)

    async def _requeue(
        self,
        batches: list[PartitionBatch],
        brokerBefore: int,
        retriesLeft: int,
        send: _Send,
    ) -> None:
        """
        Route messages again and send them, each topic as soon as it is looked up: otherwise later
        calls for it would overtake.

        @param brokerBefore: the broker to avoid if possible.
        """
        byTopic: dict[str, PartitionBatch] = {}
        for batch in batches:
            byTopic.setdefault(batch.topic, PartitionBatch(batch.topic)).extend(batch)
        await gatherSettled(
            [
                self._requeueTopic(batch, brokerBefore, retriesLeft, send)
                for batch in byTopic.values()
            ]
        )

    async def _requeueTopic(
        self,
        batch: PartitionBatch,
        brokerBefore: int,
        retriesLeft: int,
        send: _Send,
    ) -> None:
        byBroker: dict[int, dict[int, PartitionBatch]] = {}
        isFirst = True
        for group in _groupsByKey(batch):
            try:
                chosen = await self._lookUp(group, brokerBefore, not isFirst, retriesLeft)
            except Exception as error:  # a discovery of the application may raise anything
                self._completions.complete([group], Failure(error))
            else:
                group.partition = chosen.partition
                partitions = byBroker.setdefault(chosen.broker, {})
                if chosen.partition in partitions:
                    partitions[chosen.partition].extend(group)
                else:
                    partitions[chosen.partition] = group
            isFirst = False
        sendings: list[Deferred[None]] = []
        for number, partitions in byBroker.items():
            groups = list(partitions.values())
            try:
                sendings.append(Deferred.fromCoroutine(send(self.get(number), groups, retriesLeft)))
            except PylogbrokerError as error:
                self._completions.complete(groups, Failure(error))
        await gatherSettled(sendings)

    async def _lookUp(
        self, group: PartitionBatch, brokerBefore: int, isTheirTurn: bool, retriesLeft: int
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
                self._completions.retry([group], f"topic {group.topic}", error)

    # -- sync mode

    def sendSync(self, groups: list[PartitionBatch]) -> None:
        """
        Send the messages of one sync call, one request for each broker.

        @param groups: batches of one topic and key each.
        """
        self.run(self._sendSync(groups))

    async def _sendSync(self, groups: list[PartitionBatch]) -> None:
        topics = {group.topic for group in groups}
        holds = {self.holds[topic] for topic in topics if topic in self.holds}
        mine: Waiters[None] = Waiters()
        if len(topics) > 1:
            self.holds.update(dict.fromkeys(topics, mine))
        await gatherSettled([hold.wait() for hold in holds])
        byBroker = await self._routeSync(groups)
        sendings = [self._sendSyncTo(number, some) for number, some in byBroker.items()]
        settled = Deferred.fromCoroutine(gatherSettled(sendings))
        for topic in topics:
            if self.holds.get(topic) is mine:
                del self.holds[topic]
        mine.fire(None)
        await settled

    async def _routeSync(self, groups: list[PartitionBatch]) -> dict[int, list[PartitionBatch]]:
        byBroker: dict[int, list[PartitionBatch]] = {}
        topics: set[str] = set()
        for group in groups:
            isTheirTurn = group.topic in topics
            topics.add(group.topic)
            try:
                chosen = await self._router.lookUp(group.topic, group.keys[0], None, isTheirTurn)
            except Exception as error:  # a discovery of the application may raise anything
                self._completions.complete([group], Failure(error))
            else:
                group.partition = chosen.partition
                byBroker.setdefault(chosen.broker, []).append(group)
        return byBroker

    async def _sendSyncTo(self, number: int, groups: list[PartitionBatch]) -> None:
        try:
            sender = self.get(number)
        except PylogbrokerError as error:
            self._completions.complete(groups, Failure(error))
        else:
            await sender.sendSync(groups)


def _groupsByKey(batch: PartitionBatch) -> Iterator[PartitionBatch]:
    keyless = [index for index, key in enumerate(batch.keys) if key is None]
    if keyless:
        yield batch.select(keyless)
    for index, key in enumerate(batch.keys):
        if key is not None:
            yield batch.select([index])
