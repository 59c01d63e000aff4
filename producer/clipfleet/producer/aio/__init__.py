"""The face for asyncio."""

from __future__ import annotations

from clipfleet.producer.aio.client import AsyncClient
from clipfleet.producer.aio.job import AsyncJob

__all__ = ["AsyncClient", "AsyncJob"]
