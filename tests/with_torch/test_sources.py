"""What a name means to open_clip: tags, checkpoints and their preprocessing, and weights that are only weights."""

from __future__ import annotations

import json
import pickle

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from clipfleet.models import ExportRefused, ModelNotFound, parse_name
from clipfleet.models.open_clip_source import load_source
from clipfleet.models.preprocess import architecture_config, image_config, tag_preprocess
from clipfleet.models.weights import load_weights, only_checkpoint

from .conftest import OPENAI, TEXT, VISION


@pytest.fixture(scope="session")
def architecture(tmp_path_factory):
    """A small architecture that open_clip knows by name, as it does ViT-B-32."""
    path = tmp_path_factory.mktemp("configs") / "clipfleet-tiny.json"
    path.write_text(json.dumps({"embed_dim": 24, "vision_cfg": VISION, "text_cfg": TEXT}))
    open_clip.add_model_config(path)
    return path.stem


@pytest.fixture(scope="session")
def state(architecture):
    torch.manual_seed(3)
    return open_clip.create_model(architecture).state_dict()


def projection(source):
    return source.model.state_dict()["visual.proj"]


@pytest.mark.parametrize(
    ("name", "size", "mean", "resize_mode", "interpolation"),
    [
        ("ViT-B-32/laion2b_s34b_b79k", 224, OPENAI["mean"][0], "shortest", "bicubic"),
        ("ViT-L-14/datacomp_xl_s13b_b90k", 224, OPENAI["mean"][0], "shortest", "bicubic"),
        ("ViT-L-14/laion2b_s32b_b82k", 224, 0.5, "shortest", "bicubic"),
        ("ViT-H-14-378-quickgelu/dfn5b", 378, OPENAI["mean"][0], "squash", "bicubic"),
        ("ViT-B-16-SigLIP/webli", 224, 0.5, "squash", "bicubic"),
        ("ViT-B-16-SigLIP2/webli", 224, 0.5, "squash", "bicubic"),
        ("MobileCLIP-S1/datacompdr", 256, 0.0, "shortest", "bilinear"),
        ("MobileCLIP2-S0/dfndr2b", 256, 0.0, "shortest", "bilinear"),
        ("MobileCLIP2-S4/dfndr2b", 256, OPENAI["mean"][0], "shortest", "bilinear"),
        ("PE-Core-B-16/meta", 224, 0.5, "squash", "bilinear"),
    ],
)
def test_given_a_tag_then_the_preprocessing_is_the_tag_s(name, size, mean, resize_mode, interpolation) -> None:
    parsed = parse_name(name)
    pixels = architecture_config(parsed.architecture)["vision_cfg"]["image_size"]

    config = image_config(tag_preprocess(parsed.architecture, parsed.tag), pixels)

    assert config.size == (size, size)
    assert config.mean[0] == pytest.approx(mean)
    assert (config.resize_mode, config.interpolation) == (resize_mode, interpolation)


def test_given_the_other_gelu_when_asked_for_then_refused_naming_the_right_architecture() -> None:
    with pytest.raises(ExportRefused, match="name ViT-B-32-quickgelu/openai"):
        tag_preprocess("ViT-B-32", "openai")
    assert tag_preprocess("ViT-B-32-quickgelu", "openai")["quick_gelu"]
    with pytest.raises(ModelNotFound, match="has no tag 'laion2b_s34b_b79k'"):
        tag_preprocess("ViT-B-32-quickgelu", "laion2b_s34b_b79k")


def test_given_unknown_architectures_and_tags_then_not_found_names_the_near_ones() -> None:
    with pytest.raises(ModelNotFound, match=r"near: .*ViT-B-32"):
        load_source(parse_name("ViT-B32/laion400m_e32"))
    with pytest.raises(ModelNotFound, match="laion2b_s34b_b79k"):
        load_source(parse_name("ViT-B-32/laion2b"))


def test_given_no_network_when_a_tag_is_asked_for_then_not_found_says_what_to_do() -> None:
    with pytest.raises(ModelNotFound, match="HF_HOME"):
        load_source(parse_name("ViT-B-32/laion2b_s34b_b79k"))


@pytest.mark.parametrize("form", ["safetensors", "pt", "training state", "module prefix"])
def test_given_a_checkpoint_in_any_form_when_loaded_then_the_same_weights(architecture, state, tmp_path, form) -> None:
    path = tmp_path / ("mine.safetensors" if form == "safetensors" else "mine.pt")
    prefixed = {f"module.{name}": tensor for name, tensor in state.items()}
    if form == "safetensors":
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    else:
        torch.save(
            {
                "pt": state,
                "training state": {"epoch": 3, "state_dict": prefixed, "optimizer": {"lr": 1.0}},
                "module prefix": prefixed,
            }[form],
            path,
        )

    source = load_source(parse_name(f"{architecture}/{path}"), OPENAI)

    assert torch.equal(projection(source), state["visual.proj"])
    assert source.image.resize_mode == "shortest"
    assert [record["path"] for record in source.record["inputs"]] == [str(path)]


def test_given_a_checkpoint_that_tells_no_preprocessing_then_refused(state, architecture, tmp_path) -> None:
    path = tmp_path / "mine.pt"
    torch.save(state, path)

    with pytest.raises(ExportRefused, match="does not tell its preprocessing"):
        load_source(parse_name(f"{architecture}/{path}"))
    with pytest.raises(ExportRefused, match="missing: std, resize_mode"):
        load_source(parse_name(f"{architecture}/{path}"), {"mean": [0] * 3, "interpolation": "bilinear"})
    with pytest.raises(ModelNotFound, match="has no tag"):
        load_source(parse_name(f"{architecture}/{path}"), "laion2b_s34b_b79k")


def test_given_preprocessing_in_a_file_then_its_values_are_used_and_kept(architecture, state, tmp_path) -> None:
    torch.save(state, tmp_path / "mine.pt")
    stated = tmp_path / "preprocess.json"
    stated.write_text(json.dumps({**OPENAI, "resize_mode": "squash"}))

    source = load_source(parse_name(f"{architecture}/{tmp_path}/mine.pt"), str(stated))

    assert source.image.resize_mode == "squash"
    assert source.record["preprocess"] == json.loads(stated.read_text())
    with pytest.raises(ModelNotFound, match="cannot be read"):
        load_source(parse_name(f"{architecture}/{tmp_path}/mine.pt"), str(tmp_path / "absent.json"))


def test_given_a_checkpoint_of_another_architecture_then_refused(architecture, state, tmp_path) -> None:
    path = tmp_path / "mine.pt"
    torch.save({name: tensor for name, tensor in state.items() if "visual" not in name}, path)

    with pytest.raises(ExportRefused, match="does not fit the architecture"):
        load_source(parse_name(f"{architecture}/{path}"), OPENAI)
    with pytest.raises(ModelNotFound, match="no checkpoint"):
        load_source(parse_name(f"{architecture}/{tmp_path}/absent.pt"), OPENAI)


class Exploit:
    """Unpickling it writes a file; as the pickle of a checkpoint it would run anything."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("form", ["torch", "plain pickle", "type error"])
def test_given_a_checkpoint_that_holds_code_when_loaded_then_refused_and_never_run(
    architecture, tmp_path, form, monkeypatch
) -> None:
    path, trace = tmp_path / "evil.pt", tmp_path / "ran"
    if form == "plain pickle":
        path.write_bytes(pickle.dumps({"state_dict": Exploit(trace)}))
    else:
        torch.save({"state_dict": Exploit(trace)}, path)
    if form == "type error":
        # What makes open_clip fall back to the unrestricted torch.load.
        real = torch.load

        def load(*args, weights_only=False, **kwargs):
            if weights_only:
                raise TypeError("crafted")
            return real(*args, weights_only=weights_only, **kwargs)

        monkeypatch.setattr(torch, "load", load)

    with pytest.raises(ExportRefused, match="more than weights"):
        load_weights(open_clip.create_model(architecture), path)
    assert not trace.exists()


def test_given_a_file_without_tensors_when_loaded_then_refused(architecture, tmp_path) -> None:
    torch.save([1, 2], tmp_path / "list.pt")

    with pytest.raises(ExportRefused, match="no weights by name"):
        load_weights(open_clip.create_model(architecture), tmp_path / "list.pt")


def test_given_several_weights_in_a_directory_then_the_preferred_or_none(tmp_path) -> None:
    (tmp_path / "a.bin").touch()
    assert only_checkpoint(tmp_path).name == "a.bin"
    (tmp_path / "b.safetensors").touch()
    with pytest.raises(ModelNotFound, match=r"several weights \(a\.bin, b\.safetensors\)"):
        only_checkpoint(tmp_path)
    (tmp_path / "open_clip_pytorch_model.bin").touch()
    assert only_checkpoint(tmp_path).name == "open_clip_pytorch_model.bin"


def test_given_random_weights_then_the_same_each_time_and_said_so(architecture) -> None:
    name = parse_name(f"{architecture}/random")

    first, second = load_source(name), load_source(name)

    assert torch.equal(projection(first), projection(second))
    assert first.record["kind"] == "random"
