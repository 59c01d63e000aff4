"""Render every drawing set to pixels, keyed by concept. Writes ``drawings.npz`` and ``held_out.npz``.

``drawings.npz`` (training): ``pixels`` uint8 ``[n, 72, 72, 4]``, ``concept``, ``set`` and ``skin``. ``held_out.npz``
(evaluation only): ``pixels`` uint8 ``[n, 64, 64, 3]`` prepared as a worker does from a 128 px picture.
"""

from __future__ import annotations

import io
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import resvg
from common import HELD_OUT_SETS, NPM, RENDER, TRAIN_SETS, WORK, key_of, prepare, read_json, squeeze
from PIL import Image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ICONIFY = NPM / "@iconify-json"
NAMED_BY = ("fluent-emoji-flat", "noto", "twemoji", "openmoji")  # their chars.json give names for sets without one
NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
OPTIONS = resvg.usvg.Options.default()
# Colour is what a one-colour drawing cannot show.
COLOURS = {
    "red",
    "orange",
    "yellow",
    "green",
    "blue",
    "purple",
    "brown",
    "black",
    "white",
    "grey",
    "pink",
    "gray",
    "light",
}


def draw(svg: str) -> Image.Image:
    """Render an SVG at its own size; resvg's binding takes (1, 0, 0, 0, 1, 0) for the identity."""
    tree = resvg.usvg.Tree.from_str(svg, OPTIONS)
    raw = bytes(resvg.render(tree, (1, 0, 0, 0, 1, 0)))
    if raw[:4] == b"\x89PNG":
        return Image.open(io.BytesIO(raw)).convert("RGBA")
    return Image.frombytes("RGBA", tree.int_size(), raw)


class Keys:
    """Which concept a code point sequence, an icon name or a label stands for."""

    def __init__(self, concepts: list[dict[str, Any]]) -> None:
        self.concept = {c["key"]: (i, False) for i, c in enumerate(concepts)}
        for i, c in enumerate(concepts):
            for skin in c["skins"]:
                self.concept.setdefault(skin, (i, True))
        self.label = {squeeze(c["label"]): c["key"] for c in reversed(concepts)}
        self.alias = {squeeze(a): c["key"] for c in reversed(concepts) for a in c["aliases"]}
        self.name: dict[str, str] = {}
        for name in NAMED_BY:
            for icon, key in self.own_names(name).items():
                self.name.setdefault(icon, key)

    def own_names(self, name: str) -> dict[str, str]:
        """Return icon name -> key, from the set's own table of code points."""
        pairs = ((icon, key_of(code)) for code, icon in read_json(ICONIFY / name / "chars.json").items())
        return {icon: key for icon, key in pairs if key in self.concept}

    def loosely(self, icon: str, *, aliases: bool) -> str | None:
        """Return the key of an icon from a set without code points, by its name; by shortcodes if asked."""
        plain = squeeze(icon)
        return self.name.get(icon) or self.label.get(plain) or (self.alias.get(plain) if aliases else None)


def iconify(name: str, keys: Keys, size: int) -> Iterator[tuple[str, Image.Image]]:
    """Yield (key, picture) of an Iconify set."""
    data = read_json(ICONIFY / name / "icons.json")
    own = keys.own_names(name)
    for icon, body in data["icons"].items():
        key = own.get(icon) or (None if own else keys.loosely(icon, aliases=name == "fxemoji"))
        if key is None:
            continue
        box = [
            body.get("left", 0),
            body.get("top", 0),
            body.get("width", data.get("width", 16)),
            body.get("height", data.get("height", 16)),
        ]
        head = f'<svg {NAMESPACES} width="{size}" height="{size}"'
        try:
            yield key, draw(f'{head} viewBox="{" ".join(map(str, box))}">{body["body"]}</svg>')
        except (ValueError, OSError, RuntimeError) as error:  # one broken drawing must not cost the set
            print("left out", name, icon, str(error)[:80])


def three_d(size: int) -> Iterator[tuple[str, Image.Image]]:
    """Yield (key, picture) of Fluent's shaded drawings."""
    for path in sorted((NPM / "@lobehub" / "fluent-emoji-3d" / "assets").glob("*.webp")):
        yield key_of(path.stem), Image.open(path).convert("RGBA").resize((size, size), Image.Resampling.LANCZOS)


def flags(size: int) -> Iterator[tuple[str, Image.Image]]:
    """Yield (key, picture) of flat 4:3 flags, centred in a square."""
    for path in sorted((NPM / "flag-icons" / "flags" / "4x3").glob("??.svg")):
        code = "-".join(f"{0x1F1E6 + ord(letter) - ord('a'):X}" for letter in path.stem)
        svg = path.read_text(encoding="utf-8").replace("<svg ", f'<svg width="{size}" height="{size * 3 // 4}" ', 1)
        square = Image.new("RGBA", (size, size))
        square.paste(draw(svg), (0, size // 8))
        yield code, square


def waving(size: int) -> Iterator[tuple[str, Image.Image]]:
    """Yield (key, picture) of Noto's waving flags, which Iconify's copy of Noto lacks."""
    for path in sorted((NPM / "emoji-datasource-google" / "img" / "google" / "64").glob("1f1??-1f1??.png")):
        yield key_of(path.stem), Image.open(path).convert("RGBA").resize((size, size), Image.Resampling.LANCZOS)


def pictures(name: str, keys: Keys, size: int) -> Iterator[tuple[str, Image.Image]]:
    """Yield (key, picture) of any set by our name for it."""
    if name == "fluent-3d":
        return three_d(size)
    if name == "flag-icons":
        return flags(size)
    if name == "noto-flags":
        return waving(size)
    return iconify("fluent-emoji-high-contrast" if name == "fluent-contrast" else name, keys, size)


def gather(names: tuple[str, ...], concepts: list[dict[str, Any]], size: int, *, flat: bool, path: Path) -> None:
    """Render the named sets and store them."""
    keys, rows, began = Keys(concepts), [], time.monotonic()
    for number, name in enumerate(names):
        before = len(rows)
        for key, picture in pictures(name, keys, size):
            concept, skin = keys.concept.get(key, (-1, False))
            pixels = np.asarray(picture)
            if concept < 0 or not pixels[..., 3].any() or (flat and skin):
                continue
            if name == "fluent-3d" and concepts[concept]["group"] == "flags":
                continue  # Fluent has no country flags; this package fills in another set's
            if name == "fluent-contrast" and (skin or COLOURS & set(concepts[concept]["label"].split())):
                continue
            rows.append((prepare(picture) if flat else pixels, concept, number, skin))
        plain = len({r[1] for r in rows[before:] if not r[3]})
        print(
            f"{name}: {len(rows) - before} drawings of {plain} concepts, {time.monotonic() - began:.0f} s", flush=True
        )
    columns = list(zip(*rows, strict=True))
    np.savez(
        path,
        pixels=np.stack(columns[0]),
        concept=np.array(columns[1]),
        set=np.array(columns[2]),
        skin=np.array(columns[3]),
    )


if __name__ == "__main__":
    known = read_json(WORK / "concepts.json")
    gather(HELD_OUT_SETS, known, 128, flat=True, path=WORK / "held_out.npz")
    gather(tuple(TRAIN_SETS), known, RENDER, flat=False, path=WORK / "drawings.npz")
