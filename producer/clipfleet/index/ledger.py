"""What a run remembers of each item: in its manifest, and with a sink once the row is in a whole part."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from clipfleet.index.manifest import Manifest, signature
from clipfleet.index.sinks import Sink, SinkRow
from clipfleet.index.states import Known, State, Todo, decide
from clipfleet.schemas.errors import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from clipfleet.index.sources import Item
    from clipfleet.schemas.result import Result

__all__ = ["SKETCH", "Ledger", "Look", "UnderWay"]

Contents: TypeAlias = "Callable[[Item], tuple[Item, bytes]]"
# Among a result's notes: what the row's vector is known by, see ``clipfleet.store.sketch``.
SKETCH: Final = "sketch"

_ROWS_AT_ONCE: Final = 256
_PARTS: Final = "parts"  # in the manifest: how many whole parts it has heard of


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A picture that was sent and has no answer yet.

    Attributes:
        label: where it is, for people.
        id: its row's id.
        signature: what it was when it was sent; empty without a manifest.
        metadata: its row's metadata; empty without a sink.
        content: by which the same picture is known again; empty where pictures are not compared.
    """

    label: str
    id: str
    signature: bytes = b""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class Look:
    """What is to be done with an item.

    Attributes:
        item: itself, read where that was needed.
        one: what it is when it is sent.
        error: why it failed earlier.
        settled: whether there is nothing to be done.
        same_as: the id that has the same picture, so that it is not sent.
    """

    item: Item
    one: UnderWay
    error: RequestFailed | None = None
    settled: bool = False
    same_as: str = ""


class Ledger:
    """One run's memory.

    Args:
        manifest: where what became of each is kept; None = nowhere.
        sink: where vectors go; None: the fleet stores the rows. It is open, and its parts hold what they hold.
        retry_failed: whether to send those again that failed of themselves.
        content: reads an item's picture and tells by what it is known again; None: pictures are not compared.
    """

    def __init__(
        self, manifest: Manifest | None, sink: Sink | None, *, retry_failed: bool, content: Contents | None = None
    ) -> None:
        self._manifest = manifest
        self._sink = sink
        self._retry_failed = retry_failed
        self._content = content
        self._second = False
        self._rows: list[SinkRow] = []
        self._model = ""
        self._unsettled: dict[str, bytes] = {}  # written, but not in a whole part yet
        if manifest is not None:
            manifest.begin()
        if manifest is not None and sink is not None:
            self._take_over(manifest, sink)

    def look(self, item: Item) -> Look:
        """What is to be done with an item.

        Raises:
            RequestFailed: it is to be compared with others, and cannot be read.
        """
        if self._manifest is None:
            return Look(item, UnderWay(item.label, item.id, b"", self._kept(item)))
        now = signature(item)
        known = self._manifest.known(item.id)
        one = UnderWay(item.label, item.id, now, self._kept(item))
        if known is not None and decide(known, now, retry_failed=self._retry_failed) is not Todo.SEND:
            if self._content is not None and known.state is State.DONE and not known.content:
                # An earlier run has indexed it without asking.
                with suppress(RequestFailed):
                    self._manifest.has_content(item.id, self._content(item)[1])
            return Look(item, one, known.error, settled=True)
        if self._content is None:
            return Look(item, one)
        return self._compared(self._manifest, self._content, Look(item, one), known)

    def _compared(self, manifest: Manifest, contents: Contents, look: Look, known: Known | None) -> Look:
        """An item to be sent, unless another id has its content and it never had a row itself."""
        item, one = look.item, look.one
        content = known.content if known is not None and known.signature == one.signature else b""
        may_be_left = known is None or known.has_no_row
        same_as = self._same(manifest, content) if may_be_left and content else ""
        if not same_as:
            # Read now: what is hashed is what is sent.
            item, content = contents(item)
            same_as = self._same(manifest, content) if may_be_left else ""
        if same_as:
            manifest.duplicate(one.id, one.signature, content)
        return Look(item, replace(one, content=content), settled=bool(same_as), same_as=same_as)

    def _same(self, manifest: Manifest, content: bytes) -> str:
        return manifest.duplicates.kept(
            content, run=manifest.run, retry_failed=self._retry_failed, standing=self._second
        )

    def left_alone(self) -> int:
        """Begin the second pass: how many of this one's duplicates are to be sent, since nobody has their picture."""
        if self._manifest is None or self._content is None:
            return 0
        self._second = True
        return self._manifest.duplicates.leave_alone(run=self._manifest.run, retry_failed=self._retry_failed, met=True)

    def failed_duplicates(self) -> Iterator[tuple[str, RequestFailed]]:
        """This pass's duplicates of pictures that failed: each id, and why."""
        if self._manifest is not None and self._content is not None:
            yield from self._manifest.duplicates.failed(run=self._manifest.run)

    def is_alone(self, item: Item) -> bool:
        """Whether an item is one of those to be sent in the second pass."""
        known = None if self._manifest is None else self._manifest.known(item.id)
        return known is not None and known.state is State.ALONE

    def sent(self, one: UnderWay) -> None:
        """An item goes out."""
        if self._manifest is not None:
            self._manifest.sent(one.id, one.signature, one.content)
            # On disk before anybody can store it: what may have a row is never taken for another's duplicate.
            self._manifest.flush()

    def unsent(self, one: UnderWay) -> None:
        """An item that was to go out could not be read."""
        if self._manifest is not None:
            self._manifest.unsent(one.id)

    def answered(self, one: UnderWay, result: Result) -> None:
        """An item has its answer.

        Raises:
            SinkError: the sink cannot take its vector.
        """
        if result.error is None and self._sink is not None:
            if self._rows and self._model != result.model:
                self._write(self._sink, self._model)
            self._model = result.model
            self._rows.append(SinkRow(one.id, result.vector.buffer, one.metadata))
            self._unsettled[one.id] = one.signature
            if len(self._rows) >= _ROWS_AT_ONCE:
                self._write(self._sink, self._model)
        elif self._manifest is not None:
            sketch = result.notes.get(SKETCH, "")
            self._manifest.answered(one.id, one.signature, result.error, sketch if isinstance(sketch, str) else "")

    def close(self) -> None:
        """Everything is answered: nothing is left in memory.

        Raises:
            SinkError: the sink cannot take what was left.
        """
        if self._sink is not None:
            self._write(self._sink, self._model)
            self._settle(self._sink.close())
        if self._manifest is not None:
            self._manifest.flush()

    def wants(self, item: Item) -> bool:
        """Whether an item is going to be read, as far as the manifest alone tells."""
        known = None if self._manifest is None else self._manifest.known(item.id)
        if known is None or self._manifest is None:
            return True
        now = signature(item)
        is_sent = decide(known, now, retry_failed=self._retry_failed) is Todo.SEND
        if self._content is None:
            return is_sent
        if is_sent and known.has_no_row and known.content and known.signature == now:
            return not self._same(self._manifest, known.content)
        return is_sent or (known.state is State.DONE and not known.content)

    def _kept(self, item: Item) -> Mapping[str, Any]:
        return {} if self._sink is None else item.metadata

    def _write(self, sink: Sink, model: str) -> None:
        if self._manifest is not None:
            # Before a part can become whole: what it holds is known as sent, whenever this process ends.
            self._manifest.flush()
        rows, self._rows = self._rows, []
        self._settle(sink.write(rows, model=model))

    def _settle(self, ids: list[str]) -> None:
        for id_ in ids:
            now = self._unsettled.pop(id_, b"")
            if self._manifest is not None:
                self._manifest.answered(id_, now)
        if ids and self._manifest is not None and self._sink is not None:
            self._manifest.tell(_PARTS, str(self._sink.parts))

    def _take_over(self, manifest: Manifest, sink: Sink) -> None:
        """What is in whole parts is done, though the run that wrote the last one may have had no time to say so.

        In those parts alone: what an earlier one holds of a picture that is sent once more is what it was before.
        """
        for id_ in sink.held(int(manifest.told(_PARTS) or 0)):
            known = manifest.known(id_)
            if known is not None and known.state is State.SENT:
                manifest.answered(id_, known.signature)
        manifest.tell(_PARTS, str(sink.parts))
        manifest.flush()
