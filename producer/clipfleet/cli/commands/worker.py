"""``clipfleet worker``: run the model for a queue."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from clipfleet.cli import worker_options as o
from clipfleet.cli.errors import CliError
from clipfleet.cli.run import Run, command

if TYPE_CHECKING:
    import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(
        app,
        "worker",
        examples=(
            "clipfleet worker",
            "clipfleet worker --model ViT-B-32/laion2b_s34b_b79k --milvus-uri http://milvus:19530",
            "clipfleet worker --devices cuda:0,cuda:1 --max-batch-size 128",
            "clipfleet worker --processes 2 --allow-root photos=/data/photos",
            "clipfleet worker --pipeline mymodule:index_objects",
        ),
    )(worker)


def worker(  # noqa: PLR0913  each parameter is a flag
    run: Run,
    *,
    model: o.Model = None,
    pipeline: o.Pipelines = None,
    max_batch_size: o.BatchSize = None,
    max_delay_ms: o.Delay = None,
    bulk_batch_ms: o.BulkBatch = None,
    capacity: o.Capacity = None,
    bulk_capacity: o.BulkCapacity = None,
    processes: o.Processes = None,
    devices: o.Devices = None,
    providers: o.Providers = None,
    lease_ms: o.Lease = None,
    max_deliveries: o.Deliveries = None,
    max_run_s: o.RunS = None,
    grace_s: o.Grace = None,
    decode_threads: o.Decode = None,
    threads: o.Threads = None,
    max_request_bytes: o.RequestBytes = None,
    max_queue_bytes: o.QueueBytes = None,
    allow_root: o.Roots = None,
    allow_urls: o.Urls = None,
    replace: o.Replace = None,
    set_limits: o.Set = None,
) -> int:
    """Serve a queue: run the model for whoever asks.

    Without a Milvus URI it serves embeddings alone. SIGTERM (or Ctrl-C) lets it finish what is in the device and hand
    the rest back; a second one ends it at once. Each flag may be CLIPFLEET_<NAME> in the environment instead.
    """
    flags = {name: value for name, value in locals().items() if name in o.PLAIN_FLAGS}
    flags["pipelines"] = tuple(pipeline) if pipeline else None
    return _serve(run, flags, providers, allow_root)


def _check_installed() -> None:
    """Say at once what is missing: a worker process that cannot be imported would be started again for ever.

    Raises:
        CliError: a package that every worker needs, or a runtime, is not installed.
    """
    missing = [name for name in ("numpy", "PIL", "tokenizers", "ftfy") if find_spec(name) is None]
    if find_spec("onnxruntime") is None and find_spec("torch") is None:
        missing.append("onnxruntime")
    if missing:
        raise CliError(
            f"a worker needs {', '.join(missing)}, not installed here",
            hint='pip install "clipfleet[cpu]", or "clipfleet[gpu]" on a machine with an NVIDIA GPU',
        )


def _serve(run: Run, flags: dict[str, Any], providers: str | None, roots: list[str] | None) -> int:
    _check_installed()
    from clipfleet.cli.worker_config import build, parse_roots  # noqa: PLC0415
    from clipfleet.worker import run as supervise  # noqa: PLC0415  needs the [worker] extra
    from clipfleet.worker.logs import configure  # noqa: PLC0415

    if providers is not None:
        flags["providers"] = tuple(part.strip() for part in providers.split(",") if part.strip())
    if roots:
        flags["allow_roots"] = parse_roots(roots)
    with run.fleet(store=True, worker=False) as settings:
        config = build(settings, flags)
        configure("DEBUG" if run.flags.debug else "INFO")
        return supervise(config)
