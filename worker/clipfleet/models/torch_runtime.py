"""Run a model by torch: providers ``torch`` and ``torch-bf16``, for models exported from open_clip on this machine.

The bundle's graphs are not used: the model is built again from what ``source`` in ``model.json`` says, and the
golden vectors decide whether it is the same. ``torch-bf16`` converts the weights to bfloat16, which a CPU with such
units multiplies several times quicker; normalising stays in fp32. It never goes through autocast: on a CPU that is
slower than fp32 at some batch sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from clipfleet.models.errors import DeviceUnavailable, ExtraMissing
from clipfleet.models.names import parse_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clipfleet.models.bundle import Bundle
    from clipfleet.models.runtime import Provider

__all__ = ["open_engine"]


class TorchEngine:
    """The two towers as torch modules."""

    def __init__(self, image: Any, text: Any, device: Any) -> None:
        self._image = image
        self._text = text
        self._device = device

    def images(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """uint8 [n, H, W, 3] to float32 [n, d]."""
        return self._call(self._image, pixels)

    def texts(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """int64 [n, L] to float32 [n, d]."""
        return self._call(self._text, ids)

    def close(self) -> None:
        """Drop the modules and hand the device's cached memory back."""
        import torch  # noqa: PLC0415  imported by then

        self._image = self._text = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _call(self, tower: Any, batch: NDArray[Any]) -> NDArray[np.float32]:
        import torch  # noqa: PLC0415  imported by then

        with torch.inference_mode():
            vectors = tower(torch.from_numpy(batch).to(self._device))
        return np.asarray(vectors.cpu().numpy(), dtype=np.float32)


def open_engine(bundle: Bundle, *, provider: Provider, device: str, threads: int) -> TorchEngine:
    """Build the model again and move it to the device.

    Raises:
        ExtraMissing: torch or open_clip is not installed.
        DeviceUnavailable: torch sees no such device, or the model did not come from open_clip.
        ModelNotFound: its weights are no longer on this machine.
    """
    record = bundle.config.source
    if "name" not in record or "preprocess" not in record:
        raise DeviceUnavailable(f"{bundle.config.name} was not exported from open_clip, so {provider} has no model")
    try:
        import torch  # noqa: PLC0415  as late as possible: a worker with an exported model needs none

        from clipfleet.models.open_clip_source import load_source  # noqa: PLC0415  imports torch
        from clipfleet.models.towers import ImageTower, TextTower  # noqa: PLC0415  imports torch
    except ImportError as error:
        raise ExtraMissing(f'{error.name} is not installed: pip install "clipfleet[torch]"') from error
    place = torch.device(device)
    if place.type == "cuda" and place.index >= torch.cuda.device_count():
        raise DeviceUnavailable(
            f"torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices (built for CUDA "
            f"{torch.version.cuda})"
        )
    if place.type == "cpu":
        torch.set_num_threads(threads)
    source = load_source(parse_name(record["name"]), record["preprocess"])
    model = source.model.to(torch.bfloat16) if provider == "torch-bf16" else source.model
    image = ImageTower(model, bundle.config.image).to(place).eval()
    return TorchEngine(image, TextTower(model).to(place).eval(), place)
