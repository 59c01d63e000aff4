"""Places, the picture preparation and small file helpers that every script of the demo model shares."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = Path(os.environ.get("DEMO_WORK", ROOT / "build" / "demo_model"))
NPM = Path(os.environ.get("DEMO_NPM", WORK / "node_modules"))
BUNDLE = ROOT / "worker" / "clipfleet" / "models" / "demo"
PICTURES = ROOT / "examples" / "pictures"

SIZE = 64  # px, what the image tower sees
RENDER = 72  # px, what training pictures are stored at, so that scaling has something to work with
DIMENSION = 256
CONTEXT = 32

# Name -> how often it is drawn for a concept that it has: Fluent's four renderings are one design.
TRAIN_SETS = {
    "noto": 1.0,
    "noto-v1": 1.0,
    "noto-flags": 1.0,
    "fxemoji": 1.0,
    "fluent-emoji-flat": 0.7,
    "fluent-emoji": 0.5,
    "fluent-3d": 0.7,
    "fluent-contrast": 0.2,
    "flag-icons": 1.0,
}
HELD_OUT_SETS = ("twemoji", "emojione", "openmoji")


def key_of(hexcode: str) -> str:
    """Return code points without the variation selector and the joiner: the key that all sets share."""
    return re.sub(r"-(FE0F|200D)(?=-|$)", "", hexcode.upper())


def squeeze(name: str) -> str:
    """Return a name with everything but letters and digits dropped."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def read_json(path: Path) -> Any:
    """Read one JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Write one JSON file, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")


def prepare(picture: Image.Image) -> np.ndarray:
    """Return what a worker feeds the image tower: uint8 ``[64, 64, 3]``, alpha composited on white first."""
    rgba = picture.convert("RGBA")
    flat = Image.alpha_composite(Image.new("RGBA", rgba.size, (255, 255, 255, 255)), rgba).convert("RGB")
    return np.asarray(flat.resize((SIZE, SIZE), Image.Resampling.BICUBIC))
