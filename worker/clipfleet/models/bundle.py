"""The bundle: one directory that holds a model in the form in which it is served.

===================  ====================================================================================
``model.json``       everything about it, see ``ModelConfig``; a directory without it is no bundle
``image.onnx``       ``pixels`` uint8 [n, H, W, 3] -> ``vector`` float32 [n, d], L2-normalised
``text.onnx``        ``ids`` int64 [n, L] -> ``vector`` float32 [n, d], L2-normalised
``tokenizer.json``   in the format of HF ``tokenizers``
``golden.npz``       inputs and the vectors that the source model gave for them: what a runtime must agree with
===================  ====================================================================================

A graph above 2 GB keeps its tensors in further files beside it. A bundle is written into a hidden directory next
to its place and renamed there whole: a reader sees all of it or nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipfleet.models.config import ModelConfig, read_config
from clipfleet.models.errors import BadBundle

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Bundle", "Golden", "Staging", "load_bundle", "read_model_json", "staging"]

MODEL_JSON = "model.json"
IMAGE_GRAPH = "image.onnx"
TEXT_GRAPH = "text.onnx"
GOLDEN = "golden.npz"


@dataclass(frozen=True, slots=True)
class Golden:
    """Inputs with the vectors that the source model gave for them.

    Attributes:
        pixels: uint8 [m, H, W, 3].
        image_vectors: float32 [m, d].
        ids: int64 [k, L], padded with ``pad_id``.
        text_vectors: float32 [k, d].
        texts: str [k], what ``ids`` were made of.
    """

    pixels: NDArray[np.uint8]
    image_vectors: NDArray[np.float32]
    ids: NDArray[np.int64]
    text_vectors: NDArray[np.float32]
    texts: NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Bundle:
    """A verified bundle on disk."""

    path: Path
    config: ModelConfig

    @property
    def image_graph(self) -> Path:
        """The image tower."""
        return self.path / IMAGE_GRAPH

    @property
    def text_graph(self) -> Path:
        """The text tower."""
        return self.path / TEXT_GRAPH

    @property
    def tokenizer_file(self) -> Path:
        """The tokenizer."""
        return self.path / self.config.text.tokenizer

    def golden(self) -> Golden:
        """Read the golden inputs and vectors.

        Raises:
            BadBundle: they are missing or not of the shapes that ``model.json`` promises.
        """
        return _read_golden(self)


def load_bundle(path: Path | str) -> Bundle:
    """Open a bundle and verify each of its files against the hashes in ``model.json``.

    Files that ``model.json`` does not list (a model card) are ignored. The fingerprint is taken as written: it
    is a hash of the *source*, which the graphs no longer hold.

    Raises:
        BadBundle: a file is missing, changed or unreadable, or ``model.json`` is not as it must be.
    """
    path = Path(path)
    config = read_model_json(path)
    needed = {IMAGE_GRAPH, TEXT_GRAPH, GOLDEN, config.text.tokenizer}
    for name in sorted(needed - config.files.keys()):
        raise BadBundle(f"{path / MODEL_JSON} lists no {name}")
    for name, digest in config.files.items():
        found = _sha256(path / name)
        if found != digest:
            raise BadBundle(
                f"{path / name} is not the file that {MODEL_JSON} describes (SHA-256 {found}, not {digest}): "
                "export or install the model again"
            )
    return Bundle(path.resolve(), config)


def read_model_json(path: Path) -> ModelConfig:
    """Read a bundle's description alone, without verifying its files.

    Raises:
        BadBundle: there is none, or it is not as it must be.
    """
    try:
        text = (path / MODEL_JSON).read_bytes()
    except OSError as error:
        raise BadBundle(f"{path} is no bundle: {MODEL_JSON} cannot be read ({error.strerror})") from error
    return read_config(text)


@dataclass(frozen=True, slots=True)
class Staging:
    """A bundle being written: put the files into ``folder``, then ``publish``."""

    folder: Path
    target: Path

    def publish(self, config: ModelConfig) -> Bundle:
        """Hash what lies in the folder, write ``model.json`` and put the whole in its place at once.

        A bundle that is already there is replaced; whoever has it open keeps its files.

        Args:
            config: the description; its ``files`` are filled in here.
        """
        names = sorted(entry.name for entry in self.folder.iterdir())
        config = replace(config, files={name: _sha256(self.folder / name) for name in names})
        text = json.dumps(config.to_json(), indent=1, ensure_ascii=False) + "\n"
        (self.folder / MODEL_JSON).write_text(text, encoding="utf-8")
        for entry in self.folder.iterdir():
            _sync(entry)
        _sync(self.folder)
        _swap(self.folder, self.target)
        _sync(self.target.parent)
        return load_bundle(self.target)


@contextmanager
def staging(target: Path) -> Iterator[Staging]:
    """A hidden directory beside ``target`` to write a bundle into; removed unless it was published."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    folder.chmod(0o755)
    try:
        yield Staging(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _swap(folder: Path, target: Path) -> None:
    # A directory cannot be renamed over a full one, so the old one is moved aside first.
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    try:
        with suppress(FileNotFoundError):
            target.rename(aside / target.name)
        try:
            folder.rename(target)
        except OSError:
            # Another exporter of this model was quicker; its bundle, of the same name, is as good.
            if not (target / MODEL_JSON).is_file():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadBundle(f"{path} cannot be read: {error.strerror}") from error


def _read_golden(bundle: Bundle) -> Golden:
    import numpy as np  # noqa: PLC0415  `model list` reads many bundles and needs no numpy

    path = bundle.path / GOLDEN
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Any] = {name: file[name] for name in Golden.__slots__}
    except (OSError, ValueError, KeyError) as error:
        raise BadBundle(f"{path} holds no golden vectors: {error}") from error
    golden = Golden(**arrays)
    config, images, texts = bundle.config, len(golden.pixels), len(golden.ids)
    expected = {
        "pixels": ((images, *config.image.size, 3), np.uint8),
        "image_vectors": ((images, config.dimension), np.float32),
        "ids": ((texts, golden.ids.shape[-1]), np.int64),
        "text_vectors": ((texts, config.dimension), np.float32),
    }
    for name, (shape, dtype) in expected.items():
        array = arrays[name]
        if array.shape != shape or array.dtype != dtype or not len(array):
            raise BadBundle(f"{path}: {name} is {array.dtype} {array.shape}, expected {np.dtype(dtype)} {shape}")
    return golden
