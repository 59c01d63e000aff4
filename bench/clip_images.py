"""Pictures of 640 x 480 to vectors, sustained, end to end over Redis: against what the cores allow, and the plain way.

python -m bench.clip_images [--model ViT-B-32/random] [--quick]
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

from bench.clip_fleet import WORKER, Fleet, fleets, per_core
from bench.clip_plain import Plain, torch_python
from bench.clip_work import (
    BATCHES,
    Parts,
    PictureLimit,
    Spent,
    allowed,
    carry_out,
    cpu_line,
    rates_of,
    rounds_of,
)
from bench.pictures import jpeg
from bench.pipelines import DIFFERENT
from bench.results import Figure
from bench.stats import ratios
from clipfleet.models import parse_name, resolve_model
from clipfleet.models.runtime import lowest_cosine
from clipfleet.producer import requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clipfleet.producer.requests import NewRequest

MODEL = "ViT-B-32/random"
UNIT, TARGET, TARGET_BF16, BF16 = "pictures/s", ">= 0.9", ">= 4", "bf16"
NO_PLAIN = "it takes an open_clip model, and torch: CLIPFLEET_BENCH_TORCH names a Python that has it"
COMPARED = 8  # pictures whose vectors are compared


def run(*, model: str = MODEL, rounds: int = 5, count: int = 512, quick: bool = False) -> list[Figure]:
    """Measure; ``quick``: fewer pictures and rounds."""
    if quick:
        rounds, count = 1, min(count, 128)
    pictures = [jpeg(number) for number in range(DIFFERENT)]
    bundle = resolve_model(model)
    workers = {
        "as it comes": ["--model", model],
        "a process per core": ["--model", model, *per_core()],
    }
    python = torch_python() if parse_name(model).kind not in {"demo", "bundle"} else ""
    with contextlib.ExitStack() as stack:
        parts = Parts(bundle, BATCHES[1:4] if quick else BATCHES)
        stack.callback(parts.close)
        ours = stack.enter_context(fleets(workers))
        ours |= _bf16(stack, model, python)
        plain = stack.enter_context(Plain(model, python)) if python else None
        limit = PictureLimit(parts, pictures, count)
        ways: dict[str, Callable[[], Spent]] = {
            "decode": limit.decode,
            "model": limit.model,
            **{name: _sustained(fleet, pictures, count) for name, fleet in ours.items()},
        }
        if plain is not None:
            ways["plain"] = lambda: _plain(plain, max(4, count // 8))
        spent = rounds_of(ways, rounds)
        agreement = _agreement(parts, ours, plain, pictures[:COMPARED])
        said = f"{plain.versions}, {plain.threads} threads" if plain is not None else ""
        return _lines(spent, ours, agreement, str(limit.way), said)


def _bf16(stack: contextlib.ExitStack, model: str, python: str) -> dict[str, Fleet]:
    """A worker with converted weights, where torch is."""
    if not python:
        return {}
    flags = ["--model", model, "--providers", "torch-bf16", "--max-batch-size", "16"]
    return stack.enter_context(fleets({BF16: flags}, command=(python, *WORKER[1:])))


def _sustained(fleet: Fleet, pictures: list[bytes], count: int) -> Callable[[], Spent]:
    def asked(total: int) -> Iterator[NewRequest]:
        return map(requests.embed_image, itertools.islice(itertools.cycle(pictures), total))

    return lambda: fleet.sustained(asked, count, warm=64)


def _plain(plain: Plain, count: int) -> Spent:
    return Spent(count, *plain.embed(count))


def _agreement(parts: Parts, ours: dict[str, Fleet], plain: Plain | None, pictures: list[bytes]) -> dict[str, float]:
    """The lowest cosine of each way's vectors to the plain way's, or to the model called here where there is none."""
    known = parts.vectors(pictures) if plain is None else plain.vectors(len(pictures))
    return {name: lowest_cosine(_vectors(fleet, pictures), known) for name, fleet in ours.items()}


def _vectors(fleet: Fleet, pictures: list[bytes]) -> Any:
    import numpy as np

    return np.stack([np.asarray(one.vector) for one in fleet.client.map(map(requests.embed_image, pictures))])


def _lines(
    spent: dict[str, list[Spent]], ours: dict[str, Fleet], agreement: dict[str, float], way: str, said: str
) -> list[Figure]:
    decode, model = spent["decode"], spent["model"]
    limits = tuple(map(allowed, decode, model))
    cpu = tuple(one.cpu_ms + other.cpu_ms for one, other in zip(decode, model, strict=True))
    lines = [
        Figure("decode and resize alone", rates_of(decode), UNIT, note=cpu_line(decode)),
        Figure("model alone", rates_of(model), UNIT, precision="fp32", note=f"{way}; {cpu_line(model)}"),
        Figure("what the cores allow", limits, UNIT, note="one picture decoded and one embedded, alone"),
    ]
    plain = spent.get("plain")
    if plain is None:
        lines.append(Figure("plain pipeline", why=NO_PLAIN))
    else:
        about = f"{said}; {cpu_line(plain)}"
        lines.append(
            Figure("plain pipeline", rates_of(plain), UNIT, arrival="one at a time", precision="fp32", note=about)
        )
    for name, fleet in ours.items():
        mine, title, rounded = spent[name], f"clipfleet, {name}", name == BF16
        lines.append(
            Figure(
                title,
                rates_of(mine),
                UNIT,
                arrival="closed loop, 256 in flight",
                batches=fleet.histogram,
                p50_ms=fleet.ms(50),
                p99_ms=fleet.ms(99),
                precision="bf16 weights" if rounded else "fp32",
                agreement=agreement[name],
                note=f"cosine to {'the model called here' if plain is None else 'the plain way'}; {cpu_line(mine)}",
            )
        )
        if not rounded:
            used = [one.cpu_ms for one in mine]
            lines.append(Figure(f"{title} / allowed", ratios(rates_of(mine), limits), "x", TARGET))
            lines.append(Figure(f"{title} / allowed, by CPU", ratios(cpu, used), "x"))
        if plain is not None:
            target = TARGET_BF16 if rounded else ""
            lines.append(Figure(f"{title} / plain", ratios(rates_of(mine), rates_of(plain)), "x", target))
            theirs, used = [one.cpu_ms for one in plain], [one.cpu_ms for one in mine]
            lines.append(Figure(f"{title} / plain, by CPU", ratios(theirs, used), "x"))
    return lines


if __name__ == "__main__":
    carry_out(run, __doc__, model=MODEL, rounds=5, count=512)
