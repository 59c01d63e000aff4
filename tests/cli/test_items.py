"""``embed``, ``search`` and ``index`` against a real Redis and a worker that gives toy vectors."""

from __future__ import annotations

import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
import typer

from clipfleet.cli import main
from clipfleet.cli.commands import embed, search
from clipfleet.cli.items import Answer, line_groups
from clipfleet.cli.output import Output
from clipfleet.cli.run import collection_name
from clipfleet.schemas.errors import RequestFailed
from clipfleet.schemas.result import Result
from clipfleet.store.types import check_collection_name
from support.cli import clean_environment, end, start
from support.raw_worker import RawWorker, answer, toy_vector
from support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    (root / "deep").mkdir(parents=True)
    for name in ("a.png", "b.png", "deep/c.jpg"):
        (root / name).write_bytes(name.encode())
    return root


def test_given_texts_when_embedded_then_one_json_object_a_line_in_their_order(cli, fleet):
    done = cli("embed", "a cat", "a dog", "a cat", "--json", **fleet)
    assert done.code == 0
    assert [line["input"] for line in done.lines] == ["a cat", "a dog", "a cat"]
    assert all(line["ok"] and math.isclose(math.hypot(*line["vector"]), 1, abs_tol=1e-6) for line in done.lines)
    assert done.lines[0]["vector"] == done.lines[2]["vector"] != done.lines[1]["vector"]


def test_given_lines_on_stdin_when_embedded_then_each_gives_a_line(cli, fleet):
    for args in (["embed", "--json"], ["embed", "--json", "-"]):
        done = cli(*args, stdin=b"one\n\nthree\r\nfour", **fleet)
        assert [line["input"] for line in done.lines] == ["one", "", "three", "four"]


def test_given_a_line_outside_utf8_when_embedded_then_it_fails_alone(cli, fleet):
    done = cli("embed", "--json", stdin=b"one\ncaf\xe9\nthree\n", **fleet)
    assert done.code == 3
    assert [line["ok"] for line in done.lines] == [True, False, True]
    assert done.lines[1]["error"]["code"] == "bad_request"


def test_given_an_argument_outside_utf8_when_embedded_then_it_fails_alone_like_a_line(cli, fleet):
    done = cli("embed", "--json", b"caf\xe9", "größe", **fleet)
    assert done.code == 3
    assert [line["input"] for line in done.lines] == [r"caf\xe9", "größe"]
    assert [line.get("error", {}).get("code") for line in done.lines] == ["bad_request", None]


@pytest.mark.parametrize("command", ["embed", "search"])
def test_given_files_before_and_after_a_flag_when_asked_then_the_order_given_is_kept(cli, fleet, pictures, command):
    a, b, c = (str(pictures / name) for name in ("a.png", "b.png", "deep/c.jpg"))
    done = cli(command, "--json", "--image", a, b, "--image", c, **fleet)
    assert (done.code, [line["input"] for line in done.lines]) == (0, [a, b, c])


@pytest.mark.parametrize("command", ["embed", "search"])
def test_given_an_address_for_a_file_when_asked_then_it_fails_alone_and_says_that_files_are_read(
    cli, fleet, pictures, command
):
    done = cli(command, "--json", "--image", "https://example.com/a.png", str(pictures / "a.png"), **fleet)
    assert (done.code, [line["ok"] for line in done.lines]) == (3, [False, True])
    assert done.lines[0]["error"]["code"] == "fetch_failed"
    assert "no addresses" in done.lines[0]["error"]["message"]


@pytest.mark.parametrize("command", ["embed", "search"])
def test_given_the_file_of_a_picture_without_the_flag_when_asked_then_it_is_words_and_the_flag_is_named(
    cli, fleet, pictures, command
):
    file = str(pictures / "a.png")
    done = cli(command, "--json", file, "nowhere.png", "x" * 5_000 + ".png", **fleet)
    assert (done.code, [line["ok"] for line in done.lines]) == (0, [True] * 3)
    assert done.err.count("is a file") == 1
    assert f"--image {file} reads" in done.err
    assert "is a file" not in cli(command, "--json", "--image", file, **fleet).err


@pytest.mark.parametrize("show", [embed.show, partial(search.show_hits, elapsed_s=0.1)])
@pytest.mark.parametrize("json_lines", [True, False])
def test_given_a_text_that_was_cut_when_shown_then_it_is_said(show, json_lines):
    outputs = {"vector": toy_vector(b"x"), "hits": [{"id": "a", "score": 0.5, "metadata": {}}]}
    for notes, said in (({"truncated": True, "batch_size": 2}, True), ({"batch_size": 2}, False)):
        stdout = io.StringIO()
        answer = Answer("x", Result("x", ok=True, outputs=outputs, notes=notes), None)
        show(Output(json_lines=json_lines, stdout=stdout), answer)
        shown = stdout.getvalue()
        if json_lines:
            assert json.loads(shown).get("notes") == ({"truncated": True} if said else None)
        else:
            assert ("cut to what the model reads" in shown) is said


def test_given_more_lines_than_fit_in_flight_when_embedded_then_all_come_back_in_order(cli, fleet):
    texts = [f"text {number}" for number in range(1_500)]
    done = cli("embed", "--json", stdin="\n".join(texts).encode(), **fleet)
    assert done.code == 0
    assert [line["input"] for line in done.lines] == texts


def test_given_pictures_and_a_bad_file_when_embedded_then_the_others_are_answered_and_the_exit_code_is_3(
    cli, fleet, pictures
):
    names = [str(pictures / "a.png"), str(pictures / "nothing.png"), str(pictures), str(pictures / "b.png")]
    done = cli("embed", "--json", "--image", names[0], *names[1:], **fleet)
    assert done.code == 3
    assert [line["input"] for line in done.lines] == names
    assert [line.get("error", {}).get("code") for line in done.lines] == [
        None,
        "fetch_failed",
        "unsupported_media",
        None,
    ]


def test_given_nothing_as_an_input_then_that_is_said(cli, fleet):
    done = cli("embed", "--image", "", **fleet)
    assert (done.code, "(an empty input): unsupported_media: " in done.err) == (1, True), done.err
    # As of a variable that is not set: not the current folder
    done = cli("index", "", "pics", **fleet)
    assert (done.code, "one of the sources is empty" in done.err) == (2, True), done.err


def test_given_only_bad_items_when_embedded_then_it_failed(cli, fleet):
    done = cli("embed", "--image=nothing.png", **fleet)
    assert done.code == 1
    assert "fetch_failed" in done.err


def test_given_no_json_when_embedded_then_lines_for_people(cli, fleet):
    done = cli("embed", "a cat", **fleet)
    assert done.out.startswith("a cat\t[")
    assert "8 dims" in done.out


def test_given_no_worker_when_embedded_then_exit_code_4_and_what_to_do(cli, redis_server, keys):
    done = cli("embed", "a cat", REDIS_URL=redis_server.url, CLIPFLEET_QUEUE=keys.queue)
    assert done.code == 4
    assert "unavailable: no worker on queue" in done.err
    assert "clipfleet up" in done.err
    assert "Traceback" not in done.err


def test_given_no_redis_when_embedded_then_exit_code_4(cli):
    done = cli("embed", "a cat", "--json", "--redis-url", "redis://127.0.0.1:1", CLIPFLEET_TIMEOUT_S="2")
    assert done.code == 4
    assert done.lines[0]["error"]["code"] == "unavailable"


def test_when_run_then_one_line_on_stderr_says_which_fleet_and_why(cli, fleet):
    done = cli("embed", "a cat", **fleet)
    assert done.err.splitlines()[0] == (
        f"fleet: {fleet['CLIPFLEET_REDIS_URL']}, queue {fleet['CLIPFLEET_QUEUE']} (from CLIPFLEET_REDIS_URL)"
    )


def test_given_queries_when_searched_then_a_line_of_hits_for_each(cli, fleet, pictures):
    done = cli("search", "a cat", "a dog", "--json", "--collection", "c", "--limit", "3", "--filter", "x > 1", **fleet)
    assert done.code == 0
    assert [line["input"] for line in done.lines] == ["a cat", "a dog"]
    (hit,) = done.lines[0]["hits"]
    assert (hit["id"], hit["score"]) == ("a", 0.5)
    assert hit["metadata"]["inputs"] == ["collection", "filter", "limit", "text"]
    by_picture = cli("search", "--image", str(pictures / "a.png"), "--json", **fleet)
    assert "image" in by_picture.lines[0]["hits"][0]["metadata"]["inputs"]


def test_given_no_json_when_searched_then_a_ranked_table(cli, fleet):
    done = cli("search", "a cat", **fleet)
    assert "a cat: 1 hit in" in done.out
    assert "0.500" in done.out


def test_given_a_folder_when_indexed_then_every_picture_is_told_and_summed_up(cli, fleet, pictures):
    done = cli("index", str(pictures), "--json", **fleet)
    assert done.code == 0
    assert sorted(line["id"] for line in done.lines) == ["a.png", "b.png", "deep/c.jpg"]
    summary = json.loads(done.err.splitlines()[-1])
    assert (summary["event"], summary["indexed"], summary["found"]) == ("indexed", 3, 3)


def test_given_failures_when_indexed_then_the_rest_goes_on_and_each_is_in_the_file(cli, fleet, pictures, tmp_path):
    (pictures / "broken.png").symlink_to("nothing")
    os.mkfifo(pictures / "pipe.png")
    (pictures / "notes.txt").touch()
    done = cli("index", str(pictures), "--failures", str(tmp_path / "failed.jsonl"), **fleet)
    assert done.code == 3
    assert "3 of 4 pictures indexed" in done.out
    assert "1 other file skipped" in done.out
    (line,) = (tmp_path / "failed.jsonl").read_text().splitlines()
    assert (json.loads(line)["id"], json.loads(line)["error"]["code"]) == ("broken.png", "fetch_failed")


def test_given_many_failures_when_indexed_then_a_few_are_shown_and_the_way_to_the_others(cli, fleet, tmp_path):
    (tmp_path / "broken").mkdir()
    for number in range(13):
        (tmp_path / "broken" / f"{number}.png").symlink_to("nothing")
    done = cli("index", str(tmp_path / "broken"), **fleet)
    assert done.err.count(": fetch_failed: ") == 10
    (named,) = re.findall(r"and 3 more; (\S+) lists them all", done.err)
    assert len((tmp_path / named).read_text().splitlines()) == 13
    done = cli("index", str(tmp_path / "broken"), "--failures", "all.jsonl", **fleet)
    assert "and 3 more; all.jsonl lists them all" in done.err
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 13


def test_given_a_failures_file_that_cannot_be_when_indexed_then_wrong_usage(cli, fleet, pictures):
    done = cli("index", str(pictures), "--failures", "/nowhere/x", **fleet)
    assert done.code == 2
    assert "--failures /nowhere/x: cannot be written: No such file or directory" in done.err


@pytest.mark.parametrize("args", [["index", "."], ["search", "x"]])
def test_given_a_collection_that_cannot_be_when_asked_then_wrong_usage_before_anything_is_sent(args, capsys):
    assert main([*args, "--collection", "../x"]) == 2
    assert "letters, digits and _" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a", "_", "A9_", "9a", "", "../x", "a-b", "a\n", "ä", "a" * 128, "a" * 129])
def test_a_collection_name_is_what_the_store_takes(name):
    def takes(check) -> bool:
        try:
            return check(name) == name
        except (typer.BadParameter, RequestFailed):
            return False

    assert takes(collection_name) is takes(check_collection_name)


def test_given_an_interruption_when_indexed_then_it_says_how_much_was_done(redis_server, keys, pictures, tmp_path):
    held = threading.Event()

    def handler(request):
        held.wait(30)
        return answer(request)

    for number in range(3):
        (pictures / f"broken{number}.png").symlink_to("nothing")
    with RawWorker(redis_server.url, keys, handler=handler):
        where = {"CLIPFLEET_REDIS_URL": redis_server.url, "CLIPFLEET_QUEUE": keys.queue}
        process = start("index", "pictures", cwd=tmp_path, **where)
        with redis_server.client() as client:
            wait_until(lambda: client.xlen(keys.lanes[1]), 60, "pictures on the queue")
        _, err = end(process, signal.SIGINT)
        held.set()
    assert process.returncode == 130
    assert "0 pictures indexed into 'images'" in err
    assert err.splitlines()[-1] == "interrupted"


def test_given_nothing_that_could_be_indexed_when_indexed_then_it_is_never_a_success(cli, fleet, tmp_path):
    (tmp_path / "empty").mkdir()
    done = cli("index", str(tmp_path / "empty"), **fleet)
    # Said once, and nothing is called reconciled
    assert (done.code, done.out) == (1, "no pictures found\n")
    assert "indexed" not in done.err
    (tmp_path / "empty" / "broken.png").symlink_to("nothing")
    assert cli("index", str(tmp_path / "empty"), **fleet).code == 1


def test_given_no_worker_when_indexed_then_exit_code_4_before_anything_is_sent(cli, redis_server, keys, pictures):
    done = cli("index", str(pictures), REDIS_URL=redis_server.url, CLIPFLEET_QUEUE=keys.queue)
    assert done.code == 4
    assert "unavailable: no worker on queue" in done.err
    with redis_server.client() as client:
        assert not client.exists(*keys.lanes)


def test_given_a_source_that_is_not_there_when_indexed_then_wrong_usage(cli, fleet):
    done = cli("index", "nothing", **fleet)
    assert done.code == 2
    assert "nothing: no such file or folder" in done.err


def test_given_a_reader_that_goes_away_when_embedded_then_no_traceback(fleet, tmp_path):
    (tmp_path / "lines").write_text("x\n" * 3_000)
    done = subprocess.run(
        f"{sys.executable} -m clipfleet.cli embed --json < lines | head -n 1",
        shell=True,
        cwd=tmp_path,
        env=clean_environment(**fleet),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_given_a_writer_that_waits_when_embedded_then_each_line_is_answered_before_the_next_comes(fleet, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "clipfleet.cli", "embed", "--json"],
        cwd=tmp_path,
        env=clean_environment(**fleet),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for text in ("one", "two"):
        process.stdin.write(f"{text}\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["input"] == text
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("pieces", "groups"),
    [
        ([], []),
        ([b"a\nb\n"], [[b"a", b"b"]]),
        ([b"a\nb"], [[b"a"], [b"b"]]),
        ([b"a", b"b\r\n", b"\n"], [[], [b"ab"], [b""]]),
    ],
)
def test_given_pieces_of_input_when_read_then_whole_lines_come_as_soon_as_they_are_there(pieces, groups):
    class Pieces:
        def __init__(self):
            self.left = list(pieces)

        def read1(self, _size):
            return self.left.pop(0) if self.left else b""

    assert list(line_groups(Pieces())) == groups
