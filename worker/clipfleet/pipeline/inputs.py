"""Reading a request's inputs: each pipeline says what it takes, and everything else is ``bad_request``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clipfleet.schemas.errors import ErrorCode, ProtocolError, error_for
from clipfleet.schemas.result import Vector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = [
    "choice",
    "integer",
    "mapping",
    "optional_text",
    "picture",
    "query_vector",
    "string_list",
    "text",
    "vector_to_wire",
]


def _bad(message: str) -> Exception:
    return error_for(ErrorCode.BAD_REQUEST, message)


def text(inputs: Mapping[str, Any], name: str = "text") -> str:
    """A required string."""
    value = inputs.get(name)
    if type(value) is not str:
        raise _bad(f"'{name}' must be a string")
    return value


def optional_text(inputs: Mapping[str, Any], name: str, default: str | None = None) -> str | None:
    """A string, or ``default`` when absent."""
    return default if inputs.get(name) is None else text(inputs, name)


def picture(inputs: Mapping[str, Any], name: str = "image") -> bytes | dict[str, str]:
    """A picture: its bytes, ``{url}`` or ``{path}``."""
    value = inputs.get(name)
    if type(value) is bytes:
        return value
    if type(value) is dict and len(value) == 1:
        (kind, where), *_ = value.items()
        if kind in {"url", "path"} and type(where) is str:
            return {kind: where}
    raise _bad(f"'{name}' must be the bytes of a picture (msgpack bin), {{url: string}} or {{path: string}}")


def integer(inputs: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    """An integer within bounds."""
    value = inputs.get(name)
    if value is None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise _bad(f"'{name}' must be an integer, {low} to {high}")
    return value


def mapping(inputs: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A map, empty when absent."""
    value = inputs.get(name)
    if value is None:
        return {}
    if type(value) is not dict:
        raise _bad(f"'{name}' must be a map")
    return value


def string_list(inputs: Mapping[str, Any], name: str) -> list[str] | None:
    """A list of strings, or None when absent."""
    value = inputs.get(name)
    if value is None:
        return None
    if type(value) is not list or any(type(one) is not str for one in value):
        raise _bad(f"'{name}' must be a list of strings")
    return value


def choice(inputs: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The one of ``names`` that is given."""
    given = [name for name in names if inputs.get(name) is not None]
    if len(given) != 1:
        raise _bad(f"give exactly one of {', '.join(names)}; {', '.join(given) or 'none'} given")
    return given[0]


def query_vector(inputs: Mapping[str, Any], dimension: int) -> NDArray[np.float32]:
    """The vector in ``inputs``, scaled to unit length; float32 of shape [dimension].

    Raises:
        BadInput: ``bad_request`` when it is no vector, ``bad_shape`` for another dimension, zeros or non-finite values.
    """
    try:
        vector = np.frombuffer(Vector.of(inputs.get("vector")).buffer, dtype="<f4")
    except ProtocolError as error:
        raise _bad(f"'vector': {error}") from None
    if vector.shape != (dimension,):
        raise error_for(ErrorCode.BAD_SHAPE, f"'vector' must have {dimension} numbers, not {vector.shape[0]}")
    length = float(np.linalg.norm(vector.astype(np.float64)))
    if not (np.isfinite(length) and length > 0):
        raise error_for(ErrorCode.BAD_SHAPE, "'vector' must be finite and not zero")
    return np.asarray(vector / np.float32(length), dtype=np.float32)


def vector_to_wire(vector: NDArray[np.float32]) -> dict[str, Any]:
    """The wire's map of a float32 vector."""
    return {"dtype": "f4", "shape": [len(vector)], "data": vector.astype("<f4", copy=False).tobytes()}
