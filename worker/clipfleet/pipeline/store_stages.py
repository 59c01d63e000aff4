"""The stages that ask the store. Each makes as few calls as its batch allows."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from clipfleet.batching import BatchPolicy
from clipfleet.pipeline.stage import BatchStage
from clipfleet.schemas.codec import encode_map
from clipfleet.schemas.errors import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from clipfleet.pipeline.work import Work
    from clipfleet.store import Store

__all__ = ["store_stages"]

# Larger batches are quicker for the store; 5 ms more or less are nothing to somebody who indexes.
WRITE_POLICY = BatchPolicy(max_batch_size=512, max_delay_s=0.005)
READ_POLICY = BatchPolicy(max_batch_size=256, max_delay_s=0.0)


def store_stages(store: Store, fingerprint: str, dimension: int) -> dict[str, BatchStage]:
    """``upsert``, ``search`` and ``delete`` over ``store`` for vectors of the model ``fingerprint``."""
    from clipfleet.store import Row  # noqa: PLC0415  (a worker without a store does not load it)

    def upsert(name: str, batch: Sequence[Work]) -> Sequence[Any]:
        store.ensure_collection(name, fingerprint=fingerprint, dimension=dimension)
        rows = [Row(work.plan.params["id"], work.value, work.plan.params["metadata"]) for work in batch]
        outcomes = store.upsert(name, rows)
        return [work.value if outcome is None else outcome for work, outcome in zip(batch, outcomes, strict=True)]

    def search(batch: Sequence[Work]) -> Sequence[Any]:
        params = batch[0].plan.params
        return store.search(
            params["collection"],
            np.stack([work.value for work in batch]),
            limit=params["limit"],
            filter=params["filter"],
            output_fields=params["output_fields"],
            consistency=params["consistency"],
            fingerprint=fingerprint,
        )

    def delete(work: Work) -> Any:
        params = work.plan.params
        return store.delete(params["collection"], ids=params["ids"], filter=params["filter"])

    def collection(work: Work) -> str:
        return str(work.plan.params["collection"])

    stages = (
        BatchStage(
            "upsert",
            _grouped(collection, lambda batch: upsert(batch[0].plan.params["collection"], batch)),
            WRITE_POLICY,
            "store:write",
            idle=store.flush_quiet,
        ),
        # Not grouped: one call each, in order.
        BatchStage("delete", _grouped(id, lambda batch: [delete(batch[0])]), WRITE_POLICY, "store:write"),
        BatchStage("search", _grouped(_query, search), READ_POLICY, "store:read"),
    )
    return {stage.name: stage for stage in stages}


def _query(work: Work) -> Hashable:
    """Searches that differ in their vector alone are one call."""
    params = work.plan.params
    asked = {name: params[name] for name in ("collection", "limit", "filter", "output_fields", "consistency")}
    return encode_map(asked)


def _grouped(
    key: Callable[[Work], Hashable], run: Callable[[Sequence[Work]], Sequence[Any]]
) -> Callable[[Sequence[Work]], Sequence[Any]]:
    """Run each group of works with the same key by itself; a verdict on a group fails that group alone."""

    def grouped(batch: Sequence[Work]) -> Sequence[Any]:
        groups: defaultdict[Hashable, list[Work]] = defaultdict(list)
        for work in batch:
            groups[key(work)].append(work)
        outcome: dict[int, Any] = {}
        for works in groups.values():
            try:
                values = run(works)
            except RequestFailed as error:
                values = [error] * len(works)
            outcome.update((id(work), value) for work, value in zip(works, values, strict=True))
        return [outcome[id(work)] for work in batch]

    return grouped
