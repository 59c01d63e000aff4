"""What Milvus says to an indexing run before it begins: what the run would be refused with, and which rows would be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clipfleet.cli.declaring import carried, check_columns, fields_of
from clipfleet.cli.errors import CliError
from clipfleet.cli.index_manifest import INTO
from clipfleet.cli.local import find_live
from clipfleet.cli.milvus import opened
from clipfleet.cli.reindexing import check_names
from clipfleet.cli.settings import load
from clipfleet.index import Manifest
from clipfleet.schemas.errors import ClipfleetError, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clipfleet.cli.indexing import Plan
    from clipfleet.cli.run import Run
    from clipfleet.cli.settings import Settings
    from clipfleet.index import Item
    from clipfleet.store import CollectionInfo

__all__ = ["Milvus", "ask_milvus"]

_IDS_AT_ONCE: Final = 250


@dataclass(frozen=True, slots=True)
class Milvus:
    """What it was asked.

    Attributes:
        plan: the run's, with the columns that its collection would have.
        settings: of the Milvus that answered; None where none did.
        collection: what is there of the plan's collection, if it has typed columns: rows must fit them.
    """

    plan: Plan
    settings: Settings | None = None
    collection: CollectionInfo | None = None

    def refusal(self, item: Item) -> RequestFailed | None:
        """Why the collection would refuse an item's row for its metadata, as the store tells it."""
        if self.collection is None:
            return None
        import numpy as np  # noqa: PLC0415  it is there where Milvus was asked

        from clipfleet.store import Row, encode_rows  # noqa: PLC0415

        vector = np.ones(self.collection.dimension, np.float32)
        _, refused = encode_rows([Row(item.id, vector, item.metadata)], self.collection)
        return refused.get(0)

    def rows(self, pages: Iterable[list[str]]) -> int | None:
        """How many of these ids have a row; None where nobody can tell."""
        if self.settings is None:
            return None
        found = 0
        try:
            with opened(self.settings) as store:
                if store.describe(self.plan.sending.collection) is None:
                    return 0
                for page in pages:
                    for start in range(0, len(page), _IDS_AT_ONCE):
                        found += len(store.present(self.plan.sending.collection, page[start : start + _IDS_AT_ONCE]))
        except RequestFailed:
            return None
        return found


def ask_milvus(run: Run, plan: Plan) -> Milvus:
    """Ask the Milvus that the run itself would ask, where it is known which one it is.

    Raises:
        CliError: what the run itself would be refused with.
    """
    if plan.files is not None:
        return Milvus(plan)
    asked = load(run.flags)
    local = run.flags.local or asked.source == "the default"
    settings = load(run.flags, live=find_live(Path.cwd())) if local else asked
    why = "which one it is is not known here (--milvus-uri)"
    if settings.milvus_uri is not None:
        try:
            return _checked(settings, plan)
        except CliError:
            raise
        except (ClipfleetError, ModuleNotFoundError) as error:
            why = str(error)
    elif plan.reindex is None and not plan.fields:
        return Milvus(plan)  # a run without a word of Milvus needs none to be told of
    run.out.note(f"Milvus could not be asked whether something of these names stands against it: {why}")
    return Milvus(plan)


def _checked(settings: Settings, plan: Plan) -> Milvus:
    with opened(settings) as store:
        if plan.reindex is None:
            name = plan.sending.collection
            check_columns(store, name, fields_of(plan.fields))
            found = store.describe(name)
            return Milvus(plan, settings, found if found is not None and found.fields else None)
        begun = ""
        if plan.manifest is not None and plan.manifest.exists() and not plan.fresh:
            with Manifest(plan.manifest) as manifest:
                begun = manifest.told(INTO)
        fields = carried(check_names(store, plan.reindex, begun), plan.fields)
        return Milvus(replace(plan, fields=fields), settings)
