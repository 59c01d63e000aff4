"""Build the open_clip model that a name means, with its weights, preprocessing and tokenizer.

Imports torch and open_clip: only the exporter and the torch provider import this module.
"""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import open_clip
import torch
from open_clip.model import CLIPTextCfg, CLIPVisionCfg
from open_clip.pretrained import download_pretrained

from clipfleet.models.errors import ExportRefused, ExtraMissing, ModelError, ModelNotFound
from clipfleet.models.fingerprint import fingerprint
from clipfleet.models.open_clip_text import read_text
from clipfleet.models.preprocess import (
    architecture_config,
    image_config,
    local_preprocess,
    stated_preprocess,
    tag_preprocess,
)
from clipfleet.models.weights import file_record, load_weights, only_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clipfleet.models.config import ImageConfig, TextConfig
    from clipfleet.models.names import ModelName

__all__ = ["RANDOM_SEED", "Source", "load_source"]

RANDOM_SEED = 0

_CONFIG_FILE = "open_clip_config.json"
# Where a tokenizer lies and what is downloaded at start decide no vector.
_NOT_ARCHITECTURE = frozenset(
    {"hf_tokenizer_name", "tokenizer_kwargs", "tokenizer_mode", "hf_model_pretrained", "timm_model_pretrained"}
)


@dataclass(frozen=True)
class Source:
    """An open_clip model, ready to be exported or run.

    Attributes:
        model: the module, in fp32 on the CPU, in eval mode.
        tokenizer: open_clip's own tokenizer, the reference.
        image: how it wants its pictures.
        text: how it wants its texts.
        tokenizer_json: its tokenizer for ``Tokenize``.
        record: for ``source`` in ``model.json``: what it was made of, enough to make it again.
    """

    model: Any
    tokenizer: Any
    image: ImageConfig
    text: TextConfig
    tokenizer_json: bytes
    record: dict[str, Any]

    def fingerprint(self) -> str:
        """The model's fingerprint, 64 hex digits."""
        return fingerprint(
            {name: tensor.numpy() for name, tensor in self.model.state_dict().items()},
            self.image,
            self.text,
            self.tokenizer_json,
            architecture=self.record["architecture"],
        )


@dataclass(frozen=True)
class _Plan:
    """What to build: open_clip's identifier, its configuration, and where weights and preprocessing come from."""

    identifier: str
    config: Mapping[str, Any]
    preprocess: Mapping[str, Any]
    checkpoint: Path | None
    inputs: tuple[Path, ...] = ()
    tokenizer_options: Mapping[str, Any] | None = None


def load_source(name: ModelName, preprocess: str | Mapping[str, Any] | None = None) -> Source:
    """Build a model.

    Args:
        name: of kind ``tag``, ``checkpoint``, ``local-dir`` or ``random``.
        preprocess: for a checkpoint: the tag that it was trained from, or ``mean``, ``std``, ``interpolation`` and
            ``resize_mode`` in open_clip's words, or a ``.json`` file with these. Replaces that of a local directory.

    Raises:
        ModelNotFound: architecture, tag or weights are not to be had.
        ExportRefused: what was trained and what would be built are not the same, or nobody can tell.
        ExtraMissing: the model's tokenizer needs a package more.
    """
    if isinstance(preprocess, str) and preprocess.endswith(".json"):
        preprocess = _read_json(Path(preprocess))
    plan = _PLANS[name.kind](name, preprocess)
    model = _built(plan)
    if plan.checkpoint is not None:
        load_weights(model, plan.checkpoint)
    model = model.eval().float()
    tokenizer = _tokenizer(plan)
    text, tokenizer_json = read_text(model, tokenizer)
    return Source(
        model=model,
        tokenizer=tokenizer,
        image=image_config(plan.preprocess, model.visual.image_size),
        text=text,
        tokenizer_json=tokenizer_json,
        record={
            "name": str(name),
            "kind": name.kind,
            "architecture": _architecture(plan.config),
            "preprocess": preprocess if isinstance(preprocess, str) or preprocess is None else dict(preprocess),
            "inputs": [file_record(path) for path in plan.inputs],
            "open_clip": open_clip.__version__,
            "torch": torch.__version__,
        },
    )


def _plan_tag(name: ModelName, _: str | Mapping[str, Any] | None) -> _Plan:
    known = tag_preprocess(name.architecture, name.tag)
    try:
        checkpoint = Path(download_pretrained(known))
    except Exception as error:
        raise ModelNotFound(
            f"the weights of {name} could not be fetched ({type(error).__name__}: {str(error)[:300]}). Without a "
            f"network, set HF_HOME to a filled cache, or name a file: {name.architecture}/FILE.safetensors, with "
            f"the preprocessing of {name.tag}"
        ) from error
    return _Plan(name.architecture, architecture_config(name.architecture), known, checkpoint)


def _plan_checkpoint(name: ModelName, preprocess: str | Mapping[str, Any] | None) -> _Plan:
    config = architecture_config(name.architecture)
    stated = stated_preprocess(name.architecture, preprocess)
    return _Plan(name.architecture, config, stated, name.path, (name.path,) if name.path.is_file() else ())


def _plan_random(name: ModelName, preprocess: str | Mapping[str, Any] | None) -> _Plan:
    config = architecture_config(name.architecture)
    # Nothing was trained, so no preprocessing is wrong: open_clip's default will do.
    stated = stated_preprocess(name.architecture, preprocess) if preprocess else {}
    return _Plan(name.architecture, config, stated, None)


def _plan_local(name: ModelName, preprocess: str | Mapping[str, Any] | None) -> _Plan:
    place = name.path / _CONFIG_FILE
    content = _read_json(place)
    config = content.get("model_cfg")
    if not isinstance(config, dict):
        raise ModelNotFound(f"{place} holds no model_cfg")
    if preprocess is not None and isinstance(preprocess, str):
        raise ExportRefused(f"{name} belongs to no architecture of open_clip's: give its preprocessing itself")
    checkpoint = only_checkpoint(name.path)
    stated = stated_preprocess("", preprocess) if preprocess else local_preprocess(name.path, content)
    options = dict(config.get("text_cfg", {}).get("tokenizer_kwargs") or {})
    # open_clip would look for a relative vocabulary in the current directory.
    absolute = {"bpe_path": str(name.path / options["bpe_path"])} if "bpe_path" in options else {}
    inputs = (place, checkpoint, *map(Path, absolute.values()))
    return _Plan(str(name), config, stated, checkpoint, inputs, absolute)


def _read_json(place: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(place.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ModelNotFound(f"{place} cannot be read: {type(error).__name__}: {error}") from error


_PLANS = {"tag": _plan_tag, "checkpoint": _plan_checkpoint, "random": _plan_random, "local-dir": _plan_local}


def _built(plan: _Plan) -> Any:
    with _open_clip_quiet(), torch.random.fork_rng(devices=[]):
        # Seeded for every kind: what a checkpoint leaves out would be an error, never a matter of chance.
        torch.manual_seed(RANDOM_SEED)
        try:
            return open_clip.create_model(plan.identifier, load_weights=False, pretrained_text=False, output_dict=False)
        except Exception as error:
            raise ModelError(f"open_clip cannot build {plan.identifier}: {type(error).__name__}: {error}") from error


def _tokenizer(plan: _Plan) -> Any:
    try:
        with _open_clip_quiet():
            return open_clip.get_tokenizer(plan.identifier, **(plan.tokenizer_options or {}))
    except ImportError as error:
        raise ExtraMissing(f"the tokenizer of {plan.identifier} needs more: pip install {error.name}") from error
    except Exception as error:
        raise ModelNotFound(
            f"the tokenizer of {plan.identifier} is not to be had ({type(error).__name__}: {str(error)[:300]})"
        ) from error


def _architecture(config: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a vector beside weights, without what is at its default.

    A directory that states open_clip's defaults and a built-in configuration that leaves them out are one model,
    also in a later release that has more of them.
    """
    sections = {"vision_cfg": CLIPVisionCfg, "text_cfg": CLIPTextCfg}
    towers = {}
    for section, kind in sections.items():
        known = {field.name for field in fields(kind)}
        stated = {key: value for key, value in config[section].items() if key in known}
        defaults = asdict(kind())
        filled = json.loads(json.dumps(asdict(kind(**stated))))
        towers[section] = {
            key: value for key, value in filled.items() if value != defaults[key] and key not in _NOT_ARCHITECTURE
        }
    return {
        "embed_dim": config["embed_dim"],
        "quick_gelu": bool(config.get("quick_gelu", False)),
        "vision": towers["vision_cfg"],
        "text": towers["text_cfg"],
    }


@contextmanager
def _open_clip_quiet() -> Iterator[None]:
    """Keep open_clip's "initialized randomly" from people whose weights are loaded a moment later.

    It logs on the root logger by functions that would also install a handler there for good.
    """

    def not_open_clip(record: logging.LogRecord) -> bool:
        return "open_clip" not in Path(record.pathname).parts

    root = logging.getLogger()
    handler = logging.NullHandler()
    root.addHandler(handler)
    root.addFilter(not_open_clip)
    try:
        yield
    finally:
        root.removeFilter(not_open_clip)
        root.removeHandler(handler)
