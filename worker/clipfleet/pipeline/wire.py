"""Rows of outputs as a result carries them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clipfleet.operators.operator import OMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clipfleet.pipeline.program import Program

__all__ = ["outputs_of", "to_wire"]

_AS_IT_IS: Final = frozenset({bytes, str, int, float, bool, type(None)})


def outputs_of(program: Program, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """The outputs of a result: the columns of its row, or ``{"rows": [...]}`` where there may be several or none."""
    if not program.many and len(rows) == 1:
        return _columns(program, rows[0])
    return {"rows": [_columns(program, row) for row in rows]}


def _columns(program: Program, row: Sequence[Any]) -> dict[str, Any]:
    return {
        name: value if type(value) in _AS_IT_IS else to_wire(value)
        for name, value in zip(program.outputs, row, strict=True)
        if value is not OMIT
    }


def to_wire(value: Any) -> Any:
    """A value as msgpack carries it: arrays as ``{dtype, shape, data}`` with little-endian data, and so on inwards.

    Raises:
        TypeError: an array of objects: its bytes are addresses.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError("an array of Python objects")
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)
        return {
            "dtype": f"{value.dtype.kind}{value.dtype.itemsize}",
            "shape": list(value.shape),
            "data": little.tobytes(),
        }
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): to_wire(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_wire(one) for one in value]
    return value
