"""One delivered stream entry and the request in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clipfleet.schemas.errors import error_for
from clipfleet.schemas.limits import MAX_TTL_MS, default_ttl_ms
from clipfleet.schemas.request import Envelope, InvalidRequest, Request, RequestReader

if TYPE_CHECKING:
    from clipfleet.schemas.errors import RequestFailed

__all__ = ["Entry", "open_entry"]


@dataclass(slots=True)
class Entry:
    """A stream entry that this process holds.

    Attributes:
        lane: key of the stream that it is in.
        stream_id: its id there; the milliseconds before the dash are ``enqueued_ms``.
        place: both: what enters both lanes in one millisecond has one id in both.
        id: the request's id, or the stream's where there is none.
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
    place: tuple[str, str]
    id: str
    enqueued_ms: int
    size: int
    deliveries: int
    read_at: float
    deadline_ms: int
    envelope: Envelope | None
    request: Request | None
    payload: bytes
    invalid: RequestFailed | None = None


def open_entry(
    lane: str, stream_id: str, fields: dict[bytes, bytes], reader: RequestReader, *, deliveries: int, read_at: float
) -> Entry:
    """Decode what a stream gave; never raises: an undecodable entry is an ``Entry`` with ``invalid``."""
    payload, deadline = fields.get(b"m"), fields.get(b"d")
    size = len(payload) if payload is not None and deadline is not None else 0
    enqueued_ms = int(stream_id.partition("-")[0])
    request: Request | None = None
    envelope: Envelope | None = None
    invalid: RequestFailed | None = None
    request_id = stream_id
    try:
        if payload is None:
            raise InvalidRequest("the stream entry has no field 'm'")
        request, envelope = reader.read(payload)
        request_id = request.id
    except InvalidRequest as error:
        envelope = error.envelope
        if envelope is not None:
            request_id = envelope.id
        invalid = error_for(error.code, str(error), request_id=request_id)
    if deadline is not None and deadline.isdigit() and len(deadline) < 16:
        # Admission sees to it that a request lives for 24 h at most; a bare XADD does not.
        deadline_ms = min(int(deadline), enqueued_ms + MAX_TTL_MS)
    else:
        deadline_ms = enqueued_ms + default_ttl_ms(request.pipeline if request else "")
    place = lane, stream_id
    return Entry(
        lane,
        stream_id,
        place,
        request_id,
        enqueued_ms,
        size,
        deliveries,
        read_at,
        deadline_ms,
        envelope,
        request,
        payload or b"",
        invalid,
    )
