"""
The requests of today's protocol: keys, names, and the versions that Apache Kafka 4.3.1 serves.

Which of them a broker has finished, and so advertises and decodes, is the broker's to say.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from pylogbroker.protocol.kafka import messages

NEVER = 0x7FFF


class ApiKey(IntEnum):
    """
    A kind of request, by its number on the wire.

    @ivar apiName: Kafka's name for it.
    @ivar firstVersion: the lowest version that is served.
    @ivar lastVersion: the highest.
    @ivar flexibleVersion: the first with compact fields, tags, and the headers that have tags.
    """

    apiName: str
    firstVersion: int
    lastVersion: int
    flexibleVersion: int

    def __new__(
        cls, key: int, apiName: str, firstVersion: int, lastVersion: int, flexibleVersion: int
    ) -> ApiKey:
        made = int.__new__(cls, key)
        made._value_ = key
        made.apiName = apiName
        made.firstVersion = firstVersion
        made.lastVersion = lastVersion
        made.flexibleVersion = flexibleVersion
        return made

    __hash__ = int.__hash__  # Enum's is a function in Python, called for every request

    PRODUCE = 0, "Produce", 3, 13, 9
    FETCH = 1, "Fetch", 4, 18, 12
    LIST_OFFSETS = 2, "ListOffsets", 1, 11, 6
    METADATA = 3, "Metadata", 0, 13, 9
    OFFSET_COMMIT = 8, "OffsetCommit", 2, 10, 8
    OFFSET_FETCH = 9, "OffsetFetch", 1, 10, 6
    FIND_COORDINATOR = 10, "FindCoordinator", 0, 6, 3
    JOIN_GROUP = 11, "JoinGroup", 0, 9, 6
    HEARTBEAT = 12, "Heartbeat", 0, 4, 4
    LEAVE_GROUP = 13, "LeaveGroup", 0, 5, 4
    SYNC_GROUP = 14, "SyncGroup", 0, 5, 4
    DESCRIBE_GROUPS = 15, "DescribeGroups", 0, 6, 5
    LIST_GROUPS = 16, "ListGroups", 0, 5, 3
    SASL_HANDSHAKE = 17, "SaslHandshake", 0, 1, NEVER
    API_VERSIONS = 18, "ApiVersions", 0, 4, 3
    CREATE_TOPICS = 19, "CreateTopics", 2, 7, 5
    DELETE_TOPICS = 20, "DeleteTopics", 1, 6, 4
    DELETE_RECORDS = 21, "DeleteRecords", 0, 2, 2
    INIT_PRODUCER_ID = 22, "InitProducerId", 0, 5, 2
    OFFSET_FOR_LEADER_EPOCH = 23, "OffsetForLeaderEpoch", 2, 4, 4
    ADD_PARTITIONS_TO_TXN = 24, "AddPartitionsToTxn", 0, 5, 3
    ADD_OFFSETS_TO_TXN = 25, "AddOffsetsToTxn", 0, 4, 3
    END_TXN = 26, "EndTxn", 0, 5, 3
    WRITE_TXN_MARKERS = 27, "WriteTxnMarkers", 1, 2, 1
    TXN_OFFSET_COMMIT = 28, "TxnOffsetCommit", 0, 5, 3
    DESCRIBE_ACLS = 29, "DescribeAcls", 1, 3, 2
    CREATE_ACLS = 30, "CreateAcls", 1, 3, 2
    DELETE_ACLS = 31, "DeleteAcls", 1, 3, 2
    DESCRIBE_CONFIGS = 32, "DescribeConfigs", 1, 4, 4
    ALTER_CONFIGS = 33, "AlterConfigs", 0, 2, 2
    DESCRIBE_LOG_DIRS = 35, "DescribeLogDirs", 1, 5, 2
    SASL_AUTHENTICATE = 36, "SaslAuthenticate", 0, 2, 2
    CREATE_PARTITIONS = 37, "CreatePartitions", 0, 3, 2
    DELETE_GROUPS = 42, "DeleteGroups", 0, 2, 2
    ELECT_LEADERS = 43, "ElectLeaders", 0, 2, 2
    INCREMENTAL_ALTER_CONFIGS = 44, "IncrementalAlterConfigs", 0, 1, 1
    ALTER_PARTITION_REASSIGNMENTS = 45, "AlterPartitionReassignments", 0, 1, 0
    LIST_PARTITION_REASSIGNMENTS = 46, "ListPartitionReassignments", 0, 0, 0
    OFFSET_DELETE = 47, "OffsetDelete", 0, 0, NEVER
    DESCRIBE_CLIENT_QUOTAS = 48, "DescribeClientQuotas", 0, 1, 1
    ALTER_CLIENT_QUOTAS = 49, "AlterClientQuotas", 0, 1, 1
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, "DescribeUserScramCredentials", 0, 0, 0
    ALTER_USER_SCRAM_CREDENTIALS = 51, "AlterUserScramCredentials", 0, 0, 0
    DESCRIBE_CLUSTER = 60, "DescribeCluster", 0, 2, 0
    DESCRIBE_PRODUCERS = 61, "DescribeProducers", 0, 0, 0
    UNREGISTER_BROKER = 64, "UnregisterBroker", 0, 0, 0
    DESCRIBE_TRANSACTIONS = 65, "DescribeTransactions", 0, 0, 0
    LIST_TRANSACTIONS = 66, "ListTransactions", 0, 2, 0
    CONSUMER_GROUP_HEARTBEAT = 68, "ConsumerGroupHeartbeat", 0, 1, 0
    CONSUMER_GROUP_DESCRIBE = 69, "ConsumerGroupDescribe", 0, 1, 0
    LIST_CONFIG_RESOURCES = 74, "ListConfigResources", 0, 1, 0
    DESCRIBE_TOPIC_PARTITIONS = 75, "DescribeTopicPartitions", 0, 0, 0

    @property
    def advertisedVersion(self) -> int:
        """
        The lowest version in an ApiVersions response: 0 for Produce, as clients derived from
        librdkafka expect it, although 0 to 2 are refused.
        """
        return 0 if self is ApiKey.PRODUCE else self.firstVersion

    @property
    def requestClass(self) -> Any:
        """The class of the request in C{messages}."""
        return messages.MESSAGES[f"{self.apiName}Request"]

    @property
    def responseClass(self) -> Any:
        """The class of the response in C{messages}."""
        return messages.MESSAGES[f"{self.apiName}Response"]

    def isServed(self, version: int) -> bool:
        """Whether there is such a version."""
        return self.firstVersion <= version <= self.lastVersion
