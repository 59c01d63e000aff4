"""A worker of the protocol alone: redis, msgpack by way of the schemas, and the settle script.

For the producer's tests, which must not need the real one. ``python -m support.raw_worker URL QUEUE`` runs it as a
process of its own.
"""

from __future__ import annotations

import math
import secrets
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import redis

from clipfleet.schemas import scripts
from clipfleet.schemas.errors import ErrorCode, RequestFailed, error_for
from clipfleet.schemas.keys import QueueKeys
from clipfleet.schemas.limits import GROUP
from clipfleet.schemas.request import InvalidRequest, Request, decode_request
from clipfleet.schemas.result import encode_failure, encode_success

if TYPE_CHECKING:
    from collections.abc import Callable

DIMENSION = 8
BLOCK_MS = 20
HEARTBEAT_S = 0.5


def toy_vector(seed: bytes) -> dict[str, Any]:
    """A unit vector that depends on every byte of ``seed``, as the wire has it."""
    numbers = [1.0 + sum(seed[i::DIMENSION]) for i in range(DIMENSION)]
    norm = math.sqrt(sum(x * x for x in numbers))
    return {"dtype": "f4", "shape": [DIMENSION], "data": struct.pack(f"<{DIMENSION}f", *(x / norm for x in numbers))}


def answer(request: Request) -> dict[str, Any]:
    """Outputs of the built-in pipelines, near enough for a client's tests."""
    inputs, options = request.inputs, request.options
    match request.pipeline:
        case "echo":
            return {"data": inputs.get("data")}
        case "embed_text":
            return {"vector": toy_vector(inputs["text"].encode())}
        case "embed_image":
            image = inputs["image"]
            return {"vector": toy_vector(image if isinstance(image, bytes) else repr(image).encode())}
        case "index_image":
            return {"id": inputs.get("id") or "hash", "inputs": sorted(inputs), "options": options}
        case "search":
            return {"hits": [{"id": "a", "score": 0.5, "metadata": {"inputs": sorted(inputs), "options": options}}]}
        case "delete":
            return {"deleted": len(inputs.get("ids") or ())}
        case "fail":
            raise error_for(inputs["code"], inputs.get("message", ""))
    raise error_for(ErrorCode.UNKNOWN_PIPELINE)


class RawWorker:
    """Reads, answers and settles in a thread; ``with RawWorker(url, keys):`` stops it at the end.

    ``hold`` cleared keeps everything that was read unanswered until it is set again.
    """

    def __init__(
        self,
        url: str,
        keys: QueueKeys,
        *,
        handler: Callable[[Request], dict[str, Any]] = answer,
        count: int = 256,
        presence: bool = True,
    ) -> None:
        self.keys = keys
        self.name = f"raw-{secrets.token_hex(4)}"
        self.handled: list[str] = []
        self.hold = threading.Event()
        self.hold.set()
        self._handler = handler
        self._count = count
        self._presence = presence
        self._beat_at = 0.0
        self._stop = threading.Event()
        self._seen = threading.Event()
        self._redis = redis.Redis.from_url(url, socket_timeout=10)
        self._settle = scripts.load("settle")
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.failure: BaseException | None = None

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self.hold.set()
        self._thread.join(10)
        assert not self._thread.is_alive(), "the raw worker does not stop"
        try:
            self._redis.zrem(self.keys.workers, self.name)
            self._redis.delete(self.keys.worker(self.name))
        except redis.exceptions.RedisError:
            pass  # its server was killed by the test
        self._redis.close()
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> Self:
        self.start()
        # A client that comes before the first heartbeat is told that there is no worker.
        if self._presence:
            assert self._seen.wait(20), "the raw worker does not start"
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._turn()
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
                self._stop.wait(0.05)
            except redis.exceptions.ResponseError as error:
                if not str(error).startswith(("NOGROUP", "UNBLOCKED", "LOADING", "OOM", "NOSCRIPT", "READONLY")):
                    self.failure = error
                    return
                self._recover()
            except BaseException as error:  # noqa: BLE001 - the test must see it: stop() raises it
                self.failure = error
                return

    def _recover(self) -> None:
        for lane in self.keys.lanes:
            try:
                self._redis.xgroup_create(lane, GROUP, id="0", mkstream=True)
            except redis.exceptions.RedisError:
                continue  # it is there, or the server is not; the next turn tells

    def _turn(self) -> None:
        if self._presence and time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + HEARTBEAT_S
            beat = scripts.load("heartbeat")
            self._redis.eval(
                beat.text, 2, self.keys.workers, self.keys.worker(self.name), self.name, 3000, "host", "test"
            )
            self._seen.set()
        lanes = dict.fromkeys(self.keys.lanes, ">")
        batch = self._redis.xreadgroup(GROUP, self.name, lanes, count=self._count, block=BLOCK_MS)
        if not batch:
            return
        self.hold.wait()
        pairs = batch.items() if isinstance(batch, dict) else batch
        calls = [
            self._settling(lane.decode(), stream_id, fields[b"m"])
            for lane, entries in pairs
            for stream_id, fields in entries
        ]
        try:
            self._execute(calls)
        except redis.exceptions.NoScriptError:
            self._redis.script_load(self._settle.text)
            self._execute(calls)

    def _execute(self, calls: list[tuple[Any, ...]]) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for call in calls:
            pipe.evalsha(*call)
        pipe.execute()

    def _settling(self, lane: str, stream_id: bytes, m: bytes) -> tuple[Any, ...]:
        keys = self.keys
        try:
            request, envelope = decode_request(m, keys)
        except InvalidRequest as error:
            if error.envelope is None:
                raise  # no producer of ours sends what cannot even be answered
            envelope = error.envelope
            result = encode_failure(envelope.id, RequestFailed(error.code, str(error)))
        else:
            try:
                result = encode_success(request.id, self._handler(request), model="raw")
            except RequestFailed as failure:
                result = encode_failure(request.id, failure)
        self.handled.append(envelope.id)
        return (
            self._settle.sha, 5,
            lane, keys.other_lane(lane), keys.bytes, envelope.reply_to, keys.dead,
            stream_id, len(m), "", result, envelope.reply_ttl_ms,
        )  # fmt: skip


if __name__ == "__main__":
    with RawWorker(sys.argv[1], QueueKeys(sys.argv[2])) as worker:
        sys.stdin.read()  # until the parent closes it
