"""
A job: what is read, by which task, with which stores, and what is written. A module of its own,
since job files import it::

    job = Job(
        "count-words",
        task=CountWords,
        inputs=[Input("words", key=STRING, message=INTEGER)],
        stores=[Store("word-counts", key=STRING, value=INTEGER, changelog="word-counts")],
    )

C{pylogbroker task run FILE} runs the L{Job}s that a file has as its global names.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import iscoroutinefunction
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Self

from pylogbroker.errors import ConfigurationError, describeError
from pylogbroker.tasks.api import StreamTask
from pylogbroker.tasks.serdes import BYTES, Serde

if TYPE_CHECKING:  # what makes steps imports this module
    from pylogbroker.tasks.streams.steps import PlanStep

STOP, SKIP, DEAD_LETTER = ON_ERROR = ("stop", "skip", "dead-letter")
"""
What happens to a message that its task cannot handle: the container stops; the message is left out,
with what its task sent and stored for it; the same, and it goes to the dead-letter topic.
"""

ROCKSDB, MEMORY = ENGINES = ("rocksdb", "memory")

NAME_SIZE_MAX = 180
"""Of a job or a store, which have folders of their names, and topics with longer ones."""

TOPIC_SIZE_MAX = 249
"""Of a topic, in Kafka."""

_NAME = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Input:
    """
    A topic that a job reads.

    @ivar key: decodes the keys.
    @ivar message: decodes the messages.
    @ivar isBootstrap: whether a task reads it to the end that it has when the task starts before it
        gets any message of the other inputs; and before those of the same timestamp later.
    @ivar isBroadcast: whether each task reads all partitions, from the beginning at each start.
    """

    topic: str
    key: Serde = BYTES
    message: Serde = BYTES
    isBootstrap: bool = False
    isBroadcast: bool = False


@dataclass(frozen=True, slots=True)
class Repartition:
    """
    A topic within a job: its tasks write it under other keys, and read it again. For the tasks
    its name stands for the topic, in envelopes of both kinds.

    @ivar key: encodes and decodes the keys.
    @ivar message: encodes and decodes the messages.
    """

    name: str
    key: Serde = BYTES
    message: Serde = BYTES


@dataclass(frozen=True, slots=True)
class Output:
    """
    A topic that a job writes.

    @ivar key: encodes the keys.
    @ivar message: encodes the messages.
    """

    topic: str
    key: Serde = BYTES
    message: Serde = BYTES


@dataclass(frozen=True, slots=True)
class Store:
    """
    A store that each task of a job has.

    @ivar changelog: the topic that has each change; by default C{<job>-<store>-changelog}.
    @ivar engine: L{ROCKSDB}, which needs the extra C{tasks}, or L{MEMORY}, which is restored from
        the changelog at each start.
    """

    name: str
    key: Serde = BYTES
    value: Serde = BYTES
    changelog: str = ""
    engine: str = ROCKSDB


@dataclass(frozen=True, slots=True)
class Job:
    """
    A job.

    @ivar name: also its group's.
    @ivar task: makes a task for each partition: a class, or a function without parameters.
    @ivar repartitions: topics C{<job>-<name>-repartition}.
    @ivar copartitions: inputs, and names of repartitions, that must have equally many partitions:
        their messages of one key meet in one task.
    @ivar config: reaches C{init}.
    @ivar windowMs: how often C{window} is called; 0: never.
    @ivar onError: one of L{ON_ERROR}.
    @ivar deadLetterTopic: by default C{<job>-dead-letters}.
    @ivar steps: of a job of the high-level API, for people and engines: C{task} does what they say.
    @raise ConfigurationError: two parts contradict each other, or a name cannot be one.
    """

    name: str
    task: Callable[[], StreamTask]
    inputs: Sequence[Input]
    outputs: Sequence[Output] = ()
    stores: Sequence[Store] = ()
    repartitions: Sequence[Repartition] = ()
    copartitions: Sequence[Sequence[str]] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    windowMs: int = 0
    onError: str = STOP
    deadLetterTopic: str = ""
    steps: Sequence[PlanStep] = ()
    _topicSuffix: str = ""

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "stores", "repartitions", "copartitions", "steps"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        self._checkNames("job", [self.name], NAME_SIZE_MAX)
        self._checkNames("store", [each.name for each in self.stores], NAME_SIZE_MAX)
        self._checkNames("input", [each.topic for each in self.inputs])
        self._checkNames("output", [self.topicOf(each) for each in self.outputs])
        changelogs = [self.changelogOf(each) for each in self.stores]
        self._checkNames("changelog", changelogs)
        self._checkNames("dead-letter topic", [self.deadLetters])
        self._checkNames("repartition", [each.name for each in self.repartitions], NAME_SIZE_MAX)
        repartitioned = [self.repartitionTopicOf(each) for each in self.repartitions]
        self._checkNames("repartition topic", repartitioned)
        if all(each.isBroadcast for each in self.inputs):
            raise ConfigurationError(
                f"job {self.name}: it has no input that is divided among its tasks"
                if self.inputs
                else f"job {self.name}: it has no input"
            )
        if self.onError not in ON_ERROR:
            raise ConfigurationError(
                f"job {self.name}: onError={self.onError!r} is none of {', '.join(ON_ERROR)}"
            )
        if self.windowMs < 0:
            raise ConfigurationError(f"job {self.name}: windowMs={self.windowMs} is negative")
        for store in self.stores:
            if store.engine not in ENGINES:
                raise ConfigurationError(
                    f"job {self.name}, store {store.name}: engine {store.engine!r} is none of"
                    f" {', '.join(ENGINES)}"
                )
        read = {each.topic for each in self.inputs}
        outputs = [self.topicOf(each) for each in self.outputs]
        written = [*changelogs, self.deadLetters, *outputs, *repartitioned]
        for topic in written:
            if topic in read:
                raise ConfigurationError(
                    f"job {self.name}: it reads topic {topic}, and writes it: it would have no end"
                )
        for topic in repartitioned:
            if topic in (*changelogs, self.deadLetters, *outputs):
                raise ConfigurationError(
                    f"job {self.name}: topic {topic} is written for something else, and is a"
                    " repartition's"
                )
        known = [*read, *(each.topic for each in self.outputs)]
        for repartition in self.repartitions:
            if repartition.name in known:
                raise ConfigurationError(
                    f"job {self.name}: {repartition.name} names a repartition and a topic"
                )
        self._checkCopartitions()
        for each in self.outputs:
            if self.topicOf(each) in changelogs:
                raise ConfigurationError(
                    f"job {self.name}: topic {each.topic} is an output and a changelog"
                )
            if self.topicOf(each) == self.deadLetters:
                raise ConfigurationError(
                    f"job {self.name}: topic {each.topic} is an output and has dead letters"
                )
        if self.deadLetters in changelogs:
            raise ConfigurationError(
                f"job {self.name}: topic {self.deadLetters} is a changelog and has dead letters"
            )

    def _checkCopartitions(self) -> None:
        divided = [each.topic for each in self.inputs if not each.isBroadcast]
        divided += [each.name for each in self.repartitions]
        for names in self.copartitions:
            for name in names:
                if name not in divided:
                    raise ConfigurationError(
                        f"job {self.name}: {name} is to have as many partitions as others, and is"
                        " no input that is divided among the tasks, and no repartition"
                    )

    def _checkNames(self, kind: str, names: Iterable[str], sizeMax: int = TOPIC_SIZE_MAX) -> None:
        seen = set()
        for name in names:
            isText = isinstance(name, str)
            if not isText or not _NAME.fullmatch(name) or len(name) > sizeMax:
                raise ConfigurationError(
                    f"job {self.name}: {kind} {name!r}: a name has 1 to {sizeMax} of"
                    " A-Z a-z 0-9 . _ -"
                )
            if name in seen:
                raise ConfigurationError(f"job {self.name}: {kind} {name} is there twice")
            seen.add(name)

    @property
    def isAsync(self) -> bool:
        """
        Whether a method of its tasks is a coroutine function. Where C{task} is no class, one is
        made to find out.
        """
        return hasCoroutines(self.task if isinstance(self.task, type) else type(self.task()))

    def topicOf(self, output: Output) -> str:
        """The topic that an output is written to."""
        return output.topic + self._topicSuffix

    def changelogOf(self, store: Store) -> str:
        """The topic of a store's changes."""
        given = store.changelog + self._topicSuffix if store.changelog else ""
        return given or f"{self.name}-{store.name}-changelog"

    def repartitionTopicOf(self, repartition: Repartition) -> str:
        """The topic of a repartition."""
        return f"{self.name}-{repartition.name}-repartition"

    @property
    def ranks(self) -> dict[str, tuple[bool, int]]:
        """
        The order of its topics at equal timestamps: bootstrapped inputs, the other inputs as they
        stand in the job, repartition topics.
        """
        found: dict[str, tuple[bool, int]] = {}
        for each in self.inputs:
            found[each.topic] = (not each.isBootstrap, len(found))
        for repartition in self.repartitions:
            found[self.repartitionTopicOf(repartition)] = (True, len(found))
        return found

    @property
    def deadLetters(self) -> str:
        """The topic of messages that could not be handled."""
        given = self.deadLetterTopic + self._topicSuffix if self.deadLetterTopic else ""
        return given or f"{self.name}-dead-letters"

    def renamed(self, name: str) -> Self:
        """
        The same job beside this one, with a group, stores and outputs of its own: each topic that
        it writes has C{.<name>} behind its name.
        """
        return replace(self, name=name, _topicSuffix=f".{name}")


def hasCoroutines(kind: type) -> bool:
    """Whether a method of a class of tasks is a coroutine function."""
    return any(
        iscoroutinefunction(getattr(kind, name, None))
        for name in ("init", "process", "window", "close")
    )


def runFile(path: str) -> dict[str, Any]:
    """
    Run a file of an author's, as a program that may import its neighbours. Blocks.

    @return: its global names.
    @raise ConfigurationError: the file cannot be read or raises; it says in which line.
    """
    if not Path(path).is_file():
        raise ConfigurationError(f"{path}: there is no such file")
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return runpy.run_path(path)
    except (Exception, SystemExit) as error:  # the author's code
        lines = [each.lineno for each in extract_tb(error.__traceback__) if each.filename == path]
        where = f"{path}, line {lines[-1]}" if lines else path
        raise ConfigurationError(
            f"{where}: {type(error).__name__}: {describeError(error)}"
        ) from error


def loadJobs(path: str) -> dict[str, Job]:
    """
    Run a job file. Blocks.

    @return: its jobs, by name.
    @raise ConfigurationError: the file cannot be read or raises; it has no job, or two of one name.
    """
    jobs: dict[str, Job] = {}
    for value in runFile(path).values():
        if isinstance(value, Job) and jobs.setdefault(value.name, value) is not value:
            raise ConfigurationError(f"{path}: two jobs are named {value.name}")
    if not jobs:
        raise ConfigurationError(f"{path}: no global name in it is a Job")
    return jobs
