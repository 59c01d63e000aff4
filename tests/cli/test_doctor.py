from __future__ import annotations

import threading

import pytest

from clipfleet.cli import checks
from clipfleet.cli.checks import check_memory, free_memory, redis_findings
from clipfleet.cli.settings import Flags, load

GOOD = {"redis_version": "6.2.14", "maxmemory_policy": "noeviction", "aof_enabled": 1}


def states(**changed) -> dict[str, str]:
    return {check.name: check.state for check in redis_findings(GOOD | changed, "here")}


def test_given_a_good_redis_when_looked_at_then_all_is_well():
    assert states() == {"redis": "ok", "eviction": "ok", "persistence": "ok"}


@pytest.mark.parametrize(
    ("changed", "name", "state"),
    [
        ({"redis_version": "6.0.20"}, "redis", "bad"),
        ({"redis_version": "5.0.0"}, "redis", "bad"),
        ({"redis_version": "7.4.1"}, "redis", "ok"),
        ({"redis_version": "8.2.0"}, "redis", "ok"),
        ({"redis_version": "10.0"}, "redis", "ok"),
        ({"maxmemory_policy": "allkeys-lru"}, "eviction", "bad"),
        ({"aof_enabled": 0}, "persistence", "note"),
        ({"maxmemory": 100, "used_memory": 95}, "redis memory", "bad"),
    ],
)
def test_given_a_fault_when_looked_at_then_it_is_named_with_its_cure(changed, name, state):
    (check,) = [check for check in redis_findings(GOOD | changed, "here") if check.name == name]
    assert check.state == state
    assert bool(check.fix) == (state != "ok")


def test_given_a_redis_that_evicts_when_the_doctor_comes_then_exit_code_1_and_the_cure(cli, make_redis):
    server = make_redis(maxmemory_policy="allkeys-lru", maxmemory="64mb")
    done = cli("doctor", "--json", "--redis-url", server.url)
    assert done.code == 1
    found = {line["check"]: line for line in done.lines}
    assert (found["eviction"]["ok"], found["redis"]["ok"]) == (False, True)
    assert "config set maxmemory-policy noeviction" in found["eviction"]["fix"]
    assert found["milvus"]["state"] == "note"


def test_given_nothing_that_answers_when_the_doctor_comes_then_he_says_what_to_do(cli):
    done = cli(
        "doctor", "--redis-url", "redis://:hunter2@127.0.0.1:1", "--milvus-uri", "http://127.0.0.1:2", timeout=90
    )
    assert done.code == 1
    assert "BAD   redis" in done.out
    assert "BAD   milvus" in done.out
    assert "clipfleet up" in done.out
    assert "hunter2" not in done.out + done.err


def test_given_this_machine_when_asked_then_memory_is_told():
    free = free_memory()
    assert free is None or free > 0
    assert check_memory().state in {"ok", "note"}


def test_given_checks_that_wait_when_run_then_they_wait_at_the_same_time_and_keep_their_order(monkeypatch):
    together = threading.Barrier(3, timeout=30)

    def waiting(name):
        def check(*_settings):
            together.wait()
            yield checks.Check(name, "ok", "")

        return check

    for name in ("redis", "milvus", "model"):
        monkeypatch.setattr(checks, f"check_{name}", waiting(name))
    monkeypatch.setattr(checks, "check_runtime", lambda: iter(()))
    assert [check.name for check in checks.run_checks(load(Flags(), {}))] == ["redis", "milvus", "model", "memory"]
