"""
What a job reads, keeps and writes, and with which settings it runs, as plain values: the record of
a job in C{config.topic}, and what C{pylogbroker task plan} prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pylogbroker.config.kafka.clientsettings import (
    KafkaClientSettings,
    KafkaConsumerSettings,
    KafkaProducerSettings,
)
from pylogbroker.config.kafka.tasksettings import KafkaTaskSettings
from pylogbroker.config.keys import ConfigKey
from pylogbroker.tasks.job import DEAD_LETTER, Job
from pylogbroker.tasks.reports.jsondocument import decodeDocument, encodeDocument
from pylogbroker.tasks.serdes import BYTES
from pylogbroker.tasks.streams.steps import PlanStep
from pylogbroker.tasks.streams.stores import STREAM_TIMES

INPUT, OUTPUT, CHANGELOG, DEAD_LETTERS = "input", "output", "changelog", "dead letters"
BROADCAST = "broadcast input"
REPARTITION = "repartition"
"""A topic that a job writes, and reads again."""

PARTITION = 0
"""Of the topics of configs and of metrics: each has one, and readers read no other."""

_CLIENTS = {"consumer": KafkaConsumerSettings, "producer": KafkaProducerSettings}


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """
    A topic of a job.

    @ivar kind: what it is for the job.
    @ivar key: the name of the keys' serde.
    @ivar value: of the messages'.
    @ivar partitionCount: L{None}: not known, or there is no such topic.
    @ivar store: whose changes it has.
    @ivar engine: of the store.
    """

    kind: str
    topic: str
    key: str
    value: str
    partitionCount: int | None = None
    store: str | None = None
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """
    A step of a job of the high-level API.

    @ivar kind: such as C{filter}.
    @ivar details: what there is to say of it, in a few words.
    @ivar parents: names of the steps whose messages it takes.
    @ivar reads: the topic that it reads; L{None}: none.
    @ivar writes: the topic that it writes, likewise.
    @ivar stores: their names.
    """

    name: str
    kind: str
    details: str = ""
    parents: tuple[str, ...] = ()
    reads: str | None = None
    writes: str | None = None
    stores: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobConfig:
    """
    A job.

    @ivar tasks: their count; L{None}: an input is not known.
    @ivar topicCount: of C{topics}, before any were left out of a record that is too large.
    @ivar stepCount: of C{steps}, likewise.
    @ivar configNames: of C{Job.config}, whose values may be secret.
    @ivar settings: of its containers, by key.
    @ivar writtenAtMs: milliseconds since the epoch; 0: it is no record.
    """

    job: str
    tasks: int | None
    onError: str
    windowMs: int
    topics: tuple[PlannedTopic, ...]
    topicCount: int
    steps: tuple[PlannedStep, ...] = ()
    stepCount: int = 0
    configNames: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    writtenAtMs: int = 0

    def encode(self) -> bytes:
        """As a record's value. Steps, then topics are left out where it would be too large."""
        return encodeDocument(self, JobConfig._shortened)

    def _shortened(self) -> JobConfig:
        if self.steps:
            return replace(self, steps=self.steps[: len(self.steps) // 2])
        if self.topics:
            return replace(self, topics=self.topics[: len(self.topics) // 2])
        return replace(self, configNames=(), settings={})

    @staticmethod
    def decode(data: bytes) -> JobConfig:
        """@raise ValueError: it is none; the text says why."""
        return decodeDocument(JobConfig, data)


def configOf(job: Job, counts: Mapping[str, int]) -> JobConfig:
    """
    What is known of a job without its containers.

    @param counts: of partitions, by topic.
    """
    topics = [
        PlannedTopic(
            BROADCAST if each.isBroadcast else INPUT, each.topic, each.key.name, each.message.name
        )
        for each in job.inputs
    ]
    topics += [
        PlannedTopic(OUTPUT, job.topicOf(each), each.key.name, each.message.name)
        for each in job.outputs
    ]
    topics += [
        PlannedTopic(REPARTITION, job.repartitionTopicOf(each), each.key.name, each.message.name)
        for each in job.repartitions
    ]
    topics += [
        PlannedTopic(
            CHANGELOG,
            job.changelogOf(each),
            each.key.name,
            each.value.name,
            store=each.name,
            engine=each.engine,
        )
        for each in job.stores
    ]
    if job.onError == DEAD_LETTER:
        topics.append(PlannedTopic(DEAD_LETTERS, job.deadLetters, BYTES.name, BYTES.name))
    config = JobConfig(
        job.name,
        None,
        job.onError,
        job.windowMs,
        tuple(topics),
        len(topics),
        tuple(_plannedStep(job, each) for each in job.steps),
        len(job.steps),
        configNames=tuple(job.config),
    )
    return withCounts(config, counts)


def _plannedStep(job: Job, step: PlanStep) -> PlannedStep:
    written = {each.topic: job.topicOf(each) for each in job.outputs}
    written |= {each.name: job.repartitionTopicOf(each) for each in job.repartitions}
    return PlannedStep(
        step.name,
        step.kindName,
        step.details,
        tuple(each.name for each in step.parents),
        written.get(step.reads, step.reads) or None,
        written.get(step.writes, step.writes) or None,
        (*step.stores, STREAM_TIMES) if step.isTimed else step.stores,
    )


def withCounts(config: JobConfig, counts: Mapping[str, int]) -> JobConfig:
    """
    A job with other counts of partitions.

    @param counts: by topic.
    """
    topics = [replace(each, partitionCount=counts.get(each.topic)) for each in config.topics]
    return replace(config, tasks=_taskCount(topics), topics=tuple(topics))


def _taskCount(topics: Iterable[PlannedTopic]) -> int | None:
    """
    One for each number of a partition of an input that is no broadcast one; L{None}: an input is
    not known.
    """
    counts = [each.partitionCount for each in topics if each.kind == INPUT]
    known = [count for count in counts if count is not None]
    return max(known) if len(known) == len(counts) else None


def shownSettings(settings: KafkaTaskSettings) -> dict[str, str]:
    """
    The settings that others may see, by key: those of the container itself, and known ones behind
    C{consumer.} and C{producer.}. The way to the brokers, with its credentials, is left out.
    """
    found = {}
    hidden = {each.key for each in KafkaClientSettings.keys}
    for key in KafkaTaskSettings.keys:
        value = getattr(settings, key.name)
        if key.isPrefix:
            known = {
                each.key for each in _CLIENTS[key.name].keys if _isShown(each) and each.key
            } - hidden
            found.update({key.key + name: str(value[name]) for name in known & set(value)})
        elif key.key not in hidden and _isShown(key):
            found[key.key] = str(value)
    return dict(sorted(found.items()))


def _isShown(key: ConfigKey[object]) -> bool:
    return key.isEffective and not key.type.isSecret
