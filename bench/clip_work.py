"""What the CLIP benchmarks share: what each part of the work takes alone, and how it becomes a command."""

from __future__ import annotations

import argparse
import itertools
import signal
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.harness import cpu_s
from clipfleet.models import Tokenize, open_runtime
from clipfleet.operators.cores import usable_cores
from clipfleet.operators.image import prepare_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bench.results import Figure
    from clipfleet.models.bundle import Bundle

BATCHES = (4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Spent:
    """What a piece of work took.

    Attributes:
        items: how many.
        wall_s: seconds by the clock.
        cpu_s: seconds of all cores, by this process and those that were named.
    """

    items: int
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.items / self.wall_s

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of one core for an item."""
        return 1000 * self.cpu_s / self.items


def spent(work: Callable[[], Any], items: int, others: Sequence[int] = ()) -> Spent:
    """Do it, and tell what it took here and in the trees of processes ``others``."""
    cpu, began = cpu_of(others), time.perf_counter()
    work()
    return Spent(items, time.perf_counter() - began, cpu_of(others) - cpu)


def cpu_of(pids: Sequence[int]) -> float:
    """CPU seconds so far of this process and of those, with all that they started."""
    return time.process_time() + cpu_s(*pids)


@dataclass(frozen=True)
class Best:
    """The quickest way to call a model on this machine.

    Attributes:
        batch: items of a call.
        threads: of a call.
        sessions: calls at once.
    """

    batch: int
    threads: int
    sessions: int

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.sessions} at once with {self.threads} threads each"


class Parts:
    """Each part of the work alone, on all cores of this process: what they allow is what all parts together take.

    Args:
        bundle: the model.
        batches: sizes to try.
    """

    def __init__(self, bundle: Bundle, batches: Sequence[int] = BATCHES) -> None:
        self.bundle = bundle
        self.cores = usable_cores()
        self._batches = batches
        # All cores at one call, or a call for each core.
        splits = {(self.cores, 1), (1, self.cores)}
        self._runtimes = {
            split: [open_runtime(bundle, providers=["cpu"], threads=split[0]) for _ in range(split[1])]
            for split in sorted(splits)
        }
        self._tokenize = Tokenize(bundle.config.text, bundle.tokenizer_file)
        self._pool = ThreadPoolExecutor(self.cores)

    def decode(self, pictures: Sequence[bytes]) -> Spent:
        """Decoding and resizing, on as many threads as there are cores."""
        return spent(lambda: self.pixels(pictures), len(pictures))

    def tokenize(self, texts: Sequence[str]) -> Spent:
        """Cleaning and tokenising, on one thread: it holds the GIL, so more are no faster."""
        return spent(lambda: self.ids(texts), len(texts))

    def pixels(self, pictures: Sequence[bytes]) -> list[Any]:
        """What the model takes of pictures."""
        config = self.bundle.config.image
        return list(self._pool.map(lambda one: prepare_image(one, config), pictures))

    def ids(self, texts: Sequence[str]) -> list[Any]:
        """What the model takes of texts."""
        return [self._tokenize(text)[0] for text in texts]

    def best(self, items: Sequence[Any]) -> Best:
        """The quickest of all batch sizes and splits of the cores for these prepared items.

        The best of two looks, the second one only at what may still turn out to be the quickest.
        """
        found: dict[Best, float] = {}
        for split in self._runtimes:
            for batch in self._batches:
                way = Best(batch, *split)
                some = items[: max(2 * batch * split[1], 32)]
                self.model(some[: batch * split[1]], way)  # the arena grows
                found[way] = self.model(some, way).wall_s / len(some)
                if found[way] < 1.2 * min(found.values()):
                    found[way] = min(found[way], self.model(some, way).wall_s / len(some))
        return min(found, key=lambda way: found[way])

    def model(self, items: Sequence[Any], way: Best) -> Spent:
        """The tower alone, on items that are prepared."""
        batches = [items[first : first + way.batch] for first in range(0, len(items), way.batch)]
        runtimes = self._runtimes[way.threads, way.sessions]

        def work(number: int) -> None:
            for batch in batches[number :: way.sessions]:
                if batch[0].ndim == 1:
                    runtimes[number].encode_texts(batch)
                else:
                    runtimes[number].encode_images(np.stack(batch))

        return spent(lambda: list(self._pool.map(work, range(way.sessions))), len(items))

    def vectors(self, pictures: Sequence[bytes]) -> Any:
        """The vectors of a few pictures, float32 [n, d]."""
        return self._runtimes[1, self.cores][0].encode_images(np.stack(self.pixels(pictures)))

    def model_vectors(self, ids: Sequence[Any]) -> Any:
        """The vectors of tokenised texts, float32 [n, d]."""
        runtime = self._runtimes[1, self.cores][0]
        return np.concatenate([runtime.encode_texts(ids[first : first + 64]) for first in range(0, len(ids), 64)])

    def close(self) -> None:
        """Free the models."""
        self._pool.shutdown()
        for runtimes in self._runtimes.values():
            for runtime in runtimes:
                runtime.close()


class PictureLimit:
    """What the cores allow: one picture decoded and one embedded, each at the rate that it has alone.

    Args:
        parts: of the model.
        pictures: encoded; some more of them are made by repeating.
        count: pictures of a measurement.
    """

    def __init__(self, parts: Parts, pictures: Sequence[bytes], count: int) -> None:
        self._parts = parts
        prepared = parts.pixels(pictures) * 2
        self.way = parts.best(prepared)
        self._work = list(itertools.islice(itertools.cycle(pictures), count))
        self._ready = list(itertools.islice(itertools.cycle(prepared), count))

    def decode(self) -> Spent:
        """Decoding and resizing alone."""
        return self._parts.decode(self._work)

    def model(self) -> Spent:
        """The model alone, in its quickest way."""
        return self._parts.model(self._ready, self.way)

    def look(self) -> tuple[Spent, Spent]:
        """Both, measured now."""
        return self.decode(), self.model()

    def rate(self) -> float:
        """Pictures a second, measured now."""
        return allowed(*self.look())


def allowed(*parts: Spent) -> float:
    """Items a second when each part, one after the other, takes what it took alone."""
    return 1 / sum(1 / one.rate for one in parts)


def carry_out(measure: Callable[..., Iterable[Figure]], about: str | None, **defaults: Any) -> None:
    """``measure`` as a command: its options are those with a default here, ``--quick`` beside them."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (defaults | {"quick": False}).items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(default), default=default, help=f"by itself {default!r}")
    # By an exception, so that all that was started is stopped: some of it has process groups of its own.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    for figure in measure(**vars(parser.parse_args())):
        print(figure.line())


def rates_of(found: Sequence[Spent]) -> tuple[float, ...]:
    """Items a second, round by round."""
    return tuple(one.rate for one in found)


def cpu_line(found: Sequence[Spent]) -> str:
    """What an item costs, all processes together."""
    return f"{statistics.median(one.cpu_ms for one in found):.2f} ms of a core for each"


def rounds_of(ways: Mapping[str, Callable[[], Spent]], rounds: int) -> dict[str, list[Spent]]:
    """Each way in turn, as often as there are rounds; every other round backwards, so that none is always first."""
    found: dict[str, list[Spent]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in ways if number % 2 else reversed(ways):
            found[name].append(ways[name]())
    return found
