"""The users of deploy/redis: what our own programs need is allowed, and nothing that would harm others."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from clipfleet.cli.claims import claim, let_go
from clipfleet.producer import BadInput, Client, Unavailable, requests
from clipfleet.schemas.scripts import load
from security.servers import DEPLOY, SELECTORS, Guarded, make_users, release
from support.leaks import find_leaks
from support.redis_server import RedisServer
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.cli import Done
    from support.fleet import WorkerProcess

USERS = ("admin", "operator", "worker", "gateway", "producer")


def denials(admin: redis.Redis) -> list[str]:
    """What users were refused, by Redis' own book; redis-py tells its name to every server that can hear it."""
    return [
        f"{entry['username']}: {entry['object']} ({entry['reason']}, {entry['context']})"
        for entry in admin.acl_log()
        if entry["object"] not in {"client|setinfo", "client"}
    ]


@pytest.mark.parametrize("template", ["users.acl", "users-6.2.acl"])
def test_given_the_file_as_it_is_then_it_loads_and_nobody_gets_in(redis_binary: str, template: str) -> None:
    if template == "users.acl" and release(redis_binary) < SELECTORS:
        pytest.skip("this server knows no selectors")
    with RedisServer(redis_binary, aclfile=DEPLOY / template) as server:
        once = Retry(NoBackoff(), 0)  # else each refusal takes seconds
        with server.client(retry=once) as nobody, pytest.raises(redis.AuthenticationError):
            nobody.ping()
        for user in USERS:
            for password in ("", user, "clipfleet"):
                guesser = server.client(username=user, password=password, retry=once)
                with guesser, pytest.raises(redis.AuthenticationError):
                    guesser.ping()


@pytest.mark.chaos
def test_given_these_users_when_a_fleet_does_all_it_does_then_nobody_is_refused_anything(
    guarded: Guarded, start_worker: Callable[..., WorkerProcess], cli: Callable[..., Done], tmp_path: Path
) -> None:
    keys = guarded.keys
    with guarded.client("admin") as admin:
        # Given a worker with the worker's rights and no more
        worker = start_worker(guarded.url("worker"), guarded.client("admin"))
        with Client(guarded.url("shop"), queue=keys.queue, timeout=20) as shop:
            # When a producer asks for this and that: by inbox, by key, in bulk, cancelled, wrong
            assert shop.run("echo", {"data": 1}).outputs == {"data": 1}
            assert len(shop.embed_text("a red heart").vector.buffer) > 0
            kept = shop.submit("echo", {"data": 2}, reply="key")
            assert kept.result(10).outputs == {"data": 2}
            assert all(one.ok for one in shop.map(requests.echo(n) for n in range(300)))
            shop.submit("echo", {"data": 3}).cancel()
            with pytest.raises(BadInput, match="not served here"):
                shop.run("nothing", {})
            # and the server forgets its scripts: the worker loads the producer's too
            admin.script_flush()
            assert shop.run("echo", {"data": 4}).outputs == {"data": 4}
        service = {"CLIPFLEET_REDIS_URL": guarded.url("shop"), "CLIPFLEET_QUEUE": keys.queue}
        assert cli("embed", "a cat", "--json", **service).code == 0
        (tmp_path / "empty").mkdir()
        assert "no pictures found" in cli("index", str(tmp_path / "empty"), **service).out
        with Client(guarded.url("gateway"), queue=keys.queue, timeout=20, durability=None) as gateway:
            assert gateway.run("echo", {"data": 5}).outputs == {"data": 5}
        # and something comes that cannot be read, and a worker process dies
        admin.xadd(keys.lanes[0], {"m": b"no msgpack"})
        wait_until(lambda: admin.xlen(keys.dead) == 1, 10, "a dead letter")
        (dead,) = worker.names
        worker.child().send_signal(signal.SIGKILL)
        wait_until(lambda: worker.names not in ([], [dead]) and all(worker.presence()), 60, "its successor")
        # and somebody claims a new collection, goes on with it, and lets it go
        for user in ("shop", "operator"):
            with guarded.client(user) as client:
                assert claim(client, keys, "fresh", by=user, about="a run") == ""
                assert claim(client, keys, "fresh", by="another", about="another run") == "a run"
                assert claim(client, keys, "fresh", by=user, about="a run") == ""
                let_go(client, keys, "fresh", by=user)
        # and an operator looks after it
        operator = {"CLIPFLEET_REDIS_URL": guarded.url("operator"), "CLIPFLEET_QUEUE": keys.queue}
        assert cli("status", "--json", **operator).code == 0
        assert '"redis"' in cli("doctor", "--json", **operator).out
        assert len(cli("dead", "list", "--json", **operator).lines) == 1
        assert cli("dead", "retry", "--all", **operator).code == 1  # it never was a request
        assert cli("dead", "drop", "--all", "--json", **operator).lines == [{"dropped": 1}]
        assert cli("embed", "a cat", "--json", **operator).code == 0
        assert worker.terminate() == 0
        # Then all of it was within everybody's rights
        # (a client that meets NOSCRIPT tries EVAL before it waits for a worker to load the script)
        assert set(denials(admin)) <= {"shop: eval (command, toplevel)"}
        assert find_leaks(admin) == []


OTHERS = {
    # What nobody but an administrator may do.
    "flushall": ("FLUSHALL",),
    "flushdb": ("FLUSHDB",),
    "config get": ("CONFIG", "GET", "*"),
    "config set": ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),
    "acl": ("ACL", "SETUSER", "shop", "+@all"),
    "acl list": ("ACL", "LIST"),
    "monitor": ("MONITOR",),
    "debug": ("DEBUG", "SLEEP", "0"),
    "shutdown": ("SHUTDOWN", "NOSAVE"),
    "replicaof": ("REPLICAOF", "127.0.0.1", "1"),
    "keys": ("KEYS", "*"),
    "scan": ("SCAN", "0"),
    "randomkey": ("RANDOMKEY",),
    "eval": ("EVAL", "while true do end", "0"),
    "script flush": ("SCRIPT", "FLUSH"),
    "client kill": ("CLIENT", "KILL", "TYPE", "normal"),
    "subscribe": ("SUBSCRIBE", "__keyspace@0__:*"),
    "publish": ("PUBLISH", "c", "m"),
    "dump": ("DUMP", "{lane}"),
    "xtrim": ("XTRIM", "{lane}", "MAXLEN", "0"),
    "rename": ("RENAME", "{lane}", "{other queue}"),
    "other queue": ("XADD", "{other queue}", "*", "m", "x"),
    "other queue's results": ("LRANGE", "{other result}", "0", "-1"),
    "any key": ("SET", "anything", "1"),
    "read any key": ("GET", "anything"),
}
PRODUCERS = {
    "script load": ("SCRIPT", "LOAD", "return 1"),
    "read requests": ("XRANGE", "{lane}", "-", "+"),
    "read requests by stream": ("XREAD", "STREAMS", "{lane}", "0"),
    "read requests as a worker": ("XREADGROUP", "GROUP", "workers", "me", "STREAMS", "{lane}", ">"),
    "drop requests": ("XDEL", "{lane}", "1-1"),
    "drop the group": ("XGROUP", "DESTROY", "{lane}", "workers"),
    "dead letters": ("XRANGE", "{dead}", "-", "+"),
    "another's inbox": ("LRANGE", "{inbox of mail}", "0", "-1"),
    "another's inbox by peek": ("BLMOVE", "{inbox of mail}", "{inbox of mail}", "LEFT", "LEFT", "1"),
    "moving another's inbox": ("BLMOVE", "{inbox of mail}", "{inbox}", "LEFT", "LEFT", "1"),
    "cutting another's inbox": ("LTRIM", "{inbox of mail}", "1", "0"),
    "another's call": ("GET", "{call of mail}"),
    "writing a result": ("RPUSH", "{result}", "forged"),
    "writing an inbox": ("RPUSH", "{inbox}", "forged"),
    "deleting a result": ("DEL", "{result}"),
    "the fleet's limits": ("HSET", "{fleet}", "capacity", "1"),
    "presence": ("ZADD", "{workers}", "1", "me"),
    "who else is there": ("CLIENT", "LIST"),
}
WITH_SELECTORS = {
    "deleting a lane": ("DEL", "{lane}"),
    "overwriting a lane": ("SET", "{lane}", "x"),
    "expiring a lane": ("PEXPIRE", "{lane}", "1"),
    "overwriting the fleet": ("SET", "{fleet}", "x"),
    "overwriting a result": ("SET", "{result}", "x"),
    "expiring a result": ("PEXPIRE", "{result}", "1"),
    "cutting a result": ("LTRIM", "{result}", "1", "0"),
    "forging by moving": ("BLMOVE", "{inbox}", "{result}", "LEFT", "LEFT", "1"),
    "reading who cancelled": ("GET", "{cancel}"),
}
WORKERS = {
    "reading results": ("LRANGE", "{result}", "0", "-1"),
    "reading an inbox": ("LRANGE", "{inbox of mail}", "0", "-1"),
    "admitting": ("XRANGE", "{lane}", "-", "+"),
    "a producer's call": ("GET", "{call of mail}"),
    "dead letters": ("XRANGE", "{dead}", "-", "+"),
    "cancelling": ("SET", "{cancel}", "1"),
}
OPERATORS = {
    "settling": ("XACK", "{lane}", "workers", "1-1"),
    "reading as a worker": ("XREADGROUP", "GROUP", "workers", "me", "STREAMS", "{lane}", ">"),
    "another's inbox": ("LRANGE", "{inbox of mail}", "0", "-1"),
    "the fleet's limits": ("HSET", "{fleet}", "capacity", "1"),
}


def test_given_each_user_when_it_does_what_is_none_of_its_business_then_it_is_refused(guarded: Guarded) -> None:
    keys = guarded.keys
    other = f"clipfleet:{{{keys.queue}x}}:"
    places = {
        "{lane}": keys.lanes[0],
        "{dead}": keys.dead,
        "{fleet}": keys.fleet,
        "{workers}": keys.workers,
        "{inbox}": keys.inbox("shop.me"),
        "{inbox of mail}": keys.inbox("mail.somebody"),
        "{call of mail}": keys.call("mail.somebody", 1),
        "{result}": keys.result("secret"),
        "{cancel}": keys.cancel("secret"),
        "{other queue}": f"{other}interactive",
        "{other result}": f"{other}result:secret",
    }
    with guarded.client("admin") as admin:
        seed(admin, places)
        before = {key: admin.dump(key) for key in admin.scan_iter()}
        producers = PRODUCERS | (WITH_SELECTORS if guarded.selectors else {})
        forbidden: dict[str, dict[str, Any]] = {
            "shop": producers,
            "gateway": {name: words for name, words in producers.items() if "{inbox}" not in words},
            "worker": WORKERS | ({"deleting a lane": WITH_SELECTORS["deleting a lane"]} if guarded.selectors else {}),
            "operator": OPERATORS,
        }
        allowed = []
        for user, commands in forbidden.items():
            with guarded.client(user, socket_timeout=5) as client:
                for what, words in (OTHERS | commands).items():
                    refused = is_refused(client, [places.get(word, word) for word in words])
                    if not refused:
                        allowed.append(f"{user}: {what}")
        assert allowed == []
        assert {key: admin.dump(key) for key in admin.scan_iter()} == before


def seed(admin: redis.Redis, places: dict[str, str]) -> None:
    admin.xgroup_create(places["{lane}"], "workers", id="0", mkstream=True)
    admin.xadd(places["{lane}"], {"m": "somebody's"}, id="1-1")
    admin.xadd(places["{dead}"], {"m": "somebody's"})
    admin.hset(places["{fleet}"], "capacity", 5)
    for place in ("{inbox}", "{inbox of mail}", "{result}", "{other result}"):
        admin.rpush(places[place], "somebody's")
    admin.set(places["{call of mail}"], "[]")


def is_refused(client: redis.Redis, words: list[str]) -> bool:
    try:
        client.execute_command(*words)
    except redis.exceptions.NoPermissionError:
        return True
    except redis.ResponseError as error:
        return "DEBUG command not allowed" in str(error)
    return False


def test_given_a_script_of_somebody_elses_when_a_producer_runs_it_then_its_own_rights_hold(guarded: Guarded) -> None:
    keys = guarded.keys
    with guarded.client("admin") as admin, guarded.client("shop") as shop:
        admin.xadd(keys.lanes[0], {"m": "somebody's"})
        for text in ("return redis.call('XRANGE', KEYS[1], '-', '+')", "return redis.call('FLUSHALL')"):
            with pytest.raises(redis.ResponseError, match=r"ACL|permission|NOPERM|can't run"):
                shop.evalsha(admin.script_load(text), 1, keys.lanes[0])
        # `settle` writes results to wherever it is told; not with a producer's rights
        settle = [*keys.lanes, keys.bytes, keys.inbox("mail.somebody"), keys.dead]
        with pytest.raises(redis.ResponseError, match=r"ACL|permission|NOPERM|can't run"):
            shop.evalsha(admin.script_load(load("settle").text), 5, *settle, "1-1", 0, "", b"forged", 5000)
        assert list(admin.scan_iter()) == [keys.lanes[0].encode()]


def test_given_no_worker_that_loads_admit_when_a_producer_waits_then_it_is_told_at_its_deadline(
    guarded: Guarded,
) -> None:
    with Client(guarded.url("shop"), queue=guarded.keys.queue, timeout=1.5, wait_for_worker=True) as shop:
        with pytest.raises(Unavailable, match="did not confirm"):
            shop.run("echo", {"data": 1})
        # and as soon as it is there, whoever loaded it, it goes on
        with guarded.client("operator") as operator:
            operator.script_load(load("admit").text)
        shop.submit("echo", {"data": 2}).accepted(5)


@pytest.mark.parametrize(
    "args",
    [
        ("--producer", "shop.eu"),  # `shop` could read its inboxes
        ("--producer", "*"),
        ("--producer", "worker"),
        ("--producer", "a", "--producer", "a"),
        ("--producer", "a" * 42),
        ("--queue", "a*"),
        ("--prefix", "cf:*"),
        ("--queue", "a b"),
    ],
    ids=" ".join,
)
def test_given_names_that_would_widen_a_pattern_then_no_file_is_made(tmp_path: Path, args: tuple[str, ...]) -> None:
    made = make_users(tmp_path, *args)
    assert made.returncode != 0
    assert made.stdout == ""


def test_given_made_users_then_passwords_are_files_for_their_owner_alone_and_in_no_output(tmp_path: Path) -> None:
    (tmp_path / "shop").write_text("of my choice\n")
    made = make_users(tmp_path, "--producer", "shop")
    assert made.stderr == ""
    written = {path.name: path.read_text().strip() for path in tmp_path.iterdir()}
    assert set(written) == {"admin", "operator", "worker", "gateway", "shop"}
    assert written.pop("shop") == "of my choice"
    assert all(len(text) >= 43 for text in written.values())
    assert all((tmp_path / name).stat().st_mode & 0o77 == 0 for name in written)
    assert not any(text in made.stdout for text in [*written.values(), "of my choice"])
    assert make_users(tmp_path, "--producer", "shop").stdout == made.stdout
