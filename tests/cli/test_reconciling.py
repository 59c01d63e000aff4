"""What a manifest believes of a Milvus that does not answer as it should."""

from __future__ import annotations

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

    def present(self, collection, ids):
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
    settings = load(Flags(milvus_uri="http://milvus:19530"), {})
    return reconcile_run(Output(json_lines=False), settings, "images", manifest, [], sent.append)


def test_given_a_query_that_milvus_refuses_then_nothing_is_taken_for_missing(manifest, monkeypatch):
    monkeypatch.setattr("clipfleet.store.Store", Store)
    sent = []
    verdict = reconciled(manifest, sent)
    assert (verdict.agrees, "NOT reconciled" in verdict.text, "too long" in verdict.text) == (False, True, True)
    assert (sent, manifest.counts()) == ([], {State.DONE: 2})


def test_given_a_collection_that_is_gone_then_all_is_missing_and_sent_again(manifest, monkeypatch):
    monkeypatch.setattr("clipfleet.store.Store", Store)
    monkeypatch.setattr(Store, "there", False)
    sent = []
    verdict = reconciled(manifest, sent)
    assert (verdict.agrees, "2 of 2 are missing" in verdict.text) == (False, True)
    assert (len(sent), manifest.counts()) == (1, {})
