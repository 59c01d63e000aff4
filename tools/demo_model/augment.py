"""Augmentation of the training pictures: place, background, style, and what a JPEG does."""

from __future__ import annotations

import io
import re

import numpy as np
import torch
from common import SIZE
from PIL import Image
from torch import Tensor
from torch.nn import functional

# Mirrored, these would show something else.
ONE_WAY = re.compile(
    r"left|right|facing|clock|thirty|moon|waning|waxing|quarter|letter|text|arrow|button|keycap|abc|back|on!|hand|fist|finger|horse|sign"
)


def may_flip(concept: dict[str, str]) -> bool:
    """Tell whether a mirrored drawing still shows the concept."""
    return concept["group"] not in {"symbols", "flags"} and not ONE_WAY.search(concept["label"])


def backgrounds(count: int) -> Tensor:
    """Return float ``[n, 3, 64, 64]``: whites, plain colours, gradients and greys, some with soft noise."""
    kind = torch.rand(count)[:, None, None, None]
    corners = torch.rand(count, 3, 2, 2)
    plain = corners[:, :, :1, :1].expand(-1, -1, 2, 2)
    white = 1 - torch.rand(count, 1, 1, 1) * 0.08 * (torch.rand(count, 1, 1, 1) < 0.5)
    grey = (torch.rand(count, 1, 1, 1) < 0.5).float() * 0.9 + torch.rand(count, 1, 1, 1) * 0.1
    chosen = torch.where(kind < 0.45, white, torch.where(kind < 0.75, plain, torch.where(kind < 0.88, corners, grey)))
    wide = functional.interpolate(chosen.expand(count, 3, 2, 2), size=(SIZE, SIZE), mode="bilinear", align_corners=True)
    cells = int(np.random.default_rng().choice([8, 16, 32]))
    noise = functional.interpolate(torch.randn(count, 3, cells, cells), size=(SIZE, SIZE), mode="bilinear")
    return (wide + noise * (torch.rand(count, 1, 1, 1) < 0.25) * torch.rand(count, 1, 1, 1) * 0.25).clamp(0, 1)


def _matrices(flip: Tensor) -> Tensor:
    n = len(flip)
    zoom = torch.where(torch.rand(n) < 0.6, 1 / (torch.rand(n) * 0.25 + 0.82), 1 / (torch.rand(n) * 0.5 + 0.58))
    turn = (torch.rand(n) * 2 - 1) * (torch.rand(n) < 0.5) * 0.3
    stretch, side = torch.exp(torch.randn(n) * 0.06), torch.where((torch.rand(n) < 0.5) & flip, -1.0, 1.0)
    room = (zoom - 1).clamp(min=0.06)
    x, y = (torch.rand(n) * 2 - 1) * room, (torch.rand(n) * 2 - 1) * room
    top = torch.stack([zoom * stretch * torch.cos(turn) * side, -zoom * torch.sin(turn), x], 1)
    return torch.stack([top, torch.stack([zoom * torch.sin(turn) * side, zoom / stretch * torch.cos(turn), y], 1)], 1)


def outline(premultiplied: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Draw dark lines around and inside drawings, as outlined styles do; returns colour and alpha."""
    grown = functional.max_pool2d(alpha, 3, 1, 1)
    grey = (premultiplied + (1 - alpha)).mean(1, keepdim=True)
    edge = functional.max_pool2d(grey, 3, 1, 1) + functional.max_pool2d(-grey, 3, 1, 1)
    ink = torch.maximum(grown - alpha, ((edge - 0.12) * 4).clamp(0, 1) * alpha)
    wash = torch.where(torch.rand(len(alpha), 1, 1, 1) < 0.25, torch.rand(len(alpha), 1, 1, 1), torch.zeros(1))
    pale = premultiplied * (1 - wash) + alpha * wash
    return pale * (1 - ink), torch.maximum(alpha, grown)


def posterise(x: Tensor) -> Tensor:
    """Cut colours to a few levels, as flat styles do."""
    levels = torch.randint(2, 6, (len(x), 1, 1, 1)).float()
    return (x * levels).round() / levels


def place(rgba: Tensor, flip: Tensor) -> Tensor:
    """Put drawings uint8 ``[n, 72, 72, 4]`` onto backgrounds, moved and restyled: float ``[n, 3, 64, 64]``."""
    x = rgba.permute(0, 3, 1, 2).float() / 255
    x = torch.cat([x[:, :3] * x[:, 3:], x[:, 3:]], 1)
    n = len(x)
    x = functional.grid_sample(
        x, functional.affine_grid(_matrices(flip), [n, 4, SIZE, SIZE], align_corners=False), align_corners=False
    )
    colour, alpha = x[:, :3].contiguous(), x[:, 3:].contiguous()
    drawn, flat = slice(0, n // 7), slice(n // 7, n // 7 + n // 10)  # callers shuffle, so any part will do
    colour[drawn], alpha[drawn] = outline(colour[drawn], alpha[drawn])
    colour[flat] = posterise(colour[flat]) * alpha[flat]
    return colour + backgrounds(n) * (1 - alpha)


def _tint(x: Tensor) -> Tensor:
    n = len(x)

    def about_one(reach: float) -> Tensor:
        return 1 + (torch.rand(n, 1, 1, 1) * 2 - 1) * reach

    grey = x.mean(1, keepdim=True)
    x = grey + (x - grey) * about_one(0.3)  # saturation; no hue: colour words matter
    middle = x.mean((1, 2, 3), keepdim=True)
    return (middle + (x - middle) * about_one(0.25)) * about_one(0.15) + (torch.rand(n, 3, 1, 1) - 0.5) * 0.08


def _erase(x: Tensor) -> Tensor:
    """Cover a patch of every eighth picture, so that no single part decides."""
    for i in range(0, len(x), 8):
        side = int(torch.randint(10, 24, ()))
        top, left = (int(torch.randint(0, SIZE - side, ())) for _ in range(2))
        x[i, :, top : top + side, left : left + side] = torch.rand(3, 1, 1)
    return x


def finish(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Tint, blur, cover, add noise and JPEG marks; float ``[n, 3, 64, 64]`` to uint8 ``[n, 64, 64, 3]``."""
    n = len(x)
    x = _erase(_tint(x))
    blurred = rng.permutation(n)[: n // 5]
    soft = functional.avg_pool2d(x[blurred], 3, 1, 1, count_include_pad=False)
    x[blurred] = torch.lerp(x[blurred], soft, torch.rand(len(blurred), 1, 1, 1))
    x = x + torch.randn_like(x) * (torch.rand(n, 1, 1, 1) < 0.25) * torch.rand(n, 1, 1, 1) * 0.06
    out = (x.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    pixels = out.numpy()
    for i in rng.permutation(n)[: n // 8]:
        packed = io.BytesIO()
        Image.fromarray(pixels[i]).save(packed, "JPEG", quality=int(rng.integers(30, 90)))
        pixels[i] = np.asarray(Image.open(packed))
    return out
