"""What is known of a run and of its shards; kept as JSON (``runs.py``)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FINISHED", "REVOKED", "RUNNING", "Run", "Shard", "totals"]

RUNNING: Final = "running"
FINISHED: Final = "finished"
REVOKED: Final = "revoked"


@dataclass(slots=True)
class Run:
    """One corpus on its way.

    Attributes:
        plan: ``Plan`` as JSON.
        tasks: Celery ids of the ``index_corpus`` tasks that asked for it and show its progress.
        began_ms: when, unix ms by Redis.
        state: ``running``, ``finished``, ``revoked``.
        ended_ms: when it ended; 0 before.
        switched: what became of its alias.
        asked: digest of what was asked for.
        closer: who switches its alias; empty = nobody.
        closing_ms: when that one's lease ends.
    """

    plan: dict[str, Any]
    tasks: list[str]
    began_ms: int
    state: str = RUNNING
    ended_ms: int = 0
    switched: dict[str, Any] = field(default_factory=dict)
    asked: str = ""
    closer: str = ""
    closing_ms: int = 0


@dataclass(slots=True)
class Shard:
    """One shard.

    Attributes:
        turn: the step that is to be run, or runs.
        owner: who runs it; empty = nobody.
        until_ms: when its lease ends.
        asked_ms: when a message for it was last sent.
        unit: how many of its units are finished.
        indexed: rows that Milvus acknowledged.
        failed: failures by code.
        skipped: files without a picture's suffix.
        duplicates: pictures met once more.
        incomplete: what hid nobody knows how many pictures: a broken shard or table, a folder that cannot be read or
            has nothing in it, a link that leads nowhere.
        failures: the first of them: id, label, code, message.
        moved_ms: when something was last done.
        stalls: steps in a row in which nothing was.
        ended: why it does nothing more: ``done``, or an error; empty while it goes on.
    """

    turn: int = 0
    owner: str = ""
    until_ms: int = 0
    asked_ms: int = 0
    unit: int = 0
    indexed: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    duplicates: int = 0
    incomplete: int = 0
    failures: list[dict[str, str]] = field(default_factory=list)
    moved_ms: int = 0
    stalls: int = 0
    ended: str = ""


def totals(shards: Iterable[Shard]) -> dict[str, Any]:
    """What all shards have done together."""
    shards = list(shards)
    failed: Counter[str] = Counter()
    for shard in shards:
        failed.update(shard.failed)
    return {
        "indexed": sum(shard.indexed for shard in shards),
        "failed": dict(failed),
        "skipped": sum(shard.skipped for shard in shards),
        "duplicates": sum(shard.duplicates for shard in shards),
        "incomplete": sum(shard.incomplete for shard in shards),
        "shards": len(shards),
        "shards_done": sum(bool(shard.ended) for shard in shards),
    }
