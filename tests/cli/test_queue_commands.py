"""``status`` and ``dead``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clipfleet.schemas.codec import encode_map
from clipfleet.schemas.request import Request

if TYPE_CHECKING:
    import redis


@pytest.fixture
def client(redis_server) -> redis.Redis:
    with redis_server.client() as client:
        yield client


def bury(client, keys, request: bytes, code: str = "poisoned") -> str:
    """A dead letter as a worker writes it."""
    fields = {"id": "x", "request": request, "code": code, "message": "it died", "deliveries": 3, "lane": "bulk"}
    return client.xadd(keys.dead, fields).decode()


def echo(data: object) -> bytes:
    return Request("x", "echo", {"data": data}).encode()


def test_given_a_worker_when_asked_for_status_then_lanes_and_worker_are_told(cli, fleet):
    done = cli("status", "--json", **fleet)
    assert done.code == 0
    (status,) = done.lines
    assert status["lanes"]["interactive"] == {"total": 0, "waiting": 0, "in_flight": 0, "oldest_s": None}
    assert [worker["alive"] for worker in status["workers"]] == [True]
    told = cli("status", **fleet).out
    assert "alive" in told
    # Of what the rate is, and since when is counted
    assert "can do/s" in told
    assert "can do/s: requests a second, by what those of the last seconds cost, not how many came" in told
    assert "mean batch, settled and failed: since the worker's start" in told


def test_given_no_worker_when_asked_for_status_then_the_backlog_is_told_and_the_exit_code_is_4(
    cli, client, redis_server, keys
):
    client.xadd(keys.lanes[1], {"m": b"x"})
    done = cli("status", "--json", "--redis-url", redis_server.url, "--queue", keys.queue)
    assert done.code == 4
    assert (done.lines[0]["lanes"]["bulk"]["waiting"], done.lines[0]["workers"]) == (1, [])
    people = cli("status", "--redis-url", redis_server.url, "--queue", keys.queue)
    assert "0 dead letters\n" in people.out
    assert "no worker serves this queue now" in people.out


@pytest.mark.parametrize(
    ("rate", "alive", "said"),
    [
        ("9910.608", True, "0 dead letters; the fleet can do 9,911 requests/s\n"),
        ("0.347", True, "0 dead letters; the fleet can do 0.35 requests/s\n"),
        ("0.0", True, "0 dead letters; what the fleet can do is not known yet\n"),
        # What it could do before its workers died is no news
        ("9910.608", False, "0 dead letters\n"),
    ],
)
def test_given_a_rate_when_asked_for_status_then_it_is_told_as_far_as_it_is_known_and_somebody_lives(
    cli, client, redis_server, keys, rate, alive, said
):
    client.hset(keys.fleet, mapping={"rate": rate})
    client.zadd(keys.workers, {"w": client.time()[0] * 1000 - (0 if alive else 3_600_000)})
    client.hset(keys.worker("w"), mapping={"device": "cpu", "rate": rate})
    client.expire(keys.worker("w"), 60)
    done = cli("status", "--redis-url", redis_server.url, "--queue", keys.queue)
    assert (said in done.out, done.code) == (True, 0 if alive else 4), done.out
    client.delete(keys.fleet, keys.workers)


def test_given_a_worker_that_passed_a_provider_over_when_asked_for_status_then_it_says_why(
    cli, client, redis_server, keys
):
    client.zadd(keys.workers, {"w": client.time()[0] * 1000})
    tried = "tensorrt: onnxruntime has no TensorrtExecutionProvider; cuda: taken"
    client.hset(keys.worker("w"), mapping={"device": "cuda:0", "provider": "cuda", "tried": tried})
    client.expire(keys.worker("w"), 60)
    done = cli("status", "--redis-url", redis_server.url, "--queue", keys.queue)
    assert f"providers tried: {tried}" in done.out


def test_given_no_redis_when_asked_for_status_then_unavailable(cli):
    done = cli("status", "--redis-url", "redis://127.0.0.1:1")
    assert done.code == 4
    assert "unavailable: Redis does not answer" in done.err


def test_given_dead_letters_when_listed_then_inputs_are_shown_only_when_asked_for(cli, client, fleet, keys):
    entry = bury(client, keys, echo("a secret"))
    done = cli("dead", "list", "--json", **fleet)
    (letter,) = done.lines
    assert (letter["entry"], letter["pipeline"], letter["error"]["code"]) == (entry, "echo", "poisoned")
    assert "a secret" not in done.out
    assert cli("dead", "list", "--json", "--inputs", **fleet).lines[0]["inputs"] == {"data": "a secret"}
    assert entry in cli("dead", "list", **fleet).out


def test_given_dead_letters_when_retried_then_those_that_succeed_are_gone(cli, client, fleet, keys):
    good = bury(client, keys, echo(1))
    large = bury(client, keys, Request("x", "echo", {"data": {"sha256": "0", "size": 99}}).encode())
    broken = bury(client, keys, b"\xc1")
    done = cli("dead", "retry", "--all", "--json", **fleet)
    assert done.code == 3
    assert [(line["input"], line["ok"]) for line in done.lines] == [(good, True), (large, False), (broken, False)]
    assert [entry.decode() for entry, _ in client.xrange(keys.dead)] == [large, broken]


def test_given_a_retry_that_fails_when_retried_then_the_letter_stays(cli, client, fleet, keys):
    entry = bury(client, keys, Request("x", "fail", {"code": "store_failed"}).encode())
    done = cli("dead", "retry", entry, **fleet)
    assert done.code == 1
    assert client.xlen(keys.dead) == 1


def test_given_a_killer_that_killed_again_when_retried_then_its_new_letter_replaces_it(cli, client, fleet, keys):
    entry = bury(client, keys, Request("x", "fail", {"code": "poisoned"}).encode())
    assert cli("dead", "retry", entry, **fleet).code == 1
    assert client.xlen(keys.dead) == 0


def test_given_entries_when_dropped_then_only_they_are_gone(cli, client, fleet, keys):
    first, second = bury(client, keys, echo(1)), bury(client, keys, encode_map({"payload": {"size": 1}}))
    assert cli("dead", "drop", first, "--json", **fleet).lines == [{"dropped": 1}]
    assert [entry.decode() for entry, _ in client.xrange(keys.dead)] == [second]
    assert cli("dead", "drop", "--all", **fleet).out == "1 dropped\n"


@pytest.mark.parametrize("args", [["drop"], ["drop", "1-1", "--all"], ["drop", "1-1"], ["retry"]])
def test_given_no_or_unknown_entries_when_dropped_then_wrong_usage(cli, fleet, args):
    assert cli("dead", *args, **fleet).code == 2


def test_given_many_letters_when_listed_then_every_page_is_read(cli, client, fleet, keys):
    for number in range(205):
        bury(client, keys, echo(number))
    assert len(cli("dead", "list", "--json", **fleet).lines) == 205
