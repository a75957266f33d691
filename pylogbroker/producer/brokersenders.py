"""
The ways to the brokers: what collects for each, and what takes it there.

A broker that vanishes or moves takes nothing with it that has not been sent: what its lane held is given back. (0.7 keeps the old connection
for ever; gotcha 39.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.client.connectionpool import ConnectionPool
from pylogbroker.client.discovery import BrokerNode
from pylogbroker.config.producersettings import ProducerSettings
from pylogbroker.errors import NoBrokersError
from pylogbroker.producer.accumulator import BatchAccumulator
from pylogbroker.producer.batches import PartitionBatch
from pylogbroker.producer.brokersender import ConfirmingSender
from pylogbroker.retry import ReconnectPolicy

log = Logger()


class BrokerSender:
    """
    To one broker.

    @ivar broker: where it is.
    @ivar carrier: takes requests there.
    @ivar lane: what collects for it.
    """

    __slots__ = ("broker", "carrier", "lane")

    def __init__(self, broker: BrokerNode, carrier: ConfirmingSender) -> None:
        self.broker = broker
        self.carrier = carrier
        self.lane: BatchAccumulator


class BrokerSenders:
    """
    One to each broker that anything was sent to.

    @ivar byNumber: those there are, by the broker's number. Not to be changed.
    """

    def __init__(
        self,
        reactor: Any,
        settings: ProducerSettings,
        connections: ConnectionPool,
        brokers: Callable[[], Mapping[int, BrokerNode]],
        random: Callable[[], float],
        *,
        dispatch: Callable[[BrokerSender, list[PartitionBatch]], None],
        abandoned: Callable[[int, list[PartitionBatch]], None],
        makeLane: Callable[..., BatchAccumulator] = BatchAccumulator,
    ) -> None:
        """
        @param brokers: asked for those that are alive.
        @param random: numbers from 0 up to, not including, 1.
        @param dispatch: called with a batch and its way.
        @param abandoned: called with a broker's number and the messages that a lane still held when it went.
        @param makeLane: called as L{BatchAccumulator}.
        """
        self.byNumber: dict[int, BrokerSender] = {}
        self._reactor = reactor
        self._settings = settings
        self._connections = connections
        self._brokers = brokers
        self._random = random
        self._dispatch = dispatch
        self._abandoned = abandoned
        self._makeLane = makeLane

    def to(self, number: int) -> BrokerSender:
        """
        @raise NoBrokersError: there is no such broker (any more).
        """
        way = self.byNumber.get(number)
        return self._make(number) if way is None else way

    def _make(self, number: int) -> BrokerSender:
        broker = self._brokers().get(number)
        if broker is None:
            raise NoBrokersError(f"broker {number} is not there")
        settings = self._settings
        rule = ReconnectPolicy(
            settings.reconnectIntervalCount, settings.reconnectTimeIntervalMs, self._random
        )
        link = self._connections.get(broker.endpoint)
        way = BrokerSender(
            broker,
            ConfirmingSender(
                self._reactor,
                link,
                rule,
                isConfirming=settings.isConfirming,
                timeoutMs=settings.timeoutMs,
            ),
        )
        way.lane = self._makeLane(
            self._reactor, settings.batchCount, settings.batchSizeMax, settings.queueTimeMs, lambda batches: self._dispatch(way, batches)
        )  # fmt: skip
        self.byNumber[number] = way
        return way

    def changed(self, number: int, _broker: BrokerNode | None) -> None:
        """A broker came, went or moved (a L{pylogbroker.client.discovery.Listener})."""
        way = self.byNumber.pop(number, None)
        if way is None:
            return
        if all(other.broker.endpoint != way.broker.endpoint for other in self.byNumber.values()):
            self._connections.forget(way.broker.endpoint).addErrback(
                self._notClosed, way.broker.endpoint
            )
        batches = way.lane.stop()
        if batches:
            self._abandoned(number, batches)

    def _notClosed(self, failure: Failure, endpoint: str) -> None:
        log.warn(
            "The connection to {endpoint} did not end well: {reason}",
            endpoint=endpoint,
            reason=failure.getErrorMessage(),
        )

    def flush(self) -> None:
        """What has been collected is not to wait for more."""
        for way in list(self.byNumber.values()):
            way.lane.flush()
