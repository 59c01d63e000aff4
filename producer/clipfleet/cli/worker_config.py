"""A ``WorkerConfig`` from flags and environment: ``CLIPFLEET_<FIELD>`` for each of its fields."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clipfleet.cli.errors import CliError, Exit
from clipfleet.schemas.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clipfleet.cli.settings import Settings
    from clipfleet.worker.config import WorkerConfig

__all__ = ["build", "parse_roots"]


def build(settings: Settings, flags: Mapping[str, Any]) -> WorkerConfig:
    """The configuration of a worker for the fleet of ``settings``; ``flags`` are those that were given.

    Raises:
        CliError: usage error naming the setting that cannot be.
    """
    from clipfleet.worker.config import WorkerConfig  # noqa: PLC0415  needs the [worker] extra

    values: dict[str, Any] = {}
    for field in dataclasses.fields(WorkerConfig):
        raw = settings.environment.get(field.name)
        if raw is not None and field.name not in _FROM_SETTINGS:
            values[field.name] = _parse(f"CLIPFLEET_{field.name.upper()}", raw, str(field.type))
    # CLIPFLEET_ALLOW_ROOTS__photos=/data/photos
    nested = [
        f"{name.partition('__')[2]}={value}"
        for name, value in settings.environment.items()
        if name.startswith("allow_roots__")
    ]
    if nested:
        values["allow_roots"] = parse_roots(nested)
    values |= {name: value for name, value in flags.items() if value is not None}
    delay = flags.get("max_delay_ms")
    if isinstance(delay, str):  # the one flag that is a number or a word
        kind = str(WorkerConfig.__dataclass_fields__["max_delay_ms"].type)
        values["max_delay_ms"] = _parse("--max-delay-ms", delay, kind)
    if values.get("processes") == 0:
        raise CliError("processes must be 1 to 256, not 0", exit_code=Exit.USAGE)
    try:
        return WorkerConfig(
            redis_url=settings.redis_url,
            queue=settings.queue,
            prefix=settings.prefix,
            milvus_uri=settings.milvus_uri,
            milvus_token=settings.milvus_token,
            milvus_ca_file=settings.milvus_ca_file,
            **values,
        )
    except (ValueError, ProtocolError) as error:
        raise CliError(str(error), exit_code=Exit.USAGE) from None


def parse_roots(pairs: Iterable[str]) -> dict[str, Path]:
    """``NAME=DIR`` pairs as a map.

    Raises:
        CliError: usage error for what is no such pair or no directory.
    """
    roots: dict[str, Path] = {}
    for pair in pairs:
        name, equals, folder = pair.partition("=")
        if not (name and equals and folder):
            raise CliError(f"--allow-root takes NAME=DIR, not {pair!r}", exit_code=Exit.USAGE)
        if not Path(folder).is_dir():
            raise CliError(f"--allow-root {name}: {folder} is no directory", exit_code=Exit.USAGE)
        roots[name] = Path(folder).resolve()
    return roots


_FROM_SETTINGS: Final = frozenset(
    {"redis_url", "queue", "prefix", "milvus_uri", "milvus_token", "milvus_ca_file", "allow_roots"}
)
_TRUTH: Final = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def _csv(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _boolean(text: str) -> bool:
    try:
        return _TRUTH[text.lower()]
    except KeyError:
        raise ValueError(text) from None


# By the first word of the field's annotation: `int | None` is an int when it is given at all.
_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    "int": int,
    "float": float,
    "bool": _boolean,
    "str": str,
    "tuple[str,": _csv,
}


def _parse(name: str, raw: str, annotation: str) -> Any:
    if repr(raw) in annotation:  # a word of a Literal
        return raw
    parser = _PARSERS[annotation.split(maxsplit=1)[0]]
    try:
        return parser(raw)
    except ValueError:
        raise CliError(f"{name} cannot be {raw!r}", exit_code=Exit.USAGE) from None
