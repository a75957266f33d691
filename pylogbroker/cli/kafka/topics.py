"""
C{topic}: topics of today's Kafka, and their changes.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterable
from typing import Any

from pylogbroker.cli import CommandError
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.output import asJson, tableOfRows
from pylogbroker.cli.streams import Streams
from pylogbroker.errors import PylogbrokerError
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.errorcodes import ResponseError, checkCode
from pylogbroker.syncclient.kafka.cluster import EARLIEST, LATEST, KafkaCluster
from pylogbroker.types import TopicPartition

_TOPIC_RESOURCE = 2
_TOPIC_CONFIG = 1  # a setting of the topic itself
_SET, _DELETE = 0, 1
_DEFAULT = -1
_MIN_IN_SYNC = "min.insync.replicas"


def setting(text: str) -> tuple[str, str]:
    """The type of C{KEY=VALUE}."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return name, value


def wantedTopics(cluster: KafkaCluster, names: list[str]) -> list[Any]:
    """
    The named topics, or all, by name.

    @raise CommandError: one is missing.
    """
    found = {topic.name: topic for topic in cluster.metadata(None).topics}
    missing = [name for name in names if name not in found]
    if missing:
        known = ", ".join(sorted(found)) or "none"
        raise CommandError(f"there is no topic {', '.join(missing)}; there are: {known}")
    return [found[name] for name in names or sorted(found)]


def sizes(cluster: KafkaCluster, problems: list[str]) -> dict[TopicPartition, int]:
    """Bytes of the partitions on their brokers' disks."""
    found: dict[TopicPartition, int] = {}
    try:
        body = messages.DescribeLogDirsRequest(topics=None)
        for broker in cluster.metadata(()).brokers:
            answer = cluster.broker(broker.nodeId).request(ApiKey.DESCRIBE_LOG_DIRS, body)
            for directory in answer.results:
                checkCode(directory.errorCode, f"log directory {directory.logDir}")
                for topic in directory.topics:
                    for part in topic.partitions:
                        where = TopicPartition(topic.name, part.partitionIndex)
                        found[where] = found.get(where, 0) + part.partitionSize
    except PylogbrokerError as error:
        problems.append(f"sizes are not known: {error}")
    return found


def listTopics(options: Namespace, streams: Streams) -> int:
    """Print a line for each topic."""
    problems: list[str] = []
    with openCluster(options, streams) as cluster:
        topics = wantedTopics(cluster, [])
        found = sizes(cluster, problems)
    rows = []
    for topic in topics:
        places = [TopicPartition(topic.name, part.partitionIndex) for part in topic.partitions]
        known = [found[where] for where in places if where in found]
        replicas = len(topic.partitions[0].replicaNodes) if topic.partitions else 0
        size = sum(known) if len(known) == len(places) else None
        rows.append((topic.name, len(places), replicas, size))
    if options.json:
        keys = ("topic", "partitionCount", "replicaCount", "size")
        documents = [dict(zip(keys, row, strict=True)) for row in rows]
        show(streams, asJson({"topics": documents, "problems": problems}))
    else:
        _warn(streams, problems)
        if not rows:
            streams.say("there are no topics")
        show(streams, tableOfRows(("TOPIC", "PARTITIONS", "REPLICAS", "SIZE"), rows))
    return 0


def _warn(streams: Streams, problems: Iterable[str]) -> None:
    for problem in problems:
        streams.warn(problem)


def describeTopics(options: Namespace, streams: Streams) -> int:
    """Print a line for each partition, and one for each setting that a topic has of its own."""
    problems: list[str] = []
    with openCluster(options, streams) as cluster:
        topics = wantedTopics(cluster, options.topics)
        isFiltered = _filter(cluster, topics, options)
        if isFiltered:
            topics = [topic for topic in topics if topic.partitions]
        places = [
            TopicPartition(topic.name, part.partitionIndex)
            for topic in topics
            for part in topic.partitions
        ]
        led = [
            TopicPartition(topic.name, part.partitionIndex)
            for topic in topics
            for part in topic.partitions
            if part.leaderId >= 0
        ]
        problems += [f"{where} has no leader" for where in places if where not in set(led)]
        bounds = [cluster.offsets(led, time) for time in (EARLIEST, LATEST)]
        found = sizes(cluster, problems)
        configs = _configs(cluster, [topic.name for topic in topics])
    documents, rows = [], []
    for topic in topics:
        parts = []
        for part in sorted(topic.partitions, key=lambda part: part.partitionIndex):
            where = TopicPartition(topic.name, part.partitionIndex)
            start, end = (_offset(each.get(where), problems) for each in bounds)
            values = {
                "partition": part.partitionIndex,
                "leader": part.leaderId if part.leaderId >= 0 else None,
                "leaderEpoch": part.leaderEpoch,
                "replicas": part.replicaNodes,
                "inSync": part.isrNodes,
                "start": start,
                "end": end,
                "size": found.get(where),
            }
            parts.append(values)
            cells = {**values, "replicas": _numbers(part.replicaNodes)}
            cells["inSync"] = _numbers(part.isrNodes)
            rows.append((topic.name, *cells.values()))
        own = configs.get(topic.name, {})
        documents.append(
            {
                "topic": topic.name,
                "topicId": bytes(topic.topicId).hex(),
                "isInternal": topic.isInternal,
                "configs": own,
                "partitions": parts,
            }
        )
    if options.json:
        show(streams, asJson({"topics": documents, "problems": problems}))
        return 0
    _warn(streams, dict.fromkeys(problems))
    if not topics:
        streams.say("there are no such partitions" if isFiltered else "there are no topics")
    headings = ("TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "END", "SIZE")
    text = tableOfRows(headings, rows)
    settings = [
        (name, key, value) for name, own in configs.items() for key, value in sorted(own.items())
    ]
    if settings:
        text += "\n" + tableOfRows(("TOPIC", "CONFIG", "VALUE"), settings)
    show(streams, text)
    return 0


def _filter(cluster: KafkaCluster, topics: list[Any], options: Namespace) -> bool:
    """
    Keep the partitions that C{--under-replicated} and the like ask for.

    @return: whether there is such an option.
    """
    if options.underReplicated:

        def isKept(topic: Any, part: Any) -> bool:
            return len(part.isrNodes) < len(part.replicaNodes)

    elif options.unavailable:

        def isKept(topic: Any, part: Any) -> bool:
            return bool(part.leaderId < 0)

    elif options.underMinIsr:
        least = effectiveConfigs(cluster, [topic.name for topic in topics], _MIN_IN_SYNC)

        def isKept(topic: Any, part: Any) -> bool:
            return len(part.isrNodes) < int(least[topic.name] or 1)

    else:
        return False
    for topic in topics:
        topic.partitions = [part for part in topic.partitions if isKept(topic, part)]
    return True


def _numbers(nodes: Iterable[int]) -> str:
    return ",".join(map(str, nodes))


def _offset(found: tuple[int, int] | ResponseError | None, problems: list[str]) -> int | None:
    if isinstance(found, ResponseError):
        problems.append(str(found))
    return found[0] if isinstance(found, tuple) else None


def _configs(cluster: KafkaCluster, topics: list[str]) -> dict[str, dict[str, str | None]]:
    """The settings that topics have of their own."""
    return {
        name: {each.name: each.value for each in found if each.configSource == _TOPIC_CONFIG}
        for name, found in _described(cluster, topics, None).items()
    }


def effectiveConfigs(cluster: KafkaCluster, topics: list[str], key: str) -> dict[str, str | None]:
    """A setting's value for topics, their own or the broker's."""
    return {
        name: next((each.value for each in found if each.name == key), None)
        for name, found in _described(cluster, topics, [key]).items()
    }


def _described(
    cluster: KafkaCluster, topics: list[str], keys: list[str] | None
) -> dict[str, list[Any]]:
    cls = messages.DescribeConfigsRequest
    resources = [
        cls.DescribeConfigsResource(
            resourceType=_TOPIC_RESOURCE, resourceName=name, configurationKeys=keys
        )
        for name in topics
    ]
    if not resources:
        return {}
    found = cluster.ask(ApiKey.DESCRIBE_CONFIGS, cls(resources=resources))
    for each in found.results:
        checkCode(each.errorCode, f"topic {each.resourceName}", each.errorMessage)
    return {each.resourceName: each.configs for each in found.results}


# -- changes


def createTopics(options: Namespace, streams: Streams) -> int:
    """Create a topic."""
    cls = messages.CreateTopicsRequest
    topic = cls.CreatableTopic(
        name=options.topic,
        numPartitions=options.partitions or _DEFAULT,
        replicationFactor=options.replicationFactor or _DEFAULT,
        assignments=[
            cls.CreatableReplicaAssignment(partitionIndex=index, brokerIds=brokers)
            for index, brokers in enumerate(options.replicaAssignment or ())
        ],
        configs=[
            cls.CreatableTopicConfig(name=name, value=value) for name, value in options.topicConfigs
        ],
    )
    with openCluster(options, streams) as cluster:
        body = cls(topics=[topic], timeoutMs=options.timeoutMs)
        [found] = cluster.change(ApiKey.CREATE_TOPICS, body).topics
    checkCode(found.errorCode, f"topic {options.topic}", found.errorMessage)
    partitions = f" with {found.numPartitions} partitions" if found.numPartitions > 1 else ""
    streams.say(f"created topic {options.topic}{partitions}")
    return 0


def deleteTopics(options: Namespace, streams: Streams) -> int:
    """
    Delete topics.

    @return: 1 when one could not be deleted.
    """
    with openCluster(options, streams) as cluster:
        failures = deleteAll(cluster, dict.fromkeys(options.topics), options.timeoutMs, streams)
    return 1 if failures else 0


def deleteAll(
    cluster: KafkaCluster, topics: Iterable[str], timeoutMs: int, streams: Streams
) -> int:
    """
    Delete topics, with a line about each.

    @return: how many could not be deleted.
    """
    cls = messages.DeleteTopicsRequest
    names = list(topics)
    controller = cluster.controller()
    body = cls(timeoutMs=timeoutMs)
    if controller.supports(ApiKey.DELETE_TOPICS, 6):
        body.topics = [cls.DeleteTopicState(name=name) for name in names]
    else:
        body.topicNames = names
    failures = 0
    for each in cluster.change(ApiKey.DELETE_TOPICS, body).responses:
        try:
            checkCode(each.errorCode, f"topic {each.name}", each.errorMessage)
        except ResponseError as error:
            failures += 1
            streams.warn(str(error))
        else:
            streams.say(f"deleted topic {each.name}")
    return failures


def alterTopics(options: Namespace, streams: Streams) -> int:
    """Give a topic more partitions, or other settings."""
    if options.partitions is None and not options.topicConfigs and not options.deleteConfigs:
        raise CommandError("there is nothing to alter: give --partitions or --topic-config")
    with openCluster(options, streams) as cluster:
        if options.topicConfigs or options.deleteConfigs:
            _alterConfigs(cluster, options)
        if options.partitions is not None:
            cls = messages.CreatePartitionsRequest
            topic = cls.CreatePartitionsTopic(
                name=options.topic, count=options.partitions, assignments=None
            )
            body = cls(topics=[topic], timeoutMs=options.timeoutMs)
            [found] = cluster.change(ApiKey.CREATE_PARTITIONS, body).results
            checkCode(found.errorCode, f"topic {options.topic}", found.errorMessage)
    streams.say(f"altered topic {options.topic}")
    return 0


def _alterConfigs(cluster: KafkaCluster, options: Namespace) -> None:
    cls = messages.IncrementalAlterConfigsRequest
    changes = [
        cls.AlterableConfig(name=name, configOperation=_SET, value=value)
        for name, value in options.topicConfigs
    ]
    changes += [
        cls.AlterableConfig(name=name, configOperation=_DELETE, value=None)
        for name in options.deleteConfigs
    ]
    resource = cls.AlterConfigsResource(
        resourceType=_TOPIC_RESOURCE, resourceName=options.topic, configs=changes
    )
    body = cls(resources=[resource])
    [found] = cluster.change(ApiKey.INCREMENTAL_ALTER_CONFIGS, body).responses
    checkCode(found.errorCode, f"topic {options.topic}", found.errorMessage)
