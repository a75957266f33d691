"""
A destination of entries: an instance of the container, or the stream manager of another one. A
module of its own, since it is a queue and a connection, and knows nothing of plans and routes.
"""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from pylogbroker.net.timer import Timer
from pylogbroker.topologies.connection import TopologyConnection
from pylogbroker.topologies.link import LinkSender
from pylogbroker.topologies.streammanager.backpressure import BackPressureState
from pylogbroker.topologies.streammanager.settings import StreamManagerSettings


class Destination:
    """
    The queue for an instance or a stream manager, and the connection that empties it.

    @ivar name: of the queue, for metrics.
    @ivar isLocal: whether it is an instance of this container.
    @ivar isPressing: whether spouts are to stop when its queue is too long; not that of a spout,
        which empties it while it stands still.
    @ivar isDirty: whether it has got entries in this turn.
    @ivar incarnation: of the process at the other end; 0: it was not there yet.
    @ivar droppedCount: tuples dropped, because the queue was full or the other end away for long.
    """

    def __init__(
        self,
        clock: IReactorTime,
        name: str,
        isLocal: bool,
        pressure: BackPressureState,
        settings: StreamManagerSettings,
    ) -> None:
        self.name = name
        self.isLocal = isLocal
        self.isPressing = True
        self.isDirty = False
        self.incarnation = 0
        self.droppedCount = 0
        self.connection: TopologyConnection | None = None
        self._sender = LinkSender(settings.instanceWindow if isLocal else settings.peerWindow)
        self._sizeMax = settings.queueSizeMax
        self._settings = settings
        self._pressure = pressure
        self._isInitiator = False
        self._isGivenUp = False
        self._holding = Timer(clock)

    @property
    def queuedSize(self) -> int:
        """Bytes that wait to be sent."""
        return self._sender.unsentSize

    @property
    def unconfirmedSize(self) -> int:
        """Bytes under way, which the other end has not confirmed."""
        return self._sender.unconfirmedSize

    @property
    def lostCount(self) -> int:
        """Tuples under way to a process that has died: they were handled, or not."""
        return self._sender.lostAmount

    def push(self, entries: bytes | memoryview, tupleCount: int) -> None:
        """Queue entries, or drop them; L{flush} is to be called in this turn."""
        if self._isGivenUp or self._sender.unsentSize + len(entries) > self._sizeMax:
            self.droppedCount += tupleCount
            return
        self._sender.push(entries, tupleCount)
        if self.connection is None and not self._holding.isRunning:  # it was not there yet
            self._holding.start(self._settings.firstHoldTime * 1000, self.giveUp)

    def flush(self) -> None:
        """Send what can be sent, at the end of a turn, and look at what cannot."""
        self.isDirty = False
        sender, connection = self._sender, self.connection
        if connection is not None:
            while (frame := sender.take()) is not None:
                connection.write(frame)
        sender.fold()
        waiting = sender.unsentSize
        if self._isInitiator:
            if waiting <= self._settings.lowWaterMark:
                self._setInitiator(False)
        elif waiting > self._settings.highWaterMark and self.isPressing:
            self._setInitiator(True)

    def _setInitiator(self, isOn: bool) -> None:
        self._isInitiator = isOn
        if isOn:
            self._pressure.initiate(self, self.name)
        else:
            self._pressure.relieve(self)

    def begin(
        self, connection: TopologyConnection, incarnation: int, isKnown: bool, received: int
    ) -> None:
        """
        There is a connection.

        @param incarnation: of the process at the other end.
        @param isKnown: whether it still knows what it has received from this process, which is up
            to the batch C{received}.
        @raise WireError: there was no such batch.
        """
        isSame = self.incarnation in (0, incarnation)
        self.incarnation = incarnation
        self._sender.begin(isSame and isKnown, received)
        self.connection = connection
        self._isGivenUp = False
        self._holding.stop()
        self.flush()

    def confirm(self, number: int) -> None:
        """
        The other end has room again.

        @raise WireError: no batch has this number.
        """
        self._sender.confirm(number)
        self.flush()

    def leave(self) -> None:
        """The connection is gone."""
        self.connection = None
        self._sender.end()
        self._holding.start(self._settings.holdTime * 1000, self.giveUp)

    def giveUp(self) -> None:
        """Drop what waits, and what comes until there is a connection again."""
        self._isGivenUp = True
        before = self._sender.lostAmount
        self._sender.clear()
        self.droppedCount += self._sender.lostAmount - before
        self._sender.lostAmount = before
        self.flush()

    def close(self, reason: str) -> None:
        """It is a destination no more."""
        if self.connection is not None:
            self.connection.close(reason)
        self.giveUp()
        self._holding.stop()
