"""The shards and the table of tests/cases/expect.tsv, indexed with a client that takes everything."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from clipfleet.index import index_sources
from clipfleet.operators import decode_image
from clipfleet.producer.testing import FakeClient, InMemoryFleet
from clipfleet.schemas.errors import RequestFailed

CASES = Path(__file__).resolve().parents[1] / "cases"


def _rules(name):
    with (CASES / "expect.tsv").open(encoding="utf-8") as file:
        (row,) = [row for row in csv.DictReader(file, delimiter="\t") if row["file"] == name]
    return dict(rule.split("=", 1) for rule in row["expect"].split(";"))


@pytest.fixture
def index():
    """What was sent, and the report, for one of the cases."""

    def run(name, *, decoded=True):
        fleet, sent, outcomes = InMemoryFleet(), [], []

        def take(request):
            if decoded:
                decode_image(request.inputs["image"])
            sent.append(request.inputs)
            return {"id": request.inputs["id"]}

        fleet.on("index_image", take)
        with FakeClient(fleet) as client:
            report = index_sources(client, [CASES / name], on_outcome=outcomes.append)
        return sent, report, outcomes

    return run


def test_given_the_cases_that_are_no_pictures_then_each_has_a_test_here():
    with (CASES / "expect.tsv").open(encoding="utf-8") as file:
        names = {row["file"] for row in csv.DictReader(file, delimiter="\t") if not row["file"].startswith("images/")}
    assert names == {"shards/dotted_keys.tar", "shards/truncated.tar", "urls_dirty.csv"}
    assert {f"shards/{path.name}" for path in (CASES / "shards").iterdir()} < names


def test_given_dotted_keys_when_indexed_then_every_picture_has_its_own_id_by_the_last_dot(index):
    rules = _rules("shards/dotted_keys.tar")
    sent, report, _ = index("shards/dotted_keys.tar")
    keys = [inputs["id"].removeprefix("dotted_keys/") for inputs in sent]
    assert keys == rules["keys_last_dot"].split("|")
    assert (report.indexed, len(set(keys))) == (int(rules["images"]), int(rules["distinct_ids"]))
    assert (report.failed.total(), report.incomplete, report.skipped) == (0, [], 1)
    captions = [inputs["metadata"].get("caption") for inputs in sent]
    assert captions == ["dots in the stem", "dotted folder", "second", None, None]


def test_given_a_shard_that_was_cut_when_indexed_then_whole_members_stay_and_it_is_incomplete(index):
    rules = _rules("shards/truncated.tar")
    assert rules["shard_status"] == "incomplete"
    sent, report, outcomes = index("shards/truncated.tar")
    assert [inputs["id"] for inputs in sent] == ["truncated/0000", "truncated/0001"]
    assert report.indexed >= int(rules["images_ok>"])
    assert report.incomplete == [str(CASES / "shards" / "truncated.tar")]
    assert outcomes[-1].whole
    assert isinstance(outcomes[-1].error, RequestFailed)
    assert "incomplete: it ends in the middle of 0002.jpg" in outcomes[-1].error.message


def test_given_a_dirty_table_when_indexed_then_each_bad_row_is_counted_and_named_and_the_rest_goes_on(index):
    rules = _rules("urls_dirty.csv")
    sent, report, outcomes = index("urls_dirty.csv", decoded=False)
    bad = [(Path(outcome.path).name, outcome.id) for outcome in outcomes if outcome.error is not None]
    assert report.found + report.duplicates == int(rules["records"])
    assert (len(bad), report.failed.total()) == (int(rules["bad"].split()[0]),) * 2
    assert bad == [("urls_dirty.csv:6", "4"), ("urls_dirty.csv:7", f"{CASES}/urls_dirty.csv:7")]
    assert report.duplicates == int(rules["dup_ids"])
    assert [(inputs["id"], inputs["image"]) for inputs in sent] == [
        (str(number), {"url": f"https://example.com/{number}.jpg"}) for number in (1, 2, 6, 7)
    ]
    # The first column's name has no mark of byte order, and a foreign byte costs no row.
    assert rules["first_column"].split()[0] in sent[0]["metadata"]
    assert [inputs["metadata"]["caption"] for inputs in sent] == [
        'a, quoted "caption"',
        "two\nlines",
        "padded",
        r"caf\xe9",
    ]
