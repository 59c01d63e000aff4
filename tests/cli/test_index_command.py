"""``clipfleet index`` of shards, tables and patterns, against a real Redis and a worker that gives toy vectors."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

CASES = Path(__file__).resolve().parents[1] / "cases"


@pytest.fixture
def here(tmp_path):
    """The folder in which commands run, with the cases in it."""
    copytree(CASES, tmp_path, dirs_exist_ok=True)
    return tmp_path


def summary(done):
    return json.loads(done.err.splitlines()[-1])


def test_given_shards_when_indexed_then_each_picture_is_told_and_a_cut_shard_is_incomplete(cli, fleet, here):
    done = cli("index", "shards/{dotted_keys,truncated}.tar", "--json", "--failures", "f.jsonl", **fleet)
    assert done.code == 3
    assert [line["id"] for line in done.lines if line["ok"]] == [
        *(f"dotted_keys/{key}" for key in ("22.05", "train.v1/0001", "train.v1/0002", "UPPER", "a b é中")),
        *("truncated/0000", "truncated/0001"),
    ]
    (bad,) = [line for line in done.lines if not line["ok"]]
    assert (bad["input"], bad["error"]["code"]) == ("shards/truncated.tar", "fetch_failed")
    assert [json.loads(line) for line in (here / "f.jsonl").read_text().splitlines()] == [bad]
    assert "shards/{dotted_keys,truncated}.tar: 2 webdataset shards" in done.err
    assert summary(done)["incomplete"] == ["shards/truncated.tar"]


def test_given_a_table_of_addresses_when_indexed_then_it_says_what_it_took_and_workers_get_addresses(cli, fleet, here):
    done = cli("index", "urls_dirty.csv", **fleet)
    assert done.code == 3
    assert "urls_dirty.csv: CSV, addresses in column 'URL', id is column 'id', metadata 'caption'" in done.err
    assert "urls_dirty.csv:7: bad_request: 2 fields where the header has 3" in done.err
    assert "4 of 6 pictures indexed into 'images'" in done.out
    assert "1 duplicate not sent again" in done.out
    assert not {"stopped", "incomplete"} & set(done.out.split())


def test_given_a_table_of_paths_from_elsewhere_when_indexed_then_it_reads_only_its_own_folder(cli, fleet, here):
    (here / "images" / "t.csv").write_text("file,sku\nanimated.gif,1\n../urls.tsv,2\n/etc/passwd,3\n")
    where = ("index", "images/t.csv", "--id-column", "sku", "--json")
    done = cli(*where, **fleet)
    assert (done.code, [line["error"]["code"] for line in done.lines if not line["ok"]]) == (3, ["fetch_forbidden"] * 2)
    assert [line["ok"] for line in cli(*where, "--path-root", "images", **fleet).lines] == [True, False, False]
    assert cli(*where, "--path-root", "shards", **fleet).code == 1


def test_given_a_pattern_when_indexed_then_what_matches_is(cli, fleet, here):
    done = cli("index", "**/animated.*", "--json", **fleet)
    assert (done.code, sorted(line["id"] for line in done.lines)) == (
        0,
        ["images/animated.gif", "images/animated.webp"],
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["text.jsonl"], "none of its columns is named like addresses or paths"),
        (["urls_dirty.csv", "--url-column", "address"], "has no column 'address'"),
        (["urls_dirty.csv", "--url-column", "URL", "--path-column", "id"], "give one of them"),
        (["nothing.tar"], "nothing.tar: no such file or folder"),
        (["shards/*.tgz"], "shards/*.tgz: no such file or folder"),
        (["{0..9999999}"], "at most 1,000,000"),
        (["images", "--id-column", "x"], "are for tables"),
    ],
)
def test_given_a_source_that_cannot_be_used_so_when_indexed_then_wrong_usage_and_what_is_there(cli, here, args, said):
    done = cli("index", *args)
    assert done.code == 2
    assert said in done.err


def test_given_a_source_of_which_nothing_could_be_indexed_then_it_is_never_a_success(cli, fleet, here):
    (here / "page.tar").write_text("<html>not found</html>" * 100)
    (here / "empty.csv").write_text("url\n")
    done = cli("index", "page.tar", **fleet)
    assert done.code == 1
    assert "page.tar: unsupported_media: not a tar" in done.err
    assert "0 of 1 picture indexed" in done.out
    assert cli("index", "empty.csv", **fleet).code == 1


def test_given_names_that_a_terminal_would_obey_when_indexed_then_they_are_shown_as_text(cli, fleet, here):
    (here / "t.csv").write_text("url\x1b[2J,a\nhttps://e.com/1.jpg,\n")
    done = cli("index", "t.csv", "--url-column", "url\x1b[2J", **fleet)
    assert done.code == 0
    assert r"addresses in column 'url\x1b[2J'" in done.err
    (here / "\x1b[1mbold.png").symlink_to("nothing")
    done = cli("index", "*bold.png", **fleet)
    assert r"\x1b[1mbold.png: fetch_failed" in done.err
    assert "\x1b" not in done.err


def test_given_zips_and_videos_when_indexed_then_they_are_told_apart_by_their_names(cli, fleet, here):
    av = pytest.importorskip("av")
    with zipfile.ZipFile(here / "z.zip", "w") as made:
        made.write(here / "images/animated.gif", "a/animated.gif")
    with av.open(str(here / "clip.mkv"), "w") as made:
        stream = made.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(40):
            made.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), 6 * number, np.uint8))))
        made.mux(stream.encode())
    done = cli("index", "z.zip", "clip.mkv", "--every-s", "2", "--json", **fleet)
    assert (done.code, [line["id"] for line in done.lines]) == (
        0,
        ["z/a/animated.gif", "clip.mkv#t=0.000", "clip.mkv#t=2.000"],
    )
    assert "z.zip: a zip archive" in done.err
    assert "clip.mkv: a video, a frame each 2 s" in done.err


def test_given_a_store_that_cannot_be_used_when_indexed_then_it_is_wrong_usage_and_says_why(cli, fleet, here):
    for name, text in (
        ("memory://nowhere", "no such file"),
        ("nonsense://x", "nonsense"),
        ("memory://t.csv", "no such file"),
    ):
        done = cli("index", name, **fleet)
        assert (done.code, text in done.err) == (2, True), done.err
