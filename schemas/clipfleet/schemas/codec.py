"""msgpack with strict limits: whatever the bytes are, the outcome is a value or a ``ProtocolError``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgpack

from clipfleet.schemas.errors import ErrorCode, ProtocolError
from clipfleet.schemas.limits import MAX_ARRAY_ITEMS, MAX_DEPTH, MAX_MAP_ITEMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["decode_map", "encode_around", "encode_map", "encode_part", "encode_text", "small_map"]

_LEAVES: Final = frozenset({str, bytes, int, float, bool, type(None)})
_CONTAINERS: Final = (dict, list, tuple)
_DECODED: Final = frozenset({dict, list})  # what a message is decoded to, as far as it holds others
_EXTENSIONS: Final = (msgpack.ExtType, msgpack.Timestamp)
KEPT_BYTES: Final = 256 * 1024
SMALL_BYTES: Final = 4_096
_resting: Final[list[msgpack.Packer]] = []


def encode_map(value: Mapping[str, Any]) -> bytes:
    """``value`` as msgpack, which ``decode_map`` will take: bytes that the other side refuses help nobody.

    Raises:
        ProtocolError: ``bad_request`` for what cannot be carried: other types, keys that are no strings, integers
            beyond 64 bits, lone surrogates, and what is beyond ``decode_map``'s limits.
    """
    _check_before(value, 1)
    return _pack(value)


def encode_around(message: dict[str, Any], given: Iterable[object]) -> bytes:
    """As ``encode_map``, for a message that we made ourselves around ``given``, its values that somebody else made.

    Only these are looked at, as they stand in a message: what every request has in common is known to be carried.

    Raises:
        ProtocolError: as ``encode_map``.
    """
    for value in given:
        if type(value) is not dict:
            _check_child(value, 1)
        elif value:
            _check_before(value, 2)
    return _pack(message)


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
        value = _unpack(data)
    # The C unpacker raises its own family, ValueError and, for nesting, StackError or RecursionError; a decoder
    # of hostile bytes has one outcome for all of them.
    except Exception as error:  # noqa: BLE001
        raise ProtocolError(f"not valid msgpack: {type(error).__name__}") from None
    if type(value) is not dict:
        raise ProtocolError("the message is not a map")
    _check(value, 1)
    return value


def small_map(data: bytes, depth: int, names: list[str] | None = None) -> dict[str, Any] | None:
    """The map that ``data`` holds, ``depth`` deep in a message (1: it is the message); None where it cannot be had.

    Decoding the whole message then tells why. For at most ``SMALL_BYTES``: they hold no array or map that is too long.

    Args:
        data: the map as msgpack.
        depth: where it stands.
        names: its keys, in this order, and no others; None = any.
    """
    try:
        value = msgpack.unpackb(data, max_ext_len=0, ext_hook=_no_extensions)
        if type(value) is dict and (names is None or list(value) == names):
            _check(value if names is None else value.values(), depth)
            return value
    except Exception:  # noqa: BLE001  (see decode_map)
        return None
    return None


def encode_part(value: object) -> bytes:
    """A value that somebody else made, as it stands in a message, checked as ``encode_around`` does."""
    if type(value) is not dict:
        _check_child(value, 1)
    elif value:
        _check_before(value, 2)
    return _pack(value)


def encode_text(text: str) -> bytes:
    """``text`` as it stands in a message."""
    return _pack(text)


def _unpack(data: bytes) -> Any:
    # Not said, since they hold by themselves: text is UTF-8, map keys are text or bytes, and no text or bytes may
    # claim to be longer than all that there is.
    return msgpack.unpackb(
        data,
        max_array_len=MAX_ARRAY_ITEMS,
        max_map_len=MAX_MAP_ITEMS,
        max_ext_len=0,
        ext_hook=_no_extensions,
    )


def _pack(value: object) -> bytes:
    # A packer is made with a buffer of 256 KiB, which takes twice as long as a message; taken from those that rest
    # it is one call's alone, whatever other threads do, and whatever a mapping of somebody's runs while it is packed.
    try:
        packer = _resting.pop()
    except IndexError:
        packer = msgpack.Packer()
    try:
        packed: bytes = packer.pack(value)
    except (TypeError, ValueError, OverflowError, BufferError) as error:  # UnicodeEncodeError is a ValueError
        raise ProtocolError(f"not representable in msgpack: {error}") from None
    if len(packed) <= KEPT_BYTES:  # its buffer is as large as the largest that it packed
        _resting.append(packer)
    return packed


def _check_before(node: Any, depth: int) -> None:
    """All of ``decode_map``'s limits but the bytes, depth first: a list that holds itself twice ends at the limit.

    Runs for every request, so the usual cases are plain loops.
    """
    if depth > MAX_DEPTH:
        raise ProtocolError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(node, dict):
        if len(node) > MAX_MAP_ITEMS:
            raise ProtocolError(f"a map of {len(node)} items is longer than {MAX_MAP_ITEMS}")
        for key in node:
            if type(key) is not str:
                _check_key(key)
        node = node.values()
    elif len(node) > MAX_ARRAY_ITEMS:
        raise ProtocolError(f"an array of {len(node)} items is longer than {MAX_ARRAY_ITEMS}")
    for child in node:
        if type(child) not in _LEAVES:
            _check_child(child, depth)


def _check_child(child: object, depth: int) -> None:
    if type(child) is dict:
        _check_before(child, depth + 1)
    elif isinstance(child, _EXTENSIONS):  # a Timestamp, and an ExtType, which is a tuple
        raise ProtocolError(f"not representable in msgpack: {type(child).__name__} is not taken")
    elif isinstance(child, _CONTAINERS):
        _check_before(child, depth + 1)


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise ProtocolError(f"map keys must be strings, not {type(key).__name__}: {key!r:.40}")


def _no_extensions(code: int, _data: bytes) -> NoReturn:
    raise ValueError(f"extension type {code}")


def _check(node: Any, depth: int) -> None:
    """Depth and key types; the nesting is the sender's choice and ends at the limit, before Python's own.

    Runs for every message, at both ends. An empty container below holds nothing to be looked at.
    """
    if depth > MAX_DEPTH:
        raise ProtocolError(f"nested deeper than {MAX_DEPTH}")
    if type(node) is dict:
        for key, child in node.items():
            if type(key) is not str:
                raise ProtocolError("map keys must be strings")
            if type(child) in _DECODED and (child or depth == MAX_DEPTH):
                _check(child, depth + 1)
    else:
        for child in node:
            if type(child) in _DECODED and (child or depth == MAX_DEPTH):
                _check(child, depth + 1)
