"""Values in few characters: for tables, traces and errors.

What passes through a pipeline is often a stranger's (a label, a file's name, a model's answer), and often large: a
value is cut to a width before it is looked at whole, and nothing that steers a terminal comes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

import numpy as np

from clipfleet.schemas.errors import RequestFailed
from clipfleet.schemas.text import visible

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Score", "brief", "brief_number", "is_picture", "scores", "shape_of", "thumbnail"]

_FEW: Final = 6
_SHOWN: Final = 3
_LONGEST_READ: Final = 4096


class Score(NamedTuple):
    """One hit of a search, or one label of a classifier."""

    id: str
    score: float


def brief(value: Any, width: int = 72) -> str:
    """``value`` on one line of at most ``width`` characters.

    An array is its dtype and shape with its first numbers (``f32[256] 0.01 -0.02 …``), bytes are their length, hits
    are ids with scores, text is itself, a number has four digits.
    """
    return _cut(_brief(value, width), width)


def brief_number(value: float) -> str:
    """A number in four significant digits, or to the unit where it has more before the point."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"


def is_picture(value: Any) -> TypeGuard[NDArray[np.uint8]]:
    """Whether it is pixels: uint8 [h, w, 3], not empty."""
    return (
        isinstance(value, np.ndarray)
        and value.dtype == np.uint8
        and value.ndim == 3
        and value.shape[2] == 3
        and value.size > 0
    )


def thumbnail(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """The picture uint8 [h, w, 3] within ``width`` x ``height`` pixels, its proportions kept; never made larger."""
    from PIL import Image  # noqa: PLC0415  only where pictures are looked at

    high, wide = pixels.shape[:2]
    scale = min(1.0, width / wide, height / high)
    if scale == 1.0:
        return pixels
    size = (max(1, round(wide * scale)), max(1, round(high * scale)))
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize(size, Image.Resampling.BOX))


def shape_of(array: NDArray[Any]) -> str:
    """``f32[256]``, ``u8[480,640,3]``."""
    kind, bits = array.dtype.kind, array.dtype.itemsize * 8
    name = f"{kind}{bits}" if kind in "fiuc" else array.dtype.name
    return f"{name}[{','.join(map(str, array.shape))}]"


def scores(value: Any) -> list[Score] | None:
    """The hits or labels in ``value``, if that is what it is.

    A list whose every element has an ``id`` and a ``score``, as a search gives it, or is a (label, score).
    """
    if not isinstance(value, list | tuple) or not value:
        return None
    found = [_score(each) for each in value]
    return None if None in found else [each for each in found if each is not None]


def _score(value: Any) -> Score | None:
    if isinstance(value, tuple) and len(value) == 2:
        name, score = value
    elif isinstance(value, Mapping):
        name, score = value.get("id"), value.get("score")
    else:
        name, score = getattr(value, "id", None), getattr(value, "score", None)
    if not isinstance(name, str) or not isinstance(score, int | float | np.number):
        return None
    return Score(name, float(score))


def _brief(value: Any, width: int) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        text = str(value)
    elif isinstance(value, str):
        text = visible(value[: width + 1])
    elif isinstance(value, int | float):
        text = brief_number(value)
    elif isinstance(value, bytes | bytearray | memoryview):
        text = f"bytes[{len(value)}]"
    elif isinstance(value, np.ndarray):
        text = _array(value)
    elif isinstance(value, BaseException):
        said = str(value) if isinstance(value, RequestFailed) else f"{type(value).__name__}: {value}"
        text = visible(said[: width + 1])
    else:
        text = _composed(value, width)
    return text


def _array(array: NDArray[Any]) -> str:
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "fiub":
        return shape_of(array)
    shown = array[: _FEW if array.size <= _FEW else _SHOWN].tolist()
    numbers = " ".join(brief_number(each) for each in shown)
    return f"{shape_of(array)} {numbers}{'' if array.size <= _FEW else ' …'}"


def _composed(value: Any, width: int) -> str:
    if (hits := scores(value)) is not None:
        return _some([f"{visible(hit.id[:width])} {hit.score:.3f}" for hit in hits[:_FEW]], len(hits), " · ")
    if isinstance(value, Mapping):
        pairs = [f"{brief(key, 24)}: {brief(value[key], 40)}" for key in list(value)[:_FEW]]
        return f"{{{_some(pairs, len(value), ', ')}}}"
    if isinstance(value, list | tuple | set | frozenset):
        inner = [brief(each, 40) for each, _ in zip(value, range(_FEW), strict=False)]
        return f"[{_some(inner, len(value), ', ')}]"
    if isinstance(value, Sequence):
        return f"{type(value).__name__}[{len(value)}]"
    try:
        return visible(repr(value)[:_LONGEST_READ])
    except Exception:  # noqa: BLE001  a stranger's class: showing it must not fail what it is part of
        return f"<{type(value).__name__}>"


def _some(shown: list[str], total: int, between: str) -> str:
    more = total - len(shown)
    return between.join(shown) + (f"{between}… {more} more" if more else "")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
