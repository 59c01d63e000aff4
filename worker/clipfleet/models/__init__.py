"""Models: names, bundles, tokenizing and running; the only part that imports a runtime.

Importing this package costs nothing: each name below is loaded when it is first used (PEP 562), so that
whoever needs ``ImageConfig`` alone does not wait for numpy or ONNX Runtime.

    bundle = resolve_model("ViT-B-32/laion2b_s34b_b79k")
    tokenize = Tokenize(bundle.config.text, bundle.tokenizer_file)
    runtime = open_runtime(bundle, device="cuda:0")
    vectors = runtime.encode_texts([tokenize("a red heart")[0]])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clipfleet.models.bundle import Bundle, Golden, load_bundle
    from clipfleet.models.config import ImageConfig, ModelConfig, TextConfig
    from clipfleet.models.devices import choose_devices, list_devices
    from clipfleet.models.errors import (
        BadBundle,
        DeviceUnavailable,
        ExportRefused,
        ExtraMissing,
        ModelError,
        ModelNotFound,
        OutOfMemory,
    )
    from clipfleet.models.export import export_model
    from clipfleet.models.library import (
        cache_directory,
        find_bundle,
        list_models,
        model_info,
        resolve_model,
    )
    from clipfleet.models.names import ModelName, parse_name
    from clipfleet.models.onnx_runtime import installed_runtimes
    from clipfleet.models.onnx_session import OnnxSession, open_session
    from clipfleet.models.runtime import PROVIDERS, Attempt, Provider, Runtime, open_runtime
    from clipfleet.models.tensorrt import build_engines
    from clipfleet.models.tokenizer import Tokenize

__all__ = [
    "PROVIDERS",
    "Attempt",
    "BadBundle",
    "Bundle",
    "DeviceUnavailable",
    "ExportRefused",
    "ExtraMissing",
    "Golden",
    "ImageConfig",
    "ModelConfig",
    "ModelError",
    "ModelName",
    "ModelNotFound",
    "OnnxSession",
    "OutOfMemory",
    "Provider",
    "Runtime",
    "TextConfig",
    "Tokenize",
    "build_engines",
    "cache_directory",
    "choose_devices",
    "export_model",
    "find_bundle",
    "installed_runtimes",
    "list_devices",
    "list_models",
    "load_bundle",
    "model_info",
    "open_runtime",
    "open_session",
    "parse_name",
    "resolve_model",
]

_HOMES = {
    "bundle": ("Bundle", "Golden", "load_bundle"),
    "config": ("ImageConfig", "ModelConfig", "TextConfig"),
    "devices": ("choose_devices", "list_devices"),
    "errors": (
        "BadBundle",
        "DeviceUnavailable",
        "ExportRefused",
        "ExtraMissing",
        "ModelError",
        "ModelNotFound",
        "OutOfMemory",
    ),
    "export": ("export_model",),
    "library": ("cache_directory", "find_bundle", "list_models", "model_info", "resolve_model"),
    "names": ("ModelName", "parse_name"),
    "onnx_runtime": ("installed_runtimes",),
    "onnx_session": ("OnnxSession", "open_session"),
    "runtime": ("PROVIDERS", "Attempt", "Provider", "Runtime", "open_runtime"),
    "tensorrt": ("build_engines",),
    "tokenizer": ("Tokenize",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
