"""Cut CLIP's byte-pair vocabulary (MIT, OpenAI) to the merges that our words need; write ``tokenizer.json``.

The file is read by ``tokenizers`` in training and in serving alike. Ids: 0 pad, 1 start, 2 end, bytes, merges.
"""

from __future__ import annotations

import gzip
import re
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from common import CONTEXT, WORK, read_json
from phrases import ARTICLES, MEDIA, OPENERS, SENTENCES, SUFFIXES
from teacher import Teacher
from tokenizers import Tokenizer

from clipfleet.models.cleaning import clean
from clipfleet.models.clip_bpe import clip_bpe_json

PAD, START, END = 0, 1, 2
COMMON_WORDS = 4_000
CLIP_MERGES = 48_894  # of the file's lines after the first, the ones that CLIP uses


def byte_letters() -> dict[int, str]:
    """Return the printable letter that stands for each byte (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}


def clip_merges() -> list[tuple[str, str]]:
    """Return CLIP's merges, best first, from the file inside open_clip's package."""
    spec = find_spec("open_clip")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps open_clip_torch (see tools/demo_model/README.md)")
    packed = (Path(spec.origin).parent / "bpe_simple_vocab_16e6.txt.gz").read_bytes()
    text = gzip.decompress(packed).decode()
    return [(a, b) for a, b in (line.split() for line in text.split("\n")[1 : CLIP_MERGES + 1])]


def used_merges(words: set[str], rank: dict[tuple[str, str], int]) -> set[tuple[str, str]]:
    """Return the merges that these words go through."""
    letters, used = byte_letters(), set()
    for word in words:
        parts = [letters[b] for b in word.encode()]
        parts[-1] += "</w>"
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: rank.get(pair, len(rank)))
            if best not in rank:
                break
            used.add(best)
            joined, i = [], 0
            while i < len(parts):
                whole = tuple(parts[i : i + 2]) == best
                joined.append("".join(best) if whole else parts[i])
                i += 2 if whole else 1
            parts = joined
    return used


def corpus_words() -> set[str]:
    """Return every word that the vocabulary should hold in few pieces."""
    concepts = read_json(WORK / "concepts.json")
    common = Teacher().common_words(COMMON_WORDS)
    texts = [*common, *OPENERS, *MEDIA, *ARTICLES, *SUFFIXES, *SENTENCES]
    texts += [c for row in read_json(WORK / "shapes.json")["train"][0][:3000] for c in row]
    for c in concepts:
        texts += [c["label"], *c["aliases"], *c["tags"], c["group"], c["subgroup"]]
    return {w for t in texts for w in re.findall(r"[^\W\d_]+|\d|[^\s\w]+", tidy(t))}


def build() -> bytes:
    """Return the content of ``tokenizer.json``."""
    merges = clip_merges()
    used = used_merges(corpus_words(), {pair: i for i, pair in enumerate(merges)})
    kept = [pair for pair in merges if pair in used]
    letters = list(byte_letters().values())
    vocabulary = ["<pad>", "<start>", "<end>", *letters, *(c + "</w>" for c in letters), *("".join(m) for m in kept)]
    return clip_bpe_json({token: i for i, token in enumerate(vocabulary)}, kept)


def tidy(text: str) -> str:
    """Return the text cleaned as a worker cleans it, with a short cut for the plain texts that training makes."""
    plain = text.isascii() and "&" not in text
    return " ".join(text.lower().split()) if plain else clean(text, "clip")


class Encoder:
    """Texts to ids, as a worker makes them: start, subwords cut to the context, end, padded to the longest."""

    def __init__(self, path: Path = WORK / "tokenizer.json") -> None:
        self.tokenizer = Tokenizer.from_file(str(path))
        self.size = self.tokenizer.get_vocab_size()

    def __call__(self, texts: list[str]) -> list[list[int]]:
        encoded = self.tokenizer.encode_batch([tidy(t) for t in texts], add_special_tokens=False)
        rows = [[START, *e.ids[: CONTEXT - 2], END] for e in encoded]
        longest = max(map(len, rows))
        return [row + [PAD] * (longest - len(row)) for row in rows]


if __name__ == "__main__":
    (WORK / "tokenizer.json").write_bytes(build())
    encoder = Encoder()
    lengths = [len(encoder([c["label"]])[0]) for c in read_json(WORK / "concepts.json")]
    print(encoder.size, "tokens; a name takes", sum(lengths) / len(lengths), "and at most", max(lengths))
