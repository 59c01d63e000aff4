"""``index --field``: metadata keys that a collection keeps in typed columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from clipfleet.cli.errors import CliError
from clipfleet.cli.run import usage
from clipfleet.index.typed import FIELD_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clipfleet.cli.settings import Settings
    from clipfleet.store import CollectionInfo, Field, Store

__all__ = ["carried", "check_columns", "declare", "fields_of", "parse_fields"]

_FIELD: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,63})[:=](\w+)", re.ASCII)


def parse_fields(given: Sequence[str]) -> dict[str, str]:
    """Types by name, from ``year:int``.

    Raises:
        CliError: usage error: it is none, or a name comes twice.
    """
    fields: dict[str, str] = {}
    for each in given:
        found = _FIELD.fullmatch(each)
        if found is None or found[2] not in FIELD_TYPES:
            raise usage(f"--field {each}: NAME:TYPE, with a type of {', '.join(FIELD_TYPES)}")
        if found[1] in fields:
            raise usage(f"--field {each}: {found[1]} is declared twice")
        fields[found[1]] = found[2]
    return fields


def fields_of(fields: Mapping[str, str]) -> list[Field]:
    """As the store has them.

    Raises:
        CliError: usage error: a name that no collection can have, such as ``id``.
    """
    from clipfleet.schemas.errors import RequestFailed  # noqa: PLC0415
    from clipfleet.store import Field  # noqa: PLC0415

    try:
        return [Field(name, kind) for name, kind in fields.items()]  # type: ignore[arg-type]
    except RequestFailed as error:
        raise usage(f"--field: {error.message}") from None


def carried(old: CollectionInfo | None, fields: Mapping[str, str]) -> dict[str, str]:
    """The columns of a new collection: the old one's, else filters on them would be slow all at once, and these."""
    kept: dict[str, str] = {} if old is None else {field.name: str(field.type) for field in old.fields}
    return {**kept, **fields}


def check_columns(store: Store, collection: str, fields: Sequence[Field]) -> None:
    """Whether a collection, if it is there already, has these columns: it gets none afterwards.

    Raises:
        CliError: it has not.
        StoreUnavailable: not now.
    """
    found = store.describe(collection)
    if found is None or set(fields) <= set(found.fields):
        return
    has, wanted = (", ".join(f"{each.name}:{each.type}" for each in some) for some in (found.fields, fields))
    alias = collection if found.name != collection else f"{collection[:123]}_live"
    raise CliError(
        f"bad_request: collection {found.name} declares {has or 'no fields'}, not {wanted}: columns are declared when a"
        " collection is made",
        hint=f"Make a new one with them, behind an alias:  clipfleet index SOURCE... --reindex --collection {alias}"
        f" {' '.join(f'--field {each.name}:{each.type}' for each in fields)}",
    )


def declare(store: Store, settings: Settings, collection: str, fields: Sequence[Field]) -> None:
    """Make the collection with these columns for the fleet's model, or check that it has them.

    Workers would make it at the first row, without columns, and it never gets any afterwards.

    Raises:
        RequestFailed: ``bad_request``: it is there without them; ``model_mismatch``.
        Unavailable: no Redis, or no worker has ever said which model it is.
        StoreUnavailable: not now.
    """
    from clipfleet.cli.queue import QueueView  # noqa: PLC0415
    from clipfleet.schemas.errors import ErrorCode, Unavailable  # noqa: PLC0415

    with QueueView.open(settings.redis_url, settings.queue, settings.prefix) as view:
        fingerprint, dimension = view.model()
    if not fingerprint or not dimension:
        raise Unavailable(ErrorCode.UNAVAILABLE, f"no worker on queue {settings.queue!r} has told its model")
    store.ensure_collection(collection, fingerprint=fingerprint, dimension=dimension, fields=fields)
