"""Every picture of tests/cases/expect.tsv, by the rules written beside it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from clipfleet.operators import decode_image
from clipfleet.schemas.errors import RequestFailed

CASES = Path(__file__).resolve().parents[1] / "cases"


def _rows():
    with (CASES / "expect.tsv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file, delimiter="\t") if row["file"].startswith("images/")]


ROWS = _rows()


def _rules(text):
    pixels, rules = [], {}
    for rule in text.split(";"):
        if rule.startswith("std>"):
            rules["std"] = float(rule[4:])
        elif rule.startswith("px@"):
            where, colour = rule[3:].split("=")
            pixels.append((tuple(map(int, where.split(","))), tuple(map(int, colour.split(",")))))
        else:
            key, value = rule.split("=")
            rules[key] = value
    return pixels, rules


def _read(name):
    return decode_image((CASES / name).read_bytes())


def test_given_the_cases_when_listed_then_none_is_forgotten():
    listed = {row["file"] for row in ROWS}
    assert listed == {f"images/{path.name}" for path in (CASES / "images").iterdir()}


@pytest.mark.parametrize("row", [row for row in ROWS if row["verdict"] == "accept"], ids=lambda row: row["file"])
def test_given_a_picture_to_accept_when_decoded_then_size_and_colours_are_right(row):
    pixels, rules = _rules(row["expect"])
    image = _read(row["file"])
    tolerance = int(rules.get("tol", 2))
    assert image.mode == "RGB"
    assert f"{image.width}x{image.height}" == rules["size"]
    for where, colour in pixels:
        assert np.abs(np.subtract(image.getpixel(where), colour)).max() <= tolerance, where
    values = np.asarray(image, dtype=float)
    if "std" in rules:
        assert values.std() > rules["std"]
    if "same" in rules:
        assert np.abs(values - np.asarray(_read(rules["same"]), dtype=float)).max() <= tolerance


@pytest.mark.parametrize("row", [row for row in ROWS if row["verdict"] == "reject"], ids=lambda row: row["file"])
def test_given_a_picture_to_reject_when_decoded_then_the_code_is_the_stated_one(row):
    _, rules = _rules(row["expect"])
    with pytest.raises(RequestFailed) as failure:
        _read(row["file"])
    assert failure.value.code in rules["code"].split("|")
    assert not failure.value.retryable


def test_given_a_float_tiff_in_0_to_1_when_decoded_then_its_content_is_kept():
    image = _read("images/float01.tif")
    assert image.size == (64, 48)
    assert np.asarray(image).std() > 20


@pytest.mark.parametrize("name", ["images/one_px_wide.png", "images/tracking_pixel.gif"])
def test_given_a_picture_one_pixel_wide_when_decoded_then_it_is_bad_shape(name):
    with pytest.raises(RequestFailed) as failure:
        _read(name)
    assert failure.value.code == "bad_shape"
