"""
The records of C{__cluster_metadata}, as Apache Kafka 4.3.1 writes them; a module of its own, since
no client sends or receives them.

A record's value is a frame: its version, the kind of the record, the version of the record, each as
an unsigned varint, then the record. L{SKIPPED} lists the kinds that say nothing to a single broker
that is to go on with the data: registrations, fencing, what a controller notes for itself.
"""

from __future__ import annotations

from pylogbroker.errors import UnsupportedVersionError, WireError
from pylogbroker.protocol.kafka.schemas import ApiMessage, MessageTable, readUnsignedVarint

_FRAME_VERSION = 1

RECORDS = MessageTable("""
TopicRecord 0 0+
name 0+ string
topicId 0+ uuid

PartitionRecord 0-2 0+
partitionId 0+ int32 =-1
topicId 0+ uuid
replicas 0+ []int32
isr 0+ []int32
removingReplicas 0+ []int32
addingReplicas 0+ []int32
leader 0+ int32 =-1
leaderRecoveryState 0+ int8 #0
leaderEpoch 0+ int32 =-1
partitionEpoch 0+ int32 =-1
directories 1+ []uuid
eligibleLeaderReplicas 2+ []int32? =null #1
lastKnownElr 2+ []int32? =null #2

PartitionChangeRecord 0-2 0+
partitionId 0+ int32 =-1
topicId 0+ uuid
isr 0+ []int32? =null #0
leader 0+ int32 =-2 #1
replicas 0+ []int32? =null #2
removingReplicas 0+ []int32? =null #3
addingReplicas 0+ []int32? =null #4
leaderRecoveryState 0+ int8 =-1 #5
directories 1+ []uuid? =null #8
eligibleLeaderReplicas 2+ []int32? =null #6
lastKnownElr 2+ []int32? =null #7

RemoveTopicRecord 0 0+
topicId 0+ uuid

ConfigRecord 0 0+
resourceType 0+ int8
resourceName 0+ string
name 0+ string
value 0+ string?

ProducerIdsRecord 0 0+
brokerId 0+ int32
brokerEpoch 0+ int64 =-1
nextProducerId 0+ int64

FeatureLevelRecord 0 0+
name 0+ string
featureLevel 0+ int16

UserScramCredentialRecord 0 0+
name 0+ string
mechanism 0+ int8
salt 0+ bytes
storedKey 0+ bytes
serverKey 0+ bytes
iterations 0+ int32

RemoveUserScramCredentialRecord 0 0+
name 0+ string
mechanism 0+ int8

AccessControlEntryRecord 0 0+
id 0+ uuid
resourceType 0+ int8
resourceName 0+ string
patternType 0+ int8
principal 0+ string
host 0+ string
operation 0+ int8
permissionType 0+ int8

RemoveAccessControlEntryRecord 0 0+
id 0+ uuid

ClientQuotaRecord 0 0+
entity 0+ []EntityData
 entityType 0+ string
 entityName 0+ string?
key 0+ string
value 0+ float64
remove 0+ bool

DelegationTokenRecord 0 0+
owner 0+ string
requester 0+ string
renewers 0+ []string
issueTimestamp 0+ int64
maxTimestamp 0+ int64
expirationTimestamp 0+ int64
tokenId 0+ string

BeginTransactionRecord 0 0+
name 0+ string? =null #0

EndTransactionRecord 0 0+

AbortTransactionRecord 0 0+
reason 0+ string? =null #0
""")

KINDS = {
    2: "TopicRecord",
    3: "PartitionRecord",
    4: "ConfigRecord",
    5: "PartitionChangeRecord",
    9: "RemoveTopicRecord",
    10: "DelegationTokenRecord",
    11: "UserScramCredentialRecord",
    12: "FeatureLevelRecord",
    14: "ClientQuotaRecord",
    15: "ProducerIdsRecord",
    18: "AccessControlEntryRecord",
    19: "RemoveAccessControlEntryRecord",
    22: "RemoveUserScramCredentialRecord",
    23: "BeginTransactionRecord",
    24: "EndTransactionRecord",
    25: "AbortTransactionRecord",
}
"""The records by their numbers."""

SKIPPED = frozenset(
    (
        0,  # RegisterBroker
        1,  # UnregisterBroker
        7,  # FenceBroker
        8,  # UnfenceBroker
        17,  # BrokerRegistrationChange
        20,  # NoOp
        21,  # ZkMigrationState
        26,  # RemoveDelegationToken
        27,  # RegisterController
        28,  # ClearElr
    )
)


def decodeMetadataRecord(value: bytes | memoryview) -> ApiMessage | None:
    """
    Decode the value of a record.

    @return: an object of L{RECORDS}; L{None}: of a kind that is L{SKIPPED}.
    @raise WireError: it is no record of this log, or of a kind that is not known.
    @raise UnsupportedVersionError: of a version that is not known.
    """
    frame, position = readUnsignedVarint(value, 0, "the frame's version")
    if frame != _FRAME_VERSION:
        raise UnsupportedVersionError(f"a metadata record in a frame of version {frame}")
    kind, position = readUnsignedVarint(value, position, "the record's kind")
    version, position = readUnsignedVarint(value, position, "the record's version")
    if kind in SKIPPED:
        return None
    name = KINDS.get(kind)
    if name is None:
        raise WireError(f"a metadata record of the unknown kind {kind}")
    found, position = RECORDS[name].decode(value, version, position)
    if position != len(value):
        raise WireError(f"{name}: {len(value) - position} bytes are behind it")
    return found
