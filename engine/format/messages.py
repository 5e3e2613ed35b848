"""Kafka's own messages: what the keys and values of the topics that a broker keeps for itself consist of.

    __consumer_offsets, __transaction_state, __share_group_state

    key      int16 type, then the message of that type whose name ends in `Key`, in version 0
    value    int16 version, then the message whose name ends in `Value`; null removes what is known of the key

    __cluster_metadata

    value    unsigned varints: 1, type, version; then the message of that type

A message is its fields, one after the other, numbers big-endian. From the version on that is called flexible, lengths
are shorter, and each message and structure ends with its tagged fields:

                 fixed                               flexible
    string       int16 length, UTF-8                 unsigned varint length + 1, UTF-8
    bytes        int32 length, bytes                 unsigned varint length + 1, bytes
    array        int32 number, elements              unsigned varint number + 1, elements
    null         length or number -1                 0 in place of length + 1
    structure    its fields; in flexible versions tagged fields behind them: unsigned varint number, and for each
                 unsigned varints tag and size, and so many bytes. Where it may be null, an int8 comes first: 1 if it
                 is there
    uuid         16 bytes
    protocol     a string: `consumer` where the members of a group are consumers, whose bytes are messages too:
                 int16 version, then the message that is named

The tables below are those of Kafka 4.3.1, a line a field: name and type, `[]` for an array, `{}` for a structure whose
fields follow, `?` where it may be null; then the versions that have it, where these are not all, and its tag. A
message's line has its type, name and versions, and its first flexible version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of a group whose members are consumers."""

_GROUPS: Final = """
0 LegacyOffsetCommitKey 0
    group string
    topic string
    partition int32
0 LegacyOffsetCommitValue 0
    offset int64
    metadata string
    commitTimestamp int64
1 OffsetCommitKey 0
    group string
    topic string
    partition int32
1 OffsetCommitValue 0-4 flexible 4+
    offset int64
    leaderEpoch int32 3+
    metadata string
    commitTimestamp int64
    expireTimestamp int64 1
    topicId uuid 4+ tag0
2 GroupMetadataKey 0
    group string
2 GroupMetadataValue 0-4 flexible 4+
    protocolType protocol
    generation int32
    protocol string?
    leader string?
    currentStateTimestamp int64 2+
    members []{}
        memberId string
        groupInstanceId string? 3+
        clientId string
        clientHost string
        rebalanceTimeout int32 1+
        sessionTimeout int32
        subscription bytes of ConsumerProtocolSubscription
        assignment bytes of ConsumerProtocolAssignment
3 ConsumerGroupMetadataKey 0
    groupId string
3 ConsumerGroupMetadataValue 0 flexible 0+
    epoch int32
    metadataHash int64 tag0
4 ConsumerGroupPartitionMetadataKey 0
    groupId string
4 ConsumerGroupPartitionMetadataValue 0 flexible 0+
    topics []{}
        topicId uuid
        topicName string
        numPartitions int32
        partitionMetadata []{}
            partition int32
            racks []string
5 ConsumerGroupMemberMetadataKey 0
    groupId string
    memberId string
5 ConsumerGroupMemberMetadataValue 0 flexible 0+
    instanceId string?
    rackId string?
    clientId string
    clientHost string
    subscribedTopicNames []string
    subscribedTopicRegex string?
    rebalanceTimeoutMs int32
    serverAssignor string?
    classicMemberMetadata {}? tag0
        sessionTimeoutMs int32
        supportedProtocols []{}
            name string
            metadata bytes
6 ConsumerGroupTargetAssignmentMetadataKey 0
    groupId string
6 ConsumerGroupTargetAssignmentMetadataValue 0 flexible 0+
    assignmentEpoch int32
    assignmentTimestamp int64 tag0
7 ConsumerGroupTargetAssignmentMemberKey 0
    groupId string
    memberId string
7 ConsumerGroupTargetAssignmentMemberValue 0 flexible 0+
    topicPartitions []{}
        topicId uuid
        partitions []int32
8 ConsumerGroupCurrentMemberAssignmentKey 0
    groupId string
    memberId string
8 ConsumerGroupCurrentMemberAssignmentValue 0 flexible 0+
    memberEpoch int32
    previousMemberEpoch int32
    state int8
    assignedPartitions []{}
        topicId uuid
        partitions []int32
        assignmentEpochs []int32? tag0
    partitionsPendingRevocation []{}
        topicId uuid
        partitions []int32
        assignmentEpochs []int32? tag0
10 ShareGroupMemberMetadataKey 0
    groupId string
    memberId string
10 ShareGroupMemberMetadataValue 0 flexible 0+
    rackId string?
    clientId string
    clientHost string
    subscribedTopicNames []string
11 ShareGroupMetadataKey 0
    groupId string
11 ShareGroupMetadataValue 0 flexible 0+
    epoch int32
    metadataHash int64
12 ShareGroupTargetAssignmentMetadataKey 0
    groupId string
12 ShareGroupTargetAssignmentMetadataValue 0 flexible 0+
    assignmentEpoch int32
    assignmentTimestamp int64 tag0
13 ShareGroupTargetAssignmentMemberKey 0
    groupId string
    memberId string
13 ShareGroupTargetAssignmentMemberValue 0 flexible 0+
    topicPartitions []{}
        topicId uuid
        partitions []int32
14 ShareGroupCurrentMemberAssignmentKey 0
    groupId string
    memberId string
14 ShareGroupCurrentMemberAssignmentValue 0 flexible 0+
    memberEpoch int32
    previousMemberEpoch int32
    state int8
    assignedPartitions []{}
        topicId uuid
        partitions []int32
15 ShareGroupStatePartitionMetadataKey 0
    groupId string
15 ShareGroupStatePartitionMetadataValue 0 flexible 0+
    initializingTopics []{}
        topicId uuid
        topicName string
        partitions []int32
    initializedTopics []{}
        topicId uuid
        topicName string
        partitions []int32
    deletingTopics []{}
        topicId uuid
        topicName string
16 ConsumerGroupRegularExpressionKey 0
    groupId string
    regularExpression string
16 ConsumerGroupRegularExpressionValue 0 flexible 0+
    topics []string
    version int64
    timestamp int64
17 StreamsGroupMetadataKey 0
    groupId string
17 StreamsGroupMetadataValue 0 flexible 0+
    epoch int32
    metadataHash int64
    validatedTopologyEpoch int32 tag0
    lastAssignmentConfigs []{}? tag1
        key string
        value string
19 StreamsGroupMemberMetadataKey 0
    groupId string
    memberId string
19 StreamsGroupMemberMetadataValue 0 flexible 0+
    instanceId string?
    rackId string?
    clientId string
    clientHost string
    rebalanceTimeoutMs int32
    topologyEpoch int32
    processId string
    userEndpoint {}?
        host string
        port uint16
    clientTags []{}
        key string
        value string
20 StreamsGroupTargetAssignmentMetadataKey 0
    groupId string
20 StreamsGroupTargetAssignmentMetadataValue 0 flexible 0+
    assignmentEpoch int32
    assignmentTimestamp int64 tag0
21 StreamsGroupTargetAssignmentMemberKey 0
    groupId string
    memberId string
21 StreamsGroupTargetAssignmentMemberValue 0 flexible 0+
    activeTasks []{}
        subtopologyId string
        partitions []int32
    standbyTasks []{}
        subtopologyId string
        partitions []int32
    warmupTasks []{}
        subtopologyId string
        partitions []int32
22 StreamsGroupCurrentMemberAssignmentKey 0
    groupId string
    memberId string
22 StreamsGroupCurrentMemberAssignmentValue 0 flexible 0+
    memberEpoch int32
    previousMemberEpoch int32
    state int8
    activeTasks []{}
        subtopologyId string
        partitions []int32
        assignmentEpochs []int32? tag0
    standbyTasks []{}
        subtopologyId string
        partitions []int32
        assignmentEpochs []int32? tag0
    warmupTasks []{}
        subtopologyId string
        partitions []int32
        assignmentEpochs []int32? tag0
    activeTasksPendingRevocation []{}
        subtopologyId string
        partitions []int32
        assignmentEpochs []int32? tag0
    standbyTasksPendingRevocation []{}
        subtopologyId string
        partitions []int32
        assignmentEpochs []int32? tag0
    warmupTasksPendingRevocation []{}
        subtopologyId string
        partitions []int32
        assignmentEpochs []int32? tag0
23 StreamsGroupTopologyKey 0
    groupId string
23 StreamsGroupTopologyValue 0 flexible 0+
    epoch int32
    subtopologies []{}
        subtopologyId string
        sourceTopics []string
        sourceTopicRegex []string
        stateChangelogTopics []{}
            name string
            partitions int32
            replicationFactor int16
            topicConfigs []{}
                key string
                value string
        repartitionSinkTopics []string
        repartitionSourceTopics []{}
            name string
            partitions int32
            replicationFactor int16
            topicConfigs []{}
                key string
                value string
        copartitionGroups []{}
            sourceTopics []int16
            sourceTopicRegex []int16
            repartitionSourceTopics []int16
"""

_TRANSACTIONS: Final = """
0 TransactionLogKey 0
    transactionalId string
0 TransactionLogValue 0-1 flexible 1+
    producerId int64
    previousProducerId int64 1+ tag0
    nextProducerId int64 1+ tag1
    producerEpoch int16
    nextProducerEpoch int16 1+ tag3
    transactionTimeoutMs int32
    transactionStatus int8
    transactionPartitions []{}?
        topic string
        partitionIds []int32
    transactionLastUpdateTimestampMs int64
    transactionStartTimestampMs int64
    clientTransactionVersion int16 1+ tag2
"""

_SHARES: Final = """
0 ShareSnapshotKey 0
    groupId string
    topicId uuid
    partition int32
0 ShareSnapshotValue 0 flexible 0+
    snapshotEpoch int32
    stateEpoch int32
    leaderEpoch int32
    startOffset int64
    deliveryCompleteCount int32 tag0
    createTimestamp int64
    writeTimestamp int64
    stateBatches []{}
        firstOffset int64
        lastOffset int64
        deliveryState int8
        deliveryCount int16
1 ShareUpdateKey 0
    groupId string
    topicId uuid
    partition int32
1 ShareUpdateValue 0 flexible 0+
    snapshotEpoch int32
    leaderEpoch int32
    startOffset int64
    deliveryCompleteCount int32 tag0
    stateBatches []{}
        firstOffset int64
        lastOffset int64
        deliveryState int8
        deliveryCount int16
"""

_METADATA: Final = """
0 RegisterBrokerRecord 0-4 flexible 0+
    brokerId int32
    isMigratingZkBroker bool 2+
    incarnationId uuid
    brokerEpoch int64
    endPoints []{}
        name string
        host string
        port uint16
        securityProtocol int16
    features []{}
        name string
        minSupportedVersion int16
        maxSupportedVersion int16
    rack string?
    fenced bool
    inControlledShutdown bool 1+
    logDirs []uuid 3+ tag0
    cordonedLogDirs []uuid? 4+ tag1
1 UnregisterBrokerRecord 0 flexible 0+
    brokerId int32
    brokerEpoch int64
2 TopicRecord 0 flexible 0+
    name string
    topicId uuid
3 PartitionRecord 0-2 flexible 0+
    partitionId int32
    topicId uuid
    replicas []int32
    isr []int32
    removingReplicas []int32
    addingReplicas []int32
    leader int32
    leaderRecoveryState int8 tag0
    leaderEpoch int32
    partitionEpoch int32
    directories []uuid 1+
    eligibleLeaderReplicas []int32? 2+ tag1
    lastKnownElr []int32? 2+ tag2
4 ConfigRecord 0 flexible 0+
    resourceType int8
    resourceName string
    name string
    value string?
5 PartitionChangeRecord 0-2 flexible 0+
    partitionId int32
    topicId uuid
    isr []int32? tag0
    leader int32 tag1
    replicas []int32? tag2
    removingReplicas []int32? tag3
    addingReplicas []int32? tag4
    leaderRecoveryState int8 tag5
    directories []uuid? 1+ tag8
    eligibleLeaderReplicas []int32? 2+ tag6
    lastKnownElr []int32? 2+ tag7
7 FenceBrokerRecord 0 flexible 0+
    id int32
    epoch int64
8 UnfenceBrokerRecord 0 flexible 0+
    id int32
    epoch int64
9 RemoveTopicRecord 0 flexible 0+
    topicId uuid
10 DelegationTokenRecord 0 flexible 0+
    owner string
    requester string
    renewers []string
    issueTimestamp int64
    maxTimestamp int64
    expirationTimestamp int64
    tokenId string
11 UserScramCredentialRecord 0 flexible 0+
    name string
    mechanism int8
    salt bytes
    storedKey bytes
    serverKey bytes
    iterations int32
12 FeatureLevelRecord 0 flexible 0+
    name string
    featureLevel int16
14 ClientQuotaRecord 0 flexible 0+
    entity []{}
        entityType string
        entityName string?
    key string
    value float64
    remove bool
15 ProducerIdsRecord 0 flexible 0+
    brokerId int32
    brokerEpoch int64
    nextProducerId int64
17 BrokerRegistrationChangeRecord 0-3 flexible 0+
    brokerId int32
    brokerEpoch int64
    fenced int8 tag0
    inControlledShutdown int8 1+ tag1
    logDirs []uuid 2+ tag2
    cordonedLogDirs []uuid? 3+ tag3
18 AccessControlEntryRecord 0 flexible 0+
    id uuid
    resourceType int8
    resourceName string
    patternType int8
    principal string
    host string
    operation int8
    permissionType int8
19 RemoveAccessControlEntryRecord 0 flexible 0+
    id uuid
20 NoOpRecord 0 flexible 0+
21 ZkMigrationStateRecord 0 flexible 0+
    zkMigrationState int8
22 RemoveUserScramCredentialRecord 0 flexible 0+
    name string
    mechanism int8
23 BeginTransactionRecord 0 flexible 0+
    name string? tag0
24 EndTransactionRecord 0 flexible 0+
25 AbortTransactionRecord 0 flexible 0+
    reason string? tag0
26 RemoveDelegationTokenRecord 0 flexible 0+
    tokenId string
27 RegisterControllerRecord 0 flexible 0+
    controllerId int32
    incarnationId uuid
    zkMigrationReady bool
    endPoints []{}
        name string
        host string
        port uint16
        securityProtocol int16
    features []{}
        name string
        minSupportedVersion int16
        maxSupportedVersion int16
28 ClearElrRecord 0 flexible 0+
    topicName string
"""

_PROTOCOLS: Final = """
ConsumerProtocolAssignment 0-3
    assignedPartitions []{}
        topic string
        partitions []int32
    userData bytes?
ConsumerProtocolSubscription 0-3
    topics []string
    userData bytes?
    ownedPartitions []{} 1+
        topic string 1+
        partitions []int32 1+
    generationId int32 2+
    rackId string? 3+
"""

OF_TOPICS: Final = {
    "__consumer_offsets": _GROUPS,
    "__transaction_state": _TRANSACTIONS,
    "__share_group_state": _SHARES,
    "__cluster_metadata": _METADATA,
}
"""The messages of each topic."""

_FIELD: Final = re.compile(
    r"(?P<indent> +)(?P<name>\w+) (?P<array>\[\])?(?P<type>\w+|{})(?P<null>\?)?(?: of (?P<message>\w+))?"
    r"(?: (?P<first>\d+)(?P<later>\+)?)?(?: tag(?P<tag>\d+))?"
)
_MESSAGE: Final = re.compile(
    r"(?:(?P<type>\d+) )?(?P<name>\w+) 0(?:-(?P<last>\d+))?(?: flexible (?P<flexible>\d+)\+)?"
)
_ALL: Final = 2**15 - 1


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message or a structure.

    type         the type of its value, or of its elements; `{}` for a structure
    first, last  the versions that have it
    tag          its tag; None for a field that each message of these versions has
    fields       those of the structure
    message      the message that its bytes are, where a group consists of consumers
    """

    name: str
    type: str
    is_array: bool
    may_be_null: bool
    first: int
    last: int
    tag: int | None
    fields: tuple[Field, ...]
    message: str | None


@dataclass(frozen=True, slots=True)
class Message:
    """A message.

    type      the number by which a record names it; None for one that is named elsewhere
    last      the last version that is known
    flexible  the first flexible version; beyond `last` where none is
    """

    type: int | None
    name: str
    last: int
    flexible: int
    fields: tuple[Field, ...]


@cache
def messages_of(topic: str) -> tuple[Message, ...]:
    """Return the messages of one of Kafka's own topics."""
    return tuple(_parsed(OF_TOPICS[topic]))


@cache
def protocols() -> tuple[Message, ...]:
    """Return the messages of consumers, which fields of other messages hold."""
    return tuple(_parsed(_PROTOCOLS))


def _parsed(table: str) -> Iterator[Message]:
    for block in re.split(r"\n(?=\w)", table.strip()):
        head, *lines = block.split("\n")
        found = _MESSAGE.fullmatch(head)
        assert found is not None, head
        flexible = _ALL if found["flexible"] is None else int(found["flexible"])
        kind = None if found["type"] is None else int(found["type"])
        yield Message(kind, found["name"], int(found["last"] or 0), flexible, _fields(lines))


def _fields(lines: list[str]) -> tuple[Field, ...]:
    """Return the fields of these lines; those that are indented more belong to the field before them."""
    fields, at = [], 0
    while at < len(lines):
        found = _FIELD.fullmatch(lines[at])
        assert found is not None, lines[at]
        end = at + 1
        while end < len(lines) and lines[end].startswith(f"{found['indent']} "):
            end += 1
        first = int(found["first"] or 0)
        fields.append(
            Field(
                found["name"],
                found["type"],
                found["array"] is not None,
                found["null"] is not None,
                first,
                _ALL if found["first"] is None or found["later"] else first,
                None if found["tag"] is None else int(found["tag"]),
                _fields(lines[at + 1 : end]),
                found["message"],
            )
        )
        at = end
    return tuple(fields)
