"""BentoML with adaptive batching, as its own CLIP example is written: one service, a worker for each core.

It is allowed any latency, so that it drops nothing. (Annotations are no text here: BentoML reads them.)
"""

from pathlib import Path

import bentoml
import numpy as np

from bench.http_model import MAX_BATCH, PROCESSES, TIMEOUT_S, Decoder, Model


@bentoml.service(workers=PROCESSES, traffic={"timeout": TIMEOUT_S}, logging={"access": {"enabled": False}})
class Embed:
    def __init__(self) -> None:
        self.prepare, self.model = Decoder(), Model()

    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH, max_latency_ms=1000 * TIMEOUT_S, route="/embed")
    def embed(self, pictures: list[Path]) -> np.ndarray:
        return np.asarray(self.model([self.prepare(one.read_bytes()) for one in pictures]))
