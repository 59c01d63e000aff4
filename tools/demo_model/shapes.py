"""Generated pictures of coloured shapes, alone, counted, sized and placed, each with its captions.

Every eighth combination (by the CRC of its canonical name) is kept from training, so that the tables can say how
well colour, shape, number and place are put together anew. Writes ``shapes.npz`` and ``shapes.json``.
"""

from __future__ import annotations

import math
import re
import zlib
from dataclasses import dataclass

import numpy as np
from common import SIZE, WORK, write_json
from PIL import Image, ImageDraw

COLOURS = {
    "red": (220, 30, 35),
    "orange": (245, 135, 20),
    "yellow": (250, 215, 30),
    "green": (35, 160, 60),
    "blue": (30, 85, 220),
    "purple": (135, 45, 180),
    "pink": (245, 130, 185),
    "brown": (125, 75, 40),
    "black": (20, 20, 20),
    "white": (250, 250, 250),
    "gray": (135, 135, 135),
    "cyan": (40, 200, 220),
}
SHAPES = (
    "circle",
    "square",
    "triangle",
    "star",
    "rectangle",
    "heart",
    "pentagon",
    "hexagon",
    "diamond",
    "cross",
    "ring",
    "oval",
)
NUMBERS = {2: "two", 3: "three", 4: "four"}
OPPOSITE = {"above": "below", "below": "above", "left": "right", "right": "left"}
CANVAS = SIZE * 2
Colour = tuple[int, ...]


@dataclass
class Brush:
    """A canvas with its random source."""

    draw: ImageDraw.ImageDraw
    background: Colour
    rng: np.random.Generator

    def ring_of(
        self, corners: int, centre: tuple[float, float], radius: float, turn: float = -math.pi / 2
    ) -> list[tuple[float, float]]:
        """Return the corners of a regular polygon."""
        angles = [turn + 2 * math.pi * i / corners for i in range(corners)]
        return [(centre[0] + radius * math.cos(a), centre[1] + radius * math.sin(a)) for a in angles]

    def paint(self, shape: str, centre: tuple[float, float], r: float, colour: Colour) -> None:
        """Draw one shape of half-size ``r`` px."""
        (x, y), d = centre, self.draw
        if shape in {"circle", "ring"}:
            d.ellipse([x - r, y - r, x + r, y + r], fill=colour)
            if shape == "ring":
                q = r * 0.55
                d.ellipse([x - q, y - q, x + q, y + q], fill=self.background)
        elif shape == "oval":
            d.ellipse([x - r, y - r * 0.55, x + r, y + r * 0.55], fill=colour)
        elif shape in {"square", "rectangle"}:
            w, h = (r * 0.85, r * 0.85) if shape == "square" else (r, r * 0.55)
            d.rectangle([x - w, y - h, x + w, y + h], fill=colour)
        elif shape == "cross":
            q = r * 0.33
            d.rectangle([x - q, y - r, x + q, y + r], fill=colour)
            d.rectangle([x - r, y - q, x + r, y + q], fill=colour)
        elif shape == "diamond":
            d.polygon([(x, y - r), (x + r * 0.75, y), (x, y + r), (x - r * 0.75, y)], fill=colour)
        else:
            d.polygon(self.outline(shape, centre, r), fill=colour)

    def outline(self, shape: str, centre: tuple[float, float], r: float) -> list[tuple[float, float]]:
        """Return the corners of a star, a heart or a regular polygon."""
        if shape == "star":
            outer, inner = self.ring_of(5, centre, r), self.ring_of(5, centre, r * 0.42, -math.pi / 2 + math.pi / 5)
            return [point for pair in zip(outer, inner, strict=True) for point in pair]
        if shape == "heart":
            t = np.linspace(0, 2 * math.pi, 40)
            x = 16 * np.sin(t) ** 3
            y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
            return [(centre[0] + a * r / 16, centre[1] - b * r / 16) for a, b in zip(x, y, strict=True)]
        return self.ring_of({"triangle": 3, "pentagon": 5, "hexagon": 6}[shape], centre, r)


def plural(shape: str) -> str:
    """Return the plural of a shape's name."""
    return shape + ("es" if shape.endswith("s") else "s")


def _jitter(colour: Colour, rng: np.random.Generator) -> Colour:
    return tuple(int(np.clip(c + rng.normal(0, 10), 0, 255)) for c in colour)


def _alone(b: Brush, colour: str, shape: str, behind: str | None) -> tuple[list[str], str]:
    size = str(b.rng.choice(["", "", "small", "large"]))
    low, high = {"": (0.22, 0.45), "small": (0.08, 0.14), "large": (0.40, 0.47)}[size]
    r = b.rng.uniform(low, high) * CANVAS
    b.paint(shape, (b.rng.uniform(r, CANVAS - r), b.rng.uniform(r, CANVAS - r)), r, _jitter(COLOURS[colour], b.rng))
    name = f"{size} {colour} {shape}".strip()
    captions = [f"a {name}", name] + ([f"a {name} on a {behind} background"] if behind else [])
    if size:
        captions.append(f"a {'tiny' if size == 'small' else 'big'} {colour} {shape}")
    return captions, name


def _counted(b: Brush, colour: str, shape: str) -> tuple[list[str], str]:
    number = int(b.rng.choice([2, 3, 4]))
    cells = b.rng.permutation(4)[:number]
    ink, r = _jitter(COLOURS[colour], b.rng), b.rng.uniform(0.13, 0.21) * CANVAS
    for cell in cells:
        x, y = (0.27 + 0.46 * (cell % 2)) * CANVAS, (0.27 + 0.46 * (cell // 2)) * CANVAS
        b.paint(shape, (x + b.rng.uniform(-3, 3), y + b.rng.uniform(-3, 3)), r, ink)
    name = f"{NUMBERS[number]} {colour} {plural(shape)}"
    return [name, f"{number} {colour} {plural(shape)}"], name


def _placed(b: Brush, first: tuple[str, str], second: tuple[str, str]) -> tuple[list[str], str]:
    where, r = str(b.rng.choice(list(OPPOSITE))), b.rng.uniform(0.15, 0.21) * CANVAS
    near, far = (0.27, 0.73) if where in {"above", "left"} else (0.73, 0.27)
    for (colour, shape), along in ((first, near), (second, far)):
        spot = (0.5, along) if where in {"above", "below"} else (along, 0.5)
        x, y = (s * CANVAS + b.rng.uniform(-6, 6) for s in spot)
        b.paint(shape, (x, y), r, _jitter(COLOURS[colour], b.rng))
    one, two = (f"a {colour} {shape}" for colour, shape in (first, second))
    words = {"above": "above", "below": "below", "left": "to the left of", "right": "to the right of"}
    captions = [f"{one} {words[where]} {two}", f"{two} {words[OPPOSITE[where]]} {one}"]
    if where in {"above", "below"}:
        captions.append(f"{one} {'over' if where == 'above' else 'under'} {two}")
    return captions, min(f"{one}|{where}|{two}", f"{two}|{OPPOSITE[where]}|{one}")


def picture(rng: np.random.Generator) -> tuple[np.ndarray, list[str], str]:
    """Return one picture uint8 ``[64, 64, 3]``, its captions and its canonical name."""
    colours = [str(c) for c in rng.choice(list(COLOURS), 3, replace=False)]
    shapes = [str(s) for s in rng.choice(SHAPES, 2)]
    behind = colours[2] if rng.random() < 0.4 else "white" if "white" not in colours[:2] else "gray"
    if behind in colours[:2]:
        behind = colours[2]
    background = _jitter(COLOURS[behind], rng)
    image = Image.new("RGB", (CANVAS, CANVAS), background)
    brush = Brush(ImageDraw.Draw(image), background, rng)
    kind = rng.random()
    if kind < 0.5:
        captions, name = _alone(brush, colours[0], shapes[0], behind)
    elif kind < 0.7:
        captions, name = _counted(brush, colours[0], shapes[0])
    else:
        captions, name = _placed(brush, (colours[0], shapes[0]), (colours[1], shapes[1]))
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BOX)), captions, name


def attributes(name: str) -> list[str]:
    """Return what a picture shows, part by part: the classes that the image tower learns from it."""
    placed = re.fullmatch(r"a (\w+) (\w+)\|(\w+)\|a (\w+) (\w+)", name)
    if placed:
        c1, s1, where, c2, s2 = placed.groups()
        other = OPPOSITE[where]
        axis = "upright" if where in {"above", "below"} else "level"
        sides = [f"{where}:{c1}", f"{where}:{s1}", f"{other}:{c2}", f"{other}:{s2}"]
        return [c1, s1, c2, s2, f"{c1} {s1}", f"{c2} {s2}", axis, *sides]
    words = name.split()
    if words[0] in NUMBERS.values():
        shape = next(s for s in SHAPES if plural(s) == words[2])
        return [words[0], words[1], shape, f"{words[1]} {shape}", f"{words[0]} {shape}"]
    return [*words, f"{words[-2]} {words[-1]}", "one"]


def pool(count: int, seed: int, *, kept: bool) -> tuple[np.ndarray, list[list[str]], list[str]]:
    """Return ``count`` pictures; ``kept`` picks the combinations kept from training, each once."""
    rng, rows, seen = np.random.default_rng(seed), [], set()
    while len(rows) < count:
        row = picture(rng)
        if (zlib.crc32(row[2].encode()) % 8 == 0) != kept or (kept and row[2] in seen):
            continue
        seen.add(row[2])
        rows.append(row)
    pixels, captions, names = zip(*rows, strict=True)
    return np.stack(pixels), list(captions), list(names)


if __name__ == "__main__":
    train, test = pool(10_000, 1, kept=False), pool(600, 2, kept=True)
    np.savez(WORK / "shapes.npz", train=train[0], test=test[0])
    write_json(WORK / "shapes.json", {"train": train[1:], "test": test[1:]})
    print(len(train[1]), "pictures to train on,", len(test[1]), "kept apart")
