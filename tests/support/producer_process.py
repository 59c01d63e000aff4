"""A producer in a process of its own: sends its share of a known set of inputs and writes down what came back.

python -m support.producer_process URL QUEUE SHARE OF COUNT WIDTH HEIGHT OUT
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from clipfleet.producer import Client, requests

IN_FLIGHT = 512


def text_of(number: int) -> str:
    return f"item {number} of many, a {('red', 'green', 'blue')[number % 3]} thing number {number * 7919}"


def picture_of(number: int, width: int, height: int) -> bytes:
    """A PNG that no other number has, at the model's own size so that nothing is resized away."""
    pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", compress_level=1)
    return out.getvalue()


def main(url: str, queue: str, share: int, of: int, count: int, width: int, height: int, out: str) -> None:
    def mine() -> list[requests.NewRequest]:
        numbers = range(share, count, of)
        return [
            requests.embed_text(text_of(number), tag=number)
            if number % 2
            else requests.embed_image(picture_of(number, width, height), tag=number)
            for number in numbers
        ]

    answers: list[tuple[int, np.ndarray, int]] = []
    failures: list[str] = []
    with Client(url, queue=queue, timeout=300) as client:
        for request, result in client.map_with_request(mine(), max_in_flight=IN_FLIGHT, ordered=False):
            if result.ok:
                answers.append((request.tag, np.array(result.vector), result.notes["batch_size"]))
            else:
                failures.append(f"{request.tag}: {result.error}")
    np.savez(
        out,
        numbers=np.array([number for number, _, _ in answers]),
        vectors=np.array([vector for _, vector, _ in answers]),
        batches=np.array([batch for _, _, batch in answers]),
    )
    Path(out).with_suffix(".json").write_text(json.dumps(failures))


if __name__ == "__main__":
    args = sys.argv[1:]
    main(args[0], args[1], *map(int, args[2:7]), args[7])
