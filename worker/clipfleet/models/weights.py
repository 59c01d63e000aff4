"""Read weights into an open_clip model without ever unpickling code.

open_clip falls back to an unrestricted ``torch.load`` when the restricted one raises TypeError, which a crafted
file can make it do. So pickled checkpoints are read here, with ``weights_only=True`` alone, and reach open_clip's
own conversions as a file that holds tensors and nothing else.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clipfleet.models.errors import ExportRefused, ModelNotFound

__all__ = ["file_record", "load_weights", "only_checkpoint"]

# open_clip's own order of preference in a local directory.
_PREFERRED = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
    "open_clip_pytorch_model.pth",
    "model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.pth",
    "model.pth",
)


def load_weights(model: Any, checkpoint: Path) -> None:
    """Load a checkpoint in any form that open_clip knows: its own, a training state, or a third party's.

    Raises:
        ModelNotFound: there is no such file.
        ExportRefused: it holds more than weights, or does not fit the architecture.
    """
    if not checkpoint.is_file():
        raise ModelNotFound(f"there is no checkpoint {checkpoint}")
    if checkpoint.suffix == ".safetensors":
        _fit(model, checkpoint, checkpoint)
        return
    import torch  # noqa: PLC0415  the names of this module are wanted without it

    with tempfile.TemporaryDirectory(prefix="clipfleet-") as folder:
        safe = Path(folder) / "weights.pt"
        torch.save(_unpickled(checkpoint), safe)
        _fit(model, safe, checkpoint)


def only_checkpoint(folder: Path) -> Path:
    """The weights in a local directory, chosen as open_clip does, but never by guess.

    Raises:
        ModelNotFound: there are none, or several of which none has a name that decides.
    """
    for name in _PREFERRED:
        if (folder / name).is_file():
            return folder / name
    found = sorted(path for path in folder.iterdir() if path.suffix in {".safetensors", ".bin", ".pth", ".pt"})
    if len(found) == 1:
        return found[0]
    problem = f"several weights ({', '.join(path.name for path in found)})" if found else "no weights"
    raise ModelNotFound(f"{folder} holds {problem}; one must be called {_PREFERRED[0]}")


def file_record(path: Path) -> dict[str, Any]:
    """What tells later whether a file is still the one that was exported."""
    state = path.stat()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"path": str(path), "bytes": state.st_size, "mtime_ns": state.st_mtime_ns, "sha256": digest}


def _unpickled(checkpoint: Path) -> dict[str, Any]:
    import torch  # noqa: PLC0415  the names of this module are wanted without it

    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ExportRefused(
            f"{checkpoint} is not read, since it holds more than weights or is broken ({type(error).__name__}): "
            "save its state_dict as .safetensors"
        ) from error
    state = content.get("state_dict", content) if isinstance(content, Mapping) else None
    tensors = {str(name): value for name, value in (state or {}).items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise ExportRefused(f"{checkpoint} holds no weights by name")
    return tensors


def _fit(model: Any, readable: Path, named: Path) -> None:
    from open_clip.factory import load_checkpoint  # noqa: PLC0415  imports torch

    try:
        load_checkpoint(model, str(readable), strict=True, weights_only=True)
    except Exception as error:
        raise ExportRefused(f"{named} does not fit the architecture: {str(error)[:500]}") from error
