"""Small open_clip models in local directories: every sort of preprocessing and text tower, in seconds."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDED = ("torch", "torchvision", "open_clip", "onnx", "onnxscript")
MISSING = [package for package in NEEDED if find_spec(package) is None]
HERE = Path(__file__).parent

# The environment of this group sets it, so that a broken installation there is no green run of nothing.
if MISSING and os.environ.get("CLIPFLEET_TEST_TORCH"):
    raise RuntimeError(f"CLIPFLEET_TEST_TORCH is set, but there is no {', '.join(MISSING)}")
collect_ignore_glob = ["test_*.py"] if MISSING else []
os.environ.setdefault("HF_HUB_OFFLINE", "1")

VISION = {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16}
TEXT = {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
OPENAI = {
    "mean": [0.48145466, 0.4578275, 0.40821073],
    "std": [0.26862954, 0.26130258, 0.27577711],
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.torch)
            item.add_marker(pytest.mark.timeout(600))
            # torch warns of its own deprecations while it exports; ours stay errors.
            for module in ("torch", "onnxscript", "onnx_ir", "copyreg", "timm", "transformers"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::Warning:{module}"))


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    import torch

    torch.set_num_threads(1)


def write_model(folder, preprocess=None, *, vision=None, text=None, **model):
    """Write an open_clip local directory with random weights."""
    import open_clip
    import torch

    config = {
        "model_cfg": {
            "embed_dim": 24,
            "vision_cfg": {**VISION, **(vision or {})},
            "text_cfg": {**TEXT, **(text or {})},
            **model,
        },
        "preprocess_cfg": OPENAI if preprocess is None else preprocess,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    torch.manual_seed(11)
    built = open_clip.create_model(f"local-dir:{folder}", load_weights=False, pretrained_text=False)
    spread_out(built)
    torch.save(built.state_dict(), folder / "open_clip_pytorch_model.bin")
    return f"local-dir:{folder}"


def spread_out(model):
    """Fresh weights map all inputs nearly to one vector: enlarge them, so that a wrong graph shows."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and "logit" not in name:
                parameter.mul_(3)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory):
    return lambda name, *args, **kwargs: write_model(tmp_path_factory.mktemp("source") / name, *args, **kwargs)


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def plain(make_model, cache):
    """One small model, exported once: its name and its bundle."""
    from clipfleet.models import export_model

    name = make_model("plain")
    return name, export_model(name, cache=cache)
