"""The benchmarks of CLIP and of HTTP servers as parts of the page; each also runs alone, ``python -m bench.NAME``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bench.results import Part
from clipfleet.models import resolve_model
from clipfleet.models.errors import ModelError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from bench.results import Figure

PICTURES, QUERIES = 96, 384  # of a round of the full form
FEWER, MANY, LATER = 160, 20_000, 4_000  # files to index with a large model, and with the demo, at first and later
SPARE_S = 20.0  # of what the last part may take: what is up is stopped, and its lines are made
MODEL = "ViT-B-32/random"  # where --model does not name another one: weights need no download to be as dear


def images(options: argparse.Namespace) -> Part:
    """Pictures over Redis."""
    from bench import clip_images

    part = Part(
        "images",
        "Pictures end to end",
        "JPEGs of 640 x 480 to vectors over Redis, sustained, beside what the cores allow (one picture decoded and one "
        "embedded, each at its rate alone at the best batch), and beside the plain way: open_clip on torch, eager, "
        "PIL, one picture at a time at its best number of threads.",
    )
    part = _filled(
        part,
        options,
        lambda model, quick: clip_images.run(model=model, rounds=options.rounds, count=PICTURES, quick=quick),
    )
    part.skip(
        "on a GPU", "`python -m bench.gpu` measures it where there is one, against torch and against its roofline"
    )
    return part


def text(options: argparse.Namespace) -> Part:
    """Searches by words."""
    from bench import clip_text

    part = Part(
        "text",
        "Searches by words",
        "`search` end to end with rows in the store, beside tokenizer, text tower and store alone at the same batch.",
    )
    return _filled(
        part,
        options,
        lambda model, quick: clip_text.run(model=model, rounds=options.rounds, count=QUERIES, quick=quick),
    )


def bulk(options: argparse.Namespace) -> Part:
    """A corpus on disk."""
    from bench import clip_bulk

    part = Part(
        "bulk",
        "Bulk indexing",
        "`clipfleet index` of JPEGs from disk with one worker, beside what the cores allow; memory of producer and "
        "worker in the middle and at the end.",
    )
    ways = clip_bulk.NOBODY_SEARCHES
    part = _filled(
        part,
        options,
        lambda model, quick: clip_bulk.run(model=model, rounds=options.rounds, count=FEWER, quick=quick, ways=ways),
    )
    # A large model says how much of the cores is left to it; only a quick one gets through enough to tell memory by.
    if options.full and options.model == "demo":
        for figure in clip_bulk.run(model="demo", rounds=options.rounds, count=MANY, later=LATER):
            part.take(replace(figure, name=f"demo, {MANY:,} files: {figure.name}"))
    return part


def http(options: argparse.Namespace) -> Part:
    """Servers behind HTTP."""
    from bench import http_peers

    part = Part(
        "http",
        "Servers behind HTTP",
        "The same ONNX file and the same decoding behind LitServe, mosec, Ray Serve and BentoML, their batching on as "
        "their documentation has it, each in an environment of its own; p99 in an open loop at 70 % of each one's own "
        "saturation. Ours is over Redis.",
    )
    return _filled(
        part,
        options,
        lambda model, quick: http_peers.run(
            model=model, rounds=options.rounds, seconds=options.limit_s - SPARE_S, install=True, quick=quick
        ),
    )


def _filled(part: Part, options: argparse.Namespace, measure: Callable[[str, bool], Iterable[Figure]]) -> Part:
    """With the lines of one of them; a model that is not there is a line that says so."""
    model = MODEL if options.model == "demo" else options.model
    try:
        resolve_model(model)
    except ModelError as error:
        part.skip(model, str(error))
        return part
    for figure in measure(model, not options.full):
        part.take(figure)
    return part
