"""Where a pipeline's time goes: figures for each stage, and a Chrome trace.

::

    watch = Profile()
    objects.open(observer=watch)
    for result in objects.batch(pictures): ...
    print(watch.text())
    watch.write_trace("trace.json")  # open it at https://ui.perfetto.dev
"""

from __future__ import annotations

import json
import math
import os
import threading
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clipfleet.pipeline.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Observers", "Profile", "StageProfile"]

_MOST_CALLS: Final = 200_000


class Observers(Observer):
    """Several observers as one."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self.values = any(one.values for one in observers)

    def ran(
        self,
        stage: str,
        instance: str,
        began: float,
        ended: float,
        size: int,
        ids: Sequence[str],
        waited_s: Sequence[float],
    ) -> None:
        """Tell all of them."""
        for one in self._observers:
            one.ran(stage, instance, began, ended, size, ids, waited_s)

    def made(self, request_id: str, step: str, row: tuple[int, ...], inputs: Sequence[Any], value: Any) -> None:
        """Tell those who want to know."""
        for one in self._observers:
            if one.values:
                one.made(request_id, step, row, inputs, value)


@dataclass(frozen=True, slots=True)
class StageProfile:
    """The figures of one stage.

    Attributes:
        stage: its name.
        instances: how many of it ran.
        items: items that it ran.
        sizes: batches by their number of items.
        wait_p50_s: seconds until its turn, of the median item.
        wait_p99_s: of the item that waited longer than 99 of 100.
        run_p50_s: seconds of the median call.
        run_p99_s: of the call that was longer than 99 of 100.
        busy: share of the time, from the first call of any stage to the end of the last, that its instances ran.
    """

    stage: str
    instances: int
    items: int
    sizes: dict[int, int]
    wait_p50_s: float
    wait_p99_s: float
    run_p50_s: float
    run_p99_s: float
    busy: float

    @property
    def batches(self) -> int:
        """How many calls."""
        return sum(self.sizes.values())

    @property
    def mean_batch(self) -> float:
        """Items per call."""
        return self.items / self.batches

    def as_json(self) -> dict[str, Any]:
        """For programs: the attributes, times in ms."""
        return {
            "stage": self.stage,
            "instances": self.instances,
            "items": self.items,
            "batches": self.batches,
            "mean_batch": round(self.mean_batch, 2),
            "sizes": {str(size): count for size, count in self.sizes.items()},
            "wait_ms": {"p50": _ms(self.wait_p50_s), "p99": _ms(self.wait_p99_s)},
            "run_ms": {"p50": _ms(self.run_p50_s), "p99": _ms(self.run_p99_s)},
            "busy": round(self.busy, 4),
        }


@dataclass(slots=True)
class _Books:
    instances: set[str] = field(default_factory=set)
    sizes: Counter[int] = field(default_factory=Counter)
    waits: array[float] = field(default_factory=lambda: array("d"))
    runs: array[float] = field(default_factory=lambda: array("d"))


class Profile(Observer):
    """Per stage: items, batches and their sizes, waiting, running. From any thread.

    It keeps eight bytes for each item and each call, and the first 200,000 calls for the trace.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._books: dict[str, _Books] = {}
        self._calls: list[tuple[str, str, str, float, float, int]] = []
        self._began = math.inf
        self._ended = -math.inf

    def ran(
        self,
        stage: str,
        instance: str,
        began: float,
        ended: float,
        size: int,
        ids: Sequence[str],  # noqa: ARG002  (part of the interface)
        waited_s: Sequence[float],
    ) -> None:
        """Note one call."""
        thread = threading.current_thread().name
        with self._lock:
            books = self._books.get(stage)
            if books is None:
                books = self._books[stage] = _Books()
            books.instances.add(instance)
            books.sizes[size] += 1
            books.waits.extend(waited_s)
            books.runs.append(ended - began)
            self._began, self._ended = min(self._began, began), max(self._ended, ended)
            if len(self._calls) < _MOST_CALLS:
                self._calls.append((stage, instance, thread, began, ended, size))

    def stages(self) -> list[StageProfile]:
        """The figures so far, in the order in which stages first ran."""
        with self._lock:
            whole = self._ended - self._began
            return [
                StageProfile(
                    stage=name,
                    instances=len(books.instances),
                    items=sum(size * count for size, count in books.sizes.items()),
                    sizes=dict(sorted(books.sizes.items())),
                    wait_p50_s=_quantile(books.waits, 0.5),
                    wait_p99_s=_quantile(books.waits, 0.99),
                    run_p50_s=_quantile(books.runs, 0.5),
                    run_p99_s=_quantile(books.runs, 0.99),
                    busy=sum(books.runs) / (whole * len(books.instances)) if whole > 0 else 0.0,
                )
                for name, books in self._books.items()
            ]

    def text(self) -> str:
        """The figures as a table, lines ended by a newline."""
        head = ("stage", "items", "batches", "mean", "sizes", "wait p50/p99 ms", "run p50/p99 ms", "busy")
        rows = [head, *(_row(one) for one in self.stages())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "".join("  ".join(map(_align, row, widths, range(len(row)))).rstrip() + "\n" for row in rows)

    def trace_events(self) -> list[dict[str, Any]]:
        """Chrome's trace events: a complete event a call, times in µs since the first, a track for each thread."""
        with self._lock:
            calls, began = list(self._calls), self._began
        process = os.getpid()
        tracks = {thread: number for number, thread in enumerate(dict.fromkeys(call[2] for call in calls), 1)}
        names = [
            {"name": "thread_name", "ph": "M", "pid": process, "tid": number, "args": {"name": thread}}
            for thread, number in tracks.items()
        ]
        return names + [
            {
                "name": stage,
                "cat": "stage",
                "ph": "X",
                "ts": round((start - began) * 1e6, 1),
                "dur": round((end - start) * 1e6, 1),
                "pid": process,
                "tid": tracks[thread],
                "args": {"items": size, "instance": instance},
            }
            for stage, instance, thread, start, end, size in calls
        ]

    def write_trace(self, path: str | os.PathLike[str]) -> int:
        """Write a Chrome trace file (for ui.perfetto.dev or chrome://tracing); returns how many calls are not in it."""
        Path(path).write_text(json.dumps(self.trace_events()), encoding="utf-8")
        with self._lock:
            return sum(len(books.runs) for books in self._books.values()) - len(self._calls)


def _row(one: StageProfile) -> tuple[str, ...]:
    return (
        f"{one.stage} ({one.instances})" if one.instances > 1 else one.stage,
        str(one.items),
        str(one.batches),
        f"{one.mean_batch:.1f}",
        _histogram(one.sizes),
        f"{one.wait_p50_s * 1000:.2f} / {one.wait_p99_s * 1000:.2f}",
        f"{one.run_p50_s * 1000:.2f} / {one.run_p99_s * 1000:.2f}",
        f"{one.busy:.0%}",
    )


def _align(cell: str, width: int, place: int) -> str:
    return cell.ljust(width) if place in {0, 4} else cell.rjust(width)


def _histogram(sizes: dict[int, int]) -> str:
    """Batches by size in powers of two: ``1:3 2-3:1 8-15:40``."""
    counts: Counter[int] = Counter()
    for size, count in sizes.items():
        counts[size.bit_length()] += count
    return " ".join(
        f"{1 << bits - 1}{'' if bits == 1 else f'-{(1 << bits) - 1}'}:{count}"
        for bits, count in sorted(counts.items())
        if bits
    )


def _quantile(values: array[float], share: float) -> float:
    """By nearest rank."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
