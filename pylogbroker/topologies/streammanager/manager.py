"""
L{StreamManager}: every tuple of a container's instances goes through it. A module of its own, since
programs and simulators run it.

Connections: each instance of the container connects to it, and one connection carries both
directions. Each stream manager connects to each other one, and sends its batches on the connection
that it has made. It connects to the master, which tells the plan.

What must be true:

  - Entries are routed as they are: the cost is per entry, not per tuple. What arrives in one turn
  for one destination is sent as one batch.
  - Bolts and other stream managers are always read: a bolt that is not read could not acknowledge,
  and so could not empty anything. Spouts are held back by confirmations that are withheld.
  - A plan of a lower epoch than the last one, or than the master that was named, is refused.
  - Instances and other stream managers are welcomed once there is a plan: there is a route for all
  that they send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NoReturn

from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import Factory
from twisted.logger import Logger

from pylogbroker.errors import WireError
from pylogbroker.net.timer import Timer
from pylogbroker.topologies.acktrees import BUCKET_COUNT
from pylogbroker.topologies.connection import TopologyConnection
from pylogbroker.topologies.control import ControlClient
from pylogbroker.topologies.link import CONFIRM_DELAY
from pylogbroker.topologies.messages import (
    INSTANCE,
    STREAM_MANAGER,
    TUPLES,
    Control,
    Hello,
    PlanPushed,
    Refused,
    entryPlaces,
)
from pylogbroker.topologies.plan import PhysicalPlan
from pylogbroker.topologies.streammanager.acker import Acker
from pylogbroker.topologies.streammanager.backpressure import BackPressureState
from pylogbroker.topologies.streammanager.destination import Destination
from pylogbroker.topologies.streammanager.ends import (
    AcceptedConnection,
    BatchSource,
    InstanceEnd,
    PeerEnd,
    PeerSender,
)
from pylogbroker.topologies.streammanager.settings import StreamManagerSettings

log = Logger()

COUNTS = ("entries", "tuples", "bytes", "batches again", "tuples without a route", "plans refused")
DEFAULT_SETTINGS = StreamManagerSettings()

ACCEPTED_COUNT_MAX = 4_096
"""Connections that other processes have made."""


class StreamManager:
    """
    The stream manager of a container.

    @ivar incarnation: a number of this process.
    @ivar plan: the last plan; L{None}: none was pushed yet.
    @ivar counts: of L{COUNTS}: what was routed, and what was not.
    @ivar whenInstancesChange: called when an instance has connected, or is gone.
    @ivar pressure: why spouts must stop; what was told to them is L{areSpoutsStopped}.
    """

    def __init__(
        self,
        clock: IReactorTime,
        topology: str,
        container: int,
        endpointTo: Callable[[str], IStreamClientEndpoint],
        random: Random,
        settings: StreamManagerSettings = DEFAULT_SETTINGS,
    ) -> None:
        """
        @param topology: the name of the topology.
        @param container: the number of the container.
        @param endpointTo: makes an endpoint of C{host:port}.
        """
        self.topology = topology
        self.container = container
        self.incarnation = random.getrandbits(62) + 1
        self.plan: PhysicalPlan | None = None
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self.settings = settings
        self.clock = clock
        self._endpointTo = endpointTo
        self._random = random
        self._address = ""
        self._epochMin = 0
        self.whenInstancesChange: Callable[[], object] = lambda: None
        self.pressure = BackPressureState(clock.seconds, self._endTurnSoon)
        self.areSpoutsStopped = False
        self._isInitiator = False
        self._acker = Acker(self._toSpout, settings.treeCountMax)
        self._routes: dict[int, Destination] = {}
        self._instances: dict[int, InstanceEnd] = {}
        self._peers: dict[int, PeerSender] = {}
        self._sources: dict[int, PeerEnd] = {}
        self._accepted: dict[AcceptedConnection, None] = {}
        self._dirty: list[Destination] = []
        self._unconfirmed: dict[BatchSource, None] = {}
        self._turn = Timer(clock)
        self._confirming = Timer(clock)
        self._rotating = Timer(clock)
        self._master = ControlClient(clock, endpointTo, random.random, self.hello, self._masterSays)
        self._isStopped = False
        self.factory = _AcceptFactory(self)  # for the port that it listens on

    # -- life

    def start(self, address: str) -> None:
        """
        Its port is open.

        @param address: C{host:port} of it, for instances and other stream managers.
        """
        self._address = address
        if self.settings.messageTimeout:
            self._rotateLater()

    def stop(self) -> None:
        """Close all connections."""
        self._isStopped = True
        self._master.goTo(None)
        for each in list(self._accepted):
            each.close("the stream manager stops")
        for peer in self._peers.values():
            peer.stop()
        for end in self._instances.values():
            end.destination.close("the stream manager stops")
        for timer in (self._turn, self._confirming, self._rotating):
            timer.stop()

    def setMaster(self, address: str | None, epoch: int = 0) -> None:
        """
        Connect to a master, and leave another one.

        @param address: C{host:port}; L{None}: there is none.
        @param epoch: its epoch: plans below it are refused from now on. A master with a lower one
            than the last is not connected to.
        """
        if self._isStopped or (address is not None and epoch < self._epochMin):
            return
        self._epochMin = max(epoch, self._epochMin)
        self._master.goTo(address)

    def _rotateLater(self) -> None:
        self._rotating.start(self.settings.messageTimeout * 1000 / BUCKET_COUNT, self._rotate)

    def _rotate(self) -> None:
        self._acker.rotate()
        self._rotateLater()

    # -- the plan

    def hello(self, attempt: int) -> Hello:
        """
        What it says to the master and to other stream managers.

        @param attempt: of the connection, among those to that process.
        """
        epoch = 0 if self.plan is None else self.plan.epoch
        return Hello(
            self.topology,
            STREAM_MANAGER,
            self.container,
            self.incarnation,
            epoch=epoch,
            address=self._address,
            attempt=attempt,
        )

    def _masterSays(self, message: Control) -> None:
        if isinstance(message, PlanPushed):
            self.setPlan(message.plan)

    def setPlan(self, plan: PhysicalPlan) -> None:
        """
        The master has pushed a plan.

        @raise WireError: it is of another topology, or of a lower epoch than one that was seen.
        """
        if plan.topology != self.topology:
            raise WireError(f"a plan of topology {plan.topology}, not {self.topology}")
        last = self._epochMin if self.plan is None else max(self._epochMin, self.plan.epoch)
        if plan.epoch < last:
            self.counts["plans refused"] += 1
            raise WireError(f"a plan of epoch {plan.epoch}, below {last}")
        self.plan = plan
        routes: dict[int, Destination] = {}
        containers = {each.number: each.instances for each in plan.packing.containers}
        mine = containers.pop(self.container, ())
        for instance in mine:
            end = self._instances.get(instance.task) or self._makeInstance(instance.task)
            end.setPlan(instance)
            routes[instance.task] = end.destination
        for number, instances in containers.items():
            peer = self._peers.get(number) or self._makePeer(number)
            peer.client.goTo(plan.streamManagers.get(number) or None)
            routes.update((instance.task, peer.destination) for instance in instances)
        self._routes = routes
        for task in self._instances.keys() - {each.task for each in mine}:
            self._instances.pop(task).destination.close("it is not in the plan")
            self._acker.forget(task)
        for number in self._peers.keys() - containers.keys():
            self._peers.pop(number).stop()
            self._sources.pop(number, None)
            self.pressure.setPeer(number, False)
        for end in self._instances.values():
            if end.destination.connection is not None:
                end.destination.connection.send(PlanPushed(plan))
        for accepted in list(self._accepted):
            accepted.greetNow()

    def _makeInstance(self, task: int) -> InstanceEnd:
        destination = Destination(self.clock, str(task), True, self.pressure, self.settings)
        end = self._instances[task] = InstanceEnd(self, destination)
        return end

    def _makePeer(self, number: int) -> PeerSender:
        name = f"container {number}"
        destination = Destination(self.clock, name, False, self.pressure, self.settings)
        peer = PeerSender(self, destination, self._endpointTo, self._random.random)
        self._peers[number] = peer
        return peer

    # -- connections that are made to it

    def accept(self) -> TopologyConnection | None:
        """
        A process connects.

        @return: L{None}: there are L{ACCEPTED_COUNT_MAX} connections.
        """
        if len(self._accepted) >= ACCEPTED_COUNT_MAX:
            return None
        return TopologyConnection(AcceptedConnection(self))

    def opened(self, accepted: AcceptedConnection) -> None:
        """A process has connected."""
        self._accepted[accepted] = None

    def closed(self, accepted: AcceptedConnection) -> None:
        """Its connection is gone."""
        self._accepted.pop(accepted, None)

    def greet(self, connection: TopologyConnection, hello: Hello) -> InstanceEnd | PeerEnd | None:
        """
        Welcome a process that has connected, once there is a plan.

        @return: what handles the connection; L{None}: there is no plan yet.
        @raise WireError: it cannot be taken; it was told why.
        """
        if self.plan is None:
            return None
        if hello.topology != self.topology:
            self._refuse(connection, f"this is topology {self.topology}, not {hello.topology}")
        if hello.role == INSTANCE:
            found = self._instances.get(hello.id)
            if found is None:
                self._refuse(connection, f"task {hello.id} is not in container {self.container}")
            return self._begin(found, connection, hello)
        if hello.role == STREAM_MANAGER:
            if hello.id not in self._peers:
                self._refuse(connection, f"container {hello.id} is not in the plan")
            peer = self._sources.setdefault(hello.id, PeerEnd(self, hello.id))
            return self._begin(peer, connection, hello)
        self._refuse(connection, f"no {hello.role} connects to a stream manager")

    @staticmethod
    def _begin(
        end: InstanceEnd | PeerEnd, connection: TopologyConnection, hello: Hello
    ) -> InstanceEnd | PeerEnd:
        try:
            end.begin(connection, hello)
        except WireError as error:
            end.left(connection, str(error))
            raise
        return end

    @staticmethod
    def _refuse(connection: TopologyConnection, reason: str) -> NoReturn:
        connection.send(Refused(reason))
        raise WireError(reason)

    # -- what is routed

    def route(self, body: bytes) -> None:
        """
        Route the entries of a batch.

        @raise WireError: they are not whole.
        """
        view = memoryview(body)
        routes, counts = self._routes, self.counts
        places = entryPlaces(body)
        counts["entries"] += len(places)
        counts["bytes"] += len(body)
        target: Destination | None = None
        first = last = tupleCount = total = 0
        for kind, task, amount, start, dataStart, end in places:
            found = routes.get(task)
            if found is not target or start != last or found is None:
                if target is not None:
                    self._push(target, view[first:last], tupleCount)
                target, first, tupleCount = None, start, 0
                if found is None:
                    counts["tuples without a route"] += amount if kind == TUPLES else 0
                    continue
            if kind == TUPLES:
                total += amount
                tupleCount += amount
            elif found.isLocal:
                if target is not None:
                    self._push(target, view[first:last], tupleCount)
                    target, tupleCount = None, 0
                self._acker.take(kind, task, view[dataStart:end])
                continue
            target, last = found, end
        if target is not None:
            self._push(target, view[first:last], tupleCount)
        counts["tuples"] += total

    def _push(self, target: Destination, entries: bytes | memoryview, tupleCount: int) -> None:
        target.push(entries, tupleCount)
        if not target.isDirty:
            target.isDirty = True
            self._dirty.append(target)
            self._endTurnSoon()

    def _toSpout(self, task: int, entry: bytes) -> None:
        target = self._routes.get(task)
        if target is not None and target.isLocal:
            self._push(target, entry, 0)

    def _endTurnSoon(self) -> None:
        if not (self._turn.isRunning or self._isStopped):
            self._turn.start(0, self._endTurn)

    def _endTurn(self) -> None:
        dirty, self._dirty = self._dirty, []
        for target in dirty:
            target.flush()
        self._tellPressure()
        for end in [each for each in self._unconfirmed if each.receiver.isConfirmDue]:
            del self._unconfirmed[end]
            end.confirm()
        if self._unconfirmed and not self._confirming.isRunning:
            self._confirming.start(CONFIRM_DELAY * 1000, self._confirmAll)

    def confirmSoon(self, end: BatchSource) -> None:
        """Something has arrived that is to be confirmed."""
        self._unconfirmed[end] = None
        self._endTurnSoon()

    def _confirmAll(self) -> None:
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        for end in unconfirmed:
            end.confirm()

    def forgetTrees(self, task: int) -> None:
        """A spout's process is another one."""
        self._acker.forget(task)

    # -- back pressure

    def _tellPressure(self) -> None:
        pressure = self.pressure
        if pressure.isInitiated != self._isInitiator:
            self._isInitiator = pressure.isInitiated
            for peer in self._peers.values():
                peer.tellPressure()
        if pressure.isOn != self.areSpoutsStopped:
            self.areSpoutsStopped = pressure.isOn
            for end in self._instances.values():
                if end.isSpout:
                    end.tellPressure()

    # -- figures

    def metricValues(self) -> dict[str, float]:
        """What it has counted since it began, and measures now, by name."""
        values: dict[str, float] = {
            name.replace(" ", "."): count for name, count in sorted(self.counts.items())
        }
        for name, count in sorted(self._acker.counts.items()):
            values[f"trees.{name.replace(' ', '.')}"] = count
        values["trees.pending"] = self._acker.treeCount
        values["spouts.stopped.ms"] = self.pressure.stoppedTime * 1000
        for name, time in sorted(self.pressure.times().items()):
            values[f"backpressure.ms.{name}"] = time * 1000
        totals: Counter[str] = Counter()
        for target in self._destinations():
            totals[f"queued.bytes.{target.name}"] += target.queuedSize
            totals[f"unconfirmed.bytes.{target.name}"] += target.unconfirmedSize
            totals[f"tuples.dropped.{target.name}"] += target.droppedCount
            totals[f"tuples.lost.{target.name}"] += target.lostCount
        values.update(sorted(totals.items()))
        for task, end in sorted(self._instances.items()):
            values[f"connected.{task}"] = int(end.destination.connection is not None)
        return values

    def _destinations(self) -> list[Destination]:
        instances = [end.destination for end in self._instances.values()]
        return instances + [peer.destination for peer in self._peers.values()]


class _AcceptFactory(Factory):
    noisy = False

    def __init__(self, manager: StreamManager) -> None:
        self._manager = manager

    def buildProtocol(self, addr: object) -> TopologyConnection | None:
        return self._manager.accept()
