"""``docs/performance.md`` out of the figures: written by a program, so that no number in it was typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.plots import draw
from bench.results import Figure, Part, number
from bench.stats import mean_batch

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """# Performance

<!-- Written by `make bench` out of performance/results.json: change bench/, not this page. -->

Each part runs ours and what it is compared with in turn, in one run on one machine: the other way round in every other
round, with the median of the rounds, the smallest and the largest. The ratios are what to look at: absolute figures say
more about the machine than about the code. In an open loop requests arrive at random moments, whatever became of those
before, and a latency counts from the moment that a request was meant to arrive (no coordinated omission); in a closed
loop so many are always on their way. `make bench` measures the shorter parts again in less than five minutes, and
`make bench ARGS=--full` all of them, with longer rounds, in less than an hour; `make bench ARGS="queue growth"`
measures these two alone.
"""


def write(folder: Path, parts: dict[str, Part]) -> None:
    """The page, and its pictures in ``performance/``."""
    pictures = _pictures(folder / "performance", parts)
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for part in parts.values() for row in (*_part(part, pictures), *_flames(part.name, folder))]
    text = "\n".join([HEAD, *_targets(parts), *rows])
    (folder / "performance.md").write_text(text.rstrip() + "\n", encoding="utf-8")


def _pictures(folder: Path, parts: dict[str, Part]) -> set[str]:
    """Names of the plots that are there now."""
    drawn = set()
    for part in parts.values():
        for plot in part.plots:
            try:
                draw(plot, folder)
            except ImportError:
                print("no pictures: matplotlib is not installed (pip install matplotlib)")
                return {
                    each.name for one in parts.values() for each in one.plots if (folder / f"{each.name}.svg").exists()
                }
            drawn.add(plot.name)
    return drawn


def _targets(parts: dict[str, Part]) -> list[str]:
    """What was aimed at, in one table."""
    aimed = [(part, figure) for part in parts.values() for figure in part.figures if figure.target]
    rows = [
        (
            f"[{part.title}](#{_anchor(part.title)})",
            figure.name,
            _value(figure),
            _target(figure),
            "yes" if figure.met else "**no**",
        )
        for part, figure in aimed
    ]
    minutes = sum(part.took_s for part in parts.values()) / 60
    told = f"The {len(parts)} parts took {minutes:.1f} minutes together; each says how long, and which form it was."
    return ["## Targets", "", *table(("part", "figure", "median", "target", "met"), rows), "", told, ""] if rows else []


def _part(part: Part, pictures: set[str]) -> list[str]:
    here = part.machine
    form = "full" if part.full else "quick"
    said = [
        f"{here.get('cpu', '?')}, {here.get('cores', '?')} cores, {here.get('kernel', '?')}",
        f"Python {here.get('python', '?')}, OMP_NUM_THREADS {here.get('threads', '?')}",
        ", ".join(f"{name} {version}" for name, version in part.versions.items()),
        f"{form} form, {part.rounds} rounds, {part.at}, {part.took_s:.0f} s, load before it {here.get('load', '?')}",
    ]
    rows = [f"## {part.title}", "", part.about, "", *(f"- {each}" for each in said if each), ""]
    if part.figures:
        rows += [*table(*_columns(part.figures)), ""]
    for plot in part.plots:
        if plot.name in pictures:
            rows += [f"![{plot.title}](performance/{plot.name}.svg)", ""]
    sizes = [(figure.name, _histogram(figure.batches)) for figure in part.figures if figure.batches]
    if sizes:
        rows += ["Batches, as size x how many of them:", "", *(f"- {name}: {text}" for name, text in sizes), ""]
    if part.skipped:
        rows += ["Not measured:", "", *(f"- {name}: {_safe(why)}" for name, why in part.skipped.items()), ""]
    return rows


def _flames(name: str, folder: Path) -> list[str]:
    """Links to the flame graphs of a part that are there (``python -m bench profile``)."""
    found = sorted(one.name for one in (folder / "performance").glob(f"flame-{name}-*.svg"))
    links = [f"[{each.removeprefix('flame-').removesuffix('.svg')}](performance/{each})" for each in found]
    return [f"Where its time goes: {', '.join(links)}.", ""] if links else []


def _columns(figures: list[Figure]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows; a column in which nobody has anything to say is left out."""
    head = (
        "what",
        "arrival",
        "median",
        "min",
        "max",
        "unit",
        "p50 ms",
        "p99 ms",
        "mean batch",
        "precision",
        "cosine",
        "target",
        "note",
    )
    rows = [
        (
            figure.name,
            figure.arrival,
            f"**{_value(figure)}**" if figure.target else _value(figure),
            number(figure.spread.low),
            number(figure.spread.high),
            figure.unit,
            "" if figure.p50_ms is None else number(figure.p50_ms),
            "" if figure.p99_ms is None else number(figure.p99_ms),
            f"{mean_batch(figure.batches):.1f}" if figure.batches else "",
            figure.precision,
            "" if figure.agreement is None else f"{figure.agreement:.7f}",
            f"{_target(figure)}: {'met' if figure.met else '**missed**'}" if figure.target else "",
            figure.note,
        )
        for figure in figures
    ]
    kept = [index for index in range(len(head)) if any(row[index] for row in rows)]
    return tuple(head[index] for index in kept), [tuple(row[index] for index in kept) for row in rows]


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """A Markdown table; what a cell holds cannot end it."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(_safe(cell) for cell in row) + " |" for row in rows]


def _safe(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _value(figure: Figure) -> str:
    return number(figure.spread.median)


def _target(figure: Figure) -> str:
    sign, _, value = figure.target.partition(" ")
    unit = "" if figure.unit == "x" else f" {figure.unit}"
    return f"{'≥' if sign == '>=' else '≤'} {value}{unit}"


def _histogram(sizes: dict[int, int]) -> str:
    """The most frequent, so that a long tail does not fill the page."""
    shown = sorted(sizes.items(), key=lambda each: -each[1])[:12]
    left = len(sizes) - len(shown)
    return ", ".join(f"{size} x {count}" for size, count in sorted(shown)) + (
        f", and {left} other sizes" if left else ""
    )


def _anchor(title: str) -> str:
    """As GitHub makes it."""
    return "".join(each for each in title.lower().replace(" ", "-") if each.isalnum() or each in "-_")
