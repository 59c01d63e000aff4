"""The fleet as a task sees it: a client per process, its errors and pictures as JSON."""

from __future__ import annotations

import base64
import binascii
import functools
from typing import TYPE_CHECKING, Any

from clipfleet.producer import Client, Url, WorkerPath
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.tasks.settings import settings

if TYPE_CHECKING:
    from clipfleet.producer.requests import Image

__all__ = ["bulk_client", "client", "failure", "picture"]


@functools.cache
def client() -> Client:
    """For whoever waits. One a process: a client that was inherited by a fork connects anew."""
    fleet = settings().fleet
    return Client(fleet.redis_url, queue=fleet.queue, prefix=fleet.prefix, timeout=fleet.timeout_s)


@functools.cache
def bulk_client() -> Client:
    """For indexing: behind live queries, and with patience for a worker or a Redis that is started again."""
    fleet = settings().fleet
    return Client(fleet.redis_url, queue=fleet.queue, prefix=fleet.prefix, lane="bulk", wait_for_worker=True)


def failure(error: RequestFailed) -> dict[str, Any]:
    """A failed item, the same JSON as the command's."""
    about = {"code": str(error.code), "message": error.message, "retryable": error.retryable}
    return {"ok": False, "error": about}


def picture(value: object) -> Image:
    """A picture as JSON gives it: its bytes in base64, or ``{"url": …}`` or ``{"path": …}`` that fleet workers read.

    Raises:
        RequestFailed: ``bad_request`` for anything else.
    """
    if isinstance(value, str):
        try:
            return base64.b64decode(value.partition(",")[2] if value.startswith("data:") else value, validate=True)
        except binascii.Error:
            raise error_for(ErrorCode.BAD_REQUEST, "a picture's text is base64 or a data: URI of it") from None
    match value:
        case {"base64": str(text), **rest} if not rest:
            return picture(text)
        case {"url": str(url), **rest} if not rest:
            return Url(url)
        case {"path": str(path), **rest} if not rest:
            return WorkerPath(path)
    raise error_for(ErrorCode.BAD_REQUEST, 'a picture is base64 text, {"url": "https://…"} or {"path": "ROOT/name"}')
