"""Many callers, one input each; the model sees batches. Run: python examples/batched_in_process.py"""

import asyncio

from clipfleet.batching import batched


def load_model() -> dict[str, int]:
    return {"cat": 4, "bird": 2}  # built once, in the thread that runs the model


@batched(max_batch_size=16, max_delay=0.05, capacity=64, context=load_model)
def count_legs(batch: list[str], model: dict[str, int]) -> list[int | Exception]:
    print(f"one run for {len(batch)} callers")
    return [model[animal] if animal in model else KeyError(animal) for animal in batch]


async def main() -> None:
    print(await asyncio.gather(*(count_legs(animal) for animal in ("cat", "bird", "fish")), return_exceptions=True))


asyncio.run(main())
