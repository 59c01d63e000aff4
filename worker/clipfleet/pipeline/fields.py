"""What a pipeline takes: each input column has a field that checks its value; all else is ``bad_request``.

A field is checked when the request is read, before any work is done for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from clipfleet.schemas.errors import ErrorCode, ProtocolError, error_for
from clipfleet.schemas.result import Vector

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Field", "anything", "flag", "integer", "mapping", "picture", "string_list", "text", "vector"]


@dataclass(frozen=True, slots=True)
class Field:
    """One input.

    Attributes:
        check: its value, given one that is not None; raises ``ValueError`` with what it must be.
        required: whether it must be there.
        default: what stands for it when absent.
        source: whether callers give it among ``inputs`` or ``options``.
    """

    check: Callable[[Any], Any]
    required: bool = True
    default: Any = None
    source: Literal["inputs", "options"] = "inputs"

    def read(self, name: str, given: Any) -> Any:
        """The value of the column ``name``.

        Raises:
            BadInput: ``bad_request``, or the code of what is wrong with it.
        """
        if given is None:
            if self.required:
                raise error_for(ErrorCode.BAD_REQUEST, f"'{name}' is missing")
            return self.default
        try:
            return self.check(given)
        except (ValueError, ProtocolError) as error:
            raise error_for(ErrorCode.BAD_REQUEST, f"'{name}' {error}") from None


def anything(*, required: bool = False, default: Any = None) -> Field:
    """Any value at all, absent too."""
    return Field(lambda value: value, required, default)


def text(
    *, required: bool = True, default: str | None = None, source: Literal["inputs", "options"] = "inputs"
) -> Field:
    """A string."""
    return Field(_text, required, default, source)


def picture() -> Field:
    """A picture: its bytes, ``{url}`` or ``{path}``."""
    return Field(_picture)


def integer(default: int | None, low: int, high: int) -> Field:
    """An integer within bounds; ``default`` when absent."""

    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"must be an integer, {low} to {high}")
        return value

    return Field(check, required=False, default=default)


def mapping(*, required: bool = False) -> Field:
    """A map; empty when absent."""
    return Field(_mapping, required, {})


def string_list(*, required: bool = False) -> Field:
    """A list of strings."""
    return Field(_string_list, required)


def flag(source: Literal["inputs", "options"] = "inputs") -> Field:
    """True or False; False when absent."""
    return Field(bool, required=False, default=False, source=source)


def vector(dimension: int | None = None) -> Field:
    """A vector as the wire has it, or an array where it is called in Python; scaled to unit length, float32 [d]."""

    def check(value: Any) -> Any:
        found = _vector(value)
        if dimension is not None and len(found) != dimension:
            raise error_for(ErrorCode.BAD_SHAPE, f"'vector' must have {dimension} numbers, not {len(found)}")
        return found

    return Field(check)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("must be a string")
    return value


def _picture(value: Any) -> bytes | dict[str, str]:
    if type(value) is bytes:
        return value
    if type(value) is dict and len(value) == 1:
        (kind, where), *_ = value.items()
        if kind in {"url", "path"} and type(where) is str:
            return {kind: where}
    raise ValueError("must be the bytes of a picture (msgpack bin), {url: string} or {path: string}")


def _mapping(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ValueError("must be a map")
    return value


def _string_list(value: Any) -> list[str]:
    if type(value) is not list or any(type(one) is not str for one in value):
        raise ValueError("must be a list of strings")
    return value


def _vector(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        found = np.asarray(value, dtype=np.float32).reshape(-1)
    else:
        found = np.frombuffer(Vector.of(value).buffer, dtype="<f4")
    length = float(np.linalg.norm(found.astype(np.float64)))
    if not (np.isfinite(length) and length > 0):
        raise error_for(ErrorCode.BAD_SHAPE, "'vector' must be finite and not zero")
    return np.asarray(found / np.float32(length), dtype=np.float32)
