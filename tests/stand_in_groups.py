"""The groups of a stand-in for a broker: their positions, as a coordinator keeps them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.consumer import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

KEYS: Final[dict[int, Any]] = {
    8: OffsetCommitRequest,
    9: OffsetFetchRequest,
    15: DescribeGroupsRequest,
    16: ListGroupsRequest,
    25: AddOffsetsToTxnRequest,
    28: TxnOffsetCommitRequest,
    42: DeleteGroupsRequest,
    47: OffsetDeleteRequest,
}
NO_GROUP: Final = 69
UNKNOWN_MEMBER: Final = 25


@dataclass(slots=True)
class StandInGroups:
    """The positions of groups.

    positions  by group and partition
    taken      the groups that have members: nobody else sets their positions
    newer      those that have members by the newer protocol
    open       by transactional id: positions that its transaction is to set
    before     called before each commit, as another client would come between
    """

    positions: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    newer: set[str] = field(default_factory=set)
    open: dict[str, dict[str, dict[tuple[str, int], int]]] = field(default_factory=dict)
    before: Callable[[], None] = lambda: None

    def answers(self) -> dict[Any, Callable[[Any], Any]]:
        """What is answered to each kind of request."""
        return {
            OffsetCommitRequest: self._commit,
            OffsetFetchRequest: self._fetch,
            DescribeGroupsRequest: self._describe,
            TxnOffsetCommitRequest: self._commit_later,
            ListGroupsRequest: self._list,
            DeleteGroupsRequest: self._delete,
            OffsetDeleteRequest: self._forget,
        }

    def _commit(self, request: Any) -> Any:
        self.before()
        code = UNKNOWN_MEMBER if request.group_id in self.taken and not request.member_id else 0
        kind = OffsetCommitResponse.OffsetCommitResponseTopic
        told = []
        for topic in request.topics:
            for part in topic.partitions:
                if not code:
                    known = self.positions.setdefault(request.group_id, {})
                    known[topic.name, part.partition_index] = part.committed_offset
            parts = [
                kind.OffsetCommitResponsePartition(
                    version=8, partition_index=part.partition_index, error_code=code
                )
                for part in topic.partitions
            ]
            told.append(kind(version=8, name=topic.name, partitions=parts))
        return OffsetCommitResponse[8](throttle_time_ms=0, topics=told)

    def _commit_later(self, request: Any) -> Any:
        kind = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        told = []
        later = self.open.setdefault(request.transactional_id, {}).setdefault(request.group_id, {})
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                later[topic.name, part.partition_index] = part.committed_offset
                parts.append(
                    kind.TxnOffsetCommitResponsePartition(
                        version=3, partition_index=part.partition_index, error_code=0
                    )
                )
            told.append(kind(version=3, name=topic.name, partitions=parts))
        return TxnOffsetCommitResponse[3](throttle_time_ms=0, topics=told)

    def end(self, transactional_id: str, commit: bool) -> None:
        """End a transaction: its positions are set, or not."""
        for group, offsets in self.open.pop(transactional_id, {}).items():
            if commit:
                self.positions.setdefault(group, {}).update(offsets)

    def _describe(self, request: Any) -> Any:
        kind = DescribeGroupsResponse.DescribedGroup
        member = kind.DescribedGroupMember(
            version=5,
            member_id="theirs",
            group_instance_id=None,
            client_id="c",
            client_host="h",
            member_metadata=b"",
            member_assignment=b"",
        )
        told = [
            kind(
                version=5,
                error_code=0,
                group_id=name,
                group_state="Dead" if name in self.newer else "Stable",
                protocol_type="consumer",
                protocol_data="range",
                members=[member] if name in self.taken else [],
            )
            for name in request.groups
        ]
        return DescribeGroupsResponse[5](throttle_time_ms=0, groups=told)

    def _fetch(self, request: Any) -> Any:
        kind = OffsetFetchResponse.OffsetFetchResponseGroup
        topic = kind.OffsetFetchResponseTopics
        groups = []
        for wanted in request.groups:
            known = self.positions.get(wanted.group_id, {})
            topics = [
                topic(
                    version=8,
                    name=name,
                    partitions=[
                        topic.OffsetFetchResponsePartitions(
                            version=8,
                            partition_index=number,
                            committed_offset=offset,
                            committed_leader_epoch=-1,
                            metadata="",
                            error_code=0,
                        )
                    ],
                )
                for (name, number), offset in known.items()
            ]
            groups.append(kind(version=8, group_id=wanted.group_id, topics=topics, error_code=0))
        return OffsetFetchResponse[8](throttle_time_ms=0, groups=groups)

    def _list(self, request: Any) -> Any:
        names = self.newer if request.states_filter else self.positions
        groups = [
            ListGroupsResponse.ListedGroup(
                version=4, group_id=name, protocol_type="consumer", group_state="Empty"
            )
            for name in names
        ]
        return ListGroupsResponse[4](throttle_time_ms=0, error_code=0, groups=groups)

    def _delete(self, request: Any) -> Any:
        name = request.groups_names[0]
        code = 0 if name in self.positions else NO_GROUP
        self.positions.pop(name, None)
        told = DeleteGroupsResponse.DeletableGroupResult(version=2, group_id=name, error_code=code)
        return DeleteGroupsResponse[2](throttle_time_ms=0, results=[told])

    def _forget(self, request: Any) -> Any:
        kind = OffsetDeleteResponse.OffsetDeleteResponseTopic
        told = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                self.positions[request.group_id].pop((topic.name, part.partition_index), None)
                parts.append(
                    kind.OffsetDeleteResponsePartition(
                        version=0, partition_index=part.partition_index, error_code=0
                    )
                )
            told.append(kind(version=0, name=topic.name, partitions=parts))
        return OffsetDeleteResponse[0](error_code=0, throttle_time_ms=0, topics=told)
