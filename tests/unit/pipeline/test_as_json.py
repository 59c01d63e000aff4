from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.pipeline.as_json import as_json


@dataclass
class Hit:
    id: str
    score: float


class Label(NamedTuple):
    label: str
    score: float


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, None),
        (True, True),
        ("a cat", "a cat"),
        (0.1, 0.1),
        (float("inf"), None),
        (np.float32(0.1), 0.1),
        (np.float64(0.1), 0.1),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (b"\x00\xff", {"base64": "AP8="}),
        (np.array([0.1, np.nan], np.float32), [0.1, None]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(7), 7),
        (np.zeros((1, 1, 3), np.uint8), {"dtype": "u1", "shape": [1, 1, 3], "base64": "AAAA"}),
        (np.zeros(2, np.uint8), [0, 0]),
        ([Hit("a", 0.5)], [{"id": "a", "score": 0.5}]),
        (Label("cat", np.float32(0.5)), {"label": "cat", "score": 0.5}),
        ({"a": (1, {2: b""})}, {"a": [1, {"2": {"base64": ""}}]}),
        ({1}, [1]),
        (ValueError("no"), "ValueError: no"),
        (Hit, repr(Hit)),
    ],
)
def test_a_value_as_json(value, said):
    found = as_json(value)
    assert found == said
    assert type(found) is type(said)
    json.dumps(found, allow_nan=False)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float32_comes_back_whole(value):
    assert np.float32(json.loads(json.dumps(as_json(np.array([value], np.float32))))[0]) == np.float32(value)
