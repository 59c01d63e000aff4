"""Our ids are open_clip's ids, on every text where open_clip is right."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import open_clip
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from clipfleet.models import ExportRefused, Tokenize, export_model, open_runtime
from clipfleet.models.cleaning import clean
from clipfleet.models.clip_bpe import clip_bpe_json
from clipfleet.models.config import TextConfig
from clipfleet.models.open_clip_text import PROBES, check_tokenizer, read_text
from clipfleet.models.runtime import lowest_cosine
from clipfleet.schemas.errors import BadInput

CASES = Path(__file__).parents[1] / "cases" / "text.jsonl"
WORDS = [
    "a", "photo", "of", "The", "DOG's", "I'LL", "it\u017f", "don't", "1234", "3.14", "&lt;b&gt;", "&amp;eacute;",
    "caf\u00e9", "\u00c3\u00a9", "\u00a0", "x_y", "#tag", "\u65e5\u672c", "\u200b", "\U0001f642", "na\u00efve",
    "\u0130stanbul", "\ufb01sh", "\u00bd", "\u2460", "\u338f", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u0645\u0631",
]  # fmt: skip
# The two libraries know letters that later Unicodes added to a different extent; all of Unicode 14 is agreed.
KNOWN = st.characters(exclude_categories=["Cs"]).filter(lambda char: unicodedata.category(char) != "Cn")
TEXTS = st.one_of(
    st.text(KNOWN, max_size=60),
    st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join),
    st.lists(st.sampled_from(WORDS), max_size=20).map("".join),
    st.text(st.characters(max_codepoint=0x2FF), max_size=80),
)


@pytest.fixture(scope="module")
def original():
    return open_clip.tokenizer.SimpleTokenizer()


@pytest.fixture(scope="module")
def tokenize(original, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_bytes(clip_bpe_json(original.encoder, original.bpe_ranks))
    ends = (original.sot_token_id, original.eot_token_id)
    return Tokenize(TextConfig(77, path.name, "clip", 0, *ends, True, "argmax"), path)


def padded(tokenize, text):
    ids = tokenize(text)[0].tolist()
    return ids + [tokenize.config.pad_id] * (tokenize.config.context_length - len(ids))


@settings(max_examples=1500, deadline=None)
@given(TEXTS)
def test_given_any_text_when_tokenized_then_open_clip_s_ids(tokenize, original, text) -> None:
    # Repairing mojibake can make such a letter of two old ones.
    assume(all(unicodedata.category(char) != "Cn" for char in clean(text, "clip")))
    try:
        ids = padded(tokenize, text)
    except BadInput:
        return  # blank; open_clip embeds nothing at all
    # NUL alone is treated differently on purpose, and control literals, which no strategy here spells.
    assert ids == original([text.replace("\0", "")])[0].tolist()


@pytest.mark.parametrize(
    "case", [json.loads(line) for line in CASES.read_text().splitlines()], ids=lambda case: case["id"]
)
def test_given_a_case_of_the_shared_list_when_tokenized_then_as_open_clip_or_as_it_should(
    tokenize, original, case
) -> None:
    if case["verdict"] == "reject":
        with pytest.raises(BadInput):
            tokenize(case["text"])
    elif case["id"] == "eot_literal_openclip":
        ids = tokenize(case["text"])[0].tolist()
        assert ids.count(original.eot_token_id) == 1
        assert original([case["text"]])[0].tolist().count(original.eot_token_id) == 2
    elif case["id"] not in {"nul", "lone_surrogate"}:
        assert padded(tokenize, case["text"]) == original([case["text"]])[0].tolist()


@pytest.mark.parametrize(
    ("ours", "theirs"), [("clip", "lower"), ("whitespace", "whitespace"), ("canonicalize", "canonicalize")]
)
def test_given_any_text_when_cleaned_then_as_open_clip_does(ours, theirs) -> None:
    function = open_clip.tokenizer.get_clean_fn(theirs)

    @settings(max_examples=300, deadline=None)
    @given(TEXTS)
    def check(text):
        assert clean(text, ours) == function(text)

    check()


def test_given_a_tokenizer_that_drops_words_at_random_then_refused() -> None:
    model = open_clip.create_model("ViT-B-32", load_weights=False)
    with pytest.raises(ExportRefused, match="drops words at random"):
        read_text(model, open_clip.tokenizer.SimpleTokenizer(reduction_mask="simple"))
    with pytest.raises(ExportRefused, match="of type int"):
        read_text(model, 3)


def sentencepiece_like(folder):
    """A Unigram tokenizer in the shape of SigLIP's (T5), trained here: the hub's cannot be had without a network."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.Unigram())
    inner.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    corpus = [text.lower() for text in (*PROBES, *WORDS)] * 3
    specials = ["<pad>", "</s>", "<unk>"]
    inner.train_from_iterator(
        corpus, trainers.UnigramTrainer(vocab_size=200, special_tokens=specials, unk_token="<unk>")
    )
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    # As SigLIP has it: the end token pads, too.
    PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="</s>", pad_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


def test_given_siglip_s_kind_when_exported_then_open_clip_s_own_vectors_and_never_cut(
    make_model, cache, tmp_path_factory
) -> None:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("siglip")
    sentencepiece_like(folder)
    from .conftest import write_model

    name = write_model(
        folder,
        {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "squash"},
        custom_text=True,
        init_logit_bias=-10,
        vision={"pool_type": "avg"},
        text={
            "hf_tokenizer_name": "this-directory",
            "tokenizer_kwargs": {"clean": "canonicalize"},
            "vocab_size": 200,
            "no_causal_mask": True,
            "proj_bias": True,
            "pool_type": "last",
            "norm_kwargs": {"eps": 1e-6},
            "act_kwargs": {"approximate": "tanh"},
        },
    )

    bundle = export_model(name, cache=cache)

    text = bundle.config.text
    assert (text.cleaning, text.pooling, text.dynamic_length) == ("canonicalize", "last", False)
    assert (text.sot_id, text.eot_id, text.pad_id) == (None, 1, 1)
    tokenize = Tokenize(text, bundle.tokenizer_file)
    theirs = open_clip.get_tokenizer(name)
    check_tokenizer(text, bundle.tokenizer_file, theirs)
    # A control literal stays text here, too.
    assert tokenize("cat </s> dog")[0].tolist().count(1) == 1
    model = open_clip.create_model_from_pretrained(name, return_transform=False).eval()
    vectors = open_runtime(bundle).encode_texts([tokenize(probe)[0] for probe in PROBES])
    assert lowest_cosine(vectors, model.encode_text(theirs(list(PROBES)), normalize=True).detach().numpy()) >= 0.9999


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
def test_given_plain_ascii_when_cleaned_without_repair_then_as_if_repaired(text) -> None:
    assert clean(text, "whitespace") == open_clip.tokenizer.get_clean_fn("whitespace")(text)
