"""The demo model as it ships: whole, small, honest about itself, and right on what the README asks."""

from __future__ import annotations

import importlib.util
import io
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from clipfleet.cli.commands.demo import QUESTIONS
from clipfleet.models.bundle import Bundle, load_bundle
from clipfleet.models.library import find_bundle
from clipfleet.models.runtime import Runtime, open_runtime
from clipfleet.models.tokenizer import Tokenize

pytest.importorskip("onnxruntime")

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "examples" / "pictures"
QUIZ = ROOT / "tools" / "demo_model" / "quiz.py"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    found = find_bundle("demo")
    assert found is not None
    return load_bundle(found)


@pytest.fixture(scope="module")
def runtime(bundle: Bundle) -> Runtime:
    return open_runtime(bundle, device="cpu", threads=1)


@cache
def quiz() -> Any:
    spec = importlib.util.spec_from_file_location("demo_quiz", QUIZ)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def shipped() -> dict[str, dict[str, str]]:
    return json.loads((PICTURES / "pictures.json").read_text(encoding="utf-8"))


def prepared(path: Path, bundle: Bundle) -> np.ndarray:
    """The picture on white, at the model's size; all shipped pictures are square."""
    picture = Image.open(io.BytesIO(path.read_bytes())).convert("RGBA")
    flat = Image.alpha_composite(Image.new("RGBA", picture.size, (255, 255, 255, 255)), picture).convert("RGB")
    height, width = bundle.config.image.size
    return np.asarray(flat.resize((width, height), Image.Resampling.BICUBIC))


@pytest.fixture(scope="module")
def gallery(bundle: Bundle, runtime: Runtime) -> np.ndarray:
    pixels = np.stack([prepared(PICTURES / name, bundle) for name in shipped()])
    return np.concatenate([runtime.encode_images(pixels[i : i + 64]) for i in range(0, len(pixels), 64)])


def test_given_the_shipped_bundle_when_weighed_then_its_weights_are_at_most_16_mb(bundle: Bundle) -> None:
    assert bundle.image_graph.stat().st_size + bundle.text_graph.stat().st_size <= 16_000_000
    assert bundle.config.dimension == 256
    assert "no general CLIP" in bundle.config.description


def test_given_the_golden_inputs_when_run_then_the_vectors_are_those_of_training(
    bundle: Bundle, runtime: Runtime
) -> None:
    golden = bundle.golden()
    images = runtime.encode_images(golden.pixels)
    texts = runtime.encode_texts([row[row != bundle.config.text.pad_id] for row in golden.ids])
    assert ((images * golden.image_vectors).sum(1) > 0.9999).all()
    assert ((texts * golden.text_vectors).sum(1) > 0.9999).all()


def test_given_the_golden_texts_when_tokenized_then_they_give_the_golden_ids(bundle: Bundle) -> None:
    golden, tokenize = bundle.golden(), Tokenize(bundle.config.text, bundle.tokenizer_file)
    for text, row in zip(golden.texts, golden.ids, strict=True):
        ids, cut = tokenize(str(text))
        assert ids.tolist() == row[row != bundle.config.text.pad_id].tolist()
        assert cut == (len(ids) == bundle.config.text.context_length)


def test_given_64_pictures_when_run_alone_and_together_then_no_vector_changes(
    bundle: Bundle, runtime: Runtime, gallery: np.ndarray
) -> None:
    for name, together in list(zip(shipped(), gallery, strict=True))[:64]:
        alone = runtime.encode_images(prepared(PICTURES / name, bundle)[None])[0]
        assert float(alone @ together) > 0.99999, name


def test_given_a_short_text_when_padded_beside_a_long_one_then_its_vector_does_not_change(
    bundle: Bundle, runtime: Runtime
) -> None:
    tokenize = Tokenize(bundle.config.text, bundle.tokenizer_file)
    short, long = tokenize("cat")[0], tokenize("the quick brown fox jumps over the lazy dog " * 5)[0]
    alone, beside = runtime.encode_texts([short])[0], runtime.encode_texts([short, long])[0]
    assert len(long) == bundle.config.text.context_length
    assert float(alone @ beside) > 0.99999


def test_given_the_questions_of_the_demo_when_asked_of_the_shipped_pictures_then_the_first_hit_is_right(
    bundle: Bundle, runtime: Runtime, gallery: np.ndarray
) -> None:
    tokenize = Tokenize(bundle.config.text, bundle.tokenizer_file)
    concepts = [{"label": row["name"], "subgroup": row["subgroup"]} for row in shipped().values()]
    wrong = {}
    asked = [question for question in quiz().questions() if question["text"] in QUESTIONS]
    assert len(asked) == len(QUESTIONS)
    for question in asked:
        scores = gallery @ runtime.encode_texts([tokenize(question["text"])[0]])[0]
        first = int(scores.argmax())
        if first not in quiz().accepted(question, concepts):
            wrong[question["text"]] = concepts[first]["label"]
    assert not wrong


def test_given_one_picture_when_searched_by_itself_then_it_is_found_first(gallery: np.ndarray) -> None:
    scores = gallery @ gallery.T
    names = list(shipped())
    astray = [names[i] for i in range(len(names)) if scores[i].max() > scores[i, i] + 1e-5]
    assert not astray


def test_given_the_questions_when_read_then_they_are_seventy_and_each_has_an_answer() -> None:
    questions = quiz().questions()
    texts = [q["text"] for q in questions]
    assert len(texts) == len(set(texts)) == 70
    for question in questions:
        assert question.keys() <= {"text", "subgroups", "names", "match", "except"}, question
        assert question.get("names") or question.get("subgroups") or question.get("match"), question


@pytest.mark.parametrize("text", ["a red heart", "a cat", "flowers"])
def test_given_a_question_when_judged_then_only_the_right_kind_is_accepted(text: str) -> None:
    concepts = [
        {"label": "red heart", "subgroup": "heart"},
        {"label": "blue heart", "subgroup": "heart"},
        {"label": "black cat", "subgroup": "animal-mammal"},
        {"label": "dog", "subgroup": "animal-mammal"},
        {"label": "tulip", "subgroup": "plant-flower"},
    ]
    question = next(q for q in quiz().questions() if q["text"] == text)
    assert quiz().accepted(question, concepts) == {"a red heart": {0}, "a cat": {2}, "flowers": {4}}[text]


def test_given_the_model_card_when_read_then_it_owns_up_to_what_the_model_is() -> None:
    folder = ROOT / "worker" / "clipfleet" / "models" / "demo"
    card = (folder / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "no general CLIP" in card
    assert "## What it gets wrong" in card
    for question in quiz().questions():
        assert f"| {question['text']} |" in card
    licences = (folder / "DATA_LICENCES.md").read_text(encoding="utf-8")
    for held_out in ("Twemoji", "EmojiOne", "OpenMoji"):
        assert held_out in licences.split("never to train it")[1]


def test_given_the_shipped_pictures_when_listed_then_each_is_named_and_attributed() -> None:
    files = {path.name for path in PICTURES.glob("*.png")}
    assert files == set(shipped())
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*\.png", name) for name in files)
    assert sum(path.stat().st_size for path in PICTURES.iterdir()) <= 3_000_000
    attribution = (PICTURES / "ATTRIBUTION.md").read_text(encoding="utf-8")
    assert "CC BY 4.0" in attribution
    assert f"There are {len(files)} of them" in attribution
