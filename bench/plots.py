"""The pictures of the page, as SVG: text stays text, and the same figures give the same file."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from bench.results import Plot

# Told apart by colour, by marker and in print; Okabe and Ito's palette for all eyes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"


def draw(plot: Plot, folder: Path) -> Path:
    """Write ``folder/NAME.svg``.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    with mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": plot.name, "font.family": "sans-serif", "font.size": 10}
    ):
        figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
        try:
            _fill(axes, plot)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{plot.name}.svg"
            figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        finally:
            plt.close(figure)
    return path


def _fill(axes, plot: Plot) -> None:
    for number, curve in enumerate(plot.curves):
        colour = COLOURS[number % len(COLOURS)]
        if plot.bars:
            width = 0.8 / len(plot.curves)
            axes.bar(
                [x + (number - (len(plot.curves) - 1) / 2) * width for x in curve.x],
                curve.y,
                width,
                color=colour,
                label=curve.label,
            )
            continue
        axes.plot(
            curve.x, curve.y, color=colour, marker=MARKERS[number % len(MARKERS)], markersize=5, label=curve.label
        )
        if curve.low and curve.high:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
    axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
    if plot.ticks:
        axes.set_xticks(range(len(plot.ticks)), plot.ticks)
    if plot.log_x:
        axes.set_xscale("log")
    if plot.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.set_axisbelow(True)
    if len(plot.curves) > 1 or plot.curves[0].label:
        axes.legend()
