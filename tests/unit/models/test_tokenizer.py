"""Texts become ids one by one; hostile texts get a verdict of their own, quickly."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipfleet.models import BadBundle, Tokenize
from clipfleet.models.cleaning import clean, is_blank, well_formed
from clipfleet.models.config import TextConfig
from clipfleet.schemas.errors import BadInput, ErrorCode


@pytest.fixture(scope="module")
def bundle(tiny):
    return tiny


@pytest.fixture(scope="module")
def tokenize(bundle):
    return Tokenize(bundle.config.text, bundle.tokenizer_file)


@pytest.fixture(scope="module")
def roomy(bundle):
    text = TextConfig(**{**bundle.config.text.to_json(), "context_length": 4096})
    return Tokenize(text, bundle.tokenizer_file, max_bytes=10**7)


@pytest.fixture(scope="module")
def spell(bundle):
    vocab = json.loads(bundle.tokenizer_file.read_text())["model"]["vocab"]
    letters = {index: token for token, index in vocab.items()}
    return lambda ids: [letters[int(index)] for index in ids]


def test_given_a_text_when_tokenized_then_begin_words_and_end(tokenize, spell) -> None:
    ids, truncated = tokenize("A  Red\tCAT")

    assert spell(ids) == ["<start_of_text>", "a</w>", "red</w>", "cat</w>", "<end_of_text>"]
    assert ids.dtype == np.int64
    assert not truncated


def test_given_an_over_long_text_when_tokenized_then_it_is_cut_and_says_so(tokenize, spell) -> None:
    ids, truncated = tokenize("red " * 11)
    exact, whole = tokenize("red " * 10)

    assert truncated
    assert not whole
    assert len(ids) == len(exact) == 12
    assert spell(ids) == spell(exact)
    assert spell(ids)[-1] == "<end_of_text>"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \t\r\n\u00a0\u3000\u200b ",
        "\u200b",
        "\ufeff",
        "\u2060\u200d\u200e",
        "\u00ad",
        "\u3164",
        "\u2800",
        "\ufe0f",
        "\0\0",
        "\x1b\x07",
        "&nbsp;",
        "&amp;nbsp;",
        "&#8203;",
    ],
)
def test_given_nothing_to_see_when_tokenized_then_empty_input(tokenize, text) -> None:
    with pytest.raises(BadInput) as caught:
        tokenize(text)

    assert caught.value.code is ErrorCode.EMPTY_INPUT


@pytest.mark.parametrize("text", ["0", ".", "\u72d7", "\U0001f600", "\u0301", "\ufffd", "&nbsp"[:2]])
def test_given_anything_to_see_when_tokenized_then_it_is_not_blank(tokenize, text) -> None:
    assert len(tokenize(text)[0]) > 2


@pytest.mark.parametrize(
    "literal", ["<end_of_text>", "<|endoftext|>", "<start_of_text>", "<|startoftext|>", "<pad>", "</s>"]
)
def test_given_a_control_literal_when_tokenized_then_it_is_plain_text(roomy, bundle, literal) -> None:
    ids, _ = roomy(f"a cat {literal} a red dog")
    text = bundle.config.text

    assert list(ids).count(text.eot_id) == 1
    assert list(ids).count(text.sot_id) == 1
    assert text.pad_id not in ids
    assert ids[-1] == text.eot_id
    # What follows the literal counts.
    assert list(ids) != list(roomy(f"a cat {literal} a red cat")[0])


def test_given_a_unigram_tokenizer_when_a_text_spells_its_controls_then_they_are_text(tmp_path) -> None:
    vocab = [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["\u2581", -2.0]]
    vocab += [[letter, -3.0] for letter in "<>/spadcat"]
    spec = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": c, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False}
            for i, c in enumerate(["<pad>", "</s>", "<unk>"])
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        "post_processor": None,
        "decoder": None,
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": None,
        "model": {"type": "Unigram", "unk_id": 2, "vocab": vocab, "byte_fallback": False},
    }  # fmt: skip
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(spec))
    tokenize = Tokenize(TextConfig(64, path.name, "whitespace", 0, None, 1, False, "last"), path)

    ids, truncated = tokenize("cat </s> <pad> a")

    assert list(ids).count(1) == 1
    assert 0 not in ids
    assert len(ids) > 10
    assert not truncated


def test_given_nul_when_tokenized_then_it_is_taken_out_and_cuts_nothing(tokenize) -> None:
    assert list(tokenize("cat\0 dog")[0]) == list(tokenize("cat dog")[0])


def test_given_lone_surrogates_when_tokenized_then_they_are_replaced_and_pairs_joined(tokenize) -> None:
    assert list(tokenize("cat \ud83d dog")[0]) == list(tokenize("cat \ufffd dog")[0])
    assert list(tokenize("\ud83d\ude00")[0]) == list(tokenize("\U0001f600")[0])


def test_given_a_text_above_the_limit_when_tokenized_then_too_large_before_any_work(tokenize) -> None:
    huge = "a" * 50_000_000
    started = time.process_time()
    for text in (huge, "\u72d7" * 21_846, "a" * 65_537):
        with pytest.raises(BadInput) as caught:
            tokenize(text)
        assert caught.value.code is ErrorCode.TOO_LARGE

    assert time.process_time() - started < 1
    assert tokenize("\u72d7" * 21_845)[1]
    assert tokenize("a" * 65_536)[1]


def test_given_a_word_of_200_kb_when_tokenized_then_it_takes_no_minutes(roomy) -> None:
    started = time.process_time()
    for word in ("a" * 200_000, "recatdog" * 25_000, "!?" * 100_000):
        assert roomy(word)[1]

    # 0.1 s each where this was written; superlinear merging takes minutes.
    assert time.process_time() - started < 10


@pytest.mark.parametrize("text", [None, 3, b"cat", ["cat"]])
def test_given_no_text_when_tokenized_then_bad_request(tokenize, text) -> None:
    with pytest.raises(BadInput) as caught:
        tokenize(text)

    assert caught.value.code is ErrorCode.BAD_REQUEST


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"model": {"type": "Nothing"}}', b"\xff"])
def test_given_no_tokenizer_in_the_file_then_bad_bundle(bundle, tmp_path, content) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(BadBundle, match="no tokenizer"):
        Tokenize(bundle.config.text, tmp_path / "tokenizer.json")
    with pytest.raises(BadBundle, match="cannot be read"):
        Tokenize(bundle.config.text, tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("cleaning", "expected"),
    [
        ("clip", "a photo, of a dog & caf\u00e9!"),
        ("whitespace", "A Photo, of a DOG & caf\u00e9!"),
        ("canonicalize", "a photo of a dog caf\u00e9"),
        ("lower", "a photo, of a dog &amp;amp; caf\u00c3\u00a9!".lower()),
        ("none", " A  Photo, of a\nDOG &amp;amp; caf\u00c3\u00a9! "),
    ],
)
def test_given_a_messy_text_when_cleaned_then_as_its_model_was_trained(cleaning, expected) -> None:
    assert clean(" A  Photo, of a\nDOG &amp;amp; caf\u00c3\u00a9! ", cleaning) == expected


def shared_cases():
    path = Path(__file__).parents[2] / "cases" / "text.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("case", shared_cases(), ids=lambda case: case["id"])
def test_given_a_case_of_the_shared_list_then_its_verdict(roomy, bundle, case) -> None:
    if case["verdict"] == "reject":
        with pytest.raises(BadInput) as caught:
            roomy(case["text"])
        assert f"code={caught.value.code}" in case["expect"]
        return
    ids, _ = roomy(case["text"])

    assert ids[-1] == bundle.config.text.eot_id
    assert list(ids).count(bundle.config.text.eot_id) == 1
    assert len(ids) > 2


@given(st.text(st.characters(exclude_categories=[]), max_size=200))
def test_given_any_characters_at_all_then_ids_or_a_verdict(tiny, tokenize, text) -> None:
    try:
        ids, truncated = tokenize(text)
    except BadInput:
        assert is_blank(clean(well_formed(text), "clip"))
        return

    assert ids[0] == tiny.config.text.sot_id
    assert ids[-1] == tiny.config.text.eot_id
    assert 3 <= len(ids) <= 12
    assert truncated <= (len(ids) == 12)
