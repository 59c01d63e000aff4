"""Train the image tower alone, against concept and keyword vectors that start from what the words mean.

    python train_image.py --minutes 45
    python train_image.py --minutes 20 --resume   # goes on from image.pt, at a smaller rate, on 64 px

The vectors start as an SVD of the concept x keyword matrix (IDF-weighted) beside the teacher's sentence vectors, so
that pictures of like things lie near each other from the first step; they are trained along and thrown away in the
end. Pictures grow from 32 over 48 to 64 px. Writes ``image.pt`` (the moving average of the weights).
"""

from __future__ import annotations

import argparse
import re
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import shapes
import torch
from augment import finish, may_flip, place
from common import DIMENSION, TRAIN_SETS, WORK, read_json
from teacher import Teacher, concept_vectors
from torch import Tensor, nn
from torch.nn import functional
from towers import Average, ImageTower, optimiser, soft_cross_entropy

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        own = sorted({*c["tags"], c["group"].replace("-", " "), kind, *kind.split()})
        cells += [(i, words.setdefault(word, len(words))) for word in own]
    matrix = torch.zeros(len(concepts), len(words))
    rows, columns = zip(*cells, strict=True)
    matrix[list(rows), list(columns)] = 1
    return matrix, list(words)


def starting_vectors(concepts: list[dict[str, Any]], keywords: Tensor) -> tuple[Tensor, Tensor]:
    """Return unit vectors of concepts and keywords to begin from, both ``[., 256]``."""
    names: dict[str, int] = {}
    cells = [
        (i, names.setdefault(w, len(names)))
        for i, c in enumerate(concepts)
        for w in sorted(set(re.findall(r"[a-z]+", c["label"])))
    ]
    labels = torch.zeros(len(concepts), len(names))
    rows, columns = zip(*cells, strict=True)
    labels[list(rows), list(columns)] = 1.5
    table = torch.cat([keywords, labels], 1)
    table = functional.normalize(table * torch.log(len(concepts) / (table > 0).float().sum(0).clamp(min=1)), dim=1)
    meaning = concept_vectors(Teacher(), concepts).mean(0)
    meaning = functional.normalize(meaning - meaning.mean(0), dim=1) * 0.8
    both = torch.cat([table - table.mean(0), meaning], 1)
    u, s, _ = torch.svd_lowrank(both, DIMENSION, niter=4)
    of_words = (both.T @ (u * s.rsqrt()))[: keywords.shape[1]]
    return functional.normalize(u * s.sqrt(), dim=1), functional.normalize(of_words, dim=1)


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
        return self.scales[number].exp().clamp(max=60) * z @ functional.normalize(getattr(self, name), dim=1).T


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


class Run:
    """The tower, what it is trained against, and one step of it."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.rng = np.random.default_rng(seed)
        concepts = read_json(WORK / "concepts.json")
        self.drawings, self.generated = Drawings(concepts), Generated()
        self.keywords, _ = keyword_matrix(concepts)
        start = starting_vectors(concepts, self.keywords)
        self.targets = neighbours(start[0])
        self.tower = ImageTower().to(memory_format=torch.channels_last)
        self.heads = Heads(*start, self.generated.matrix.shape[1])
        self.rounds = self.drawings.rounds(DRAWINGS, self.rng)

    def batch(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return pictures uint8 ``[192, size, size, 3]``, the concepts of the first 168, the rows of the others."""
        chosen = next(self.rounds)
        concepts = torch.from_numpy(chosen)
        other = torch.from_numpy(self.rng.choice(len(self.generated.pixels), GENERATED, replace=False))
        rows = torch.tensor([self.drawings.one(int(c), self.rng) for c in chosen])
        x = finish(
            torch.cat([self.drawings.view(rows, concepts), self.generated.pixels[other].float() / 255]), self.rng
        )
        if size < x.shape[1]:
            x = functional.interpolate(x.permute(0, 3, 1, 2).float(), size=(size, size), mode="area").permute(
                0, 2, 3, 1
            )
        return x, concepts, other

    def losses(self, size: int) -> tuple[Tensor, list[float]]:
        """Return the loss of a fresh batch, and its parts with the share of concepts told right."""
        x, concepts, other = self.batch(size)
        with torch.autocast("cpu", torch.bfloat16):
            both = self.tower(x)
        z, shaped = both.float()[:DRAWINGS], both.float()[DRAWINGS:]
        logits = self.heads.logits(z, "concepts")
        parts = (
            soft_cross_entropy(logits, self.targets[concepts]).mean(),
            soft_cross_entropy(self.heads.logits(z, "keywords"), self.keywords[concepts]).mean(),
            soft_cross_entropy(self.heads.logits(shaped, "attributes"), self.generated.matrix[other]).mean(),
        )
        right = (logits.argmax(1) == concepts).float().mean().item()
        return parts[0] + 0.5 * parts[1] + 0.3 * parts[2], [*(p.item() for p in parts), right]

    def meet_again(self, steps: int = 60) -> None:
        """Fit the vectors to a tower that was trained before, without touching it."""
        optimise = torch.optim.AdamW(self.heads.parameters(), lr=1e-2, weight_decay=0.0)
        self.tower.requires_grad_(False).eval()
        for _ in range(steps):
            loss, parts = self.losses(SIZES[-1][1])
            optimise.zero_grad()
            loss.backward()
            optimise.step()
        self.tower.requires_grad_(True).train()
        print("met again:", np.round(parts, 3), flush=True)


def train(minutes: float, seed: int, *, resume: bool) -> None:
    """Train for so many minutes of wall time."""
    run, before, rate = Run(seed), 0, RATE
    if resume:
        saved = torch.load(WORK / "image.pt", weights_only=True)
        run.tower.load_state_dict(saved["image"])
        before, rate = saved["steps"], RATE * 0.4
        run.meet_again()
    average = Average(run.tower)
    optimisers = (optimiser(run.tower, rate), torch.optim.AdamW(run.heads.parameters(), lr=rate, weight_decay=0.0))
    began, seen, step = time.monotonic(), [], 0
    while (progress := (time.monotonic() - began) / 60 / minutes) < 1:
        step += 1
        for group in (g for o in optimisers for g in o.param_groups):
            group["lr"] = rate * min(1, step / 40) * (0.5 * (1 + np.cos(np.pi * progress)) + 0.005)
        size = SIZES[-1][1] if resume else next(px for share, px in SIZES if progress < share)
        loss, parts = run.losses(size)
        for o in optimisers:
            o.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(run.tower.parameters(), 2.0)
        for o in optimisers:
            o.step()
        average.update(run.tower)
        seen.append(parts)
        if step % 25 == 0:
            mean = dict(
                zip(("concept", "keyword", "shape", "right"), np.mean(seen[-25:], 0).round(3).tolist(), strict=True)
            )
            print(step, f"{progress * minutes:.1f} min", size, "px", mean, flush=True)
    torch.save({"image": average.state, "steps": before + step}, WORK / "image.pt")
    print("done:", before + step, "steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="go on from image.pt")
    options = parser.parse_args()
    torch.set_num_threads(1)
    train(options.minutes, options.seed, resume=options.resume)
