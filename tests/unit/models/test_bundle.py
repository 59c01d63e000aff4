"""A bundle is read whole and unchanged, or not at all."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import clipfleet.models
from clipfleet.models import BadBundle, load_bundle
from clipfleet.models.bundle import staging


def test_given_a_fresh_process_when_models_is_imported_then_nothing_heavy_is() -> None:
    heavy = {"numpy", "onnxruntime", "torch", "tokenizers", "ftfy"}
    code = (
        "import sys, clipfleet.models as m; m.ImageConfig; m.parse_name('demo'); m.list_devices('cpu');"
        f"print(sorted({heavy!r} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "[]"


def test_given_the_package_then_each_public_name_is_there() -> None:
    for name in clipfleet.models.__all__:
        assert getattr(clipfleet.models, name) is not None
    assert set(clipfleet.models.__all__) <= set(dir(clipfleet.models))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = clipfleet.models.nothing


def test_given_a_bundle_when_loaded_then_its_parts_are_found(tiny) -> None:
    golden = tiny.golden()

    assert tiny.config.name == "tiny"
    assert tiny.tokenizer_file.is_file()
    assert golden.pixels.shape == (3, 8, 6, 3)
    assert golden.text_vectors.shape == (len(golden.texts), 16)


@pytest.mark.parametrize("name", ["image.onnx", "text.onnx", "tokenizer.json", "golden.npz"])
def test_given_one_changed_byte_when_loaded_then_bad_bundle_names_the_file(copied, name) -> None:
    data = bytearray((copied / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copied / name).write_bytes(data)

    with pytest.raises(BadBundle, match=name):
        load_bundle(copied)


def test_given_a_missing_or_unlisted_file_when_loaded_then_bad_bundle_names_it(copied) -> None:
    (copied / "MODEL_CARD.md").write_text("not listed, and no matter")
    load_bundle(copied)
    (copied / "text.onnx").unlink()
    with pytest.raises(BadBundle, match=r"text\.onnx cannot be read"):
        load_bundle(copied)

    description = json.loads((copied / "model.json").read_text())
    del description["files"]["text.onnx"]
    (copied / "model.json").write_text(json.dumps(description))
    with pytest.raises(BadBundle, match=r"lists no text\.onnx"):
        load_bundle(copied)


def test_given_no_directory_when_loaded_then_bad_bundle(tmp_path) -> None:
    with pytest.raises(BadBundle, match="is no bundle"):
        load_bundle(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "changes",
    [
        {"texts": None},
        {"pixels": np.zeros((3, 6, 8, 3), np.uint8)},
        {"pixels": np.zeros((3, 8, 6, 3), np.float32)},
        {"image_vectors": np.zeros((2, 16), np.float32)},
        {"ids": np.zeros((4, 12), np.int32)},
        {"text_vectors": np.zeros((4, 15), np.float32)},
    ],
)
def test_given_golden_arrays_of_other_shapes_then_bad_bundle(copied, edit_golden, changes) -> None:
    edit_golden(copied, **changes)

    with pytest.raises(BadBundle, match=r"golden\.npz"):
        load_bundle(copied).golden()


def test_given_a_failed_writer_when_staging_then_nothing_is_left_and_the_old_one_stays(copied) -> None:
    def half_way(stage):
        (stage.folder / "image.onnx").write_bytes(b"half")
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"), staging(copied) as stage:
        half_way(stage)

    assert [path.name for path in copied.parent.iterdir()] == ["copied"]
    load_bundle(copied)


def test_given_an_old_bundle_when_published_anew_then_it_is_replaced_whole(copied, tiny, republish) -> None:
    (copied / "stale").write_text("of the old one")

    republish(copied)

    assert not (copied / "stale").exists()
    assert [path.name for path in copied.parent.iterdir()] == ["copied"]
    assert load_bundle(copied).config == tiny.config
