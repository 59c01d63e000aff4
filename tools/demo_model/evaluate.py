"""Measure the exported bundle on styles it never saw; writes ``report.json``, from which ``card.py`` makes the card."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from common import BUNDLE, CONTEXT, HELD_OUT_SETS, PICTURES, WORK, prepare, read_json, write_json
from PIL import Image
from quiz import accepted, questions
from tokens import Encoder

Vectors = np.ndarray
AT = (1, 5, 10)


class Model:
    """The bundle, run by ONNX Runtime on one thread."""

    def __init__(self, folder: Path) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.image, self.text = (
            ort.InferenceSession(str(folder / f"{side}.onnx"), options, providers=["CPUExecutionProvider"])
            for side in ("image", "text")
        )
        self.encode = Encoder(folder / "tokenizer.json")

    def images(self, pixels: np.ndarray) -> Vectors:
        return np.concatenate(
            [self.image.run(None, {"pixels": pixels[i : i + 16]})[0] for i in range(0, len(pixels), 16)]
        )

    def texts(self, texts: list[str]) -> Vectors:
        parts = [np.array(self.encode(texts[i : i + 64])) for i in range(0, len(texts), 64)]
        return np.concatenate([self.text.run(None, {"ids": ids})[0] for ids in parts])


def recall(scores: np.ndarray) -> dict[str, float]:
    """Return R@1, 5 and 10 in percent, the right answer of row i being column i."""
    rank = (scores > np.diag(scores)[:, None]).sum(1)
    return {f"R@{k}": round(100 * float((rank < k).mean()), 1) for k in AT} | {"n": len(scores)}


def ask(model: Model, concepts: list[dict[str, Any]], gallery: Vectors, owner: np.ndarray) -> list[dict[str, Any]]:
    """Return for each question its first hits, and the rank of the first one of the right kind."""
    rows, asked = [], questions()
    found = model.texts([q["text"] for q in asked]) @ gallery.T
    for question, scores in zip(asked, found, strict=True):
        right, order = accepted(question, concepts), np.argsort(-scores)
        fits = [int(owner[i]) in right for i in order]
        rank = fits.index(True) + 1 if any(fits) else None
        hits = [
            {"name": concepts[owner[i]]["label"], "score": round(float(scores[i]), 3), "right": int(owner[i]) in right}
            for i in order[:5]
        ]
        rows.append({"question": question["text"], "rank": rank, "hits": hits, "accepted": len(right)})
    return rows


def three_keywords(concepts: list[dict[str, Any]], rng: np.random.Generator) -> list[str]:
    """Return up to three keywords of each concept."""
    pools = [c["tags"] or [c["subgroup"].replace("-", " ")] for c in concepts]
    return [", ".join(rng.choice(p, min(3, len(p)), replace=False)) for p in pools]


def held_out(
    model: Model, concepts: list[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, tuple[Vectors, np.ndarray]]]:
    """Return the tables of the held-out sets, and their vectors."""
    data = np.load(WORK / "held_out.npz")
    names = model.texts([c["label"] for c in concepts])
    words = model.texts(three_keywords(concepts, np.random.default_rng(5)))
    both = model.texts([", ".join([c["label"], *c["tags"][:8]]) for c in concepts])
    noto = noto_vectors(model)
    tables, vectors = {}, {}
    for number, name in enumerate(HELD_OUT_SETS):
        rows = data["set"] == number
        owner, z = data["concept"][rows], model.images(data["pixels"][rows])
        vectors[name] = (z, owner)
        plain = np.array([concepts[c]["group"] != "flags" for c in owner])
        shared = np.array([c in noto for c in owner])
        tables[name] = {
            "by name": recall(names[owner] @ z.T),
            "by name, without flags": recall(names[owner[plain]] @ z[plain].T),
            "by three keywords": recall(words[owner] @ z.T),
            "by name and keywords": recall(both[owner] @ z.T),
            "by picture (Noto's)": recall(np.stack([noto[c] for c in owner[shared]]) @ z[shared].T),
        }
    return tables, vectors


def noto_vectors(model: Model) -> dict[int, Vectors]:
    """Return the vector of each concept's Noto drawing."""
    data = np.load(WORK / "drawings.npz")
    rows = np.nonzero((data["set"] == 0) & ~data["skin"])[0]
    flat = np.stack([prepare(Image.fromarray(d, "RGBA")) for d in data["pixels"][rows]])
    return dict(zip(data["concept"][rows].tolist(), model.images(flat), strict=True))


def groups(model: Model, concepts: list[dict[str, Any]], z: Vectors, owner: np.ndarray) -> dict[str, Any]:
    """Return R@k by name for each Unicode group, over the whole set as gallery."""
    scores = model.texts([concepts[c]["label"] for c in owner]) @ z.T
    rank = (scores > np.diag(scores)[:, None]).sum(1)
    of = np.array([concepts[c]["group"] for c in owner])
    return {
        g: {f"R@{k}": round(100 * float((rank[of == g] < k).mean()), 1) for k in AT} | {"n": int((of == g).sum())}
        for g in sorted(set(of))
    }


def single_words(model: Model, concepts: list[dict[str, Any]], z: Vectors, owner: np.ndarray) -> dict[str, Any]:
    """Return the precision of single keywords that 3 to 60 pictures of the set have."""
    having: dict[str, set[int]] = {}
    for column, c in enumerate(owner):
        for tag in concepts[c]["tags"]:
            having.setdefault(tag, set()).add(column)
    words = sorted(w for w, columns in having.items() if 3 <= len(columns) <= 60)
    top = np.argsort(-(model.texts(words) @ z.T), 1)[:, :5]
    right = np.array([[column in having[w] for column in row] for w, row in zip(words, top, strict=True)])
    return {
        "words": len(words),
        "P@1": round(100 * float(right[:, 0].mean()), 1),
        "P@5": round(100 * float(right.mean()), 1),
    }


def shapes(model: Model) -> dict[str, Any]:
    """Return R@k on generated pictures whose combination was never trained on."""
    captions, _ = read_json(WORK / "shapes.json")["test"]
    z = model.images(np.load(WORK / "shapes.npz")["test"])
    return recall(model.texts([c[0] for c in captions]) @ z.T)


def shipped(model: Model, concepts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the questions' answers on ``examples/pictures``."""
    number = {c["label"]: i for i, c in enumerate(concepts)}
    table = read_json(PICTURES / "pictures.json")
    pixels = np.stack([prepare(Image.open(PICTURES / name)) for name in table])
    return ask(model, concepts, model.images(pixels), np.array([number[row["name"]] for row in table.values()]))


def alone_or_together(model: Model) -> dict[str, float]:
    """Return the lowest cosine of a vector alone to the same in a batch of 64, texts padded to the context there."""
    pixels = np.load(WORK / "held_out.npz")["pixels"][:64]
    together = model.image.run(None, {"pixels": pixels})[0]
    alone = np.concatenate([model.image.run(None, {"pixels": pixels[i : i + 1]})[0] for i in range(64)])
    texts = [c["label"] for c in read_json(WORK / "concepts.json")[:64]]
    ids = model.encode(texts)
    wide = np.array([row + [0] * (CONTEXT - len(row)) for row in ids])
    padded = model.text.run(None, {"ids": wide})[0]
    bare = np.concatenate([model.text.run(None, {"ids": np.array(model.encode([t]))})[0] for t in texts])
    return {"image": float((together * alone).sum(1).min()), "text": float((padded * bare).sum(1).min())}


def speed(model: Model) -> dict[str, float]:
    """Return items per second of processor time on one thread, in batches of 16."""
    pixels = np.load(WORK / "held_out.npz")["pixels"][:16]
    ids = np.array(model.encode([q["text"] for q in questions()][:16]))
    rates = {}
    for name, run in (
        ("images", lambda: model.image.run(None, {"pixels": pixels})),
        ("texts", lambda: model.text.run(None, {"ids": ids})),
    ):
        run()
        times = []
        for _ in range(20):
            began = time.process_time()
            run()
            times.append(time.process_time() - began)
        rates[name] = round(16 / float(np.median(times)))
    return rates


def main(folder: Path, out: Path) -> None:
    """Measure everything once."""
    model, concepts = Model(folder), read_json(WORK / "concepts.json")
    tables, vectors = held_out(model, concepts)
    z, owner = vectors["twemoji"]
    here, there = ask(model, concepts, z, owner), shipped(model, concepts)
    sums = {
        name: {
            "first": sum(r["rank"] == 1 for r in rows),
            "top five": sum((r["rank"] or 99) <= 5 for r in rows),
            "of": len(rows),
        }
        for name, rows in (("all of Twemoji", here), ("shipped pictures", [r for r in there if r["rank"] is not None]))
    }
    report = {
        "tables": tables, "groups": groups(model, concepts, z, owner),
        "single keywords": single_words(model, concepts, z, owner),
        "new colour x shape": shapes(model), "questions": here, "shipped": there, "sums": sums,
        "batch": alone_or_together(model), "speed": speed(model), "steps": read_json(folder / "model.json")["source"],
    }  # fmt: skip
    write_json(out, report, indent=1)
    for name, table in tables.items():
        print(name, table)
    print(report["new colour x shape"], report["single keywords"], sums, report["batch"], report["speed"])
    for row in there[:10]:
        print(
            row["question"],
            "->",
            ", ".join(f"{h['name']} {h['score']:.2f}{'' if h['right'] else ' (wrong)'}" for h in row["hits"][:3]),
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bundle", type=Path, default=BUNDLE)
    parser.add_argument("--out", type=Path, default=WORK / "report.json")
    options = parser.parse_args()
    main(options.bundle, options.out)
