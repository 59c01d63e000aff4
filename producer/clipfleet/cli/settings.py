"""Where the fleet is and how to speak to it: one frozen object, read once.

Order: a flag, then ``CLIPFLEET_<NAME>``, then the ecosystem's own name (``REDIS_URL``, ``MILVUS_URI``,
``MILVUS_TOKEN``), then a live ``.clipfleet`` here or in a parent folder, then localhost. Each variable may be
``<NAME>_FILE`` instead, holding the path of a file with the value (Docker and Kubernetes secrets); only
``MILVUS_CA_FILE`` is a path and stays one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from clipfleet.cli.errors import CliError, Exit
from clipfleet.schemas.errors import ProtocolError
from clipfleet.schemas.keys import QueueKeys
from clipfleet.schemas.limits import DEFAULT_PREFIX, DEFAULT_QUEUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clipfleet.cli.local.endpoints import Endpoints

__all__ = ["Flags", "Settings", "load", "redacted"]

LOCALHOST: Final = "redis://localhost:6379"
_ECOSYSTEM: Final = {
    "redis_url": "REDIS_URL",
    "milvus_uri": "MILVUS_URI",
    "milvus_token": "MILVUS_TOKEN",
    "milvus_ca_file": "MILVUS_CA_FILE",
}
_SCHEMES: Final = {"redis_url": ("redis", "rediss", "unix"), "milvus_uri": ("http", "https", "tcp")}


@dataclass(frozen=True, slots=True)
class Flags:
    """What every command takes on its command line; None = not given.

    Attributes:
        redis_url: ``--redis-url``.
        milvus_uri: ``--milvus-uri``.
        queue: ``--queue``.
        local: ``--local``.
        json: ``--json``.
        debug: ``--debug``.
    """

    redis_url: str | None = field(default=None, repr=False)
    milvus_uri: str | None = field(default=None, repr=False)
    queue: str | None = None
    local: bool = False
    json: bool = False
    debug: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the fleet is.

    Secrets (a password in a URL, the token) are in no ``repr``.

    Attributes:
        redis_url: ``redis://``, ``rediss://`` or ``unix://``.
        milvus_uri: the store, None when nobody named one.
        milvus_token: for it.
        milvus_ca_file: PEM file of the authorities that may sign its certificate; empty = those that gRPC knows.
        queue: the queue's name.
        prefix: what its keys start with.
        timeout_s: how long one request may take; None = the protocol's default.
        source: where the fleet was found, for people.
        milvus_is_lite: whether the store is the Milvus Lite of ``--local`` or ``up``.
        attended: whether the queue's worker is that of ``--local`` or ``up``, which starts another when it dies.
        environment: the ``CLIPFLEET_*`` variables, names without that prefix in lower case.
    """

    redis_url: str = field(repr=False)
    milvus_uri: str | None = field(repr=False)
    milvus_token: str = field(repr=False)
    milvus_ca_file: str
    queue: str
    prefix: str
    timeout_s: float | None
    source: str
    milvus_is_lite: bool
    attended: bool
    environment: Mapping[str, str] = field(repr=False)

    @property
    def keys(self) -> QueueKeys:
        """The keys of the queue."""
        return QueueKeys(self.queue, self.prefix)

    def line(self, *, store: bool = True) -> str:
        """The fleet in one line, without secrets; its store only when ``store``."""
        milvus = f", milvus {redacted(self.milvus_uri)}" if store and self.milvus_uri else ""
        return f"fleet: {redacted(self.redis_url)}, queue {self.queue}{milvus} (from {self.source})"


def load(
    flags: Flags, environ: Mapping[str, str] | None = None, *, live: tuple[Endpoints, Path] | None = None
) -> Settings:
    """Settings from ``flags``, ``environ`` (default: the process's) and ``live``, the local fleet that was found.

    Raises:
        CliError: usage error for a URL, a name or a number that cannot be one.
    """
    variables = _variables(os.environ if environ is None else environ)
    redis_url, source = _first(
        ("--redis-url", flags.redis_url),
        *_named(variables, "redis_url"),
        (_live_name(live), live[0].redis_url if live else None),
        ("the default", LOCALHOST),
    )
    # The store of a local fleet belongs to that fleet's Redis: never mix it with another one.
    ours = live[0] if live and live[0].redis_url == redis_url else None
    milvus_uri, _ = _first(
        ("--milvus-uri", flags.milvus_uri), *_named(variables, "milvus_uri"), ("", ours.milvus_uri if ours else None)
    )
    token, _ = _first(*_named(variables, "milvus_token"))
    ca_file, _ = _first(*_named(variables, "milvus_ca_file"))
    is_lite = ours is not None and milvus_uri == ours.milvus_uri
    queue, _ = _first(
        ("--queue", flags.queue),
        ("CLIPFLEET_QUEUE", variables.get("CLIPFLEET_QUEUE")),
        ("", ours.queue if ours else None),
        ("", DEFAULT_QUEUE),
    )
    prefix = variables.get("CLIPFLEET_PREFIX") or (ours.prefix if ours else DEFAULT_PREFIX)
    settings = Settings(
        redis_url=_url("redis_url", redis_url or LOCALHOST),
        milvus_uri=_url("milvus_uri", milvus_uri) if milvus_uri else None,
        milvus_token=token or "",
        milvus_ca_file="" if is_lite else ca_file or "",
        queue=queue or DEFAULT_QUEUE,
        prefix=prefix,
        timeout_s=_number("CLIPFLEET_TIMEOUT_S", variables.get("CLIPFLEET_TIMEOUT_S")),
        source=source,
        milvus_is_lite=is_lite,
        attended=ours is not None and ours.has_worker and (queue, prefix) == (ours.queue, ours.prefix),
        environment=_ours(variables),
    )
    try:
        _ = settings.keys
    except ProtocolError as error:
        raise CliError(str(error), exit_code=Exit.USAGE) from None
    return settings


def redacted(url: str) -> str:
    """``url`` without what is secret in it: the password, the query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    user = f"{parts.username or ''}:***@" if parts.password else ""
    return f"{parts.scheme}://{user}{host}{parts.path}"


def _ours(variables: Mapping[str, str]) -> dict[str, str]:
    """Our own variables, by the names of the settings: ``CLIPFLEET_MAX_DELAY_MS`` is ``max_delay_ms``."""
    start = "CLIPFLEET_"
    return {name.removeprefix(start).lower(): value for name, value in variables.items() if name.startswith(start)}


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those that concern us, empty ones dropped, each ``_FILE`` replaced by what its file holds."""
    ours = {
        name: value
        for name, value in environ.items()
        if value and (name.startswith("CLIPFLEET_") or {name, name.removesuffix("_FILE")} & {*_ECOSYSTEM.values()})
    }
    for name in [name for name in ours if name.endswith("_FILE") and not name.endswith("MILVUS_CA_FILE")]:
        path = ours.pop(name)
        try:
            value = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CliError(f"{name}: cannot read {path!r}: {error}", exit_code=Exit.USAGE) from None
        ours.setdefault(name.removesuffix("_FILE"), value)
    return ours


def _named(variables: Mapping[str, str], setting: str) -> list[tuple[str, str | None]]:
    names = (f"CLIPFLEET_{setting.upper()}", _ECOSYSTEM[setting])
    return [(name, variables.get(name)) for name in names]


def _first(*candidates: tuple[str, str | None]) -> tuple[str | None, str]:
    """The first value given, and who gave it."""
    for source, value in candidates:
        if value:
            return value, source
    return None, ""


def _live_name(live: tuple[Endpoints, Path] | None) -> str:
    if live is None:
        return ""
    endpoints, folder = live
    return f"{folder}, 'clipfleet {endpoints.command}' with pid {endpoints.pid}"


def _url(setting: str, value: str) -> str:
    flag, schemes = f"--{setting.replace('_', '-')}", _SCHEMES[setting]
    # What cannot be taken apart may hold a password anywhere, so none of it is shown, nor of urllib's own words.
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        unreadable = True
    else:
        outside = parts.query if parts.scheme == "unix" else parts.path + parts.query
        unreadable = "@" in outside or bool(parts.fragment)
    if value.partition("://")[0] not in schemes:
        wanted = ", ".join(f"{scheme}://" for scheme in schemes)
        raise CliError(f"{flag} must start with one of {wanted}", exit_code=Exit.USAGE)
    if unreadable:
        raise CliError(
            f"{flag} cannot be read as a URL",
            hint="In a user name or a password /, ?, # and @ are written %2F, %3F, %23 and %40.",
            exit_code=Exit.USAGE,
        )
    return value


def _number(name: str, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        raise CliError(f"{name} must be a number, not {value!r}", exit_code=Exit.USAGE) from None
    if not number > 0:
        raise CliError(f"{name} must be above 0, not {value!r}", exit_code=Exit.USAGE)
    return number
