"""A model's tokenizer as open_clip builds it, rewritten for ``Tokenize``, and held against the original."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from open_clip.tokenizer import HFTokenizer, SigLipTokenizer, SimpleTokenizer, get_clean_fn

from clipfleet.models.clip_bpe import clip_bpe_json
from clipfleet.models.config import Cleaning, Pooling, TextConfig
from clipfleet.models.errors import ExportRefused
from clipfleet.models.tokenizer import Tokenize
from clipfleet.models.towers import cuts_to_longest, text_parts

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PROBES", "check_tokenizer", "read_text"]

# Texts on which the rewritten tokenizer must agree with the original before a bundle is written.
PROBES = (
    "a photo of a dog",
    "A Photo, of a DOG!",
    "it's 3.14 o'clock, don't you think?",
    "caf\u00e9 na\u00efve \u0130stanbul stra\u00dfe",
    "a &lt;b&gt; &amp;amp; caf\u00c3\u00a9 snake_case #tag @me",
    "\u4e00\u53ea\u72d7\u5728\u6d77\u6ee9\u4e0a\u8ffd\u7403",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 at the beach \U0001f3d6\ufe0f",
    "x",
    "1234567890",
    "a red bus near a blue house " * 20,
)
_CLEANINGS: dict[Any, Cleaning] = {
    get_clean_fn("lower"): "clip",
    get_clean_fn("whitespace"): "whitespace",
    get_clean_fn("canonicalize"): "canonicalize",
}
_HF_POOLERS: dict[str, Pooling] = {"MeanPooler": "mean", "ClsPooler": "first"}


def read_text(model: Any, tokenizer: Any) -> tuple[TextConfig, bytes]:
    """The ``text`` section and the content of ``tokenizer.json``.

    Args:
        model: open_clip's model.
        tokenizer: open_clip's tokenizer for it.

    Raises:
        ExportRefused: the tokenizer does something that ``Tokenize`` does not.
    """
    if isinstance(tokenizer, SimpleTokenizer):
        content, specials = _simple(tokenizer)
    elif isinstance(tokenizer, (HFTokenizer, SigLipTokenizer)):
        content, specials = _hugging_face(tokenizer)
    else:
        raise ExportRefused(f"tokenizers of type {type(tokenizer).__name__} are not known here")
    cleaning = _CLEANINGS.get(getattr(tokenizer, "clean_fn", get_clean_fn("canonicalize")))
    if cleaning is None:
        raise ExportRefused("the tokenizer cleans texts in a way that is not known here")
    start, end, pad = specials
    config = TextConfig(
        context_length=int(tokenizer.context_length),
        tokenizer="tokenizer.json",
        cleaning=cleaning,
        pad_id=pad,
        sot_id=start,
        eot_id=end,
        dynamic_length=cuts_to_longest(model),
        pooling=_pooling(model),
    )
    return config, content


def check_tokenizer(config: TextConfig, file: Path, tokenizer: Any) -> None:
    """Compare with open_clip's own tokenizer on texts of many kinds.

    Raises:
        ExportRefused: they differ; names the first text.
    """
    tokenize = Tokenize(config, file)
    for text in PROBES:
        found = tokenize(text)[0].tolist()
        found += [config.pad_id] * (config.context_length - len(found))
        expected = tokenizer([text])[0].tolist()
        if found != expected:
            raise ExportRefused(f"the tokenizer differs from open_clip's on {text!r}: {found} for {expected}")


def _simple(tokenizer: Any) -> tuple[bytes, tuple[int | None, int | None, int]]:
    if tokenizer.reduction_fn is not None:
        raise ExportRefused("the tokenizer drops words at random (reduction_mask), which is for training alone")
    merges = sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.__getitem__)
    content = clip_bpe_json(tokenizer.encoder, merges)
    return content, (tokenizer.sot_token_id, tokenizer.eot_token_id, 0)


def _hugging_face(tokenizer: Any) -> tuple[bytes, tuple[int | None, int | None, int]]:
    inner = tokenizer.tokenizer
    backend = getattr(inner, "backend_tokenizer", None)
    if getattr(tokenizer, "tokenizer_mode", "") or backend is None or inner.padding_side != "right":
        raise ExportRefused("the tokenizer pads or ends its texts in a way that is not known here")
    body = inner("a photo", add_special_tokens=False).input_ids
    whole = inner("a photo").input_ids
    places = [i for i in range(len(whole) - len(body) + 1) if whole[i : i + len(body)] == body]
    if not places or places[0] > 1 or len(whole) - places[0] - len(body) > 1:
        raise ExportRefused("the tokenizer puts more than one token before or after a text")
    head, tail = whole[: places[0]], whole[places[0] + len(body) :]
    if getattr(tokenizer, "strip_sep_token", False):
        tail = [0 if token == inner.sep_token_id else token for token in tail]
    return backend.to_str().encode(), (
        head[0] if head else None,
        tail[0] if tail else None,
        int(inner.pad_token_id),
    )


def _pooling(model: Any) -> Pooling:
    tower, pool_type, _ = text_parts(model)
    if getattr(tower, "cls_emb", None) is not None:
        return "last"
    if pool_type:
        return cast("Pooling", pool_type)
    return _HF_POOLERS.get(type(tower.pooler).__name__, "mask")
