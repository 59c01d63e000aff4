"""What JSON may hold, against a fleet in this process: an answer for each, never an exception."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from clipfleet.producer.testing import FakeClient, InMemoryFleet
from clipfleet.tasks import answers

ODD = [
    *("", "text", "\ud800", "\0", 5, -1, 0, True, 1e308, 2**70, float("nan"), float("inf")),
    *([], {}, [None], [[1]], [1e39], [2**70], {"url": 5}, {"url": "\ud800"}, {"path": "../x"}, {"base64": "é"}),
]


@pytest.fixture
def task(monkeypatch):
    fleet = InMemoryFleet()
    fleet.on("search", lambda _request: {"hits": [{"id": "a", "score": 0.5, "metadata": {}}]})
    client = FakeClient(fleet)
    monkeypatch.setattr(answers, "client", lambda: client)
    with client:
        yield SimpleNamespace(request=SimpleNamespace(retries=0))


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_given_anything_that_json_can_hold_when_asked_then_it_is_answered(task, odd):
    told = [answers.embed(task, **{name: odd}) for name in ("text", "texts", "image", "images")]
    told += [answers.embed(task, text="a", timeout=odd), answers.embed(task, texts=["a"], timeout=odd)]
    told += [answers.search(task, **{name: odd}) for name in ("text", "image", "vector")]
    options = ("collection", "limit", "filter", "output_fields", "timeout")
    told += [answers.search(task, text="a", **{name: odd}) for name in options]
    for answer in json.loads(json.dumps(told)):
        assert answer["ok"] or "results" in answer or answer["error"]["code"] in {"bad_request", "empty_input"}


def test_given_a_timeout_that_is_none_when_several_are_asked_then_each_says_so(task):
    done = answers.embed(task, texts=["a", "b"], timeout="soon")
    assert [each["error"]["code"] for each in done["results"]] == ["bad_request"] * 2
