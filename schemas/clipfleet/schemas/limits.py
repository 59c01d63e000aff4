"""The protocol's numbers: what is refused, and what holds when nobody said otherwise.

Sizes are bytes, times are milliseconds; both are said in the names.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 1
GROUP: Final = "workers"
HANDBACK_CONSUMER: Final = "handback"

DEFAULT_PREFIX: Final = "clipfleet"
DEFAULT_QUEUE: Final = "clip"

MAX_DEPTH: Final = 32
MAX_ARRAY_ITEMS: Final = 65_536
MAX_MAP_ITEMS: Final = 4_096
MAX_TRACE_CHARS: Final = 256

DEFAULT_CAPACITY: Final = 10_000
DEFAULT_MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
DEFAULT_MAX_QUEUE_BYTES: Final = 256 * 1024 * 1024
# A result is small; this only bounds what a broken or hostile worker could make a client decode.
MAX_RESULT_BYTES: Final = 64 * 1024 * 1024

DEFAULT_TTL_MS: Final = 60_000
DEFAULT_INDEX_TTL_MS: Final = 600_000
MAX_TTL_MS: Final = 86_400_000

DEFAULT_REPLY_TTL_MS: Final = 600_000
MIN_REPLY_TTL_MS: Final = 1_000
MAX_REPLY_TTL_MS: Final = 86_400_000
INBOX_TTL_MS: Final = 60_000

DEFAULT_LEASE_MS: Final = 10_000
DEFAULT_MAX_DELIVERIES: Final = 3
MAX_UNANSWERED: Final = 4_096

DEAD_MAX_ENTRIES: Final = 1_000
DEAD_MAX_INPUT_BYTES: Final = 65_536


def default_ttl_ms(pipeline: str) -> int:
    """How long a request of ``pipeline`` may take when its producer did not say, in ms."""
    return DEFAULT_INDEX_TTL_MS if pipeline == "index_image" else DEFAULT_TTL_MS
