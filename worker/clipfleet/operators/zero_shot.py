"""``classify``: which of some labels a picture's vector is closest to, without training (zero-shot).

Source: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision", section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from clipfleet.operators._values import as_vector, unit
from clipfleet.operators.operator import Operator, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from clipfleet.operators.operator import LoadedModel

__all__ = ["Classify"]

# As many texts at a time as a CPU runs well; it happens once.
_BATCH = 16


@dataclass(frozen=True)
class Classify(Operator):
    """Score labels by a vector of ``clip_image``, best first.

    Attributes:
        labels: the classes.
        template: how a label becomes a text, ``{}`` standing for it; of several the vectors' mean is taken.
        limit: how many are kept; None: all.
        scale: the sharpness: what cosines are multiplied by before they become probabilities. CLIP's own models
            learned 100.
        model: whose texts; None: the pipeline's. The one that made the vectors.
    """

    name = "classify"
    task = "vector -> list of (label, score)"
    of_model = True

    labels: tuple[str, ...]
    template: str | tuple[str, ...] = "a photo of {}"
    limit: int | None = None
    scale: float = 100.0
    model: str | None = None

    def __post_init__(self) -> None:
        for what in ("labels", "template"):
            given = getattr(self, what)
            object.__setattr__(self, what, (given,) if isinstance(given, str) else tuple(given))
        if not self.labels or not all(str(label).strip() for label in self.labels):
            raise ValueError("labels are at least one text, and none of them is blank")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("a label is given twice")
        if not self.template or any("{}" not in template for template in self.template):
            raise ValueError("a template holds {} where the label goes")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1, not {self.limit}")
        if not self.scale > 0:
            raise ValueError(f"scale must be above 0, not {self.scale}")

    def open(self, place: Place) -> Callable[..., Any]:
        """Numbers [d] to a list of (label, probability); all of them add up to 1, before ``limit``.

        The texts are embedded here, once. The function raises ``bad_shape`` for a vector of another dimension, zeros,
        and what is not finite.

        Raises:
            ValueError: a text is blank once it is cleaned, or too long.
            ModelError: the model cannot be had.
        """
        model = place.load(self.model)
        texts = self._embed(model)
        labels, limit, scale = self.labels, self.limit, self.scale
        dimension = model.runtime.bundle.config.dimension

        def classify(vector: Any) -> list[tuple[str, float]]:
            logits = scale * (texts @ unit(as_vector(vector, dimension)).astype(np.float64))
            # The largest is taken off first: exp of a hundred is no small number.
            likely = np.exp(logits - logits.max())
            likely /= likely.sum()
            best = np.argsort(-likely, kind="stable")[:limit]
            return [(labels[number], float(likely[number])) for number in best]

        return classify

    def _embed(self, model: LoadedModel) -> NDArray[np.float64]:
        texts = [template.replace("{}", label) for label in self.labels for template in self.template]
        ids = []
        for text in texts:
            try:
                ids.append(model.tokenize(text)[0])
            except Exception as error:
                raise ValueError(f"the text {text!r} cannot be embedded: {error}") from error
        parts: Sequence[NDArray[np.float32]] = [
            model.runtime.encode_texts(ids[start : start + _BATCH]) for start in range(0, len(ids), _BATCH)
        ]
        each = np.concatenate(parts).astype(np.float64).reshape(len(self.labels), len(self.template), -1)
        return np.stack([unit(mean).astype(np.float64) for mean in each.mean(axis=1)])


classify = Classify
