"""A request as it travels: field ``m`` of a stream entry."""

from __future__ import annotations

import os
import re
from binascii import b2a_base64
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from clipfleet.schemas.codec import SMALL_BYTES, decode_map, encode_around, encode_part, encode_text, small_map
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

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Envelope",
    "InvalidRequest",
    "Request",
    "RequestReader",
    "decode_request",
    "encode_request",
    "forget_drawn_ids",
    "new_id",
]


ID_CHARS: Final = 22  # of 64 that there are: 132 random bits
IDS_AT_ONCE: Final = 64
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_EACH_ID: Final = re.compile(f".{{{ID_CHARS}}}")
_fresh: Final[list[str]] = []
# A child that went on with its parent's would give out the same ones.
os.register_at_fork(after_in_child=_fresh.clear)


# A request as our clients write it: an id of theirs, a short name, inputs, and where the answer goes, in this order.
OURS_BEGINS: Final = b"\x85\xa1v\x01\xa2id\xb6"
_OURS: Final = re.compile(
    re.escape(OURS_BEGINS) + rb"[A-Za-z0-9_-]{22}\xa8pipeline[\xa1-\xbf]([A-Za-z0-9_.-]{1,31})\xa6inputs"
)
_ID_AT, _NAME_AT = slice(8, 30), 40
INBOX_KEY_END: Final = 24  # of a key, which a producer's random bits are in
MAX_INBOXES: Final = 1_024


def new_id() -> str:
    """A fresh request id with 128 random bits and more: knowing an id is the right to read its result.

    They are drawn many at a time. Asking the system for each costs three times as much, and lets another thread of
    the process run in between: a client's own would then take requests over one by one.
    """
    while True:
        try:
            return _fresh.pop()  # one step: two threads never get the same
        except IndexError:
            drawn = b2a_base64(os.urandom(ID_CHARS * IDS_AT_ONCE * 6 // 8), newline=False).translate(_URL_SAFE).decode()
            _fresh.extend(_EACH_ID.findall(drawn))


def forget_drawn_ids() -> None:
    """Draw anew for the next id.

    For whoever begins in a process that may be the child of a fork which Python was not told of, as servers written in
    C make them: a child that went on with what its parent has drawn would give out the same ids.
    """
    _fresh.clear()


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


# One for each request: made so, a named tuple takes half of the time that calling its class does.
envelope_of: Final[Callable[[tuple[str, str, int]], Envelope]] = partial(tuple.__new__, Envelope)


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
        return encode_request(
            self.id, self.pipeline, self.inputs, self.options, self.reply_to, self.reply_ttl_ms, self.trace
        )

    def envelope(self, keys: QueueKeys) -> Envelope:
        """Where this request's result goes, defaults filled in."""
        own = keys.result(self.id)
        return _envelope(self.id, self.reply_to or own, self.reply_ttl_ms, own)


def encode_request(
    request_id: str,
    pipeline: str,
    inputs: dict[str, Any],
    options: dict[str, Any],
    reply_to: str | None,
    reply_ttl_ms: int | None,
    trace: str | None,
) -> bytes:
    """A request of these fields (see ``Request``) as msgpack; absent ones are left out."""
    usual = not options and reply_ttl_ms is None and trace is None and type(inputs) is dict
    if usual and reply_to is not None and len(request_id) == ID_CHARS and request_id.isascii():
        for value in inputs.values():
            if type(value) is bytes and len(value) > SMALL_BYTES:
                break  # put together from parts it would be copied once more: an 8 MB picture takes twice as long
        else:
            before, after = _around(pipeline, reply_to)
            return b"".join((OURS_BEGINS, request_id.encode(), before, encode_part(inputs), after))
    message: dict[str, Any] = {"v": VERSION, "id": request_id, "pipeline": pipeline, "inputs": inputs}
    if options:
        message["options"] = options
    if reply_to is not None:
        message["reply_to"] = reply_to
    if reply_ttl_ms is not None:
        message["reply_ttl"] = reply_ttl_ms
    if trace is not None:
        message["trace"] = trace
    return encode_around(message, (inputs, options))


@lru_cache(maxsize=256)  # a producer has one inbox and a few pipelines
def _around(pipeline: str, reply_to: str) -> tuple[bytes, bytes]:
    """What stands before and after the inputs of each request of one producer for one pipeline."""
    before = b"\xa8pipeline" + encode_text(pipeline) + b"\xa6inputs"
    return before, b"\xa8reply_to" + encode_text(reply_to)


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


class RequestReader:
    """Decodes requests of one queue, and what all of a producer's have in common but once.

    The small ones of our own clients differ in id, pipeline and inputs alone: where the bytes around these are those
    of a request that was read before, the inputs are all that is left to be decoded. Whatever else there is, is read
    as ``decode_request`` does; the outcome is the same.

    Args:
        keys: of the queue.
        max_bytes: that a request may have.
    """

    def __init__(self, keys: QueueKeys, max_bytes: int = DEFAULT_MAX_REQUEST_BYTES) -> None:
        self._keys = keys
        self._max_bytes = max_bytes
        self._small = min(SMALL_BYTES, max_bytes)
        self._inboxes: dict[bytes, tuple[bytes, str]] = {}  # by a tail's end, the tail and its inbox

    def read(self, data: bytes) -> tuple[Request, Envelope]:
        """As ``decode_request``."""
        known = self._inboxes.get(data[-INBOX_KEY_END:])
        if known is not None and len(data) <= self._small:
            tail, reply_to = known
            head = _OURS.match(data)
            if head is not None and data.endswith(tail):
                name = head[1]
                # Its length as the message has it, in the byte before it.
                if data[_NAME_AT - 1] - 0xA0 == len(name):
                    inputs = small_map(data[head.end() : -len(tail)], 2)
                    if inputs is not None:
                        own = data[_ID_AT].decode()
                        envelope = envelope_of((own, reply_to, INBOX_TTL_MS))
                        return Request(own, name.decode(), inputs, {}, reply_to), envelope
        request, envelope = decode_request(data, self._keys, max_bytes=self._max_bytes)
        if known is None and envelope.reply_ttl_ms == INBOX_TTL_MS and request.reply_to is not None:
            self._learn(request.reply_to)
        return request, envelope

    def _learn(self, reply_to: str) -> None:
        if self._keys.is_inbox(reply_to):
            if len(self._inboxes) >= MAX_INBOXES:
                self._inboxes.clear()
            tail = b"\xa8reply_to" + encode_text(reply_to)
            self._inboxes[tail[-INBOX_KEY_END:]] = tail, reply_to


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
