"""Pictures to vectors: the same pipeline here in batches, here one by one, on the fleet, and by open_clip in torch."""

from __future__ import annotations

import importlib.util
import io
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from bench.harness import line, process, server
from clipfleet import pipeline
from clipfleet.cli.local.redis import free_port
from clipfleet.operators import clip_image
from clipfleet.operators.services import ProcessServices
from clipfleet.producer import Client, requests

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

DIFFERENT = 50


def run(options: argparse.Namespace) -> None:
    pictures = [jpeg(number) for number in range(DIFFERENT)] * (options.pictures // DIFFERENT)
    one_by_one = pictures[: max(DIFFERENT, len(pictures) // 10)]
    features = pipeline.input("image").map("image", "vector", clip_image()).output("vector")
    port = free_port()
    url = f"redis://127.0.0.1:{port}"
    command = [sys.executable, "-m", "clipfleet.cli", "worker", "--redis-url", url, "--model", options.model]
    with (
        server(port),
        process(*command),
        Client(url, wait_for_worker=True) as fleet,
        features.open(services=ProcessServices(model=options.model)),
    ):
        fleet.embed_image(pictures[0], timeout=120)
        eager = open_clip(options.model)
        agree(features, fleet, eager, pictures[:3])
        rates: dict[str, list[float]] = {}
        turns: list[tuple[str, Callable[[], Any], int]] = [
            ("here, in batches", lambda: [one.table for one in features.batch(pictures)], len(pictures)),
            (
                "on the fleet",
                lambda: [one.vector for one in fleet.map(map(requests.embed_image, pictures))],
                len(pictures),
            ),
            ("here, one by one", lambda: [features(one) for one in one_by_one], len(one_by_one)),
        ]
        if eager is not None:
            turns.append(
                ("open_clip in torch, one by one", lambda: [eager(one) for one in one_by_one], len(one_by_one))
            )
        for number in range(options.rounds):
            for name, turn, count in turns if number % 2 else reversed(turns):
                began = time.perf_counter()
                turn()
                rates.setdefault(name, []).append(count / (time.perf_counter() - began))
        for name, _, _ in turns:
            line(f"{options.model}: pictures/s {name}", rates[name], "{:,.1f}")
        for name, _, _ in turns[1:]:
            ratios = [mine / other for mine, other in zip(rates["here, in batches"], rates[name], strict=True)]
            line(f"in batches / {name}", ratios, "{:.2f}")


def jpeg(seed: int) -> bytes:
    """A smooth picture of 640 x 480, as a camera's JPEG weighs it."""
    small = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(small).resize((640, 480), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


def open_clip(model: str) -> Callable[[bytes], Any] | None:
    """The plain way: open_clip on torch, PIL, one picture at a time; None for a model that it does not know."""
    if model == "demo" or importlib.util.find_spec("open_clip") is None:
        return None
    import torch
    from open_clip.transform import image_transform

    from clipfleet.models import parse_name
    from clipfleet.models.open_clip_source import load_source

    source = load_source(parse_name(model))
    image = source.image
    prepare = image_transform(
        image.size,
        is_train=False,
        mean=image.mean,
        std=image.std,
        interpolation=image.interpolation,
        resize_mode=image.resize_mode,
    )

    def embed(data: bytes) -> Any:
        with torch.inference_mode():
            pixels = prepare(Image.open(io.BytesIO(data))).unsqueeze(0)
            return source.model.encode_image(pixels, normalize=True)[0].numpy()

    return embed


def agree(features: Any, fleet: Client, eager: Callable[[bytes], Any] | None, pictures: list[bytes]) -> None:
    """Say how near the vectors are to each other: a speed is worth nothing without it."""
    lowest = 1.0
    for picture in pictures:
        mine = features(picture).item()
        others = [np.asarray(fleet.embed_image(picture).vector)] + ([eager(picture)] if eager is not None else [])
        lowest = min(lowest, *(float(mine @ other) for other in others))
    print(f"lowest cosine between the ways: {lowest:.7f}")
