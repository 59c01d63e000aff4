"""A pipeline as SVG: boxes in layers, columns on the edges, stacked boxes for rows below a ``flat_map``.

Its colours follow the reader's light or dark mode; it has no script, no font and no link of its own.
"""

from __future__ import annotations

import unicodedata
from html import escape
from typing import TYPE_CHECKING, Final

from clipfleet.pipeline.layout import lay_out
from clipfleet.pipeline.steps import steps_of
from clipfleet.pipeline.values import brief
from clipfleet.schemas.text import visible

if TYPE_CHECKING:
    from clipfleet.pipeline.layout import Box
    from clipfleet.pipeline.pipeline import Pipeline
    from clipfleet.pipeline.steps import Step

__all__ = ["draw_svg"]

_CHARACTER: Final = 7.3  # width of a character of 12 px monospace, with a little to spare
_LINE: Final = 17.0
_PAD: Final = 12.0
_MARGIN: Final = 20.0
_STACK: Final = 4.0
_LONGEST: Final = 64

# Plain rules that every viewer knows, under names of their own: inside a page they must not style the page.
_STYLE: Final = """
    .cf-paper { fill: #fff } .cf-box { fill: #f6f8fa; stroke: #59636e } .cf-ends { fill: #ddf4ff; stroke: #0969da }
    .cf-name, .cf-dim, .cf-option, .cf-column { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
    .cf-name { fill: #1f2328; font-weight: 600 } .cf-dim { fill: #59636e } .cf-option { fill: #9a6700 }
    .cf-edge { fill: none; stroke: #818b98; stroke-width: 1.5 } .cf-tip { fill: #818b98 }
    .cf-column { fill: #0969da; stroke: #fff; stroke-width: 4; paint-order: stroke }
    @media (prefers-color-scheme: dark) {
      .cf-paper { fill: #0d1117 } .cf-box { fill: #151b23; stroke: #9198a1 }
      .cf-ends { fill: #121d2f; stroke: #4493f8 }
      .cf-name { fill: #f0f6fc } .cf-dim { fill: #9198a1 } .cf-option { fill: #d29922 }
      .cf-edge { stroke: #656c76 } .cf-tip { fill: #656c76 } .cf-column { fill: #4493f8; stroke: #0d1117 }
    }
"""


def draw_svg(pipeline: Pipeline) -> str:
    """The pipeline as one SVG document."""
    steps = steps_of(pipeline)
    lines = [_lines(step) for step in steps]
    edges = [(parent, number) for number, step in enumerate(steps) for parent in step.parents]
    layout = lay_out([_size(each) for each in lines], edges)
    columns = [_on_edge(steps, above, below) for above, below in edges]
    # A label stands to the right of its edge, and may stand out on that side.
    widest = max([layout.width, *(_label_at(path)[0] + _wide(label) for path, label in _zip(layout.edges, columns))])
    width, height = widest + 2 * _MARGIN, layout.height + 2 * _MARGIN
    shapes = [
        *(_edge(path) for path in layout.edges),
        *(_box(step, text, box) for step, text, box in zip(steps, lines, layout.boxes, strict=True)),
        *(_label(path, label) for path, label in _zip(layout.edges, columns)),
    ]
    body = "\n".join(f"  {shape}" for shape in shapes if shape)
    title = escape(visible(pipeline.name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-_MARGIN:g} {-_MARGIN:g} {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="{title}">\n'
        f"  <title>{title}</title>\n  <style>{_STYLE}  </style>\n"
        '  <marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto" '
        'markerUnits="userSpaceOnUse"><path class="cf-tip" d="M0 0L8 4L0 8z"/></marker>\n'
        f'  <rect class="cf-paper" x="{-_MARGIN:g}" y="{-_MARGIN:g}" width="{width:g}" height="{height:g}"/>\n'
        f"{body}\n</svg>\n"
    )


def _zip(paths: list[list[Box]], columns: list[str]) -> list[tuple[list[Box], str]]:
    return list(zip(paths, columns, strict=True))


def _lines(step: Step) -> list[tuple[str, str]]:
    """(class, text) of each line of a box."""
    made = ", ".join(map(visible, step.writes))
    method = step.label if step.label != step.name else ""
    rows = f" {step.rows}" if step.rows else ""
    lines = [("name", visible(step.name))]
    if said := " → ".join(part for part in (method + rows, made) if part):
        lines.append(("dim", said))
    if step.notes:
        lines.append(("option", " · ".join(step.notes)))
    return [(kind, brief(text, _LONGEST)) for kind, text in lines]


def _on_edge(steps: list[Step], above: int, below: int) -> str:
    """What goes along an edge: what its end reads or, into a join, what the branch has made."""
    names = steps[below].reads or (steps[above].writes if steps[below].label == "concat" else ())
    return brief(", ".join(map(visible, names)), _LONGEST)


def _size(lines: list[tuple[str, str]]) -> tuple[float, float]:
    return max(_wide(text) for _, text in lines) + 2 * _PAD, len(lines) * _LINE + _PAD


def _wide(text: str) -> float:
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text) * _CHARACTER


def _box(step: Step, lines: list[tuple[str, str]], box: Box) -> str:
    left, ends = box.x - box.width / 2, step.label in {"input", "output"}
    kind, round_ = ("ends", box.height / 2) if ends else ("box", 6.0)
    # A shadow box behind it: one of many.
    shifts = [_STACK, 0.0] if step.depth else [0.0]
    shapes = [
        f'<rect class="cf-{kind}" x="{left + shift:.1f}" y="{box.y + shift:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{round_:g}"/>'
        for shift in shifts
    ]
    for number, (line_kind, text) in enumerate(lines):
        y = box.y + _PAD / 2 + (number + 0.72) * _LINE
        at = f'text-anchor="middle" x="{box.x:.1f}" y="{y:.1f}"'
        shapes.append(f'<text class="cf-{line_kind}" {at}>{escape(text)}</text>')
    return f"<g>{''.join(shapes)}</g>"


def _edge(path: list[Box]) -> str:
    x, y = path[0].x, path[0].y + path[0].height
    drawn = f"M{x:.1f} {y:.1f}"
    for box in path[1:]:
        middle = (y + box.y) / 2
        drawn += f"C{x:.1f} {middle:.1f} {box.x:.1f} {middle:.1f} {box.x:.1f} {box.y:.1f}"
        x, y = box.x, box.y + box.height
    return f'<path class="cf-edge" marker-end="url(#tip)" d="{drawn}"/>'


def _label_at(path: list[Box]) -> tuple[float, float]:
    above, below = path[-2:]
    bottom = above.y + above.height
    return (above.x + below.x) / 2 + 6, (bottom + below.y) / 2 + 4


def _label(path: list[Box], text: str) -> str:
    if not text:
        return ""
    x, y = _label_at(path)
    return f'<text class="cf-column" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
