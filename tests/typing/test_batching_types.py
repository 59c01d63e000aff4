"""The types that users of `@batched` and `Batcher` see, checked by mypy; pytest runs the same lines."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import assert_type

from clipfleet.batching import Batch, Batched, Batcher, BatchPolicy, batched


class Model:
    def score(self, text: str) -> float:
        return float(len(text))


@batched(max_batch_size=2, max_delay=0.0)
def length(batch: list[str]) -> list[int]:
    return [len(text) for text in batch]


@batched(max_batch_size=2, max_delay=0.0, context=Model)
def score(batch: list[str], model: Model) -> list[float]:
    return [model.score(text) for text in batch]


@batched(max_batch_size=2, max_delay=0.0)
def picky(batch: list[str]) -> list[int | Exception]:
    return [len(text) if text else ValueError("empty") for text in batch]


def test_a_function_gives_its_own_output_type() -> None:
    assert_type(length, Batched[str, int])
    assert_type(length.call("abc"), int)
    assert_type(length.submit("abc"), Future[int])


def test_a_function_with_a_context_takes_the_input_alone() -> None:
    assert_type(score, Batched[str, float])
    assert_type(score.call("abc"), float)


def test_awaiting_gives_the_output_type() -> None:
    async def main() -> None:
        assert_type(await length("abc"), int)

    asyncio.run(main())


def test_exceptions_among_the_outputs_are_raised_and_no_output_type() -> None:
    assert_type(picky.call("abc"), int)


def test_a_wrong_input_type_is_an_error() -> None:
    assert length.call([1]) == 1  # type: ignore[arg-type]


def test_a_batcher_gives_batches_of_its_items() -> None:
    batcher: Batcher[bytes] = Batcher(BatchPolicy(2, 0.0))
    batcher.put(b"abc")
    batch = batcher.take(timeout=0.0)
    assert_type(batch, Batch[bytes] | None)
    assert batch is not None
    assert_type(batch.items, list[bytes])
