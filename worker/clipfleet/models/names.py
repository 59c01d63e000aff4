"""What people call a model, and which model they mean.

=========================================  =====================================================================
``demo``                                   the small model that ships with clipfleet
``DIR``                                    a bundle: a directory with a ``model.json`` in it
``ViT-B-32/laion2b_s34b_b79k``             an open_clip architecture and pretrained tag; ``::`` and ``__`` also part
``ViT-B-32/checkpoint.safetensors``        an architecture and your own weights (``.safetensors``, ``.pt``, ``.bin``)
``local-dir:DIR``                          open_clip's own form: ``open_clip_config.json`` and weights in one place
``ViT-B-32/random``                        random weights of a fixed seed, for tests: it finds nothing
=========================================  =====================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clipfleet.models.errors import ModelNotFound

__all__ = ["ModelName", "parse_name"]

Kind = Literal["demo", "bundle", "tag", "checkpoint", "local-dir", "random"]

_LOCAL_DIR = "local-dir:"
_CHECKPOINT = (".safetensors", ".pt", ".pth", ".bin")
_SEPARATOR = re.compile(r"::|__|/")


@dataclass(frozen=True, slots=True)
class ModelName:
    """A parsed name.

    Attributes:
        kind: what it names.
        architecture: open_clip's name of the architecture, where it has one.
        tag: open_clip's pretrained tag, in its own spelling.
        path: the bundle, the checkpoint or the local directory; absolute.
    """

    kind: Kind
    architecture: str = ""
    tag: str = ""
    path: Path = Path()

    def __str__(self) -> str:
        """The one spelling under which a model is cached, however it was asked for."""
        match self.kind:
            case "demo":
                return "demo"
            case "bundle":
                return str(self.path)
            case "local-dir":
                return f"{_LOCAL_DIR}{self.path}"
            case "checkpoint":
                return f"{self.architecture}/{self.path}"
            case _:
                return f"{self.architecture}/{self.tag}"

    @property
    def slug(self) -> str:
        """A part of a file name for people to recognise; not unique."""
        last = self.tag or self.path.stem
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{self.architecture}__{last}" if self.architecture else last)


def parse_name(name: str) -> ModelName:
    """Find out what a name means. Looks at the file system for bundles alone; loads nothing.

    Raises:
        ModelNotFound: it cannot be any model's name; the message says what to write.
    """
    if "\0" in name:
        raise ModelNotFound(f"{name!r} is no name")
    if name == "demo":
        return ModelName("demo")
    if name.startswith(_LOCAL_DIR):
        return ModelName("local-dir", path=_absolute(name.removeprefix(_LOCAL_DIR)))
    if name.startswith("hf-hub:"):
        raise ModelNotFound(f"{name}: download the repository, then name it local-dir:DIRECTORY")
    path = _expanded(name)
    if name and (path / "model.json").is_file():
        return ModelName("bundle", path=_absolute(name))
    if name.startswith(("/", "./", "../", "~")) or name in {"", ".", ".."}:
        raise ModelNotFound(_no_bundle(name, path))
    return _open_clip_name(name)


def _open_clip_name(name: str) -> ModelName:
    separator = _SEPARATOR.search(name)
    if separator is not None and not separator.start():
        raise ModelNotFound(f"{name!r} names no architecture before its weights: such as ViT-B-32/laion2b_s34b_b79k")
    if separator is None or not name[separator.end() :]:
        bare = name[: separator.start()] if separator else name
        raise ModelNotFound(
            f"{name!r} names no weights: write {bare}/TAG (such as ViT-B-32/laion2b_s34b_b79k), "
            f"{bare}/FILE.safetensors, local-dir:DIR, the directory of a bundle, or demo"
        )
    architecture, rest = name[: separator.start()], name[separator.end() :]
    if rest == "random":
        return ModelName("random", architecture, rest)
    if rest.endswith(_CHECKPOINT) or "/" in rest or rest.startswith("~"):
        return ModelName("checkpoint", architecture, path=_absolute(rest))
    # open_clip looks tags up in this spelling.
    return ModelName("tag", architecture, rest.lower().replace("-", "_"))


def _absolute(path: str) -> Path:
    return _expanded(path).resolve()


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # ~NAME of a user whom this machine does not know
        raise ModelNotFound(f"{path!r}: {error}") from error


def _no_bundle(name: str, path: Path) -> str:
    if (path / "open_clip_config.json").is_file():
        return f"{name} is open_clip's own form of a model: write {_LOCAL_DIR}{name}"
    what = "has no model.json" if path.is_dir() else "does not exist or is no directory"
    return f"{name!r} is no bundle: it {what}"
