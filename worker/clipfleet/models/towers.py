"""The two towers as they are exported and as torch runs them: normalisation inside, unit vectors out.

The model may have weights of another precision; pictures are normalised, and vectors brought to unit length, in fp32.

Imports torch: only the exporter and the torch provider import this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from open_clip.transformer import text_global_pool
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from clipfleet.models.config import ImageConfig

__all__ = ["ImageTower", "TextTower", "cuts_to_longest", "text_parts"]


class ImageTower(nn.Module):  # type: ignore[misc]  # torch ships no types that are read here
    """uint8 [n, H, W, 3] to float32 [n, d]."""

    def __init__(self, model: Any, image: ImageConfig) -> None:
        super().__init__()
        self.model = model
        mean, std = torch.tensor(image.mean), torch.tensor(image.std)
        self.register_buffer("scale", (1 / (255 * std)).reshape(1, 3, 1, 1))
        self.register_buffer("shift", (-mean / std).reshape(1, 3, 1, 1))
        self.precision = next(model.parameters()).dtype

    def forward(self, pixels: Any) -> Any:
        """Normalise as the model's preprocessing would, then encode."""
        channels_first = pixels.permute(0, 3, 1, 2).to(torch.float32)
        normalised = channels_first * self.scale + self.shift
        features = self.model.encode_image(normalised.to(self.precision))
        return functional.normalize(features.to(torch.float32), dim=-1)


class TextTower(nn.Module):  # type: ignore[misc]  # torch ships no types that are read here
    """int64 [n, L] to float32 [n, d]; any L up to the context where the tower allows it, else all of it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.cuts = cuts_to_longest(model)

    def forward(self, ids: Any) -> Any:
        """Encode ids, on as many positions as they have."""
        features = self._short(ids) if self.cuts else self.model.encode_text(ids)
        return functional.normalize(features.to(torch.float32), dim=-1)

    def _short(self, ids: Any) -> Any:
        # open_clip's encode_text adds all of the positions and of the mask, so it takes full rows only.
        tower, pool_type, end_id = text_parts(self.model)
        length = ids.shape[1]
        states = tower.token_embedding(ids) + tower.positional_embedding[:length]
        states = tower.transformer(states, attn_mask=tower.attn_mask[:length, :length])
        pooled = text_global_pool(tower.ln_final(states), ids, pool_type, eos_token_id=end_id)
        if isinstance(tower.text_projection, nn.Linear):
            return tower.text_projection(pooled)
        return pooled if tower.text_projection is None else pooled @ tower.text_projection


def text_parts(model: Any) -> tuple[Any, str, int | None]:
    """The module that holds the text tower, its pooling in open_clip's words, and its end-of-text id."""
    tower = getattr(model, "text", model)
    if tower is model:
        return model, model.text_pool_type, model.text_eos_id
    return tower, getattr(tower, "pool_type", ""), getattr(tower, "eos_id", None)


def cuts_to_longest(model: Any) -> bool:
    """Whether a batch may be cut to its longest text without changing a vector.

    It may where a position sees only those before it and the vector is taken at the end of the text: not in SigLIP
    (sees all, takes the last position), CoCa (appends a class token) or a Hugging Face tower.
    """
    tower, pool_type, _ = text_parts(model)
    causal = getattr(tower, "attn_mask", None) is not None
    plain = getattr(tower, "cls_emb", None) is None and not getattr(tower, "use_pad_mask", False)
    return causal and plain and pool_type in {"argmax", "eos"}
