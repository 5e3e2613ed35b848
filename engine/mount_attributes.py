"""The extended attributes in which a mount tells programs what it shows: `fs` gives, `engine.unlocked` reads them."""

from __future__ import annotations

from typing import Final

BACKING: Final = "user.topicfs.backing"
"""Of the mount's root: the path of the backing directory."""

LOG_DIRECTORIES: Final = "user.topicfs.log_directories"
"""Of the mount's root: the paths of all log directories, with a zero byte between them. A read-only mount may have
several."""

FIRST_OFFSET: Final = "user.topicfs.first_offset"
"""Of a partition's directory and of views: the first offset."""

NEXT_OFFSET: Final = "user.topicfs.next_offset"
"""Of a partition's directory and of views: the offset behind the last committed record."""

COMMITTED: Final = "user.topicfs.committed."
"""Of a topic's inbox, with the name of a batch behind it: how many records were committed under that name; empty where
none is remembered."""

WARNING: Final = "user.topicfs.warning."
"""Of a topic's inbox, with the name of a batch behind it: what its committer should know, in words; empty where
there is nothing, or where it is not remembered any more."""
