from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.pipeline.values import brief, is_picture, scores, thumbnail
from clipfleet.schemas.errors import ErrorCode, error_for


@dataclass
class Hit:
    id: str
    score: float


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "None"),
        (True, "True"),
        (12, "12"),
        (0.123456, "0.1235"),
        (12345.678, "12346"),
        (1e30, "1e+30"),
        (float("nan"), "nan"),
        (np.float32(0.5), "0.5"),
        ("a cat", "a cat"),
        (b"12345", "bytes[5]"),
        (np.zeros((480, 640, 3), np.uint8), "u8[480,640,3]"),
        (np.array([1, 2, 3, 4], np.float32), "f32[4] 1 2 3 4"),
        (np.array([0.01, -0.02, 3, 4, 5, 6, 7], np.float32), "f32[7] 0.01 -0.02 3 …"),
        (np.zeros((0,), np.int64), "i64[0]"),
        (np.array([True, False]), "bool[2] True False"),
        ([1, "a", None], "[1, a, None]"),
        (list(range(9)), "[0, 1, 2, 3, 4, 5, … 3 more]"),
        ((1, 2), "[1, 2]"),
        ({"a": 1, "b": [2]}, "{a: 1, b: [2]}"),
        ([], "[]"),
        ([Hit("cat.png", 0.5), Hit("dog.png", 0.25)], "cat.png 0.500 · dog.png 0.250"),
        ([{"id": "cat.png", "score": np.float32(0.5), "metadata": {}}], "cat.png 0.500"),
        ([("cat", 0.5), ("dog", np.float32(0.25))], "cat 0.500 · dog 0.250"),
        (("cat", 0.5), "[cat, 0.5]"),
        (error_for(ErrorCode.CORRUPT_IMAGE, "it ends early"), "corrupt_image: it ends early"),
        (KeyError("a"), "KeyError: 'a'"),
        (Rude(), "<Rude>"),
    ],
)
def test_a_value_in_short(value, said):
    assert brief(value) == said


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=200) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=80), inner, max_size=12),
    max_leaves=30,
)


@given(json_like, st.integers(4, 80))
def test_whatever_it_is_the_text_is_short_and_harmless(value, width):
    text = brief(value, width)
    assert len(text) <= width
    assert text.isprintable()


@pytest.mark.parametrize(
    "value",
    [
        [],
        "ab",
        [("a", "b")],
        [("a", 1.0, 2)],
        [{"id": 1, "score": 1.0}],
        [{"id": "a"}],
        [Hit("a", 1.0), 3],
        [1, 2],
        None,
        {"id": "a"},
    ],
)
def test_what_is_no_list_of_hits(value):
    assert scores(value) is None


@pytest.mark.parametrize(
    ("shape", "dtype", "is_one"),
    [
        ((4, 4, 3), "u1", True),
        ((4, 4, 4), "u1", False),
        ((4, 4), "u1", False),
        ((4, 4, 3), "f4", False),
        ((0, 4, 3), "u1", False),
    ],
)
def test_what_is_a_picture(shape, dtype, is_one):
    assert is_picture(np.zeros(shape, dtype)) is is_one


@pytest.mark.parametrize(
    ("shape", "small"),
    [((100, 200, 3), (10, 20, 3)), ((1000, 1, 3), (20, 1, 3)), ((1, 1000, 3), (1, 20, 3)), ((5, 5, 3), (5, 5, 3))],
)
def test_a_thumbnail_keeps_its_proportions_and_is_never_larger(shape, small):
    assert thumbnail(np.zeros(shape, np.uint8)[::-1], 20, 20).shape == small
