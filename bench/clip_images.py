"""Pictures of 640 x 480 to vectors, sustained, end to end over Redis: against what the cores allow, and the plain way.

python -m bench.clip_images [--model ViT-B-32/random] [--quick]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from typing import TYPE_CHECKING, Any

from bench.clip_plain import Plain, torch_python
from bench.clip_work import BATCHES, WORKER, Fleet, Line, Parts, Spent, cpu_line, fleets, ratios, rounds_of
from bench.pipelines import DIFFERENT, jpeg
from clipfleet.models import resolve_model
from clipfleet.models.runtime import lowest_cosine
from clipfleet.operators.cores import usable_cores
from clipfleet.producer import requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.producer.requests import NewRequest

MODEL = "ViT-B-32/random"
TARGET, TARGET_BF16 = 0.90, 4.0
COMPARED = 8  # pictures whose vectors are compared


def run(*, model: str = MODEL, rounds: int = 5, count: int = 256, quick: bool = False) -> list[Line]:
    """Measure; ``quick``: fewer pictures and rounds."""
    if quick:
        rounds, count = min(rounds, 3), min(count, 64)
    pictures = [jpeg(number) for number in range(DIFFERENT)]
    bundle = resolve_model(model)
    cores = str(usable_cores())
    workers = {
        "as it comes": ["--model", model],
        "a process per core": [
            *("--model", model, "--processes", cores, "--threads", "1", "--decode-threads", "1"),
            *("--max-batch-size", "16"),
        ],
    }
    python = "" if model == "demo" else torch_python()
    with contextlib.ExitStack() as stack:
        parts = Parts(bundle, BATCHES[2:5] if quick else BATCHES)
        stack.callback(parts.close)
        ours = stack.enter_context(fleets(workers))
        ours |= _bf16(stack, model, python)
        plain = stack.enter_context(Plain(model, python)) if python else None
        prepared = parts.pixels(pictures * 2)
        way = parts.best(prepared)
        sent = itertools.islice(itertools.cycle(pictures), count)
        work, ready = list(sent), list(itertools.islice(itertools.cycle(prepared), count))
        ways: dict[str, Callable[[], Spent]] = {
            "decode": lambda: parts.decode(work),
            "model": lambda: parts.model(ready, way),
            **{name: _sustained(fleet, pictures, count) for name, fleet in ours.items()},
        }
        if plain is not None:
            ways["plain"] = lambda: _plain(plain, max(4, count // 8))
        spent = rounds_of(ways, rounds)
        agreement = _agreement(parts, ours, plain, pictures[:COMPARED])
        about = {
            "best way to call the model": str(way),
            "plain": plain and f"{plain.versions}, {plain.threads} threads",
        }
        return _lines(spent, ours, agreement, about)


def _bf16(stack: contextlib.ExitStack, model: str, python: str) -> dict[str, Fleet]:
    """A worker with converted weights, where torch is."""
    if not python:
        return {}
    flags = ["--model", model, "--providers", "torch-bf16", "--max-batch-size", "16"]
    return stack.enter_context(fleets({"bf16": flags}, command=(python, *WORKER[1:])))


def _sustained(fleet: Fleet, pictures: list[bytes], count: int) -> Callable[[], Spent]:
    def asked(total: int) -> Iterator[NewRequest]:
        return map(requests.embed_image, itertools.islice(itertools.cycle(pictures), total))

    return lambda: fleet.sustained(asked, count)


def _plain(plain: Plain, count: int) -> Spent:
    return Spent(count, *plain.embed(count))


def _agreement(parts: Parts, ours: dict[str, Fleet], plain: Plain | None, pictures: list[bytes]) -> dict[str, str]:
    """The lowest cosine of each way's vectors to the plain way's, or to the model called here where there is none."""
    known = parts.vectors(pictures) if plain is None else plain.vectors(len(pictures))
    to = "the model called here" if plain is None else "open_clip in torch, fp32"
    return {
        name: f"lowest cosine {lowest_cosine(_vectors(fleet, pictures), known):.7f} to {to}"
        for name, fleet in ours.items()
    }


def _vectors(fleet: Fleet, pictures: list[bytes]) -> Any:
    import numpy as np

    return np.stack([np.asarray(one.vector) for one in fleet.client.map(map(requests.embed_image, pictures))])


def _lines(
    spent: dict[str, list[Spent]], ours: dict[str, Fleet], agreement: dict[str, str], about: dict[str, Any], said: str
) -> list[Line]:
    decode, model = spent["decode"], spent["model"]
    allowed = tuple(1 / (1 / one.rate + 1 / other.rate) for one, other in zip(decode, model, strict=True))
    cpu = tuple(one.cpu_ms + other.cpu_ms for one, other in zip(decode, model, strict=True))
    lines = [
        Line(
            "decode and resize alone", tuple(one.rate for one in decode), "pictures/s", facts={"CPU": cpu_line(decode)}
        ),
        Line("model alone", tuple(one.rate for one in model), "pictures/s", facts=about | {"CPU": cpu_line(model)}),
        Line("what the cores allow", allowed, "pictures/s"),
    ]
    plain = spent.get("plain")
    if plain is None:
        lines.append(Line("plain pipeline", why="no torch here: CLIPFLEET_BENCH_TORCH names a Python that has it"))
    else:
        lines.append(
            Line(
                "plain pipeline",
                tuple(one.rate for one in plain),
                "pictures/s",
                facts={"runs": said, "CPU": cpu_line(plain)},
            )
        )
    for name, fleet in ours.items():
        mine = spent[name]
        rates = tuple(one.rate for one in mine)
        facts = {
            "arrival": "closed loop, 256 in flight",
            "batches": fleet.histogram,
            "precision": "bf16 weights" if name == "bf16" else "fp32",
            "agreement": agreement[name],
            "CPU": cpu_line(mine),
        }
        lines.append(Line(f"clipfleet, {name}", rates, "pictures/s", facts=facts))
        if name != "bf16":
            lines.append(Line(f"clipfleet, {name} / allowed", ratios(rates, allowed), target=TARGET))
            used = tuple(one.cpu_ms for one in mine)
            lines.append(Line(f"clipfleet, {name} / allowed, by CPU", ratios(cpu, used)))
        if plain is not None:
            target = TARGET_BF16 if name == "bf16" else None
            lines.append(Line(f"clipfleet, {name} / plain", ratios(rates, [one.rate for one in plain]), target=target))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.clip_images", description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=256, help="pictures of a round")
    parser.add_argument("--quick", action="store_true")
    for each in run(**vars(parser.parse_args())):
        each.show()


if __name__ == "__main__":
    main()
