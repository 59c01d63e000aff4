"""The two towers. 3.9 M parameters for pictures, some 2.5 M for words (most of them the vocabulary's)."""

from __future__ import annotations

import torch
from common import CONTEXT, DIMENSION, SIZE
from torch import Tensor, nn
from torch.nn import functional

PAD = 0


class Residual(nn.Module):
    """Two 3x3 convolutions around a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.body(x))


class Block(nn.Module):
    """A pre-norm transformer block; starts as the identity when ``quiet``."""

    def __init__(self, width: int, heads: int, *, quiet: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.norm_in, self.norm_mid = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)
        if quiet:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.narrow.weight)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            self.qkv(self.norm_in(x))
            .reshape(n, length, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        # Written out: torch's fused kernel takes three times as long backwards on sixteen positions.
        weights = q @ k.transpose(2, 3) * (width // self.heads) ** -0.5
        seen = torch.softmax(weights if mask is None else weights + mask, -1) @ v
        x = x + self.drop(self.out(seen.transpose(1, 2).reshape(n, length, width)))
        return x + self.drop(self.narrow(functional.gelu(self.wide(self.norm_mid(x)))))


class ImageTower(nn.Module):
    """Convolutions down to 4x4, two transformer blocks, mean pool.

    Takes uint8 ``[n, height, width, 3]`` and gives float32 unit vectors ``[n, 256]``. Smaller pictures (32, 48 px) work
    too, with the positions interpolated: training begins there.
    """

    mean = 127.5 / 255
    std = 64 / 255

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256), residuals: tuple[int, ...] = (0, 1, 2, 1)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for width, count in zip(widths, residuals, strict=True):
            layers += [nn.Conv2d(before, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            layers += [Residual(width) for _ in range(count)]
            before = width
        self.stem = nn.Sequential(*layers)
        self.grid = SIZE // 2 ** len(widths)
        self.position = nn.Parameter(torch.randn(1, self.grid**2, before) * 0.02)
        self.blocks = nn.ModuleList(Block(before, 4, quiet=True) for _ in range(2))
        self.norm, self.project = nn.LayerNorm(before), nn.Linear(before, DIMENSION, bias=False)

    def positions(self, grid: int) -> Tensor:
        if grid == self.grid:
            return self.position
        square = self.position.transpose(1, 2).reshape(1, -1, self.grid, self.grid)
        return (
            functional.interpolate(square, size=(grid, grid), mode="bilinear", align_corners=False)
            .flatten(2)
            .transpose(1, 2)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.stem((pixels.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.std)
        x = x.flatten(2).transpose(1, 2) + self.positions(x.shape[2])
        for block in self.blocks:
            x = block(x)
        return functional.normalize(self.project(self.norm(x.mean(1))).float(), dim=-1)


class TextTower(nn.Module):
    """Three transformer blocks over subwords, masked mean pool.

    Takes int64 ids ``[n, length]`` padded with 0 and gives float32 unit vectors ``[n, 256]``; padding changes nothing,
    since it is masked in attention and left out of the mean.
    """

    def __init__(self, vocabulary: int, width: int = 192, layers: int = 3, heads: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.position = nn.Parameter(torch.randn(1, CONTEXT, width) * 0.01)
        self.blocks = nn.ModuleList(Block(width, heads, quiet=True, dropout=0.05) for _ in range(layers))
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, DIMENSION, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        real = ids.ne(PAD)
        x = self.embed(ids) + self.position[:, : ids.shape[1]]
        # -1e4 and not -inf: a softmax gives exactly 0 for both, and this one survives half precision.
        mask = (~real[:, None, None, :]).to(x.dtype) * -1e4
        for block in self.blocks:
            x = block(x, mask)
        weight = real.to(x.dtype)[..., None]
        # Pooled before the norm: a word's length in the residual stream says how much it counts.
        pooled = (x * weight).sum(1) / weight.sum(1)
        return functional.normalize(self.project(self.norm(pooled)).float(), dim=-1)


class Average:
    """An exponential moving average of a module's state: what is evaluated and shipped."""

    def __init__(self, module: nn.Module, keep: float = 0.995) -> None:
        self.keep, self.step = keep, 0
        self.state = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        self.step += 1
        keep = min(self.keep, self.step / (self.step + 10))
        for name, tensor in module.state_dict().items():
            if tensor.dtype.is_floating_point:
                self.state[name].lerp_(tensor, 1 - keep)
            else:
                self.state[name].copy_(tensor)


def optimiser(module: nn.Module, rate: float, decay: float = 0.05) -> torch.optim.AdamW:
    """Return AdamW with weight decay on matrices alone."""
    weights = [p for p in module.parameters() if p.ndim > 1]
    rest = [p for p in module.parameters() if p.ndim <= 1]
    return torch.optim.AdamW(
        [{"params": weights, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}], lr=rate, betas=(0.9, 0.98)
    )


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of each row against a distribution (rows of ``targets`` need not sum to 1)."""
    share = targets / targets.sum(1, keepdim=True)
    return -(share * functional.log_softmax(logits, 1)).sum(1)
