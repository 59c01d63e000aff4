"""LitServe as its documentation tunes it: batches, a worker for each core, the fast queue, raw bytes in and out."""

from __future__ import annotations

from typing import Annotated, Any

import litserve
from fastapi import Depends, Request, Response

from bench.http_model import MAX_BATCH, MAX_DELAY_S, MEDIA, PORT, PROCESSES, TIMEOUT_S, Decoder, Model


async def body(request: Request) -> bytes:
    return await request.body()


# Read at run time, since LitServe takes annotations for types.
Body = Annotated[bytes, Depends(body)]


class Embed(litserve.LitAPI):
    def setup(self, device: str) -> None:  # noqa: ARG002  (LitServe gives it)
        self.prepare, self.model = Decoder(), Model()

    def decode_request(self, request: Any) -> Any:
        return self.prepare(request)

    def predict(self, pixels: Any) -> Any:
        return self.model(pixels)

    def encode_response(self, vector: Any) -> Any:
        return Response(vector.tobytes(), media_type=MEDIA)


Embed.decode_request.__annotations__["request"] = Body
Embed.encode_response.__annotations__["return"] = Response

if __name__ == "__main__":
    api = Embed(max_batch_size=MAX_BATCH, batch_timeout=MAX_DELAY_S, api_path="/embed")
    server = litserve.LitServer(
        api, accelerator="cpu", devices=1, workers_per_device=PROCESSES, timeout=TIMEOUT_S, fast_queue=True
    )
    server.run(host="127.0.0.1", port=PORT, num_api_servers=1, log_level="warning", generate_client_file=False)
