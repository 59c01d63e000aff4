"""Who reads next on a fleet whose workers have a device each: a simulation, since few have eight GPUs at hand.

python -m bench.filling     a table: policy, workers, load; p50, p99, mean batch, seconds of a device for each request

- ``in turn``: what Redis does. Whoever has waited longest for an entry gets it, at work or not.
- ``idle first``: who is at work looks for what nobody else took, every 2 to 8 ms.
- ``one fills``: the same, and of the idle ones the one that has begun a batch gets all until that is launched.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field

from bench.stats import percentile

POLICIES = ("in turn", "idle first", "one fills")
DEVICES = {"5 ms + 0.05 ms each": (0.00005, 0.005), "1 ms + 4 ms each": (0.004, 0.001)}
SIZE, MAX_DELAY_S, COUNT = 64, 0.01, 20_000
FIRST_LOOK_S, LONGEST_LOOK_S = 0.002, 0.008


@dataclass(slots=True, eq=False)
class Worker:
    """What one of them holds, by when each request came."""

    forming: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)

    @property
    def room(self) -> int:
        return 2 * SIZE - len(self.forming) - len(self.running)


class Fleet:
    """Workers that are given requests by a policy, and run them by the batch rule."""

    def __init__(self, policy: str, workers: int, cost: tuple[float, float]) -> None:
        self.policy, self.cost = policy, cost
        self.line = [Worker() for _ in range(workers)]  # who has waited longest for an entry, first
        self.backlog: list[float] = []
        self.latencies: list[float] = []
        self.runs, self.device_s = 0, 0.0
        self._events: list[tuple[float, int, str, Worker | None, float]] = []
        self._serial = itertools.count()

    def play(self, rate: float) -> None:
        """So many requests a second, at random moments."""
        gaps, now = random.Random(1), 0.0
        for _ in range(COUNT):
            now += gaps.expovariate(rate)
            self._at(now, "comes")
        while self._events:
            now, _, what, worker, delay = heapq.heappop(self._events)
            if worker is None:
                self._arrive(now)
            elif what == "due":
                self._launch(worker, now)
            elif what == "ends":
                self.latencies += [now - at for at in worker.running]
                worker.running = []
                self._take_left(worker, now)
            elif worker.running:
                self._take_left(worker, now)
                self._at(now + delay, "looks", worker, min(LONGEST_LOOK_S, 2 * delay))

    def _at(self, when: float, what: str, worker: Worker | None = None, delay: float = 0.0) -> None:
        heapq.heappush(self._events, (when, next(self._serial), what, worker, delay))

    def _arrive(self, now: float) -> None:
        able = [worker for worker in self.line if worker.room > 0]
        if self.policy != "in turn":
            able = [worker for worker in able if not worker.running and len(worker.forming) < SIZE]
        if self.policy == "one fills":
            able = [worker for worker in able if worker.forming] or able
        if not able:
            self.backlog.append(now)
            return
        worker = able[0]
        self.line.remove(worker)
        self.line.append(worker)
        worker.forming.append(now)
        self._launch(worker, now)

    def _take_left(self, worker: Worker, now: float) -> None:
        room = worker.room
        worker.forming += self.backlog[:room]
        del self.backlog[:room]
        self._launch(worker, now)

    def _launch(self, worker: Worker, now: float) -> None:
        if worker.running or not worker.forming:
            return
        due = worker.forming[0] + MAX_DELAY_S
        if len(worker.forming) < SIZE and now < due:
            self._at(due, "due", worker)
            return
        worker.running, worker.forming = worker.forming[:SIZE], worker.forming[SIZE:]
        takes = self.cost[0] * len(worker.running) + self.cost[1]
        self.runs += 1
        self.device_s += takes
        self._at(now + takes, "ends", worker)
        if self.policy != "in turn":
            self._at(now + FIRST_LOOK_S, "looks", worker, FIRST_LOOK_S)


def main() -> None:
    """Print the table."""
    for name, (each, run) in DEVICES.items():
        most = SIZE / (each * SIZE + run)
        for workers in (1, 2, 4):
            for share in (0.1, 0.2, 0.5, 0.8):
                for policy in POLICIES if workers > 1 else POLICIES[:1]:
                    fleet = Fleet(policy, workers, (each, run))
                    fleet.play(most * share * workers)
                    p50, p99 = (percentile(fleet.latencies, percent) * 1000 for percent in (50, 99))
                    print(
                        f"{name}, {workers} workers at {share:.0%}, {policy:10}: p50 {p50:5.1f} ms, p99 {p99:5.1f} ms, "
                        f"batch {COUNT / fleet.runs:4.1f}, device {fleet.device_s / COUNT * 1000:.2f} ms/request"
                    )


if __name__ == "__main__":
    main()
