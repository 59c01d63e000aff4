"""``milvus_insert``, ``milvus_search`` and ``milvus_delete``: each makes as few calls as its batch allows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from clipfleet.operators.operator import BatchOperator, Noted, Opened, Place
from clipfleet.schemas.codec import encode_map
from clipfleet.schemas.errors import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from clipfleet.store import Store

__all__ = ["MilvusDelete", "MilvusInsert", "MilvusSearch", "milvus_delete", "milvus_insert", "milvus_search"]

# Larger batches are quicker for the store; 5 ms more or less are nothing to somebody who indexes.
WRITE_BATCH, WRITE_DELAY_S = 512, 0.005
READ_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class _OfModel(BatchOperator):
    """What the store's operators have in common.

    Attributes:
        model: whose vectors they are; None: the pipeline's model, or the worker's.
        fingerprint: of what made the vectors, where that is no model alone (a model and ``reduce_dim``, say).
    """

    model: str | None = None
    fingerprint: str | None = None

    of_model: ClassVar[bool] = True

    def made_by(self, place: Place) -> str:
        """The fingerprint that their collections belong to."""
        return self.fingerprint or place.load(self.model).runtime.bundle.config.fingerprint


@dataclass(frozen=True)
class MilvusInsert(_OfModel):
    """Rows into a collection, replacing those with the same ids; the collection is made when it is not there.

    Takes id (text), vector (float32 [d], not zero) and, if a third column is there, metadata (a map); gives the id.
    An item is done when Milvus has acknowledged its row, whose vector is known again by what it notes as ``sketch``.

    Attributes:
        collection: where to; None: a column before the others tells it.
    """

    collection: str | None = None

    name: ClassVar[str] = "milvus_insert"
    task: ClassVar[str] = "id, vector, metadata -> id"
    max_batch_size: ClassVar[int | None] = WRITE_BATCH
    max_delay: ClassVar[float | None] = WRITE_DELAY_S
    resource: ClassVar[str] = "store:write"

    def open(self, place: Place) -> Opened:
        """Raises ``ValueError`` without a store, ``ModelError`` without the model."""
        from clipfleet.store import Row, sketches  # noqa: PLC0415  (a worker without a store does not load it)
        from clipfleet.store.sketch import NOTE  # noqa: PLC0415

        store, fingerprint = place.services.store(), self.made_by(place)

        def insert(collection: str, batch: list[Any]) -> Sequence[Any]:
            store.ensure_collection(collection, fingerprint=fingerprint, dimension=len(batch[0].vector))
            outcomes = store.upsert(collection, batch)
            written = [row.vector for row, outcome in zip(batch, outcomes, strict=True) if outcome is None]
            told = iter(sketches(written))
            return [
                Noted(row.id, {NOTE: next(told)}) if outcome is None else outcome
                for row, outcome in zip(batch, outcomes, strict=True)
            ]

        def run(*columns: Sequence[Any]) -> Sequence[Any]:
            names, (ids, vectors, *more) = _collections(self.collection, columns)
            metadata = more[0] if more else [{}] * len(ids)
            rows = [Row(one, vector, told or {}) for one, vector, told in zip(ids, vectors, metadata, strict=True)]
            keys = [(name, len(row.vector)) for name, row in zip(names, rows, strict=True)]
            return _grouped(keys, rows, lambda key, batch: insert(key[0], batch))

        return Opened(run, idle=store.flush_quiet, flush=lambda: store.flush_quiet(0.0))


@dataclass(frozen=True)
class MilvusSearch(_OfModel):
    """The nearest rows of each vector: a list of ``{id, score, metadata}``, best first; score = cosine similarity.

    Takes a vector (float32 [d]) and, if there is a second column, a filter. Searches that differ in their vector
    alone are one call.

    Attributes:
        collection: where to look; None: the columns are vector, collection, limit, filter, output_fields and
            consistency.
        limit: most hits.
        output_fields: metadata keys to give; None: all.
        consistency: Milvus' level; None: the store's.
    """

    collection: str | None = None
    limit: int = 10
    output_fields: tuple[str, ...] | None = None
    consistency: str | None = None

    name: ClassVar[str] = "milvus_search"
    task: ClassVar[str] = "vector, filter -> hits"
    max_batch_size: ClassVar[int | None] = READ_BATCH
    max_delay: ClassVar[float | None] = 0.0
    resource: ClassVar[str] = "store:read"

    def open(self, place: Place) -> Opened:
        """Raises ``ValueError`` without a store, ``ModelError`` without the model."""
        store, fingerprint = place.services.store(), self.made_by(place)

        def run(vectors: Sequence[Any], *columns: Sequence[Any]) -> Sequence[Any]:
            asked = self._asked(len(vectors), columns)
            keys = [encode_map(one._asdict()) for one in asked]
            queries = list(zip(vectors, asked, strict=True))
            return _grouped(keys, queries, lambda _, batch: _search(store, fingerprint, batch))

        return Opened(run)

    def _asked(self, count: int, columns: tuple[Sequence[Any], ...]) -> list[_Asked]:
        if self.collection is None:
            return [_Asked(*one) for one in zip(*columns, strict=True)]
        filters = columns[0] if columns else [None] * count
        fields = None if self.output_fields is None else list(self.output_fields)
        return [_Asked(self.collection, self.limit, one, fields, self.consistency) for one in filters]


class _Asked(NamedTuple):
    """What a search is about, besides its vector."""

    collection: str
    limit: int
    filter: Any
    output_fields: list[str] | None
    consistency: Any


def _search(store: Store, fingerprint: str, batch: Sequence[tuple[NDArray[np.float32], _Asked]]) -> Sequence[Any]:
    asked = batch[0][1]
    found = store.search(
        asked.collection,
        cast("NDArray[np.float32]", [vector for vector, _ in batch]),  # one of a wrong length is refused by itself
        limit=asked.limit,
        filter=asked.filter,
        output_fields=asked.output_fields,
        consistency=asked.consistency,
        fingerprint=fingerprint,
    )
    return [
        hits
        if isinstance(hits, RequestFailed)
        else [{"id": hit.id, "score": hit.score, "metadata": hit.metadata} for hit in hits]
        for hits in found
    ]


@dataclass(frozen=True)
class MilvusDelete(BatchOperator):
    """Rows away, by ids (a list of text) or else by a filter; gives how many were there.

    Two more columns, if there are: how many rows a filter may delete (None: all, up to 100,000), and whether rows are
    only looked up.

    Attributes:
        collection: of which; None: a column before the others tells it.
        details: whether to give ``{deleted, matched, missing}`` instead: how many went, how many were there, and which
            of the ids were not. Of a call that was repeated, since Milvus went away in the middle of it, the counts
            are those of the last attempt.
    """

    collection: str | None = None
    details: bool = False

    name: ClassVar[str] = "milvus_delete"
    task: ClassVar[str] = "ids, filter -> number"
    max_batch_size: ClassVar[int | None] = WRITE_BATCH
    max_delay: ClassVar[float | None] = WRITE_DELAY_S
    resource: ClassVar[str] = "store:write"

    def open(self, place: Place) -> Opened:
        """Raises ``ValueError`` without a store."""
        store = place.services.store()

        def run(*columns: Sequence[Any]) -> Sequence[Any]:
            names, others = _collections(self.collection, columns)
            asked = [_Removal(*one) for one in zip(names, *others, strict=True)]
            # Not grouped: one call each, in order.
            found = _grouped(range(len(asked)), asked, lambda _, batch: [_delete(store, batch[0])])
            return found if self.details else [each["deleted"] if isinstance(each, dict) else each for each in found]

        return Opened(run)


class _Removal(NamedTuple):
    """What a deletion is about."""

    collection: str
    ids: list[str] | None
    filter: Any
    limit: int | None = None
    dry_run: bool = False


def _delete(store: Store, asked: _Removal) -> dict[str, Any]:
    from clipfleet.store import combine  # noqa: PLC0415  (a worker without a store does not load it)

    if asked.ids is None:
        if asked.dry_run and combine(asked.filter) is not None:
            return {"deleted": 0, "matched": store.count(asked.collection, asked.filter), "missing": []}
        deleted = store.delete(asked.collection, filter=asked.filter, limit=asked.limit)
        return {"deleted": deleted, "matched": deleted, "missing": []}
    find = store.present if asked.dry_run else store.discard
    there = find(asked.collection, asked.ids)
    missing = [each for each in dict.fromkeys(asked.ids) if each not in there]
    return {"deleted": 0 if asked.dry_run else len(there), "matched": len(there), "missing": missing}


def _collections(
    collection: str | None, columns: Sequence[Sequence[Any]]
) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """The collection of each item, and the other columns."""
    return (columns[0], columns[1:]) if collection is None else ([collection] * len(columns[0]), columns)


def _grouped(
    keys: Iterable[Hashable], items: Sequence[Any], run: Callable[[Any, list[Any]], Sequence[Any]]
) -> list[Any]:
    """Run each group of items with the same key by itself; a verdict on a group fails that group alone."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        groups[key].append(place)
    outcome: dict[int, Any] = {}
    for key, places in groups.items():
        try:
            values = run(key, [items[place] for place in places])
        except RequestFailed as error:
            values = [error] * len(places)
        outcome.update(zip(places, values, strict=True))
    return [outcome[place] for place in range(len(items))]


milvus_delete = MilvusDelete
milvus_insert = MilvusInsert
milvus_search = MilvusSearch
