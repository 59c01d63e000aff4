"""model.json is read strictly, and the fingerprint moves exactly when a vector would."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.models.config import ImageConfig, ModelConfig, TextConfig, read_config
from clipfleet.models.errors import BadBundle
from clipfleet.models.fingerprint import fingerprint

IMAGE = {
    "size": [64, 48],
    "resize_mode": "squash",
    "interpolation": "bilinear",
    "fill_color": 0,
    "mean": [0, 0.5, 1],
    "std": [1, 0.5, 0.25],
    "background": [255, 255, 255],
}
TEXT = {
    "context_length": 32,
    "tokenizer": "tokenizer.json",
    "cleaning": "clip",
    "pad_id": 0,
    "sot_id": 1,
    "eot_id": None,
    "dynamic_length": True,
    "pooling": "mean",
}
MODEL = {
    "format": 1,
    "name": "tiny",
    "description": "a model of a test",
    "licence": "Apache-2.0",
    "fingerprint": "ab" * 32,
    "dimension": 8,
    "image": IMAGE,
    "text": TEXT,
    "precision": "fp32",
    "files": {"image.onnx": "cd" * 32},
    "source": {"note": ["free", 1]},
}


def test_given_a_full_model_json_when_read_then_every_field_arrives_and_writes_back() -> None:
    config = read_config(json.dumps(MODEL))

    assert config.image.size == (64, 48)
    assert config.image.fill_color == (0, 0, 0)
    assert config.image.std == (1.0, 0.5, 0.25)
    assert config.text.sot_id == 1
    assert config.text.eot_id is None
    assert read_config(json.dumps(config.to_json())) == config


@pytest.mark.parametrize("section", ["image", "text", ""])
def test_given_a_missing_field_when_read_then_the_error_names_it(section: str) -> None:
    optional = {"format", "source", "background"}
    for field in (MODEL[section] if section else MODEL).keys() - optional:
        broken = json.loads(json.dumps(MODEL))
        del (broken[section] if section else broken)[field]
        with pytest.raises(BadBundle, match=field):
            ModelConfig.from_json(broken)


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("image", "size", [64]),
        ("image", "size", [0, 64]),
        ("image", "size", 64),
        ("image", "resize_mode", "crop"),
        ("image", "resize_mode", ["squash"]),
        ("image", "interpolation", "nearest"),
        ("image", "fill_color", 256),
        ("image", "fill_color", [True, 0, 0]),
        ("image", "mean", [0, 0, float("nan")]),
        ("image", "mean", [0, 0, 10**400]),
        ("image", "mean", [0, 0, False]),
        ("image", "std", [1, 1, 0]),
        ("image", "surprise", 1),
        ("text", "context_length", 2),
        ("text", "context_length", True),
        ("text", "tokenizer", "../../etc/passwd"),
        ("text", "tokenizer", ".hidden"),
        ("text", "cleaning", "wash"),
        ("text", "pad_id", -1),
        ("text", "pad_id", None),
        ("text", "dynamic_length", 1),
        ("text", "pooling", "max"),
        ("", "fingerprint", "ab" * 31),
        ("", "dimension", 0),
        ("", "name", ""),
        ("", "files", {"a/b": "cd" * 32}),
        ("", "files", {"image.onnx": "xyz"}),
        ("", "image", []),
        ("", "surprise", 1),
    ],
)
def test_given_a_field_out_of_range_when_read_then_the_error_names_it(section, field, value) -> None:
    broken = json.loads(json.dumps(MODEL))
    (broken[section] if section else broken)[field] = value

    with pytest.raises(BadBundle, match=field):
        ModelConfig.from_json(broken)


@pytest.mark.parametrize("text", ["", "[]", "null", b"\xff", "{", '{"format": 2}', "{}"])
def test_given_no_model_json_at_all_when_read_then_it_is_a_bad_bundle(text) -> None:
    with pytest.raises(BadBundle, match=r"model\.json"):
        read_config(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(["image", "text", ""]), st.data())
def test_given_any_value_in_any_field_when_read_then_a_config_or_a_bad_bundle(section, data) -> None:
    broken = json.loads(json.dumps(MODEL))
    part = broken[section] if section else broken
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(JSON)

    try:
        config = ModelConfig.from_json(broken)
    except BadBundle:
        return
    assert ModelConfig.from_json(config.to_json()) == config


def tensors() -> dict[str, np.ndarray]:
    return {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.float32(2.5).reshape(())}


def test_given_what_does_not_change_a_vector_then_the_fingerprint_stays() -> None:
    first = fingerprint(tensors(), IMAGE, TEXT, b'{"a": 1, "b": 2}')
    big_endian = {k: v.astype(v.dtype.newbyteorder(">"), order="F") for k, v in tensors().items()}
    image = ImageConfig.from_json({**IMAGE, "fill_color": [0, 0, 0]})
    text = TextConfig.from_json({**TEXT, "dynamic_length": False, "tokenizer": "words.json"})

    again = fingerprint(dict(sorted(big_endian.items())), image, text, b'{"b":2,\n"a":1}')

    assert again == first
    assert len(first) == 64


def test_given_anything_that_changes_a_vector_then_the_fingerprint_changes() -> None:
    words = b'{"a": 1}'
    renamed = {"c": tensors()["b"], "a": tensors()["a"]}
    reshaped = {**tensors(), "b": tensors()["b"].reshape(3, 2)}
    retyped = {**tensors(), "b": tensors()["b"].view(np.int32)}
    changed = {**tensors(), "a": np.float32(2.6).reshape(())}
    seen = [
        fingerprint(tensors(), IMAGE, TEXT, words),
        fingerprint(tensors(), IMAGE, TEXT, words, "int8"),
        fingerprint(tensors(), IMAGE, TEXT, words, architecture={"heads": 4}),
        fingerprint(tensors(), IMAGE, TEXT, words, architecture={"heads": 8}),
        fingerprint(tensors(), IMAGE, TEXT, b'{"a": 2}'),
        fingerprint(tensors(), IMAGE, TEXT, b"no json"),
        *(fingerprint(t, IMAGE, TEXT, words) for t in (renamed, reshaped, retyped, changed)),
        *(
            fingerprint(tensors(), {**IMAGE, **change}, TEXT, words)
            for change in (
                {"size": [48, 64]},
                {"resize_mode": "longest"},
                {"std": [1, 1, 1]},
                {"fill_color": 1},
            )
        ),
        *(
            fingerprint(tensors(), IMAGE, {**TEXT, **change}, words)
            for change in ({"cleaning": "lower"}, {"context_length": 31}, {"eot_id": 2}, {"pooling": "last"})
        ),
    ]

    assert len(set(seen)) == len(seen)


def test_given_a_released_fingerprint_then_it_never_moves() -> None:
    # Collections of Milvus are named by it: a release that computes another one loses its users' indexes.
    assert fingerprint(tensors(), IMAGE, TEXT, b"{}", architecture={"heads": 4}) == (
        "75fbdf184f0e285b9c7c241e608b0de976f69f2552c393963f903ce2d2b0979e"
    )
