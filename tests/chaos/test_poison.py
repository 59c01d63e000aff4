"""Points 6 and 7: inputs that kill the process, models that raise, lose rows or give NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from chaos.checks import LEASE_MS, answers, at_rest, texts
from clipfleet.schemas.errors import ErrorCode
from support.fleet import admit

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from clipfleet.schemas.keys import QueueKeys
    from support.fleet import WorkerProcess

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("how", ["oomkill", "decodekill"])
def test_one_killer_ends_in_the_dead_letters_and_its_63_neighbours_have_results(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess], how: str
) -> None:
    # Given a batch of 64 with one that kills the process: as the kernel does without memory, or by a fault in decode
    worker = start_worker(hooks="support.hooks:Murderous", lease_ms=LEASE_MS, max_delay_ms=200)
    requests = [*texts(31, "a"), *texts(1, how), *texts(32, "b")]
    admit(redis_client, keys, requests)
    # Then all others have their vectors, and it is poisoned
    found = answers(redis_client, keys, requests, 90)
    failed = {one: result.error.code for one, result in found.items() if not result.ok}
    assert failed == {f"{how}0": ErrorCode.POISONED}
    # after at most three deaths, and buried with the number of its deliveries
    assert 1 <= len(list(worker.barrier.glob("death.*"))) <= 3
    ((_, letter),) = redis_client.xrange(keys.dead)
    assert (letter[b"id"], letter[b"code"], letter[b"deliveries"]) == (f"{how}0".encode(), b"poisoned", b"4")
    # and the fleet is alive
    after = texts(3, "after")
    admit(redis_client, keys, after)
    assert all(result.ok for result in answers(redis_client, keys, after).values())
    worker.await_ready()
    at_rest(redis_client, keys, [worker])


def test_a_model_that_gives_nan_loses_rows_or_always_raises(
    redis_client: redis.Redis, keys: QueueKeys, start_worker: Callable[..., WorkerProcess]
) -> None:
    # Given a model that gives NaN for one item, and loses a row whenever another is in the batch
    worker = start_worker(hooks="support.hooks:BadModel", max_delay_ms=200)
    requests = [*texts(10, "a"), *texts(1, "nan"), *texts(10, "b"), *texts(1, "few"), *texts(10, "c")]
    admit(redis_client, keys, requests)
    found = answers(redis_client, keys, requests)
    # Then those two fail, as the model's fault, and nobody gets another's vector
    failed = {one: result.error.code for one, result in found.items() if not result.ok}
    assert failed == {"nan0": ErrorCode.MODEL_FAILED, "few0": ErrorCode.MODEL_FAILED}
    solo = texts(10, "solo")  # the same texts again
    admit(redis_client, keys, solo)
    alone = answers(redis_client, keys, solo)
    for i in range(10):
        np.testing.assert_allclose(found[f"c{i}"].vector, alone[f"solo{i}"].vector, atol=1e-5)
    # and one that raises for all fails each, and goes on
    raising = texts(8, "all")
    admit(redis_client, keys, raising)
    codes = {result.error.code for result in answers(redis_client, keys, raising).values()}
    assert codes == {ErrorCode.MODEL_FAILED}
    assert worker.process.poll() is None
    at_rest(redis_client, keys, [worker])
