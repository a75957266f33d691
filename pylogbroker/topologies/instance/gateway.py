"""
The gateway of an instance: its connection to the stream manager of its container. A module of its
own, since it is the part of an instance that is on the reactor.

What must be true:

  - There is one connection at most. While there is none, the author's code goes on until its output
  is full.
  - What was sent and is not confirmed goes again to the same stream manager only. When it is
  another one, all that is pending has failed: its acker knows nothing of it.
  - The author's code begins with the first plan. A plan of a lower epoch than the last one is
  ignored.
  - A batch is confirmed when all of its tuples are handled: so what waits in an instance is
  bounded by the window of the link.
  - Under back pressure, no spout is asked for tuples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pylogbroker.errors import ConfigurationError, WireError
from pylogbroker.net.ratelimitedlog import RateLimitedLogger
from pylogbroker.net.timer import Timer, wallMs
from pylogbroker.topologies.connection import TopologyClient, TopologyConnection
from pylogbroker.topologies.instance.collectors import EncodedEntry
from pylogbroker.topologies.instance.executors import IExecutor
from pylogbroker.topologies.instance.runners import (
    DEFAULT_SETTINGS,
    BoltRunner,
    InstanceSettings,
    Runner,
    RunnerOutput,
    SpoutRunner,
    newRunner,
)
from pylogbroker.topologies.link import CONFIRM_DELAY, LinkReceiver, LinkSender
from pylogbroker.topologies.messages import (
    INSTANCE,
    BackPressure,
    Confirm,
    Control,
    Hello,
    Metrics,
    PlanPushed,
    Refused,
    Welcome,
    batchNumber,
    decodeBatch,
)
from pylogbroker.topologies.plan import ACTIVE, PhysicalPlan
from pylogbroker.topologies.topology import Topology

log = Logger()

STOP_DELAY_MS = 5_000
"""How long L{Gateway.stop} waits for the author's code, and for the last batches."""


class Gateway:
    """
    An instance: its connection, with an executor for the author's code.

    @ivar done: fires when the instance has stopped; fails with what the author's code has raised.
    @ivar incarnation: a number that this process has drawn.
    @ivar runner: L{None} before the first plan.
    """

    def __init__(
        self,
        reactor: Any,
        topology: Topology,
        task: int,
        endpointTo: Callable[[str], IStreamClientEndpoint],
        executor: IExecutor,
        random: Random,
        settings: InstanceSettings = DEFAULT_SETTINGS,
    ) -> None:
        """
        @param task: the number of the instance. The plan says which component it is of.
        @param endpointTo: makes an endpoint of an address.
        """
        self.done: Deferred[None] = Deferred()
        self.incarnation = random.getrandbits(63) | 1
        self.runner: Runner | None = None
        self._reactor = reactor
        self._topology = topology
        self._component = ""  # before the first plan
        self._task = task
        self._executor = executor
        self._random = random
        self._settings = settings
        self._log = RateLimitedLogger(reactor, log)
        self._client = TopologyClient(reactor, endpointTo, self, random.random)
        self._confirmTimer = Timer(reactor)
        self._stopTimer = Timer(reactor)
        self._isWelcome = False
        self._peer = 0  # the stream manager's incarnation; 0: none was seen
        self._sender = LinkSender()
        self._receiver = LinkReceiver()
        # What the runner has: its own numbers, and by which receiver they came with which number.
        self._taken: deque[tuple[int, LinkReceiver, int]] = deque()
        self._takenNumber = 0
        self._plan: PhysicalPlan | None = None
        self._ticks: LoopingCall | None = None
        self._isPressed = False
        self._isStopping = False
        self._isClosed = False  # the author's object, with all that it has emitted handed over
        self._isOver = False

    def goTo(self, address: str) -> None:
        """
        Connect to the stream manager of the container, now and whenever there is no connection.

        @param address: C{endpointTo} knows it.
        """
        if not self._isOver:
            self._client.goTo(address)

    def stop(self) -> Deferred[None]:
        """
        Have the author's object closed, send what it has emitted, and disconnect; each waits for
        L{STOP_DELAY_MS} milliseconds at most.

        @return: L{done}.
        """
        if not self._isStopping:
            self._isStopping = True
            self._stopTicks()
            self._stopTimer.start(STOP_DELAY_MS, self._finish)
            self._executor.stop().addCallback(lambda _: self._closed())
        return self.done

    def metrics(self) -> Metrics:
        """What the instance has counted, and what waits in it."""
        values = {} if self.runner is None else self.runner.metrics()
        values["unsentSize"] = self._sender.unsentSize
        values["unconfirmedSize"] = self._sender.unconfirmedSize
        values["lost"] = self._sender.lostAmount
        container = None if self._plan is None else self._plan.packing.containerOf(self._task)
        return Metrics(
            0 if container is None else container.number,
            str(self._task),
            self._component,
            self.incarnation,
            wallMs(self._reactor),
            values,
        )

    # For the executor.

    @property
    def unsentSize(self) -> int:
        """See L{IRunnerOwner}."""
        return self._sender.unsentSize

    @property
    def isPressed(self) -> bool:
        """See L{IRunnerOwner}."""
        return self._isPressed

    def handedOver(self, entries: list[EncodedEntry], number: int) -> None:
        """See L{IRunnerOwner}."""
        if self._isOver:
            return
        for data, amount in entries:
            self._sender.push(data, amount)
        self._pump()
        taken = self._taken
        if not taken or taken[0][0] > number:
            return
        while taken and taken[0][0] <= number:
            _number, receiver, itsNumber = taken.popleft()
            receiver.settle(itsNumber)
        if self._receiver.isConfirmDue:
            self._confirm()
        elif not self._confirmTimer.isRunning:
            self._confirmTimer.start(CONFIRM_DELAY * 1000, self._confirm)

    def reported(self, text: str) -> None:
        """See L{IRunnerOwner}."""
        self._log.warn("The component has raised: {text}", text=text)

    def runnerFailed(self, failure: Failure) -> None:
        """See L{IRunnerOwner}."""
        log.error(
            "The component has raised, and the instance ends: {trace}", trace=failure.getTraceback()
        )
        self._finish(failure)

    # The connection.

    def connected(self, connection: TopologyConnection) -> None:
        """See L{IFrameHandler}."""
        epoch = 0 if self._plan is None else self._plan.epoch
        connection.send(
            Hello(
                self._topology.name,
                INSTANCE,
                self._task,
                self.incarnation,
                epoch,
                self._receiver.received,
                self._peer,
                attempt=self._client.attempt,
            )
        )

    def disconnected(self, connection: TopologyConnection, reason: str) -> None:
        """See L{IFrameHandler}."""
        self._isWelcome = self._isPressed = False
        self._sender.end()
        self._confirmTimer.stop()
        if self._isStopping:
            self._drain()  # the author's object may not be closed yet
        elif not self._isOver:
            self._log.warn("The connection to the stream manager is lost: {reason}", reason=reason)
            self._executor.wake()

    def controlReceived(self, connection: TopologyConnection, message: Control) -> None:
        """See L{IFrameHandler}."""
        if isinstance(message, Welcome):
            self._welcomed(message)
        elif isinstance(message, Refused):
            raise WireError(f"the stream manager has refused task {self._task}: {message.reason}")
        elif not self._isWelcome:
            raise WireError(f"{type(message).__name__} came before Welcome")
        elif isinstance(message, Confirm):
            self._sender.confirm(message.number)
            self._pump()
            self._executor.wake()
            self._drain()
        elif isinstance(message, BackPressure):
            self._isPressed = message.isOn
            self._executor.wake()
        elif isinstance(message, PlanPushed):
            self._planned(message.plan)
        else:
            raise WireError(f"{type(message).__name__} is nothing for an instance")

    def batchReceived(self, connection: TopologyConnection, body: bytes) -> None:
        """See L{IFrameHandler}."""
        runner = self.runner
        if runner is None or not self._isWelcome:
            raise WireError("a batch came before Welcome and a plan")
        number = batchNumber(body)
        entries = decodeBatch(body)
        if self._receiver.accept(number, len(body)):
            self._takenNumber += 1
            self._taken.append((self._takenNumber, self._receiver, number))
            runner.take(self._takenNumber, entries)
            self._executor.wake()

    def _welcomed(self, message: Welcome) -> None:
        if self._isWelcome:
            raise WireError("Welcome came twice")
        isSame = message.incarnation == self._peer
        self._sender.begin(isSame, message.received)
        if not isSame:
            if self._peer and isinstance(self.runner, SpoutRunner):
                self.runner.failPending()
            self._receiver = LinkReceiver()
            self._peer = message.incarnation
        self._isWelcome = True
        self._client.welcomed()
        self._pump()
        self._executor.wake()

    def _pump(self) -> None:
        connection = self._client.connection
        if connection is None:
            return
        while (frame := self._sender.take()) is not None:
            connection.write(frame)

    def _confirm(self) -> None:
        self._confirmTimer.stop()
        connection = self._client.connection
        if connection is not None and self._isWelcome:
            number = self._receiver.takeConfirm()
            if number is not None:
                connection.send(Confirm(number))

    # The plan.

    def _planned(self, plan: PhysicalPlan) -> None:
        before, runner = self._plan, self.runner
        if before is not None and plan.epoch < before.epoch:
            self._log.warn(
                "A plan of epoch {epoch} is ignored: the last one was of epoch {last}",
                epoch=plan.epoch,
                last=before.epoch,
            )
            return
        if before is None or runner is None:
            planned = {each.task: each.component for each in plan.packing.instances}
            self._component = planned.get(self._task, "")
            if self._component not in self._topology.components:
                error = (
                    f"topology {self._topology.name}: in its plan, task {self._task} is of"
                    f" {self._component or 'no component'}; its components:"
                    f" {', '.join(self._topology.components)}"
                )
                self._finish(Failure(ConfigurationError(error)))
                return
            self._plan = plan
            runner = self._begin(plan)
        else:
            self._plan = plan
            if plan.packing != before.packing:
                runner.replan(plan.packing)
        if not self._isStopping:
            runner.setActive(plan.state == ACTIVE)
            self._executor.wake()

    def _begin(self, plan: PhysicalPlan) -> Runner:
        random = Random(self._random.getrandbits(64))  # the runner's thread uses its own

        def make(output: RunnerOutput) -> Runner:
            return newRunner(
                self._topology,
                plan.packing,
                self._task,
                output,
                self._reactor.seconds,
                random,
                self._settings,
            )

        self.runner = runner = self._executor.start(make, self)
        if isinstance(runner, BoltRunner):
            tickMs = self._topology.optionsOf(self._component).tickMs
            if tickMs:
                self._ticks = LoopingCall(self._tick, runner)
                self._ticks.clock = self._reactor
                self._ticks.start(tickMs / 1000, now=False)
        return runner

    def _tick(self, runner: BoltRunner) -> None:
        runner.tick()
        self._executor.wake()

    def _stopTicks(self) -> None:
        if self._ticks is not None and self._ticks.running:
            self._ticks.stop()

    # The end.

    def _closed(self) -> None:
        self._isClosed = True
        self._drain()

    def _drain(self) -> None:
        """Finish, if the author's object is closed and all is sent, or cannot be sent."""
        isSent = self._client.connection is None or not self._sender.heldSize
        if self._isClosed and isSent:
            self._finish()

    def _finish(self, failure: Failure | None = None) -> None:
        if self._isOver:
            return
        self._isOver = True
        self._confirmTimer.stop()
        self._stopTimer.stop()
        self._stopTicks()
        if self._client.connection is not None:
            self._client.connection.close("the instance has ended")
        self._client.goTo(None)
        if failure is None:
            self.done.callback(None)
        else:
            self.done.errback(failure)
