"""What may happen to a fleet while it works, each with the loss that it allows: for all of these, none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import redis

from chaos.scene import KILLER, Scene
from support.fleet import TESTS
from support.waiting import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    import psutil

    from support.fleet import WorkerProcess

# Longer than a lease, so that work changes hands; shorter than any deadline.
PAUSE_S = 3.0

BURST = """
import sys
from clipfleet.producer import Client
client = Client(sys.argv[1], queue=sys.argv[2], timeout=60, wait_for_worker=True)
for number in range(200):
    client.submit("echo", {"data": number})
print("sent", flush=True)
sys.stdin.read()
"""


def some_worker(scene: Scene, pick: random.Random) -> WorkerProcess:
    return pick.choice(scene.workers)


def children_of(worker: WorkerProcess) -> list[psutil.Process]:
    return worker.children if worker.process.poll() is None else []


def worker_killed(scene: Scene, pick: random.Random) -> None:
    for child in children_of(some_worker(scene, pick)):
        child.kill()


def supervisor_killed(scene: Scene, pick: random.Random) -> None:
    worker = some_worker(scene, pick)
    worker.process.kill()
    worker.process.wait()
    scene.replace(worker)


def worker_replaced(scene: Scene, pick: random.Random) -> None:
    worker = some_worker(scene, pick)
    worker.process.send_signal(signal.SIGTERM)
    scene.replace(worker)
    worker.process.wait(30)


def worker_stopped(scene: Scene, pick: random.Random) -> None:
    stopped(scene, children_of(some_worker(scene, pick)))


def group_stopped(scene: Scene, pick: random.Random) -> None:
    stopped(scene, some_worker(scene, pick).group())


def stopped(scene: Scene, processes: list[psutil.Process]) -> None:
    for one in processes:
        one.suspend()
    scene.go_on_for(PAUSE_S)
    for one in processes:
        if one.is_running():
            one.resume()


def redis_restarted(scene: Scene, _pick: random.Random) -> None:
    scene.redis.kill()
    scene.go_on_for(0.5)
    scene.redis.start()


def redis_stopped(scene: Scene, _pick: random.Random) -> None:
    scene.redis.pause()
    scene.go_on_for(PAUSE_S)
    scene.redis.resume()


def redis_full(scene: Scene, _pick: random.Random) -> None:
    with scene.redis.client() as client:
        client.config_set("maxmemory", 1)
        scene.go_on_for(PAUSE_S)
        client.config_set("maxmemory", 0)


def scripts_forgotten(scene: Scene, _pick: random.Random) -> None:
    with scene.redis.client() as client:
        client.script_flush()


def connections_cut(scene: Scene, pick: random.Random) -> None:
    for _ in range(10):
        for proxy in scene.proxies:
            proxy.cut_after(pick.randrange(400))
        scene.go_on_for(0.1)
    for proxy in scene.proxies:
        proxy.cut_after(None)
        proxy.cut()


def network_stalled(scene: Scene, pick: random.Random) -> None:
    proxy = pick.choice(scene.proxies)
    proxy.stall(requests=pick.random() < 0.7, replies=pick.random() < 0.7)
    scene.go_on_for(PAUSE_S)
    proxy.resume()


def milvus_killed(scene: Scene, _pick: random.Random) -> None:
    if scene.lite.pid is not None:
        os.kill(scene.lite.pid, signal.SIGKILL)
        wait_until(lambda: scene.lite.pid is None, 10, "the end of Milvus Lite")
    scene.go_on_for(0.5)
    scene.lite.ensure_alive()


def milvus_stopped(scene: Scene, _pick: random.Random) -> None:
    pid = scene.lite.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    scene.go_on_for(PAUSE_S)
    os.kill(pid, signal.SIGCONT)


def client_killed(scene: Scene, _pick: random.Random) -> None:
    command = [sys.executable, "-c", BURST, scene.url, scene.keys.queue]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}
    ) as client:
        assert client.stdout is not None
        said = client.stdout.readline()
        client.kill()
    assert said == b"sent\n", "the client that is to be killed did not get that far"


def killer_sent(scene: Scene, _pick: random.Random) -> None:
    """A request that aborts the process that runs it; it ends as ``poisoned`` after three deaths at most."""
    scene.producers[0].send(KILLER)


FAULTS: dict[str, Callable[[Scene, random.Random], None]] = {
    "worker killed": worker_killed,
    "supervisor killed": supervisor_killed,
    "worker replaced (SIGTERM)": worker_replaced,
    "worker stopped": worker_stopped,
    "worker and supervisor stopped": group_stopped,
    "input that kills the process": killer_sent,
    "client killed": client_killed,
    "Redis killed and restarted (AOF always)": redis_restarted,
    "Redis stopped": redis_stopped,
    "Redis at maxmemory": redis_full,
    "scripts forgotten": scripts_forgotten,
    "connections cut within replies": connections_cut,
    "network stalled": network_stalled,
    "Milvus killed and restarted": milvus_killed,
    "Milvus stopped": milvus_stopped,
}


def happen(name: str, scene: Scene, pick: random.Random) -> None:
    """Let one fault happen and pass; what it does to Redis must not end the one who does it."""
    try:
        FAULTS[name](scene, pick)
    except redis.exceptions.RedisError as error:
        raise AssertionError(f"{name}: the fault itself went wrong: {error}") from error
