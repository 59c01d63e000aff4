"""Milvus itself, for the few commands that ask it without a worker."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from clipfleet.cli.run import usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clipfleet.cli.settings import Settings
    from clipfleet.store import Store

__all__ = ["opened"]


@contextmanager
def opened(settings: Settings) -> Iterator[Store]:
    """The store that ``settings`` name, closed at the end.

    Raises:
        CliError: usage error: they name none.
        ModuleNotFoundError: pymilvus or numpy is not installed.
    """
    if settings.milvus_uri is None:
        raise usage("which Milvus is it?", "Name it with --milvus-uri, or run it beside a 'clipfleet up'.")
    from clipfleet.store import Store, StoreConfig  # noqa: PLC0415  imports pymilvus when it is used

    store = Store(StoreConfig(settings.milvus_uri, settings.milvus_token, settings.milvus_ca_file))
    try:
        yield store
    finally:
        store.close()
