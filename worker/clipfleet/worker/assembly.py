"""What a worker process is made of, built from its configuration: services, pipelines and their stages."""

from __future__ import annotations

import logging
import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from clipfleet.batching import BatchPolicy
from clipfleet.operators.cores import Split, split_cores, usable_cores
from clipfleet.operators.operator import Place
from clipfleet.pipeline.builtin import builtin_pipelines
from clipfleet.pipeline.compile import compile_pipelines
from clipfleet.pipeline.named import load_pipeline
from clipfleet.pipeline.stage import BatchStage
from clipfleet.worker.config import NO_MODEL
from clipfleet.worker.hooks import Hooks, load_hooks

if TYPE_CHECKING:
    from clipfleet.operators.services import ProcessServices
    from clipfleet.pipeline.program import Served
    from clipfleet.worker.config import WorkerConfig

__all__ = ["Assembled", "assemble"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assembled:
    """The parts of a process that are not about the queue.

    Attributes:
        served: its pipelines and their stages.
        hooks: see ``clipfleet.worker.hooks``.
        decode_threads: size of its pool.
        facts: for the fleet and the presence hash: fingerprint, dimension, device, provider, ...
    """

    served: Served
    hooks: Hooks
    decode_threads: int
    facts: dict[str, Any]


def assemble(config: WorkerConfig, device: str) -> Assembled:
    """Load everything that ``config`` names, onto ``device``.

    Raises:
        ModelError: the model or the device cannot be had; the text says what is missing.
        ImportError: a package is missing, or there are no such hooks or pipelines.
        ValueError: the store's address is none, or an operator cannot work as it was configured.
    """
    share = max(1, usable_cores() // (config.processes or 1))
    split = split_cores(share, config.threads) if device == "cpu" else Split(1, config.threads or share)
    model = None if config.model == NO_MODEL else config.model
    services = _services(config, model, split.threads)
    place = Place(services, device, config.providers, split.calls * split.threads, split.calls)
    loaded = place.load(model) if model is not None else None
    dimension = loaded.runtime.bundle.config.dimension if loaded is not None else None
    pipelines = builtin_pipelines(dimension, store=config.milvus_uri is not None)
    pipelines |= {name: load_pipeline(target) for name, target in config.pipeline_targets.items()}
    served = compile_pipelines(
        pipelines,
        place,
        BatchPolicy(
            config.most_batch,
            config.most_delay_ms / 1000.0,
            bulk_batch_s=config.bulk_batch_ms / 1000.0,
            auto=config.max_delay_ms == "auto",
        ),
        sized=config.max_batch_size is None,
        fingerprint=lambda: services.fingerprint,
        close=services.close,
    )
    if split.calls > 1 and config.threads is None:  # not before batches were measured: these run beside others
        services.open_wide(place.threads)
    if sizes := _sizes(served):
        log.info("calls at once: %d, threads of each: %d; batches of at most: %s", *split, sizes)
    facts = {
        "fingerprint": served.fingerprint,
        "dimension": dimension or 0,
        "model": config.model,
        "device": device,
        "provider": loaded.runtime.provider if loaded is not None else "",
        "tried": _tried(services),
        "pipelines": ",".join(served.names),
        "host": platform.node(),
        "pid": os.getpid(),
        "version": version("clipfleet"),
    }
    return Assembled(served, load_hooks(config.hooks), config.decode_threads or share, facts)


def _services(config: WorkerConfig, model: str | None, threads: int) -> ProcessServices:
    from clipfleet.operators.fetch import Fetcher, PathRoots, UrlFetcher  # noqa: PLC0415
    from clipfleet.operators.limits import ImageLimits  # noqa: PLC0415
    from clipfleet.operators.services import ProcessServices  # noqa: PLC0415

    return ProcessServices(
        model=model,
        threads=threads,
        milvus_uri=config.milvus_uri,
        milvus_token=config.milvus_token,
        milvus_ca_file=config.milvus_ca_file,
        fetcher=Fetcher(PathRoots(config.allow_roots), UrlFetcher(enabled=config.allow_urls)),
        limits=ImageLimits(max_bytes=config.max_request_bytes),
    )


def _sizes(served: Served) -> str:
    """What batches were measured to be worth, for the log."""
    stages = [one for one in served.stages if isinstance(one, BatchStage) and one.sized]
    return ", ".join(f"{one.name} {one.policy.max_batch_size}" for one in stages)


def _tried(services: ProcessServices) -> str:
    """What became of each provider, in the log and the presence hash."""
    told = [
        f"{what}: " * (len(services.attempts) > 1) + "; ".join(f"{name}: {reason or 'taken'}" for name, reason in tried)
        for what, tried in services.attempts.items()
    ]
    return " | ".join(told)
