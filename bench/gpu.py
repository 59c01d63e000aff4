"""Pictures a second on a GPU: each provider against the roofline and against plain torch. Needs CUDA and torch.

python -m bench.gpu [--models ViT-B-32/random,ViT-L-14/random] [--device cuda:0] [--quick]

The roofline is what the device multiplies in half precision, measured here with large matrices, over what the image
tower multiplies for one picture, counted here by torch. No figure counts unless the vectors agree with fp32 on the
CPU to a cosine of 0.999. ``--device cpu`` tries the program itself where there is no GPU; its figures mean nothing.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from bench.clip_fleet import WORKER, fleets
from bench.clip_work import (
    carry_out,
)
from bench.pictures import jpeg
from bench.pipelines import DIFFERENT
from bench.results import Figure
from bench.stats import ratios
from clipfleet.models import ModelError, open_runtime, parse_name, resolve_model
from clipfleet.models.runtime import lowest_cosine
from clipfleet.operators.image import prepare_image
from clipfleet.producer import requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.models.bundle import Bundle
    from clipfleet.producer.requests import NewRequest

UNIT, AGREES = "pictures/s", 0.999
TARGET_PLAIN = ">= 5"
COMPARED = 16
SIDE, SHORT_SIDE = 8192, 1024  # of the matrices whose product tells the device's rate

MODELS = "ViT-B-32/random,ViT-L-14/random"


def run(
    *,
    models: str = MODELS,
    device: str = "cuda:0",
    rounds: int = 5,
    quick: bool = False,
) -> list[Figure]:
    """Measure; ``quick``: fewer rounds, batch sizes and pictures."""
    missing = [name for name in ("torch", "open_clip") if importlib.util.find_spec(name) is None]
    if missing:
        return [Figure("GPU", why=f"{', '.join(missing)} is not installed here")]
    import torch

    if device != "cpu" and not torch.cuda.is_available():
        return [Figure("GPU", why=f"torch {torch.__version__} sees no CUDA device")]
    rounds = min(rounds, 3) if quick else rounds
    what = "the CPU, to try the program" if device == "cpu" else torch.cuda.get_device_name(device)
    rate = multiplied(device, SHORT_SIDE if device == "cpu" or quick else SIDE, rounds)
    made = [Figure(f"matrix products in half precision on {what}", tuple(one / 1e12 for one in rate), "TFLOP/s")]
    for model in models.split(","):
        made += _of_model(model, device, statistics.median(rate), rounds, (8,) if quick else (1, 16, 64, 256))
    return made


def multiplied(device: str, side: int, rounds: int) -> list[float]:
    """FLOP/s of square half precision products, round by round."""
    import torch

    kind = torch.bfloat16 if device == "cpu" else torch.float16
    left, right = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
    left @ right  # libraries choose their kernels
    times = 4 if device == "cpu" else 20
    return [times * 2 * side**3 / timed(device, lambda: [left @ right for _ in range(times)]) for _ in range(rounds)]


def timed(device: str, work: Callable[[], Any]) -> float:
    """Seconds until the device is done with it."""
    import torch

    wait: Callable[[], None] = (lambda: None) if device == "cpu" else (lambda: torch.cuda.synchronize(device))
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def flops(model: Any, size: tuple[int, int]) -> int:
    """What the image tower multiplies and adds for one picture, a product with its sum as two."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    fast = torch.backends.mha.get_fastpath_enabled()
    # In its fused form an attention is one call, of which the counter knows nothing: a third of a ViT.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            model.encode_image(torch.zeros(1, 3, *size))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops())


def _of_model(name: str, device: str, rate: float, rounds: int, batches: tuple[int, ...]) -> list[Figure]:
    from clipfleet.models.open_clip_source import load_source

    bundle = resolve_model(name)
    source = load_source(parse_name(name)).model.eval()
    each = flops(source, bundle.config.image.size)
    made = [Figure(f"{name}: roofline", (rate / each,), UNIT, note=f"{each / 1e9:.2f} GFLOP a picture")]
    pictures = [jpeg(number) for number in range(DIFFERENT)]
    pixels = np.stack([prepare_image(one, bundle.config.image) for one in pictures])
    reference = open_runtime(bundle, providers=["cpu"])
    known = reference.encode_images(pixels[:COMPARED])
    reference.close()
    plain = _plain_torch(source, bundle, device, pixels, known, rounds, batches)
    made.append(plain)
    kinds = ("cpu", "torch", "torch-bf16") if device == "cpu" else ("tensorrt", "cuda", "torch", "torch-bf16")
    for provider in kinds:
        found = _provider(name, bundle, provider, device, pixels, known, rounds, batches)
        made.append(found)
        if not found.why:
            made.append(Figure(f"{found.name} / roofline", tuple(one / (rate / each) for one in found.values), "x"))
            if not plain.why:
                made.append(Figure(f"{found.name} / plain torch", ratios(found.values, plain.values), "x"))
    eager = _eager(source, bundle, device)
    return made + _end_to_end(name, device, pictures, known, rounds, eager)


def _provider(
    name: str,
    bundle: Bundle,
    provider: str,
    device: str,
    pixels: Any,
    known: Any,
    rounds: int,
    batches: tuple[int, ...],
) -> Figure:
    """Our runtime, pixels from the host and vectors back, at its best batch."""
    title = f"{name}: {provider}"
    try:
        runtime = open_runtime(bundle, device=device, providers=[provider])
    except ModelError as error:
        return Figure(title, why=str(error)[:300])
    with contextlib.closing(runtime):
        return _best(title, device, runtime.encode_images, pixels, known, rounds, batches)


def _plain_torch(
    model: Any, bundle: Bundle, device: str, pixels: Any, known: Any, rounds: int, batches: tuple[int, ...]
) -> Figure:
    """What one would write: the model in half precision, normalised on the device, in eager mode."""
    import torch

    kind = torch.bfloat16 if device == "cpu" else torch.float16
    half = copy.deepcopy(model).to(device=device, dtype=kind)
    mean, std = (
        torch.tensor(part, device=device).reshape(1, 3, 1, 1)
        for part in (bundle.config.image.mean, bundle.config.image.std)
    )

    def embed(batch: Any) -> Any:
        with torch.inference_mode():
            scaled = torch.from_numpy(batch).to(device).permute(0, 3, 1, 2).float() / 255
            features = half.encode_image(((scaled - mean) / std).to(kind)).float()
            return torch.nn.functional.normalize(features, dim=-1).cpu().numpy()

    return _best("plain torch in half precision, batches", device, embed, pixels, known, rounds, batches)


def _best(
    title: str,
    device: str,
    embed: Callable[[Any], Any],
    pixels: Any,
    known: Any,
    rounds: int,
    batches: tuple[int, ...],
) -> Figure:
    """The quickest batch size of it, if its vectors are right."""
    cosine = min(
        lowest_cosine(embed(pixels[: len(known)]), known),
        lowest_cosine(np.concatenate([embed(pixels[at : at + 1]) for at in range(2)]), known[:2]),
    )
    if not cosine >= AGREES:
        return Figure(title, why=f"its vectors are others: lowest cosine {cosine:.6f} to fp32 on the CPU")
    found: dict[int, list[float]] = {}
    for batch in batches:
        some = pixels[np.arange(batch) % len(pixels)]
        embed(some)  # kernels are chosen for this shape
        times = max(1, 256 // batch) if device != "cpu" else 1
        took = [timed(device, lambda: [embed(some) for _ in range(times)]) for _ in range(rounds)]  # noqa: B023  (at once)
        found[batch] = [times * batch / one for one in took]
    batch = max(found, key=lambda size: statistics.median(found[size]))
    rates = ", ".join(f"{size}: {statistics.median(some):,.0f}" for size, some in found.items())
    note = f"cosine to fp32 on the CPU, in a batch and alone; by batch size {rates}"
    return Figure(title, tuple(found[batch]), UNIT, agreement=cosine, batches={batch: 1}, note=note)


def _eager(model: Any, bundle: Bundle, device: str) -> Callable[[bytes], Any]:
    """The plain way: open_clip on torch eager in fp32, PIL, one picture at a time."""
    import torch
    from open_clip.transform import image_transform

    image = bundle.config.image
    prepare = image_transform(
        image.size,
        is_train=False,
        mean=image.mean,
        std=image.std,
        interpolation=image.interpolation,
        resize_mode=image.resize_mode,
    )
    full = copy.deepcopy(model).to(device)

    def embed(data: bytes) -> Any:
        with torch.inference_mode():
            pixels = prepare(Image.open(io.BytesIO(data))).unsqueeze(0).to(device)
            return full.encode_image(pixels, normalize=True)[0].cpu().numpy()

    return embed


def _end_to_end(
    name: str, device: str, pictures: list[bytes], known: Any, rounds: int, eager: Callable[[bytes], Any]
) -> list[Figure]:
    """JPEGs over Redis through a worker on the device, and open_clip on torch eager, PIL, one at a time, there."""
    count, warm = (16, 16) if device == "cpu" else (4096, 256)
    title = f"{name}: clipfleet, JPEG end to end"

    def asked(total: int) -> Iterator[NewRequest]:
        return map(requests.embed_image, itertools.islice(itertools.cycle(pictures), total))

    with fleets({"gpu": ["--model", name, "--devices", device]}, command=WORKER) as ours:
        fleet = ours["gpu"]
        found = np.stack([np.asarray(one.vector) for one in fleet.client.map(asked(COMPARED))])
        rates = tuple(fleet.sustained(asked, count, warm=warm).rate for _ in range(rounds))
        mine = Figure(
            title,
            rates,
            UNIT,
            arrival="closed loop, 256 in flight",
            batches=fleet.histogram,
            agreement=lowest_cosine(found, known),
        )
    some = 4 if device == "cpu" else 64
    plain = tuple(
        some / timed(device, lambda: [eager(pictures[at % len(pictures)]) for at in range(some)]) for _ in range(rounds)
    )
    return [
        mine,
        Figure(f"{name}: plain pipeline", plain, UNIT, arrival="one at a time", precision="fp32"),
        Figure(f"{title} / plain pipeline", ratios(rates, plain), "x", TARGET_PLAIN),
    ]


if __name__ == "__main__":
    carry_out(run, __doc__, models=MODELS, device="cuda:0", rounds=5)
