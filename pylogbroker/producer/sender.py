"""
From batches to requests: encoding, sending, trying again, and settling what came of it.

A message whose broker went before anything of it was sent is given a place anew; that is no retry. Nothing is sent twice but for C{num.retries}, and then the
log says so.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, DeferredList, maybeDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import (
    ClosedError,
    InvalidTopicError,
    NoBrokersError,
    PylogbrokerError,
    UnknownOutcomeError,
)
from pylogbroker.producer.batches import PartitionBatch, QueueItem, groupByPartition, itemsOf
from pylogbroker.producer.brokersender import Part
from pylogbroker.producer.brokersenders import BrokerSender, BrokerSenders
from pylogbroker.producer.completion import Completions
from pylogbroker.producer.encoding import Encoding
from pylogbroker.producer.hooks import HookRunner, IEventSender
from pylogbroker.producer.topicrouter import TopicRouter
from pylogbroker.protocol.kafka07.requests import COUNT_MAX, encodeMultiProduce, encodeProduce
from pylogbroker.types import BrokerPartition

MOVE_COUNT_MAX = 10
"""How often messages that were never sent may be given a place anew because their broker went."""

Deliver = Callable[[BrokerSender, list[PartitionBatch], int], Coroutine[Any, Any, None]]
"""Sends messages that have been given a place anew; called with how many more tries they have."""

log = Logger()


class Sender:
    """
    Delivers messages that are in the queue. All of them are settled, whatever happens.
    """

    def __init__(
        self,
        encoding: Encoding,
        places: TopicRouter,
        ways: BrokerSenders,
        outcomes: Completions,
        retryCount: int,
        hooks: HookRunner | None = None,
        eventSender: IEventSender | None = None,
    ) -> None:
        """
        @param retryCount: how often what failed is tried again, in async mode.
        @param hooks: asked before a batch is sent.
        @param eventSender: sends batches instead.
        """
        self._encoding = encoding
        self._places = places
        self._ways = ways
        self._outcomes = outcomes
        self._retryCount = retryCount
        self._hooks = hooks
        self._eventSender = eventSender
        self._deliveries: dict[Deferred[None], None] = {}
        # Sync: the topics of calls for several, which wait for all of these to be looked up. Calls for one of them wait behind, or they would overtake.
        self._holds: dict[str, Deferred[None]] = {}

    def carryOn(self, delivering: Coroutine[Any, Any, None]) -> None:
        """Carry on with a coroutine that settles its messages itself."""
        delivery = Deferred.fromCoroutine(delivering)
        if not delivery.called:
            self._deliveries[delivery] = None
        delivery.addBoth(self._delivered, delivery)

    def _delivered(self, result: Any, delivery: Deferred[None]) -> None:
        self._deliveries.pop(delivery, None)
        if isinstance(result, Failure):
            log.failure(
                "This should not have happened; messages may be unaccounted for", failure=result
            )

    def cancel(self) -> None:
        """All that is being delivered has failed, or is unknown."""
        for delivery in list(self._deliveries):
            delivery.cancel()

    # -- async --------------------------------------------------------------------------------------------------------

    def batch(self, way: BrokerSender, batches: list[PartitionBatch]) -> None:
        """A lane has a batch."""
        self.carryOn(self._deliverBatch(way, batches, self._retryCount))

    def anew(self, number: int, batches: list[PartitionBatch]) -> None:
        """A broker has gone, and left these: no hook has seen them in a batch, and nothing has tried to send them."""
        self.carryOn(
            self._deliverAnew(itemsOf(batches), number, self._retryCount, self._deliverBatch)
        )

    async def _deliverBatch(
        self, way: BrokerSender, batches: list[PartitionBatch], retriesLeft: int
    ) -> None:
        if self._eventSender is not None:
            await self._deliverForeign(self._eventSender, way, itemsOf(batches))
            return
        if self._hooks is not None:
            batches = groupByPartition(self._hooks.beforeSending(itemsOf(batches)))
        await self._deliverBatches(way, batches, retriesLeft, 0)

    async def _deliverForeign(
        self, eventSender: IEventSender, way: BrokerSender, items: list[QueueItem]
    ) -> None:
        self._outcomes.counters.batchCount += 1
        try:
            await maybeDeferred(
                eventSender.handle, list(items), way.carrier, self._encoding.encoder
            )
        except CancelledError:
            self._outcomes.settle(
                items,
                Failure(UnknownOutcomeError("the event sender did not come to an end in time")),
            )
        except Exception as error:
            self._outcomes.settle(items, Failure(error))
        else:
            self._outcomes.settle(items)

    def _encoded(self, batches: list[PartitionBatch]) -> tuple[list[Part], list[PartitionBatch]]:
        """Message sets by topic and partition, and the messages in them; those that cannot be sent are settled."""
        encoding, settle = self._encoding, self._outcomes.settle
        parts: list[Part] = []
        sent: list[PartitionBatch] = []
        for batch in batches:
            topic, partition, payloads = batch.topic, batch.partition, batch.values
            if not encoding.arePlain(payloads, topic):
                batch, payloads = self._sorted(batch, encoding.payloads(payloads, topic))
            try:
                data, refused = encoding.pack(payloads, topic)
            except PylogbrokerError as error:
                settle(batch.items(), Failure(error))
                continue
            if refused:
                batch = self._without(batch, refused)
            if batch.values:
                parts.append((topic, partition, data))
                sent.append(batch)
        return parts, sent

    def _sorted(
        self, batch: PartitionBatch, payloads: Sequence[bytes | PylogbrokerError]
    ) -> tuple[PartitionBatch, list[bytes]]:
        """Those that have a payload, and these; the others are settled."""
        refused = {
            index: payload
            for index, payload in enumerate(payloads)
            if isinstance(payload, PylogbrokerError)
        }
        return self._without(batch, refused), [
            payload for payload in payloads if not isinstance(payload, PylogbrokerError)
        ]

    def _without(
        self, batch: PartitionBatch, refused: Mapping[int, PylogbrokerError]
    ) -> PartitionBatch:
        """A batch without those that cannot be sent; they are settled."""
        items = batch.items()
        for index, why in refused.items():
            self._outcomes.settle([items[index]], Failure(why))
        return PartitionBatch(
            batch.topic,
            batch.partition,
            [item for index, item in enumerate(items) if index not in refused],
        )

    async def _deliverBatches(
        self, way: BrokerSender, batches: list[PartitionBatch], retriesLeft: int, moveCount: int
    ) -> None:
        """Encode and send, and settle or try again."""
        outcomes = self._outcomes
        parts, batches = self._encoded(batches)
        if not batches:
            return
        outcomes.counters.batchCount += 1
        try:
            await self._sendParts(way, parts)
        except PylogbrokerError as error:
            number, items = way.broker.brokerId, itemsOf(batches)
            isMoved = (
                isinstance(error, ClosedError)
                and self._ways.byNumber.get(number) is not way
                and moveCount < MOVE_COUNT_MAX
            )
            if self._places.isStopped or not (isMoved or retriesLeft):
                outcomes.settle(items, Failure(error))
                return
            if not isMoved:
                retriesLeft -= 1
                outcomes.retried(items, way.broker.endpoint, error)
            await self._deliverAnew(
                items, number, retriesLeft, partial(self._deliverBatches, moveCount=moveCount + 1)
            )
        except Exception as error:
            log.failure("This should not have happened")
            outcomes.settle(
                itemsOf(batches),
                Failure(UnknownOutcomeError(f"sending failed in an unforeseen way: {error!r}")),
            )
        else:
            outcomes.sent(batches)

    async def _sendParts(self, way: BrokerSender, parts: list[Part]) -> None:
        if len(parts) > COUNT_MAX:
            await way.carrier.multiSend(parts)
            return
        try:
            frame = encodeMultiProduce(parts)
        except ValueError as error:
            raise InvalidTopicError(f"a batch does not fit in a request: {error}") from error
        await way.carrier.carry(frame, *parts[-1][:2])

    async def _deliverAnew(
        self, items: list[QueueItem], brokerBefore: int, retriesLeft: int, deliver: Deliver
    ) -> None:
        """
        Give messages a place anew, away from the broker before if there is a choice, and send them. Each topic goes by itself, as soon as its place is known:
        whoever waited for another one would be overtaken meanwhile.
        """
        byTopic: dict[str, list[QueueItem]] = {}
        for item in items:
            byTopic.setdefault(item.topic, []).append(item)
        deliveries = [
            self._deliverTopicAnew(group, brokerBefore, retriesLeft, deliver)
            for group in byTopic.values()
        ]
        await DeferredList([Deferred.fromCoroutine(delivery) for delivery in deliveries])

    async def _deliverTopicAnew(
        self, items: list[QueueItem], brokerBefore: int, retriesLeft: int, deliver: Deliver
    ) -> None:
        groups: dict[int, list[QueueItem]] = {}
        keyless = [item for item in items if item.key is None]
        isTheirTurn = False
        for some in ([keyless] if keyless else []) + [
            [item] for item in items if item.key is not None
        ]:
            try:
                place = await self._placeAnew(some, brokerBefore, isTheirTurn, retriesLeft)
            except Exception as error:  # of a discovery of the application's own, too
                self._outcomes.settle(some, Failure(error))
            else:
                for item in some:
                    item.partition = place.partition
                groups.setdefault(place.broker, []).extend(some)
            isTheirTurn = True
        sendings = []
        for number, group in groups.items():
            try:
                way = self._ways.to(number)
            except PylogbrokerError as error:
                self._outcomes.settle(group, Failure(error))
            else:
                sendings.append(
                    Deferred.fromCoroutine(deliver(way, groupByPartition(group), retriesLeft))
                )
        await DeferredList(sendings)

    async def _placeAnew(
        self, items: list[QueueItem], brokerBefore: int, isTheirTurn: bool, retriesLeft: int
    ) -> BrokerPartition:
        """A place for messages of one topic and key; when no broker is there to be found, that is a try, too."""
        topic, key = items[0].topic, items[0].key
        while True:
            try:
                return await self._places.lookUp(topic, key, brokerBefore, isTheirTurn)
            except NoBrokersError as error:
                if not retriesLeft or self._places.isStopped:
                    raise
                retriesLeft -= 1
                self._outcomes.retried(items, f"topic {topic}", error)

    # -- sync ---------------------------------------------------------------------------------------------------------

    def now(self, groups: list[PartitionBatch]) -> None:
        """Messages, those of one topic and key together: one request for each broker."""
        self.carryOn(self._deliverNow(groups))

    async def _deliverNow(self, groups: list[PartitionBatch]) -> None:
        topics = {group.topic for group in groups}
        holds = list(
            {id(hold): hold for hold in map(self._holds.get, topics) if hold is not None}.values()
        )
        mine: Deferred[None] = Deferred()
        if len(topics) > 1:
            self._holds.update(dict.fromkeys(topics, mine))
        try:
            for hold in holds:
                await _after(hold)
            byBroker = await self._placed(groups)
        except CancelledError:
            self._outcomes.settle(itemsOf(groups), Failure(ClosedError("sending was given up")))
            byBroker = {}
        sendings = [
            Deferred.fromCoroutine(self._sendNow(number, some)) for number, some in byBroker.items()
        ]
        for topic in topics:
            if self._holds.get(topic) is mine:
                del self._holds[topic]
        mine.callback(None)
        await DeferredList(sendings)

    async def _placed(self, groups: list[PartitionBatch]) -> dict[int, list[PartitionBatch]]:
        """What goes to each broker; those that have no place are settled."""
        byBroker: dict[int, list[PartitionBatch]] = {}
        topics: set[str] = set()
        for group in groups:
            isTheirTurn = group.topic in topics
            topics.add(group.topic)
            try:
                place = await self._places.lookUp(group.topic, group.keys[0], None, isTheirTurn)
            except Exception as error:  # of a discovery of the application's own, too
                self._outcomes.settle(group.items(), Failure(error))
            else:
                group.moveTo(place.partition)
                byBroker.setdefault(place.broker, []).append(group)
        return byBroker

    async def _sendNow(self, number: int, groups: list[PartitionBatch]) -> None:
        try:
            way = self._ways.to(number)
            parts = [
                (
                    group.topic,
                    group.partition,
                    self._encoding.messageSetOf(group.values, group.topic),
                )
                for group in groups
            ]
            self._outcomes.counters.batchCount += 1
            if len(parts) == 1:
                await way.carrier.carry(encodeProduce(*parts[0]), *parts[0][:2])
            else:
                await self._sendParts(way, parts)
        except PylogbrokerError as error:
            self._outcomes.settle(itemsOf(groups), Failure(error))
        except ValueError as error:
            self._outcomes.settle(
                itemsOf(groups),
                Failure(InvalidTopicError(f"it does not fit in a request: {error}")),
            )
        else:
            self._outcomes.sent(groups)


def _after(hold: Deferred[None]) -> Deferred[None]:
    """Fires with another one, which others may wait for, too."""
    turn: Deferred[None] = Deferred()
    hold.addCallback(lambda _nothing: None if turn.called else turn.callback(None))
    return turn
