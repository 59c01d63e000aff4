"""The generators of load: what is counted, and from when. On a clock that stands still unless somebody waits."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

import pytest

from support.virtual_loop import VirtualLoop

if not (Path(__file__).parents[2] / "bench").is_dir():
    pytest.skip("the tests were copied away from the sources, to try the wheel", allow_module_level=True)

from bench.load import Outcome, Record, closed_loop, long_enough, open_loop, poisson
from bench.points import Point, histogram, rates


def run(main):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def within(seconds):
    return pytest.approx(seconds, abs=1e-6)


def test_given_a_slow_answer_when_the_load_is_open_then_the_next_requests_do_not_wait_for_it():
    async def send(number):
        await asyncio.sleep(10 if number == 0 else 0.1)

    records = run(open_loop(send, [0.0, 1.0, 2.0]))

    assert [record.sent for record in records] == within([0.0, 1.0, 2.0])
    assert [record.latency for record in records] == within([10.0, 0.1, 0.1])


def test_given_a_generator_that_was_held_up_then_a_latency_counts_from_when_the_request_was_meant_to_arrive():
    async def send(number):
        if number == 0:
            asyncio.get_running_loop().busy(5.0)  # as a long garbage collection, or another process
        await asyncio.sleep(0.1)

    records = run(open_loop(send, [0.0, 1.0, 2.0, 8.0]))

    assert [record.intended for record in records] == [0.0, 1.0, 2.0, 8.0]
    assert [record.sent for record in records] == within([0.0, 5.0, 5.0, 8.0])
    # Two requests came while nothing was sent. Counted from when they were sent they would have taken 0.1 s.
    assert [record.latency for record in records[1:]] == within([4.1, 3.1, 0.1])
    assert Outcome.of(records).late == within(4.0)


def test_given_a_service_that_stalls_then_an_open_loop_sees_all_who_waited_and_a_closed_one_a_single_request():
    def stalls():
        opens = asyncio.Event()

        async def send(number):
            loop = asyncio.get_running_loop()
            if number == 10:
                loop.call_later(2.0, opens.set)
            if number >= 10 and not opens.is_set():
                await opens.wait()
            await asyncio.sleep(0.01)

        return send

    async def open_way():
        return await open_loop(stalls(), [number * 0.05 for number in range(100)])

    async def closed_way():
        return await closed_loop(stalls(), 100, 1)

    slow = [sum(record.latency > 0.5 for record in run(way())) for way in (open_way, closed_way)]

    assert slow == [31, 1]


def test_given_requests_that_fail_then_they_are_counted_by_their_code_and_are_no_results():
    class Refused(Exception):
        code = "queue_full"

    async def send(number):
        await asyncio.sleep(0.5)
        if number % 4 == 1:
            raise Refused
        if number % 4 == 2:
            raise ValueError("odd")

    outcome = Outcome.of(run(closed_loop(send, 8, 2)))

    assert outcome.failed == {"queue_full": 2, "ValueError: odd": 2}
    assert outcome.latencies == within([0.5] * 4)
    assert outcome.rate == within(4 / 2.0)  # eight halves of a second, two at a time


def test_given_a_closed_loop_then_so_many_are_on_their_way_and_never_more():
    running, most = set(), []

    async def send(number):
        running.add(number)
        most.append(len(running))
        await asyncio.sleep(0.001 * (number % 7 + 1))
        running.remove(number)

    records = run(closed_loop(send, 100, 8))

    assert max(most) == 8
    assert len(records) == 100
    assert all(record.ended > record.sent for record in records)


def test_given_a_load_of_few_requests_then_its_rate_is_over_the_whole_time_that_it_lasted():
    few = [Record(0.4, 0.4, 0.5), Record(0.6, 0.6, 0.7)]
    assert Outcome.of(few, 2.0).rate == 1.0
    assert Outcome.of(few, 0.5).rate == within(2 / 0.7)


def test_given_no_requests_then_there_is_no_outcome():
    assert run(open_loop(None, [])) == []
    with pytest.raises(ValueError, match="no requests"):
        Outcome.of([])


def test_given_a_rate_then_random_arrivals_keep_it_and_are_as_uneven_as_poisson_says():
    moments = poisson(1_000, 50.0, seed=3)
    gaps = [after - before for before, after in zip([0.0, *moments], moments, strict=False)]

    assert moments == sorted(moments)
    assert moments[-1] < 50.0
    assert len(moments) == pytest.approx(50_000, rel=0.02)
    # Of exponential gaps the deviation is the mean; of even ones it would be nothing.
    assert statistics.pstdev(gaps) == pytest.approx(statistics.fmean(gaps), rel=0.03)
    assert poisson(1_000, 1.0, seed=3) != poisson(1_000, 1.0, seed=4)


def test_given_a_rate_so_low_that_hardly_any_request_would_come_then_the_load_is_longer():
    assert long_enough(1_000.0, 0.5) == 0.5
    assert long_enough(2.0, 0.5) == 15.0
    assert all(poisson(2.0, 15.0, seed=seed) for seed in range(100))


def test_given_several_rounds_then_a_point_pools_their_requests_and_keeps_their_rates_apart():
    point = Point("texts", "open loop")
    point.take([Record(0.0, 0.0, 1.0), Record(1.0, 1.0, 2.0)], {1: 2}, 2.0)
    point.take([Record(0.0, 0.0, 3.0), Record(0.9, 1.8, 4.0, "expired")], {1: 1, 2: 4}, 1.0)

    assert point.offered == 1.5
    assert (point.rate.low, point.rate.high) == (0.25, 1.0)  # one result until the last request had ended
    assert point.ms(100) == 3000.0
    assert point.sizes == {1: 3, 2: 4}
    assert rates("all", [point]).x == [1.5]
    assert point.note() == "1 expired, the generator was up to 900 ms late"


def test_given_batches_of_many_sizes_then_their_histogram_has_bars_of_doubling_width_by_share_of_requests():
    point = Point("texts", "open loop")
    point.take([Record(0.0, 0.0, 1.0)], {1: 2, 2: 1, 3: 1, 4: 1, 64: 1, 65: 1})

    plot = histogram("sizes", "Sizes", {"now": point})

    assert plot.ticks == ["1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65-128"]
    assert plot.curves[0].y == within([share / 140 * 100 for share in (2, 2, 7, 0, 0, 0, 64, 65)])
    assert plot.curves[0].label == "now, mean 20.0"
    assert histogram("none", "None", {"now": Point("idle", "open loop")}).ticks == ["1"]
