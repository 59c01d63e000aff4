from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from clipfleet.cli import main
from clipfleet.cli.pipeline_items import is_file_input
from support.cli import Done, end, start
from support.fleet import TESTS
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEART = TESTS.parent / "examples" / "pictures" / "red-heart.png"
MODULE = """
import numpy as np
from clipfleet import pipeline
from clipfleet.schemas.errors import ErrorCode, error_for


def words(text):
    if "bad" in text:
        raise error_for(ErrorCode.BAD_SHAPE, "not this one")
    return text.split()


def loud(batch):
    return [word.upper() for word in batch]


sentence = pipeline.input("text")
shout = (
    sentence.flat_map("text", "word", words)
    .map("word", "loud", loud, max_batch_size=8)
    .window_all("loud", "said", " ".join)
    .output("said")
)
size = (
    pipeline.input("image")
    .map("image", ("bytes", "head"), lambda data: (len(data), data[:3]))
    .output("bytes", "head")
)
add = (
    pipeline.input("first", "second")
    .map(("first", "second"), "vector", lambda first, second: np.array([first, second], np.float32))
    .output("vector")
)
"""


@pytest.fixture
def cli(capsys, tmp_path: Path, monkeypatch) -> Callable[..., Done]:
    """A command in this process, in a folder with a module of pipelines of its own."""
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", __import__("sys").path[:])

    def run(*args: Any) -> Done:
        code = main(["pipeline", *(str(arg).replace("mine:", f"{name}:") for arg in args)])
        out, err = capsys.readouterr()
        return Done(code, out.replace(f"{name}:", "mine:"), err.replace(name, "mine"))

    return run


# show -------------------------------------------------------------------------------------------------------------


def test_given_a_pipeline_of_this_folder_when_shown_then_its_steps(cli):
    done = cli("show", "mine:shout")
    assert done.code == 0
    assert done.out.splitlines() == [
        "○ input               → text",
        "○ words   flat_map    text → word  1:n",
        "○   loud  map         word → loud  batch ≤ 8",
        "○   join  window_all  loud → said  n:1",
        "◉ output              said",
    ]


def test_given_a_built_in_pipeline_when_shown_then_its_steps(cli):
    done = cli("show", "embed_text")
    assert (done.code, "clip_text" in done.out) == (0, True)


def test_given_svg_when_shown_then_a_drawing(cli, tmp_path):
    done = cli("show", "mine:shout", "--svg", "drawn.svg")
    assert (done.code, done.out) == (0, "mine:shout is drawn in drawn.svg\n")
    assert ET.parse(tmp_path / "drawn.svg").getroot().tag.endswith("svg")


def test_given_json_when_shown_then_one_object(cli):
    (shown,) = cli("show", "mine:add", "--json").lines
    assert (shown["pipeline"], shown["inputs"], shown["outputs"]) == ("mine:add", ["first", "second"], ["vector"])
    assert [step["method"] for step in shown["steps"]] == ["input", "map", "output"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("mine:nothing", "it has add, shout, size"),
        ("mine:sentence", "no pipeline 'sentence'"),
        ("nomodule:x", "no module 'nomodule'"),
        ("nothing", "there are echo, embed_image"),
        ("mine:", "module:name"),
    ],
)
@pytest.mark.parametrize("what", ["show", "run"])
def test_given_a_wrong_name_when_used_then_wrong_usage_and_what_there_is(cli, what, target, said):
    done = cli(what, target, *(["x"] if what == "run" else []))
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


# run --------------------------------------------------------------------------------------------------------------


def test_given_texts_when_run_then_their_rows_in_order(cli):
    done = cli("run", "mine:shout", "a cat", "two small dogs")
    assert (done.code, done.out) == (0, "a cat:\nsaid\nA CAT\ntwo small dogs:\nsaid\nTWO SMALL DOGS\n")


def test_given_an_input_named_like_a_picture_when_run_then_the_bytes_of_the_file(cli):
    (line,) = cli("run", "mine:size", HEART, "--json").lines
    assert line == {
        "input": str(HEART),
        "ok": True,
        "rows": [{"bytes": HEART.stat().st_size, "head": {"base64": "iVBO"}}],
    }


def test_given_bad_items_when_run_then_they_fail_alone(cli):
    done = cli("run", "mine:shout", "a", "bad", "c", "--json")
    assert done.code == 3
    assert [(line["input"], line["ok"]) for line in done.lines] == [("a", True), ("bad", False), ("c", True)]
    assert done.lines[1]["error"] == {"code": "bad_shape", "message": "not this one", "retryable": False}
    done = cli("run", "mine:size", "nowhere.png", HEART)
    assert done.code == 3
    assert "nowhere.png: fetch_failed" in done.err
    assert "67" not in done.err
    assert cli("run", "mine:shout", "bad").code == 1


def test_given_lines_when_run_then_an_object_of_inputs_each(cli, tmp_path):
    lines = ['{"first": 1, "second": 0.1}', "", '{"first": 1}', '{"third": 1}', "[1]", "{", '{"first": 2, "second": 3}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    done = cli("run", "mine:add", "--input", "in.jsonl", "--json")
    assert done.code == 3
    assert [line["input"] for line in done.lines] == [f"in.jsonl:{number}" for number in (1, 3, 4, 5, 6, 7)]
    assert [line.get("rows") for line in done.lines] == [[{"vector": [1, 0.1]}], *[None] * 4, [{"vector": [2, 3]}]]
    assert {line["error"]["code"] for line in done.lines if not line["ok"]} == {"bad_request"}


def test_given_a_picture_in_a_line_when_run_then_the_bytes_of_the_file(cli, tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps({"image": str(HEART)}))
    (line,) = cli("run", "mine:size", "--input", "in.jsonl", "--json").lines
    assert line["rows"][0]["bytes"] == HEART.stat().st_size


@pytest.mark.parametrize(
    "args", [["mine:shout"], ["mine:shout", "a", "--input", "x.jsonl"], ["mine:shout", "--input", "none.jsonl"]]
)
def test_given_no_inputs_or_both_kinds_when_run_then_wrong_usage(cli, args):
    assert cli("run", *args).code == 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["search", "a cat"], "clipfleet: there is no store here"),
        (["embed_text", "a cat", "--model", "nowhere"], "clipfleet: 'nowhere' names no weights"),
        (["embed_text", "a cat", "--device", "cuda:99"], "clipfleet: demo cannot run on cuda:99"),
    ],
)
def test_given_what_a_step_cannot_have_when_run_then_it_says_so_before_any_item(cli, monkeypatch, args, said):
    for name in ("MILVUS_URI", "CLIPFLEET_MILVUS_URI"):
        monkeypatch.delenv(name, raising=False)
    done = cli("run", *args)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(said)


def test_given_the_demo_model_when_run_then_a_vector(cli):
    (line,) = cli("run", "embed_image", HEART, "--json").lines
    assert len(line["rows"][0]["vector"]) == 256


def test_given_profile_when_run_then_each_stage_and_a_chrome_trace(cli, tmp_path):
    done = cli("run", "mine:shout", "a cat", "a dog", "--profile", "--trace-file", "trace.json")
    assert done.code == 0
    table = done.err.splitlines()
    assert {"stage", "words", "loud", "join"} <= {line.split()[0] for line in table}
    calls = [event for event in json.loads((tmp_path / "trace.json").read_text()) if event["ph"] == "X"]
    assert sum(event["args"]["items"] for event in calls if event["name"] == "loud") == 4
    *_, last = cli("run", "mine:shout", "a cat", "--json", "--profile").lines
    assert {stage["stage"]: stage["items"] for stage in last["profile"]} == {"words": 1, "loud": 2, "join": 1}


def test_given_trace_when_run_then_the_values_of_that_input(cli):
    done = cli("run", "mine:shout", "a cat", "b", "c d", "--trace", "3")
    assert done.err.splitlines() == [
        "words    c d     → [c, d]",
        "loud[0]  c       → C",
        "loud[1]  d       → D",
        "join     [C, D]  → C D",
    ]
    *_, last = cli("run", "mine:size", "nowhere.png", HEART, "--trace", "2", "--json").lines
    assert (last["trace"], last["steps"][0]["inputs"]) == (2, [f"bytes[{HEART.stat().st_size}]"])
    assert "no input 9" in cli("run", "mine:shout", "a", "--trace", "9").err


def test_given_a_step_that_never_ends_when_interrupted_then_the_command_ends(tmp_path):
    (tmp_path / "hanging.py").write_text(
        "import threading\nfrom pathlib import Path\nfrom clipfleet import pipeline\n\n\n"
        "def hang(text):\n    Path('begun').touch()\n    threading.Event().wait()\n\n\n"
        "hanging = pipeline.input('text').map('text', 'never', hang).output('never')\n"
    )
    process = start("pipeline", "run", "hanging:hanging", "a", cwd=tmp_path)
    wait_until((tmp_path / "begun").exists, timeout=30)
    out, err = end(process)
    assert (process.returncode, out) == (130, "")
    assert "interrupted" in err


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *[(name, True) for name in ("image", "images", "left_image", "image_2", "photo1", "bytes")],
        *[(name, False) for name in ("text", "imagery", "image_id", "image_text", "data", "bits")],
    ],
)
def test_which_inputs_are_files(name, is_one):
    assert is_file_input(name) is is_one
