"""
The connections of a stream manager, each with what it knows of the process at its other end. A
module of its own, since they are handshakes and numbers; L{StreamManager} routes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import Logger

from pylogbroker.errors import WireError
from pylogbroker.net.timer import Timer
from pylogbroker.topologies.connection import TopologyClient, TopologyConnection
from pylogbroker.topologies.control import HELLO_SECONDS_MAX
from pylogbroker.topologies.link import LinkReceiver
from pylogbroker.topologies.messages import (
    BackPressure,
    Confirm,
    Control,
    Hello,
    PlanPushed,
    Refused,
    Welcome,
    batchNumber,
)
from pylogbroker.topologies.plan import InstancePlan
from pylogbroker.topologies.streammanager.destination import Destination

if TYPE_CHECKING:
    from pylogbroker.topologies.streammanager.manager import StreamManager

log = Logger()

SENDER_COUNT_MAX = 16
"""Processes, one after the other, that are remembered: what they have said may arrive late."""


class AcceptedConnection:
    """A connection that another process has made, until and after it has said who it is."""

    def __init__(self, manager: StreamManager) -> None:
        self._manager = manager
        self._end: InstanceEnd | PeerEnd | None = None
        self._hello: Hello | None = None
        self._connection: TopologyConnection | None = None
        self._timer = Timer(manager.clock)

    def connected(self, connection: TopologyConnection) -> None:
        """See C{IFrameHandler}."""
        self._connection = connection
        self._manager.opened(self)
        self._timer.start(HELLO_SECONDS_MAX * 1000, self.close, "it does not say who it is")

    def close(self, reason: str) -> None:
        """Close it."""
        if self._connection is not None:
            self._connection.close(reason)

    def greetNow(self) -> None:
        """There is a plan: welcome one that waits for it."""
        if self._hello is not None and self._end is None and self._connection is not None:
            try:
                self._end = self._manager.greet(self._connection, self._hello)
            except WireError as error:
                self._connection.close(str(error))

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        """See C{IFrameHandler}."""
        if self._end is not None:
            self._end.controlReceived(message)
        elif self._hello is None and isinstance(message, Hello):
            self._timer.stop()
            self._hello = message
            self.greetNow()
        else:
            raise WireError(f"a {type(message).__name__} before the welcome")

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        """See C{IFrameHandler}."""
        if self._end is None:
            raise WireError("a batch before the welcome")
        self._end.batchReceived(body)

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        """See C{IFrameHandler}."""
        self._timer.stop()
        self._manager.closed(self)
        self._connection = None
        if self._end is not None:
            self._end.left(connection, reason)


class _Sender:
    """
    A process that has connected.

    @ivar attempt: counts its connections.
    """

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.receiver = LinkReceiver()
        self.attempt = 0


class BatchSource:
    """
    What sends batches to a stream manager: an instance, or another stream manager.

    What a process says on a connection that it has given up may arrive behind what it says on the
    next one. What it has said before it died may arrive behind what its successor says. So the
    latest attempt of the process that was seen last counts; a former process is taken only while
    there is no connection.
    """

    def __init__(self, manager: StreamManager) -> None:
        self._manager = manager
        self._senders: list[_Sender] = [_Sender(0)]  # in the order in which they were seen first
        self._current = self._senders[0]
        self._connection: TopologyConnection | None = None

    @property
    def receiver(self) -> LinkReceiver:
        """Of the process that sends now."""
        return self._current.receiver

    def begin(self, connection: TopologyConnection, hello: Hello) -> None:
        """
        It has connected: welcome it.

        @raise WireError: it has connected again since, or a later process of it has.
        """
        senders, current = self._senders, self._current
        found = next((each for each in senders if each.incarnation == hello.incarnation), None)
        if found is None:
            found = _Sender(hello.incarnation)
            senders.append(found)
            if len(senders) > SENDER_COUNT_MAX:
                senders.remove(next(each for each in senders if each is not current))
        elif found is current and hello.attempt < found.attempt:
            raise WireError("it has connected again since")
        elif self._connection is not None and senders.index(found) < senders.index(current):
            raise WireError("a later process of it has connected since")
        found.attempt = hello.attempt
        self._current = found
        former, self._connection = self._connection, connection
        if former is not None:
            former.abort("it has connected again")
        connection.send(Welcome(self._manager.incarnation, found.receiver.received))

    def batchReceived(self, body: bytes) -> None:
        """
        Route a batch that was not there before.

        @raise WireError: it is not whole.
        """
        number = batchNumber(body)
        if self.receiver.accept(number, len(body)):
            self._manager.route(body)
            self._settle(number)
        else:
            self._manager.counts["batches again"] += 1
        self._manager.confirmSoon(self)

    def _settle(self, number: int) -> None:
        self.receiver.settle(number)

    def confirm(self) -> None:
        """Tell the sender what is settled."""
        if self._connection is not None:
            number = self.receiver.takeConfirm()
            if number is not None:
                self._connection.send(Confirm(number))


class PeerEnd(BatchSource):
    """Another stream manager, which sends."""

    def __init__(self, manager: StreamManager, container: int) -> None:
        super().__init__(manager)
        self._container = container

    def controlReceived(self, message: Control) -> None:
        """
        See C{IFrameHandler}.

        @raise WireError: it is none that a stream manager sends.
        """
        if not isinstance(message, BackPressure):
            raise WireError(f"a {type(message).__name__} from a stream manager")
        self._manager.pressure.setPeer(self._container, message.isOn)

    def left(self, connection: TopologyConnection, reason: str) -> None:
        """The connection is gone, and with it what the other one has asked for."""
        if connection is self._connection:
            self._connection = None
            self._manager.pressure.setPeer(self._container, False)


class InstanceEnd(BatchSource):
    """
    An instance, which sends and gets.

    @ivar destination: its queue.
    @ivar isSpout: whether back pressure stops it.
    """

    def __init__(self, manager: StreamManager, destination: Destination) -> None:
        super().__init__(manager)
        self.destination = destination
        self.isSpout = False

    def setPlan(self, plan: InstancePlan) -> None:
        """A plan says what it is."""
        self.isSpout = plan.isSpout
        self.destination.name = plan.component
        self.destination.isPressing = not plan.isSpout

    def begin(self, connection: TopologyConnection, hello: Hello) -> None:
        """
        It has connected: welcome it.

        @raise WireError: as L{BatchSource.begin}, or it claims a batch that was not sent to it.
        """
        manager = self._manager
        super().begin(connection, hello)
        if hello.incarnation != self.destination.incarnation:
            manager.forgetTrees(hello.id)
        if manager.plan is not None:
            connection.send(PlanPushed(manager.plan))
        if self.isSpout and manager.areSpoutsStopped:
            connection.send(BackPressure(manager.container, True))
        isKnown = hello.peer in (0, manager.incarnation)
        self.destination.begin(connection, hello.incarnation, isKnown, hello.received)
        manager.whenInstancesChange()

    def controlReceived(self, message: Control) -> None:
        """
        See C{IFrameHandler}.

        @raise WireError: it is none that an instance sends.
        """
        if not isinstance(message, Confirm):
            raise WireError(f"a {type(message).__name__} from an instance")
        self.destination.confirm(message.number)

    def _settle(self, number: int) -> None:
        if not (self.isSpout and self._manager.areSpoutsStopped):
            self.receiver.settle(number)

    def tellPressure(self) -> None:
        """Stop the spout, or let it go on; what was withheld is confirmed."""
        isOn = self._manager.areSpoutsStopped
        if self._connection is not None:
            self._connection.send(BackPressure(self._manager.container, isOn))
        if not isOn:
            self.receiver.settle(self.receiver.received)
            self._manager.confirmSoon(self)

    def left(self, connection: TopologyConnection, reason: str) -> None:
        """The connection is gone."""
        if connection is self._connection:
            self._connection = None
            self.destination.leave()
            self._manager.whenInstancesChange()
            log.info("{name}: {reason}", name=self.destination.name, reason=reason)


class PeerSender:
    """
    Another stream manager, to which batches are sent.

    @ivar destination: its queue.
    @ivar client: keeps the connection.
    """

    def __init__(
        self,
        manager: StreamManager,
        destination: Destination,
        endpointTo: Callable[[str], IStreamClientEndpoint],
        random: Callable[[], float],
    ) -> None:
        """
        @param endpointTo: makes an endpoint of C{host:port}.
        @param random: numbers from 0 up to, not including, 1.
        """
        self.destination = destination
        self.client = TopologyClient(manager.clock, endpointTo, self, random)
        self._manager = manager

    def stop(self) -> None:
        """It is no stream manager of the topology any more."""
        self.client.goTo(None)
        self.destination.close("it is not in the plan")

    def tellPressure(self) -> None:
        """Tell it whether a queue here is too long."""
        if self.destination.connection is not None:
            manager = self._manager
            message = BackPressure(manager.container, manager.pressure.isInitiated)
            self.destination.connection.send(message)

    def connected(self, connection: TopologyConnection) -> None:
        """See C{IFrameHandler}."""
        connection.send(self._manager.hello(self.client.attempt))

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        """See C{IFrameHandler}."""
        if isinstance(message, Confirm):
            self.destination.confirm(message.number)
        elif isinstance(message, Welcome):
            self.client.welcomed()
            self.destination.begin(connection, message.incarnation, True, message.received)
            self.tellPressure()
        elif isinstance(message, Refused):
            raise WireError(message.reason)
        else:
            raise WireError(f"a {type(message).__name__} from a stream manager")

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        """See C{IFrameHandler}."""
        raise WireError("a batch where only confirmations are sent")

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        """See C{IFrameHandler}."""
        if self.destination.connection is connection:
            self.destination.leave()
        log.info("{name}: {reason}", name=self.destination.name, reason=reason)
