"""Milvus Lite is for up to 100,000 rows: beyond that an indexing run stops and names what to use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipfleet.schemas.errors import RequestFailed

if TYPE_CHECKING:
    from clipfleet.cli.settings import Settings

__all__ = ["RowGuard"]


class RowGuard:
    """Looks at the number of rows now and then, while an indexing run goes on.

    The rows are counted only when as many were sent as might make the difference: connecting to Milvus takes more
    than a second, which a folder of a few pictures shall not pay. Pictures that replace rows do not add any.
    """

    def __init__(self, settings: Settings, collection: str) -> None:
        self._settings = settings
        self._collection = collection
        self._next_look = 1_000

    def __call__(self, sent: int) -> str:
        """The reason to stop after ``sent`` pictures were sent, or an empty text."""
        if sent < self._next_look:
            return ""
        from clipfleet.store import StoreUnavailable  # noqa: PLC0415  imports pymilvus when it is used
        from clipfleet.store.lite import LITE_ROW_LIMIT, lite_advice  # noqa: PLC0415

        try:
            rows = self._rows()
        except StoreUnavailable:
            # Being restarted, say: what the run sends is waited for meanwhile, and so can this be.
            self._next_look = sent + 1_000
            return ""
        # What is still under way is not counted: look again before it can matter.
        self._next_look = sent + max(1_000, LITE_ROW_LIMIT - rows)
        return lite_advice(rows + 1) or ""

    def _rows(self) -> int:
        from clipfleet.store import Store, StoreConfig  # noqa: PLC0415  imports pymilvus when it is used

        store = Store(StoreConfig(self._settings.milvus_uri or "", self._settings.milvus_token))
        try:
            return store.count(self._collection)
        except RequestFailed:
            return 0  # no such collection yet
        finally:
            store.close()
