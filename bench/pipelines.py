"""Pictures to vectors: the same pipeline here in batches, here one by one, on the fleet, and by open_clip in torch."""

from __future__ import annotations

import importlib.util
import io
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from bench.harness import in_turn, process, server
from bench.pictures import jpeg
from bench.results import Part
from clipfleet import pipeline
from clipfleet.cli.local.redis import free_port
from clipfleet.operators import clip_image
from clipfleet.operators.services import ProcessServices
from clipfleet.producer import Client, requests

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

DIFFERENT = 50
MINE = "here, in batches"


def run(options: argparse.Namespace) -> Part:
    """Pictures a second of each way, and how near their vectors are to each other."""
    part = Part(
        "pipelines",
        "One pipeline here, and on the fleet",
        "Pictures of 640 x 480 as JPEG to vectors: the same pipeline in this process in batches and one by one, on a "
        "fleet of one worker, and, with `--model ViT-B-32/random` where torch is installed, by open_clip on torch, "
        "eager, one picture at a time. The cosine is the lowest between any two ways over a few pictures.",
    )
    pictures = [jpeg(number) for number in range(DIFFERENT)] * max(1, options.pictures // DIFFERENT)
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
        agreement = agree(features, fleet, eager, pictures[:3])
        ways: dict[str, tuple[Callable[[], Any], int]] = {
            MINE: (lambda: [one.table for one in features.batch(pictures)], len(pictures)),
            "on the fleet": (
                lambda: [one.vector for one in fleet.map(map(requests.embed_image, pictures))],
                len(pictures),
            ),
            "here, one by one": (lambda: [features(one) for one in one_by_one], len(one_by_one)),
        }
        if eager is not None:
            ways["open_clip in torch, one by one"] = lambda: [eager(one) for one in one_by_one], len(one_by_one)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        in_turn(options.rounds, [_turn(rates[name], *way) for name, way in ways.items()])
    precision = f"{options.model}, fp32"
    arrival = {MINE: "all at once", "on the fleet": "closed loop, 256 in flight"}
    for name, values in rates.items():
        how = arrival.get(name, "one at a time")
        part.add(name, values, "pictures/s", arrival=how, precision=precision, agreement=agreement)
    for name, values in rates.items():
        if name != MINE:
            part.ratio(f"{MINE} / {name}", rates[MINE], values, precision=precision, agreement=agreement)
    return part


def _turn(rates: list[float], work: Callable[[], Any], count: int) -> Callable[[int], None]:
    def once(_: int) -> None:
        began = time.perf_counter()
        work()
        rates.append(count / (time.perf_counter() - began))

    return once


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


def agree(features: Any, fleet: Client, eager: Callable[[bytes], Any] | None, pictures: list[bytes]) -> float:
    """The lowest cosine between the ways: a speed is worth nothing without it."""
    lowest = 1.0
    for picture in pictures:
        mine = features(picture).item()
        others = [np.asarray(fleet.embed_image(picture).vector)] + ([eager(picture)] if eager is not None else [])
        lowest = min(lowest, *(float(mine @ other) for other in others))
    return lowest
