"""
The settings of a broker, and the sample file C{etc/broker.properties}.

Kafka 0.7's keys keep name, meaning, unit and default (spec-0.7 config §1; the defaults come from
0.7.2's code, not from its web page). Our own keys add functions and limits that 0.7 lacks.

Three things differ from 0.7.2: a negative C{brokerid} is refused (gotcha 25),
C{topic.log.retention.size} works (gotcha 5), and unknown keys are reported (gotcha 24).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pylogbroker.config.allowlist import readAllowList
from pylogbroker.config.kafka.tasksettings import CONFIG_TOPIC, METRICS_TOPIC
from pylogbroker.config.keys import ConfigKey, Settings, ignoredKey, ownKey
from pylogbroker.config.listenersettings import (
    ADVERTISED_LISTENERS,
    CLIENT_AUTH,
    ENABLED_MECHANISMS,
    FAILED_DELAY_MS,
    INTER_BROKER_LISTENER,
    INTER_BROKER_MECHANISM,
    INTER_BROKER_PROTOCOL,
    KEY_PASSWORD,
    KEYSTORE_CHAIN,
    KEYSTORE_KEY,
    KEYSTORE_LOCATION,
    KEYSTORE_TYPE,
    LISTENER_DIALECT,
    LISTENER_NAME,
    LISTENERS,
    MAPPING_RULES,
    MAX_REAUTH_MS,
    MAX_RECEIVE_SIZE,
    SECURITY_PROTOCOL_MAP,
    TRUSTSTORE_CERTIFICATES,
    TRUSTSTORE_LOCATION,
    TRUSTSTORE_TYPE,
    interBrokerListener,
    readListeners,
)
from pylogbroker.config.propertytypes import (
    ANY_INTEGER,
    BAR_SEPARATED_LIST,
    BOOLEAN,
    INT_MAX,
    LONG_MAX,
    NOT_EMPTY,
    NOT_NEGATIVE,
    POSITIVE,
    SIZE,
    TEXT,
    TOPIC_MAP,
    AddressMap,
    EndpointTemplate,
    Enum,
    Host,
    Integer,
    Nullable,
    PrincipalList,
    TopicMap,
    Warn,
    ZookeeperServers,
)
from pylogbroker.config.securitysettings import ZK_ACL, ZK_DIGEST
from pylogbroker.config.topicconfigs import topicDefault
from pylogbroker.errors import ConfigurationError

LOCAL, ZOOKEEPER = "local", "zookeeper"
"""Values of C{metadata.store}."""

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

SAMPLE_NAME = "broker.properties"


class BrokerSettings(Settings):
    """
    The settings of a broker. Names and units are those of the keys: C{logRetentionHours} is in
    hours.

    @ivar listeners: endpoint strings, at least one.
    @ivar allowFile: C{fromProperties} checks the file, and the broker reads it again when it
        starts.
    """

    # -- who and where
    brokerId = ConfigKey(
        "brokerid",
        NOT_NEGATIVE,
        None,
        "The broker's number, unique in its cluster.",
        isRequired=True,
    )
    hostName = ConfigKey(
        "hostname",
        Nullable(Host()),
        "",
        "The name or address that the broker advertises to clients; it does not change "
        "where the broker listens.",
        derived="`listen.interface`, or the address in `listeners`, or that of the host's name",
    )
    port = ConfigKey(
        "port",
        Integer(0, 65535),
        "6667",
        "The TCP port to listen on; 0 takes any free one. With `listeners`, it is only the "
        "advertised port.",
    )
    listenInterface = ownKey(
        "listen.interface",
        Host(),
        "",
        "The address to listen on, such as 127.0.0.1 or ::1; empty means all IPv4 addresses"
        " of the machine, as in 0.7.",
    )
    listeners = LISTENERS
    advertisedListeners = ADVERTISED_LISTENERS
    listenerSecurityProtocolMap = SECURITY_PROTOCOL_MAP
    listenerName = LISTENER_NAME
    listenerDialect = LISTENER_DIALECT
    interBrokerListenerName = INTER_BROKER_LISTENER
    securityInterBrokerProtocol = INTER_BROKER_PROTOCOL
    # -- ZooKeeper
    enableZookeeper = ConfigKey(
        "enable.zookeeper",
        BOOLEAN,
        "true",
        "Register the broker and its topics in ZooKeeper, where producers and consumers "
        "find them. Otherwise clients need the broker's address.",
    )
    zkConnect = ConfigKey(
        "zk.connect",
        ZookeeperServers(),
        "",
        "ZooKeeper's servers, with an optional chroot, which must exist: "
        "`zk1:2181,zk2:2181,zk3:2181/kafka`. Required with `enable.zookeeper`.",
    )
    zkSessionTimeoutMs = ConfigKey(
        "zk.sessiontimeout.ms",
        POSITIVE,
        "6000",
        "The session time-out in milliseconds: without a heartbeat for this time, ZooKeeper"
        " drops the broker's registration. The server limits the value.",
    )
    metadataStore = ownKey(
        "metadata.store",
        Enum({LOCAL: LOCAL, ZOOKEEPER: ZOOKEEPER}),
        LOCAL,
        "Where the metadata of topics of the current protocol are: `local`, in a journal in"
        " `log.dir`, for a broker that is a cluster of one; or `zookeeper`, for a cluster of"
        " several brokers. `pylogbroker metadata move` moves them from the former to the latter."
        " Topics of Kafka 0.7 are in ZooKeeper with either, if `enable.zookeeper` is set.",
    )
    brokerRack = ownKey(
        "broker.rack",
        TEXT,
        "",
        "The rack or zone of the broker, which clients are told, with `metadata.store=zookeeper`.",
        derived="none",
    )
    zkConnectionTimeoutMs = ConfigKey(
        "zk.connectiontimeout.ms",
        POSITIVE,
        None,
        "The longest wait for ZooKeeper at the start, in milliseconds; then the start fails.",
        fallback=zkSessionTimeoutMs,
    )
    zkDigest = ZK_DIGEST
    zkAcl = ZK_ACL
    # -- connections
    socketSendBuffer = ConfigKey(
        "socket.send.buffer",
        NOT_NEGATIVE,
        "0",
        "SO_SNDBUF of each connection in bytes; 0 lets the kernel size it. (In 0.7: 102400.)",
    )
    socketReceiveBuffer = ConfigKey(
        "socket.receive.buffer",
        NOT_NEGATIVE,
        "0",
        "SO_RCVBUF of each connection in bytes; 0 lets the kernel size it. (In 0.7: 102400.)",
    )
    maxConnections = ownKey(
        "max.connections",
        NOT_NEGATIVE,
        "0",
        "The largest number of client connections; the broker closes further ones at once. "
        "0: limited by file descriptors only.",
    )
    maxConnectionsPerIp = ownKey(
        "max.connections.per.ip",
        NOT_NEGATIVE,
        str(INT_MAX),
        "The largest number of client connections from one address; the broker closes further ones"
        " at once.",
    )
    maxConnectionsPerIpOverrides = ownKey(
        "max.connections.per.ip.overrides",
        AddressMap(),
        "",
        "Other such numbers, of single addresses: `10.0.0.7:200,2001:db8::7:50`.",
    )
    connectionsMaxIdleMs = ownKey(
        "connections.max.idle.ms",
        POSITIVE,
        "600000",
        "How long a connection of Kafka's current protocol may be silent; then the broker closes"
        " it, unless a request is in progress.",
    )
    frameDeadlineMs = ownKey(
        "frame.deadline.ms",
        POSITIVE,
        "120000",
        "The longest time that a large request may take to arrive, plus one second for each"
        " MiB, while other requests wait for its memory; then the broker closes its "
        "connection.",
    )
    readerIdleMs = ownKey(
        "reader.idle.ms",
        POSITIVE,
        "120000",
        "The longest time that a client may leave a waiting response unread; then the "
        "broker closes the connection, because it pins deleted segments. A client that does not "
        "end its TLS handshake, or does not authenticate, has once to twice this time.",
    )
    allowFile = ownKey(
        "allow.file",
        TEXT,
        "",
        "A file of rules: the certificates, by common name, that may produce to and fetch "
        "from each topic. Empty: every client may do everything.",
    )
    authorizerClassName = ownKey(
        "authorizer.class.name",
        Enum({"": False, STANDARD_AUTHORIZER: True}),
        "",
        "What decides about the requests of Kafka's current protocol: Kafka's StandardAuthorizer, "
        "which looks at access control lists (ACLs), or nothing, and every client may do "
        "everything.",
    )
    superUsers = ownKey(
        "super.users",
        PrincipalList(),
        "",
        "Users that may do everything, with `;` between them: `User:admin;User:alice`. Without "
        "one, nobody can make the first ACL.",
    )
    allowEveryoneIfNoAclFound = ownKey(
        "allow.everyone.if.no.acl.found",
        BOOLEAN,
        "false",
        "With an authorizer, whether everybody may do everything to a resource about which there "
        "is no ACL.",
    )
    quotaWindowNum = ownKey(
        "quota.window.num",
        POSITIVE,
        "11",
        "The number of windows over which the rates of client quotas are measured.",
    )
    quotaWindowSizeSeconds = ownKey(
        "quota.window.size.seconds",
        POSITIVE,
        "1",
        "The length in seconds of each such window.",
    )
    controllerQuotaWindowNum = ownKey(
        "controller.quota.window.num",
        POSITIVE,
        "11",
        "The number of windows whose changes of topics a client may make at once.",
    )
    controllerQuotaWindowSizeSeconds = ownKey(
        "controller.quota.window.size.seconds",
        POSITIVE,
        "1",
        "The length in seconds of each such window.",
    )
    # -- security of listeners
    sslKeystoreType = KEYSTORE_TYPE
    sslKeystoreLocation = KEYSTORE_LOCATION
    sslKeystoreKey = KEYSTORE_KEY
    sslKeystoreCertificateChain = KEYSTORE_CHAIN
    sslKeyPassword = KEY_PASSWORD
    sslTruststoreType = TRUSTSTORE_TYPE
    sslTruststoreLocation = TRUSTSTORE_LOCATION
    sslTruststoreCertificates = TRUSTSTORE_CERTIFICATES
    sslClientAuth = CLIENT_AUTH
    sslPrincipalMappingRules = MAPPING_RULES
    saslEnabledMechanisms = ENABLED_MECHANISMS
    saslServerMaxReceiveSize = MAX_RECEIVE_SIZE
    connectionsMaxReauthMs = MAX_REAUTH_MS
    connectionFailedAuthenticationDelayMs = FAILED_DELAY_MS
    saslMechanismInterBrokerProtocol = INTER_BROKER_MECHANISM
    requestTimeoutMs = ownKey(
        "request.timeout.ms",
        POSITIVE,
        "30000",
        "How long another broker of the cluster may take to answer, in milliseconds, beyond what "
        "the request itself allows; then the connection to it is closed. And how long a record of "
        "a transaction's state may take to be on the replicas in sync; then its client is told to "
        "try again.",
    )
    # -- requests
    maxSocketRequestBytes = ConfigKey(
        "max.socket.request.bytes",
        POSITIVE,
        "104857600",
        "The largest request in bytes; a larger one closes its connection.",
    )
    maxMessageSize = ConfigKey(
        "max.message.size",
        NOT_NEGATIVE,
        "1000000",
        "The largest payload of a top-level message in bytes. The broker drops and counts a"
        " request with a larger one; as in 0.7, the producer gets no error.",
    )
    maxTopicNameLength = ConfigKey(
        "max.topic.name.length",
        POSITIVE,
        "255",
        "The longest topic name in UTF-16 units. Name and partition number must also fit "
        "into a directory name of 255 bytes.",
    )
    maxRequestMemoryBytes = ownKey(
        "max.request.memory.bytes",
        SIZE,
        "268435456",
        "Memory for large requests that are still arriving, over all connections; the "
        "broker does not read from a connection that waits for it. At least "
        "`max.socket.request.bytes`.",
        least=maxSocketRequestBytes,
    )
    maxDecompressedBytes = ownKey(
        "max.decompressed.bytes",
        SIZE,
        "67108864",
        "The largest decompressed size of one message set in bytes, over all levels; a "
        "larger set is refused.",
    )
    maxDecompressionMemoryBytes = ownKey(
        "max.decompression.memory.bytes",
        SIZE,
        "268435456",
        "Memory for decompression in bytes, over all connections; further sets wait for it."
        " At least `max.decompressed.bytes`.",
        least=maxDecompressedBytes,
    )
    maxCompressionDepth = ownKey(
        "max.compression.depth",
        POSITIVE,
        "8",
        "The deepest nesting of compressed messages; a deeper set is refused.",
    )
    # -- the log
    logDir = ConfigKey(
        "log.dir", NOT_EMPTY, None, "The data directory; created if it is missing.", isRequired=True
    )
    numPartitions = ConfigKey(
        "num.partitions", POSITIVE, "1", "The number of partitions of a topic on this broker."
    )
    topicPartitionCountMap = ConfigKey(
        "topic.partition.count.map",
        TOPIC_MAP,
        "",
        "`num.partitions` for some topics: `topic1:3,topic2:4`.",
    )
    autoCreateTopicsEnable = ownKey(
        "auto.create.topics.enable",
        BOOLEAN,
        "true",
        "Whether a client of Kafka's current protocol creates a topic by asking for it. Clients of "
        "0.7 always create topics by producing.",
    )
    maxPartitions = ownKey(
        "max.partitions",
        POSITIVE,
        "10000",
        "The largest number of partitions that producers may create on this broker; a "
        "request that would exceed it is refused. Existing partitions are always served.",
    )
    logFileSize = ConfigKey(
        "log.file.size",
        Integer(5),
        "1073741824",
        "The size in bytes above which a partition rolls to a new segment file.",
    )
    topicLogFileSize = ConfigKey(
        "topic.log.file.size", TOPIC_MAP, "", "`log.file.size` for some topics: `topic1:1048576`."
    )
    logRollHours = ConfigKey(
        "log.roll.hours",
        POSITIVE,
        "168",
        "The age in hours, from its first message, above which a segment file is rolled. "
        "`log.roll.ms` goes before it for topics of Kafka's current protocol.",
    )
    topicLogRollHours = ConfigKey(
        "topic.log.roll.hours", TOPIC_MAP, "", "`log.roll.hours` for some topics: `topic1:24`."
    )
    # -- flushing
    logFlushInterval = ConfigKey(
        "log.flush.interval",
        POSITIVE,
        "500",
        "The number of messages after which a partition is flushed to disk. Consumers see "
        "only flushed messages.",
    )
    logDefaultFlushSchedulerIntervalMs = ConfigKey(
        "log.default.flush.scheduler.interval.ms",
        POSITIVE,
        "3000",
        "The interval in milliseconds at which the broker checks for partitions that are "
        "due for a flush.",
    )
    logDefaultFlushIntervalMs = ConfigKey(
        "log.default.flush.interval.ms",
        ANY_INTEGER,
        None,
        "The longest time that a message waits for its flush, in milliseconds, rounded up "
        "to the next check.",
        fallback=logDefaultFlushSchedulerIntervalMs,
    )
    topicFlushIntervalsMs = ConfigKey(
        "topic.flush.intervals.ms",
        TOPIC_MAP,
        "",
        "`log.default.flush.interval.ms` for some topics: `topic1:1000,topic2:3000`.",
    )
    flushThreads = ownKey(
        "flush.threads",
        Integer(1, 256),
        "4",
        "Threads that roll and delete segment files, and flush them where the kernel has no "
        "asynchronous `fsync`: the number of partitions that can wait for the disk at the same "
        "time.",
    )
    logCheckRecords = ownKey(
        "log.check.records",
        BOOLEAN,
        "false",
        "Whether every record in a producer's batch is checked, as Kafka does, at many times the "
        "cost. Header and checksum of a batch are always checked.",
    )
    logFlushAcksAll = ownKey(
        "log.flush.acks.all",
        BOOLEAN,
        "true",
        "Whether `acks=all` waits for an `fsync`, which all that wait share. With `false`, as in "
        "Kafka with one replica, the page cache is enough: a power cut may lose what was "
        "acknowledged.",
    )
    logFlushBeforeRead = ownKey(
        "log.flush.before.read",
        BOOLEAN,
        "true",
        "Whether consumers see only what is flushed, so that none goes on from a record that a "
        "power cut takes back. A waiting fetch starts a flush. With `false`, as in Kafka, they "
        "see what is in the page cache.",
    )
    logFlushOffsetCheckpointIntervalMs = ownKey(
        "log.flush.offset.checkpoint.interval.ms",
        POSITIVE,
        "60000",
        "How often the offset checkpoints of record batches are written: after a crash, what "
        "is behind them is checked.",
    )
    producerIdExpirationMs = ownKey(
        "producer.id.expiration.ms",
        POSITIVE,
        "86400000",
        "How long a partition remembers an idempotent producer that does not write.",
    )
    producerIdExpirationCheckIntervalMs = ownKey(
        "producer.id.expiration.check.interval.ms",
        POSITIVE,
        "600000",
        "How often such producers are looked for.",
    )
    logCleanerBackoffMs = ownKey(
        "log.cleaner.backoff.ms",
        POSITIVE,
        "15000",
        "How often the broker looks for partitions to compact.",
    )
    logCleanerDedupeBufferSize = ownKey(
        "log.cleaner.dedupe.buffer.size",
        SIZE,
        "134217728",
        "Memory for the keys of a compaction in bytes, 24 for a slot, of which three quarters are "
        "used: 4.2 million keys with the default. More keys take several runs.",
    )
    logCleanerIoMaxBytesPerSecond = ownKey(
        "log.cleaner.io.max.bytes.per.second",
        Integer(0, LONG_MAX),
        "67108864",
        "How fast a compaction reads, in bytes a second; 0: no limit.",
    )
    maxUnflushedBytesPerPartition = ownKey(
        "max.unflushed.bytes.per.partition",
        SIZE,
        "67108864",
        "The largest number of unflushed bytes in a partition. Above it, a flush starts at "
        "once, and the producers of the partition wait until half of the bytes are flushed.",
    )
    maxUnflushedBytes = ownKey(
        "max.unflushed.bytes",
        SIZE,
        "268435456",
        "`max.unflushed.bytes.per.partition` for all partitions together.",
    )
    diskFullRetryMs = ownKey(
        "disk.full.retry.ms",
        POSITIVE,
        "1000",
        "The interval in milliseconds at which the broker retries a write that a full disk "
        "refused. Producers wait; no accepted message is lost.",
    )
    # -- groups of Kafka's current protocol
    groupMinSessionTimeoutMs = ownKey(
        "group.min.session.timeout.ms",
        POSITIVE,
        "6000",
        "The shortest session time-out that a group member may ask for. Shorter ones find dead "
        "members sooner, and cost more heartbeats.",
    )
    groupMaxSessionTimeoutMs = ownKey(
        "group.max.session.timeout.ms",
        POSITIVE,
        "1800000",
        "The longest session time-out that a group member may ask for. At least "
        "`group.min.session.timeout.ms`.",
        least=groupMinSessionTimeoutMs,
    )
    groupInitialRebalanceDelayMs = ownKey(
        "group.initial.rebalance.delay.ms",
        NOT_NEGATIVE,
        "3000",
        "How long a new group waits for more members before its first rebalance, in milliseconds, "
        "each time one joins. 0 for tests.",
    )
    groupMaxSize = ownKey(
        "group.max.size",
        POSITIVE,
        "2147483647",
        "The largest number of members of a group; further ones are refused.",
    )
    groupConsumerSessionTimeoutMs = ownKey(
        "group.consumer.session.timeout.ms",
        POSITIVE,
        "45000",
        "How long a member of a group of the new protocol (KIP-848) may be silent before it is "
        "removed.",
    )
    groupConsumerHeartbeatIntervalMs = ownKey(
        "group.consumer.heartbeat.interval.ms",
        POSITIVE,
        "5000",
        "The interval at which members of a group of the new protocol send heartbeats. Members "
        "learn of changes by them.",
    )
    groupConsumerAssignmentIntervalMs = ownKey(
        "group.consumer.assignment.interval.ms",
        NOT_NEGATIVE,
        "1000",
        "The shortest time between two assignments of partitions to the members of a group of the "
        "new protocol.",
    )
    groupConsumerMaxSize = ownKey(
        "group.consumer.max.size",
        POSITIVE,
        "2147483647",
        "The largest number of members of a group of the new protocol; further ones are refused.",
    )
    groupConsumerAssignors = ownKey(
        "group.consumer.assignors",
        Enum(
            {
                "uniform,range": ("uniform", "range"),
                "range,uniform": ("range", "uniform"),
                "uniform": ("uniform",),
                "range": ("range",),
            }
        ),
        "uniform,range",
        "The ways to assign partitions that members of a group of the new protocol may ask for. "
        "The first one is for members that ask for none.",
    )
    groupConsumerRegexRefreshIntervalMs = ownKey(
        "group.consumer.regex.refresh.interval.ms",
        Integer(10_000),
        "600000",
        "The interval after which the patterns of a group of the new protocol are matched with the "
        "topics again, for what its members may describe by now. With new topics it is 10 seconds.",
    )
    groupConsumerMigrationPolicy = ownKey(
        "group.consumer.migration.policy",
        Enum(
            {
                "bidirectional": (True, True),
                "upgrade": (True, False),
                "downgrade": (False, True),
                "disabled": (False, False),
            }
        ),
        "bidirectional",
        "Whether a group with members may go on with the other group protocol: a classic one with "
        "the new protocol when a member of that joins (upgrade), and back when the last such "
        "member goes (downgrade). An empty group always may.",
    )
    offsetsTopicNumPartitions = ownKey(
        "offsets.topic.num.partitions",
        POSITIVE,
        "50",
        "The number of partitions with which the topic of committed offsets is created, when the "
        "first group needs it.",
    )
    offsetsCommitTimeoutMs = ownKey(
        "offsets.commit.timeout.ms",
        POSITIVE,
        "5000",
        "How long committed offsets, and other changes of a group, may take to be on the replicas "
        "in sync, in milliseconds; then the client is told to try again.",
    )
    offsetsRetentionMinutes = ownKey(
        "offsets.retention.minutes",
        POSITIVE,
        "10080",
        "How long, in minutes, committed offsets are kept after their group has lost its last "
        "member; without members, after the commit.",
    )
    offsetsRetentionCheckIntervalMs = ownKey(
        "offsets.retention.check.interval.ms",
        POSITIVE,
        "600000",
        "How often expired offsets are looked for.",
    )
    offsetMetadataMaxBytes = ownKey(
        "offset.metadata.max.bytes",
        NOT_NEGATIVE,
        "4096",
        "The longest text that a client may store with a committed offset.",
    )
    transactionStateLogNumPartitions = ownKey(
        "transaction.state.log.num.partitions",
        POSITIVE,
        "50",
        "The number of partitions with which the topic of transactions is created, when the first "
        "producer needs it.",
    )
    defaultReplicationFactor = ownKey(
        "default.replication.factor",
        POSITIVE,
        "1",
        "How many brokers have each partition of a new topic, where its creator does not say. More "
        "than 1 needs `metadata.store=zookeeper`.",
    )
    offsetsTopicReplicationFactor = ownKey(
        "offsets.topic.replication.factor",
        POSITIVE,
        "3",
        "How many brokers have each partition of the topic of committed offsets. It is not created "
        "before the cluster has as many. Without `metadata.store=zookeeper` it is 1.",
    )
    transactionStateLogMinIsr = ownKey(
        "transaction.state.log.min.isr",
        POSITIVE,
        "2",
        "`min.insync.replicas` of the topic of transactions, when it is created in a cluster; at "
        "most its replication factor.",
    )
    transactionStateLogReplicationFactor = ownKey(
        "transaction.state.log.replication.factor",
        POSITIVE,
        "3",
        "How many brokers have each partition of the topic of transactions. It is not created "
        "before the cluster has as many. Without `metadata.store=zookeeper` it is 1.",
    )
    replicaLagTimeMaxMs = ownKey(
        "replica.lag.time.max.ms",
        POSITIVE,
        "30000",
        "The time in milliseconds after which a follower that has not reached the end of its "
        "leader's log leaves the in-sync set.",
    )
    replicaSelectorClass = ownKey(
        "replica.selector.class",
        Enum({RACK_AWARE_SELECTOR: RACK_AWARE_SELECTOR}),
        None,
        "From which replica a consumer reads that names its rack (`client.rack`): with Kafka's "
        "RackAwareReplicaSelector from one in its rack (`broker.rack`), if there is one in sync. "
        "All brokers should have the same value.",
        derived="none: from the leader",
    )
    replicaFetchMaxBytes = ownKey(
        "replica.fetch.max.bytes",
        POSITIVE,
        "1048576",
        "The bytes of a partition that a follower fetches at once. A larger batch comes whole.",
    )
    replicaFetchResponseMaxBytes = ownKey(
        "replica.fetch.response.max.bytes",
        POSITIVE,
        "10485760",
        "The bytes of all partitions that a follower fetches at once from a leader.",
    )
    replicaFetchMinBytes = ownKey(
        "replica.fetch.min.bytes",
        POSITIVE,
        "1",
        "The bytes for which a leader lets a follower's fetch wait.",
    )
    replicaFetchWaitMaxMs = ownKey(
        "replica.fetch.wait.max.ms",
        POSITIVE,
        "500",
        "How long a leader lets a follower's fetch wait, in milliseconds. It must be below "
        "`replica.lag.time.max.ms`.",
    )
    replicaFetchBackoffMs = ownKey(
        "replica.fetch.backoff.ms",
        POSITIVE,
        "1000",
        "How long a follower waits after an error before it fetches again, in milliseconds.",
    )
    autoLeaderRebalanceEnable = ownKey(
        "auto.leader.rebalance.enable",
        BOOLEAN,
        "true",
        "Whether the controller of a cluster gives partitions back to their preferred leaders, "
        "such as those of a broker that was restarted.",
    )
    leaderImbalanceCheckIntervalSeconds = ownKey(
        "leader.imbalance.check.interval.seconds",
        POSITIVE,
        "300",
        "How often the controller looks for brokers that lead too few of the partitions that "
        "prefer them.",
    )
    leaderImbalancePerBrokerPercentage = ownKey(
        "leader.imbalance.per.broker.percentage",
        NOT_NEGATIVE,
        "10",
        "Which share, in percent, of the partitions that prefer a broker others may lead before "
        "they go back to it.",
    )
    controlledShutdownEnable = ownKey(
        "controlled.shutdown.enable",
        BOOLEAN,
        "true",
        "Whether a broker that stops lets others lead what it leads, before it stops.",
    )
    controlledShutdownMaxRetries = ownKey(
        "controlled.shutdown.max.retries",
        NOT_NEGATIVE,
        "3",
        "How often that is tried again before the broker stops all the same.",
    )
    controlledShutdownRetryBackoffMs = ownKey(
        "controlled.shutdown.retry.backoff.ms",
        POSITIVE,
        "5000",
        "How long each attempt may take, and the pause before the next one, in milliseconds.",
    )
    transactionMaxTimeoutMs = ownKey(
        "transaction.max.timeout.ms",
        POSITIVE,
        "900000",
        "The longest transaction time-out that a producer may ask for. Readers of committed "
        "records wait that long for a producer that is gone.",
    )
    transactionalIdExpirationMs = ownKey(
        "transactional.id.expiration.ms",
        POSITIVE,
        "604800000",
        "How long a transactional id is kept that has no transaction.",
    )
    transactionAbortTimedOutTransactionCleanupIntervalMs = ownKey(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        POSITIVE,
        "10000",
        "How often transactions that have timed out are looked for.",
    )
    transactionRemoveExpiredTransactionCleanupIntervalMs = ownKey(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        POSITIVE,
        "3600000",
        "How often expired transactional ids are looked for.",
    )
    # -- reading
    coldReadThreads = ownKey(
        "cold.read.threads",
        Integer(1, 256),
        "4",
        "Threads that read old data from disk, so that other clients do not wait for it.",
    )
    warmBytes = ownKey(
        "warm.bytes",
        Integer(0, LONG_MAX),
        "16777216",
        "The bytes before a partition's end that the broker takes as cached in memory and "
        "sends without a check.",
    )
    maxOpenSegments = ownKey(
        "max.open.segments",
        POSITIVE,
        "512",
        "The largest number of segment files that stay open for readers; the least recently"
        " read one is closed first.",
    )
    maxIncrementalFetchSessionCacheSlots = ownKey(
        "max.incremental.fetch.session.cache.slots",
        NOT_NEGATIVE,
        "1000",
        "The largest number of fetch sessions, in which a client of Kafka's current protocol "
        "names all of its partitions once, and then only what changes. Further clients name them "
        "in each request. 0: no sessions.",
    )
    # -- retention
    logRetentionHours = ConfigKey(
        "log.retention.hours",
        POSITIVE,
        "168",
        "The time in hours after its last message after which a segment file is deleted. "
        "`log.retention.ms` and `log.retention.minutes` go before it for topics of Kafka's "
        "current protocol.",
    )
    topicLogRetentionHours = ConfigKey(
        "topic.log.retention.hours",
        TOPIC_MAP,
        "",
        "`log.retention.hours` for some topics: `topic1:24`.",
    )
    logRetentionSize = ConfigKey(
        "log.retention.size",
        Integer(-LONG_MAX - 1, LONG_MAX),
        "-1",
        "The size in bytes above which a partition's oldest segment files are deleted; "
        "deletion never takes it below. Negative: no limit.",
    )
    topicLogRetentionSize = ConfigKey(
        "topic.log.retention.size",
        TopicMap(LONG_MAX),
        "",
        "`log.retention.size` for some topics: `topic1:1073741824`. (0.7.2 fails with this key.)",
    )
    logCleanupIntervalMins = ConfigKey(
        "log.cleanup.interval.mins",
        POSITIVE,
        "10",
        "The interval in minutes at which the broker checks for segment files to delete; "
        "the first check is one minute after the start.",
    )
    # -- defaults of the topics of Kafka's current protocol
    logCleanupPolicy = topicDefault("cleanup.policy")
    compressionGzipLevel = topicDefault("compression.gzip.level")
    compressionLz4Level = topicDefault("compression.lz4.level")
    compressionType = topicDefault("compression.type")
    compressionZstdLevel = topicDefault("compression.zstd.level")
    logCleanerDeleteRetentionMs = topicDefault("delete.retention.ms")
    logSegmentDeleteDelayMs = topicDefault("file.delete.delay.ms")
    logFlushIntervalMessages = topicDefault("flush.messages")
    logFlushIntervalMs = topicDefault("flush.ms")
    logIndexIntervalBytes = topicDefault("index.interval.bytes")
    logCleanerMaxCompactionLagMs = topicDefault("max.compaction.lag.ms")
    messageMaxBytes = topicDefault("max.message.bytes")
    logMessageTimestampAfterMaxMs = topicDefault("message.timestamp.after.max.ms")
    logMessageTimestampBeforeMaxMs = topicDefault("message.timestamp.before.max.ms")
    logMessageTimestampType = topicDefault("message.timestamp.type")
    logCleanerMinCleanableRatio = topicDefault("min.cleanable.dirty.ratio")
    logCleanerMinCompactionLagMs = topicDefault("min.compaction.lag.ms")
    minInsyncReplicas = topicDefault("min.insync.replicas")
    logPreallocate = topicDefault("preallocate")
    logRetentionBytes = topicDefault("retention.bytes")
    logRetentionMs = topicDefault("retention.ms")
    logSegmentBytes = topicDefault("segment.bytes")
    logIndexSizeMaxBytes = topicDefault("segment.index.bytes")
    logRollJitterMs = topicDefault("segment.jitter.ms")
    logRollMs = topicDefault("segment.ms")
    uncleanLeaderElectionEnable = topicDefault("unclean.leader.election.enable")
    logRetentionMinutes = ownKey(
        "log.retention.minutes",
        Integer(-1),
        None,
        "`log.retention.ms` in minutes, if that is absent; -1: no limit.",
        derived="`log.retention.hours`",
    )
    logRollJitterHours = ownKey(
        "log.roll.jitter.hours",
        NOT_NEGATIVE,
        "0",
        "`log.roll.jitter.ms` in hours, if that is absent.",
    )
    deleteTopicEnable = ownKey(
        "delete.topic.enable",
        BOOLEAN,
        "true",
        "Whether clients of Kafka's current protocol may delete topics.",
    )
    # -- looking in
    maxTopicCounters = ownKey(
        "max.topic.counters",
        NOT_NEGATIVE,
        "1000",
        "The largest number of topics with counters of their own; later topics share one set.",
    )
    httpListener = ownKey(
        "http.listener",
        TEXT,
        "",
        "The listener for Prometheus metrics and the console: a Twisted endpoint string, or"
        " a port such as `8067`. Without `interface=` it listens on 127.0.0.1, because it "
        "asks for no password. Empty: none.",
    )
    httpHosts = ownKey(
        "http.hosts",
        BAR_SEPARATED_LIST,
        "",
        "Host names by which browsers may reach `http.listener`, with `|` between them, "
        "beside `localhost` and every IP address. Other Host headers are refused, because "
        "they may come from a foreign page.",
    )
    httpConsole = ownKey(
        "http.console",
        BOOLEAN,
        "true",
        "Serve the console on `http.listener`, and not only metrics.",
    )
    httpMessages = ownKey(
        "http.messages",
        BOOLEAN,
        None,
        "Let every user of the console read the messages of all topics; `allow.file` and access "
        "control lists do not apply there.",
        derived="`true`, or `false` with `allow.file` or `authorizer.class.name`",
    )
    httpTaskConfigTopic = ownKey(
        "http.task.config.topic",
        NOT_EMPTY,
        CONFIG_TOPIC,
        "The topic from which the console reads the configurations of jobs: `config.topic` of the "
        "containers of tasks.",
    )
    httpTaskMetricsTopic = ownKey(
        "http.task.metrics.topic",
        NOT_EMPTY,
        METRICS_TOPIC,
        "The topic from which the console reads the metrics of containers of tasks: their "
        "`metrics.topic`.",
    )
    brokerEndpoint = ownKey(
        "broker.endpoint",
        EndpointTemplate(),
        "",
        "The way from the console to the other brokers of the cluster, as a Twisted client "
        "endpoint string: "
        "`tls:{host}:{port}:trustRoots=ca.d:certificate=cert.pem:privateKey=key.pem`. "
        "Empty: plain TCP.",
    )
    logRequests = ownKey(
        "log.requests",
        BOOLEAN,
        "false",
        "Log every request, as 0.7's logger `kafka.request.logger` does at TRACE. For "
        "debugging a client; logging costs more than the requests.",
    )
    metricsLogIntervalMs = ownKey(
        "metrics.log.interval.ms",
        NOT_NEGATIVE,
        "0",
        "The interval in milliseconds at which the broker logs its metrics, as an event "
        "with fields; 0: never.",
    )
    # -- without effect
    numThreads = ignoredKey(
        "num.threads",
        POSITIVE,
        None,
        "0.7's network threads. Here one thread does the work; see `flush.threads` and "
        "`cold.read.threads`.",
    )
    monitoringPeriodSecs = ignoredKey(
        "monitoring.period.secs",
        POSITIVE,
        "600",
        "The window of 0.7's statistics. Counters here are running totals.",
    )
    zkSyncTimeMs = ignoredKey(
        "zk.synctime.ms",
        ANY_INTEGER,
        "2000",
        "The largest lag of a ZooKeeper follower. 0.7.2's broker ignores it, too.",
    )

    @classmethod
    def complete(cls, values: dict[str, Any], properties: Mapping[str, str], warn: Warn) -> None:
        values["zkConnect"] = values["zkConnect"].strip()
        if values["enableZookeeper"] and not values["zkConnect"]:
            raise ConfigurationError(
                "zk.connect is missing: enable.zookeeper=true"
                + ("" if "enable.zookeeper" in properties else " (the default, as in Kafka 0.7)")
                + " needs ZooKeeper's servers, such as zk.connect=localhost:2181; or set "
                "enable.zookeeper=false"
            )
        if values["metadataStore"] == ZOOKEEPER and not values["enableZookeeper"]:
            raise ConfigurationError(
                "metadata.store=zookeeper needs enable.zookeeper=true, and zk.connect"
            )
        if not values["listeners"]:
            values["listeners"] = (listener(values["port"], values["listenInterface"]),)
        interBrokerListener(cls(values), readListeners(cls(values), warn))
        if values["httpMessages"] is None:
            values["httpMessages"] = not (values["allowFile"] or values["authorizerClassName"])
        if values["allowFile"]:
            readAllowList(values["allowFile"])


def kafkaValues(settings: BrokerSettings, keys: Iterable[str]) -> dict[str, str]:
    """
    What the broker's file says, as Kafka's texts by its keys; without what has its default.

    @param keys: wanted ones, with others.
    """
    wanted = frozenset(keys)
    found = {}
    for key in settings.keys:
        if key.key in wanted:
            value = getattr(settings, key.name)
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if value is not None and text != key.default:
                found[key.key] = text
    return found


def listener(port: int, interface: str) -> str:
    """
    The endpoint string for a port; all IPv4 addresses without an interface, as 0.7 does by default.
    """
    if not interface:
        return f"tcp:{port}"
    quoted = interface.replace("\\", "\\\\").replace(":", "\\:")
    return f"{'tcp6' if ':' in interface else 'tcp'}:{port}:interface={quoted}"


def samplePath(package: Path = Path(__file__).parent) -> Path:
    """
    The path of the sample file. The source tree has it in C{etc/}; C{setup.py} copies it beside
    this module.

    @param package: the folder of C{pylogbroker.config}.
    @raise FileNotFoundError: the installation is not complete.
    """
    for path in (package / SAMPLE_NAME, package.parent.parent / "etc" / SAMPLE_NAME):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"{SAMPLE_NAME} is neither in {package} nor in the source tree: install pylogbroker again"
    )


def sampleText() -> str:
    """The text of the sample file."""
    return samplePath().read_text(encoding="utf-8")
