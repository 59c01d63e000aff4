"""One delivered stream entry and the request in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipfleet.schemas.errors import error_for
from clipfleet.schemas.limits import MAX_TTL_MS, default_ttl_ms
from clipfleet.schemas.request import Envelope, InvalidRequest, Request, decode_request

if TYPE_CHECKING:
    from clipfleet.schemas.errors import RequestFailed
    from clipfleet.schemas.keys import QueueKeys

__all__ = ["Entry", "open_entry"]


@dataclass(slots=True)
class Entry:
    """A stream entry that this process holds.

    Attributes:
        lane: key of the stream that it is in.
        stream_id: its id there; the milliseconds before the dash are ``enqueued_ms``.
        enqueued_ms: when it was enqueued, unix ms by the server's clock.
        size: bytes of ``m`` that admission counted; 0 for a bare XADD, which counts nothing.
        deliveries: how often it was delivered, this time included.
        read_at: when this process got it, by the monotonic clock.
        deadline_ms: unix ms by the server's clock.
        envelope: where its result goes; None when nobody can be answered.
        request: what is asked; None when it could not be decoded.
        payload: ``m`` as it came, for a dead letter; dropped where it is large and the request can be run.
        invalid: why it could not be decoded.
    """

    lane: str
    stream_id: str
    enqueued_ms: int
    size: int
    deliveries: int
    read_at: float
    deadline_ms: int
    envelope: Envelope | None
    request: Request | None
    payload: bytes
    invalid: RequestFailed | None = None

    @property
    def place(self) -> tuple[str, str]:
        """Its lane and its id there: what enters both lanes in one millisecond has one id in both."""
        return self.lane, self.stream_id

    @property
    def id(self) -> str:
        """The request's id, or the stream's where there is none."""
        return self.envelope.id if self.envelope else self.stream_id


def open_entry(
    lane: str,
    stream_id: str,
    fields: dict[bytes, bytes],
    keys: QueueKeys,
    *,
    deliveries: int,
    read_at: float,
    max_bytes: int,
) -> Entry:
    """Decode what a stream gave; never raises: an undecodable entry is an ``Entry`` with ``invalid``."""
    payload, deadline = fields.get(b"m"), fields.get(b"d")
    size = len(payload) if payload is not None and deadline is not None else 0
    enqueued_ms = int(stream_id.partition("-")[0])
    entry = Entry(lane, stream_id, enqueued_ms, size, deliveries, read_at, 0, None, None, payload or b"")
    try:
        if payload is None:
            raise InvalidRequest("the stream entry has no field 'm'")
        entry.request, entry.envelope = decode_request(payload, keys, max_bytes=max_bytes)
    except InvalidRequest as error:
        entry.envelope = error.envelope
        entry.invalid = error_for(error.code, str(error), request_id=entry.id)
    entry.deadline_ms = _deadline(deadline, entry)
    return entry


def _deadline(deadline: bytes | None, entry: Entry) -> int:
    if deadline is not None and deadline.isdigit() and len(deadline) < 16:
        # Admission sees to it that a request lives for 24 h at most; a bare XADD does not.
        return min(int(deadline), entry.enqueued_ms + MAX_TTL_MS)
    return entry.enqueued_ms + default_ttl_ms(entry.request.pipeline if entry.request else "")
