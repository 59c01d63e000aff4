"""What a run remembers of each item: in its manifest, and with a sink once the row is in a whole part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from clipfleet.index.manifest import Manifest, State, Todo, decide, signature
from clipfleet.index.sinks import Sink, SinkRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clipfleet.index.sources import Item
    from clipfleet.schemas.errors import RequestFailed
    from clipfleet.schemas.result import Result

__all__ = ["Ledger", "UnderWay"]

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
    """

    label: str
    id: str
    signature: bytes = b""
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    """One run's memory.

    Args:
        manifest: where what became of each is kept; None = nowhere.
        sink: where vectors go; None: the fleet stores the rows. It is open, and its parts hold what they hold.
        retry_failed: whether to send those again that failed of themselves.
    """

    def __init__(self, manifest: Manifest | None, sink: Sink | None, *, retry_failed: bool) -> None:
        self._manifest = manifest
        self._sink = sink
        self._retry_failed = retry_failed
        self._rows: list[SinkRow] = []
        self._model = ""
        self._unsettled: dict[str, bytes] = {}  # written, but not in a whole part yet
        if manifest is not None and sink is not None:
            self._take_over(manifest, sink)

    def look(self, item: Item) -> tuple[UnderWay, RequestFailed | None, bool]:
        """What an item is when it is sent; and why it failed earlier, and whether an earlier run has settled it."""
        if self._manifest is None:
            return UnderWay(item.label, item.id, b"", self._kept(item)), None, False
        one = UnderWay(item.label, item.id, signature(item), self._kept(item))
        known = self._manifest.known(item.id)
        if known is None or decide(known, one.signature, retry_failed=self._retry_failed) is Todo.SEND:
            return one, None, False
        return one, known.error, True

    def sent(self, one: UnderWay) -> None:
        """An item goes out."""
        if self._manifest is not None:
            self._manifest.sent(one.id, one.signature)

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
            self._manifest.answered(one.id, one.signature, result.error)

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
        return known is None or decide(known, signature(item), retry_failed=self._retry_failed) is Todo.SEND

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
