"""``clipfleet status``: what a queue holds and who serves it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clipfleet.cli.run import Run, command
from clipfleet.schemas.text import counted

if TYPE_CHECKING:
    from clipfleet.cli.output import Output
    from clipfleet.cli.queue import Snapshot, WorkerState

__all__ = ["register", "snapshot_json"]

_Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again until Ctrl-C.")]
_MEANING: Final = (
    "can do/s: requests a second, by what those of the last seconds cost, not how many came; mean batch, settled and"
    " failed: since the worker's start"
)
_Interval = Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks with --watch.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "status", examples=("clipfleet status", "clipfleet status --watch", "clipfleet status --json"))(status)


def status(run: Run, *, watch: _Watch = False, interval: _Interval = 1.0) -> int:
    """Show the queue: backlog, workers, what they can do, dead letters.

    "can do/s" is how many requests a second the fleet, or a worker, can do of the kind that came in the last
    seconds, by what its stages cost; it is not how many it was asked for. "mean batch" (items in a run, of all
    stages), "settled" and "failed" (requests) count from the worker's start. The exit code is 4 when no worker is
    alive.
    """
    from clipfleet.cli.queue import QueueView  # noqa: PLC0415

    pause = threading.Event()
    with (
        run.fleet(worker=False) as settings,
        QueueView.open(settings.redis_url, settings.queue, settings.prefix) as view,
    ):
        snapshot = view.snapshot()
        _show(run.out, snapshot, settings.queue)
        while watch and not pause.wait(interval):
            snapshot = view.snapshot()
            if run.out.is_terminal and not run.out.json_lines:
                run.out.clear()
            _show(run.out, snapshot, settings.queue)
    return 0 if any(worker.alive for worker in snapshot.workers) else 4


def snapshot_json(snapshot: Snapshot, queue: str) -> dict[str, Any]:
    """A snapshot as ``--json`` prints it."""
    return {
        "queue": queue,
        "lanes": {
            lane.lane: {
                "total": lane.total,
                "waiting": lane.waiting,
                "in_flight": lane.in_flight,
                "oldest_s": lane.oldest_s,
            }
            for lane in snapshot.lanes
        },
        "bytes": snapshot.bytes,
        "dead": snapshot.dead,
        "fleet": snapshot.fleet,
        "workers": [
            {"name": worker.name, "alive": worker.alive, "age_s": worker.age_s, **worker.presence}
            for worker in snapshot.workers
        ],
    }


def _show(out: Output, snapshot: Snapshot, queue: str) -> None:
    if out.json_lines:
        out.json(snapshot_json(snapshot, queue))
        return
    fleet = snapshot.fleet
    total = sum(lane.total for lane in snapshot.lanes)
    out.line(
        f"queue {queue}: {total} of {fleet.get('capacity', '?')} requests, {snapshot.bytes / 2**20:.1f} MiB,"
        f" {counted(snapshot.dead, 'dead letter')}{_can_do(snapshot)}"
    )
    if "fingerprint" in fleet:
        out.line(f"model {fleet['fingerprint'][:12]}, {fleet.get('dimension', '?')} dimensions")
    lanes = [
        (lane.lane, str(lane.waiting), str(lane.in_flight), "" if lane.oldest_s is None else f"{lane.oldest_s:.1f} s")
        for lane in snapshot.lanes
    ]
    out.table("", ("lane", "#waiting", "#in flight", "#oldest"), lanes)
    if snapshot.workers:
        columns = ("worker", "state", "device", "provider", "#can do/s", "#mean batch", "#settled", "#failed")
        out.table("", columns, [_worker_row(worker) for worker in snapshot.workers])
        out.line(_MEANING)
        for tried in dict.fromkeys(worker.presence.get("tried", "") for worker in snapshot.workers):
            # "cpu: taken" alone says nothing that the table does not.
            if ";" in tried or "|" in tried:
                out.line(f"providers tried: {tried}")
    else:
        out.line("no worker serves this queue now: start one with 'clipfleet worker' or 'clipfleet up'")


def _can_do(snapshot: Snapshot) -> str:
    if not any(worker.alive for worker in snapshot.workers):
        return ""  # what its workers could do when they lived is still written there
    rate = _rate(snapshot.fleet.get("rate", ""))
    return f"; the fleet can do {rate} requests/s" if rate else "; what the fleet can do is not known yet"


def _rate(told: str) -> str:
    """A rate for people; empty where none is known: it is 0 until a first request was done."""
    try:
        rate = float(told)
    except ValueError:
        return told
    return "" if rate == 0 else f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def _worker_row(worker: WorkerState) -> tuple[str, ...]:
    state = "alive" if worker.alive else f"silent for {worker.age_s:.0f} s"
    device, provider, rate, *counts = (
        worker.presence.get(field, "") for field in ("device", "provider", "rate", "mean_batch", "settled", "failed")
    )
    return (worker.name, state, device, provider, _rate(rate), *counts)
