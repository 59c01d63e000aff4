"""One worker process: load, say what it is, work until told to stop. Started by the supervisor.

Order of a shutdown: stop reading · finish what is on the device and with the store · settle it · hand the rest back ·
exit. Reading stops first, since whatever is read after that would only be handed back.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from clipfleet.pipeline.engine import Engine, start_thread
from clipfleet.schemas.errors import ClipfleetError
from clipfleet.schemas.text import counted
from clipfleet.worker.assembly import Assembled, assemble
from clipfleet.worker.clock import ServerClock
from clipfleet.worker.config import WorkerConfig
from clipfleet.worker.connection import REFUSED
from clipfleet.worker.context import Context
from clipfleet.worker.control import CANNOT_START, Channel
from clipfleet.worker.intake import Intake
from clipfleet.worker.ledger import Ledger
from clipfleet.worker.parent import die_with_parent
from clipfleet.worker.report import Reporter
from clipfleet.worker.settler import Settler
from clipfleet.worker.stream import QueueStream
from clipfleet.worker.wire import Wire

if TYPE_CHECKING:
    from clipfleet.worker.entry import Entry

__all__ = ["collect_seldom", "main"]

log = logging.getLogger(__name__)
STATS_EVERY_S = 1.0
# On a CPU decoding and model calls take all cores for as long as there is work. What answers on this machine (Redis,
# Milvus, callers, the threads that read and settle) needs little of them, but at once: a live query takes many turns.
GIVE_WAY = 10
COLLECT_AFTER = 10_000  # objects, from Python's 700: a batch in flight has more than that, and none of it is garbage


def main(channel_fd: int) -> int:
    """Be the worker process at the end of the socket ``channel_fd``; returns its exit code."""
    # The supervisor decides when to stop; a Ctrl-C reaches the whole group, systemd and timeout(1) send SIGTERM to all
    # processes, and neither must cut a model call short. A handler, since programs that a pipeline's function starts
    # would inherit SIG_IGN, and could not be ended so.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    channel = Channel(socket.socket(fileno=channel_fd))
    kind, settings, name, device, log_level, parent_pid = channel.receive()
    assert kind == "config"  # noqa: S101  (both ends are of one release)
    die_with_parent(parent_pid)
    _log_to_stderr(name, log_level)
    config = WorkerConfig.of_message(settings)
    try:
        assembled = assemble(config, device)
    except (ClipfleetError, ImportError, OSError, ValueError) as error:
        channel.send("failed", f"{type(error).__name__}: {error}")
        return CANNOT_START
    collect_seldom()
    channel.send("ready", assembled.facts)
    return Process(config, name, channel, assembled).run()


class Process:
    """The running parts of one worker process."""

    def __init__(self, config: WorkerConfig, name: str, channel: Channel, assembled: Assembled) -> None:
        self._config = config
        self._name = name
        self._channel = channel
        self._streams: list[QueueStream] = []
        self._began_at = time.monotonic()
        self._reporter = Reporter(channel)
        self._ledger = Ledger(config.lease_ms / 1000.0, self._reporter.holding)
        self._settler = Settler(self._connect(), self._ledger, assembled.hooks)
        self._context = Context(
            ledger=self._ledger,
            settler=self._settler,
            clock=ServerClock(),
            hooks=assembled.hooks,
            connect=self._connect,
            report_call=self._reporter.calling,
            fingerprint=assembled.served.fingerprint,
        )
        self._engine = Engine(
            assembled.served,
            self._context,
            threads=assembled.decode_threads,
            rows=4 * config.most_batch,
            most_s=config.max_run_s,
            nice=GIVE_WAY if assembled.facts["device"] == "cpu" else 0,
        )
        self._intake = Intake(config, self._context, self._engine)

    def run(self) -> int:
        """Work until told to stop."""
        try:
            if self._told_to_go():
                self._work()
        finally:
            for stream in self._streams:
                stream.wire.close()
        return 0

    def _work(self) -> None:
        settling = start_thread("settle", self._settler.run)
        self._engine.start()
        intake = start_thread("intake", self._intake.run)
        self._serve_supervisor()
        self._context.stop.set()
        self._ledger.wake()
        intake.join()
        self._engine.stop()
        self._settler.close()
        settling.join()
        self._hand_back(self._ledger.held())
        self._reporter.flush()

    def _connect(self) -> QueueStream:
        stream = QueueStream(Wire(self._config.redis_url), self._config.keys, self._name)
        self._streams.append(stream)
        return stream

    def _told_to_go(self) -> bool:
        """Wait until the fleet agrees; False when it is to end instead."""
        while (kind := self._channel.receive()[0]) not in {"go", "stop"}:
            pass  # renewals of nothing
        return bool(kind == "go")

    def _serve_supervisor(self) -> None:
        """Take its messages and send it figures, until it says stop."""
        stats_at = 0.0
        while True:
            if self._channel.poll(max(0.0, stats_at - time.monotonic())):
                kind, *rest = self._channel.receive()
                if kind == "stop":
                    return
                if kind == "idle":
                    (self._context.others_idle.set if rest[0] else self._context.others_idle.clear)()
                elif kind == "renewed":
                    at, lost = rest
                    self._ledger.forget(((lane, one) for lane, one in lost), at)
                    self._ledger.renewed(at)
            if time.monotonic() >= stats_at:
                stats_at = time.monotonic() + STATS_EVERY_S
                self._reporter.flush()
                self._channel.send("stats", self._stats())

    def _stats(self) -> dict[str, Any]:
        stages = self._engine.stats()
        sizes: dict[int, int] = {}
        for stats in stages.values():
            for size, count in stats.sizes.items():
                sizes[size] = sizes.get(size, 0) + count
        busy_s, full_s = self._ledger.times()
        return {
            "at": time.monotonic() - self._began_at,
            "busy_s": busy_s,
            "full_s": full_s,
            "loads": [astuple(load) for load in self._engine.forecast.loads()],
            "settled": self._settler.settled,
            "failed": self._settler.failed,
            "held": len(self._ledger),
            "stages": {
                name: {
                    "batches": sum(stats.sizes.values()),
                    "items": stats.items,
                    "waiting": stats.waiting,
                    "cost_ms": None if stats.line is None else [round(part * 1000.0, 4) for part in stats.line],
                    "bulk_most": stats.bulk_most,
                    "reasons": {str(reason): count for reason, count in stats.batches.items()},
                }
                for name, stats in stages.items()
            },
        }

    def _hand_back(self, entries: list[Entry]) -> None:
        """Give undone work back at once, its delivery count as if it had not been read."""
        stream = self._connect()
        for lane in self._config.keys.lanes:
            mine = [(entry.stream_id, entry.deliveries - 1) for entry in entries if entry.lane == lane]
            try:
                stream.hand_back(lane, mine, idle_ms=self._config.lease_ms)
            except REFUSED as error:
                log.warning(
                    "%s could not be handed back, and wait for their leases: %s", counted(len(mine), "request"), error
                )
        self._ledger.remove(entries)


def collect_seldom() -> None:
    """Look for cycles less often, and never again among what was loaded: that was 7 % of a request's cost."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *gc.get_threshold()[1:])


def _log_to_stderr(name: str, level: str) -> None:
    from clipfleet.worker.logs import configure  # noqa: PLC0415  (the supervisor configures its own)

    configure(level, worker=name)


if __name__ == "__main__":
    threading.current_thread().name = "supervised"
    code = main(int(sys.argv[1]))
    sys.stderr.flush()
    # The interpreter's own shutdown joins nothing we need and may wait for a store call that hangs.
    os._exit(code)
