"""
The records of C{__consumer_offsets} and C{__transaction_state}, as Apache Kafka 4.3 writes them.

Key and value begin with an int16: the key with the number of its type, the value with its version.
A record with a key and no value (a I{tombstone}) deletes what the key names.

  ====== ====================== ==========================================================
  type   key                    value
  ====== ====================== ==========================================================
  0, 1   OffsetCommitKey        OffsetCommitValue
  2      GroupMetadataKey       GroupMetadataValue
  3      ConsumerGroupKey       ConsumerGroupMetadataValue
  4      ConsumerGroupKey       of versions before 4.1: only tombstones are written
  5      ConsumerGroupMemberKey ConsumerGroupMemberMetadataValue
  6      ConsumerGroupKey       ConsumerGroupTargetAssignmentMetadataValue
  7      ConsumerGroupMemberKey ConsumerGroupTargetAssignmentMemberValue
  8      ConsumerGroupMemberKey ConsumerGroupCurrentMemberAssignmentValue
  16     ConsumerGroupMemberKey ConsumerGroupRegularExpressionValue
  ====== ====================== ==========================================================

A C{ConsumerGroupKey} of type 2 deletes a classic group, as C{GroupMetadataKey} does. In
C{__transaction_state}, type 0 is a C{TransactionLogKey} with a C{TransactionLogValue}.
"""

from __future__ import annotations

from struct import Struct

from pylogbroker.errors import FormatError, WireError
from pylogbroker.protocol.kafka.schemas import ApiMessage, MessageTable

RECORDS = MessageTable("""
OffsetCommitKey 0-1 none
group 0+ string
topic 0+ string
partition 0+ int32

OffsetCommitValue 0-4 4+
offset 0+ int64
leaderEpoch 3+ int32 =-1 ~
metadata 0+ string
commitTimestamp 0+ int64
expireTimestamp 1-1 int64 =-1 ~
topicId 4+ uuid #0 ~

GroupMetadataKey 2 none
group 2+ string

GroupMetadataValue 0-4 4+
protocolType 0+ string
generation 0+ int32
protocol 0+ string?
leader 0+ string?
currentStateTimestamp 2+ int64 =-1 ~
members 0+ []MemberMetadata
 memberId 0+ string
 groupInstanceId 3+ string? =null ~
 clientId 0+ string
 clientHost 0+ string
 rebalanceTimeout 1+ int32 =-1 ~
 sessionTimeout 0+ int32
 subscription 0+ bytes
 assignment 0+ bytes

ConsumerGroupKey 2-6 none
groupId 2+ string

ConsumerGroupMemberKey 5-16 none
groupId 5+ string
name 5+ string

ConsumerGroupMetadataValue 0 0+
epoch 0+ int32
metadataHash 0+ int64 #0

ConsumerGroupMemberMetadataValue 0 0+
instanceId 0+ string?
rackId 0+ string?
clientId 0+ string
clientHost 0+ string
subscribedTopicNames 0+ []string
subscribedTopicRegex 0+ string
rebalanceTimeoutMs 0+ int32 =-1
serverAssignor 0+ string?
classicMemberMetadata 0+ ClassicMemberMetadata? #0
 sessionTimeoutMs 0+ int32
 supportedProtocols 0+ []ClassicProtocol
  name 0+ string
  metadata 0+ bytes

ConsumerGroupTargetAssignmentMetadataValue 0 0+
assignmentEpoch 0+ int32
assignmentTimestamp 0+ int64 #0

ConsumerGroupTargetAssignmentMemberValue 0 0+
topicPartitions 0+ []TopicPartition
 topicId 0+ uuid
 partitions 0+ []int32

ConsumerGroupCurrentMemberAssignmentValue 0 0+
memberEpoch 0+ int32
previousMemberEpoch 0+ int32
state 0+ int8
assignedPartitions 0+ []TopicPartitions
 topicId 0+ uuid
 partitions 0+ []int32
 assignmentEpochs 0+ []int32? =null #0
partitionsPendingRevocation 0+ []TopicPartitions

ConsumerGroupRegularExpressionValue 0 0+
topics 0+ []string
version 0+ int64
timestamp 0+ int64

TransactionLogKey 0 none
transactionalId 0+ string

TransactionLogValue 0-1 1+
producerId 0+ int64
previousProducerId 1+ int64 =-1 #0 ~
nextProducerId 1+ int64 =-1 #1 ~
producerEpoch 0+ int16
nextProducerEpoch 1+ int16 =-1 #3 ~
transactionTimeoutMs 0+ int32
transactionStatus 0+ int8
transactionPartitions 0+ []PartitionsSchema?
 topic 0+ string
 partitionIds 0+ []int32
transactionLastUpdateTimestampMs 0+ int64
transactionStartTimestampMs 0+ int64
clientTransactionVersion 1+ int16 #2 ~
""")

_INT16 = Struct(">h")


def encodeRecord(message: ApiMessage, version: int) -> bytes:
    """
    A key or a value.

    @param version: of a value; of a key, the number of its type.
    @raise FormatError: a string has more than 32,767 bytes, or a number does not fit.
    """
    try:
        return _INT16.pack(version) + message.encode(version)
    except WireError as error:
        raise FormatError(str(error)) from error


def recordVersion(data: bytes) -> int:
    """
    The version of a value; of a key, the number of its type.

    @raise FormatError: there are fewer than two bytes.
    """
    if len(data) < _INT16.size:
        raise FormatError(f"a version in {len(data)} bytes")
    (version,) = _INT16.unpack_from(data)
    return int(version)


def decodeRecord(name: str, data: bytes) -> ApiMessage:
    """
    @param name: of a class in L{RECORDS}.
    @param data: a whole key or value.
    @raise FormatError: the bytes are no such key or value, have another version, or do not end
        with it.
    """
    version = recordVersion(data)
    try:
        # Every element takes a byte at least, and the bytes are in memory already.
        found, end = RECORDS[name].decode(data, version, _INT16.size, len(data))
    except WireError as error:
        raise FormatError(str(error)) from error
    if end != len(data):
        raise FormatError(f"{len(data) - end} bytes after the last field", end)
    return found
