"""What a client refuses by itself, since a request under way holds the connection of all the others."""

from __future__ import annotations

from typing import Final

__all__ = ["LARGE_BYTES", "MAX_PAYLOAD_BYTES"]

# Above this none is sent, whatever its queue allows.
MAX_PAYLOAD_BYTES: Final = 64 * 1024 * 1024
# Above this one, the queue is asked first: a round trip costs less than a megabyte in vain.
LARGE_BYTES: Final = 1024 * 1024
