"""The worker: intake, batching, leases, settling, and the supervisor that keeps it alive."""

from __future__ import annotations

from clipfleet.worker.config import WorkerConfig
from clipfleet.worker.hooks import Hooks

__all__ = ["Hooks", "WorkerConfig", "run"]


def run(config: WorkerConfig) -> int:
    """Run a worker until SIGTERM or SIGINT; returns the exit code for the shell (see ``supervisor.run``)."""
    from clipfleet.worker.supervisor import run as supervise  # noqa: PLC0415  (keeps the import of the config cheap)

    return supervise(config)
