"""A producer in JavaScript, written from docs/protocol.md alone, against a raw worker and against ours."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clipfleet.models import resolve_model
from support.fixtures import skip_or_fail
from support.fleet import TINY
from support.waiting import wait_until

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "protocol.md"
WORKER = HERE / "raw_worker.py"

pytestmark = pytest.mark.node


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory):
    """The scripts with their two packages installed, outside the checkout."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        skip_or_fail("no node or npm")
    folder = tmp_path_factory.mktemp("node")
    for path in (HERE / "node").glob("*.*"):
        shutil.copy(path, folder)
    command = ["npm", "ci", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        skip_or_fail(f"npm ci failed: {done.stderr[-500:]}")
    return folder


class Scenario:
    """One scenario of scenarios.mjs at work; ``line()`` is what it says next."""

    def __init__(self, folder: Path, name: str, url: str, queue: str) -> None:
        command = ["node", "scenarios.mjs", name, url, queue, str(PAGE)]
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def line(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors()
        return json.loads(line)

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def end(self) -> None:
        assert self.process.wait(30) == 0, self.errors()


@pytest.fixture
def play(node_folder, redis_server, keys):
    """Starts a scenario; at the end each must have ended well."""
    started: list[Scenario] = []

    def start(name: str, url: str | None = None) -> Scenario:
        started.append(Scenario(node_folder, name, url or redis_server.url, keys.queue))
        return started[-1]

    try:
        yield start
        for scenario in started:
            scenario.end()
    finally:
        for scenario in started:
            scenario.process.kill()
            scenario.process.communicate()


@pytest.fixture
def start_raw_worker(redis_server, redis_client, keys):
    """Starts the worker that shares no line with ours."""
    processes = []

    def start() -> None:
        processes.append(subprocess.Popen([sys.executable, WORKER, redis_server.url, keys.queue]))
        wait_until(lambda: redis_client.zcard(keys.workers), 20, "the worker's heartbeat")

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(params=["raw", "ours"])
def start_any_worker(request):
    """Starts either worker when the test wants it: a producer cannot tell them apart."""
    return request.getfixturevalue("start_raw_worker" if request.param == "raw" else "start_worker")


def admitted(redis_client, keys) -> int:
    return sum(redis_client.xlen(lane) for lane in keys.lanes)


def test_given_the_raw_worker_when_a_text_is_embedded_then_the_vector_arrives(play, start_raw_worker):
    start_raw_worker()
    said = play("vector").line()
    assert said == {"dtype": "f4", "shape": [2], "bytes": 8, "length": pytest.approx(1.0, abs=1e-6), "model": ""}


@pytest.mark.parametrize("model", [str(TINY), "demo"], ids=["tiny", "demo"])
def test_given_our_worker_when_a_text_is_embedded_then_the_vector_arrives(play, start_worker, model):
    bundle = resolve_model(model)
    start_worker(model=model)
    said = play("vector").line()
    assert said == {
        "dtype": "f4",
        "shape": [bundle.config.dimension],
        "bytes": 4 * bundle.config.dimension,
        "length": pytest.approx(1.0, abs=1e-5),
        "model": bundle.config.fingerprint,
    }


def test_given_a_result_key_when_peeked_at_then_the_result_stays(play, start_any_worker):
    start_any_worker()
    assert play("own_key").line() == {"first": "kept", "second": "kept", "mine": True, "other": "by inbox"}


def test_given_room_for_three_when_five_are_admitted_then_two_are_full_and_three_are_answered(
    play, start_any_worker, redis_client, keys
):
    redis_client.hset(keys.fleet, mapping={"capacity": 3, "rate": 100})
    scenario = play("partial")
    refused = {"code": "queue_full", "retryable": True, "retryAfterMs": 50}
    assert scenario.line() == {"refused": [refused, refused]}
    assert admitted(redis_client, keys) == 3
    start_any_worker()
    assert scenario.line() == {"accepted": [1, 2, 3]}


def test_given_a_full_queue_when_it_has_room_again_then_the_producer_that_waited_is_answered(
    play, start_any_worker, redis_client, keys
):
    start_any_worker()
    redis_client.hset(keys.fleet, mapping={"capacity": 0, "rate": 100})
    scenario = play("queue_full")
    assert scenario.line() == {"code": "queue_full", "retryable": True, "retryAfterMs": 50}
    assert not redis_client.exists(keys.bytes, *keys.lanes) or admitted(redis_client, keys) == 0
    redis_client.hset(keys.fleet, "capacity", 1)
    assert scenario.line() == {"data": "room at last"}


def test_given_a_bad_request_when_sent_then_its_code_arrives_and_its_neighbours_are_fine(play, start_any_worker):
    start_any_worker()
    assert play("error").line() == {"code": "unknown_pipeline", "retryable": False, "bad": ["bad_request", "ok"]}


def test_given_hundreds_in_flight_when_answered_then_each_gets_its_own_from_one_inbox(
    play, start_any_worker, redis_client, keys
):
    start_any_worker()
    scenario = play("inbox")
    assert scenario.line() == {"right": 600, "ids": 600}
    scenario.end()
    assert list(redis_client.scan_iter(match=keys.inbox("*").replace("{", "[{]"))) == [], "all was trimmed"


def test_given_a_cancelled_request_when_a_worker_meets_it_then_only_it_is_cancelled(play, start_any_worker):
    scenario = play("cancel")
    assert scenario.line() == {"cancelled": True}
    start_any_worker()
    assert scenario.line() == {"codes": ["cancelled", "ok"]}


def test_given_no_worker_when_the_deadline_passes_then_the_producer_is_told(play, start_any_worker, redis_client, keys):
    scenario = play("deadline")
    assert scenario.line() == {"code": "expired"}
    scenario.end()
    start_any_worker()  # it meets the entry too late, and takes it off the queue
    wait_until(lambda: admitted(redis_client, keys) == 0, 20, "the late entry to go")


def test_given_connections_lost_in_mid_reply_when_it_goes_on_then_every_request_has_one_entry_and_one_answer(
    play, start_any_worker, redis_server, redis_client, keys, make_proxy
):
    start_any_worker()
    proxy = make_proxy(redis_server.port)
    redis_client.config_resetstat()
    scenario = play("lost", proxy.url)
    assert scenario.line() == {"ready": True}
    for number in range(12):
        # After a few bytes of a reply: what Redis did is done, and its answer is lost on the way.
        proxy.cut_after(37 * number)
        wait_until(lambda before=number: proxy.cuts > before or scenario.process.poll() is not None, 20, "a cut")
    assert scenario.line() == {"answered": 400, "distinct": 400}
    assert proxy.cuts >= 5
    assert redis_client.info("commandstats")["cmdstat_xadd"]["calls"] == 400
