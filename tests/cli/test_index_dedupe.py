"""``clipfleet index --dedupe`` as a user types it, against a real Redis and a worker with toy vectors."""

from __future__ import annotations

import json

import pytest

from clipfleet.index import Manifest, State

PICTURES = {"a.png": b"one", "b.png": b"two", "c/a.png": b"one", "c/d.png": b"three", "e.png": b"one"}


@pytest.fixture
def here(tmp_path):
    for name, data in PICTURES.items():
        path = tmp_path / "pics" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path


def known(here):
    """Which are done, and what the others are duplicates of, by the manifest and by the file beside it."""
    with Manifest(here / "m") as manifest:
        done = {id_ for page in manifest.done() for id_ in page}
        noted = {id_: same_as for page in manifest.duplicates.listed() for id_, same_as in page}
    lines = map(json.loads, (here / "m.duplicates.jsonl").read_text().splitlines())
    assert {line["id"]: line["same_as"] for line in lines} == noted
    return done, noted


@pytest.mark.parametrize("more", [(), ("--processes", "2"), ("--send", "path", "--root", "p=pics")])
def test_given_one_picture_in_three_files_then_one_is_sent_and_the_others_are_told(cli, fleet, here, more):
    args = ("index", "pics", "--dedupe", "--manifest", "m", *more)
    said = cli(*args, "--dry-run", "--json", **fleet)
    assert (said.lines[0]["send"], said.lines[0]["duplicates"]) == (3, 2)
    first = cli(*args, "--json", **fleet)
    done, noted = known(here)
    assert (first.code, {line["id"] for line in first.lines}) == (0, done)
    (kept,) = set(noted.values())
    assert {kept, *noted} == {"a.png", "c/a.png", "e.png"}
    assert done == {kept, "b.png", "c/d.png"}
    again = cli(*args, **fleet)
    assert "3 of 3 pictures indexed into 'images', 3 of them earlier," in again.out
    assert "/s)" not in again.out  # nothing was sent: there is no pace
    assert "; 2 duplicates not sent again; m.duplicates.jsonl tells whose" in again.out
    assert known(here) == (done, noted)
    said = cli(*args, "--dry-run", "--json", **fleet)
    assert [said.lines[0][what] for what in ("send", "done", "duplicates")] == [0, 3, 2]


def test_given_the_kept_one_has_left_when_synced_then_another_takes_its_place(cli, fleet, here):
    args = ("index", "pics", "--dedupe", "--manifest", "m")
    assert cli(*args, **fleet).code == 0
    _, noted = known(here)
    (kept,) = set(noted.values())
    (here / "pics" / kept).unlink()
    assert cli(*args, "--sync", **fleet).code == 0
    done, left = known(here)
    assert kept not in done
    assert left.keys() | set(left.values()) == noted.keys()
    assert len(done & noted.keys()) == 1


def test_given_the_kept_one_has_left_when_nothing_can_take_its_place_then_that_is_said_and_mended_by_the_next_run(
    cli, fleet, here
):
    args = ("index", "pics", "--dedupe", "--manifest", "m")
    assert cli(*args, **fleet).code == 0
    _, noted = known(here)
    (kept,) = set(noted.values())
    (here / "pics" / kept).unlink()
    (here / "elsewhere").mkdir()
    done = cli(*args, "--sync", "--send", "path", "--root", "p=elsewhere", **fleet)
    assert (done.code, "2 whose picture has left with another id could not be sent" in done.out) == (3, True), done
    assert "bad_request" in done.out
    done = cli(*args, "--sync", **fleet)
    assert (done.code, len(known(here)[0] & noted.keys())) == (0, 1), done


def test_given_nothing_but_pictures_that_are_there_already_then_all_is_well(cli, fleet, here):
    assert cli("index", "pics", "--dedupe", "--manifest", "m", **fleet).code == 0
    (here / "more").mkdir()
    (here / "more" / "x.png").write_bytes(b"one")
    (here / "more" / "y.png").write_bytes(b"three")
    done = cli("index", "more", "--dedupe", "--manifest", "m", **fleet)
    assert (done.code, "2 duplicates not sent again" in done.out) == (0, True), done


def test_given_no_place_for_a_manifest_then_it_is_an_error(cli, fleet, here):
    (here / ".clipfleet").write_text("a file where the folder would be")
    done = cli("index", "pics", "--dedupe", **fleet)
    assert (done.code, "cannot be used as a manifest" in done.err) == (1, True)


def test_given_two_hosts_then_each_knows_its_own_part_alone(cli, fleet, here):
    for part in (1, 2):
        assert cli("index", "pics", "--dedupe", "--manifest", f"m{part}", "--shard", f"{part}/2", **fleet).code == 0
    counts = []
    for part in (1, 2):
        with Manifest(here / f"m{part}") as manifest:
            counts.append(manifest.counts())
    assert sum(each.total() for each in counts) == len(PICTURES)
    assert all(each[State.DONE] for each in counts)
