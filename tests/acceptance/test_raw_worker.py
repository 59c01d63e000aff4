"""A worker that shares no line with ours answers our client: docs/protocol.md is enough to be one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from clipfleet.producer import Client
from clipfleet.schemas import ErrorCode, RequestFailed
from support.waiting import wait_until

WORKER = Path(__file__).with_name("raw_worker.py")


@pytest.fixture
def raw_worker(redis_server, keys):
    process = subprocess.Popen([sys.executable, WORKER, redis_server.url, keys.queue], stderr=subprocess.PIPE)
    try:
        with redis_server.client() as client:
            wait_until(lambda: client.zcard(keys.workers), 20, "the raw worker's heartbeat")
        yield process
        assert process.poll() is None, process.stderr.read().decode()[-2_000:]
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def client(redis_server, keys):
    with Client(redis_server.url, queue=keys.queue, timeout=20) as client:
        yield client


def test_given_the_worker_when_counted_then_it_has_forty_lines_and_nothing_of_ours():
    text = WORKER.read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith('"""')]
    assert len(lines) <= 40
    assert "import clipfleet" not in text
    assert "from clipfleet" not in text


@pytest.mark.usefixtures("raw_worker")
def test_given_the_raw_worker_when_our_client_calls_then_it_is_answered(client):
    for data in ("text", b"\x00\xff", [1, 2.5, None, {"k": True}], 2**63):
        assert client.run("echo", {"data": data}).outputs == {"data": data}
    vector = client.embed_text("a red heart").vector
    assert vector.shape == (2,)
    assert vector.norm() == pytest.approx(1.0)


@pytest.mark.usefixtures("raw_worker")
def test_given_many_in_flight_when_our_client_calls_then_each_gets_its_own_answer(client):
    jobs = [client.submit("echo", {"data": number}) for number in range(300)]
    assert [job.result(20).outputs["data"] for job in jobs] == list(range(300))


@pytest.mark.usefixtures("raw_worker")
def test_given_a_pipeline_that_it_does_not_serve_when_called_then_our_client_raises_its_code(client):
    with pytest.raises(RequestFailed) as caught:
        client.run("nonesuch", {})
    assert caught.value.code is ErrorCode.UNKNOWN_PIPELINE


@pytest.mark.usefixtures("raw_worker")
def test_given_entries_of_any_kind_when_it_meets_them_then_each_ends_and_none_stops_it(redis_client, keys, client):
    lane, inbox = keys.lanes[0], keys.inbox("p.1")
    good = {"v": 1, "id": "good", "pipeline": "echo", "inputs": {"data": 1}}
    answered = {
        "later": good | {"id": "later", "v": 2, "inputs": 7},
        "late": good | {"id": "late"},
        "unwanted": good | {"id": "unwanted"},
        "good": good,
    }
    buried = [
        b"no msgpack",
        b"",
        msgpack.packb([1]),
        msgpack.packb(good | {"id": "a b"}),
        msgpack.packb(good | {"id": "r", "reply_to": "session:admin"}),
        msgpack.packb(good | {"id": "t", "reply_ttl": "soon"}),
        msgpack.packb(good | {"id": "w", "reply_to": keys.inbox("p.2")}),
    ]
    redis_client.set(keys.cancel("unwanted"), 1, px=60_000)
    redis_client.set(keys.inbox("p.2"), "no list", px=60_000)
    for data in buried:
        redis_client.xadd(lane, {"m": data})
    redis_client.xadd(lane, {"other": "field"})
    for name, message in answered.items():
        fields = {"m": msgpack.packb(message | {"reply_to": inbox})}
        redis_client.xadd(lane, fields | ({"d": 1} if name == "late" else {}))
    wait_until(lambda: redis_client.llen(inbox) == 4 and not redis_client.xlen(lane), 20, "all to end")
    results = {one["id"]: one for one in map(msgpack.unpackb, redis_client.lrange(inbox, 0, -1))}
    codes = {name: one.get("error", {}).get("code") for name, one in results.items()}
    assert codes == {"later": "bad_request", "late": "expired", "unwanted": "cancelled", "good": None}
    assert redis_client.xlen(keys.dead) == len(buried) + 1
    assert redis_client.exists("session:admin") == 0
    assert client.run("echo", {"data": "still there"}).outputs == {"data": "still there"}


@pytest.mark.usefixtures("raw_worker")
def test_given_entries_of_a_dead_worker_when_their_lease_is_over_then_it_takes_them(redis_client, keys):
    lane, inbox = keys.lanes[1], keys.inbox("p.1")
    for name, deliveries in (("suspect", 1), ("poisoned", 3)):
        message = {"v": 1, "id": name, "pipeline": "echo", "inputs": {}, "reply_to": inbox}
        # Read and left in one transaction, so that the living worker cannot come in between.
        pipe = redis_client.pipeline(transaction=True)
        stream_id = f"1-{deliveries}"
        pipe.xadd(lane, {"m": msgpack.packb(message)}, id=stream_id)
        pipe.xreadgroup("workers", "dead", {lane: ">"}, count=1)
        pipe.xclaim(lane, "workers", "dead", 0, [stream_id], idle=10_000, retrycount=deliveries, justid=True)
        pipe.execute()
    wait_until(lambda: redis_client.llen(inbox) == 2, 20, "both to be answered")
    results = {one["id"]: one["ok"] for one in map(msgpack.unpackb, redis_client.lrange(inbox, 0, -1))}
    assert results == {"suspect": True, "poisoned": False}
    assert redis_client.xlen(keys.dead) == 1
