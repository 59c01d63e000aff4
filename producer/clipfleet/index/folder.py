"""Index folders of pictures through a client."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clipfleet.index.files import printable, read_picture
from clipfleet.index.walk import Found, walk
from clipfleet.schemas.errors import ErrorCode, RequestFailed

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from clipfleet.producer import Client
    from clipfleet.producer.requests import NewRequest

__all__ = ["Outcome", "Report", "index_folder"]

# Failures that say nothing of the picture: nobody is there to take it.
_FLEET_GONE: Final = frozenset(
    {ErrorCode.UNAVAILABLE, ErrorCode.QUEUE_FULL, ErrorCode.EXPIRED, ErrorCode.STORE_FAILED, ErrorCode.CANCELLED}
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one picture.

    Attributes:
        path: the file, printable.
        id: its row's id.
        error: why it was not indexed; None when it was.
    """

    path: str
    id: str
    error: RequestFailed | None = None


@dataclass(slots=True)
class Report:
    """What became of all.

    Attributes:
        indexed: pictures whose row Milvus has acknowledged.
        failed: how many failed, by error code.
        seconds: how long it took.
        stopped: why it ended before the sources did; empty when it did not.
        skipped: other files in the folders, which have no picture's suffix.
    """

    indexed: int = 0
    failed: Counter[ErrorCode] = field(default_factory=Counter)
    seconds: float = 0.0
    stopped: str = ""
    skipped: int = 0

    @property
    def found(self) -> int:
        """Pictures seen."""
        return self.indexed + self.failed.total()

    @property
    def rate(self) -> float:
        """Pictures per second."""
        return self.found / self.seconds if self.seconds else 0.0


def index_folder(
    client: Client,
    sources: Sequence[str | os.PathLike[str]],
    *,
    collection: str = "images",
    max_in_flight: int = 256,
    on_outcome: Callable[[Outcome], None] | None = None,
    guard: Callable[[int], str] | None = None,
) -> Report:
    """Index every picture below ``sources``; see ``walk`` for what is taken and which ids they get.

    Metadata of each row: ``path`` (relative to its source) and ``name`` (the file's). Nothing is listed into memory;
    a full queue is waited for; one bad picture never stops the others. When ``max_in_flight`` pictures in a row fail
    because nobody is there (no worker, no Redis, no store) the run is ``stopped``: a million more would fail alike.

    Args:
        client: of the fleet; make it with ``lane="bulk"`` so that live queries go first, and ``wait_for_worker=True``
            so that a worker or Redis may be restarted meanwhile.
        sources: folders and single files.
        collection: where the rows go.
        max_in_flight: how many pictures are under way at most.
        on_outcome: called with each outcome, in the order found.
        guard: called with the number of pictures sent before each one; a text ends the run, and is ``stopped``.

    Raises:
        FileNotFoundError: a source does not exist.
    """
    run = _Run(collection, guard, patience=max_in_flight)
    report, began = Report(), time.monotonic()
    for result in client.map(run.requests([Path(source) for source in sources]), max_in_flight=max_in_flight):
        for outcome in (*run.unsent(), run.answered(result.error)):
            _count(report, outcome, on_outcome)
    for outcome in run.unsent():
        _count(report, outcome, on_outcome)
    report.seconds, report.stopped, report.skipped = time.monotonic() - began, run.stopped, run.skipped
    return report


class _Run:
    """The pictures between walk and answer, in order."""

    def __init__(self, collection: str, guard: Callable[[int], str] | None, *, patience: int) -> None:
        self.stopped = ""
        self.skipped = 0
        self._patience = patience
        self._unanswered = 0
        self._collection = collection
        self._guard = guard
        self._order: deque[tuple[Found, RequestFailed | None]] = deque()

    def requests(self, sources: Sequence[Path]) -> Iterator[NewRequest]:
        """A request for each readable picture; what cannot be read is kept for ``unsent``."""
        from clipfleet.producer import requests  # noqa: PLC0415  so that the walk alone needs no redis

        sent = 0
        for found in walk(sources, on_skipped=self._skip):
            if self._guard is not None and not self.stopped:
                self.stopped = self._guard(sent)
            if self.stopped:
                return
            try:
                if found.error is not None:
                    raise found.error
                data = read_picture(found.path)
            except RequestFailed as error:
                self._order.append((found, error))
                continue
            self._order.append((found, None))
            metadata = {"path": found.id, "name": printable(found.path.name)}
            yield requests.index_image(data, id=found.id, metadata=metadata, collection=self._collection)
            sent += 1

    def _skip(self, _path: Path) -> None:
        self.skipped += 1

    def unsent(self) -> Iterator[Outcome]:
        """Failures that come before the next answer."""
        while self._order and self._order[0][1] is not None:
            found, error = self._order.popleft()
            yield _outcome(found, error)

    def answered(self, error: RequestFailed | None) -> Outcome:
        """The next answer."""
        gone = error is not None and error.code in _FLEET_GONE
        self._unanswered = self._unanswered + 1 if gone else 0
        if self._unanswered >= self._patience and not self.stopped:
            self.stopped = f"the last {self._unanswered} pictures were not answered: {error}"
        return _outcome(self._order.popleft()[0], error)


def _outcome(found: Found, error: RequestFailed | None) -> Outcome:
    return Outcome(printable(str(found.path)), found.id, error)


def _count(report: Report, outcome: Outcome, on_outcome: Callable[[Outcome], None] | None) -> None:
    if outcome.error is None:
        report.indexed += 1
    else:
        report.failed[outcome.error.code] += 1
    if on_outcome is not None:
        on_outcome(outcome)
