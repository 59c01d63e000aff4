"""Index what sources give through a client."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, cast

from clipfleet.index.ledger import Ledger, UnderWay
from clipfleet.index.meter import Meter
from clipfleet.index.processes import UNSENT, Processes
from clipfleet.index.reconcile import Chosen
from clipfleet.index.sending import Sending
from clipfleet.index.sources import Failure, Item, Seen, Skip, open_sources
from clipfleet.index.sources.far import read_ahead
from clipfleet.index.sources.item import Stored
from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clipfleet.index.manifest import Manifest
    from clipfleet.index.sinks import Sink
    from clipfleet.index.sources import Event, Source
    from clipfleet.producer import Client
    from clipfleet.schemas.result import Result

__all__ = ["Outcome", "Report", "index_sources"]

T = TypeVar("T")
# Failures that say nothing of the picture: nobody is there to take it.
_FLEET_GONE: Final = frozenset(
    {ErrorCode.UNAVAILABLE, ErrorCode.QUEUE_FULL, ErrorCode.EXPIRED, ErrorCode.STORE_FAILED, ErrorCode.CANCELLED}
)
# A table may hold millions of bad rows in a row, all of them found while the pictures before it are under way.
_MOST_WAITING: Final = 10_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one picture.

    Attributes:
        path: where it came from, printable: a file, ``shard.tar/0001.jpg``, ``urls.csv:7``.
        id: its row's id.
        error: why it was not indexed; None when it was.
        whole: whether the error is that of a whole shard or table, which is not done then.
        earlier: whether an earlier run has found that out, and this one has not sent it.
        same_as: the id that has the same picture, so that this one was not sent; empty where it was.
    """

    path: str
    id: str
    error: RequestFailed | None = None
    whole: bool = False
    earlier: bool = False
    same_as: str = ""


@dataclass(slots=True)
class Report:
    """What became of all.

    Attributes:
        indexed: pictures whose row Milvus has acknowledged.
        failed: how many failed, by error code; those too that an earlier run found so.
        seconds: how long it took.
        stopped: why it ended before the sources did; empty when it did not.
        skipped: other files of folders and shards, which have no picture's suffix.
        duplicates: pictures that came once more under the same id, or, with ``dedupe``, under another; none was sent.
        incomplete: shards and tables that are not done, since they end too early or cannot be read.
        earlier: pictures that an earlier run has indexed, and that have not changed since.
    """

    indexed: int = 0
    failed: Counter[ErrorCode] = field(default_factory=Counter)
    seconds: float = 0.0
    stopped: str = ""
    skipped: int = 0
    duplicates: int = 0
    incomplete: list[str] = field(default_factory=list)
    earlier: int = 0

    @property
    def found(self) -> int:
        """Pictures seen."""
        return self.indexed + self.earlier + self.failed.total()

    @property
    def rate(self) -> float:
        """Pictures per second, without those of earlier runs."""
        return (self.found - self.earlier) / self.seconds if self.seconds else 0.0


def index_sources(  # noqa: PLR0913  each by its name
    client: Client | Processes,
    sources: Sequence[str | os.PathLike[str] | Source],
    *,
    collection: str = "images",
    max_in_flight: int = 256,
    on_outcome: Callable[[Outcome], None] | None = None,
    guard: Callable[[int], str] | None = None,
    sending: Sending | None = None,
    manifest: Manifest | None = None,
    retry_failed: bool = False,
    sink: Sink | None = None,
    meter: Meter | None = None,
    dedupe: bool = False,
) -> Report:
    """Index every picture of ``sources``; see ``open_sources`` for what they may be.

    Nothing is listed into memory; a full queue is waited for; one bad picture never stops the others. When
    ``max_in_flight`` pictures in a row fail because nobody is there (no worker, no Redis, no store) the run is
    ``stopped``: a million more would fail alike. So it is when workers forbid each of the first addresses.

    Args:
        client: of the fleet; make it with ``lane="bulk"`` so that live queries go first, and ``wait_for_worker=True``
            so that a worker or Redis may be restarted meanwhile. Or ``Processes``, each with such a client.
        sources: names of sources, or what ``open_sources`` made of them with columns of its own.
        collection: where the rows go.
        max_in_flight: how many pictures are under way at most.
        on_outcome: called with each outcome, in the order found.
        guard: called with the number of pictures sent before each one; a text ends the run, and is ``stopped``.
        sending: how pictures travel, and where their rows go; its collection is the one that counts.
        manifest: what became of each; with one, what an earlier run has done is not done again.
        retry_failed: send those again that failed of themselves, too.
        sink: where vectors go instead of a collection; open, and closed at the end.
        meter: told what takes time.
        dedupe: send a picture once, under the first of its ids; see ``duplicates``. Needs a manifest.

    Raises:
        ValueError: ``dedupe`` without a manifest.
        FileNotFoundError: a source does not exist.
        SourceError: a source cannot be used so.
        SinkError: the sink cannot be written.
    """
    if dedupe and manifest is None:
        raise ValueError("dedupe needs a manifest: which pictures there are is kept in it")
    began = time.monotonic()
    sending = replace(sending or Sending(collection), vectors=sink is not None)
    contents = sending.with_content if dedupe else None
    ledger = Ledger(manifest, sink, retry_failed=retry_failed, content=contents)
    run = _Run(ledger, meter or Meter(), guard, on_outcome, patience=max_in_flight)

    def carry_out(sources: Sequence[Source]) -> None:
        with Seen() as seen:
            if isinstance(client, Processes):
                results = client.map(run.made(sources, seen, _to_be_read_there), sending, run.meter)
            else:
                results = client.map(run.made(sources, seen, sending.request), max_in_flight=max_in_flight)
            for result in results:
                run.answered(result)

    opened = _opened(sources)
    carry_out(opened)
    if not run.report.stopped and run.left_alone():
        carry_out([Chosen(source, ledger.is_alone) for source in opened])
    if not run.report.stopped:
        run.end_duplicates()
    ledger.close()
    run.report.seconds = time.monotonic() - began
    return run.report


def _to_be_read_there(item: Item) -> Item:
    """An item that can be given to another process."""
    return replace(item, picture=item.picture.read()) if isinstance(item.picture, Stored) else item


_Given: TypeAlias = "str | os.PathLike[str] | Source"


def _opened(sources: Sequence[_Given]) -> list[Source]:
    if all(isinstance(source, str | os.PathLike) for source in sources):
        return open_sources(cast("list[str]", sources))
    opened: list[Source] = []
    for source in sources:
        opened += open_sources([source]) if isinstance(source, str | os.PathLike) else [source]
    return opened


class _Run:
    """The pictures between source and answer, in order."""

    def __init__(
        self,
        ledger: Ledger,
        meter: Meter,
        guard: Callable[[int], str] | None,
        on_outcome: Callable[[Outcome], None] | None,
        *,
        patience: int,
    ) -> None:
        self.report = Report()
        self._patience = patience
        self._unanswered = 0
        self._ledger = ledger
        self.meter = meter
        self._guard = guard
        self._on_outcome = on_outcome
        self._sent = 0
        # What is under way, and the outcomes that wait for their turn.
        self._order: deque[UnderWay | Outcome] = deque()

    def made(self, sources: Sequence[Source], seen: Seen, make: Callable[[Item], T]) -> Iterator[T]:
        """What is made of each picture that is to be sent, unless ``make`` raises ``RequestFailed``."""
        began = time.monotonic()
        found = (event for source in sources for event in source.events(seen))
        with closing(read_ahead(found, self._ledger.wants)) as events:
            for event in events:
                if self._guard is not None and not self.report.stopped:
                    self.report.stopped = self._guard(self._sent)
                if self.report.stopped:
                    return
                if (made := self._take(event, make)) is not None:
                    self.meter.made(time.monotonic() - began)
                    yield made
                    began = time.monotonic()
                    self._sent += 1

    def _take(self, event: Event, make: Callable[[Item], T]) -> T | None:
        match event:
            case Skip():
                if event.reason == Skip.OTHER:
                    self.report.skipped += event.count
                elif event.reason == Skip.DUPLICATE:
                    self.report.duplicates += event.count
            case Failure():
                self._settled(Outcome(event.label, event.id, event.error, event.whole))
            case Item():
                return self._item(event, make)
        return None

    def _item(self, item: Item, make: Callable[[Item], T]) -> T | None:
        try:
            look = self._ledger.look(item)
            if look.settled:
                outcome = Outcome(item.label, item.id, look.error, earlier=not look.same_as, same_as=look.same_as)
            else:
                made = make(look.item)
                self._ledger.sent(look.one)
                self._order.append(look.one)
                return made
        except RequestFailed as unsent:
            # Not for the manifest: what could not be read costs nothing to be tried again.
            outcome = Outcome(item.label, item.id, unsent)
        self._settled(outcome)
        return None

    def left_alone(self) -> int:
        """How many that were taken for duplicates are to be sent after all."""
        alone = self._ledger.left_alone()
        self.report.duplicates -= alone
        return alone

    def end_duplicates(self) -> None:
        """Duplicates of what failed have failed, too."""
        for id_, error in self._ledger.failed_duplicates():
            self.report.duplicates -= 1
            self._tell(Outcome(id_, id_, error))

    def answered(self, result: Result) -> None:
        """The next answer."""
        error = result.error
        self.meter.answered(result.timing)
        gone = error is not None and (error.code in _FLEET_GONE or self._refuses_all(error))
        self._unanswered = self._unanswered + 1 if gone else 0
        if self._unanswered >= self._patience and not self.report.stopped:
            self.report.stopped = (
                f"the last {counted(self._unanswered, 'picture was', 'pictures were')} not answered: {error}"
            )
        one = cast("UnderWay", self._order.popleft())
        if UNSENT in result.notes:
            self._ledger.unsent(one)
        else:
            self._ledger.answered(one, result)
        self._tell(Outcome(one.label, one.id, error))
        while self._order and isinstance(self._order[0], Outcome):
            self._tell(cast("Outcome", self._order.popleft()))

    def _refuses_all(self, error: RequestFailed) -> bool:
        """Whether no worker may fetch addresses at all, as it seems from the start."""
        return error.code is ErrorCode.FETCH_FORBIDDEN and not self.report.indexed

    def _settled(self, outcome: Outcome) -> None:
        """Tell at once what nothing comes before; else it waits for its turn, so that outcomes keep their order."""
        if not self._order or len(self._order) > _MOST_WAITING:
            self._tell(outcome)
        else:
            self._order.append(outcome)

    def _tell(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            self.report.failed[outcome.error.code] += 1
        elif outcome.same_as:
            self.report.duplicates += 1
        elif outcome.earlier:
            self.report.earlier += 1
        else:
            self.report.indexed += 1
        if outcome.whole and outcome.path not in self.report.incomplete:
            self.report.incomplete.append(outcome.path)
        if self._on_outcome is not None:
            self._on_outcome(outcome)
