"""
Runs a spout or a bolt for C{heronpy}, which has no runtime of its own. A program that runs with the
author's Python, and speaks the multi-language protocol with
L{pylogbroker.topologies.multilang.components}.

What must be true:

  - A value that JSON has arrives as it was. Others are pickled, as in Heron.
  - Ticks come from a timer here, since a component may set their interval when it is initialized.
  - Unless tuples are tracked, a tuple is acknowledged when it was processed, as Heron forgets it.
  - A tuple that custom groupings send to several tasks is acknowledged when all are, once.
"""

from __future__ import annotations

import base64
import importlib
import json
import logging
import math
import os
import pickle
import select
import sys
import time
import traceback
import types
from collections import deque, namedtuple
from typing import Any

HERON_KEY = "pylogbroker.heron"
HERON_TICKS_KEY = "pylogbroker.heron.ticks"
TICKS_KEY = "topology.tick.tuple.freq.secs"
"""As in L{pylogbroker.topologies.multilang.environment.authordefinitions}."""

DIRECT = "..to.."
"""Between a stream and a bolt, in the name of a stream whose tasks the author's code chooses."""

PICKLED = "pickled.base64"
READ_SIZE = 1 << 18
METRICS_SECONDS = 10.0
_END = b"\nend\n"
_LEVELS = {"trace": 10, "debug": 10, "info": 20, "warn": 30, "error": 40}


class Pipe:
    """Messages from and to the instance."""

    def __init__(self, output: int) -> None:
        self._output = output
        self._unsent: list[bytes] = []
        self._messages: deque[bytes] = deque()
        self._rest = b""

    def send(self, message: Any) -> None:
        """Send it soon."""
        self._unsent.append(json.dumps(message).encode() + _END)
        if len(self._unsent) > 500:
            self.flush()

    def flush(self) -> None:
        """Send what is unsent."""
        data = memoryview(b"".join(self._unsent))
        self._unsent.clear()
        while data:
            data = data[os.write(self._output, data) :]

    def receive(self, seconds: float | None) -> Any:
        """The next message; L{None}: none has come in this time."""
        while not self._messages:
            self.flush()
            if not select.select([0], [], [], seconds)[0]:
                return None
            data = os.read(0, READ_SIZE)
            if not data:
                sys.exit(0)  # the instance has ended
            *bodies, self._rest = (self._rest + data).split(_END)
            self._messages.extend(bodies)
        return json.loads(self._messages.popleft())


def isInJson(value: Any) -> bool:
    """Whether a value arrives as it was, without being pickled."""
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    if kind is int:
        return value in range(-(1 << 63), 1 << 63)
    return value is None or kind in (str, bool)


def encoded(value: Any) -> Any:
    """A value, as it travels."""
    if isInJson(value):
        return value
    try:
        data = pickle.dumps(value, 4)
    except Exception:  # a function, or a class of the program
        import cloudpickle

        data = cloudpickle.dumps(value)
    return {PICKLED: base64.b64encode(data).decode()}


def decoded(value: Any) -> Any:
    """What L{encoded} has made a value of."""
    if type(value) is dict and PICKLED in value:
        return unpickled(value[PICKLED])
    return value


def unpickled(text: str) -> Any:
    """An object, from Base64."""
    return pickle.loads(base64.b64decode(text))


def typed(value: Any) -> Any:
    """A value of a configuration: as in Heron, a text that is a number or a truth value is one."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return value


def classOf(path: str, name: str) -> Any:
    """
    The author's class.

    @param path: of the topology's file, whose classes are said to be of C{__main__}.
    """
    module, _, name = name.rpartition(".")
    if module != "__main__":
        return getattr(importlib.import_module(module), name)
    if "heronprogram" in sys.modules:
        return getattr(sys.modules["heronprogram"], name)
    os.environ.setdefault("HERON_OPTIONS", "cmdline.topologydefn.tmpdirectory=.")
    program = types.ModuleType("heronprogram")  # not __main__: nothing is submitted again
    program.__file__ = path
    sys.modules["heronprogram"] = sys.modules["__main__"] = program
    with open(path, "rb") as file:
        exec(compile(file.read(), path, "exec"), program.__dict__)
    return getattr(program, name)


def newContext(handshake: dict[str, Any], config: dict[str, Any]) -> Any:
    """A C{TopologyContext} of C{heronpy}."""
    from heronpy.api.topology_context import TopologyContext

    context = handshake["context"]
    tasks: dict[str, list[int]] = {}
    for task, component in context["task->component"].items():
        tasks.setdefault(component, []).append(int(task))
    StreamId = namedtuple("StreamId", "id component_name")
    sources = {
        StreamId(stream.partition(DIRECT)[0], component): grouping["type"]
        for component, streams in context["source->stream->grouping"].items()
        for stream, grouping in streams.items()
    }

    class Context(TopologyContext):  # type: ignore[misc] # it has no types
        """Where the component is."""

        def __init__(self) -> None:
            self.metrics: list[tuple[str, Any]] = []

        def get_task_id(self) -> int:
            return int(context["taskid"])

        def get_component_id(self) -> str:
            return str(context["componentid"])

        def get_cluster_config(self) -> dict[str, Any]:
            return config

        def get_topology_name(self) -> str:
            return str(config["topology.name"])

        def register_metric(self, name: str, metric: Any, time_bucket_in_sec: float) -> None:
            self.metrics.append((name, metric))

        def get_sources(self, component_id: str) -> Any:
            return sources if component_id == self.get_component_id() else None

        def get_component_tasks(self, component_id: str) -> list[int] | None:
            found = tasks.get(component_id)
            return None if found is None else sorted(found)

        def add_task_hook(self, task_hook: Any) -> None:
            task_hook.prepare(config, self)
            logging.warning("of a task hook, prepare alone is called: %r", task_hook)

    return Context()


class Delegate:
    """What a component calls: of spouts and bolts."""

    def __init__(self, pipe: Pipe, context: Any, isTracked: bool, path: str) -> None:
        self.path = path
        self.logger = logging.getLogger()
        self.pipe = pipe
        self.context = context
        self.isTracked = isTracked
        self.choosers: dict[str, list[tuple[str, Any]]] = {}

    def log(self, message: str, level: str | None = None) -> None:
        """To the log of the instance."""
        if level is not None and level not in _LEVELS:
            raise ValueError(f"{level} is not supported as logging level")
        self.logger.log(_LEVELS[level or "info"], message)

    def prepare(self, choosers: list[dict[str, str]]) -> None:
        """Prepare custom groupings."""
        for each in choosers:
            stream, bolt = each["stream"], each["bolt"]
            chooser = unpickled(each["chooser"])
            if isinstance(chooser, str):
                chooser = classOf(self.path, chooser)()
            mine = self.context.get_component_id()
            tasks = self.context.get_component_tasks(bolt)
            if not hasattr(chooser, "logger"):
                chooser.logger = self.logger
            chooser.prepare(self.context, mine, stream, tasks)
            self.choosers.setdefault(stream, []).append((f"{stream}{DIRECT}{bolt}", chooser))

    def send(self, values: Any, stream: str, task: int | None, more: dict[str, Any]) -> int:
        """
        Emit it, and to the tasks that custom groupings choose.

        @return: how often.
        """
        if not isinstance(values, (list, tuple)):
            raise TypeError(f"a tuple is a list or a tuple, given: {values!r}")
        message = {
            "command": "emit",
            "tuple": [encoded(each) for each in values],
            "need_task_ids": False,
            **more,
        }
        places: list[tuple[str, int | None]] = [(stream, task)]
        for direct, chooser in self.choosers.get(stream, ()):
            places += [(direct, chosen) for chosen in chooser.choose_tasks(values)]
        for place, chosen in places:
            message["stream"] = place
            if chosen is not None:
                message["task"] = chosen
            self.pipe.send(message)
        return len(places)

    def report(self) -> None:
        """Send the metrics that are counts."""
        for name, metric in self.context.metrics:
            value = metric.get_value_and_reset()
            for key, number in value.items() if isinstance(value, dict) else [("", value)]:
                if isinstance(number, int) and number:
                    full = f"{name}/{key}" if key else name
                    self.pipe.send({"command": "metrics", "name": full, "params": number})


class SpoutDelegate(Delegate):
    """Of a spout."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lastId = 0
        self.open: dict[int, list[Any]] = {}  # by our id: the author's, and how many are open

    def emit(
        self,
        tup: Any,
        tup_id: Any = None,
        stream: str = "default",
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> None:
        """See C{heronpy}."""
        if tup_id is None:
            self.send(tup, stream, direct_task, {})
            return
        self.lastId = number = self.lastId + 1
        self.open[number] = [tup_id, self.send(tup, stream, direct_task, {"id": number})]

    def ended(self, number: int, isAcked: bool) -> Any:
        """
        One of the tuples with this id of ours was acknowledged or failed.

        @return: the author's id in a list, if that is the end.
        """
        found = self.open.get(number)
        if found is None:
            return None
        found[1] -= 1
        if isAcked and found[1]:
            return None
        del self.open[number]
        return found


class BoltDelegate(Delegate):
    """Of a bolt."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.open: set[str] = set()

    def emit(
        self,
        tup: Any,
        stream: str = "default",
        anchors: Any = None,
        direct_task: int | None = None,
        need_task_ids: bool = False,
    ) -> None:
        """See C{heronpy}."""
        ids = [each.id for each in anchors or () if getattr(each, "id", None) in self.open]
        self.send(tup, stream, direct_task, {"anchors": ids})

    def ack(self, tup: Any) -> None:
        """See C{heronpy}."""
        self.end(tup, "ack")

    def fail(self, tup: Any) -> None:
        """See C{heronpy}."""
        self.end(tup, "fail")

    def end(self, tup: Any, command: str) -> None:
        """Tell what came of a tuple, once."""
        if tup.id in self.open:
            self.open.remove(tup.id)
            self.pipe.send({"command": command, "id": tup.id})


def runSpout(spout: Any, delegate: SpoutDelegate, receive: Any) -> None:
    """Do what the instance says."""
    pipe = delegate.pipe
    while True:
        message = receive(None)
        command = message["command"]
        if command == "next":
            spout.next_tuple()
        elif command in ("ack", "fail"):
            found = delegate.ended(message["id"], command == "ack")
            if found is not None:
                (spout.ack if command == "ack" else spout.fail)(found[0])
        elif command == "activate":
            spout.activate()
        elif command == "deactivate":
            spout.deactivate()
        pipe.send({"command": "sync"})


def runBolt(bolt: Any, delegate: BoltDelegate, receive: Any, ticks: float) -> None:
    """Process tuples, and ticks of a timer."""
    from heronpy.api.tuple import Tuple

    tick = Tuple("", "__system", "__tick", "", None)
    nextTick = time.monotonic() + ticks
    while True:
        left = nextTick - time.monotonic() if ticks else None
        if left is not None and left <= 0:
            nextTick = time.monotonic() + ticks
            bolt.process_tick(tick)
            continue
        message = receive(left)
        if message is None:
            continue
        if message["task"] == -1:  # a heartbeat
            delegate.pipe.send({"command": "sync"})
            continue
        values = [decoded(each) for each in message["tuple"]]
        stream = message["stream"].partition(DIRECT)[0]
        tup = Tuple(message["id"], message["comp"], stream, message["task"], values)
        delegate.open.add(tup.id)
        bolt.process(tup)
        if not delegate.isTracked:
            delegate.ack(tup)


def main(path: str, name: str) -> None:
    """
    @param path: of the topology's file.
    @param name: of the class, with its module.
    """
    pipe = Pipe(os.dup(1))
    os.dup2(2, 1)
    del sys.path[0]  # our own folder
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s"
    )
    handshake = pipe.receive(None)
    conf = handshake["conf"]
    known = conf.pop(HERON_KEY)
    open(os.path.join(handshake["pidDir"], str(os.getpid())), "w").close()
    pipe.send({"pid": os.getpid()})
    pipe.flush()
    try:
        if HERON_TICKS_KEY in conf:
            conf[TICKS_KEY] = conf.pop(HERON_TICKS_KEY)
        kind = classOf(path, name)
        config = {key: typed(value) for key, value in conf.items()}
        config.update((key, unpickled(value)) for key, value in known["pickled"].items())
        context = newContext(handshake, config)
        isTracked = config.get("topology.reliability.mode") == "ATLEAST_ONCE"
        isSpout = not hasattr(kind, "process")
        delegate = (SpoutDelegate if isSpout else BoltDelegate)(pipe, context, isTracked, path)
        component = kind(delegate=delegate)
        component.initialize(config=config, context=context)
        delegate.prepare(known["choosers"])
        reported = time.monotonic()

        def receive(seconds: float | None) -> Any:
            nonlocal reported
            if context.metrics and time.monotonic() - reported > METRICS_SECONDS:
                reported = time.monotonic()
                delegate.report()
            return pipe.receive(seconds)

        if isinstance(delegate, SpoutDelegate):
            runSpout(component, delegate, receive)
        elif isinstance(delegate, BoltDelegate):
            runBolt(component, delegate, receive, float(config.get(TICKS_KEY) or 0))
    except Exception:  # the author's code may raise anything
        pipe.send({"command": "error", "msg": traceback.format_exc()})
        pipe.flush()
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
