from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from clipfleet.cli.app import app
from clipfleet.cli.lite import RowGuard
from clipfleet.cli.local.endpoints import Endpoints
from clipfleet.cli.settings import Flags, load
from clipfleet.store.lite import LITE_ROW_LIMIT, LiteError, check_lite_version


@pytest.fixture
def guard(monkeypatch):
    """A guard whose collection holds as many rows as the test says, and which counts how often it looked."""
    live = Endpoints(1, 2, "up", "redis://127.0.0.1:7001", "http://127.0.0.1:7002", "clip", "clipfleet", True)
    made = RowGuard(load(Flags(), {}, live=(live, Path("/x"))), "images")
    made.rows, made.looks = 0, 0

    def rows():
        made.looks += 1
        return made.rows

    monkeypatch.setattr(made, "_rows", rows)
    return made


def test_given_a_milvus_that_is_away_when_it_is_time_to_look_then_the_run_goes_on_and_looks_later(guard, monkeypatch):
    monkeypatch.undo()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        guard._settings = replace(guard._settings, milvus_uri=f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert guard(1_000) == ""
    guard.rows = LITE_ROW_LIMIT
    monkeypatch.setattr(guard, "_rows", lambda: guard.rows)
    assert guard(1_999) == ""
    assert "Milvus server" in guard(2_000)


def test_given_a_small_folder_when_indexed_then_milvus_is_not_even_asked(guard):
    assert not any(guard(sent) for sent in range(1_000))
    assert guard.looks == 0


def test_given_a_full_collection_when_indexed_then_it_stops_and_names_the_server(guard):
    guard.rows = LITE_ROW_LIMIT
    assert guard(999) == ""
    reason = guard(1_000)
    assert "100,0" in reason
    assert "Milvus server" in reason


def test_given_the_advice_when_followed_then_the_command_in_it_exists(guard, monkeypatch):
    guard.rows = LITE_ROW_LIMIT
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.5.1")
    with pytest.raises(LiteError) as refused:
        check_lite_version()
    for text in (guard(1_000), str(refused.value)):
        name, flag, uri = re.search(r"\(clipfleet (\w+) (--\S+) (\S+)\)", text).groups()
        command = typer.main.get_command(app).commands[name]
        assert command.make_context(name, [flag, uri]).params["milvus_uri"] == uri


def test_given_new_rows_when_indexed_then_it_stops_within_a_thousand_of_the_limit(guard):
    stopped = 0
    for sent in range(2 * LITE_ROW_LIMIT):
        guard.rows = sent  # each picture sent is a new row
        if guard(sent):
            stopped = sent
            break
    assert LITE_ROW_LIMIT <= stopped <= LITE_ROW_LIMIT + 1_000
    assert guard.looks < 10


def test_given_rows_that_are_replaced_when_indexed_then_it_goes_on(guard):
    guard.rows = 60_000
    assert not any(guard(sent) for sent in range(2 * LITE_ROW_LIMIT))
