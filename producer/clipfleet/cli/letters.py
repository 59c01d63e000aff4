"""Dead letters, read: what was asked, what went wrong, whether it can be asked again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clipfleet.schemas.codec import decode_map
from clipfleet.schemas.errors import ErrorCode, ProtocolError, error_for
from clipfleet.schemas.limits import DEFAULT_MAX_REQUEST_BYTES
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clipfleet.cli.queue import DeadLetter, QueueView

__all__ = ["Letter", "letters"]


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter.

    Attributes:
        entry: its id in the stream of dead letters.
        request_id: the request's id.
        code: why it died.
        message: in words.
        deliveries: how often it was given to a worker.
        lane: where it waited.
        request: the request's map; empty when it was no valid msgpack.
    """

    entry: str
    request_id: str
    code: str
    message: str
    deliveries: str
    lane: str
    request: dict[str, Any] = field(repr=False)

    @property
    def pipeline(self) -> str:
        """The pipeline asked for; ``?`` when that cannot be told."""
        pipeline = self.request.get("pipeline")
        return pipeline if isinstance(pipeline, str) else "?"

    def again(self) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """(pipeline, inputs, options) to send once more.

        Raises:
            BadInput: it was never a valid request, or too large to be kept whole.
        """
        inputs = self.request.get("inputs")
        if self.pipeline == "?" or not isinstance(inputs, dict):
            raise error_for(ErrorCode.BAD_REQUEST, "what was kept of it is no request")
        for name, value in inputs.items():
            if isinstance(value, dict) and value.keys() == {"sha256", "size"}:
                size = value["size"]
                raise error_for(
                    ErrorCode.TOO_LARGE, f"its {name} of {counted(size, 'byte')} was too large to be kept; send it anew"
                )
        return self.pipeline, inputs, self.request.get("options") or {}

    def inputs_text(self) -> str:
        """The inputs in one line, pictures as their size."""
        return json.dumps(_plain(self.request.get("inputs")), ensure_ascii=False)

    def to_json(self, *, inputs: bool) -> dict[str, Any]:
        """As ``--json`` prints it."""
        line = {
            "entry": self.entry,
            "id": self.request_id,
            "pipeline": self.pipeline,
            "lane": self.lane,
            "deliveries": int(self.deliveries) if self.deliveries.isdigit() else None,
            "error": {"code": self.code, "message": self.message},
        }
        return {**line, "inputs": _plain(self.request.get("inputs"))} if inputs else line


def letters(view: QueueView) -> Iterator[Letter]:
    """The dead letters of a queue, oldest first."""
    for raw in view.dead_letters():
        fields = raw.fields
        yield Letter(
            raw.entry,
            fields.get("id", ""),
            fields.get("code", "?"),
            fields.get("message", ""),
            fields.get("deliveries", ""),
            fields.get("lane", ""),
            _request(raw),
        )


def _request(raw: DeadLetter) -> dict[str, Any]:
    try:
        return decode_map(raw.request, max_bytes=DEFAULT_MAX_REQUEST_BYTES)
    except ProtocolError:
        return {}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"<{counted(len(value), 'byte')}>"
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value
