"""A few numbers by which a vector is known again."""

from __future__ import annotations

import numpy as np
import pytest

from clipfleet.store.sketch import alike, sketches


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def turned(vectors, cosine, chance):
    """Others, each at this cosine from its own."""
    aside = chance.standard_normal(vectors.shape)
    aside = unit(aside - np.sum(aside * vectors, axis=1, keepdims=True) * vectors)
    return (cosine * vectors + np.sqrt(1 - cosine**2) * aside).astype(np.float32)


@pytest.mark.parametrize("dimension", [3, 512, 4_096])
def test_given_a_vector_in_another_length_or_with_other_last_bits_then_it_is_known_again(dimension):
    chance = np.random.default_rng(dimension)
    vectors = unit(chance.standard_normal((100, dimension))).astype(np.float32)
    told = sketches(vectors)
    for same in (vectors * np.float32(1e18), vectors * np.float32(1e-15), turned(vectors, 1 - 1e-13, chance)):
        assert all(map(alike, told, sketches(same.astype(np.float32))))
    assert sketches([]) == []


@pytest.mark.parametrize("cosine", [0.99999, 0.99, 0.0])
def test_given_another_vector_however_near_then_it_is_another(cosine):
    chance = np.random.default_rng(7)
    vectors = unit(chance.standard_normal((2_000, 512))).astype(np.float32)
    assert not any(map(alike, sketches(vectors), sketches(turned(vectors, cosine, chance))))


def test_a_sketch_stays_the_same_from_release_to_release_and_what_is_none_is_like_nothing():
    (told,) = sketches([np.arange(1, 9, dtype=np.float32)])
    assert told == "4115d7be4115d73e81638fbe4115d73e"
    for other in ("", "00", "x" * 32, told + "00"):
        assert not alike(told, other)
