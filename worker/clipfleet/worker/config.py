"""Everything a worker can be told, in one frozen object that is read once."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from clipfleet.schemas import limits
from clipfleet.schemas.keys import NAME, QueueKeys

__all__ = ["NO_MODEL", "WorkerConfig"]

# Serves ``echo`` alone: for probes, benchmarks of the queue, and tests of everything but the model.
NO_MODEL = "none"
BUILT_IN = frozenset({"embed_image", "embed_text", "index_image", "search", "delete", "echo"})
MOST_BATCH = 64
LARGEST_STRING = 512 * 2**20  # that Redis takes by default (proto-max-bulk-len)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How to run a worker (a supervisor and its processes).

    Attributes:
        redis_url: ``redis://``, ``rediss://`` or ``unix://``.
        queue: the queue's name.
        prefix: what its keys start with.
        model: ``demo``, a bundle directory or an open_clip name with its tag.
        milvus_uri: the store; None serves embeddings alone.
        milvus_token: for it.
        milvus_ca_file: PEM file of the authorities that may sign its certificate; empty = those that gRPC knows.
        max_batch_size: most items of one model call; None: as many as are worth it on a CPU, and ``MOST_BATCH``.
        max_delay_ms: how long the oldest item may wait for company, counted from enqueue; ``auto``: run what is there
            as soon as the device is free, but for those that were read with it where waiting pays.
        bulk_batch_ms: how long a batch with bulk requests in it may take: what a live query may wait for one.
        capacity: most requests waiting and in flight on the whole queue.
        bulk_capacity: most of them in the bulk lane; None = 90 %.
        max_request_bytes: largest request.
        max_queue_bytes: most payload bytes on the whole queue.
        lease_ms: how long a delivered entry is a worker's without renewal.
        max_deliveries: how often an entry is run at most.
        max_run_s: a call of a stage without a timeout that is older than this is taken for hung; its process ends.
        grace_s: how long a shutdown may take before what is left is killed.
        processes: worker processes; None = one per device.
        devices: ``auto``, or a comma-separated list such as ``cuda:0,cuda:1`` or ``cpu``.
        providers: how to run the model, in order of preference.
        decode_threads: threads that decode and tokenise, per process; None = usable cores shared by the processes.
        threads: threads that one model call may use on a CPU; None = usable cores shared by the processes.
        allow_roots: names and directories from which ``{path}`` inputs may be read.
        allow_urls: whether ``{url}`` inputs are fetched.
        replace: take the queue over for another model, after it has drained.
        set_limits: write these limits over the fleet's.
        pipelines: ``module:name`` of pipelines to serve besides the built-in ones, or ``as=module:name``.
        hooks: ``module:Class`` of ``clipfleet.worker.hooks.Hooks`` to look into the process.
        log_level: a name of ``logging``.
    """

    redis_url: str = field(default="redis://localhost:6379", repr=False)
    queue: str = limits.DEFAULT_QUEUE
    prefix: str = limits.DEFAULT_PREFIX
    model: str = "demo"
    milvus_uri: str | None = field(default=None, repr=False)
    milvus_token: str = field(default="", repr=False)
    milvus_ca_file: str = ""
    max_batch_size: int | None = None
    max_delay_ms: float | Literal["auto"] = 10.0
    bulk_batch_ms: float = 100.0
    capacity: int = limits.DEFAULT_CAPACITY
    bulk_capacity: int | None = None
    max_request_bytes: int = limits.DEFAULT_MAX_REQUEST_BYTES
    max_queue_bytes: int = limits.DEFAULT_MAX_QUEUE_BYTES
    lease_ms: int = limits.DEFAULT_LEASE_MS
    max_deliveries: int = limits.DEFAULT_MAX_DELIVERIES
    max_run_s: float = 120.0
    grace_s: float = 10.0
    processes: int | None = None
    devices: str = "auto"
    providers: tuple[str, ...] = ("tensorrt", "cuda", "cpu", "torch")
    decode_threads: int | None = None
    threads: int | None = None
    allow_roots: dict[str, Path] = field(default_factory=dict)
    allow_urls: bool = False
    replace: bool = False
    set_limits: bool = False
    pipelines: tuple[str, ...] = ()
    hooks: str | None = None
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        """Refuse what cannot work, before anything is started.

        Raises:
            ValueError: which setting, and what it may be.
            ProtocolError: a name that keys cannot hold.
        """
        _ = self.keys, self.pipeline_targets
        _within("max_batch_size", self.most_batch, 1, 4096)
        _within("max_delay_ms", self.most_delay_ms, 0, 60_000)
        _within("bulk_batch_ms", self.bulk_batch_ms, 1, 3_600_000)
        _within("capacity", self.capacity, 1, 100_000_000)
        _within("bulk_capacity", 0 if self.bulk_capacity is None else self.bulk_capacity, 0, 100_000_000)
        _within("max_request_bytes", self.max_request_bytes, 1, LARGEST_STRING)
        _within("max_queue_bytes", self.max_queue_bytes, 1, 2**50)
        _within("lease_ms", self.lease_ms, 300, 3_600_000)
        _within("max_deliveries", self.max_deliveries, 1, 100)
        _within("max_run_s", self.max_run_s, 0.1, 86_400)
        _within("grace_s", self.grace_s, 0, 3_600)
        _within("decode_threads", 1 if self.decode_threads is None else self.decode_threads, 1, 1_024)
        _within("threads", 1 if self.threads is None else self.threads, 1, 1_024)
        _within("processes", 1 if self.processes is None else self.processes, 1, 256)
        if self.milvus_uri and self.milvus_ca_file:
            from clipfleet.store.types import check_ca_file  # noqa: PLC0415  (a package that few configurations need)

            check_ca_file(self.milvus_uri, self.milvus_ca_file)

    @property
    def most_batch(self) -> int:
        """``max_batch_size`` as a number."""
        return MOST_BATCH if self.max_batch_size is None else self.max_batch_size

    @property
    def most_delay_ms(self) -> float:
        """``max_delay_ms`` as a number: 0 for ``auto``."""
        return 0.0 if self.max_delay_ms == "auto" else self.max_delay_ms

    @property
    def keys(self) -> QueueKeys:
        """The keys of the queue."""
        return QueueKeys(self.queue, self.prefix)

    @property
    def pipeline_targets(self) -> dict[str, str]:
        """``module:name`` of each pipeline of one's own, by the name that requests call it by.

        Raises:
            ValueError: a name that no request can have, or two pipelines of one name.
        """
        targets: dict[str, str] = {}
        for path in self.pipelines:
            given, _, target = path.rpartition("=")
            name = given or target.rpartition(":")[2].rpartition(".")[2]
            if not NAME.match(name):
                raise ValueError(f"{name!r} is no name for a pipeline; it matches [A-Za-z0-9_.-]{{1,64}}")
            if name in targets or name in BUILT_IN:
                raise ValueError(f"there is a pipeline {name!r} already; give it another one: NAME={target}")
            targets[name] = target
        return targets

    def agreed(self, fingerprint: str, dimension: int) -> dict[str, str | int]:
        """What all workers of a queue must say alike: the fields of the ``fleet`` hash."""
        targets = self.pipeline_targets
        return {
            "v": limits.VERSION,
            "fingerprint": fingerprint,
            "dimension": dimension,
            "capacity": self.capacity,
            "bulk_capacity": self.bulk_capacity if self.bulk_capacity is not None else int(self.capacity * 0.9),
            "max_request_bytes": self.max_request_bytes,
            "max_queue_bytes": self.max_queue_bytes,
            "lease_ms": self.lease_ms,
            "max_deliveries": self.max_deliveries,
            # A request may be taken by any of them: what one serves all must serve.
            "features": ",".join(["store"] * bool(self.milvus_uri) + [f"pipeline:{one}" for one in sorted(targets)]),
        }

    def to_message(self) -> dict[str, Any]:
        """As a map that msgpack carries, for the process that runs it."""
        return {**asdict(self), "allow_roots": {name: os.fspath(root) for name, root in self.allow_roots.items()}}

    @classmethod
    def of_message(cls, message: dict[str, Any]) -> WorkerConfig:
        """The reverse of ``to_message``."""
        roots = {name: Path(root) for name, root in message["allow_roots"].items()}
        return cls(
            **{
                **message,
                "allow_roots": roots,
                "providers": tuple(message["providers"]),
                "pipelines": tuple(message["pipelines"]),
            }
        )


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low:g} to {high:g}, not {value:g}")
