"""The models of this machine: shipped, exported into the cache, or lying in a directory.

The cache is ``$CLIPFLEET_MODEL_CACHE``, else ``~/.cache/clipfleet/models``; each export is a directory of its own,
``<name>-<fingerprint's first 12 digits>``. What is there starts without torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipfleet.models.bundle import Bundle, load_bundle, read_model_json
from clipfleet.models.errors import BadBundle, ExtraMissing, ModelNotFound
from clipfleet.models.names import ModelName, parse_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "cache_directory",
    "cache_place",
    "find_bundle",
    "list_models",
    "model_info",
    "require_torch",
    "resolve_model",
]

_DEMO = Path(__file__).parent / "demo"
_TORCH_PACKAGES = ("torch", "torchvision", "open_clip", "onnx", "onnxscript")


def cache_directory() -> Path:
    """Where exported models are kept."""
    chosen = os.environ.get("CLIPFLEET_MODEL_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "clipfleet" / "models"


def cache_place(name: ModelName, fingerprint: str, cache: Path | None = None) -> Path:
    """The directory that an export of this model gets."""
    return (cache or cache_directory()) / f"{name.slug}-{fingerprint[:12]}"


def resolve_model(name: str, *, cache: Path | None = None) -> Bundle:
    """The bundle of a model; one that is not here yet is exported, which takes torch and a minute.

    Raises:
        ModelNotFound: the name means nothing, or its weights are not to be had.
        ExtraMissing: it must be exported first and torch or open_clip is missing; holds the pip line.
        ExportRefused: see ``export_model``.
        BadBundle: it is here but broken.
    """
    found = find_bundle(name, cache=cache)
    if found is not None:
        return load_bundle(found)
    require_torch(name)
    from clipfleet.models.export import export_model  # noqa: PLC0415  imports torch

    with _exporting(parse_name(name), cache):
        found = find_bundle(name, cache=cache)
        return load_bundle(found) if found is not None else export_model(name, cache=cache)


def find_bundle(name: str, *, cache: Path | None = None) -> Path | None:
    """Where a model's bundle lies, or None when it has to be exported first. Files are not verified.

    A cached export of a checkpoint counts only while the checkpoint is the same file.

    Raises:
        ModelNotFound: the name means nothing.
    """
    parsed = parse_name(name)
    if parsed.kind == "demo":
        if not (_DEMO / "model.json").is_file():
            raise ModelNotFound("this installation came without the demo model")
        return _DEMO
    if parsed.kind == "bundle":
        return parsed.path
    newest = sorted(_cached(cache, f"{parsed.slug}-"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return next((path for path in newest if _is_export_of(path, parsed)), None)


def require_torch(name: str) -> None:
    """Check that what an export needs is installed.

    Raises:
        ExtraMissing: with the pip line.
    """
    missing = [package for package in _TORCH_PACKAGES if find_spec(package) is None]
    if missing:
        raise ExtraMissing(
            f"{name} is not exported yet, and exporting needs {', '.join(missing)}: "
            f'pip install "clipfleet[torch]" && clipfleet model export {name}  '
            "(or export it on another machine and name the directory that it wrote)"
        )


def list_models(*, cache: Path | None = None) -> list[dict[str, Any]]:
    """The models that start at once: the demo and what the cache holds.

    Returns:
        For each ``name``, ``path``, ``fingerprint``, ``dimension``, ``bytes``, ``description`` and ``licence``; a
        broken one has ``path`` and ``error`` alone.
    """
    places = [_DEMO] if (_DEMO / "model.json").is_file() else []
    return [_summary(path) for path in [*places, *sorted(_cached(cache, ""))]]


def model_info(name: str, *, cache: Path | None = None) -> dict[str, Any]:
    """All that is known of one model: its ``model.json`` with ``path``, ``bytes`` and ``exported``.

    Raises:
        ModelNotFound: the name means nothing.
        BadBundle: it is here but broken.
    """
    found = find_bundle(name, cache=cache)
    if found is None:
        missing = [package for package in _TORCH_PACKAGES if find_spec(package) is None]
        return {"name": str(parse_name(name)), "exported": False, "missing_packages": missing}
    bundle = load_bundle(found)
    return {**bundle.config.to_json(), "exported": True, "path": str(found), "bytes": _bytes(found)}


@contextmanager
def _exporting(name: ModelName, cache: Path | None) -> Iterator[None]:
    """One export of a model at a time: the other workers of this machine wait for it and find it done."""
    root = cache or cache_directory()
    root.mkdir(parents=True, exist_ok=True)
    with (root / f".{name.slug}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cached(cache: Path | None, prefix: str) -> Iterator[Path]:
    root = cache or cache_directory()
    if root.is_dir():
        for path in root.iterdir():
            if path.name.startswith(prefix) and not path.name.startswith(".") and (path / "model.json").is_file():
                yield path


def _is_export_of(path: Path, name: ModelName) -> bool:
    try:
        source = read_model_json(path).source
    except BadBundle:
        return False
    return source.get("name") == str(name) and all(map(_unchanged, source.get("inputs", ())))


def _unchanged(recorded: Mapping[str, Any]) -> bool:
    path = Path(recorded["path"])
    try:
        state = path.stat()
    except OSError:
        # The export needs its checkpoint no more; deleting it is no change.
        return True
    if state.st_size != recorded["bytes"]:
        return False
    if state.st_mtime_ns == recorded["mtime_ns"]:
        return True
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return digest == str(recorded["sha256"])


def _summary(path: Path) -> dict[str, Any]:
    try:
        config = read_model_json(path)
    except BadBundle as error:
        return {"path": str(path), "error": str(error)}
    return {
        "name": config.name,
        "path": str(path),
        "fingerprint": config.fingerprint,
        "dimension": config.dimension,
        "bytes": _bytes(path),
        "description": config.description,
        "licence": config.licence,
    }


def _bytes(path: Path) -> int:
    return sum(entry.stat().st_size for entry in path.iterdir() if entry.is_file())
