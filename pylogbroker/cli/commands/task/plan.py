"""
C{task plan}: what jobs read, keep and write, as text, as JSON, or for Graphviz.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping
from textwrap import indent
from typing import NamedTuple

from pylogbroker.cli import CommandError
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.output import asJson, tableOfRows
from pylogbroker.cli.streams import Streams
from pylogbroker.programs.tasks.jobchoice import chosenJobs
from pylogbroker.tasks.job import DEAD_LETTER, Job
from pylogbroker.tasks.serdes import BYTES
from pylogbroker.types import formatCount

INPUT, OUTPUT, CHANGELOG, DEAD_LETTERS = "input", "output", "changelog", "dead letters"
REPARTITION = "repartition"
"""A topic that a job writes, and reads again."""


class PlannedTopic(NamedTuple):
    """
    A topic of a job.

    @ivar kind: what it is for the job.
    @ivar key: the name of the keys' serde.
    @ivar value: of the messages'.
    @ivar partitionCount: L{None}: not known, or there is no such topic.
    @ivar store: whose changes it has, and in which engine.
    """

    kind: str
    topic: str
    key: str
    value: str
    partitionCount: int | None
    store: str | None


Plan = list[tuple[Job, list[PlannedTopic]]]


def topicsOf(job: Job, counts: Mapping[str, int]) -> list[PlannedTopic]:
    """
    All topics of a job.

    @param counts: of partitions, by topic.
    """
    found = [
        PlannedTopic(INPUT, each.topic, each.key.name, each.message.name, None, None)
        for each in job.inputs
    ]
    found += [
        PlannedTopic(OUTPUT, job.topicOf(each), each.key.name, each.message.name, None, None)
        for each in job.outputs
    ]
    found += [
        PlannedTopic(
            REPARTITION,
            job.repartitionTopicOf(each),
            each.key.name,
            each.message.name,
            None,
            None,
        )
        for each in job.repartitions
    ]
    found += [
        PlannedTopic(
            CHANGELOG,
            job.changelogOf(each),
            each.key.name,
            each.value.name,
            None,
            f"{each.name}, {each.engine}",
        )
        for each in job.stores
    ]
    if job.onError == DEAD_LETTER:
        found.append(
            PlannedTopic(DEAD_LETTERS, job.deadLetters, BYTES.name, BYTES.name, None, None)
        )
    return [each._replace(partitionCount=counts.get(each.topic)) for each in found]


def plan(options: Namespace, streams: Streams) -> int:
    """Print the plan."""
    jobs: dict[str, Job] = {}
    for path in options.files:
        for job in chosenJobs(path, options.job, options.newName):
            if job.name in jobs:
                raise CommandError(f"{path}: another file has a job {job.name}, too")
            jobs[job.name] = job
    counts: dict[str, int] = {}
    if options.bootstrapServer is not None:
        with openCluster(options, streams) as cluster:
            counts = {each.name: len(each.partitions) for each in cluster.metadata(None).topics}
    planned = [(job, topicsOf(job, counts)) for job in jobs.values()]
    if options.dot:
        text = asDot(planned)
    elif options.all:
        text = _asWhole(planned, options.json)
    elif options.json:
        documents = [
            {
                "job": job.name,
                "tasks": taskCount(topics),
                "onError": job.onError,
                "windowMs": job.windowMs,
                "topics": [each._asdict() for each in topics],
            }
            for job, topics in planned
        ]
        text = asJson({"jobs": documents})
    else:
        text = "\n".join(_asText(job, topics) for job, topics in planned)
    show(streams, text)
    return 0


def taskCount(topics: Iterable[PlannedTopic]) -> int | None:
    """One for each number of a partition of an input; L{None}: an input is not known."""
    counts = [each.partitionCount for each in topics if each.kind == INPUT]
    known = [count for count in counts if count is not None]
    return max(known) if len(known) == len(counts) else None


def _asText(job: Job, topics: list[PlannedTopic]) -> str:
    count = taskCount(topics)
    tasks = "a task for each partition" if count is None else formatCount(count, "task")
    window = f", window each {job.windowMs:,} ms" if job.windowMs else ""
    headings = ("KIND", "TOPIC", "KEY", "MESSAGE", "PARTITIONS", "STORE")
    return f"job {job.name}: {tasks}, onError={job.onError}{window}\n" + indent(
        tableOfRows(headings, topics), "  "
    )


def _asWhole(planned: Plan, isJson: bool) -> str:
    writers: dict[str, list[str]] = {}
    readers: dict[str, list[str]] = {}
    counts: dict[str, int | None] = {}
    for job, topics in planned:
        for each in topics:
            counts[each.topic] = each.partitionCount
            name = job.name if each.kind in (INPUT, OUTPUT) else f"{job.name} ({each.kind})"
            if each.kind != INPUT:
                writers.setdefault(each.topic, []).append(name)
            if each.kind in (INPUT, REPARTITION):
                readers.setdefault(each.topic, []).append(name)
    if isJson:
        documents = [
            {
                "topic": topic,
                "partitionCount": count,
                "writers": writers.get(topic, []),
                "readers": readers.get(topic, []),
            }
            for topic, count in sorted(counts.items())
        ]
        return asJson({"topics": documents})
    rows = [
        (
            topic,
            count,
            ", ".join(writers.get(topic, ())) or None,
            ", ".join(readers.get(topic, ())) or None,
        )
        for topic, count in sorted(counts.items())
    ]
    return tableOfRows(("TOPIC", "PARTITIONS", "WRITTEN BY", "READ BY"), rows)


def asDot(planned: Plan) -> str:
    """A graph of jobs and topics, in Graphviz' language."""
    lines = ["digraph jobs {", "  rankdir=LR", "  node [fontname=sans]"]
    topics = sorted({each.topic for _job, found in planned for each in found})
    lines += [f'  "topic {topic}" [label="{topic}", shape=cds]' for topic in topics]
    for job, found in planned:
        lines.append(f'  "job {job.name}" [label="{job.name}", shape=box, style=rounded]')
        for each in found:
            topic, node = f'"topic {each.topic}"', f'"job {job.name}"'
            style = "" if each.store is None else f' [style=dashed, label="{each.store}"]'
            if each.kind != INPUT:
                lines.append(f"  {node} -> {topic}{style}")
            if each.kind in (INPUT, REPARTITION):
                lines.append(f"  {topic} -> {node}")
    return "\n".join([*lines, "}"]) + "\n"
