"""Operators on pictures: their size, parts of them, and whether two look the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from clipfleet import operators
from clipfleet.operators import crop, decode_image, dedupe, phash, resize, tiles
from clipfleet.schemas.errors import ErrorCode, RequestFailed

PICTURES = Path(__file__).parents[2] / "examples" / "pictures"
NO_PICTURES = [None, b"bytes", np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)]


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def example(name):
    return np.asarray(decode_image((PICTURES / f"{name}.png").read_bytes()))


def bad_shape(call, *values):
    with pytest.raises(RequestFailed) as failed:
        call(*values)
    assert failed.value.code is ErrorCode.BAD_SHAPE
    return failed.value.message


def test_the_module_and_the_operator_of_the_same_name_do_not_hide_each_other():

    assert operators.resize is resize
    assert isinstance(resize(8), operators.Operator)


@pytest.mark.parametrize("value", NO_PICTURES, ids=["none", "bytes", "grey", "floats", "empty"])
@pytest.mark.parametrize(
    "call",
    [resize(8), tiles(8), phash(), lambda value: crop()(value, (0, 0, 1, 1))],
    ids=["resize", "tiles", "phash", "crop"],
)
def test_given_what_is_no_picture_then_the_item_fails_by_its_shape(call, value):
    assert "uint8 [h, w, 3]" in bad_shape(call, value)


# resize ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["shortest", "squash", "longest"])
@pytest.mark.parametrize("size", [16, (10, 30)])
def test_given_any_picture_when_resized_then_it_has_the_size(mode, size):
    height, width = size if isinstance(size, tuple) else (size, size)
    for source in (picture(50, 20), picture(7, 90), picture(16, 16)):
        assert resize(size, mode)(source).shape == (height, width, 3)


def test_given_a_wide_picture_then_shortest_crops_longest_pads_and_squash_keeps_all():
    source = np.zeros((10, 30, 3), np.uint8)
    source[:, :10], source[:, 10:20], source[:, 20:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    assert (resize(10)(source) == (0, 255, 0)).all()
    padded = resize(30, "longest", fill=(9, 8, 7))(source)
    assert (padded[:10] == (9, 8, 7)).all()
    assert (padded[20:] == (9, 8, 7)).all()
    assert (padded[10:20] == source).all()
    squashed = resize((10, 3), "squash", "bilinear")(source)
    assert [int(pixel.argmax()) for pixel in squashed[5]] == [0, 1, 2]


def test_given_a_sliver_then_it_fails_and_is_not_scaled_to_hundreds_of_megabytes():
    assert "over 100 times" in bad_shape(resize(224), picture(1, 5000))


@pytest.mark.parametrize(
    "options",
    [
        *({"size": 0}, {"size": (1, 2, 3)}, {"size": "4"}, {"size": 2.5}, {"size": None}),
        *({"size": 4, "mode": "best"}, {"size": 4, "fill": (0, 0, 256)}),
    ],
    ids=str,
)
def test_given_an_option_that_cannot_be_then_it_is_refused_when_it_is_written(options):
    with pytest.raises(ValueError, match=r"size|mode|fill"):
        resize(**options)


def test_equal_options_are_equal_operators_which_share_a_stage():
    assert resize(8) == resize((8, 8))
    assert hash(tiles(4)) == hash(tiles(4, 4))
    assert resize(8) != resize(8, "squash")


# crop -----------------------------------------------------------------------------------------------------------------


def test_given_a_box_then_its_pixels_are_cut_out():
    source = picture(20, 30)
    assert np.array_equal(crop()(source, (3.2, 4.4, 9.6, 8.5001)), source[4:9, 3:10])
    assert np.array_equal(crop()(source, np.array([0, 0, 30, 20])), source)


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.tuples(*[st.floats(allow_nan=False, allow_infinity=False) | st.floats(-50, 50)] * 4),
)
def test_given_any_box_then_there_are_pixels_within_the_picture_or_a_verdict(height, width, box):
    source = picture(height, width)
    left, right = (round(min(max(edge, 0), width)) for edge in (box[0], box[2]))
    top, bottom = (round(min(max(edge, 0), height)) for edge in (box[1], box[3]))
    if left < right and top < bottom:
        assert np.array_equal(crop()(source, box), source[top:bottom, left:right])
    else:
        assert "holds no pixel" in bad_shape(crop(), source, box)


@pytest.mark.parametrize(
    "box",
    [(5, 5, 5, 9), (9, 9, 5, 5), (40, 0, 50, 10), (-9, -9, 0, 0), (0, 0, float("nan"), 1), (0, 0, float("inf"), 1)],
    ids=str,
)
def test_given_a_box_without_pixels_then_it_fails(box):
    bad_shape(crop(), picture(20, 30), box)


@pytest.mark.parametrize("box", [None, (1, 2, 3), (1, 2, 3, "x"), "abcd", "1234", b"abcd", 7], ids=str)
def test_given_what_is_no_box_then_it_fails(box):
    assert "four numbers" in bad_shape(crop(), picture(20, 30), box)


# tiles ----------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 20), st.integers(1, 20), st.data())
def test_given_any_picture_then_tiles_cover_every_pixel_and_are_what_their_boxes_say(height, width, high, wide, data):
    stride = data.draw(st.tuples(st.integers(1, high), st.integers(1, wide)))
    source = picture(height, width)
    covered = np.zeros((height, width), bool)
    boxes = []
    for tile, box in tiles((high, wide), stride)(source):
        x0, y0, x1, y1 = map(int, box)
        assert tile.shape == (min(high, height), min(wide, width), 3)
        assert np.array_equal(tile, source[y0:y1, x0:x1])
        covered[y0:y1, x0:x1] = True
        boxes.append(box)
    assert covered.all()
    assert len(set(boxes)) == len(boxes)


def test_given_no_overlap_then_tiles_part_the_picture():
    assert [box for _, box in tiles(10)(picture(20, 25))] == [
        *((0, 0, 10, 10), (10, 0, 20, 10), (15, 0, 25, 10)),
        *((0, 10, 10, 20), (10, 10, 20, 20), (15, 10, 25, 20)),
    ]


def test_given_more_tiles_than_allowed_then_it_fails_before_one_is_cut():
    assert "100 tiles" in bad_shape(tiles(1, most=99), picture(10, 10))


def test_given_a_stride_beyond_the_size_then_it_is_refused():
    with pytest.raises(ValueError, match="gaps"):
        tiles(4, 5)


# phash and dedupe -----------------------------------------------------------------------------------------------------


def formula():
    y, x = np.mgrid[0:97, 0:131]
    return np.stack([(x * 3 + y * y) % 256, (x * y) % 256, (5 * y + x * x // 7) % 256], -1).astype(np.uint8)


def test_hashes_are_those_of_imagehash():
    # By imagehash 4.3.2: phash and dhash of the same pixels.
    assert phash()(formula()) == "810b0f090f7f0f5f"
    assert phash("difference")(formula()) == "f38ca868d292aa28"


def distance(left, right):
    return (int(left, 16) ^ int(right, 16)).bit_count()


@pytest.mark.parametrize("method", ["dct", "difference"])
@pytest.mark.parametrize("name", ["accordion", "cat-face", "sailboat"])
def test_given_a_smaller_and_duller_copy_then_its_hash_is_near_and_another_pictures_is_far(method, name):
    source = example(name)
    copy = np.asarray(Image.fromarray(source).resize((61, 61), Image.Resampling.BICUBIC)) // 4 * 3
    take = phash(method)
    assert distance(take(source), take(copy)) <= 6
    assert distance(take(source), take(example("red-apple"))) > 12


def test_given_near_copies_when_deduped_then_the_first_of_each_stays_in_order():
    hashes = ["00000000000000ff", "ffffffffffffffff", "00000000000000fe", "0000000000000000"]
    assert dedupe(6)(hashes, ["a", "b", "c", "d"]) == ["a", "b", "d"]
    assert dedupe(6)(hashes) == [hashes[0], hashes[1], hashes[3]]
    assert dedupe(0)(hashes, [1, 2, 3, 4], [5, 6, 7, 8]) == [(1, 5), (2, 6), (3, 7), (4, 8)]
    assert dedupe()([]) == []


@given(st.lists(st.integers(0, 2**64 - 1), max_size=30), st.integers(0, 40))
def test_given_any_hashes_then_the_kept_are_far_apart_and_each_dropped_one_is_near_one_before_it(numbers, bits):
    hashes = [f"{number:016x}" for number in numbers]
    kept = dedupe(bits)(hashes, list(range(len(hashes))))
    assert all(distance(hashes[a], hashes[b]) > bits for a in kept for b in kept if a < b)
    dropped = set(range(len(hashes))) - set(kept)
    assert all(any(k < d and distance(hashes[k], hashes[d]) <= bits for k in kept) for d in dropped)


def test_given_what_is_no_hash_or_another_length_then_it_fails():
    bad_shape(dedupe(), ["xyz"])
    bad_shape(dedupe(), [12])
    bad_shape(dedupe(), ["0" * 16], [1, 2])
    with pytest.raises(ValueError, match="distance"):
        dedupe(64)
    with pytest.raises(ValueError, match="method"):
        phash("wavelet")
