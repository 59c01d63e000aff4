"""What is done to a text before it is tokenized, as the model's training did it.

========================  =========================================================================
``clip``                  open_clip's ``lower``: repair mojibake, HTML entities twice, spaces, lower case
``whitespace``            the same without the lower case; open_clip's default for HF tokenizers
``canonicalize``          repair, entities, ``_`` to space, no ASCII punctuation, lower case; SigLIP
``lower``                 spaces and lower case alone
``none``                  nothing
========================  =========================================================================

Source: ``open_clip/tokenizer.py`` (``get_clean_fn``); a test holds each against it.
"""

from __future__ import annotations

import html
import re
import string
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.models.config import Cleaning

__all__ = ["clean", "is_blank", "well_formed"]

# Printable ASCII without "&": ftfy and unescape leave it as it is, and ftfy takes 35 of a caption's 95 us to see it.
_NOTHING_TO_REPAIR = re.compile(r"[ -%'-~]*")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Letters and symbols by category, but nothing to see: Hangul fillers, blank Braille, the invisible joiners and
# selectors that only change a neighbour.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {
    chr(point) for start, stop in ((0xFE00, 0xFE10), (0xE0100, 0xE01F0)) for point in range(start, stop)
}
_BLANK_CATEGORIES = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf", "Cn"})


def clean(text: str, cleaning: Cleaning) -> str:
    """Clean a well-formed text in the given way."""
    return _CLEANERS[cleaning](text)


def is_blank(text: str) -> bool:
    """Whether nothing in the text can be seen: spaces, zero-width and control characters only.

    ``str.isspace`` does not know U+200B, of which open_clip makes a token.
    """
    return all(char in _INVISIBLE or unicodedata.category(char) in _BLANK_CATEGORIES for char in text)


def well_formed(text: str) -> str:
    """The text without NUL, halves of surrogate pairs joined, and lone ones replaced by U+FFFD.

    A JSON parser may deliver either half alone; encoding it to UTF-8 raises, and would again at each retry. NUL
    is taken out, never a place to cut: C strings downstream would end there.
    """
    text = text.replace("\0", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _repair(text: str) -> str:
    if _NOTHING_TO_REPAIR.fullmatch(text):
        return text.strip()
    # Imported here: it takes 50 ms that readers of model.json need not spend.
    import ftfy  # noqa: PLC0415

    return html.unescape(html.unescape(ftfy.fix_text(text))).strip()


def _whitespace(text: str) -> str:
    return " ".join(text.split())


def _canonicalize(text: str) -> str:
    return _whitespace(_repair(text).replace("_", " ").translate(_NO_PUNCTUATION).lower())


_CLEANERS: dict[Cleaning, Callable[[str], str]] = {
    "clip": lambda text: _whitespace(_repair(text)).lower(),
    "whitespace": lambda text: _whitespace(_repair(text)),
    "canonicalize": _canonicalize,
    "lower": lambda text: _whitespace(text).lower(),
    "none": lambda text: text,
}
