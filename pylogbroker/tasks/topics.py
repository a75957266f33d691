"""
The topics of a job: what a container checks and creates before it joins its group. A module of its
own, since a container is long enough without it.

What is missing is created, and what is there is never changed: outputs, with a partition for each
task, so that the next job's tasks see the same keys together; changelogs, compacted; repartition
topics, with as many partitions as the inputs whose keys they meet, or one for each task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from twisted.logger import Logger

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.routing import checkAll
from pylogbroker.client.kafka.admin.topics import ConfigResource, NewTopic, ResourceKind
from pylogbroker.errors import ConfigurationError, PylogbrokerError
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.tasks.job import DEAD_LETTER, Job
from pylogbroker.types import formatCount

COMPACT, DELETE = "compact", "delete"
_POLICY, _RETENTION = "cleanup.policy", "delete.retention.ms"

CHANGELOG_CONFIGS = {_POLICY: COMPACT}
REPARTITION_CONFIGS = {
    _POLICY: DELETE,
    "retention.ms": "-1",
    "message.timestamp.type": "CreateTime",
}
"""
Of a repartition topic: nothing that was not handled yet may be deleted, and a message keeps its
time.
"""

log = Logger()


class JobTopics(NamedTuple):
    """
    What is known of a job's topics.

    @ivar inputs: the partitions of each that is divided among the tasks, counted.
    @ivar broadcasts: of each broadcast input, likewise.
    @ivar repartitions: of each repartition topic, likewise.
    @ivar topicIds: of the changelogs, 16 bytes each; zeros: the brokers have none.
    @ivar deleteRetentionMs: how long the changelogs keep deletions.
    """

    inputs: dict[str, int]
    broadcasts: dict[str, int]
    repartitions: dict[str, int]
    topicIds: dict[str, bytes]
    deleteRetentionMs: dict[str, int]

    @property
    def taskCount(self) -> int:
        return max(self.inputs.values())


def isMissing(error: object) -> bool:
    """Whether a topic does not exist."""
    return isinstance(error, ResponseError) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def missingInputs(admin: AdminClient, job: Job) -> list[str]:
    """
    The inputs that do not exist.

    @raise PylogbrokerError: a topic may not be seen, or no broker answers.
    """
    found = await admin.describeTopics([each.topic for each in job.inputs])
    return [topic for topic, each in found.items() if isMissing(each)]


async def prepareTopics(admin: AdminClient, job: Job, replicationFactor: int) -> JobTopics:
    """
    Check the topics of a job, and create those that are missing.

    @raise ConfigurationError: inputs that must have equally many partitions have not; a changelog
        or a repartition topic that is there has another cleanup policy than it needs, or another
        number of partitions.
    @raise PylogbrokerError: an input is missing; a topic may not be seen or created; no broker
        answers.
    """
    inputs = checkAll(await admin.describeTopics([each.topic for each in job.inputs]))
    counts = {topic: len(each.partitions) for topic, each in inputs.items()}
    broadcasts = {each.topic: counts.pop(each.topic) for each in job.inputs if each.isBroadcast}
    taskCount = max(counts.values())
    repartitions = repartitionCounts(job, counts)
    changelogs = dict.fromkeys((job.changelogOf(each) for each in job.stores), taskCount)
    wanted = [
        *(NewTopic(topic, taskCount, replicationFactor) for topic in _outputsOf(job)),
        *_newTopics(changelogs, replicationFactor, CHANGELOG_CONFIGS),
        *_newTopics(repartitions, replicationFactor, REPARTITION_CONFIGS),
    ]
    await _createMissing(admin, job, wanted)
    own = changelogs | repartitions
    found = checkAll(await admin.describeTopics(own)) if own else {}
    for topic, each in found.items():
        _checkCount(job, topic, len(each.partitions), own[topic], topic in changelogs)
    retentions = await _checkPolicies(admin, job, changelogs, repartitions)
    topicIds = {topic: found[topic].topicId for topic in changelogs}
    return JobTopics(counts, broadcasts, repartitions, topicIds, retentions)


def repartitionCounts(job: Job, counts: Mapping[str, int]) -> dict[str, int]:
    """
    How many partitions the repartition topics of a job have.

    @param counts: of the partitions of the inputs, without broadcast ones.
    @raise ConfigurationError: inputs that must have equally many have not.
    """
    wanted: dict[str, int] = {}
    for names in _joinedCopartitions(job):
        known = {name: counts[name] for name in names if name in counts}
        if len(set(known.values())) > 1:
            told = ", ".join(
                f"{name} has {formatCount(count, 'partition')}" for name, count in known.items()
            )
            raise ConfigurationError(
                f"job {job.name}: {told}: they must have equally many, since messages of one key"
                " meet in one task"
            )
        wanted.update((name, count) for count in known.values() for name in names)
    taskCount = max(counts.values())
    return {
        job.repartitionTopicOf(each): wanted.get(each.name, taskCount) for each in job.repartitions
    }


def _joinedCopartitions(job: Job) -> list[list[str]]:
    """Names that are in one group of C{copartitions}, or in groups that share one; in order."""
    joined: list[list[str]] = []
    for names in job.copartitions:
        met = [each for each in joined if not set(each).isdisjoint(names)]
        joined = [each for each in joined if each not in met]
        joined.append(list(dict.fromkeys(name for each in (*met, names) for name in each)))
    return joined


def _outputsOf(job: Job) -> list[str]:
    outputs = [job.topicOf(each) for each in job.outputs]
    return [*outputs, job.deadLetters] if job.onError == DEAD_LETTER else outputs


def _newTopics(
    counts: Mapping[str, int], replicationFactor: int, configs: Mapping[str, str]
) -> list[NewTopic]:
    return [NewTopic(topic, count, replicationFactor, configs) for topic, count in counts.items()]


async def _createMissing(admin: AdminClient, job: Job, wanted: Iterable[NewTopic]) -> None:
    given = {each.name: each for each in wanted}
    known = await admin.describeTopics(given)
    new = [each for topic, each in given.items() if isMissing(known[topic])]
    created = await admin.createTopics(new) if new else {}
    for topic, outcome in created.items():
        if isinstance(outcome, ResponseError):
            if outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:  # another container's
                raise outcome
        elif isinstance(outcome, PylogbrokerError):
            raise outcome
        else:
            log.info(
                "Job {job}: created topic {topic} with {partitions}",
                job=job.name,
                topic=topic,
                partitions=formatCount(given[topic].partitionCount, "partition"),
            )


def _checkCount(job: Job, topic: str, count: int, wanted: int, isChangelog: bool) -> None:
    if count == wanted:
        return
    kind, loss = (
        ("changelog", "state cannot be divided anew")
        if isChangelog
        else ("repartition topic", "its messages cannot be divided anew")
    )
    raise ConfigurationError(
        f"job {job.name}: {kind} {topic} has {formatCount(count, 'partition')}, and the inputs have"
        f" {wanted}: {loss}. Reset the job, or run it under another name"
    )


async def _checkPolicies(
    admin: AdminClient, job: Job, changelogs: Iterable[str], repartitions: Iterable[str]
) -> dict[str, int]:
    """@return: how long each changelog keeps deletions, in milliseconds."""
    wanted = dict.fromkeys(changelogs, ("changelog", COMPACT, "state is lost with old segments"))
    wanted.update(
        dict.fromkeys(repartitions, ("repartition topic", DELETE, "messages of a key are lost"))
    )
    if not wanted:
        return {}
    resources = [ConfigResource(ResourceKind.TOPIC, topic) for topic in wanted]
    found: dict[Any, Any] = checkAll(await admin.describeConfigs(resources, [_POLICY, _RETENTION]))
    retentions: dict[str, int] = {}
    for resource, settings in found.items():
        kind, needed, loss = wanted[resource.name]
        policy = settings[_POLICY].value
        if policy != needed:
            raise ConfigurationError(
                f"job {job.name}: {kind} {resource.name} has {_POLICY}={policy}: it must be"
                f" {needed}, or {loss}"
            )
        if needed == COMPACT:
            retentions[resource.name] = int(settings[_RETENTION].value)
    return retentions
