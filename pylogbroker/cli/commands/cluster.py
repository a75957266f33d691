"""
C{topic}, C{broker}, C{partition} and C{offset}: what a cluster holds, from ZooKeeper and brokers;
and the arguments of what L{pylogbroker.cli.kafka} does with topics and brokers of today's Kafka.
"""

from __future__ import annotations

from argparse import Namespace

from pylogbroker.cli.arguments import (
    AT_BOOTSTRAP,
    AT_BROKER_OR_BOOTSTRAP,
    IN_CLUSTER,
    IN_EITHER,
    INT_MAX,
    JSON,
    Command,
    either,
    flag,
    intRange,
    isCurrent,
    offsetTime,
    option,
    positive,
    rejectOptions,
    repeated,
    topic,
)
from pylogbroker.cli.kafka import brokers, partitions, topics
from pylogbroker.cli.output import asJson, tableOfRows
from pylogbroker.cli.session import ClusterSession, openConsumer, requireTopic
from pylogbroker.cli.streams import Streams
from pylogbroker.cluster.znodes import BrokerRegistration
from pylogbroker.errors import PylogbrokerError
from pylogbroker.net.deferreds import closing, gatherAll
from pylogbroker.types import MAX_TIMESTAMP, OffsetBounds, PartitionId

Bounds = dict[PartitionId, OffsetBounds | None]


async def readBounds(cluster: ClusterSession, topics: list[str]) -> Bounds:
    """
    Ask the brokers for the bounds of topics. C{problems} names those that do not answer.

    @return: for each partition its bounds; L{None} when the broker does not answer.
    @raise pylogbroker.errors.ZookeeperError: ZooKeeper cannot be read.
    """
    bounds: Bounds = {}
    problems: dict[int, str] = {}
    partitions = await cluster.reader.partitions(topics)
    for each, found in (await cluster.offsets.bounds(partitions)).items():
        if isinstance(found, OffsetBounds):
            bounds[each] = found
        else:
            bounds[each] = None
            number = each.partition.broker
            problems.setdefault(number, f"broker {number} cannot be asked: {found}")
    cluster.problems += problems.values()
    return bounds


async def listTopics(options: Namespace, streams: Streams) -> int:
    """Print a line for each topic."""
    return await _showTopics(options, streams, [], isDetailed=False)


async def describeTopics(options: Namespace, streams: Streams) -> int:
    """Print a line for each partition."""
    return await _showTopics(options, streams, options.topics, isDetailed=True)


async def _showTopics(
    options: Namespace, streams: Streams, wanted: list[str], isDetailed: bool
) -> int:
    async with ClusterSession(options, streams) as cluster:
        names = await cluster.knownTopics(wanted)
        bounds = await readBounds(cluster, names)
    byTopic: dict[str, Bounds] = {name: {} for name in names}
    for each, found in bounds.items():
        byTopic[each.topic][each] = found
    if options.json:
        documents = [
            {
                "topic": name,
                "size": _size(parts),
                "partitions": [
                    {**each.partition._asdict(), **_values(found)} for each, found in parts.items()
                ],
            }
            for name, parts in byTopic.items()
        ]
        text = asJson({"topics": documents, "problems": cluster.problems})
    else:
        if isDetailed:
            lines = [(*each, *_values(found).values()) for each, found in bounds.items()]
            text = tableOfRows(("TOPIC", "PARTITION", "START", "END", "SIZE"), lines)
        else:
            rows = [
                (name, len({each.partition.broker for each in parts}), len(parts), _size(parts))
                for name, parts in byTopic.items()
            ]
            text = tableOfRows(("TOPIC", "BROKERS", "PARTITIONS", "SIZE"), rows)
        cluster.warnOfProblems()
        if not names:
            streams.say("there are no topics")
    await streams.show(text)
    return 0


def _values(found: OffsetBounds | None) -> dict[str, int | None]:
    start, end = found or (None, None)
    return {"start": start, "end": end, "size": found and found.end - found.start}


def _size(bounds: Bounds) -> int | None:
    sizes = [found.end - found.start for found in bounds.values() if found is not None]
    return sum(sizes) if len(sizes) == len(bounds) else None


async def listBrokers(options: Namespace, streams: Streams) -> int:
    """
    Print a line for each registered broker.

    @return: 1 when a broker does not answer.
    """
    async with ClusterSession(options, streams) as cluster:
        found = await cluster.reader.brokers()
        partitions = await cluster.reader.partitions(await cluster.reader.topics())
        answered = await gatherAll(_ask(cluster, *each) for each in found.items())
    rows = []
    for (number, broker), isAnswer in zip(found.items(), answered, strict=True):
        topics = [topic for topic, partition in partitions if partition.broker == number]
        rows.append((number, broker.host, broker.port, len(set(topics)), len(topics), isAnswer))
    if options.json:
        keys = ("broker", "host", "port", "topicCount", "partitionCount", "answers")
        documents = [dict(zip(keys, row, strict=True)) for row in rows]
        text = asJson({"brokers": documents, "problems": cluster.problems})
    else:
        headings = ("BROKER", "HOST", "PORT", "TOPICS", "PARTITIONS", "ANSWERS")
        text = tableOfRows(headings, [(*row[:-1], "yes" if row[-1] else "no") for row in rows])
        cluster.warnOfProblems()
        if not rows:
            streams.say("there are no brokers")
    await streams.show(text)
    return 0 if all(answered) else 1


async def _ask(cluster: ClusterSession, number: int, broker: BrokerRegistration) -> bool:
    """Send an empty multifetch request, which costs the broker nothing."""
    try:
        await (await cluster.offsets.consumer(number)).multifetch([])
    except PylogbrokerError as error:
        cluster.problems.append(
            f"broker {number} at {broker.host}:{broker.port} does not answer: {error}"
        )
        return False
    return True


def prepareDescription(options: Namespace, streams: Streams) -> None:
    """Check the options that only today's Kafka has."""
    if not isCurrent(options):
        text = "needs --bootstrap-server: topics of Kafka 0.7 are not replicated"
        rejectOptions(options, text, "--under-replicated", "--under-min-isr", "--unavailable")


def prepareOffsets(options: Namespace, streams: Streams) -> None:
    """Check the options that only one kind of broker has, and give them their defaults."""
    if isCurrent(options):
        rejectOptions(options, "not with --bootstrap-server: there it is one", "--count")
        return
    if options.topic is None:
        options.parser.error("--topic: is required without --bootstrap-server")
    if options.time == MAX_TIMESTAMP:
        options.parser.error("--time: max-timestamp needs --bootstrap-server")
    options.partition = options.partition or 0
    options.count = options.count or 1


async def listOffsets(options: Namespace, streams: Streams) -> int:
    """Print offsets of a partition (0.7's GetOffsetShell, spec-0.7 tools §5)."""
    topic, partition = options.topic, options.partition
    consumer = openConsumer(options, streams)
    async with closing(consumer):
        await requireTopic(consumer, topic, partition)
        found = await consumer.getOffsetsBefore(topic, partition, options.time, options.count)
        document = {"topic": topic, "partition": partition, "offsets": found}
        lines = "".join(f"{offset}\n" for offset in found)
        await streams.show(asJson(document) if options.json else lines)
    if not found:
        streams.say("no segment file is that old")
    return 0


_PARTITIONS = option("--partitions N", "partitions; by default, the broker's number", positive)
_TOPIC_CONFIG = repeated(
    "--topic-config KEY=VALUE",
    "a setting of the topic; can be repeated",
    "topicConfigs",
    topics.setting,
)
_EXECUTE = flag("--execute", "make the changes; by default, they are only shown")
_PLACES = option(
    "places TOPIC[:PARTITION]",
    "topics, or partitions; by default, all",
    partitions.place,
    nargs="*",
)
_NO_WAIT = flag("--no-wait", "do not wait until data are copied")
_LEAVING = (
    option("broker BROKER", "the number of the broker", intRange(0, INT_MAX)),
    _EXECUTE,
    _NO_WAIT,
    option(
        "--zookeeper HOST:PORT",
        "ZooKeeper's servers, host:port[,host:port…][/chroot]: topics of Kafka 0.7 that stay on "
        "the broker are named",
    ),
    *AT_BOOTSTRAP,
)


async def moveMetadata(options: Namespace, streams: Streams) -> int:
    """Move a broker's own metadata to ZooKeeper."""
    # Other commands need nothing of a broker.
    from pylogbroker.cli.kafka import metadata

    return await metadata.moveMetadata(options, streams)


COMMANDS = (
    Command(
        "topic list",
        listTopics,
        (*IN_EITHER, JSON),
        """\
examples:
  pylogbroker topic list --bootstrap-server log1:9092
  pylogbroker topic list --zookeeper zk1:2181
  pylogbroker topic list --zookeeper zk1:2181 --json

A topic is listed in its own protocol only: those of today's Kafka with --bootstrap-server, those of
Kafka 0.7 with --zookeeper. SIZE is in bytes: of 0.7's topics what a consumer can read, of today's
what lies on the brokers' disks. The protocol of Kafka 0.7 cannot list the topics of a broker
without ZooKeeper: pylogbroker verify LOG_DIRECTORY shows its partitions, and so does the broker's
page at http.listener.
""",
        current=topics.listTopics,
    ),
    Command(
        "topic describe",
        describeTopics,
        (
            option("topics TOPIC", "the topics; by default, all", nargs="*"),
            either(
                flag(
                    "--under-replicated",
                    "with --bootstrap-server: partitions with a replica that is not in sync",
                ),
                flag(
                    "--under-min-isr",
                    "with --bootstrap-server: partitions with fewer in sync than "
                    "min.insync.replicas",
                ),
                flag("--unavailable", "with --bootstrap-server: partitions without a leader"),
            ),
            *IN_EITHER,
            JSON,
        ),
        """\
examples:
  pylogbroker topic describe --bootstrap-server log1:9092
  pylogbroker topic describe --under-replicated --bootstrap-server log1:9092
  pylogbroker topic describe --zookeeper zk1:2181
  pylogbroker topic describe clicks --zookeeper zk1:2181 --json

START is the offset of the oldest message, END the offset behind the last message that consumers
see. With --zookeeper PARTITION is BROKER-PARTITION, and SIZE the number of bytes between START and
END. With --bootstrap-server SIZE is the partition's on the disk; settings that a topic has of its
own are listed behind the partitions.
""",
        prepareDescription,
        current=topics.describeTopics,
    ),
    Command(
        "topic create",
        topics.createTopics,
        (
            option("topic TOPIC", "the topic", topic),
            _PARTITIONS,
            option("--replication-factor N", "replicas; by default, the broker's", positive),
            option(
                "--replica-assignment BROKERS",
                "the brokers of each partition, the preferred leader first, such as 1:2,2:3: two "
                "partitions with two replicas each",
                partitions.replicaAssignment,
            ),
            _TOPIC_CONFIG,
            *AT_BOOTSTRAP,
        ),
        """\
examples:
  pylogbroker topic create invoices --partitions 3 --bootstrap-server log1:9092
  pylogbroker topic create orders --replica-assignment 0,0 --bootstrap-server log1:9092
  pylogbroker topic create prices --topic-config cleanup.policy=compact --bootstrap-server log1:9092
""",
        isBlocking=True,
    ),
    Command(
        "topic alter",
        topics.alterTopics,
        (
            option("topic TOPIC", "the topic", topic),
            _PARTITIONS,
            _TOPIC_CONFIG,
            repeated(
                "--delete-config KEY",
                "a setting that gets the broker's value again; can be repeated",
                "deleteConfigs",
            ),
            *AT_BOOTSTRAP,
        ),
        """\
examples:
  pylogbroker topic alter invoices --partitions 6 --bootstrap-server log1:9092
  pylogbroker topic alter invoices --topic-config retention.ms=3600000 --bootstrap-server log1:9092
  pylogbroker topic alter invoices --delete-config retention.ms --bootstrap-server log1:9092

Partitions can only be added. Keys then belong to other partitions than before.
""",
        isBlocking=True,
    ),
    Command(
        "topic delete",
        topics.deleteTopics,
        (option("topics TOPIC", "the topics", nargs="+"), *AT_BOOTSTRAP),
        """\
examples:
  pylogbroker topic delete invoices prices --bootstrap-server log1:9092

Records that were deleted do not come back. The exit code is 1 when a topic could not be deleted.
""",
        isBlocking=True,
    ),
    Command(
        "broker list",
        listBrokers,
        (*IN_EITHER, JSON),
        """\
examples:
  pylogbroker broker list --bootstrap-server log1:9092
  pylogbroker broker list --zookeeper zk1:2181
  pylogbroker broker list --zookeeper zk1:2181 --json

ANSWERS says whether the broker has just answered a request. The exit code is 1 when a broker does
not answer. With --zookeeper TOPICS and PARTITIONS count those that are registered. With
--bootstrap-server REPLICAS counts the partitions that the broker keeps, LEADERS those that it
leads; CONTROLLER is the broker that takes changes of topics (with KRaft any may be named, since
each forwards them). --json adds the requests that the broker serves, and their versions.
""",
        current=brokers.listBrokers,
    ),
    Command(
        "broker drain",
        brokers.drainBroker,
        (
            flag("--leaders-only", "let the other replicas lead, and copy nothing"),
            *_LEAVING,
        ),
        """\
examples:
  pylogbroker broker drain 2 --leaders-only --bootstrap-server log1:9092

The other brokers get the broker's partitions, those with the fewest replicas first; racks are
respected. Without --execute the moves are only shown. With --leaders-only replicas in sync lead
instead, and are preferred from then on; partition plan --balance gives the broker leaders again. A
restart needs neither: an orderly stop lets others lead. A replica of such a partition whose broker
is gone moves, too. A broker that goes on running may get new partitions.
""",
        isBlocking=True,
    ),
    Command(
        "broker decommission",
        brokers.decommissionBroker,
        _LEAVING,
        """\
examples:
  pylogbroker broker decommission 2 --bootstrap-server log1:9092

The next step is shown, and --execute takes it: first the broker's partitions move to the others, as
with broker drain; when the broker is stopped, a second run removes its registration. A broker with
replicas stays registered. With --execute the exit code is 1 until the registration is gone.
""",
        isBlocking=True,
    ),
    Command(
        "partition elect",
        partitions.electLeaders,
        (
            _PLACES,
            flag(
                "--unclean",
                "give partitions without a leader one that may lack acknowledged records, which "
                "are lost then",
            ),
            _EXECUTE,
            *AT_BOOTSTRAP,
            JSON,
        ),
        """\
examples:
  pylogbroker partition elect --bootstrap-server log1:9092
  pylogbroker partition elect --unclean --bootstrap-server log1:9092

The partitions are listed that their preferred replica (the first) does not lead; with --execute it
leads them, if it is in sync. The exit code is 1 when one could not be elected.
""",
        isBlocking=True,
    ),
    Command(
        "partition plan",
        partitions.planPartitions,
        (
            _PLACES,
            option(
                "--brokers N,N,…",
                "the brokers that may have replicas; by default, all that run",
                partitions.brokerIds,
            ),
            flag("--balance", "give brokers as many replicas and leaders as possible each"),
            option("--replication-factor N", "replicas; by default, as many as before", positive),
            *AT_BOOTSTRAP,
        ),
        """\
examples:
  pylogbroker partition plan --balance --bootstrap-server log1:9092
  pylogbroker partition plan --brokers 1,3 --bootstrap-server log1:9092 > plan.json

As few replicas move as possible. A new one is in a rack that the partition does not have yet, as
long as there are some. With --balance the replicas of brokers differ by one at most, and so do the
partitions that they lead, where racks and replicas allow that. The plan is printed as a table on
standard error, and on standard output as the JSON that partition reassign and
kafka-reassign-partitions.sh read.
""",
        isBlocking=True,
    ),
    Command(
        "partition reassign",
        partitions.reassignPartitions,
        (
            option("file FILE", "Kafka's JSON of reassignments; - is standard input"),
            flag("--cancel", "stop the reassignments of these partitions that are under way"),
            option("--save FILE", "first write the present replicas to a new file: the way back"),
            option(
                "--throttle BYTES",
                "bytes in a second that each broker may send, and fetch, for the new replicas; "
                "given again, it changes what is under way",
                positive,
            ),
            _NO_WAIT,
            _EXECUTE,
            *AT_BOOTSTRAP,
        ),
        """\
examples:
  pylogbroker partition reassign plan.json --bootstrap-server log1:9092
  pylogbroker partition reassign plan.json --execute --bootstrap-server log1:9092
  pylogbroker partition reassign plan.json --execute --throttle 9000000 --bootstrap-server log1:9092
  pylogbroker partition reassign plan.json --cancel --bootstrap-server log1:9092

Without --execute the changes are only shown. With it they begin, and the command tells how many are
complete, until all are. They go on when it is ended: run it again to wait again. A throttle is
removed when all are complete, or with --cancel; a command that is ended, or does not wait, leaves
it: run it again, without --no-wait. The exit code is 1 when a reassignment is refused.
""",
        isBlocking=True,
    ),
    Command(
        "offset list",
        listOffsets,
        (
            *AT_BROKER_OR_BOOTSTRAP,
            option("--topic", "the topic; with --bootstrap-server, by default, all", topic),
            option(
                "--partition N",
                "the partition of the topic (0; all with --bootstrap-server)",
                intRange(0, INT_MAX),
            ),
            option(
                "--time TIME",
                "latest: behind the last message that consumers see; earliest: the oldest message; "
                "milliseconds since 1970, or a date like 2026-01-31T12:00: with --bootstrap-server "
                "the first record of that time or later, else the segment files that were last "
                "written before that time; max-timestamp, with --bootstrap-server: the record with "
                "the highest timestamp (latest)",
                offsetTime,
                "latest",
            ),
            option(
                "--count N",
                "not with --bootstrap-server: print at most N offsets, one a line, the latest "
                "first (1)",
                positive,
            ),
            flag("--json", "print one JSON document instead of lines"),
        ),
        """\
examples:
  pylogbroker offset list --topic payments --bootstrap-server log1:9092
  pylogbroker offset list --time earliest --bootstrap-server log1:9092
  pylogbroker offset list --topic dpkg
  pylogbroker offset list --topic dpkg --time earliest --json
  pylogbroker offset list --topic dpkg --time 2026-01-31T12:00 --count 5

With --bootstrap-server a line is TOPIC:PARTITION:OFFSET, as GetOffsetShell of Kafka 4.x prints it.
A partition that has no record of the time is left out, and named on standard error. The exit code
is 1 when a partition cannot be asked.
""",
        prepareOffsets,
        current=brokers.listOffsets,
    ),
    Command(
        "metadata move",
        moveMetadata,
        (
            option("--log-dir DIRECTORY", "the log directory of the broker", required=True),
            flag("--dry-run", "say what would be done, and change nothing"),
            *IN_CLUSTER,
        ),
        """\
examples:
  pylogbroker metadata move --log-dir /var/lib/pylogbroker --zookeeper zk1:2181/kafka --dry-run
  pylogbroker metadata move --log-dir /var/lib/pylogbroker --zookeeper zk1:2181/kafka

Stop the broker first. Afterwards set metadata.store=zookeeper: with local it refuses to start.
Where ZooKeeper has a cluster already, it takes the topics, unless names, rules, users, quotas,
settings or producer ids contradict; then nothing is changed. Kafka 0.7's topics stay as they are.
There is no way back: ZooKeeper has what is changed afterwards, and metadata.journal.moved does not.
""",
    ),
)
