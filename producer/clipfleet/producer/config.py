"""A client's settings, read once, and how a request becomes bytes under them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from clipfleet.producer.connection.address import Address, parse_url
from clipfleet.producer.core.core import Core
from clipfleet.producer.limits import MAX_PAYLOAD_BYTES
from clipfleet.schemas.errors import ErrorCode, ProtocolError, QueueFull, error_for
from clipfleet.schemas.keys import ID, NAME, Lane, QueueKeys
from clipfleet.schemas.limits import (
    DEFAULT_PREFIX,
    DEFAULT_QUEUE,
    MAX_REPLY_TTL_MS,
    MAX_TRACE_CHARS,
    MAX_TTL_MS,
    MAX_UNANSWERED,
    MIN_REPLY_TTL_MS,
    default_ttl_ms,
)
from clipfleet.schemas.request import encode_request, new_id
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    import ssl

    from clipfleet.producer.requests import NewRequest

__all__ = [
    "CLOSED",
    "TO_INBOX",
    "Config",
    "Delivery",
    "LaneName",
    "ReplyKind",
    "checked_timeout",
    "is_id",
    "make_config",
]

LaneName: TypeAlias = Literal["interactive", "bulk"]
ReplyKind: TypeAlias = Literal["inbox", "key"]

CLOSED: Final = "this client is closed: make a new one"
LONGEST_BLOCK_S: Final = 2.0
# Nothing here is behind the queue's own refusal: its time is unknown, and one round trip frees many places.
OWN_RETRY_AFTER_S: Final = 0.05


def checked_timeout(given: object) -> float:
    """``given``, if it is a request's timeout in seconds.

    Raises:
        TypeError: no number.
        ValueError: not within 1 ms to 24 h.
    """
    if not isinstance(given, int | float):
        raise TypeError(f"a timeout is a number of seconds, not {type(given).__name__}")
    if not 0.001 <= given <= MAX_TTL_MS / 1000:
        raise ValueError(f"a timeout is 0.001 to {MAX_TTL_MS // 1000} seconds, not {given}")
    return given


@dataclass(frozen=True, slots=True)
class Config:
    """What a client was told when it was made; see ``Client`` for the meaning of each."""

    address: Address
    keys: QueueKeys
    timeout_s: float | None
    lane: Lane
    wait_for_worker: bool
    replicated: bool
    max_unanswered: int
    io_timeout_s: float

    @property
    def block_s(self) -> float:
        """How long the inbox read blocks: well within the socket's patience."""
        return min(LONGEST_BLOCK_S, self.io_timeout_s / 2)

    def producer_name(self) -> str:
        """A new name: the ACL user, so that an ACL can keep producers out of each other's inboxes, and 128 bits."""
        return f"{self.address.username or 'default'}.{secrets.token_urlsafe(16)}"

    def core(self, producer: str) -> Core:
        """A new core under these settings."""
        return Core(
            self.keys,
            producer,
            block_s=self.block_s,
            wait_for_worker=self.wait_for_worker,
            replicated=self.replicated,
        )

    def timeout_of(self, request: NewRequest) -> float:
        """Seconds that ``request`` may take.

        Raises:
            TypeError: no number.
            ValueError: not within 1 ms to 24 h.
        """
        given = request.timeout if request.timeout is not None else self.timeout_s
        return default_ttl_ms(request.pipeline) / 1000 if given is None else checked_timeout(given)

    def no_room(self) -> QueueFull:
        """Why one more than ``max_unanswered`` is refused: memory here and in the inbox is bounded."""
        most = counted(self.max_unanswered, "request")
        return QueueFull(OWN_RETRY_AFTER_S, f"this client has {most} unanswered already")


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where a result goes and how long it stays there.

    Attributes:
        reply: ``inbox`` of this client, or a ``key`` of its own that anybody who knows the id can read.
        reply_ttl_ms: how long the key lives; None = 10 minutes.
        trace: W3C traceparent.

    Raises:
        RequestFailed: ``bad_request`` for values out of bounds.
    """

    reply: ReplyKind = "inbox"
    reply_ttl_ms: int | None = None
    trace: str | None = None

    def __post_init__(self) -> None:
        ttl = self.reply_ttl_ms
        if self.reply not in {"inbox", "key"}:
            raise error_for(ErrorCode.BAD_REQUEST, f"reply is 'inbox' or 'key', not {self.reply!r}")
        if ttl is not None and not MIN_REPLY_TTL_MS <= ttl <= MAX_REPLY_TTL_MS:
            raise error_for(ErrorCode.BAD_REQUEST, f"reply_ttl_ms is {MIN_REPLY_TTL_MS} to {MAX_REPLY_TTL_MS}")
        if self.trace is not None and len(self.trace) > MAX_TRACE_CHARS:
            raise error_for(ErrorCode.BAD_REQUEST, f"a trace has at most {MAX_TRACE_CHARS} characters")

    def encode(self, request: NewRequest, inbox_key: str) -> tuple[str, bytes]:
        """The request's id and its bytes.

        Raises:
            RequestFailed: ``bad_request`` for what the wire format does not carry, ``too_large`` above 64 MiB.
        """
        request_id = request.id
        if request_id is None:
            request_id = new_id()
        elif not is_id(request_id):
            raise error_for(ErrorCode.BAD_REQUEST, "an id matches [A-Za-z0-9_-]{1,64}")
        if not is_name(request.pipeline):
            raise error_for(ErrorCode.BAD_REQUEST, "a pipeline's name matches [A-Za-z0-9_.-]{1,64}")
        reply_to = inbox_key if self.reply == "inbox" else None
        try:
            payload = encode_request(
                request_id, request.pipeline, request.inputs, request.options, reply_to, self.reply_ttl_ms, self.trace
            )
        except ProtocolError as error:
            raise error_for(error.code, str(error), request_id=request_id) from None
        if len(payload) > MAX_PAYLOAD_BYTES:
            text = f"a request of {len(payload)} bytes is not sent: at most {MAX_PAYLOAD_BYTES} are"
            raise error_for(ErrorCode.TOO_LARGE, text, request_id=request_id)
        return request_id, payload


TO_INBOX: Final = Delivery()


@lru_cache(maxsize=1_024)  # there are few, and each comes with every request
def is_name(value: str) -> bool:
    """Whether ``value`` may be a pipeline's name."""
    return NAME.match(value) is not None


def is_id(value: object) -> bool:
    """Whether ``value`` may be a request's id."""
    return isinstance(value, str) and ID.match(value) is not None


def make_config(  # noqa: PLR0913 - settings, all by name
    url: str,
    *,
    queue: str,
    prefix: str,
    timeout: float | None,
    lane: LaneName,
    wait_for_worker: bool,
    durability: Literal["replica"] | None,
    max_unanswered: int = MAX_UNANSWERED,
    io_timeout: float = 5.0,
    ssl_context: ssl.SSLContext | None = None,
) -> Config:
    """Checked settings.

    Raises:
        TypeError: for a URL, a queue or a prefix that is no ``str``.
        ValueError: for what cannot be; its text holds no password.
    """
    for name, value, example in (
        ("url", url, "redis://localhost:6379"),
        ("queue", queue, DEFAULT_QUEUE),
        ("prefix", prefix, DEFAULT_PREFIX),
    ):
        if not isinstance(value, str):
            raise TypeError(f"{name} is a str such as {example!r}, not {type(value).__name__}")
    address = parse_url(url, ssl_context)
    if durability not in {None, "replica"}:
        raise ValueError(f"durability is None or 'replica', not {durability!r}")
    if not 1 <= max_unanswered <= MAX_UNANSWERED:
        raise ValueError(f"max_unanswered is 1 to {MAX_UNANSWERED}, not {max_unanswered}")
    if io_timeout <= 0:
        raise ValueError(f"io_timeout is above 0 seconds, not {io_timeout}")
    try:
        keys = QueueKeys(queue, prefix)
    except ProtocolError as error:
        raise ValueError(str(error)) from None
    config = Config(
        address, keys, timeout, Lane(lane), wait_for_worker, durability == "replica", max_unanswered, io_timeout
    )
    if not NAME.match(config.producer_name()):
        raise ValueError("the URL's user name becomes part of a key: [A-Za-z0-9_.-], at most 41 characters")
    return config
