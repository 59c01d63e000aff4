"""Reading a URL once, strictly: what is fetched is exactly what was checked."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from clipfleet.schemas.errors import ErrorCode, error_for

__all__ = ["Target", "read_url"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_BAD = re.compile(r"[\x00-\x1f\x7f]")
_HOST = re.compile(r"[A-Za-z0-9._\-]{1,255}|[0-9A-Fa-f:.]{2,45}")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_MAX_URL = 8192
# Everything that RFC 3986 lets stand in a path or query; "%" because what is escaped already stays as it is.
_SAFE = "%/:@!$&'()*+,;=~-._?"


class Target(NamedTuple):
    """Where to connect and what to ask for.

    Attributes:
        secure: https.
        host: ASCII, without brackets.
        port: as given, or the scheme's own.
        path: path and query, percent-encoded, as it goes into the request line.
        url: all of it together, without fragment: the base of a relative redirect.
    """

    secure: bool
    host: str
    port: int
    path: str
    url: str


def read_url(url: str) -> Target:
    """Take a URL apart. Blanks around it are dropped; what is not ASCII or is a blank inside is encoded, once.

    Raises:
        RequestFailed: ``bad_request`` if it is no absolute URL; ``fetch_forbidden`` if its scheme is not http or
            https or it carries a user name.
    """
    if not isinstance(url, str):
        raise error_for(ErrorCode.BAD_REQUEST, "a url must be text")
    url = url.strip(" \t\r\n")
    scheme = _SCHEME.match(url)
    if scheme is None or len(url) > _MAX_URL or _BAD.search(url):
        raise error_for(ErrorCode.BAD_REQUEST, "a url must be absolute, such as https://example.com/a.jpg")
    if scheme[1].lower() not in ("http", "https"):
        raise error_for(ErrorCode.FETCH_FORBIDDEN, "only http and https are fetched")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = _host(parts.hostname or "")
        path = _encode(parts.path or "/") + ("?" + _encode(parts.query) if parts.query else "")
    except ValueError as problem:  # UnicodeError is one
        raise error_for(ErrorCode.BAD_REQUEST, f"no valid url: {type(problem).__name__}") from None
    if "@" in parts.netloc:
        raise error_for(ErrorCode.FETCH_FORBIDDEN, "a url with a user name is not fetched")
    if not path.startswith("/"):
        raise error_for(ErrorCode.BAD_REQUEST, "no valid url: its path must start with a slash")
    secure = parts.scheme == "https"
    if port is None:
        port = 443 if secure else 80
    bracketed = f"[{host}]" if ":" in host else host
    return Target(secure, host, port, path, f"{parts.scheme}://{bracketed}:{port}{path}")


def _host(host: str) -> str:
    if not host.isascii():
        host = host.encode("idna").decode("ascii")
    if not _HOST.fullmatch(host):
        raise ValueError("no valid host name")
    return host.lower()


def _encode(text: str) -> str:
    return quote(_ESCAPE.sub("%25", text), safe=_SAFE)
