"""What waits for a pool's threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from clipfleet.batching import Lane
from clipfleet.pipeline.engine.jobs import BULK_SHARE, Jobs


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


def test_given_many_threads_then_nothing_is_lost_or_doubled_and_each_ends() -> None:
    jobs: Jobs[int] = Jobs()

    def taker() -> list[int]:
        found = []
        while (job := jobs.get()) is not None:
            found.append(job)
        return found

    def putter(first: int) -> None:
        for job in range(first, first + 5_000):
            jobs.put(job, Lane.BULK if job % 3 else Lane.INTERACTIVE)

    with ThreadPoolExecutor(8) as pool:
        takers = [pool.submit(taker) for _ in range(4)]
        for done in [pool.submit(putter, first) for first in range(0, 20_000, 5_000)]:
            done.result(30)
        jobs.end(4)
        assert sorted(job for one in takers for job in one.result(30)) == list(range(20_000))
