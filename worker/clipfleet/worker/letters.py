"""Dead letters: what is kept of a request that will not be run (again)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from clipfleet.schemas.codec import decode_map, encode_map
from clipfleet.schemas.errors import ProtocolError
from clipfleet.schemas.limits import DEAD_MAX_INPUT_BYTES

if TYPE_CHECKING:
    from clipfleet.schemas.errors import RequestFailed
    from clipfleet.worker.entry import Entry

__all__ = ["dead_letter"]


def dead_letter(entry: Entry, error: RequestFailed) -> list[str | int | bytes]:
    """Field, value, ... of a dead letter, enough to see what happened and to send a small request again."""
    return [
        *("id", entry.id),
        *("request", _shortened(entry.payload)),
        *("code", str(error.code)),
        *("message", error.message[:2_000].encode("utf-8", "replace")),
        *("deliveries", entry.deliveries),
        *("lane", entry.lane),
        *("enqueued_ms", entry.enqueued_ms),
    ]


def _shortened(payload: bytes) -> bytes:
    """``payload`` with inputs over 64 KiB replaced by hash and size, so that 1,000 letters stay under 64 MiB."""
    if len(payload) <= DEAD_MAX_INPUT_BYTES:
        return payload
    try:
        message = decode_map(payload, max_bytes=len(payload))
        inputs = message.get("inputs")
        if isinstance(inputs, dict):
            message["inputs"] = {name: _short(value) for name, value in inputs.items()}
        shortened = encode_map(message)
    except ProtocolError:
        shortened = b""
    return shortened if 0 < len(shortened) <= DEAD_MAX_INPUT_BYTES else encode_map({"payload": _digest(payload)})


def _short(value: object) -> object:
    raw = value.encode() if isinstance(value, str) else value
    return _digest(raw) if isinstance(raw, bytes) and len(raw) > DEAD_MAX_INPUT_BYTES // 4 else value


def _digest(data: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
