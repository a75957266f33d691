"""
The methods by which a test orders faults from a broker: the same ones in the test's own reactor and
in a process of its own. Imports nothing but the standard library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

_F = TypeVar("_F")


class FaultInjection(ABC, Generic[_F]):
    """A broker with faults, for clients of today's protocol. The methods return a fault."""

    def injectError(
        self,
        request: str | int,
        error: str | int,
        topic: str | None = None,
        partition: int | None = None,
        count: int | None = 1,
    ) -> _F:
        """
        Answer requests with an error, and do not carry them out::

            broker.injectError("Produce", "NOT_ENOUGH_REPLICAS", topic="orders", count=2)

        @param request: its name in Kafka's protocol, or its key.
        @param error: its name, or its code.
        @param topic: only what concerns this topic; the rest of the request is carried out.
        @param partition: only what concerns this partition.
        @param count: requests that meet it; L{None}: all until it is cleared.
        @raise PylogbrokerError: there is no such request or error, or the request names no topics,
            partitions or errors.
        """
        return self._inject(
            request=request, error=error, topic=topic, partition=partition, count=count
        )

    def injectDelay(
        self,
        request: str | int,
        delayMs: int,
        topic: str | None = None,
        partition: int | None = None,
        count: int | None = 1,
    ) -> _F:
        """
        Answer late; the request is carried out at once. The other parameters are those of
        L{injectError}.

        @param delayMs: milliseconds.
        """
        return self._inject(
            request=request, delayMs=delayMs, topic=topic, partition=partition, count=count
        )

    def injectDisconnect(
        self,
        request: str | int,
        topic: str | None = None,
        partition: int | None = None,
        count: int | None = 1,
        isHandled: bool = False,
    ) -> _F:
        """
        Cut the connection instead of answering. The other parameters are those of L{injectError}.

        @param isHandled: whether the request is carried out, and only its answer is lost.
        """
        return self._inject(
            request=request, topic=topic, partition=partition, count=count, isHandled=isHandled
        )

    def moveLeader(self, topic: str, partition: int = 0, brokerId: int | None = None) -> int:
        """
        Let another broker lead a partition, with the next leader epoch. It has a port of its own,
        and the same data; clients find it by their metadata, and are refused by the old one with
        C{NOT_LEADER_OR_FOLLOWER}.

        @param brokerId: which; by default the next number after this broker's, or this broker, if
            another one leads.
        @return: the new leader.
        @raise PylogbrokerError: there is no such partition.
        """
        return self._moveLeader(topic=topic, partition=partition, brokerId=brokerId)

    @abstractmethod
    def clearFaults(self) -> None:
        """Forget all faults, and send late answers now. Leaders stay where they are."""

    @abstractmethod
    def cutConnections(self) -> None:
        """Cut all connections of clients, at once. They may connect again."""

    @abstractmethod
    def _inject(self, **fault: Any) -> _F:
        """
        @param fault: the parameters of L{FaultInjector.inject
            <pylogbroker.testing.faults.faultinjector.FaultInjector.inject>}.
        """

    @abstractmethod
    def _moveLeader(self, **leader: Any) -> int:
        """@param leader: the parameters of L{moveLeader}."""
