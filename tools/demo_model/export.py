"""Write the bundle that ships: two ONNX graphs, tokenizer, golden vectors and ``model.json``.

Weights are stored as float16 and computed in float32. Not dynamic int8: its activation scale is taken over the whole
batch, so a vector would depend on its neighbours.
"""

from __future__ import annotations

import argparse
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from common import BUNDLE, CONTEXT, DIMENSION, SIZE, WORK, prepare, read_json
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from tokens import END, PAD, START, Encoder
from torch import Tensor, nn
from towers import ImageTower, TextTower

from clipfleet.models.bundle import staging
from clipfleet.models.config import ImageConfig, ModelConfig, TextConfig
from clipfleet.models.fingerprint import fingerprint

SMALL = 256  # elements; a tensor up to this stays float32, since it costs nothing
GOLDEN_TEXTS = (
    "a red heart", "cat", "something to eat", "three blue stars", "Könnten Sie mir bitte ein Bild zeigen?", "🚀",
    "flag: japan", "a small green triangle on a yellow background", "the quick brown fox jumps over the lazy dog " * 4,
)  # fmt: skip


def load(folder: Path) -> tuple[ImageTower, TextTower, dict[str, Any]]:
    """Return both towers, ready to run, and how long they were trained."""
    image_state = torch.load(folder / "image.pt", weights_only=True)
    text_state = torch.load(folder / "text.pt", weights_only=True)
    image, text = ImageTower(), TextTower(text_state["tokens"])
    image.load_state_dict(image_state["image"])
    text.load_state_dict(text_state["text"])
    steps = {"image_steps": image_state["steps"], "text_steps": text_state["steps"]}
    return image.eval(), text.eval(), steps


def write_graph(tower: nn.Module, sample: Tensor, source: str, path: Path, axes: dict[int, str]) -> None:
    """Export one tower with dynamic axes and halve its weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's remarks on the branch for other picture sizes
        torch.onnx.export(
            tower, (sample,), str(path), input_names=[source], output_names=["vector"],
            dynamic_axes={source: axes, "vector": {0: "n"}}, opset_version=17, dynamo=False,
        )  # fmt: skip
    model = onnx.load(str(path))
    for tensor in list(model.graph.initializer):
        if tensor.data_type != TensorProto.FLOAT or np.prod(tensor.dims) <= SMALL:
            continue
        half = numpy_helper.to_array(tensor).astype(np.float16)
        model.graph.initializer.remove(tensor)
        model.graph.initializer.append(numpy_helper.from_array(half, f"{tensor.name}.half"))
        model.graph.node.insert(
            0, helper.make_node("Cast", [f"{tensor.name}.half"], [tensor.name], to=TensorProto.FLOAT)
        )
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def golden_pictures() -> np.ndarray:
    """Return pictures to check a runtime by: generated shapes and Noto drawings, uint8 ``[16, 64, 64, 3]``."""
    drawings = np.load(WORK / "drawings.npz")["pixels"][:400:50]
    flat = [prepare(Image.fromarray(d, "RGBA")) for d in drawings]
    return np.concatenate([np.load(WORK / "shapes.npz")["test"][:8], np.stack(flat)])


def write_golden(image: ImageTower, text: TextTower, folder: Path) -> None:
    """Store golden inputs with the vectors of the towers in torch."""
    pixels, ids = golden_pictures(), torch.tensor(Encoder()(list(GOLDEN_TEXTS)))
    with torch.no_grad():
        vectors = image(torch.from_numpy(pixels)), text(ids)
    np.savez_compressed(
        folder / "golden.npz", pixels=pixels, image_vectors=vectors[0].numpy(), ids=ids.numpy(),
        text_vectors=vectors[1].numpy(), texts=np.array(GOLDEN_TEXTS),
    )  # fmt: skip


def configuration(image: ImageTower, text: TextTower, steps: dict[str, Any]) -> ModelConfig:
    """Return ``model.json`` without the files' hashes."""
    white = (255, 255, 255)
    mean, std = (ImageTower.mean,) * 3, (ImageTower.std,) * 3
    seeing = ImageConfig((SIZE, SIZE), "longest", "bicubic", white, mean, std, white)  # type: ignore[arg-type]
    reading = TextConfig(CONTEXT, "tokenizer.json", "clip", PAD, START, END, dynamic_length=True, pooling="mean")
    tensors = {
        f"{side}.{k}": v.numpy()
        for side, tower in (("image", image), ("text", text))
        for k, v in tower.state_dict().items()
    }
    heads = {"image_heads": image.blocks[0].heads, "text_heads": text.blocks[0].heads}
    return ModelConfig(
        name="demo",
        description="A small demonstration model that knows drawings of some 1,900 things; no general CLIP",
        licence="Apache-2.0",
        fingerprint=fingerprint(tensors, seeing, reading, (WORK / "tokenizer.json").read_bytes(), architecture=heads),
        dimension=DIMENSION,
        image=seeing,
        text=reading,
        precision="fp16-weights",
        files={},
        source={"name": "demo", "trained_by": "tools/demo_model", "data": "see DATA_LICENCES.md", **steps},
    )


def main(target: Path) -> None:
    """Write the bundle into ``target``; what else lies there (the card) is carried over."""
    torch.set_num_threads(1)
    image, text, steps = load(WORK)
    papers = {p.name: p.read_bytes() for p in target.glob("*.md")}
    with staging(target) as stage, torch.no_grad():
        pixels = torch.randint(0, 255, (2, SIZE, SIZE, 3), dtype=torch.uint8)
        write_graph(image, pixels, "pixels", stage.folder / "image.onnx", {0: "n"})
        write_graph(
            text,
            torch.tensor(Encoder()(["a red heart", "cat"])),
            "ids",
            stage.folder / "text.onnx",
            {0: "n", 1: "length"},
        )
        shutil.copy(WORK / "tokenizer.json", stage.folder)
        write_golden(image, text, stage.folder)
        bundle = stage.publish(configuration(image, text, steps))
    for name, content in papers.items():
        (target / name).write_bytes(content)
    sizes = {p.name: p.stat().st_size for p in sorted(target.iterdir())}
    print(bundle.config.fingerprint, sizes, len(read_json(WORK / "concepts.json")), "concepts")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=Path, default=BUNDLE)
    main(parser.parse_args().target)
