"""
C{task plan}: what jobs read, keep and write, as text, as JSON, or for Graphviz.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from textwrap import indent

from pylogbroker.cli import CommandError
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.output import asJson, tableOfRows
from pylogbroker.cli.streams import Streams
from pylogbroker.programs.tasks.jobchoice import chosenJobs
from pylogbroker.tasks.reports.jobconfig import (
    INPUT,
    OUTPUT,
    REPARTITION,
    JobConfig,
    PlannedTopic,
    configOf,
    withCounts,
)
from pylogbroker.types import formatCount


def plan(options: Namespace, streams: Streams) -> int:
    """Print the plan."""
    jobs: dict[str, JobConfig] = {}
    for path in options.files:
        for job in chosenJobs(path, options.job, options.newName):
            if job.name in jobs:
                raise CommandError(f"{path}: another file has a job {job.name}, too")
            jobs[job.name] = configOf(job, {})
    counts: dict[str, int] = {}
    if options.bootstrapServer is not None:
        with openCluster(options, streams) as cluster:
            counts = {each.name: len(each.partitions) for each in cluster.metadata(None).topics}
    planned = [withCounts(job, counts) for job in jobs.values()]
    if options.dot:
        text = asDot(planned)
    elif options.all:
        text = _asWhole(planned, options.json)
    elif options.json:
        documents = [
            {
                "job": job.job,
                "tasks": job.tasks,
                "onError": job.onError,
                "windowMs": job.windowMs,
                "topics": [asdict(each) for each in job.topics],
                "steps": [asdict(each) for each in job.steps],
            }
            for job in planned
        ]
        text = asJson({"jobs": documents})
    else:
        text = "\n".join(map(_asText, planned))
    show(streams, text)
    return 0


def _asText(job: JobConfig) -> str:
    tasks = "a task for each partition" if job.tasks is None else formatCount(job.tasks, "task")
    window = f", window each {job.windowMs:,} ms" if job.windowMs else ""
    headings = ("KIND", "TOPIC", "KEY", "MESSAGE", "PARTITIONS", "STORE")
    rows = [
        (each.kind, each.topic, each.key, each.value, each.partitionCount, _storeOf(each))
        for each in job.topics
    ]
    return f"job {job.job}: {tasks}, onError={job.onError}{window}\n" + indent(
        tableOfRows(headings, rows), "  "
    )


def _storeOf(topic: PlannedTopic) -> str | None:
    return None if topic.store is None else f"{topic.store}, {topic.engine}"


def _asWhole(planned: Iterable[JobConfig], isJson: bool) -> str:
    writers: dict[str, list[str]] = {}
    readers: dict[str, list[str]] = {}
    counts: dict[str, int | None] = {}
    for job in planned:
        for each in job.topics:
            counts[each.topic] = each.partitionCount
            name = job.job if each.kind in (INPUT, OUTPUT) else f"{job.job} ({each.kind})"
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


def asDot(planned: Sequence[JobConfig]) -> str:
    """A graph of jobs and topics, in Graphviz' language."""
    lines = ["digraph jobs {", "  rankdir=LR", "  node [fontname=sans]"]
    topics = sorted({each.topic for job in planned for each in job.topics})
    lines += [f'  "topic {topic}" [label="{topic}", shape=cds]' for topic in topics]
    for job in planned:
        lines.append(f'  "job {job.job}" [label="{job.job}", shape=box, style=rounded]')
        for each in job.topics:
            topic, node = f'"topic {each.topic}"', f'"job {job.job}"'
            style = "" if each.store is None else f' [style=dashed, label="{_storeOf(each)}"]'
            if each.kind != INPUT:
                lines.append(f"  {node} -> {topic}{style}")
            if each.kind in (INPUT, REPARTITION):
                lines.append(f"  {topic} -> {node}")
    return "\n".join([*lines, "}"]) + "\n"
