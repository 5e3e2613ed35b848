"""A topic that is to be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that is to be made, here or in a cluster.

    partitions  how many; None for what the store's, or the cluster's, settings say
    settings    the topic's own settings
    """

    topic: str
    partitions: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
