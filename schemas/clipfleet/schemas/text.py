"""Text of strangers on its way to a terminal, a table or an error: shown alike on either side of the queue."""

from __future__ import annotations

__all__ = ["counted", "visible"]


def counted(count: int, one: str, many: str = "") -> str:
    """So many of something, with thousands apart: ``1 row``, ``1,200 rows``.

    Args:
        count: how many.
        one: what is said of one, ``row matches``.
        many: what is said of any other number, ``rows match``; empty: ``one`` with an s.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def visible(text: str, *, keep: str = "") -> str:
    r"""Text without what a terminal would obey or hide: ``\xNN`` stands for it.

    Ids, metadata and file names are others' words, and come from strangers' archives too.

    Args:
        text: any.
        keep: what stays though it cannot be printed, such as line ends.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode("ascii") for each in text
    )
