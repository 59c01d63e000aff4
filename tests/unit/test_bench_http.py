"""The load on HTTP servers: what it counts, and that a server that cannot be run is a line and no end."""

from __future__ import annotations

import asyncio
import itertools
import math

import pytest
from bench import http_load, http_peers
from bench.http_lines import Found, lines
from bench.http_load import Outcome, closed_loop, open_loop
from bench.load import poisson

from support.fleet import TINY

PICTURES = [b"one", b"two", b"three"]


def test_given_a_failure_then_its_latency_is_endless() -> None:
    outcome = Outcome(latencies=[0.1] * 99)
    outcome.errors["503"] += 1

    assert outcome.percentile(99) == 0.1
    assert outcome.percentile(100) == math.inf


def test_given_a_server_that_stalls_then_all_that_was_due_meanwhile_is_sent_and_charged_for_it() -> None:
    planned = poisson(400, 0.25, 7)
    taken: list[bytes] = []

    async def load() -> Outcome:
        all_are_sent = asyncio.Event()

        async def send(picture: bytes) -> None:
            taken.append(picture)
            if len(taken) == len(planned):
                all_are_sent.set()
            await all_are_sent.wait()

        return await open_loop(send, PICTURES, rate=400, seconds=0.25)

    outcome = asyncio.run(load())

    assert len(taken) == len(outcome.latencies) == len(planned)
    assert taken[:4] == [b"one", b"two", b"three", b"one"]
    # The first was due when the last was not even sent: its latency holds the whole stall.
    assert max(outcome.latencies) >= planned[-1] - planned[0]
    assert not outcome.errors


def test_given_a_server_that_refuses_some_then_they_are_counted_by_what_they_said() -> None:
    count = itertools.count(1)

    async def send(_: bytes) -> None:
        if next(count) % 3 == 0:
            raise ConnectionError("refused")

    outcome = asyncio.run(open_loop(send, PICTURES, rate=1000, seconds=0.1))

    assert outcome.errors["ConnectionError: refused"] == (len(outcome.latencies) + outcome.errors.total()) // 3


def test_given_a_closed_loop_then_never_more_are_unanswered_and_filling_does_not_count() -> None:
    unanswered = most = 0

    async def send(_: bytes) -> None:
        nonlocal unanswered, most
        unanswered += 1
        most = max(most, unanswered)
        await asyncio.sleep(0)
        unanswered -= 1

    outcome = asyncio.run(closed_loop(send, PICTURES, in_flight=8, seconds=0.05))

    assert most == 8
    assert outcome.answered >= len(outcome.latencies) + 8
    assert outcome.rate == len(outcome.latencies) / outcome.seconds


def test_given_a_server_that_answers_in_batches_then_only_whole_ones_count(monkeypatch) -> None:
    clock, waiting = [0.0], []

    async def send(_: bytes) -> None:
        done = asyncio.get_running_loop().create_future()
        waiting.append(done)
        await done

    async def serve() -> Outcome:
        load = asyncio.create_task(closed_loop(send, PICTURES, in_flight=15, seconds=10.0))
        while not load.done():
            batch = [waiting.pop(0) for _ in range(min(6, len(waiting)))]
            clock[0] += 1.0
            for one in batch:
                one.set_result(None)
            for _ in range(3):  # the callers hear of it, and ask again
                await asyncio.sleep(0)
        return await load

    monkeypatch.setattr(http_load.time, "perf_counter", lambda: clock[0])
    outcome = asyncio.run(serve())

    # 15 callers and batches of 6: neither when the first 15 are answered nor after ten seconds is a batch at its end.
    assert outcome.rate == 6.0


def test_given_a_server_that_refuses_its_saturation_then_an_error_names_what_it_said() -> None:
    async def send(_: bytes) -> None:
        raise ConnectionError("429")

    with pytest.raises(RuntimeError, match="ConnectionError: 429"):
        asyncio.run(closed_loop(send, PICTURES, in_flight=4, seconds=0.05))


def test_given_a_peer_that_is_not_installed_then_a_line_says_how_to_install_it(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CLIPFLEET_BENCH_ENVIRONMENTS", str(tmp_path))

    found = http_peers.run(model=str(TINY), only="mosec", quick=True)

    assert "--install --only mosec" in found[1].why
    assert [one.name for one in found if not one.why] == ["what the cores allow"]


def test_given_a_server_that_ends_at_once_then_its_line_holds_what_it_said(monkeypatch, tmp_path) -> None:
    python = tmp_path / "mosec" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho no such module >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setenv("CLIPFLEET_BENCH_ENVIRONMENTS", str(tmp_path))

    found = http_peers.run(model=str(TINY), only="mosec", quick=True)

    assert "it ended with 3" in found[1].why
    assert "no such module" in found[1].why


def test_given_less_time_than_all_rounds_take_then_those_that_fit_are_measured(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CLIPFLEET_BENCH_ENVIRONMENTS", str(tmp_path))
    rounds = {
        seconds: len(http_peers.run(model=str(TINY), only="mosec", rounds=2, seconds=seconds)[0].values)
        for seconds in (0.0, math.inf)
    }
    assert rounds == {0.0: 1, math.inf: 2}


def test_given_an_unknown_name_then_the_known_ones_are_told() -> None:
    with pytest.raises(ValueError, match="litserve"):
        http_peers.run(only="triton")


def test_given_rounds_of_all_then_ours_is_set_against_the_best_in_each() -> None:
    def found(rate: float, tail: float, cpu: float) -> Found:
        return Found([rate], [Outcome(offered=rate * 0.7, seconds=1.0, latencies=[tail] * 10)], [cpu])

    ways = {"clipfleet": found(120, 0.2, 10.0), "mosec": found(100, 0.3, 12.0), "ray": found(50, 0.1, 30.0)}
    made = lines(ways, (125.0,))
    ratios = {one.name: one.values[0] for one in made if one.unit == "x"}

    assert ratios["what the cores allow / mosec 0.9.8, the best"] == pytest.approx(1.25)
    assert ratios["clipfleet over Redis / mosec 0.9.8, the best"] == pytest.approx(1.2)
    assert ratios["p99 of Ray Serve 2.60.0, the lowest / clipfleet over Redis"] == pytest.approx(0.5)
    assert ratios["CPU of mosec 0.9.8, the least / clipfleet over Redis"] == pytest.approx(1.2)
