"""The fuzzers' targets on what was found, on their seeds, and, for texts and URLs, on what hypothesis thinks of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.targets import TARGETS, corpus, seeds

if TYPE_CHECKING:
    from pathlib import Path

FOUND = [(name, path) for name in TARGETS for path in corpus(name)]


@pytest.mark.parametrize(("name", "path"), FOUND, ids=[f"{name}-{path.name[:24]}" for name, path in FOUND])
def test_given_what_a_fuzzer_found_once_then_it_breaks_nothing_any_more(name: str, path: Path) -> None:
    TARGETS[name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_given_the_seeds_then_each_target_takes_them(name: str) -> None:
    given_to_it = [seed[:20_000] for seed in seeds(name)]
    assert len(given_to_it) >= 8
    for seed in given_to_it:
        TARGETS[name](seed)


# Where texts go wrong: what ftfy, html.unescape, case and the tokenizer's own spellings react to.
PIECES = st.sampled_from(
    ["a", " ", "\n", "\0", "\ud800", "\udfff", "\u200b", "\u3000", "\u0130", "ﬃ", "ß", "&amp;", "&#0;", "&#x110000;",
     "\ufeff", "\u202e", "<|endoftext|>", "<start_of_text>", "</w>", "Ã©", "â€™", "\U0010ffff", "👨‍👩‍👧", "_", "'s",
     "a" * 300]
)  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=5), max_size=40))
@settings(deadline=None, max_examples=150)
def test_given_any_text_then_there_are_ids_that_fit_or_nothing_to_embed(pieces: list[str]) -> None:
    TARGETS["text"]("".join(pieces).encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=150)
def test_given_any_bytes_as_a_text_then_there_are_ids_that_fit_or_nothing_to_embed(data: bytes) -> None:
    TARGETS["text"](data)


PARTS = st.sampled_from(
    ["http", "https", "HTTP", "file", "://", ":", "/", "//", "\\", "@", "user:pw@", "?", "#", "%", "%2f", "%00", "[",
     "]", "[::1]", "127.0.0.1", "2130706433", "0x7f.1", "example.com", "ex\u00e4mple.com", "\u2100", "。", ".", "..",
     ":80", ":443", ":99999", ":-1", "\t", "\n", " ", "\r\nHost: x", "a.jpg", "\0", "\ud800", "xn--", "*"]
)  # fmt: skip


@given(st.lists(PARTS | st.text(max_size=3), max_size=10), st.sampled_from(["", "http://", "https://example.com"]))
@settings(deadline=None, max_examples=400)
def test_given_any_url_then_it_is_one_host_and_one_request_line_or_a_verdict(parts: list[str], start: str) -> None:
    TARGETS["url"]((start + "".join(parts)).encode("utf-8", "surrogatepass"))


@given(st.binary(min_size=16, max_size=16) | st.binary(min_size=4, max_size=4))
@settings(deadline=None, max_examples=300)
def test_given_any_address_then_what_is_public_is_neither_local_nor_many(data: bytes) -> None:
    TARGETS["url"](data)
