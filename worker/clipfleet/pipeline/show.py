"""Tables to look at: in a terminal with rich, in a notebook as HTML, anywhere else as plain text."""

from __future__ import annotations

import base64
import html
import io
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from clipfleet.pipeline.values import brief, is_picture, scores, shape_of, thumbnail
from clipfleet.schemas.text import counted, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray
    from rich.text import Text

    from clipfleet.pipeline.table import Table

__all__ = ["html_table", "print_table"]

# Two pixels a character: a picture of 20 x 10 characters tells a cat from a car.
_CELL_PIXELS: Final = (20, 20)
_HTML_PIXELS: Final = (96, 96)
_HTML_ROWS: Final = 50
_HITS: Final = 5
_CELL: Final = 48


def print_table(table: Table, limit: int = 10, file: TextIO | None = None) -> None:
    """Print the first ``limit`` rows to ``file`` (stdout by default)."""
    out = sys.stdout if file is None else file
    try:
        import rich  # noqa: F401, PLC0415  the [cli] extra has it, a worker need not
    except ModuleNotFoundError:
        out.write(_plain_table(table, limit))
    else:
        if out.isatty():
            _print_rich(table, limit, out)
        else:
            out.write(_plain_table(table, limit))
    if len(table) > limit:
        out.write(f"… {counted(len(table) - limit, 'more row')}\n")
    out.flush()


def html_table(table: Table) -> str:
    """The first 50 rows as an HTML table; pictures inside it as PNG, every text escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_html_cell(value)}</td>' for value in row)}</tr>" for row in table.rows[:_HTML_ROWS]
    )
    more = len(table) - _HTML_ROWS
    tail = f"<p>… {counted(more, 'more row')}</p>" if more > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{tail}"


# Plain text -------------------------------------------------------------------------------------------------------


def _plain_table(table: Table, limit: int) -> str:
    cells = [[visible(name) for name in table.columns]]
    cells += [[brief(value, _CELL) for value in row] for row in table.rows[:limit]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in cells)


# rich -------------------------------------------------------------------------------------------------------------


def _print_rich(table: Table, limit: int, out: TextIO) -> None:
    from rich import box  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = RichTable(box=box.SIMPLE_HEAD)
    for name in table.columns:
        numbers = all(isinstance(value, int | float) for value in table.column(name)[:limit])
        drawn.add_column(Text(visible(name)), justify="right" if numbers else "left", overflow="fold")
    for row in table.rows[:limit]:
        drawn.add_row(*(_rich_cell(value) for value in row))
    Console(file=out, highlight=False).print(drawn)


def _rich_cell(value: Any) -> Text:
    from rich.text import Text  # noqa: PLC0415

    if is_picture(value):
        return _picture_cell(value)
    # As Text: a label such as "[red]" is data, not markup.
    return Text(_lines(value, "\n"))


def _picture_cell(pixels: NDArray[np.uint8]) -> Text:
    """Upper half blocks: the upper pixel is the character's colour, the lower one the colour behind it."""
    from rich.text import Text  # noqa: PLC0415

    small = thumbnail(pixels, *_CELL_PIXELS).tolist()
    text = Text(no_wrap=True)
    for top in range(0, len(small), 2):
        below = small[top + 1] if top + 1 < len(small) else [None] * len(small[top])
        for upper, lower in zip(small[top], below, strict=True):
            text.append("▀", _rgb(upper) + ("" if lower is None else f" on {_rgb(lower)}"))
        text.append("\n")
    text.append(shape_of(pixels), "dim")
    return text


def _rgb(pixel: list[int]) -> str:
    return f"rgb({pixel[0]},{pixel[1]},{pixel[2]})"


# HTML -------------------------------------------------------------------------------------------------------------


def _html_cell(value: Any) -> str:
    if is_picture(value):
        data = base64.b64encode(_png(thumbnail(value, *_HTML_PIXELS))).decode("ascii")
        return f'<img src="data:image/png;base64,{data}" alt="{shape_of(value)}" title="{shape_of(value)}">'
    return _lines(value, "<br>", html.escape)


def _png(pixels: NDArray[np.uint8]) -> bytes:
    from PIL import Image  # noqa: PLC0415

    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def _lines(value: Any, between: str, escape: Callable[[str], str] = str) -> str:
    """One line, or one for each hit."""
    hits = scores(value)
    if hits is None:
        return escape(brief(value, _CELL * 2))
    lines = [escape(f"{hit.score:.3f}  {visible(hit.id[:_CELL])}") for hit in hits[:_HITS]]
    return between.join([*lines, f"… {len(hits) - _HITS} more"] if len(hits) > _HITS else lines)
