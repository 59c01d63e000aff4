"""An exported model gives open_clip's own vectors, whatever its kind; what cannot be shown to is not written."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

from clipfleet.models import (
    ExportRefused,
    ModelError,
    ModelNotFound,
    Tokenize,
    export_model,
    find_bundle,
    open_runtime,
    parse_name,
    resolve_model,
)
from clipfleet.models.open_clip_source import load_source
from clipfleet.models.open_clip_text import PROBES
from clipfleet.models.runtime import lowest_cosine
from clipfleet.operators import ImageLimits, prepare_image


def preprocessing(value, interpolation, resize_mode, **more):
    mean, std = ([value] * 3, [value or 1] * 3)
    return {"mean": mean, "std": std, "interpolation": interpolation, "resize_mode": resize_mode, **more}


KINDS = {
    "squash_0_1_bilinear": {"preprocess": preprocessing(0, "bilinear", "squash")},
    "longest_padded": {"preprocess": preprocessing(0.5, "bicubic", "longest", fill_color=127)},
    "not_square": {"vision": {"image_size": [48, 32]}},
    "quick_gelu": {"quick_gelu": True},
    "text_tower_of_its_own": {"custom_text": True, "text": {"pool_type": "eos", "eos_id": 49407, "proj_bias": True}},
    "not_causal_pool_last": {
        "custom_text": True,
        "preprocess": preprocessing(0.5, "bicubic", "squash"),
        "text": {"no_causal_mask": True, "pool_type": "last", "proj_bias": True, "norm_kwargs": {"eps": 1e-6}},
    },
    "batch_norm": {"vision": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "head_width": 32}},
}


def pictures(count, seed=5):
    """PNGs of many shapes and smooth content, as people send them."""
    rng = np.random.default_rng(seed)
    for index in range(count):
        small = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
        yield small.resize([(90, 60), (40, 120), (64, 64), (33, 31)][index % 4], Image.Resampling.BICUBIC)


def png(picture):
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def by_open_clip(name, images, texts):
    """What open_clip itself gives for pictures and words, by its documented calls."""
    model, preprocess = open_clip.create_model_from_pretrained(name)
    tokenizer = open_clip.get_tokenizer(name)
    model.eval()
    with torch.inference_mode():
        return (
            model.encode_image(torch.stack([preprocess(image) for image in images]), normalize=True).numpy(),
            model.encode_text(tokenizer(texts), normalize=True).numpy(),
        )


def by_bundle(bundle, images, texts, **how):
    tokenize = Tokenize(bundle.config.text, bundle.tokenizer_file)
    pixels = np.stack([prepare_image(png(image), bundle.config.image, ImageLimits()) for image in images])
    runtime = open_runtime(bundle, **how)
    return runtime.encode_images(pixels), runtime.encode_texts([tokenize(text)[0] for text in texts])


@pytest.mark.parametrize("kind", KINDS)
def test_given_a_model_of_any_kind_when_exported_then_open_clip_s_own_vectors(make_model, cache, kind) -> None:
    name = make_model(kind, **KINDS[kind])
    images, texts = list(pictures(8)), list(PROBES)

    bundle = export_model(name, cache=cache)
    found = by_bundle(bundle, images, texts, providers=["cpu"])

    for ours, theirs in zip(found, by_open_clip(name, images, texts), strict=True):
        assert lowest_cosine(ours, theirs) >= 0.9999
        # The vectors differ among themselves, so agreeing is no accident.
        assert np.min(theirs @ theirs.T) < 0.99
    text = bundle.config.text
    assert text.dynamic_length == (kind != "not_causal_pool_last")
    config = bundle.config.image.to_json()
    for field, value in KINDS[kind].get("preprocess", {}).items():
        assert config[field] == ([value] * 3 if field == "fill_color" else value)


def test_given_a_text_among_longer_ones_when_run_then_the_vector_it_has_alone(plain) -> None:
    _, bundle = plain
    tokenize = Tokenize(bundle.config.text, bundle.tokenizer_file)
    ids = [tokenize(text)[0] for text in PROBES]
    runtime = open_runtime(bundle)

    together = runtime.encode_texts(ids)
    alone = np.concatenate([runtime.encode_texts([row]) for row in ids])

    assert len({len(row) for row in ids}) > 4
    assert lowest_cosine(together, alone) >= 0.99999


def test_given_an_exported_model_when_run_by_torch_then_the_same_vectors(plain) -> None:
    _, bundle = plain
    images, texts = list(pictures(4)), list(PROBES)

    for left, right in zip(
        by_bundle(bundle, images, texts, providers=["torch"]),
        by_bundle(bundle, images, texts, providers=["cpu"]),
        strict=True,
    ):
        assert lowest_cosine(left, right) >= 0.99999


def test_given_bf16_weights_when_run_by_torch_then_unit_vectors_near_fp32_alone_and_in_a_batch(plain) -> None:
    _, bundle = plain
    images, texts = list(pictures(8)), list(PROBES)
    exact = by_bundle(bundle, images, texts, providers=["cpu"])
    rounded = by_bundle(bundle, images, texts, providers=["torch-bf16"])
    alone = by_bundle(bundle, images[:1], texts[:1], providers=["torch-bf16"])

    for near, one, fp32 in zip(rounded, alone, exact, strict=True):
        assert near.dtype == np.float32
        assert np.linalg.norm(near, axis=1) == pytest.approx(1, abs=1e-6)
        # Of 24 random dimensions, where rounding shows most: ViT-B-32's vectors are ten times nearer.
        assert lowest_cosine(near, fp32) >= 0.998
        assert lowest_cosine(one, near[:1]) >= 0.999
        # Rounded indeed.
        assert np.max(np.abs(near - fp32)) > 1e-5


def test_given_a_cached_export_when_started_without_torch_then_it_runs(plain, cache) -> None:
    name, bundle = plain
    code = f"""
import sys
for package in ("torch", "torchvision", "open_clip", "onnx", "transformers"):
    sys.modules[package] = None
from pathlib import Path
from clipfleet.models import Tokenize, open_runtime, resolve_model
bundle = resolve_model({name!r}, cache=Path({str(cache)!r}))
ids, _ = Tokenize(bundle.config.text, bundle.tokenizer_file)("a red heart")
print(open_runtime(bundle).encode_texts([ids]).shape, bundle.config.fingerprint)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert answer.stdout.split("\n")[0] == f"(1, 24) {bundle.config.fingerprint}", answer.stderr


def test_given_one_model_stated_in_other_words_then_one_fingerprint(plain, make_model) -> None:
    _, bundle = plain

    def fingerprint(*args, **kwargs):
        return load_source(parse_name(make_model("stated", *args, **kwargs))).fingerprint()

    # The defaults of open_clip spelled out, in another directory: still the same vectors.
    assert fingerprint(vision={"pool_type": "tok", "mlp_ratio": 4.0}, text={"pool_type": "argmax"}) == (
        bundle.config.fingerprint
    )
    for other in (
        {"preprocess": preprocessing(0.5, "bicubic", "squash")},
        {"quick_gelu": True},
        {"vision": {"head_width": 16}},
        {"text": {"tokenizer_kwargs": {"clean": "whitespace"}}},
    ):
        assert fingerprint(**other) != bundle.config.fingerprint


def test_given_a_graph_that_differs_when_exported_then_nothing_is_written(make_model, tmp_path, monkeypatch) -> None:
    from clipfleet.models import towers

    class Wrong(towers.ImageTower):
        def forward(self, pixels):
            return super().forward(pixels) + self.shift.mean() * 0.01

    name = make_model("wrong")
    monkeypatch.setattr(towers, "ImageTower", Wrong)

    with pytest.raises(ExportRefused, match="the image tower at batch 1 differs from open_clip"):
        export_model(name, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_given_a_tokenizer_that_differs_when_exported_then_nothing_is_written(
    make_model, tmp_path, monkeypatch
) -> None:
    from clipfleet.models import open_clip_source, open_clip_text

    name = make_model("wrong_words")
    real = open_clip_text.read_text

    def digits_together(model, tokenizer):
        config, content = real(model, tokenizer)
        assert b"[\\\\p{N}]" in content
        return config, content.replace(b"[\\\\p{N}]", b"[\\\\p{N}]+")

    monkeypatch.setattr(open_clip_source, "read_text", digits_together)

    with pytest.raises(ExportRefused, match="differs from open_clip's on"):
        export_model(name, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_given_a_place_that_holds_something_else_when_exported_then_it_is_left_alone(plain, tmp_path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years")

    with pytest.raises(ModelError, match="something else"):
        export_model(plain[0], tmp_path)
    with pytest.raises(ModelError, match="a bundle already"):
        export_model(str(plain[1].path))
    assert (tmp_path / "thesis.txt").read_text() == "ten years"


def test_given_weights_that_changed_when_looked_up_then_to_be_exported_anew(plain, cache, tmp_path) -> None:
    name, bundle = plain
    weights = next(path for path in open_clip_files(name) if path.suffix == ".bin")
    before = weights.read_bytes()
    state = torch.load(weights, weights_only=True)
    state["visual.proj"] += 1

    assert find_bundle(name, cache=cache) == bundle.path
    try:
        torch.save(state, weights)
        assert find_bundle(name, cache=cache) is None
        assert load_source(parse_name(name)).fingerprint() != bundle.config.fingerprint
    finally:
        weights.write_bytes(before)
    assert find_bundle(name, cache=cache) == bundle.path


def open_clip_files(name):
    from pathlib import Path

    return Path(name.removeprefix("local-dir:")).iterdir()


def test_given_a_directory_without_preprocessing_or_weights_when_exported_then_refused(make_model, tmp_path) -> None:
    with pytest.raises(ExportRefused, match="no preprocess_cfg with mean and std"):
        export_model(make_model("untold", {"interpolation": "bicubic"}))

    for path in open_clip_files(name := make_model("weightless")):
        if path.suffix == ".bin":
            path.unlink()
    with pytest.raises(ModelNotFound, match="holds no weights"):
        export_model(name)
    with pytest.raises(ModelNotFound, match=r"open_clip_config\.json cannot be read"):
        export_model(f"local-dir:{tmp_path}")


@pytest.mark.slow
def test_given_vit_b_32_of_random_weights_when_exported_then_found_run_and_equal_to_open_clip(cache) -> None:
    bundle = resolve_model("ViT-B-32/random", cache=cache)
    images, texts = list(pictures(4)), list(PROBES)
    torch.manual_seed(0)
    model = open_clip.create_model("ViT-B-32").eval()
    preprocess = open_clip.transform.image_transform_v2(open_clip.transform.PreprocessCfg(), is_train=False)
    with torch.inference_mode():
        theirs = (
            model.encode_image(torch.stack([preprocess(image) for image in images]), normalize=True).numpy(),
            model.encode_text(open_clip.get_tokenizer("ViT-B-32")(texts), normalize=True).numpy(),
        )

    ours = by_bundle(resolve_model("ViT-B-32::random", cache=cache), images, texts)

    assert bundle.config.dimension == 512
    assert "random weights" in bundle.config.description
    assert all(lowest_cosine(*pair) >= 0.9999 for pair in zip(ours, theirs, strict=True))
