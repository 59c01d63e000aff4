"""What a manifest believes of a Milvus that does not answer as it should."""

from __future__ import annotations

from typing import ClassVar

import pytest

from clipfleet.cli.output import Output
from clipfleet.cli.reconciling import reconcile_run
from clipfleet.cli.settings import Flags, load
from clipfleet.index import Manifest, State
from clipfleet.schemas.errors import ErrorCode, error_for


class Store:
    """Refuses to say which ids are there."""

    there = True

    def __init__(self, config):
        pass

    def holds(self, collection, noted):
        raise error_for(ErrorCode.BAD_REQUEST, "Milvus refuses the query: too long")

    def count(self, collection):
        if not self.there:
            raise error_for(ErrorCode.BAD_REQUEST, f"there is no collection {collection}")
        return 2

    def close(self):
        pass


@pytest.fixture
def manifest(tmp_path):
    with Manifest(tmp_path / "m") as made:
        made.answered("a", b"")
        made.answered("b", b"")
        yield made


def reconciled(manifest, sent):
    return reconciled_with(manifest, sent.append)


def reconciled_with(manifest, again):
    settings = load(Flags(milvus_uri="http://milvus:19530"), {})
    return reconcile_run(Output(json_lines=False), settings, "images", manifest, [], again)


def test_given_a_query_that_milvus_refuses_then_nothing_is_taken_for_missing(manifest, monkeypatch):
    monkeypatch.setattr("clipfleet.store.Store", Store)
    sent = []
    verdict = reconciled(manifest, sent)
    assert (verdict.agrees, "NOT reconciled" in verdict.text, "too long" in verdict.text) == (False, True, True)
    assert (sent, manifest.counts()) == ([], {State.DONE: 2})


class Holding(Store):
    """Says of each row what a test says."""

    told: ClassVar[dict[str, bool]] = {}

    def holds(self, collection, noted):
        return {id_: right for id_, right in self.told.items() if id_ in noted}


def test_given_rows_with_another_picture_in_them_then_those_are_sent_again_and_named_where_they_stay(
    manifest, monkeypatch
):
    monkeypatch.setattr("clipfleet.store.Store", Holding)
    monkeypatch.setattr(Holding, "told", {"a": True, "b": False})

    def again(_sources):
        assert manifest.known("b").signature == b""  # what nothing has: it is sent, whatever it is
        manifest.answered("b", b"")

    verdict = reconciled_with(manifest, again)
    assert (verdict.agrees, verdict.text) == (
        False,
        "NOT reconciled: 1 of 2 holds another picture in the store (b); run it again",
    )


def test_given_rows_of_which_nothing_was_noted_then_it_says_how_many_were_compared_by_their_ids_alone(
    manifest, monkeypatch
):
    manifest.answered("b", b"", sketch="00" * 16)
    monkeypatch.setattr("clipfleet.store.Store", Holding)
    monkeypatch.setattr(Holding, "told", {"a": True, "b": True})
    verdict = reconciled(manifest, [])
    assert (verdict.agrees, verdict.text.endswith("; of 1 only the id could be compared")) == (True, True)


def test_given_a_collection_that_is_gone_then_all_is_missing_and_sent_again(manifest, monkeypatch):
    monkeypatch.setattr("clipfleet.store.Store", Store)
    monkeypatch.setattr(Store, "there", False)
    sent = []
    verdict = reconciled(manifest, sent)
    assert (verdict.agrees, "2 of 2 are missing" in verdict.text) == (False, True)
    assert (len(sent), manifest.counts()) == (1, {})


def test_given_rows_that_are_missing_when_some_of_them_are_sent_again_then_only_the_others_are_named(
    manifest, monkeypatch
):
    monkeypatch.setattr("clipfleet.store.Store", Holding)
    monkeypatch.setattr(Holding, "told", {})

    def again(_sources):
        manifest.answered("a", b"")
        monkeypatch.setattr(Holding, "told", {"a": True})

    verdict = reconciled_with(manifest, again)
    said = "NOT reconciled: 1 of 2 is missing in the store (b); run it again"
    assert (verdict.agrees, verdict.text) == (False, said)
