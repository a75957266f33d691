"""
Spouts and bolts that are subprocesses: Storm's C{ShellSpout} and C{ShellBolt}. A module of its own,
since topologies are built of them.

A bolt's tuples are written as they come, up to what the pipe takes. What its subprocess emits is
read at once. A spout's subprocess gets several C{next} together, as long as it answers quickly and
each brings a tuple; Storm waits for the answer to each.

Without a thread of its own, in the simulator, a component waits after each call until its
subprocess has done with it. So it answers alike each time.

Rejected: queues and threads for reading and for writing, as Storm has. They cost two more copies
and switches of threads for each batch, and need limits of their own; a pipe has one.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from twisted.logger import Logger, LogLevel

from pylogbroker.errors import ConfigurationError, TupleError
from pylogbroker.topologies.api import DEFAULT_STREAM, Bolt, Spout, StreamTuple, TopologyContext
from pylogbroker.topologies.multilang import protocol
from pylogbroker.topologies.multilang.protocol import (
    ShellMessage,
    TupleEncoder,
    encodeCommand,
    encodeMessage,
    groupingInWords,
    handshakeOf,
)
from pylogbroker.topologies.multilang.shellprocess import ShellProcess
from pylogbroker.topologies.topology import TopologyOptions

SUBPROCESS_TIMEOUT_SECS = "topology.subprocess.timeout.secs"
"""Storm's key: how long a subprocess may be silent while an answer is awaited."""

TIMEOUT_SECONDS = 30.0
"""The default of L{SUBPROCESS_TIMEOUT_SECS}."""

NEXT_COUNT_MAX = 64
"""How many C{next} a spout's subprocess gets at once."""

BUSY_COUNT = 16
"""Of C{next}: a spout's subprocess with more of them to answer is busy, and is read later."""

QUICK_SECONDS = 0.02
"""A spout whose answers to the last C{next}s took longer gets fewer at once: acks wait for them."""

TRACKED_COUNT_MAX = 100_000
"""
How many tuples a subprocess may neither have acknowledged nor failed. Those before are failed, and
their ids forgotten, once it has got this number of others.
"""

UNSENT_SIZE_MAX = 16 << 10
"""Bytes of tuples for a bolt that are written at once."""

_LEVELS: Mapping[int | None, Any] = {
    0: LogLevel.debug,
    1: LogLevel.debug,
    2: LogLevel.info,
    3: LogLevel.warn,
    4: LogLevel.error,
}
"""By Storm's numbers: trace, debug, info, warn, error; without one, a message is info."""


class _Shell:
    """What L{ShellSpout} and L{ShellBolt} share: the subprocess, and what it says of itself."""

    _log = Logger()
    _process: ShellProcess

    def __init__(
        self,
        command: Sequence[str],
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """
        @param command: program and arguments, such as C{["node", "split.js"]}.
        @param folder: where it runs; L{None}: where the instance does.
        @param environment: over the instance's.
        """
        if isinstance(command, str) or not command:
            raise ConfigurationError(f"command={command!r} is no list of a program and arguments")
        self._command = list(command)
        self._folder = folder
        self._environment = environment

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """
        Start the subprocess and wait until it has answered the handshake.

        @raise ShellProcessError: it cannot be started, ends, or does not answer in time.
        @raise ConfigurationError: a value of the configuration cannot be in JSON.
        """
        self._context = context
        self._where = (
            f"topology {context.topology}, component {context.component}, task {context.taskId}"
        )
        self._oddMetrics: set[str] = set()
        self._options = TopologyOptions.of(config, self._where)
        timeoutSeconds = _timeoutOf(config, self._where)
        pidFolder = tempfile.mkdtemp(prefix="pylogbroker-pids-")
        try:
            handshake = self._encoded(
                handshakeOf(
                    pidFolder,
                    {**config, "topology.name": context.topology},
                    _contextInWords(context),
                )
            )
            self._process = ShellProcess(
                self._where,
                self._command,
                self._folder,
                self._environment,
                lambda line: self._log.info("{where}: {line}", where=self._where, line=line),
                self._onEnd,
                timeoutSeconds,
            )
            self._process.write(handshake)
            self._isShaken = False
            try:
                while not self._isShaken:
                    self._take(self._process.exchange())
            except BaseException:
                self._process.close()
                raise
        finally:
            shutil.rmtree(pidFolder, ignore_errors=True)

    def close(self) -> None:
        """End the subprocess."""
        self._process.close()

    def _encoded(self, handshake: Any) -> bytes:
        try:
            return encodeMessage(handshake)
        except TupleError as error:
            raise ConfigurationError(
                f"{self._where}: its configuration cannot be told to {self._command[0]}: {error}"
            ) from error

    def _onEnd(self) -> None:
        call = self._context.callFromThread
        if call is not None:
            call(self._pump)

    def _send(self) -> None:
        while not self._process.flush():
            self._take(self._process.exchange())

    def _pump(self) -> None:
        self._take(self._process.read())
        self._send()

    def _take(self, messages: Sequence[ShellMessage]) -> None:
        for message in messages:
            command = message.command
            if command == protocol.EMIT:
                self._takeEmit(message)
            elif command == protocol.SYNC:
                self._takeSync()
            elif command == protocol.LOG:
                self._log.emit(
                    _LEVELS.get(message.level, LogLevel.info),
                    "{where}: {text}",
                    where=self._where,
                    text=message.msg,
                )
            elif command == protocol.ERROR:
                self._process.lastReport = str(message.msg)
                self._log.error(
                    "{where} reports an error: {text}", where=self._where, text=message.msg
                )
            elif command == protocol.METRICS:
                self._takeMetric(message)
            elif not command and message.pid is not None:
                self._isShaken = True
            else:
                self._takeOther(message)

    def _takeEmit(self, message: ShellMessage) -> None:
        if message.tuple is None:
            raise TupleError(f"{self._where}: it emits without a tuple")
        tasks = self._emit(message, message.tuple, message.stream or DEFAULT_STREAM)
        if message.needsTaskIds is not False and message.task is None:
            self._process.write(encodeMessage(tasks))

    def _emit(self, message: ShellMessage, values: list[Any], stream: str) -> Sequence[int]:
        raise NotImplementedError

    def _takeSync(self) -> None:
        raise NotImplementedError

    def _takeOther(self, message: ShellMessage) -> None:
        raise self._process.nonsense(f"the command {message.command!r} is none that it may give")

    def _takeMetric(self, message: ShellMessage) -> None:
        amount = message.params
        if isinstance(amount, float) and amount.is_integer():
            amount = int(amount)
        if isinstance(amount, int):
            self._context.counter(str(message.name), int(amount))
        elif str(message.name) not in self._oddMetrics and len(self._oddMetrics) < 100:
            self._oddMetrics.add(str(message.name))
            self._log.warn(
                "{where} reports the metric {name} with {value}, which is no whole number; it is"
                " not counted",
                where=self._where,
                name=message.name,
                value=amount,
            )


class ShellSpout(_Shell, Spout):
    """
    A spout that is a subprocess::

        builder.setSpout("words", partial(ShellSpout, ["node", "words.js"]), outputs=["word"])
    """

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """See L{Spout.initialize}; raises as the subprocess fails."""
        self._sentCount = self._syncedCount = 0
        self._emittedCount = 0
        self._openCount = 0  # emitted for tracking, and neither acknowledged nor failed
        self._nextCount = 1
        self._isTaking = self._isSettling = False
        self._next = encodeCommand(protocol.NEXT)
        super().initialize(config, context)

    def nextTuple(self) -> None:
        """Ask the subprocess for tuples, and wait until it has answered."""
        count = max(1, min(self._nextCount, self._options.maxSpoutPending - self._openCount))
        emittedBefore, begun = self._emittedCount, self._context.seconds()
        self._process.write(self._next * count)
        self._sentCount += count
        self._settleUntil(self._sentCount)
        emittedCount = self._emittedCount - emittedBefore
        if not emittedCount or self._context.seconds() - begun > QUICK_SECONDS:
            self._nextCount = max(1, count // 2) if emittedCount else 1
        elif emittedCount >= count:
            self._nextCount = min(NEXT_COUNT_MAX, self._nextCount * 2)

    def _settleUntil(self, count: int) -> None:
        while self._syncedCount < count:
            messages = self._process.exchange(count - self._syncedCount > BUSY_COUNT)
            self._isTaking = True
            try:
                self._take(messages)
            finally:
                self._isTaking = False

    def _settle(self) -> None:
        self._isSettling = False
        self._settleUntil(self._sentCount)

    def _order(self, command: str, id: Any = None) -> None:
        self._process.write(encodeCommand(command, id))
        self._sentCount += 1
        if self._context.callFromThread is not None:
            if not self._isSettling:
                self._isSettling = True
                self._context.callFromThread(self._settle)
        elif not self._isTaking:
            self._settle()

    def ack(self, tupleId: Any) -> None:
        """Passed on to the subprocess."""
        self._openCount -= 1
        self._order(protocol.ACK, tupleId)

    def fail(self, tupleId: Any) -> None:
        """Passed on to the subprocess."""
        self._openCount -= 1
        self._order(protocol.FAIL, tupleId)

    def activate(self) -> None:
        """Passed on to the subprocess."""
        self._order(protocol.ACTIVATE)

    def deactivate(self) -> None:
        """Passed on to the subprocess."""
        self._order(protocol.DEACTIVATE)

    def _emit(self, message: ShellMessage, values: list[Any], stream: str) -> Sequence[int]:
        self._emittedCount += 1
        if message.id is not None:
            self._openCount += 1
        return self.emit(values, message.id, stream, message.task)

    def _takeSync(self) -> None:
        self._syncedCount = min(self._syncedCount + 1, self._sentCount)


class ShellBolt(_Shell, Bolt):
    """
    A bolt that is a subprocess::

        builder.setBolt("split", partial(ShellBolt, ["node", "split.js"]), 2,
                        {"sentences": Grouping.SHUFFLE}, outputs=["word"])
    """

    def initialize(self, config: Mapping[str, Any], context: TopologyContext) -> None:
        """See L{Bolt.initialize}; raises as the subprocess fails."""
        self._encoder = TupleEncoder()
        self._lastId = self._expiredId = 0
        self._unsentSize = 0
        self._tracked: dict[int, StreamTuple] = {}
        self._older: dict[int, StreamTuple] = {}
        self._isPumping = False
        self._isBeating = False
        self._rotatedSeconds = context.seconds()
        super().initialize(config, context)
        call = context.callFromThread
        if call is not None:
            self._process.watch(lambda: call(self._readable), lambda: call(self._beat))

    def process(self, tup: StreamTuple) -> None:
        """Pass it on to the subprocess."""
        self._lastId = number = self._lastId + 1
        self._tracked[number] = tup
        try:
            data = self._encoder.encode(number, tup)
        except TupleError as error:
            raise TupleError(
                f"{self._where}: a tuple of {tup.component}.{tup.stream}: {error}"
            ) from error
        if not number % 1024 or len(self._tracked) >= TRACKED_COUNT_MAX:
            self._rotate()
        self._process.write(data)
        self._unsentSize += len(data)
        if self._context.callFromThread is None:
            self._process.write(protocol.HEARTBEAT)
            self._isBeating = True
            while self._isBeating:
                self._take(self._process.exchange())
            self._send()
        elif self._unsentSize > UNSENT_SIZE_MAX:
            self._unsentSize = 0
            self._send()
        elif not self._isPumping:
            self._isPumping = True
            self._context.callFromThread(self._pumpOnce)

    def _pumpOnce(self) -> None:
        self._isPumping = False
        self._unsentSize = 0
        self._send()

    def _readable(self) -> None:
        try:
            self._pump()
        finally:
            self._process.handled()

    def _beat(self) -> None:
        """A second without a message has passed."""
        try:
            if self._isBeating:
                self._process.silent(1_000)
            else:
                self._isBeating = True
                self._process.write(protocol.HEARTBEAT)
            self._pump()
        finally:
            self._process.handled()

    def _rotate(self) -> None:
        seconds = self._context.seconds()
        timeoutSeconds = self._options.messageTimeoutMs / 1000
        isLate = timeoutSeconds and seconds - self._rotatedSeconds > timeoutSeconds
        if not isLate and len(self._tracked) < TRACKED_COUNT_MAX:
            return
        self._rotatedSeconds = seconds
        expired, self._older, self._tracked = self._older, self._tracked, {}
        if expired:
            self._expiredId = max(self._expiredId, *expired)
            for tup in expired.values():
                self.fail(tup)
            self._log.warn(
                "{where}: {count} tuples were neither acknowledged nor failed in time; they are"
                " failed",
                where=self._where,
                count=len(expired),
            )

    def _done(self, message: ShellMessage) -> StreamTuple | None:
        """The tuple of an ack or fail, which is tracked no longer; L{None}: it has expired."""
        number = self._numberOf(message.id)
        tup = self._tracked.pop(number, None) or self._older.pop(number, None)
        if tup is None and number > self._expiredId:
            raise self._process.nonsense(
                f"{message.command} of tuple {message.id}, which it does not have: it was"
                " acknowledged or failed before"
            )
        return tup

    def _numberOf(self, id: Any) -> int:
        try:
            number = int(id)
        except (TypeError, ValueError):
            number = 0
        if not 0 < number <= self._lastId:
            raise self._process.nonsense(f"{id!r:.100} is the id of no tuple that it got")
        return number

    def _anchorsOf(self, message: ShellMessage) -> list[StreamTuple]:
        ids = message.anchors
        if not ids:
            return []
        anchors = []
        for each in [ids] if isinstance(ids, str) else ids:
            number = self._numberOf(each)
            tup = self._tracked.get(number) or self._older.get(number)
            if tup is not None:
                anchors.append(tup)
            elif number > self._expiredId:
                raise self._process.nonsense(
                    f"a tuple is anchored to tuple {each}, which was acknowledged or failed before"
                )
        return anchors

    def _emit(self, message: ShellMessage, values: list[Any], stream: str) -> Sequence[int]:
        return self.emit(values, stream, self._anchorsOf(message), message.task)

    def _takeSync(self) -> None:
        self._isBeating = False

    def _takeOther(self, message: ShellMessage) -> None:
        if message.command in (protocol.ACK, protocol.FAIL):
            tup = self._done(message)
            if tup is not None:
                (self.ack if message.command == protocol.ACK else self.fail)(tup)
        else:
            super()._takeOther(message)


def _timeoutOf(config: Mapping[str, Any], where: str) -> float:
    value = config.get(SUBPROCESS_TIMEOUT_SECS, TIMEOUT_SECONDS)
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = 0
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(
            f"{where}: {SUBPROCESS_TIMEOUT_SECS}={value!r} is no number of seconds above 0"
        )
    return seconds


def _contextInWords(context: TopologyContext) -> dict[str, Any]:
    """A context, as Storm writes it into a handshake."""
    inputs: dict[str, dict[str, Any]] = {}
    fields: dict[str, dict[str, Any]] = {}
    for (component, stream), grouping in context.inputs.items():
        inputs.setdefault(component, {})[stream] = groupingInWords(
            grouping.kind, grouping.fieldNames
        )
        fields.setdefault(component, {})[stream] = list(context.streams[component][stream])
    mine = context.streams.get(context.component, {})
    return {
        "taskid": context.taskId,
        "componentid": context.component,
        "task->component": {
            str(task): component
            for component, tasks in context.componentTasks.items()
            for task in tasks
        },
        "streams": list(mine),
        "stream->outputfields": {stream: list(names) for stream, names in mine.items()},
        "stream->target->grouping": {
            stream: {
                bolt: groupingInWords(grouping.kind, grouping.fieldNames)
                for bolt, grouping in bolts.items()
            }
            for stream, bolts in context.consumers.items()
        },
        "source->stream->grouping": inputs,
        "source->stream->fields": fields,
    }
