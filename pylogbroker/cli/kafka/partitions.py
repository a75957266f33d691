"""
C{partition}: leaders and replicas of today's Kafka: elections, plans and their execution.

What changes something is shown first, and C{--execute} does it. A reassignment copies data; the
command waits for its end, and shows how far it is. A command that is ended does not end the
reassignment: the same file is the way to watch it again, or to stop it. A throttle is set and
removed by the settings of topics and brokers, as Kafka's tool does.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pylogbroker.cli import CommandError
from pylogbroker.cli.kafka import openCluster, show
from pylogbroker.cli.output import asJson, tableOfRows
from pylogbroker.cli.streams import Streams, readText, writeNewFile
from pylogbroker.cluster.kafka.reassignment import (
    Assignment,
    formatReassignment,
    parseReassignment,
    planReassignment,
    throttledReplicas,
)
from pylogbroker.config.topicconfigs import (
    FOLLOWER_THROTTLED_RATE,
    FOLLOWER_THROTTLED_REPLICAS,
    LEADER_THROTTLED_RATE,
    LEADER_THROTTLED_REPLICAS,
)
from pylogbroker.errors import BrokerConnectionError, InvalidReplicaAssignmentError
from pylogbroker.net.deferreds import batched
from pylogbroker.protocol.kafka import messages
from pylogbroker.protocol.kafka.apikeys import ApiKey
from pylogbroker.protocol.kafka.consumerprotocol import byTopic
from pylogbroker.protocol.kafka.errorcodes import ErrorCode, ResponseError, checkCode
from pylogbroker.syncclient.connection import sleep
from pylogbroker.syncclient.kafka.cluster import BATCH_COUNT, KafkaCluster
from pylogbroker.types import TopicPartition, formatCount

PREFERRED, UNCLEAN = 0, 1
"""Kinds of elections, as on the wire."""

_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_SET, _DELETE = 0, 1

LOOK_SECONDS = 1
"""How often a reassignment under way is looked at."""

FILE_SIZE_MAX = 64 << 20
"""Bytes of a file of reassignments: about half a million partitions."""

Pause = Callable[[float], None]

NOTHING = "nothing was changed; --execute does it"


def place(text: str) -> tuple[str, int | None]:
    """The type of C{TOPIC} or C{TOPIC:PARTITION}."""
    name, colon, number = text.rpartition(":")
    if not colon:
        return text, None
    if not name or not (number.isascii() and number.isdigit()):
        raise ArgumentTypeError(f"{text!r} is no TOPIC or TOPIC:PARTITION")
    return name, int(number)


def brokerIds(text: str) -> list[int]:
    """The type of C{1,2,3}."""
    found = text.split(",")
    if not all(each.isascii() and each.isdigit() for each in found):
        raise ArgumentTypeError(f"{text!r} are no numbers of brokers, separated by commas")
    return sorted(set(map(int, found)))


def replicaAssignment(text: str) -> list[list[int]]:
    """The type of C{1:2,2:3}: the replicas of each partition, as kafka-topics writes them."""
    made = []
    for each in text.split(","):
        numbers = each.split(":")
        if not all(one.isascii() and one.isdigit() for one in numbers):
            raise ArgumentTypeError(f"{text!r} are no replicas such as 1:2,2:3")
        made.append([int(one) for one in numbers])
    return made


def partitionsOf(
    found: Any, wanted: Iterable[tuple[str, int | None]] = ()
) -> dict[TopicPartition, Any]:
    """
    The partitions of a C{MetadataResponse}, sorted.

    @param wanted: topics and partitions; none: all.
    @raise CommandError: one is not there.
    """
    known = {
        TopicPartition(topic.name, part.partitionIndex): part
        for topic in sorted(found.topics, key=lambda topic: str(topic.name))
        for part in sorted(topic.partitions, key=lambda part: int(part.partitionIndex))
    }
    chosen = list(wanted)
    if not chosen:
        return known
    names = {where.topic for where in known}
    for name, number in chosen:
        if name not in names:
            raise CommandError(f"there is no topic {name}")
        if number is not None and (name, number) not in known:
            raise CommandError(f"there is no partition {name}-{number}")
    return {
        where: part
        for where, part in known.items()
        if (where.topic, None) in chosen or where in chosen
    }


# -- elections


def electLeaders(options: Namespace, streams: Streams) -> int:
    """
    Show which partitions would get another leader, and with C{--execute} elect them.

    @return: 1 when a partition could not get the leader.
    """
    kind = UNCLEAN if options.unclean else PREFERRED
    with openCluster(options, streams) as cluster:
        found = partitionsOf(cluster.metadata(None), options.places)
        wanted = {
            where: part
            for where, part in found.items()
            if (part.leaderId < 0 if options.unclean else part.leaderId != part.replicaNodes[0])
        }
        outcomes = elect(cluster, wanted, kind, options.timeoutMs) if options.execute else {}
    rows = [
        (
            *where,
            part.leaderId if part.leaderId >= 0 else None,
            None if options.unclean else part.replicaNodes[0],
            ",".join(map(str, part.isrNodes)),
            str(outcomes[where]) if outcomes.get(where) else None,
        )
        for where, part in wanted.items()
    ]
    failures = [each for each in outcomes.values() if each is not None]
    if options.json:
        keys = ("topic", "partition", "leader", "preferredLeader", "inSync", "error")
        documents = [dict(zip(keys, row, strict=True)) for row in rows]
        for document, part in zip(documents, wanted.values(), strict=True):
            document["inSync"] = list(part.isrNodes)
        show(streams, asJson({"elections": documents, "executed": options.execute}))
    elif rows:
        headings = ("TOPIC", "PARTITION", "LEADER", "PREFERRED", "ISR")
        show(streams, tableOfRows(headings, [row[:-1] for row in rows]))
    for error in failures:
        streams.warn(str(error))
    if not wanted:
        streams.say(
            "no partition lacks a leader"
            if options.unclean
            else "each partition is led by its preferred replica"
        )
    elif options.execute:
        streams.say(f"elected {formatCount(len(wanted) - len(failures), 'leader')}")
    else:
        if options.unclean:
            streams.warn("an unclean election may lose records that were acknowledged")
        streams.say(NOTHING)
    return 1 if failures else 0


def elect(
    cluster: KafkaCluster, places: Iterable[TopicPartition], kind: int, timeoutMs: int
) -> dict[TopicPartition, ResponseError | None]:
    """
    Elect leaders.

    @return: by partition, why there was no election; L{None} also where none was needed any more.
    """
    cls = messages.ElectLeadersRequest
    outcomes: dict[TopicPartition, ResponseError | None] = {}
    for wanted in batched(places, BATCH_COUNT):
        body = cls(
            electionType=kind,
            topicPartitions=[
                cls.TopicPartitions(topic=name, partitions=numbers)
                for name, numbers in byTopic(wanted).items()
            ],
            timeoutMs=timeoutMs,
        )
        answer = cluster.change(ApiKey.ELECT_LEADERS, body)
        checkCode(answer.errorCode, "the election")
        for topic in answer.replicaElectionResults:
            for part in topic.partitionResult:
                where = TopicPartition(topic.topic, part.partitionId)
                isFine = part.errorCode in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
                outcomes[where] = (
                    None if isFine else ResponseError(part.errorCode, str(where), part.errorMessage)
                )
    return outcomes


# -- plans


def planPartitions(options: Namespace, streams: Streams) -> int:
    """Print a plan: as a table for people on standard error, as Kafka's JSON for C{reassign}."""
    with openCluster(options, streams) as cluster:
        found = cluster.metadata(None)
    racks = brokerRacks(found)
    if options.brokers is not None:
        missing = [each for each in options.brokers if each not in racks]
        if missing:
            raise CommandError(
                f"there is no broker {', '.join(map(str, missing))};"
                f" there are: {', '.join(map(str, racks))}"
            )
        racks = {each: racks[each] for each in options.brokers}
    current = assignmentOf(partitionsOf(found, options.places))
    plan = planReassignment(
        current, racks, isBalancing=options.balance, replicationFactor=options.replicationFactor
    )
    if not plan:
        streams.say("nothing is to be moved")
        return 0
    streams.say(tableOfRows(HEADINGS, changes(current, plan)).rstrip("\n"))
    streams.say(summary(current, plan))
    show(streams, formatReassignment(plan))
    return 0


def brokerRacks(found: Any) -> dict[int, str | None]:
    """The racks of the brokers of a C{MetadataResponse}."""
    return {
        each.nodeId: each.rack or None
        for each in sorted(found.brokers, key=lambda each: int(each.nodeId))
    }


def assignmentOf(partitions: Mapping[TopicPartition, Any]) -> Assignment:
    """The replicas of partitions."""
    return {where: tuple(part.replicaNodes) for where, part in partitions.items()}


HEADINGS = ("TOPIC", "PARTITION", "REPLICAS", "NEW", "ADDED", "REMOVED")


def _numbers(brokers: Iterable[int]) -> str | None:
    return ",".join(map(str, brokers)) or None


def changes(current: Assignment, plan: Assignment) -> list[tuple[Any, ...]]:
    """What a plan changes, as rows below L{HEADINGS}."""
    return [
        (
            *where,
            _numbers(current[where]),
            _numbers(target),
            _numbers(each for each in target if each not in current[where]),
            _numbers(each for each in current[where] if each not in target),
        )
        for where, target in sorted(plan.items())
    ]


def summary(current: Assignment, plan: Assignment) -> str:
    """What a plan changes, in numbers."""
    copies = sum(len(set(target) - set(current[where])) for where, target in plan.items())
    leaders = sum(target[0] != current[where][0] for where, target in plan.items())
    return (
        f"{formatCount(len(plan), 'partition')} of {len(current)} change:"
        f" {formatCount(copies, 'replica')} to copy,"
        f" {formatCount(leaders, 'preferred leader')} other than before"
    )


# -- reassignments


def reassignPartitions(options: Namespace, streams: Streams, pause: Pause = sleep) -> int:
    """
    Show what a file of reassignments changes, and with C{--execute} do that, or stop it.

    @return: 1 when something was refused.
    """
    text, name = readText(options.file, streams.input, FILE_SIZE_MAX, "file of reassignments")
    try:
        wanted = parseReassignment(text)
    except InvalidReplicaAssignmentError as error:
        raise CommandError(f"{name} is no file of reassignments: {error}") from error
    with openCluster(options, streams) as cluster:
        current = assignmentOf(partitionsOf(cluster.metadata(None), wanted))
        moving = reassignments(cluster)
        if options.cancel:
            return _cancel(cluster, [each for each in wanted if each in moving], options, streams)
        # What a reassignment under way is to lead to, for those that have one.
        settled = current | {where: _settled(part) for where, part in moving.items()}
        plan = {where: each for where, each in wanted.items() if settled[where] != each}
        if plan:
            show(streams, tableOfRows(HEADINGS, changes(current, plan)))
            streams.say(summary({each: current[each] for each in wanted}, plan))
        if not options.execute:
            streams.say(NOTHING if plan else "each partition has these replicas already")
            return 0
        if options.save:
            writeNewFile(options.save, formatReassignment(current))
        if options.throttle is not None:
            sources = {
                where: [each for each in current[where] if each not in moving[where].addingReplicas]
                if where in moving
                else current[where]
                for where in wanted
            }
            _throttle(cluster, sources, wanted, options.throttle, streams)
        code = carryOut(cluster, wanted, plan, options, streams, pause)
        if code or not options.noWait:
            _removeThrottles(cluster, wanted, streams)
        return code


def carryOut(
    cluster: KafkaCluster,
    wanted: Iterable[TopicPartition],
    plan: Mapping[TopicPartition, Sequence[int] | None],
    options: Namespace,
    streams: Streams,
    pause: Pause,
) -> int:
    """
    Begin reassignments, and wait for their end, unless C{--no-wait} is given.

    @param wanted: the partitions to wait for.
    @return: 1 when one was refused.
    """
    refused = alterReassignments(cluster, plan, options.timeoutMs)
    for error in refused.values():
        streams.warn(str(error))
    places = [where for where in wanted if where not in refused]
    if places and not options.noWait:
        _awaitEnd(cluster, places, streams, pause)
    elif places:
        streams.say(f"{formatCount(len(plan) - len(refused), 'reassignment')} began")
    return 1 if refused else 0


def alterReassignments(
    cluster: KafkaCluster,
    plan: Mapping[TopicPartition, Sequence[int] | None],
    timeoutMs: int,
) -> dict[TopicPartition, ResponseError]:
    """
    Begin reassignments.

    @param plan: the brokers of each partition; L{None}: stop what is under way.
    @return: those that were refused.
    """
    cls = messages.AlterPartitionReassignmentsRequest
    refused: dict[TopicPartition, ResponseError] = {}
    for wanted in batched(plan, BATCH_COUNT):
        topics = []
        for name, numbers in byTopic(wanted).items():
            topic = cls.ReassignableTopic(name=name)
            for number in numbers:
                target = plan[TopicPartition(name, number)]
                topic.partitions.append(
                    cls.ReassignablePartition(
                        partitionIndex=number, replicas=None if target is None else list(target)
                    )
                )
            topics.append(topic)
        body = cls(topics=topics, timeoutMs=timeoutMs)
        answer = cluster.change(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body)
        checkCode(answer.errorCode, "the reassignment", answer.errorMessage)
        for each in answer.responses:
            for part in each.partitions:
                where = TopicPartition(each.name, part.partitionIndex)
                if part.errorCode:
                    refused[where] = ResponseError(part.errorCode, str(where), part.errorMessage)
    return refused


def reassignments(cluster: KafkaCluster) -> dict[TopicPartition, Any]:
    """The reassignments under way: C{replicas}, C{addingReplicas}, C{removingReplicas}."""
    body = messages.ListPartitionReassignmentsRequest(topics=None)

    def ask() -> Any:
        answer = cluster.controller().request(ApiKey.LIST_PARTITION_REASSIGNMENTS, body)
        checkCode(answer.errorCode, "the reassignments", answer.errorMessage)
        return answer

    return {
        TopicPartition(topic.name, part.partitionIndex): part
        for topic in cluster.attempt(ask).topics
        for part in topic.partitions
    }


def _settled(part: Any) -> tuple[int, ...]:
    return tuple(each for each in part.replicas if each not in part.removingReplicas)


def _awaitEnd(
    cluster: KafkaCluster, places: Sequence[TopicPartition], streams: Streams, pause: Pause
) -> None:
    """Wait until no reassignment of some partitions is under way; tell each step."""
    left = len(places) + 1
    while True:
        underWay = reassignments(cluster)
        moving = [where for where in places if where in underWay]
        if not moving:
            break
        if len(moving) < left:
            left = len(moving)
            done = len(places) - left
            streams.say(
                f"{done} of {formatCount(len(places), 'reassignment')} complete;"
                f" under way: {', '.join(map(str, moving[:5]))}{', …' if left > 5 else ''}"
            )
        pause(LOOK_SECONDS)
    streams.say(f"{formatCount(len(places), 'reassignment')} complete")


def _cancel(
    cluster: KafkaCluster, places: Sequence[TopicPartition], options: Namespace, streams: Streams
) -> int:
    if not places:
        streams.say("no reassignment of these partitions is under way")
        return 0
    streams.say(f"under way: {', '.join(map(str, places))}")
    if not options.execute:
        streams.say("nothing was stopped; --execute does it")
        return 0
    refused = alterReassignments(cluster, dict.fromkeys(places), options.timeoutMs)
    for error in refused.values():
        streams.warn(str(error))
    streams.say(f"stopped {formatCount(len(places) - len(refused), 'reassignment')}")
    _removeThrottles(cluster, places, streams)
    return 1 if refused else 0


# -- throttles


def _throttle(
    cluster: KafkaCluster,
    sources: Mapping[TopicPartition, Sequence[int]],
    targets: Mapping[TopicPartition, Sequence[int]],
    rate: int,
    streams: Streams,
) -> None:
    """
    Limit what is copied to new replicas.

    @param sources: the replicas before, of all partitions of C{targets}.
    @param rate: bytes in a second, of each broker as a leader, and as a follower.
    """
    topics = throttledReplicas(sources, targets)
    if not topics:
        return
    for name, replicas in topics.items():
        keys = (LEADER_THROTTLED_REPLICAS, FOLLOWER_THROTTLED_REPLICAS)
        _alterTopic(cluster, name, dict(zip(keys, replicas, strict=True)))
    moved = [where for where, target in targets.items() if {*target} - {*sources[where]}]
    brokers = {each for where in moved for each in (*sources[where], *targets[where])}
    rates = {LEADER_THROTTLED_RATE: str(rate), FOLLOWER_THROTTLED_RATE: str(rate)}
    _alterBrokers(cluster, sorted(brokers), rates, streams)
    streams.say(f"copying is throttled to {rate} bytes in a second for each broker")


def _removeThrottles(
    cluster: KafkaCluster, places: Iterable[TopicPartition], streams: Streams
) -> None:
    """
    Remove the throttles of topics that do not move any more; and those of the brokers, if no topic
    does. Where the topics of C{places} have none, nothing is changed: an operator may have set some
    by hand.
    """
    moving = {where.topic for where in reassignments(cluster)}
    names = sorted({where.topic for where in places} - moving)
    keys = (LEADER_THROTTLED_REPLICAS, FOLLOWER_THROTTLED_REPLICAS)
    cls = messages.DescribeConfigsRequest
    throttled = []
    for some in batched(names, BATCH_COUNT):
        resources = [
            cls.DescribeConfigsResource(
                resourceType=_TOPIC_RESOURCE, resourceName=name, configurationKeys=[*keys]
            )
            for name in some
        ]
        for found in cluster.ask(ApiKey.DESCRIBE_CONFIGS, cls(resources=resources)).results:
            checkCode(found.errorCode, f"topic {found.resourceName}", found.errorMessage)
            if any(each.value for each in found.configs):
                throttled.append(found.resourceName)
    if not throttled:
        return
    for name in throttled:
        _alterTopic(cluster, name, dict.fromkeys(keys))
    if moving:
        streams.say("the brokers' throttles stay, since other reassignments are under way")
        return
    rates = dict.fromkeys((LEADER_THROTTLED_RATE, FOLLOWER_THROTTLED_RATE))
    brokers = [each.nodeId for each in cluster.metadata(()).brokers]
    _alterBrokers(cluster, sorted(brokers), rates, streams)
    streams.say("the throttles are removed")


def _alterTopic(cluster: KafkaCluster, name: str, values: Mapping[str, str | None]) -> None:
    body = _changeOf(_TOPIC_RESOURCE, name, values)
    [found] = cluster.change(ApiKey.INCREMENTAL_ALTER_CONFIGS, body).responses
    checkCode(found.errorCode, f"topic {name}", found.errorMessage)


def _alterBrokers(
    cluster: KafkaCluster,
    brokers: Iterable[int],
    values: Mapping[str, str | None],
    streams: Streams,
) -> None:
    """Change settings of brokers; each is asked itself, and one that is gone is named."""
    for number in brokers:
        body = _changeOf(_BROKER_RESOURCE, str(number), values)
        try:
            answer = cluster.broker(number).request(ApiKey.INCREMENTAL_ALTER_CONFIGS, body)
        except BrokerConnectionError as error:
            streams.warn(f"the throttle of broker {number} is as before: {error}")
            continue
        [found] = answer.responses
        checkCode(found.errorCode, f"broker {number}", found.errorMessage)


def _changeOf(kind: int, name: str, values: Mapping[str, str | None]) -> Any:
    """
    A request that changes settings.

    @param values: by key; L{None} removes one.
    """
    cls = messages.IncrementalAlterConfigsRequest
    changes = [
        cls.AlterableConfig(
            name=key, configOperation=_DELETE if value is None else _SET, value=value
        )
        for key, value in values.items()
    ]
    return cls(
        resources=[cls.AlterConfigsResource(resourceType=kind, resourceName=name, configs=changes)]
    )
