"""A request as it travels: field ``m`` of a stream entry."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clipfleet.schemas.codec import decode_map, encode_map
from clipfleet.schemas.errors import ErrorCode, ProtocolError
from clipfleet.schemas.keys import ID, NAME, QueueKeys
from clipfleet.schemas.limits import (
    DEFAULT_MAX_REQUEST_BYTES,
    DEFAULT_REPLY_TTL_MS,
    INBOX_TTL_MS,
    MAX_REPLY_TTL_MS,
    MAX_TRACE_CHARS,
    MIN_REPLY_TTL_MS,
    VERSION,
)

__all__ = ["Envelope", "InvalidRequest", "Request", "decode_request", "new_id"]


def new_id() -> str:
    """A fresh request id with 128 random bits: knowing an id is the right to read its result."""
    return secrets.token_urlsafe(16)


class Envelope(NamedTuple):
    """What every major version keeps, so that any request can at least be answered.

    Attributes:
        id: the request's id.
        reply_to: the key that its result is pushed to.
        reply_ttl_ms: how long the result stays there.
    """

    id: str
    reply_to: str
    reply_ttl_ms: int


class InvalidRequest(ProtocolError):
    """No valid request, but perhaps one that can be answered.

    Attributes:
        envelope: where to send the error result; None when not even that could be read.
    """

    def __init__(
        self,
        message: str,
        code: ErrorCode = ErrorCode.BAD_REQUEST,
        *,
        envelope: Envelope | None = None,
    ) -> None:
        super().__init__(message, code)
        self.envelope = envelope


@dataclass(slots=True)
class Request:
    """One request.

    (It is not frozen, since a frozen dataclass takes five times as long to make.)

    Attributes:
        id: ``[A-Za-z0-9_-]{1,64}``.
        pipeline: which pipeline of the worker runs it.
        inputs: pipeline's inputs; pictures are bytes, ``{url}`` or ``{path}``.
        options: pipeline's options.
        reply_to: the key that gets the result; None = ``result:<id>``.
        reply_ttl_ms: how long a result key lives, 1,000 to 86,400,000; None = 10 minutes.
        trace: W3C traceparent.
    """

    id: str
    pipeline: str
    inputs: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    reply_to: str | None = None
    reply_ttl_ms: int | None = None
    trace: str | None = None

    def encode(self) -> bytes:
        """This request as msgpack; absent fields are left out."""
        message: dict[str, Any] = {
            "v": VERSION,
            "id": self.id,
            "pipeline": self.pipeline,
            "inputs": self.inputs,
        }
        if self.options:
            message["options"] = self.options
        if self.reply_to is not None:
            message["reply_to"] = self.reply_to
        if self.reply_ttl_ms is not None:
            message["reply_ttl"] = self.reply_ttl_ms
        if self.trace is not None:
            message["trace"] = self.trace
        return encode_map(message)

    def envelope(self, keys: QueueKeys) -> Envelope:
        """Where this request's result goes, defaults filled in."""
        own = keys.result(self.id)
        return _envelope(self.id, self.reply_to or own, self.reply_ttl_ms, own)


def decode_request(
    data: bytes, keys: QueueKeys, *, max_bytes: int = DEFAULT_MAX_REQUEST_BYTES
) -> tuple[Request, Envelope]:
    """The request in ``data``, checked, and where its result goes.

    Raises:
        InvalidRequest: with ``.envelope`` where the sender can still be answered; ``bad_request`` or ``too_large``.
    """
    try:
        message = decode_map(data, max_bytes=max_bytes)
    except ProtocolError as error:
        raise InvalidRequest(str(error), error.code) from None
    envelope = _read_envelope(message, keys)
    version = message.get("v")
    if type(version) is not int or version != VERSION:
        raise InvalidRequest(
            f"version {version!r:.40} is not spoken here; this worker speaks {VERSION}", envelope=envelope
        )
    pipeline = message.get("pipeline")
    if type(pipeline) is not str or not NAME.match(pipeline):
        raise InvalidRequest("'pipeline' must match [A-Za-z0-9_.-]{1,64}", envelope=envelope)
    inputs, options, trace = message.get("inputs"), message.get("options"), message.get("trace")
    if type(inputs) is not dict:
        inputs = _absent("inputs", inputs, envelope)
    if type(options) is not dict:
        options = _absent("options", options, envelope)
    if trace is not None and (type(trace) is not str or len(trace) > MAX_TRACE_CHARS):
        raise InvalidRequest("'trace' must be a W3C traceparent string", envelope=envelope)
    request = Request(envelope.id, pipeline, inputs, options, message.get("reply_to"), message.get("reply_ttl"), trace)
    return request, envelope


def _absent(name: str, value: object, envelope: Envelope) -> dict[str, Any]:
    if value is not None:
        raise InvalidRequest(f"'{name}' must be a map", envelope=envelope)
    return {}


def _read_envelope(message: dict[str, Any], keys: QueueKeys) -> Envelope:
    request_id = message.get("id")
    if type(request_id) is not str or not ID.match(request_id):
        raise InvalidRequest("'id' must match [A-Za-z0-9_-]{1,64}")
    own, reply_to = keys.result(request_id), message.get("reply_to")
    if reply_to is None:
        reply_to = own
    elif type(reply_to) is not str or not keys.may_reply_to(reply_to, request_id):
        # No envelope: answering on the default key would be a guess, and writing to the given one an exploit.
        raise InvalidRequest("'reply_to' must be this request's result key or an inbox of this queue")
    reply_ttl = message.get("reply_ttl")
    if reply_ttl is not None and (type(reply_ttl) is not int or not MIN_REPLY_TTL_MS <= reply_ttl <= MAX_REPLY_TTL_MS):
        raise InvalidRequest(
            f"'reply_ttl' must be {MIN_REPLY_TTL_MS} to {MAX_REPLY_TTL_MS} ms",
            envelope=_envelope(request_id, reply_to, None, own),
        )
    return _envelope(request_id, reply_to, reply_ttl, own)


def _envelope(request_id: str, reply_to: str, reply_ttl_ms: int | None, own: str) -> Envelope:
    if reply_to == own:
        return Envelope(request_id, own, reply_ttl_ms or DEFAULT_REPLY_TTL_MS)
    # An inbox is renewed by each push and by nothing else: its TTL is the protocol's, not the request's.
    return Envelope(request_id, reply_to, INBOX_TTL_MS)
