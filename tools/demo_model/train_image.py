"""Train the image tower alone, against concept and keyword vectors that start from what the words mean.

    python train_image.py --minutes 40

The vectors start as an SVD of the concept x keyword matrix (IDF-weighted) beside the teacher's sentence vectors, so
that pictures of like things lie near each other from the first step; they are trained along and thrown away in the
end. Pictures grow from 32 over 48 to 64 px. Writes ``image.pt`` (the moving average of the weights).
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import shapes
import torch
from augment import finish, may_flip, place
from common import DIMENSION, TRAIN_SETS, WORK, read_json
from teacher import Teacher, concept_vectors
from torch import Tensor, nn
from torch.nn import functional as F
from towers import Average, ImageTower, optimiser, soft_cross_entropy

DRAWINGS, GENERATED = 168, 24  # of each batch
RATE = 2e-3
SIZES = ((0.38, 32), (0.68, 48), (1.01, 64))  # share of the time up to which a size in px is used
SKIN = 0.1  # how often a drawing with a skin tone stands for its concept


class Drawings:
    """The training pictures, drawn set by set for each concept."""

    def __init__(self, concepts: list[dict[str, Any]]) -> None:
        data = np.load(WORK / "drawings.npz")
        self.pixels = torch.from_numpy(data["pixels"])
        self.flip = torch.tensor([may_flip(c) for c in concepts])
        weights = list(TRAIN_SETS.values())
        table: dict[tuple[int, bool], dict[int, list[int]]] = {}
        for row, (concept, number, skin) in enumerate(zip(data["concept"], data["set"], data["skin"], strict=True)):
            table.setdefault((int(concept), bool(skin)), {}).setdefault(int(number), []).append(row)
        self.plain = {c: rows for (c, skin), rows in table.items() if not skin}
        self.toned = {c: rows for (c, skin), rows in table.items() if skin}
        self.ids = np.array(sorted(self.plain))
        self.chance = {id(sets): np.array([weights[n] for n in sets]) for sets in table.values()}

    def one(self, concept: int, rng: np.random.Generator) -> int:
        """Return the row of one drawing of a concept."""
        sets = self.toned[concept] if concept in self.toned and rng.random() < SKIN else self.plain[concept]
        chance = self.chance[id(sets)]
        rows = sets[list(sets)[rng.choice(len(sets), p=chance / chance.sum())]]
        return int(rows[rng.integers(len(rows))])

    def rounds(self, count: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Yield batches of concepts without end, each concept once a round."""
        left = np.array([], dtype=int)
        while True:
            if len(left) < count:
                left = np.concatenate([left, rng.permutation(self.ids)])
            yield left[:count]
            left = left[count:]

    def view(self, rows: Tensor, concepts: Tensor) -> Tensor:
        """Return one augmented view of each row, float ``[n, 3, 64, 64]``."""
        return place(self.pixels[rows], self.flip[concepts])


def keyword_matrix(concepts: list[dict[str, Any]]) -> tuple[Tensor, list[str]]:
    """Return concept x keyword, 0 or 1: tags, and the names of group and subgroup with their words."""
    words: dict[str, int] = {}
    cells = []
    for i, c in enumerate(concepts):
        kind = c["subgroup"].replace("-", " ")
        for word in {*c["tags"], c["group"].replace("-", " "), kind, *kind.split()}:
            cells.append((i, words.setdefault(word, len(words))))
    matrix = torch.zeros(len(concepts), len(words))
    rows, columns = zip(*cells, strict=True)
    matrix[list(rows), list(columns)] = 1
    return matrix, list(words)


def starting_vectors(concepts: list[dict[str, Any]], keywords: Tensor) -> tuple[Tensor, Tensor]:
    """Return unit vectors of concepts and keywords to begin from, both ``[., 256]``."""
    names: dict[str, int] = {}
    cells = [(i, names.setdefault(w, len(names))) for i, c in enumerate(concepts) for w in set(re.findall(r"[a-z]+", c["label"]))]
    labels = torch.zeros(len(concepts), len(names))
    rows, columns = zip(*cells, strict=True)
    labels[list(rows), list(columns)] = 1.5
    table = torch.cat([keywords, labels], 1)
    table = F.normalize(table * torch.log(len(concepts) / (table > 0).float().sum(0).clamp(min=1)), dim=1)
    meaning = concept_vectors(Teacher(), concepts).mean(0)
    meaning = F.normalize(meaning - meaning.mean(0), dim=1) * 0.8
    both = torch.cat([table - table.mean(0), meaning], 1)
    u, s, _ = torch.svd_lowrank(both, DIMENSION, niter=4)
    of_words = (both.T @ (u * s.rsqrt()))[: keywords.shape[1]]
    return F.normalize(u * s.sqrt(), dim=1), F.normalize(of_words, dim=1)


class Heads(nn.Module):
    """The vectors of concepts, keywords and shape attributes, each with its temperature."""

    def __init__(self, concepts: Tensor, keywords: Tensor, attributes: int) -> None:
        super().__init__()
        self.concepts, self.keywords = nn.Parameter(concepts.clone()), nn.Parameter(keywords.clone())
        self.attributes = nn.Parameter(torch.randn(attributes, DIMENSION) * 0.05)
        self.scales = nn.Parameter(torch.tensor([2.8, 2.5, 2.5]))

    def logits(self, z: Tensor, name: str) -> Tensor:
        """Return scaled cosines of image vectors with one table."""
        number = ("concepts", "keywords", "attributes").index(name)
        return self.scales[number].exp().clamp(max=60) * z @ F.normalize(getattr(self, name), dim=1).T


class Generated:
    """The generated pictures with their attributes."""

    def __init__(self) -> None:
        self.pixels = torch.from_numpy(np.load(WORK / "shapes.npz")["train"]).permute(0, 3, 1, 2)
        parts = [shapes.attributes(name) for name in read_json(WORK / "shapes.json")["train"][1]]
        words = {word: i for i, word in enumerate(dict.fromkeys(w for p in parts for w in p))}
        self.matrix = torch.zeros(len(parts), len(words))
        for i, part in enumerate(parts):
            self.matrix[i, [words[w] for w in part]] = 1


def neighbours(vectors: Tensor) -> Tensor:
    """Return where label smoothing goes: most of it to concepts of like meaning."""
    near = vectors @ vectors.T
    near.fill_diagonal_(-1)
    return 0.07 * torch.softmax(near / 0.06, 1) + 0.03 / len(vectors) + 0.90 * torch.eye(len(vectors))


def train(minutes: float, seed: int) -> None:
    """Train for so many minutes of wall time."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    concepts = read_json(WORK / "concepts.json")
    drawings, generated = Drawings(concepts), Generated()
    keywords, _ = keyword_matrix(concepts)
    start = starting_vectors(concepts, keywords)
    targets = neighbours(start[0])
    tower = ImageTower().to(memory_format=torch.channels_last)
    heads = Heads(*start, generated.matrix.shape[1])
    average, optimisers = Average(tower), (optimiser(tower, RATE), torch.optim.AdamW(heads.parameters(), lr=RATE, weight_decay=0.0))
    began, seen = time.monotonic(), []
    for step, chosen in enumerate(drawings.rounds(DRAWINGS, rng), start=1):
        progress = (time.monotonic() - began) / 60 / minutes
        if progress >= 1:
            break
        for group in (g for o in optimisers for g in o.param_groups):
            group["lr"] = RATE * min(1, step / 40) * (0.5 * (1 + np.cos(np.pi * progress)) + 0.005)
        cc, other = torch.from_numpy(chosen), torch.from_numpy(rng.choice(len(generated.pixels), GENERATED, replace=False))
        rows = torch.tensor([drawings.one(int(c), rng) for c in chosen])
        x = finish(torch.cat([drawings.view(rows, cc), generated.pixels[other].float() / 255]), rng)
        size = next(px for share, px in SIZES if progress < share)
        if size < x.shape[1]:
            x = F.interpolate(x.permute(0, 3, 1, 2).float(), size=(size, size), mode="area").permute(0, 2, 3, 1)
        with torch.autocast("cpu", torch.bfloat16):
            z = tower(x)
        z, shaped = z.float()[:DRAWINGS], z.float()[DRAWINGS:]
        logits = heads.logits(z, "concepts")
        losses = (
            soft_cross_entropy(logits, targets[cc]).mean(),
            soft_cross_entropy(heads.logits(z, "keywords"), keywords[cc]).mean(),
            soft_cross_entropy(heads.logits(shaped, "attributes"), generated.matrix[other]).mean(),
        )
        for o in optimisers:
            o.zero_grad()
        (losses[0] + 0.5 * losses[1] + 0.3 * losses[2]).backward()
        nn.utils.clip_grad_norm_(tower.parameters(), 2.0)
        for o in optimisers:
            o.step()
        average.update(tower)
        seen.append([loss.item() for loss in losses] + [(logits.argmax(1) == cc).float().mean().item()])
        if step % 50 == 0:
            mean = np.mean(seen[-50:], 0)
            print(f"{step} {progress * minutes:.1f} min {size} px: concept {mean[0]:.3f} keyword {mean[1]:.3f} shape {mean[2]:.3f} right {mean[3]:.3f}", flush=True)
        if step % 500 == 0:
            torch.save({"image": average.state, "steps": step}, WORK / "image.part.pt")
    torch.save({"image": average.state, "steps": step, "minutes": minutes}, WORK / "image.pt")
    print("done:", step, "steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train(options.minutes, options.seed)
