"""mosec as its documentation tunes it: decoding and model as two stages, each with a process for each core."""

from __future__ import annotations

import sys
from typing import Any

from mosec import Server, Worker

from bench.http_model import MAX_BATCH, MAX_DELAY_S, MEDIA, PORT, PROCESSES, TIMEOUT_S, Decoder, Model


class Prepare(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.prepare = Decoder()

    def deserialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: bytes) -> Any:
        return self.prepare(data)


class Embed(Worker):
    resp_mime_type = MEDIA

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def forward(self, data: list[Any]) -> list[bytes]:
        return [row.tobytes() for row in self.model(data)]

    def serialize(self, data: bytes) -> bytes:
        return data


if __name__ == "__main__":
    sys.argv[1:] = ["--address", "127.0.0.1", "--port", str(PORT), "--timeout", str(1000 * TIMEOUT_S)]
    sys.argv += ["--log-level", "warning"]
    server = Server()
    server.append_worker(Prepare, num=PROCESSES, timeout=TIMEOUT_S, route="/embed")
    server.append_worker(
        Embed,
        num=PROCESSES,
        max_batch_size=MAX_BATCH,
        max_wait_time=round(1000 * MAX_DELAY_S),
        timeout=TIMEOUT_S,
        route="/embed",
    )
    server.run()
