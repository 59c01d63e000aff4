"""Batches out of single items: the pure rule, its thread-safe box, and `@batched`. Standard library alone."""

from __future__ import annotations

from clipfleet.batching.batcher import Batcher, BatcherGroup
from clipfleet.batching.cost import RunCost
from clipfleet.batching.decorator import Batched, batched
from clipfleet.batching.errors import BatchingError, Closed, Full, FunctionFailed, WrongCount
from clipfleet.batching.knee import knee, measured
from clipfleet.batching.line import Lane, Taken
from clipfleet.batching.rule import BatchPolicy, BatchQueue, Launch, Reason, Wait
from clipfleet.batching.stage import Batch, BatcherStats, Outlook

__all__ = [
    "Batch",
    "BatchPolicy",
    "BatchQueue",
    "Batched",
    "Batcher",
    "BatcherGroup",
    "BatcherStats",
    "BatchingError",
    "Closed",
    "Full",
    "FunctionFailed",
    "Lane",
    "Launch",
    "Outlook",
    "Reason",
    "RunCost",
    "Taken",
    "Wait",
    "WrongCount",
    "batched",
    "knee",
    "measured",
]
