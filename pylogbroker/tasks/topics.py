"""
The topics of a job: what a container checks and creates before it joins its group. A module of its
own, since a container is long enough without it.

Outputs that are missing are created with a partition for each task, so that the next job's tasks
see the same keys together; and changelogs, compacted. What is there is never changed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from twisted.logger import Logger

from pylogbroker.client.kafka.admin.client import AdminClient
from pylogbroker.client.kafka.admin.routing import checkAll
from pylogbroker.client.kafka.admin.topics import ConfigResource, NewTopic, ResourceKind
from pylogbroker.errors import ConfigurationError, PylogbrokerError
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError
from pylogbroker.tasks.job import DEAD_LETTER, Job
from pylogbroker.types import formatCount

COMPACT = "compact"
_POLICY, _RETENTION = "cleanup.policy", "delete.retention.ms"

log = Logger()


class JobTopics(NamedTuple):
    """
    What is known of a job's topics.

    @ivar partitionCounts: of the inputs.
    @ivar topicIds: of the changelogs, 16 bytes each; zeros: the brokers have none.
    @ivar deleteRetentionMs: how long the changelogs keep deletions.
    """

    partitionCounts: dict[str, int]
    topicIds: dict[str, bytes]
    deleteRetentionMs: dict[str, int]

    @property
    def taskCount(self) -> int:
        return max(self.partitionCounts.values())


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

    @raise ConfigurationError: a changelog that is there is not compacted, or has another number of
        partitions than the job has tasks.
    @raise PylogbrokerError: an input is missing; a topic may not be seen or created; no broker
        answers.
    """
    inputs = checkAll(await admin.describeTopics([each.topic for each in job.inputs]))
    counts = {topic: len(each.partitions) for topic, each in inputs.items()}
    taskCount = max(counts.values())
    changelogs = {job.changelogOf(each): {_POLICY: COMPACT} for each in job.stores}
    written: dict[str, dict[str, str]] = {job.topicOf(each): {} for each in job.outputs}
    if job.onError == DEAD_LETTER:
        written[job.deadLetters] = {}
    written.update(changelogs)
    known = await admin.describeTopics(written)
    new = [
        NewTopic(topic, taskCount, replicationFactor, configs)
        for topic, configs in written.items()
        if isMissing(known[topic])
    ]
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
                partitions=formatCount(taskCount, "partition"),
            )
    found = checkAll(await admin.describeTopics(changelogs)) if changelogs else {}
    for topic, each in found.items():
        _checkChangelog(job, topic, len(each.partitions), taskCount)
    topicIds = {topic: each.topicId for topic, each in found.items()}
    return JobTopics(counts, topicIds, await _checkPolicies(admin, job, list(changelogs)))


def _checkChangelog(job: Job, topic: str, count: int, taskCount: int) -> None:
    if count != taskCount:
        raise ConfigurationError(
            f"job {job.name}: changelog {topic} has {formatCount(count, 'partition')}, and the"
            f" inputs have {taskCount}: state cannot be divided anew. Reset the job, or run it"
            " under another name"
        )


async def _checkPolicies(admin: AdminClient, job: Job, topics: list[str]) -> dict[str, int]:
    """@return: how long each changelog keeps deletions, in milliseconds."""
    retentions: dict[str, int] = {}
    if not topics:
        return retentions
    resources = [ConfigResource(ResourceKind.TOPIC, topic) for topic in topics]
    found: dict[Any, Any] = checkAll(await admin.describeConfigs(resources, [_POLICY, _RETENTION]))
    for resource, settings in found.items():
        policy = settings[_POLICY].value
        if policy != COMPACT:
            raise ConfigurationError(
                f"job {job.name}: changelog {resource.name} has {_POLICY}={policy}: it must be"
                f" {COMPACT}, or state is lost with old segments"
            )
        retentions[resource.name] = int(settings[_RETENTION].value)
    return retentions
