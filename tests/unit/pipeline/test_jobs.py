"""What waits for a pool's threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from clipfleet.batching import Lane
from clipfleet.pipeline.engine.jobs import BULK_SHARE, Jobs
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


def test_given_bulk_jobs_when_live_ones_come_then_these_go_first_and_each_lane_keeps_its_order() -> None:
    jobs: Jobs[str] = Jobs()
    for job in ("b1", "b2"):
        jobs.put(job, Lane.BULK)
    for job in ("i1", "i2"):
        jobs.put(job, Lane.INTERACTIVE)
    assert len(jobs) == 4
    assert [jobs.get() for _ in range(4)] == ["i1", "i2", "b1", "b2"]


def test_given_more_live_jobs_than_there_is_time_for_then_one_in_8_is_bulks() -> None:
    jobs: Jobs[Lane] = Jobs()
    for lane in Lane:
        for _ in range(400):
            jobs.put(lane, lane)
    taken = [jobs.get() for _ in range(400)]
    assert taken.count(Lane.BULK) == 400 // BULK_SHARE
    assert all(taken[start : start + BULK_SHARE].count(Lane.BULK) == 1 for start in range(0, 400, BULK_SHARE))


def test_given_no_bulk_jobs_then_live_ones_owe_them_nothing() -> None:
    jobs: Jobs[str] = Jobs()
    for _ in range(20):
        jobs.put("i", Lane.INTERACTIVE)
        jobs.get()
    jobs.put("b", Lane.BULK)
    jobs.put("i", Lane.INTERACTIVE)
    assert [jobs.get(), jobs.get()] == ["i", "b"]


def test_given_a_taker_at_a_bulk_job_when_a_live_one_comes_then_the_express_takes_it_at_once() -> None:
    jobs: Jobs[str] = Jobs()
    jobs.put("bulk", Lane.BULK)
    with ThreadPoolExecutor(2) as pool:
        assert jobs.get() == "bulk"  # and this thread is at it
        express = pool.submit(jobs.get_express)
        jobs.put("live", Lane.INTERACTIVE)
        assert express.result(10) == "live"
        # The token that this thread got for it finds nothing, and does not wake it for nothing for ever.
        jobs.put("next", Lane.BULK)
        assert jobs.get() == "next"
        jobs.end(1)
        assert (jobs.get(), jobs.get_express()) == (None, None)


def test_given_live_jobs_that_wait_when_bulk_has_its_turn_then_the_express_takes_them() -> None:
    jobs: Jobs[str] = Jobs()
    jobs.put("bulk", Lane.BULK)
    for number in range(BULK_SHARE + 1):
        jobs.put(f"live{number}", Lane.INTERACTIVE)
    for number in range(BULK_SHARE - 1):
        assert jobs.get() == f"live{number}"
    assert jobs.get() == "bulk"  # and this thread is at it, while two wait
    jobs.end(1)
    assert list(iter(jobs.get_express, None)) == ["live7", "live8"]


def test_given_takers_at_live_jobs_alone_then_the_express_has_nothing_to_do() -> None:
    jobs: Jobs[str] = Jobs()
    jobs.put("first", Lane.INTERACTIVE)
    assert jobs.get() == "first"
    jobs.put("second", Lane.INTERACTIVE)
    jobs.end(1)
    assert jobs.get_express() is None
    assert jobs.get() == "second"


def test_given_many_threads_then_nothing_is_lost_or_doubled_and_each_ends() -> None:
    jobs: Jobs[int] = Jobs()

    def taker(following: Callable[[], int | None]) -> list[int]:
        found = []
        while (job := following()) is not None:
            found.append(job)
        return found

    def putter(first: int) -> None:
        for job in range(first, first + 5_000):
            jobs.put(job, Lane.BULK if job % 3 else Lane.INTERACTIVE)

    with ThreadPoolExecutor(8) as pool:
        takers = [pool.submit(taker, one) for one in (*[jobs.get] * 4, jobs.get_express)]
        for done in [pool.submit(putter, first) for first in range(0, 20_000, 5_000)]:
            done.result(30)
        wait_until(lambda: not len(jobs), 30, "everything taken")
        jobs.end(4)
        assert sorted(job for one in takers for job in one.result(30)) == list(range(20_000))
