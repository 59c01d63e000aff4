"""Pipelines of one's own on the fleet; the built-in ones share their batches."""

from __future__ import annotations

import io
import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from clipfleet.operators.services import ProcessServices
from clipfleet.producer import Client, requests
from clipfleet.schemas.errors import BadInput, ErrorCode, ModelFailed
from clipfleet.schemas.request import Request
from clipfleet.schemas.result import decode_result
from clipfleet.store.lite import LiteServer
from support import pipelines
from support.fleet import TINY, admit, results
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess
    from support.redis_server import RedisServer

SERVED = ("support.pipelines:words", "support.pipelines:rows", "doubled=support.pipelines:twice")


def test_given_pipelines_of_ones_own_then_producers_call_them_by_name(
    redis_server: RedisServer, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    worker = start_worker(pipelines=SERVED)
    with Client(redis_server.url, queue=keys.queue, timeout=30) as client:
        assert client.run("words", {"text": "a red heart"}).outputs == {"words": ["a", "red", "heart"], "count": 3}
        found = client.run("rows", {"text": "two words"}).outputs["rows"]
        alone = client.embed_text("words").vector
        assert [row["word"] for row in found] == ["two", "words"]
        vector = np.frombuffer(found[1]["vector"]["data"], dtype="<f4")
        assert vector @ np.asarray(alone) == pytest.approx(1, abs=1e-4)
        # one bad item of a batch fails alone, with an incident and not the exception's text
        answers = list(client.map(requests.run("doubled", {"n": n}) for n in (1, 13, 3)))
        assert [one.outputs["m"] if one.ok else one.error.code for one in answers] == [2, ErrorCode.MODEL_FAILED, 6]
        with pytest.raises(BadInput, match="'text' must be a string"):
            client.run("words", {"text": 7})
        with pytest.raises(BadInput, match="'nothing' is not served here; this worker serves doubled, echo"):
            client.run("nothing", {})
    assert "words" in worker.presence()[0]["pipelines"]
    # The same objects, here
    with pipelines.words.open(services=ProcessServices(model=str(TINY))) as here:
        assert here("a red heart").rows == ((["a", "red", "heart"], 3),)
    with pipelines.twice as doubled, pytest.raises(ModelFailed):
        doubled(13)


def test_given_a_worker_killed_among_the_rows_of_a_request_then_nothing_is_lost_or_doubled(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    worker = start_worker(pipelines=SERVED, hooks="support.hooks:Barrier", lease_ms=60_000, max_batch_size=8)
    # Given requests of twenty rows each, the batches of some done and the next one standing in its call
    asked = [Request(f"r{n}", "words", {"text": " ".join(f"w{n}x{k}" for k in range(20))}) for n in range(12)]
    worker.hold("call")
    assert admit(redis_client, keys, asked)[0] == 12
    worker.reached("call")
    # When the process is killed there
    worker.unhold("call")
    worker.child().kill()
    # Then each request has one result, with all of its rows in order
    found = results(redis_client, keys, [one.id for one in asked])
    for number, request in enumerate(asked):
        (raw,) = found[request.id]
        assert decode_result(raw).outputs == {"words": [f"w{number}x{k}" for k in range(20)], "count": 20}


def test_given_outputs_and_notes_that_no_result_can_carry_then_their_request_fails_and_the_worker_lives(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    names = ("unsendable", "unsendable_at_once")
    worker = start_worker(pipelines=tuple(f"support.pipelines:{name}" for name in names))
    process = worker.child().pid
    kinds = ["itself", "objects", "a set", "broken", "notes of a set", "broken notes", "no notes", "fine"]
    asked = [Request(f"{name}-{n}", name, {"kind": kind}) for name in names for n, kind in enumerate(kinds)]
    admit(redis_client, keys, asked)
    found = [decode_result(raw[0]) for raw in results(redis_client, keys, [one.id for one in asked]).values()]
    assert [one.error.code if one.error else "ok" for one in found] == [*[ErrorCode.INTERNAL] * 7, "ok"] * 2
    for some in (found[:8], found[8:]):
        assert all("the outputs cannot be sent" in str(one.error) for one in some[:6])
        assert some[7].notes["a"] == 1.0
    assert worker.child().pid == process


def test_given_rows_without_end_then_their_request_expires_and_the_next_one_has_the_threads(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    start_worker(pipelines=("support.pipelines:stream",))
    endless = [Request(f"e{n}", "stream", {"text": "an endless"}) for n in range(4)]
    admit(redis_client, keys, endless, ttl_ms=1500)
    found = results(redis_client, keys, [one.id for one in endless])
    errors = [decode_result(raw[0]).error for raw in found.values()]
    assert [error and error.code for error in errors] == [ErrorCode.EXPIRED] * 4
    admit(redis_client, keys, [Request("after", "stream", {"text": "one two"})], call="test.2")
    (raw,) = results(redis_client, keys, ["after"])["after"]
    assert decode_result(raw).outputs == {"words": ["one", "two"], "lengths": [3, 3]}


@pytest.mark.parametrize("how", ["killed", "told to stop"])
def test_given_a_source_of_rows_that_is_read_in_half_when_the_worker_goes_then_another_begins_it_anew(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess], tmp_path: Path, how: str
) -> None:
    # Given sources of which some rows have gone through, and which then wait
    go_on = tmp_path / "go-on"
    first = start_worker(pipelines=("support.pipelines:stream",), lease_ms=3000, grace_s=2.0)
    asked = [Request(f"r{n}", "stream", {"text": f"a bb wait:{go_on} ccc"}) for n in range(4)]
    admit(redis_client, keys, asked)
    wait_until((tmp_path / "go-on.reached").exists, 20, "a source that waits")
    # When the worker goes, and another one comes
    if how == "killed":
        first.kill_all()
    else:
        first.process.send_signal(signal.SIGTERM)
        first.process.wait(20)
    go_on.touch()
    start_worker(pipelines=("support.pipelines:stream",), lease_ms=3000)
    # Then each has one result
    found = results(redis_client, keys, [one.id for one in asked])
    for request in asked:
        (raw,) = found[request.id]
        words = ["a", "bb", f"wait:{go_on}", "ccc"]
        assert decode_result(raw).outputs == {"words": words, "lengths": [len(word) for word in words]}


def test_given_a_function_that_hangs_and_has_no_timeout_then_its_process_ends_and_all_are_answered(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    worker = start_worker(pipelines=("support.pipelines:hanging",), max_run_s=1.5, lease_ms=3000)
    process = worker.child().pid
    asked = [Request(f"r{n}", "hanging", {"path": str(tmp_path / f"file{n}")}) for n in range(3)]
    (tmp_path / "file2").touch()
    admit(redis_client, keys, asked)
    found = results(redis_client, keys, [one.id for one in asked])
    assert [decode_result(raw).outputs["found"][-1] for (raw,) in found.values()] == ["0", "1", "2"]
    assert worker.child().pid != process
    assert "stage 'once' took longer than 1.5 s" in worker.log


def test_given_pictures_to_embed_to_index_and_to_search_by_then_they_run_in_one_batch(
    redis_client: redis.Redis,
    keys: QueueKeys,
    start_worker: Callable[..., WorkerProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with LiteServer(tmp_path_factory.mktemp("lite")) as lite:
        # The batch is full with the three of them; nobody waits for the delay.
        start_worker(milvus_uri=lite.uri, max_batch_size=3, max_delay_ms=30_000)
        first = Request("first", "index_image", {"image": picture(0), "id": "p0"})
        more = [Request(f"more{n}", "embed_image", {"image": picture(n)}) for n in (1, 2)]
        admit(redis_client, keys, [first, *more])
        results(redis_client, keys, ["first", "more1", "more2"])
        together = [
            Request("embed", "embed_image", {"image": picture(3)}),
            Request("index", "index_image", {"image": picture(4), "id": "p4"}),
            Request("search", "search", {"image": picture(0), "limit": 1}),
        ]
        admit(redis_client, keys, together)
        answers = results(redis_client, keys, ["embed", "index", "search"])
        found = {one: decode_result(raw[0]) for one, raw in answers.items()}
    assert {one: result.notes["batch_size"] for one, result in found.items()} == dict.fromkeys(found, 3)
    assert found["search"].outputs["hits"][0]["id"] == "p0"


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 6, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()
