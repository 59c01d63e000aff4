from __future__ import annotations

import io
import json
import logging

import pytest

from clipfleet.cli.errors import CliError, Exit, describe, exit_for, exit_for_items
from clipfleet.cli.output import Output
from clipfleet.schemas.errors import ErrorCode, QueueFull, Unavailable, error_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def streams() -> tuple[io.StringIO, io.StringIO]:
    return io.StringIO(), io.StringIO()


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    before = list(root.handlers)
    yield root
    root.handlers[:] = before


def test_given_no_terminal_when_something_is_done_then_it_is_a_json_line(streams):
    Output(stdout=streams[0], stderr=streams[1]).step("starting Redis")
    line = json.loads(streams[1].getvalue())
    assert (line["event"], line["level"]) == ("starting Redis", "info")
    assert line["timestamp"].endswith("Z")


def test_given_a_pipe_when_a_line_or_a_table_is_said_then_it_is_there_before_what_stderr_says_next():
    pipe = io.BytesIO()
    out = Output(stdout=io.TextIOWrapper(pipe, encoding="utf-8"), stderr=io.StringIO())
    out.line("one")
    assert pipe.getvalue() == b"one\n"
    out.table("two", ("id",), [("cat.png",)])
    assert b"cat.png\n" in pipe.getvalue()


def test_given_a_terminal_when_something_is_done_then_it_is_a_line_for_people():
    stderr = Terminal()
    Output(stdout=io.StringIO(), stderr=stderr).step("starting Redis")
    assert stderr.getvalue() == "… starting Redis\n"


def test_when_a_library_warns_then_it_is_shown_like_everything_else(streams, root_logger):
    Output(stdout=streams[0], stderr=streams[1]).take_logs()
    logging.getLogger("clipfleet.producer").warning("Redis is %s", "away")
    logging.getLogger("clipfleet.producer").info("not shown")
    line = json.loads(streams[1].getvalue())
    assert (line["event"], line["level"], line["logger"]) == ("Redis is away", "warning", "clipfleet.producer")


def test_given_names_that_look_like_markup_when_tabled_then_they_are_data_and_no_line_ends_in_spaces(streams):
    long = "b" * 150
    Output(stdout=streams[0], stderr=streams[1]).table(
        "found", ("#rank", "id"), [("1", "[red]a.png"), ("2", "b" * 150)]
    )
    lines = streams[0].getvalue().splitlines()
    assert lines[0] == "found"
    assert any(line.endswith("[red]a.png") for line in lines)
    assert any(line.endswith(long) for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_given_any_text_when_written_as_json_then_it_is_one_ascii_line(streams):
    Output(json_lines=True, stdout=streams[0]).json({"input": "größe\n猫", "ok": True})
    assert streams[0].getvalue() == '{"input":"gr\\u00f6\\u00dfe\\n\\u732b","ok":true}\n'


@pytest.mark.parametrize(
    ("done", "failed", "expected"),
    [
        (3, [], Exit.OK),
        (0, [], Exit.OK),
        (1, [ErrorCode.CORRUPT_IMAGE], Exit.PARTIAL),
        (1, [ErrorCode.UNAVAILABLE], Exit.PARTIAL),
        (0, [ErrorCode.CORRUPT_IMAGE], Exit.FAILED),
        (0, [ErrorCode.CORRUPT_IMAGE, ErrorCode.UNAVAILABLE], Exit.FAILED),
        (0, [ErrorCode.UNAVAILABLE, ErrorCode.QUEUE_FULL], Exit.BUSY),
    ],
)
def test_given_what_became_of_the_items_when_ended_then_the_exit_code_says_it(done, failed, expected):
    assert exit_for_items(done, failed) is expected


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (CliError("no", hint="do"), Exit.FAILED, "no"),
        (CliError("no", exit_code=Exit.USAGE), Exit.USAGE, "no"),
        (QueueFull(2.0), Exit.BUSY, "queue_full: the queue is full; try again in 2 s"),
        (Unavailable(ErrorCode.UNAVAILABLE, "no worker"), Exit.BUSY, "unavailable: no worker"),
        (error_for(ErrorCode.EMPTY_INPUT), Exit.FAILED, "empty_input: there is nothing to embed"),
        (KeyboardInterrupt(), Exit.INTERRUPTED, "KeyboardInterrupt: "),
        (RuntimeError("odd"), Exit.FAILED, "RuntimeError: odd"),
    ],
)
def test_given_an_error_when_told_then_it_is_one_line_with_its_code(error, code, line):
    assert exit_for(error) is code
    assert describe(error)[0] == line


@pytest.mark.parametrize(
    ("package", "extra"), [("onnxruntime", "cpu"), ("open_clip", "torch"), ("milvus_lite", "local")]
)
def test_given_a_package_that_is_missing_when_told_then_the_line_that_installs_it(package, extra):
    text, hint = describe(ModuleNotFoundError(f"No module named '{package}'", name=f"{package}.sub"))
    assert package in text
    assert hint.endswith(f'pip install "clipfleet[{extra}]"')


def test_given_others_words_with_control_characters_then_a_terminal_sees_them_and_does_not_obey(streams):
    out = Output(stdout=streams[0], stderr=streams[1])
    out.line("an id \x1b[2J\u202e end\n\tnext")
    out.note("a name \x1b]0;title\x07")
    out.table("hits \x1b[1m", ("id",), [("\x1b[31mred\nblue",)])
    said = streams[0].getvalue() + streams[1].getvalue()
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert r"an id \x1b[2J\u202e end" in said
    assert "\n\tnext" in said
    assert r"\x1b[31mred" in said
