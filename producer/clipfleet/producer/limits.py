"""What a client refuses by itself."""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_PAYLOAD_BYTES"]

# A request under way holds the connection of all the others: above this none is sent, whatever its queue allows.
MAX_PAYLOAD_BYTES: Final = 64 * 1024 * 1024
