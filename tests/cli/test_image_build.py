"""The build context of a pipeline: what is in it, what is refused, and the same bytes each time."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shutil
import stat
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from clipfleet.cli.errors import CliError
from clipfleet.cli.image import build_context
from clipfleet.cli.target import load_pipeline
from support.fleet import TESTS, TINY

DETECTOR = TESTS.parent / "examples" / "data" / "things.onnx"
FEATURES = """
from clipfleet import pipeline
from clipfleet.operators import clip_image

features = pipeline.input("image").map("image", "vector", clip_image()).output("vector")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a module of its own name each time."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is None or Path(file).is_relative_to(tmp_path):
            sys.modules.pop(name)
    importlib.invalidate_caches()


def build(target, out="out", tag="thing:v1", **options):
    return build_context(load_pipeline(target), target, tag, Path(out), **options)


def tar_hash(folder: Path) -> str:
    """What a builder would send: names, rights, times and bytes."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, str(path.relative_to(folder)), recursive=False)
    return sha256(file.getvalue()).hexdigest()


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# What is in it ---------------------------------------------------------------------------------------------------


def test_given_a_module_when_built_then_the_context_has_all_that_an_image_needs(folder):
    (folder / "shop.py").write_text(FEATURES)
    built = build("shop:features")
    there = files(built.path)
    assert {"Dockerfile", "requirements.txt", "app/shop.py"} <= there
    (wheel,) = (path for path in there if path.startswith("wheels/"))
    assert wheel.startswith("wheels/clipfleet-")
    assert (built.path / "models").is_dir()
    dockerfile = (built.path / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["clipfleet", "worker", "--pipeline", "shop:features"]' in dockerfile
    assert f"FROM docker.io/library/python:{sys.version_info.major}.{sys.version_info.minor}-slim" in dockerfile
    labels = dict(re.findall(r'([a-z.]+)="([^"]*)"', dockerfile.partition("LABEL ")[2]))
    assert labels["org.opencontainers.image.title"] == "thing"
    assert labels["org.opencontainers.image.version"] == "v1"
    assert labels["clipfleet.pipeline"] == "shop:features"
    assert labels["clipfleet.fingerprint"] == built.fingerprint
    assert re.fullmatch("[0-9a-f]{64}", built.fingerprint)


def test_given_the_same_inputs_when_built_twice_then_the_bytes_are_the_same(folder):
    (folder / "shop.py").write_text(FEATURES)
    first = build("shop:features", "one")
    os.utime(folder / "shop.py", (1, 1))
    (folder / "shop.py").chmod(0o600)
    old = os.umask(0o077)
    try:
        second = build("shop:features", "two")
    finally:
        os.umask(old)
    assert tar_hash(first.path) == tar_hash(second.path)
    assert first.fingerprint == second.fingerprint


def test_given_another_byte_when_built_then_another_fingerprint(folder):
    (folder / "shop.py").write_text(FEATURES)
    first = build("shop:features", "one")
    (folder / "shop.py").write_text(f"{FEATURES}\n# changed\n")
    assert build("shop:features", "two").fingerprint != first.fingerprint


def test_given_a_context_when_built_again_then_it_is_replaced_whole(folder):
    (folder / "shop.py").write_text(FEATURES)
    built = build("shop:features")
    (built.path / "app" / "stale.py").write_text("")
    build("shop:features")
    assert "app/stale.py" not in files(built.path)
    assert [path.name for path in folder.glob(".out*")] == []


def test_given_a_package_when_built_then_its_folder_is_taken_without_what_is_hidden(folder):
    for name, text in {
        "pack_b/__init__.py": "",
        "pack_b/flow.py": FEATURES + "\nfrom pack_b.labels import LABELS\nimport side_b\n",
        "pack_b/labels.py": "LABELS = ()\n",
        "pack_b/words.txt": "words",
        "pack_b/.env": "SECRET=1",
        "pack_b/.git/config": "",
        "pack_b/__pycache__/flow.pyc": "",
        "side_b.py": "",
        "not_needed.py": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    built = build("pack_b.flow:features")
    app = {path.removeprefix("app/") for path in files(built.path) if path.startswith("app/")}
    assert app == {"pack_b/__init__.py", "pack_b/flow.py", "pack_b/labels.py", "pack_b/words.txt", "side_b.py"}
    assert any(kind == "module" and "pack_b" in what and "4 files" in what for kind, what in built.taken)


def test_given_rights_when_built_then_they_say_nothing_of_this_machine(folder):
    (folder / "shop.py").write_text(FEATURES)
    built = build("shop:features")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in built.path.rglob("*")}
    assert modes <= {0o644, 0o755}
    assert {path.stat().st_mtime for path in built.path.rglob("*")} == {315_532_800.0}


@pytest.mark.parametrize("named", ['"things.onnx"', 'Path(__file__).parent / "things.onnx"', '"sub/things.onnx"'])
def test_given_an_operator_that_names_a_file_when_built_then_it_lies_where_the_code_looks(folder, named):
    (folder / "sub").mkdir()
    shutil.copy(DETECTOR, folder)
    shutil.copy(DETECTOR, folder / "sub")
    (folder / "finds.py").write_text(
        "from pathlib import Path\nfrom clipfleet import pipeline\nfrom clipfleet.operators import decode, detect\n"
        'flow = pipeline.input("image").map("image", "pixels", decode())\n'
        f'boxes = flow.flat_map("pixels", ("box", "score", "label"), detect({named})).output("box")\n'
    )
    built = build("finds:boxes")
    place = "app/sub/things.onnx" if "sub" in named else "app/things.onnx"
    assert (built.path / place).read_bytes() == DETECTOR.read_bytes()


def test_given_a_bundle_that_an_operator_names_when_built_then_it_lies_beside_the_module(folder):
    shutil.copytree(TINY, folder / "models" / "tiny")
    (folder / "shop.py").write_text(FEATURES.replace("clip_image()", 'clip_image("models/tiny")'))
    built = build("shop:features")
    assert (built.path / "app/models/tiny/model.json").is_file()
    assert "clipfleet.models" in (built.path / "Dockerfile").read_text()


def test_given_a_model_in_the_cache_when_built_then_its_export_is_in_the_images_cache(folder, monkeypatch):
    cache = folder / "cache"
    shutil.copytree(TINY, cache / "ViT-Tiny__random-0123456789ab")
    described = json.loads((cache / "ViT-Tiny__random-0123456789ab/model.json").read_text())
    described["source"] = {**described["source"], "name": "ViT-Tiny/random", "inputs": []}
    (cache / "ViT-Tiny__random-0123456789ab/model.json").write_text(json.dumps(described))
    monkeypatch.setenv("CLIPFLEET_MODEL_CACHE", str(cache))
    (folder / "shop.py").write_text(FEATURES.replace("clip_image()", 'clip_image("ViT-Tiny/random")'))
    built = build("shop:features")
    assert "models/ViT-Tiny__random-0123456789ab/model.json" in files(built.path)
    assert 'CLIPFLEET_MODEL_CACHE="/opt/clipfleet/models"' in (built.path / "Dockerfile").read_text()


def test_given_a_default_model_when_built_then_the_image_serves_it(folder):
    shutil.copytree(TINY, folder / "tiny")
    (folder / "shop.py").write_text(FEATURES)
    built = build("shop:features", model="tiny")
    assert 'CLIPFLEET_MODEL="/app/tiny"' in (built.path / "Dockerfile").read_text()
    assert (built.path / "app/tiny/model.json").is_file()


def test_given_more_to_include_when_built_then_it_is_there(folder):
    (folder / "shop.py").write_text(FEATURES)
    (folder / "data").mkdir()
    (folder / "data/labels.txt").write_text("a\nb\n")
    built = build("shop:features", include=[Path("data")])
    assert (built.path / "app/data/labels.txt").read_text() == "a\nb\n"


def test_given_another_base_when_built_then_the_image_stands_on_it(folder):
    (folder / "shop.py").write_text(FEATURES)
    built = build("shop:features", base="mirror.example/python:3.11")
    assert "\nFROM mirror.example/python:3.11\n" in (built.path / "Dockerfile").read_text()


# What is refused -------------------------------------------------------------------------------------------------


def test_given_a_detector_that_is_not_there_when_built_then_it_is_refused_by_name(folder):
    (folder / "finds.py").write_text(
        "from clipfleet import pipeline\nfrom clipfleet.operators import decode, detect\n"
        'flow = pipeline.input("image").map("image", "pixels", decode())\n'
        'boxes = flow.flat_map("pixels", ("box", "score", "label"), detect("absent.onnx")).output("box")\n'
    )
    with pytest.raises(CliError, match=r"absent\.onnx is not there"):
        build("finds:boxes")
    assert not (folder / "out").exists()
    assert not list(folder.glob(".out*"))


def test_given_a_file_elsewhere_when_built_then_it_is_refused(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "things.onnx"
    shutil.copy(DETECTOR, elsewhere)
    (folder / "finds.py").write_text(
        "from clipfleet import pipeline\nfrom clipfleet.operators import decode, detect\n"
        'flow = pipeline.input("image").map("image", "pixels", decode())\n'
        f'boxes = flow.flat_map("pixels", ("box", "score", "label"), detect("{elsewhere}")).output("box")\n'
    )
    with pytest.raises(CliError, match="outside of the pipeline's folder"):
        build("finds:boxes")


def test_given_a_model_that_is_not_exported_when_built_then_what_to_type(folder, monkeypatch):
    monkeypatch.setenv("CLIPFLEET_MODEL_CACHE", str(folder / "empty"))
    (folder / "shop.py").write_text(FEATURES.replace("clip_image()", 'clip_image("ViT-B-32/laion2b_s34b_b79k")'))
    with pytest.raises(CliError, match="not exported yet") as caught:
        build("shop:features")
    assert caught.value.hint == "clipfleet model export ViT-B-32/laion2b_s34b_b79k"


def test_given_a_checkpoint_when_built_then_it_is_refused(folder):
    (folder / "shop.py").write_text(FEATURES.replace("clip_image()", 'clip_image("ViT-B-32/mine.safetensors")'))
    with pytest.raises(CliError, match="checkpoint of this machine"):
        build("shop:features")


def test_given_a_function_of_no_file_when_built_then_it_is_refused(folder):
    (folder / "made.py").write_text(
        "from clipfleet import pipeline\nspace = {}\nexec('def double(n): return 2 * n', space)\n"
        'flow = pipeline.input("n").map("n", "m", space["double"]).output("m")\n'
    )
    with pytest.raises(CliError, match="'double': its function was made in <string>"):
        build("made:flow")


def test_given_a_lambda_of_main_when_built_then_it_is_refused(folder, monkeypatch):
    (folder / "shop.py").write_text(FEATURES)
    from clipfleet import pipeline

    function = lambda n: n  # noqa: E731
    monkeypatch.setattr(function, "__module__", "__main__")
    flow = pipeline.input("n").map("n", "m", function).output("m")
    with pytest.raises(CliError, match="__main__"):
        build_context(flow, "shop:features", "thing:v1", Path("out"))


def test_given_a_folder_of_somebody_elses_when_built_then_it_is_left_alone(folder):
    (folder / "shop.py").write_text(FEATURES)
    (folder / "mine").mkdir()
    (folder / "mine/thesis.txt").write_text("years")
    with pytest.raises(CliError, match="not written by this command"):
        build("shop:features", "mine")
    assert (folder / "mine/thesis.txt").read_text() == "years"


def test_given_a_folder_inside_of_what_is_taken_when_built_then_it_is_refused(folder):
    (folder / "pack_c").mkdir()
    (folder / "pack_c/flow.py").write_text(FEATURES)
    with pytest.raises(CliError, match="it would be in itself"):
        build("pack_c.flow:features", "pack_c/out")
    assert files(folder / "pack_c") - {"flow.py"} == {
        path for path in files(folder / "pack_c") if "__pycache__" in path
    }


# The command -----------------------------------------------------------------------------------------------------


def test_given_the_command_when_run_then_it_says_what_was_taken_and_how_to_build(cli, tmp_path):
    (tmp_path / "shop.py").write_text(FEATURES)
    done = cli("pipeline", "build", "shop:features", "--tag", "thing:v1", "--builder", "none")
    assert done.code == 0, done.err
    assert "docker build -t thing:v1 build/thing-v1" in done.out
    assert str(tmp_path / "shop.py") in done.err
    assert (tmp_path / "build/thing-v1/Dockerfile").is_file()


def test_given_json_when_run_then_one_object(cli, tmp_path):
    (tmp_path / "shop.py").write_text(FEATURES)
    done = cli("pipeline", "build", "shop:features", "--tag", "thing:v1", "--builder", "none", "-o", "o", "--json")
    assert done.code == 0, done.err
    (line,) = done.lines
    assert line["tag"] == "thing:v1"
    assert line["path"] == "o"
    assert {"kind": "module", "what": str(tmp_path / "shop.py")} in line["taken"]


@pytest.mark.parametrize(
    ("target", "said"),
    [("shop", "module:name"), ("nowhere:x", "no module"), ("shop:nothing", "features"), ("shop:pipeline", "features")],
)
def test_given_a_name_that_is_none_when_run_then_wrong_usage_and_what_there_is(cli, tmp_path, target, said):
    (tmp_path / "shop.py").write_text(FEATURES)
    done = cli("pipeline", "build", target, "--tag", "thing:v1", "--builder", "none")
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / "build").exists()


def test_given_a_builder_on_the_path_when_run_then_it_builds_the_context(cli, tmp_path):
    (tmp_path / "shop.py").write_text(FEATURES)
    tool = tmp_path / "bin" / "buildah"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/said\n')
    tool.chmod(0o755)
    path = os.pathsep.join([str(tool.parent), os.environ["PATH"]])
    words = ("pipeline", "build", "shop:features", "--tag", "thing:v1", "--builder", "buildah")
    done = cli(*words, "--builder-arg", "--network=host", PATH=path)
    assert done.code == 0, done.err
    assert (tmp_path / "said").read_text() == "build --format docker -t thing:v1 --network=host build/thing-v1\n"
