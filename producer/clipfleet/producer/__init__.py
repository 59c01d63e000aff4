"""The client of a clipfleet: one request in, one result out, and nothing of GPUs.

::

    from clipfleet.producer import Client

    with Client("redis://localhost:6379", queue="clip") as client:
        vector = client.embed_text("a red heart").vector
        for hit in client.search("a red heart", limit=3).hits:
            print(hit.score, hit.id)

``AsyncClient`` is the same for asyncio, ``requests`` builds what ``submit`` and ``map`` take, ``testing`` has doubles
of both clients. Needs neither numpy nor torch, nor redis-py.
"""

from __future__ import annotations

from clipfleet.producer import requests
from clipfleet.producer.aio import AsyncClient, AsyncJob
from clipfleet.producer.requests import NewRequest, Url, WorkerPath
from clipfleet.producer.threads import Client, Job
from clipfleet.schemas import (
    BadInput,
    Cancelled,
    ClipfleetError,
    ErrorCode,
    Expired,
    Hit,
    ModelFailed,
    ProtocolError,
    QueueFull,
    RequestFailed,
    Result,
    StoreFailed,
    Unavailable,
    Vector,
)

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "BadInput",
    "Cancelled",
    "Client",
    "ClipfleetError",
    "ErrorCode",
    "Expired",
    "Hit",
    "Job",
    "ModelFailed",
    "NewRequest",
    "ProtocolError",
    "QueueFull",
    "RequestFailed",
    "Result",
    "StoreFailed",
    "Unavailable",
    "Url",
    "Vector",
    "WorkerPath",
    "requests",
]
