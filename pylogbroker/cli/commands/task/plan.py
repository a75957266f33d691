"""
C{task plan}: what jobs read, keep and write, as text, as JSON, or as a picture. Jobs are those
of files, or those that containers have published in a cluster.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Container, Iterable
from dataclasses import asdict
from textwrap import indent

from pylogbroker.cli import CommandError
from pylogbroker.cli.arguments import rejectOptions
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.kafka.records import lastValues
from pylogbroker.cli.output import asJson, tableOfRows
from pylogbroker.cli.streams import Streams
from pylogbroker.config.kafka.tasksettings import CONFIG_TOPIC
from pylogbroker.programs.tasks.jobchoice import chosenJobs
from pylogbroker.syncclient.kafka.cluster import KafkaCluster
from pylogbroker.tasks.reports.jobconfig import (
    INPUT,
    OUTPUT,
    PARTITION,
    JobConfig,
    PlannedTopic,
    configOf,
    withCounts,
)
from pylogbroker.tasks.reports.picture import ONLY_READ, READ, asDot, asSvg
from pylogbroker.types import TopicPartition, escapeUnprintable, formatCount


def plan(options: Namespace, streams: Streams) -> int:
    """Print the plan: of the jobs of files, or of those that containers have published."""
    jobs = _fileJobs(options)
    if options.bootstrapServer is None:
        planned = [*jobs.values()]
    else:
        with openCluster(options, streams) as cluster:
            topics = cluster.metadata(None).topics
            counts = {each.name: len(each.partitions) for each in topics if not each.errorCode}
            if not options.files:
                jobs = _publishedJobs(cluster, counts, options, streams)
        planned = [withCounts(job, counts) for job in jobs.values()]
    if options.dot or options.svg:
        text = (asDot if options.dot else asSvg)(planned)
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


def preparePlan(options: Namespace, _streams: Streams) -> None:
    """Exit when there is no place to read jobs from, or an option has no effect there."""
    if options.files:
        rejectOptions(options, "the jobs are those of the files", "--config-topic")
    elif options.bootstrapServer is None:
        options.parser.error("either files, or --bootstrap-server is needed")
    elif options.newName is not None:
        options.parser.error("--as: needs a file")


def _fileJobs(options: Namespace) -> dict[str, JobConfig]:
    jobs: dict[str, JobConfig] = {}
    for path in options.files:
        for job in chosenJobs(path, options.job, options.newName):
            if job.name in jobs:
                raise CommandError(f"{path}: another file has a job {job.name}, too")
            jobs[job.name] = configOf(job, {})
    return jobs


def _publishedJobs(
    cluster: KafkaCluster, counts: Container[str], options: Namespace, streams: Streams
) -> dict[str, JobConfig]:
    """
    The jobs whose containers have published them.

    @param counts: the topics that there are.
    @raise CommandError: there are none, or not the one that was asked for.
    """
    topic: str = options.configTopic or CONFIG_TOPIC
    if topic not in counts:
        raise CommandError(f"there is no topic {topic}: no container has published its job")
    values = lastValues(cluster, TopicPartition(topic, PARTITION), options.timeoutMs)
    jobs = {}
    for key, value in sorted(values.items()):
        name = key.decode(errors="replace")
        try:
            found = JobConfig.decode(value)
            if found.job != name:
                raise ValueError("it has the key of another job")
        except ValueError as error:
            streams.warn(f"job {escapeUnprintable(name)} of {topic} is left out: {error}")
        else:
            jobs[name] = found
    if options.job is None:
        return jobs
    if options.job not in jobs:
        raise CommandError(f"{topic} has no job {options.job}; it has: {', '.join(jobs) or 'none'}")
    return {options.job: jobs[options.job]}


def _asText(job: JobConfig) -> str:
    tasks = "a task for each partition" if job.tasks is None else formatCount(job.tasks, "task")
    window = f", window each {job.windowMs:,} ms" if job.windowMs else ""
    headings = ("KIND", "TOPIC", "KEY", "MESSAGE", "PARTITIONS", "STORE")
    rows = [
        (each.kind, each.topic, each.key, each.value, each.partitionCount, _storeOf(each))
        for each in job.topics
    ]
    text = tableOfRows(headings, rows)
    if job.steps:
        steps = [
            (
                each.name,
                each.kind,
                ", ".join(each.parents) or each.reads,
                each.writes,
                ", ".join(each.stores) or None,
                each.details or None,
            )
            for each in job.steps
        ]
        text += "\n" + tableOfRows(("STEP", "KIND", "FROM", "TO", "STORES", "DETAILS"), steps)
    return f"job {job.job}: {tasks}, onError={job.onError}{window}\n" + indent(text, "  ")


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
            if each.kind not in ONLY_READ:
                writers.setdefault(each.topic, []).append(name)
            if each.kind in READ:
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
