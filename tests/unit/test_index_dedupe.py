"""A picture that comes under several ids is sent once, whatever becomes of its ids afterwards."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from clipfleet.index import Item, Manifest, Send, Sending, State, forgotten, index_sources, reconcile
from clipfleet.index.manifest import Known
from clipfleet.index.sources import Stored
from clipfleet.producer.requests import Url
from clipfleet.schemas.errors import ErrorCode, RequestFailed
from clipfleet.schemas.result import Result
from support.toy_index import Fleet, Killed, Source, listed, run


@pytest.fixture
def manifest(tmp_path):
    with Manifest(tmp_path / "m") as made:
        yield made


@pytest.fixture
def fleet():
    return Fleet()


def test_given_one_picture_under_three_ids_then_it_is_sent_once_and_noted_and_a_second_run_sends_nothing(
    manifest, fleet
):
    pictures = {"a": b"one", "b": b"two", "c": b"one", "d": b"one"}
    report, told = run(fleet, manifest, pictures)
    assert (fleet.rows, report.indexed, report.duplicates) == ({"a": b"one", "b": b"two"}, 2, 2)
    assert [(id_, one.same_as) for id_, one in told.items()] == [("a", ""), ("b", ""), ("c", "a"), ("d", "a")]
    assert listed(manifest) == {"c": "a", "d": "a"}
    report, _ = run(fleet, manifest, pictures)
    assert (report.indexed, report.earlier, report.duplicates, fleet.sent.total()) == (0, 2, 2, 2)


def test_given_the_kept_one_leaves_then_another_takes_its_place_and_only_one(manifest, fleet):
    run(fleet, manifest, {"a": b"one", "b": b"one", "c": b"one"})
    # Without --sync its row stays, and is the picture's.
    run(fleet, manifest, {"b": b"one", "c": b"one"}, sync=False)
    assert (fleet.rows, listed(manifest)) == ({"a": b"one"}, {"b": "a", "c": "a"})
    run(fleet, manifest, {"b": b"one", "c": b"one"})
    assert (fleet.rows, listed(manifest)) == ({"b": b"one"}, {"c": "b"})


def test_given_the_kept_one_becomes_another_picture_after_its_duplicate_was_met_then_that_is_sent(manifest, fleet):
    run(fleet, manifest, {"a": b"one", "b": b"one"})
    report, _ = run(fleet, manifest, {"b": b"one", "a": b"two"})
    assert (fleet.rows, listed(manifest)) == ({"a": b"two", "b": b"one"}, {})
    assert (report.indexed, report.duplicates) == (2, 0)


def test_given_an_id_with_a_row_when_its_file_becomes_another_ones_picture_then_its_row_is_replaced(manifest, fleet):
    run(fleet, manifest, {"a": b"one", "b": b"two"})
    run(fleet, manifest, {"a": b"one", "b": b"one"})
    assert fleet.rows == {"a": b"one", "b": b"one"}


def test_given_a_run_killed_after_a_row_was_written_then_that_id_is_kept_whichever_comes_first(tmp_path, fleet):
    manifest = Manifest(tmp_path / "m")
    fleet.left = 0
    with pytest.raises(Killed):
        run(fleet, manifest, {"a": b"one"})
    manifest._db.close()
    fleet.left = None
    with Manifest(tmp_path / "m") as manifest:
        report, _ = run(fleet, manifest, {"b": b"one", "a": b"one"})
        assert (fleet.rows, listed(manifest), report.duplicates) == ({"a": b"one"}, {"b": "a"}, 1)


def test_given_a_failure_that_passes_then_duplicates_share_it_and_the_next_run_sends_one(manifest, fleet):
    fleet.passing = {"a"}
    report, _ = run(fleet, manifest, {"a": b"one", "b": b"one"})
    assert (report.failed, fleet.sent) == ({ErrorCode.EXPIRED: 2}, {"a": 1})
    fleet.passing = set()
    report, _ = run(fleet, manifest, {"a": b"one", "b": b"one"})
    assert (report.indexed, report.duplicates, fleet.sent) == (1, 1, {"a": 2})


def test_given_a_picture_that_fails_then_its_duplicates_fail_too_and_are_not_sent(manifest, fleet):
    for _ in range(2):
        report, told = run(fleet, manifest, {"a": b"bad", "b": b"bad", "c": b"good"})
        assert (report.failed, report.duplicates, report.found) == ({ErrorCode.CORRUPT_IMAGE: 2}, 0, 3)
        assert {id_ for id_, one in told.items() if one.error is not None} == {"a", "b"}
    assert fleet.sent == {"a": 1, "c": 1}


def test_given_a_picture_refused_under_an_id_that_has_left_when_asked_to_try_again_then_the_other_is_tried(
    manifest, fleet
):
    run(fleet, manifest, {"a": b"bad", "b": b"bad"})
    run(fleet, manifest, {"b": b"bad"}, sync=False, retry_failed=True)
    assert fleet.sent == {"a": 1, "b": 1}


def test_given_a_run_without_dedupe_then_duplicates_are_sent_like_any_other_and_stay(manifest, fleet):
    run(fleet, manifest, {"a": b"one", "b": b"one"})
    index_sources(fleet, [Source({"a": b"one", "b": b"one"})], manifest=manifest)
    assert fleet.rows == {"a": b"one", "b": b"one"}
    # What has a row keeps it; what the earlier run indexed without looking is known by its content from now on.
    report, _ = run(fleet, manifest, {"a": b"one", "b": b"one", "c": b"one"})
    assert (report.earlier, report.duplicates, set(fleet.rows)) == (2, 1, {"a", "b"})


def test_given_a_corpus_indexed_without_dedupe_then_its_contents_are_learned(manifest, fleet):
    index_sources(fleet, [Source({"a": b"one"})], manifest=manifest)
    run(fleet, manifest, {"a": b"one", "b": b"one"})
    assert set(fleet.rows) == {"a"}


def test_given_addresses_then_the_same_address_is_the_same_picture(manifest):
    class Answers:
        def map(self, requests, *, max_in_flight):
            return (Result("x", ok=True) for _ in requests)

    addresses = {"a": "https://e.com/1.jpg", "b": "https://e.com/2.jpg", "c": "https://e.com/1.jpg"}
    source = Source({id_: Url(url) for id_, url in addresses.items()})
    report = index_sources(Answers(), [source], manifest=manifest, dedupe=True)
    assert (report.indexed, listed(manifest)) == (2, {"c": "a"})


def test_given_files_then_bytes_are_sent_as_they_were_compared_and_paths_stay_paths(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"one")
    item, content = Sending().with_content(Item("a", "a", path))
    as_path, same = Sending(send=Send.PATH, roots={"r": tmp_path}).with_content(Item("a", "a", path))
    assert (item.picture, as_path.picture, content) == (b"one", path, same)
    assert content != Sending().with_content(Item("a", "a", Url("one")))[1]
    path.unlink()
    with pytest.raises(RequestFailed):
        Sending().with_content(Item("a", "a", path))


def test_given_a_file_that_cannot_be_read_then_it_fails_and_the_others_go_on(manifest, fleet, tmp_path):
    report, _ = run(fleet, manifest, {"a": tmp_path / "gone", "b": b"one"})
    assert (report.failed, set(fleet.rows)) == ({ErrorCode.FETCH_FAILED: 1}, {"b"})
    assert manifest.known("a") is None


def test_without_a_manifest_it_is_an_error(fleet):
    with pytest.raises(ValueError, match="needs a manifest"):
        index_sources(fleet, [], dedupe=True)


@pytest.mark.parametrize("state", list(State))
def test_what_was_never_sent_has_no_row(state):
    assert Known(b"", state).has_no_row == (state in {State.DUPLICATE, State.ALONE})


@pytest.mark.parametrize("killed", [False, True])
def test_given_a_kept_row_that_somebody_has_overwritten_when_reconciled_then_it_gets_its_picture_back(tmp_path, killed):
    # Given a duplicate that is met before the one whose row is kept
    fleet = Fleet()
    pictures = {"a.png": b"red", "b.png": b"red"}
    with Manifest(tmp_path / "m") as manifest:
        run(fleet, manifest, {"b.png": b"red"})
        run(fleet, manifest, pictures)
        assert listed(manifest) == {"a.png": "b.png"}
        fleet.rows["b.png"] = b"somebody else's"

        found = reconcile(
            manifest, lambda noted: {id_: fleet.rows[id_] == pictures[id_] for id_ in noted if id_ in fleet.rows}
        )
        assert (found.changed, found.missing, found.first) == (1, 0, ["b.png"])
    with Manifest(tmp_path / "m") as manifest:
        if killed:
            run(fleet, manifest, pictures)
        else:
            index_sources(fleet, forgotten([Source(pictures)], manifest), manifest=manifest, dedupe=True)
        assert fleet.rows["b.png"] == b"red"
        assert {known.state for id_ in pictures if (known := manifest.known(id_))} == {State.DONE, State.DUPLICATE}


def test_given_a_collection_of_an_earlier_life_when_reconciled_then_no_duplicate_keeps_an_old_row(tmp_path, manifest):
    # Given rows of which this manifest knows nothing: one's file has become another one's picture since
    fleet, pictures = Fleet(), {"a.png": b"red", "b.png": b"red", "c.png": b"red"}
    fleet.rows = {"a.png": b"red", "b.png": b"an older picture"}

    def compare():
        return reconcile(manifest, lambda noted: {id_: True for id_ in noted if id_ in fleet.rows})

    run(fleet, manifest, pictures, sync=False)
    assert (fleet.sent, fleet.rows["b.png"]) == ({"a.png": 1}, b"an older picture")
    found = compare()
    assert (found.agrees, found.twins, found.first) == (False, 1, ["b.png"])
    index_sources(fleet, forgotten([Source(pictures)], manifest), manifest=manifest, dedupe=True)
    assert (fleet.sent, fleet.rows) == ({"a.png": 1, "b.png": 1}, {"a.png": b"red", "b.png": b"red"})
    assert (compare().agrees, listed(manifest)) == (True, {"c.png": "a.png"})


class Far(Source):
    """The same, in a store: which were read, and by whom."""

    def __init__(self, pictures):
        super().__init__(pictures)
        self.read = []

    def events(self, seen):
        def reading(id_, picture):
            self.read.append((id_, threading.current_thread() is threading.main_thread()))
            return picture

        for id_, picture in list(self.pictures.items()):
            stored = Stored(partial(reading, id_, picture), "1", far=True)
            yield Item(id_, id_, stored, size=len(picture))


def test_given_duplicates_in_a_store_when_run_again_then_none_is_fetched_and_the_one_that_is_needed_is_ahead(tmp_path):
    fleet = Fleet()
    pictures = {"a.png": b"red", "b.png": b"red", "c.png": b"red", "d.png": b"blue"}

    def again(source):
        report = index_sources(fleet, [source], manifest=manifest, dedupe=True, max_in_flight=3)
        return sorted(source.read), report.indexed, report.duplicates

    with Manifest(tmp_path / "m") as manifest:
        # Done by a run that did not ask: read for its content, and not one after the other
        index_sources(fleet, [Source({"d.png": b"blue"})], manifest=manifest)
        index_sources(fleet, [Far({"d.png": b"blue"})], manifest=manifest)
        assert again(Far({"d.png": b"blue"})) == ([("d.png", False)], 0, 0)
        assert again(Far(pictures)) == ([(f"{name}.png", False) for name in "abc"], 1, 2)
        assert again(Far(pictures)) == ([], 0, 2)
        # The kept one is another picture now: one of the others is sent in its place
        manifest.forget(["a.png"])
        found, indexed, duplicates = again(Far({**pictures, "a.png": b"green!"}))
        assert (("a.png", False) in found, ("b.png", False) in found, indexed, duplicates) == (True, True, 2, 1)
        assert not any(by_main for _, by_main in found)
