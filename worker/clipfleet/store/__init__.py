"""Milvus, as clipfleet uses it: collections per model, upserts in bulk, searches in batches, safe filters.

The only package that imports pymilvus, at the first call and not before.
"""

from __future__ import annotations

from clipfleet.store.bulk import BulkImport, Job, JobState
from clipfleet.store.filters import Filter, combine
from clipfleet.store.retry import StoreUnavailable, retry_delay, retrying
from clipfleet.store.rows import Encoded, check_vector, encode_rows
from clipfleet.store.sketch import sketches
from clipfleet.store.store import Store
from clipfleet.store.types import (
    MAX_ID_BYTES,
    MAX_LIMIT,
    MAX_METADATA_BYTES,
    CollectionInfo,
    Field,
    Hit,
    Row,
    StoreConfig,
)

__all__ = [
    "MAX_ID_BYTES",
    "MAX_LIMIT",
    "MAX_METADATA_BYTES",
    "BulkImport",
    "CollectionInfo",
    "Encoded",
    "Field",
    "Filter",
    "Hit",
    "Job",
    "JobState",
    "Row",
    "Store",
    "StoreConfig",
    "StoreUnavailable",
    "check_vector",
    "combine",
    "encode_rows",
    "retry_delay",
    "retrying",
    "sketches",
]
