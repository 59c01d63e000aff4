"""``decode``, ``clip_image`` and ``clip_text``, called by themselves and in pipelines."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from clipfleet import pipeline
from clipfleet.operators import Place, clip_image, clip_text, decode, milvus_delete, milvus_insert, milvus_search
from clipfleet.operators.services import ProcessServices
from clipfleet.schemas.errors import BadInput, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator

TINY = Path(__file__).parent / "data" / "tiny-bundle"


@pytest.fixture(scope="module")
def services() -> Iterator[ProcessServices]:
    services = ProcessServices(model=str(TINY))
    yield services
    services.close()


def picture(seed: int = 0, size: tuple[int, int] = (48, 64)) -> tuple[bytes, Any]:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue(), pixels


def test_given_a_picture_as_bytes_or_as_pixels_then_its_vector_is_the_same(services: ProcessServices) -> None:
    flow = pipeline.input("image").map("image", "pixels", decode()).map("pixels", "of_pixels", clip_image())
    flow = flow.map("image", "of_bytes", clip_image())
    encoded, pixels = picture()
    with flow.output("pixels", "of_pixels", "of_bytes").open(services=services) as running:
        (row,) = running(encoded)
    assert np.array_equal(row.pixels, pixels)
    assert row.of_pixels @ row.of_bytes == pytest.approx(1, abs=1e-5)
    assert np.linalg.norm(row.of_bytes) == pytest.approx(1, abs=1e-5)


def test_given_equal_operators_in_two_places_then_they_are_one_stage(services: ProcessServices) -> None:
    encoded, _ = picture()
    flow = pipeline.input("a", "b").map("a", "va", clip_image()).map("b", "vb", clip_image())
    with flow.output("va", "vb").open(services=services) as running:
        running(encoded, encoded)
        assert sorted(running.local().stats()) == ["clip_image"]


@pytest.mark.parametrize(
    ("pixels", "text"),
    [
        (np.zeros((4, 4), np.uint8), "not uint8"),
        (np.zeros((4, 4, 3), np.float32), "not float32"),
        (np.zeros((0, 4, 3), np.uint8), r"\[0, 4, 3\]"),
        (np.zeros((1, 5000, 3), np.uint8), "over 100 times the other"),
    ],
)
def test_given_what_are_no_pixels_then_that_item_is_of_bad_shape(
    services: ProcessServices, pixels: Any, text: str
) -> None:
    prepare = clip_image().open(Place(services)).prepare
    assert prepare is not None
    with pytest.raises(BadInput, match=text) as refused:
        prepare(pixels)
    assert refused.value.code is ErrorCode.BAD_SHAPE


def test_given_a_text_longer_than_the_model_reads_then_the_result_says_so(services: ProcessServices) -> None:
    with pipeline.input("text").map("text", "v", clip_text()).output("v").open(services=services) as running:
        short, long = running.batch(["a heart", "heart " * 500])
    assert "truncated" not in short.notes
    assert long.notes["truncated"] is True


def test_given_an_operator_by_itself_then_it_runs_with_the_demo_model() -> None:
    encoded, _ = picture()
    assert clip_text()("a red heart").shape == (256,)
    assert clip_image()(encoded).shape == (256,)
    assert decode()(encoded).shape == (48, 64, 3)
    with pytest.raises(BadInput):
        decode()(b"no picture")


def test_given_urls_and_paths_then_nothing_is_read_that_was_not_allowed(services: ProcessServices) -> None:
    function = decode().open(Place(services))
    for asked in ({"url": "http://example.com/a.png"}, {"path": "photos/a.png"}):
        with pytest.raises(BadInput) as refused:
            function(asked)
        assert refused.value.code is ErrorCode.FETCH_FORBIDDEN


def test_given_a_collection_by_position_then_it_is_the_collection_and_no_model() -> None:
    assert milvus_insert("objects").collection == "objects"
    assert (milvus_search("objects", limit=3).collection, milvus_delete("objects").collection) == ("objects",) * 2
    with pytest.raises(TypeError):
        milvus_insert("objects", "ViT-B-32/random")  # type: ignore[call-arg, misc]
