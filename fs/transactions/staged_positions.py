"""Positions of groups in an open transaction: files that are read when it is committed.

transactions/t1/groups/<group>/<topic>-<n>                    as groups/<group>/<topic>-<n>
transactions/t1/groups/<group>/members/<member>/<topic>-<n>   where the partition is a member's own
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from topicfs.engine.errors import EngineError, InvalidNameError, OffsetOutOfRangeError, PositionMovedError
from topicfs.engine.files.birth import birth
from topicfs.engine.format.paths import parse_partition_directory
from topicfs.engine.groups.groups import Groups, PositionCommit
from topicfs.engine.groups.names import named
from topicfs.engine.partition.partition import Partition
from topicfs.engine.staging.staging import Parts, Staging
from topicfs.engine.store.store import Store
from topicfs.engine.transactions.coordinator import Chunk
from topicfs.fs import errors
from topicfs.fs.positions import offset_of, parse_position

GROUPS: Final = "groups"
MEMBERS: Final = "members"

_LONGEST: Final = 200
"""Bytes of a position, at most."""


class _Place(NamedTuple):
    """What a file sets: the position of a group in a partition, as a member of it, or as nobody of its members."""

    group: str
    member: str | None
    key: tuple[str, int]


class _Noted(NamedTuple):
    """What a position was written for: the partition that had its name then, and the id of the member."""

    partition: Partition
    member_id: str | None


@dataclass(frozen=True, slots=True)
class StagedPositions:
    """The positions of groups in open transactions.

    await_closing  waits until what was written to a partition by files that are closed is in its log
    _noted         by file: what it was written for, of those that were written since the start
    """

    store: Store
    await_closing: Callable[[str, int], None]
    _noted: dict[Parts, _Noted] = field(default_factory=dict)

    def note(self, parts: Parts) -> None:
        """Note what a file is written for, if it is a position: another partition of that name, or another worker, is
        refused by the commit."""
        with suppress(EngineError, OSError, errors.BadInputError, errors.NotFoundError):
            place = self._place(parts)
            members = {} if place.member is None else Groups.of(self.store).members(place.group)
            member = members.get(place.member or "")
            partition = self.store.partition(*place.key)
            self._noted[parts] = _Noted(partition, None if member is None else member.member_id)

    def forget(self, transaction: str) -> None:
        """Forget what was noted of a transaction that has ended, or begins."""
        for parts in [each for each in list(self._noted) if each[0] == transaction]:
            self._noted.pop(parts, None)

    def check_directory(self, parts: Parts) -> None:
        """Refuse a directory of a transaction that is none of a group, or of one that is not there."""
        groups = Groups.of(self.store)
        match parts[1:]:
            case (first,) if first == GROUPS:
                return
            case (first, group) if first == GROUPS:
                groups.state(named(group))
                return
            case (first, _, second) if (first, second) == (GROUPS, MEMBERS):
                return
            case (first, group, second, member) if (first, second) == (GROUPS, MEMBERS):
                if named(member) not in groups.members(named(group)):
                    raise errors.NotFoundError(f"{'/'.join(parts)}: there is no such member")
                return
        raise errors.NotSupportedError(
            f"{'/'.join(parts)}: a transaction has no directories but {GROUPS}, {GROUPS}/<group>, and in that {MEMBERS}"
        )

    def is_scratch(self, parts: Parts) -> bool:
        """Tell whether a file is only its writer's."""
        if not parts[-1].startswith("."):
            return False
        try:
            self.check_file(parts)
        except (errors.BadInputError, errors.NotFoundError):
            return True
        return False

    def check_file(self, parts: Parts) -> None:
        """Refuse a file whose name is of no position."""
        place = self._place(parts)
        Groups.of(self.store).state(place.group)

    def _place(self, parts: Parts) -> _Place:
        match parts[1:]:
            case (first, group, name) if first == GROUPS:
                member = None
            case (first, group, second, member, name) if (first, second) == (GROUPS, MEMBERS):
                member = named(member)
            case _:
                raise errors.BadInputError(f"{'/'.join(parts)}: expected the name of a position in a group")
        try:
            topic, number, unwanted = parse_partition_directory(name)
        except InvalidNameError as error:
            raise errors.BadInputError(f"{'/'.join(parts)}: {error}") from None
        if unwanted or name not in self.store:
            raise errors.NotFoundError(f"{'/'.join(parts)}: there is no partition {name}")
        return _Place(named(group), member, (topic, number))

    def read(self, staging: Staging, files: Iterable[Parts]) -> list[PositionCommit]:
        """Read positions. An error names the file."""
        return [self._read(staging, parts) for parts in files]

    def _read(self, staging: Staging, parts: Parts) -> PositionCommit:
        try:
            place = self._place(parts)
        except errors.NotFoundError:
            # ENOENT of the commit would say that the transaction is gone, as one that was committed is.
            raise PositionMovedError(
                f"{'/'.join(parts[1:])}: {parts[-1]} was deleted after it was written"
            ) from None
        said = b"".join(bytes(block) for block in staging.blocks(parts))
        try:
            if len(said) > _LONGEST:
                raise errors.BadInputError(f"expected at most {_LONGEST} bytes, found {len(said)}")
            lines = said.decode("utf-8", "replace").removesuffix("\n").split("\n")
            if len(lines) > 1:
                raise errors.BadInputError(f"expected one position, found {len(lines)} lines")
            wanted = parse_position(lines[0])
            self.await_closing(*place.key)
            offset = offset_of(wanted.place, self.store.partition(*place.key))
        except errors.BadInputError as error:
            raise errors.BadInputError(f"{'/'.join(parts[1:])}: {error}") from None
        expected = {place.key: wanted.expected} if wanted.is_guarded else {}
        noted = self._noted.get(parts)
        if noted is not None:
            return PositionCommit(
                place.group,
                {place.key: offset},
                expected,
                place.member,
                noted.member_id,
                (noted.partition,),
            )
        # It was written before a restart. Only the time tells then what it was written for.
        partition = self.store.partition(*place.key)
        if birth(partition.directory).made_ns > staging.status(parts).st_ctime_ns:
            raise PositionMovedError(f"{'/'.join(parts[1:])}: {partition.name} was made after it was written")
        return PositionCommit(place.group, {place.key: offset}, expected, place.member)

    def check(self, positions: list[PositionCommit]) -> list[Chunk]:
        """Return the records of positions. An error says which of them cannot be set now."""
        try:
            with Groups.of(self.store).in_transaction(positions) as chunks:
                return chunks
        except OffsetOutOfRangeError as error:
            # Here the offset is not a name that was looked up, but what was written.
            raise errors.BadInputError(str(error)) from None
