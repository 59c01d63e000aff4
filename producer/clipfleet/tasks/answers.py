"""``clipfleet.embed`` and ``clipfleet.search``: JSON in, JSON out.

A failure is an answer and no exception: a caller who does not have clipfleet could not rebuild the exception's class,
and would lose its code and whether a retry can help. Only what is nobody's verdict (the broker, a bug) raises.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Any, Final

from clipfleet.producer import requests
from clipfleet.producer.config import checked_timeout
from clipfleet.schemas.errors import ErrorCode, QueueFull, RequestFailed, Unavailable, error_for
from clipfleet.tasks.fleet import client, failure, picture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.producer import NewRequest, Result

__all__ = ["embed", "search"]

# With the fleet's own retry_after, at most 30 s each, this is some minutes.
_TRIES: Final = 8
_LONGEST_WAIT_S: Final = 30.0
_MOST_ITEMS: Final = 1_000


def embed(
    self: Any,
    *,
    text: str | None = None,
    texts: list[str] | None = None,
    image: Any = None,
    images: list[Any] | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Vectors of texts or pictures.

    Args:
        self: the task.
        text: one text.
        texts: several, at most 1,000.
        image: one picture: base64, ``{"url": …}`` or ``{"path": "ROOT/name"}``.
        images: several, at most 1,000.
        timeout: seconds for each; None = 60.

    Returns:
        For one, ``{"ok": true, "vector": [float, …], "model": fingerprint}`` or ``{"ok": false, "error": {"code",
        "message", "retryable"}}``. For several ``{"ok": whether all are, "results": [one of these for each]}``.
    """
    given = {"text": text, "texts": texts, "image": image, "images": images}
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        return failure(error_for(ErrorCode.BAD_REQUEST, "embed takes exactly one of text, texts, image and images"))
    (kind,) = named
    build = _image_request if kind.startswith("image") else _text_request
    if kind in {"text", "image"}:
        return _one(self, lambda: build(given[kind], timeout), _vector)
    values = given[kind]
    if not isinstance(values, list) or len(values) > _MOST_ITEMS:
        return failure(error_for(ErrorCode.BAD_REQUEST, f"{kind} is a list of at most {_MOST_ITEMS:,}"))
    results = list(_several(values, build, timeout))
    return {"ok": all(result["ok"] for result in results), "results": results}


def search(  # noqa: PLR0913 - what the task takes, all by name
    self: Any,
    *,
    text: str | None = None,
    image: Any = None,
    vector: list[float] | None = None,
    collection: str = "images",
    limit: int = 10,
    filter: str | None = None,  # noqa: A002 - the contract's name
    output_fields: list[str] | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """The rows nearest to exactly one of a text, a picture and a vector.

    Returns:
        ``{"ok": true, "hits": [{"id", "score", "metadata"}, …], "model": fingerprint}``, best first, or a failure as
        ``embed`` has it.
    """

    def build() -> NewRequest:
        return requests.search(
            text=text,
            image=None if image is None else picture(image),
            vector=vector,
            collection=collection,
            limit=limit,
            filter=filter,
            output_fields=output_fields,
            timeout=timeout,
        )

    return _one(self, build, _hits)


def _text_request(value: Any, timeout: float | None) -> NewRequest:
    return requests.embed_text(value, timeout=timeout)


def _image_request(value: Any, timeout: float | None) -> NewRequest:
    return requests.embed_image(picture(value), timeout=timeout)


def _one(task: Any, build: Callable[[], NewRequest], show: Callable[[Result], dict[str, Any]]) -> dict[str, Any]:
    """Call once; where the fleet has no room or is not there, give this Celery slot back and come again."""
    try:
        return show(client().call(_built(build)))
    except Unavailable as error:
        tries = task.request.retries
        if tries >= _TRIES:
            return failure(error)
        wait_s = error.retry_after if isinstance(error, QueueFull) else 2.0**tries
        raise task.retry(countdown=min(wait_s, _LONGEST_WAIT_S), max_retries=_TRIES, exc=error) from None
    except RequestFailed as error:
        return failure(error)


def _several(
    values: list[Any], build: Callable[[Any, float | None], NewRequest], timeout: float | None
) -> Iterator[dict[str, Any]]:
    """An answer for each, in order; one bad item costs no other one its answer. A full queue is waited for."""
    refused: dict[int, RequestFailed] = {}
    sent: list[NewRequest] = []
    for number, value in enumerate(values):
        try:
            sent.append(_built(functools.partial(build, value, timeout)))
        except RequestFailed as error:
            refused[number] = error
    answers = client().map(sent)
    for number in range(len(values)):
        if number in refused:
            yield failure(refused[number])
        else:
            result = next(answers)
            yield failure(result.error) if result.error is not None else _vector(result)


def _built(build: Callable[[], NewRequest]) -> NewRequest:
    """What JSON asks for, wrong types being the caller's.

    Raises:
        RequestFailed: ``bad_request``.
    """
    try:
        request = build()
        if request.timeout is not None:
            checked_timeout(request.timeout)
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise error_for(ErrorCode.BAD_REQUEST, str(error)) from None
    return request


def _vector(result: Result) -> dict[str, Any]:
    # Nine significant digits are a float32, whole, at half the length.
    answer = {"ok": True, "vector": [float(f"{x:.9g}") for x in result.vector], "model": result.model}
    return answer | ({"notes": result.notes} if result.notes else {})


def _hits(result: Result) -> dict[str, Any]:
    hits = [{"id": hit.id, "score": hit.score, "metadata": dict(hit.metadata)} for hit in result.hits]
    return {"ok": True, "hits": hits, "model": result.model}
