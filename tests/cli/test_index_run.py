"""The Python API of the indexer, with clients whose answers the test decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clipfleet.index import index_sources
from clipfleet.index import walk as real_walk
from clipfleet.schemas.errors import ErrorCode, error_for
from clipfleet.schemas.result import Result

if TYPE_CHECKING:
    from pathlib import Path


class Client:
    """Answers request after request with ``answer(number, request)``: an error code or None."""

    def __init__(self, answer):
        self.sent = []
        self._answer = answer

    def map(self, requests, *, max_in_flight):
        for request in requests:
            self.sent.append(request)
            code = self._answer(len(self.sent), request)
            yield Result("x", ok=code is None, error=code and error_for(code))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(40):
        (tmp_path / f"{number:02}.png").write_bytes(b"x")
    return tmp_path


def test_when_indexed_then_each_request_carries_id_metadata_and_collection(folder):
    client = Client(lambda _number, _request: None)
    report = index_sources(client, [folder], collection="c")
    assert (report.indexed, report.found, report.stopped) == (40, 40, "")
    request = min(client.sent, key=lambda each: each.inputs["id"])
    assert request.inputs == {
        "image": b"x",
        "id": "00.png",
        "metadata": {"path": "00.png", "name": "00.png"},
        "collection": "c",
    }


def test_given_failures_of_pictures_when_indexed_then_it_goes_on_and_counts_them(folder):
    client = Client(lambda number, _request: ErrorCode.CORRUPT_IMAGE if number % 2 else None)
    outcomes = []
    report = index_sources(client, [folder], max_in_flight=4, on_outcome=outcomes.append)
    assert (report.indexed, report.failed, report.stopped) == (20, {ErrorCode.CORRUPT_IMAGE: 20}, "")
    assert len(outcomes) == 40


def test_given_a_fleet_that_is_gone_when_indexed_then_it_stops_and_says_so(folder):
    client = Client(lambda number, _request: ErrorCode.EXPIRED if number > 10 else None)
    report = index_sources(client, [folder], max_in_flight=8)
    assert (report.indexed, report.failed[ErrorCode.EXPIRED]) == (10, 8)
    assert "the last 8 pictures were not answered: expired" in report.stopped


def test_given_a_fleet_that_comes_back_when_indexed_then_it_goes_on(folder):
    client = Client(lambda number, _request: ErrorCode.UNAVAILABLE if number % 8 else None)
    report = index_sources(client, [folder], max_in_flight=8)
    assert (report.indexed, report.stopped) == (5, "")


def test_given_a_guard_when_it_objects_then_nothing_more_is_sent(folder):
    client = Client(lambda _number, _request: None)
    report = index_sources(client, [folder], guard=lambda sent: "enough" if sent >= 5 else "")
    assert (report.indexed, report.stopped, len(client.sent)) == (5, "enough", 5)


def test_given_files_that_cannot_be_read_when_indexed_then_outcomes_keep_the_order_of_the_walk(folder, monkeypatch):
    for name in ("a.png", "z.png"):
        (folder / name).symlink_to("nothing")
    monkeypatch.setattr(
        "clipfleet.index.sources.folder.walk",
        lambda sources, **more: sorted(real_walk(sources, **more), key=lambda found: found.id),
    )
    outcomes = []
    report = index_sources(Client(lambda _number, _request: None), [folder], on_outcome=outcomes.append)
    assert [outcome.id for outcome in outcomes] == [*(f"{number:02}.png" for number in range(40)), "a.png", "z.png"]
    assert (report.indexed, report.failed) == (40, {ErrorCode.FETCH_FAILED: 2})


def test_given_other_files_in_a_folder_when_indexed_then_they_are_counted(folder):
    for name in ("notes.txt", "film.mp4", ".hidden"):
        (folder / name).touch()
    report = index_sources(Client(lambda _number, _request: None), [folder, folder / ".." / folder.name])
    assert (report.indexed, report.found, report.skipped) == (40, 40, 2)


def test_given_workers_that_fetch_nothing_when_addresses_are_indexed_then_it_stops_and_says_why(tmp_path):
    (tmp_path / "t.csv").write_text("url\n" + "".join(f"https://e.com/{row}.jpg\n" for row in range(100)))
    report = index_sources(Client(lambda *_: ErrorCode.FETCH_FORBIDDEN), [tmp_path / "t.csv"], max_in_flight=8)
    assert (report.indexed, report.found) == (0, 8)
    assert "fetch_forbidden" in report.stopped
    once_in_a_while = Client(lambda number, _: ErrorCode.FETCH_FORBIDDEN if number > 1 else None)
    report = index_sources(once_in_a_while, [tmp_path / "t.csv"], max_in_flight=8)
    assert (report.found, report.stopped) == (100, "")


def test_given_more_bad_rows_than_may_wait_when_indexed_then_they_are_told_before_the_answer_comes(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("clipfleet.index.run._MOST_WAITING", 10)
    (tmp_path / "t.csv").write_text("url\nhttps://e.com/1.jpg\n" + "no address\n" * 50)
    outcomes, seen_at_answer = [], []

    class Slow(Client):
        def map(self, requests, *, max_in_flight):
            sent = list(requests)
            seen_at_answer.append(len(outcomes))
            yield from (Result("x", ok=True) for _ in sent)

    report = index_sources(Slow(None), [tmp_path / "t.csv"], on_outcome=outcomes.append)
    assert (report.indexed, report.failed) == (1, {ErrorCode.BAD_REQUEST: 50})
    assert seen_at_answer == [40]
    assert outcomes[40].error is None
