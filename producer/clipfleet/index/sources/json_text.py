"""JSON of somebody else's files: whatever it holds, an object of plain values or one clear error."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from clipfleet.index.files import printable

__all__ = ["plain", "read_object"]

# As deep as the wire format goes, less the levels above the metadata.
_MAX_DEPTH: Final = 24


def read_object(text: str | bytes) -> dict[str, Any]:
    """The object that ``text`` holds, with text made valid.

    Raises:
        ValueError: it is no JSON, no object, or nested too deep.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except ValueError as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - the caller's one kind of error
    return {printable(key): plain(each) for key, each in value.items()}


def plain(value: object, depth: int = 1) -> Any:
    """A value as metadata can hold it: JSON's own kinds; dates as ISO 8601, NaN and infinity as null.

    Raises:
        ValueError: nested too deep, or an integer beyond 64 bits.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deep")
    match value:
        case None | bool():
            return value
        case int():
            if not -(1 << 63) <= value < 1 << 63:
                raise ValueError("an integer of more than 64 bits")
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {printable(str(key)): plain(each, depth + 1) for key, each in value.items()}
        case list() | tuple():
            return [plain(each, depth + 1) for each in value]
        case _:
            # What tables know beyond JSON: dates and times say isoformat(), decimals and the rest str().
            return printable(str(value.isoformat() if hasattr(value, "isoformat") else value))
