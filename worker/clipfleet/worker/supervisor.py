"""The supervisor: starts worker processes, keeps their leases while they live, and replaces those that die.

It is a process of its own since a thread could not renew leases while a model call holds the GIL, and so small that it
has nothing to hang on: one loop, which listens, renews, says that the workers live, and reaps.

::

    start ──▶ loop: hear · renew · heartbeat · reap ──▶ stop: tell, wait for grace_s, kill, leave
"""

from __future__ import annotations

import logging
import selectors
import signal
import time
from typing import TYPE_CHECKING

from clipfleet.models.devices import choose_devices
from clipfleet.schemas.errors import ClipfleetError
from clipfleet.worker.child import Child
from clipfleet.worker.config import NO_MODEL
from clipfleet.worker.connection import LOST, REFUSED
from clipfleet.worker.control import CANNOT_START
from clipfleet.worker.fleet import Fleet, FleetRefused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from clipfleet.worker.config import WorkerConfig

__all__ = ["Supervisor", "run"]

log = logging.getLogger(__name__)

TICK_S = 0.2
REST_S = 0.01  # between two looks at what workers say; their sockets hold more than they can say in it
HEARTBEAT_EVERY_S = 1.0
SAY_EVERY_S = 5.0
RESTART_FIRST_S, RESTART_MOST_S = 0.2, 10.0
HOPELESS = 3  # starts in a row that ended before the model was loaded: a fourth would too
STEADY_S = 30.0  # a process that lived this long was well: its successor is started at once


class Supervisor:
    """Runs one process per device or as many as asked for.

    Args:
        config: the workers'.
        devices: one per process.
    """

    def __init__(self, config: WorkerConfig, devices: Sequence[str]) -> None:
        self._config = config
        self._fleet = Fleet(config)
        self._devices = list(devices)
        self._children: dict[int, Child] = {}
        self._restart_at: dict[int, float] = dict.fromkeys(range(len(devices)), 0.0)
        self._crashes: dict[int, int] = dict.fromkeys(range(len(devices)), 0)
        self._stillborn: dict[int, int] = dict.fromkeys(range(len(devices)), 0)
        self._selector = selectors.DefaultSelector()
        self._renew_at = 0.0
        self._heartbeat_at = 0.0
        self._stops = 0
        self._exit_code = 0

    def run(self) -> int:
        """Supervise until told to stop; returns the exit code (0 stopped, 1 cannot work)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            self._await_server()
            while not self._stops:
                self._tick()
        except (FleetRefused, ClipfleetError) as refused:
            log.error("%s", refused)  # noqa: TRY400  (said in one line: it is no fault of the program)
            self._exit_code = 1
        self._stop()
        return self._exit_code

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stops += 1

    def _await_server(self) -> None:
        """Wait for a Redis that is not there yet: who starts a fleet with one command starts its parts in no order."""
        say_at = 0.0
        while not self._stops:
            try:
                self._fleet.check_server()
            except LOST as error:
                if time.monotonic() >= say_at:
                    say_at = time.monotonic() + SAY_EVERY_S
                    log.warning("waiting for Redis: %s", error)
                self._hear(TICK_S)
            else:
                return

    # The loop -----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._start_missing()
        self._hear(TICK_S)
        self._reap()
        self._join_ready()
        now = time.monotonic()
        try:
            if now >= self._renew_at:
                self._renew()
                self._renew_at = now + self._config.lease_ms / 3000.0
            if now >= self._heartbeat_at:
                self._heartbeat_at = now + HEARTBEAT_EVERY_S
                self._fleet.heartbeat([child for child in self._children.values() if child.joined])
                # Not at each tick: between two heartbeats that fail nothing is asked that could, and the log would
                # say "well again" and the opposite twice a second.
                self._fleet.patience.fine()
        except REFUSED as error:
            self._renew_at = 0.0
            self._fleet.patience.trouble(error)

    def _start_missing(self) -> None:
        now = time.monotonic()
        for slot, device in enumerate(self._devices):
            if slot not in self._children and now >= self._restart_at[slot]:
                child = self._children[slot] = Child(self._config, device)
                self._selector.register(child.channel, selectors.EVENT_READ, child)
                log.info("worker %s starting on %s (pid %d)", child.name, device, child.pid)

    def _hear(self, timeout_s: float) -> None:
        """Wait for messages and take them; what comes right behind them is taken together.

        Nothing in them is pressing: leases are renewed every few seconds. Waking for each batch of each worker would
        cost a twentieth of all that a request costs.
        """
        heard = self._selector.select(timeout_s)
        for key, _ in heard:
            key.data.hear()
        if heard:
            time.sleep(REST_S)

    def _join_ready(self) -> None:
        """Let each process that has loaded its model into the fleet, if the fleet agrees with it."""
        for child in self._children.values():
            if child.facts and not child.joined:
                try:
                    self._fleet.join(child)
                except REFUSED as error:
                    self._fleet.patience.trouble(error)
                    return
                child.joined = True
                self._heartbeat_at = 0.0  # at once: what looks at the fleet now shall find it alive
                child.tell("go")
                log.info(
                    "worker %s ready: %s on %s (%s)",
                    *(child.name, child.facts["model"], child.facts["device"], child.facts["tried"] or "no model"),
                )

    def _renew(self) -> None:
        """Renew what each living process holds, and tell it what it has lost.

        Not for one that is stopped, since what it holds is not worked on; one whose call never ends is killed, so
        that its requests go on elsewhere.
        """
        for child in self._children.values():
            if child.hung:
                log.error("worker %s: a model call takes longer than %g s; killed", child.name, self._config.max_run_s)
                child.kill()
            elif child.running:
                at = time.monotonic()
                held = {lane: list(ids) for lane, ids in child.held.items() if ids}
                lost = self._fleet.renew(child.name, held)
                child.tell("renewed", at, sorted(lost))

    def _reap(self) -> None:
        """Give back what dead processes held, and see to their successors."""
        for slot, child in list(self._children.items()):
            code = child.exit_code
            if code is None:
                continue
            self._selector.unregister(child.channel)
            child.close()
            del self._children[slot]
            self._bury(child)
            if child.failure or code == CANNOT_START:
                raise FleetRefused(child.failure or "a worker process could not start")
            steady = time.monotonic() - child.started_at > STEADY_S
            self._crashes[slot] = 0 if steady else self._crashes[slot] + 1
            self._stillborn[slot] = 0 if child.facts else self._stillborn[slot] + 1
            if self._stillborn[slot] >= HOPELESS:
                raise FleetRefused(f"a worker process ended {HOPELESS} times before it was ready; its output says why")
            delay = 0.0 if steady else min(RESTART_MOST_S, RESTART_FIRST_S * 2.0 ** (self._crashes[slot] - 1))
            self._restart_at[slot] = time.monotonic() + delay
            log.error("worker %s ended with %d; next one in %.1f s", child.name, code, delay)

    def _bury(self, child: Child) -> None:
        """Take a dead process's entries and its name out of the group.

        They may be run elsewhere at once, instead of when their leases end.
        """
        try:
            self._fleet.release(child.name)
        except REFUSED as error:
            log.warning("worker %s: its leases will run out by themselves: %s", child.name, error)

    # The end ------------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Tell all to finish, keep their leases meanwhile; kill what is left after ``grace_s`` or a second signal."""
        stops = self._stops
        give_up = time.monotonic() + self._config.grace_s
        for child in self._children.values():
            child.tell("stop")
        while any(child.exit_code is None for child in self._children.values()):
            if time.monotonic() >= give_up or self._stops > stops:
                break
            self._hear(0.05)
            if time.monotonic() >= self._renew_at:
                self._renew_at = time.monotonic() + self._config.lease_ms / 3000.0
                try:
                    self._renew()
                except REFUSED as error:
                    log.warning("leases cannot be renewed: %s", error)
        for child in self._children.values():
            if child.exit_code is None:
                log.warning("worker %s did not stop in time; killed", child.name)
                child.kill()
            child.close()
            self._bury(child)
        try:
            self._fleet.strike_off()
        except REFUSED as error:
            log.warning("names of workers may stay in the queue's group for a minute: %s", error)
        self._fleet.close()
        self._selector.close()


def run(config: WorkerConfig) -> int:
    """Run a worker until SIGTERM or SIGINT; returns the exit code for the shell.

    Raises:
        ModelError: a device that was asked for by name is not there.
    """
    devices, why = choose_devices("cpu" if config.model == NO_MODEL else config.devices)
    count = config.processes or len(devices)
    assigned = [devices[i % len(devices)] for i in range(count)]
    log.info("running on %s: %s", ", ".join(assigned), why)
    return Supervisor(config, assigned).run()
