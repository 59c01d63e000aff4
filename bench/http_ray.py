"""Ray Serve with ``@serve.batch``: a replica for each core, and the throughput settings of its performance guide."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from starlette.responses import Response

from bench.http_model import MAX_BATCH, MAX_DELAY_S, MEDIA, PORT, PROCESSES, TIMEOUT_S, Decoder, Model

if TYPE_CHECKING:
    from starlette.requests import Request


@serve.deployment(num_replicas=PROCESSES, max_ongoing_requests=4 * MAX_BATCH, ray_actor_options={"num_cpus": 1})
class Embed:
    def __init__(self) -> None:
        self.prepare, self.model = Decoder(), Model()

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=MAX_DELAY_S)
    async def embed(self, pixels: list[Any]) -> list[bytes]:
        vectors = await asyncio.to_thread(self.model, pixels)
        return [row.tobytes() for row in vectors]

    async def __call__(self, request: Request) -> Response:
        data = await request.body()
        pixels = await asyncio.to_thread(self.prepare, data)
        return Response(await self.embed(pixels), media_type=MEDIA)


if __name__ == "__main__":
    ray.init(num_cpus=PROCESSES, include_dashboard=False, logging_level="warning", log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT, "request_timeout_s": TIMEOUT_S})
    serve.run(Embed.bind(), route_prefix="/embed", blocking=True)
