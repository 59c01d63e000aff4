"""Values of a pipeline as JSON has them."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import singledispatch
from typing import Any

import numpy as np

from clipfleet.pipeline.values import brief

__all__ = ["as_json"]


@singledispatch
def as_json(value: Any) -> Any:
    """``value`` as JSON has it, whole: a float32 in the fewest digits that give it back.

    What is not finite is null, bytes are ``{base64}``, pixels (uint8 of two or more dimensions) ``{dtype, shape,
    base64}``. What JSON has nothing for is its short text.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
    return brief(value)


@as_json.register(str)
@as_json.register(int)
@as_json.register(type(None))
def _itself(value: Any) -> Any:
    return value


@as_json.register
def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


@as_json.register
def _scalar(value: np.generic) -> Any:
    # As text, a float32 has the fewest digits that give it back.
    return as_json(float(str(value)) if isinstance(value, np.floating) else value.item())


@as_json.register(bytes)
@as_json.register(bytearray)
def _bytes(value: bytes | bytearray) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode("ascii")}


@as_json.register
def _array(value: np.ndarray) -> Any:
    if value.dtype == np.uint8 and value.ndim > 1:
        return {"dtype": "u1", "shape": list(value.shape), **_bytes(value.tobytes())}
    return [as_json(each) for each in value] if value.ndim else as_json(value[()])


@as_json.register(Mapping)
def _mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): as_json(each) for key, each in value.items()}


@as_json.register(list)
@as_json.register(tuple)
@as_json.register(set)
@as_json.register(frozenset)
def _many(value: Any) -> Any:
    if names := getattr(value, "_fields", None):
        return dict(zip(names, map(as_json, value), strict=True))
    return [as_json(each) for each in value]
