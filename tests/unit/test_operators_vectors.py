"""Operators on vectors: length, dimension, labels, order."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.models import resolve_model
from clipfleet.operators import classify, normalize, rank, reduce_dim
from clipfleet.operators.clip import ClipImage, ClipText
from clipfleet.operators.pca import Pca, fit_pca, load_pca, save_pca
from clipfleet.schemas.errors import ErrorCode, RequestFailed

PICTURES = Path(__file__).parents[2] / "examples" / "pictures"
DEMO = resolve_model("demo").config


def bad_shape(call, *values):
    with pytest.raises(RequestFailed) as failed:
        call(*values)
    assert failed.value.code is ErrorCode.BAD_SHAPE
    return failed.value.message


# normalize ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_given_any_vector_then_it_has_length_1_and_the_same_direction(numbers):
    if not any(numbers):
        bad_shape(normalize(), numbers)
        return
    found = normalize()(numbers)
    assert found.dtype == np.float32
    assert abs(float(np.linalg.norm(found.astype(np.float64))) - 1) < 1e-6
    largest = max(map(abs, numbers))
    for before, after in zip(numbers, found, strict=True):
        # What is too small beside the largest may become zero, and never change sides.
        assert before * float(after) >= 0
        assert abs(before) < largest or abs(after) > 0


@pytest.mark.parametrize(
    "value",
    [[], [0.0, -0.0], [1.0, float("nan")], [1.0, float("inf")], [[1.0, 2.0]], 3.0, None, "text", ["a"], [10**400], {}],
    ids=str,
)
def test_given_what_has_no_direction_then_it_fails(value):
    bad_shape(normalize(), value)


# reduce_dim -----------------------------------------------------------------------------------------------------------


def cloud(count=200, dimension=12, seed=1):
    """Vectors that differ mostly in three directions."""
    random = np.random.default_rng(seed)
    directions = np.linalg.qr(random.normal(size=(dimension, dimension)))[0]
    spread = np.array([9.0, 5.0, 2.0] + [0.01] * (dimension - 3))
    return (random.normal(size=(count, dimension)) * spread @ directions.T + 3).astype(np.float32)


@pytest.fixture
def fitted(tmp_path):
    save_pca(fit_pca(cloud(), 3), tmp_path / "pca.npz")
    return tmp_path / "pca.npz"


def test_given_fitted_vectors_then_components_are_those_of_a_singular_value_decomposition():
    vectors = cloud()
    pca = fit_pca(vectors, 3)
    centred = vectors.astype(np.float64) - vectors.astype(np.float64).mean(axis=0)
    values, directions = np.linalg.svd(centred, full_matrices=False)[1:]
    for ours, theirs in zip(pca.components, directions, strict=False):
        assert abs(float(ours @ theirs)) > 1 - 1e-5
    assert pca.explained == pytest.approx(values[:3] ** 2 / (values**2).sum(), rel=1e-5)
    assert pca.explained.sum() > 0.999


def test_given_a_fitted_file_then_near_vectors_stay_near(fitted):
    vectors = cloud()
    short = np.stack([reduce_dim(fitted)(vector) for vector in vectors])
    assert short.shape == (200, 3)
    assert np.linalg.norm(short, axis=1) == pytest.approx(1, abs=1e-6)
    centred = vectors - vectors.mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    assert np.abs(short @ short.T - centred @ centred.T).max() < 0.02


def test_given_a_vector_of_another_dimension_or_the_mean_itself_then_it_fails(fitted):
    assert "[12]" in bad_shape(reduce_dim(fitted), np.ones(11))
    bad_shape(reduce_dim(fitted), np.full(12, np.nan))
    bad_shape(reduce_dim(fitted), load_pca(fitted).mean)


def test_fitting_twice_gives_the_same_fingerprint_and_other_vectors_or_models_another(fitted):
    once, again = fit_pca(cloud(), 3), fit_pca(cloud(), 3)
    assert once.fingerprint == again.fingerprint == load_pca(fitted).fingerprint == reduce_dim(fitted).fingerprint
    others = fit_pca(cloud(), 2), fit_pca(cloud(seed=2), 3), replace(once, model=DEMO.fingerprint)
    assert len({once.fingerprint, *(each.fingerprint for each in others)}) == 4


def test_given_a_file_of_the_served_model_then_it_opens_and_of_another_one_it_refuses(tmp_path):
    vectors = cloud(dimension=DEMO.dimension)
    save_pca(fit_pca(vectors, 8, model=DEMO.fingerprint), tmp_path / "demo.npz")
    save_pca(fit_pca(vectors, 8, model="ab" * 32), tmp_path / "other.npz")
    assert reduce_dim(tmp_path / "demo.npz")(vectors[0]).shape == (8,)
    with pytest.raises(ValueError, match=r"other\.npz was fitted on vectors of the model abababababab"):
        reduce_dim(tmp_path / "other.npz")(vectors[0])


@pytest.mark.parametrize(
    ("vectors", "to"),
    [
        (np.ones((5, 4)), 2),
        (np.ones((5, 4), int), 2),
        (np.ones(5), 1),
        (cloud(), 12),
        (cloud(), 0),
        (cloud(3), 3),
        (np.full((9, 4), np.nan), 2),
    ],
    ids=["same", "whole", "flat", "not-shorter", "none", "too-few", "nan"],
)
def test_given_vectors_that_tell_nothing_then_fitting_refuses(vectors, to):
    with pytest.raises(ValueError, match="vectors"):
        fit_pca(vectors, to)


class Touch:
    """What runs code as it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def broken(tmp_path, kind):
    path = tmp_path / "broken.npz"
    good = fit_pca(cloud(), 3)
    if kind == "text":
        path.write_text("no npz")
    elif kind == "array":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    elif kind == "names":
        np.savez(path, components=good.components)
    elif kind == "shapes":
        save_pca(Pca(good.components, good.mean[:-1], good.explained), path)
    elif kind == "nan":
        save_pca(Pca(good.components * np.float32("nan"), good.mean, good.explained), path)
    elif kind in {"encrypted", "compressed otherwise"}:
        save_pca(good, path)
        data = bytearray(path.read_bytes())
        at = data.index(b"PK\x01\x02")
        data[at + 8 : at + 12] = b"\x01\0\0\0" if kind == "encrypted" else b"\0\0\x63\0"
        path.write_bytes(data)
    elif kind in {"huge", "huger"}:
        head = io.BytesIO()
        shape = (10**6, 10**6) if kind == "huge" else (2**70,)
        np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": shape})
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("components.npy", head.getvalue())
    elif kind == "pickle":
        np.savez(path, components=np.array([Touch(tmp_path / "ran")], dtype=object))
    elif kind == "fingerprint":
        save_pca(replace(good, model="../etc"), path)
    return path


@pytest.mark.parametrize(
    "kind",
    [
        *("missing", "text", "array", "names", "shapes", "nan", "fingerprint"),
        *("encrypted", "compressed otherwise", "huge", "huger", "pickle"),
    ],
)
def test_given_a_file_that_is_none_then_it_is_said(tmp_path, kind):
    with pytest.raises(ValueError, match=r"broken\.npz"):
        load_pca(broken(tmp_path, kind))
    assert not (tmp_path / "ran").exists()


# classify -------------------------------------------------------------------------------------------------------------

LABELS = ("cat face", "red apple", "sailboat", "accordion")


def test_given_a_picture_then_its_own_label_is_first_and_scores_are_probabilities():
    take = classify(LABELS, "{}")
    for label in LABELS:
        vector = ClipImage()((PICTURES / f"{label.replace(' ', '-')}.png").read_bytes())
        found = take(vector)
        assert found[0][0] == label
        assert {name for name, _ in found} == set(LABELS)
        assert sum(score for _, score in found) == pytest.approx(1)
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)


def test_given_a_texts_own_vector_then_scores_follow_from_the_cosines():
    vectors = [ClipText()(label) for label in LABELS]
    logits = np.array([20.0 * float(vectors[0] @ vector) for vector in vectors])
    expected = np.exp(logits) / np.exp(logits).sum()
    found = dict(classify(list(LABELS), "{}", scale=20.0)(vectors[0]))
    assert [found[label] for label in LABELS] == pytest.approx(expected, rel=1e-4)


def test_given_several_templates_and_a_limit_then_the_mean_decides_and_the_rest_is_left_out():
    vector = ClipText()("a drawing of a sailboat")
    found = classify(LABELS, ("a drawing of a {}", "{}"), limit=2)(vector)
    assert len(found) == 2
    assert found[0][0] == "sailboat"


@pytest.mark.parametrize(
    "options",
    [
        {"labels": ()},
        {"labels": ("a", "a")},
        {"labels": ("a", " ")},
        {"labels": ("a",), "template": "no place"},
        {"labels": ("a",), "limit": 0},
        {"labels": ("a",), "scale": 0},
    ],
    ids=str,
)
def test_given_labels_that_cannot_be_then_it_is_refused_when_it_is_written(options):
    with pytest.raises(ValueError, match=r"label|template|limit|scale"):
        classify(**options)


def test_given_a_label_that_the_model_cannot_read_then_opening_says_which():
    with pytest.raises(ValueError, match=r"'\\u200b' cannot be embedded"):
        classify(("cat", "\u200b"), "{}")(np.ones(DEMO.dimension))


def test_given_a_vector_of_another_dimension_then_it_fails():
    bad_shape(classify(LABELS), np.ones(DEMO.dimension + 1))


# rank -----------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.text(max_size=3), st.floats(-9, 9)), max_size=30), st.none() | st.integers(1, 40))
def test_given_any_pairs_then_the_best_come_first_and_equals_stay_in_order(pairs, limit):
    found = rank(limit)(pairs)
    assert found == sorted(pairs, key=lambda pair: pair[1], reverse=True)[:limit]
    assert rank(limit)([item for item, _ in pairs], [score for _, score in pairs]) == found


@pytest.mark.parametrize(
    "values",
    [([1, 2],), ([("a", "b")],), ([("a", float("nan"))],), (["a"], []), ([("a", 1, 2)],), ([("a", 10**400)],)],
    ids=lambda value: str(value)[:40],
)
def test_given_what_cannot_be_ranked_then_it_fails(values):
    bad_shape(rank(), *values)


def test_given_a_limit_of_none_at_all_then_it_is_refused():
    with pytest.raises(ValueError, match="limit"):
        rank(0)
