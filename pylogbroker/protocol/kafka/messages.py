"""
The messages of Apache Kafka 4.3.1 that a broker receives and sends, at the versions that it
serves (of InitProducerId without version 6, which it does not serve unless told to):
L{schemas<pylogbroker.protocol.kafka.schemas>} explains the table. Each name in it is a
class of this module: C{messages.FetchRequest}.

To add a message, add its table; C{apikeys} then needs its key.
"""

from __future__ import annotations

from typing import Any

from pylogbroker.protocol.kafka.schemas import MessageTable


def __getattr__(name: str) -> Any:
    try:
        made = globals()[name] = MESSAGES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return made


MESSAGES = MessageTable("""
ProduceRequest 3-13 9+
transactionalId 3+ string? =null
acks 0+ int16
timeoutMs 0+ int32
topicData 0+ []TopicProduceData
 name 0-12 string ~
 topicId 13+ uuid ~
 partitionData 0+ []PartitionProduceData
  index 0+ int32
  records 0+ records?

ProduceResponse 3-13 9+
responses 0+ []TopicProduceResponse
 name 0-12 string ~
 topicId 13+ uuid ~
 partitionResponses 0+ []PartitionProduceResponse
  index 0+ int32
  errorCode 0+ int16
  baseOffset 0+ int64
  logAppendTimeMs 2+ int64 =-1 ~
  logStartOffset 5+ int64 =-1 ~
  recordErrors 8+ []BatchIndexAndErrorMessage ~
   batchIndex 8+ int32
   batchIndexErrorMessage 8+ string? =null
  errorMessage 8+ string? =null ~
  currentLeader 10+ LeaderIdAndEpoch #0
   leaderId 10+ int32 =-1
   leaderEpoch 10+ int32 =-1
throttleTimeMs 1+ int32 ~
nodeEndpoints 10+ []NodeEndpoint #0
 nodeId 10+ int32
 host 10+ string
 port 10+ int32
 rack 10+ string? =null

FetchRequest 4-18 12+
clusterId 12+ string? =null #0 ~
replicaId 0-14 int32 =-1
replicaState 15+ ReplicaState #1
 replicaId 15+ int32 =-1
 replicaEpoch 15+ int64 =-1
maxWaitMs 0+ int32
minBytes 0+ int32
maxBytes 3+ int32 =2147483647 ~
isolationLevel 4+ int8 ~
sessionId 7+ int32 ~
sessionEpoch 7+ int32 =-1 ~
topics 0+ []FetchTopic
 topic 0-12 string ~
 topicId 13+ uuid ~
 partitions 0+ []FetchPartition
  partition 0+ int32
  currentLeaderEpoch 9+ int32 =-1 ~
  fetchOffset 0+ int64
  lastFetchedEpoch 12+ int32 =-1
  logStartOffset 5+ int64 =-1 ~
  partitionMaxBytes 0+ int32
  replicaDirectoryId 17+ uuid #0 ~
  highWatermark 18+ int64 =9223372036854775807 #1 ~
forgottenTopicsData 7+ []ForgottenTopic
 topic 7-12 string ~
 topicId 13+ uuid ~
 partitions 7+ []int32
rackId 11+ string ~

FetchResponse 4-18 12+
throttleTimeMs 1+ int32 ~
errorCode 7+ int16 ~
sessionId 7+ int32
responses 0+ []FetchableTopicResponse
 topic 0-12 string ~
 topicId 13+ uuid ~
 partitions 0+ []PartitionData
  partitionIndex 0+ int32
  errorCode 0+ int16
  highWatermark 0+ int64
  lastStableOffset 4+ int64 =-1 ~
  logStartOffset 5+ int64 =-1 ~
  divergingEpoch 12+ EpochEndOffset #0
   epoch 12+ int32 =-1
   endOffset 12+ int64 =-1
  currentLeader 12+ LeaderIdAndEpoch #1
   leaderId 12+ int32 =-1
   leaderEpoch 12+ int32 =-1
  snapshotId 12+ SnapshotId #2
   endOffset 0+ int64 =-1
   epoch 0+ int32 =-1
  abortedTransactions 4+ []AbortedTransaction? ~
   producerId 4+ int64
   firstOffset 4+ int64
  preferredReadReplica 11+ int32 =-1
  records 0+ records?
nodeEndpoints 16+ []NodeEndpoint #0
 nodeId 16+ int32
 host 16+ string
 port 16+ int32
 rack 16+ string? =null

ListOffsetsRequest 1-11 6+
replicaId 0+ int32
isolationLevel 2+ int8
topics 0+ []ListOffsetsTopic
 name 0+ string
 partitions 0+ []ListOffsetsPartition
  partitionIndex 0+ int32
  currentLeaderEpoch 4+ int32 =-1 ~
  timestamp 0+ int64
timeoutMs 10+ int32 ~

ListOffsetsResponse 1-11 6+
throttleTimeMs 2+ int32 ~
topics 0+ []ListOffsetsTopicResponse
 name 0+ string
 partitions 0+ []ListOffsetsPartitionResponse
  partitionIndex 0+ int32
  errorCode 0+ int16
  timestamp 1+ int64 =-1
  offset 1+ int64 =-1
  leaderEpoch 4+ int32 =-1

MetadataRequest 0-13 9+
topics 0+ []MetadataRequestTopic?1+
 topicId 10+ uuid ~
 name 0+ string?10+
allowAutoTopicCreation 4+ bool =true
includeClusterAuthorizedOperations 8-10 bool
includeTopicAuthorizedOperations 8+ bool

MetadataResponse 0-13 9+
throttleTimeMs 3+ int32 ~
brokers 0+ []MetadataResponseBroker
 nodeId 0+ int32
 host 0+ string
 port 0+ int32
 rack 1+ string? =null ~
clusterId 2+ string? =null ~
controllerId 1+ int32 =-1 ~
topics 0+ []MetadataResponseTopic
 errorCode 0+ int16
 name 0+ string?12+
 topicId 10+ uuid ~
 isInternal 1+ bool ~
 partitions 0+ []MetadataResponsePartition
  errorCode 0+ int16
  partitionIndex 0+ int32
  leaderId 0+ int32
  leaderEpoch 7+ int32 =-1 ~
  replicaNodes 0+ []int32
  isrNodes 0+ []int32
  offlineReplicas 5+ []int32 ~
 topicAuthorizedOperations 8+ int32 =-2147483648
clusterAuthorizedOperations 8-10 int32 =-2147483648
errorCode 13+ int16 ~

OffsetForLeaderEpochRequest 2-4 4+
replicaId 3+ int32 =-2 ~
topics 0+ []OffsetForLeaderTopic
 topic 0+ string
 partitions 0+ []OffsetForLeaderPartition
  partition 0+ int32
  currentLeaderEpoch 2+ int32 =-1 ~
  leaderEpoch 0+ int32

OffsetForLeaderEpochResponse 2-4 4+
throttleTimeMs 2+ int32 ~
topics 0+ []OffsetForLeaderTopicResult
 topic 0+ string
 partitions 0+ []EpochEndOffset
  errorCode 0+ int16
  partition 0+ int32
  leaderEpoch 1+ int32 =-1 ~
  endOffset 0+ int64 =-1

DeleteRecordsRequest 0-2 2+
topics 0+ []DeleteRecordsTopic
 name 0+ string
 partitions 0+ []DeleteRecordsPartition
  partitionIndex 0+ int32
  offset 0+ int64
timeoutMs 0+ int32

DeleteRecordsResponse 0-2 2+
throttleTimeMs 0+ int32
topics 0+ []DeleteRecordsTopicResult
 name 0+ string
 partitions 0+ []DeleteRecordsPartitionResult
  partitionIndex 0+ int32
  lowWatermark 0+ int64
  errorCode 0+ int16

DescribeProducersRequest 0 0+
topics 0+ []TopicRequest
 name 0+ string
 partitionIndexes 0+ []int32

DescribeProducersResponse 0 0+
throttleTimeMs 0+ int32
topics 0+ []TopicResponse
 name 0+ string
 partitions 0+ []PartitionResponse
  partitionIndex 0+ int32
  errorCode 0+ int16
  errorMessage 0+ string? =null
  activeProducers 0+ []ProducerState
   producerId 0+ int64
   producerEpoch 0+ int32
   lastSequence 0+ int32 =-1
   lastTimestamp 0+ int64 =-1
   coordinatorEpoch 0+ int32
   currentTxnStartOffset 0+ int64 =-1

DescribeLogDirsRequest 1-5 2+
topics 0+ []DescribableLogDirTopic?
 topic 0+ string
 partitions 0+ []int32

DescribeLogDirsResponse 1-5 2+
throttleTimeMs 0+ int32
errorCode 3+ int16 ~
results 0+ []DescribeLogDirsResult
 errorCode 0+ int16
 logDir 0+ string
 topics 0+ []DescribeLogDirsTopic
  name 0+ string
  partitions 0+ []DescribeLogDirsPartition
   partitionIndex 0+ int32
   partitionSize 0+ int64
   offsetLag 0+ int64
   isFutureKey 0+ bool
 totalBytes 4+ int64 =-1 ~
 usableBytes 4+ int64 =-1 ~
 isCordoned 5+ bool =False ~

DescribeTopicPartitionsRequest 0 0+
topics 0+ []TopicRequest
 name 0+ string
responsePartitionLimit 0+ int32 =2000
cursor 0+ Cursor? =null
 topicName 0+ string
 partitionIndex 0+ int32

DescribeTopicPartitionsResponse 0 0+
throttleTimeMs 0+ int32 ~
topics 0+ []DescribeTopicPartitionsResponseTopic
 errorCode 0+ int16
 name 0+ string?
 topicId 0+ uuid ~
 isInternal 0+ bool ~
 partitions 0+ []DescribeTopicPartitionsResponsePartition
  errorCode 0+ int16
  partitionIndex 0+ int32
  leaderId 0+ int32
  leaderEpoch 0+ int32 =-1 ~
  replicaNodes 0+ []int32
  isrNodes 0+ []int32
  eligibleLeaderReplicas 0+ []int32? =null
  lastKnownElr 0+ []int32? =null
  offlineReplicas 0+ []int32 ~
 topicAuthorizedOperations 0+ int32 =-2147483648
nextCursor 0+ Cursor? =null
 topicName 0+ string
 partitionIndex 0+ int32

ApiVersionsRequest 0-4 3+
clientSoftwareName 3+ string ~
clientSoftwareVersion 3+ string ~

ApiVersionsResponse 0-4 3+
errorCode 0+ int16
apiKeys 0+ []ApiVersion
 apiKey 0+ int16
 minVersion 0+ int16
 maxVersion 0+ int16
throttleTimeMs 1+ int32 ~
supportedFeatures 3+ []SupportedFeatureKey #0 ~
 name 3+ string
 minVersion 3+ int16
 maxVersion 3+ int16
finalizedFeaturesEpoch 3+ int64 =-1 #1 ~
finalizedFeatures 3+ []FinalizedFeatureKey #2 ~
 name 3+ string
 maxVersionLevel 3+ int16
 minVersionLevel 3+ int16
zkMigrationReady 3+ bool #3 ~

SaslHandshakeRequest 0-1 none
mechanism 0+ string

SaslHandshakeResponse 0-1 none
errorCode 0+ int16
mechanisms 0+ []string

SaslAuthenticateRequest 0-2 2+
authBytes 0+ bytes

SaslAuthenticateResponse 0-2 2+
errorCode 0+ int16
errorMessage 0+ string?
authBytes 0+ bytes
sessionLifetimeMs 1+ int64 ~

FindCoordinatorRequest 0-6 3+
key 0-3 string
keyType 1+ int8
coordinatorKeys 4+ []string

FindCoordinatorResponse 0-6 3+
throttleTimeMs 1+ int32 ~
errorCode 0-3 int16
errorMessage 1-3 string? ~
nodeId 0-3 int32
host 0-3 string
port 0-3 int32
coordinators 4+ []Coordinator
 key 4+ string
 nodeId 4+ int32
 host 4+ string
 port 4+ int32
 errorCode 4+ int16
 errorMessage 4+ string? ~

JoinGroupRequest 0-9 6+
groupId 0+ string
sessionTimeoutMs 0+ int32
rebalanceTimeoutMs 1+ int32 =-1 ~
memberId 0+ string
groupInstanceId 5+ string? =null
protocolType 0+ string
protocols 0+ []JoinGroupRequestProtocol
 name 0+ string
 metadata 0+ bytes
reason 8+ string? =null ~

JoinGroupResponse 0-9 6+
throttleTimeMs 2+ int32 ~
errorCode 0+ int16
generationId 0+ int32 =-1
protocolType 7+ string? =null ~
protocolName 0+ string?7+
leader 0+ string
skipAssignment 9+ bool
memberId 0+ string
members 0+ []JoinGroupResponseMember
 memberId 0+ string
 groupInstanceId 5+ string? =null ~
 metadata 0+ bytes

SyncGroupRequest 0-5 4+
groupId 0+ string
generationId 0+ int32
memberId 0+ string
groupInstanceId 3+ string? =null
protocolType 5+ string? =null ~
protocolName 5+ string? =null ~
assignments 0+ []SyncGroupRequestAssignment
 memberId 0+ string
 assignment 0+ bytes

SyncGroupResponse 0-5 4+
throttleTimeMs 1+ int32 ~
errorCode 0+ int16
protocolType 5+ string? =null ~
protocolName 5+ string? =null ~
assignment 0+ bytes

HeartbeatRequest 0-4 4+
groupId 0+ string
generationId 0+ int32
memberId 0+ string
groupInstanceId 3+ string? =null

HeartbeatResponse 0-4 4+
throttleTimeMs 1+ int32 ~
errorCode 0+ int16

LeaveGroupRequest 0-5 4+
groupId 0+ string
memberId 0-2 string
members 3+ []MemberIdentity
 memberId 3+ string
 groupInstanceId 3+ string? =null
 reason 5+ string? =null ~

LeaveGroupResponse 0-5 4+
throttleTimeMs 1+ int32 ~
errorCode 0+ int16
members 3+ []MemberResponse
 memberId 3+ string
 groupInstanceId 3+ string?
 errorCode 3+ int16

OffsetCommitRequest 2-10 8+
groupId 0+ string
generationIdOrMemberEpoch 1+ int32 =-1 ~
memberId 1+ string ~
groupInstanceId 7+ string? =null
retentionTimeMs 2-4 int64 =-1 ~
topics 0+ []OffsetCommitRequestTopic
 name 0-9 string ~
 topicId 10+ uuid ~
 partitions 0+ []OffsetCommitRequestPartition
  partitionIndex 0+ int32
  committedOffset 0+ int64
  committedLeaderEpoch 6+ int32 =-1 ~
  committedMetadata 0+ string?

OffsetCommitResponse 2-10 8+
throttleTimeMs 3+ int32 ~
topics 0+ []OffsetCommitResponseTopic
 name 0-9 string ~
 topicId 10+ uuid ~
 partitions 0+ []OffsetCommitResponsePartition
  partitionIndex 0+ int32
  errorCode 0+ int16

OffsetFetchRequest 1-10 6+
groupId 0-7 string
topics 0-7 []OffsetFetchRequestTopic?2-7
 name 0-7 string
 partitionIndexes 0-7 []int32
groups 8+ []OffsetFetchRequestGroup
 groupId 8+ string
 memberId 9+ string? =null ~
 memberEpoch 9+ int32 =-1 ~
 topics 8+ []OffsetFetchRequestTopics?
  name 8-9 string ~
  topicId 10+ uuid ~
  partitionIndexes 8+ []int32
requireStable 7+ bool

OffsetFetchResponse 1-10 6+
throttleTimeMs 3+ int32 ~
topics 0-7 []OffsetFetchResponseTopic
 name 0-7 string
 partitions 0-7 []OffsetFetchResponsePartition
  partitionIndex 0-7 int32
  committedOffset 0-7 int64
  committedLeaderEpoch 5-7 int32 =-1 ~
  metadata 0-7 string?
  errorCode 0-7 int16
errorCode 2-7 int16 ~
groups 8+ []OffsetFetchResponseGroup
 groupId 8+ string
 topics 8+ []OffsetFetchResponseTopics
  name 8-9 string ~
  topicId 10+ uuid ~
  partitions 8+ []OffsetFetchResponsePartitions
   partitionIndex 8+ int32
   committedOffset 8+ int64
   committedLeaderEpoch 8+ int32 =-1 ~
   metadata 8+ string?
   errorCode 8+ int16
 errorCode 8+ int16

OffsetDeleteRequest 0 none
groupId 0+ string
topics 0+ []OffsetDeleteRequestTopic
 name 0+ string
 partitions 0+ []OffsetDeleteRequestPartition
  partitionIndex 0+ int32

OffsetDeleteResponse 0 none
errorCode 0+ int16
throttleTimeMs 0+ int32 ~
topics 0+ []OffsetDeleteResponseTopic
 name 0+ string
 partitions 0+ []OffsetDeleteResponsePartition
  partitionIndex 0+ int32
  errorCode 0+ int16

DescribeGroupsRequest 0-6 5+
groups 0+ []string
includeAuthorizedOperations 3+ bool

DescribeGroupsResponse 0-6 5+
throttleTimeMs 1+ int32 ~
groups 0+ []DescribedGroup
 errorCode 0+ int16
 errorMessage 6+ string? =null
 groupId 0+ string
 groupState 0+ string
 protocolType 0+ string
 protocolData 0+ string
 members 0+ []DescribedGroupMember
  memberId 0+ string
  groupInstanceId 4+ string? =null ~
  clientId 0+ string
  clientHost 0+ string
  memberMetadata 0+ bytes
  memberAssignment 0+ bytes
 authorizedOperations 3+ int32 =-2147483648

ListGroupsRequest 0-5 3+
statesFilter 4+ []string
typesFilter 5+ []string

ListGroupsResponse 0-5 3+
throttleTimeMs 1+ int32 ~
errorCode 0+ int16
groups 0+ []ListedGroup
 groupId 0+ string
 protocolType 0+ string
 groupState 4+ string ~
 groupType 5+ string ~

DeleteGroupsRequest 0-2 2+
groupsNames 0+ []string

DeleteGroupsResponse 0-2 2+
throttleTimeMs 0+ int32
results 0+ []DeletableGroupResult
 groupId 0+ string
 errorCode 0+ int16

ConsumerGroupHeartbeatRequest 0-1 0+
groupId 0+ string
memberId 0+ string
memberEpoch 0+ int32
instanceId 0+ string? =null
rackId 0+ string? =null
rebalanceTimeoutMs 0+ int32 =-1
subscribedTopicNames 0+ []string? =null
subscribedTopicRegex 1+ string? =null
serverAssignor 0+ string? =null
topicPartitions 0+ []TopicPartitions? =null
 topicId 0+ uuid
 partitions 0+ []int32

ConsumerGroupHeartbeatResponse 0-1 0+
throttleTimeMs 0+ int32
errorCode 0+ int16
errorMessage 0+ string? =null
memberId 0+ string? =null
memberEpoch 0+ int32
heartbeatIntervalMs 0+ int32
assignment 0+ Assignment? =null
 topicPartitions 0+ []TopicPartitions
  topicId 0+ uuid
  partitions 0+ []int32

ConsumerGroupDescribeRequest 0-1 0+
groupIds 0+ []string
includeAuthorizedOperations 0+ bool

ConsumerGroupDescribeResponse 0-1 0+
throttleTimeMs 0+ int32
groups 0+ []DescribedGroup
 errorCode 0+ int16
 errorMessage 0+ string? =null
 groupId 0+ string
 groupState 0+ string
 groupEpoch 0+ int32
 assignmentEpoch 0+ int32
 assignorName 0+ string
 members 0+ []Member
  memberId 0+ string
  instanceId 0+ string? =null
  rackId 0+ string? =null
  memberEpoch 0+ int32
  clientId 0+ string
  clientHost 0+ string
  subscribedTopicNames 0+ []string
  subscribedTopicRegex 0+ string? =null
  assignment 0+ Assignment
   topicPartitions 0+ []TopicPartitions
    topicId 0+ uuid
    topicName 0+ string
    partitions 0+ []int32
  targetAssignment 0+ Assignment
  memberType 1+ int8 =-1 ~
 authorizedOperations 0+ int32 =-2147483648

ConsumerProtocolSubscription 0-3 none
topics 0+ []string
userData 0+ bytes? =null
ownedPartitions 1+ []TopicPartition ~
 topic 1+ string
 partitions 1+ []int32
generationId 2+ int32 =-1 ~
rackId 3+ string? =null ~

ConsumerProtocolAssignment 0-3 none
assignedPartitions 0+ []TopicPartition
 topic 0+ string
 partitions 0+ []int32
userData 0+ bytes? =null

InitProducerIdRequest 0-5 2+
transactionalId 0+ string?
transactionTimeoutMs 0+ int32
producerId 3+ int64 =-1
producerEpoch 3+ int16 =-1

InitProducerIdResponse 0-5 2+
throttleTimeMs 0+ int32 ~
errorCode 0+ int16
producerId 0+ int64 =-1
producerEpoch 0+ int16

AddPartitionsToTxnRequest 0-5 3+
transactions 4+ []AddPartitionsToTxnTransaction
 transactionalId 4+ string
 producerId 4+ int64
 producerEpoch 4+ int16
 verifyOnly 4+ bool =False
 topics 4+ []AddPartitionsToTxnTopic
  name 0+ string
  partitions 0+ []int32
v3AndBelowTransactionalId 0-3 string
v3AndBelowProducerId 0-3 int64
v3AndBelowProducerEpoch 0-3 int16
v3AndBelowTopics 0-3 []AddPartitionsToTxnTopic

AddPartitionsToTxnResponse 0-5 3+
throttleTimeMs 0+ int32
errorCode 4+ int16 ~
resultsByTransaction 4+ []AddPartitionsToTxnResult
 transactionalId 4+ string
 topicResults 4+ []AddPartitionsToTxnTopicResult
  name 0+ string
  resultsByPartition 0+ []AddPartitionsToTxnPartitionResult
   partitionIndex 0+ int32
   partitionErrorCode 0+ int16
resultsByTopicV3AndBelow 0-3 []AddPartitionsToTxnTopicResult

AddOffsetsToTxnRequest 0-4 3+
transactionalId 0+ string
producerId 0+ int64
producerEpoch 0+ int16
groupId 0+ string

AddOffsetsToTxnResponse 0-4 3+
throttleTimeMs 0+ int32
errorCode 0+ int16

TxnOffsetCommitRequest 0-5 3+
transactionalId 0+ string
groupId 0+ string
producerId 0+ int64
producerEpoch 0+ int16
generationId 3+ int32 =-1
memberId 3+ string
groupInstanceId 3+ string? =null
topics 0+ []TxnOffsetCommitRequestTopic
 name 0+ string
 partitions 0+ []TxnOffsetCommitRequestPartition
  partitionIndex 0+ int32
  committedOffset 0+ int64
  committedLeaderEpoch 2+ int32 =-1 ~
  committedMetadata 0+ string?

TxnOffsetCommitResponse 0-5 3+
throttleTimeMs 0+ int32
topics 0+ []TxnOffsetCommitResponseTopic
 name 0+ string
 partitions 0+ []TxnOffsetCommitResponsePartition
  partitionIndex 0+ int32
  errorCode 0+ int16

EndTxnRequest 0-5 3+
transactionalId 0+ string
producerId 0+ int64
producerEpoch 0+ int16
committed 0+ bool

EndTxnResponse 0-5 3+
throttleTimeMs 0+ int32
errorCode 0+ int16
producerId 5+ int64 =-1 ~
producerEpoch 5+ int16 =-1 ~

WriteTxnMarkersRequest 1-2 1+
markers 0+ []WritableTxnMarker
 producerId 0+ int64
 producerEpoch 0+ int16
 transactionResult 0+ bool
 topics 0+ []WritableTxnMarkerTopic
  name 0+ string
  partitionIndexes 0+ []int32
 coordinatorEpoch 0+ int32
 transactionVersion 2+ int8 ~

WriteTxnMarkersResponse 1-2 1+
markers 0+ []WritableTxnMarkerResult
 producerId 0+ int64
 topics 0+ []WritableTxnMarkerTopicResult
  name 0+ string
  partitions 0+ []WritableTxnMarkerPartitionResult
   partitionIndex 0+ int32
   errorCode 0+ int16

DescribeTransactionsRequest 0 0+
transactionalIds 0+ []string

DescribeTransactionsResponse 0 0+
throttleTimeMs 0+ int32
transactionStates 0+ []TransactionState
 errorCode 0+ int16
 transactionalId 0+ string
 transactionState 0+ string
 transactionTimeoutMs 0+ int32
 transactionStartTimeMs 0+ int64
 producerId 0+ int64
 producerEpoch 0+ int16
 topics 0+ []TopicData
  topic 0+ string
  partitions 0+ []int32

ListTransactionsRequest 0-2 0+
stateFilters 0+ []string
producerIdFilters 0+ []int64
durationFilter 1+ int64 =-1
transactionalIdPattern 2+ string? =null

ListTransactionsResponse 0-2 0+
throttleTimeMs 0+ int32
errorCode 0+ int16
unknownStateFilters 0+ []string
transactionStates 0+ []TransactionState
 transactionalId 0+ string
 producerId 0+ int64
 transactionState 0+ string

CreateTopicsRequest 2-7 5+
topics 0+ []CreatableTopic
 name 0+ string
 numPartitions 0+ int32
 replicationFactor 0+ int16
 assignments 0+ []CreatableReplicaAssignment
  partitionIndex 0+ int32
  brokerIds 0+ []int32
 configs 0+ []CreatableTopicConfig
  name 0+ string
  value 0+ string?
timeoutMs 0+ int32 =60000
validateOnly 1+ bool

CreateTopicsResponse 2-7 5+
throttleTimeMs 2+ int32 ~
topics 0+ []CreatableTopicResult
 name 0+ string
 topicId 7+ uuid ~
 errorCode 0+ int16
 errorMessage 1+ string? ~
 topicConfigErrorCode 5+ int16 #0 ~
 numPartitions 5+ int32 =-1 ~
 replicationFactor 5+ int16 =-1 ~
 configs 5+ []CreatableTopicConfigs? ~
  name 5+ string
  value 5+ string?
  readOnly 5+ bool
  configSource 5+ int8 =-1 ~
  isSensitive 5+ bool

DeleteTopicsRequest 1-6 4+
topics 6+ []DeleteTopicState
 name 6+ string? =null
 topicId 6+ uuid
topicNames 0-5 []string ~
timeoutMs 0+ int32

DeleteTopicsResponse 1-6 4+
throttleTimeMs 1+ int32 ~
responses 0+ []DeletableTopicResult
 name 0+ string?6+
 topicId 6+ uuid ~
 errorCode 0+ int16
 errorMessage 5+ string? =null ~

CreatePartitionsRequest 0-3 2+
topics 0+ []CreatePartitionsTopic
 name 0+ string
 count 0+ int32
 assignments 0+ []CreatePartitionsAssignment?
  brokerIds 0+ []int32
timeoutMs 0+ int32
validateOnly 0+ bool

CreatePartitionsResponse 0-3 2+
throttleTimeMs 0+ int32
results 0+ []CreatePartitionsTopicResult
 name 0+ string
 errorCode 0+ int16
 errorMessage 0+ string? =null

ElectLeadersRequest 0-2 2+
electionType 1+ int8
topicPartitions 0+ []TopicPartitions?
 topic 0+ string
 partitions 0+ []int32
timeoutMs 0+ int32 =60000

ElectLeadersResponse 0-2 2+
throttleTimeMs 0+ int32
errorCode 1+ int16 ~
replicaElectionResults 0+ []ReplicaElectionResult
 topic 0+ string
 partitionResult 0+ []PartitionResult
  partitionId 0+ int32
  errorCode 0+ int16
  errorMessage 0+ string?

AlterPartitionReassignmentsRequest 0-1 0+
timeoutMs 0+ int32 =60000
allowReplicationFactorChange 1+ bool =true
topics 0+ []ReassignableTopic
 name 0+ string
 partitions 0+ []ReassignablePartition
  partitionIndex 0+ int32
  replicas 0+ []int32? =null

AlterPartitionReassignmentsResponse 0-1 0+
throttleTimeMs 0+ int32
allowReplicationFactorChange 1+ bool =true
errorCode 0+ int16
errorMessage 0+ string?
responses 0+ []ReassignableTopicResponse
 name 0+ string
 partitions 0+ []ReassignablePartitionResponse
  partitionIndex 0+ int32
  errorCode 0+ int16
  errorMessage 0+ string?

ListPartitionReassignmentsRequest 0 0+
timeoutMs 0+ int32 =60000
topics 0+ []ListPartitionReassignmentsTopics? =null
 name 0+ string
 partitionIndexes 0+ []int32

ListPartitionReassignmentsResponse 0 0+
throttleTimeMs 0+ int32
errorCode 0+ int16
errorMessage 0+ string?
topics 0+ []OngoingTopicReassignment
 name 0+ string
 partitions 0+ []OngoingPartitionReassignment
  partitionIndex 0+ int32
  replicas 0+ []int32
  addingReplicas 0+ []int32
  removingReplicas 0+ []int32

DescribeConfigsRequest 1-4 4+
resources 0+ []DescribeConfigsResource
 resourceType 0+ int8
 resourceName 0+ string
 configurationKeys 0+ []string?
includeSynonyms 1+ bool
includeDocumentation 3+ bool

DescribeConfigsResponse 1-4 4+
throttleTimeMs 0+ int32
results 0+ []DescribeConfigsResult
 errorCode 0+ int16
 errorMessage 0+ string?
 resourceType 0+ int8
 resourceName 0+ string
 configs 0+ []DescribeConfigsResourceResult
  name 0+ string
  value 0+ string?
  readOnly 0+ bool
  configSource 1+ int8 =-1 ~
  isSensitive 0+ bool
  synonyms 1+ []DescribeConfigsSynonym ~
   name 1+ string
   value 1+ string?
   source 1+ int8
  configType 3+ int8 ~
  documentation 3+ string? ~

AlterConfigsRequest 0-2 2+
resources 0+ []AlterConfigsResource
 resourceType 0+ int8
 resourceName 0+ string
 configs 0+ []AlterableConfig
  name 0+ string
  value 0+ string?
validateOnly 0+ bool

AlterConfigsResponse 0-2 2+
throttleTimeMs 0+ int32
responses 0+ []AlterConfigsResourceResponse
 errorCode 0+ int16
 errorMessage 0+ string?
 resourceType 0+ int8
 resourceName 0+ string

IncrementalAlterConfigsRequest 0-1 1+
resources 0+ []AlterConfigsResource
 resourceType 0+ int8
 resourceName 0+ string
 configs 0+ []AlterableConfig
  name 0+ string
  configOperation 0+ int8
  value 0+ string?
validateOnly 0+ bool

IncrementalAlterConfigsResponse 0-1 1+
throttleTimeMs 0+ int32
responses 0+ []AlterConfigsResourceResponse
 errorCode 0+ int16
 errorMessage 0+ string?
 resourceType 0+ int8
 resourceName 0+ string

ListConfigResourcesRequest 0-1 0+
resourceTypes 1+ []int8

ListConfigResourcesResponse 0-1 0+
throttleTimeMs 0+ int32
errorCode 0+ int16
configResources 0+ []ConfigResource
 resourceName 0+ string
 resourceType 1+ int8 =16 ~

DescribeClusterRequest 0-2 0+
includeClusterAuthorizedOperations 0+ bool
endpointType 1+ int8 =1
includeFencedBrokers 2+ bool

DescribeClusterResponse 0-2 0+
throttleTimeMs 0+ int32
errorCode 0+ int16
errorMessage 0+ string? =null
endpointType 1+ int8 =1
clusterId 0+ string
controllerId 0+ int32 =-1
brokers 0+ []DescribeClusterBroker
 brokerId 0+ int32
 host 0+ string
 port 0+ int32
 rack 0+ string? =null
 isFenced 2+ bool
clusterAuthorizedOperations 0+ int32 =-2147483648

UnregisterBrokerRequest 0 0+
brokerId 0+ int32

UnregisterBrokerResponse 0 0+
throttleTimeMs 0+ int32
errorCode 0+ int16
errorMessage 0+ string?

DescribeAclsRequest 1-3 2+
resourceTypeFilter 0+ int8
resourceNameFilter 0+ string?
patternTypeFilter 1+ int8 =3
principalFilter 0+ string?
hostFilter 0+ string?
operation 0+ int8
permissionType 0+ int8

DescribeAclsResponse 1-3 2+
throttleTimeMs 0+ int32
errorCode 0+ int16
errorMessage 0+ string?
resources 0+ []DescribeAclsResource
 resourceType 0+ int8
 resourceName 0+ string
 patternType 1+ int8 =3
 acls 0+ []AclDescription
  principal 0+ string
  host 0+ string
  operation 0+ int8
  permissionType 0+ int8

CreateAclsRequest 1-3 2+
creations 0+ []AclCreation
 resourceType 0+ int8
 resourceName 0+ string
 resourcePatternType 1+ int8 =3
 principal 0+ string
 host 0+ string
 operation 0+ int8
 permissionType 0+ int8

CreateAclsResponse 1-3 2+
throttleTimeMs 0+ int32
results 0+ []AclCreationResult
 errorCode 0+ int16
 errorMessage 0+ string?

DeleteAclsRequest 1-3 2+
filters 0+ []DeleteAclsFilter
 resourceTypeFilter 0+ int8
 resourceNameFilter 0+ string?
 patternTypeFilter 1+ int8 =3
 principalFilter 0+ string?
 hostFilter 0+ string?
 operation 0+ int8
 permissionType 0+ int8

DeleteAclsResponse 1-3 2+
throttleTimeMs 0+ int32
filterResults 0+ []DeleteAclsFilterResult
 errorCode 0+ int16
 errorMessage 0+ string?
 matchingAcls 0+ []DeleteAclsMatchingAcl
  errorCode 0+ int16
  errorMessage 0+ string?
  resourceType 0+ int8
  resourceName 0+ string
  patternType 1+ int8 =3
  principal 0+ string
  host 0+ string
  operation 0+ int8
  permissionType 0+ int8

DescribeClientQuotasRequest 0-1 1+
components 0+ []ComponentData
 entityType 0+ string
 matchType 0+ int8
 match 0+ string?
strict 0+ bool

DescribeClientQuotasResponse 0-1 1+
throttleTimeMs 0+ int32
errorCode 0+ int16
errorMessage 0+ string?
entries 0+ []EntryData?
 entity 0+ []EntityData
  entityType 0+ string
  entityName 0+ string?
 values 0+ []ValueData
  key 0+ string
  value 0+ float64

AlterClientQuotasRequest 0-1 1+
entries 0+ []EntryData
 entity 0+ []EntityData
  entityType 0+ string
  entityName 0+ string?
 ops 0+ []OpData
  key 0+ string
  value 0+ float64
  remove 0+ bool
validateOnly 0+ bool

AlterClientQuotasResponse 0-1 1+
throttleTimeMs 0+ int32
entries 0+ []EntryData
 errorCode 0+ int16
 errorMessage 0+ string?
 entity 0+ []EntityData
  entityType 0+ string
  entityName 0+ string?

DescribeUserScramCredentialsRequest 0 0+
users 0+ []UserName?
 name 0+ string

DescribeUserScramCredentialsResponse 0 0+
throttleTimeMs 0+ int32
errorCode 0+ int16
errorMessage 0+ string?
results 0+ []DescribeUserScramCredentialsResult
 user 0+ string
 errorCode 0+ int16
 errorMessage 0+ string?
 credentialInfos 0+ []CredentialInfo
  mechanism 0+ int8
  iterations 0+ int32

AlterUserScramCredentialsRequest 0 0+
deletions 0+ []ScramCredentialDeletion
 name 0+ string
 mechanism 0+ int8
upsertions 0+ []ScramCredentialUpsertion
 name 0+ string
 mechanism 0+ int8
 iterations 0+ int32
 salt 0+ bytes
 saltedPassword 0+ bytes

AlterUserScramCredentialsResponse 0 0+
throttleTimeMs 0+ int32
results 0+ []AlterUserScramCredentialsResult
 user 0+ string
 errorCode 0+ int16
 errorMessage 0+ string?
""")
