"""Names, and the models that they find on this machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clipfleet.models import (
    ExtraMissing,
    ModelConfig,
    ModelError,
    ModelName,
    ModelNotFound,
    export_model,
    find_bundle,
    library,
    list_models,
    model_info,
    parse_name,
    resolve_model,
)
from clipfleet.models.bundle import staging
from clipfleet.models.library import cache_place


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("demo", "demo"),
        ("ViT-B-32/laion2b_s34b_b79k", "ViT-B-32/laion2b_s34b_b79k"),
        ("ViT-B-32::laion2b_s34b_b79k", "ViT-B-32/laion2b_s34b_b79k"),
        ("ViT-B-32__laion2b-s34b-B79K", "ViT-B-32/laion2b_s34b_b79k"),
        ("coca_ViT-B-32__x", "coca_ViT-B-32/x"),
        ("ViT-B-32/random", "ViT-B-32/random"),
        ("ViT-B-32//data/a__b::c.pt", "ViT-B-32//data/a__b::c.pt"),
        ("ViT-B-32::/data/mine.safetensors", "ViT-B-32//data/mine.safetensors"),
        ("local-dir:/data/mine", "local-dir:/data/mine"),
    ],
)
def test_given_a_spelling_of_a_name_when_parsed_then_one_canonical_name(name, expected) -> None:
    parsed = parse_name(name)

    assert str(parsed) == expected
    assert "/" not in parsed.slug


def test_given_relative_paths_when_parsed_then_they_become_absolute(tiny, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny.path, tmp_path / "mine")

    assert parse_name("ViT-B-32/sub/mine.pt") == ModelName(
        "checkpoint", "ViT-B-32", path=tmp_path.resolve() / "sub" / "mine.pt"
    )
    assert parse_name("local-dir:mine").path == tmp_path.resolve() / "mine"
    assert parse_name("mine").kind == parse_name("./mine").kind == "bundle"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("", "no bundle"),
        ("ViT-B-32", "ViT-B-32/TAG"),
        ("ViT-B-32/", "ViT-B-32/TAG"),
        ("./nowhere", "does not exist"),
        ("/tmp", "no model.json"),
        ("hf-hub:laion/x", "local-dir:"),
    ],
)
def test_given_no_name_of_a_model_when_parsed_then_the_error_says_what_to_write(name, hint) -> None:
    with pytest.raises(ModelNotFound, match=hint):
        parse_name(name)


@settings(max_examples=50)
@given(st.text(max_size=30))
@example("__0")
def test_given_any_text_when_parsed_then_a_name_or_not_found(name) -> None:
    try:
        parsed = parse_name(name)
    except ModelNotFound:
        return
    assert str(parse_name(str(parsed))) == str(parsed)


@pytest.fixture
def cached_export(tiny):
    return lambda cache, name, inputs=(): write_export(tiny, cache, name, inputs)


def write_export(tiny, cache, name, inputs):
    source = tiny.config
    with staging(cache_place(parse_name(name), source.fingerprint, cache)) as stage:
        for file in source.files:
            shutil.copy(tiny.path / file, stage.folder)
        config = {**source.to_json(), "source": {"name": str(parse_name(name)), "inputs": list(inputs)}}
        return stage.publish(ModelConfig.from_json(config))


def record(path):
    state = path.stat()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"path": str(path), "bytes": state.st_size, "mtime_ns": state.st_mtime_ns, "sha256": digest}


def test_given_an_export_in_the_cache_when_resolved_then_no_torch_is_needed(
    cached_export, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("CLIPFLEET_MODEL_CACHE", str(tmp_path / "cache"))
    cached_export(None, "ViT-B-32/some_tag")
    monkeypatch.setattr(library, "find_spec", lambda _: None)

    assert resolve_model("ViT-B-32::some-tag").config.name == "tiny"
    assert model_info("ViT-B-32__some_tag")["exported"] is True
    assert "ViT-B-32__some_tag-cb5bd7170002" in [Path(model["path"]).name for model in list_models()]


def test_given_a_model_not_exported_and_no_torch_when_resolved_then_the_pip_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(library, "find_spec", lambda _: None)

    with pytest.raises(ExtraMissing, match=r'pip install "clipfleet\[torch\]"'):
        resolve_model("ViT-B-32/laion2b_s34b_b79k", cache=tmp_path)
    assert model_info("ViT-B-32/laion2b_s34b_b79k", cache=tmp_path)["exported"] is False


def test_given_several_workers_that_miss_a_model_then_one_exports_and_the_others_find_it(
    cached_export, tmp_path, monkeypatch
) -> None:
    exported = []

    def slow_export(name, *, cache):
        exported.append(name)
        started.wait(timeout=20)
        return cached_export(cache, name)

    started = threading.Barrier(2)
    monkeypatch.setattr(library, "find_spec", lambda _: True)
    monkeypatch.setattr("clipfleet.models.export.export_model", slow_export)
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(resolve_model, "ViT-B-32/tag", cache=tmp_path) for _ in range(3)]
        started.wait(timeout=20)  # one is inside; the others are at the lock or come to it now
        bundles = [future.result(timeout=20) for future in found]

    assert exported == ["ViT-B-32/tag"]
    assert len({bundle.path for bundle in bundles}) == 1


def test_given_a_bundle_or_a_full_place_when_exported_then_refused_before_any_work(copied, tmp_path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years")

    with pytest.raises(ModelError, match="is a bundle already"):
        export_model(str(copied))
    with pytest.raises(ModelError, match="holds something else than a bundle"):
        export_model("ViT-B-32/random", tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "ten years"


def test_given_a_bundle_directory_when_resolved_then_it_is_loaded(copied) -> None:
    assert resolve_model(str(copied)).path == copied


def test_given_a_checkpoint_that_changed_when_looked_up_then_its_export_is_stale(cached_export, tmp_path) -> None:
    weights = tmp_path / "mine.pt"
    weights.write_bytes(b"first")
    name = f"ViT-B-32/{weights}"
    cached_export(tmp_path / "cache", name, [record(weights)])

    def found():
        return find_bundle(name, cache=tmp_path / "cache") is not None

    assert found()
    os.utime(weights, ns=(1, 1))  # touched, but the same bytes
    assert found()
    weights.write_bytes(b"other")
    assert not found()
    weights.unlink()  # the export needs it no more
    assert found()


def test_given_a_broken_directory_in_the_cache_when_listed_then_it_is_named_with_its_error(tmp_path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.json").write_text("{")

    broken = [model for model in list_models(cache=tmp_path) if "error" in model]

    assert [Path(model["path"]).name for model in broken] == ["broken"]
    assert find_bundle("ViT-B-32/tag", cache=tmp_path) is None
