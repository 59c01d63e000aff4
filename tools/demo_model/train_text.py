"""Train the text tower against the frozen image tower's vectors.

    python train_text.py --minutes 10

Each phrase is scored against one augmented view of every concept, drawn from a cache of some 40,000 vectors. Right
is the concept itself for a name, every concept with those keywords for keywords, and what the teacher finds near for
phrases that only it can place. Writes ``text.pt``.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from augment import finish
from common import DIMENSION, WORK, read_json
from first_words import start
from phrases import Phrases, Taught
from tokens import Encoder
from torch import Tensor, nn
from torch.nn import functional
from towers import Average, ImageTower, TextTower, optimiser, soft_cross_entropy
from train_image import Drawings

NAMES, KEYWORDS, TAUGHT, GENERATED = 128, 96, 128, 24  # phrases of each batch
RATE = 1.5e-3


def first_lesson(lesson: Lesson, encode: Encoder, tower: TextTower) -> None:
    """Fit the tower as a bag of words to names, keywords, captions and what the teacher says."""
    gallery, phrases, taught = lesson.gallery, lesson.phrases, lesson.taught
    ids = [int(c) for c in gallery.ids]
    texts = [phrases.concepts[c]["label"] for c in ids] + [phrases.name(c) for c in ids * 3]
    vectors = [gallery.middle[ids]] * 4
    worded = [phrases.by_keywords(c)[:2] for c in ids * 4]
    having = torch.stack([right for _, right in worded]) * gallery.known.float()
    texts += [text for text, _ in worded] + taught.texts
    share = taught.targets(torch.arange(len(taught.texts)), lesson.count)
    vectors += [having @ gallery.middle, share @ gallery.middle, lesson.generated.vectors]
    texts += [captions[0] for captions in lesson.generated.captions]
    near = start(tower, encode(texts), functional.normalize(torch.cat(vectors), dim=1))
    print("as a bag of words: cosine", round(near, 3), flush=True)


def vectors_of(tower: ImageTower, pixels: Tensor) -> Tensor:
    """Return the vectors of uint8 pictures, in pieces."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return torch.cat([tower(part).float() for part in pixels.split(128)])


def run_by_length(tower: TextTower, encode: Encoder, texts: list[str], parts: int = 4) -> Tensor:
    """Return the vectors of texts, like lengths together: padded to the longest of all, two thirds would be padding."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    step = -(-len(order) // parts)
    with torch.autocast("cpu", torch.bfloat16):
        done = [
            tower(torch.tensor(encode([texts[i] for i in order[k : k + step]]))) for k in range(0, len(order), step)
        ]
    return torch.cat(done)[torch.tensor(order).argsort()].float()


class Gallery:
    """The frozen image vectors of all training drawings, view by view."""

    def __init__(self, tower: ImageTower, concepts: list[dict[str, Any]], rng: np.random.Generator, count: int) -> None:
        drawings = Drawings(concepts)
        flat = [(c, row) for c, sets in drawings.plain.items() for rows in sets.values() for row in rows]
        owner, rows = (torch.tensor(column) for column in zip(*flat, strict=True))
        views = []
        for _ in range(count):
            for first in range(0, len(rows), 128):
                part = slice(first, first + 128)
                views.append(vectors_of(tower, finish(drawings.view(rows[part], owner[part]), rng)))
        self.vectors, self.owner = torch.cat(views), owner.repeat(count)
        self.of = {c: torch.nonzero(self.owner == c)[:, 0].numpy() for c in drawings.ids}
        self.ids, self.rng = drawings.ids, rng
        middle = torch.zeros(len(concepts), DIMENSION).index_add_(0, self.owner, self.vectors)
        self.middle = functional.normalize(middle, dim=1)
        self.known = torch.zeros(len(concepts), dtype=torch.bool)
        self.known[torch.from_numpy(self.ids)] = True

    def one_view_each(self) -> Tensor:
        """Return one vector per concept, ``[concepts, 256]``."""
        rows = [self.of[c][self.rng.integers(len(self.of[c]))] for c in self.ids]
        out = self.middle.clone()
        out[torch.from_numpy(self.ids)] = self.vectors[torch.from_numpy(np.array(rows))]
        return out


class Generated:
    """The generated pictures' vectors and captions."""

    def __init__(self, tower: ImageTower) -> None:
        pixels = torch.from_numpy(np.load(WORK / "shapes.npz")["train"])
        self.captions, self.names = read_json(WORK / "shapes.json")["train"]
        self.vectors = vectors_of(tower, pixels)


class Lesson:
    """Makes the batches: texts, the vectors they are scored against, and what is right."""

    def __init__(
        self, gallery: Gallery, generated: Generated, concepts: list[dict[str, Any]], rng: np.random.Generator
    ) -> None:
        self.gallery, self.generated, self.rng, self.count = gallery, generated, rng, len(concepts)
        self.phrases = Phrases(concepts, rng)
        self.taught = Taught(gallery.known.float())

    def __call__(self, chosen: np.ndarray) -> tuple[list[str], Tensor, Tensor]:
        """Return texts, vectors ``[concepts + 96, 256]`` and targets ``[texts, concepts + 96]``."""
        known, pick = self.gallery.known.float(), self.rng
        names = [self.phrases.name(int(c)) for c in chosen]
        right = functional.one_hot(torch.from_numpy(chosen), self.count).float()
        worded, by_words = [], []
        for c in chosen[:KEYWORDS]:
            text, having, count = self.phrases.by_keywords(int(c))
            target = having * known / (having * known).sum()
            if count == 1 and (row := self.taught.by_text.get(text)) is not None:
                target = (target + self.taught.targets(torch.tensor([row]), self.count)[0]) / 2
            elif count > 1:
                target = target + functional.one_hot(
                    torch.tensor(int(c)), self.count
                )  # most of all the one it was made of
            worded.append(text)
            by_words.append(target)
        rows = torch.from_numpy(pick.integers(len(self.taught.texts), size=TAUGHT))
        said = [self.phrases.dresser.dress(self.taught.texts[r]) for r in rows]
        other = pick.choice(len(self.generated.names), 96, replace=False)
        captions = [str(pick.choice(self.generated.captions[k])) for k in other[:GENERATED]]
        same = torch.tensor(
            [[self.generated.names[a] == self.generated.names[b] for b in other] for a in other[:GENERATED]]
        )
        targets = torch.zeros(NAMES + KEYWORDS + TAUGHT + GENERATED, self.count + len(other))
        targets[:-GENERATED, : self.count] = torch.cat(
            [right, torch.stack(by_words), self.taught.targets(rows, self.count)]
        )
        targets[-GENERATED:, self.count :] = same.float()
        vectors = torch.cat([self.gallery.one_view_each(), self.generated.vectors[torch.from_numpy(other)]])
        return names + worded + said + captions, vectors, targets


def train(minutes: float, seed: int, image: str, views: int, *, resume: bool) -> None:
    """Train for so many minutes of wall time, after the cache is made."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    concepts, encode, began = read_json(WORK / "concepts.json"), Encoder(), time.monotonic()
    frozen = ImageTower().to(memory_format=torch.channels_last)
    frozen.load_state_dict(torch.load(WORK / image, weights_only=True)["image"])
    gallery, generated = Gallery(frozen.eval(), concepts, rng, views), Generated(frozen)
    lesson = Lesson(gallery, generated, concepts, rng)
    unknown = torch.cat([(~gallery.known).float() * -1e4, torch.zeros(96)])
    print(len(gallery.vectors), "vectors cached,", round(time.monotonic() - began), "s", flush=True)
    tower, scale = TextTower(encode.size), nn.Parameter(torch.tensor(3.0))
    before = 0
    if resume:
        saved = torch.load(WORK / "text.pt", weights_only=True)
        tower.load_state_dict(saved["text"])
        scale.data.fill_(saved["scale"])
        before = saved["steps"]
    else:
        first_lesson(lesson, encode, tower)
    average, optimise = Average(tower), optimiser(tower, RATE)
    optimise.add_param_group({"params": [scale], "weight_decay": 0.0})
    began, seen, left, step = time.monotonic(), [], rng.permutation(gallery.ids), 0
    while (progress := (time.monotonic() - began) / 60 / minutes) < 1:
        step += 1
        for group in optimise.param_groups:
            group["lr"] = RATE * min(1, step / 40) * (0.5 * (1 + np.cos(np.pi * progress)) + 0.005)
        if len(left) < NAMES:
            left = np.concatenate([left, rng.permutation(gallery.ids)])
        chosen, left = left[:NAMES], left[NAMES:]
        texts, vectors, targets = lesson(chosen)
        z = run_by_length(tower, encode, texts)
        cc, warm = torch.from_numpy(chosen), scale.exp().clamp(max=100)
        losses = soft_cross_entropy(warm * z @ vectors.T + unknown, targets)
        back = functional.cross_entropy(warm * vectors[cc] @ z[:NAMES].T, torch.arange(NAMES))
        loss = losses.mean() + 0.3 * back + 0.7 * (1 - (z[:NAMES] * gallery.middle[cc]).sum(1)).mean()
        optimise.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(tower.parameters(), 2.0)
        optimise.step()
        average.update(tower)
        parts = losses.detach().split([NAMES, KEYWORDS, TAUGHT, GENERATED])
        seen.append([part.mean().item() for part in parts] + [back.item(), scale.exp().item()])
        if step % 25 == 0:
            names = ("name", "keyword", "taught", "shape", "back", "scale")
            mean = dict(zip(names, np.mean(seen[-25:], 0).round(3).tolist(), strict=True))
            print(step, f"{progress * minutes:.1f} min", mean, flush=True)
    torch.save(
        {"text": average.state, "tokens": encode.size, "steps": before + step, "scale": scale.item()}, WORK / "text.pt"
    )
    print("done:", before + step, "steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--image", default="image.pt")
    parser.add_argument("--views", type=int, default=4, help="augmented views of each drawing in the cache")
    parser.add_argument(
        "--resume", action="store_true", help="go on from text.pt, as after training the image tower further"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    train(options.minutes, options.seed, options.image, options.views, resume=options.resume)
