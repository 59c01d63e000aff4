"""What a run has found out, in a form that a file keeps and a page is written from."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.stats import Spread, mean_batch, ratios

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PACKAGES = ("clipfleet", "redis", "hiredis", "msgpack", "onnxruntime", "numpy", "pillow")


@dataclass(slots=True)
class Figure:
    """One line of a table: several rounds of one thing.

    Attributes:
        name: what was measured.
        values: one for each round.
        unit: of the values: ``requests/s``, ``ms``, ``x`` for a ratio, ...
        target: ``>= 20``, ``<= 0.3``; empty for a figure that is only reported.
        arrival: how the requests came.
        batches: how many batches were of which size.
        p50_ms, p99_ms: latency of single requests.
        precision: of the model, where there is one.
        agreement: lowest cosine with the reference, where there are embeddings.
        note: what else one should know to believe it.
        why: why it could not be measured; empty when it was.
    """

    name: str
    values: Sequence[float] = ()
    unit: str = ""
    target: str = ""
    arrival: str = ""
    batches: Mapping[int, int] = field(default_factory=dict)
    p50_ms: float | None = None
    p99_ms: float | None = None
    precision: str = ""
    agreement: float | None = None
    note: str = ""
    why: str = ""

    @property
    def spread(self) -> Spread:
        return Spread.of(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the target; None without one.

        Raises:
            ValueError: a target that is no ``>=`` or ``<=`` with a number.
        """
        if not self.target:
            return None
        sign, _, number = self.target.partition(" ")
        if sign not in (">=", "<="):
            raise ValueError(f"{self.target!r} is no target")
        return self.spread.median >= float(number) if sign == ">=" else self.spread.median <= float(number)

    def line(self) -> str:
        """As a run prints it."""
        if self.why:
            return f"{self.name:<52} not measured: {self.why}"
        spread = self.spread
        text = f"{self.name:<52} {number(spread.median):>9} {self.unit:<11}"
        text += f" (min {number(spread.low)}, max {number(spread.high)}, {spread.rounds} rounds)"
        if self.p50_ms is not None and self.p99_ms is not None:
            text += f"  p50 {number(self.p50_ms)} ms, p99 {number(self.p99_ms)} ms"
        if self.batches:
            text += f"  mean batch {mean_batch(self.batches):.1f}"
        if self.target:
            text += f"  target {self.target}: {'met' if self.met else 'MISSED'}"
        return text


@dataclass(slots=True)
class Curve:
    """A line of a plot, or its bars."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Plot:
    """A picture of the page; ``name`` is its file's, ``ticks`` are what stands under 0, 1, 2, ... of x."""

    name: str
    title: str
    x: str
    y: str
    curves: list[Curve]
    bars: bool = False
    log_x: bool = False
    log_y: bool = False
    ticks: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Part:
    """One part of the benchmark: prints what it finds as it finds it."""

    name: str
    title: str
    about: str
    rounds: int = 0
    full: bool = False
    took_s: float = 0.0
    at: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, values: Sequence[float], unit: str, **more: Any) -> Figure:
        """A figure; ``more`` as in `Figure`."""
        return self.take(Figure(name, values, unit, **more))

    def take(self, figure: Figure) -> Figure:
        """One that was measured elsewhere, or could not be."""
        print(figure.line(), flush=True)
        if figure.why:
            self.skipped[figure.name] = figure.why
        else:
            figure.values, figure.batches = [float(value) for value in figure.values], dict(figure.batches)
            self.figures.append(figure)
        return figure

    def ratio(self, name: str, mine: Sequence[float], others: Sequence[float], **more: Any) -> Figure:
        """A figure of ratios, round by round."""
        return self.add(name, ratios(mine, others), "x", **more)

    def skip(self, name: str, why: str) -> None:
        """What could not be measured is a line that says why, and costs nothing else."""
        self.take(Figure(name, why=why))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> Part:
        """The reverse; what a later release has added is left out."""
        known = _known(cls, value)
        known["figures"] = [_figure(one) for one in known.get("figures", [])]
        known["plots"] = [_plot(one) for one in known.get("plots", [])]
        return cls(**known)


def _known(cls: type, value: dict[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(cls)}
    return {name: each for name, each in value.items() if name in names}


def _figure(value: dict[str, Any]) -> Figure:
    known = _known(Figure, value)
    known["batches"] = {int(size): count for size, count in known.get("batches", {}).items()}
    return Figure(**known)


def _plot(value: dict[str, Any]) -> Plot:
    known = _known(Plot, value)
    known["curves"] = [Curve(**_known(Curve, one)) for one in known["curves"]]
    return Plot(**known)


def number(value: float) -> str:
    """With three or four digits that mean something."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3g}"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    rows = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((row.partition(": ")[2] for row in rows if row.startswith("model name")), platform.processor())
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "threads": os.environ.get("OMP_NUM_THREADS", "unset"),
    }


def versions(server: str | None = None) -> dict[str, str]:
    """Of what takes part; ``server`` is the path of a redis-server."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if server is not None:
        said = subprocess.run([server, "--version"], capture_output=True, text=True, check=False).stdout
        found["redis-server"] = next((word[2:] for word in said.split() if word.startswith("v=")), "?")
    return found


def load(path: Path) -> dict[str, Part]:
    """The parts of a file, by name; none where there is no file."""
    if not path.exists():
        return {}
    return {one["name"]: Part.of_json(one) for one in json.loads(path.read_text(encoding="utf-8"))["parts"]}


def save(path: Path, parts: dict[str, Part]) -> None:
    """Write them, the last run of each; whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"written": now(), "parts": [part.to_json() for part in parts.values()]}, indent=1)
    whole = path.with_suffix(".new")
    whole.write_text(text + "\n", encoding="utf-8")
    whole.replace(path)


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
