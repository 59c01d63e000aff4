"""Export an open_clip model into a bundle that runs without torch.

Nothing is written unless the exported graphs give open_clip's own vectors (``parity``).
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clipfleet.models.bundle import GOLDEN, IMAGE_GRAPH, MODEL_JSON, TEXT_GRAPH, Bundle, staging
from clipfleet.models.config import ModelConfig
from clipfleet.models.errors import ModelError
from clipfleet.models.library import cache_place, require_torch
from clipfleet.models.names import parse_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from clipfleet.models.open_clip_source import Source

__all__ = ["export_model"]

# A protobuf holds 2 GiB at most; beyond, tensors go into files of their own.
_ONE_FILE_BYTES = 1_900_000_000

_log = logging.getLogger(__name__)


def export_model(
    name: str,
    out: Path | None = None,
    *,
    cache: Path | None = None,
    preprocess: str | Mapping[str, Any] | None = None,
    licence: str = "unknown",
) -> Bundle:
    """Export a model and check it against open_clip.

    Args:
        name: an open_clip model in any spelling that ``parse_name`` takes.
        out: the directory to write; by default one in the cache, where the same name finds it again.
        cache: the cache, when it is not the default one.
        preprocess: for a checkpoint: the tag that it was trained from, or ``mean``, ``std``, ``interpolation`` and
            ``resize_mode`` in open_clip's words, or the name of a ``.json`` file with these.
        licence: of the weights; open_clip does not know it.

    Returns:
        The bundle, verified.

    Raises:
        ModelNotFound: architecture, tag or weights are not to be had.
        ExtraMissing: torch or open_clip is missing; holds the pip line.
        ExportRefused: the vectors would not be open_clip's, or nobody can tell how pictures are to be prepared.
        ModelError: the name is of a bundle already, or ``out`` holds something else.
    """
    parsed = parse_name(name)
    if parsed.kind in {"demo", "bundle"}:
        raise ModelError(f"{name} is a bundle already")
    if out is not None and out.exists() and not (out / MODEL_JSON).is_file() and any(out.iterdir()):
        raise ModelError(f"{out} holds something else than a bundle, and an export would replace it")
    require_torch(name)
    from clipfleet.models.open_clip_source import load_source  # noqa: PLC0415  imports torch

    started = time.monotonic()
    _log.info("exporting %s", parsed)
    source = load_source(parsed, preprocess)
    mark = source.fingerprint()
    bundle = _written(source, mark, out or cache_place(parsed, mark, cache), licence)
    _log.info("exported %s to %s in %.0f s", parsed, bundle.path, time.monotonic() - started)
    return bundle


def _written(source: Source, mark: str, target: Path, licence: str) -> Bundle:
    import numpy as np  # noqa: PLC0415  the heavy part of this module starts here

    from clipfleet.models.onnx_runtime import open_engine  # noqa: PLC0415
    from clipfleet.models.open_clip_text import check_tokenizer  # noqa: PLC0415
    from clipfleet.models.parity import check_parity, golden_of  # noqa: PLC0415
    from clipfleet.models.runtime import Attempt, Runtime  # noqa: PLC0415

    with staging(target) as stage:
        tokenizer_file = stage.folder / source.text.tokenizer
        tokenizer_file.write_bytes(source.tokenizer_json)
        check_tokenizer(source.text, tokenizer_file, source.tokenizer)
        golden = golden_of(source, tokenizer_file)
        np.savez(stage.folder / GOLDEN, **{name: getattr(golden, name) for name in golden.__slots__})
        _write_graphs(source, stage.folder)
        config = _config(source, mark, golden.image_vectors.shape[1], licence)
        unverified = Bundle(stage.folder, config)
        engine = open_engine(unverified, provider="cpu", device="cpu", threads=1)
        runtime = Runtime(unverified, engine, "cpu", (Attempt("cpu"),))
        cosine = check_parity(source, runtime, tokenizer_file)
        runtime.close()
        _log.info("vectors equal open_clip's: lowest cosine %.7f", cosine)
        return stage.publish(config)


def _config(source: Source, mark: str, dimension: int, licence: str) -> ModelConfig:
    name = str(source.record["name"])
    made_of = {
        "random": "random weights: finds nothing, for tests only",
        "tag": "an open_clip model",
    }.get(source.record["kind"], "your own weights in an open_clip architecture")
    return ModelConfig(
        name=name,
        description=f"{name}: {made_of}",
        licence=licence,
        fingerprint=mark,
        dimension=dimension,
        image=source.image,
        text=source.text,
        precision="fp32",
        files={},
        source=source.record,
    )


def _write_graphs(source: Source, folder: Path) -> None:
    import torch  # noqa: PLC0415  imported with the first export alone

    from clipfleet.models.towers import ImageTower, TextTower  # noqa: PLC0415  imports torch

    batch = torch.export.Dim("n")
    pixels = torch.zeros((2, *source.image.size, 3), dtype=torch.uint8)
    _export(ImageTower(source.model, source.image), pixels, {0: batch}, ("pixels", folder / IMAGE_GRAPH))
    length = source.text.context_length
    axes = {0: batch}
    if source.text.dynamic_length:
        axes[1] = torch.export.Dim("length", max=length)
        length = min(length, 9)
    ids = torch.ones((2, length), dtype=torch.int64)
    _export(TextTower(source.model), ids, axes, ("ids", folder / TEXT_GRAPH))


def _export(tower: Any, example: Any, axes: Mapping[int, Any], place: tuple[str, Path]) -> None:
    import torch  # noqa: PLC0415  imported with the first export alone

    name, path = place
    size = sum(tensor.numel() * tensor.element_size() for tensor in tower.state_dict().values())
    # eval on the wrapper: the exporter restores the wrapper's flag onto all that it holds.
    tower = tower.eval()
    with _exporter_settings(), torch.no_grad():
        program = torch.onnx.export(
            tower,
            (example,),
            dynamo=True,
            dynamic_shapes=(dict(axes),),
            input_names=[name],
            output_names=["vector"],
            verbose=False,
        )
    program.save(path, external_data=size > _ONE_FILE_BYTES)


@contextmanager
def _exporter_settings() -> Iterator[None]:
    import torch  # noqa: PLC0415  imported with the first export alone

    before = torch.backends.mha.get_fastpath_enabled()
    # The fused fast path of attention under no_grad has no counterpart in ONNX.
    torch.backends.mha.set_fastpath_enabled(False)
    # Hundreds of lines on how it names constants.
    chatty = logging.getLogger("onnx_ir")
    level = chatty.level
    chatty.setLevel(logging.WARNING)
    try:
        yield
    finally:
        chatty.setLevel(level)
        torch.backends.mha.set_fastpath_enabled(before)
