"""
The simulation of topologies in one process.

A seed decides the topology, how it is packed, the limits of its stream managers, the time that its
components take, and the faults: processes are killed and stand still, connections are cut, bytes
are late, containers cannot reach one another, masters are replaced without being told. After the
faults everything is repaired, and all must be handled within L{CALM_SECONDS_MAX}.
L{tests.simulation.topologies.judge} says what must hold. Besides, no process takes a plan that is
older than the one it has. At last all have the last master's, and no spout stands still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from pylogbroker.testing.simulatednetwork import Process
from pylogbroker.testing.topologysimulator import TopologySimulator
from pylogbroker.topologies.api import Grouping
from pylogbroker.topologies.connection import TopologyConnection
from pylogbroker.topologies.messages import BATCH
from pylogbroker.topologies.streammanager.settings import StreamManagerSettings
from pylogbroker.topologies.topology import Topology, TopologyBuilder
from tests.simulation.seeds import TRACE_COUNT_MAX, BrokenPromiseError
from tests.simulation.topologies.components import (
    JudgedSpout,
    LastBolt,
    PairBolt,
    SinkBolt,
    SplitBolt,
)
from tests.simulation.topologies.judge import TopologyJudge

FAULT_SECONDS = (0.5, 1.0, 2.0)
CALM_SECONDS_MAX = 60.0
STEP_SECONDS = 0.2
REST_SECONDS = 1.0
PAUSE_SECONDS = (0.1, 0.5, 1.0, 3.0)
RESTART_SECONDS = (0.05, 0.2, 1.0)
SERVICE_SECONDS = (0.0001, 0.001, 0.005)
MUST_BE_NONE = ("waitingBatches", "unsentSize", "unconfirmedSize", "pending")
"""Of an instance that is at rest."""


class TopologiesWorld:
    """
    One run.

    @ivar trace: what happened, if asked for.
    @ivar counts: how often what.
    @ivar fingerprint: of all bytes that were sent.
    """

    faults = {
        "instanceKill": 3.0,
        "managerKill": 2.0,
        "masterKill": 1.0,
        "masterReplaced": 1.0,
        "containerKill": 0.5,
        "pause": 2.0,
        "connection": 4.0,
        "connections": 2.0,
        "partition": 1.5,
        "deactivation": 0.5,
    }

    def __init__(self, seed: int, isTraced: bool = False) -> None:
        random = self.random = Random(seed)
        self.isTraced = isTraced
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        self.fingerprint = 0
        self.isTracked = random.random() < 0.7
        self._hasDeaths = random.random() < 0.7
        self._deathCount = 0
        self._spoutCount = random.choice((1, 2))
        self._hasPairs = random.random() < 0.4
        self.judge = TopologyJudge(
            self.isTracked,
            self._spoutCount,
            random.choice((5, 15, 40)),
            ["pair", "last"] if self._hasPairs else ["sink"],
            self.counts,
        )
        topology = self._topology()
        highWaterMark = random.choice((300, 1_000, 4 << 20))
        self.simulator = TopologySimulator(
            topology,
            random.choice((1, 2, 3)),
            seed=random.getrandbits(32),
            serviceSeconds={name: random.choice(SERVICE_SECONDS) for name in topology.components},
            settings=StreamManagerSettings(
                highWaterMark=highWaterMark,
                lowWaterMark=highWaterMark // random.choice((1, 2, 10)),
                instanceWindow=random.choice((500, 2_000, 128 << 10)),
                peerWindow=random.choice((2_000, 1 << 20)),
                holdTime=random.choice((0.5, 15.0)),
            ),
            restartSeconds=0.2,
        )
        self.simulator.network.counts = self.counts
        self.simulator.network.slowShare = random.choice((0, 0.01, 0.1))
        self._epochs: dict[object, int] = {}
        self._mustMend: list[tuple[int, int]] = []
        self._paused: list[Process] = []

    def _topology(self) -> Topology:
        random, judge = self.random, self.judge
        builder = TopologyBuilder(
            "simulated",
            {
                "topology.reliability.mode": "ATLEAST_ONCE" if self.isTracked else "ATMOST_ONCE",
                "topology.message.timeout.secs": 3,
                "topology.max.spout.pending": random.choice((1, 5, 100)),
            },
        )

        def made(kind: type[Any]) -> Any:
            return kind(judge, Random(random.getrandbits(32)))

        def grouping() -> Grouping:
            return random.choice((Grouping.SHUFFLE, Grouping.fields("emission"), Grouping.GLOBAL))

        builder.setSpout(
            "spout", partial(made, JudgedSpout), self._spoutCount, outputs=JudgedSpout.outputs
        )
        builder.setBolt(
            "split",
            partial(made, SplitBolt),
            random.choice((1, 2)),
            {"spout": grouping()},
            outputs=SplitBolt.outputs,
        )
        kind: type[PairBolt | SinkBolt] = PairBolt if self._hasPairs else SinkBolt
        builder.setBolt(
            "pair" if self._hasPairs else "sink",
            partial(made, kind),
            random.choice((1, 2)),
            {"split": grouping()},
            outputs=kind.outputs,
            config={"topology.tick.tuple.freq.secs": 0.5} if self._hasPairs else {},
        )
        if self._hasPairs:
            builder.setBolt("last", partial(made, LastBolt), 1, {"pair": Grouping.SHUFFLE})
        return builder.build()

    def say(self, text: str) -> None:
        """Note what happens, if it is to be traced."""
        if self.isTraced:
            self.trace.append(f"{self.simulator.seconds:9.3f} {text}")
            del self.trace[:-TRACE_COUNT_MAX]

    # -- one run

    def run(self) -> None:
        """
        Everything in a random order, then peace.

        @raise BrokenPromiseError: something does not hold.
        """
        try:
            with patch.object(TopologyConnection, "write", self._twiceAtTimes()):
                self._run()
        finally:
            self.fingerprint = self.simulator.network.fingerprint

    def _run(self) -> None:
        simulator, random = self.simulator, self.random
        end = random.choice(FAULT_SECONDS)
        between = random.choice((0.05, 0.1, 0.3))
        names = list(self.faults)
        while simulator.seconds < end:
            self._advance(between * random.random())
            name = random.choices(names, list(self.faults.values()))[0]
            if self._hasDeaths or "ill" not in name:
                self.counts[name] += 1
                getattr(self, name)()
        self._repair()
        while not self._isAtRest():
            if simulator.seconds > end + CALM_SECONDS_MAX:
                raise BrokenPromiseError(f"no rest: {self._describe()}")
            self._advance(STEP_SECONDS)
        self._advance(REST_SECONDS)
        self._judge()

    def _twiceAtTimes(self) -> Callable[[TopologyConnection, bytes], None]:
        """What writes a frame: a batch is sent twice at times."""
        random, counts, write = self.random, self.counts, TopologyConnection.write
        share = random.choice((0, 0.05))

        def writeTwice(connection: TopologyConnection, frame: bytes) -> None:
            write(connection, frame)
            if share and frame[4] == BATCH and random.random() < share:
                counts["batches doubled"] += 1
                write(connection, frame)

        return writeTwice

    def _advance(self, seconds: float) -> None:
        simulator = self.simulator
        simulator.advance(seconds)
        for failure in simulator.failures:
            error = failure.value
            assert error is not None
            raise error.__cause__ if isinstance(error.__cause__, BrokenPromiseError) else error
        for manager in simulator.streamManagers.values():
            if manager.plan is not None:
                self._look(manager, manager.plan.epoch)
        for instance in simulator.instances.values():
            if instance.gateway._plan is not None:
                self._look(instance.gateway, instance.gateway._plan.epoch)

    def _look(self, who: object, epoch: int) -> None:
        if epoch < self._epochs.get(who, 0):
            raise BrokenPromiseError(f"{who} had {self._epochs[who]:#x}, and has {epoch:#x}")
        self._epochs[who] = epoch

    def _repair(self) -> None:
        self.say("-- nothing goes wrong any more")
        simulator = self.simulator
        self.judge.isCalm = simulator.network.isCalm = True
        for one, other in self._mustMend:
            simulator.mend(one, other)
        for process in self._paused:
            process.resume()
        simulator.activate()

    def _isAtRest(self) -> bool:
        simulator = self.simulator
        instances = simulator.instances.values()
        managers = simulator.streamManagers.values()
        if len(instances) < len(simulator.packing.instances) or not self.judge.isDone():
            return False
        if len(managers) < len(simulator.packing.containers):
            return False
        for instance in instances:
            values = instance.gateway.metrics().values
            if any(values.get(name) for name in MUST_BE_NONE):
                return False
        if any(each.areSpoutsStopped for each in managers):
            return False
        for manager in managers:
            for name, value in manager.metricValues().items():
                if value and name.startswith(("queued.", "unconfirmed.")):
                    return False
        plan = None if simulator.master is None else simulator.master.state.plan
        return plan is not None and all(each.plan == plan for each in managers)

    def _describe(self) -> str:
        simulator = self.simulator
        return " ".join(
            [
                f"done {self.judge.isDone()}",
                *(f"{task} {each.gateway.metrics()}" for task, each in simulator.instances.items()),
                *(f"{n} {each.metricValues()}" for n, each in simulator.streamManagers.items()),
            ]
        )

    def _judge(self) -> None:
        values = [each.metricValues() for each in self.simulator.streamManagers.values()]
        for each in values:
            self.counts["tuples stopped for"] += each["spouts.stopped.ms"] > 0
            self.counts["batches again"] += int(each["batches.again"])
        given = sum(value for each in values for name, value in each.items() if ".dropped." in name)
        self.counts["tuples dropped"] += int(given)
        self.judge.judge(isWhole=not self._deathCount and not given)

    # -- faults

    def _soon(self) -> float:
        return self.random.choice(RESTART_SECONDS)

    def instanceKill(self) -> None:
        """An instance is killed."""
        task = self.random.choice(self.simulator.packing.instances).task
        self.say(f"instance {task} is killed")
        self._deathCount += 1
        self.simulator.killInstance(task, self._soon())

    def managerKill(self) -> None:
        """A stream manager is killed."""
        container = self._container()
        self.say(f"stream manager {container} is killed")
        self._deathCount += 1
        self.simulator.killStreamManager(container, self._soon())

    def _container(self) -> int:
        return self.random.choice(self.simulator.packing.containers).number

    def _process(self) -> Process:
        while not self.simulator.processes():  # all are dead, for a moment
            self._advance(STEP_SECONDS)
        return self.random.choice(self.simulator.processes())

    def containerKill(self) -> None:
        """All processes of a container are killed."""
        container = self._container()
        self.say(f"container {container} is killed")
        self._deathCount += 1
        self.simulator.killContainer(container, self._soon())

    def masterKill(self) -> None:
        """The master is killed."""
        self.say("the master is killed")
        self.simulator.killMaster(self._soon())

    def masterReplaced(self) -> None:
        """The master stands still beyond its session, and goes on when there is another one."""
        former = self.simulator.master
        if former is not None:
            self.say("the master is replaced")
            self._pause(former.process)
            self.simulator.startMaster()

    def pause(self) -> None:
        """A process stands still."""
        process = self._process()
        self.say(f"{process} stands still")
        self._pause(process)

    def _pause(self, process: Process) -> None:
        def resume() -> None:
            self._paused.remove(process)
            process.resume()

        if not process.isPaused:
            process.pause()
            self._paused.append(process)
            self.simulator.callLater(self.random.choice(PAUSE_SECONDS), resume)

    def connection(self) -> None:
        """A connection is lost; each end hears of it in its time."""
        process = self._process()
        if process.transports:
            self.say(f"a connection of {process} is lost")
            delays = self.random.choice((0, 0.01, 0.5)), self.random.choice((0, 0.01, 0.5))
            self.random.choice(list(process.transports)).cut(*delays)

    def connections(self) -> None:
        """All connections of a process are lost."""
        process = self._process()
        self.say(f"all connections of {process} are lost")
        self.simulator.cutConnections(process)

    def partition(self) -> None:
        """Two containers cannot reach one another."""
        one, other = self._container(), self._container()
        if one != other:
            self.say(f"containers {one} and {other} cannot reach one another")
            self.simulator.partition(one, other)
            self._mustMend.append((one, other))
            seconds = self.random.choice(PAUSE_SECONDS)
            self.simulator.callLater(seconds, self.simulator.mend, one, other)

    def deactivation(self) -> None:
        """The topology is deactivated, and activated again."""
        self.say("the topology is deactivated")
        self.simulator.deactivate()
        self.simulator.callLater(self._soon(), self.simulator.activate)
