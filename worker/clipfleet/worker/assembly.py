"""What a worker process is made of, built from its configuration: model, store, pipelines."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from clipfleet.batching import BatchPolicy
from clipfleet.pipeline.clip import Clip, clip_pipelines
from clipfleet.worker.config import NO_MODEL, usable_cores
from clipfleet.worker.hooks import Hooks, load_hooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from clipfleet.pipeline.stage import Pipelines
    from clipfleet.store import Store
    from clipfleet.worker.config import WorkerConfig

__all__ = ["Assembled", "assemble"]


@dataclass(frozen=True, slots=True)
class Assembled:
    """The parts of a process that are not about the queue.

    Attributes:
        pipelines: what it serves.
        hooks: see ``clipfleet.worker.hooks``.
        decode_threads: size of its pool.
        is_out_of_memory: tells the device's lack of memory from other errors.
        facts: for the fleet and the presence hash: fingerprint, dimension, device, provider, ...
    """

    pipelines: Pipelines
    hooks: Hooks
    decode_threads: int
    is_out_of_memory: Callable[[Exception], bool]
    facts: dict[str, Any]


def assemble(config: WorkerConfig, device: str) -> Assembled:
    """Load everything that ``config`` names, onto ``device``.

    Raises:
        ModelError: the model or the device cannot be had; the text says what is missing.
        ImportError: a package is missing, or there are no such hooks.
        ValueError: the store's address is none.
    """
    threads = config.threads or max(1, usable_cores() // (config.processes or 1))
    clip = None if config.model == NO_MODEL else _load_clip(config, device, threads)
    store = _open_store(config) if clip is not None else None
    policy = BatchPolicy(config.max_batch_size, config.max_delay_ms / 1000.0)

    def close() -> None:
        if clip is not None:
            clip.runtime.close()
        if store is not None:
            store.close()

    pipelines = clip_pipelines(clip, store, policy=policy, close=close)
    facts = {
        "fingerprint": clip.fingerprint if clip else "",
        "dimension": clip.dimension if clip else 0,
        "model": config.model,
        "device": device,
        "provider": clip.runtime.provider if clip else "",
        "tried": "; ".join(f"{one.provider}: {one.reason or 'taken'}" for one in clip.runtime.tried) if clip else "",
        "pipelines": ",".join(sorted(pipelines.plans)),
        "host": platform.node(),
        "pid": os.getpid(),
        "version": version("clipfleet"),
    }
    return Assembled(
        pipelines, load_hooks(config.hooks), config.decode_threads or usable_cores(), _is_out_of_memory, facts
    )


def _load_clip(config: WorkerConfig, device: str, threads: int) -> Clip:
    from clipfleet.models import Tokenize, open_runtime, resolve_model  # noqa: PLC0415  (a second of import)
    from clipfleet.operators import ImageLimits, prepare_image, silence_pillow  # noqa: PLC0415
    from clipfleet.operators.fetch import Fetcher, PathRoots, UrlFetcher  # noqa: PLC0415

    silence_pillow()
    fetcher = Fetcher(PathRoots(config.allow_roots), UrlFetcher(enabled=config.allow_urls))
    bundle = resolve_model(config.model)
    runtime = open_runtime(bundle, device=device, providers=config.providers, threads=threads)
    image, limits = bundle.config.image, ImageLimits(max_bytes=config.max_request_bytes)
    return Clip(
        runtime,
        Tokenize(bundle.config.text, bundle.tokenizer_file),
        lambda data: prepare_image(data, image, limits),
        lambda picture, left_s: fetcher.fetch(picture, timeout_s=left_s),
    )


def _open_store(config: WorkerConfig) -> Store | None:
    if config.milvus_uri is None:
        return None
    from clipfleet.store import Store, StoreConfig  # noqa: PLC0415  (pymilvus is a second of import)

    return Store(StoreConfig(config.milvus_uri, config.milvus_token, config.milvus_ca_file))


def _is_out_of_memory(error: Exception) -> bool:
    from clipfleet.models.errors import OutOfMemory  # noqa: PLC0415

    return isinstance(error, OutOfMemory | MemoryError)
