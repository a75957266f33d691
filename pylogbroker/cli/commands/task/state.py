"""
C{task describe} and C{task reset}: a job's positions and state. Stand-bys are as their containers
have reported them last.

A reset deletes changelogs and repartition topics first. When one stays, so do the positions: behind
new positions a store that is still there would have the same messages twice. Then it sets the
positions, and deletes the stores of this machine. A store on another machine is built anew, since
its changelog is another topic then, of the same name.
"""

from __future__ import annotations

import os
import shutil
import time
from argparse import Namespace
from pathlib import Path
from textwrap import indent
from typing import Any

from pylogbroker.cli import CommandError
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.kafka.groupoffsets import changeOffsets, newOffsets
from pylogbroker.cli.kafka.groups import (
    CoordinatedGroup,
    committedOffsets,
    describeGroup,
    groupLags,
    groupTable,
    knownGroups,
)
from pylogbroker.cli.kafka.records import lastValues
from pylogbroker.cli.kafka.topics import deleteAll
from pylogbroker.cli.output import asJson, tableOfRows
from pylogbroker.cli.streams import Streams
from pylogbroker.config.kafka.tasksettings import KafkaTaskSettings
from pylogbroker.config.keys import ConfigKey
from pylogbroker.config.properties import readProperties
from pylogbroker.programs.tasks.jobchoice import chosenJobs
from pylogbroker.syncclient.kafka.cluster import EARLIEST, LATEST, KafkaCluster
from pylogbroker.tasks.job import Job
from pylogbroker.tasks.reports.containermetrics import ContainerMetrics
from pylogbroker.tasks.reports.jobconfig import PARTITION
from pylogbroker.types import TopicPartition, escapeUnprintable, formatCount


def _settingOf(options: Namespace, given: str | None, key: ConfigKey[Any]) -> str:
    """A setting of the containers: as it was given, from the property file, or the default."""
    if given is None and options.accessFile is not None:
        given = readProperties(options.accessFile).get(key.key)
    return str(key.default) if given is None else given


def _stateFolder(options: Namespace, job: Job) -> Path:
    """The folder of a job's stores on this machine."""
    return Path(_settingOf(options, options.stateDir, KafkaTaskSettings.stateDir), job.name)


def _storeSizes(folder: Path) -> dict[tuple[int, str], int]:
    """Bytes of the stores in it, by task and store."""
    return {
        (int(store.parent.name), store.name): _size(store)
        for store in folder.glob("*/*")
        if store.parent.name.isdecimal() and store.is_dir()
    }


def _size(folder: Path) -> int:
    total = 0
    for parent, _folders, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                pass  # the container that runs has deleted it meanwhile
    return total


def _group(cluster: KafkaCluster, name: str) -> CoordinatedGroup:
    """@return: without a state, if there is no such group."""
    listed = knownGroups(cluster).get(name)
    if listed is None:
        return CoordinatedGroup(name, "", "", "", [])
    return describeGroup(cluster, name, getattr(listed, "groupType", "") or "")


def _partitionCounts(cluster: KafkaCluster) -> dict[str, int]:
    return {each.name: len(each.partitions) for each in cluster.metadata(None).topics}


def _inputs(job: Job, counts: dict[str, int], problems: list[str]) -> list[TopicPartition]:
    """Partitions of a job's inputs that have positions: broadcast ones have none."""
    found: list[TopicPartition] = []
    for each in job.inputs:
        if each.topic not in counts:
            problems.append(f"job {job.name}: there is no topic {each.topic}")
        if not each.isBroadcast:
            found += _places(each.topic, counts)
    return found


def _repartitions(job: Job, counts: dict[str, int]) -> list[str]:
    """Those of a job's repartition topics that are there: a job's first start makes them."""
    return [each for each in map(job.repartitionTopicOf, job.repartitions) if each in counts]


def _places(topic: str, counts: dict[str, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(counts.get(topic, 0))]


# -- describe


def describe(options: Namespace, streams: Streams) -> int:
    """Print positions, lag and members of jobs, their stores, and the stand-bys of these."""
    documents: list[dict[str, Any]] = []
    texts: list[str] = []
    problems: list[str] = []
    with openCluster(options, streams) as cluster:
        counts = _partitionCounts(cluster)
        reports = _reports(cluster, counts, options, problems)
        for job in chosenJobs(options.file, options.job, options.newName):
            group = _group(cluster, job.name)
            places = _inputs(job, counts, problems)
            for topic in _repartitions(job, counts):
                places += _places(topic, counts)
            lags = groupLags(cluster, group, problems, places)
            folder = _stateFolder(options, job)
            stores = _stores(cluster, job, counts, folder)
            standbys = _standbys(job, reports)
            documents.append(
                {
                    "job": job.name,
                    "state": group.state or None,
                    "members": [
                        {**each._asdict(), "partitions": [*map(str, each.partitions)]}
                        for each in group.members
                    ],
                    "inputs": [each._asdict() for each in lags],
                    "stores": [dict(zip(_STORE_KEYS, row, strict=True)) for row in stores],
                    "standbys": [dict(zip(_STANDBY_KEYS, row, strict=True)) for row in standbys],
                    "stateFolder": str(folder),
                }
            )
            text = groupTable(group, lags)
            if stores:
                headings = ("STORE", "TASK", "CHANGELOG", "START", "END", "LOCAL BYTES")
                text += indent("\n" + tableOfRows(headings, stores), "  ")
            if standbys:
                headings = ("STANDBY", "CONTAINER", "HOST", "CURRENT", "LAG", "REPORTED")
                rows = [
                    (task, *names, "yes" if isCurrent else "no", lag, _ageOf(atMs))
                    for task, *names, isCurrent, lag, atMs in standbys
                ]
                text += indent("\n" + tableOfRows(headings, rows), "  ")
            texts.append(text)
    if options.json:
        show(streams, asJson({"jobs": documents, "problems": problems}))
        return 0
    for problem in problems:
        streams.warn(problem)
    show(streams, "\n".join(texts))
    return 0


def _ageOf(timeMs: int) -> str:
    return f"{max(int(time.time()) - timeMs // 1000, 0)} s ago"


_STANDBY_KEYS = ("task", "container", "host", "isCurrent", "lag", "reportedAtMs")


def _reports(
    cluster: KafkaCluster, counts: dict[str, int], options: Namespace, problems: list[str]
) -> list[ContainerMetrics]:
    """The last reports of containers that have not ended, in the order of their names."""
    topic = _settingOf(options, options.metricsTopic, KafkaTaskSettings.metricsTopic)
    if topic not in counts:
        if options.metricsTopic is not None:
            problems.append(f"there is no topic {topic}: no container has published its metrics")
        return []
    values = lastValues(cluster, TopicPartition(topic, PARTITION), options.timeoutMs)
    found = []
    for key, value in sorted(values.items()):
        try:
            report = ContainerMetrics.decode(value)
            if report.key != key.decode(errors="replace"):
                raise ValueError("it has the key of another container")
        except ValueError as error:
            name = escapeUnprintable(key.decode(errors="replace"))
            problems.append(f"container {name} of {topic} is left out: {error}")
        else:
            if not report.failure:
                found.append(report)
    return found


def _standbys(
    job: Job, reports: list[ContainerMetrics]
) -> list[tuple[int, str, str, bool, int | None, int]]:
    """As containers have reported them."""
    rows = [
        (each.task, report.container, report.host, each.isCurrent, each.lag, report.writtenAtMs)
        for report in reports
        if report.job == job.name
        for each in report.standbys
    ]
    return sorted(rows, key=lambda row: row[:2])


_STORE_KEYS = ("store", "task", "changelog", "start", "end", "localSize")


def _stores(
    cluster: KafkaCluster, job: Job, counts: dict[str, int], folder: Path
) -> list[tuple[str, int, str, int | None, int | None, int | None]]:
    sizes = _storeSizes(folder)
    rows = []
    for store in job.stores:
        changelog = job.changelogOf(store)
        places = _places(changelog, counts)
        starts = cluster.offsetsAt(places, EARLIEST)
        ends = cluster.offsetsAt(places, LATEST)
        local = {task for task, name in sizes if name == store.name}
        for task in sorted(local.union(place.partition for place in places)):
            place = TopicPartition(changelog, task)
            size = sizes.get((task, store.name))
            rows.append((store.name, task, changelog, starts.get(place), ends.get(place), size))
    return rows


# -- reset


def reset(options: Namespace, streams: Streams) -> int:
    """
    Begin jobs anew.

    @raise CommandError: an input is missing; a group has members; a topic cannot be deleted, or a
        folder removed.
    """
    with openCluster(options, streams) as cluster:
        counts = _partitionCounts(cluster)
        jobs = chosenJobs(options.file, options.job, options.newName)
        for job in jobs:
            running = len(_group(cluster, job.name).members)
            if running and options.execute:
                raise CommandError(
                    f"there {'is' if running == 1 else 'are'} {formatCount(running, 'container')}"
                    f" of job {job.name}, which must end first. Nothing was changed"
                )
        for job in jobs:
            _reset(cluster, job, counts, options, streams)
    return 0


def _reset(
    cluster: KafkaCluster,
    job: Job,
    counts: dict[str, int],
    options: Namespace,
    streams: Streams,
) -> None:
    """@raise CommandError: see L{reset}."""
    problems: list[str] = []
    places = _inputs(job, counts, problems)
    if problems:
        raise CommandError("; ".join(problems))
    wished = Namespace(
        shiftBy=None,
        toOffset=options.toOffset,
        to=EARLIEST if options.to is None else options.to,
        force=False,
        execute=options.execute,
        json=False,
    )
    offsets = newOffsets(cluster, places, committedOffsets(cluster, job.name), wished)
    own = {each: "changelog" for each in map(job.changelogOf, job.stores) if each in counts}
    # The positions of a repartition topic go with it.
    own.update(dict.fromkeys(_repartitions(job, counts), "repartition topic"))
    folder = _stateFolder(options, job)
    if not options.execute:
        for topic, kind in own.items():
            streams.say(f"would delete topic {topic}, a {kind} of {job.name}")
        if folder.is_dir():
            streams.say(f"would delete {folder}, {_size(folder):,} bytes of stores")
    elif own and deleteAll(cluster, list(own), options.timeoutMs, streams):
        raise CommandError(
            f"the positions of job {job.name} stay, since not all of its topics could be deleted."
            " Reset it before it runs again"
        )
    changeOffsets(cluster, {job.name: offsets}, wished, streams)
    if options.execute:
        _remove(folder, streams)


def _remove(folder: Path, streams: Streams) -> None:
    """@raise CommandError: it cannot be removed."""
    if folder.is_dir():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise CommandError(
                f"the positions are set, and {folder} cannot be removed: {error.strerror}. Remove"
                " it before the job runs again"
            ) from error
        streams.say(f"deleted {folder}")
