"""Texts to ids, item by item, without torch.

Equal to open_clip's tokenizers where those are right. Where they are not, on purpose different: the spelling of a
control token (``<end_of_text>``, ``</s>``) in a user's text is text, while open_clip emits the control token and
pooling then ignores all that follows it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from clipfleet.models.cleaning import clean, is_blank, well_formed
from clipfleet.models.errors import BadBundle
from clipfleet.schemas.errors import ErrorCode, error_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clipfleet.models.config import TextConfig

__all__ = ["MAX_TEXT_BYTES", "Tokenize"]

# A context of 77 tokens ends within a few hundred bytes. The limit is far above what can count and below what
# costs: on one core 64 KiB take 10 to 60 ms to clean and tokenize, as one single word too, and 0.5 s at worst
# (ftfy works line by line, and all is line ends). 200 kB in one word: 0.13 s; no cap on words is needed.
MAX_TEXT_BYTES = 65_536


class Tokenize:
    """A model's tokenizer. Safe to call from several threads.

    Args:
        config: the ``text`` section of the model.
        tokenizer_file: ``tokenizer.json`` of the bundle, in the format of HF ``tokenizers``.
        max_bytes: longest text in UTF-8 bytes; a longer one is refused before any work on it.

    Raises:
        BadBundle: the file is no tokenizer.
    """

    def __init__(self, config: TextConfig, tokenizer_file: Path | str, *, max_bytes: int = MAX_TEXT_BYTES) -> None:
        self.config = config
        self.max_bytes = max_bytes
        self._tokenizer = _load(Path(tokenizer_file))
        self._head = [] if config.sot_id is None else [config.sot_id]
        self._tail = [] if config.eot_id is None else [config.eot_id]
        self._room = config.context_length - len(self._head) - len(self._tail)

    def __call__(self, text: str) -> tuple[NDArray[np.int64], bool]:
        """Clean and tokenize one text.

        Returns:
            Its ids, int64 of shape [L] with 1 <= L <= ``context_length``, specials included and not padded; and
            whether the text was cut to fit (the end-of-text id is then still last).

        Raises:
            BadInput: ``bad_request`` for what is no text, ``too_large`` above ``max_bytes``, ``empty_input`` for
                a text in which nothing can be seen once it is cleaned.
        """
        if not isinstance(text, str):
            raise error_for(ErrorCode.BAD_REQUEST, f"a text must be a string, not {type(text).__name__}")
        self._check_size(text)
        cleaned = clean(well_formed(text), self.config.cleaning)
        if is_blank(cleaned):
            raise error_for(ErrorCode.EMPTY_INPUT, "the text is blank")
        body: list[int] = self._tokenizer.encode(cleaned, add_special_tokens=False).ids
        ids = [*self._head, *body[: self._room], *self._tail]
        if not ids:
            raise error_for(ErrorCode.EMPTY_INPUT, "the text holds nothing that the model's vocabulary knows")
        return np.array(ids, dtype=np.int64), len(body) > self._room

    def _check_size(self, text: str) -> None:
        # The first test alone would do for ASCII and spares encoding a text of many megabytes.
        size = len(text) if len(text) > self.max_bytes else len(text.encode("utf-8", "surrogatepass"))
        if size > self.max_bytes:
            raise error_for(
                ErrorCode.TOO_LARGE, f"the text has more than {self.max_bytes} bytes, the most that this worker takes"
            )


def _load(path: Path) -> Tokenizer:
    try:
        spec = json.loads(path.read_bytes())
        return Tokenizer.from_str(json.dumps(_without_specials(spec)))
    except OSError as error:
        raise BadBundle(f"{path.name} cannot be read: {error}") from error
    except Exception as error:  # the Rust side raises plain Exception
        raise BadBundle(f"{path.name} is no tokenizer: {error}") from error


def _without_specials(spec: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer without control tokens, so that their spelling in a text is text.

    Begin and end come from ``TextConfig``, and so do length and padding.
    """
    added = spec.get("added_tokens") or []
    specials = {token["content"] for token in added if token.get("special")}
    kept = [token for token in added if not token.get("special")]
    model = spec["model"]
    if model.get("type") == "Unigram":
        # Its vocabulary is searched for whole pieces: "</s>" in a text would match the control piece. A NUL, which
        # no text holds here, makes it unmatchable and keeps all ids in place.
        vocab = [[f"\0{piece}" if piece in specials else piece, score] for piece, score in model["vocab"]]
        model = {**model, "vocab": vocab}
    return {
        **spec,
        "added_tokens": kept,
        "model": model,
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
