"""CLIP's byte-pair encoding written as a ``tokenizer.json``.

Written out by hand rather than saved by the ``tokenizers`` package: the fingerprint covers these bytes, and two
machines with two releases of that package must come to the same one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["clip_bpe_json"]

# open_clip's pattern without its control tokens; it, too, ignores case (a long s folds to s).
_WORDS = r"(?i)'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def clip_bpe_json(vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]]) -> bytes:
    """A ``tokenizer.json`` that splits and merges as open_clip's ``SimpleTokenizer`` does.

    Args:
        vocabulary: token to id; bytes are spelled in GPT-2's alphabet, a word's last token ends in ``</w>``.
        merges: pairs of tokens, the first to be merged first.

    Source: https://github.com/openai/CLIP/blob/main/clip/simple_tokenizer.py
    """
    spec: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": _WORDS}, "behavior": "Removed", "invert": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "</w>",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": dict(vocabulary),
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }
    return json.dumps(spec, ensure_ascii=False, indent=1).encode()
