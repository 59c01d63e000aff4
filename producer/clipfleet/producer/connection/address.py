"""Where Redis is: one URL, read strictly."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from urllib.parse import SplitResult

__all__ = ["Address", "parse_url"]

DEFAULT_PORT: Final = 6379
_VERIFY: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_TLS_OPTIONS: Final = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}


@dataclass(frozen=True, slots=True)
class Address:
    """One Redis server.

    Attributes:
        host: name or address; empty for a unix socket.
        port: TCP port.
        path: path of a unix socket; empty for TCP.
        username: ACL user; empty = ``default``.
        password: never shown by ``repr``.
        db: database number.
        tls: how to speak TLS; None = plain.
    """

    host: str = "localhost"
    port: int = DEFAULT_PORT
    path: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    db: int = 0
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


def parse_url(url: str, tls: ssl.SSLContext | None = None) -> Address:
    """``redis://``, ``rediss://`` (TLS) or ``unix://`` with ``[user:password@]``, ``/db`` or ``?db=``.

    ``rediss://`` takes redis-py's own options: ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile``,
    ``ssl_cert_reqs`` (none, optional, required) and ``ssl_check_hostname`` (true, false); or give ``tls``.

    Raises:
        ValueError: for anything else; its text never holds the password.
    """
    if url.partition("://")[0] not in {"redis", "rediss", "unix"}:
        raise ValueError("a Redis URL starts with redis://, rediss:// or unix://")
    parts = _split(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    db = options.pop("db", "") or ("" if parts.scheme == "unix" else parts.path.strip("/"))
    tls_options = {name: options.pop(name) for name in _TLS_OPTIONS & options.keys()}
    if options:
        raise ValueError(f"unknown option in the Redis URL: {', '.join(sorted(options))}")
    if db and not db.isdecimal():
        raise ValueError("the database in the Redis URL is a number")
    if parts.scheme != "rediss" and (tls_options or tls is not None):
        raise ValueError("TLS options need a rediss:// URL")
    if parts.scheme == "rediss" and tls is None:
        tls = _context(tls_options)
    unix = parts.scheme == "unix"
    return Address(
        host="" if unix else parts.hostname or "localhost",
        port=parts.port or DEFAULT_PORT,
        path=unquote(parts.path) if unix else "",
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        db=int(db or 0),
        tls=tls,
    )


def _split(url: str) -> SplitResult:
    """The parts of a URL, or an error without any of them.

    A ``/``, ``?`` or ``#`` in a password ends the host part early; urllib's own errors, and ours about the database,
    would then show a piece of the password.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        readable = False
    else:
        outside = parts.query if parts.scheme == "unix" else parts.path + parts.query
        readable = "@" not in outside and not parts.fragment
    if not readable:
        raise ValueError("this Redis URL cannot be read: /, ?, # and @ in a password are written %2F, %3F, %23, %40")
    return parts


def _context(options: dict[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    verify = options.get("ssl_cert_reqs", "required")
    if verify not in _VERIFY:
        raise ValueError(f"ssl_cert_reqs is none, optional or required, not {verify!r}")
    context.check_hostname = options.get("ssl_check_hostname", "true").lower() == "true" and verify == "required"
    context.verify_mode = _VERIFY[verify]
    if "ssl_certfile" in options:
        context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    return context
