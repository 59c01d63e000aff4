"""Whoever else may write to our Redis can make the fleet's work harder, but no worker dies of it, and none babbles."""

from __future__ import annotations

import contextlib
import io
import os
import random
import struct
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import psutil
import pytest
from PIL import Image

from clipfleet.producer import Client, Expired, Unavailable, requests
from clipfleet.schemas.request import Request, RequestReader, new_id
from clipfleet.worker.entry import open_entry
from clipfleet.worker.stream import QueueStream
from clipfleet.worker.wire import Wire
from support.fleet import TINY
from support.leaks import find_leaks
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer


@pytest.fixture
def server(make_redis: Callable[..., RedisServer]) -> RedisServer:
    return make_redis()


@pytest.fixture
def neighbour(server: RedisServer) -> Iterator[redis.Redis]:
    with server.client() as client:
        yield client


class Watched:
    """A worker that must outlive what follows, and say less than a line a second."""

    def __init__(self, worker: WorkerProcess, client: Client) -> None:
        self.worker = worker
        self.client = client
        self.family = worker.group()
        self.lines = worker.log.count("\n")
        self.since = time.monotonic()

    def is_well(self) -> None:
        """The same processes answer as at the start."""
        assert all(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in self.family), self.worker.log[
            -3000:
        ]
        assert self.client.run("echo", {"data": 1}, timeout=30).outputs == {"data": 1}
        # Two lines are the first word of a trouble and its end; what matters is that more trouble is not more lines.
        said = self.worker.log.count("\n") - self.lines
        assert said <= 6 + (time.monotonic() - self.since), self.worker.log[-4000:]


@pytest.fixture
def watched(
    server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> Iterator[Callable[..., Watched]]:
    clients: list[Client] = []

    def start(**settings: Any) -> Watched:
        worker = start_worker(server.url, server.client(), **{"model": "none", "lease_ms": 1_000} | settings)
        clients.append(Client(server.url, queue=keys.queue, timeout=20, wait_for_worker=True))
        # It is ready a moment before it has made its groups.
        assert clients[-1].run("echo", {"data": 0}, timeout=60).ok
        return Watched(worker, clients[-1])

    yield start
    for client in clients:
        client.close()


def message(**fields: Any) -> bytes:
    return msgpack.packb({"v": 1, "id": new_id(), "pipeline": "echo", "inputs": {"data": 1}} | fields)


ODD_VALUES = [None, True, 0, -1, 2**63, 1.5, float("nan"), "", "x" * 10_000, b"\xff", [], [1], {}, {"a": 1}, {"url": 1}]


CLAIMS = [b"\xdf\xff\xff\xff\xff", b"\xdd\x7f\xff\xff\xff", b"\xc6\x05\xf5\xe1\x00", b"\xdb\x7f\xff\xff\xff", b"\xc9"]


def garbage(keys: QueueKeys) -> Iterator[dict[str, Any]]:
    """Stream entries that no producer sends."""
    rng = random.Random(3)
    yield from ({"x": "y"}, {"m": ""}, {"d": "1"})
    yield from ({"m": start + claim} for claim in CLAIMS for start in (b"", b"\x82\xa1v\x01\xa2id"))
    yield {"m": b"\x91" * 100_000}
    yield {"m": b"\x81\xa1a" * 5_000 + b"\xc0"}
    yield {"m": msgpack.packb({"v": 1, "id": "i", 5: 6})}
    yield from ({"m": rng.randbytes(rng.randrange(200))} for _ in range(100))
    elsewhere = ("anything", keys.fleet, keys.lanes[0], keys.result("another"), keys.inbox("a b"), keys.inbox("x\n"))
    yield from ({"m": message(reply_to=place)} for place in elsewhere)
    yield from ({"m": message(id=name)} for name in ("i" * 10_000, "a:b", "../x", "a\0b", "{x}", "é"))
    yield from ({"m": message(), "d": end} for end in ("", "-1", "abc", "9" * 15, "9" * 30, "1e9", b"\xff\xff"))
    yield from odd_values()


def odd_values() -> Iterator[dict[str, Any]]:
    for value in ODD_VALUES:
        for name in ("v", "id", "pipeline", "inputs", "options", "reply_to", "reply_ttl", "trace"):
            yield {"m": message(**{name: value})}
        for pipeline in ("embed_text", "embed_image", "index_image", "search", "delete", "x" * 64):
            yield {"m": message(pipeline=pipeline, inputs={"text": value, "image": value, "data": value})}


def test_given_garbage_in_the_lanes_then_all_of_it_is_cleared_away_and_nothing_is_written_elsewhere(
    server: RedisServer, neighbour: redis.Redis, keys: QueueKeys, watched: Callable[..., Watched]
) -> None:
    fleet = watched()
    lanes = keys.lanes
    pipeline = neighbour.pipeline(transaction=False)
    for number, entry in enumerate(garbage(keys)):
        pipeline.xadd(lanes[number % 2], entry)
    count = len(pipeline.execute())
    assert count > 250
    wait_until(lambda: neighbour.xlen(lanes[0]) + neighbour.xlen(lanes[1]) == 0, 30, "the lanes to be cleared")
    fleet.is_well()
    assert 150 < neighbour.xlen(keys.dead) < count
    # ids at both ends of time: it says when an entry came, and what is derived from it must not overflow
    neighbour.xadd(lanes[1], {"m": message()}, id=f"{2**64 - 1}-1")
    wait_until(lambda: neighbour.xlen(lanes[1]) == 0, 20, "the last possible entry to be cleared")
    fleet.is_well()
    assert find_leaks(neighbour) == []
    known = (keys.base, keys.result(""), keys.inbox(""))
    assert all(key.decode().startswith(known) for key in neighbour.scan_iter())


# What somebody puts where our own keys belong.
OCCUPIED = ["workers", "fleet", "bytes", "dead", "presence", "interactive", "bulk", "cancel"]


@pytest.mark.chaos
@pytest.mark.parametrize("place", OCCUPIED)
def test_given_another_type_at_one_of_our_keys_then_the_worker_waits_and_goes_on_when_it_is_gone(
    server: RedisServer, neighbour: redis.Redis, keys: QueueKeys, watched: Callable[..., Watched], place: str
) -> None:
    fleet = watched()
    fleet.is_well()
    (name,) = fleet.worker.names
    key = {
        "workers": keys.workers,
        "fleet": keys.fleet,
        "bytes": keys.bytes,
        "dead": keys.dead,
        "presence": keys.worker(name),
        "interactive": keys.lanes[0],
        "bulk": keys.lanes[1],
        "cancel": keys.cancel("c1"),
    }[place]
    # When it stays for more than three leases, again and again put there
    for _ in range(4):
        neighbour.pipeline().delete(key).sadd(key, "mine").execute()
        if place not in {"interactive", "bulk"}:
            for _ in range(20):
                neighbour.xadd(keys.lanes[0], {"m": b"no msgpack"})
                neighbour.xadd(keys.lanes[0], {"m": message(id="c1")})
        hold_for(1.0, fleet)
    # Then the queue is drained in spite of it, and all is well without it
    neighbour.delete(key)
    if place in {"interactive", "bulk"}:
        wait_until(lambda: neighbour.exists(key), 10, "the lane to be made again")
    wait_until(lambda: neighbour.xlen(keys.lanes[0]) == 0, 30, "the lane to be drained")
    fleet.is_well()


def hold_for(seconds: float, fleet: Watched) -> None:
    """The fault itself lasts for a time: there is nothing to wait for but that it changes nothing."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert all(one.is_running() for one in fleet.family), fleet.worker.log[-3000:]
        time.sleep(0.05)  # between two looks that nothing has changed


def test_given_strings_where_dead_letters_and_answers_go_then_requests_still_leave_the_queue(
    server: RedisServer, neighbour: redis.Redis, keys: QueueKeys, watched: Callable[..., Watched]
) -> None:
    fleet = watched()
    neighbour.set(keys.dead, "mine")
    neighbour.set(keys.inbox("mine"), "mine", px=60_000)
    for _ in range(200):
        neighbour.xadd(keys.lanes[0], {"m": b"no msgpack"})
        neighbour.xadd(keys.lanes[1], {"m": message(reply_to=keys.inbox("mine"))})
    wait_until(
        lambda: neighbour.xlen(keys.lanes[0]) + neighbour.xlen(keys.lanes[1]) == 0, 20, "the lanes to be cleared"
    )
    fleet.is_well()
    assert neighbour.get(keys.dead) == neighbour.get(keys.inbox("mine")) == b"mine"
    neighbour.delete(keys.dead)


def test_given_strangers_among_workers_and_consumers_then_presence_and_tidying_go_on(
    server: RedisServer, neighbour: redis.Redis, keys: QueueKeys, watched: Callable[..., Watched]
) -> None:
    fleet = watched()
    (mine,) = fleet.worker.names
    now = time.time() * 1000 + 60_000
    strangers: dict[Any, str] = {b"\xff\xfe": "1", "x" * 10_000: "2", "a b": "3", "no-number": "abc", "huge": "1e300"}
    for name, rate in strangers.items():
        neighbour.zadd(keys.workers, {name: now})
        neighbour.hset(
            (keys.base + "worker:").encode() + (name if isinstance(name, bytes) else name.encode()), "rate", rate
        )
        neighbour.xgroup_createconsumer(keys.lanes[0], "workers", name)
    neighbour.hset(keys.worker("no-number"), "more", b"\xff")
    wait_until(lambda: neighbour.hexists(keys.worker(mine), "settled"), 10, "a heartbeat")
    before = float(neighbour.hget(keys.worker(mine), "settled"))
    # When heartbeats come and a rate is published
    for _ in range(20):
        fleet.client.run("echo", {"data": 1})
    wait_until(lambda: float(neighbour.hget(keys.worker(mine), "settled")) >= before + 20, 10, "a heartbeat after that")
    for _ in range(3):  # a supervisor that dies of what it reads has still written its own part of that heartbeat
        last = neighbour.zscore(keys.workers, mine)
        wait_until(lambda last=last: neighbour.zscore(keys.workers, mine) != last, 10, "the next heartbeat")
    fleet.is_well()
    rate = neighbour.hget(keys.fleet, "rate")
    assert rate is None or float(rate) < 1e6
    stream = QueueStream(Wire(server.url), keys, "")
    assert {"no-number", "huge"} <= stream.idle_consumers(0)
    assert all(name.isascii() and len(name) <= 64 for name in stream.idle_consumers(0))
    stream.wire.close()
    for key in neighbour.scan_iter(keys.base + "worker:*"):
        neighbour.pexpire(key, 5_000)


@pytest.mark.chaos
def test_given_somebody_who_deletes_our_keys_then_the_worker_makes_them_again(
    server: RedisServer, neighbour: redis.Redis, keys: QueueKeys, watched: Callable[..., Watched]
) -> None:
    fleet = watched()
    jobs = [fleet.client.submit("echo", {"data": n}, timeout=3) for n in range(50)]
    for _ in range(10):
        found = list(neighbour.scan_iter(keys.base + "*"))
        if found:
            neighbour.delete(*found)
        hold_for(0.2, fleet)
    for job in jobs:
        # Deleted with the lane, or answered before; in either case by its deadline.
        with contextlib.suppress(Expired, Unavailable):
            assert job.result(10).ok
    wait_until(lambda: neighbour.exists(keys.fleet) and neighbour.exists(keys.workers), 10, "the fleet's keys")
    fleet.is_well()


def test_given_a_thief_who_reads_and_never_answers_then_its_loot_is_run_after_a_lease(
    server: RedisServer, neighbour: redis.Redis, keys: QueueKeys, watched: Callable[..., Watched]
) -> None:
    fleet = watched()
    child = fleet.worker.child()
    child.suspend()
    jobs = [fleet.client.submit("echo", {"data": 1}).accepted(10) for _ in range(20)]
    # (the first one may have gone to the worker, which was blocked in its read)
    stolen = neighbour.xreadgroup("workers", b"thief\xff", {keys.lanes[0]: ">"}, count=20)
    child.resume()
    assert all(job.result(20).ok for job in jobs)
    assert stolen
    fleet.is_well()


def bombs() -> Iterator[bytes]:
    """Pictures that are small to send and large to decode, each of another kind."""
    cases = Path(__file__).parents[1] / "cases" / "images"
    yield from (path.read_bytes() for path in sorted(cases.glob("bomb_*.png")))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def png(width: int, height: int, *more: bytes, depth: int = 8, colour: int = 2) -> bytes:
        head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
        rows = zlib.compress(bytes(40_000_000), 9)
        return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")

    zeros = zlib.compress(bytes(200_000_000), 9)
    yield png(8000, 7900)  # just allowed
    yield png(8000, 8000, depth=16, colour=6)
    yield png(16, 16, chunk(b"zTXt", b"k\0\0" + zeros))
    yield png(16, 16, chunk(b"iTXt", b"k\0\1\0\0\0" + zeros))
    yield png(16, 16, chunk(b"iCCP", b"k\0\0" + zeros))
    for kind, size in (("GIF", (6000, 6000)), ("JPEG", (7900, 8000)), ("WEBP", (7000, 7000)), ("TIFF", (7000, 7000))):
        out = io.BytesIO()
        Image.new("L" if kind == "GIF" else "RGB", size).save(
            out, kind, **({"compression": "tiff_lzw"} if kind == "TIFF" else {})
        )
        yield out.getvalue()
    frames = io.BytesIO()
    first = Image.new("L", (2000, 2000))
    first.save(frames, "GIF", save_all=True, append_images=[Image.new("L", (2000, 2000), n % 2) for n in range(30)])
    yield frames.getvalue()
    yield b"P6 8000 8000 255\n"
    yield b"\xff\xd8\xff" + os.urandom(2_000_000)


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_given_a_hail_of_bombs_through_the_queue_then_memory_stays_bounded_and_neighbours_are_answered(
    server: RedisServer, neighbour: redis.Redis, keys: QueueKeys, watched: Callable[..., Watched], record_property: Any
) -> None:
    fleet = watched(model=str(TINY), lease_ms=10_000, decode_threads=4)
    fleet.client.embed_text("warm")
    before = peak_mib(fleet.worker)
    hail = [picture for picture in bombs() if len(picture) < 4_000_000]
    assert len(hail) >= 12
    asked = [requests.embed_image(picture, timeout=300) for picture in hail * 3]
    asked += [requests.embed_text("a cat " * (2_000 * (1 + n % 5)), timeout=300) for n in range(30)]
    random.Random(5).shuffle(asked)
    codes: dict[str, int] = {}
    for result in fleet.client.map(asked, max_in_flight=128):
        code = "ok" if result.ok else str(result.error.code)
        codes[code] = codes.get(code, 0) + 1
    fleet.is_well()
    after = peak_mib(fleet.worker)
    record_property("peak_mib", f"{before:.0f} -> {after:.0f}")
    print(f"peak RSS {before:.0f} -> {after:.0f} MiB; {codes}")
    assert codes.keys() <= {"ok", "too_many_pixels", "corrupt_image", "unsupported_media"}
    assert codes["too_many_pixels"] >= 6
    assert after - before < 1_200


def peak_mib(worker: WorkerProcess) -> float:
    """The most memory that its worker process ever had resident (VmHWM), in MiB."""
    text = Path(f"/proc/{worker.child().pid}/status").read_text(encoding="ascii")
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


def test_given_a_bare_request_with_a_far_deadline_then_it_is_cut_to_a_day(keys: QueueKeys) -> None:
    fields = {b"m": Request("a", "echo", {}).encode(), b"d": b"9" * 15}
    entry = open_entry(keys.lanes[0], "1000-0", fields, RequestReader(keys, 1000), deliveries=1, read_at=0.0)
    assert entry.deadline_ms == 1000 + 86_400_000
