"""Every key that a script touches is among its KEYS, as Redis Cluster demands; told by the server itself."""

from __future__ import annotations

import pytest

from clipfleet.schemas import scripts
from clipfleet.schemas.keys import QueueKeys
from support.redis_server import free_port
from support.script_queue import ScriptQueue

KEYLESS = {"TIME"}


class Watched(ScriptQueue):
    """Runs each script under MONITOR and keeps what it did: {script: {command: keys}}."""

    def __init__(self, client, keys):
        super().__init__(client, keys)
        self.touched: dict[str, dict[str, set[str]]] = {}
        self.undeclared: list[str] = []

    def run(self, name, keys, *args):
        with self.redis.monitor() as monitor:
            answer = super().run(name, keys, *args)
            self.redis.echo("end of script")
            while True:
                seen = monitor.next_command()
                if "end of script" in seen["command"]:
                    return answer
                if seen["client_type"] == "lua":
                    self._judge(name, set(keys), seen["command"])

    def _judge(self, name: str, declared: set[str], command: str) -> None:
        words = [word.strip('"') for word in command.split(" ")]
        verb = words[0].upper()
        found = set() if verb in KEYLESS else set(self.redis.command_getkeys(*words))
        self.touched.setdefault(name, {}).setdefault(verb, set()).update(found)
        self.undeclared += [f"{name}: {verb} {key}" for key in found - declared]


@pytest.fixture
def queue(redis_client, keys):
    return Watched(redis_client, keys)


def test_given_a_life_of_a_queue_when_watched_then_scripts_touch_only_declared_keys(queue, keys):
    queue.group()
    queue.join("w1", v="1", capacity="9")
    queue.join("w2", v="1", capacity="8")
    queue.heartbeat("w1")
    queue.admit(1, 2, 3, call=1)
    queue.admit(1, 2, 3, call=1)
    queue.admit(4, lane="bulk", call=2)
    first, second, third = queue.deliver()
    [bulk] = queue.deliver(lane=1)
    queue.renew("w1", first, second, third)
    queue.settle(first, size=1, owner="w1")
    queue.settle(first, size=1, owner="w1")
    queue.settle(second, size=2, dead=("error", "x"))
    queue.handback("w1", (third, 0))
    queue.reclaim("w2")
    queue.age(third, consumer="w2")
    queue.redis.xdel(keys.lanes[0], third)
    queue.reclaim("w2")
    queue.leave("w1")
    queue.settle_many((bulk, 4, keys.inbox("p"), b"r"), lane=1)
    queue.leave("w1")
    assert queue.undeclared == []
    assert set(queue.touched) == {
        "admit",
        "settle",
        "settle_many",
        "reclaim",
        "renew",
        "handback",
        "leave",
        "heartbeat",
        "join",
    }
    # The watch has seen what matters: each script's writes, and a key for each command.
    writes = {verb for commands in queue.touched.values() for verb in commands}
    assert writes >= {"XADD", "INCRBY", "SET", "XACK", "XDEL", "RPUSH", "PEXPIRE", "XCLAIM", "ZADD", "HSET", "ZREM"}
    assert all(found for commands in queue.touched.values() for verb, found in commands.items() if verb not in KEYLESS)


def test_given_a_script_that_cheats_when_watched_then_it_is_caught(queue, keys, monkeypatch):
    monkeypatch.setattr(scripts, "load", lambda name: scripts.Script(name, "return redis.call('GET', 'other')", ""))
    queue.run("cheat", [keys.fleet])
    assert queue.undeclared == ["cheat: GET other"]


def test_given_a_cluster_of_one_when_a_queue_lives_in_it_then_all_of_it_is_in_one_slot(make_redis):
    # The cluster's own port is 10,000 higher, and must be one too.
    port = next(port for port in iter(free_port, None) if port < 55_000)
    server = make_redis(cluster_enabled="yes", port=port)
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
        keys = QueueKeys("q", "some:prefix")
        names = [*keys.lanes, keys.result("a"), keys.inbox("p"), keys.cancel("a"), keys.call("p", 1), keys.dead]
        names += [keys.bytes, keys.workers, keys.worker("w"), keys.fleet]
        slots = {client.execute_command("CLUSTER", "KEYSLOT", name) for name in names}
        assert slots == {client.execute_command("CLUSTER", "KEYSLOT", "q")}
