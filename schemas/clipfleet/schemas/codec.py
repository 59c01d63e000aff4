"""msgpack with strict limits: whatever the bytes are, the outcome is a value or a ``ProtocolError``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import msgpack

from clipfleet.schemas.errors import ErrorCode, ProtocolError
from clipfleet.schemas.limits import MAX_ARRAY_ITEMS, MAX_DEPTH, MAX_MAP_ITEMS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["decode_map", "encode_map"]


def encode_map(value: Mapping[str, Any]) -> bytes:
    """``value`` as msgpack.

    Raises:
        ProtocolError: ``bad_request`` for what msgpack cannot carry: other types, integers beyond 64 bits, lone
            surrogates, too deep a nesting.
    """
    try:
        packed: bytes = msgpack.packb(value, use_bin_type=True)
    except (
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:  # UnicodeEncodeError is a ValueError
        raise ProtocolError(f"not representable in msgpack: {error}") from None
    return packed


def decode_map(data: bytes, *, max_bytes: int) -> dict[str, Any]:
    """The map that ``data`` holds.

    Keys are strings; nesting is at most ``MAX_DEPTH``; arrays and maps are at most ``MAX_ARRAY_ITEMS`` and
    ``MAX_MAP_ITEMS`` long; extension types and timestamps are refused.

    Raises:
        ProtocolError: ``too_large`` above ``max_bytes``, else ``bad_request``.
    """
    if len(data) > max_bytes:
        raise ProtocolError(f"{len(data)} bytes exceed the limit of {max_bytes}", ErrorCode.TOO_LARGE)
    try:
        # Not said, since they hold by themselves: text is UTF-8, map keys are text or bytes, and no text or bytes may
        # claim to be longer than all that there is.
        value = msgpack.unpackb(
            data,
            max_array_len=MAX_ARRAY_ITEMS,
            max_map_len=MAX_MAP_ITEMS,
            max_ext_len=0,
            ext_hook=_no_extensions,
        )
    # The C unpacker raises its own family, ValueError and, for nesting, StackError or RecursionError; a decoder
    # of hostile bytes has one outcome for all of them.
    except Exception as error:  # noqa: BLE001
        raise ProtocolError(f"not valid msgpack: {type(error).__name__}") from None
    if type(value) is not dict:
        raise ProtocolError("the message is not a map")
    _check(value)
    return value


def _no_extensions(code: int, _data: bytes) -> NoReturn:
    raise ValueError(f"extension type {code}")


def _check(root: dict[Any, Any]) -> None:
    """Depth and key types, level by level: the nesting is the sender's choice, and this runs for every message."""
    level: list[Any] = [root]
    for _ in range(MAX_DEPTH):
        below = []
        for node in level:
            children = node
            if type(node) is dict:
                for key in node:
                    if type(key) is not str:
                        raise ProtocolError("map keys must be strings")
                children = node.values()
            below += [child for child in children if type(child) is dict or type(child) is list]
        if not below:
            return
        level = below
    raise ProtocolError(f"nested deeper than {MAX_DEPTH}")
