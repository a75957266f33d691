"""
Stream managers over a simulated network, with scripted instances, which say what a test wants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from pylogbroker.testing.simulatednetwork import Network, Process, Scheduler
from pylogbroker.topologies.connection import TopologyClient, TopologyConnection, tcpEndpoints
from pylogbroker.topologies.link import LinkReceiver, LinkSender
from pylogbroker.topologies.messages import (
    INSTANCE,
    TUPLES,
    Confirm,
    Control,
    Hello,
    Welcome,
    batchNumber,
    decodeBatch,
    decodeNumbers,
    encodeEntry,
    encodeNumbers,
)
from pylogbroker.topologies.plan import (
    ACTIVE,
    ContainerPlan,
    InstancePlan,
    PackingPlan,
    PhysicalPlan,
)
from pylogbroker.topologies.streammanager.manager import StreamManager
from pylogbroker.topologies.streammanager.settings import StreamManagerSettings

TOPOLOGY = "words"
PORT = 7000
EPOCH = 1 << 32


def physicalPlan(
    containers: Mapping[int, Sequence[int]],
    epoch: int = EPOCH,
    topology: str = TOPOLOGY,
    spouts: Sequence[int] = (1,),
) -> PhysicalPlan:
    """A plan: of each container its tasks, all of one component each, C{c7} for 7."""
    return PhysicalPlan(
        topology,
        epoch,
        ACTIVE,
        PackingPlan(
            tuple(
                ContainerPlan(
                    number,
                    tuple(InstancePlan(task, f"c{task}", 0, task in spouts) for task in tasks),
                )
                for number, tasks in containers.items()
            )
        ),
        {number: f"h{number}:{PORT}" for number in containers},
    )


class ScriptedInstance:
    """
    An instance.

    @ivar got: the entries that have arrived: kind, task, data.
    @ivar said: the control messages that have arrived.
    @ivar isReading: whether it has room for more: it settles what arrives.
    """

    def __init__(self, process: Process, task: int, address: str, random: Random) -> None:
        self.process = process
        self.task = task
        self.isReading = True
        self.got: list[tuple[int, int, bytes]] = []
        self.said: list[Control] = []
        self.sender = LinkSender()
        self.receiver = LinkReceiver()
        self.incarnation = random.getrandbits(60)
        self.peer = 0
        self.client = TopologyClient(process, tcpEndpoints(process), self, random.random)
        self.client.goTo(address)

    def send(self, *entries: tuple[int, int, bytes | Sequence[int]]) -> None:
        """Send entries, in one batch: kind, task, and data or numbers."""
        for kind, task, data in entries:
            body = data if isinstance(data, bytes) else encodeNumbers(data)
            self.sender.push(encodeEntry(kind, task, 1, body), kind == TUPLES)
        self.flush()

    def flush(self) -> None:
        """Send what can be sent."""
        while self.client.connection is not None:
            frame = self.sender.take()
            if frame is None:
                break
            self.client.connection.write(frame)

    def settle(self) -> None:
        """Have room again."""
        self.receiver.settle(self.receiver.received)
        number = self.receiver.takeConfirm()
        if number is not None and self.client.connection is not None:
            self.client.connection.send(Confirm(number))

    def tuples(self) -> list[bytes]:
        """The data of the tuples that it has got."""
        return [data for kind, _, data in self.got if kind == TUPLES]

    def numbers(self, kind: int) -> list[int]:
        """The numbers of a kind of entries that it has got."""
        return [
            number for each, _, data in self.got if each == kind for number in decodeNumbers(data)
        ]

    # IFrameHandler

    def connected(self, connection: TopologyConnection) -> None:
        """Say hello."""
        connection.send(
            Hello(
                TOPOLOGY,
                INSTANCE,
                self.task,
                self.incarnation,
                received=self.receiver.received,
                peer=self.peer,
                attempt=self.client.attempt,
            )
        )

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        """Keep it."""
        self.said.append(message)
        if isinstance(message, Welcome):
            isSame = self.peer in (0, message.incarnation)
            if not isSame:
                self.receiver = LinkReceiver()
            self.peer = message.incarnation
            self.sender.begin(isSame, message.received)
            self.flush()
        elif isinstance(message, Confirm):
            self.sender.confirm(message.number)
            self.flush()

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        """Keep its entries."""
        if self.receiver.accept(batchNumber(body), len(body)):
            self.got += [(each.kind, each.task, bytes(each.data)) for each in decodeBatch(body)]
        if self.isReading:
            self.settle()

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        """It connects again."""
        self.sender.end()


class Containers:
    """
    Stream managers and instances; each container is a host.

    @ivar managers: the stream manager of each container.
    @ivar instances: by task.
    """

    def __init__(
        self,
        plan: Mapping[int, Sequence[int]],
        spouts: Sequence[int] = (),
        settings: StreamManagerSettings | None = None,
        seed: int = 16,
    ) -> None:
        self.random = Random(seed)
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, self.random, Counter())
        self.settings = settings or StreamManagerSettings()
        self.tasks = plan
        self.plan = physicalPlan(plan, spouts=spouts)
        self.processes: dict[int, Process] = {}
        self.managers: dict[int, StreamManager] = {}
        self.instances: dict[int, ScriptedInstance] = {}
        for number, tasks in plan.items():
            self.startManager(number)
            for task in tasks:
                self.startInstance(number, task)
        for manager in self.managers.values():
            manager.setPlan(self.plan)
        self.advance(1)

    def startManager(self, number: int) -> StreamManager:
        """Start a stream manager, which has no plan yet."""
        process = self.processes[number] = Process(self.network, f"sm{number}", f"h{number}")
        made = StreamManager(
            process, TOPOLOGY, number, tcpEndpoints(process), self.random, self.settings
        )
        self.managers[number] = made
        process.listenTCP(PORT, made.factory)
        made.start(f"h{number}:{PORT}")
        return made

    def startInstance(self, number: int, task: int) -> ScriptedInstance:
        """Start an instance."""
        process = Process(self.network, f"i{task}", f"h{number}")
        made = ScriptedInstance(process, task, f"h{number}:{PORT}", self.random)
        self.instances[task] = made
        return made

    def advance(self, seconds: float = 0.1) -> None:
        """Let time pass."""
        self.scheduler.advance(seconds)

    def cut(self, process: Process) -> None:
        """Lose all connections of a process."""
        for transport in list(process.transports):
            transport.cut(0, 0)
        self.advance(0.001)
