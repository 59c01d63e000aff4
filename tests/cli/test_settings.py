from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clipfleet.cli.errors import CliError, Exit
from clipfleet.cli.local.endpoints import Endpoints
from clipfleet.cli.settings import Flags, load, redacted

LIVE = (
    Endpoints(1, 2, "up", "redis://127.0.0.1:7001", "http://127.0.0.1:7002", "mine", "pre", has_worker=True),
    Path("/x"),
)


def test_given_nothing_when_loaded_then_localhost_and_no_store():
    settings = load(Flags(), {})
    assert (settings.redis_url, settings.milvus_uri, settings.queue) == ("redis://localhost:6379", None, "clip")
    assert settings.source == "the default"


@pytest.mark.parametrize(
    ("flags", "environ", "live", "expected", "source"),
    [
        ({"redis_url": "redis://flag"}, {"CLIPFLEET_REDIS_URL": "redis://env"}, LIVE, "redis://flag", "--redis-url"),
        ({}, {"CLIPFLEET_REDIS_URL": "redis://a", "REDIS_URL": "redis://b"}, LIVE, "redis://a", "CLIPFLEET_REDIS_URL"),
        ({}, {"REDIS_URL": "redis://b"}, LIVE, "redis://b", "REDIS_URL"),
        ({}, {}, LIVE, "redis://127.0.0.1:7001", "/x, 'clipfleet up' with pid 1"),
        ({}, {"REDIS_URL": ""}, None, "redis://localhost:6379", "the default"),
    ],
)
def test_given_several_sources_when_loaded_then_the_nearest_wins_and_is_named(flags, environ, live, expected, source):
    settings = load(Flags(**flags), environ, live=live)
    assert settings.redis_url == expected
    assert settings.source == source


def test_given_a_live_fleet_when_loaded_then_its_queue_and_its_store_come_along():
    settings = load(Flags(), {}, live=LIVE)
    assert (settings.queue, settings.prefix) == ("mine", "pre")
    assert (settings.milvus_uri, settings.milvus_is_lite) == ("http://127.0.0.1:7002", True)


def test_given_a_live_fleet_when_its_queue_is_used_then_its_worker_may_be_waited_for():
    assert load(Flags(), {}, live=LIVE).attended
    assert not load(Flags(queue="other"), {}, live=LIVE).attended
    assert not load(Flags(redis_url="redis://elsewhere"), {}, live=LIVE).attended
    assert not load(Flags(), {}, live=(replace(LIVE[0], has_worker=False), LIVE[1])).attended


def test_given_a_store_that_the_command_does_not_use_when_told_then_it_is_not_named():
    settings = load(Flags(milvus_uri="http://milvus:19530"), {})
    assert "milvus http://milvus:19530" in settings.line()
    assert "milvus" not in settings.line(store=False)


def test_given_another_redis_when_loaded_then_the_local_store_is_not_mixed_in():
    settings = load(Flags(redis_url="redis://elsewhere"), {}, live=LIVE)
    assert (settings.queue, settings.milvus_uri, settings.milvus_is_lite) == ("clip", None, False)


def test_given_secret_files_when_loaded_then_their_content_counts(tmp_path):
    (tmp_path / "url").write_text("redis://user:pass@host:1\n")
    (tmp_path / "token").write_text("s3cret\n")
    environ = {"CLIPFLEET_REDIS_URL_FILE": str(tmp_path / "url"), "MILVUS_TOKEN_FILE": str(tmp_path / "token")}
    settings = load(Flags(), environ)
    assert (settings.redis_url, settings.milvus_token) == ("redis://user:pass@host:1", "s3cret")


def test_given_a_secret_file_that_is_not_there_when_loaded_then_a_usage_error_names_the_variable():
    with pytest.raises(CliError, match="REDIS_URL_FILE") as caught:
        load(Flags(), {"REDIS_URL_FILE": "/nowhere/at/all"})
    assert caught.value.exit is Exit.USAGE


def test_given_secrets_when_shown_then_they_are_nowhere():
    environ = {
        "REDIS_URL": "redis://user:hunter2@host:1/0?password=hunter2",
        "MILVUS_URI": "https://root:hunter2@milvus:19530",
        "MILVUS_TOKEN": "hunter2",
    }
    flags = Flags(redis_url="redis://:hunter2@host")
    shown = f"{load(Flags(), environ)!r} {load(Flags(), environ).line()} {flags!r} {load(flags, environ).line()}"
    assert "hunter2" not in shown
    assert "host:1" in shown


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://localhost:6379", "redis://localhost:6379"),
        ("redis://:pw@h:1/2", "redis://:***@h:1/2"),
        ("rediss://u:pw@h?ssl_keyfile_password=pw", "rediss://u:***@h"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_given_a_url_when_redacted_then_only_its_place_is_left(url, expected):
    assert redacted(url) == expected


@pytest.mark.parametrize(
    ("flags", "environ"),
    [
        ({"redis_url": "http://host"}, {}),
        ({"redis_url": "redis://host:port"}, {}),
        ({"milvus_uri": "./milvus.db"}, {}),
        ({"queue": "a queue"}, {}),
        ({}, {"CLIPFLEET_PREFIX": "{x}"}),
        ({}, {"CLIPFLEET_TIMEOUT_S": "soon"}),
        ({}, {"CLIPFLEET_TIMEOUT_S": "0"}),
    ],
)
def test_given_a_setting_that_cannot_be_when_loaded_then_it_is_a_usage_error(flags, environ):
    with pytest.raises(CliError) as caught:
        load(Flags(**flags), environ)
    assert caught.value.exit is Exit.USAGE
