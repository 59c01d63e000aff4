"""``clipfleet index`` again: what is done is not sent again, against a real Redis and a worker with toy vectors."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from clipfleet.index import Manifest


@pytest.fixture
def here(tmp_path):
    """A folder with ten pictures."""
    (tmp_path / "pics").mkdir()
    for number in range(10):
        (tmp_path / "pics" / f"{number}.png").write_bytes(b"picture %d" % number)
    return tmp_path


def ids(done):
    return sorted(line["id"] for line in done.lines if line["ok"])


def summary(done):
    return json.loads(done.err.splitlines()[-1])


def manifest_of(here):
    (path,) = (here / ".clipfleet" / "index").glob("*.sqlite")
    return path


def test_given_a_run_that_is_done_when_run_again_then_only_what_is_new_or_has_changed_is_sent(cli, fleet, here):
    assert len(ids(cli("index", "pics", "--json", **fleet))) == 10
    again = cli("index", "pics", "--json", **fleet)
    assert (again.code, again.lines) == (0, [])
    assert (summary(again)["indexed"], summary(again)["earlier"], summary(again)["found"]) == (0, 10, 10)
    (here / "pics" / "3.png").write_bytes(b"another picture")
    (here / "pics" / "new.png").write_bytes(b"a new one")
    assert ids(cli("index", "pics", "--json", **fleet)) == ["3.png", "new.png"]
    words = cli("index", "pics", **fleet)
    assert "11 of 11 pictures indexed into 'images', 11 of them earlier" in words.out
    assert "not reconciled: which Milvus the workers use is not known here" in words.out
    # Another collection, and another part of it, are other runs.
    assert len(ids(cli("index", "pics", "--json", "--collection", "other", **fleet))) == 11
    assert len(ids(cli("index", "pics", "--json", "--fresh", **fleet))) == 11


def test_given_failures_when_run_again_then_transient_ones_are_sent_and_permanent_ones_when_asked(cli, fleet, here):
    assert cli("index", "pics", "--manifest", "m", **fleet).code == 0
    with sqlite3.connect(here / "m") as db:
        db.execute("UPDATE item SET state = 3, code = 'expired', message = 'late' WHERE id = '1.png'")
        db.execute("UPDATE item SET state = 4, code = 'corrupt_image', message = 'bad' WHERE id = '2.png'")
        db.execute("UPDATE item SET state = 1 WHERE id = '3.png'")
    db.close()
    done = cli("index", "pics", "--manifest", "m", "--json", "--failures", "f.jsonl", **fleet)
    assert (done.code, ids(done)) == (3, ["1.png", "3.png"])
    bad = {"input": "pics/2.png", "ok": False, "id": "2.png"}
    bad["error"] = {"code": "corrupt_image", "message": "bad", "retryable": False}
    assert [json.loads(line) for line in (here / "f.jsonl").read_text().splitlines()] == [bad]
    assert [line for line in done.lines if not line["ok"]] == [bad]
    done = cli("index", "pics", "--manifest", "m", "--json", "--retry-failed", **fleet)
    assert (done.code, ids(done)) == (0, ["2.png"])
    # Without --failures they are named beside the manifest; an empty file: nothing failed.
    assert (here / "m.failures.jsonl").read_text() == ""


def test_given_a_dry_run_then_it_counts_and_sends_nothing_and_makes_no_manifest(cli, fleet, here):
    (here / "pics" / "a.JPG").write_bytes(b"x")
    (here / "pics" / "gone.png").symlink_to("nothing")
    (here / "pics" / "text.txt").touch()
    said = cli("index", "pics", "--dry-run", "--json", CLIPFLEET_REDIS_URL="redis://127.0.0.1:1")
    assert said.code == 3
    assert said.lines == [
        {
            "dry_run": True,
            "send": 11,
            "new": 11,
            "changed": 0,
            "again": 0,
            "done": 0,
            "failed_before": 0,
            "failed": 1,
            "duplicates": 0,
            "skipped": 1,
            "kinds": {".png": 10, ".jpg": 1},
        }
    ]
    assert "pics/gone.png: fetch_failed" in said.err
    # Of a table the pictures' kinds, and not one for each of its rows
    (here / "t.csv").write_text("path\npics/1.png\npics/2.png\n")
    said = cli("index", "t.csv", "--dry-run", "--json", CLIPFLEET_REDIS_URL="redis://127.0.0.1:1")
    assert said.lines[0]["kinds"] == {".png": 2}
    # And of files that it names and that are not there what the run says of them
    (here / "t.csv").write_text("path\npics/1.png\npics/nowhere.png\n")
    said = cli("index", "t.csv", "--dry-run", "--json", CLIPFLEET_REDIS_URL="redis://127.0.0.1:1")
    assert (said.code, said.lines[0]["send"], said.lines[0]["failed"]) == (3, 1, 1)
    assert "fetch_failed" in said.err
    (here / "t.csv").unlink()
    assert not (here / ".clipfleet").exists()
    (here / "pics" / "gone.png").unlink()
    assert cli("index", "pics", **fleet).code == 0
    (here / "pics" / "0.png").write_bytes(b"changed")
    said = cli("index", "pics", "--dry-run", **fleet)
    assert (said.code, "1 picture would be sent to 'images' (0 new, 1 changed); 10 are done" in said.out) == (0, True)
    assert ids(cli("index", "pics", "--json", **fleet)) == ["0.png"]


def test_given_parts_of_a_corpus_when_each_is_indexed_then_all_is_and_nothing_twice(cli, fleet, here):
    parts = [ids(cli("index", "pics", "--json", "--shard", f"{part}/3", **fleet)) for part in (1, 2, 3)]
    assert sorted(id_ for part in parts for id_ in part) == [f"{number}.png" for number in range(10)]
    assert all(parts)


def test_given_another_run_with_the_same_manifest_then_the_second_is_refused(cli, fleet, here):
    with Manifest(here / "m"):
        done = cli("index", "pics", "--manifest", "m", **fleet)
    assert (done.code, "another run holds this manifest" in done.err) == (1, True)


def test_given_no_place_for_a_manifest_then_it_goes_without_and_says_so_unless_one_was_named(cli, fleet, here):
    (here / ".clipfleet").write_text("a file where the folder would be")
    done = cli("index", "pics", "--json", **fleet)
    assert (done.code, len(ids(done)), "this run cannot be resumed" in done.err) == (0, 10, True)
    assert cli("index", "pics", "--manifest", ".clipfleet/m", **fleet).code == 1


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--shard", "0/3"], "part 0 of 3"),
        (["--shard", "4/3"], "part 4 of 3"),
        (["--shard", "a"], "a part is I/N"),
        (["--send", "post"], "one of bytes, path, url"),
        (["--send", "path"], "go together"),
        (["--root", "a=."], "go together"),
        (["--send", "path", "--root", "a=nowhere"], "NAME=DIR"),
    ],
)
def test_given_options_that_cannot_be_when_indexed_then_wrong_usage(cli, here, args, said):
    done = cli("index", "pics", *args)
    assert (done.code, said in done.err) == (2, True), done.err


def test_given_send_path_then_workers_are_told_where_and_what_they_cannot_know_fails(cli, fleet, here):
    (here / "pics" / "link.png").symlink_to(here / "outside.png")
    (here / "outside.png").write_bytes(b"x")
    (here / "pics" / "0.png").rename(here / "pics" / os.fsdecode(b"\xff.png"))
    done = cli("index", "pics", "--send", "path", "--root", "p=pics", "--json", **fleet)
    bad = {line["id"]: line["error"]["message"] for line in done.lines if not line["ok"]}
    assert set(bad) == {"link.png", r"\xff.png"}
    assert "in none of the folders" in bad["link.png"]
    assert ids(done) == [f"{number}.png" for number in range(1, 10)]


def test_given_the_manifest_of_another_collection_when_named_then_it_is_refused_and_nothing_seems_done(
    cli, fleet, here
):
    assert cli("index", "pics", "--manifest", "m", **fleet).code == 0
    done = cli("index", "pics", "--manifest", "m", "--collection", "other", **fleet)
    assert (done.code, "m is the manifest of collection images, and not of collection other" in done.err) == (2, True)
    done = cli("index", "pics", "--manifest", "m", "--to", "npy", "--out", "o", **fleet)
    assert (done.code, "not of files in" in done.err) == (2, True)
    done = cli("index", "pics", "--manifest", "m", "--collection", "other", "--fresh", "--json", **fleet)
    assert (done.code, len(ids(done))) == (0, 10)


def test_given_a_manifest_that_knows_other_sources_when_synced_then_nothing_is_deleted(cli, fleet, here):
    (here / "more").mkdir()
    (here / "more" / "x.png").write_bytes(b"x")
    assert cli("index", "pics", "--manifest", "m", **fleet).code == 0
    assert "0 that have left were taken out" in cli("index", "pics", "--manifest", "m", "--sync", **fleet).out
    for args in (["more"], ["pics", "--shard", "1/3"]):
        done = cli("index", *args, "--manifest", "m", "--sync", **fleet)
        assert (done.code, "knows pictures of other sources, too" in done.err) == (2, True)
    # Two corpora may share a manifest; but then neither can be synced.
    assert cli("index", "more", "--manifest", "m", **fleet).code == 0
    assert cli("index", "pics", "--manifest", "m", "--sync", **fleet).code == 2
    assert cli("index", "more", "--manifest", "m", "--sync", **fleet).code == 2


def all_of(manifest: Path) -> list[str]:
    with closing(sqlite3.connect(manifest)) as file:
        return list(file.iterdump())


def test_given_pictures_that_came_changed_and_left_when_synced_dry_then_it_says_what_the_run_does_and_does_nothing(
    cli, fleet, here
):
    sync = ("index", "pics", "--sync")
    said = cli(*sync, "--dry-run", **fleet)
    assert (said.code, "10 pictures would be sent to 'images'; 0 are done" in said.out) == (0, True), said
    assert "; 0 that have left would be taken out" in said.out
    assert cli("index", "pics", **fleet).code == 0
    (here / "pics" / "0.png").unlink()
    (here / "pics" / "1.png").unlink()
    (here / "pics" / "2.png").write_bytes(b"changed")
    (here / "pics" / "x.png").write_bytes(b"x")
    before = all_of(manifest_of(here))
    said = cli(*sync, "--dry-run", **fleet)
    assert (said.code, "2 pictures would be sent to 'images' (1 new, 1 changed); 7 are done" in said.out) == (
        0,
        True,
    )
    assert "; 2 that have left would be taken out" in said.out
    assert "all of them are counted" in said.err
    (told,) = cli(*sync, "--dry-run", "--json", **fleet).lines
    assert (told["send"], told["new"], told["changed"], told["deleted"], told["doubt"]) == (2, 1, 1, 2, "")
    assert all_of(manifest_of(here)) == before
    # What cannot be seen has not left, and the run would say so, too
    (here / "pics" / "gone").symlink_to("nothing")
    (here / "empty").mkdir()
    said = cli("index", "pics", "empty", "--sync", "--dry-run", "--manifest", "m", **fleet)
    assert (said.code, "nothing would be taken out, since not everything could be seen: empty" in said.out) == (3, True)
    (here / "pics" / "gone").unlink()
    done = cli(*sync, "--json", **fleet)
    assert sorted(ids(done)) == ["2.png", "x.png"]
    assert '"2 that have left were taken out"' in done.err
    said = cli(*sync, "--dry-run", **fleet)
    assert (said.code, "0 pictures would be sent to 'images' (0 new, 0 changed); 9 are done" in said.out) == (0, True)
    assert "; 0 that have left would be taken out" in said.out


def test_given_a_manifest_of_others_or_duplicates_when_synced_dry_then_it_is_refused_as_the_run_is(cli, fleet, here):
    assert cli("index", "pics", "--manifest", "m", **fleet).code == 0
    (here / "more").mkdir()
    (here / "more" / "x.png").write_bytes(b"x")
    done = cli("index", "more", "--manifest", "m", "--sync", "--dry-run", **fleet)
    assert (done.code, "knows pictures of other sources, too" in done.err) == (2, True)
    done = cli("index", "pics", "--sync", "--dry-run", "--dedupe", **fleet)
    assert (done.code, "which duplicates would be sent is not known before" in done.err) == (2, True)


@pytest.mark.parametrize("flags", [("--sync",), ("--reindex", "--drop-old")])
def test_given_a_pattern_in_a_store_when_rows_would_be_deleted_then_it_is_refused(cli, here, flags):
    done = cli("index", f"file://{here}/p*/*.png", *flags)
    assert (done.code, "name the folder instead" in done.err) == (2, True)


def test_given_shards_divided_among_hosts_when_synced_then_it_is_refused(cli, here):
    with tarfile.open(here / "0.tar", "w"):
        pass
    done = cli("index", "pics", "0.tar", "--shard", "1/2", "--sync")
    assert (done.code, "for folders and tables alone" in done.err) == (2, True)


def test_given_an_id_that_no_row_can_have_when_it_has_left_then_it_does_not_keep_the_others_from_leaving(
    cli, fleet, here
):
    folder = here / "pics" / Path(*(letter * 250 for letter in "abcde"))
    folder.mkdir(parents=True)
    (folder / "x.png").write_bytes(b"x")
    assert cli("index", "pics", "--sync", **fleet).code == 0
    shutil.rmtree(here / "pics" / ("a" * 250))
    done = cli("index", "pics", "--sync", **fleet)
    assert (done.code, "0 that have left were taken out" in done.out) == (0, True), done
    with Manifest(manifest_of(here)) as manifest:
        assert manifest.counts().total() == 10


def test_given_a_manifest_of_something_else_when_run_dry_then_it_says_what_the_run_itself_would_say(cli, fleet, here):
    assert cli("index", "pics", "--manifest", "m", **fleet).code == 0
    for args in (("--collection", "others"), ("--reindex",), ("--to", "npy", "--out", "out")):
        done = cli("index", "pics", "--manifest", "m", "--dry-run", *args)
        assert (done.code, "is the manifest of collection images" in done.err) == (2, True), (args, done)
    # And it notes nothing: the run itself may be of other sources yet
    (here / "more").mkdir()
    (here / "more" / "x.png").write_bytes(b"x")
    assert cli("index", "more", "--manifest", "m", "--dry-run").code == 0
    assert cli("index", "pics", "--manifest", "m", "--sync", **fleet).code == 0


def test_given_a_manifest_of_a_reindexing_that_has_ended_when_another_is_run_dry_then_all_would_be_sent(
    cli, fleet, here
):
    assert cli("index", "pics", "--manifest", "m", **fleet).code == 0
    for into, send in (("", 10), ("new", 0)):
        with Manifest(here / "m") as manifest:
            manifest.tell("where", "")
            manifest.tell("into", into)
        said = cli("index", "pics", "--manifest", "m", "--reindex", "--collection", "live", "--dry-run", "--json")
        assert (said.lines[0]["send"], said.lines[0]["done"]) == (send, 10 - send), (into, said)
