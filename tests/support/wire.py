"""Strategies for what travels: names, msgpack values, damaged bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

IDS = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=12,
)
MAPS = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)


@st.composite
def mutated(draw: DrawFn, data: bytes) -> bytes:
    """``data`` with bytes flipped, cut out, doubled or put in, as a broken sender or network would."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(out)))
        match draw(st.sampled_from(["flip", "cut", "insert", "double"])):
            case "flip" if at < len(out):
                out[at] = draw(st.integers(0, 255))
            case "cut":
                del out[at : at + draw(st.integers(1, 8))]
            case "double":
                out[at:at] = out[at : at + draw(st.integers(1, 8))]
            case _:
                out[at:at] = draw(st.binary(min_size=1, max_size=8))
    return bytes(out)
