"""The built-in pipelines: CLIP's two towers, the store, and ``echo``.

They share stages: a picture of ``embed_image``, one of ``index_image`` and one of a ``search`` that arrive together run
in one batch of ``clip_image``.

============= ==============================================
pipeline      stages
============= ==============================================
embed_image   decode, clip_image
embed_text    tokenize, clip_text
index_image   decode, clip_image, milvus_insert
search        (tokenize, clip_text | decode, clip_image | nothing), milvus_search
delete        milvus_delete
echo          none
============= ==============================================
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from clipfleet.operators.clip import ClipImage, ClipText
from clipfleet.operators.milvus import MilvusDelete, MilvusInsert, MilvusSearch
from clipfleet.operators.operator import OMIT
from clipfleet.pipeline import fields as field
from clipfleet.pipeline.definition import Flow, input_flow
from clipfleet.pipeline.pipeline import Choice
from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from clipfleet.pipeline.pipeline import Pipeline

__all__ = ["builtin_pipelines"]

DEFAULT_COLLECTION = "images"
MAX_SEARCH_LIMIT = 16_384
MAX_DELETED = 100_000
ASKED = ("collection", "limit", "filter", "output_fields", "consistency")


def builtin_pipelines(dimension: int | None, *, store: bool) -> dict[str, Pipeline]:
    """The pipelines of every worker, by name.

    Args:
        dimension: of the model's vectors; None: there is no model, and only ``echo``.
        store: whether there is one; without it nothing is indexed or searched.
    """
    pipelines = {"echo": input_flow(data=field.anything()).output("data")}
    if dimension is not None:
        pipelines |= {
            "embed_image": input_flow(image=field.picture()).map("image", "vector", ClipImage()).output("vector"),
            "embed_text": input_flow(text=field.text()).map("text", "vector", ClipText()).output("vector"),
        }
        if store:
            pipelines |= {"index_image": _index_image(), "search": _search(dimension), "delete": _delete()}
    return pipelines


def _index_image() -> Pipeline:
    return (
        input_flow(
            image=field.picture(),
            id=field.text(required=False),
            metadata=field.mapping(),
            collection=field.text(required=False, default=DEFAULT_COLLECTION),
            return_vector=field.flag("options"),
        )
        .map(("id", "image"), "id", _identity, inline=True)
        .map("image", "vector", ClipImage())
        .map(("collection", "id", "vector", "metadata"), "id", MilvusInsert())
        .map(("vector", "return_vector"), "vector", _if_wanted, inline=True)
        .output("id", "vector")
    )


def _identity(given: str | None, image: bytes | dict[str, str]) -> str:
    """Without an id of the caller's the content is the identity: the same picture again replaces itself."""
    if given is not None:
        return given
    if isinstance(image, dict):
        raise error_for(ErrorCode.BAD_REQUEST, "a picture given as url or path needs an 'id'")
    return hashlib.sha256(image).hexdigest()


def _if_wanted(vector: Any, wanted: bool) -> Any:  # noqa: FBT001  (a column)
    return vector if wanted else OMIT


def _search(dimension: int) -> Pipeline:
    def hits(flow: Flow) -> Pipeline:
        return flow.map(("vector", *ASKED), "hits", MilvusSearch()).output("hits")

    asked = {
        "collection": field.text(required=False, default=DEFAULT_COLLECTION),
        "limit": field.integer(10, 1, MAX_SEARCH_LIMIT),
        "filter": field.anything(),
        "output_fields": field.string_list(),
        "consistency": field.text(required=False, source="options"),
    }
    return Choice(
        {
            "text": hits(input_flow(text=field.text(), **asked).map("text", "vector", ClipText())),
            "image": hits(input_flow(image=field.picture(), **asked).map("image", "vector", ClipImage())),
            "vector": hits(input_flow(vector=field.vector(dimension), **asked)),
        },
        "search",
    )


def _delete() -> Pipeline:
    return (
        input_flow(
            ids=field.string_list(),
            filter=field.anything(),
            collection=field.text(required=False, default=DEFAULT_COLLECTION),
            limit=field.integer(None, 1, MAX_DELETED),
            dry_run=field.flag("options"),
            return_missing=field.flag("options"),
        )
        .map(("ids", "filter", "limit"), ("ids", "filter", "limit"), _one_of, inline=True)
        .map(("collection", "ids", "filter", "limit", "dry_run"), "told", MilvusDelete(details=True))
        .map(("told", "dry_run", "return_missing"), ("deleted", "matched", "missing"), _as_asked, inline=True)
        .output("deleted", "matched", "missing")
    )


def _one_of(ids: list[str] | None, filter_: Any, limit: int | None) -> tuple[Any, Any, Any]:
    there = [name for name, value in (("ids", ids), ("filter", filter_)) if value is not None]
    if len(there) != 1:
        raise error_for(ErrorCode.BAD_REQUEST, f"give exactly one of ids, filter; {', '.join(there) or 'none'} given")
    if ids is not None and limit is not None:
        raise error_for(ErrorCode.BAD_REQUEST, "limit goes with a filter: ids are as many as they are")
    return ids, filter_, limit


def _as_asked(told: dict[str, Any], dry_run: bool, missing: bool) -> tuple[Any, Any, Any]:  # noqa: FBT001  (columns)
    return told["deleted"], told["matched"] if dry_run else OMIT, told["missing"] if missing else OMIT
