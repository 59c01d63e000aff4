"""Write tests/unit/data/tiny-bundle: the smallest model with all the parts of a real one.

Two linear towers of random weights, 8 x 6 pixels, 16 numbers a vector. It lets the tests that need no torch run a
true ONNX graph. Run in an environment with onnx: python tests/with_torch/make_tiny_bundle.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers.pre_tokenizers import ByteLevel

from clipfleet.models.bundle import staging
from clipfleet.models.clip_bpe import clip_bpe_json
from clipfleet.models.config import ImageConfig, ModelConfig, TextConfig
from clipfleet.models.fingerprint import fingerprint
from clipfleet.models.tokenizer import Tokenize

TARGET = Path(__file__).parents[1] / "unit" / "data" / "tiny-bundle"
SIZE, DIMENSION, PAD = (8, 6), 16, 0
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)
MERGES = [("r", "e"), ("re", "d</w>"), ("c", "a"), ("ca", "t</w>"), ("d", "o"), ("do", "g</w>")]
TEXTS = ["a red cat", "dog", "the red dog and the cat", "\u72d7"]


def vocabulary() -> dict[str, int]:
    letters = sorted(ByteLevel.alphabet())
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *(a + b for a, b in MERGES)]
    return {token: index for index, token in enumerate(["<pad>", *tokens, "<start_of_text>", "<end_of_text>"])}


def graph(name, inputs, nodes, weights):
    model = helper.make_model(
        helper.make_graph(
            [*nodes, *normalised("raw")],
            name,
            [inputs],
            [helper.make_tensor_value_info("vector", TensorProto.FLOAT, ["n", DIMENSION])],
            [numpy_helper.from_array(value, key) for key, value in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def normalised(name):
    return [
        helper.make_node("ReduceL2", [name], ["norm"], axes=[1], keepdims=1),
        helper.make_node("Div", [name, "norm"], ["vector"]),
    ]


def image_graph(weights):
    node = helper.make_node
    return graph(
        "image",
        helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["n", *SIZE, 3]),
        [
            node("Cast", ["pixels"], ["float"], to=TensorProto.FLOAT),
            node("Mul", ["float", "scale"], ["unit"]),
            node("Sub", ["unit", "mean"], ["centred"]),
            node("Div", ["centred", "std"], ["standard"]),
            node("Flatten", ["standard"], ["flat"], axis=1),
            node("MatMul", ["flat", "projection"], ["raw"]),
        ],
        {
            "scale": np.float32(1 / 255).reshape(()),
            "mean": np.float32(MEAN),
            "std": np.float32(STD),
            "projection": weights["projection"],
        },
    )


def text_graph(weights):
    node = helper.make_node
    return graph(
        "text",
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "length"]),
        [
            node("Equal", ["ids", "pad"], ["is_pad"]),
            node("Not", ["is_pad"], ["is_word"]),
            node("Cast", ["is_word"], ["mask"], to=TensorProto.FLOAT),
            node("Unsqueeze", ["mask", "last"], ["weight"]),
            node("Gather", ["embedding", "ids"], ["states"]),
            node("Mul", ["states", "weight"], ["kept"]),
            node("ReduceSum", ["kept", "words"], ["raw"], keepdims=0),
        ],
        {
            "pad": np.int64(PAD).reshape(()),
            "last": np.int64([-1]),
            "words": np.int64([1]),
            "embedding": weights["embedding"],
        },
    )


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def main() -> None:
    words = vocabulary()
    rng = np.random.default_rng(20)
    weights = {
        "projection": rng.normal(size=(SIZE[0] * SIZE[1] * 3, DIMENSION)).astype(np.float32),
        "embedding": rng.normal(size=(len(words), DIMENSION)).astype(np.float32),
    }
    image = ImageConfig(SIZE, "shortest", "bicubic", (0, 0, 0), MEAN, STD)
    text = TextConfig(12, "tokenizer.json", "clip", PAD, words["<start_of_text>"], words["<end_of_text>"], True, "mean")
    with staging(TARGET) as stage:
        (stage.folder / "tokenizer.json").write_bytes(clip_bpe_json(words, MERGES))
        onnx.save(image_graph(weights), stage.folder / "image.onnx")
        onnx.save(text_graph(weights), stage.folder / "text.onnx")
        tokenize = Tokenize(text, stage.folder / "tokenizer.json")
        rows = [tokenize(words)[0] for words in TEXTS]
        ids = np.full((len(rows), text.context_length), PAD, dtype=np.int64)
        for filled, row in zip(ids, rows, strict=True):
            filled[: len(row)] = row
        pixels = rng.integers(0, 256, (3, *SIZE, 3), dtype=np.uint8)
        standard = (pixels / 255 - np.array(MEAN)) / np.array(STD)
        np.savez(
            stage.folder / "golden.npz",
            pixels=pixels,
            image_vectors=unit(standard.reshape(3, -1) @ weights["projection"]),
            ids=ids,
            text_vectors=unit(np.stack([weights["embedding"][row].sum(axis=0) for row in rows])),
            texts=np.array(TEXTS),
        )
        bundle = stage.publish(
            ModelConfig(
                name="tiny",
                description="Two random linear towers for tests: it finds nothing.",
                licence="Apache-2.0",
                fingerprint=fingerprint(weights, image, text, (stage.folder / "tokenizer.json").read_bytes()),
                dimension=DIMENSION,
                image=image,
                text=text,
                precision="fp32",
                files={},
                source={"made_by": "tests/with_torch/make_tiny_bundle.py"},
            )
        )
    print(bundle.path, bundle.config.fingerprint)


if __name__ == "__main__":
    main()
