"""The built-in pipelines: CLIP's two towers, the store, and ``echo``.

They share stages: a picture of ``embed_image``, one of ``index_image`` and one of a ``search`` that arrive together run
in one batch of ``clip_image``.

============= ==========================================
pipeline      stages
============= ==========================================
embed_image   decode, clip_image
embed_text    tokenize, clip_text
index_image   decode, clip_image, upsert
search        (tokenize, clip_text | decode, clip_image | nothing), search
delete        delete
echo          none
============= ==========================================
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clipfleet.pipeline import inputs as take
from clipfleet.pipeline.stage import BatchStage, EachStage, Pipelines
from clipfleet.pipeline.store_stages import store_stages
from clipfleet.pipeline.work import Plan
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from clipfleet.batching import BatchPolicy
    from clipfleet.models.runtime import Runtime
    from clipfleet.pipeline.work import Work
    from clipfleet.schemas.request import Request
    from clipfleet.store import Store

__all__ = ["Clip", "clip_pipelines"]

DEFAULT_COLLECTION = "images"
MAX_SEARCH_LIMIT = 16_384


@dataclass(frozen=True, slots=True)
class Clip:
    """A loaded model and what feeds it.

    Attributes:
        runtime: the two towers.
        tokenize: text to ids int64 [L] and whether it was cut.
        prepare: encoded picture to pixels uint8 [h, w, 3].
        fetch: a picture as the request gives it (bytes, ``{url}``, ``{path}``), and the seconds left for it, to the
            encoded picture; or ``fetch_forbidden``.
    """

    runtime: Runtime
    tokenize: Callable[[str], tuple[NDArray[np.int64], bool]]
    prepare: Callable[[Any], NDArray[np.uint8]]
    fetch: Callable[[Any, float], Any]

    @property
    def fingerprint(self) -> str:
        """Of the model: two workers of one queue must agree on it."""
        return self.runtime.bundle.config.fingerprint

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return self.runtime.bundle.config.dimension


def clip_pipelines(
    clip: Clip | None, store: Store | None, *, policy: BatchPolicy, close: Callable[[], None] = lambda: None
) -> Pipelines:
    """The built-in pipelines over a model and a store; without a model only ``echo``, without a store no index."""
    plans: dict[str, Callable[[Request], Plan]] = {"echo": _echo}
    stages: dict[str, EachStage | BatchStage] = {}
    if clip is not None:
        plans |= {"embed_image": _embed_image, "embed_text": _embed_text}
        each = (EachStage("decode", _decoder(clip)), EachStage("tokenize", _tokenizer(clip), chunk=16))
        towers = (
            BatchStage("clip_image", _image_tower(clip), policy),
            BatchStage("clip_text", _text_tower(clip), policy),
        )
        stages = {stage.name: stage for stage in (*each, *towers)}
        if store is not None:
            plans |= {"index_image": _index_image, "search": _search_plan(clip.dimension), "delete": _delete}
            stages |= store_stages(store, clip.fingerprint, clip.dimension)
    return Pipelines(plans, stages, clip.fingerprint if clip else "", close)


# Plans: what a request asks for, checked before any work is done --------------------------------------------------


def _echo(_request: Request) -> Plan:
    return Plan((), None, lambda work: {"data": work.request.inputs.get("data")}, model=False)


def _embed_image(request: Request) -> Plan:
    return Plan(("decode", "clip_image"), take.picture(request.inputs), _vector_out)


def _embed_text(request: Request) -> Plan:
    return Plan(("tokenize", "clip_text"), take.text(request.inputs), _vector_out)


def _vector_out(work: Work) -> dict[str, Any]:
    return {"vector": take.vector_to_wire(work.value)}


def _index_image(request: Request) -> Plan:
    inputs = request.inputs
    image = take.picture(inputs)
    given = take.optional_text(inputs, "id")
    params = {
        "collection": take.optional_text(inputs, "collection", DEFAULT_COLLECTION),
        "id": given if given is not None else _content_id(image),
        "metadata": take.mapping(inputs, "metadata"),
    }
    with_vector = bool(request.options.get("return_vector"))
    return Plan(
        ("decode", "clip_image", "upsert"),
        image,
        lambda work: {"id": work.plan.params["id"]} | (_vector_out(work) if with_vector else {}),
        params,
        needs_store=True,
    )


def _content_id(image: bytes | dict[str, str]) -> str:
    """Without an id of the caller's the content is the identity: the same picture again replaces itself."""
    if isinstance(image, dict):
        raise error_for(ErrorCode.BAD_REQUEST, "a picture given as url or path needs an 'id'")
    return hashlib.sha256(image).hexdigest()


def _search_plan(dimension: int) -> Callable[[Request], Plan]:
    def search(request: Request) -> Plan:
        inputs = request.inputs
        kind = take.choice(inputs, ("text", "image", "vector"))
        steps: tuple[str, ...] = ("search",)
        value: Any
        if kind == "text":
            value, steps = take.text(inputs), ("tokenize", "clip_text", *steps)
        elif kind == "image":
            value, steps = take.picture(inputs), ("decode", "clip_image", *steps)
        else:
            value = take.query_vector(inputs, dimension)
        params = {
            "collection": take.optional_text(inputs, "collection", DEFAULT_COLLECTION),
            "limit": take.integer(inputs, "limit", 10, 1, MAX_SEARCH_LIMIT),
            "filter": inputs.get("filter"),
            "output_fields": take.string_list(inputs, "output_fields"),
            "consistency": take.optional_text(request.options, "consistency"),
        }
        return Plan(steps, value, _hits_out, params, needs_store=True)

    return search


def _hits_out(work: Work) -> dict[str, Any]:
    return {"hits": [{"id": hit.id, "score": hit.score, "metadata": hit.metadata} for hit in work.value]}


def _delete(request: Request) -> Plan:
    kind = take.choice(request.inputs, ("ids", "filter"))
    params = {
        "collection": take.optional_text(request.inputs, "collection", DEFAULT_COLLECTION),
        "ids": take.string_list(request.inputs, "ids"),
        "filter": request.inputs.get("filter") if kind == "filter" else None,
    }
    return Plan(("delete",), None, lambda work: {"deleted": work.value}, params, needs_store=True, model=False)


# Stages: how it is done -------------------------------------------------------------------------------------------


def _decoder(clip: Clip) -> Callable[[Work], Any]:
    def decode(work: Work) -> NDArray[np.uint8]:
        return clip.prepare(clip.fetch(work.value, work.deadline - time.monotonic()))

    return decode


def _tokenizer(clip: Clip) -> Callable[[Work], Any]:
    def tokenize(work: Work) -> NDArray[np.int64]:
        ids, truncated = clip.tokenize(work.value)
        if truncated:
            work.notes["truncated"] = True
        return ids

    return tokenize


def _image_tower(clip: Clip) -> Callable[[Sequence[Work]], Sequence[Any]]:
    def clip_image(batch: Sequence[Work]) -> Sequence[Any]:
        return _rows(clip.runtime.encode_images(np.stack([work.value for work in batch])))

    return clip_image


def _text_tower(clip: Clip) -> Callable[[Sequence[Work]], Sequence[Any]]:
    def clip_text(batch: Sequence[Work]) -> Sequence[Any]:
        return _rows(clip.runtime.encode_texts([work.value for work in batch]))

    return clip_text


def _rows(vectors: NDArray[np.float32]) -> list[NDArray[np.float32] | RequestFailed]:
    """One vector per item; a row that is not finite fails its own item and no other."""
    finite = np.isfinite(vectors).all(axis=-1)
    return [
        row if good else error_for(ErrorCode.MODEL_FAILED, "the model gave a vector that is not finite")
        for row, good in zip(vectors, np.atleast_1d(finite), strict=True)
    ]
