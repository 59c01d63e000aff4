from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from clipfleet.cli.local.endpoints import FILE, FOLDER, Endpoints, find_live, find_stopped, process_start, redis_answers

if TYPE_CHECKING:
    from pathlib import Path

    from support.redis_server import RedisServer


@pytest.fixture
def mine(redis_server: RedisServer) -> Endpoints:
    return Endpoints(os.getpid(), process_start(os.getpid()) or 0, "up", redis_server.url, None, "clip", "pre", True)


def written(endpoints: Endpoints, place: Path) -> Path:
    folder = place / FOLDER
    folder.mkdir(parents=True)
    endpoints.write(folder)
    return folder


def test_given_a_live_fleet_when_looked_for_here_or_below_then_it_is_found(mine, tmp_path):
    folder = written(mine, tmp_path)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_live(tmp_path) == (mine, folder)
    assert find_live(below) == (mine, folder)


def test_given_two_when_looked_for_then_the_nearer_one_is_found(mine, tmp_path):
    written(mine, tmp_path)
    near = replace(mine, queue="near")
    folder = written(near, tmp_path / "a")
    assert find_live(tmp_path / "a") == (near, folder)


def test_given_a_pid_that_came_back_when_looked_for_then_it_is_not_believed(mine, tmp_path):
    written(replace(mine, start=mine.start + 1), tmp_path)
    assert find_live(tmp_path) is None


def test_given_a_fleet_that_was_killed_when_a_command_runs_there_then_it_is_said(mine, tmp_path, cli):
    dead = replace(mine, start=mine.start + 1)
    folder = written(dead, tmp_path)
    (tmp_path / "below").mkdir()
    assert find_stopped(tmp_path / "below") == (dead, folder)
    assert f"the fleet of {folder} ('clipfleet up', pid {dead.pid}) has stopped" in cli("status").err
    assert "has stopped" not in cli("status", REDIS_URL=mine.redis_url).err


def test_given_a_redis_that_does_not_answer_when_looked_for_then_it_is_not_believed(mine, tmp_path):
    written(replace(mine, redis_url="redis://127.0.0.1:1"), tmp_path)
    assert find_live(tmp_path) is None


def test_given_somebody_elses_file_in_a_folder_above_when_looked_for_then_it_is_not_believed(
    mine, tmp_path, monkeypatch
):
    folder = written(mine, tmp_path)
    assert find_live(tmp_path / "mine") == (mine, folder)
    monkeypatch.setattr(os, "geteuid", lambda: (folder / FILE).stat().st_uid + 1)
    assert find_live(tmp_path / "mine") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v": 2, "pid": 1}', '{"v": 1}', '{"v": 1, "pid": 1, "more": 2}'])
def test_given_a_file_that_makes_no_sense_when_read_then_there_is_none(text, tmp_path):
    (tmp_path / FILE).write_text(text)
    assert Endpoints.read(tmp_path) is None


def test_given_another_owner_when_removed_then_the_file_stays(mine, tmp_path):
    folder = written(mine, tmp_path)
    replace(mine, pid=1).remove(folder)
    assert Endpoints.read(folder) == mine
    mine.remove(folder)
    assert not (folder / FILE).exists()


def test_when_written_then_nothing_else_is_left_and_others_cannot_read_it(mine, tmp_path):
    folder = written(mine, tmp_path)
    assert [entry.name for entry in folder.iterdir()] == [FILE]
    assert (folder / FILE).stat().st_mode & 0o077 == 0
    assert json.loads((folder / FILE).read_text())["redis_url"] == mine.redis_url


def test_given_no_process_when_asked_for_its_start_then_none():
    assert process_start(2**22 + 1) is None


def test_given_no_server_when_asked_then_it_does_not_answer(redis_server):
    assert redis_answers(redis_server.url)
    assert not redis_answers("redis://127.0.0.1:1")
