"""What a worker says and does when more comes than it can do, with a stage whose cost is known.

Other processes may take the cores meanwhile. So what a run took is not only known beforehand but also taken from its
own result, and what the worker says and does is compared with that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipfleet.schemas.errors import ErrorCode
from clipfleet.schemas.request import Request
from clipfleet.schemas.result import decode_result
from clipfleet.worker.config import NO_MODEL
from support.fleet import admit, results
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from clipfleet.schemas.result import Result
    from support.fleet import WorkerProcess

RUN_S, ITEM_S = 0.02, 0.001  # of ``support.pipelines:priced``, which takes up to 16
BURSTS = (1, 4, 1, 2, 1, 8, 1, 2, 1, 4, 1, 2)


def numbers(start: int, count: int) -> list[Request]:
    return [Request(f"n{number}", "priced", {"n": number}) for number in range(start, start + count)]


def low_load(client: redis.Redis, keys: QueueKeys, bursts: Iterable[int]) -> int:
    """A few requests, one burst after the other; how many."""
    sent = 0
    for count in bursts:
        requests = numbers(sent, count)
        admit(client, keys, requests)
        results(client, keys, [one.id for one in requests])
        sent += count
    return sent


def priced_ms(result: Result) -> float:
    """What the run of its batch costs."""
    return (RUN_S + ITEM_S * result.notes["batch_size"]) * 1000


def shares_ms(results: Iterable[Result]) -> tuple[float, float]:
    """What the runs of them cost by their price, and what they took."""
    shares = [(priced_ms(one), one.timing["run"], one.notes["batch_size"]) for one in results]
    return sum(price / size for price, _, size in shares), sum(took / size for _, took, size in shares)


def test_retry_after_is_the_time_that_the_backlog_takes_though_the_worker_was_hardly_used_before(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a worker that has had some 30 requests a second, which says nothing of what it can do
    worker = start_worker(model=NO_MODEL, pipelines=["support.pipelines:priced"], max_delay_ms=0)
    sent = low_load(redis_client, keys, BURSTS)
    wait_until(lambda: int(worker.presence()[0]["settled"]) == sent, 10, "figures of all of them")
    wait_until(lambda: redis_client.hget(keys.fleet, "rate"), 10, "a rate of the fleet")
    # When a backlog comes
    backlog = numbers(sent, 800)
    accepted, told_ms, _, _ = admit(redis_client, keys, backlog)
    assert accepted == 800
    # Then it takes what was told, counted by what its batches cost, or took
    found = results(redis_client, keys, [one.id for one in backlog])
    costs = shares_ms(decode_result(raw[0]) for raw in found.values())
    assert 0.5 * min(costs) <= told_ms <= 2 * max(costs)


def test_more_than_it_can_do_costs_it_nothing_but_what_is_given_up(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a worker that knows what its runs take
    start_worker(model=NO_MODEL, pipelines=["support.pipelines:priced"], max_delay_ms=0, max_batch_size=16)
    sent = low_load(redis_client, keys, BURSTS)
    # When twice as many come due in a second as it can do: one in each ms, the first of them in 200 ms
    requests, window_ms = numbers(sent, 1_600), 200 + 1_600
    deadlines: dict[str, float] = {}
    for start in range(0, len(requests), 8):
        some, ttl_ms = requests[start : start + 8], 200 + start
        _, _, now_ms, _ = admit(redis_client, keys, some, ttl_ms=ttl_ms)
        deadlines |= {one.id: now_ms + ttl_ms for one in some}
    found = {one: decode_result(raw[0]) for one, raw in results(redis_client, keys, list(deadlines)).items()}
    # Then what it ran was in time, but for what its run took beyond its price, which nobody could foresee; in order all
    # but the first would have been too late
    ran = {one: result for one, result in found.items() if result.ok}
    late_ms = {
        one: result.outputs["at"] - deadlines[one] - max(0.0, result.timing["run"] - priced_ms(result))
        for one, result in ran.items()
    }
    assert {result.error.code for result in found.values() if result.error} == {ErrorCode.EXPIRED}
    # and of what can be run before the last one is due, at least half was
    item_ms = shares_ms(ran.values())[1] / len(ran)
    assert len(ran) >= 0.5 * window_ms / item_ms
    # (0.2 of them with nothing given up, and nearly all otherwise, unless somebody else takes the machine's cores)
    assert sum(late <= 0 for late in late_ms.values()) >= 0.4 * len(ran)
